/* SPDX-License-Identifier: PostgreSQL */
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "unit.h"

static const struct {
    int64_t us;
    const char *text;
} moments[] = {
    {0, "1970-01-01T00:00:00.000000Z"},
    {1, "1970-01-01T00:00:00.000001Z"},
    {-1, "1969-12-31T23:59:59.999999Z"},
    {-1000000, "1969-12-31T23:59:59.000000Z"},
    {CLOCK_PG_EPOCH_US, "2000-01-01T00:00:00.000000Z"},
    {INT64_C(951782400000000), "2000-02-29T00:00:00.000000Z"},
    {INT64_C(1795979653123456), "2026-11-29T19:14:13.123456Z"},
    {INT64_C(4107542399999999), "2100-02-28T23:59:59.999999Z"},
    {INT64_C(4107542400000000), "2100-03-01T00:00:00.000000Z"},
    {INT64_C(-62167219200000000), "0000-01-01T00:00:00.000000Z"},
    {INT64_C(253402300799999999), "9999-12-31T23:59:59.999999Z"},
};

START_TEST(clock_text_round_trip)
{
    for (size_t i = 0; i < ARRAY_SIZE(moments); i++) {
        char text[CLOCK_TEXT_SIZE];
        int64_t us = 7;

        ck_assert_ptr_eq(clock_format_rfc3339(moments[i].us, text), text);
        ck_assert_str_eq(text, moments[i].text);
        ck_assert_int_eq(clock_parse_rfc3339(text, &us), 0);
        ck_assert_int_eq(us, moments[i].us);
    }
}
END_TEST

START_TEST(clock_text_is_clamped)
{
    char text[CLOCK_TEXT_SIZE];

    ck_assert_str_eq(clock_format_rfc3339(INT64_MIN, text), "0000-01-01T00:00:00.000000Z");
    ck_assert_str_eq(clock_format_rfc3339(INT64_C(-62167219200000001), text),
                     "0000-01-01T00:00:00.000000Z");
    ck_assert_str_eq(clock_format_rfc3339(INT64_C(253402300800000000), text),
                     "9999-12-31T23:59:59.999999Z");
    ck_assert_str_eq(clock_format_rfc3339(INT64_MAX, text), "9999-12-31T23:59:59.999999Z");
}
END_TEST

START_TEST(clock_parses_zones_and_fractions)
{
    static const struct {
        const char *text;
        int64_t us;
    } cases[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"1970-01-01t00:00:00z", 0},
        {"1970-01-01 00:00:00Z", 0},
        {"1970-01-01T00:00:00+00:00", 0},
        {"1970-01-01T00:00:00-00:00", 0},
        {"1970-01-01T01:00:00+01:00", 0},
        {"1969-12-31T16:30:00-07:30", 0},
        {"1970-01-01T00:00:00+23:59", INT64_C(-86340000000)},
        {"1970-01-01T00:00:00-23:59", INT64_C(86340000000)},
        {"1970-01-01T00:00:00.5Z", 500000},
        {"1970-01-01T00:00:00.000001Z", 1},
        {"1970-01-01T00:00:00.0000019Z", 1},
        {"1970-01-01T00:00:00.999999999999999999999999Z", 999999},
        {"1970-01-01T00:00:00.25+00:01", -59750000},
        {"1972-06-30T23:59:60Z", INT64_C(78796800000000)},
        {"2024-02-29T12:00:00Z", INT64_C(1709208000000000)},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t us = 7;

        ck_assert_msg(clock_parse_rfc3339(cases[i].text, &us) == 0, "%s", cases[i].text);
        ck_assert_msg(us == cases[i].us, "%s: %lld", cases[i].text, (long long)us);
    }
}
END_TEST

START_TEST(clock_refuses)
{
    static const char *const wrong[] = {
        "",
        "now",
        "1970-01-01",
        "1970-01-01T00:00:00",
        "1970-01-01T00:00Z",
        "1970-01-01T00:00:00.Z",
        "1970-01-01T00:00:00,5Z",
        "1970-01-01T00:00:00Z ",
        " 1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00ZZ",
        "1970-01-01T00:00:00 Z",
        "1970-01-01T00:00:00+0000",
        "1970-01-01T00:00:00+00",
        "1970-01-01T00:00:00+00:0",
        "1970-01-01T00:00:00+24:00",
        "1970-01-01T00:00:00+00:60",
        "1970-01-01T00:00:00+00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:60:00Z",
        "1970-01-01T00:00:61Z",
        "1970-00-01T00:00:00Z",
        "1970-13-01T00:00:00Z",
        "1970-01-00T00:00:00Z",
        "1970-01-32T00:00:00Z",
        "1970-04-31T00:00:00Z",
        "1970-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "2000-02-30T00:00:00Z",
        "70-01-01T00:00:00Z",
        "19700-01-01T00:00:00Z",
        "-970-01-01T00:00:00Z",
        "1970-1-01T00:00:00Z",
        "1970/01/01T00:00:00Z",
        "1970-01-01T0:00:00Z",
        "1970-01-01T00:00:00.-5Z",
    };

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        int64_t us = 7;

        ck_assert_msg(clock_parse_rfc3339(wrong[i], &us) == -EINVAL, "%s", wrong[i]);
        ck_assert_int_eq(us, 7);
    }
    /* No part of a text is one. */
    static const char good[] = "2026-11-29T19:14:13.123456+01:00";
    for (size_t size = 0; size < sizeof good - 1; size++) {
        char cut[sizeof good] = "";
        int64_t us;

        memcpy(cut, good, size);
        ck_assert_msg(clock_parse_rfc3339(cut, &us) == -EINVAL, "%s", cut);
    }
}
END_TEST

START_TEST(clocks_run)
{
    uint64_t before = clock_monotonic_ns();
    int64_t now = clock_realtime_us();
    struct timespec pause = {0, 2000000};

    /* After 2025 and before 2100: µs, not another unit. */
    ck_assert_int_gt(now, INT64_C(1735689600000000));
    ck_assert_int_lt(now, INT64_C(4102444800000000));
    (void)nanosleep(&pause, NULL);
    ck_assert_uint_ge(clock_monotonic_ns() - before, 2000000);
}
END_TEST

START_TEST(clock_time_left)
{
    uint64_t now = clock_monotonic_ns();

    ck_assert_int_eq(clock_ms_until(0), 0);
    ck_assert_int_eq(clock_ms_until(now), 0);
    ck_assert_int_eq(clock_ms_until(UINT64_MAX), INT_MAX);
    int left = clock_ms_until(now + UINT64_C(3600000) * 1000000);
    ck_assert_int_le(left, 3600000);
    ck_assert_int_gt(left, 3600000 - 20000);
    /* Rounded up: what is left of a ms is a ms. A test that is held up for so long tries again. */
    do {
        now = clock_monotonic_ns();
        left = clock_ms_until(now + 900000);
    } while (clock_monotonic_ns() >= now + 900000);
    ck_assert_int_eq(left, 1);
}
END_TEST

UNIT_MAIN("clock", clock_text_round_trip, clock_text_is_clamped, clock_parses_zones_and_fractions,
          clock_refuses, clocks_run, clock_time_left)
