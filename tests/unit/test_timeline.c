/* SPDX-License-Identifier: PostgreSQL */
#include "timeline.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "unit.h"

/** Parses from an exactly sized block, so that the sanitizers see a read past the text. */
static int parse(struct timeline_history *h, uint32_t current, const char *text)
{
    struct bytes exact = unit_exact(unit_bytes(text));
    int r = timeline_history_parse(h, current, exact);

    unit_free(exact);
    return r;
}

START_TEST(no_history)
{
    struct timeline_history h;

    ck_assert_int_eq(timeline_history_parse(&h, 1, (struct bytes){NULL, 0}), 0);
    ck_assert_uint_eq(h.current, 1);
    ck_assert_uint_eq(h.n, 0);
    ck_assert_uint_eq(timeline_of(&h, 0), 1);
    ck_assert_uint_eq(timeline_of(&h, UINT64_MAX), 1);
    timeline_history_deinit(&h);
}
END_TEST

START_TEST(at_below_and_above_each_switch)
{
    static const struct {
        uint64_t lsn;
        uint32_t timeline;
    } cases[] = {
        {0, 1},           {0x4FFFFFF, 1},   {0x5000000, 2},   {0x5000001, 2},
        {0x9FFFFFFFF, 2}, {0xA00000000, 7}, {0xA00000001, 7}, {0xAFFFFFFFE, 7},
        {0xAFFFFFFFF, 9}, {0xB00000000, 9}, {UINT64_MAX, 9},
    };
    struct timeline_history h;

    ck_assert_int_eq(parse(&h, 9,
                           "1\t0/5000000\tno recovery target specified\n\n"
                           "2\tA/0\tbefore 2026-01-01 00:00:00+00\n\n"
                           "7\tA/FFFFFFFF\tat restore point \"x\"\n"),
                     0);
    ck_assert_uint_eq(h.current, 9);
    ck_assert_uint_eq(h.n, 3);
    ck_assert_uint_eq(h.switches[0].timeline, 1);
    ck_assert_uint_eq(h.switches[0].at, 0x5000000);
    ck_assert_uint_eq(h.switches[1].timeline, 2);
    ck_assert_uint_eq(h.switches[1].at, 0xA00000000);
    ck_assert_uint_eq(h.switches[2].timeline, 7);
    ck_assert_uint_eq(h.switches[2].at, 0xAFFFFFFFF);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        ck_assert_uint_eq(timeline_of(&h, cases[i].lsn), cases[i].timeline);
    timeline_history_deinit(&h);
    ck_assert_ptr_null(h.switches);
    ck_assert_uint_eq(h.n, 0);
}
END_TEST

/* Each of these says: timeline 1 until 0/5000000, then 2 until 0/6000000. */
START_TEST(forms_of_the_text)
{
    static const char *const texts[] = {
        "1\t0/5000000\tx\n2\t0/6000000\ty\n",
        "1\t0/5000000\tx\n2\t0/6000000\ty", /* no end of line */
        "1\t0/5000000\n2\t0/6000000",       /* no reason */
        "1\t0/5000000\tx\r\n\r\n2\t0/6000000\ty\r\n",
        "1\t0/5000000\r\n2\t0/6000000\r",
        "# a comment\n\n  \t\n1 0/5000000 x\n \t# another\n\t2  \t 0/06000000 y\n\n",
        "  1\t0/5000000\tx\n2\t00000000/6000000\t1\t0/1\n#3\t0/7000000\n",
        "\n\n\n1\t0/"
        "5000000\t0123456789012345678901234567890123456789012345678901234567890123456789\n"
        "2\t0/6000000\t\xc3\xa4\xff\n",
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct timeline_history h;

        ck_assert_msg(parse(&h, 3, texts[i]) == 0, "text %zu", i);
        ck_assert_uint_eq(h.n, 2);
        ck_assert_uint_eq(h.switches[0].timeline, 1);
        ck_assert_uint_eq(h.switches[0].at, 0x5000000);
        ck_assert_uint_eq(h.switches[1].timeline, 2);
        ck_assert_uint_eq(h.switches[1].at, 0x6000000);
        timeline_history_deinit(&h);
    }
}
END_TEST

START_TEST(garbage)
{
    static const char *const texts[] = {
        "x",
        "1",
        "1\t",
        "1\n",
        "\t0/5000000",
        "1 \t \n2\t0/5",
        "10/5000000",
        "1\t5000000",
        "1\t0/",
        "1\t/5",
        "1\t0/5000000x\tno",
        "1\t0/123456789",
        "1\t0/-5",
        "0\t0/5000000\tno",
        "-1\t0/5000000",
        "+1\t0/5000000",
        "-18446744073709551615\t0/5000000", /* strtoul makes 1 of it */
        "0x1\t0/5000000",
        "\v1\t0/5000000",
        "4294967297\t0/5000000",
        "99999999999999999999\t0/5000000",
        "1\t0/5000000\tgood\nbad\n",
        /* more than what is read of a line, and nothing but blanks or digits in it */
        "1                                                                        0/5000000",
        "0000000000000000000000000000000000000000000000000000000000000000000000001\t0/5000000",
        /* timelines that do not rise, and the current one or later */
        "2\t0/5000000\tx\n1\t0/6000000\ty\n",
        "2\t0/5000000\tx\n2\t0/6000000\ty\n",
        "9\t0/5000000\tx\n",
        "1\t0/5000000\tx\n10\t0/6000000\ty\n",
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct timeline_history h = {.current = 77};

        ck_assert_msg(parse(&h, 9, texts[i]) == -EBADMSG, "%s", texts[i]);
        ck_assert_uint_eq(h.current, 77);
        ck_assert_ptr_null(h.switches);
    }
}
END_TEST

START_TEST(a_nul_ends_nothing_silently)
{
    static const char text[] = "1\0\t0/5000000\tx\n";
    struct timeline_history h;

    ck_assert_int_eq(
        timeline_history_parse(&h, 9, (struct bytes){(const uint8_t *)text, sizeof text - 1}),
        -EBADMSG);
}
END_TEST

START_TEST(many_timelines)
{
    enum { SWITCHES = 1000 };
    static char text[SWITCHES * 32];
    struct timeline_history h;
    size_t size = 0;

    for (unsigned i = 1; i <= SWITCHES; i++)
        size += (size_t)snprintf(text + size, sizeof text - size, "%u\t%X/%X\tx\n", i * 2, i, i);
    ck_assert_int_eq(parse(&h, 2 * SWITCHES + 1, text), 0);
    ck_assert_uint_eq(h.n, SWITCHES);
    for (unsigned i = 1; i <= SWITCHES; i++) {
        uint64_t at = (uint64_t)i << 32 | i;

        ck_assert_uint_eq(timeline_of(&h, at - 1), i * 2);
        ck_assert_uint_eq(timeline_of(&h, at), i < SWITCHES ? i * 2 + 2 : 2 * SWITCHES + 1);
    }
    timeline_history_deinit(&h);
}
END_TEST

UNIT_MAIN("timeline", no_history, at_below_and_above_each_switch, forms_of_the_text, garbage,
          a_nul_ends_nothing_silently, many_timelines)
