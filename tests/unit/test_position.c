/* SPDX-License-Identifier: PostgreSQL */
#include "codec/position.h"

#include <errno.h>
#include <string.h>

#include "unit.h"

static const struct position highest = {UINT32_MAX, UINT64_MAX, UINT32_MAX};

START_TEST(compare_orders_by_timeline_lsn_index)
{
    /* Strictly rising: each pair of the list is compared in both directions. */
    static const struct position rising[] = {
        {0, 0, 0},
        {0, 0, 1},
        {0, 1, 0},
        {1, 0, 0},
        {1, 0x16B3748, POSITION_INDEX_NONTRANSACTIONAL},
        {1, 0x16B3748, 1},
        {1, 0x16B3748, 2},
        {1, 0x16B3748, 0x7fffffff},
        {1, 0x16B3748, 0x80000000},
        {1, 0x16B3748, POSITION_INDEX_END},
        {1, 0x16B3749, 0},
        {1, 0x7fffffffffffffff, 0},
        {1, 0x8000000000000000, 0},
        {1, UINT64_MAX, UINT32_MAX},
        {2, 0, 0},
        {0x7fffffff, 0, 0},
        {0x80000000, 0, 0},
        {UINT32_MAX, UINT64_MAX, UINT32_MAX},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rising); i++)
        for (size_t j = 0; j < ARRAY_SIZE(rising); j++) {
            int got = position_compare(rising[i], rising[j]);
            ck_assert_msg((got > 0) - (got < 0) == (i > j) - (i < j), "%zu against %zu: %d", i, j,
                          got);
        }
}
END_TEST

START_TEST(zero_is_zero_in_all_three)
{
    ck_assert(position_is_zero((struct position){0, 0, 0}));
    ck_assert(!position_is_zero((struct position){1, 0, 0}));
    ck_assert(!position_is_zero((struct position){0, 1, 0}));
    ck_assert(!position_is_zero((struct position){0, UINT64_C(1) << 32, 0}));
    ck_assert(!position_is_zero((struct position){0, 0, 1}));
}
END_TEST

START_TEST(binary_is_big_endian)
{
    static const struct {
        struct position position;
        const char *hex;
    } cases[] = {
        {{0, 0, 0}, "00000000 0000000000000000 00000000"},
        {{1, 0x16B3748, 1}, "00000001 00000000016b3748 00000001"},
        {{0x01020304, 0x05060708090a0b0c, 0x0d0e0f10}, "01020304 05060708090a0b0c 0d0e0f10"},
        {{UINT32_MAX, UINT64_MAX, UINT32_MAX}, "ffffffff ffffffffffffffff ffffffff"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint8_t raw[POSITION_SIZE];

        position_encode(cases[i].position, raw);
        unit_assert_hex((struct bytes){raw, sizeof raw}, cases[i].hex);
        ck_assert_int_eq(position_compare(position_decode(raw), cases[i].position), 0);
    }
}
END_TEST

START_TEST(text_round_trip)
{
    static const struct {
        struct position position;
        const char *text;
    } cases[] = {
        {{0, 0, 0}, "0:0/0:0"},
        {{1, 0x16B3748, 1}, "1:0/16B3748:1"},
        {{1, 0x16B3748, UINT32_MAX}, "1:0/16B3748:4294967295"},
        {{7, 0x1000000000, 0}, "7:10/0:0"},
        {{7, 0xffffffff, 0}, "7:0/FFFFFFFF:0"},
        {{7, 0x100000000, 0}, "7:1/0:0"},
        {{UINT32_MAX, UINT64_MAX, UINT32_MAX}, "4294967295:FFFFFFFF/FFFFFFFF:4294967295"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[POSITION_TEXT_SIZE];
        struct position parsed = {9, 9, 9};

        ck_assert_ptr_eq(position_format(cases[i].position, text), text);
        ck_assert_str_eq(text, cases[i].text);
        ck_assert_int_eq(position_parse(text, &parsed), 0);
        ck_assert_int_eq(position_compare(parsed, cases[i].position), 0);
    }
    /* The longest text fills its array exactly. */
    char text[POSITION_TEXT_SIZE];
    ck_assert_uint_eq(strlen(position_format(highest, text)), POSITION_TEXT_SIZE - 1);
}
END_TEST

START_TEST(text_accepts_either_case_and_leading_zeros)
{
    struct position p;

    ck_assert_int_eq(position_parse("1:0a/00bC0001:0000000002", &p), 0);
    ck_assert_uint_eq(p.timeline, 1);
    ck_assert_uint_eq(p.lsn, UINT64_C(0x0a00bc0001));
    ck_assert_uint_eq(p.index, 2);
}
END_TEST

START_TEST(text_refuses_everything_else)
{
    static const char *const wrong[] = {
        "",
        "1",
        "1:",
        "1:0",
        "1:0/",
        "1:0/0",
        "1:0/0:",
        ":0/0:0",
        "1:/0:0",
        "1:0/:0",
        "1:0/0:0 ",
        " 1:0/0:0",
        "1 :0/0:0",
        "1: 0/0:0",
        "1:0 /0:0",
        "1:0/ 0:0",
        "1:0/0: 0",
        "1:0/0:0\n",
        "1:0/0:0:0",
        "1:0/0:0x",
        "+1:0/0:0",
        "-1:0/0:0",
        "1:+0/0:0",
        "1:0/-1:0",
        "1:0/0:+1",
        "1:0/0:-1",
        "0x1:0/0:0",
        "1:0x0/0:0",
        "1:0/0x1:0",
        "a:0/0:0",
        "1:g/0:0",
        "1:0/G:0",
        "1:0/0:a",
        "1:0\\0:0",
        "1.0/0.0",
        "1:0/0,0",
        "4294967296:0/0:0",
        "1:0/0:4294967296",
        "99999999999:0/0:0",
        "00000000001:0/0:0",
        "18446744073709551617:0/0:0",
        "1:100000000/0:0",
        "1:0/100000000:0",
        "1:000000000/0:0",
        "1:0/0:00000000000",
    };

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct position p = {9, 9, 9};

        ck_assert_msg(position_parse(wrong[i], &p) == -EINVAL, "\"%s\" was accepted", wrong[i]);
        ck_assert_msg(p.timeline == 9 && p.lsn == 9 && p.index == 9, "\"%s\" wrote", wrong[i]);
    }
}
END_TEST

/* Every byte in every place of a good text: only what makes another good text is accepted. */
START_TEST(text_with_any_byte_replaced)
{
    static const char good[] = "1:0/16B:4";

    for (size_t at = 0; at < sizeof good - 1; at++)
        for (int c = 1; c < 256; c++) {
            char text[sizeof good];
            struct position p;
            bool decimal = c >= '0' && c <= '9';
            bool hex = decimal || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
            bool in_hex = at == 2 || (at >= 4 && at <= 6);
            bool same = c == good[at];
            /* One digit more for the number before it is no position either way. */
            bool want = same || (in_hex ? hex : (at == 0 || at == 8) && decimal);

            memcpy(text, good, sizeof good);
            text[at] = (char)c;
            ck_assert_msg((position_parse(text, &p) == 0) == want, "byte %d at %zu", c, at);
        }
}
END_TEST

START_TEST(lsn_text)
{
    static const struct {
        uint64_t lsn;
        const char *text;
    } cases[] = {
        {0, "0/0"},
        {1, "0/1"},
        {0x16B3748, "0/16B3748"},
        {0xffffffff, "0/FFFFFFFF"},
        {0x100000000, "1/0"},
        {UINT64_MAX, "FFFFFFFF/FFFFFFFF"},
    };
    static const char *const wrong[] = {
        "",    "/",    "0",   "0/",   "/0",          "0/0 ",        " 0/0",
        "0/g", "0//0", "0:0", "-0/0", "000000000/0", "0/000000000", "0/0/0",
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[LSN_TEXT_SIZE];
        uint64_t parsed = 9;

        ck_assert_ptr_eq(lsn_format(cases[i].lsn, text), text);
        ck_assert_str_eq(text, cases[i].text);
        ck_assert_int_eq(lsn_parse(text, &parsed), 0);
        ck_assert_uint_eq(parsed, cases[i].lsn);
    }
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        uint64_t parsed = 9;

        ck_assert_msg(lsn_parse(wrong[i], &parsed) == -EINVAL, "\"%s\" was accepted", wrong[i]);
        ck_assert_uint_eq(parsed, 9);
    }
    uint64_t parsed;
    ck_assert_int_eq(lsn_parse("00000001/0000abcd", &parsed), 0);
    ck_assert_uint_eq(parsed, UINT64_C(0x10000abcd));
}
END_TEST

UNIT_MAIN("position", compare_orders_by_timeline_lsn_index, zero_is_zero_in_all_three,
          binary_is_big_endian, text_round_trip, text_accepts_either_case_and_leading_zeros,
          text_refuses_everything_else, text_with_any_byte_replaced, lsn_text)
