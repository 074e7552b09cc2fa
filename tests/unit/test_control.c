/* SPDX-License-Identifier: PostgreSQL */
#include "codec/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/frame.h"
#include "unit.h"

#define P1 "50 00000001 00000000016b3748 00000002"
#define P2 "50 00000001 00000000016b3749 00000000"

static const struct position place1 = {1, 0x16B3748, 2}, place2 = {1, 0x16B3749, 0};

/* ---- every frame behind one face, so that each check runs over all of them ---- */

union body {
    struct control_hello hello;
    struct control_welcome welcome;
    struct control_subscribe subscribe;
    struct control_subscribed subscribed;
    struct control_ack ack;
    struct control_request request;
    struct control_reply reply;
    struct control_error error;
};

static int decode(uint8_t type, struct bytes body, union body *ret, char why[CONTROL_WHY_SIZE])
{
    why[0] = '\0';
    switch (type) {
    case FRAME_HELLO:
        return control_hello_decode(body, &ret->hello, why);
    case FRAME_WELCOME:
        return control_welcome_decode(body, &ret->welcome, why);
    case FRAME_SUBSCRIBE:
        return control_subscribe_decode(body, &ret->subscribe, why);
    case FRAME_SUBSCRIBED:
        return control_subscribed_decode(body, &ret->subscribed, why);
    case FRAME_ACK:
    case FRAME_ACKED:
        return control_ack_decode(body, &ret->ack, why);
    case FRAME_REQUEST:
        return control_request_decode(body, &ret->request, why);
    case FRAME_REPLY:
        return control_reply_decode(body, &ret->reply, why);
    case FRAME_ERROR:
        return control_error_decode(body, &ret->error, why);
    }
    ck_abort_msg("no control frame: %u", type);
}

static void encode(uint8_t type, const union body *b, struct buf *out)
{
    switch (type) {
    case FRAME_HELLO:
        control_hello_encode(&b->hello, out);
        return;
    case FRAME_WELCOME:
        control_welcome_encode(&b->welcome, out);
        return;
    case FRAME_SUBSCRIBE:
        control_subscribe_encode(&b->subscribe, out);
        return;
    case FRAME_SUBSCRIBED:
        control_subscribed_encode(&b->subscribed, out);
        return;
    case FRAME_ACK:
    case FRAME_ACKED:
        control_ack_encode(&b->ack, type == FRAME_ACKED, out);
        return;
    case FRAME_REQUEST:
        control_request_encode(&b->request, out);
        return;
    case FRAME_REPLY:
        control_reply_encode(&b->reply, out);
        return;
    case FRAME_ERROR:
        control_error_encode(&b->error, out);
        return;
    }
    ck_abort_msg("no control frame: %u", type);
}

static void deinit(uint8_t type, union body *b)
{
    if (type == FRAME_SUBSCRIBE)
        control_subscribe_deinit(&b->subscribe);
}

/* Bodies as the encoders write them: the encoding that comes back must be these bytes. */
static const struct canonical {
    uint8_t type;
    const char *hex;
} canonicals[] = {
    /* {"max": 1, "min": 1, "layout": 1} */
    {FRAME_HELLO, "a3 636d6178 01 636d696e 01 666c61796f7574 01"},
    /* … and "client": "tail" */
    {FRAME_HELLO, "a4 636d6178 1903e8 636d696e 01 66636c69656e74 647461696c "
                  "666c61796f7574 1bffffffffffffffff"},
    {FRAME_WELCOME, "a8 666c61796f7574 01 66736572766572 6a77616c62757320302e31 "
                    "6776657273696f6e 01 686964656e74697479 63372f31 68706f736974696f6e " P1 " "
                    "6874696d656c696e65 01 696d61785f6672616d65 1a00100000 "
                    "6b6d61785f66696c74657273 190400"},
    {FRAME_WELCOME, "a8 666c61796f7574 00 66736572766572 60 6776657273696f6e 00 "
                    "686964656e74697479 60 "
                    "68706f736974696f6e 50 00000000000000000000000000000000 "
                    "6874696d656c696e65 00 696d61785f6672616d65 00 6b6d61785f66696c74657273 00"},
    /* {"start": "now", "filters": [[0, h'3e']]} */
    {FRAME_SUBSCRIBE, "a2 657374617274 636e6f77 6766696c74657273 81 82 00 41 3e"},
    {FRAME_SUBSCRIBE, "a2 657374617274 666f6c64657374 6766696c74657273 83 "
                      "82 00 40 82 01 43 612e62 82 02 42 ff00"},
    {FRAME_SUBSCRIBE, "a4 646e616d65 6173 657374617274 6673746f726564 "
                      "6766696c74657273 81 82 00 412a 6974616b655f6f766572 f5"},
    {FRAME_SUBSCRIBE, "a4 657374617274 68706f736974696f6e "
                      "676578636c756465 82 82 01 4178 82 00 41 79 "
                      "6766696c74657273 81 82 00 413e 68706f736974696f6e " P1},
    {FRAME_SUBSCRIBE, "a3 6474696d65 1b000644c08d2bad80 657374617274 6474696d65 "
                      "6766696c74657273 81 82 00 413e"},
    {FRAME_SUBSCRIBE, "a3 6474696d65 3b7fffffffffffffff 657374617274 6474696d65 "
                      "6766696c74657273 81 82 00 413e"},
    {FRAME_SUBSCRIBE, "a3 6474696d65 00 657374617274 6474696d65 "
                      "6766696c74657273 81 82 00 413e"},
    {FRAME_SUBSCRIBED, "a4 6673746f726564 f4 686964656e74697479 60 68706f736974696f6e " P1 " "
                       "6874696d656c696e65 01"},
    {FRAME_SUBSCRIBED, "a5 6673746f726564 f5 686964656e74697479 63372f31 "
                       "68706f736974696f6e " P1 " 6874696d656c696e65 1affffffff "
                       "6e726564656c6976657265645f746f " P2},
    {FRAME_ACK, "a1 68706f736974696f6e " P1},
    {FRAME_ACK, "a2 67636f6e6669726d f5 68706f736974696f6e " P2},
    {FRAME_ACKED, "a1 68706f736974696f6e " P2},
    /* {"id": 7, "what": "status"} */
    {FRAME_REQUEST, "a2 626964 07 6477686174 66737461747573"},
    {FRAME_REQUEST, "a3 626964 00 6461726773 a16161 820102 6477686174 60"},
    {FRAME_REPLY, "a2 626964 1bffffffffffffffff 66726573756c74 f6"},
    {FRAME_REPLY, "a2 626964 01 66726573756c74 9f 5f 41 00 ff fb 3ff199999999999a ff"},
    {FRAME_ERROR, "a3 64636f6465 6870726f746f636f6c 6474657874 62c3a9 65666174616c f5"},
    {FRAME_ERROR, "a4 626964 00 64636f6465 60 6474657874 60 65666174616c f4"},
};

START_TEST(canonical_bodies_come_back)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        uint8_t type = canonicals[i].type;
        struct bytes body = unit_from_hex(canonicals[i].hex);
        struct buf out = BUF_INIT;
        struct frame_header h;
        union body b;
        char why[CONTROL_WHY_SIZE];

        ck_assert_msg(decode(type, body, &b, why) == 0, "case %zu: %s", i, why);
        /* Behind something that is there already: frames are gathered in one buffer. */
        buf_append_str(&out, "before");
        encode(type, &b, &out);
        ck_assert(!out.failed);
        ck_assert_uint_eq(out.size, 6 + FRAME_HEADER_SIZE + body.size);
        unit_assert_text((struct bytes){out.data, 6}, "before");
        ck_assert_int_eq(frame_header_decode(out.data + 6, &h), 0);
        ck_assert_uint_eq(h.size, body.size);
        ck_assert_uint_eq(h.type, type);
        ck_assert_uint_eq(h.flags, 0);
        unit_assert_hex((struct bytes){out.data + 6 + FRAME_HEADER_SIZE, body.size},
                        canonicals[i].hex);
        buf_deinit(&out);
        deinit(type, &b);
        unit_free(body);
    }
}
END_TEST

START_TEST(keys_stand_in_deterministic_order)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        struct bytes body = unit_from_hex(canonicals[i].hex), before = {NULL, 0}, key;
        struct cbor_reader r = cbor_reader_init(body);
        uint64_t pairs;

        ck_assert_int_eq(cbor_read_map(&r, &pairs), CBOR_OK);
        for (; pairs; pairs--) {
            ck_assert_int_eq(cbor_read_text(&r, &key), CBOR_OK);
            ck_assert_int_eq(cbor_read_item(&r, NULL), CBOR_OK);
            ck_assert(before.size < key.size ||
                      (before.size == key.size && memcmp(before.data, key.data, key.size) < 0));
            before = key;
        }
        unit_free(body);
    }
}
END_TEST

START_TEST(bodies_cut_at_every_byte)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        struct bytes body = unit_from_hex(canonicals[i].hex);

        for (size_t size = 0; size < body.size; size++) {
            struct bytes cut = unit_exact((struct bytes){body.data, size});
            union body b;
            char why[CONTROL_WHY_SIZE];

            ck_assert_msg(decode(canonicals[i].type, cut, &b, why) == -EBADMSG,
                          "case %zu of %zu bytes", i, size);
            ck_assert_int_eq(strncmp(why, "The body is not one CBOR item: ", 31), 0);
            unit_free(cut);
        }
        unit_free(body);
    }
}
END_TEST

START_TEST(bodies_with_something_behind)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        struct bytes body = unit_from_hex(canonicals[i].hex);
        struct buf longer = BUF_INIT;
        union body b;
        char why[CONTROL_WHY_SIZE];

        buf_append(&longer, body.data, body.size);
        buf_append_u8(&longer, 0xf6);
        ck_assert_int_eq(decode(canonicals[i].type, buf_bytes(&longer), &b, why), -EBADMSG);
        ck_assert_int_eq(strncmp(why, "The body is not one CBOR item: ", 31), 0);
        buf_deinit(&longer);
        unit_free(body);
    }
}
END_TEST

/* Every byte of every body replaced by every other: no fault of memory, a sentence for each
 * refusal, and what is accepted survives encoding and decoding unchanged. */
START_TEST(bodies_with_any_byte_replaced)
{
    size_t accepted = 0, refused = 0;

    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        uint8_t type = canonicals[i].type;
        struct bytes body = unit_from_hex(canonicals[i].hex);
        uint8_t *raw = (uint8_t *)(uintptr_t)body.data;

        for (size_t at = 0; at < body.size; at++) {
            uint8_t good = raw[at];

            for (unsigned v = 0; v < 256; v++) {
                struct buf once = BUF_INIT, twice = BUF_INIT;
                union body b, again;
                char why[CONTROL_WHY_SIZE];

                raw[at] = (uint8_t)v;
                if (decode(type, body, &b, why) != 0) {
                    if (why[0] == '\0' || why[strlen(why) - 1] != '.')
                        ck_abort_msg("case %zu, byte %zu is %u: \"%s\"", i, at, v, why);
                    refused++;
                    continue;
                }
                encode(type, &b, &once);
                struct bytes copy = {once.data + FRAME_HEADER_SIZE, once.size - FRAME_HEADER_SIZE};
                if (decode(type, copy, &again, why) != 0)
                    ck_abort_msg("case %zu, byte %zu is %u, again: %s", i, at, v, why);
                encode(type, &again, &twice);
                if (!bytes_equal(buf_bytes(&once), buf_bytes(&twice)))
                    ck_abort_msg("case %zu, byte %zu is %u: encoded differently", i, at, v);
                deinit(type, &again);
                deinit(type, &b);
                buf_deinit(&once);
                buf_deinit(&twice);
                accepted++;
            }
            raw[at] = good;
        }
        unit_free(body);
    }
    ck_assert_uint_gt(accepted, 1000);
    ck_assert_uint_gt(refused, 1000);
}
END_TEST

/* ---- maps made by hand from their pairs ---- */

#define PAIRS_MAX 16

struct pair {
    const char *key, *value; /* key as text, value in hex */
};

static void put_pair(struct buf *out, const struct pair *pair)
{
    struct bytes value = unit_from_hex(pair->value);

    cbor_put_str(out, pair->key);
    buf_append(out, value.data, value.size);
    unit_free(value);
}

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
      {"take_over", "f4"}}},
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

/* Decodes the map of these pairs; the result and `why`. */
static int decode_pairs(uint8_t type, const struct pair *pairs, size_t n,
                        char why[CONTROL_WHY_SIZE])
{
    struct buf map = BUF_INIT;
    union body b;

    cbor_put_map(&map, n);
    for (size_t i = 0; i < n; i++)
        put_pair(&map, &pairs[i]);
    struct bytes body = unit_exact(buf_bytes(&map));
    int r = decode(type, body, &b, why);
    if (r == 0)
        deinit(type, &b);
    unit_free(body);
    buf_deinit(&map);
    return r;
}

START_TEST(keys_missing)
{
    for (size_t i = 0; i < ARRAY_SIZE(frames); i++) {
        size_t n = n_pairs(frames[i].required);
        char why[CONTROL_WHY_SIZE], want[CONTROL_WHY_SIZE];

        ck_assert_msg(decode_pairs(frames[i].type, frames[i].required, n, why) == 0, "%s", why);
        for (size_t left_out = 0; left_out < n; left_out++) {
            struct pair pairs[PAIRS_MAX];
            size_t m = 0;

            for (size_t j = 0; j < n; j++)
                if (j != left_out)
                    pairs[m++] = frames[i].required[j];
            ck_assert_int_eq(decode_pairs(frames[i].type, pairs, m, why), -EBADMSG);
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
            ck_assert_msg(decode_pairs(frames[i].type, pairs, n, why) == 0, "%s", why);
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
            ck_assert_int_eq(decode_pairs(frames[i].type, pairs, n + 1, why), -EBADMSG);
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
        ck_assert_msg(decode_pairs(frames[i].type, pairs, n, why) == 0, "%s", why);
    }
}
END_TEST

/* What each key takes, out of values of every type. */
START_TEST(values_of_another_type)
{
    static const struct {
        const char *hex;
        char type; /* u: unsigned, n: negative, N: beyond 64 bits, b: bytes, p: 16 bytes, t: text,
                      T: text in chunks, a: array, m: map, o: true or false, -: none of these */
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
        {"60", 't'},
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
        {"client", "t", "text"},
        {"server", "t", "text"},
        {"identity", "t", "text"},
        {"name", "t", "text"},
        {"what", "t", "text"},
        {"code", "t", "text"},
        {"text", "t", "text"},
        {"position", "p", "a byte string of 16 bytes"},
        {"redelivered_to", "p", "a byte string of 16 bytes"},
        {"stored", "o", "true or false"},
        {"take_over", "o", "true or false"},
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
                int r = decode_pairs(frames[i].type, pairs, n, why);
                pairs[j] = before;
                ck_assert_msg(r == (good ? 0 : -EBADMSG), "\"%s\" of %s: %d, %s", pairs[j].key,
                              values[v].hex, r, why);
                if (good)
                    continue;
                (void)snprintf(want, sizeof want, "The value of \"%s\" is not %s.", pairs[j].key,
                               keys[k].why);
                ck_assert_str_eq(why, want);
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

            ck_assert_int_eq(decode(frames[i].type, body, &b, why), -EBADMSG);
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

        ck_assert_int_eq(decode(FRAME_REPLY, body, &b, why), -EBADMSG);
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

            ck_assert_int_eq(decode(frames[i].type, body, &b, why), -EBADMSG);
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
    ck_assert_int_eq(decode(FRAME_REQUEST, buf_bytes(&deep), &b, why), -EBADMSG);
    ck_assert_int_eq(strncmp(why, "The body is not one CBOR item: ", 31), 0);
    buf_deinit(&deep);
}
END_TEST

/* ---- each frame's members ---- */

START_TEST(members_arrive_in_their_places)
{
    struct buf out = BUF_INIT;
    char why[CONTROL_WHY_SIZE];

    struct control_hello hello = {1, 2, 3, unit_bytes("client")};
    control_hello_encode(&hello, &out);
    struct bytes body = {out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&hello, 0, sizeof hello);
    ck_assert_int_eq(control_hello_decode(body, &hello, why), 0);
    ck_assert_uint_eq(hello.min, 1);
    ck_assert_uint_eq(hello.max, 2);
    ck_assert_uint_eq(hello.layout, 3);
    unit_assert_text(hello.client, "client");

    struct control_welcome welcome = {
        .version = 1,
        .layout = 2,
        .server = unit_bytes("walbusd"),
        .identity = unit_bytes("7/1"),
        .timeline = 3,
        .position = place1,
        .max_frame = 4,
        .max_filters = 5,
    };
    buf_clear(&out);
    control_welcome_encode(&welcome, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&welcome, 0, sizeof welcome);
    ck_assert_int_eq(control_welcome_decode(body, &welcome, why), 0);
    ck_assert_uint_eq(welcome.version, 1);
    ck_assert_uint_eq(welcome.layout, 2);
    unit_assert_text(welcome.server, "walbusd");
    unit_assert_text(welcome.identity, "7/1");
    ck_assert_uint_eq(welcome.timeline, 3);
    ck_assert_int_eq(position_compare(welcome.position, place1), 0);
    ck_assert_uint_eq(welcome.max_frame, 4);
    ck_assert_uint_eq(welcome.max_filters, 5);

    struct control_subscribed subscribed = {place1, true, place2, unit_bytes("7/1"), 9};
    buf_clear(&out);
    control_subscribed_encode(&subscribed, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&subscribed, 0, sizeof subscribed);
    ck_assert_int_eq(control_subscribed_decode(body, &subscribed, why), 0);
    ck_assert_int_eq(position_compare(subscribed.position, place1), 0);
    ck_assert_int_eq(position_compare(subscribed.redelivered_to, place2), 0);
    ck_assert(subscribed.stored);
    unit_assert_text(subscribed.identity, "7/1");
    ck_assert_uint_eq(subscribed.timeline, 9);

    struct control_error error = {unit_bytes("limit"), unit_bytes("Full."), true, true, 77};
    buf_clear(&out);
    control_error_encode(&error, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&error, 0, sizeof error);
    ck_assert_int_eq(control_error_decode(body, &error, why), 0);
    unit_assert_text(error.code, CONTROL_ERROR_LIMIT);
    unit_assert_text(error.text, "Full.");
    ck_assert(error.fatal);
    ck_assert(error.has_id);
    ck_assert_uint_eq(error.id, 77);

    struct control_request request = {7, unit_bytes("what"),
                                      (struct bytes){(uint8_t *)"\x82\x01\x02", 3}};
    buf_clear(&out);
    control_request_encode(&request, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&request, 0, sizeof request);
    ck_assert_int_eq(control_request_decode(body, &request, why), 0);
    ck_assert_uint_eq(request.id, 7);
    unit_assert_text(request.what, "what");
    unit_assert_hex(request.args, "820102");
    buf_deinit(&out);
}
END_TEST

START_TEST(acked_never_asks_to_confirm)
{
    struct buf out = BUF_INIT;
    struct control_ack ack = {place2, true};

    control_ack_encode(&ack, true, &out);
    unit_assert_hex(buf_bytes(&out), "0000001b 06 00 0000 a1 68706f736974696f6e " P2);
    buf_clear(&out);
    control_ack_encode(&ack, false, &out);
    unit_assert_hex(buf_bytes(&out),
                    "00000024 05 00 0000 a2 67636f6e6669726d f5 68706f736974696f6e " P2);
    buf_deinit(&out);
}
END_TEST

START_TEST(nothing_is_written_on_failure)
{
    struct control_error error = {.id = 9, .has_id = true};
    struct control_subscribe subscribe = {.time = 9};
    struct bytes no_text = unit_from_hex("a3 626964 05 64636f6465 60 65666174616c f4");
    struct bytes bad_filter = unit_from_hex("a1 6766696c74657273 82 82 00 40 82 03 40");
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_error_decode(no_text, &error, why), -EBADMSG);
    ck_assert_str_eq(why, "The key \"text\" is missing.");
    ck_assert_uint_eq(error.id, 9);
    ck_assert_int_eq(control_subscribe_decode(bad_filter, &subscribe, why), -EBADMSG);
    ck_assert_str_eq(why, "Entry 2 of \"filters\" is of the unknown kind 3.");
    ck_assert_ptr_null(subscribe.filters);
    ck_assert_int_eq(subscribe.time, 9);
    unit_free(no_text);
    unit_free(bad_filter);
}
END_TEST

START_TEST(failed_buffers_stay_failed)
{
    struct buf out = BUF_INIT;
    struct control_hello hello = {0};
    struct filter everything = {FILTER_PATTERN, unit_bytes(">")};
    struct control_subscribe subscribe = {.filters = &everything, .n_filters = 1};

    ck_assert_ptr_null(buf_reserve(&out, SIZE_MAX));
    control_hello_encode(&hello, &out);
    control_subscribe_encode(&subscribe, &out);
    ck_assert(out.failed);
    ck_assert_uint_eq(out.size, 0);
    buf_deinit(&out);
}
END_TEST

/* ---- SUBSCRIBE ---- */

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
            put_pair(&map, &pairs[j]);
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
        int r = decode_pairs(FRAME_SUBSCRIBE, pairs, 1, why);

        ck_assert_msg(r == (cases[i].why ? -EBADMSG : 0), "case %zu: %d, %s", i, r, why);
        if (cases[i].why)
            ck_assert_str_eq(why, cases[i].why);

        /* The same as exclusions, of which there may be none. */
        pairs[0] = (struct pair){"filters", "81 82 00 413e"};
        pairs[1] = (struct pair){"exclude", cases[i].hex};
        bool empty = strcmp(cases[i].hex, "80") == 0;
        r = decode_pairs(FRAME_SUBSCRIBE, pairs, 2, why);
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

UNIT_MAIN("control", canonical_bodies_come_back, keys_stand_in_deterministic_order,
          bodies_cut_at_every_byte, bodies_with_something_behind, bodies_with_any_byte_replaced,
          keys_missing, keys_in_any_order, keys_twice, keys_unknown_are_ignored,
          values_of_another_type, bodies_that_are_no_map, keys_that_are_no_text, bodies_that_lie,
          members_arrive_in_their_places, acked_never_asks_to_confirm,
          nothing_is_written_on_failure, failed_buffers_stay_failed, subscribe_start,
          subscribe_filters, subscribe_members, subscribe_limits,
          subscribe_tokens)
