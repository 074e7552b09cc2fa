/* SPDX-License-Identifier: PostgreSQL */
#include "decode.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "unit.h"

#define EPOCH CLOCK_PG_EPOCH_US

/* The bytes as the PostgreSQL documentation writes them, and what they say. Strings are compared by
 * content. */
struct sample {
    const char *hex;
    bool in_stream; /* stands between S (of transaction 0x4d) and E */
    struct pgoutput want;
    const char *prefix, *content, *gid; /* as hex; NULL: none */
};

static const struct sample samples[] = {
    {"42 0000000116b37480 0000000000000005 000002e5",
     false,
     {.type = PGOUTPUT_BEGIN,
      .xid = 0x2e5,
      .begin = {.commit_lsn = 0x116B37480, .commit_time = EPOCH + 5}},
     NULL,
     NULL,
     NULL},
    {"43 00 0000000116b37480 0000000116b374b8 0000000000000005",
     false,
     {.type = PGOUTPUT_COMMIT,
      .commit = {.commit_lsn = 0x116B37480, .end_lsn = 0x116B374B8, .commit_time = EPOCH + 5}},
     NULL,
     NULL,
     NULL},
    /* M: transactional, not, empty prefix and content, in a stream block */
    {"4d 01 0123456789abcdef 6f2e6300 00000003 000102",
     false,
     {.type = PGOUTPUT_MESSAGE, .message = {.transactional = true, .lsn = 0x0123456789abcdef}},
     "6f2e63",
     "000102",
     NULL},
    {"4d 00 ffffffffffffffff ff0a2000 00000001 00",
     false,
     {.type = PGOUTPUT_MESSAGE, .message = {.transactional = false, .lsn = UINT64_MAX}},
     "ff0a20",
     "00",
     NULL},
    {"4d 00 0000000000000001 00 00000000",
     false,
     {.type = PGOUTPUT_MESSAGE, .message = {.transactional = false, .lsn = 1}},
     "",
     "",
     NULL},
    {"4d fffffffe 01 0000000000000002 6100 00000002 6263",
     true,
     {.type = PGOUTPUT_MESSAGE,
      .streamed = true,
      .xid = 0xfffffffe,
      .message = {.transactional = true, .lsn = 2}},
     "61",
     "6263",
     NULL},
    /* what is skipped */
    {"4f 0000000000000001 6f00", false, {.type = PGOUTPUT_ORIGIN}, NULL, NULL, NULL},
    {"4f 0000000000000001 6f00",
     true,
     {.type = PGOUTPUT_ORIGIN, .streamed = true},
     NULL,
     NULL,
     NULL},
    {"52 00004001 7075626c696300 7400 64 0000",
     false,
     {.type = PGOUTPUT_RELATION},
     NULL,
     NULL,
     NULL},
    {"52 00000007 00004001 7075626c696300 7400 64 0000",
     true,
     {.type = PGOUTPUT_RELATION, .streamed = true, .xid = 7},
     NULL,
     NULL,
     NULL},
    {"59 00004001 7000 7400", false, {.type = PGOUTPUT_TYPE}, NULL, NULL, NULL},
    {"59 00000007 00004001 7000 7400",
     true,
     {.type = PGOUTPUT_TYPE, .streamed = true, .xid = 7},
     NULL,
     NULL,
     NULL},
    {"49 00004001 4e 0000", false, {.type = PGOUTPUT_INSERT}, NULL, NULL, NULL},
    {"49 00000007 00004001 4e 0000",
     true,
     {.type = PGOUTPUT_INSERT, .streamed = true, .xid = 7},
     NULL,
     NULL,
     NULL},
    {"55 00004001 4e 0000", false, {.type = PGOUTPUT_UPDATE}, NULL, NULL, NULL},
    {"55 00000007 00004001 4e 0000",
     true,
     {.type = PGOUTPUT_UPDATE, .streamed = true, .xid = 7},
     NULL,
     NULL,
     NULL},
    {"44 00004001 4b 0000", false, {.type = PGOUTPUT_DELETE}, NULL, NULL, NULL},
    {"44 00000007 00004001 4b 0000",
     true,
     {.type = PGOUTPUT_DELETE, .streamed = true, .xid = 7},
     NULL,
     NULL,
     NULL},
    {"54 00000001 00 00004001", false, {.type = PGOUTPUT_TRUNCATE}, NULL, NULL, NULL},
    {"54 00000007 00000001 00 00004001",
     true,
     {.type = PGOUTPUT_TRUNCATE, .streamed = true, .xid = 7},
     NULL,
     NULL,
     NULL},
    /* stream blocks */
    {"53 00000008 01",
     false,
     {.type = PGOUTPUT_STREAM_START, .xid = 8, .stream_start = {.first = true}},
     NULL,
     NULL,
     NULL},
    {"53 00000008 00",
     false,
     {.type = PGOUTPUT_STREAM_START, .xid = 8, .stream_start = {.first = false}},
     NULL,
     NULL,
     NULL},
    {"45", true, {.type = PGOUTPUT_STREAM_STOP, .streamed = true, .xid = 0x4d}, NULL, NULL, NULL},
    {"63 00000009 00 0000000000000010 0000000000000020 0000000000000030",
     false,
     {.type = PGOUTPUT_STREAM_COMMIT,
      .xid = 9,
      .commit = {.commit_lsn = 0x10, .end_lsn = 0x20, .commit_time = EPOCH + 0x30}},
     NULL,
     NULL,
     NULL},
    {"41 00000009 0000000a",
     false,
     {.type = PGOUTPUT_STREAM_ABORT, .xid = 9, .stream_abort = {.subxid = 10}},
     NULL,
     NULL,
     NULL},
    {"41 00000009 0000000a 0000000000000010 0000000000000030",
     false,
     {.type = PGOUTPUT_STREAM_ABORT,
      .xid = 9,
      .stream_abort = {.subxid = 10, .has_lsn = true, .lsn = 0x10, .time = EPOCH + 0x30}},
     NULL,
     NULL,
     NULL},
    /* two-phase */
    {"62 0000000000000010 0000000000000020 0000000000000030 0000000b 67696400",
     false,
     {.type = PGOUTPUT_BEGIN_PREPARE,
      .xid = 11,
      .prepare = {.prepare_lsn = 0x10, .end_lsn = 0x20, .prepare_time = EPOCH + 0x30}},
     NULL,
     NULL,
     "676964"},
    {"50 00 0000000000000010 0000000000000020 0000000000000030 0000000b 67696400",
     false,
     {.type = PGOUTPUT_PREPARE,
      .xid = 11,
      .prepare = {.prepare_lsn = 0x10, .end_lsn = 0x20, .prepare_time = EPOCH + 0x30}},
     NULL,
     NULL,
     "676964"},
    {"70 00 0000000000000010 0000000000000020 0000000000000030 0000000b 67696400",
     false,
     {.type = PGOUTPUT_STREAM_PREPARE,
      .xid = 11,
      .prepare = {.prepare_lsn = 0x10, .end_lsn = 0x20, .prepare_time = EPOCH + 0x30}},
     NULL,
     NULL,
     "676964"},
    {"4b 00 0000000000000010 0000000000000020 0000000000000030 0000000b 00",
     false,
     {.type = PGOUTPUT_COMMIT_PREPARED,
      .xid = 11,
      .commit = {.commit_lsn = 0x10, .end_lsn = 0x20, .commit_time = EPOCH + 0x30}},
     NULL,
     NULL,
     ""},
    {"72 00 0000000000000010 0000000000000020 0000000000000030 0000000000000040 0000000b 67696400",
     false,
     {.type = PGOUTPUT_ROLLBACK_PREPARED,
      .xid = 11,
      .prepare = {.prepare_lsn = 0x10,
                  .end_lsn = 0x20,
                  .prepare_time = EPOCH + 0x30,
                  .rollback_time = EPOCH + 0x40}},
     NULL,
     NULL,
     "676964"},
};

static struct decoder decoder_at(bool in_stream)
{
    return (struct decoder){.in_stream = in_stream, .stream_xid = in_stream ? 0x4d : 0};
}

static bool is_skipped(uint8_t type)
{
    return strchr("ORYIUDT", type) != NULL;
}

static void assert_pgoutput(const struct pgoutput *got, const struct sample *s)
{
    const struct pgoutput *want = &s->want;

    ck_assert_int_eq(got->type, want->type);
    ck_assert_int_eq(got->streamed, want->streamed);
    ck_assert_uint_eq(got->xid, want->xid);
    unit_assert_hex(got->gid, s->gid ? s->gid : "");
    switch (want->type) {
    case PGOUTPUT_BEGIN:
        ck_assert_uint_eq(got->begin.commit_lsn, want->begin.commit_lsn);
        ck_assert_int_eq(got->begin.commit_time, want->begin.commit_time);
        break;
    case PGOUTPUT_COMMIT:
    case PGOUTPUT_STREAM_COMMIT:
    case PGOUTPUT_COMMIT_PREPARED:
        ck_assert_uint_eq(got->commit.commit_lsn, want->commit.commit_lsn);
        ck_assert_uint_eq(got->commit.end_lsn, want->commit.end_lsn);
        ck_assert_int_eq(got->commit.commit_time, want->commit.commit_time);
        break;
    case PGOUTPUT_MESSAGE:
        ck_assert_int_eq(got->message.transactional, want->message.transactional);
        ck_assert_uint_eq(got->message.lsn, want->message.lsn);
        unit_assert_hex(got->message.prefix, s->prefix);
        unit_assert_hex(got->message.content, s->content);
        break;
    case PGOUTPUT_STREAM_STOP:
        break;
    case PGOUTPUT_STREAM_START:
        ck_assert_int_eq(got->stream_start.first, want->stream_start.first);
        break;
    case PGOUTPUT_STREAM_ABORT:
        ck_assert_uint_eq(got->stream_abort.subxid, want->stream_abort.subxid);
        ck_assert_int_eq(got->stream_abort.has_lsn, want->stream_abort.has_lsn);
        ck_assert_uint_eq(got->stream_abort.lsn, want->stream_abort.lsn);
        ck_assert_int_eq(got->stream_abort.time, want->stream_abort.time);
        break;
    case PGOUTPUT_STREAM_PREPARE:
    case PGOUTPUT_BEGIN_PREPARE:
    case PGOUTPUT_PREPARE:
    case PGOUTPUT_ROLLBACK_PREPARED:
        ck_assert_uint_eq(got->prepare.prepare_lsn, want->prepare.prepare_lsn);
        ck_assert_uint_eq(got->prepare.end_lsn, want->prepare.end_lsn);
        ck_assert_int_eq(got->prepare.prepare_time, want->prepare.prepare_time);
        ck_assert_int_eq(got->prepare.rollback_time, want->prepare.rollback_time);
        break;
    default:
        ck_assert(is_skipped((uint8_t)want->type));
    }
}

/** The sample's bytes, with `more` zero bytes behind them or cut to `size`, and not a byte to
 * spare. */
static struct bytes sample_bytes(const struct sample *s, size_t more)
{
    struct bytes whole = unit_from_hex(s->hex);
    uint8_t longer[128] = {0};

    ck_assert_uint_le(whole.size + more, sizeof longer);
    memcpy(longer, whole.data, whole.size);
    struct bytes exact = unit_exact((struct bytes){longer, whole.size + more});
    unit_free(whole);
    return exact;
}

START_TEST(every_message)
{
    for (size_t i = 0; i < ARRAY_SIZE(samples); i++) {
        const struct sample *s = &samples[i];
        struct decoder decoder = decoder_at(s->in_stream);
        struct bytes in = sample_bytes(s, 0);
        char why[DECODE_WHY_SIZE];
        struct pgoutput got;

        ck_assert_int_eq(decode_pgoutput(&decoder, in, &got, why), 0);
        assert_pgoutput(&got, s);
        if (s->want.type == PGOUTPUT_STREAM_START) {
            ck_assert(decoder.in_stream);
            ck_assert_uint_eq(decoder.stream_xid, 8);
        } else {
            ck_assert_int_eq(decoder.in_stream,
                             s->in_stream && s->want.type != PGOUTPUT_STREAM_STOP);
        }
        unit_free(in);
    }
}
END_TEST

/* Fails unless `why` speaks of a message of this type and size that lacks bytes, with numbers that
 * fit. */
static void assert_too_short(const char *why, char type, size_t size)
{
    char found;
    size_t of, at, needs, left;
    const char *colon = strchr(why, ':'), *place = strstr(why, " at byte ");

    ck_assert_msg(sscanf(why, "message '%c' of %zu bytes: ", &found, &of) == 2, "%s", why);
    ck_assert_ptr_nonnull(colon);
    ck_assert_msg(place && place > colon + 2, "no field is named: %s", why);
    ck_assert_msg(sscanf(place, " at byte %zu needs %zu bytes, %zu are left", &at, &needs, &left) ==
                      3,
                  "%s", why);
    ck_assert_int_eq(found, type);
    ck_assert_uint_eq(of, size);
    ck_assert_uint_eq(at + left, size);
    ck_assert_uint_gt(needs, left);
}

START_TEST(every_truncation)
{
    for (size_t i = 0; i < ARRAY_SIZE(samples); i++) {
        const struct sample *s = &samples[i];
        struct bytes whole = unit_from_hex(s->hex);
        uint8_t type = whole.data[0];

        for (size_t size = 0; size < whole.size; size++) {
            struct decoder decoder = decoder_at(s->in_stream);
            struct bytes in = unit_exact((struct bytes){whole.data, size});
            struct pgoutput got = {.type = 'x'};
            char why[DECODE_WHY_SIZE] = "";
            int r = decode_pgoutput(&decoder, in, &got, why);
            /* bodies that are not looked at, and the older form of a stream abort */
            bool good =
                (is_skipped(type) && size >= (s->in_stream && type != PGOUTPUT_ORIGIN ? 5 : 1)) ||
                (type == PGOUTPUT_STREAM_ABORT && size == 9);

            ck_assert_msg(r == (good ? 0 : -EBADMSG), "%s cut to %zu: %d", s->hex, size, r);
            if (!good) {
                assert_too_short(why, size ? (char)type : '?', size);
                ck_assert_int_eq(got.type, 'x');
                ck_assert_int_eq(decoder.in_stream, s->in_stream);
            }
            unit_free(in);
        }
        unit_free(whole);
    }
}
END_TEST

START_TEST(one_byte_too_long)
{
    for (size_t i = 0; i < ARRAY_SIZE(samples); i++) {
        const struct sample *s = &samples[i];
        struct decoder decoder = decoder_at(s->in_stream);
        struct bytes in = sample_bytes(s, 1);
        size_t size = in.size - 1;
        char why[DECODE_WHY_SIZE] = "", want[DECODE_WHY_SIZE];
        struct pgoutput got = {.type = 'x'};
        int r = decode_pgoutput(&decoder, in, &got, why);

        if (is_skipped(in.data[0])) {
            ck_assert_int_eq(r, 0);
            assert_pgoutput(&got, s);
        } else if (in.data[0] == PGOUTPUT_STREAM_ABORT && size == 9) {
            ck_assert_int_eq(r, -EBADMSG);
            ck_assert_str_eq(
                why, "message 'A' of 10 bytes: abort LSN at byte 9 needs 8 bytes, 1 are left");
        } else {
            ck_assert_int_eq(r, -EBADMSG);
            (void)snprintf(want, sizeof want,
                           "message '%c' of %zu bytes: ends at byte %zu, 1 follow", in.data[0],
                           size + 1, size);
            ck_assert_str_eq(why, want);
            ck_assert_int_eq(got.type, 'x');
            ck_assert_int_eq(decoder.in_stream, s->in_stream);
        }
        unit_free(in);
    }
}
END_TEST

static void assert_within(struct bytes part, struct bytes in)
{
    if (part.size == 0)
        return;
    ck_assert(part.data >= in.data);
    ck_assert_uint_le(part.size, (size_t)(in.data + in.size - part.data));
}

/** Decodes whatever it is: success with every string inside the input, or an error with a reason.
 */
static int decode_anything(bool in_stream, struct bytes bytes)
{
    struct decoder decoder = decoder_at(in_stream);
    struct bytes in = unit_exact(bytes);
    struct pgoutput got;
    char why[DECODE_WHY_SIZE] = "";
    int r = decode_pgoutput(&decoder, in, &got, why);

    if (r == 0) {
        ck_assert_int_eq(got.type, in.data[0]);
        assert_within(got.gid, in);
        if (got.type == PGOUTPUT_MESSAGE) {
            size_t head = 1 + (in_stream ? 4 : 0) + 1 + 8 + 1 + 4;

            assert_within(got.message.prefix, in);
            assert_within(got.message.content, in);
            ck_assert_uint_eq(head + got.message.prefix.size + got.message.content.size, in.size);
        }
    } else {
        ck_assert_int_eq(r, -EBADMSG);
        ck_assert_uint_gt(strnlen(why, sizeof why), 10);
        ck_assert_uint_lt(strnlen(why, sizeof why), sizeof why);
    }
    unit_free(in);
    return r;
}

START_TEST(every_corruption)
{
    static const uint8_t values[] = {0x00, 0x01, 0x02, 0x7f, 0x80, 0xfe, 0xff};
    unsigned results[2] = {0};

    for (size_t i = 0; i < ARRAY_SIZE(samples); i++) {
        struct bytes whole = unit_from_hex(samples[i].hex);
        uint8_t bytes[128];

        for (size_t at = 0; at < whole.size; at++) {
            for (size_t v = 0; v <= ARRAY_SIZE(values); v++) {
                memcpy(bytes, whole.data, whole.size);
                bytes[at] = v < ARRAY_SIZE(values) ? values[v] : (uint8_t)(bytes[at] ^ 0x20);
                int r = decode_anything(samples[i].in_stream, (struct bytes){bytes, whole.size});
                results[r < 0]++;
            }
        }
        unit_free(whole);
    }
    ck_assert_uint_gt(results[0], 1000);
    ck_assert_uint_gt(results[1], 300);
}
END_TEST

START_TEST(random_bytes)
{
    static const char types[] = "BCMORYIUDTSEcApbPKr";
    struct unit_random random = unit_random_init();
    unsigned results[2] = {0};

    for (unsigned i = 0; i < 20000; i++) {
        uint8_t bytes[64];
        size_t size = unit_random_below(&random, sizeof bytes + 1);

        for (size_t at = 0; at < size; at++)
            bytes[at] = unit_random_below(&random, 3) ? (uint8_t)unit_random_next(&random) : 0;
        if (size && unit_random_below(&random, 8))
            bytes[0] = (uint8_t)types[unit_random_below(&random, sizeof types - 1)];
        int r = decode_anything(unit_random_below(&random, 2), (struct bytes){bytes, size});
        results[r < 0]++;
    }
    ck_assert_uint_gt(results[0], 1000);
    ck_assert_uint_gt(results[1], 1000);
}
END_TEST

START_TEST(a_content_length_beyond_the_message)
{
    static const char *const hex[] = {"4d 01 0000000000000001 6100 00000004 616263",
                                      "4d 01 0000000000000001 6100 7fffffff 616263",
                                      "4d 01 0000000000000001 6100 80000000 616263",
                                      "4d 01 0000000000000001 6100 ffffffff 616263"};
    static const char *const needs[] = {"4", "2147483647", "2147483648", "4294967295"};

    for (size_t i = 0; i < ARRAY_SIZE(hex); i++) {
        struct decoder decoder = DECODER_INIT;
        struct bytes in = unit_from_hex(hex[i]);
        struct pgoutput got;
        char why[DECODE_WHY_SIZE], want[DECODE_WHY_SIZE];

        ck_assert_int_eq(decode_pgoutput(&decoder, in, &got, why), -EBADMSG);
        (void)snprintf(want, sizeof want,
                       "message 'M' of 19 bytes: content at byte 16 needs %s bytes, 3 are left",
                       needs[i]);
        ck_assert_str_eq(why, want);
        unit_free(in);
    }
}
END_TEST

static void assert_fault(bool in_stream, const char *hex, const char *sentence)
{
    struct decoder decoder = decoder_at(in_stream);
    struct bytes in = unit_from_hex(hex);
    struct pgoutput got = {.type = 'x'};
    char why[DECODE_WHY_SIZE] = "";

    ck_assert_int_eq(decode_pgoutput(&decoder, in, &got, why), -EBADMSG);
    ck_assert_str_eq(why, sentence);
    ck_assert_int_eq(got.type, 'x');
    unit_free(in);
}

START_TEST(flags_without_meaning)
{
    assert_fault(false, "4d 02 0000000000000001 6100 00000000",
                 "message 'M': flags 0 or 1 needed, found 0x02");
    assert_fault(true, "4d 00000001 ff 0000000000000001 6100 00000000",
                 "message 'M': flags 0 or 1 needed, found 0xff");
    assert_fault(false, "53 00000008 02",
                 "message 'S': first-segment flag 0 or 1 needed, found 0x02");
    assert_fault(false, "53 00000008 ff",
                 "message 'S': first-segment flag 0 or 1 needed, found 0xff");
}
END_TEST

START_TEST(unknown_types)
{
    static const char known[] = "BCMORYIUDTSEcApbPKr";

    ck_assert_uint_eq(ARRAY_SIZE(known), 19 + 1);
    for (unsigned type = 0; type < 256; type++) {
        char hex[3], sentence[DECODE_WHY_SIZE];

        if (type && strchr(known, (int)type))
            continue;
        (void)snprintf(hex, sizeof hex, "%02x", type);
        (void)snprintf(sentence, sizeof sentence, "unknown pgoutput message type, found 0x%02x",
                       type);
        assert_fault(false, hex, sentence);
        assert_fault(true, hex, sentence);
    }
}
END_TEST

START_TEST(stream_blocks)
{
    static const struct {
        const char *hex;
        uint32_t xid;
        bool streamed;
    } steps[] = {
        {"53 00000008 01", 8, false},
        {"4d 00000009 01 0000000000000001 6100 00000000", 9, true},
        {"49 0000000a 00", 10, true},
        {"45", 8, true},
        {"4d 00 0000000000000001 6100 00000000", 0, false},
        {"53 00000010 00", 16, false},
        {"45", 16, true},
        {"63 00000010 00 0000000000000010 0000000000000020 0000000000000030", 16, false},
    };
    struct decoder decoder = DECODER_INIT;

    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        struct bytes in = unit_from_hex(steps[i].hex);
        struct pgoutput got;
        char why[DECODE_WHY_SIZE];

        ck_assert_int_eq(decode_pgoutput(&decoder, in, &got, why), 0);
        ck_assert_uint_eq(got.xid, steps[i].xid);
        ck_assert_int_eq(got.streamed, steps[i].streamed);
        unit_free(in);
    }
    assert_fault(true, "53 00000008 01", "stream start inside a stream block, found 0x53");
    assert_fault(false, "45", "stream stop outside a stream block, found 0x45");
}
END_TEST

START_TEST(times_at_the_extremes)
{
    static const struct {
        const char *hex;
        int64_t want;
    } cases[] = {
        {"0000000000000000", EPOCH},
        {"ffffffffffffffff", EPOCH - 1},
        {"fffca2fec4c82000", 0}, /* -EPOCH: 1970 */
        {"8000000000000000", INT64_MIN + EPOCH},
        {"7ffca2fec4c81fff", INT64_MAX}, /* the last that fits */
        {"7ffca2fec4c82000", INT64_MAX},
        {"7ffca2fec4c81ffe", INT64_MAX - 1},
        {"7fffffffffffffff", INT64_MAX},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct decoder decoder = DECODER_INIT;
        struct pgoutput got;
        char why[DECODE_WHY_SIZE], hex[128];

        (void)snprintf(hex, sizeof hex, "42 0000000000000001 %s 00000001", cases[i].hex);
        struct bytes in = unit_from_hex(hex);
        ck_assert_int_eq(decode_pgoutput(&decoder, in, &got, why), 0);
        ck_assert_int_eq(got.begin.commit_time, cases[i].want);
        unit_free(in);
        (void)snprintf(hex, sizeof hex, "72 00 %032d %s %s 00000001 00", 0, cases[i].hex,
                       cases[i].hex);
        in = unit_from_hex(hex);
        ck_assert_int_eq(decode_pgoutput(&decoder, in, &got, why), 0);
        ck_assert_int_eq(got.prepare.prepare_time, cases[i].want);
        ck_assert_int_eq(got.prepare.rollback_time, cases[i].want);
        unit_free(in);
    }
}
END_TEST

/* ---- the copy-both layer ---- */

#define DATA_HEX      "77 0000000000000001 0000000000000002 0000000000000003 424344"
#define KEEPALIVE_HEX "6b 0000000116b37480 0000000000000003 01"

START_TEST(copy_frames)
{
    struct bytes in = unit_from_hex(DATA_HEX);
    struct copy_frame got;
    char why[DECODE_WHY_SIZE];

    ck_assert_int_eq(decode_copy(in, &got, why), 0);
    ck_assert_int_eq(got.type, COPY_DATA);
    unit_assert_hex(got.payload, "424344");
    ck_assert_ptr_eq(got.payload.data, in.data + 25);
    unit_free(in);

    in = unit_from_hex("77 0000000000000001 0000000000000002 0000000000000003");
    ck_assert_int_eq(decode_copy(in, &got, why), 0);
    ck_assert_uint_eq(got.payload.size, 0);
    unit_free(in);

    in = unit_from_hex(KEEPALIVE_HEX);
    ck_assert_int_eq(decode_copy(in, &got, why), 0);
    ck_assert_int_eq(got.type, COPY_KEEPALIVE);
    ck_assert_uint_eq(got.wal_end, 0x116B37480);
    ck_assert(got.reply_requested);
    ck_assert_uint_eq(got.payload.size, 0);
    unit_free(in);

    in = unit_from_hex("6b ffffffffffffffff 8000000000000000 00");
    ck_assert_int_eq(decode_copy(in, &got, why), 0);
    ck_assert_uint_eq(got.wal_end, UINT64_MAX);
    ck_assert(!got.reply_requested);
    unit_free(in);
}
END_TEST

START_TEST(copy_frames_of_another_length)
{
    static const char *const hex[] = {DATA_HEX, KEEPALIVE_HEX};

    for (size_t i = 0; i < ARRAY_SIZE(hex); i++) {
        struct bytes whole = unit_from_hex(hex[i]);

        for (size_t size = 0; size < whole.size; size++) {
            struct bytes in = unit_exact((struct bytes){whole.data, size});
            struct copy_frame got = {.wal_end = 99};
            char why[DECODE_WHY_SIZE] = "";
            int r = decode_copy(in, &got, why);

            if (i == 0 && size >= 25) {
                ck_assert_int_eq(r, 0);
                ck_assert_uint_eq(got.payload.size, size - 25);
            } else {
                ck_assert_int_eq(r, -EBADMSG);
                assert_too_short(why, size ? (char)whole.data[0] : '?', size);
                ck_assert_uint_eq(got.wal_end, 99);
            }
            unit_free(in);
        }
        unit_free(whole);
    }

    struct bytes in = unit_from_hex(KEEPALIVE_HEX "00");
    struct copy_frame got;
    char why[DECODE_WHY_SIZE];
    ck_assert_int_eq(decode_copy(in, &got, why), -EBADMSG);
    ck_assert_str_eq(why, "message 'k' of 19 bytes: ends at byte 18, 1 follow");
    unit_free(in);
}
END_TEST

START_TEST(copy_frames_of_other_types)
{
    for (unsigned type = 0; type < 256; type++) {
        struct bytes in = unit_from_hex(KEEPALIVE_HEX "00000000000000");
        struct copy_frame got;
        char why[DECODE_WHY_SIZE] = "", want[DECODE_WHY_SIZE];

        ((uint8_t *)(uintptr_t)in.data)[0] = (uint8_t)type;
        int r = decode_copy(in, &got, why);
        if (type == 'w') {
            ck_assert_int_eq(r, 0);
        } else if (type != 'k') {
            (void)snprintf(want, sizeof want,
                           "unknown copy message, 'w' or 'k' needed, found 0x%02x", type);
            ck_assert_int_eq(r, -EBADMSG);
            ck_assert_str_eq(why, want);
        }
        unit_free(in);
    }
}
END_TEST

START_TEST(random_copy_frames)
{
    struct unit_random random = unit_random_init();
    unsigned results[2] = {0};

    for (unsigned i = 0; i < 5000; i++) {
        uint8_t bytes[40];
        size_t size = unit_random_below(&random, sizeof bytes + 1);
        struct copy_frame got;
        char why[DECODE_WHY_SIZE] = "";

        for (size_t at = 0; at < size; at++)
            bytes[at] = (uint8_t)unit_random_next(&random);
        if (size && unit_random_below(&random, 8))
            bytes[0] = unit_random_below(&random, 2) ? 'w' : 'k';
        struct bytes in = unit_exact((struct bytes){bytes, size});
        int r = decode_copy(in, &got, why);
        bool good = size && ((bytes[0] == 'w' && size >= 25) || (bytes[0] == 'k' && size == 18));
        ck_assert_int_eq(r, good ? 0 : -EBADMSG);
        if (good)
            assert_within(got.payload, in);
        else
            ck_assert_uint_gt(strnlen(why, sizeof why), 10);
        results[r < 0]++;
        unit_free(in);
    }
    ck_assert_uint_gt(results[0], 100);
    ck_assert_uint_gt(results[1], 100);
}
END_TEST

UNIT_MAIN("decode", every_message, every_truncation, one_byte_too_long, every_corruption,
          random_bytes, a_content_length_beyond_the_message, flags_without_meaning, unknown_types,
          stream_blocks, times_at_the_extremes, copy_frames, copy_frames_of_another_length,
          copy_frames_of_other_types, random_copy_frames)
