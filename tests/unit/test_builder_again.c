/* SPDX-License-Identifier: PostgreSQL */
#include "builder.h"

#include "builder_fixture.h"
#include "unit.h"

START_TEST(a_whole_transaction_again)
{
    setup();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
        ck_assert_int_eq(message(true, 0x90, "a", "1"), i ? BUILDER_AGAIN : BUILDER_ADDED);
        ck_assert_int_eq(message(true, 0x98, SUBJECT_HEARTBEAT_PREFIX, "h"),
                         i ? BUILDER_NOTHING : BUILDER_HEARTBEAT);
        ck_assert_int_eq(commit(0x100, 0x130), i ? BUILDER_COMMITTED : BUILDER_ADDED);
        if (i)
            assert_again("B 1:0/100:0 t1256 x5\nM 1:0/100:1 l0/90 t1256 x5 a=1\n"
                         "C 1:0/100 t1256 x5 e0/130 n2\n");
        (void)batch_unref(builder_take(&b));
        reconnect();
    }
    ck_assert_uint_eq(b.messages, 1);
    ck_assert_uint_eq(b.repeated, 1);
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
    ck_assert_int_eq(message(false, 0x40, "old", ""), BUILDER_AGAIN);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_AGAIN);
    assert_taken(false, "", false, 0x40);
    reconnect();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_AGAIN);
    ck_assert_int_eq(message(true, 0x88, "a", "2"), BUILDER_AGAIN);
    ck_assert_int_eq(message(true, 0x90, "a", "3"), BUILDER_ADDED);
    assert_again("B 1:0/100:0 t1256 x5\nM 1:0/100:1 l0/80 t1256 x5 a=1\n"
                 "M 1:0/100:2 l0/88 t1256 x5 a=2\n"); /* not the part that is new */
    assert_taken(true, "M 1:0/100:3 l0/90 t1256 x5 a=3\n", true, 0);
    reconnect();
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_AGAIN);
    ck_assert_int_eq(message(true, 0x88, "a", "2"), BUILDER_AGAIN);
    ck_assert_int_eq(message(true, 0x90, "a", "3"), BUILDER_AGAIN);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
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
    ck_assert_int_eq(message(true, 0x180, "a", "2"), BUILDER_ADDED);
    ck_assert_int_eq(message(true, 0x188, "a", "3"), BUILDER_ADDED);
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_ADDED);
    assert_taken(false,
                 "G 1:0/100:2 1:0/100:4294967295 the server never finished this transaction\n"
                 "B 1:0/200:0 t1512 x5\nM 1:0/200:1 l0/180 t1512 x5 a=2\n"
                 "M 1:0/200:2 l0/188 t1512 x5 a=3\nC 1:0/200 t1512 x5 e0/230 n2\n",
                 false, 0x230);
    teardown();
}
END_TEST

START_TEST(interrupted_by_a_message)
{
    begin_and_lose();
    ck_assert_int_eq(message(false, 0x100, "n", "old"), BUILDER_AGAIN);
    ck_assert_int_eq(message(false, 0x101, "n", "2"), BUILDER_ADDED);
    ck_assert_int_eq(message(false, 0x102, "n", "3"), BUILDER_ADDED);
    assert_taken(false,
                 "G 1:0/100:2 1:0/100:4294967295 the server never finished this transaction\n"
                 "M 1:0/101:0 l0/101 n=2\nM 1:0/102:0 l0/102 n=3\n", false, 0x102);
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
    ck_assert_int_eq(begin(0x200), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x180, SUBJECT_HEARTBEAT_PREFIX, "h"), BUILDER_HEARTBEAT);
    ck_assert_int_eq(commit(0x200, 0x230), BUILDER_COMMITTED);
    ck_assert(!b.pending);
    ck_assert_int_eq(message(false, 0x238, "n", "2"), BUILDER_ADDED);
    assert_taken(false,
                 "G 1:0/100:2 1:0/100:4294967295 the server never finished this transaction\n"
                 "M 1:0/238:0 l0/238 n=2\n", false, 0x238);
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
    struct batch *batch = builder_take(&b);
    ck_assert_uint_eq(batch->n_entries, 3);
    ck_assert_uint_eq(batch->entries[0].type, FRAME_GAP);
    ck_assert_uint_eq(batch->entries[1].type, FRAME_BEGIN);
    ck_assert_uint_eq(batch->last.timeline, 7);
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
    assert_taken(false, "M 1:0/200:0 l0/200 n=2\n", false, 0x200);
    teardown();
}
END_TEST

/* A new process goes on from what the journal has. */
START_TEST(from_a_journal_inside_a_transaction)
{
    const struct frame_begin inside = {.timeline = 1, .commit_lsn = 0x100, .commit_time = 0x100 + TIME, .xid = XID};

    setup();
    builder_restore(&b, (struct position){1, 0x100, 1}, &inside, 77);
    ck_assert_int_eq(b.now_us, 77);
    reconnect();
    const struct position now = {1, 0x100, POSITION_INDEX_END};
    ck_assert_int_eq(position_compare(builder_now(&b), now), 0);
    ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_AGAIN);
    ck_assert_int_eq(message(true, 0x88, "a", "2"), BUILDER_ADDED);
    ck_assert_int_eq(commit(0x100, 0x130), BUILDER_ADDED);
    assert_taken(true, "M 1:0/100:2 l0/88 t1256 x5 a=2\nC 1:0/100 t1256 x5 e0/130 n2\n", false, 0x130);
    teardown();
}
END_TEST

/* What the journal could not keep comes again, and is new again. */
START_TEST(back_to_where_a_journal_ends)
{
    setup();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(begin(0x100), BUILDER_NOTHING);
        ck_assert_int_eq(message(true, 0x80, "a", "1"), BUILDER_ADDED);
        ck_assert_int_eq(message(true, 0x88, "a", "2"), BUILDER_ADDED);
        builder_restore(&b, (struct position){1, 0x50, 0}, NULL, 0);
        ck_assert_uint_eq(pool.live, 0);
        reconnect();
    }
    ck_assert_int_eq(message(false, 0x50, "n", "0"), BUILDER_AGAIN);
    ck_assert_int_eq(message(false, 0x51, "n", "1"), BUILDER_ADDED);
    assert_taken(false, "M 1:0/51:0 l0/51 n=1\n", false, 0x51);
    teardown();
}
END_TEST

START_TEST(an_accepted_gap)
{
    begin_and_lose();
    ck_assert_int_eq(builder_accept_gap(&b, (struct position){1, 0x300, 0}, "lost"), 0);
    ck_assert(!b.pending);
    ck_assert_int_eq(message(false, 0x300, "n", "in the gap"), BUILDER_AGAIN);
    ck_assert_int_eq(begin(0x300), BUILDER_NOTHING);
    ck_assert_int_eq(message(true, 0x280, "a", "1"), BUILDER_ADDED);
    assert_taken(false,
                 "G 1:0/100:2 1:0/300:0 lost\n"
                 "B 1:0/300:0 t1768 x5\nM 1:0/300:1 l0/280 t1768 x5 a=1\n",
                 true, 0x300);
    teardown();
}
END_TEST

UNIT_MAIN("builder_again", from_a_journal_inside_a_transaction, back_to_where_a_journal_ends, an_accepted_gap, a_whole_transaction_again, the_rest_of_a_transaction,
          interrupted_by_a_transaction, interrupted_by_a_message,
          interrupted_by_a_transaction_that_leaves_nothing,
          the_same_lsn_on_another_timeline_interrupts,
          a_transaction_read_but_not_begun_is_no_interruption)
