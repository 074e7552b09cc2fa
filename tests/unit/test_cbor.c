/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cbor.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "vectors.h"

/* ---- helpers ---- */

static enum cbor_fault check_hex(const char *hex, size_t *ret_offset)
{
    struct bytes in = unit_from_hex(hex);
    enum cbor_fault fault = cbor_check(in, ret_offset);

    unit_free(in);
    return fault;
}

/* A repeated piece of hex and something behind it. */
static char *repeat_hex(const char *piece, size_t n, const char *behind)
{
    size_t size = strlen(piece);
    char *hex = malloc(size * n + strlen(behind) + 1);

    ck_assert_ptr_nonnull(hex);
    for (size_t i = 0; i < n; i++)
        memcpy(hex + size * i, piece, size);
    strcpy(hex + size * n, behind);
    return hex;
}

/* Writes again what is read, through the writer. False for what the writer has no function for. */
static bool rewrite_item(struct cbor_reader *r, struct buf *out)
{
    struct cbor_head h;

    ck_assert_int_eq(cbor_read_head(r, &h), CBOR_OK);
    if (h.indefinite)
        return false;
    switch (h.type) {
    case CBOR_UINT:
        cbor_put_uint(out, h.arg);
        return true;
    case CBOR_NINT:
        if (h.arg > INT64_MAX)
            return false;
        cbor_put_int(out, -1 - (int64_t)h.arg);
        return true;
    case CBOR_BYTES:
        cbor_put_bytes(out, h.str);
        return true;
    case CBOR_TEXT:
        cbor_put_text(out, h.str);
        return true;
    case CBOR_ARRAY:
    case CBOR_MAP:
        if (h.type == CBOR_MAP)
            cbor_put_map(out, h.arg);
        else
            cbor_put_array(out, h.arg);
        for (uint64_t i = 0; i < h.arg * (h.type == CBOR_MAP ? 2 : 1); i++)
            if (!rewrite_item(r, out))
                return false;
        return true;
    case CBOR_TAG:
        cbor_put_tag(out, h.arg);
        return rewrite_item(r, out);
    case CBOR_SIMPLE:
        if (h.arg == CBOR_SIMPLE_NULL)
            cbor_put_null(out);
        else if (h.arg == CBOR_SIMPLE_TRUE || h.arg == CBOR_SIMPLE_FALSE)
            cbor_put_bool(out, h.arg == CBOR_SIMPLE_TRUE);
        else
            return false;
        return true;
    case CBOR_FLOAT:
        cbor_put_double(out, h.number);
        return true;
    case CBOR_BREAK:
        break;
    }
    ck_abort_msg("a break in a well-formed item");
}

/* xorshift64: the same inputs in every run. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- vectors ---- */

START_TEST(appendix_a_is_accepted_and_written)
{
    json_t *rows = vectors_load("cbor/appendix_a.json");
    size_t i, n = 0;
    json_t *row;

    if (!rows)
        return;
    json_array_foreach(rows, i, row)
    {
        const char *hex = vectors_text(row, "hex");
        struct bytes in = unit_from_hex(hex);
        struct cbor_reader r = cbor_reader_init(in);
        struct buf out = BUF_INIT;

        /* RFC 8949 made this one malformed. */
        enum cbor_fault want = strcmp(hex, "f818") == 0 ? CBOR_FAULT_SIMPLE : CBOR_OK;

        ck_assert_msg(cbor_check(in, NULL) == want, "%s: %s", hex,
                      cbor_fault_text(cbor_check(in, NULL)));
        if (want == CBOR_OK && json_is_true(json_object_get(row, "roundtrip")) &&
            rewrite_item(&r, &out)) {
            ck_assert_ptr_eq(r.at, r.end);
            unit_assert_hex(buf_bytes(&out), hex);
            n++;
        }
        buf_deinit(&out);
        unit_free(in);
    }
    ck_assert_uint_ge(n, 55);
    json_decref(rows);
}
END_TEST

START_TEST(appendix_a_truncated)
{
    json_t *rows = vectors_load("cbor/appendix_a.json");
    size_t i;
    json_t *row;

    if (!rows)
        return;
    json_array_foreach(rows, i, row)
    {
        const char *hex = vectors_text(row, "hex");
        struct bytes in = unit_from_hex(hex);

        for (size_t size = 0; size < in.size; size++) {
            struct bytes cut = unit_exact((struct bytes){in.data, size});
            struct buf out = BUF_INIT;
            size_t offset = SIZE_MAX;

            ck_assert_msg(cbor_check(cut, &offset) == CBOR_FAULT_TRUNCATED, "%s cut to %zu", hex,
                          size);
            ck_assert_uint_le(offset, size);
            ck_assert_int_eq(cbor_print_diagnostic(cut, &out), CBOR_FAULT_TRUNCATED);
            ck_assert_int_eq(cbor_print_json(cut, &out), CBOR_FAULT_TRUNCATED);
            ck_assert_uint_eq(out.size, 0);
            unit_free(cut);
        }
        unit_free(in);
    }
    json_decref(rows);
}
END_TEST

/* RFC 8949 appendix F's kind 1, which the file leaves out: a byte behind any item is too much. */
START_TEST(appendix_a_with_a_byte_behind)
{
    json_t *rows = vectors_load("cbor/appendix_a.json");
    size_t i, n = 0;
    json_t *row;

    if (!rows)
        return;
    json_array_foreach(rows, i, row)
    {
        const char *hex = vectors_text(row, "hex");
        char *longer = repeat_hex(hex, 1, "00");
        size_t offset = SIZE_MAX;

        if (strcmp(hex, "f818") != 0) {
            ck_assert_msg(check_hex(longer, &offset) == CBOR_FAULT_TRAILING, "%s", longer);
            ck_assert_uint_eq(offset, strlen(hex) / 2);
            n++;
        }
        free(longer);
    }
    ck_assert_uint_eq(n, 81);
    json_decref(rows);
}
END_TEST

/* The fault that a malformed row of RFC 8949 appendix F is to be refused with. */
static enum cbor_fault fault_of(const json_t *row)
{
    /* A break where a map's pairs should be, in maps whose pairs could not fit into what is left:
     * the count is refused before anything behind it is looked at. */
    static const char *const counted_first[] = {"a1ff", "a20000ff"};
    /* by subkind */
    static const enum cbor_fault syntax[] = {
        [1] = CBOR_FAULT_RESERVED, /* additional information 28 to 30 */
        [2] = CBOR_FAULT_SIMPLE,   /* in two bytes, below 32 */
        [3] = CBOR_FAULT_CHUNK,    /* of another type, or not of definite length */
        [4] = CBOR_FAULT_BREAK,    /* outside an indefinite-length item, or for a value */
        [5] = CBOR_FAULT_RESERVED, /* 31 where there is no indefinite length */
    };
    size_t subkind = (size_t)json_number_value(json_object_get(row, "subkind"));

    for (size_t i = 0; i < ARRAY_SIZE(counted_first); i++)
        if (strcmp(vectors_text(row, "hex"), counted_first[i]) == 0)
            return CBOR_FAULT_TRUNCATED;
    if (json_number_value(json_object_get(row, "kind")) == 2) /* too little data */
        return CBOR_FAULT_TRUNCATED;
    ck_assert_uint_ge(subkind, 1);
    ck_assert_uint_lt(subkind, ARRAY_SIZE(syntax));
    return syntax[subkind];
}

START_TEST(malformed_is_refused)
{
    json_t *rows = vectors_load("cbor/rfc8949_appendix_f_malformed.json");
    size_t i, n[CBOR_FAULT_REQUIRED + 1] = {0};
    json_t *row;

    if (!rows)
        return;
    json_array_foreach(rows, i, row)
    {
        const char *hex = vectors_text(row, "hex");
        struct bytes in = unit_from_hex(hex);
        size_t offset = SIZE_MAX;
        enum cbor_fault fault = cbor_check(in, &offset), want = fault_of(row);
        struct cbor_reader r = cbor_reader_init(in);
        struct bytes item = {NULL, 0};
        struct buf out = BUF_INIT;

        ck_assert_msg(fault == want, "%s: %s, wanted: %s", hex, cbor_fault_text(fault),
                      cbor_fault_text(want));
        ck_assert_uint_le(offset, in.size);
        ck_assert_int_eq(cbor_read_item(&r, &item), fault);
        ck_assert_ptr_null(item.data);
        ck_assert_int_eq(cbor_print_diagnostic(in, &out), fault);
        ck_assert_int_eq(cbor_print_json(in, &out), fault);
        ck_assert_uint_eq(out.size, 0);
        n[fault]++;
        unit_free(in);
    }
    ck_assert_uint_eq(json_array_size(rows), 94);
    ck_assert_uint_eq(n[CBOR_FAULT_TRUNCATED], 42 + 2);
    ck_assert_uint_eq(n[CBOR_FAULT_RESERVED], 24 + 3);
    ck_assert_uint_eq(n[CBOR_FAULT_SIMPLE], 4);
    ck_assert_uint_eq(n[CBOR_FAULT_CHUNK], 10);
    ck_assert_uint_eq(n[CBOR_FAULT_BREAK], 11 - 2);
    json_decref(rows);
}
END_TEST

/* ---- writing ---- */

START_TEST(integers_have_the_shortest_head)
{
    static const struct {
        uint64_t value;
        const char *hex;
    } unsigned_cases[] = {
        {0, "00"},
        {23, "17"},
        {24, "1818"},
        {255, "18ff"},
        {256, "190100"},
        {65535, "19ffff"},
        {65536, "1a00010000"},
        {UINT32_MAX, "1affffffff"},
        {UINT64_C(1) << 32, "1b0000000100000000"},
        {UINT64_MAX, "1bffffffffffffffff"},
    };
    static const struct {
        int64_t value;
        const char *hex;
    } signed_cases[] = {
        {-1, "20"},
        {-24, "37"},
        {-25, "3818"},
        {-256, "38ff"},
        {-257, "390100"},
        {-65537, "3a00010000"},
        {-INT64_C(4294967297), "3b0000000100000000"},
        {INT64_MAX, "1b7fffffffffffffff"},
        {INT64_MIN, "3b7fffffffffffffff"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(unsigned_cases); i++) {
        struct buf out = BUF_INIT;

        cbor_put_uint(&out, unsigned_cases[i].value);
        ck_assert_uint_eq(out.size, cbor_head_size(unsigned_cases[i].value));
        unit_assert_hex(buf_bytes(&out), unsigned_cases[i].hex);
        struct cbor_reader r = cbor_reader_init(buf_bytes(&out));
        uint64_t back = 0;
        ck_assert_int_eq(cbor_read_uint(&r, &back), CBOR_OK);
        ck_assert_uint_eq(back, unsigned_cases[i].value);
        buf_deinit(&out);
    }
    for (size_t i = 0; i < ARRAY_SIZE(signed_cases); i++) {
        struct buf out = BUF_INIT;

        cbor_put_int(&out, signed_cases[i].value);
        unit_assert_hex(buf_bytes(&out), signed_cases[i].hex);
        struct cbor_reader r = cbor_reader_init(buf_bytes(&out));
        int64_t back = 0;
        ck_assert_int_eq(cbor_read_int(&r, &back), CBOR_OK);
        ck_assert_int_eq(back, signed_cases[i].value);
        buf_deinit(&out);
    }
}
END_TEST

START_TEST(floats_have_the_shortest_exact_width)
{
    static const struct {
        double value;
        const char *hex;
    } cases[] = {
        {0.0, "f90000"},
        {-0.0, "f98000"},
        {1.0, "f93c00"},
        {-4.0, "f9c400"},
        {65504.0, "f97bff"},
        {65505.0, "fa477fe100"},
        {65520.0, "fa477ff000"}, /* would round to infinity */
        {65536.0, "fa47800000"},
        {0x1p-14, "f90400"},     /* smallest normal half */
        {0x1p-24, "f90001"},     /* smallest subnormal half */
        {0x1.ff8p-15, "f903ff"}, /* largest subnormal half */
        {0x1p-25, "fa33000000"},
        {0x1.8p-24, "fa33c00000"},
        {0x1.002p0, "fa3f801000"}, /* a bit more than a half's fraction holds */
        {0x1.004p0, "f93c01"},
        {1.1, "fb3ff199999999999a"},
        {3.4028234663852886e+38, "fa7f7fffff"},
        {3.5e+38, "fb47f074f8c4d3cd7b"},
        {1.0e+300, "fb7e37e43c8800759c"},
        {0x1p-149, "fa00000001"},
        {0x1p-1074, "fb0000000000000001"},
        {INFINITY, "f97c00"},
        {-INFINITY, "f9fc00"},
        {NAN, "f97e00"},
        {-NAN, "f97e00"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf out = BUF_INIT;
        struct cbor_head h;

        cbor_put_double(&out, cases[i].value);
        unit_assert_hex(buf_bytes(&out), cases[i].hex);
        struct cbor_reader r = cbor_reader_init(buf_bytes(&out));
        ck_assert_int_eq(cbor_read_head(&r, &h), CBOR_OK);
        ck_assert_int_eq(h.type, CBOR_FLOAT);
        ck_assert(isnan(cases[i].value) ? isnan(h.number) : h.number == cases[i].value);
        if (!isnan(cases[i].value))
            ck_assert_int_eq(signbit(h.number) != 0, signbit(cases[i].value) != 0);
        buf_deinit(&out);
    }
}
END_TEST

/* All 65536 halves: read and written again they are the same, the NaNs all 7e00. */
START_TEST(every_half_comes_back)
{
    for (unsigned bits = 0; bits <= 0xffff; bits++) {
        const uint8_t in[3] = {0xf9, (uint8_t)(bits >> 8), (uint8_t)bits};
        struct cbor_reader r = cbor_reader_init((struct bytes){in, sizeof in});
        struct buf out = BUF_INIT;
        struct cbor_head h;

        if (cbor_read_head(&r, &h) != CBOR_OK)
            ck_abort_msg("%04x was refused", bits);
        cbor_put_double(&out, h.number);
        if (out.size != sizeof in ||
            bytes_get_u16(out.data + 1) != (isnan(h.number) ? 0x7e00 : bits))
            ck_abort_msg("%04x was not written again", bits);
        buf_deinit(&out);
    }
}
END_TEST

START_TEST(strings_and_containers_are_written)
{
    struct buf out = BUF_INIT;

    cbor_put_map(&out, 2);
    cbor_put_str(&out, "a");
    cbor_put_array(&out, 3);
    cbor_put_bool(&out, true);
    cbor_put_bool(&out, false);
    cbor_put_null(&out);
    cbor_put_text(&out, unit_bytes("\xc3\xbc"));
    cbor_put_tag(&out, 55799);
    cbor_put_bytes(&out, (struct bytes){(const uint8_t *)"\x00\xff", 2});
    cbor_put_bytes(&out, (struct bytes){NULL, 0});
    unit_assert_hex(buf_bytes(&out), "a2 6161 83 f5f4f6 62c3bc d9d9f7 4200ff 40");
    buf_deinit(&out);
}
END_TEST

/* ---- reading ---- */

START_TEST(nesting_has_a_limit)
{
    static const struct {
        const char *open, *inside;
        bool closed; /* by a break */
    } cases[] = {
        {"81", "00", false}, {"a100", "00", false}, {"c1", "00", false},
        {"9f", "00", true},  {"bf00", "00", true},  {"81", "6161", false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (size_t depth = CBOR_NESTING_MAX - 1; depth <= CBOR_NESTING_MAX + 1; depth++) {
            char *breaks = repeat_hex("ff", cases[i].closed ? depth : 0, "");
            char *inside = repeat_hex(cases[i].inside, 1, breaks);
            char *hex = repeat_hex(cases[i].open, depth, inside);
            size_t offset = 0;
            enum cbor_fault fault = check_hex(hex, &offset);

            if (depth <= CBOR_NESTING_MAX) {
                ck_assert_int_eq(fault, CBOR_OK);
            } else {
                ck_assert_int_eq(fault, CBOR_FAULT_NESTING);
                ck_assert_uint_eq(offset, CBOR_NESTING_MAX * strlen(cases[i].open) / 2);
            }
            free(hex);
            free(inside);
            free(breaks);
        }

    /* An empty array is a level too. */
    char *hex = repeat_hex("81", CBOR_NESTING_MAX, "80");
    ck_assert_int_eq(check_hex(hex, NULL), CBOR_FAULT_NESTING);
    ck_assert_int_eq(check_hex(hex + 2, NULL), CBOR_OK);
    free(hex);

    /* Far beyond, with nothing inside. */
    hex = repeat_hex("81", 100000, "");
    ck_assert_int_eq(check_hex(hex, NULL), CBOR_FAULT_NESTING);
    free(hex);
}
END_TEST

START_TEST(nesting_inside_other_levels)
{
    struct bytes in = unit_from_hex("818100");

    ck_assert_int_eq(cbor_check_inside(in, 0, NULL), CBOR_OK);
    ck_assert_int_eq(cbor_check_inside(in, CBOR_NESTING_MAX - 2, NULL), CBOR_OK);
    ck_assert_int_eq(cbor_check_inside(in, CBOR_NESTING_MAX - 1, NULL), CBOR_FAULT_NESTING);
    ck_assert_int_eq(cbor_check_inside(in, CBOR_NESTING_MAX, NULL), CBOR_FAULT_NESTING);
    ck_assert_int_eq(cbor_check_inside(in, SIZE_MAX, NULL), CBOR_FAULT_NESTING);
    unit_free(in);
}
END_TEST

START_TEST(lengths_that_lie_are_refused)
{
    static const char *const cases[] = {
        "5bffffffffffffffff",
        "7bffffffffffffffff",
        "9bffffffffffffffff",
        "bbffffffffffffffff",
        "bb8000000000000000", /* twice the count is 0 */
        "bb8000000000000001 0000",
        "9a08000000", /* libcbor's cbor_load takes 1 GiB for it */
        "9affffffff 00",
        "5a7fffffff 00",
        "8200",
        "a200 0000",
        "5f 5bffffffffffffffff 00 ff",
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes in = unit_from_hex(cases[i]);
        struct cbor_reader r = cbor_reader_init(in);

        ck_assert_msg(cbor_check(in, NULL) == CBOR_FAULT_TRUNCATED, "%s", cases[i]);
        if (strncmp(cases[i], "5f", 2) != 0) {
            struct cbor_head h;

            ck_assert_msg(cbor_read_head(&r, &h) == CBOR_FAULT_TRUNCATED, "%s", cases[i]);
            ck_assert_ptr_eq(r.at, r.start);
        }
        unit_free(in);
    }
    ck_assert_int_eq(cbor_check((struct bytes){NULL, 0}, NULL), CBOR_FAULT_TRUNCATED);
}
END_TEST

START_TEST(faults_are_told_apart_and_placed)
{
    static const struct {
        const char *hex;
        enum cbor_fault fault;
        size_t offset;
    } cases[] = {
        {"8201", CBOR_FAULT_TRUNCATED, 0},
        {"82011c", CBOR_FAULT_RESERVED, 2},
        {"82011f", CBOR_FAULT_RESERVED, 2},
        {"8201df00", CBOR_FAULT_RESERVED, 2},
        {"ff", CBOR_FAULT_BREAK, 0},
        {"81ff", CBOR_FAULT_BREAK, 1},
        {"c1ff", CBOR_FAULT_BREAK, 1},
        {"bf00ff", CBOR_FAULT_BREAK, 2},
        {"9fc1ffff", CBOR_FAULT_BREAK, 2},
        {"5f6161ff", CBOR_FAULT_CHUNK, 1},
        {"5f4100 5f4100ff ff", CBOR_FAULT_CHUNK, 3},
        {"f81f", CBOR_FAULT_SIMPLE, 0},
        {"62 41ff", CBOR_FAULT_UTF8, 2},
        {"62 c080", CBOR_FAULT_UTF8, 1},
        {"63 eda080", CBOR_FAULT_UTF8, 1},
        {"a1 61ff 00", CBOR_FAULT_UTF8, 2},
        {"7f61c361bcff", CBOR_FAULT_UTF8, 2}, /* one character over two chunks */
        {"0000", CBOR_FAULT_TRAILING, 1},
        {"9f00ff01", CBOR_FAULT_TRAILING, 3},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        size_t offset = SIZE_MAX;
        enum cbor_fault fault = check_hex(cases[i].hex, &offset);

        ck_assert_msg(fault == cases[i].fault, "%s: %s", cases[i].hex, cbor_fault_text(fault));
        ck_assert_msg(offset == cases[i].offset, "%s: at %zu", cases[i].hex, offset);
    }
    /* Each has words of its own. */
    for (int a = CBOR_OK; a <= CBOR_FAULT_REQUIRED; a++)
        for (int b = a + 1; b <= CBOR_FAULT_REQUIRED + 1; b++)
            ck_assert_str_ne(cbor_fault_text((enum cbor_fault)a),
                             cbor_fault_text((enum cbor_fault)b));
}
END_TEST

START_TEST(items_are_walked_one_by_one)
{
    struct bytes in = unit_from_hex("8301 6161 a0 00");
    struct cbor_reader r = cbor_reader_init(in);
    struct bytes item;

    ck_assert_int_eq(cbor_read_item(&r, &item), CBOR_OK);
    unit_assert_hex(item, "83016161a0");
    ck_assert_int_eq(cbor_read_item(&r, &item), CBOR_OK);
    unit_assert_hex(item, "00");
    ck_assert_int_eq(cbor_read_item(&r, &item), CBOR_FAULT_TRUNCATED);
    unit_assert_hex(item, "00");
    unit_free(in);
}
END_TEST

START_TEST(typed_reads_take_their_type_alone)
{
    /* One definite item of each type, and the indefinite forms. */
    static const struct {
        const char *hex;
        enum cbor_kind type;
        bool readable;
    } items[] = {
        {"05", CBOR_UINT, true},      {"24", CBOR_NINT, true},    {"4101", CBOR_BYTES, true},
        {"6161", CBOR_TEXT, true},    {"8100", CBOR_ARRAY, true}, {"a10000", CBOR_MAP, true},
        {"f5", CBOR_SIMPLE, true},    {"c100", CBOR_TAG, true},   {"f93c00", CBOR_FLOAT, true},
        {"5fff", CBOR_BYTES, false},  {"7fff", CBOR_TEXT, false}, {"9fff", CBOR_ARRAY, false},
        {"bfff", CBOR_MAP, false},    {"f6", CBOR_SIMPLE, false}, {"f7", CBOR_SIMPLE, false},
        {"f820", CBOR_SIMPLE, false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(items); i++) {
        struct bytes in = unit_from_hex(items[i].hex);
        enum cbor_kind type = items[i].type;
        bool readable = items[i].readable;
        uint64_t u = 99;
        int64_t s = 99;
        struct bytes str = {NULL, 99};
        bool b = false;

#define EXPECT(call, condition)                                                       \
    do {                                                                              \
        struct cbor_reader r = cbor_reader_init(in);                                  \
        bool want_ok_ = (condition);                                                  \
        ck_assert_msg((call) == (want_ok_ ? CBOR_OK : CBOR_FAULT_TYPE), "%s: " #call, \
                      items[i].hex);                                                  \
        ck_assert((r.at == r.start) != want_ok_);                                     \
    } while (0)
        EXPECT(cbor_read_uint(&r, &u), type == CBOR_UINT);
        ck_assert_uint_eq(u, type == CBOR_UINT ? 5 : 99);
        EXPECT(cbor_read_int(&r, &s), type == CBOR_UINT || type == CBOR_NINT);
        ck_assert_int_eq(s, type == CBOR_UINT ? 5 : type == CBOR_NINT ? -5 : 99);
        EXPECT(cbor_read_bytes(&r, &str), type == CBOR_BYTES && readable);
        EXPECT(cbor_read_text(&r, &str), type == CBOR_TEXT && readable);
        ck_assert_uint_eq(str.size, (type == CBOR_BYTES || type == CBOR_TEXT) && readable ? 1 : 99);
        EXPECT(cbor_read_bool(&r, &b), type == CBOR_SIMPLE && readable);
        ck_assert(b == (type == CBOR_SIMPLE && readable));
        EXPECT(cbor_read_array(&r, &u), type == CBOR_ARRAY && readable);
        EXPECT(cbor_read_map(&r, &u), type == CBOR_MAP && readable);
#undef EXPECT
        unit_free(in);
    }
}
END_TEST

START_TEST(typed_reads_check_ranges_and_text)
{
    static const char *const beyond_int64[] = {"1b8000000000000000", "3b8000000000000000",
                                               "1bffffffffffffffff", "3bffffffffffffffff"};

    for (size_t i = 0; i < ARRAY_SIZE(beyond_int64); i++) {
        struct bytes in = unit_from_hex(beyond_int64[i]);
        struct cbor_reader r = cbor_reader_init(in);
        int64_t v = 7;

        ck_assert_int_eq(cbor_read_int(&r, &v), CBOR_FAULT_TYPE);
        ck_assert_int_eq(v, 7);
        ck_assert_ptr_eq(r.at, r.start);
        unit_free(in);
    }
    struct bytes in = unit_from_hex("61ff");
    struct cbor_reader r = cbor_reader_init(in);
    struct bytes text = {NULL, 7};

    ck_assert_int_eq(cbor_read_text(&r, &text), CBOR_FAULT_UTF8);
    ck_assert_uint_eq(text.size, 7);
    ck_assert_ptr_eq(r.at, r.start);
    unit_free(in);
}
END_TEST

START_TEST(random_bytes_are_survived)
{
    uint64_t state = 0x9e3779b97f4a7c15;
    size_t n_good = 0;

    for (int round = 0; round < 20000; round++) {
        uint8_t raw[24];
        size_t size = next_random(&state) % sizeof raw;

        for (size_t i = 0; i < size; i++) /* small heads, so that some of it is well-formed */
            raw[i] = (uint8_t)(next_random(&state) & (next_random(&state) % 2 ? 0xff : 0xe3));
        struct bytes in = unit_exact((struct bytes){raw, size});
        struct cbor_reader r = cbor_reader_init(in);
        struct buf out = BUF_INIT;
        struct bytes item;

        while (cbor_read_item(&r, &item) == CBOR_OK) {
            n_good++;
            if (item.size == 0 || item.data + item.size != r.at ||
                cbor_check(item, NULL) != CBOR_OK || cbor_print_json(item, &out) != CBOR_OK ||
                cbor_print_diagnostic(item, &out) != CBOR_OK)
                ck_abort_msg("round %d, item %zu", round, n_good);
        }
        if (r.at < r.start || r.at > r.end)
            ck_abort_msg("round %d: outside", round);
        buf_deinit(&out);
        unit_free(in);
    }
    ck_assert_uint_ge(n_good, 10000);
}
END_TEST

UNIT_MAIN("cbor", appendix_a_is_accepted_and_written, appendix_a_truncated,
          appendix_a_with_a_byte_behind, malformed_is_refused, integers_have_the_shortest_head,
          floats_have_the_shortest_exact_width, every_half_comes_back,
          strings_and_containers_are_written, nesting_has_a_limit, nesting_inside_other_levels,
          lengths_that_lie_are_refused, faults_are_told_apart_and_placed,
          items_are_walked_one_by_one, typed_reads_take_their_type_alone,
          typed_reads_check_ranges_and_text, random_bytes_are_survived)
