/* SPDX-License-Identifier: PostgreSQL */
/*
 * Batches that go to a real journal and to sessions on real sockets, as the router does it, whose other parts are not here. The names
 * of durable subscriptions are this file's own: it counts what they are told.
 */
#include "deliver.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "durable.h"
#include "journal/reader.h"
#include "journal_model.h"
#include "session_read.h"

#define PEERS_MAX 40

static struct router r;
static uv_loop_t loop;
static char *folder;
static struct logger silent;

/* ---- the disk: nobody waits for it, and it can fail ---- */

static atomic_int disk_error;

int fdatasync(int fd)
{
    (void)fd;
    errno = disk_error;
    return disk_error ? -1 : 0;
}

int fsync(int fd)
{
    (void)fd;
    return 0;
}

/* ---- what else the router does ---- */

void router_flush(struct router *x)
{
    for (struct session *s = x->sessions, *next; s; s = next) {
        next = s->next;
        if (s->must_flush)
            session_flush(s);
    }
}

static struct durable name;
static bool name_floats;
static unsigned matched, gaps, routed;
static struct position matched_at;

bool durables_float(const struct durables *ds)
{
    (void)ds;
    return name_floats;
}

void durable_matched(struct durables *ds, struct route_member *m, struct position position)
{
    (void)ds;
    ck_assert_ptr_eq(m, &name.member);
    matched++;
    matched_at = position;
}

void durables_gap_routed(struct durables *ds, struct position position)
{
    (void)ds;
    (void)position;
    gaps++;
}

void durables_routed(struct durables *ds, const struct batch *batch)
{
    (void)ds;
    (void)batch;
    routed++;
}

/* ---- the journal ---- */

static unsigned failures;

static void on_written(void *owner)
{
    ck_assert_ptr_eq(owner, &r);
    deliver_written(&r);
}

static void on_synced(void *owner, uint64_t mark, uint32_t connection)
{
    (void)owner;
    (void)connection;
    (void)mark;
}

static void on_failed(void *owner, int error, const char *what)
{
    (void)owner;
    (void)what;
    ck_assert_int_eq(error, EIO);
    failures++;
}

static void on_retried(void *owner, int error)
{
    (void)owner;
    (void)error;
}

static void on_differs(void *owner, struct position position, const char *what)
{
    (void)owner;
    (void)position;
    ck_abort_msg("%s", what);
}

static const struct journal_ops journal_ops = {on_written, on_synced, on_failed, on_retried,
                                              on_differs};

/* ---- clients ---- */

struct peer {
    struct session *s; /* NULL: closed */
    int fd;
    struct filter filters[8];
    size_t n_filters;
    struct position start;
    struct buf in;
    bool stopped;
};

static struct peer peers[PEERS_MAX];

static void on_welcome(void *o, struct control_welcome *welcome)
{
    (void)o;
    welcome->identity = unit_bytes("42/1");
}

static void on_subscribe(void *o, struct session *s)
{
    struct peer *p = &peers[s->id];
    struct control_subscribed subscribed = {
        .position = p->start, .identity = unit_bytes("42/1"), .timeline = 1};

    (void)o;
    ck_assert_int_eq(route_add(r.route, &s->member, p->filters, p->n_filters, NULL, 0), 0);
    s->subscribed = true;
    session_subscribed(s, &subscribed);
}

static const char *on_room(void *o, const struct session *s, size_t bytes)
{
    (void)o;
    (void)s;
    (void)bytes;
    return NULL;
}

static bool on_caught_up(void *o, struct session *s)
{
    return deliver_pending(o, s);
}

static bool on_was_read(void *o, struct session *s, struct position told, const char *why)
{
    (void)o;
    (void)s;
    (void)told;
    ck_assert_ptr_null(why);
    return true;
}

static void on_closed(void *o, struct session *s)
{
    (void)o;
    if (s->subscribed)
        route_remove(r.route, &s->member);
    deliver_forget(&r, s);
    if (s->prev)
        s->prev->next = s->next;
    else
        r.sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    peers[s->id].s = NULL;
}

static const struct session_ops ops = {.welcome = on_welcome,
                                       .subscribe = on_subscribe,
                                       .room = on_room,
                                       .caught_up = on_caught_up,
                                       .was_read = on_was_read,
                                       .closed = on_closed};

/* A client that subscribes, with so much room in its socket. */
static struct peer *subscribe(size_t id, const struct filter *filters, size_t n,
                              struct position start, int room)
{
    struct peer *p = &peers[id];
    struct control_hello hello = {1, 1, 1, unit_bytes("unit")};
    struct buf out = BUF_INIT;
    int pair[2];

    ck_assert_ptr_null(p->s);
    if (p->fd)
        ck_assert_int_eq(close(p->fd), 0);
    buf_deinit(&p->in);
    *p = (struct peer){.start = start, .n_filters = n};
    memcpy(p->filters, filters, n * sizeof *filters);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    ck_assert_int_eq(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
    p->fd = pair[1];
    p->s = session_new(&loop, pair[0], id, &ops, &r, &r.reads, &silent);
    ck_assert_ptr_nonnull(p->s);
    p->s->next = r.sessions;
    if (r.sessions)
        r.sessions->prev = p->s;
    r.sessions = p->s;
    if (id % 4) /* some users, and some who are not counted */
        session_charge_to(p->s, account_of(&r.accounts, id % 4));
    control_hello_encode(&hello, &out);
    struct control_subscribe c = {
        .filters = p->filters, .n_filters = n, .start = CONTROL_START_NOW};
    control_subscribe_encode(&c, &out);
    ck_assert_int_eq(send(p->fd, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
    buf_deinit(&out);
    return p;
}

static void receive(struct peer *p, size_t size)
{
    uint8_t *to = buf_reserve(&p->in, size);

    ck_assert_ptr_nonnull(to);
    ssize_t n = recv(p->fd, to, size, MSG_DONTWAIT);
    ck_assert(n != 0 && (n > 0 || errno == EAGAIN));
    p->in.size += n > 0 ? (size_t)n : 0;
}

/* That it has got exactly what a reference gives. */
static void check(struct peer *p)
{
    struct reference want = reference_of(p->filters, p->n_filters, p->start);
    size_t at = 0, data = 0;

    reference_run(&want);
    while (at < p->in.size) {
        uint8_t type = p->in.data[at + 4];
        ck_assert_uint_ge(p->in.size - at, FRAME_HEADER_SIZE);
        size_t size = FRAME_HEADER_SIZE + bytes_get_u32(p->in.data + at);
        ck_assert_uint_ge(p->in.size - at, size);
        if (type == FRAME_ERROR)
            ck_abort_msg("%.*s", (int)(size - FRAME_HEADER_SIZE),
                         (const char *)p->in.data + at + FRAME_HEADER_SIZE);
        if (type == FRAME_BEGIN || type == FRAME_MESSAGE || type == FRAME_COMMIT ||
            type == FRAME_GAP) {
            if (want.out.size - data < size ||
                memcmp(want.out.data + data, p->in.data + at, size) != 0)
                ck_abort_msg("peer %zu: another frame at %zu of %zu, type %02x",
                             (size_t)(p - peers), data, want.out.size, type);
            data += size;
        }
        at += size;
    }
    ck_assert_uint_eq(data, want.out.size);
    ck_assert_uint_eq(p->s->messages, want.messages);
    buf_deinit(&want.out);
}

/* ---- fixture ---- */

static const struct filter everything = {FILTER_PATTERN, {(const uint8_t *)">", 1}};
static const struct position oldest = {1, 0x100, 0};

static void setup(uint64_t segment_size)
{
    char why[JOURNAL_WHY_SIZE];

    memset(peers, 0, sizeof peers);
    r = (struct router){.loop = &loop,
                        .log = &silent,
                        .durables = (struct durables *)&name}; /* nobody looks into it */
    name_floats = false;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    accounts_limit(&r.accounts, SIZE_MAX);
    r.route = route_new();
    ck_assert_ptr_nonnull(r.route);
    folder = unit_temp_folder();
    disk_error = 0;
    failures = 0;
    const struct journal_options options = {
        .folder = folder, .segment_size = segment_size, .sync_interval_ns = 1000000};
    int e = journal_open(&options, &loop, &journal_ops, &r, &silent, &r.journal, why);
    ck_assert_msg(e == 0, "%s", why);
    ck_assert_int_eq(journal_begin_era(r.journal, 7, 1, "shop", "walbus", oldest, 0x100, 1), 0);
    session_reads_init(&r.reads, &loop, r.journal, &r.sessions);
    model_setup(&r.pool);
}

static void turn(void)
{
    (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static void teardown(void)
{
    while (r.sessions)
        session_close(r.sessions, "the test is over");
    while (r.reads.running)
        turn();
    r.journal = journal_close(r.journal);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_uint_eq(r.pool.live, 0);
    ck_assert_uint_eq(r.reads.pool.live, 0);
    ck_assert_uint_eq(r.reads.reserved, 0);
    ck_assert_uint_eq(r.n_inside, 0);
    ck_assert_ptr_null(r.accounts.first); /* all receipts are back */
    session_reads_deinit(&r.reads);
    model_teardown();
    batch_pool_deinit(&r.pool);
    for (size_t i = 0; i < PEERS_MAX; i++) {
        if (peers[i].fd)
            ck_assert_int_eq(close(peers[i].fd), 0);
        buf_deinit(&peers[i].in);
    }
    r.route = route_free(r.route);
    free(r.inside);
    unit_temp_folder_remove(folder);
}

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

/* Turns the loop, doing something in each turn, until it is so; twenty seconds at most. */
#define UNTIL(something, condition)                                      \
    do {                                                                 \
        for (unsigned turns_ = 0; !(condition); turns_++) {              \
            ck_assert_msg(turns_ < 200000, "waited for %s", #condition); \
            turn();                                                      \
            something;                                                   \
            if (!(condition))                                            \
                (void)usleep(100);                                       \
        }                                                                \
    } while (0)

/* What came from the source. */
static void append(struct batch *b)
{
    if (!journal_has_failed(r.journal)) {
        journal_append(r.journal, b);
        deliver_batch(&r, b);
    } else {
        (void)batch_unref(b); /* it comes again */
    }
}

static void receive_some(size_t size)
{
    for (size_t i = 0; i < PEERS_MAX; i++)
        if (peers[i].s && !peers[i].stopped)
            receive(&peers[i], size);
}

static bool all_at_end(void)
{
    for (size_t i = 0; i < PEERS_MAX; i++)
        if (peers[i].s && !(session_is_live(peers[i].s) && session_is_at_end(peers[i].s)))
            return false;
    return true;
}

static void check_all(void)
{
    for (size_t i = 0; i < PEERS_MAX; i++)
        peers[i].stopped = false;
    UNTIL(receive_some(1 << 20), all_at_end());
    receive_some(1 << 20);
    for (size_t i = 0; i < PEERS_MAX; i++)
        if (peers[i].s)
            check(&peers[i]);
}

/* ---- a model ---- */

/* Makes the whole log, so that any stretch of it can come, and come again. */
static void make_log(struct unit_random *random, unsigned n)
{
    uint64_t lsn = 0x1000;

    for (unsigned i = 0; i < n; i++) {
        unsigned what = unit_random_below(random, 20);
        size_t size = unit_random_below(random, 12) ? unit_random_below(random, 400)
                                                    : unit_random_below(random, 30000);

        lsn += 1 + unit_random_below(random, 30);
        if (unit_random_below(random, 150) == 0)
            size = BATCH_COPY_MAX + unit_random_below(random, 600000);
        if (what < 13) {
            put_message(lsn, prefixes[unit_random_below(random, 7)], size);
        } else if (what < 15 && !transaction.inside) {
            put_begin(lsn);
            put_message(lsn, prefixes[unit_random_below(random, 7)], 10);
        } else if (what < 18 && transaction.inside) {
            put_commit();
        } else if (what == 19 && n_entries && unit_random_below(random, 3) == 0) {
            put_gap(transaction.inside
                        ? (struct position){1, transaction.begin.commit_lsn, transaction.index + 1}
                        : position_next(entries[n_entries - 1].position),
                    (struct position){1, lsn, POSITION_INDEX_END});
        }
        if (open_batch && (open_batch->head_size > BATCH_SIZE || open_batch->tail_owner))
            (void)batch_unref(take_batch());
    }
    if (transaction.inside)
        put_commit();
    if (open_batch)
        (void)batch_unref(take_batch());
}

/* The entries [from, to) as a batch again; it ends behind one with a tail. *ret_to: where it ended. */
static struct batch *batch_of(size_t from, size_t to, size_t *ret_to)
{
    struct batch *b = batch_new(&r.pool);
    struct frame_begin begin = {0};
    bool inside = false;

    ck_assert_ptr_nonnull(b);
    for (size_t i = 0; i < from; i++) {
        const uint8_t *frame = all.data + entries[i].at;
        struct frame_header h = {(uint32_t)entries[i].size - FRAME_HEADER_SIZE, frame[4], frame[5]};
        if (h.type == FRAME_BEGIN)
            ck_assert_int_eq(frame_begin_decode(h, frame + FRAME_HEADER_SIZE, &begin), 0);
        inside = h.type == FRAME_BEGIN || (h.type == FRAME_MESSAGE && inside);
    }
    if (inside) {
        b->starts_inside = true;
        (void)frame_begin_encode(b->begin, &begin);
    }
    size_t i = from;
    for (; i < to && !b->tail_owner; i++) {
        const uint8_t *frame = all.data + entries[i].at, *body = frame + FRAME_HEADER_SIZE;
        struct frame_header h = {(uint32_t)entries[i].size - FRAME_HEADER_SIZE, frame[4], frame[5]};
        struct frame_message m;
        struct frame_commit c;
        struct frame_gap g;

        if (h.type == FRAME_BEGIN) {
            ck_assert_int_eq(frame_begin_decode(h, body, &begin), 0);
            ck_assert_int_eq(batch_add_begin(b, &begin), 0);
        } else if (h.type == FRAME_COMMIT) {
            ck_assert_int_eq(frame_commit_decode(h, body, &c), 0);
            ck_assert_int_eq(batch_add_commit(b, &c), 0);
        } else if (h.type == FRAME_GAP) {
            ck_assert_int_eq(frame_gap_decode(h, body, &g), 0);
            ck_assert_int_eq(batch_add_gap(b, &g), 0);
        } else {
            ck_assert_int_eq(frame_message_decode(h, body, &m), 0);
            uint8_t *content = malloc(m.content.size + 1);
            void *owner = content;
            ck_assert_ptr_nonnull(content);
            memcpy(content, m.content.data, m.content.size);
            m.content.data = content;
            ck_assert_int_eq(batch_add_message(b, &m, &owner), 0);
            free(owner);
        }
    }
    *ret_to = i;
    batch_seal(b);
    return b;
}

/* Where the log goes on behind what the journal has. */
static size_t entry_behind(struct position p)
{
    size_t i = 0;

    while (i < n_entries && position_compare(entries[i].position, p) <= 0)
        i++;
    return i;
}

static size_t random_sub(struct unit_random *random, struct filter out[8])
{
    out[0] = everything;
    return unit_random_below(random, 3) ? random_filters(random, out) : 1;
}

static void model(struct unit_random *random, bool failing, unsigned *let_go, unsigned *behind)
{
    size_t next = 0;

    setup(40000 + unit_random_below(random, 400000));
    if (unit_random_below(random, 2))
        accounts_limit(&r.accounts, 30000 + unit_random_below(random, 300000));
    make_log(random, 400 + unit_random_below(random, 1600));
    /* the log made here is what the server has; nothing of it has come yet */
    while (next < n_entries) {
        unsigned what = unit_random_below(random, 100);
        size_t id = unit_random_below(random, 12);
        struct peer *p = &peers[id];

        if (failing && journal_has_failed(r.journal)) {
            disk_error = 0;
            UNTIL(journal_retry(r.journal), !journal_has_failed(r.journal));
            next = entry_behind(journal_end(r.journal)->last);
        } else if (what < 45 && !journal_is_full_queue(r.journal, false)) {
            size_t to = next + 1 + unit_random_below(random, unit_random_below(random, 2) ? 40 : 3);
            append(batch_of(next, MIN(to, n_entries), &next));
        } else if (what < 50 && !p->s) {
            struct filter filters[8];
            size_t n = random_sub(random, filters);
            struct position start =
                next && unit_random_below(random, 5)
                    ? entries[unit_random_below(random, (uint32_t)next)].position
                    : oldest;
            (void)subscribe(id, filters, n, start, unit_random_below(random, 2) ? 4608 : 100000);
        } else if (what < 52 && p->s && unit_random_below(random, 6) == 0) {
            session_close(p->s, "at random");
        } else if (what < 55) {
            p->stopped = !p->stopped;
        } else if (what < 62 && p->s && p->s->state == SESSION_ACTIVE) {
            session_let_go(p->s);
            ++*let_go;
        } else if (what == 62 && failing && unit_random_below(random, 3) == 0) {
            disk_error = EIO;
        } else if (what < 80) {
            receive_some(1 + unit_random_below(random, 60000));
        } else {
            turn();
        }
        for (size_t i = 0; i < 12; i++)
            *behind +=
                peers[i].s && peers[i].s->state == SESSION_ACTIVE && !session_is_live(peers[i].s);
        if (next == n_entries && failing) { /* the last ones may fail too */
            for (unsigned i = 0; i < 20; i++) {
                turn();
                (void)usleep(200);
            }
            if (journal_has_failed(r.journal))
                next = 0;
        }
    }
    disk_error = 0;
    check_all();
    for (size_t i = 0; i < 12; i++) {
        if (peers[i].s)
            continue;
        struct filter filters[8];
        size_t n = random_sub(random, filters);
        (void)subscribe(i, filters, n,
                        i % 2 ? oldest
                              : entries[unit_random_below(random, (uint32_t)n_entries)].position,
                        100000);
    }
    check_all();
    teardown();
}

START_TEST(random_delivery)
{
    struct unit_random random = unit_random_init();
    unsigned let_go = 0, behind = 0;

    for (unsigned round = 0; round < 12; round += unit_sparse())
        model(&random, false, &let_go, &behind);
    ck_assert(let_go > 20 || unit_sparse() > 1);
    ck_assert(behind > 200 || unit_sparse() > 1);
}
END_TEST

START_TEST(random_delivery_on_a_disk_that_fails)
{
    struct unit_random random = unit_random_init();
    unsigned let_go = 0, behind = 0, failed = 0;

    for (unsigned round = 0; round < 12; round += unit_sparse()) {
        model(&random, true, &let_go, &behind);
        failed += failures;
    }
    ck_assert(failed > 2 || unit_sparse() > 1);
}
END_TEST

/* ---- bounds ---- */

static size_t held(void)
{
    size_t n = r.pool.live_bytes;

    for (size_t i = 0; i < journal_pending(r.journal); i++)
        n -= batch_charge(journal_pending_at(r.journal, i));
    return n;
}

/* A hundred megabytes go past twenty who have stopped and one who reads: he gets them as they come. */
START_TEST(who_does_not_read_lets_go)
{
    enum { STOPPED = 20 };
    size_t most = 0, n = 0;
    uint64_t lsn = 0x1000;

    setup(16 << 20);
    struct peer *p = subscribe(STOPPED, &everything, 1, oldest, 1 << 20);
    UNTIL((void)0, all_at_end());
    for (unsigned i = 0; i < 300; i++) {
        if (i % 15 == 0) { /* each gets another stretch */
            subscribe(n, &everything, 1, (struct position){1, lsn, 0}, 4608)->stopped = true;
            UNTIL(receive(p, 1 << 20), session_is_live(peers[n].s));
            n++;
        }
        for (unsigned k = 0; k < 5; k++)
            put_message(lsn += 16, "a", 60000);
        append(take_batch());
        UNTIL(receive(p, 1 << 20), !journal_is_full_queue(r.journal, true));
        receive(p, 1 << 20);
        if (session_is_live(p->s))
            buf_clear(&p->in), buf_clear(&all);
        most = MAX(most, held());
        if (held() > ROUTER_BYTES_MAX)
            ck_abort_msg("%zu bytes are held", held());
    }
    ck_assert_uint_gt(most, ROUTER_BYTES_MAX / 2);
    ck_assert(session_is_live(p->s));
    UNTIL(receive(p, 1 << 20), session_is_at_end(p->s));
    ck_assert_uint_eq(p->s->messages, 1500);
    /* what the stopped ones keep is their own outbox at most */
    for (size_t i = 0; i < STOPPED; i++) {
        ck_assert(!session_is_live(peers[i].s));
        ck_assert_uint_le(outbox_behind(&peers[i].s->outbox), OUTBOX_BYTES_MAX + BATCH_SIZE * 6);
    }
    UNTIL((void)0, journal_pending(r.journal) == 0);
    deliver_check_held(&r);
    ck_assert_uint_le(r.pool.live_bytes, ROUTER_BYTES_MAX);
    teardown();
}
END_TEST

/* One user's sessions wait for more than there is, and take a little all the time; another one's,
 * that has taken nothing for longer, keeps what it waits for: they let go, and get all of it in the
 * end. */
START_TEST(one_user_does_not_take_it_all)
{
    static const struct filter a = {FILTER_PATTERN, {(const uint8_t *)"a", 1}};
    static const struct filter b = {FILTER_PATTERN, {(const uint8_t *)"b", 1}};
    enum { HIS = 9, OTHER = 1 };
    const size_t most = ROUTER_BYTES_MAX / 2;
    size_t seen = 0, n = 0;
    uint64_t lsn = 0x1000;

    setup(16 << 20);
    accounts_limit(&r.accounts, most);
    struct account *his = account_of(&r.accounts, 2);
    ck_assert_ptr_nonnull(his);
    subscribe(OTHER, &b, 1, oldest, 4608)->stopped = true;
    UNTIL((void)0, all_at_end());
    for (unsigned i = 0; i < 9; i++) { /* less than who is full */
        for (unsigned k = 0; k < 5; k++)
            put_message(lsn += 16, "b", 60000);
        append(take_batch());
    }
    UNTIL((void)0, journal_pending(r.journal) == 0);
    for (unsigned i = 0; i < 72; i++) {
        if (i % 8 == 0) { /* each gets another stretch */
            size_t id = 2 + 4 * n++;
            subscribe(id, &a, 1, (struct position){1, lsn, 0}, 4608)->stopped = true;
            UNTIL((void)0, session_is_live(peers[id].s));
        }
        for (unsigned k = 0; k < 5; k++)
            put_message(lsn += 16, "a", 60000);
        append(take_batch());
        ck_assert_uint_le(his->bytes, most);
        seen = MAX(seen, his->bytes);
        UNTIL((void)0, !journal_is_full_queue(r.journal, true));
        for (size_t k = 0; k < n; k++)
            receive(&peers[2 + 4 * k], 100);
    }
    ck_assert_uint_eq(n, HIS);
    ck_assert_uint_gt(seen, most / 2);
    ck_assert(session_is_live(peers[OTHER].s));
    ck_assert_uint_gt(peers[OTHER].s->outbox.waiting, 2 << 20);
    check_all();
    ck_assert_uint_eq(his->bytes, 0);
    (void)account_unref(his);
    teardown();
}
END_TEST

/* What waits for a subscriber keeps no more than its bytes, once the journal is done with it; and what waits for a slow journal,
 * beyond the first ones, little more. */
START_TEST(what_waits_is_small)
{
    setup(16 << 20);
    subscribe(0, &everything, 1, oldest, 4608)->stopped = true;
    UNTIL((void)0, all_at_end());
    for (unsigned i = 0; i < 300; i++) {
        put_message(0x1000 + i * 16, "a", 100);
        append(take_batch());
    }
    ck_assert_uint_eq(journal_pending(r.journal), 300);
    for (size_t i = 0; i < 300; i++) {
        const struct batch *b = journal_pending_at(r.journal, i);
        ck_assert_uint_eq(b->n_entries, 1);
        ck_assert(i < 64 || (b->head_cap == b->head_size && b->entries_cap == 1));
    }
    UNTIL((void)0, journal_pending(r.journal) == 0);
    const struct outbox *o = &peers[0].s->outbox;
    ck_assert_uint_gt(o->n, 200);
    for (size_t i = 0; i < o->n; i++) {
        const struct batch *b = o->items[(o->head + i) & (o->cap - 1)].batch;
        ck_assert_ptr_null(b->entries);
        ck_assert_uint_eq(b->head_cap, b->head_size);
    }
    check_all();
    teardown();
}
END_TEST

/* A message larger than everything is kept only until it is written; who has not got it then reads it from there. */
START_TEST(a_message_larger_than_the_bound)
{
    enum { LARGE = 3 * ROUTER_BYTES_MAX };

    setup(16 << 20);
    struct filter b = {FILTER_EXACT, unit_bytes("b")};
    (void)subscribe(0, &everything, 1, oldest, 4608);
    (void)subscribe(1, &b, 1, oldest, 100000);
    peers[0].stopped = true;
    UNTIL((void)0, all_at_end());
    put_message(0x1000, "b", LARGE);
    append(take_batch());
    ck_assert(session_is_live(peers[0].s));
    ck_assert_uint_ge(r.pool.live_bytes, LARGE);
    put_message(0x1010, "b", 10);
    append(take_batch());
    UNTIL((void)0, journal_pending(r.journal) == 0);
    deliver_check_held(&r); /* as each batch and each second do */
    ck_assert(!session_is_live(peers[0].s));
    ck_assert_uint_lt(r.pool.live_bytes, 1 << 20);
    size_t most = 0;
    for (size_t i = 0; i < 2; i++)
        peers[i].stopped = false;
    UNTIL((receive_some(100000),
           most = MAX(most, r.pool.live_bytes + r.reads.pool.live_bytes + r.reads.reserved)),
          all_at_end());
    ck_assert_uint_le(most, 6 * READER_CHUNK);
    check_all();
    teardown();
}
END_TEST

/* One with many filters is not made live by trying them all on a full queue: it waits until that is written. */
START_TEST(catching_up_may_cost_too_much)
{
    struct filter filters[8];

    setup(16 << 20);
    for (size_t i = 0; i < 8; i++)
        filters[i] = (struct filter){FILTER_EXACT, unit_bytes(i == 7 ? "yes" : "no")};
    (void)subscribe(0, filters, 8, oldest, 1 << 20);
    (void)subscribe(1, filters, 1, oldest, 1 << 20);
    (void)subscribe(2, &everything, 1, oldest, 1 << 20);
    UNTIL((void)0, all_at_end());
    /* nothing is written as long as the loop does not turn */
    for (unsigned i = 0; i < 40000; i++) {
        put_message(0x1000 + i * 16, i % 100 ? "else" : "yes", 20);
        if (i % 500 == 499) {
            struct batch *b = take_batch();
            journal_append(r.journal, b);
            (void)batch_unref(b);
        }
    }
    ck_assert_uint_eq(journal_pending(r.journal), 80);
    for (size_t i = 0; i < 3; i++) {
        bool now = deliver_pending(&r, peers[i].s);
        ck_assert_int_eq(now, i > 0);
        if (!now) {
            ck_assert_uint_eq(peers[i].s->messages, 0);
            session_fall_behind(peers[i].s);
        }
    }
    router_flush(&r);
    check_all();
    ck_assert_uint_eq(peers[0].s->messages, 400);
    teardown();
}
END_TEST

/* ---- names ---- */

START_TEST(absent_names)
{
    struct filter a = {FILTER_EXACT, unit_bytes("a")};

    setup(16 << 20);
    matched = gaps = routed = 0;
    ck_assert_int_eq(route_add(r.route, &name.member, &a, 1, NULL, 0), 0);
    name.member.absent = true;
    (void)subscribe(0, &everything, 1, oldest, 100000);
    UNTIL((void)0, all_at_end());
    put_message(0x1000, "b", 10);
    put_message(0x1010, "a", 10);
    put_message(0x1020, "a", 10);
    put_gap((struct position){1, 0x1021, 0}, (struct position){1, 0x1040, 0});
    name_floats = true;
    append(take_batch());
    ck_assert_uint_eq(matched, 2);
    ck_assert_int_eq(position_compare(matched_at, (struct position){1, 0x1020, 0}), 0);
    ck_assert_uint_eq(gaps, 1);
    ck_assert_uint_eq(routed, 1);
    /* nobody floats: then a batch goes whole, and nothing is looked up */
    name_floats = false;
    put_message(0x1050, "a", 10);
    append(take_batch());
    ck_assert_uint_eq(matched, 2);
    ck_assert_uint_eq(routed, 2);
    /* one without entries moves names too */
    struct batch *b = batch_new(&r.pool);
    b->mark = 0x1060;
    b->mark_position = (struct position){1, 0x1060, 0};
    batch_seal(b);
    append(b);
    ck_assert_uint_eq(routed, 3);
    ck_assert_int_eq(position_compare(r.progress, (struct position){1, 0x1060, 0}), 0);
    check_all();
    route_remove(r.route, &name.member);
    teardown();
}
END_TEST

UNIT_MAIN("deliver", random_delivery, random_delivery_on_a_disk_that_fails,
          who_does_not_read_lets_go, one_user_does_not_take_it_all, what_waits_is_small,
          a_message_larger_than_the_bound,
          catching_up_may_cost_too_much, absent_names)
