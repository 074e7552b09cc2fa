/* SPDX-License-Identifier: PostgreSQL */
/*
 * SUBSCRIBE and ACK, from the frames to the catalog: clients on real sockets, the router's clients and names, the
 * registry on a real catalog; the journal is a list, and the source stands still in the state that a test says.
 */
#include "subscribe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "clients.h"
#include "codec/control.h"
#include "deliver.h"
#include "fake_journal.h"
#include "names.h"
#include "session_read.h"
#include "unit.h"
#include "wait_until.h"

static struct router r;
static uv_loop_t loop;
static uv_timer_t alive; /* as a router's listener keeps its loop */
static struct settings settings;
static struct journal journal;
static struct logger silent;
static char folder[32];
static int disk_error; /* what each sync fails with; 0: none does */

int fdatasync(int fd)
{
    (void)fd;
    errno = disk_error;
    return disk_error ? -1 : 0;
}

/* ---- fixture ---- */

static struct position at(uint64_t lsn, uint32_t index)
{
    return (struct position){1, lsn, index};
}

static void keep_alive(uv_timer_t *timer)
{
    (void)timer;
}

static void open_router(void)
{
    bool empty = journal.end.empty;

    r = (struct router){.loop = &loop, .log = &silent, .settings = &settings, .max_sessions = 20, .journal = &journal};
    r.route = route_new();
    ck_assert_ptr_nonnull(r.route);
    r.state.folder = folder;
    session_reads_init(&r.reads, &loop, &journal, &r.sessions);
    ck_assert_int_eq(names_open(&r), 0);
    builder_init(&r.source.stream.builder, &r.pool);
    if (empty) {
        ck_assert_int_eq(names_begin_era(&r, 42, 1, at(0, 0)), 0);
        journal.end.empty = false;
    }
    r.source.stream.builder.last = journal.end.last;
    r.source.state = SOURCE_STREAMING;
    r.source.has_facts = true;
    r.source.facts.wal_lsn = 0x1000;
    r.source.continuity.timeline = r.source.history.current = 1;
    (void)snprintf(r.identity, sizeof r.identity, "42/1");
}

static void setup(void)
{
    disk_error = 0;
    strcpy(folder, "/tmp/walbus-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    (void)uv_timer_init(&loop, &alive);
    (void)uv_timer_start(&alive, keep_alive, 3600000, 3600000);
    fake_journal_init(&journal);
    journal.end.empty = true;
    settings.journal_size = UINT64_MAX;
    open_router();
}

static void close_router(bool clean)
{
    while (r.sessions)
        session_close(r.sessions, "the test is over");
    if (clean)
        names_finish(&r);
    names_close(&r);
    uv_unref((uv_handle_t *)&alive);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    uv_ref((uv_handle_t *)&alive);
    builder_deinit(&r.source.stream.builder);
    r.route = route_free(r.route);
    free(r.inside);
    session_reads_deinit(&r.reads);
    ck_assert_uint_eq(r.pool.live, 0);
    batch_pool_deinit(&r.pool);
    ck_assert_uint_eq(journal.refs, 0);
}

/* As after a kill, or a clean stop. */
static void restart(bool clean)
{
    close_router(clean);
    open_router();
}

static void teardown(void)
{
    char path[64];

    close_router(false);
    uv_close((uv_handle_t *)&alive, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    (void)snprintf(path, sizeof path, "%s/catalog", folder);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static struct durable *name_of(const char *name)
{
    return durables_find(r.durables, unit_bytes(name));
}

static void settle(void)
{
    uint64_t ticket = durables_ticket(r.durables);

    wait_until(durables_is_done(r.durables, ticket));
}

/* ---- clients ---- */

struct client {
    int fd;
    uint64_t id;
    struct buf in;
    size_t taken;
};

static struct session *session_of(const struct client *c)
{
    for (struct session *s = r.sessions; s; s = s->next)
        if (s->id == c->id)
            return s;
    return NULL;
}

static void send_buf(struct client *c, struct buf *b)
{
    ck_assert(!b->failed);
    ssize_t n = send(c->fd, b->data, b->size, MSG_NOSIGNAL);
    ck_assert(n == (ssize_t)b->size || errno == EPIPE); /* it has been let go: what follows will show that */
    buf_deinit(b);
    for (unsigned i = 0; i < 3; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* False: nothing is there now. */
static bool poll_frame(struct client *c, struct frame_header *h, struct bytes *body)
{
    for (;;) {
        uint8_t *to = buf_reserve(&c->in, 65536);
        ssize_t n = recv(c->fd, to, 65536, MSG_DONTWAIT);

        if (n <= 0)
            break;
        c->in.size += (size_t)n;
    }
    if (c->in.size - c->taken < FRAME_HEADER_SIZE)
        return false;
    ck_assert_int_eq(frame_header_decode(c->in.data + c->taken, h), 0);
    if (c->in.size - c->taken - FRAME_HEADER_SIZE < h->size)
        return false;
    *body = (struct bytes){c->in.data + c->taken + FRAME_HEADER_SIZE, h->size};
    c->taken += FRAME_HEADER_SIZE + h->size;
    return true;
}

static struct bytes next(struct client *c, uint8_t type)
{
    struct frame_header h;
    struct bytes body;

    wait_until(poll_frame(c, &h, &body));
    ck_assert_msg(h.type == type, "%s came, wanted %s", frame_type_name(h.type), frame_type_name(type));
    return body;
}

static void assert_silent(struct client *c)
{
    struct frame_header h;
    struct bytes body;

    for (unsigned i = 0; i < 30; i++) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        (void)usleep(500);
        ck_assert_msg(!poll_frame(c, &h, &body), "a frame of type %02x", h.type);
    }
}

static struct client connect_client(void)
{
    struct control_hello hello = {1, 1, 1, unit_bytes("unit")};
    struct client c = {0};
    struct buf b = BUF_INIT;
    int pair[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    c.fd = pair[1];
    clients_accept(&r, pair[0]);
    c.id = r.next_session;
    control_hello_encode(&hello, &b);
    send_buf(&c, &b);
    (void)next(&c, FRAME_WELCOME);
    return c;
}

static void leave(struct client *c)
{
    ck_assert_int_eq(close(c->fd), 0);
    buf_deinit(&c->in);
    wait_until(!session_of(c));
}

static void ask(struct client *c, struct control_subscribe subscribe)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes("a.>")};
    struct buf b = BUF_INIT;

    if (!subscribe.filters) {
        subscribe.filters = &filter;
        subscribe.n_filters = 1;
    }
    control_subscribe_encode(&subscribe, &b);
    send_buf(c, &b);
}

static struct control_subscribed answer(struct client *c)
{
    struct control_subscribed got;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_subscribed_decode(next(c, FRAME_SUBSCRIBED), &got, why), 0);
    unit_assert_text(got.identity, "42/1");
    ck_assert_uint_eq(got.timeline, 1);
    return got;
}

static void assert_position(struct position got, struct position want)
{
    char a[POSITION_TEXT_SIZE], b[POSITION_TEXT_SIZE];

    ck_assert_msg(position_compare(got, want) == 0, "%s, wanted %s", position_format(got, a), position_format(want, b));
}

static void assert_subscribed(struct client *c, struct position position, bool stored, struct position redelivered_to)
{
    struct control_subscribed got = answer(c);

    assert_position(got.position, position);
    ck_assert_int_eq(got.stored, stored);
    assert_position(got.redelivered_to, redelivered_to);
}

static const struct position none;

static void assert_refused(struct client *c, const char *code, const char *text, bool fatal)
{
    struct control_error error;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_error_decode(next(c, FRAME_ERROR), &error, why), 0);
    unit_assert_text(error.code, code);
    if (text)
        unit_assert_text(error.text, text);
    ck_assert_int_eq(error.fatal, fatal);
}

static struct client subscribe(const char *name, enum control_start start)
{
    struct client c = connect_client();

    ask(&c, (struct control_subscribe){.name = unit_bytes(name), .start = start});
    return c;
}

static void acknowledge(struct client *c, struct position position, bool confirm)
{
    struct control_ack ack = {position, confirm};
    struct buf b = BUF_INIT;

    control_ack_encode(&ack, false, &b);
    send_buf(c, &b);
}

static void assert_acked(struct client *c, struct position position)
{
    struct control_ack acked;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_ack_decode(next(c, FRAME_ACKED), &acked, why), 0);
    assert_position(acked.position, position);
}

static void assert_gap(struct client *c, struct position from, struct position to, uint64_t messages, uint64_t bytes)
{
    struct bytes body = next(c, FRAME_GAP);
    struct frame_gap gap;

    ck_assert_int_eq(frame_gap_decode((struct frame_header){(uint32_t)body.size, FRAME_GAP, 0}, body.data, &gap), 0);
    assert_position(gap.from, from);
    assert_position(gap.to, to);
    ck_assert_uint_eq(gap.messages, messages);
    ck_assert_uint_eq(gap.bytes, bytes);
}

/* A message that comes from the source, and is delivered. */
static void deliver(struct position position, const char *prefix)
{
    struct batch *batch = batch_new(&r.pool);
    struct frame_message f = {.position = position, .prefix = unit_bytes(prefix), .content = unit_bytes("x")};
    void *owner = NULL;

    ck_assert_ptr_nonnull(batch);
    ck_assert_int_eq(batch_add_message(batch, &f, &owner), 0);
    batch->mark = position.lsn;
    batch->mark_position = position;
    batch_seal(batch);
    fake_journal_add(&journal, position, prefix, 1);
    r.source.stream.builder.last = position;
    deliver_batch(&r, batch);
}

static void assert_message(struct client *c, struct position position)
{
    assert_position(position_decode(next(c, FRAME_MESSAGE).data), position);
}

/* The session is live: messages reach it as they come. */
static void wait_live(struct client *c)
{
    wait_until(session_is_live(session_of(c)));
}

/* ---- names ---- */

START_TEST(a_new_name)
{
    setup();
    deliver(at(0x10, 0), "a.b");
    struct client c = subscribe("worker", CONTROL_START_NOW);
    assert_subscribed(&c, at(0x10, 0), false, none);
    ck_assert_ptr_nonnull(name_of("worker"));
    ck_assert(durable_is_stored(name_of("worker")));
    ck_assert_ptr_eq(name_of("worker")->holder, session_of(&c));
    ck_assert_int_eq(name_of("worker")->holder_pid, getpid());
    wait_live(&c);
    deliver(at(0x20, 0), "a.c");
    deliver(at(0x30, 0), "b");
    assert_message(&c, at(0x20, 0));
    leave(&c);
    ck_assert_ptr_null(name_of("worker")->holder);
    teardown();
}
END_TEST

/* No word before it is on disk: a name that a crash forgets would lose messages. */
START_TEST(a_new_name_is_on_disk_first)
{
    setup();
    disk_error = EIO;
    struct client c = subscribe("worker", CONTROL_START_NOW);
    assert_silent(&c);
    ck_assert_int_eq(session_of(&c)->state, SESSION_WAITING);
    disk_error = 0;
    (void)answer(&c);
    leave(&c);
    teardown();
}
END_TEST

START_TEST(goes_on_where_it_was)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    wait_live(&c);
    for (uint64_t lsn = 0x10; lsn <= 0x40; lsn += 0x10)
        deliver(at(lsn, 0), "a.b");
    for (uint64_t lsn = 0x10; lsn <= 0x30; lsn += 0x10)
        assert_message(&c, at(lsn, 0));
    acknowledge(&c, at(0x20, 0), false);
    leave(&c);
    c = subscribe("worker", CONTROL_START_STORED);
    assert_subscribed(&c, at(0x20, 0), true, at(0x40, 0));
    leave(&c);
    /* what the start says counts only for a new name */
    for (enum control_start start = CONTROL_START_NOW; start <= CONTROL_START_TIME; start++) {
        c = connect_client();
        ask(&c, (struct control_subscribe){.name = unit_bytes("worker"), .start = start, .position = at(0x9999, 0)});
        assert_subscribed(&c, at(0x20, 0), true, at(0x40, 0));
        leave(&c);
    }
    restart(true);
    c = subscribe("worker", CONTROL_START_STORED);
    assert_subscribed(&c, at(0x20, 0), true, at(0x40, 0));
    leave(&c);
    teardown();
}
END_TEST

START_TEST(overridden)
{
    setup();
    for (uint64_t lsn = 0x10; lsn <= 0x40; lsn += 0x10)
        deliver(at(lsn, 0), "a.b");
    struct client c = subscribe("worker", CONTROL_START_NOW);
    assert_subscribed(&c, at(0x40, 0), false, none);
    leave(&c);
    c = connect_client();
    ask(&c, (struct control_subscribe){.name = unit_bytes("worker"),
                                       .start = CONTROL_START_POSITION,
                                       .position = at(0x10, 3),
                                       .override = true});
    assert_subscribed(&c, at(0x10, 3), false, at(0x40, 0)); /* back: what was passed may come again */
    ck_assert(name_of("worker")->resumes);
    ck_assert(session_of(&c)->resume);
    leave(&c);
    c = connect_client(); /* the start that is stored overrides nothing */
    ask(&c, (struct control_subscribe){.name = unit_bytes("worker"), .start = CONTROL_START_STORED, .override = true});
    assert_subscribed(&c, at(0x10, 3), true, at(0x40, 0));
    leave(&c);
    settle();
    restart(false);
    assert_position(name_of("worker")->cursor, at(0x10, 3));
    c = connect_client(); /* of a new name it changes nothing */
    durables_bound(r.durables, at(0x1000, 0), true);
    ask(&c, (struct control_subscribe){.name = unit_bytes("other"), .start = CONTROL_START_NOW, .override = true});
    assert_subscribed(&c, at(0x40, 0), false, none);
    leave(&c);
    teardown();
}
END_TEST

/* Who is told where it stands now finds it there after any end of the router: so that is on the disk first. */
START_TEST(overridden_and_not_stored)
{
    setup();
    deliver(at(0x10, 0), "a.b");
    deliver(at(0x40, 0), "a.b");
    struct client c = subscribe("worker", CONTROL_START_NOW);
    assert_subscribed(&c, at(0x40, 0), false, none);
    leave(&c);
    settle();
    c = connect_client();
    disk_error = EIO;
    ask(&c, (struct control_subscribe){.name = unit_bytes("worker"),
                                       .start = CONTROL_START_POSITION,
                                       .position = at(0x10, 0),
                                       .override = true});
    assert_silent(&c);
    ck_assert_int_eq(session_of(&c)->state, SESSION_WAITING);
    disk_error = 0;
    assert_subscribed(&c, at(0x10, 0), false, at(0x40, 0));
    restart(false);
    assert_position(name_of("worker")->cursor, at(0x10, 0));
    leave(&c);
    teardown();
}
END_TEST

/* Its cursor has gone on over what does not match; who asks for the place that he keeps gets it, and no gap. */
START_TEST(overridden_where_it_was_before_it_floated)
{
    setup();
    deliver(at(0x10, 0), "a.b");
    struct client c = subscribe("worker", CONTROL_START_NOW);
    assert_subscribed(&c, at(0x10, 0), false, none);
    leave(&c);
    struct durable *d = name_of("worker");
    ck_assert(d->floats);
    deliver(at(0x20, 0), "z");
    ck_assert(d->floats);
    c = connect_client();
    ask(&c, (struct control_subscribe){.name = unit_bytes("worker"),
                                       .start = CONTROL_START_POSITION,
                                       .position = at(0x10, 0),
                                       .override = true});
    assert_subscribed(&c, at(0x10, 0), false, at(0x20, 0));
    assert_position(d->cursor, at(0x10, 0));
    leave(&c);
    teardown();
}
END_TEST

static void override_at(struct client *c, struct position position, const char *pattern)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes(pattern)};

    *c = connect_client();
    ask(c, (struct control_subscribe){.name = unit_bytes("worker"),
                                      .filters = &filter,
                                      .n_filters = 1,
                                      .start = CONTROL_START_POSITION,
                                      .position = position,
                                      .override = true});
}

/* The journal goes on over what does not match, and drops it. Who keeps the place that he acknowledged misses nothing. */
START_TEST(overridden_where_the_journal_has_it_no_more)
{
    setup();
    deliver(at(0x10, 0), "a.b");
    struct client c = subscribe("worker", CONTROL_START_OLDEST);
    (void)answer(&c);
    assert_message(&c, at(0x10, 0));
    acknowledge(&c, at(0x10, 0), true);
    assert_acked(&c, at(0x10, 0));
    leave(&c);
    for (uint64_t lsn = 0x20; lsn <= 0x40; lsn += 0x10) {
        fake_journal_cut(&journal);
        deliver(at(lsn, 0), "z");
    }
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    ck_assert_int_eq(journal_drop_first(&journal), 0); /* it begins behind 0x20 */
    for (unsigned round = 0; round < 3; round++) {
        override_at(&c, at(0x10, 0), "a.>");
        assert_subscribed(&c, at(0x40, 0), true, round == 2 ? at(0x1000, 0) : none);
        assert_silent(&c);
        leave(&c);
        if (round < 2)
            restart(round == 0);
        durables_bound(r.durables, at(0x1000, 0), true);
    }
    /* What is still there is read again, and compared with what he has. */
    override_at(&c, at(0x30, 0), "a.>");
    assert_subscribed(&c, at(0x30, 0), false, at(0x1000, 0));
    leave(&c);
    ck_assert(!name_of("worker")->gap.is);
    /* A place before the one that he acknowledged; and filters of which nobody knows what matched. */
    override_at(&c, at(0x10, 0), "a.>");
    assert_subscribed(&c, at(0x10, 0), false, at(0x1000, 0));
    assert_gap(&c, at(0x10, 1), at(0x20, 0), UINT64_MAX, UINT64_MAX);
    acknowledge(&c, at(0x20, 0), true);
    assert_acked(&c, at(0x20, 0));
    leave(&c);
    fake_journal_cut(&journal);
    deliver(at(0x50, 0), "z");
    durable_pass(r.durables, name_of("worker"), at(0x30, 0), 1, 1);
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    override_at(&c, at(0x20, 0), "*");
    assert_subscribed(&c, at(0x20, 0), false, at(0x1000, 0));
    assert_gap(&c, at(0x20, 1), at(0x30, 0), UINT64_MAX, UINT64_MAX);
    leave(&c);
    teardown();
    /* Nor of filters that came while it was passed over, though they are the same again. */
    setup();
    deliver(at(0x10, 0), "z");
    c = subscribe("worker", CONTROL_START_NOW);
    assert_subscribed(&c, at(0x10, 0), false, none);
    leave(&c);
    fake_journal_cut(&journal);
    deliver(at(0x20, 0), "z");
    fake_journal_cut(&journal);
    deliver(at(0x30, 0), "z");
    for (unsigned i = 0; i < 2; i++) {
        struct filter filter = {FILTER_PATTERN, unit_bytes(i ? "a.>" : "y")};
        c = connect_client();
        ask(&c, (struct control_subscribe){
                    .name = unit_bytes("worker"), .filters = &filter, .n_filters = 1, .start = CONTROL_START_STORED});
        assert_subscribed(&c, at(0x30, 0), true, none);
        leave(&c);
    }
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    override_at(&c, at(0x10, 0), "a.>");
    assert_subscribed(&c, at(0x10, 0), false, at(0x30, 0));
    assert_gap(&c, at(0x10, 1), at(0x20, 0), UINT64_MAX, UINT64_MAX);
    leave(&c);
    teardown();
}
END_TEST

START_TEST(refused_names)
{
    static const char text[] = "the name of a durable subscription is 1 to 255 bytes of visible characters, without blanks";
    char longest[CATALOG_NAME_MAX + 2];

    setup();
    struct client c = subscribe("two words", CONTROL_START_NOW);
    assert_refused(&c, CONTROL_ERROR_INVALID, text, false);
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    ask(&c, (struct control_subscribe){.name = unit_bytes(longest), .start = CONTROL_START_NOW});
    assert_refused(&c, CONTROL_ERROR_INVALID, text, false);
    ask(&c, (struct control_subscribe){.start = CONTROL_START_STORED});
    assert_refused(&c, CONTROL_ERROR_INVALID, "only a durable subscription has a stored position", false);
    ask(&c, (struct control_subscribe){.name = unit_bytes("nobody"), .start = CONTROL_START_STORED});
    assert_refused(&c, CONTROL_ERROR_UNKNOWN_NAME, "there is no durable subscription of this name", false);
    ck_assert_uint_eq(durables_count(r.durables), 0);
    longest[CATALOG_NAME_MAX] = '\0';
    ask(&c, (struct control_subscribe){.name = unit_bytes(longest), .start = CONTROL_START_NOW});
    (void)answer(&c);
    leave(&c);
    teardown();
}
END_TEST

START_TEST(as_many_names_as_there_may_be)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes("a")};
    struct durable *d;
    char name[16];

    setup();
    for (unsigned i = 0; i < CATALOG_NAMES_MAX; i++) {
        (void)snprintf(name, sizeof name, "%u", i);
        ck_assert_int_eq(durables_add(r.durables, unit_bytes(name), &filter, 1, NULL, 0, at(1, 0), &d), 0);
    }
    struct client c = subscribe("one-more", CONTROL_START_NOW);
    assert_refused(&c, CONTROL_ERROR_LIMIT, "there are 1,000 durable subscriptions, and that is the most", false);
    ask(&c, (struct control_subscribe){.name = unit_bytes("999"), .start = CONTROL_START_NOW});
    (void)answer(&c);
    leave(&c);
    teardown();
}
END_TEST

START_TEST(other_filters_keep_the_cursor)
{
    struct filter other = {FILTER_EXACT, unit_bytes("b")};

    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    wait_live(&c);
    deliver(at(0x10, 0), "a.b");
    acknowledge(&c, at(0x10, 0), false);
    leave(&c);
    deliver(at(0x20, 0), "b"); /* passed over by the old filters: gone */
    deliver(at(0x30, 0), "a.c");
    deliver(at(0x40, 0), "b");
    c = connect_client();
    disk_error = EIO;
    ask(&c, (struct control_subscribe){.name = unit_bytes("worker"), .filters = &other, .n_filters = 1});
    assert_silent(&c); /* not before they are kept */
    disk_error = 0;
    assert_subscribed(&c, at(0x20, 0), true, none);
    leave(&c);
    restart(false);
    unit_assert_text(name_of("worker")->filters->filters[0].text, "b");
    teardown();
}
END_TEST

/* ---- holders ---- */

START_TEST(one_holder)
{
    char text[80];

    setup();
    struct client first = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&first);
    wait_live(&first);
    deliver(at(0x10, 0), "a.b");
    deliver(at(0x20, 0), "a.b");
    struct client second = subscribe("worker", CONTROL_START_STORED);
    (void)snprintf(text, sizeof text, "process %ld holds the durable subscription", (long)getpid());
    assert_refused(&second, CONTROL_ERROR_HELD, text, false);
    ck_assert_ptr_eq(name_of("worker")->holder, session_of(&first));

    acknowledge(&first, at(0x10, 0), false);
    ask(&second, (struct control_subscribe){.name = unit_bytes("worker"), .take_over = true});
    /* The first is told, and what it says then counts for nothing. */
    acknowledge(&first, at(0x20, 0), true);
    assert_subscribed(&second, at(0x10, 0), true, at(0x20, 0));
    assert_message(&first, at(0x10, 0));
    assert_message(&first, at(0x20, 0));
    (void)snprintf(text, sizeof text, "process %ld has taken the durable subscription over", (long)getpid());
    assert_refused(&first, CONTROL_ERROR_TAKEN_OVER, text, true);
    leave(&first);
    ck_assert_ptr_eq(name_of("worker")->holder, session_of(&second));
    assert_position(name_of("worker")->cursor, at(0x10, 0));
    leave(&second);

    second = connect_client(); /* to take over what nobody holds is no more than to take it */
    ask(&second, (struct control_subscribe){.name = unit_bytes("worker"), .take_over = true});
    (void)answer(&second);
    leave(&second);
    teardown();
}
END_TEST

/* Who waits for its name's disk holds the name already. */
START_TEST(taken_over_before_the_answer)
{
    setup();
    disk_error = EIO;
    struct client first = subscribe("worker", CONTROL_START_NOW);
    struct client second = subscribe("worker", CONTROL_START_NOW);
    assert_refused(&second, CONTROL_ERROR_HELD, NULL, false);
    ask(&second, (struct control_subscribe){.name = unit_bytes("worker"), .take_over = true});
    assert_refused(&first, CONTROL_ERROR_TAKEN_OVER, NULL, true);
    leave(&first);
    ck_assert_ptr_nonnull(name_of("worker"));
    disk_error = 0;
    (void)answer(&second);
    leave(&second);
    teardown();
}
END_TEST

START_TEST(gone_before_the_answer)
{
    setup();
    disk_error = EIO;
    struct client c = subscribe("worker", CONTROL_START_NOW);
    ck_assert_ptr_nonnull(name_of("worker"));
    leave(&c);
    ck_assert_ptr_null(name_of("worker")); /* nobody was told that it is there */
    disk_error = 0;
    settle();
    restart(false);
    ck_assert_uint_eq(durables_count(r.durables), 0);
    teardown();
}
END_TEST

/* ---- starts ---- */

START_TEST(starts)
{
    setup();
    for (uint64_t lsn = 0x10; lsn <= 0x40; lsn += 0x10)
        deliver(at(lsn, 0), "a.b"); /* received at 1 s, 2 s, … */
    fake_journal_cut(&journal);
    deliver(at(0x50, 0), "a.b");
    struct client c = subscribe("", CONTROL_START_OLDEST);
    assert_subscribed(&c, at(0, 0), false, none);
    leave(&c);
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    c = subscribe("", CONTROL_START_OLDEST);
    assert_subscribed(&c, at(0x40, 0), false, none);
    leave(&c);
    c = subscribe("", CONTROL_START_NOW);
    assert_subscribed(&c, at(0x50, 0), false, none);
    leave(&c);
    c = connect_client();
    ask(&c, (struct control_subscribe){.start = CONTROL_START_TIME, .time = 5000000});
    assert_subscribed(&c, at(0x40, 0), false, none);
    ck_assert_int_eq(journal.asked_time, 5000000);
    leave(&c);
    c = connect_client(); /* a durable one too */
    ask(&c, (struct control_subscribe){.name = unit_bytes("w"), .start = CONTROL_START_TIME, .time = 9000000});
    assert_subscribed(&c, at(0x50, 0), false, none);
    leave(&c);
    c = connect_client();
    journal.read_error = -EIO;
    ask(&c, (struct control_subscribe){.start = CONTROL_START_TIME, .time = 1});
    assert_refused(&c, CONTROL_ERROR_JOURNAL, "the router cannot read its journal: Input/output error", false);
    journal.read_error = 0;
    ask(&c, (struct control_subscribe){.start = CONTROL_START_TIME, .time = 1});
    assert_subscribed(&c, at(0x40, 0), false, none);
    leave(&c);
    c = connect_client(); /* gone while it is looked up */
    ask(&c, (struct control_subscribe){.start = CONTROL_START_TIME, .time = 1});
    leave(&c);
    teardown();
}
END_TEST

START_TEST(positions)
{
    setup();
    deliver(at(0x10, 0), "a.b");
    struct client c = connect_client();
    ask(&c, (struct control_subscribe){.start = CONTROL_START_POSITION, .position = at(0x1000, 7)});
    assert_subscribed(&c, at(0x1000, 7), false, none); /* up to the server's WAL it is waited for */
    ck_assert(session_of(&c)->resume);
    leave(&c);

    c = connect_client();
    r.source.heartbeat.lookup_now = false;
    ask(&c, (struct control_subscribe){.start = CONTROL_START_POSITION, .position = at(0x1001, 0)});
    assert_silent(&c);
    ck_assert(r.source.heartbeat.lookup_now);
    r.source.facts.wal_lsn = 0x2000; /* the look-up's answer */
    clients_answer(&r);
    router_flush(&r);
    assert_subscribed(&c, at(0x1001, 0), false, none);
    leave(&c);

    c = connect_client();
    ask(&c, (struct control_subscribe){.start = CONTROL_START_POSITION, .position = at(0x2001, 0)});
    assert_silent(&c);
    clients_answer(&r);
    router_flush(&r);
    assert_refused(&c, CONTROL_ERROR_INVALID, "the position lies beyond the server's WAL", false);
    /* a timeline that the server has not reached */
    ask(&c, (struct control_subscribe){.start = CONTROL_START_POSITION, .position = {2, 1, 0}});
    session_of(&c)->waiting_since = uv_now(&loop) - ROUTER_FACTS_MS; /* no answer came */
    clients_tick(&r);
    assert_refused(&c, CONTROL_ERROR_INVALID, NULL, false);
    ask(&c, (struct control_subscribe){.name = unit_bytes("w"), .start = CONTROL_START_POSITION, .position = at(0x2001, 0)});
    clients_answer(&r);
    router_flush(&r);
    assert_refused(&c, CONTROL_ERROR_INVALID, NULL, false);
    ck_assert_ptr_null(name_of("w"));
    leave(&c);
    teardown();
}
END_TEST

/* ---- when ---- */

START_TEST(not_before_it_streams)
{
    setup();
    for (enum source_state state = SOURCE_STOPPED; state < SOURCE_STREAMING; state++) {
        r.source.state = state;
        struct client c = subscribe("", CONTROL_START_OLDEST);
        clients_answer(&r);
        assert_silent(&c);
        r.source.state = SOURCE_STREAMING;
        clients_answer(&r);
        router_flush(&r);
        (void)answer(&c);
        leave(&c);
    }
    teardown();
}
END_TEST

START_TEST(the_source_may_not_go_on)
{
    setup();
    deliver(at(0x10, 0), "a.b");
    r.source.state = SOURCE_GIVEN_UP;
    struct client c = subscribe("", CONTROL_START_OLDEST);
    (void)answer(&c);
    leave(&c);
    c = connect_client(); /* nobody can be asked */
    ask(&c, (struct control_subscribe){.start = CONTROL_START_POSITION, .position = at(0x1001, 0)});
    assert_refused(&c, CONTROL_ERROR_INVALID, NULL, false);
    leave(&c);
    journal.end.empty = true;
    buf_append_str(&r.source.last_error, "No.");
    c = subscribe("", CONTROL_START_NOW);
    assert_refused(&c, CONTROL_ERROR_SOURCE, "No.", true);
    leave(&c);
    journal.end.empty = false;
    buf_deinit(&r.source.last_error);
    teardown();
}
END_TEST

START_TEST(an_unclean_stop)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    leave(&c);
    settle();
    restart(false);
    deliver(at(0x10, 0), "a.b");
    c = subscribe("worker", CONTROL_START_STORED);
    struct client fresh = subscribe("fresh", CONTROL_START_NOW), ephemeral = subscribe("", CONTROL_START_NOW);
    (void)answer(&ephemeral); /* nothing of it can come again */
    assert_silent(&c);
    assert_silent(&fresh);
    names_streaming(&r);
    clients_answer(&r);
    router_flush(&r);
    assert_subscribed(&c, at(0, 0), true, at(0x1000, POSITION_INDEX_END));
    assert_subscribed(&fresh, at(0x10, 0), false, none);
    leave(&c);
    leave(&fresh);
    leave(&ephemeral);

    restart(false); /* and with a source that never comes */
    c = subscribe("worker", CONTROL_START_STORED);
    assert_silent(&c);
    r.source.state = SOURCE_GIVEN_UP;
    names_given_up(&r);
    clients_answer(&r);
    router_flush(&r);
    assert_subscribed(&c, at(0, 0), true, at(0x10, 0));
    leave(&c);

    restart(true); /* nobody has found out meanwhile how far it was sent */
    c = subscribe("worker", CONTROL_START_STORED);
    assert_silent(&c);
    names_streaming(&r);
    clients_answer(&r);
    router_flush(&r);
    assert_subscribed(&c, at(0, 0), true, at(0x1000, POSITION_INDEX_END));
    leave(&c);

    restart(false); /* and with a disk that is full: those who read make room */
    r.source.state = SOURCE_SUSPENDED;
    r.identity[0] = '\0';
    c = subscribe("worker", CONTROL_START_STORED);
    assert_subscribed(&c, at(0, 0), true, at(0x1000, POSITION_INDEX_END));
    leave(&c);
    teardown();
}
END_TEST

/* ---- acknowledgements ---- */

START_TEST(acknowledged_on_disk)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    wait_live(&c);
    deliver(at(0x10, 0), "a.b");
    deliver(at(0x20, 0), "a.b");
    assert_message(&c, at(0x10, 0));
    assert_message(&c, at(0x20, 0));
    disk_error = EIO;
    acknowledge(&c, at(0x10, 0), true);
    assert_silent(&c);
    disk_error = 0;
    assert_acked(&c, at(0x10, 0));
    leave(&c);
    restart(false);
    assert_position(name_of("worker")->cursor, at(0x10, 0));

    c = subscribe("", CONTROL_START_OLDEST); /* who has no name has nothing to lose */
    (void)answer(&c);
    assert_message(&c, at(0x10, 0));
    assert_message(&c, at(0x20, 0));
    disk_error = EIO;
    acknowledge(&c, at(0, 0), true);
    assert_acked(&c, at(0, 0));
    disk_error = 0;
    leave(&c);
    teardown();
}
END_TEST

/* Who has acknowledged all that it was sent is where the router is. */
START_TEST(floats_while_held)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    wait_live(&c);
    deliver(at(0x10, 0), "b");
    clients_tick(&r);
    (void)next(&c, FRAME_PROGRESS);
    assert_position(name_of("worker")->cursor, at(0x10, 0));
    deliver(at(0x20, 0), "a.b");
    deliver(at(0x30, 0), "b");
    assert_message(&c, at(0x20, 0));
    clients_tick(&r);
    (void)next(&c, FRAME_PROGRESS);
    assert_position(name_of("worker")->cursor, at(0x10, 0)); /* one is unacknowledged */
    acknowledge(&c, at(0x20, 0), false);
    clients_tick(&r);
    assert_position(name_of("worker")->cursor, at(0x20, 0)); /* it was told of more, and may mean that */
    acknowledge(&c, at(0x30, 0), false);
    deliver(at(0x40, 0), "b");
    clients_tick(&r);
    (void)next(&c, FRAME_PROGRESS);
    assert_position(name_of("worker")->cursor, at(0x40, 0));

    deliver(at(0x50, 0), "b"); /* between two ticks: known when it leaves */
    leave(&c);
    ck_assert(name_of("worker")->floats);
    deliver(at(0x60, 0), "b");
    assert_position(durable_stands(r.durables, name_of("worker")), at(0x60, 0));
    deliver(at(0x70, 0), "a.b");
    ck_assert(!name_of("worker")->floats);
    teardown();
}
END_TEST

START_TEST(let_go_with_something_unacknowledged)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    wait_live(&c);
    deliver(at(0x10, 0), "a.b");
    assert_message(&c, at(0x10, 0));
    leave(&c);
    ck_assert(!name_of("worker")->floats);
    assert_position(name_of("worker")->cursor, at(0, 0));
    assert_position(name_of("worker")->sent, at(0x10, 0));
    teardown();
}
END_TEST

/* A fatal error drops what waited to be sent: that was not acknowledged either. */
START_TEST(let_go_with_something_unsent)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    wait_live(&c);
    deliver(at(0x10, 0), "a.b");
    acknowledge(&c, at(0x10, 0), false);
    struct session *s = session_of(&c);
    ck_assert(!s->owes);
    for (unsigned i = 0; i < 3; i++) {
        deliver(at(0x20 + i, 0), "a.b");
        session_error(s, CONTROL_ERROR_LIMIT, "enough", true);
    }
    leave(&c);
    ck_assert(!name_of("worker")->floats);
    assert_position(name_of("worker")->cursor, at(0x10, 0));
    teardown();
}
END_TEST

/* ---- what the journal's identity says ---- */

START_TEST(a_new_era_behind_welcome)
{
    setup();
    struct client c = connect_client(), other;
    clients_new_era(&r);
    other = connect_client();
    ask(&c, (struct control_subscribe){.name = unit_bytes("worker"),
                                       .start = CONTROL_START_POSITION,
                                       .position = at(0, 0),
                                       .override = true});
    assert_refused(&c, CONTROL_ERROR_SOURCE, "the journal has begun a new era since WELCOME", true);
    ck_assert_ptr_null(name_of("worker"));
    leave(&c);
    ask(&other, (struct control_subscribe){.name = unit_bytes("worker"), .start = CONTROL_START_NOW});
    assert_subscribed(&other, at(0, 0), false, none);
    leave(&other);
    teardown();
}
END_TEST

/* What a slot has not proven is on disk before anything of it is read, however often that must be tried. */
START_TEST(unproven_is_stored)
{
    struct catalog_head head;

    setup();
    r.source.stream.proven = true;
    names_synced(&r);
    settle();
    disk_error = EIO;
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_lt(names_unproven(&r), 0);
    disk_error = 0;
    ck_assert_int_eq(names_unproven(&r), 0);
    ck_assert(durables_head_is_stored(r.durables));
    ck_assert_int_eq(names_unproven(&r), 0);
    restart(false);
    ck_assert(durables_head(r.durables, &head));
    ck_assert(!head.proven);
    teardown();
}
END_TEST

/* A server that is away for longer than expire-after is no reason to forget who waits for it. */
START_TEST(waiting_does_not_expire)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    assert_subscribed(&c, at(0, 0), false, none);
    leave(&c);
    c = subscribe("other", CONTROL_START_NOW);
    assert_subscribed(&c, at(0, 0), false, none);
    leave(&c);
    durables_set_expiry(r.durables, 1000);
    r.source.state = SOURCE_CONNECTING;
    c = subscribe("worker", CONTROL_START_STORED);
    assert_silent(&c);
    for (unsigned i = 0; i < 5; i++) {
        journal.running_ms += 900;
        names_tick(&r);
    }
    ck_assert_ptr_nonnull(name_of("worker"));
    ck_assert_ptr_null(name_of("other"));
    r.source.state = SOURCE_STREAMING;
    names_streaming(&r);
    clients_answer(&r);
    assert_subscribed(&c, at(0, 0), true, none);
    leave(&c);
    teardown();
}
END_TEST

/* ---- gaps ---- */

static void lose(const char *name, struct position to, uint64_t messages)
{
    durable_lost(r.durables, name_of(name), to, messages, messages);
}

START_TEST(what_was_lost_is_told)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    leave(&c);
    for (uint64_t lsn = 0x10; lsn <= 0x40; lsn += 0x10)
        deliver(at(lsn, 0), "a.b");
    lose("worker", at(0x20, 0), 2);
    c = subscribe("worker", CONTROL_START_STORED);
    assert_subscribed(&c, at(0, 0), true, none);
    assert_gap(&c, at(0, 1), at(0x20, 0), 2, 2);
    leave(&c);
    c = subscribe("worker", CONTROL_START_STORED); /* as long as nothing behind is acknowledged */
    (void)answer(&c);
    assert_gap(&c, at(0, 1), at(0x20, 0), 2, 2);
    acknowledge(&c, at(0x20, 0), false);
    leave(&c);
    c = subscribe("worker", CONTROL_START_STORED);
    assert_position(answer(&c).position, at(0x20, 0));
    assert_message(&c, at(0x30, 0));
    leave(&c);
    teardown();
}
END_TEST

/* A gap that ends inside a transaction swallows its rest: that is counted too. */
START_TEST(a_gap_that_ends_inside_a_transaction)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    leave(&c);
    for (uint32_t index = 1; index <= 5; index++)
        fake_journal_add(&journal, at(0x10, index), "a.b", 1);
    journal.end.inside = true;
    lose("worker", at(0x10, 2), 2);
    c = subscribe("worker", CONTROL_START_STORED);
    (void)answer(&c);
    assert_gap(&c, at(0, 1), at(0x10, POSITION_INDEX_END), UINT64_MAX, UINT64_MAX); /* it is not over */
    leave(&c);
    journal.end.inside = false;
    fake_journal_add(&journal, at(0x20, 0), "a.b", 1);
    c = subscribe("worker", CONTROL_START_STORED);
    (void)answer(&c);
    assert_gap(&c, at(0, 1), at(0x10, POSITION_INDEX_END), 5, 5);
    leave(&c);
    journal.read_error = -EIO;
    c = subscribe("worker", CONTROL_START_STORED);
    (void)answer(&c);
    assert_gap(&c, at(0, 1), at(0x10, POSITION_INDEX_END), UINT64_MAX, UINT64_MAX);
    journal.read_error = 0;
    leave(&c);
    c = subscribe("worker", CONTROL_START_STORED); /* gone while it is counted */
    leave(&c);
    ck_assert_ptr_null(name_of("worker")->holder);
    teardown();
}
END_TEST

/* Retention has passed the name over into a transaction of which it has had no part. */
START_TEST(passed_over_into_a_transaction)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    leave(&c);
    deliver(at(0x8, 0), "a.b");
    for (uint32_t index = 1; index <= 5; index++)
        fake_journal_add(&journal, at(0x10, index), "b", 1);
    durable_pass(r.durables, name_of("worker"), at(0x10, 2), 3, 3);
    c = subscribe("worker", CONTROL_START_STORED);
    assert_subscribed(&c, at(0x10, 2), true, none);
    ck_assert(!session_of(&c)->resume);
    leave(&c);
    teardown();
}
END_TEST

/* The journal drops what a name that is held does not need: its session goes along. */
START_TEST(passed_over_while_held)
{
    setup();
    struct client c = subscribe("worker", CONTROL_START_NOW);
    (void)answer(&c);
    wait_live(&c);
    for (uint64_t lsn = 0x10; lsn <= 0x60; lsn += 0x10) {
        deliver(at(lsn, 0), "b");
        fake_journal_cut(&journal);
    }
    journal.size = 100;
    r.retention.limits.size = 50;
    retention_check(&r.retention);
    wait_until(journal_segments(&journal) == JOURNAL_SEGMENTS_MIN);
    assert_position(name_of("worker")->cursor, at(0x30, 0));
    assert_position(session_of(&c)->told, at(0x30, 0));
    ck_assert(!r.retention.paused);
    leave(&c);
    teardown();
}
END_TEST

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

UNIT_MAIN("subscribe", a_new_name, a_new_name_is_on_disk_first, goes_on_where_it_was, overridden,
          overridden_and_not_stored, overridden_where_it_was_before_it_floated, overridden_where_the_journal_has_it_no_more, refused_names,
          as_many_names_as_there_may_be, other_filters_keep_the_cursor, one_holder, taken_over_before_the_answer,
          gone_before_the_answer, starts, positions, not_before_it_streams, the_source_may_not_go_on, an_unclean_stop,
          acknowledged_on_disk, floats_while_held, let_go_with_something_unacknowledged, let_go_with_something_unsent,
          a_new_era_behind_welcome, unproven_is_stored, waiting_does_not_expire, what_was_lost_is_told, a_gap_that_ends_inside_a_transaction, passed_over_into_a_transaction,
          passed_over_while_held)
