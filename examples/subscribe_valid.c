/* SPDX-License-Identifier: PostgreSQL */
/*
 * Acts only on events that a trusted key has signed for their prefix, each once.
 *
 *   cc subscribe_valid.c $(pkg-config --cflags --libs walbus) -o subscribe_valid
 *   ./subscribe_valid /etc/walbus/trust 'orders.>'
 *
 * Whoever has read an event can emit the same bytes again, and they are as valid as before; so what was
 * handled is remembered, by source and id. Here that is the last one; an application keeps them where its
 * effects are, under a unique key.
 */
#include <stdio.h>
#include <string.h>
#include <walbus/walbus.h>

/** The file that is not understood, at the beginning or later. */
static void complain(void *context, const char *sentence)
{
    (void)context;
    fprintf(stderr, "%s\n", sentence);
}

/** Whether it is the event that was handled last. */
static int is_repeated(const struct walbus_delivery *d)
{
    static char last[512];
    char own[sizeof last];
    size_t source_size, id_size;
    const char *source = walbus_delivery_attribute(d, "source", &source_size);
    const char *id = walbus_delivery_attribute(d, "id", &id_size);

    snprintf(own, sizeof own, "%.*s %.*s", (int)source_size, source, (int)id_size, id);
    int repeated = strcmp(own, last) == 0;
    memcpy(last, own, sizeof last);
    return repeated;
}

static void handle(const struct walbus_delivery *d)
{
    size_t prefix_size, size, kid_size;
    const char *prefix = walbus_delivery_prefix(d, &prefix_size);
    const char *text = walbus_delivery_data_text(d, &size);
    const unsigned char *kid = walbus_delivery_kid(d, &kid_size);

    for (size_t i = 0; i < kid_size; i++)
        printf("%02x", kid[i]);
    printf(" %.*s %.*s\n", (int)prefix_size, prefix, (int)size, text ? text : "");
}

int main(int argc, char **argv)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    const char *pattern = argc > 2 ? argv[2] : ">";
    struct walbus_filter filter = {WALBUS_FILTER_PATTERN, pattern, strlen(pattern)};
    struct walbus_subscription *sub;
    const struct walbus_delivery *d;

    options.filters = &filter;
    options.n_filters = 1;
    options.trust = argc > 1 ? argv[1] : "/etc/walbus/trust";
    options.flags = WALBUS_VALID_ONLY; /* without it: if (walbus_delivery_signature(d) == …) */
    options.log = complain;
    enum walbus_result result = walbus_subscription_open(&options, &sub);
    if (result != WALBUS_OK) {
        fprintf(stderr, "%s\n", walbus_result_text(result));
        return 1;
    }
    while (walbus_subscription_next(sub, -1, &d) == WALBUS_OK) {
        if (walbus_delivery_kind(d) == WALBUS_DELIVERY_READY)
            (void)fputs("ready\n", stderr);
        if (walbus_delivery_kind(d) == WALBUS_DELIVERY_MESSAGE && !is_repeated(d))
            handle(d);
        /* Others too: PROGRESS stands for what was withheld. */
        if (fflush(stdout) == 0)
            (void)walbus_subscription_ack(sub, walbus_delivery_position(d), 0);
    }
    fprintf(stderr, "%s\n", walbus_subscription_error(sub));
    walbus_subscription_close(sub);
    return 1;
}
