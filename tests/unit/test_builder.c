/* SPDX-License-Identifier: PostgreSQL */
#include "builder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "unit.h"

/* A size that no allocator has, so that -ENOMEM can be seen; the sanitizer must give NULL for it
 * too. */
#define TOO_LARGE ((size_t)1 << 46)
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

#define TIME 1000
#define XID  5

/* Timeline 1 up to 0/10000, then 2. */
static struct timeline_switch switches[] = {{1, 0x10000}};
static const struct timeline_history history = {.current = 2, .switches = switches, .n = 1};

static struct batch_pool pool;
static struct builder b;
static bool interrupted;
static char why[DECODE_WHY_SIZE];
static const struct position origin = {1, 0, 0};

static void setup(void)
{
    pool = (struct batch_pool){0};
    builder_init(&b, &pool);
    builder_connected(&b, &history, origin);
}

static void teardown(void)
{
    builder_deinit(&b);
    ck_assert_uint_eq(pool.live, 0);
    ck_assert_uint_eq(pool.live_bytes, 0);
    ck_assert_uint_eq(pool.large_bytes, 0);
    batch_pool_deinit(&pool);
}

static int begin_with(uint64_t commit_lsn, uint32_t xid)
{
    struct pgoutput m = {
        .type = PGOUTPUT_BEGIN, .xid = xid, .begin = {commit_lsn, (int64_t)commit_lsn + TIME}};
    void *owner = NULL;
    return builder_add(&b, &m, &owner, &interrupted, why);
}

static int begin(uint64_t commit_lsn)
{
    return begin_with(commit_lsn, XID);
}

static int commit(uint64_t commit_lsn, uint64_t end_lsn)
{
    struct pgoutput m = {.type = PGOUTPUT_COMMIT,
                         .commit = {commit_lsn, end_lsn, (int64_t)commit_lsn + TIME}};
    void *owner = NULL;
    return builder_add(&b, &m, &owner, &interrupted, why);
}

static int message_of(bool transactional, uint64_t lsn, struct bytes prefix, struct bytes content,
                      void **owner)
{
    struct pgoutput m = {.type = PGOUTPUT_MESSAGE,
                         .message = {transactional, lsn, prefix, content}};
    return builder_add(&b, &m, owner, &interrupted, why);
}

static int message(bool transactional, uint64_t lsn, const char *prefix, const char *content)
{
    void *owner = NULL;
    return message_of(transactional, lsn, unit_bytes(prefix), unit_bytes(content), &owner);
}

/* ---- batches as text ---- */

/* One line a frame, with everything in it but the received time. Follows `inside` over the batches.
 */
static void put_frames(struct buf *out, const struct batch *batch, bool *inside)
{
    size_t offset = 0;
    char text[POSITION_TEXT_SIZE], lsn[LSN_TEXT_SIZE];
    struct bytes pieces[2];
    unsigned n = batch_pieces(batch, 0, batch_size(batch), pieces);
    struct buf stream = BUF_INIT;

    for (unsigned i = 0; i < n; i++)
        buf_append(&stream, pieces[i].data, pieces[i].size);
    ck_assert_uint_eq(stream.size, batch_size(batch));
    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *e = &batch->entries[i];
        const uint8_t *at = stream.data + offset, *body = at + FRAME_HEADER_SIZE;
        struct frame_header h;

        ck_assert_uint_eq(e->offset, offset);
        ck_assert_int_eq(frame_header_decode(at, &h), 0);
        ck_assert_uint_eq(e->size, FRAME_HEADER_SIZE + h.size);
        ck_assert_uint_eq(e->type, h.type);
        if (h.type == FRAME_BEGIN) {
            struct frame_begin f;
            struct position p = {0};

            ck_assert_int_eq(frame_begin_decode(h, body, &f), 0);
            ck_assert_uint_eq(f.flags, 0);
            p = (struct position){f.timeline, f.commit_lsn, 0};
            ck_assert_int_eq(position_compare(e->position, p), 0);
            ck_assert(!*inside);
            *inside = true;
            buf_printf(out, "B %s t%" PRId64 " x%u\n", position_format(p, text), f.commit_time,
                       f.xid);
        } else if (h.type == FRAME_MESSAGE) {
            struct frame_message f;

            ck_assert_int_eq(frame_message_decode(h, body, &f), 0);
            ck_assert_int_eq(position_compare(e->position, f.position), 0);
            ck_assert(bytes_equal(e->prefix, f.prefix));
            ck_assert_uint_eq(f.flags, f.position.index ? FRAME_FLAG_TRANSACTIONAL : 0);
            ck_assert_int_eq(*inside, f.position.index != 0);
            buf_printf(out, "M %s l%s", position_format(f.position, text), lsn_format(f.lsn, lsn));
            if (f.position.index)
                buf_printf(out, " t%" PRId64 " x%u", f.commit_time, f.xid);
            else
                ck_assert(f.commit_time == 0 && f.xid == 0);
            buf_printf(out, " %.*s=", (int)f.prefix.size, (const char *)f.prefix.data);
            if (f.content.size > 100)
                buf_printf(out, "%zu*%c", f.content.size, f.content.data[f.content.size - 1]);
            else
                buf_append(out, f.content.data, f.content.size);
            buf_append_u8(out, '\n');
        } else {
            struct frame_commit f;

            ck_assert_uint_eq(h.type, FRAME_COMMIT);
            ck_assert_int_eq(frame_commit_decode(h, body, &f), 0);
            struct position p = {f.begin.timeline, f.begin.commit_lsn, POSITION_INDEX_END};
            ck_assert_int_eq(position_compare(e->position, p), 0);
            ck_assert_uint_eq(f.begin.flags, 0);
            ck_assert(*inside);
            *inside = false;
            buf_printf(out, "C %u:%s t%" PRId64 " x%u", p.timeline, lsn_format(p.lsn, lsn),
                       f.begin.commit_time, f.begin.xid);
            buf_printf(out, " e%s n%u\n", lsn_format(f.end_lsn, lsn), f.messages);
        }
        offset += e->size;
        if (i == 0)
            ck_assert_int_eq(position_compare(batch->first, e->position), 0);
        if (i + 1 == batch->n_entries)
            ck_assert_int_eq(position_compare(batch->last, e->position), 0);
    }
    ck_assert_uint_eq(offset, stream.size);
    buf_deinit(&stream);
}

/** Takes the open batch, which must hold exactly these frames and this mark. */
static void assert_taken(bool starts_inside, const char *frames, bool ends_inside, uint64_t mark)
{
    struct batch *batch = builder_take(&b);
    struct buf text = BUF_INIT;
    bool inside = starts_inside;

    ck_assert_ptr_nonnull(batch);
    put_frames(&text, batch, &inside);
    ck_assert_str_eq(buf_str(&text), frames);
    ck_assert_int_eq(batch->starts_inside, starts_inside);
    ck_assert_int_eq(batch->ends_inside, ends_inside);
    ck_assert_uint_eq(batch->mark, mark);
    ck_assert(batch->handed);
    struct position p = {0};
    if (mark)
        p = (struct position){mark - 1 < 0x10000 ? 1 : 2, mark, 0};
    ck_assert_int_eq(position_compare(batch->mark_position, p), 0);
    if (starts_inside) {
        uint8_t frame[BATCH_BEGIN_SIZE];

        ck_assert_uint_eq(frame_begin_encode(frame, &b.begin), sizeof frame);
        ck_assert_mem_eq(batch->begin, frame, sizeof frame);
    }
    buf_deinit(&text);
    ck_assert_ptr_null(batch_unref(batch));
}

static void assert_nothing_to_take(void)
{
    ck_assert_ptr_null(builder_take(&b));
}

static void reconnect(void)
{
    ck_assert_ptr_null(b.open);
    builder_connected(&b, &history, origin);
}

/* ---- positions ---- */

START_TEST(a_transaction)
{
    setup();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    assert_nothing_to_take(); /* BEGIN is added with the first message */
    ck_assert_int_eq(message(true, 0x90, "a.b", "one"), BUILDER_ADDED);
    ck_assert_int_eq(message(true, 0x100, "", ""), BUILDER_ADDED);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
    ck_assert_uint_eq(b.messages, 2);
    assert_taken(false,
                 "B 1:0/100:0 t1256 x5\n"
                 "M 1:0/100:1 l0/90 t1256 x5 a.b=one\n"
                 "M 1:0/100:2 l0/100 t1256 x5 =\n"
                 "C 1:0/100 t1256 x5 e0/130 n2\n",
                 false, 0x130);
    assert_nothing_to_take();
    teardown();
}
END_TEST

START_TEST(messages_outside_transactions)
{
    setup();
    ck_assert_int_eq(message(false, 0x90, "a", "one"), BUILDER_ADDED);
    ck_assert_int_eq(message(false, 0x98, "b", "two"), BUILDER_ADDED);
    assert_taken(false,
                 "M 1:0/90:0 l0/90 a=one\n"
                 "M 1:0/98:0 l0/98 b=two\n",
                 false, 0x98);
    teardown();
}
END_TEST

/* The non-transactional message's record ends where the commit record starts: both LSNs are equal. */
START_TEST(equal_lsns)
{
    setup();
    ck_assert_int_eq(message(false, 0x100, "n", "1"), BUILDER_ADDED);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "t", "2"), BUILDER_ADDED);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
    static const char frames[] = "M 1:0/100:0 l0/100 n=1\n"
                                 "B 1:0/100:0 t1256 x5\n"
                                 "M 1:0/100:1 l0/80 t1256 x5 t=2\n"
                                 "C 1:0/100 t1256 x5 e0/130 n1\n";
    assert_taken(false, frames, false, 0x130);

    /* the same again is dropped, and a cut between the two loses neither */
    reconnect();
    ck_assert_int_eq(message(false, 0x100, "n", "1"), BUILDER_DROPPED);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "t", "2"), BUILDER_DROPPED);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_COMMITTED);
    assert_taken(false, "", false, 0x130);
    ck_assert_int_eq(message(false, 0x200, "n", "3"), BUILDER_ADDED);
    assert_taken(false, "M 1:0/200:0 l0/200 n=3\n", false, 0x200);
    reconnect();
    ck_assert_int_eq(message(false, 0x200, "n", "3"), BUILDER_DROPPED);
    ck_assert_int_eq(begin(0x200), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x1f0, "t", "4"), BUILDER_ADDED);
    ck_assert(!interrupted);
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_ADDED);
    assert_taken(false,
                 "B 1:0/200:0 t1512 x5\n"
                 "M 1:0/200:1 l0/1F0 t1512 x5 t=4\n"
                 "C 1:0/200 t1512 x5 e0/230 n1\n",
                 false, 0x230);
    teardown();
}
END_TEST

START_TEST(timeline_of_each)
{
    setup();
    /* the record of a message ends at its LSN, the one of a commit begins there */
    ck_assert_int_eq(message(false, 0x10000, "n", ""), BUILDER_ADDED);
    ck_assert_int_eq(begin(0x10000), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x9000, "t", ""), BUILDER_ADDED);
    ck_assert_int_eq(commit(0x10000, 0x10030), BUILDER_ADDED);
    ck_assert_int_eq(message(false, 0x10031, "n", ""), BUILDER_ADDED);
    assert_taken(false,
                 "M 1:0/10000:0 l0/10000 n=\n"
                 "B 2:0/10000:0 t66536 x5\n"
                 "M 2:0/10000:1 l0/9000 t66536 x5 t=\n"
                 "C 2:0/10000 t66536 x5 e0/10030 n1\n"
                 "M 2:0/10031:0 l0/10031 n=\n",
                 false, 0x10031);
    teardown();
}
END_TEST

START_TEST(heartbeats_count_but_are_left_out)
{
    setup();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x90, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    ck_assert_int_eq(message(true, 0x91, "a", "1"), BUILDER_ADDED);
    ck_assert_int_eq(message(true, 0x92, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    ck_assert_int_eq(message(true, 0x93, SUBJECT_HEARTBEAT_PREFIX ".x", "2"), BUILDER_ADDED);
    ck_assert_int_eq(message(true, 0x94, "_walbus.heartbea", "3"), BUILDER_ADDED);
    ck_assert_int_eq(message(true, 0x95, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
    ck_assert_uint_eq(b.messages, 3);
    assert_taken(false,
                 "B 1:0/100:0 t1256 x5\n"
                 "M 1:0/100:2 l0/91 t1256 x5 a=1\n"
                 "M 1:0/100:4 l0/93 t1256 x5 _walbus.heartbeat.x=2\n"
                 "M 1:0/100:5 l0/94 t1256 x5 _walbus.heartbea=3\n"
                 "C 1:0/100 t1256 x5 e0/130 n6\n",
                 false, 0x130);
    /* a non-transactional one is no event either, and moves the mark */
    ck_assert_int_eq(message(false, 0x138, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    assert_taken(false, "", false, 0x138);
    teardown();
}
END_TEST

START_TEST(a_transaction_without_messages_leaves_its_mark)
{
    static const enum pgoutput_type skipped[] = {
        PGOUTPUT_ORIGIN, PGOUTPUT_RELATION, PGOUTPUT_TYPE,    PGOUTPUT_INSERT,
        PGOUTPUT_UPDATE, PGOUTPUT_DELETE,   PGOUTPUT_TRUNCATE};
    setup();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    for (size_t i = 0; i < ARRAY_SIZE(skipped); i++) {
        struct pgoutput m = {.type = skipped[i]};
        void *owner = NULL;
        ck_assert_int_eq(builder_add(&b, &m, &owner, &interrupted, why), BUILDER_NOTHING);
    }
    assert_nothing_to_take();
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_COMMITTED);
    assert_taken(false, "", false, 0x130);
    assert_nothing_to_take();
    ck_assert_int_eq(begin(0x140), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x138, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    ck_assert_int_eq(commit(0x140, 0x170), BUILDER_COMMITTED);
    assert_taken(false, "", false, 0x170);
    ck_assert_uint_eq(b.messages, 0);
    ck_assert_uint_eq(b.dropped, 0);
    teardown();
}
END_TEST

START_TEST(received_time_never_falls)
{
    static const int64_t set[] = {100, 50, 101, INT64_MIN, 99}, want[] = {100, 100, 101, 101, 101};

    setup();
    for (size_t i = 0; i < ARRAY_SIZE(set); i++) {
        builder_set_time(&b, set[i]);
        ck_assert_int_eq(message(false, 0x100 + i, "a", ""), BUILDER_ADDED);
    }
    struct batch *batch = builder_take(&b);
    ck_assert_uint_eq(batch->n_entries, ARRAY_SIZE(set));
    for (size_t i = 0; i < ARRAY_SIZE(set); i++)
        ck_assert_int_eq(
            (int64_t)bytes_get_u64(batch->head + batch->entries[i].offset + FRAME_HEADER_SIZE + 36),
            want[i]);
    (void)batch_unref(batch);
    teardown();
}
END_TEST

/* ---- marks ---- */

START_TEST(marks_are_exact)
{
    setup();
    /* nothing is known on a new connection, whatever came before */
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x90, "a", "1"), BUILDER_ADDED);
    assert_taken(false, "B 1:0/100:0 t1256 x5\nM 1:0/100:1 l0/90 t1256 x5 a=1\n", true, 0);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
    assert_taken(true, "C 1:0/100 t1256 x5 e0/130 n1\n", false, 0x130);
    /* inside a transaction the mark stays that of what was complete */
    ck_assert_int_eq(begin(0x200), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x180, "a", "1"), BUILDER_ADDED);
    assert_taken(false, "B 1:0/200:0 t1512 x5\nM 1:0/200:1 l0/180 t1512 x5 a=1\n", true, 0x130);
    builder_keepalive(&b, 0x300);
    assert_nothing_to_take();
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_ADDED);
    assert_taken(true, "C 1:0/200 t1512 x5 e0/230 n1\n", false, 0x230);
    /* keepalives: only outside, only forward */
    builder_keepalive(&b, 0x22f);
    builder_keepalive(&b, 0x230);
    assert_nothing_to_take();
    builder_keepalive(&b, 0x231);
    assert_taken(false, "", false, 0x231);
    builder_keepalive(&b, 0x10000);
    assert_taken(false, "", false, 0x10000); /* still of timeline 1 */
    builder_keepalive(&b, 0x10001);
    assert_taken(false, "", false, 0x10001);
    ck_assert_int_eq(message(false, 0x10008, "a", ""), BUILDER_ADDED);
    assert_taken(false, "M 2:0/10008:0 l0/10008 a=\n", false, 0x10008);
    reconnect();
    assert_nothing_to_take();
    /* what comes again moves the new connection's mark */
    ck_assert_int_eq(begin(0x200), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x180, "a", "1"), BUILDER_DROPPED);
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_COMMITTED);
    assert_taken(false, "", false, 0x230);
    ck_assert_int_eq(message(false, 0x10008, "a", ""), BUILDER_DROPPED);
    assert_taken(false, "", false, 0x10008);
    teardown();
}
END_TEST

START_TEST(where_now_begins)
{
    static const struct position end = {1, 0x100, POSITION_INDEX_END};
    struct position p = {1, 0x50, 0};

    pool = (struct batch_pool){0};
    builder_init(&b, &pool);
    builder_connected(&b, &history, p);
    ck_assert_int_eq(position_compare(builder_now(&b), p), 0);
    ck_assert_int_eq(message(false, 0x50, "a", ""),
                     BUILDER_DROPPED); /* at the start is before it */
    ck_assert_int_eq(message(false, 0x58, "a", ""), BUILDER_ADDED);
    p.lsn = 0x58;
    ck_assert_int_eq(position_compare(builder_now(&b), p), 0);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(position_compare(builder_now(&b), end), 0);
    ck_assert_int_eq(message(true, 0x90, "a", ""), BUILDER_ADDED);
    ck_assert_int_eq(position_compare(builder_now(&b), end), 0);
    (void)batch_unref(builder_take(&b));
    /* a start counts the first time only; the begun transaction is still to be finished */
    builder_connected(&b, &history, (struct position){9, 9, 9});
    ck_assert_int_eq(position_compare(builder_now(&b), end), 0);
    /* what comes again is no news */
    ck_assert_int_eq(begin(0x40), BUILDER_NOTHING);
    ck_assert_int_eq(position_compare(builder_now(&b), end), 0);
    ck_assert_int_eq(commit(0x40, 0x48), BUILDER_COMMITTED);
    ck_assert_int_eq(message(false, 0x108, "a", ""), BUILDER_ADDED);
    p.lsn = 0x108;
    ck_assert_int_eq(position_compare(builder_now(&b), p), 0);
    teardown();
}
END_TEST

/* ---- coming again ---- */

START_TEST(a_whole_transaction_again)
{
    setup();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
        ck_assert_int_eq(message(true, 0x90, "a", "1"), i ? BUILDER_DROPPED : BUILDER_ADDED);
        ck_assert_int_eq(message(true, 0x98, SUBJECT_HEARTBEAT_PREFIX, "h"),
                         i ? BUILDER_DROPPED : BUILDER_HEARTBEAT);
        ck_assert_int_eq(commit(0x100, 0x130), i ? BUILDER_COMMITTED : BUILDER_ADDED);
        (void)batch_unref(builder_take(&b));
        reconnect();
    }
    ck_assert_uint_eq(b.messages, 1);
    ck_assert_uint_eq(b.dropped, 3);
    ck_assert(!interrupted);
    teardown();
}
END_TEST

START_TEST(the_rest_of_a_transaction)
{
    setup();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_ADDED);
    ck_assert_int_eq(message(true, 0x88, "a", "2"), BUILDER_ADDED);
    assert_taken(false,
                 "B 1:0/100:0 t1256 x5\nM 1:0/100:1 l0/80 t1256 x5 a=1\n"
                 "M 1:0/100:2 l0/88 t1256 x5 a=2\n",
                 true, 0);
    /* cut twice, the second time within what had come before */
    reconnect();
    ck_assert_int_eq(message(false, 0x40, "old", ""), BUILDER_DROPPED);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_DROPPED);
    assert_taken(false, "", false, 0x40);
    reconnect();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_DROPPED);
    ck_assert_int_eq(message(true, 0x88, "a", "2"), BUILDER_DROPPED);
    ck_assert_int_eq(message(true, 0x90, "a", "3"), BUILDER_ADDED);
    ck_assert(!interrupted);
    assert_taken(true, "M 1:0/100:3 l0/90 t1256 x5 a=3\n", true, 0);
    reconnect();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_DROPPED);
    ck_assert_int_eq(message(true, 0x88, "a", "2"), BUILDER_DROPPED);
    ck_assert_int_eq(message(true, 0x90, "a", "3"), BUILDER_DROPPED);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
    ck_assert(!interrupted);
    assert_taken(true, "C 1:0/100 t1256 x5 e0/130 n3\n", false, 0x130);
    ck_assert(!b.pending);
    teardown();
}
END_TEST

/** A connection on which a transaction at 0/100 was begun towards subscribers, and a new one. */
static void begin_and_lose(void)
{
    setup();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_ADDED);
    (void)batch_unref(builder_take(&b));
    reconnect();
}

START_TEST(interrupted_by_a_transaction)
{
    begin_and_lose();
    ck_assert_int_eq(begin(0x200), BUILDER_NOTHING);
    ck_assert(!interrupted);
    ck_assert_int_eq(message(true, 0x180, "a", "2"), BUILDER_ADDED);
    ck_assert(interrupted);
    ck_assert_int_eq(message(true, 0x188, "a", "3"), BUILDER_ADDED);
    ck_assert(!interrupted); /* said once */
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_ADDED);
    ck_assert(!interrupted);
    assert_taken(false,
                 "B 1:0/200:0 t1512 x5\nM 1:0/200:1 l0/180 t1512 x5 a=2\n"
                 "M 1:0/200:2 l0/188 t1512 x5 a=3\nC 1:0/200 t1512 x5 e0/230 n2\n",
                 false, 0x230);
    teardown();
}
END_TEST

START_TEST(interrupted_by_a_message)
{
    begin_and_lose();
    ck_assert_int_eq(message(false, 0x100, "n", "old"), BUILDER_DROPPED);
    ck_assert(!interrupted);
    ck_assert_int_eq(message(false, 0x101, "n", "2"), BUILDER_ADDED);
    ck_assert(interrupted);
    ck_assert_int_eq(message(false, 0x102, "n", "3"), BUILDER_ADDED);
    ck_assert(!interrupted);
    assert_taken(false, "M 1:0/101:0 l0/101 n=2\nM 1:0/102:0 l0/102 n=3\n", false, 0x102);
    teardown();
}
END_TEST

/* The first that comes after a failover is often a heartbeat's transaction: the subscribers must
 * not wait on. */
START_TEST(interrupted_by_a_transaction_that_leaves_nothing)
{
    begin_and_lose();
    ck_assert_int_eq(begin(0x90), BUILDER_NOTHING); /* an older one says nothing */
    ck_assert_int_eq(commit(0x90, 0x98), BUILDER_COMMITTED);
    ck_assert(!interrupted);
    ck_assert_int_eq(begin(0x200), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x180, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    ck_assert(!interrupted);
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_COMMITTED);
    ck_assert(interrupted);
    ck_assert(!b.pending);
    ck_assert_int_eq(message(false, 0x238, "n", "2"), BUILDER_ADDED);
    ck_assert(!interrupted);
    assert_taken(false, "M 1:0/238:0 l0/238 n=2\n", false, 0x238);
    teardown();
}
END_TEST

START_TEST(the_same_lsn_on_another_timeline_interrupts)
{
    static const struct timeline_history other = {.current = 7};

    begin_and_lose();
    builder_connected(&b, &other, origin);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_ADDED);
    ck_assert(interrupted);
    struct batch *batch = builder_take(&b);
    ck_assert_uint_eq(batch->n_entries, 2);
    ck_assert_uint_eq(batch->entries[0].type, FRAME_BEGIN);
    ck_assert_uint_eq(batch->first.timeline, 7);
    ck_assert(!batch->starts_inside);
    (void)batch_unref(batch);
    teardown();
}
END_TEST

START_TEST(a_transaction_read_but_not_begun_is_no_interruption)
{
    setup();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    assert_nothing_to_take();
    reconnect();
    ck_assert_int_eq(message(false, 0x200, "n", "2"), BUILDER_ADDED);
    ck_assert(!interrupted);
    assert_taken(false, "M 1:0/200:0 l0/200 n=2\n", false, 0x200);
    teardown();
}
END_TEST

/* ---- batches ---- */

START_TEST(a_transaction_over_many_batches)
{
    enum { MESSAGES = 400 };
    static char content[1001];
    unsigned batches = 0;
    uint32_t expected = 1;

    setup();
    memset(content, 'x', sizeof content - 1);
    ck_assert_int_eq(begin(0x100000), BUILDER_NOTHING);
    for (unsigned i = 0; i < MESSAGES; i++) {
        ck_assert_int_eq(message(true, 0x20000 + i, "p", content), BUILDER_ADDED);
        ck_assert_int_eq(builder_is_full(&b), b.open->head_size >= BATCH_SIZE);
        if (!builder_is_full(&b))
            continue;
        struct batch *batch = builder_take(&b);
        uint8_t frame[BATCH_BEGIN_SIZE];
        ck_assert_uint_lt(batch->head_size, BATCH_SIZE + 8 + 48 + 1 + 1000);
        ck_assert_int_eq(batch->starts_inside, batches > 0);
        ck_assert(batch->ends_inside);
        ck_assert_uint_eq(batch->mark, 0);
        ck_assert_uint_eq(batch->first.index, batches ? expected : 0);
        ck_assert_uint_eq(batch->last.index, i + 1);
        (void)frame_begin_encode(frame, &b.begin);
        ck_assert_mem_eq(batches ? batch->begin : batch->head, frame, sizeof frame);
        expected = i + 2;
        batches++;
        (void)batch_unref(batch);
    }
    ck_assert_uint_eq(batches, MESSAGES * 1057 / (BATCH_SIZE + 1000));
    ck_assert_int_eq(commit(0x100000, 0x100030), BUILDER_ADDED);
    struct batch *batch = builder_take(&b);
    ck_assert(batch->starts_inside);
    ck_assert(!batch->ends_inside);
    ck_assert_uint_eq(batch->first.index, expected);
    ck_assert_uint_eq(batch->last.index, POSITION_INDEX_END);
    ck_assert_uint_eq(batch->mark, 0x100030);
    (void)batch_unref(batch);
    /* behind the end nothing is inside any more */
    ck_assert_int_eq(message(false, 0x100038, "p", "x"), BUILDER_ADDED);
    assert_taken(false, "M 2:0/100038:0 l0/100038 p=x\n", false, 0x100038);
    teardown();
}
END_TEST

START_TEST(large_contents_stay_where_they_are)
{
    static const struct {
        size_t size;
        bool kept, large;
    } cases[] = {{BATCH_COPY_MAX - 1, false, false},
                 {BATCH_COPY_MAX, false, false},
                 {BATCH_COPY_MAX + 1, true, false},
                 {BATCH_LARGE, true, false},
                 {BATCH_LARGE + 1, true, true}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        size_t size = cases[i].size, head = 8 + 48 + 1;
        void *memory = malloc(size + 10), *owner = memory;
        struct bytes pieces[2];

        ck_assert_ptr_nonnull(memory);
        memset(memory, 'y', size + 10);
        setup();
        ck_assert_int_eq(message_of(false, 0x100, unit_bytes("p"),
                                    (struct bytes){(const uint8_t *)memory + 10, size}, &owner),
                         BUILDER_ADDED);
        ck_assert_ptr_eq(owner, cases[i].kept ? NULL : memory);
        ck_assert(builder_is_full(&b)); /* by its size, or for its tail */
        struct batch *batch = builder_take(&b);
        ck_assert_uint_eq(batch_size(batch), head + size);
        ck_assert_uint_eq(batch->entries[0].size, head + size);
        ck_assert_uint_eq(batch->head_size, cases[i].kept ? head : head + size);
        ck_assert_uint_eq(batch_large(batch), cases[i].large ? size : 0);
        ck_assert_uint_eq(batch_charge(batch), sizeof *batch + head + (cases[i].large ? 0 : size));
        ck_assert_uint_eq(pool.live_bytes, batch_charge(batch));
        ck_assert_uint_eq(pool.large_bytes, cases[i].large ? size : 0);
        ck_assert_uint_eq(batch_pieces(batch, 0, head + size, pieces), cases[i].kept ? 2 : 1);
        if (cases[i].kept)
            ck_assert_ptr_eq(pieces[1].data, (const uint8_t *)memory + 10);
        (void)batch_unref(batch); /* and frees what it kept: LeakSanitizer would tell */
        if (!cases[i].kept)
            free(memory);
        teardown();
    }
}
END_TEST

START_TEST(a_dropped_content_stays_the_callers)
{
    void *memory = malloc(BATCH_COPY_MAX + 1), *owner = memory;
    struct bytes content = {memory, BATCH_COPY_MAX + 1};

    ck_assert_ptr_nonnull(memory);
    memset(memory, 'y', BATCH_COPY_MAX + 1);
    setup();
    ck_assert_int_eq(message(false, 0x100, "p", ""), BUILDER_ADDED);
    ck_assert_int_eq(message_of(false, 0x100, unit_bytes("p"), content, &owner), BUILDER_DROPPED);
    ck_assert_ptr_eq(owner, memory);
    ck_assert_int_eq(message_of(false, 0x108, unit_bytes(SUBJECT_HEARTBEAT_PREFIX), content, &owner),
                     BUILDER_HEARTBEAT);
    ck_assert_ptr_eq(owner, memory);
    free(memory);
    teardown();
}
END_TEST

/* ---- no memory ---- */

START_TEST(without_memory_nothing_is_marked)
{
    static const uint8_t byte = 'p';
    const struct bytes prefix = {&byte, TOO_LARGE}; /* never read: there is no room for it */
    void *owner = NULL;

    setup();
    ck_assert_int_eq(message(false, 0x90, "a", "1"), BUILDER_ADDED);
    ck_assert_int_eq(message_of(false, 0x98, prefix, unit_bytes(""), &owner), -ENOMEM);
    assert_taken(false, "M 1:0/90:0 l0/90 a=1\n", false, 0x90);
    reconnect();
    ck_assert_int_eq(message(false, 0x98, "b", "2"), BUILDER_ADDED);
    assert_taken(false, "M 1:0/98:0 l0/98 b=2\n", false, 0x98);

    /* in a transaction whose BEGIN is out already: the rest comes without a second one */
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message_of(true, 0xa0, prefix, unit_bytes(""), &owner), -ENOMEM);
    assert_taken(false, "B 1:0/100:0 t1256 x5\n", true, 0x98);
    reconnect();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0xa0, "c", "3"), BUILDER_ADDED);
    ck_assert(!interrupted);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
    assert_taken(true, "M 1:0/100:1 l0/A0 t1256 x5 c=3\nC 1:0/100 t1256 x5 e0/130 n1\n", false,
                 0x130);
    teardown();
}
END_TEST

/* ---- what the protocol does not have ---- */

static void assert_wrong(struct pgoutput m, const char *sentence)
{
    void *owner = NULL;
    struct builder before = b;

    ck_assert_int_eq(builder_add(&b, &m, &owner, &interrupted, why), -EBADMSG);
    ck_assert_str_eq(why, sentence);
    ck_assert(!interrupted);
    ck_assert_uint_eq(b.mark, before.mark);
    ck_assert_int_eq(position_compare(b.last, before.last), 0);
    ck_assert_ptr_eq(b.open, before.open);
    ck_assert_uint_eq(b.index, before.index);
}

START_TEST(orders_that_the_protocol_does_not_have)
{
    const struct pgoutput transactional = {.type = PGOUTPUT_MESSAGE,
                                           .message = {true, 0x90, {0}, {0}}};
    const struct pgoutput plain = {.type = PGOUTPUT_MESSAGE, .message = {false, 0x90, {0}, {0}}};

    setup();
    assert_wrong(transactional, "message 'M' of a transaction, outside of one");
    assert_wrong((struct pgoutput){.type = PGOUTPUT_COMMIT, .commit = {0x100, 0x130, 0}},
                 "message 'C' outside a transaction");
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    assert_wrong(plain, "message 'M' of no transaction, inside of one");
    assert_wrong((struct pgoutput){.type = PGOUTPUT_BEGIN, .begin = {0x200, 0}},
                 "message 'B' inside a transaction");
    assert_wrong((struct pgoutput){.type = PGOUTPUT_COMMIT, .commit = {0x108, 0x130, 0}},
                 "message 'C' carries another commit LSN than its begin");
    b.index = POSITION_INDEX_END - 1;
    assert_wrong(transactional, "message 'M' is more than 4294967294 in one transaction");
    b.index = POSITION_INDEX_END - 2;
    ck_assert_int_eq(message(true, 0x90, "last", ""), BUILDER_ADDED);
    assert_taken(false, "B 1:0/100:0 t1256 x5\nM 1:0/100:4294967294 l0/90 t1256 x5 last=\n", true,
                 0);
    teardown();
}
END_TEST

START_TEST(forms_that_were_not_asked_for)
{
    static const char streamed[] = "SEc", two_phase[] = "bPKrp";
    char sentence[DECODE_WHY_SIZE];
    struct pgoutput abort = {.type = PGOUTPUT_STREAM_ABORT};
    void *owner = NULL;

    setup();
    for (size_t i = 0; streamed[i]; i++) {
        (void)snprintf(sentence, sizeof sentence,
                       "message '%c' of a streamed transaction, which was not asked for",
                       streamed[i]);
        assert_wrong((struct pgoutput){.type = (enum pgoutput_type)streamed[i]}, sentence);
    }
    for (size_t i = 0; two_phase[i]; i++) {
        (void)snprintf(sentence, sizeof sentence,
                       "message '%c' of two-phase decoding: the slot was made, or altered to, "
                       "TWO_PHASE",
                       two_phase[i]);
        assert_wrong((struct pgoutput){.type = (enum pgoutput_type)two_phase[i]}, sentence);
    }
    assert_wrong((struct pgoutput){.type = PGOUTPUT_MESSAGE, .streamed = true},
                 "message 'M' in a stream block, which was not asked for");
    assert_wrong((struct pgoutput){.type = (enum pgoutput_type)'x'}, "message 'x' is unknown");
    /* PostgreSQL 18 may send a stream abort nobody asked for */
    ck_assert_int_eq(builder_add(&b, &abort, &owner, &interrupted, why), BUILDER_NOTHING);
    ck_assert_uint_eq(b.ignored, 1);
    teardown();
}
END_TEST

/* ---- a model ---- */

/*
 * Random transactions and messages in delivery order, sent over connections that are cut anywhere;
 * each new one begins at a random earlier point, as the server may. What comes out, all batches
 * together, must be what one uncut connection would give, and the marks the ends of what was sent.
 */

enum { ITEMS = 120, MESSAGES_MAX = 6 };

struct item {
    uint64_t lsn, end; /* commit LSN and its end; of a message both are its LSN */
    unsigned n;        /* messages; 0 with `plain` false: an empty transaction */
    bool plain;        /* one non-transactional message */
    struct {
        bool heartbeat;
        uint64_t lsn;
        size_t large; /* content's size, 0: the number below as text */
        unsigned number;
    } messages[MESSAGES_MAX];
};

static struct item items[ITEMS];

static const char *prefix_of(const struct item *item, unsigned i)
{
    return item->messages[i].heartbeat ? SUBJECT_HEARTBEAT_PREFIX : item->plain ? "plain" : "tx.a";
}

static void make_items(struct unit_random *random)
{
    uint64_t lsn = 0xf000; /* so that the switch at 0/10000 comes on the way */
    unsigned number = 0;

    for (unsigned i = 0; i < ITEMS; i++) {
        struct item *item = &items[i];
        bool adjacent = i && items[i - 1].plain && unit_random_below(random, 2);

        *item = (struct item){.plain = unit_random_below(random, 3) == 0};
        item->n = item->plain ? 1 : unit_random_below(random, MESSAGES_MAX + 1);
        for (unsigned j = 0; j < item->n; j++) {
            item->messages[j].heartbeat = unit_random_below(random, 6) == 0;
            item->messages[j].lsn = lsn - unit_random_below(random, 100);
            item->messages[j].number = ++number;
            if (unit_random_below(random, 40) == 0)
                item->messages[j].large = BATCH_COPY_MAX - 1 + unit_random_below(random, 4);
        }
        if (item->plain) {
            lsn += 1 + unit_random_below(random, 64);
            item->lsn = item->end = item->messages[0].lsn = lsn;
        } else {
            if (!adjacent) /* else its commit LSN equals the LSN of the message before */
                lsn += 1 + unit_random_below(random, 64);
            item->lsn = lsn;
            lsn += 1 + unit_random_below(random, 64);
            item->end = lsn;
        }
    }
    ck_assert_uint_gt(lsn, 0x10000);
}

static void put_model(struct buf *out)
{
    for (unsigned i = 0; i < ITEMS; i++) {
        const struct item *item = &items[i];
        bool begun = false;
        unsigned timeline = (item->plain ? item->lsn - 1 : item->lsn) < 0x10000 ? 1 : 2;

        for (unsigned j = 0; j < item->n; j++) {
            if (item->messages[j].heartbeat)
                continue;
            if (!item->plain && !begun)
                buf_printf(out, "B %u:0/%" PRIX64 ":0 t%" PRIu64 " x%u\n", timeline, item->lsn,
                           item->lsn + TIME, i + 1);
            begun = !item->plain;
            buf_printf(out, "M %u:0/%" PRIX64 ":%u l0/%" PRIX64, timeline, item->lsn,
                       item->plain ? 0 : j + 1, item->messages[j].lsn);
            if (!item->plain)
                buf_printf(out, " t%" PRIu64 " x%u", item->lsn + TIME, i + 1);
            buf_printf(out, " %s=", prefix_of(item, j));
            if (item->messages[j].large)
                buf_printf(out, "%zu*z\n", item->messages[j].large);
            else
                buf_printf(out, "%u\n", item->messages[j].number);
        }
        if (begun)
            buf_printf(out, "C %u:0/%" PRIX64 " t%" PRIu64 " x%u e0/%" PRIX64 " n%u\n", timeline,
                       item->lsn, item->lsn + TIME, i + 1, item->end, item->n);
    }
}

struct model {
    struct unit_random *random;
    struct buf out;
    bool inside;              /* in what came out */
    uint64_t mark;            /* of this connection */
    unsigned batches, budget; /* steps until the cut */
};

static void model_take(struct model *m)
{
    struct batch *batch = builder_take(&b);

    if (!batch)
        return;
    ck_assert_uint_eq(batch->mark, m->mark);
    if (batch->n_entries) {
        ck_assert_int_eq(batch->starts_inside, m->inside);
        put_frames(&m->out, batch, &m->inside);
        ck_assert_int_eq(batch->ends_inside, m->inside);
    }
    m->batches++;
    (void)batch_unref(batch);
}

/** After each step: hand on when that is due or just so; false when the connection is cut here. */
static bool model_step(struct model *m, int r)
{
    ck_assert_msg(r >= 0, "%d", r);
    ck_assert(!interrupted);
    if (builder_is_full(&b) || unit_random_below(m->random, 5) == 0)
        model_take(m);
    return --m->budget > 0;
}

static bool model_message(struct model *m, const struct item *item, unsigned j)
{
    char number[16];
    size_t size = item->messages[j].large;
    void *owner = NULL;
    struct bytes content;

    if (size) {
        owner = malloc(size);
        ck_assert_ptr_nonnull(owner);
        memset(owner, 'z', size);
        content = (struct bytes){owner, size};
    } else {
        (void)snprintf(number, sizeof number, "%u", item->messages[j].number);
        content = unit_bytes(number);
    }
    int r = message_of(!item->plain, item->messages[j].lsn, unit_bytes(prefix_of(item, j)), content,
                       &owner);
    free(owner);
    if (item->plain)
        m->mark = item->end;
    return model_step(m, r);
}

/** Sends one item; false when it was cut. */
static bool model_item(struct model *m, unsigned i)
{
    const struct item *item = &items[i];

    if (!item->plain && !model_step(m, begin_with(item->lsn, i + 1)))
        return false;
    for (unsigned j = 0; j < item->n; j++) {
        if (!model_message(m, item, j))
            return false;
        if (!item->plain && unit_random_below(m->random, 4) == 0)
            builder_keepalive(&b, item->lsn); /* inside: without effect */
    }
    if (!item->plain) {
        int r = commit(item->lsn, item->end);
        m->mark = item->end;
        if (!model_step(m, r))
            return false;
    }
    uint64_t next = i + 1 < ITEMS ? items[i + 1].lsn - items[i + 1].plain : item->end + 10;
    if (next >= item->end && unit_random_below(m->random, 4) == 0) {
        builder_keepalive(&b, next);
        m->mark = next;
    }
    return true;
}

START_TEST(random_cuts)
{
    struct unit_random random = unit_random_init();
    unsigned cuts = 0, dropped = 0;

    for (unsigned round = 0; round < 30; round++) {
        struct model m = {.random = &random};
        struct buf want = BUF_INIT;
        unsigned next = 0; /* the first item that was not sent to its end */

        make_items(&random);
        setup();
        while (next < ITEMS) {
            unsigned back = unit_random_below(&random, 3) ? unit_random_below(&random, 4)
                                                          : unit_random_below(&random, ITEMS);

            reconnect();
            m.mark = 0;
            m.budget = 1 + unit_random_below(&random, 150);
            for (unsigned i = next - MIN(back, next); i < ITEMS; i++) {
                if (!model_item(&m, i)) {
                    cuts++;
                    break;
                }
                next = MAX(next, i + 1);
            }
            model_take(&m);
        }
        dropped += (unsigned)b.dropped;
        put_model(&want);
        ck_assert_str_eq(buf_str(&m.out), buf_str(&want));
        ck_assert(!m.inside);
        buf_deinit(&want);
        buf_deinit(&m.out);
        teardown();
    }
    ck_assert_uint_gt(cuts, 30);
    ck_assert_uint_gt(dropped, 300);
}
END_TEST

UNIT_MAIN("builder", a_transaction, messages_outside_transactions, equal_lsns, timeline_of_each,
          heartbeats_count_but_are_left_out, a_transaction_without_messages_leaves_its_mark,
          received_time_never_falls, marks_are_exact, where_now_begins, a_whole_transaction_again,
          the_rest_of_a_transaction, interrupted_by_a_transaction, interrupted_by_a_message,
          interrupted_by_a_transaction_that_leaves_nothing,
          the_same_lsn_on_another_timeline_interrupts,
          a_transaction_read_but_not_begun_is_no_interruption, a_transaction_over_many_batches,
          large_contents_stay_where_they_are, a_dropped_content_stays_the_callers,
          without_memory_nothing_is_marked, orders_that_the_protocol_does_not_have,
          forms_that_were_not_asked_for, random_cuts)
