/* SPDX-License-Identifier: PostgreSQL */
#include "journal/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static struct record full_record(void)
{
    return (struct record){
        .size = 5,
        .first = {1, 0x1122334455667788, 0},
        .last = {2, 0x99AABBCCDDEEFF00, POSITION_INDEX_END},
        .mark = 0x0102030405060708,
        .mark_timeline = 3,
        .received_time = -2,
        .running_ms = 0x1000,
        .messages_before = 7,
        .bytes_before = 0x80,
        .messages = 9,
        .bytes = 0xA0,
        .begin = {.timeline = 1,
                  .commit_lsn = 0x1122334455667788,
                  .commit_time = 0x11,
                  .xid = 0x22},
        .starts_inside = true,
        .ends_inside = true,
    };
}

static const struct bytes frames[] = {
    {(const uint8_t *)"ab", 2}, {NULL, 0}, {(const uint8_t *)"cde", 3}};
static const struct bytes joined = {(const uint8_t *)"abcde", 5};

/* All behind the checksum; the sum over it and "abcde", and the one of the header below, were made by another
 * program, with one call of XXH3_64bits_withSeed. */
#define FULL_REST                                                                            \
    "0000000000000005 00000001 1122334455667788 00000000 00000002 99aabbccddeeff00 ffffffff" \
    "0102030405060708 00000003 fffffffffffffffe 0000000000001000 0000000000000007 "          \
    "0000000000000080"                                                                       \
    "00000009 00000000000000a0 00000001 1122334455667788 0000000000000011 00000022 03"

START_TEST(record_bytes)
{
    struct record r = full_record();
    uint8_t out[RECORD_SIZE];

    record_encode(&r, 0x1234, frames, ARRAY_SIZE(frames), out);
    unit_assert_hex((struct bytes){out, sizeof out}, "00000081 15 80 0000"
                                                     "f1abb3a2ab73111c" FULL_REST);
    ck_assert_uint_eq(r.checksum, bytes_get_u64(out + FRAME_HEADER_SIZE));
    ck_assert(record_verify(out, 0x1234, joined));

    struct record empty = {.mark = 5, .mark_timeline = 1};
    record_encode(&empty, 0, NULL, 0, out);
    ck_assert(record_verify(out, 0, (struct bytes){NULL, 0}));
    ck_assert(!record_verify(out, 1, (struct bytes){NULL, 0}));
}
END_TEST

START_TEST(record_decodes_what_it_encodes)
{
    struct record r = full_record(), got;
    uint8_t out[RECORD_SIZE], again[RECORD_SIZE];

    record_encode(&r, 77, frames, ARRAY_SIZE(frames), out);
    ck_assert_int_eq(record_decode(out, &got), 0);
    ck_assert_uint_eq(got.checksum, r.checksum);
    ck_assert_uint_eq(got.size, 5);
    ck_assert_int_eq(position_compare(got.first, r.first), 0);
    ck_assert_int_eq(position_compare(got.last, r.last), 0);
    ck_assert_uint_eq(got.mark, r.mark);
    ck_assert_uint_eq(got.mark_timeline, 3);
    ck_assert_int_eq(got.received_time, -2);
    ck_assert_uint_eq(got.running_ms, 0x1000);
    ck_assert_uint_eq(got.messages_before, 7);
    ck_assert_uint_eq(got.bytes_before, 0x80);
    ck_assert_uint_eq(got.messages, 9);
    ck_assert_uint_eq(got.bytes, 0xA0);
    ck_assert_uint_eq(got.begin.timeline, 1);
    ck_assert_uint_eq(got.begin.commit_lsn, 0x1122334455667788);
    ck_assert_int_eq(got.begin.commit_time, 0x11);
    ck_assert_uint_eq(got.begin.xid, 0x22);
    ck_assert(got.starts_inside && got.ends_inside);
    record_encode(&got, 77, frames, ARRAY_SIZE(frames), again);
    ck_assert_mem_eq(out, again, sizeof out);

    r.starts_inside = false; /* then there is no BEGIN, whatever stands in the struct */
    record_encode(&r, 77, frames, ARRAY_SIZE(frames), out);
    ck_assert_int_eq(record_decode(out, &got), 0);
    ck_assert(!got.starts_inside && got.ends_inside);
    ck_assert_uint_eq(got.begin.commit_lsn, 0);
    ck_assert_uint_eq(got.begin.xid, 0);
}
END_TEST

/* Neither decoded nor verified, or not verified: no bit may change. */
START_TEST(record_every_bit_counts)
{
    struct record r = full_record(), got;
    uint8_t out[RECORD_SIZE + 5];

    record_encode(&r, 77, frames, ARRAY_SIZE(frames), out);
    memcpy(out + RECORD_SIZE, joined.data, joined.size);
    for (size_t bit = 0; bit < 8 * sizeof out; bit++) {
        out[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_msg(record_decode(out, &got) == -EBADMSG ||
                          !record_verify(out, 77, (struct bytes){out + RECORD_SIZE, 5}),
                      "bit %zu", bit);
        out[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    ck_assert(record_verify(out, 77, (struct bytes){out + RECORD_SIZE, 5}));
    ck_assert(!record_verify(out, 78, (struct bytes){out + RECORD_SIZE, 5}));
    ck_assert(!record_verify(out, 77, (struct bytes){out + RECORD_SIZE, 4}));
}
END_TEST

START_TEST(record_is_no_other_frame)
{
    struct record r = full_record(), got = {.size = 1};
    uint8_t out[RECORD_SIZE];
    static const struct {
        size_t at;
        uint8_t value;
    } wrong[] = {{3, 0x80}, {4, FRAME_GAP},       {5, 0},
                 {7, 1},    {RECORD_SIZE - 1, 4}, {RECORD_SIZE - 1, 2}};

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        record_encode(&r, 0, frames, ARRAY_SIZE(frames), out);
        out[wrong[i].at] = wrong[i].value;
        ck_assert_msg(record_decode(out, &got) == -EBADMSG, "case %zu", i);
        ck_assert_uint_eq(got.size, 1);
    }
}
END_TEST

START_TEST(record_check_in_pieces)
{
    enum { SIZE = 3000 };
    static uint8_t data[SIZE];
    struct record r = {.size = SIZE};
    struct record_check *c = record_check_new();
    uint8_t out[RECORD_SIZE];

    ck_assert_ptr_nonnull(c);
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (uint8_t)(i * 7);
    record_encode(&r, 5, &(struct bytes){data, SIZE}, 1, out);
    for (size_t step = 1; step <= SIZE; step = step * 3 + 1) {
        record_check_begin(c, out, 5);
        for (size_t at = 0; at < SIZE; at += step)
            record_check_add(c, (struct bytes){data + at, MIN(step, SIZE - at)});
        ck_assert(record_check_is_right(c));
        record_check_add(c, (struct bytes){data, 1});
        ck_assert(!record_check_is_right(c));
        record_check_begin(c, out, 6);
        record_check_add(c, (struct bytes){data, SIZE});
        ck_assert(!record_check_is_right(c));
    }
    ck_assert_ptr_null(record_check_free(c));
    ck_assert_ptr_null(record_check_free(NULL));
}
END_TEST

static struct segment_header full_header(void)
{
    struct segment_header h = {
        .format = JOURNAL_FORMAT,
        .layout = FRAME_LAYOUT,
        .sequence = 7,
        .system_identifier = 0x1020304050607080,
        .era = 2,
        .after = {1, 0x100, POSITION_INDEX_END},
        .previous_size = 0x300,
        .previous_checksum = 0xDEADBEEF,
        .messages_before = 0x11,
        .bytes_before = 0x22,
        .received_time = 0x33,
        .running_ms = 0x44,
        .mark = 0x55,
        .mark_timeline = 1,
        .starts_inside = true,
        .begin = {.timeline = 1, .commit_lsn = 0x66, .commit_time = 0x77, .xid = 0x88},
        .database = "shop",
    };

    memset(h.slot, 's', JOURNAL_NAME_SIZE);
    return h;
}

START_TEST(header_bytes)
{
    struct segment_header h = full_header(), got;
    uint8_t out[SEGMENT_HEADER_SIZE], again[SEGMENT_HEADER_SIZE];
    static const uint8_t zero[SEGMENT_HEADER_SIZE];
    enum { NAMES_AT = 145, END = NAMES_AT + 2 * JOURNAL_NAME_SIZE };

    segment_header_encode(&h, out);
    unit_assert_hex((struct bytes){out, NAMES_AT},
                    "77616c6275734a31 89098045897de647 00000001 00000001 0000000000000007"
                    "1020304050607080 00000002 00000001 0000000000000100 ffffffff"
                    "0000000000000300 00000000deadbeef 0000000000000011 0000000000000022"
                    "0000000000000033 0000000000000044 0000000000000055 00000001"
                    "01 00000001 0000000000000066 0000000000000077 00000088");
    ck_assert_mem_eq(out + NAMES_AT, "shop", 5);
    ck_assert_mem_eq(out + NAMES_AT + 5, zero, JOURNAL_NAME_SIZE - 5);
    ck_assert_mem_eq(out + NAMES_AT + JOURNAL_NAME_SIZE, h.slot, JOURNAL_NAME_SIZE);
    ck_assert_mem_eq(out + END, zero, SEGMENT_HEADER_SIZE - END);

    ck_assert_int_eq(segment_header_decode(out, &got), 0);
    ck_assert_str_eq(got.database, "shop");
    ck_assert_str_eq(got.slot, h.slot);
    ck_assert(got.starts_inside);
    ck_assert_uint_eq(got.begin.xid, 0x88);
    ck_assert_int_eq(position_compare(got.after, h.after), 0);
    ck_assert_uint_eq(got.previous_size, 0x300);
    segment_header_encode(&got, again);
    ck_assert_mem_eq(out, again, sizeof out);

    for (size_t bit = 0; bit < 8 * sizeof out; bit++) {
        out[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_msg(segment_header_decode(out, &got) == -EBADMSG, "bit %zu", bit);
        out[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

START_TEST(header_of_another_format)
{
    struct segment_header h = full_header(), got;
    uint8_t out[SEGMENT_HEADER_SIZE];

    h.format++;
    segment_header_encode(&h, out);
    ck_assert_int_eq(segment_header_decode(out, &got), -EPROTONOSUPPORT);
    ck_assert_uint_eq(got.format, JOURNAL_FORMAT + 1);
    h.format--;
    h.layout = 9;
    segment_header_encode(&h, out);
    ck_assert_int_eq(segment_header_decode(out, &got), -EPROTONOSUPPORT);
    ck_assert_uint_eq(got.layout, 9);
}
END_TEST

START_TEST(names)
{
    char name[SEGMENT_NAME_SIZE];
    struct position after = {9, 9, 9};
    uint64_t sequence = 9;
    static const char good[] = "00000000000000FF-0000000A-0123456789ABCDEF-FFFFFFFF.segment";
    static const char *const bad[] = {
        "",
        "new",
        ".",
        "00000000000000FF-0000000A-0123456789ABCDEF-FFFFFFFF",
        "00000000000000FF-0000000A-0123456789ABCDEF-FFFFFFFF.segment2",
        "00000000000000ff-0000000A-0123456789ABCDEF-FFFFFFFF.segment",
        "00000000000000FF-0000000A-0123456789ABCDEF-FFFFFFF.segment",
        "00000000000000FF_0000000A-0123456789ABCDEF-FFFFFFFF.segment",
        "00000000000000FF-0000000A-0123456789ABCDEF-FFFFFFFF-segment",
        "0000000000000 FF-0000000A-0123456789ABCDEF-FFFFFFFF.segment",
        "000000000000000FF-0000000A-0123456789ABCDEF-FFFFFFFF.segment",
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        ck_assert_msg(segment_name_parse(bad[i], &sequence, &after) == -EINVAL, "%s", bad[i]);
    ck_assert_uint_eq(sequence, 9);
    ck_assert_uint_eq(after.lsn, 9);
    ck_assert_str_eq(
        segment_name_format(0xFF, (struct position){10, 0x0123456789ABCDEF, UINT32_MAX}, name),
        good);
    ck_assert_int_eq(segment_name_parse(good, &sequence, &after), 0);
    ck_assert_uint_eq(sequence, 0xFF);
    ck_assert_int_eq(position_compare(after, (struct position){10, 0x0123456789ABCDEF, UINT32_MAX}),
                     0);
    (void)segment_name_format(UINT64_MAX, (struct position){UINT32_MAX, UINT64_MAX, UINT32_MAX},
                              name);
    ck_assert_int_eq(segment_name_parse(name, &sequence, &after), 0);
    ck_assert_uint_eq(sequence, UINT64_MAX);
}
END_TEST

UNIT_MAIN("record", record_bytes, record_decodes_what_it_encodes, record_every_bit_counts,
          record_is_no_other_frame, record_check_in_pieces, header_bytes, header_of_another_format,
          names)
