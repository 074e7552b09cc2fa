/* SPDX-License-Identifier: PostgreSQL */
#include "codec/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

/* Room for every frame made here. */
#define FRAME_ROOM 1024

static const struct position place = {1, 0x16B3748, 2};

static struct frame_header header_of(const uint8_t *frame)
{
    struct frame_header h = {0};

    ck_assert_int_eq(frame_header_decode(frame, &h), 0);
    return h;
}

START_TEST(header)
{
    static const struct {
        struct frame_header header;
        const char *hex;
    } cases[] = {
        {{0, 0, 0}, "00000000 00 00 0000"},
        {{1, FRAME_HELLO, 0}, "00000001 01 00 0000"},
        {{0x01020304, 0x11, 0x81}, "01020304 11 81 0000"},
        {{UINT32_MAX, 0xff, 0xff}, "ffffffff ff ff 0000"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint8_t raw[FRAME_HEADER_SIZE];

        memset(raw, 0xaa, sizeof raw);
        frame_header_encode(raw, cases[i].header);
        unit_assert_hex((struct bytes){raw, sizeof raw}, cases[i].hex);
        struct frame_header h = header_of(raw);
        ck_assert_uint_eq(h.size, cases[i].header.size);
        ck_assert_uint_eq(h.type, cases[i].header.type);
        ck_assert_uint_eq(h.flags, cases[i].header.flags);
    }
}
END_TEST

START_TEST(header_wants_its_zeros)
{
    for (unsigned v = 1; v < 0x10000; v++) {
        uint8_t raw[FRAME_HEADER_SIZE] = {0, 0, 0, 1, FRAME_ACK, 0};
        struct frame_header h = {7, 7, 7};

        bytes_put_u16(raw + 6, (uint16_t)v);
        /* Check tells its parent of each assertion, which is too slow for so many. */
        if (frame_header_decode(raw, &h) != -EBADMSG || h.size != 7)
            ck_abort_msg("%u was accepted", v);
    }
}
END_TEST

START_TEST(type_names)
{
    static const struct {
        uint8_t type;
        const char *name;
    } known[] = {
        {0x01, "HELLO"},    {0x02, "WELCOME"}, {0x03, "SUBSCRIBE"}, {0x04, "SUBSCRIBED"},
        {0x05, "ACK"},      {0x06, "ACKED"},   {0x07, "REQUEST"},   {0x08, "REPLY"},
        {0x09, "ERROR"},    {0x10, "BEGIN"},   {0x11, "MESSAGE"},   {0x12, "COMMIT"},
        {0x13, "PROGRESS"}, {0x14, "GAP"}, {0x15, "RECORD"}, {0x16, "WITHHELD"},
    };
    size_t k = 0;

    for (unsigned type = 0; type < 256; type++) {
        const char *want = "unknown";

        if (k < ARRAY_SIZE(known) && known[k].type == type)
            want = known[k++].name;
        ck_assert_str_eq(frame_type_name((uint8_t)type), want);
    }
    ck_assert_uint_eq(k, ARRAY_SIZE(known));
}
END_TEST

/* ---- each frame: its bytes as the protocol writes them, and back ---- */

START_TEST(withheld_bytes)
{
    uint8_t out[FRAME_ROOM];
    struct frame_withheld f =
                              {
                                  .message = {.position = {3, 0x0102030405060708, 9},
                                              .lsn = 0x1112131415161718,
                                              .xid = 0xfffffffe,
                                              .commit_time = 1764443653123456,
                                              .received_time = 1764443653123457,
                                              .prefix.size = 14,
                                              .content.size = 0x12345678,
                                              .flags = FRAME_FLAG_TRANSACTIONAL},
                                  .status = 2,
                              },
                          got;
    for (size_t i = 0; i < sizeof f.hash; i++)
        f.hash[i] = (uint8_t)(0xa0 + i);
    size_t size = frame_withheld_encode(out, &f);

    unit_assert_hex((struct bytes){out, size}, "00000058 16 81 0000"
                                               "00000003 0102030405060708 00000009 1112131415161718 fffffffe"
                                               "000644c08d2bad80 000644c08d2bad81 0000000e 12345678 00000002"
                                               "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf");
    ck_assert_int_eq(frame_withheld_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_int_eq(position_compare(got.message.position, f.message.position), 0);
    ck_assert_uint_eq(got.message.flags, FRAME_FLAG_TRANSACTIONAL);
    ck_assert_uint_eq(got.message.prefix.size, 14);
    ck_assert_uint_eq(got.message.content.size, 0x12345678);
    ck_assert_uint_eq(got.status, 2);
    ck_assert_int_eq(memcmp(got.hash, f.hash, sizeof f.hash), 0);
    for (uint32_t wrong = FRAME_WITHHELD_BODY - 1; wrong <= FRAME_WITHHELD_BODY + 1; wrong += 2)
        ck_assert_int_eq(frame_withheld_decode((struct frame_header){wrong, FRAME_WITHHELD, 0x80}, out, &got), -EBADMSG);
}
END_TEST

START_TEST(begin_bytes)
{
    uint8_t out[FRAME_ROOM];
    struct frame_begin f =
                           {
                               .timeline = 3,
                               .commit_lsn = 0x0102030405060708,
                               .commit_time = 1764443653123456,
                               .xid = 0xfffffffe,
                               .flags = FRAME_FLAG_RESUMED,
                           },
                       got;
    size_t size = frame_begin_encode(out, &f);

    unit_assert_hex((struct bytes){out, size}, "00000018 10 01 0000"
                                               "00000003 0102030405060708 000644c08d2bad80"
                                               "fffffffe");
    ck_assert_int_eq(frame_begin_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_uint_eq(got.timeline, 3);
    ck_assert_uint_eq(got.commit_lsn, 0x0102030405060708);
    ck_assert_int_eq(got.commit_time, 1764443653123456);
    ck_assert_uint_eq(got.xid, 0xfffffffe);
    ck_assert_uint_eq(got.flags, FRAME_FLAG_RESUMED);
}
END_TEST

START_TEST(commit_bytes)
{
    uint8_t out[FRAME_ROOM];
    struct frame_commit f =
                            {
                                .begin = {1, 0x16B3748, -1, 741, FRAME_FLAG_INCOMPLETE},
                                .end_lsn = 0x16B3778,
                                .messages = UINT32_MAX,
                            },
                        got;
    size_t size = frame_commit_encode(out, &f);

    unit_assert_hex((struct bytes){out, size}, "00000024 12 01 0000"
                                               "00000001 00000000016b3748 ffffffffffffffff"
                                               "000002e5 00000000016b3778 ffffffff");
    ck_assert_int_eq(frame_commit_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_uint_eq(got.begin.timeline, 1);
    ck_assert_uint_eq(got.begin.commit_lsn, 0x16B3748);
    ck_assert_int_eq(got.begin.commit_time, -1);
    ck_assert_uint_eq(got.begin.xid, 741);
    ck_assert_uint_eq(got.begin.flags, FRAME_FLAG_INCOMPLETE);
    ck_assert_uint_eq(got.end_lsn, 0x16B3778);
    ck_assert_uint_eq(got.messages, UINT32_MAX);
}
END_TEST

START_TEST(progress_bytes)
{
    uint8_t out[FRAME_ROOM];
    struct position got;
    size_t size = frame_progress_encode(out, place);

    unit_assert_hex((struct bytes){out, size}, "00000010 13 00 0000"
                                               "00000001 00000000016b3748 00000002");
    ck_assert_int_eq(frame_progress_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_int_eq(position_compare(got, place), 0);
}
END_TEST

START_TEST(message_bytes)
{
    uint8_t out[FRAME_ROOM];
    struct frame_message f =
                             {
                                 .position = place,
                                 .lsn = 0x16B3700,
                                 .xid = 741,
                                 .commit_time = 1,
                                 .received_time = 0x0807060504030201,
                                 .prefix = unit_bytes("orders.created"),
                                 .content = unit_bytes("\xd9\xd9\xf7"),
                                 .flags = FRAME_FLAG_TRANSACTIONAL,
                             },
                         got;
    size_t size = frame_message_encode_head(out, &f);

    /* The header counts the content, which is not yet there. */
    unit_assert_hex((struct bytes){out, size}, "00000041 11 01 0000"
                                               "00000001 00000000016b3748 00000002"
                                               "00000000016b3700 000002e5"
                                               "0000000000000001 0807060504030201 0000000e"
                                               "6f72646572732e63726561746564");
    memcpy(out + size, f.content.data, f.content.size);
    ck_assert_int_eq(frame_message_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_int_eq(position_compare(got.position, place), 0);
    ck_assert_uint_eq(got.lsn, 0x16B3700);
    ck_assert_uint_eq(got.xid, 741);
    ck_assert_int_eq(got.commit_time, 1);
    ck_assert_int_eq(got.received_time, 0x0807060504030201);
    ck_assert_uint_eq(got.flags, FRAME_FLAG_TRANSACTIONAL);
    unit_assert_text(got.prefix, "orders.created");
    unit_assert_hex(got.content, "d9d9f7");
}
END_TEST

START_TEST(message_of_nothing)
{
    uint8_t out[FRAME_ROOM];
    struct frame_message f = {.received_time = INT64_MIN}, got;
    size_t size = frame_message_encode_head(out, &f);

    unit_assert_hex((struct bytes){out, size}, "00000030 11 00 0000"
                                               "00000000 0000000000000000 00000000"
                                               "0000000000000000 00000000"
                                               "0000000000000000 8000000000000000 00000000");
    ck_assert_int_eq(frame_message_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_uint_eq(got.prefix.size, 0);
    ck_assert_uint_eq(got.content.size, 0);
    ck_assert_int_eq(got.received_time, INT64_MIN);
}
END_TEST

START_TEST(gap_bytes)
{
    uint8_t out[FRAME_ROOM];
    struct frame_gap f =
                         {
                             .from = {1, 2, 3},
                             .to = {4, 5, UINT32_MAX},
                             .messages = UINT64_MAX,
                             .bytes = 77,
                             .reason = unit_bytes("retention"),
                         },
                     got;
    size_t size = frame_gap_encode(out, &f);

    unit_assert_hex((struct bytes){out, size}, "00000039 14 00 0000"
                                               "00000001 0000000000000002 00000003"
                                               "00000004 0000000000000005 ffffffff"
                                               "ffffffffffffffff 000000000000004d"
                                               "726574656e74696f6e");
    ck_assert_int_eq(frame_gap_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_int_eq(position_compare(got.from, f.from), 0);
    ck_assert_int_eq(position_compare(got.to, f.to), 0);
    ck_assert_uint_eq(got.messages, UINT64_MAX);
    ck_assert_uint_eq(got.bytes, 77);
    unit_assert_text(got.reason, "retention");

    f.reason = (struct bytes){NULL, 0};
    ck_assert_uint_eq(frame_gap_encode(out, &f), FRAME_HEADER_SIZE + FRAME_GAP_FIXED);
    ck_assert_int_eq(frame_gap_decode(header_of(out), out + FRAME_HEADER_SIZE, &got), 0);
    ck_assert_uint_eq(got.reason.size, 0);
}
END_TEST

/* ---- bodies cut, or longer than they may be: read from memory that ends where the body does ----
 */

/* Decodes a body of `type`, encodes what came out and compares; the decoder's result. */
static int decode_and_compare(struct frame_header h, struct bytes body)
{
    struct bytes exact = unit_exact(body);
    uint8_t *again = malloc(FRAME_HEADER_SIZE + body.size + 1);
    size_t size = 0;
    int r = -1;
    union {
        struct frame_begin begin;
        struct frame_commit commit;
        struct frame_message message;
        struct frame_gap gap;
        struct position progress;
    } f;

    ck_assert_ptr_nonnull(again);
    memset(&f, 0xaa, sizeof f);
    switch (h.type) {
    case FRAME_BEGIN:
        r = frame_begin_decode(h, exact.data, &f.begin);
        if (r == 0)
            size = frame_begin_encode(again, &f.begin);
        break;
    case FRAME_COMMIT:
        r = frame_commit_decode(h, exact.data, &f.commit);
        if (r == 0)
            size = frame_commit_encode(again, &f.commit);
        break;
    case FRAME_PROGRESS:
        r = frame_progress_decode(h, exact.data, &f.progress);
        if (r == 0)
            size = frame_progress_encode(again, f.progress);
        break;
    case FRAME_GAP:
        r = frame_gap_decode(h, exact.data, &f.gap);
        if (r == 0)
            size = frame_gap_encode(again, &f.gap);
        break;
    case FRAME_MESSAGE:
        r = frame_message_decode(h, exact.data, &f.message);
        if (r == 0) {
            size = frame_message_encode_head(again, &f.message);
            if (f.message.content.size)
                memcpy(again + size, f.message.content.data, f.message.content.size);
            size += f.message.content.size;
        }
        break;
    default:
        ck_abort_msg("no data frame: %u", h.type);
    }
    if (r == 0) {
        ck_assert_uint_eq(size, FRAME_HEADER_SIZE + body.size);
        ck_assert_uint_eq(header_of(again).size, body.size);
        ck_assert_uint_eq(header_of(again).type, h.type);
        ck_assert_uint_eq(header_of(again).flags, h.flags);
        ck_assert(bytes_equal((struct bytes){again + FRAME_HEADER_SIZE, body.size}, body));
    } else {
        ck_assert_int_eq(r, -EBADMSG);
    }
    free(again);
    unit_free(exact);
    return r;
}

START_TEST(fixed_bodies_have_one_size)
{
    static const struct {
        uint8_t type, flags;
        size_t size;
    } frames[] = {
        {FRAME_BEGIN, FRAME_FLAG_RESUMED, FRAME_BEGIN_BODY},
        {FRAME_COMMIT, FRAME_FLAG_INCOMPLETE, FRAME_COMMIT_BODY},
        {FRAME_PROGRESS, 0, FRAME_PROGRESS_BODY},
    };
    uint8_t body[64];

    for (size_t i = 0; i < sizeof body; i++)
        body[i] = (uint8_t)(i * 37 + 11);
    for (size_t i = 0; i < ARRAY_SIZE(frames); i++)
        for (size_t size = 0; size <= sizeof body; size++) {
            struct frame_header h = {(uint32_t)size, frames[i].type, frames[i].flags};
            int r = decode_and_compare(h, (struct bytes){body, size});

            ck_assert_msg((r == 0) == (size == frames[i].size), "%s of %zu bytes: %d",
                          frame_type_name(h.type), size, r);
        }
}
END_TEST

START_TEST(message_cut_at_every_byte)
{
    uint8_t out[FRAME_ROOM];
    struct frame_message f = {
        .position = place,
        .prefix = unit_bytes("a.b.c"),
        .content = unit_bytes("content"),
        .flags = FRAME_FLAG_TRANSACTIONAL,
    };
    size_t size = frame_message_encode_head(out, &f);

    memcpy(out + size, f.content.data, f.content.size);
    size += f.content.size;
    struct frame_header h = header_of(out);
    for (h.size = 0; h.size <= size - FRAME_HEADER_SIZE; h.size++) {
        int r = decode_and_compare(h, (struct bytes){out + FRAME_HEADER_SIZE, h.size});

        /* Cut within the content it is a shorter message: only the frame's length can tell. */
        ck_assert_msg((r == 0) == (h.size >= FRAME_MESSAGE_FIXED + 5), "%u bytes: %d", h.size, r);
    }
}
END_TEST

START_TEST(message_prefix_length_limits)
{
    static const struct {
        uint32_t prefix_size;
        int result;
    } cases[] = {
        {0, 0},
        {1, 0},
        {11, 0},
        {12, 0},
        {13, -EBADMSG},
        {48, -EBADMSG},
        {60, -EBADMSG},
        {0x7fffffff, -EBADMSG},
        {0x80000000, -EBADMSG},
        {0xffffffd0, -EBADMSG},
        {0xffffffff, -EBADMSG},
    };
    uint8_t body[FRAME_MESSAGE_FIXED + 12];
    struct frame_header h = {sizeof body, FRAME_MESSAGE, 0};

    memset(body, 'x', sizeof body);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        bytes_put_u32(body + 44, cases[i].prefix_size);
        ck_assert_int_eq(decode_and_compare(h, (struct bytes){body, sizeof body}), cases[i].result);
    }
}
END_TEST

START_TEST(gap_cut_at_every_byte)
{
    uint8_t out[FRAME_ROOM];
    struct frame_gap f = {.from = place, .to = place, .reason = unit_bytes("because")};
    size_t size = frame_gap_encode(out, &f);
    struct frame_header h = header_of(out);

    for (h.size = 0; h.size <= size - FRAME_HEADER_SIZE; h.size++) {
        int r = decode_and_compare(h, (struct bytes){out + FRAME_HEADER_SIZE, h.size});

        ck_assert_msg((r == 0) == (h.size >= FRAME_GAP_FIXED), "%u bytes: %d", h.size, r);
    }
}
END_TEST

START_TEST(nothing_is_written_on_failure)
{
    static const uint8_t body[64];
    struct frame_begin begin = {.xid = 9};
    struct frame_commit commit = {.messages = 9};
    struct frame_message message = {.xid = 9};
    struct frame_gap gap = {.bytes = 9};
    struct position position = {9, 9, 9};

    ck_assert_int_eq(frame_begin_decode((struct frame_header){23, FRAME_BEGIN, 0}, body, &begin),
                     -EBADMSG);
    ck_assert_int_eq(frame_commit_decode((struct frame_header){35, FRAME_COMMIT, 0}, body, &commit),
                     -EBADMSG);
    ck_assert_int_eq(
        frame_message_decode((struct frame_header){47, FRAME_MESSAGE, 0}, body, &message),
        -EBADMSG);
    ck_assert_int_eq(frame_gap_decode((struct frame_header){47, FRAME_GAP, 0}, body, &gap),
                     -EBADMSG);
    ck_assert_int_eq(
        frame_progress_decode((struct frame_header){17, FRAME_PROGRESS, 0}, body, &position),
        -EBADMSG);
    ck_assert_uint_eq(begin.xid, 9);
    ck_assert_uint_eq(commit.messages, 9);
    ck_assert_uint_eq(message.xid, 9);
    ck_assert_uint_eq(gap.bytes, 9);
    ck_assert_uint_eq(position.lsn, 9);
}
END_TEST

UNIT_MAIN("frame", header, header_wants_its_zeros, type_names, withheld_bytes, begin_bytes, commit_bytes,
          progress_bytes, message_bytes, message_of_nothing, gap_bytes, fixed_bodies_have_one_size,
          message_cut_at_every_byte, message_prefix_length_limits, gap_cut_at_every_byte,
          nothing_is_written_on_failure)
