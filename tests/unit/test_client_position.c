/* SPDX-License-Identifier: PostgreSQL */
#include "client/position.h"

#include <string.h>

#include "unit.h"

START_TEST(text_form_both_ways)
{
    static const struct {
        struct walbus_position p;
        const char *text;
    } cases[] = {
        {{0, 0, 0}, "0:0/0:0"},
        {{0x16B3748, 1, 1}, "1:0/16B3748:1"},
        {{UINT64_C(0x1FFFFFFFF), 3, 0}, "3:1/FFFFFFFF:0"},
        {{UINT64_MAX, UINT32_MAX, WALBUS_INDEX_END}, "4294967295:FFFFFFFF/FFFFFFFF:4294967295"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[WALBUS_POSITION_TEXT_SIZE];
        struct walbus_position p = {7, 7, 7};

        ck_assert_ptr_eq(walbus_position_format(cases[i].p, text), text);
        ck_assert_str_eq(text, cases[i].text);
        ck_assert_int_eq(walbus_position_parse(cases[i].text, &p), WALBUS_OK);
        ck_assert_int_eq(walbus_position_compare(p, cases[i].p), 0);
    }
}
END_TEST

START_TEST(what_is_no_position)
{
    static const char *const bad[] = {"",
                                      "1",
                                      "1:0/1",
                                      "1:0/1:",
                                      " 1:0/1:1",
                                      "1:0/1:1 ",
                                      "-1:0/1:1",
                                      "+1:0/1:1",
                                      "1:0/1:1:1",
                                      "1:0x0/1:1",
                                      "1:0/1:0x1",
                                      "1:0/G:1",
                                      "1:1:1",
                                      "1:0/123456789:1",
                                      "4294967296:0/1:1",
                                      "1:0/1:4294967296"};
    struct walbus_position p = {7, 7, 7};

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_msg(walbus_position_parse(bad[i], &p) == WALBUS_BAD_ARGUMENT, "%s", bad[i]);
    ck_assert_int_eq(walbus_position_parse(NULL, &p), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_position_parse("1:0/1:1", NULL), WALBUS_BAD_ARGUMENT);
    ck_assert(p.lsn == 7 && p.timeline == 7 && p.index == 7); /* not written */
}
END_TEST

START_TEST(order_and_binary_form_agree)
{
    static const struct walbus_position rising[] = {{0, 0, 0},
                                                    {0, 0, 1},
                                                    {5, 0, 0},
                                                    {0, 1, 0},
                                                    {200, 1, 0},
                                                    {200, 1, 1},
                                                    {200, 1, WALBUS_INDEX_END},
                                                    {201, 1, 0},
                                                    {UINT64_C(1) << 32, 1, 0},
                                                    {1, 2, 0},
                                                    {1, 0x100, 0},
                                                    {UINT64_MAX, UINT32_MAX, UINT32_MAX}};

    for (size_t i = 0; i < ARRAY_SIZE(rising); i++)
        for (size_t j = 0; j < ARRAY_SIZE(rising); j++) {
            uint8_t a[WALBUS_POSITION_SIZE], b[WALBUS_POSITION_SIZE];
            int want = i < j ? -1 : i > j;
            int got = walbus_position_compare(rising[i], rising[j]);

            ck_assert_int_eq((got > 0) - (got < 0), want);
            walbus_position_pack(rising[i], a);
            walbus_position_pack(rising[j], b);
            got = memcmp(a, b, sizeof a);
            ck_assert_int_eq((got > 0) - (got < 0), want);
            ck_assert_int_eq(walbus_position_compare(walbus_position_unpack(a), rising[i]), 0);
        }
    uint8_t raw[WALBUS_POSITION_SIZE];
    walbus_position_pack(
        (struct walbus_position){UINT64_C(0x0102030405060708), 0x090a0b0c, 0x0d0e0f10}, raw);
    unit_assert_hex((struct bytes){raw, sizeof raw}, "090a0b0c 0102030405060708 0d0e0f10");
}
END_TEST

UNIT_MAIN("client_position", text_form_both_ways, what_is_no_position, order_and_binary_form_agree)
