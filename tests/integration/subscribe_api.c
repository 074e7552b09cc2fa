/* SPDX-License-Identifier: PostgreSQL */
/*
 * libwalbus' subscribing, from C, as a user links it. Run by test_subscribe_api.py.
 *
 *   subscribe_api two SOCKET N            two subscriptions in one thread; the second is closed after its first
 *                                         message, the first gets N. The process must never have a second thread
 *   subscribe_api print SOCKET            prints all that a delivery says, numbers in decimal, up to a message `end`:
 *                                           begin POSITION LSN XID TIME FLAGS
 *                                           message POSITION INDEX LSN XID TIME RECEIVED FLAGS PREFIX SIZE
 *                                           commit POSITION LSN END XID TIME MESSAGES FLAGS
 *   subscribe_api broken SOCKET           stops itself (SIGSTOP) at the first message of a transaction; continued, it
 *                                         follows until a message of the prefix `end`, over a reconnect and a gap
 *   subscribe_api threads SOCKET N M      M threads, each with a subscription of its own that gets N messages, and
 *                                         asking the router meanwhile
 *
 * "ready" when every subscription is; at the end "all checks are ok", or what is not.
 */
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <walbus/walbus.h>

#define THREADS_MAX 16
#define WAIT_MS     60000

static void die(const char *what, const char *why)
{
    (void)printf("%s: %s\n", what, why);
    (void)fflush(stdout);
    _Exit(1);
}

/** What one subscription has seen. */
struct seen {
    const char *socket;
    uint64_t messages, wanted;
    uint64_t sum; /* over positions and contents, by which two can be compared */
    struct walbus_position last;
    bool inside;
    bool may_miss; /* a GAP is no fault */
    bool broken;   /* READY has ended a transaction */
    bool resumed;  /* and what was left of it has come */
    bool missed;   /* or lies in the GAP behind READY */
};

static struct walbus_subscription *open_subscription(const char *socket)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct walbus_subscription *sub;

    options.socket = socket;
    options.client = "subscribe_api";
    enum walbus_result result = walbus_subscription_open(&options, &sub);
    if (result != WALBUS_OK)
        die("open", walbus_result_text(result));
    return sub;
}

static const struct walbus_delivery *next(struct walbus_subscription *sub)
{
    const struct walbus_delivery *d;
    enum walbus_result result = walbus_subscription_next(sub, WAIT_MS, &d);

    if (result != WALBUS_OK)
        die("next", walbus_subscription_error(sub));
    if (walbus_subscription_ack(sub, walbus_delivery_position(d), 0) != WALBUS_OK)
        die("ack", walbus_subscription_error(sub));
    return d;
}

static void wait_ready(struct walbus_subscription *sub)
{
    if (walbus_delivery_kind(next(sub)) != WALBUS_DELIVERY_READY)
        die("first delivery", "not READY");
    if (!*walbus_subscription_identity(sub))
        die("identity", "empty behind READY");
}

static void add(struct seen *s, const void *data, size_t size)
{
    const uint8_t *bytes = data;

    for (size_t i = 0; i < size; i++) /* FNV-1a */
        s->sum = (s->sum ^ bytes[i]) * UINT64_C(0x100000001b3);
}

static void take(struct seen *s, const struct walbus_delivery *d)
{
    struct walbus_position position = walbus_delivery_position(d);
    bool transactional = walbus_delivery_flags(d) & WALBUS_DELIVERY_TRANSACTIONAL;
    uint8_t packed[WALBUS_POSITION_SIZE];
    size_t size;

    switch (walbus_delivery_kind(d)) {
    case WALBUS_DELIVERY_READY:
        s->broken = s->inside;
        s->inside = false;
        return;
    case WALBUS_DELIVERY_BEGIN:
        if (s->inside)
            die("BEGIN", "inside a transaction");
        s->inside = true;
        s->resumed |= (walbus_delivery_flags(d) & WALBUS_DELIVERY_RESUMED) != 0;
        return;
    case WALBUS_DELIVERY_COMMIT:
        if (!s->inside)
            die("COMMIT", "outside a transaction");
        s->inside = false;
        return;
    case WALBUS_DELIVERY_MESSAGE:
        break;
    case WALBUS_DELIVERY_GAP:
        if (!s->may_miss)
            die("GAP", walbus_delivery_reason(d));
        s->missed = true;
        return;
    default:
        return;
    }
    if (walbus_position_compare(position, s->last) <= 0 || transactional != s->inside)
        die("MESSAGE", "out of place");
    s->last = position;
    s->messages++;
    walbus_position_pack(position, packed);
    add(s, packed, sizeof packed);
    const void *bytes = walbus_delivery_prefix(d, &size);
    add(s, bytes, size);
    bytes = walbus_delivery_content(d, &size);
    add(s, bytes, size);
}

static void follow(struct walbus_subscription *sub, struct seen *s)
{
    while (s->messages < s->wanted || s->inside)
        take(s, next(sub));
}

static void ready(void)
{
    (void)puts("ready");
    (void)fflush(stdout);
}

static unsigned count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    unsigned n = 0;

    if (!tasks)
        die("/proc/self/task", "cannot be read");
    for (struct dirent *entry; (entry = readdir(tasks));)
        n += entry->d_name[0] != '.';
    (void)closedir(tasks);
    return n;
}

static void one_thread(const char *when)
{
    if (count_threads() != 1)
        die(when, "there is more than one thread");
}

static void ask(const char *socket)
{
    struct walbus_reply *reply;
    size_t size;

    if (walbus_request(socket, "status", NULL, 0, WAIT_MS, &reply) != WALBUS_OK)
        die("request", walbus_reply_error(reply));
    if (!walbus_reply_result(reply, &size) || size < 100)
        die("request", "hardly an answer");
    walbus_reply_free(reply);
    if (walbus_request(socket, "nonsense", NULL, 0, WAIT_MS, &reply) != WALBUS_REFUSED)
        die("request", "nonsense was not refused");
    if (strcmp(walbus_reply_error_code(reply), "unsupported") != 0)
        die("request", walbus_reply_error_code(reply));
    walbus_reply_free(reply);
}

static void test_two(const char *socket, uint64_t n)
{
    struct seen a = {.socket = socket, .wanted = n}, b = {.socket = socket, .wanted = 1};
    struct walbus_subscription *first = open_subscription(socket),
                               *second = open_subscription(socket);

    one_thread("open");
    wait_ready(first);
    wait_ready(second);
    one_thread("connected");
    ready();
    while (b.messages < 1)
        take(&b, next(second));
    while (a.messages < 1)
        take(&a, next(first));
    if (a.sum != b.sum)
        die("two subscriptions", "saw different messages");
    ask(socket);
    second = walbus_subscription_close(second);
    ask(socket);
    follow(first, &a);
    one_thread("at the end");
    first = walbus_subscription_close(first);
}

static bool is_end(const struct walbus_delivery *d)
{
    size_t size;
    const char *prefix = walbus_delivery_prefix(d, &size);

    return size == 3 && memcmp(prefix, "end", 3) == 0;
}

static void print_delivery(const struct walbus_delivery *d)
{
    struct walbus_position at = walbus_delivery_position(d);
    char position[WALBUS_POSITION_TEXT_SIZE];
    size_t prefix_size, size;
    const char *prefix = walbus_delivery_prefix(d, &prefix_size);

    (void)walbus_delivery_content(d, &size);
    (void)walbus_position_format(at, position);
    switch (walbus_delivery_kind(d)) {
    case WALBUS_DELIVERY_BEGIN:
        (void)printf("begin %s %" PRIu64 " %" PRIu32 " %" PRId64 " %u\n", position,
                     walbus_delivery_lsn(d), walbus_delivery_xid(d),
                     walbus_delivery_commit_time_us(d), walbus_delivery_flags(d));
        break;
    case WALBUS_DELIVERY_MESSAGE:
        (void)printf("message %s %" PRIu32 " %" PRIu64 " %" PRIu32 " %" PRId64 " %" PRId64
                     " %u %.*s %zu\n",
                     position, at.index, walbus_delivery_lsn(d), walbus_delivery_xid(d),
                     walbus_delivery_commit_time_us(d), walbus_delivery_received_time_us(d),
                     walbus_delivery_flags(d), (int)prefix_size, prefix, size);
        break;
    case WALBUS_DELIVERY_COMMIT:
        (void)printf("commit %s %" PRIu64 " %" PRIu64 " %" PRIu32 " %" PRId64 " %" PRIu64 " %u\n",
                     position, walbus_delivery_lsn(d), walbus_delivery_end_lsn(d),
                     walbus_delivery_xid(d), walbus_delivery_commit_time_us(d),
                     walbus_delivery_messages(d), walbus_delivery_flags(d));
        break;
    default: /* PROGRESS comes to each subscriber as it may */
        break;
    }
}

static void test_print(const char *socket)
{
    struct walbus_subscription *sub = open_subscription(socket);
    struct seen s = {.socket = socket};
    const struct walbus_delivery *d;
    bool ended = false;

    wait_ready(sub);
    ready();
    while (!ended || s.inside) {
        take(&s, d = next(sub));
        print_delivery(d);
        ended |= is_end(d);
    }
    sub = walbus_subscription_close(sub);
}

static void test_broken(const char *socket)
{
    struct walbus_subscription *sub = open_subscription(socket);
    struct seen s = {.socket = socket, .wanted = 1, .may_miss = true};
    const struct walbus_delivery *d;
    bool broken = false;

    wait_ready(sub);
    ready();
    do
        take(&s, d = next(sub));
    while (!s.inside || s.messages < 1);
    (void)raise(SIGSTOP);
    do {
        take(&s, d = next(sub));
        broken |= s.broken;
    } while (!is_end(d));
    sub = walbus_subscription_close(sub);
    if (!broken)
        die("READY", "did not come inside a transaction");
    if (s.resumed == s.missed)
        die("the rest of the transaction",
            s.resumed ? "came and is missing" : "is lost in silence");
    (void)puts(s.resumed ? "resumed" : "missed");
}

static pthread_barrier_t barrier;

static void *thread(void *context)
{
    struct seen *s = context;
    struct walbus_subscription *sub = open_subscription(s->socket);

    wait_ready(sub);
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
        ready();
    while (s->messages < s->wanted || s->inside) {
        take(s, next(sub));
        if (s->messages == s->wanted / 2)
            ask(s->socket);
    }
    sub = walbus_subscription_close(sub);
    return NULL;
}

static void test_threads(const char *socket, uint64_t n, unsigned m)
{
    struct seen seen[THREADS_MAX] = {{0}};
    pthread_t threads[THREADS_MAX];

    if (m < 1 || m > THREADS_MAX || pthread_barrier_init(&barrier, NULL, m) != 0)
        die("threads", "cannot be that many");
    for (unsigned i = 0; i < m; i++) {
        seen[i] = (struct seen){.socket = socket, .wanted = n};
        if (pthread_create(&threads[i], NULL, thread, &seen[i]) != 0)
            die("threads", "cannot be started");
    }
    for (unsigned i = 0; i < m; i++) {
        (void)pthread_join(threads[i], NULL);
        if (seen[i].sum != seen[0].sum)
            die("threads", "saw different messages");
    }
    (void)pthread_barrier_destroy(&barrier);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "two") == 0) {
        test_two(argv[2], strtoull(argv[3], NULL, 10));
    } else if (argc == 3 && strcmp(argv[1], "print") == 0) {
        test_print(argv[2]);
    } else if (argc == 3 && strcmp(argv[1], "broken") == 0) {
        test_broken(argv[2]);
    } else if (argc == 5 && strcmp(argv[1], "threads") == 0) {
        test_threads(argv[2], strtoull(argv[3], NULL, 10), (unsigned)atoi(argv[4]));
    } else {
        (void)fputs(
            "usage: subscribe_api print|broken SOCKET | two SOCKET N | threads SOCKET N M\n",
            stderr);
        return 2;
    }
    (void)puts("all checks are ok");
    return 0;
}
