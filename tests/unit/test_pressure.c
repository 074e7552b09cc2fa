/* SPDX-License-Identifier: PostgreSQL */
/*
 * A whole router, its listener and its sessions, with two seams: the source is this file's own
 * (batches come when a test says so, and what is asked of it is counted), and so are the clock and
 * the data that a socket takes. Time passes when a test lets it pass, and a subscriber reads to the
 * byte what a test lets it read.
 */
#include "router.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "unit.h"

#define PEERS_MAX  80
#define HALF_BYTES (OUTBOX_BYTES_MAX / 2)
#define HALF_ITEMS (OUTBOX_ITEMS_MAX / 2)
/* How often a router that holds looks at its sessions; what a pace is judged by comes in a whole number of them. */
#define LOOK_MS 25u
#define LOOKS   (ROUTER_PRESSURE_MS / LOOK_MS)

static struct router r;
static uv_loop_t loop;
static struct settings settings;
static struct logger silent;
static char folder[32], path[64];
static int clients[PEERS_MAX + 1]; /* by session id, 0: none */
static size_t room[PEERS_MAX + 1]; /* bytes of data that its socket will still take */
static uint64_t lsn;
static unsigned holds_begun, holds_ended;

/* ---- the clock ---- */

static uint64_t clock_ms = 1000000;
static unsigned write_takes_ms; /* a slow turn: time that passes while a socket takes something */

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE)
        return (int)syscall(SYS_clock_gettime, id, t);
    *t = (struct timespec){(time_t)(clock_ms / 1000), (long)(clock_ms % 1000) * 1000000};
    return 0;
}

static void turn(void)
{
    (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/** Time passes, and the loop has nothing else to do. */
static void elapse(unsigned ms)
{
    while (ms) {
        unsigned step = MIN(ms, LOOK_MS);

        clock_ms += step;
        ms -= step;
        turn();
    }
}

/* ---- sockets ---- */

/* Data frames go out by sendmsg alone; control frames by send, which is the real one. */
ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    struct session *s = r.sessions;
    size_t size = 0;

    (void)flags;
    while (s && s->fd != fd)
        s = s->next;
    if (!s)
        ck_abort_msg("data for descriptor %d, which is no session's", fd);
    for (size_t i = 0; i < msg->msg_iovlen; i++)
        size += msg->msg_iov[i].iov_len;
    size = MIN(size, room[s->id]);
    if (size == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (room[s->id] != SIZE_MAX)
        room[s->id] -= size;
    clock_ms += write_takes_ms;
    return (ssize_t)size;
}

/* ---- the source ---- */

int source_init(struct source *s, uv_loop_t *l, const char *dsn, const char *slot,
                const char *publication, uint64_t heartbeat_interval_ns, struct batch_pool *pool,
                const struct source_ops *ops, void *owner, struct logger *log)
{
    *s = (struct source){.ops = ops,
                         .owner = owner,
                         .log = log,
                         .dsn = dsn,
                         .slot = slot,
                         .publication = publication,
                         .state = SOURCE_STREAMING,
                         .continuity.timeline = 1};
    (void)l;
    (void)pool;
    (void)heartbeat_interval_ns;
    return 0;
}

void source_start(struct source *s)
{
    s->ops->started(s->owner);
}

void source_hold(struct source *s, bool on)
{
    ck_assert_uint_eq(holds_begun - holds_ended, !on); /* each is told once */
    s->stream.held = on;
    *(on ? &holds_begun : &holds_ended) += 1;
}

void source_advance(struct source *s, uint64_t mark)
{
    (void)s;
    (void)mark;
}

void source_look_up(struct source *s)
{
    (void)s;
}

void source_stop(struct source *s)
{
    s->state = SOURCE_STOPPED;
}

void source_close(struct source *s)
{
    (void)s;
}

void source_deinit(struct source *s)
{
    (void)s;
}

const char *source_state_name(enum source_state state)
{
    (void)state;
    return "seam";
}

/* ---- fixture ---- */

static void setup(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/walbus-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/bus.sock", folder);
    memset(clients, 0, sizeof clients);
    memset(room, 0, sizeof room);
    holds_begun = holds_ended = write_takes_ms = 0;
    lsn = 100;
    ck_assert_int_eq(settings_init(&settings), 0);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(router_open(&r, &loop, &settings, path, &silent), 0);
}

static void teardown(void)
{
    router_stop(&r, ROUTER_EXIT_OK);
    for (unsigned i = 0; i < 200 && uv_loop_alive(&loop); i++)
        elapse(LOOK_MS);
    ck_assert(!uv_loop_alive(&loop));
    ck_assert_uint_eq(r.pool.live, 0);
    ck_assert_uint_eq(r.pool.live_bytes, 0);
    ck_assert_uint_eq(r.pool.large_bytes, 0);
    router_deinit(&r);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    settings_deinit(&settings);
    for (size_t i = 0; i < ARRAY_SIZE(clients); i++)
        if (clients[i])
            ck_assert_int_eq(close(clients[i]), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static struct session *session_of(uint64_t id)
{
    struct session *s = r.sessions;

    while (s && s->id != id)
        s = s->next;
    return s;
}

static enum session_state state_of(uint64_t id)
{
    struct session *s = session_of(id);

    return s ? s->state : SESSION_CLOSED;
}

static struct outbox *outbox_of(uint64_t id)
{
    struct session *s = session_of(id);

    ck_assert_ptr_nonnull(s);
    return &s->outbox;
}

/** A subscriber of one prefix, by the socket; so far it takes no data. Returns its session's id. */
static uint64_t subscribe(const char *prefix)
{
    struct control_hello hello = {
        .min = PROTOCOL_VERSION, .max = PROTOCOL_VERSION, .layout = FRAME_LAYOUT};
    struct filter filter = {.kind = FILTER_EXACT, .text = unit_bytes(prefix)};
    struct control_subscribe subscribe = {
        .filters = &filter, .n_filters = 1, .start = CONTROL_START_NOW};
    struct buf out = BUF_INIT;
    uint64_t id = r.next_session + 1;
    int fd = fd_connect_unix(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_uint_le(id, PEERS_MAX);
    clients[id] = fd;
    control_hello_encode(&hello, &out);
    control_subscribe_encode(&subscribe, &out);
    ck_assert_int_eq(write(fd, out.data, out.size), (ssize_t)out.size);
    buf_deinit(&out);
    for (unsigned i = 0; i < 10 && state_of(id) != SESSION_ACTIVE; i++)
        turn();
    ck_assert_int_eq(state_of(id), SESSION_ACTIVE);
    return id;
}

static void add_message(struct batch *batch, const char *prefix, size_t size)
{
    void *memory = malloc(size ? size : 1); /* a large content stays untouched: nobody looks */
    struct frame_message f = {
        .position = {1, ++lsn, 0}, .prefix = unit_bytes(prefix), .content = {memory, size}};

    if (memory && size <= BATCH_COPY_MAX)
        memset(memory, 0, size);
    /* an assertion costs a write to Check's pipe, and these are many */
    if (!memory || batch_add_message(batch, &f, &memory) < 0)
        ck_abort_msg("no memory for a message of %zu bytes", size);
    free(memory);
}

static void deliver(struct batch *batch)
{
    batch_seal(batch);
    r.source.ops->batch(r.source.owner, batch);
}

/** A batch of one message comes in that keeps this much memory: its charge, or a content over BATCH_LARGE. */
static void emit(const char *prefix, size_t charge)
{
    struct batch *batch = batch_new(&r.pool);
    size_t own = sizeof *batch + FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + strlen(prefix);

    ck_assert_ptr_nonnull(batch);
    ck_assert_uint_gt(charge, own + BATCH_COPY_MAX);
    add_message(batch, prefix, charge > BATCH_LARGE ? charge : charge - own);
    ck_assert_uint_eq(charge > BATCH_LARGE ? batch_large(batch) : batch_charge(batch), charge);
    deliver(batch);
}

/** As many batches as it takes for this much memory in all. */
static void emit_sum(const char *prefix, size_t sum)
{
    for (size_t piece; sum; sum -= piece) {
        piece = sum <= 4u << 20 ? sum : MIN(sum - (1u << 20), (size_t)4 << 20);
        emit(prefix, piece);
    }
}

/** A small message that makes the router look at its sessions. */
static void emit_small(const char *prefix)
{
    struct batch *batch = batch_new(&r.pool);

    ck_assert_ptr_nonnull(batch);
    add_message(batch, prefix, 0);
    deliver(batch);
}

/** So many messages that each become a piece of their own, since others lie between. */
static void emit_pieces(const char *prefix, size_t n)
{
    while (n) {
        struct batch *batch = batch_new(&r.pool);

        ck_assert_ptr_nonnull(batch);
        for (size_t i = MIN(n, (size_t)500); i > 0; i--, n--) {
            add_message(batch, prefix, 0);
            add_message(batch, "between", 0);
        }
        deliver(batch);
    }
}

#define SMALL 100000u

/** The subscriber takes exactly so many bytes of data. */
static void take(uint64_t id, size_t size)
{
    room[id] = size;
    for (unsigned i = 0; i < 100 && room[id]; i++)
        turn();
    ck_assert_uint_eq(room[id], 0);
}

/** It takes all that waits for it, and will take what comes. */
static void read_on(uint64_t id)
{
    room[id] = SIZE_MAX;
    for (unsigned i = 0; i < 1000 && outbox_of(id)->n; i++)
        turn();
    ck_assert_uint_eq(outbox_of(id)->n, 0);
}

/** Memory that counts: batches, and the rings of all outboxes. */
static size_t total(void)
{
    size_t sum = r.pool.live_bytes + r.pool.large_bytes;

    for (const struct session *s = r.sessions; s; s = s->next)
        sum += s->outbox.cap * sizeof *s->outbox.items;
    return sum;
}

/** It is being let go, or is gone, as one of so many. */
static void assert_let_go(uint64_t id, unsigned of)
{
    ck_assert_int_ge(state_of(id), SESSION_LEAVING);
    ck_assert_uint_eq(r.too_slow, of);
}

static void assert_nobody_let_go(void)
{
    ck_assert_uint_eq(r.too_slow, 0);
    for (const struct session *s = r.sessions; s; s = s->next)
        ck_assert_int_eq(s->state, SESSION_ACTIVE);
}

/* ---- stalled ---- */

START_TEST(stalled_after_so_long)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    elapse(1000);
    take(id, 1); /* from here on nothing */
    emit_sum("a", HALF_BYTES + 1);
    elapse(ROUTER_STALL_MS - 1);
    emit_small("other");
    assert_nobody_let_go();
    elapse(1);
    emit_small("other");
    assert_let_go(id, 1);
    ck_assert_uint_eq(holds_begun, 0); /* nobody has waited for it */
    teardown();
}
END_TEST

START_TEST(stalled_from_its_subscription_on)
{
    setup();
    elapse(ROUTER_STALL_MS);
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", HALF_BYTES + 1);
    assert_nobody_let_go();
    elapse(ROUTER_STALL_MS);
    emit_small("other");
    assert_let_go(id, 1);
    teardown();
}
END_TEST

START_TEST(every_byte_counts_for_a_stalled_one)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", HALF_BYTES + 1);
    for (unsigned i = 0; i < 8; i++) {
        elapse(ROUTER_STALL_MS - 1);
        take(id, 1);
        emit_small("other");
    }
    assert_nobody_let_go();
    teardown();
}
END_TEST

static void half_of_bytes(size_t more)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL); /* the one at the head does not count */
    emit_sum("a", HALF_BYTES + more);
    elapse(ROUTER_STALL_MS);
    emit_small("other");
    if (more)
        assert_let_go(id, 1);
    else
        assert_nobody_let_go();
    teardown();
}

START_TEST(stalled_with_half_an_outbox_of_bytes)
{
    half_of_bytes(0);
    half_of_bytes(1);
}
END_TEST

static void half_of_pieces(size_t more)
{
    setup();
    uint64_t id = subscribe("a");

    emit_pieces("a", HALF_ITEMS + more);
    ck_assert_uint_eq(outbox_of(id)->n, HALF_ITEMS + more);
    elapse(ROUTER_STALL_MS);
    emit_small("other");
    if (more)
        assert_let_go(id, 1);
    else
        assert_nobody_let_go();
    teardown();
}

START_TEST(stalled_with_half_an_outbox_of_pieces)
{
    half_of_pieces(0);
    half_of_pieces(1);
}
END_TEST

START_TEST(stalled_before_a_large_content)
{
    static const struct {
        size_t size; /* one byte more makes an ordinary one a large one */
        uint64_t ms;
        bool goes;
    } cases[] = {{BATCH_LARGE, ROUTER_REST_MS, false},
                 {BATCH_LARGE + 1, ROUTER_REST_MS - 1, false},
                 {BATCH_LARGE + 1, ROUTER_REST_MS, true}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        setup();
        uint64_t id = subscribe("a");

        emit("a", SMALL);
        emit("a", cases[i].size);
        elapse(cases[i].ms);
        emit_small("other");
        if (cases[i].goes)
            assert_let_go(id, 1);
        else
            assert_nobody_let_go();
        teardown();
    }
}
END_TEST

START_TEST(control_frames_are_not_taking)
{
    setup();
    uint64_t id = subscribe("a");
    struct session *s = session_of(id);

    emit("a", SMALL);
    emit_sum("a", HALF_BYTES + 1);
    for (unsigned i = 0; i < 10; i++) {
        uint64_t before = s->outbox.written;

        elapse(LOOK_MS);
        session_request_error(s, i, CONTROL_ERROR_UNSUPPORTED, "So it is.");
        session_flush(s);
        ck_assert_uint_gt(s->outbox.written, before);
    }
    emit_small("other");
    assert_let_go(id, 1);
    teardown();
}
END_TEST

START_TEST(it_is_told_why)
{
    struct control_error error = {0};
    char why[CONTROL_WHY_SIZE];
    uint8_t bytes[4096];

    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", HALF_BYTES + 1);
    elapse(ROUTER_STALL_MS);
    emit_small("other");
    ck_assert_int_eq(state_of(id), SESSION_LEAVING);
    elapse(1);
    ck_assert_int_eq(state_of(id),
                     SESSION_CLOSED); /* no frame was begun: nothing is left to write */
    ssize_t n = recv(clients[id], bytes, sizeof bytes, MSG_DONTWAIT);
    for (size_t at = 0; n > 0 && at < (size_t)n;) {
        struct frame_header h;

        ck_assert_int_eq(frame_header_decode(bytes + at, &h), 0);
        at += FRAME_HEADER_SIZE;
        if (h.type == FRAME_ERROR)
            ck_assert_int_eq(control_error_decode((struct bytes){bytes + at, h.size}, &error, why),
                             0);
        at += h.size;
    }
    unit_assert_text(error.code, CONTROL_ERROR_TOO_SLOW);
    ck_assert(error.fatal);
    ck_assert_int_eq(recv(clients[id], bytes, sizeof bytes, MSG_DONTWAIT), 0);
    teardown();
}
END_TEST

/* ---- full ---- */

START_TEST(reading_waits_for_a_full_outbox)
{
    for (unsigned i = 0; i < 2; i++) {
        setup();
        uint64_t id = subscribe("a");

        emit("a", SMALL);
        emit_sum("a", OUTBOX_BYTES_MAX + i);
        ck_assert_uint_eq(holds_begun, i);
        ck_assert_int_eq(r.holding, i);
        assert_nobody_let_go();
        read_on(id);
        ck_assert_uint_eq(holds_ended, i);
        teardown();
    }
    for (unsigned i = 0; i < 2; i++) {
        setup();
        uint64_t id = subscribe("a");

        emit_pieces("a", OUTBOX_ITEMS_MAX + i);
        ck_assert_uint_eq(holds_begun, i);
        read_on(id);
        ck_assert_uint_eq(holds_ended, i);
        assert_nobody_let_go();
        teardown();
    }
}
END_TEST

START_TEST(reading_goes_on_at_half_an_outbox)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    size_t head = batch_size(outbox_of(id)->items[0].batch);
    emit_sum("a", OUTBOX_BYTES_MAX - HALF_BYTES + 4096);
    size_t first = 0;
    for (size_t i = 1; i < outbox_of(id)->n; i++)
        first += outbox_of(id)->items[i].size;
    emit("a", SMALL);
    emit_sum("a", HALF_BYTES);
    ck_assert(r.holding);
    take(id, head + first - 1); /* SMALL is behind what is being sent, and counts */
    ck_assert_int_eq(r.holding, true);
    take(id, 1); /* now it is the one at the head, and exactly half waits behind it */
    ck_assert_int_eq(r.holding, false);
    ck_assert_uint_eq(outbox_of(id)->charge - SMALL, HALF_BYTES);
    ck_assert_uint_eq(holds_ended, 1);
    teardown();

    setup();
    id = subscribe("a");
    emit_pieces("a", OUTBOX_ITEMS_MAX + 1);
    ck_assert(r.holding);
    size_t piece = outbox_of(id)->items[0].size;
    take(id, piece * (OUTBOX_ITEMS_MAX - HALF_ITEMS));
    ck_assert_uint_eq(outbox_of(id)->n, HALF_ITEMS + 1);
    ck_assert_int_eq(r.holding, true);
    take(id, piece);
    ck_assert_int_eq(r.holding, false);
    teardown();
}
END_TEST

START_TEST(a_stopped_one_is_waited_for_no_longer_than_it_takes_to_tell)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", OUTBOX_BYTES_MAX + 1);
    ck_assert(r.holding);
    elapse(ROUTER_STALL_MS - 1);
    assert_nobody_let_go();
    ck_assert(r.holding);
    elapse(1);
    assert_let_go(id, 1);
    ck_assert(!r.holding);
    teardown();
}
END_TEST

/* ---- pace ---- */

/** Whether one with a full outbox that takes this much in the first window stays. */
static bool stays(size_t size)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", OUTBOX_BYTES_MAX + 1);
    ck_assert(r.holding);
    for (unsigned i = 1; i < LOOKS; i++) {
        take(id, 1000);
        size -= 1000;
        elapse(LOOK_MS);
    }
    take(id, size);
    assert_nobody_let_go(); /* whatever it takes, it has ROUTER_PRESSURE_MS */
    elapse(LOOK_MS - 1);
    assert_nobody_let_go();
    elapse(1);
    bool stayed = state_of(id) == SESSION_ACTIVE;
    ck_assert_uint_eq(r.too_slow, !stayed);
    ck_assert_int_eq(r.holding, stayed);
    teardown();
    return stayed;
}

START_TEST(so_much_in_so_long)
{
    ck_assert_uint_eq(LOOKS * LOOK_MS, ROUTER_PRESSURE_MS);
    ck_assert(!stays(ROUTER_PACE_BYTES - 1));
    ck_assert(stays(ROUTER_PACE_BYTES));
}
END_TEST

START_TEST(each_window_is_judged_by_itself)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", OUTBOX_BYTES_MAX + 1);
    take(id, 2 * ROUTER_PACE_BYTES); /* twice what is asked, at once */
    for (unsigned i = 0; i < LOOKS; i++) {
        take(id, 1);
        elapse(LOOK_MS);
    }
    assert_nobody_let_go();
    for (unsigned i = 1; i < LOOKS; i++) {
        take(id, 1);
        elapse(LOOK_MS);
    }
    assert_nobody_let_go();
    elapse(LOOK_MS);
    assert_let_go(id, 1);
    teardown();
}
END_TEST

/* ---- the total ---- */

START_TEST(reading_waits_for_all_together)
{
    for (unsigned i = 0; i < 2; i++) {
        setup();
        uint64_t a = subscribe("a"), b = subscribe("b");

        emit_sum("a", 20u << 20);
        emit_sum("b", 11u << 20);
        emit("b", ROUTER_BYTES_MAX - total() + i);
        ck_assert_uint_eq(total(), ROUTER_BYTES_MAX + i);
        ck_assert_uint_eq(holds_begun, i);
        read_on(a);
        ck_assert_uint_eq(holds_ended, i);
        read_on(b);
        assert_nobody_let_go();
        teardown();
    }
}
END_TEST

START_TEST(reading_goes_on_at_half_the_total)
{
    setup();
    uint64_t a = subscribe("a"), b = subscribe("b");

    /* b: 8 MiB at the head and less than half an outbox behind it, so that only the total counts */
    emit("b", BATCH_LARGE);
    emit_sum("b", 7u << 20);
    emit("b", ROUTER_BYTES_MAX / 2 - total() - 768); /* a's ring */
    emit_sum("a", 16u << 20);
    emit("a", SMALL);
    ck_assert(r.holding);
    size_t size = 0;
    for (size_t i = 0; i < outbox_of(a)->n; i++)
        size += outbox_of(a)->items[i].size;
    take(a, size - 1);
    ck_assert_uint_eq(total(), ROUTER_BYTES_MAX / 2 + SMALL);
    ck_assert(r.holding);
    take(a, 1);
    ck_assert_uint_eq(total(), ROUTER_BYTES_MAX / 2);
    ck_assert(!r.holding);
    ck_assert_int_eq(state_of(b), SESSION_ACTIVE);
    assert_nobody_let_go();
    teardown();
}
END_TEST

START_TEST(one_message_is_never_too_much)
{
    setup();
    uint64_t a = subscribe("a"), b = subscribe("b");

    emit("a", 2 * ROUTER_BYTES_MAX);
    elapse(10 * ROUTER_STALL_MS);
    emit_small("other");
    ck_assert_uint_eq(holds_begun, 0);
    assert_nobody_let_go();
    take(a, 100);
    emit("b", SMALL); /* a second one that somebody has to send */
    ck_assert(r.holding);
    read_on(b);
    ck_assert(!r.holding);
    assert_nobody_let_go();
    teardown();
}
END_TEST

/* ---- rings ---- */

START_TEST(rings_count)
{
    setup();
    uint64_t last = 0;
    size_t ring = 2 * HALF_ITEMS * sizeof(struct outbox_item);

    for (unsigned i = 0; i < ROUTER_BYTES_MAX / ring - 2; i++)
        last = subscribe("a");
    emit_pieces("a", HALF_ITEMS + 1);
    ck_assert_uint_eq(outbox_ring(outbox_of(last)), ring);
    ck_assert_uint_eq(holds_begun, 0);
    uint64_t b = subscribe("b");
    emit("b", SMALL);
    emit("b", ROUTER_BYTES_MAX - total());
    ck_assert_uint_eq(total(), ROUTER_BYTES_MAX);
    ck_assert_uint_eq(holds_begun, 0);
    emit("b", SMALL);
    ck_assert_uint_eq(holds_begun, 1);
    assert_nobody_let_go();
    read_on(b);
    for (uint64_t id = 1; id <= last; id++)
        read_on(id);
    ck_assert(!r.holding);
    teardown();
}
END_TEST

/* ---- a healthy one is not let go ---- */

START_TEST(the_router_was_away)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", HALF_BYTES + 1);
    clock_ms +=
        3 *
        ROUTER_STALL_MS; /* a look-up of the server's name blocks the loop; its reader reads meanwhile */
    uv_update_time(&loop);
    room[id] = SIZE_MAX;
    emit_small("other"); /* comes before the loop sees that the socket has room */
    assert_nobody_let_go();
    read_on(id);
    teardown();
}
END_TEST

START_TEST(the_router_was_away_while_reading_waited)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", OUTBOX_BYTES_MAX + 1);
    ck_assert(r.holding);
    take(id, 1);
    clock_ms += 2 * ROUTER_PRESSURE_MS;
    take(id, SMALL); /* what its socket buffer has room for: less than what is asked in a window */
    assert_nobody_let_go();
    for (unsigned i = 2; i < LOOKS; i++) {
        elapse(LOOK_MS);
        take(id, 1);
    }
    assert_nobody_let_go();
    elapse(LOOK_MS);
    assert_let_go(id, 1); /* the window was as long as ever for it */
    teardown();
}
END_TEST

START_TEST(the_turn_was_long)
{
    setup();
    uint64_t id = subscribe("a");

    /* as when a large content is copied before, in the same turn */
    write_takes_ms = ROUTER_STALL_MS;
    room[id] = 1;
    emit("a", SMALL);
    ck_assert_uint_eq(room[id], 0);
    emit_sum("a", HALF_BYTES + 1);
    elapse(ROUTER_STALL_MS - 1);
    emit_small("other");
    assert_nobody_let_go();
    elapse(1);
    emit_small("other");
    assert_let_go(id, 1);
    teardown();
}
END_TEST

static void rests(size_t behind)
{
    bool long_rest = behind > ROUTER_PRESSURE_BYTES;

    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL); /* being sent: does not count */
    emit("a", behind);
    take(id, 1);
    emit_sum("a", HALF_BYTES + 1 - behind);
    elapse(ROUTER_STALL_MS);
    emit_small("other");
    if (long_rest) {
        assert_nobody_let_go();
        elapse(ROUTER_REST_MS - ROUTER_STALL_MS - 1);
        emit_small("other");
        assert_nobody_let_go();
        elapse(1);
        emit_small("other");
    }
    assert_let_go(id, 1);
    ck_assert_uint_eq(holds_begun, 0);
    teardown();
}

START_TEST(a_reader_of_a_backlog_may_rest)
{
    rests(ROUTER_PRESSURE_BYTES);
    rests(ROUTER_PRESSURE_BYTES + 1);
    rests(BATCH_LARGE);
}
END_TEST

START_TEST(a_reader_that_is_waited_for_may_rest)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", SMALL);
    emit_sum("a", OUTBOX_BYTES_MAX + 1);
    take(id, 1);
    for (unsigned window = 0; window < 8; window++) {
        elapse(ROUTER_PRESSURE_MS - 2 * LOOK_MS);
        take(id, ROUTER_PACE_BYTES);
        elapse(2 * LOOK_MS);
    }
    ck_assert(r.holding);
    assert_nobody_let_go();
    elapse(ROUTER_PRESSURE_MS - LOOK_MS);
    assert_nobody_let_go();
    elapse(LOOK_MS);
    assert_let_go(id, 1);
    teardown();
}
END_TEST

START_TEST(rings_of_a_busy_time_are_nobodys_fault)
{
    enum { EACH = 25 };
    uint64_t ids[2][EACH];

    setup();
    for (unsigned k = 0; k < 2; k++)
        for (unsigned i = 0; i < EACH; i++)
            ids[k][i] = subscribe(k ? "b" : "a");
    uint64_t paused = subscribe("c");
    for (unsigned k = 0; k < 2; k++) {
        emit_pieces(k ? "b" : "a", HALF_ITEMS + 1);
        for (unsigned i = 0; i < EACH; i++)
            read_on(ids[k][i]);
    }
    emit("c", SMALL);
    emit("c", SMALL);
    ck_assert(!r.holding);
    elapse(3 * ROUTER_PRESSURE_MS);
    emit_small("other");
    assert_nobody_let_go();
    read_on(paused);
    teardown();
}
END_TEST

START_TEST(who_has_nothing_to_take_is_not_blamed)
{
    enum { READERS = 19 };
    char prefix[READERS + 1][4];
    uint64_t ids[READERS];

    setup();
    uint64_t idle = subscribe("idle");
    room[idle] = SIZE_MAX;
    emit_small("idle");
    for (unsigned i = 0; i < READERS; i++) {
        (void)snprintf(prefix[i], sizeof prefix[i], "r%u", i);
        ids[i] = subscribe(prefix[i]);
        emit(prefix[i], ROUTER_PRESSURE_BYTES);
        emit(prefix[i], 900000);
    }
    ck_assert(r.holding);
    for (unsigned i = 0; i < READERS; i++)
        take(ids[i], ROUTER_PACE_BYTES - LOOKS);
    for (unsigned k = 0; k < LOOKS; k++) {
        for (unsigned i = 0; i < READERS; i++)
            take(ids[i], 1);
        elapse(LOOK_MS);
    }
    ck_assert(r.holding); /* all keep pace, and all together still hold more than half the total */
    assert_nobody_let_go();
    teardown();
}
END_TEST

START_TEST(a_pause_beside_a_slow_reader_is_forgiven)
{
    setup();
    uint64_t slow = subscribe("slow"), paused = subscribe("paused");

    emit_sum("paused", 2u << 20);
    emit("slow", SMALL);
    emit_sum("slow", OUTBOX_BYTES_MAX + 1);
    ck_assert(r.holding);
    ck_assert_uint_lt(total(), ROUTER_BYTES_MAX);
    unsigned looks = 0;
    for (; r.holding && looks < 20 * LOOKS; looks++) {
        take(slow, 60000);
        elapse(LOOK_MS);
    }
    ck_assert_uint_gt(looks, LOOKS);
    ck_assert(!r.holding);
    assert_nobody_let_go();
    read_on(paused);
    teardown();
}
END_TEST

/* ---- a stopped one is ---- */

/** Many stopped ones, none of which holds much alone; how many of them are still active. */
static unsigned many_stopped(bool stalled_before)
{
    enum { STOPPED = 40, EACH = 900000 };
    char prefix[STOPPED][4];
    unsigned left = 0;

    setup();
    for (unsigned i = 0; i < STOPPED; i++) {
        (void)snprintf(prefix[i], sizeof prefix[i], "s%u", i);
        (void)subscribe(prefix[i]);
    }
    if (stalled_before)
        elapse(ROUTER_STALL_MS);
    for (unsigned i = 0; i < STOPPED; i++)
        emit(prefix[i], EACH);
    ck_assert_int_eq(r.holding, !stalled_before);
    if (!stalled_before) {
        assert_nobody_let_go();
        elapse(ROUTER_STALL_MS);
    }
    ck_assert(!r.holding);
    for (const struct session *s = r.sessions; s; s = s->next)
        left += s->state == SESSION_ACTIVE;
    ck_assert_uint_eq(r.too_slow, STOPPED - left);
    size_t limit = ROUTER_BYTES_MAX / (stalled_before ? 1 : 2);
    ck_assert_uint_le(total(), limit);
    ck_assert_uint_gt(total() + EACH, limit); /* as few as it takes */
    teardown();
    return left;
}

START_TEST(many_that_hold_little_each)
{
    unsigned left = many_stopped(false);

    ck_assert_uint_gt(many_stopped(true), left);
}
END_TEST

START_TEST(a_little_is_kept_when_others_hold_much)
{
    setup();
    uint64_t little = subscribe("little");
    uint64_t ids[3] = {subscribe("0"), subscribe("1"), subscribe("2")};

    emit("little",
         ROUTER_PRESSURE_BYTES - 1000); /* with its ring it stays below what is asked in a window */
    for (unsigned i = 0; i < ARRAY_SIZE(ids); i++) {
        emit((char[]){(char)('0' + i), 0}, 6u << 20);
        emit((char[]){(char)('0' + i), 0}, 9u << 19);
    }
    ck_assert(r.holding);
    unsigned looks = 0;
    for (; r.holding && looks < 20 * LOOKS; looks++) {
        for (unsigned i = 0; i < ARRAY_SIZE(ids); i++)
            take(ids[i], 60000);
        elapse(LOOK_MS);
        ck_assert_int_eq(state_of(little), SESSION_ACTIVE);
    }
    ck_assert_uint_gt(looks, 2 * LOOKS);
    ck_assert(!r.holding);
    assert_nobody_let_go();
    teardown();
}
END_TEST

static unsigned closed_of(const uint64_t *ids, unsigned n)
{
    unsigned closed = 0;

    for (unsigned i = 0; i < n; i++)
        closed += state_of(ids[i]) == SESSION_CLOSED;
    return closed;
}

START_TEST(leaving_ones_give_way)
{
    enum { LEAVE = 4 };
    static const char *const prefix[LEAVE] = {"p", "q", "r", "s"};
    uint64_t ids[LEAVE];

    setup();
    for (unsigned i = 0; i < LEAVE; i++) {
        ids[i] = subscribe(prefix[i]);
        emit(prefix[i], 4u << 20);
        take(ids[i],
             100); /* of a frame that was begun the rest must be written before the reason */
        emit_sum(prefix[i], HALF_BYTES + 1);
        elapse(ROUTER_STALL_MS);
        emit_small("other");
        ck_assert_int_eq(state_of(ids[i]), SESSION_LEAVING);
    }
    ck_assert_uint_eq(r.too_slow, LEAVE);
    uint64_t reader = subscribe("a");
    emit_sum("a", 15u << 20);
    ck_assert_uint_eq(closed_of(ids, LEAVE), 0);
    emit("a", 2u << 20); /* with this the total is passed: 16 MiB are theirs */
    ck_assert_uint_eq(closed_of(ids, LEAVE), 1);
    emit("a", BATCH_LARGE); /* two more of them, neighbours in the list, in one look */
    ck_assert_uint_eq(closed_of(ids, LEAVE), 3);
    ck_assert_uint_eq(holds_begun, 0);
    ck_assert_int_eq(state_of(reader), SESSION_ACTIVE);
    ck_assert_uint_eq(r.too_slow, LEAVE); /* each is counted once */
    read_on(reader);
    teardown();
}
END_TEST

START_TEST(one_that_left_has_rested)
{
    setup();
    uint64_t id = subscribe("a");

    emit("a", 4u << 20);
    emit_sum("a", OUTBOX_BYTES_MAX + 1);
    take(id, 100);
    elapse(ROUTER_PRESSURE_MS);
    ck_assert_int_eq(state_of(id), SESSION_LEAVING); /* with the rest of its frame */
    uint64_t b = subscribe("b"), c = subscribe("c");
    emit_sum("b", 15u << 20);
    emit_sum("c", 14u << 20);
    ck_assert_int_eq(state_of(id), SESSION_CLOSED);
    ck_assert_uint_eq(holds_begun, 1); /* for it, not for the other two */
    ck_assert_uint_eq(r.too_slow, 1);
    read_on(b);
    read_on(c);
    teardown();
}
END_TEST

START_TEST(a_large_content_is_no_excuse_for_ever)
{
    /* one in front of it that trickles, by what is asked, or one byte below; and one alone while the total is passed */
    for (unsigned i = 0; i < 3; i++) {
        setup();
        uint64_t id = subscribe("a"), other = subscribe("b");
        size_t each = (ROUTER_PACE_BYTES - (i == 0 ? 0 : 1)) / LOOKS;
        size_t rest = ROUTER_PACE_BYTES - (i == 0 ? 0 : 1) - each * (LOOKS - 1);

        emit("a", i == 2 ? 2 * ROUTER_BYTES_MAX : 9u << 20);
        if (i == 2)
            emit("b", SMALL);
        else
            emit("a", BATCH_LARGE + 1);
        ck_assert(r.holding);
        for (unsigned k = 0; k < 4 * LOOKS && state_of(id) == SESSION_ACTIVE; k++) {
            take(id, k % LOOKS + 1 == LOOKS ? rest : each);
            take(other, i == 2 && k < 4 ? 1 : 0);
            if (k + 1 < 2 * LOOKS)
                assert_nobody_let_go();
            elapse(LOOK_MS);
        }
        if (i == 0)
            assert_nobody_let_go();
        else
            ck_assert_int_ge(state_of(id), SESSION_LEAVING);
        teardown();
    }
}
END_TEST

/** Three that keep pace and hold more than enough, and one that trickles: whether it stays behind the first window. */
static bool trickling_one_stays(size_t held)
{
    static const char *const prefix[] = {"0", "1", "2"};
    uint64_t ids[ARRAY_SIZE(prefix)];

    setup();
    uint64_t slow = subscribe("slow");

    emit("slow", held - 16 * sizeof(struct outbox_item)); /* less its ring */
    for (unsigned i = 0; i < ARRAY_SIZE(ids); i++) {
        ids[i] = subscribe(prefix[i]);
        emit_sum(prefix[i], 11u << 20);
    }
    ck_assert(r.holding);
    for (unsigned i = 0; i < ARRAY_SIZE(ids); i++)
        take(ids[i], ROUTER_PACE_BYTES);
    for (unsigned k = 0; k < LOOKS; k++) {
        assert_nobody_let_go();
        take(slow, 1);
        for (unsigned i = 0; i < ARRAY_SIZE(ids); i++)
            take(ids[i], 1);
        elapse(LOOK_MS);
    }
    bool stayed = state_of(slow) == SESSION_ACTIVE;
    ck_assert_uint_eq(r.too_slow, !stayed);
    for (unsigned i = 0; i < ARRAY_SIZE(ids); i++)
        ck_assert_int_eq(state_of(ids[i]), SESSION_ACTIVE);
    teardown();
    return stayed;
}

START_TEST(who_holds_much_and_takes_little)
{
    ck_assert(trickling_one_stays(ROUTER_PRESSURE_BYTES));
    ck_assert(!trickling_one_stays(ROUTER_PRESSURE_BYTES + 1));
}
END_TEST

START_TEST(many_that_trickle_go_one_by_one)
{
    enum { MANY = 40, EACH = 900000 };
    char prefix[MANY][4];
    uint64_t ids[MANY];

    setup();
    for (unsigned i = 0; i < MANY; i++) {
        (void)snprintf(prefix[i], sizeof prefix[i], "t%u", i);
        ids[i] = subscribe(prefix[i]);
        emit(prefix[i], i == 7 ? EACH + 1 : EACH);
    }
    ck_assert(r.holding);
    for (unsigned window = 1; window <= 3; window++) {
        for (unsigned k = 0; k < LOOKS; k++) {
            ck_assert_uint_eq(r.too_slow, window - 1);
            for (unsigned i = 0; i < MANY; i++)
                if (state_of(ids[i]) == SESSION_ACTIVE)
                    take(ids[i], 1);
            elapse(LOOK_MS);
        }
        ck_assert_uint_eq(r.too_slow, window);
        ck_assert_int_ge(state_of(ids[7]), SESSION_LEAVING); /* the one that holds most first */
    }
    teardown();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {stalled_after_so_long,
                                  stalled_from_its_subscription_on,
                                  every_byte_counts_for_a_stalled_one,
                                  stalled_with_half_an_outbox_of_bytes,
                                  stalled_with_half_an_outbox_of_pieces,
                                  stalled_before_a_large_content,
                                  control_frames_are_not_taking,
                                  it_is_told_why,
                                  reading_waits_for_a_full_outbox,
                                  reading_goes_on_at_half_an_outbox,
                                  a_stopped_one_is_waited_for_no_longer_than_it_takes_to_tell,
                                  so_much_in_so_long,
                                  each_window_is_judged_by_itself,
                                  reading_waits_for_all_together,
                                  reading_goes_on_at_half_the_total,
                                  one_message_is_never_too_much,
                                  rings_count,
                                  the_router_was_away,
                                  the_router_was_away_while_reading_waited,
                                  the_turn_was_long,
                                  a_reader_of_a_backlog_may_rest,
                                  a_reader_that_is_waited_for_may_rest,
                                  rings_of_a_busy_time_are_nobodys_fault,
                                  who_has_nothing_to_take_is_not_blamed,
                                  a_pause_beside_a_slow_reader_is_forgiven,
                                  many_that_hold_little_each,
                                  a_little_is_kept_when_others_hold_much,
                                  leaving_ones_give_way,
                                  one_that_left_has_rested,
                                  a_large_content_is_no_excuse_for_ever,
                                  who_holds_much_and_takes_little,
                                  many_that_trickle_go_one_by_one};
    uv_signal_t signal;

    /* libuv keeps a pipe for signals as long as a process lives: made here, it is none that a test has left open */
    if (uv_loop_init(&loop) < 0 || uv_signal_init(&loop, &signal) < 0)
        return EXIT_FAILURE;
    uv_close((uv_handle_t *)&signal, NULL);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    if (uv_loop_close(&loop) < 0)
        return EXIT_FAILURE;
    return unit_run("pressure", tests, ARRAY_SIZE(tests));
}
