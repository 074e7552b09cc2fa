/* SPDX-License-Identifier: PostgreSQL */
#include "durable_fixture.h"

static void fill(void)
{
    for (uint64_t lsn = 0x10; lsn <= 0x50; lsn += 0x10)
        fake_journal_add(&journal, at(lsn, 0), "a", lsn); /* received at 1 s, 2 s, … */
}

static void measure(void)
{
    unsigned before = told.measured;

    ck_assert(durables_measure(ds));
    wait_until(told.measured > before);
    ck_assert_uint_eq(told.measured, before + 1);
}

static void assert_lag(const struct durable *d, int64_t now_s, uint64_t messages, uint64_t bytes, uint64_t seconds)
{
    struct durable_lag lag;

    durable_lag(ds, d, now_s * 1000000, &lag);
    ck_assert_uint_eq(lag.messages, messages);
    ck_assert_uint_eq(lag.bytes, bytes);
    ck_assert_uint_eq(lag.seconds, seconds);
}

START_TEST(up_to_date)
{
    setup();
    fill();
    ck_assert(!durables_measure(ds)); /* nobody is there */
    struct durable *d = add_name("a", "a", at(0x50, 0));
    ck_assert(!durables_measure(ds));
    assert_lag(d, 100, 0, 0, 0);
    route_message(0x60, "b");
    ck_assert(!durables_measure(ds));
    assert_lag(d, 100, 0, 0, 0);
    ck_assert_uint_eq(journal.measured, 0);
    teardown();
}
END_TEST

START_TEST(behind_and_looked_up_once)
{
    setup();
    fill();
    struct durable *a = add_name("a", "a", at(0x20, 0)), *b = add_name("b", "a", at(0x41, 0));
    measure();
    assert_lag(a, 13, 3, 0x30 + 0x40 + 0x50, 10);
    assert_lag(a, 2, 3, 0x30 + 0x40 + 0x50, 0); /* a clock that was put back */
    assert_lag(b, 13, 1, 0x50, 8);
    ck_assert_uint_eq(journal.measured, 2);
    ck_assert(!durables_measure(ds));
    route_message(0x60, "b"); /* what comes on top needs no look */
    ck_assert(!durables_measure(ds));
    assert_lag(a, 13, 4, 0x30 + 0x40 + 0x50 + 10, 10);

    hold(a);
    durable_acked(ds, a, at(0x30, 0), false);
    measure();
    ck_assert_uint_eq(journal.measured, 3);
    assert_lag(a, 14, 3, 0x40 + 0x50 + 10, 10);
    durable_acked(ds, a, at(0x60, 0), false);
    ck_assert(!durables_measure(ds));
    assert_lag(a, 14, 0, 0, 0);
    teardown();
}
END_TEST

/* What is not written yet cannot be looked up, so that does not hold. */
START_TEST(not_written_yet)
{
    setup();
    fill();
    struct durable *d = add_name("a", "a", at(0x40, 0));
    journal.written = at(0x30, 0);
    measure();
    assert_lag(d, 14, 2, 0x40 + 0x50, 0);
    journal.written = (struct position){0};
    measure();
    assert_lag(d, 14, 1, 0x50, 9);
    ck_assert(!durables_measure(ds));
    teardown();
}
END_TEST

START_TEST(with_a_gap)
{
    setup();
    fill();
    struct durable *d = add_name("a", "a", at(0x10, 0));
    fake_journal_cut(&journal);
    fake_journal_add(&journal, at(0x60, 0), "a", 1);
    durable_lost(ds, d, at(0x50, 0), 4, 0xe0);
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    measure();
    assert_lag(d, 16, 5, 0xe1, 10);
    durable_lost(ds, d, at(0x60, 0), 1, 1);
    ck_assert(!durables_measure(ds));
    assert_lag(d, 16, 5, 0xe1, 0);
    /* what is not known of a gap is not counted */
    struct durable *unknown = add_name("b", "a", at(0x10, 0));
    measure();
    assert_lag(unknown, 16, 1, 1, 10);
    teardown();
}
END_TEST

START_TEST(cannot_be_read)
{
    setup();
    fill();
    struct durable *d = add_name("a", "a", at(0x40, 0));
    journal.read_error = -EIO;
    measure();
    ck_assert(!d->measured.known);
    journal.read_error = 0;
    measure();
    assert_lag(d, 14, 1, 0x50, 9);
    teardown();
}
END_TEST

/* The name is gone, or the registry, when the answer comes. */
START_TEST(gone_meanwhile)
{
    setup();
    fill();
    (void)add_name("a", "a", at(0x40, 0));
    (void)add_name("b", "a", at(0x40, 0));
    ck_assert(durables_measure(ds));
    ck_assert(durables_measure(ds)); /* one at a time */
    durables_remove(ds, find_name("a"));
    wait_until(told.measured);
    ck_assert_uint_eq(told.measured, 1);
    assert_lag(find_name("b"), 14, 1, 0x50, 9);
    (void)add_name("c", "a", at(0x40, 0));
    ck_assert(durables_measure(ds));
    reopen();
    ck_assert_uint_eq(told.measured, 1);
    teardown();
}
END_TEST

UNIT_MAIN("durable_lag", up_to_date, behind_and_looked_up_once, not_written_yet, with_a_gap, cannot_be_read,
          gone_meanwhile)
