/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cbor.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/*
 * Both printers check the whole item first and then walk it by recursion: the
 * check has bounded the depth, so the walk needs no fault paths and nothing is
 * appended for an item at fault.
 *
 * Output is linear in the input. The one trap is a map whose key is a map whose
 * key is a map: JSON text inside a JSON string inside a JSON string doubles its
 * backslashes at every level. So a key that is an array or a map is printed in
 * diagnostic notation, which nests without quoting, and is quoted once.
 */

/* The next head of an item that cbor_check has passed. */
static struct cbor_head next_head(struct cbor_reader *r)
{
    struct cbor_head h;

    if (cbor_read_head(r, &h) != CBOR_OK)
        return (struct cbor_head){.type = CBOR_BREAK};
    return h;
}

/* Whether an array or map has another item or pair; moves behind the break of an indefinite one. */
static bool more_items(struct cbor_reader *r, const struct cbor_head *container, uint64_t i)
{
    if (!container->indefinite)
        return i < container->arg;
    if (r->at == r->end)
        return false;
    if (*r->at != 0xff)
        return true;
    r->at++;
    return false;
}

/* The chunks of a string, one for a definite one; moves behind the break of an indefinite one. */
static bool next_chunk(struct cbor_reader *r, const struct cbor_head *string, size_t i,
                       struct bytes *ret)
{
    if (!string->indefinite) {
        *ret = string->str;
        return i == 0;
    }
    struct cbor_head h = next_head(r);

    *ret = h.str;
    return h.type != CBOR_BREAK;
}

/* ---- numbers ---- */

static void put_integer(struct buf *out, const struct cbor_head *h)
{
    if (h->type == CBOR_UINT)
        buf_printf(out, "%" PRIu64, h->arg);
    else if (h->arg == UINT64_MAX) /* the value is -1 - arg */
        buf_append_str(out, "-18446744073709551616");
    else
        buf_printf(out, "-%" PRIu64, h->arg + 1);
}

static void put_zeros(struct buf *out, int n)
{
    for (int i = 0; i < n; i++)
        buf_append_u8(out, '0');
}

/*
 * The fewest digits that read back as the same number, laid out as in RFC 8949
 * appendix A: like ECMAScript's, but always with a decimal point. The digits are
 * picked out of %e so that the locale's decimal sign does not matter.
 */
static void put_finite(struct buf *out, double v)
{
    char raw[48], digits[24];
    int n_digits = 0;
    /* 15 digits survive the way through a normal double: if they suffice, what is shorter shows as
     * zeros at their end. */
    int precision = fabs(v) < DBL_MIN ? 0 : DBL_DIG - 1;

    for (;; precision++) {
        (void)snprintf(raw, sizeof raw, "%.*e", precision, fabs(v));
        if (precision == DBL_DECIMAL_DIG - 1 || strtod(raw, NULL) == fabs(v))
            break;
        /* At a power of two the numbers above lie twice as far apart as those below, and the
         * decimal next above may do where the nearest, below, does not. */
        char *last = strchr(raw, 'e') - 1;

        if (*last >= '0' && *last < '9' && (++*last, strtod(raw, NULL) == fabs(v)))
            break;
    }
    const char *e = strchr(raw, 'e');

    for (const char *p = raw; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digits[n_digits++] = *p;
    while (n_digits > 1 && digits[n_digits - 1] == '0')
        n_digits--;

    int point = (int)strtol(e + 1, NULL, 10) + 1; /* digits before the decimal point */

    if (signbit(v))
        buf_append_u8(out, '-');
    if (point > 21 || point <= -6) {
        buf_append(out, digits, 1);
        buf_append_u8(out, '.');
        if (n_digits == 1)
            buf_append_u8(out, '0');
        else
            buf_append(out, digits + 1, (size_t)n_digits - 1);
        buf_printf(out, "e%+d", point - 1);
    } else if (point <= 0) {
        buf_append_str(out, "0.");
        put_zeros(out, -point);
        buf_append(out, digits, (size_t)n_digits);
    } else if (point < n_digits) {
        buf_append(out, digits, (size_t)point);
        buf_append_u8(out, '.');
        buf_append(out, digits + point, (size_t)(n_digits - point));
    } else {
        buf_append(out, digits, (size_t)n_digits);
        put_zeros(out, point - n_digits);
        buf_append_str(out, ".0");
    }
}

/* Longer bignums are printed as tag and bytes: conversion to decimal takes quadratic time. */
#define BIGNUM_DECIMAL_MAX 64

/* A bignum as a decimal number; false, and nothing printed, when it is long or not in preferred
 * form (leading zeros, or small enough for an integer), so that what is printed tells the encoding.
 */
static bool put_bignum(struct buf *out, struct bytes magnitude, bool negative)
{
    uint8_t n[BIGNUM_DECIMAL_MAX + 1] = {0};
    size_t size = magnitude.size + 1;
    uint32_t groups[(sizeof n * 8) / 29 + 1]; /* of nine decimal digits, the lowest first */
    size_t n_groups = 0, first = 0;

    if (magnitude.size <= 8 || magnitude.size > BIGNUM_DECIMAL_MAX || magnitude.data[0] == 0)
        return false;
    memcpy(n + 1, magnitude.data, magnitude.size);
    if (negative) /* the value is -1 - n */
        for (size_t i = size; i-- > 0;)
            if (++n[i] != 0)
                break;
    while (first < size) {
        uint64_t remainder = 0;

        for (size_t i = first; i < size; i++) {
            uint64_t v = remainder << 8 | n[i];

            n[i] = (uint8_t)(v / 1000000000);
            remainder = v % 1000000000;
        }
        groups[n_groups++] = (uint32_t)remainder;
        while (first < size && n[first] == 0)
            first++;
    }
    if (negative)
        buf_append_u8(out, '-');
    buf_printf(out, "%" PRIu32, groups[--n_groups]);
    while (n_groups > 0)
        buf_printf(out, "%09" PRIu32, groups[--n_groups]);
    return true;
}

/* ---- strings ---- */

enum string_style {
    STRING_JSON,
    STRING_DIAGNOSTIC,
    STRING_DIAGNOSTIC_IN_JSON, /* diagnostic notation that itself stands inside a JSON string */
};

static void put_escape(struct buf *out, uint32_t code_point, enum string_style style)
{
    static const char letters[] = "\bb\ff\nn\rr\tt";
    const char *backslash = style == STRING_DIAGNOSTIC_IN_JSON ? "\\\\" : "\\";

    buf_append_str(out, backslash);
    if (code_point == '"' || code_point == '\\') {
        if (style == STRING_DIAGNOSTIC_IN_JSON)
            buf_append_u8(out, '\\');
        buf_append_u8(out, (uint8_t)code_point);
        return;
    }
    for (size_t i = 0; style == STRING_JSON && i < sizeof letters - 1; i += 2)
        if ((uint32_t)letters[i] == code_point) {
            buf_append_u8(out, (uint8_t)letters[i + 1]);
            return;
        }
    buf_printf(out, "u%04" PRIx32, code_point);
}

/* The inside of a quoted string. */
static void put_text(struct buf *out, struct bytes text, enum string_style style)
{
    size_t copied = 0, i = 0;

    while (i < text.size) {
        uint32_t code_point = text.data[i];
        size_t n = 1;

        if (code_point >= 0x80) {
            n = text_utf8_sequence(text.data + i, text.size - i, &code_point);
            if (n == 0) { /* a caller of json_put_string broke its word: U+FFFD */
                buf_append(out, text.data + copied, i - copied);
                buf_append_str(out, "\xef\xbf\xbd");
                copied = ++i;
                continue;
            }
        }
        if (code_point == '"' || code_point == '\\' || !text_is_visible(code_point)) {
            buf_append(out, text.data + copied, i - copied);
            put_escape(out, code_point, style);
            copied = i + n;
        }
        i += n;
    }
    buf_append(out, text.data + copied, text.size - copied);
}

static void put_quote(struct buf *out, enum string_style style)
{
    buf_append_str(out, style == STRING_DIAGNOSTIC_IN_JSON ? "\\\"" : "\"");
}

static void put_quoted(struct buf *out, struct bytes text, enum string_style style)
{
    put_quote(out, style);
    put_text(out, text, style);
    put_quote(out, style);
}

void json_put_string(struct buf *out, struct bytes text)
{
    put_quoted(out, text, STRING_JSON);
}

static void put_hex(struct buf *out, struct bytes v, const char *digits)
{
    for (size_t i = 0; i < v.size; i++) {
        const char pair[2] = {digits[v.data[i] >> 4], digits[v.data[i] & 0xf]};

        buf_append(out, pair, sizeof pair);
    }
}

/* ---- diagnostic notation ---- */

static void diagnostic_item(struct cbor_reader *r, struct buf *out, enum string_style style);

static void diagnostic_string(struct cbor_reader *r, const struct cbor_head *h, struct buf *out,
                              enum string_style style)
{
    struct bytes chunk;
    size_t n = 0;

    for (; next_chunk(r, h, n, &chunk); n++) {
        if (h->indefinite)
            buf_append_str(out, n == 0 ? "(_ " : ", ");
        if (h->type == CBOR_BYTES) {
            buf_append_str(out, "h'");
            put_hex(out, chunk, "0123456789abcdef");
            buf_append_u8(out, '\'');
        } else {
            put_quoted(out, chunk, style);
        }
    }
    if (n > 0) {
        if (h->indefinite)
            buf_append_u8(out, ')');
        return;
    }
    /* No chunk at all, which is not the same as an empty one. */
    if (h->type == CBOR_BYTES) {
        buf_append_str(out, "''");
    } else {
        put_quote(out, style);
        put_quote(out, style);
    }
    buf_append_u8(out, '_');
}

static void diagnostic_container(struct cbor_reader *r, const struct cbor_head *h, struct buf *out,
                                 enum string_style style)
{
    bool map = h->type == CBOR_MAP;

    buf_append_u8(out, map ? '{' : '[');
    if (h->indefinite)
        buf_append_str(out, "_ ");
    for (uint64_t i = 0; more_items(r, h, i); i++) {
        if (i > 0)
            buf_append_str(out, ", ");
        diagnostic_item(r, out, style);
        if (map) {
            buf_append_str(out, ": ");
            diagnostic_item(r, out, style);
        }
    }
    buf_append_u8(out, map ? '}' : ']');
}

static void diagnostic_tag(struct cbor_reader *r, uint64_t tag, struct buf *out,
                           enum string_style style)
{
    struct cbor_reader ahead = *r;
    struct cbor_head inner = next_head(&ahead);

    if ((tag == 2 || tag == 3) && inner.type == CBOR_BYTES && !inner.indefinite &&
        put_bignum(out, inner.str, tag == 3)) {
        *r = ahead;
        return;
    }
    buf_printf(out, "%" PRIu64 "(", tag);
    diagnostic_item(r, out, style);
    buf_append_u8(out, ')');
}

static void diagnostic_simple(uint64_t value, struct buf *out)
{
    switch (value) {
    case CBOR_SIMPLE_FALSE:
        buf_append_str(out, "false");
        break;
    case CBOR_SIMPLE_TRUE:
        buf_append_str(out, "true");
        break;
    case CBOR_SIMPLE_NULL:
        buf_append_str(out, "null");
        break;
    case CBOR_SIMPLE_UNDEFINED:
        buf_append_str(out, "undefined");
        break;
    default:
        buf_printf(out, "simple(%" PRIu64 ")", value);
        break;
    }
}

static void diagnostic_item(struct cbor_reader *r, struct buf *out, enum string_style style)
{
    struct cbor_head h = next_head(r);

    switch (h.type) {
    case CBOR_UINT:
    case CBOR_NINT:
        put_integer(out, &h);
        break;
    case CBOR_BYTES:
    case CBOR_TEXT:
        diagnostic_string(r, &h, out, style);
        break;
    case CBOR_ARRAY:
    case CBOR_MAP:
        diagnostic_container(r, &h, out, style);
        break;
    case CBOR_TAG:
        diagnostic_tag(r, h.arg, out, style);
        break;
    case CBOR_SIMPLE:
        diagnostic_simple(h.arg, out);
        break;
    case CBOR_FLOAT:
        if (isnan(h.number))
            buf_append_str(out, "NaN");
        else if (isinf(h.number))
            buf_append_str(out, h.number < 0 ? "-Infinity" : "Infinity");
        else
            put_finite(out, h.number);
        break;
    case CBOR_BREAK:
        break;
    }
}

enum cbor_fault cbor_print_diagnostic(struct bytes item, struct buf *out)
{
    struct cbor_reader r = cbor_reader_init(item);
    enum cbor_fault fault = cbor_check(item, NULL);

    if (fault == CBOR_OK)
        diagnostic_item(&r, out, STRING_DIAGNOSTIC);
    return fault;
}

/* ---- JSON ---- */

/* How byte strings are written; the numbers are those of the tags that ask for it. */
enum bytes_form { FORM_BASE64URL = 21, FORM_BASE64 = 22, FORM_BASE16 = 23 };

static void json_item(struct cbor_reader *r, struct buf *out, enum bytes_form form);

/* Up to three bytes as base64; fewer than three are the last of the string. */
static void put_base64(struct buf *out, const uint8_t *in, size_t n, enum bytes_form form)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const char *last = form == FORM_BASE64 ? "+/" : "-_";
    uint32_t v = (uint32_t)in[0] << 16;
    char quad[4];

    if (n > 1)
        v |= (uint32_t)in[1] << 8;
    if (n > 2)
        v |= in[2];
    for (size_t i = 0; i < sizeof quad; i++) {
        uint32_t six = v >> (18 - 6 * i) & 0x3f;

        quad[i] = six < 62 ? letters[six] : last[six - 62];
        if (i > n)
            quad[i] = '=';
    }
    buf_append(out, quad, form == FORM_BASE64 ? sizeof quad : n + 1);
}

/* Chunks join to one string before they are encoded: bytes that do not fill three are carried over.
 */
static void json_bytes(struct cbor_reader *r, const struct cbor_head *h, struct buf *out,
                       enum bytes_form form)
{
    struct bytes chunk;
    uint8_t carried[3];
    size_t n_carried = 0;

    for (size_t i = 0; next_chunk(r, h, i, &chunk); i++) {
        if (form == FORM_BASE16) {
            put_hex(out, chunk, "0123456789ABCDEF");
            continue;
        }
        for (size_t k = 0; k < chunk.size; k++) {
            carried[n_carried++] = chunk.data[k];
            if (n_carried == sizeof carried) {
                put_base64(out, carried, n_carried, form);
                n_carried = 0;
            }
        }
    }
    if (n_carried > 0)
        put_base64(out, carried, n_carried, form);
}

static void json_string(struct cbor_reader *r, const struct cbor_head *h, struct buf *out,
                        enum bytes_form form)
{
    struct bytes chunk;

    buf_append_u8(out, '"');
    if (h->type == CBOR_BYTES)
        json_bytes(r, h, out, form);
    else
        for (size_t i = 0; next_chunk(r, h, i, &chunk); i++)
            put_text(out, chunk, STRING_JSON);
    buf_append_u8(out, '"');
}

static void json_key(struct cbor_reader *r, struct buf *out, enum bytes_form form)
{
    struct cbor_reader ahead = *r;
    struct cbor_head h;

    do
        h = next_head(&ahead);
    while (h.type == CBOR_TAG);
    if (h.type == CBOR_TEXT || h.type == CBOR_BYTES) { /* a JSON string by itself */
        json_item(r, out, form);
        return;
    }
    buf_append_u8(out, '"');
    if (h.type == CBOR_ARRAY || h.type == CBOR_MAP)
        diagnostic_item(r, out, STRING_DIAGNOSTIC_IN_JSON);
    else
        json_item(r, out, form);
    buf_append_u8(out, '"');
}

static void json_container(struct cbor_reader *r, const struct cbor_head *h, struct buf *out,
                           enum bytes_form form)
{
    bool map = h->type == CBOR_MAP;

    buf_append_u8(out, map ? '{' : '[');
    for (uint64_t i = 0; more_items(r, h, i); i++) {
        if (i > 0)
            buf_append_u8(out, ',');
        if (map) {
            json_key(r, out, form);
            buf_append_u8(out, ':');
        }
        json_item(r, out, form);
    }
    buf_append_u8(out, map ? '}' : ']');
}

static void json_tag(struct cbor_reader *r, uint64_t tag, struct buf *out, enum bytes_form form)
{
    struct cbor_reader ahead = *r;
    struct cbor_head inner = next_head(&ahead);

    if ((tag == 2 || tag == 3) && inner.type == CBOR_BYTES) {
        *r = ahead;
        buf_append_str(out, tag == 3 ? "\"~" : "\"");
        json_bytes(r, &inner, out, FORM_BASE64URL);
        buf_append_u8(out, '"');
        return;
    }
    if (tag == FORM_BASE64URL || tag == FORM_BASE64 || tag == FORM_BASE16)
        form = (enum bytes_form)tag;
    json_item(r, out, form);
}

static void json_item(struct cbor_reader *r, struct buf *out, enum bytes_form form)
{
    struct cbor_head h = next_head(r);

    switch (h.type) {
    case CBOR_UINT:
    case CBOR_NINT:
        put_integer(out, &h);
        break;
    case CBOR_BYTES:
    case CBOR_TEXT:
        json_string(r, &h, out, form);
        break;
    case CBOR_ARRAY:
    case CBOR_MAP:
        json_container(r, &h, out, form);
        break;
    case CBOR_TAG:
        json_tag(r, h.arg, out, form);
        break;
    case CBOR_SIMPLE:
        if (h.arg == CBOR_SIMPLE_FALSE || h.arg == CBOR_SIMPLE_TRUE)
            diagnostic_simple(h.arg, out);
        else
            buf_append_str(out, "null");
        break;
    case CBOR_FLOAT:
        if (isfinite(h.number))
            put_finite(out, h.number);
        else
            buf_append_str(out, "null");
        break;
    case CBOR_BREAK:
        break;
    }
}

enum cbor_fault cbor_print_json(struct bytes item, struct buf *out)
{
    struct cbor_reader r = cbor_reader_init(item);
    enum cbor_fault fault = cbor_check(item, NULL);

    if (fault == CBOR_OK)
        json_item(&r, out, FORM_BASE64URL);
    return fault;
}
