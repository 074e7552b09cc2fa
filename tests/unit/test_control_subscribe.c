/* SPDX-License-Identifier: PostgreSQL */
#include "codec/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/frame.h"
#include "control_bodies.h"
#include "unit.h"

START_TEST(subscribe_start)
{
    static const struct {
        const char *start; /* hex; NULL: not given */
        bool position, time;
        const char *why; /* NULL: accepted, as `want` */
        enum control_start want;
    } cases[] = {
        {NULL, false, false, NULL, CONTROL_START_NOW},
        {"636e6f77", false, false, NULL, CONTROL_START_NOW},
        {"6673746f726564", false, false, NULL, CONTROL_START_STORED},
        {"666f6c64657374", false, false, NULL, CONTROL_START_OLDEST},
        {"68706f736974696f6e", true, false, NULL, CONTROL_START_POSITION},
        {"6474696d65", false, true, NULL, CONTROL_START_TIME},
        {"68706f736974696f6e", true, true, NULL, CONTROL_START_POSITION},
        {"636e6f77", true, true, NULL, CONTROL_START_NOW},
        {"68706f736974696f6e", false, true, "The key \"position\" is missing.", 0},
        {"6474696d65", true, false, "The key \"time\" is missing.", 0},
        {"60", false, false, "The \"start\" is an unknown word: .", 0},
        {"634e6f77", false, false, "The \"start\" is an unknown word: Now.", 0},
        {"626e6f", false, false, "The \"start\" is an unknown word: no.", 0},
        {"646e6f7773", false, false, "The \"start\" is an unknown word: nows.", 0},
        {"641b5b324a", false, false, "The \"start\" is an unknown word: \\x1b[2J.", 0},
        {"436e6f77", false, false, "The value of \"start\" is not text.", 0},
        {"00", false, false, "The value of \"start\" is not text.", 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pair pairs[4] = {{"filters", "81 82 00 413e"}};
        struct buf map = BUF_INIT;
        struct control_subscribe c;
        char why[CONTROL_WHY_SIZE] = "";
        size_t n = 1;

        if (cases[i].start)
            pairs[n++] = (struct pair){"start", cases[i].start};
        if (cases[i].position)
            pairs[n++] = (struct pair){"position", P1};
        if (cases[i].time)
            pairs[n++] = (struct pair){"time", "3863"};
        cbor_put_map(&map, n);
        for (size_t j = 0; j < n; j++)
            body_put_pair(&map, &pairs[j]);
        int r = control_subscribe_decode(buf_bytes(&map), &c, why);
        ck_assert_msg(r == (cases[i].why ? -EBADMSG : 0), "case %zu: %d, %s", i, r, why);
        if (cases[i].why) {
            ck_assert_str_eq(why, cases[i].why);
        } else {
            ck_assert_int_eq(c.start, cases[i].want);
            if (cases[i].position)
                ck_assert_int_eq(position_compare(c.position, place1), 0);
            ck_assert_int_eq(c.time, cases[i].time ? -100 : 0);
            control_subscribe_deinit(&c);
        }
        buf_deinit(&map);
    }
}
END_TEST

START_TEST(subscribe_filters)
{
    static const struct {
        const char *hex;
        const char *why; /* NULL: accepted */
    } cases[] = {
        {"81 82 00 40", NULL},
        {"81 82 00 60", NULL}, /* a text string is taken as well */
        {"83 82 00 412a 82 01 412a 82 02 622a2a", NULL},
        {"80", "\"filters\" is empty: nothing would be delivered."},
        {"00", "The value of \"filters\" is not an array."},
        {"a0", "The value of \"filters\" is not an array."},
        {"413e", "The value of \"filters\" is not an array."},
        {"9f 82 00 40 ff", "The value of \"filters\" is not an array."},
        {"81 00", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 413e", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 80", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 81 00", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 83 00 40 00", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 82 40 00", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 82 20 40", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 82 00 00", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 82 00 80", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 82 00 5f 40 ff",
         "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"81 9f 00 40 ff", "Entry 1 of \"filters\" is not an array of a kind and a byte string."},
        {"82 82 00 40 f6", "Entry 2 of \"filters\" is not an array of a kind and a byte string."},
        {"81 82 03 40", "Entry 1 of \"filters\" is of the unknown kind 3."},
        {"81 82 1b ffffffffffffffff 40",
         "Entry 1 of \"filters\" is of the unknown kind 18446744073709551615."},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pair pairs[2] = {{"filters", cases[i].hex}};
        char why[CONTROL_WHY_SIZE];
        int r = body_decode_pairs(FRAME_SUBSCRIBE, pairs, 1, why);

        ck_assert_msg(r == (cases[i].why ? -EBADMSG : 0), "case %zu: %d, %s", i, r, why);
        if (cases[i].why)
            ck_assert_str_eq(why, cases[i].why);

        /* The same as exclusions, of which there may be none. */
        pairs[0] = (struct pair){"filters", "81 82 00 413e"};
        pairs[1] = (struct pair){"exclude", cases[i].hex};
        bool empty = strcmp(cases[i].hex, "80") == 0;
        r = body_decode_pairs(FRAME_SUBSCRIBE, pairs, 2, why);
        ck_assert_int_eq(r, cases[i].why && !empty ? -EBADMSG : 0);
        if (r < 0)
            ck_assert_ptr_nonnull(strstr(why, "\"exclude\""));
    }
}
END_TEST

START_TEST(subscribe_members)
{
    struct filter filters[] = {
        {FILTER_PATTERN, unit_bytes("orders.>")},
        {FILTER_EXACT, {NULL, 0}},
        {FILTER_STARTS_WITH, {(const uint8_t *)"\xff\x00", 2}},
    };
    struct filter exclusions[] = {{FILTER_PATTERN, unit_bytes("orders.test.*")}};
    struct control_subscribe c =
                                 {
                                     .filters = filters,
                                     .n_filters = ARRAY_SIZE(filters),
                                     .exclusions = exclusions,
                                     .n_exclusions = 1,
                                     .name = unit_bytes("billing"),
                                     .start = CONTROL_START_POSITION,
                                     .position = place1,
                                     .time = 5, /* not sent: it belongs to another start */
                                     .take_over = true,
                                 },
                             got;
    struct buf out = BUF_INIT;
    char why[CONTROL_WHY_SIZE];

    control_subscribe_encode(&c, &out);
    struct bytes body = {out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    ck_assert_int_eq(control_subscribe_decode(body, &got, why), 0);
    ck_assert_uint_eq(got.n_filters, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(got.filters[i].kind, filters[i].kind);
        ck_assert(bytes_equal(got.filters[i].text, filters[i].text));
    }
    ck_assert_uint_eq(got.n_exclusions, 1);
    ck_assert_int_eq(got.exclusions[0].kind, FILTER_PATTERN);
    unit_assert_text(got.exclusions[0].text, "orders.test.*");
    unit_assert_text(got.name, "billing");
    ck_assert_int_eq(got.start, CONTROL_START_POSITION);
    ck_assert_int_eq(position_compare(got.position, place1), 0);
    ck_assert_int_eq(got.time, 0);
    ck_assert(got.take_over);
    control_subscribe_deinit(&got);
    ck_assert_ptr_null(got.filters);
    control_subscribe_deinit(&got);
    buf_deinit(&out);
}
END_TEST

/* A name that was forgotten must not make a subscription of which nothing is kept. */
START_TEST(subscribe_with_an_empty_name)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes(">")};
    struct control_subscribe c = {.filters = &filter, .n_filters = 1, .name = unit_bytes("a")}, got;
    char why[CONTROL_WHY_SIZE];
    struct buf out = BUF_INIT;

    control_subscribe_encode(&c, &out);
    uint8_t *at = memmem(out.data, out.size, "name\x61" "a", 6); /* a text of one byte */
    ck_assert_ptr_nonnull(at);
    at[4] = 0x60;
    struct bytes body = {out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memmove(at + 5, at + 6, (size_t)(out.data + out.size - (at + 6)));
    body.size--;
    ck_assert_int_eq(control_subscribe_decode(body, &got, why), -EBADMSG);
    ck_assert_str_eq(why, "\"name\" is empty; without a name leave it out.");
    buf_deinit(&out);
}
END_TEST

/* Each of the two is its own: neither comes with the other, nor without having been sent. */
START_TEST(subscribe_take_over_and_override)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes(">")};
    char why[CONTROL_WHY_SIZE];

    for (unsigned bits = 0; bits < 4; bits++) {
        struct control_subscribe c = {.filters = &filter,
                                      .n_filters = 1,
                                      .name = unit_bytes("a"),
                                      .take_over = bits & 1,
                                      .override = bits & 2},
                                 got;
        struct buf out = BUF_INIT;

        control_subscribe_encode(&c, &out);
        struct bytes body = {out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
        ck_assert_int_eq(control_subscribe_decode(body, &got, why), 0);
        ck_assert_int_eq(got.take_over, bits & 1);
        ck_assert_int_eq(got.override, bits >> 1);
        control_subscribe_deinit(&got);
        buf_deinit(&out);
    }
}
END_TEST

START_TEST(subscribe_limits)
{
    for (size_t more = 0; more <= 1; more++) {
        struct filter *filters = calloc(FILTERS_MAX + more, sizeof *filters);
        uint8_t *text = malloc(FILTER_TEXT_MAX + more);
        struct buf out = BUF_INIT;
        struct control_subscribe c = {.filters = filters, .n_filters = FILTERS_MAX + more}, got;
        char why[CONTROL_WHY_SIZE];

        ck_assert_ptr_nonnull(filters);
        ck_assert_ptr_nonnull(text);
        control_subscribe_encode(&c, &out);
        struct bytes body = {out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
        int r = control_subscribe_decode(body, &got, why);
        ck_assert_int_eq(r, more ? -EBADMSG : 0);
        if (more) {
            ck_assert_str_eq(why, "\"filters\" has 1025 entries; 1024 are the most.");
        } else {
            ck_assert_uint_eq(got.n_filters, FILTERS_MAX);
            control_subscribe_deinit(&got);
        }

        memset(text, 'x', FILTER_TEXT_MAX + more);
        filters[1].text = (struct bytes){text, FILTER_TEXT_MAX + more};
        c.n_filters = 2;
        buf_clear(&out);
        control_subscribe_encode(&c, &out);
        body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
        r = control_subscribe_decode(body, &got, why);
        ck_assert_int_eq(r, more ? -EBADMSG : 0);
        if (more) {
            ck_assert_str_eq(why, "Entry 2 of \"filters\" has 4097 bytes; 4096 are the most.");
        } else {
            ck_assert_uint_eq(got.filters[1].text.size, FILTER_TEXT_MAX);
            control_subscribe_deinit(&got);
        }
        buf_deinit(&out);
        free(text);
        free(filters);
    }
}
END_TEST

/* 2 patterns of 4,096 tokens are as much as is accepted, whatever their kinds hold beside. */
START_TEST(subscribe_tokens)
{
    static uint8_t dots[FILTER_TEXT_MAX - 1];
    struct filter filters[2], exclusions[2];

    memset(dots, '.', sizeof dots);
    for (size_t i = 0; i < 2; i++) {
        filters[i] = (struct filter){i ? FILTER_EXACT : FILTER_PATTERN, {dots, sizeof dots}};
        exclusions[i] = (struct filter){FILTER_EXACT, {dots, sizeof dots}};
    }
    exclusions[0].kind = FILTER_PATTERN;
    for (size_t more = 0; more <= 1; more++) {
        struct control_subscribe c = {.filters = filters, .n_filters = 2,
                                      .exclusions = exclusions, .n_exclusions = 2}, got;
        struct buf out = BUF_INIT;
        char why[CONTROL_WHY_SIZE];

        exclusions[1] = more ? (struct filter){FILTER_PATTERN, {dots, 0}} : exclusions[1];
        control_subscribe_encode(&c, &out);
        int r = control_subscribe_decode(
            (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE}, &got, why);
        ck_assert_int_eq(r, more ? -EBADMSG : 0);
        if (more)
            ck_assert_str_eq(why, "The patterns have 8193 tokens; 8192 are the most.");
        else
            control_subscribe_deinit(&got);
        buf_deinit(&out);
    }
}
END_TEST

START_TEST(what_can_be_a_name)
{
    static const char *const good[] = {"a", "orders-worker.1", "caf\xc3\xa9", "\xe2\x82\xac", "\\", "\"'$(x)", "\xf0\x9f\x9a\x8c"};
    static const char *const bad[] = {"", "a b", " ", "a\n", "\x7f", "\xff", "\xc3", "a\xc0\x80"};
    /* one of each category and the ends of each plane's: what is not seen, or looks like a blank */
    static const char *const unseen[] = {"\xc2\x80", "\u00a0", "\u00ad", "\u061c", "\u180e", "\u2003", "\u200b", "\u200d", "\u2028",
                                         "\u2029", "\u202e", "\u202f", "\u2060", "\u2066", "\u206f", "\u3000", "\ufeff", "\ufffb",
                                         "\U0001d173", "\U000e0001", "\U000e007f"};
    static const char *const seen[] = {"\u00a1", "\u00ac", "\u061b", "\u1fff", "\u2010", "\u2027", "\u2030", "\u2070", "\u3001",
                                       "\ufffd", "\U0001d17b", "\U000e0100"};
    char name[CONTROL_NAME_MAX + 2];

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        ck_assert_msg(control_name_is_good(unit_bytes(good[i])), "%s", good[i]);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_msg(!control_name_is_good(unit_bytes(bad[i])), "%s", bad[i]);
    for (size_t i = 0; i < ARRAY_SIZE(unseen); i++) {
        (void)snprintf(name, sizeof name, "billing%s", unseen[i]);
        ck_assert_msg(!control_name_is_good(unit_bytes(name)), "%zu", i);
    }
    for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
        (void)snprintf(name, sizeof name, "billing%s", seen[i]);
        ck_assert_msg(control_name_is_good(unit_bytes(name)), "%zu", i);
    }
    memset(name, 'n', sizeof name);
    ck_assert(control_name_is_good((struct bytes){(const uint8_t *)name, CONTROL_NAME_MAX}));
    ck_assert(!control_name_is_good((struct bytes){(const uint8_t *)name, CONTROL_NAME_MAX + 1}));
    ck_assert(!control_name_is_good((struct bytes){(const uint8_t *)"a\0b", 3}));
}
END_TEST

UNIT_MAIN("control_subscribe", what_can_be_a_name, subscribe_start, subscribe_filters, subscribe_members, subscribe_take_over_and_override, subscribe_with_an_empty_name,
          subscribe_limits, subscribe_tokens)
