/* SPDX-License-Identifier: PostgreSQL */
#include "feedback.h"

#include <stdio.h>

#include "base/clock.h"
#include "unit.h"

#define MS UINT64_C(1000000)
#define T0 UINT64_C(5000000000)

/** Fails unless the report is exactly that of `mark`, in all three fields. */
static void assert_report(struct feedback *f, uint64_t now, const char *mark_hex)
{
    /* exactly FEEDBACK_SIZE bytes, so that the sanitizers see a 35th */
    struct bytes out =
        unit_exact((struct bytes){(const uint8_t *)(const char[FEEDBACK_SIZE]){0}, FEEDBACK_SIZE});
    char hex[128];

    ck_assert_uint_eq(out.size, 34);
    feedback_report(f, now, CLOCK_PG_EPOCH_US + 0x0102030405060708, (uint8_t *)(uintptr_t)out.data);
    (void)snprintf(hex, sizeof hex, "72 %s %s %s 0102030405060708 00", mark_hex, mark_hex,
                   mark_hex);
    unit_assert_hex(out, hex);
    unit_free(out);
}

static void assert_due(const struct feedback *f, uint64_t now, bool due, uint64_t wait)
{
    uint64_t got_wait = 77;

    ck_assert_int_eq(feedback_is_due(f, now, &got_wait), due);
    ck_assert_uint_eq(got_wait, wait);
}

START_TEST(interval)
{
    static const struct {
        int64_t timeout_ms;
        uint64_t interval;
    } cases[] = {
        {0, 10000 * MS},     {-1, 10000 * MS},    {60000, 10000 * MS},     {30000, 10000 * MS},
        {29999, 9999666666}, {15000, 5000 * MS},  {5000, 1666666666},      {3, MS},
        {1, 333333},         {30001, 10000 * MS}, {INT32_MAX, 10000 * MS},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct feedback f;

        feedback_connected(&f, cases[i].timeout_ms, T0);
        ck_assert_uint_eq(f.interval, cases[i].interval);
        assert_due(&f, T0, false, cases[i].interval);
        assert_due(&f, T0 + cases[i].interval - 1, false, 1);
        assert_due(&f, T0 + cases[i].interval, true, 0);
        assert_due(&f, T0 + cases[i].interval + 1, true, 0);
        assert_report(&f, T0 + cases[i].interval + 1, "0000000000000000");
        assert_due(&f, T0 + cases[i].interval + 1, false, cases[i].interval);
    }
}
END_TEST

START_TEST(pace_of_a_moved_mark)
{
    struct feedback f;

    feedback_connected(&f, 60000, T0);
    feedback_advance(&f, 0x16B3748);
    assert_due(&f, T0, false, 10 * MS);
    assert_due(&f, T0 + 10 * MS - 1, false, 1);
    assert_due(&f, T0 + 10 * MS, true, 0);
    assert_report(&f, T0 + 10 * MS, "00000000016b3748");
    ck_assert_uint_eq(f.reported, 0x16B3748);
    assert_due(&f, T0 + 10 * MS, false, 10000 * MS);
    /* the same and an older one are no news; it never falls */
    feedback_advance(&f, 0x16B3748);
    feedback_advance(&f, 0x16B3747);
    feedback_advance(&f, 0);
    assert_due(&f, T0 + 30 * MS, false, 9980 * MS);
    assert_report(&f, T0 + 30 * MS, "00000000016b3748");
    /* a mark that moves long after the last report is due at once */
    feedback_advance(&f, 0xFFFFFFFFFFFFFFFF);
    assert_due(&f, T0 + 40 * MS, true, 0);
    assert_report(&f, T0 + 40 * MS, "ffffffffffffffff");
}
END_TEST

START_TEST(pace_below_a_short_interval)
{
    struct feedback f;

    feedback_connected(&f, 3, T0); /* interval 1 ms, shorter than the pace */
    feedback_advance(&f, 1);
    assert_due(&f, T0 + MS - 1, false, 1);
    assert_due(&f, T0 + MS, true, 0);
}
END_TEST

START_TEST(asked_at_once_and_coalesced)
{
    struct feedback f;

    feedback_connected(&f, 60000, T0);
    feedback_advance(&f, 0x10);
    for (unsigned i = 0; i < 100; i++)
        feedback_asked(&f, 0x10);
    assert_due(&f, T0, true, 0);
    assert_report(&f, T0, "0000000000000010");
    assert_due(&f, T0, false, 10000 * MS);
    feedback_asked(&f, 0x10);
    assert_due(&f, T0, true, 0);
    assert_report(&f, T0 + 1, "0000000000000010");
    assert_due(&f, T0 + 1, false, 10000 * MS);
}
END_TEST

START_TEST(stuck_after_a_thousand)
{
    struct feedback f;

    feedback_connected(&f, 60000, T0);
    feedback_advance(&f, 0x20);
    for (unsigned i = 0; i < FEEDBACK_ASKED_MAX; i++) {
        ck_assert(!feedback_is_stuck(&f));
        feedback_asked(&f, 0x28);
        if (i % 10 == 0) /* answering does not help as long as the mark is behind */
            assert_report(&f, T0, "0000000000000020");
    }
    ck_assert_uint_eq(FEEDBACK_ASKED_MAX, 1000);
    ck_assert(feedback_is_stuck(&f));
    feedback_advance(&f, 0x27);
    ck_assert(feedback_is_stuck(&f));
    feedback_advance(&f, 0x28); /* exactly what is asked for */
    ck_assert(!feedback_is_stuck(&f));
    /* another end counts anew, also back to the first one */
    for (unsigned i = 0; i < FEEDBACK_ASKED_MAX - 1; i++)
        feedback_asked(&f, 0x30);
    feedback_asked(&f, 0x31);
    ck_assert(!feedback_is_stuck(&f));
    feedback_asked(&f, 0x30);
    ck_assert(!feedback_is_stuck(&f));
    for (unsigned i = 0; i < FEEDBACK_ASKED_MAX - 1; i++)
        feedback_asked(&f, 0x30);
    ck_assert(feedback_is_stuck(&f));
    /* a new connection forgets everything */
    feedback_connected(&f, 60000, T0 + 1);
    ck_assert(!feedback_is_stuck(&f));
    assert_due(&f, T0 + 1, false, 10000 * MS);
    assert_report(&f, T0 + 2, "0000000000000000");
}
END_TEST

START_TEST(clock_before_2000)
{
    struct feedback f;
    uint8_t out[FEEDBACK_SIZE];

    feedback_connected(&f, 60000, T0);
    feedback_report(&f, T0, CLOCK_PG_EPOCH_US - 1, out);
    unit_assert_hex((struct bytes){out, sizeof out},
                    "72 0000000000000000 0000000000000000 0000000000000000 ffffffffffffffff 00");
}
END_TEST

UNIT_MAIN("feedback", interval, pace_of_a_moved_mark, pace_below_a_short_interval,
          asked_at_once_and_coalesced, stuck_after_a_thousand, clock_before_2000)
