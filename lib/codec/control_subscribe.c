/* SPDX-License-Identifier: PostgreSQL */
/* SUBSCRIBE, the one control body that is more than its keys: filters, and a start in words. */
#include "codec/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "codec/cbor.h"
#include "codec/control_fields.h"

/* SUBSCRIBE as it travels; the filters and the start word are translated apart. */
struct wire_subscribe {
    struct bytes filters, exclude; /* items */
    struct bytes name, start;      /* texts */
    struct position position;
    int64_t time;
    bool take_over, override, has_position, has_time, has_start;
};

static const struct control_field subscribe_fields[] = {
    OPTIONAL(FIELD_TEXT, struct wire_subscribe, "name", name),
    FLAGGED(FIELD_INT, struct wire_subscribe, "time", time, has_time),
    FLAGGED(FIELD_TEXT, struct wire_subscribe, "start", start, has_start),
    OPTIONAL(FIELD_ITEM, struct wire_subscribe, "exclude", exclude),
    REQUIRED(FIELD_ITEM, struct wire_subscribe, "filters", filters),
    OPTIONAL(FIELD_BOOL, struct wire_subscribe, "override", override),
    FLAGGED(FIELD_POSITION, struct wire_subscribe, "position", position, has_position),
    OPTIONAL(FIELD_BOOL, struct wire_subscribe, "take_over", take_over),
};

_Static_assert(ARRAY_SIZE(subscribe_fields) <= CONTROL_FIELDS_MAX, "a bit of `seen` for each row");

static const char *const start_words[] = {
    [CONTROL_START_STORED] = "stored", [CONTROL_START_NOW] = "now",
    [CONTROL_START_OLDEST] = "oldest", [CONTROL_START_POSITION] = "position",
    [CONTROL_START_TIME] = "time",
};

bool control_name_is_good(struct bytes name)
{
    size_t at = 0;

    while (at < name.size) {
        uint32_t code_point;
        size_t n = text_utf8_sequence(name.data + at, name.size - at, &code_point);

        if (n == 0 || !text_is_graphic(code_point))
            return false;
        at += n;
    }
    return name.size > 0 && name.size <= CONTROL_NAME_MAX;
}

static void put_filters(struct buf *out, const struct filter *filters, size_t n)
{
    cbor_put_array(out, n);
    for (size_t i = 0; i < n; i++) {
        cbor_put_array(out, 2);
        cbor_put_uint(out, filters[i].kind);
        cbor_put_bytes(out, filters[i].text);
    }
}

void control_subscribe_encode(const struct control_subscribe *c, struct buf *out)
{
    struct buf filters = BUF_INIT, exclude = BUF_INIT;

    put_filters(&filters, c->filters, c->n_filters);
    if (c->n_exclusions)
        put_filters(&exclude, c->exclusions, c->n_exclusions);

    struct wire_subscribe wire = {
        .filters = buf_bytes(&filters),
        .exclude = buf_bytes(&exclude),
        .name = c->name,
        .start = bytes_of_text(start_words[c->start]),
        .has_start = true,
        .position = c->position,
        .has_position = c->start == CONTROL_START_POSITION,
        .time = c->time,
        .has_time = c->start == CONTROL_START_TIME,
        .take_over = c->take_over,
        .override = c->override,
    };
    if (filters.failed || exclude.failed) {
        buf_deinit(out);
        out->failed = true;
    } else {
        control_fields_put(out, FRAME_SUBSCRIBE, subscribe_fields, ARRAY_SIZE(subscribe_fields),
                           &wire);
    }
    buf_deinit(&filters);
    buf_deinit(&exclude);
}

/* One [kind, text]. Fills `why` when it is wrong; `number` counts from 1. */
static int get_filter(struct cbor_reader *r, const char *key, uint64_t number, struct filter *ret,
                      char why[CONTROL_WHY_SIZE])
{
    uint64_t n, kind;
    struct bytes text;

    if (cbor_read_array(r, &n) != CBOR_OK || n != 2 || cbor_read_uint(r, &kind) != CBOR_OK ||
        (cbor_read_bytes(r, &text) != CBOR_OK && cbor_read_text(r, &text) != CBOR_OK)) {
        (void)snprintf(why, CONTROL_WHY_SIZE,
                       "Entry %llu of \"%s\" is not an array of a kind and a byte string.",
                       (unsigned long long)number, key);
        return -EBADMSG;
    }
    if (kind > FILTER_STARTS_WITH) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "Entry %llu of \"%s\" is of the unknown kind %llu.",
                       (unsigned long long)number, key, (unsigned long long)kind);
        return -EBADMSG;
    }
    if (text.size > FILTER_TEXT_MAX) {
        (void)snprintf(why, CONTROL_WHY_SIZE,
                       "Entry %llu of \"%s\" has %zu bytes; %d are the most.",
                       (unsigned long long)number, key, text.size, FILTER_TEXT_MAX);
        return -EBADMSG;
    }
    *ret = (struct filter){.kind = (enum filter_kind)kind, .text = text};
    return 0;
}

/* A list of filters; *ret is malloc'ed, NULL when the list is empty. */
static int get_filters(struct bytes item, const char *key, struct filter **ret, size_t *ret_n,
                       char why[CONTROL_WHY_SIZE])
{
    struct cbor_reader r = cbor_reader_init(item);
    uint64_t n;

    if (cbor_read_array(&r, &n) != CBOR_OK) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The value of \"%s\" is not an array.", key);
        return -EBADMSG;
    }
    if (n > FILTERS_MAX) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "\"%s\" has %llu entries; %d are the most.", key,
                       (unsigned long long)n, FILTERS_MAX);
        return -EBADMSG;
    }
    if (n == 0) {
        *ret = NULL;
        *ret_n = 0;
        return 0;
    }
    struct filter *filters = calloc((size_t)n, sizeof *filters);
    if (!filters)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int e = get_filter(&r, key, i + 1, &filters[i], why);

        if (e < 0) {
            free(filters);
            return e;
        }
    }
    *ret = filters;
    *ret_n = (size_t)n;
    return 0;
}

static int check_tokens(const struct control_subscribe *c, char why[CONTROL_WHY_SIZE])
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_filters; i++)
        n += filter_tokens(&c->filters[i]);
    for (size_t i = 0; i < c->n_exclusions; i++)
        n += filter_tokens(&c->exclusions[i]);
    if (n <= FILTERS_TOKENS_MAX)
        return 0;
    (void)snprintf(why, CONTROL_WHY_SIZE, "The patterns have %zu tokens; %d are the most.", n,
                   FILTERS_TOKENS_MAX);
    return -EBADMSG;
}

static int get_start(const struct wire_subscribe *wire, enum control_start *ret,
                     char why[CONTROL_WHY_SIZE])
{
    enum control_start start = CONTROL_START_NOW;

    if (wire->has_start) {
        size_t i = 0;

        while (i < ARRAY_SIZE(start_words) &&
               !bytes_equal(wire->start, bytes_of_text(start_words[i])))
            i++;
        if (i == ARRAY_SIZE(start_words)) {
            struct buf shown = BUF_INIT;

            text_put_visible(&shown, (struct bytes){wire->start.data, MIN(wire->start.size, 20u)});
            (void)snprintf(why, CONTROL_WHY_SIZE, "The \"start\" is an unknown word: %.80s.",
                           buf_str(&shown));
            buf_deinit(&shown);
            return -EBADMSG;
        }
        start = (enum control_start)i;
    }
    if (start == CONTROL_START_POSITION && !wire->has_position) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"position\" is missing.");
        return -EBADMSG;
    }
    if (start == CONTROL_START_TIME && !wire->has_time) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"time\" is missing.");
        return -EBADMSG;
    }
    *ret = start;
    return 0;
}

int control_subscribe_decode(struct bytes body, struct control_subscribe *ret,
                             char why[CONTROL_WHY_SIZE])
{
    struct wire_subscribe wire = {0};
    struct control_subscribe c = {0};
    int r;

    r = control_fields_get(body, subscribe_fields, ARRAY_SIZE(subscribe_fields), &wire, why);
    if (r < 0)
        return r;
    if (wire.name.data &&
        !wire.name.size) { /* a variable that was not set must not make an ephemeral subscription */
        (void)snprintf(why, CONTROL_WHY_SIZE, "\"name\" is empty; without a name leave it out.");
        return -EBADMSG;
    }
    r = get_start(&wire, &c.start, why);
    if (r < 0)
        return r;
    r = get_filters(wire.filters, "filters", &c.filters, &c.n_filters, why);
    if (r < 0)
        return r;
    if (c.n_filters == 0) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "\"filters\" is empty: nothing would be delivered.");
        return -EBADMSG;
    }
    if (wire.exclude.size)
        r = get_filters(wire.exclude, "exclude", &c.exclusions, &c.n_exclusions, why);
    if (r == 0)
        r = check_tokens(&c, why);
    if (r < 0) {
        control_subscribe_deinit(&c);
        return r;
    }
    c.name = wire.name;
    c.position = wire.position;
    c.time = wire.time;
    c.take_over = wire.take_over;
    c.override = wire.override;
    *ret = c;
    return 0;
}

void control_subscribe_deinit(struct control_subscribe *c)
{
    free(c->filters);
    free(c->exclusions);
    *c = (struct control_subscribe){0};
}
