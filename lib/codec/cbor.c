/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cbor.h"

#include <cbor/encoding.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/text.h"

/* ---- writing ---- */

#define HEAD_MAX CBOR_HEAD_MAX /* initial byte and eight bytes of argument */

void cbor_put_uint(struct buf *b, uint64_t v)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_uint(v, to, HEAD_MAX);
}

void cbor_put_int(struct buf *b, int64_t v)
{
    if (v >= 0) {
        cbor_put_uint(b, (uint64_t)v);
        return;
    }
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_negint(~(uint64_t)v, to, HEAD_MAX);
}

void cbor_put_bytes(struct buf *b, struct bytes v)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_bytestring_start(v.size, to, HEAD_MAX);
    buf_append(b, v.data, v.size);
}

void cbor_put_text(struct buf *b, struct bytes v)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_string_start(v.size, to, HEAD_MAX);
    buf_append(b, v.data, v.size);
}

void cbor_put_str(struct buf *b, const char *s)
{
    cbor_put_text(b, bytes_of_text(s));
}

void cbor_put_bool(struct buf *b, bool v)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_bool(v, to, HEAD_MAX);
}

void cbor_put_null(struct buf *b)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_null(to, HEAD_MAX);
}

/*
 * Whether `v` is exactly a half-precision number (1 sign bit, 5 bits of exponent
 * with bias 15, 10 bits of fraction), and which. libcbor's cbor_encode_half is
 * of no use here: it cuts the fraction off without telling.
 */
static bool half_from_single(float v, uint16_t *ret)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    int exponent = (int)(bits >> 23 & 0xff) - 127;
    uint32_t fraction = bits & 0x7fffff;

    if (v == 0) {
        *ret = sign;
        return true;
    }
    if (isinf(v)) {
        *ret = sign | 0x7c00;
        return true;
    }
    if (exponent >= -14 && exponent <= 15) {
        if (fraction & 0x1fff)
            return false;
        *ret = (uint16_t)(sign | (uint32_t)(exponent + 15) << 10 | fraction >> 13);
        return true;
    }
    if (exponent >= -24 && exponent < -14) { /* subnormal: a multiple of 2^-24 below 2^-14 */
        uint32_t significand = fraction | 0x800000;
        int shift = -exponent - 1;

        if (significand & ((UINT32_C(1) << shift) - 1))
            return false;
        *ret = (uint16_t)(sign | significand >> shift);
        return true;
    }
    return false;
}

static void put_half_bits(struct buf *b, uint16_t bits)
{
    buf_append_u8(b, 0xf9);
    buf_append_u16(b, bits);
}

void cbor_put_double(struct buf *b, double v)
{
    uint16_t half;

    if (isnan(v)) {
        put_half_bits(b, 0x7e00);
        return;
    }
    if (isinf(v) || fabs(v) <= (double)FLT_MAX) {
        float single = (float)v;

        if ((double)single == v) {
            if (half_from_single(single, &half)) {
                put_half_bits(b, half);
                return;
            }
            uint8_t *to = buf_reserve(b, HEAD_MAX);

            if (to)
                b->size += cbor_encode_single(single, to, HEAD_MAX);
            return;
        }
    }
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_double(v, to, HEAD_MAX);
}

void cbor_put_array(struct buf *b, uint64_t n)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_array_start((size_t)n, to, HEAD_MAX);
}

void cbor_put_map(struct buf *b, uint64_t n)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_map_start((size_t)n, to, HEAD_MAX);
}

void cbor_put_tag(struct buf *b, uint64_t tag)
{
    uint8_t *to = buf_reserve(b, HEAD_MAX);

    if (to)
        b->size += cbor_encode_tag(tag, to, HEAD_MAX);
}

size_t cbor_head_size(uint64_t arg)
{
    if (arg < 24)
        return 1;
    if (arg <= UINT8_MAX)
        return 2;
    if (arg <= UINT16_MAX)
        return 3;
    return arg <= UINT32_MAX ? 5 : HEAD_MAX;
}

/* ---- reading ---- */

const char *cbor_fault_text(enum cbor_fault fault)
{
    switch (fault) {
    case CBOR_OK:
        return "well-formed";
    case CBOR_FAULT_TRUNCATED:
        return "the item needs more bytes than there are";
    case CBOR_FAULT_RESERVED:
        return "reserved additional information";
    case CBOR_FAULT_BREAK:
        return "a break where none is allowed";
    case CBOR_FAULT_CHUNK:
        return "a chunk of the wrong type in a string of indefinite length";
    case CBOR_FAULT_SIMPLE:
        return "a simple value below 32 in two bytes";
    case CBOR_FAULT_UTF8:
        return "a text string that is not UTF-8";
    case CBOR_FAULT_NESTING:
        return "nested too deeply";
    case CBOR_FAULT_TRAILING:
        return "bytes behind the item";
    case CBOR_FAULT_TYPE:
        return "an item of another type than needed";
    case CBOR_FAULT_DUPLICATE:
        return "a map key twice";
    case CBOR_FAULT_COUNT:
        return "too many entries";
    case CBOR_FAULT_REQUIRED:
        return "a required map key is missing or has no acceptable value";
    }
    return "unknown fault";
}

static double double_from_half(uint16_t half)
{
    uint64_t sign = (uint64_t)(half & 0x8000) << 48;
    uint64_t exponent = half >> 10 & 0x1f;
    uint64_t fraction = half & 0x3ff;
    uint64_t bits;
    double v;

    if (exponent == 0) {
        v = (double)fraction * 0x1p-24;
        return sign ? -v : v;
    }
    if (exponent == 0x1f)
        bits = sign | UINT64_C(0x7ff) << 52 | fraction << 42;
    else
        bits = sign | (exponent + 1023 - 15) << 52 | fraction << 42;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static double double_from_single_bits(uint32_t bits)
{
    float v;

    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

static double double_from_bits(uint64_t bits)
{
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Major type 7: what the argument means depends on its width. */
static enum cbor_fault read_simple_or_float(uint8_t info, uint64_t arg, enum cbor_kind *kind, double *number)
{
    switch (info) {
    case 24:
        if (arg < 32)
            return CBOR_FAULT_SIMPLE;
        break;
    case 25:
        *kind = CBOR_FLOAT;
        *number = double_from_half((uint16_t)arg);
        break;
    case 26:
        *kind = CBOR_FLOAT;
        *number = double_from_single_bits((uint32_t)arg);
        break;
    case 27:
        *kind = CBOR_FLOAT;
        *number = double_from_bits(arg);
        break;
    case 31:
        *kind = CBOR_BREAK;
        break;
    }
    return CBOR_OK;
}

/* The head is written member by member. One that is built first and then copied is read, in wide pieces, from narrow
 * stores that are still under way: the processor waits, and that was three quarters of this function. The same goes for
 * those who read typed items, below. */
enum cbor_fault cbor_read_head(struct cbor_reader *r, struct cbor_head *ret)
{
    const uint8_t *at = r->at;
    size_t left = (size_t)(r->end - at);

    if (left == 0)
        return CBOR_FAULT_TRUNCATED;

    enum cbor_kind kind = (enum cbor_kind)(*at >> 5);
    const uint8_t info = *at & 0x1f;
    uint64_t arg = 0;
    bool indefinite = false;
    double number = 0;
    struct bytes str = {NULL, 0};

    at++;
    left--;
    if (info < 24) {
        arg = info;
    } else if (info <= 27) {
        size_t width = (size_t)1 << (info - 24);

        if (left < width)
            return CBOR_FAULT_TRUNCATED;
        for (size_t i = 0; i < width; i++)
            arg = arg << 8 | at[i];
        at += width;
        left -= width;
    } else if (info < 31 || kind == CBOR_UINT || kind == CBOR_NINT || kind == CBOR_TAG) {
        return CBOR_FAULT_RESERVED;
    }

    switch (kind) {
    case CBOR_BYTES:
    case CBOR_TEXT:
        indefinite = info == 31;
        if (indefinite)
            break;
        if (arg > left)
            return CBOR_FAULT_TRUNCATED;
        str = (struct bytes){at, (size_t)arg};
        at += arg;
        break;
    case CBOR_ARRAY:
    case CBOR_MAP:
        /* The shortest item is one byte, so a count beyond what is left is a lie: whoever
         * allocates by a count that passed here allocates in proportion to the input. */
        indefinite = info == 31;
        if (arg > (kind == CBOR_MAP ? left / 2 : left))
            return CBOR_FAULT_TRUNCATED;
        break;
    case CBOR_SIMPLE: {
        enum cbor_fault fault = read_simple_or_float(info, arg, &kind, &number);

        if (fault != CBOR_OK)
            return fault;
        break;
    }
    default:
        break;
    }
    r->at = at;
    ret->type = kind;
    ret->indefinite = indefinite;
    ret->info = info;
    ret->arg = arg;
    ret->number = number;
    ret->str = str;
    return CBOR_OK;
}

/* On a fault r->at is the first byte that is not UTF-8. */
static enum cbor_fault check_text(struct cbor_reader *r, struct bytes text)
{
    size_t size = text_utf8_size(text);

    if (size == text.size)
        return CBOR_OK;
    r->at = text.data + size;
    return CBOR_FAULT_UTF8;
}

/* The chunks of a string of indefinite length, up to and with its break. */
static enum cbor_fault read_chunks(struct cbor_reader *r, enum cbor_kind type)
{
    for (;;) {
        const uint8_t *at = r->at;
        struct cbor_head h;
        enum cbor_fault fault = cbor_read_head(r, &h);

        if (fault != CBOR_OK)
            return fault;
        if (h.type == CBOR_BREAK)
            return CBOR_OK;
        if (h.type != type || h.indefinite) {
            r->at = at;
            return CBOR_FAULT_CHUNK;
        }
        /* A character may not be split over two chunks (RFC 8949 3.2.3). */
        if (type == CBOR_TEXT && (fault = check_text(r, h.str)) != CBOR_OK)
            return fault;
    }
}

/* An array, map or tag whose end has not been read yet. */
struct level {
    uint64_t left;   /* items still to come; of no meaning when indefinite */
    bool indefinite; /* ends with a break */
    bool map;
    bool key_read; /* of an indefinite map: a key without its value so far */
};

/* cbor_read_item with another limit of nesting, at most CBOR_NESTING_MAX. */
static enum cbor_fault read_item(struct cbor_reader *r, size_t nesting_max, struct bytes *ret)
{
    struct level levels[CBOR_NESTING_MAX];
    size_t depth = 0;
    const uint8_t *start = r->at;

    do {
        const uint8_t *at = r->at;
        struct cbor_head h;
        enum cbor_fault fault = cbor_read_head(r, &h);
        bool opened = false;

        if (fault != CBOR_OK)
            return fault;
        switch (h.type) {
        case CBOR_BREAK:
            if (depth == 0 || !levels[depth - 1].indefinite || levels[depth - 1].key_read) {
                r->at = at;
                return CBOR_FAULT_BREAK;
            }
            depth--;
            break;
        case CBOR_BYTES:
        case CBOR_TEXT:
            if (h.indefinite)
                fault = read_chunks(r, h.type);
            else if (h.type == CBOR_TEXT)
                fault = check_text(r, h.str);
            if (fault != CBOR_OK)
                return fault;
            break;
        case CBOR_ARRAY:
        case CBOR_MAP:
        case CBOR_TAG:
            if (depth == nesting_max) {
                r->at = at;
                return CBOR_FAULT_NESTING;
            }
            levels[depth] = (struct level){
                .left = h.arg,
                .indefinite = h.indefinite,
                .map = h.type == CBOR_MAP,
            };
            if (h.type == CBOR_MAP)
                levels[depth].left *= 2;
            else if (h.type == CBOR_TAG)
                levels[depth].left = 1;
            opened = levels[depth].indefinite || levels[depth].left > 0;
            depth += opened;
            break;
        default:
            break;
        }

        /* An item has ended, and with it perhaps those around it. */
        while (!opened && depth > 0) {
            struct level *l = &levels[depth - 1];

            if (l->indefinite) {
                l->key_read = l->map && !l->key_read;
                break;
            }
            if (--l->left > 0)
                break;
            depth--;
        }
    } while (depth > 0);

    if (ret)
        *ret = (struct bytes){start, (size_t)(r->at - start)};
    return CBOR_OK;
}

enum cbor_fault cbor_read_item(struct cbor_reader *r, struct bytes *ret)
{
    return read_item(r, CBOR_NESTING_MAX, ret);
}

enum cbor_fault cbor_check(struct bytes in, size_t *ret_offset)
{
    return cbor_check_inside(in, 0, ret_offset);
}

enum cbor_fault cbor_check_inside(struct bytes in, size_t levels, size_t *ret_offset)
{
    struct cbor_reader r = cbor_reader_init(in);
    size_t nesting_max = levels < CBOR_NESTING_MAX ? CBOR_NESTING_MAX - levels : 0;
    enum cbor_fault fault = read_item(&r, nesting_max, NULL);

    if (fault == CBOR_OK && r.at != r.end)
        fault = CBOR_FAULT_TRAILING;
    if (fault != CBOR_OK && ret_offset)
        *ret_offset = (size_t)(r.at - r.start);
    return fault;
}

/* A definite item of one type, or CBOR_FAULT_TYPE; on a fault the reader is where it was, and *h of no meaning. */
static enum cbor_fault read_typed(struct cbor_reader *r, enum cbor_kind type, struct cbor_head *h)
{
    const uint8_t *at = r->at;
    enum cbor_fault fault = cbor_read_head(r, h);

    if (fault != CBOR_OK || (h->type == type && !h->indefinite))
        return fault;
    r->at = at;
    return CBOR_FAULT_TYPE;
}

enum cbor_fault cbor_read_uint(struct cbor_reader *r, uint64_t *ret)
{
    struct cbor_head h;
    enum cbor_fault fault = read_typed(r, CBOR_UINT, &h);

    if (fault == CBOR_OK)
        *ret = h.arg;
    return fault;
}

enum cbor_fault cbor_read_int(struct cbor_reader *r, int64_t *ret)
{
    const uint8_t *at = r->at;
    struct cbor_head h;
    enum cbor_fault fault = cbor_read_head(r, &h);

    if (fault != CBOR_OK)
        return fault;
    if ((h.type != CBOR_UINT && h.type != CBOR_NINT) || h.arg > INT64_MAX) {
        r->at = at;
        return CBOR_FAULT_TYPE;
    }
    *ret = h.type == CBOR_UINT ? (int64_t)h.arg : -1 - (int64_t)h.arg;
    return CBOR_OK;
}

enum cbor_fault cbor_read_text(struct cbor_reader *r, struct bytes *ret)
{
    const uint8_t *at = r->at;
    struct cbor_head h;
    enum cbor_fault fault = read_typed(r, CBOR_TEXT, &h);

    if (fault != CBOR_OK)
        return fault;
    if (!text_is_utf8(h.str)) {
        r->at = at;
        return CBOR_FAULT_UTF8;
    }
    *ret = h.str;
    return CBOR_OK;
}

enum cbor_fault cbor_read_bytes(struct cbor_reader *r, struct bytes *ret)
{
    struct cbor_head h;
    enum cbor_fault fault = read_typed(r, CBOR_BYTES, &h);

    if (fault == CBOR_OK)
        *ret = h.str;
    return fault;
}

enum cbor_fault cbor_read_bool(struct cbor_reader *r, bool *ret)
{
    const uint8_t *at = r->at;
    struct cbor_head h;
    enum cbor_fault fault = read_typed(r, CBOR_SIMPLE, &h);

    if (fault != CBOR_OK)
        return fault;
    if (h.arg != CBOR_SIMPLE_FALSE && h.arg != CBOR_SIMPLE_TRUE) {
        r->at = at;
        return CBOR_FAULT_TYPE;
    }
    *ret = h.arg == CBOR_SIMPLE_TRUE;
    return CBOR_OK;
}

enum cbor_fault cbor_read_array(struct cbor_reader *r, uint64_t *ret_n)
{
    struct cbor_head h;
    enum cbor_fault fault = read_typed(r, CBOR_ARRAY, &h);

    if (fault == CBOR_OK)
        *ret_n = h.arg;
    return fault;
}

enum cbor_fault cbor_read_map(struct cbor_reader *r, uint64_t *ret_n)
{
    struct cbor_head h;
    enum cbor_fault fault = read_typed(r, CBOR_MAP, &h);

    if (fault == CBOR_OK)
        *ret_n = h.arg;
    return fault;
}
