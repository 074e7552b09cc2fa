/* SPDX-License-Identifier: PostgreSQL */
#include "codec/control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/frame.h"
#include "control_bodies.h"
#include "unit.h"

/* The smallest good body of each frame. */
static const struct frame_pairs {
    uint8_t type;
    struct pair required[PAIRS_MAX];
    struct pair optional[PAIRS_MAX];
} frames[] = {
    {FRAME_HELLO, {{"min", "01"}, {"max", "01"}, {"layout", "01"}}, {{"client", "6161"}}},
    {FRAME_WELCOME,
     {{"version", "01"},
      {"layout", "01"},
      {"server", "60"},
      {"identity", "60"},
      {"timeline", "01"},
      {"position", P1},
      {"max_frame", "01"},
      {"max_filters", "01"}},
     {{0}}},
    {FRAME_SUBSCRIBE,
     {{"filters", "81 82 00 40"}},
     {{"exclude", "80"},
      {"name", "6161"},
      {"start", "636e6f77"},
      {"position", P1},
      {"time", "20"},
      {"take_over", "f4"},
      {"override", "f4"}}},
    {FRAME_SUBSCRIBED,
     {{"position", P1}, {"stored", "f4"}, {"identity", "60"}, {"timeline", "00"}},
     {{"redelivered_to", P2}}},
    {FRAME_ACK, {{"position", P1}}, {{"confirm", "f4"}}},
    {FRAME_REQUEST, {{"id", "00"}, {"what", "6161"}}, {{"args", "80"}}},
    {FRAME_REPLY, {{"id", "00"}, {"result", "f6"}}, {{0}}},
    {FRAME_ERROR, {{"code", "60"}, {"text", "60"}, {"fatal", "f4"}}, {{"id", "00"}}},
};

static size_t n_pairs(const struct pair *pairs)
{
    size_t n = 0;

    while (n < PAIRS_MAX && pairs[n].key)
        n++;
    return n;
}

/* All of the frame's pairs in `pairs`; the number. */
static size_t all_pairs(const struct frame_pairs *frame, struct pair pairs[2 * PAIRS_MAX])
{
    size_t required = n_pairs(frame->required), optional = n_pairs(frame->optional);

    memcpy(pairs, frame->required, required * sizeof *pairs);
    memcpy(pairs + required, frame->optional, optional * sizeof *pairs);
    return required + optional;
}

START_TEST(keys_missing)
{
    for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
        size_t n = n_pairs(frames[i].required);
        char why[CONTROL_WHY_SIZE], want[CONTROL_WHY_SIZE];

        ck_assert_msg(body_decode_pairs(frames[i].type, frames[i].required, n, why) == 0, "%s", why);
        for (size_t left_out = 0; left_out < n; left_out++) {
            struct pair pairs[PAIRS_MAX];
            size_t m = 0;

            for (size_t j = 0; j < n; j++)
                if (j != left_out)
                    pairs[m++] = frames[i].required[j];
            ck_assert_int_eq(body_decode_pairs(frames[i].type, pairs, m, why), -EBADMSG);
            (void)snprintf(want, sizeof want, "The key \"%s\" is missing.",
                           frames[i].required[left_out].key);
            ck_assert_str_eq(why, want);
        }
    }
}
END_TEST

START_TEST(keys_in_any_order)
{
    for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
        struct pair pairs[2 * PAIRS_MAX];
        size_t n = all_pairs(&frames[i], pairs);
        char why[CONTROL_WHY_SIZE];

        for (size_t turn = 0; turn < n; turn++) {
            struct pair first = pairs[0];

            memmove(pairs, pairs + 1, (n - 1) * sizeof *pairs);
            pairs[n - 1] = first;
            ck_assert_msg(body_decode_pairs(frames[i].type, pairs, n, why) == 0, "%s", why);
        }
    }
}
END_TEST

START_TEST(keys_twice)
{
    for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
        struct pair pairs[2 * PAIRS_MAX + 1];
        size_t n = all_pairs(&frames[i], pairs);
        char why[CONTROL_WHY_SIZE], want[CONTROL_WHY_SIZE];

        for (size_t j = 0; j < n; j++) {
            pairs[n] = pairs[j];
            ck_assert_int_eq(body_decode_pairs(frames[i].type, pairs, n + 1, why), -EBADMSG);
            (void)snprintf(want, sizeof want, "The key \"%s\" stands twice.", pairs[j].key);
            ck_assert_str_eq(why, want);
        }
    }
}
END_TEST

START_TEST(keys_unknown_are_ignored)
{
    static const struct pair unknown[] = {
        {"", "00"},
        {"mi", "00"},
        {"minn", "60"},
        {"Position", "f6"},
        {"future", "a1 01 9f 5f 40 ff d8 40 82 f9 7e00 c1 00 ff"},
        {"future", "80"}, /* twice, which is no business of ours */
    };

    for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
        struct pair pairs[2 * PAIRS_MAX + ARRAY_SIZE(unknown)];
        char why[CONTROL_WHY_SIZE];

        memcpy(pairs, unknown, sizeof unknown);
        size_t n = ARRAY_SIZE(unknown) + all_pairs(&frames[i], pairs + ARRAY_SIZE(unknown));
        ck_assert_msg(body_decode_pairs(frames[i].type, pairs, n, why) == 0, "%s", why);
    }
}
END_TEST

/* What each key takes, out of values of every type. */
START_TEST(values_of_another_type)
{
    static const struct {
        const char *hex;
        char type; /* u: unsigned, n: negative, U, N: beyond 63 bits, b: bytes, p: 16 bytes, e: empty text,
                      t: text, a: array, m: map, o: true or false, -: none of these */
    } values[] = {
        {"00", 'u'},
        {"1b7fffffffffffffff", 'u'},
        {"20", 'n'},
        {"3b7fffffffffffffff", 'n'},
        {"3b8000000000000000", 'N'},
        {"1b8000000000000000", 'U'},
        {"1bffffffffffffffff", 'U'},
        {"40", 'b'},
        {"4f 000102030405060708090a0b0c0d0e", 'b'},
        {P1, 'p'},
        {"51 000102030405060708090a0b0c0d0e0f10", 'b'},
        {"5f 50 000102030405060708090a0b0c0d0e0f ff", '-'},
        {"60", 'e'},
        {"636e6f77", 't'},
        {"7f 63 6e6f77 ff", '-'},
        {"80", 'a'},
        {"9f ff", '-'},
        {"a0", 'm'},
        {"bf ff", '-'},
        {"c0 60", '-'},
        {"c1 00", '-'},
        {"f4", 'o'},
        {"f5", 'o'},
        {"f6", '-'},
        {"f7", '-'},
        {"f0", '-'},
        {"f8ff", '-'},
        {"f93c00", '-'},
        {"fb3ff0000000000000", '-'},
    };
    static const struct {
        const char *key, *accepts, *why;
    } keys[] = {
        {"min", "uU", "an unsigned integer"},
        {"max", "uU", "an unsigned integer"},
        {"layout", "uU", "an unsigned integer"},
        {"version", "uU", "an unsigned integer"},
        {"timeline", "uU", "an unsigned integer"},
        {"max_frame", "uU", "an unsigned integer"},
        {"max_filters", "uU", "an unsigned integer"},
        {"id", "uU", "an unsigned integer"},
        {"time", "un", "an integer of 64 bits"},
        {"client", "te", "text"},
        {"server", "te", "text"},
        {"identity", "te", "text"},
        {"name", "t", "text"},
        {"what", "te", "text"},
        {"code", "te", "text"},
        {"text", "te", "text"},
        {"position", "p", "a byte string of 16 bytes"},
        {"redelivered_to", "p", "a byte string of 16 bytes"},
        {"stored", "o", "true or false"},
        {"take_over", "o", "true or false"},
        {"override", "o", "true or false"},
        {"confirm", "o", "true or false"},
        {"fatal", "o", "true or false"},
        {"args", NULL, NULL},
        {"result", NULL, NULL},
        {"start", "", NULL},   /* subscribe_start */
        {"filters", "", NULL}, /* subscribe_filters */
        {"exclude", "", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
        struct pair pairs[2 * PAIRS_MAX];
        size_t n = all_pairs(&frames[i], pairs);

        for (size_t j = 0; j < n; j++) {
            size_t k = 0;

            while (k < ARRAY_SIZE(keys) && strcmp(keys[k].key, pairs[j].key) != 0)
                k++;
            ck_assert_msg(k < ARRAY_SIZE(keys), "\"%s\" is not tested", pairs[j].key);
            if (keys[k].accepts && !keys[k].why)
                continue;
            for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
                bool good = !keys[k].accepts || strchr(keys[k].accepts, values[v].type);
                char why[CONTROL_WHY_SIZE], want[CONTROL_WHY_SIZE];
                struct pair before = pairs[j];

                pairs[j].value = values[v].hex;
                int r = body_decode_pairs(frames[i].type, pairs, n, why);
                pairs[j] = before;
                ck_assert_msg(r == (good ? 0 : -EBADMSG), "\"%s\" of %s: %d, %s", pairs[j].key,
                              values[v].hex, r, why);
                if (good)
                    continue;
                (void)snprintf(want, sizeof want, "The value of \"%s\" is not %s.", pairs[j].key,
                               keys[k].why);
                bool nameless = values[v].type == 'e' && strcmp(pairs[j].key, "name") == 0;
                ck_assert_str_eq(why, nameless ? "\"name\" is empty; without a name leave it out." : want);
            }
        }
    }
}
END_TEST

START_TEST(bodies_that_are_no_map)
{
    static const char *const bodies[] = {
        "00", "80",    "40",        "60",
        "f6", "c1 a0", "d9d9f7 a0", "bf 626964 00 66726573756c74 f6 ff", /* of indefinite length */
    };

    for (size_t i = 0; i < ARRAY_SIZE(frames); i++)
        for (size_t j = 0; j < ARRAY_SIZE(bodies); j++) {
            struct bytes body = unit_from_hex(bodies[j]);
            union body b;
            char why[CONTROL_WHY_SIZE];

            ck_assert_int_eq(body_decode(frames[i].type, body, &b, why), -EBADMSG);
            ck_assert_str_eq(why, "The body is not a map of definite length.");
            unit_free(body);
        }
}
END_TEST

START_TEST(keys_that_are_no_text)
{
    static const struct {
        const char *hex, *why;
    } bodies[] = {
        {"a1 00 00", "A key, at byte 1, is not text of definite length."},
        {"a2 6178 00 42 6964 00", "A key, at byte 4, is not text of definite length."},
        {"a1 7f 62 6964 ff 00", "A key, at byte 1, is not text of definite length."},
    };

    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        struct bytes body = unit_from_hex(bodies[i].hex);
        union body b;
        char why[CONTROL_WHY_SIZE];

        ck_assert_int_eq(body_decode(FRAME_REPLY, body, &b, why), -EBADMSG);
        ck_assert_str_eq(why, bodies[i].why);
        unit_free(body);
    }
}
END_TEST

/* Lengths and counts that no body could hold, nesting without end: refused without a walk. */
START_TEST(bodies_that_lie)
{
    static const char *const bodies[] = {
        "bb ffffffffffffffff",
        "bb 7fffffffffffffff 00",
        "ba ffffffff 6161 00",
        "a1 7b ffffffffffffffff",
        "a1 6161 5b fffffffffffffff0 00",
        "a1 6766696c74657273 9b ffffffffffffffff",
        "a1 6161 9a 08000000",
        "a1 61ff 00",
        "a1 6161 61ff",
        "a1 6161 ff",
        "ff",
        "",
    };

    for (size_t i = 0; i < ARRAY_SIZE(frames); i++)
        for (size_t j = 0; j < ARRAY_SIZE(bodies); j++) {
            struct bytes body = unit_from_hex(bodies[j]);
            union body b;
            char why[CONTROL_WHY_SIZE];

            ck_assert_int_eq(body_decode(frames[i].type, body, &b, why), -EBADMSG);
            ck_assert_int_eq(strncmp(why, "The body is not one CBOR item: ", 31), 0);
            unit_free(body);
        }

    struct buf deep = BUF_INIT;
    cbor_put_map(&deep, 1);
    cbor_put_str(&deep, "args");
    for (size_t i = 0; i < 100000; i++)
        cbor_put_array(&deep, 1);
    cbor_put_null(&deep);
    union body b;
    char why[CONTROL_WHY_SIZE];
    ck_assert_int_eq(body_decode(FRAME_REQUEST, buf_bytes(&deep), &b, why), -EBADMSG);
    ck_assert_int_eq(strncmp(why, "The body is not one CBOR item: ", 31), 0);
    buf_deinit(&deep);
}
END_TEST

UNIT_MAIN("control_fields", keys_missing, keys_in_any_order, keys_twice, keys_unknown_are_ignored,
          values_of_another_type, bodies_that_are_no_map, keys_that_are_no_text, bodies_that_lie)
