/* SPDX-License-Identifier: PostgreSQL */
#include "start.h"

#include <errno.h>

#include "unit.h"

#define NOW INT64_C(1768473000123456) /* 2026-01-15T10:30:00.123456Z */

START_TEST(each_kind)
{
    static const struct {
        const char *text;
        struct start want;
    } cases[] = {
        {"now", {WALBUS_START_NOW, {0, 0, 0}, 0}},
        {"oldest", {WALBUS_START_OLDEST, {0, 0, 0}, 0}},
        {"1:0/16B3748:3", {WALBUS_START_POSITION, {0x16B3748, 1, 3}, 0}},
        {"2:A/0:4294967295", {WALBUS_START_POSITION, {UINT64_C(0xA00000000), 2, UINT32_MAX}, 0}},
        {"2026-01-15T10:30:00.123456Z", {WALBUS_START_TIME, {0, 0, 0}, NOW}},
        {"2026-01-15 12:00:00+01:30", {WALBUS_START_TIME, {0, 0, 0}, NOW - 123456}},
        {"-15min", {WALBUS_START_TIME, {0, 0, 0}, NOW - 15 * INT64_C(60000000)}},
        {"-1.5 h", {WALBUS_START_TIME, {0, 0, 0}, NOW - 90 * INT64_C(60000000)}},
        {"-30", {WALBUS_START_TIME, {0, 0, 0}, NOW - 30 * INT64_C(1000000)}},
        {"-0", {WALBUS_START_TIME, {0, 0, 0}, NOW}},
        {"-1000000d", {WALBUS_START_TIME, {0, 0, 0}, 0}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct start got;

        ck_assert_msg(start_parse(cases[i].text, NOW, &got) == 0, "%s", cases[i].text);
        ck_assert_int_eq(got.start, cases[i].want.start);
        ck_assert_int_eq(walbus_position_compare(got.position, cases[i].want.position), 0);
        ck_assert_msg(got.time_us == cases[i].want.time_us, "%s: %lld", cases[i].text,
                      (long long)got.time_us);
    }
}
END_TEST

START_TEST(what_is_none)
{
    static const char *const cases[] = {
        "",
        "-",
        "--15min",
        "-15 parsecs",
        "-999999999999d",
        "Now",
        "stored",
        "15min",
        "1:0/16B3748",
        "0:0/0:0",
        "0:0/5:1",
        "2026-01-15T10:30:00",
        "2026-01-15",
        "10:30",
        "yesterday",
        "1",
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct start got = {.time_us = 77};

        ck_assert_msg(start_parse(cases[i], NOW, &got) == -EINVAL, "%s", cases[i]);
        ck_assert_int_eq(got.time_us, 77);
    }
}
END_TEST

UNIT_MAIN("start", each_kind, what_is_none)
