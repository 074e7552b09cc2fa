/* SPDX-License-Identifier: PostgreSQL */
/*
 * Sessions that read from a journal: real sockets, real files, libuv's own threads, and an owner that delivers what is
 * not yet written when a session has caught up, as deliver.c does.
 */
#include "session_read.h"

#include <sys/socket.h>

#include "journal/reader.h"
#include "reader_fixture.h"
#include "session.h"

#define PEERS_MAX 200

/* ---- the owner ---- */

struct peer {
    struct session *s; /* NULL: closed */
    int fd;            /* the client's end */
    struct filter filters[8];
    size_t n_filters;
    struct position start;
    struct buf in; /* what came */
    size_t taken;
    unsigned errors;
    char error[64]; /* the code of the last one */
};

static uv_loop_t loop;
static struct session_reads reads;
static struct session *sessions;
static struct accounts accounts;
static struct route *route;
static struct peer peers[PEERS_MAX];
static struct batch *pending[100];
static size_t n_pending;
static unsigned caught_up, refusals;
static char *log_text;
static size_t log_size;
static struct logger logger;

static struct peer *peer_of(const struct session *s)
{
    return &peers[s->id];
}

static void on_welcome(void *o, struct control_welcome *welcome)
{
    (void)o;
    welcome->identity = unit_bytes("42/1");
}

static void on_subscribe(void *o, struct session *s)
{
    struct peer *p = peer_of(s);
    struct control_subscribed subscribed = {
        .position = p->start, .identity = unit_bytes("42/1"), .timeline = 1};

    (void)o;
    ck_assert_int_eq(route_add(route, &s->member, p->filters, p->n_filters, NULL, 0), 0);
    session_subscribed(s, &subscribed);
}

static void on_request(void *o, struct session *s, const struct control_request *request)
{
    struct control_reply reply = {.id = request->id, .result = unit_bytes("\x01")};

    (void)o;
    session_reply(s, &reply);
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
    (void)o;
    if (refusals) {
        refusals--;
        return false;
    }
    caught_up++;
    for (size_t i = 0; i < n_pending && session_is_live(s); i++) {
        struct batch *b = pending[i];
        const struct batch_entry *begin = NULL;
        if (position_compare(b->last, s->told) <= 0 || session_send_batch(s, b))
            continue;
        for (size_t k = 0; k < b->n_entries && session_is_live(s); k++) {
            const struct batch_entry *e = &b->entries[k];
            if (e->type == FRAME_BEGIN)
                begin = e;
            else if (e->type == FRAME_COMMIT)
                session_send_commit(s, b, e, begin);
            else if (e->type == FRAME_GAP)
                session_send_gap_entry(s, b, e);
            else if (filters_match(s->member.filters, s->member.n_filters, NULL, 0, e->prefix))
                (void)session_send_message(s, b, e, begin);
        }
    }
    return true;
}

static struct {
    unsigned n, failed;
    struct position told; /* the last */
    char why[128];
    bool known;           /* the answer */
} steps;

static bool on_was_read(void *o, struct session *s, struct position told, const char *why)
{
    (void)o;
    ck_assert_int_eq(s->state, SESSION_ACTIVE);
    steps.n++;
    steps.failed += why != NULL;
    steps.told = told;
    if (why)
        (void)snprintf(steps.why, sizeof steps.why, "%s", why);
    return !steps.known;
}

static void on_closed(void *o, struct session *s)
{
    (void)o;
    if (s->member.filters)
        route_remove(route, &s->member);
    if (s->prev)
        s->prev->next = s->next;
    else
        sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    peer_of(s)->s = NULL;
}

static void on_acked(void *o, struct session *s, bool confirm)
{
    (void)o;
    if (confirm)
        session_confirm(s, s->acked);
}

static const struct session_ops ops = {.welcome = on_welcome,
                                       .subscribe = on_subscribe,
                                       .request = on_request,
                                       .room = on_room,
                                       .acked = on_acked,
                                       .caught_up = on_caught_up,
                                       .was_read = on_was_read,
                                       .closed = on_closed};

/* ---- fixture ---- */

static void setup(void)
{
    journal_setup();
    memset(peers, 0, sizeof peers);
    sessions = NULL;
    accounts = (struct accounts){0};
    accounts_limit(&accounts, SIZE_MAX);
    n_pending = 0;
    caught_up = refusals = 0;
    memset(&steps, 0, sizeof steps);
    logger = (struct logger){.out = open_memstream(&log_text, &log_size)};
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    route = route_new();
    ck_assert_ptr_nonnull(route);
    session_reads_init(&reads, &loop, &journal, &sessions);
}

static void teardown(void)
{
    while (sessions)
        session_close(sessions, "the test is over");
    while (n_pending)
        (void)batch_unref(pending[--n_pending]);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_uint_eq(reads.pool.live, 0);
    ck_assert_uint_eq(reads.pool.live_bytes, 0);
    ck_assert_uint_eq(reads.running, 0);
    ck_assert_uint_eq(reads.reserved, 0);
    ck_assert_ptr_null(reads.first);
    ck_assert_ptr_null(accounts.first); /* all receipts are back */
    session_reads_deinit(&reads);
    for (size_t i = 0; i < PEERS_MAX; i++) {
        if (peers[i].fd)
            ck_assert_int_eq(close(peers[i].fd), 0);
        buf_deinit(&peers[i].in);
    }
    route = route_free(route);
    (void)fclose(logger.out);
    free(log_text);
    journal_teardown();
}

static void turn(void)
{
    (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* Turns the loop, doing something in each turn, until it is so; ten seconds at most. */
#define UNTIL(something, condition)                                      \
    do {                                                                 \
        for (unsigned turns_ = 0; !(condition); turns_++) {              \
            ck_assert_msg(turns_ < 100000, "waited for %s", #condition); \
            turn();                                                      \
            something;                                                   \
            if (!(condition))                                            \
                (void)usleep(100);                                       \
        }                                                                \
    } while (0)

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

/* A client that subscribes, with so much room in its socket. */
static struct peer *subscribe(size_t id, const char *const *filters, struct position start,
                              int room)
{
    struct peer *p = &peers[id];
    struct control_hello hello = {1, 1, 1, unit_bytes("unit")};
    struct buf out = BUF_INIT;
    int pair[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    ck_assert_int_eq(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
    p->fd = pair[1];
    p->start = start;
    while (filters[p->n_filters]) {
        p->filters[p->n_filters] =
            (struct filter){FILTER_PATTERN, unit_bytes(filters[p->n_filters])};
        p->n_filters++;
    }
    p->s = session_new(&loop, pair[0], id, &ops, NULL, &reads, &logger);
    ck_assert_ptr_nonnull(p->s);
    p->s->next = sessions;
    if (sessions)
        sessions->prev = p->s;
    sessions = p->s;
    if (id % 4) /* some users, and some who are not counted */
        session_charge_to(p->s, account_of(&accounts, id % 4));
    control_hello_encode(&hello, &out);
    struct control_subscribe subscribe = {
        .filters = p->filters, .n_filters = p->n_filters, .start = CONTROL_START_NOW};
    control_subscribe_encode(&subscribe, &out);
    ck_assert_int_eq(send(p->fd, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
    buf_deinit(&out);
    return p;
}

static const char *const all_of_it[] = {">", NULL};
static const struct position oldest = {1, 0x100, 0};
#define ROOM 4608 /* the kernel's least */

/* Takes up to so many bytes. How many; -1: the connection has ended. */
static ssize_t receive(struct peer *p, size_t size)
{
    uint8_t *to = buf_reserve(&p->in, size);

    ck_assert_ptr_nonnull(to);
    ssize_t n = recv(p->fd, to, size, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0)
        return -1;
    p->in.size += (size_t)n;
    return n;
}

static bool receive_all(struct peer *p)
{
    ssize_t n;

    while ((n = receive(p, 65536)) > 0)
        ;
    return n == 0;
}

/* Splits what came: the data frames, and how many of the others there are. */
static struct buf data_of(struct peer *p, unsigned counts[256])
{
    struct buf data = BUF_INIT;
    size_t at = 0;

    memset(counts, 0, 256 * sizeof *counts);
    while (p->in.size - at >= FRAME_HEADER_SIZE) {
        uint8_t type = p->in.data[at + 4];
        size_t size = FRAME_HEADER_SIZE + bytes_get_u32(p->in.data + at);
        if (size > p->in.size - at)
            break;
        counts[type]++;
        if (type == FRAME_BEGIN || type == FRAME_MESSAGE || type == FRAME_COMMIT ||
            type == FRAME_GAP)
            buf_append(&data, p->in.data + at, size);
        if (type == FRAME_ERROR) {
            struct control_error error;
            char why[CONTROL_WHY_SIZE];
            ck_assert_int_eq(
                control_error_decode(
                    (struct bytes){p->in.data + at + FRAME_HEADER_SIZE, size - FRAME_HEADER_SIZE},
                    &error, why),
                0);
            (void)snprintf(p->error, sizeof p->error, "%.*s", (int)error.code.size,
                           (const char *)error.code.data);
        }
        at += size;
    }
    ck_assert_uint_eq(at, p->in.size); /* no half frame */
    return data;
}

static void assert_data(struct peer *p, const struct buf *want)
{
    unsigned counts[256];
    struct buf data = data_of(p, counts);

    if (!bytes_equal(buf_bytes(&data), buf_bytes(want)))
        ck_abort_msg("%zu bytes of data came, not %zu", data.size, want->size);
    ck_assert_uint_eq(counts[FRAME_ERROR], 0);
    buf_deinit(&data);
}

/* That it has got all that it must, and is live. */
static void assert_complete(struct peer *p)
{
    struct reference want = reference_of(p->filters, p->n_filters, p->start);

    UNTIL((void)receive_all(p), p->s && session_is_live(p->s) && session_is_at_end(p->s));
    (void)receive_all(p);
    reference_run(&want);
    assert_data(p, &want.out);
    ck_assert_uint_eq(p->s->messages, want.messages);
    ck_assert_int_eq(p->s->inside, want.inside);
    buf_deinit(&want.out);
}

/* Not yet written. */
static void hold_batch(void)
{
    pending[n_pending++] = take_batch();
}

static void write_pending(void)
{
    for (size_t i = 0; i < n_pending; i++) {
        journal_write(pending[i]);
        (void)batch_unref(pending[i]);
    }
    n_pending = 0;
    for (struct session *s = sessions; s; s = s->next) {
        session_wake(s);
        session_flush(s);
    }
}

static void put_some(unsigned n, size_t size)
{
    static uint64_t lsn;

    lsn = MAX(lsn, n_entries ? entries[n_entries - 1].position.lsn : 0x1000);
    for (unsigned i = 0; i < n; i++) {
        lsn += 0x20;
        put_message(lsn, i % 3 ? "a.b" : "c", size);
        put_begin(lsn + 0x10);
        put_message(lsn + 1, "a.b", size / 2);
        put_message(lsn + 1, i % 2 ? "c" : "d.e", size / 3);
        put_commit();
    }
}

/* ---- tests ---- */

START_TEST(from_everywhere_to_live)
{
    static const char *const filters[][3] = {{">"}, {"a.*"}, {"c", "d.>"}, {"nobody"}};

    setup();
    for (unsigned i = 0; i < 10; i++) {
        put_some(5, 300);
        end_record();
        if (i % 3 == 2)
            end_segment();
    }
    put_some(2, 50);
    hold_batch(); /* and what is not yet written */
    put_begin(0x100000);
    put_message(0x100000, "a.b", 40);
    hold_batch();
    size_t n = 0;
    for (size_t f = 0; f < 4; f++)
        for (size_t i = 0; i < n_entries; i += 7)
            (void)subscribe(n++, filters[f], i ? entries[i].position : oldest, 1 << 20);
    for (size_t i = 0; i < n; i++)
        assert_complete(&peers[i]);
    ck_assert_uint_eq(caught_up, n);
    /* whoever begins behind all that is written needs no worker */
    struct peer *p = subscribe(n, all_of_it, journal.written, 1 << 20);
    turn();
    ck_assert(session_is_live(p->s));
    assert_complete(p);
    write_pending();
    turn();
    for (size_t i = 0; i < n; i++)
        assert_complete(&peers[i]);
    teardown();
}
END_TEST

START_TEST(not_now)
{
    setup();
    put_some(3, 100);
    end_record();
    put_some(3, 100);
    hold_batch();
    refusals = 1;
    struct peer *p = subscribe(0, all_of_it, oldest, 1 << 20);
    UNTIL((void)0, refusals == 0);
    for (unsigned i = 0; i < 30; i++)
        turn();
    ck_assert(!session_is_live(p->s)); /* it waits until more is written */
    ck_assert_uint_eq(reads.running, 0);
    write_pending();
    assert_complete(p);
    teardown();
}
END_TEST

/* 4 KB at a time, out of a file, with no more than a chunk or two in memory; control frames come when the message is over. */
START_TEST(a_large_message_for_a_slow_reader)
{
    enum { LARGE = 20000000 };

    setup();
    put_some(2, 100);
    put_message(0x8000, "a.b", LARGE);
    end_record();
    put_some(300, 100);
    end_record();
    struct peer *p = subscribe(0, all_of_it, oldest, ROOM);
    struct control_ack ack = {.position = {1, 0x100, 0}, .confirm = true};
    struct buf out = BUF_INIT;
    control_ack_encode(&ack, false, &out);
    UNTIL((void)receive(p, 4096), p->in.size > LARGE / 2);
    ck_assert_int_eq(send(p->fd, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
    UNTIL((void)0, p->s->acked_due || outbox_waiting_control(&p->s->outbox));
    size_t most = 0, at = p->in.size;
    while (p->in.size < LARGE) {
        turn();
        (void)receive(p, 4096);
        most = MAX(most, reads.pool.live_bytes + reads.reserved);
        if (p->in.size == at)
            (void)usleep(20);
        at = p->in.size;
    }
    ck_assert_uint_le(most, 3 * READER_CHUNK);
    assert_complete(p);
    unsigned counts[256];
    struct buf data = data_of(p, counts);
    ck_assert_uint_eq(counts[FRAME_ACKED], 1);
    /* right behind the large one */
    size_t end = 0;
    for (unsigned messages = 0; messages < 7;
         end += FRAME_HEADER_SIZE + bytes_get_u32(p->in.data + end))
        messages += p->in.data[end + 4] == FRAME_MESSAGE;
    ck_assert_uint_gt(end, LARGE);
    ck_assert_uint_eq(p->in.data[end + 4], FRAME_ACKED);
    buf_deinit(&data);
    buf_deinit(&out);
    teardown();
}
END_TEST

/* Begun live, from memory; its batch goes, and the rest comes out of the file. */
START_TEST(letting_go_of_what_was_begun_live)
{
    static const char *const filters[][3] = {{">"}, {"a.b"}};

    for (size_t f = 0; f < 2; f++) {
        for (size_t taken = 0; taken < 2; taken++) {
            setup();
            struct peer *p = subscribe(0, filters[f], oldest, ROOM);
            UNTIL((void)0, p->s && session_is_live(p->s));
            put_begin(0x200);
            put_message(0x1f0, "a.b", 100);
            put_message(0x1f1, "a.b", 3000000);
            hold_batch();
            struct batch *b = pending[0];
            if (!session_send_batch(p->s, b)) {
                (void)session_send_message(p->s, b, &b->entries[1], &b->entries[0]);
                (void)session_send_message(p->s, b, &b->entries[2], &b->entries[0]);
            }
            session_flush(p->s);
            if (taken)
                UNTIL((void)receive(p, 4096), p->in.size > 100000);
            ck_assert_uint_eq(p->s->messages, 2);
            write_pending();
            ck_assert_uint_eq(journal_pool.live, 1);
            session_let_go(p->s);
            ck_assert_uint_eq(journal_pool.live, 0);
            ck_assert(!session_is_live(p->s));
            ck_assert(p->s->blocked);
            ck_assert_uint_eq(p->s->messages, 1);
            put_commit();
            put_some(20, 100);
            end_record();
            for (unsigned i = 0; i < 20; i++)
                turn();
            ck_assert_uint_eq(reads.pool.live_bytes,
                              0); /* it does not read before its socket takes something */
            session_let_go(p->s); /* again: the same */
            assert_complete(p);
            teardown();
        }
    }
}
END_TEST

/* At any moment, as often as one likes: nothing is lost, nothing comes twice. */
START_TEST(letting_go_at_any_moment)
{
    static const char *const filters[][4] = {{">"}, {"a.b"}, {"c", "d.e"}};
    struct unit_random random = unit_random_init();
    unsigned let_go = 0, running = 0;

    for (unsigned round = 0; round < 6; round += unit_sparse()) {
        setup();
        for (unsigned i = 0; i < 20; i++) {
            put_some(10, unit_random_below(&random, 4) ? 500 : 30000);
            end_record();
            if (i % 7 == 6)
                end_segment();
        }
        put_message(0x80000, "a.b", 1000000);
        end_record();
        for (size_t i = 0; i < 3; i++)
            (void)subscribe(i, filters[i], entries[unit_random_below(&random, 50)].position, ROOM);
        bool done = false;
        while (!done) {
            done = true;
            turn();
            for (size_t i = 0; i < 3; i++) {
                struct peer *p = &peers[i];
                (void)receive(p, 1 + unit_random_below(&random, 30000));
                ck_assert_ptr_nonnull(p->s);
                done &= session_is_live(p->s) && session_is_at_end(p->s);
                if (p->s->state == SESSION_ACTIVE && unit_random_below(&random, 20) == 0 && !done) {
                    running += reads.running;
                    session_let_go(p->s);
                    let_go++;
                }
            }
        }
        for (size_t i = 0; i < 3; i++)
            assert_complete(&peers[i]);
        teardown();
    }
    ck_assert_uint_gt(let_go, 100 / unit_sparse());
    ck_assert_uint_gt(running, 0); /* also while a worker read */
}
END_TEST

/* A full outbox is no reason to drop anything: it is sent, and reading goes on behind it. */
START_TEST(a_full_outbox)
{
    setup();
    struct peer *p = subscribe(0, all_of_it, oldest, ROOM);
    UNTIL((void)0, p->s && session_is_live(p->s));
    unsigned batches = 0;
    while (session_is_live(p->s)) {
        put_some(30, 1500);
        hold_batch();
        ck_assert(session_send_batch(p->s, pending[0]));
        session_flush(p->s);
        write_pending();
        batches++;
    }
    ck_assert(outbox_is_full(&p->s->outbox));
    ck_assert_uint_eq(journal_pool.live, batches);
    for (unsigned i = 0; i < 20; i++) { /* what comes meanwhile is nothing to it */
        put_some(30, 1500);
        hold_batch();
        ck_assert(!session_send_batch(p->s, pending[0]));
        write_pending();
    }
    ck_assert_uint_eq(journal_pool.live, batches);
    ck_assert_uint_eq(reads.running, 0);
    assert_complete(p);
    ck_assert_uint_eq(caught_up, 2);
    teardown();
}
END_TEST

START_TEST(closing_while_a_worker_reads)
{
    setup();
    for (unsigned i = 0; i < 60; i++) {
        put_some(20, 3000);
        end_record();
    }
    for (unsigned round = 0; round < 30; round++) {
        for (size_t i = 0; i < 6;
             i++) { /* more than are read at a time: some wait for their turn */
            struct peer *p = &peers[i];
            if (p->fd)
                ck_assert_int_eq(close(p->fd), 0);
            buf_deinit(&p->in);
            *p = (struct peer){0};
            (void)subscribe(i, i % 2 ? (const char *const[]){"a.b", NULL} : all_of_it, oldest,
                            1 << 20);
        }
        UNTIL((void)0, reads.running > 0 || round % 4 == 3);
        for (unsigned i = 0; i < round % 5; i++)
            turn();
        while (sessions)
            session_close(sessions, "in the middle");
    }
    teardown();
}
END_TEST

/* Who does not read costs nothing in the end, and who reads is not held up by it. */
START_TEST(bounded_in_all)
{
    enum { STOPPED = 90 };

    setup();
    for (unsigned i = 0; i < 6; i++) {
        put_some(30, 8000);
        end_record();
    }
    size_t most = 0;
    for (size_t i = 0; i < STOPPED; i++)
        (void)subscribe(i, all_of_it, oldest, 1 << 15);
    for (unsigned i = 0; i < 3000; i++) {
        turn();
        most = MAX(most, reads.pool.live_bytes + reads.reserved);
        ck_assert_uint_le(reads.running, SESSION_READS_AT_ONCE);
        if (i % 10 == 0)
            (void)usleep(100);
    }
    ck_assert_uint_le(most, SESSION_READS_BYTES);
    ck_assert_uint_gt(most, SESSION_READS_BYTES / 2);
    struct peer *p = subscribe(STOPPED, all_of_it, oldest, 1 << 20);
    while (!p->s->subscribed && !(session_is_live(p->s) && session_is_at_end(p->s))) {
        turn();
        (void)receive_all(p);
        most = MAX(most, reads.pool.live_bytes + reads.reserved);
    }
    assert_complete(p);
    ck_assert_uint_le(most, SESSION_READS_BYTES);
    /* and all of them get all of it, however they take turns */
    size_t done = 0;
    while (done < STOPPED) {
        turn();
        done = 0;
        for (size_t i = 0; i < STOPPED; i++) {
            (void)receive(&peers[i], 60000);
            done += session_is_live(peers[i].s) && session_is_at_end(peers[i].s);
        }
        most = MAX(most, reads.pool.live_bytes + reads.reserved);
    }
    ck_assert_uint_le(most, SESSION_READS_BYTES);
    for (size_t i = 0; i < STOPPED; i += 17)
        assert_complete(&peers[i]);
    teardown();
}
END_TEST

/* What one user's sessions do not read is bounded for him; nobody else lets go for it, and each gets all of it. */
START_TEST(bounded_for_one_user)
{
    enum { PEERS = 60, OTHER = 1 };
    const size_t most = 1 << 20;
    size_t seen = 0, others = 0;

    setup();
    for (unsigned i = 0; i < 4; i++) {
        put_some(30, 8000);
        end_record();
    }
    accounts_limit(&accounts, most);
    struct account *hers = account_of(&accounts, 2);
    ck_assert_ptr_nonnull(hers);
    (void)subscribe(OTHER, all_of_it, oldest, ROOM);
    UNTIL((void)0, peers[OTHER].s->outbox.waiting > 0);
    size_t waiting = peers[OTHER].s->outbox.waiting;
    for (size_t i = 2; i < PEERS; i += 4)
        (void)subscribe(i, all_of_it, oldest, ROOM);
    for (size_t done = 0, turns = 0; done < PEERS / 4; turns++) {
        turn();
        done = 0;
        for (size_t i = 2; i < PEERS; i += 4) { /* at first next to nothing, so that none of them waits for long */
            (void)receive(&peers[i], turns < 1000 ? 64 : 60000);
            done += session_is_live(peers[i].s) && session_is_at_end(peers[i].s);
        }
        seen = MAX(seen, hers->bytes);
        others = MAX(others, reads.pool.live_bytes + reads.reserved);
        ck_assert_uint_eq(peers[OTHER].s->outbox.waiting, waiting);
    }
    ck_assert_uint_le(seen, most + PEERS * sizeof(struct batch));
    ck_assert_uint_gt(seen, most / 2);
    ck_assert_uint_le(others, most + PEERS * sizeof(struct batch) + 2 * READER_CHUNK);
    ck_assert_uint_eq(hers->bytes, 0);
    (void)account_unref(hers);
    for (size_t i = 2; i < PEERS; i += 4)
        assert_complete(&peers[i]);
    teardown();
}
END_TEST

START_TEST(retention_has_passed_it)
{
    setup();
    put_some(5, 300);
    end_record();
    end_segment();
    put_some(5, 300);
    end_record();
    journal_drop_segment();
    struct peer *p = subscribe(0, all_of_it, oldest, 1 << 20);
    struct reference want = reference_of(p->filters, 1, oldest);
    reference_gap(&want, journal.segments[1]->header.after,
                  "the journal does not reach back so far any more");
    reference_run(&want);
    UNTIL((void)receive_all(p), session_is_live(p->s) && session_is_at_end(p->s));
    (void)receive_all(p);
    assert_data(p, &want.out);
    buf_deinit(&want.out);
    teardown();
}
END_TEST

/* In the middle of a message, which nobody has any more: the connection ends there. */
START_TEST(retention_passes_what_is_being_sent)
{
    setup();
    put_message(0x200, "a", 2000000);
    end_record();
    end_segment();
    put_some(5, 300);
    end_record();
    struct peer *p = subscribe(0, all_of_it, oldest, ROOM);
    UNTIL((void)receive(p, 4096), p->in.size > 300000);
    session_let_go(p->s);
    journal_drop_segment();
    while (receive_all(p)) {
        turn();
        (void)usleep(50);
    }
    ck_assert_ptr_null(p->s);
    ck_assert_uint_lt(p->in.size, 2000000);
    teardown();
}
END_TEST

/* What retention drops has nothing for it, and in between stands what it is being sent. */
START_TEST(retention_passes_in_front_of_what_is_being_sent)
{
    static const char *const filters[] = {"a.b", NULL};

    for (int when = 0; when < 3; when++) {
        setup();
        put_message(0x200, "c", 10);
        end_record();
        end_segment();
        put_message(0x300, "a.b", 2000000);
        end_record();
        put_some(5, 300);
        end_record();
        struct peer *p = subscribe(0, filters, oldest, ROOM);
        UNTIL((void)receive(p, 4096), p->in.size > 300000);
        if (when < 2)
            session_let_go(p->s);
        if (when == 1) /* what a worker brings is of no use then */
            UNTIL((void)receive(p, 4096), reads.running == 1);
        session_pass(p->s, journal.segments[1]->header.after);
        journal_drop_segment();
        if (when == 2)
            session_let_go(p->s);
        assert_complete(p);
        teardown();
    }
}
END_TEST

/* It stands inside a transaction, and the rest of that has something for it behind what goes. */
START_TEST(retention_passes_within_a_transaction)
{
    static const char *const filters[] = {"a.b", NULL};

    for (int resumes = 0; resumes < 2; resumes++) {
        setup();
        put_begin(0x200);
        put_message(0x1f0, "a.b", 10);
        end_record();
        struct peer *p = subscribe(0, filters, resumes ? entries[1].position : oldest, 1 << 20);
        UNTIL((void)receive_all(p), p->s && session_is_live(p->s) && session_is_at_end(p->s));
        ck_assert(resumes ? p->s->resume : p->s->inside);
        put_message(0x1f1, "c", 10);
        put_message(0x1f2, "c", 10);
        end_record();
        end_segment();
        session_pass(p->s, journal.segments[1]->header.after);
        journal_drop_segment();
        session_fall_behind(p->s);
        put_message(0x1f3, "a.b", 10);
        put_commit();
        end_record();
        session_flush(p->s);
        assert_complete(p);
        /* Behind its end: the COMMIT is missing, and a gap says so. */
        struct position told = p->s->told;
        p->s->told = (struct position){1, 0x200, 4};
        p->s->inside = true;
        session_pass(p->s, (struct position){1, 0x200, POSITION_INDEX_END});
        ck_assert_int_eq(position_compare(p->s->told, (struct position){1, 0x200, 4}), 0);
        p->s->told = told;
        p->s->inside = false;
        teardown();
    }
}
END_TEST

static void damage(size_t segment, uint64_t at)
{
    int fd = open(journal.segments[segment]->path, O_RDWR | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, "!", 1, (off_t)at), 1);
    ck_assert_int_eq(close(fd), 0);
    journal_reopen();
}

static size_t log_lines(const char *id)
{
    size_t n = 0;

    (void)fflush(logger.out);
    for (const char *at = log_text; (at = strstr(at, id)); at++)
        n++;
    return n;
}

START_TEST(damage_is_told)
{
    setup();
    put_some(1, 300);
    end_record();
    end_segment();
    put_some(5, 300);
    end_record();
    end_segment();
    put_some(2, 300);
    end_record();
    damage(1, SEGMENT_HEADER_SIZE + RECORD_SIZE + 100);
    for (size_t i = 0; i < 3; i++) {
        struct peer *p = subscribe(i, all_of_it, oldest, 1 << 20);
        unsigned counts[256];
        UNTIL((void)receive_all(p), session_is_live(p->s) && session_is_at_end(p->s));
        (void)receive_all(p);
        struct buf data = data_of(p, counts);
        ck_assert_uint_eq(counts[FRAME_GAP], 1);
        ck_assert_uint_eq(counts[FRAME_MESSAGE], 9);
        ck_assert_uint_eq(counts[FRAME_ERROR], 0);
        buf_deinit(&data);
        ck_assert_uint_eq(steps.failed, 0);
        ck_assert_int_eq(position_compare(steps.told, journal.written), 0);
    }
    ck_assert_uint_eq(log_lines("journal.damaged"), 1);
    ck_assert_ptr_nonnull(strstr(log_text, ".segment: offset 512"));
    teardown();
}
END_TEST

/* The worker that meets it first is the one that says so, though nobody takes any more what it has brought. */
START_TEST(damage_is_told_of_a_reader_that_is_gone)
{
    for (int gone = 0; gone < 2; gone++) {
        setup();
        put_some(1, 300);
        end_record();
        end_segment();
        put_some(5, 300);
        end_record();
        end_segment();
        put_some(2, 300);
        end_record();
        damage(1, SEGMENT_HEADER_SIZE + RECORD_SIZE + 100);
        struct peer *p = subscribe(0, all_of_it, oldest, 1 << 20);
        /* while the worker has its first step; what that brings is taken in a turn to come */
        UNTIL((void)0, reads.running == 1);
        if (gone)
            session_close(p->s, "in the middle");
        else
            session_reseat(p->s, 0, (struct position){0});
        UNTIL((void)0, reads.running == 0 || log_lines("journal.damaged"));
        p = subscribe(1, all_of_it, oldest, 1 << 20);
        UNTIL((void)receive_all(p), session_is_live(p->s) && session_is_at_end(p->s));
        ck_assert_uint_eq(log_lines("journal.damaged"), 1);
        teardown();
    }
}
END_TEST

START_TEST(a_journal_that_cannot_be_read)
{
    unsigned counts[256];

    setup();
    put_some(5, 300);
    end_record();
    struct peer *p = subscribe(0, all_of_it, oldest, 1 << 20);
    int fd = journal.segments[0]->fd;
    journal.segments[0]->fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (receive_all(p)) {
        turn();
        (void)usleep(50);
    }
    struct buf data = data_of(p, counts);
    ck_assert_uint_eq(counts[FRAME_ERROR], 1);
    ck_assert_str_eq(p->error, "journal");
    ck_assert_uint_eq(log_lines("journal.unreadable"), 1);
    buf_deinit(&data);
    ck_assert_uint_eq(steps.failed, 1);
    ck_assert_str_eq(steps.why, "the router cannot read its journal: Is a directory");
    ck_assert_int_eq(position_compare(steps.told, oldest), 0);
    /* what the owner has said already is not said again */
    steps.known = true;
    logger.level = LOG_INFO;
    p = subscribe(1, all_of_it, oldest, 1 << 20);
    while (receive_all(p)) {
        turn();
        (void)usleep(50);
    }
    ck_assert_uint_eq(steps.failed, 2);
    ck_assert_uint_eq(log_lines("journal.unreadable"), 1);
    ck_assert_int_eq(close(journal.segments[0]->fd), 0);
    journal.segments[0]->fd = fd;
    teardown();
}
END_TEST

/* What lies in front of it in the same chunk, or is still to be written to the socket, comes first: who tries again begins there. */
START_TEST(what_can_be_read_comes_before_the_error)
{
    for (size_t small = 0; small < 2; small++) {
        unsigned counts[256];

        setup();
        put_some(small ? 100 : 2, 300);
        end_record();
        end_segment();
        put_some(2, 300);
        end_record();
        int fd = journal.segments[1]->fd;
        journal.segments[1]->fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct peer *p = subscribe(0, all_of_it, oldest, small ? ROOM : 1 << 20);
        while (receive(p, 4096) >= 0) {
            turn();
            (void)usleep(20);
        }
        struct buf data = data_of(p, counts);
        ck_assert_uint_eq(counts[FRAME_MESSAGE], small ? 300 : 6);
        ck_assert_uint_eq(counts[FRAME_ERROR], 1);
        ck_assert_str_eq(p->error, "journal");
        ck_assert_uint_eq(steps.failed, 1);
        ck_assert_int_eq(position_compare(steps.told, journal.segments[1]->header.after), 0);
        buf_deinit(&data);
        ck_assert_int_eq(close(journal.segments[1]->fd), 0);
        journal.segments[1]->fd = fd;
        teardown();
    }
}
END_TEST

/* A sync has failed under what a session was being sent: it waits until that is there again. */
START_TEST(the_journal_falls_back)
{
    setup();
    put_some(2, 100);
    end_record();
    struct segment_state synced = segment_state_of(journal.segments[0]);
    size_t synced_entries = n_entries, synced_bytes = all.size;
    struct position end = journal.written;
    put_message(0x90000, "a.b", 1000000);
    end_record();
    struct peer *p = subscribe(0, all_of_it, oldest, ROOM);
    UNTIL((void)receive(p, 4096), p->in.size > 300000);
    session_let_go(p->s);
    segment_fall_back(journal.segments[0], &synced);
    journal.written = end;
    for (unsigned i = 0; i < 200; i++) {
        turn();
        (void)receive_all(p);
        (void)usleep(50);
    }
    ck_assert(!session_is_live(p->s));
    ck_assert_uint_eq(reads.running, 0); /* it does not go round */
    size_t before = p->in.size;
    ck_assert_uint_lt(before, 1000000);
    end_segment();
    n_entries = synced_entries;
    all.size = synced_bytes;
    put_message(0x90000, "a.b", 1000000);
    hold_batch();
    put_some(2, 100);
    hold_batch();
    write_pending();
    assert_complete(p);
    teardown();
}
END_TEST

START_TEST(progress_at_the_end_alone)
{
    const struct position p1 = {1, 0x500000, 0};

    setup();
    for (unsigned i = 0; i < 50; i++) {
        put_some(20, 1000);
        end_record();
    }
    struct peer *p = subscribe(0, (const char *const[]){"nobody", NULL}, oldest, 1 << 20);
    UNTIL((void)0, p->s->read);
    session_send_progress(p->s, p1); /* it has not yet looked at all of it */
    session_flush(p->s);
    UNTIL((void)receive_all(p), session_is_live(p->s));
    session_send_progress(p->s, p1);
    session_flush(p->s);
    ck_assert(receive_all(p));
    unsigned counts[256];
    struct buf data = data_of(p, counts);
    ck_assert_uint_eq(counts[FRAME_PROGRESS], 1);
    ck_assert_uint_eq(data.size, 0);
    ck_assert_int_eq(position_compare(p->s->told, p1), 0);
    buf_deinit(&data);
    /* when it lets go of what came since, it does not go back behind that */
    put_message(0x600000, "nobody", 200000);
    hold_batch();
    (void)session_send_message(p->s, pending[0], &pending[0]->entries[0], NULL);
    session_let_go(p->s);
    ck_assert_int_eq(position_compare(p->s->told, p1), 0);
    teardown();
}
END_TEST

static void assert_progress(struct peer *p, struct position position, bool comes)
{
    unsigned before[256], after[256];
    struct buf data = data_of(p, before);

    buf_deinit(&data);
    session_send_progress(p->s, position);
    session_flush(p->s);
    ck_assert(receive_all(p));
    data = data_of(p, after);
    ck_assert_uint_eq(after[FRAME_PROGRESS] - before[FRAME_PROGRESS], comes);
    buf_deinit(&data);
}

/* It may be all that ever comes: who has read to the end is told even if no more was read since. */
START_TEST(progress_over_what_was_passed_over)
{
    setup();
    put_message(0x100100, "somebody", 10);
    put_message(0x100200, "nobody", 10);
    put_begin(0x100300);
    put_message(0x100300, "nobody", 10);
    put_message(0x100300, "nobody", 10);
    end_record();
    const struct position before = {1, 0x1002ff, POSITION_INDEX_END}, last = {1, 0x100300, 2};
    struct peer *p = subscribe(0, (const char *const[]){"somebody", NULL}, oldest, 1 << 20);
    UNTIL((void)receive_all(p), session_is_live(p->s));
    ck_assert_int_eq(position_compare(p->s->told, last), 0);
    assert_progress(p, (struct position){1, 0x100100, 0}, false); /* it has had that */
    assert_progress(p, before, true);
    assert_progress(p, before, false);
    ck_assert_int_eq(position_compare(p->s->told, last), 0);
    assert_progress(p, last, true);
    assert_progress(p, last, false);

    /* Behind what it was sent since nothing of before is told. */
    struct peer *q = subscribe(1, (const char *const[]){"somebody", NULL}, oldest, 1 << 20);
    UNTIL((void)receive_all(q), session_is_live(q->s));
    put_commit();
    put_message(0x100400, "somebody", 10);
    hold_batch();
    (void)session_send_message(q->s, pending[0], &pending[0]->entries[1], NULL);
    session_flush(q->s);
    ck_assert(receive_all(q));
    assert_progress(q, before, false);
    teardown();
}
END_TEST

/* A fatal error comes behind the message that is being sent, wherever the rest of that is. */
START_TEST(leaving_in_the_middle_of_a_message)
{
    const struct position large = {1, 0x200, 0};

    for (int let_go = 0; let_go < 3; let_go++) {
        unsigned counts[256];
        setup();
        put_message(0x200, "a", 2000000);
        end_record();
        put_some(500, 300);
        end_record();
        struct peer *p = subscribe(0, all_of_it, oldest, ROOM);
        UNTIL((void)receive(p, 4096), p->in.size > 300000);
        if (let_go == 1)
            session_let_go(p->s);
        if (let_go == 2)
            UNTIL((void)receive(p, 4096), reads.running > 0);
        /* `told` is before it, but it will come: whoever has the name next must know */
        ck_assert_int_lt(position_compare(p->s->told, large), 0);
        ck_assert_int_eq(position_compare(session_sent(p->s), large), 0);
        session_stop(p->s, (struct position){1, 0x500000, 0}, CONTROL_ERROR_STOPPING, "Bye.");
        session_flush(p->s);
        UNTIL((void)receive(p, 100000), p->in.size > 2000100);
        for (unsigned i = 0; i < 50; i++) {
            turn();
            (void)receive_all(p);
        }
        ck_assert_ptr_nonnull(p->s); /* it lingers for the last acknowledgement */
        struct buf data = data_of(p, counts);
        ck_assert_uint_eq(counts[FRAME_MESSAGE], 1);
        ck_assert_uint_eq(counts[FRAME_ERROR], 1);
        ck_assert_uint_eq(counts[FRAME_PROGRESS], 0);
        ck_assert_mem_eq(data.data, all.data, data.size);
        ck_assert_uint_eq(p->s->messages, 1);
        ck_assert_uint_eq(reads.running, 0);
        buf_deinit(&data);
        /* and what has come can be acknowledged */
        struct control_ack ack = {.position = large};
        struct buf out = BUF_INIT;
        control_ack_encode(&ack, false, &out);
        ck_assert_int_eq(send(p->fd, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
        UNTIL((void)0, position_compare(p->s->acked, large) == 0);
        ck_assert_int_eq(position_compare(session_sent(p->s), large), 0);
        buf_deinit(&out);
        teardown();
    }
}
END_TEST

/* The owner tells of a gap of its own before anything is read. */
START_TEST(a_gap_before_it_begins)
{
    setup();
    put_some(3, 50);
    end_record();
    const struct position to = entries[4].position; /* of the first COMMIT */
    struct peer *p = subscribe(0, all_of_it, oldest, 1 << 20);
    while (!p->s || p->s->state != SESSION_ACTIVE)
        turn();
    session_send_gap(p->s, &journal_pool, to, 3, 4, "it was dropped");
    UNTIL((void)receive_all(p), session_is_live(p->s) && session_is_at_end(p->s));
    (void)receive_all(p);
    struct reference want = reference_of(p->filters, 1, to);
    unsigned counts[256];
    struct buf data = data_of(p, counts);
    reference_run(&want);
    ck_assert_uint_eq(counts[FRAME_GAP], 1);
    size_t gap = data.data[4] == FRAME_GAP ? FRAME_HEADER_SIZE + bytes_get_u32(data.data) : 0;
    if (gap) { /* it may have begun to read in the same turn: then what it read counts for nothing */
        ck_assert_uint_eq(bytes_get_u64(data.data + 8 + 32), 3);
        ck_assert_uint_eq(data.size - gap, want.out.size);
        ck_assert_mem_eq(data.data + gap, want.out.data, want.out.size);
    }
    buf_deinit(&want.out);
    buf_deinit(&data);
    teardown();
}
END_TEST

UNIT_MAIN("session_read", from_everywhere_to_live, not_now, a_large_message_for_a_slow_reader,
          letting_go_of_what_was_begun_live, letting_go_at_any_moment, a_full_outbox,
          closing_while_a_worker_reads, bounded_in_all, bounded_for_one_user, retention_has_passed_it,
          retention_passes_what_is_being_sent,
          retention_passes_in_front_of_what_is_being_sent, retention_passes_within_a_transaction, damage_is_told,
          damage_is_told_of_a_reader_that_is_gone, a_journal_that_cannot_be_read, what_can_be_read_comes_before_the_error,
          the_journal_falls_back, progress_at_the_end_alone, progress_over_what_was_passed_over,
          leaving_in_the_middle_of_a_message,
          a_gap_before_it_begins)
