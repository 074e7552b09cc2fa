/* SPDX-License-Identifier: PostgreSQL */
#include "builder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builder_fixture.h"
#include "unit.h"

/* A size that no allocator has, so that -ENOMEM can be seen; the sanitizer must give NULL for it
 * too. */
#define TOO_LARGE ((size_t)1 << 46)
const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
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
    ck_assert_int_eq(message(false, 0x100, "n", "1"), BUILDER_AGAIN);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "t", "2"), BUILDER_AGAIN);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_COMMITTED);
    assert_taken(false, "", false, 0x130);
    ck_assert_int_eq(message(false, 0x200, "n", "3"), BUILDER_ADDED);
    assert_taken(false, "M 1:0/200:0 l0/200 n=3\n", false, 0x200);
    reconnect();
    ck_assert_int_eq(message(false, 0x200, "n", "3"), BUILDER_AGAIN);
    ck_assert_int_eq(begin(0x200), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x1f0, "t", "4"), BUILDER_ADDED);
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
        ck_assert_int_eq(builder_add(&b, &m, &owner, why), BUILDER_NOTHING);
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
    ck_assert_uint_eq(b.repeated, 0);
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
    ck_assert_int_eq(message(true, 0x180, "a", "1"), BUILDER_AGAIN);
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_COMMITTED);
    assert_taken(false, "", false, 0x230);
    ck_assert_int_eq(message(false, 0x10008, "a", ""), BUILDER_AGAIN);
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
                     BUILDER_AGAIN); /* at the start is before it */
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
        bool kept;
    } cases[] = {{BATCH_COPY_MAX - 1, false}, {BATCH_COPY_MAX, false}, {BATCH_COPY_MAX + 1, true}, {9000000, true}};

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
        ck_assert_uint_eq(batch_charge(batch), sizeof *batch + head + size);
        ck_assert_uint_eq(pool.live_bytes, batch_charge(batch));
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

/* What comes again is compared, so it is kept as well; a heartbeat is not. */
START_TEST(a_content_that_came_again_is_taken_over)
{
    void *memory = malloc(BATCH_COPY_MAX + 1), *owner = memory;
    struct bytes content = {memory, BATCH_COPY_MAX + 1};

    ck_assert_ptr_nonnull(memory);
    memset(memory, 'y', BATCH_COPY_MAX + 1);
    setup();
    ck_assert_int_eq(message(false, 0x100, "p", ""), BUILDER_ADDED);
    ck_assert_int_eq(message_of(false, 0x108, unit_bytes(SUBJECT_HEARTBEAT_PREFIX), content, &owner),
                     BUILDER_HEARTBEAT);
    ck_assert_ptr_eq(owner, memory);
    ck_assert_int_eq(message_of(false, 0x100, unit_bytes("p"), content, &owner), BUILDER_AGAIN);
    ck_assert_ptr_null(owner);
    ck_assert(builder_is_full(&b));
    assert_again("M 1:0/100:0 l0/100 p=65537*y\n");
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

    ck_assert_int_eq(builder_add(&b, &m, &owner, why), -EBADMSG);
    ck_assert_str_eq(why, sentence);
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
    ck_assert_int_eq(builder_add(&b, &abort, &owner, why), BUILDER_NOTHING);
    ck_assert_uint_eq(b.ignored, 1);
    teardown();
}
END_TEST

UNIT_MAIN("builder", a_transaction, messages_outside_transactions, equal_lsns, timeline_of_each,
          heartbeats_count_but_are_left_out, a_transaction_without_messages_leaves_its_mark,
          received_time_never_falls, marks_are_exact, where_now_begins,
          a_transaction_over_many_batches, large_contents_stay_where_they_are,
          a_content_that_came_again_is_taken_over, without_memory_nothing_is_marked,
          orders_that_the_protocol_does_not_have, forms_that_were_not_asked_for)
