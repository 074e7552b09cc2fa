/* SPDX-License-Identifier: PostgreSQL */
/*
 * Printing CBOR. Diagnostic notation is read again by the parser below and must give the item back;
 * JSON is read by jansson and compared with the item value by value. Neither may hold anything that
 * a terminal would not show.
 */
#include "codec/cbor.h"

#include <jansson.h>
#include <math.h>

#include "base/text.h"
#include "fuzz.h"
#include "rewrite.h"

/* ---- diagnostic notation back to CBOR ---- */

static void parse_item(const char **at, struct buf *out);

static void take(const char **at, const char *word)
{
    FUZZ_CHECK(strncmp(*at, word, strlen(word)) == 0);
    *at += strlen(word);
}

static bool try(const char **at, const char *word)
{
    if (strncmp(*at, word, strlen(word)) != 0)
        return false;
    *at += strlen(word);
    return true;
}

static unsigned hex_digit(char c)
{
    FUZZ_CHECK((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'));
    return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static void put_utf8(struct buf *out, unsigned v)
{
    if (v < 0x80) {
        buf_append_u8(out, (uint8_t)v);
    } else if (v < 0x800) {
        buf_append_u8(out, (uint8_t)(0xc0 | v >> 6));
        buf_append_u8(out, (uint8_t)(0x80 | (v & 0x3f)));
    } else {
        buf_append_u8(out, (uint8_t)(0xe0 | v >> 12));
        buf_append_u8(out, (uint8_t)(0x80 | (v >> 6 & 0x3f)));
        buf_append_u8(out, (uint8_t)(0x80 | (v & 0x3f)));
    }
}

/* "…" */
static void parse_text(const char **at, struct buf *content)
{
    take(at, "\"");
    while (**at != '"') {
        FUZZ_CHECK(**at != '\0');
        if (!try(at, "\\")) {
            buf_append_u8(content, (uint8_t) * (*at)++);
        } else if (try(at, "u")) {
            unsigned v = 0;

            for (int i = 0; i < 4; i++)
                v = v << 4 | hex_digit(*(*at)++);
            put_utf8(content, v);
        } else {
            FUZZ_CHECK(**at == '"' || **at == '\\');
            buf_append_u8(content, (uint8_t) * (*at)++);
        }
    }
    (*at)++;
}

/* h'…' */
static void parse_hex(const char **at, struct buf *content)
{
    take(at, "h'");
    while (!try(at, "'")) {
        unsigned high = hex_digit(*(*at)++);

        buf_append_u8(content, (uint8_t)(high << 4 | hex_digit(*(*at)++)));
    }
}

/* One string of definite length; whether it was text. */
static bool parse_string(const char **at, struct buf *out)
{
    bool text = **at == '"';
    struct buf content = BUF_INIT;

    if (text) {
        parse_text(at, &content);
        cbor_put_text(out, buf_bytes(&content));
    } else {
        parse_hex(at, &content);
        cbor_put_bytes(out, buf_bytes(&content));
    }
    buf_deinit(&content);
    return text;
}

static void parse_chunks(const char **at, struct buf *out)
{
    struct buf chunks = BUF_INIT;
    bool text = false;

    take(at, "(_ ");
    do
        text = parse_string(at, &chunks);
    while (try(at, ", "));
    take(at, ")");
    buf_append_u8(out, text ? 0x7f : 0x5f);
    buf_append(out, chunks.data, chunks.size);
    buf_append_u8(out, 0xff);
    buf_deinit(&chunks);
}

static void parse_container(const char **at, struct buf *out)
{
    bool map = **at == '{', indefinite;
    const char *close = map ? "}" : "]";
    struct buf inside = BUF_INIT;
    uint64_t n = 0;

    (*at)++;
    indefinite = try(at, "_ ");
    while (!try(at, close)) {
        if (n++ > 0)
            take(at, ", ");
        parse_item(at, &inside);
        if (map) {
            take(at, ": ");
            parse_item(at, &inside);
        }
    }
    if (indefinite)
        buf_append_u8(out, map ? 0xbf : 0x9f);
    else if (map)
        cbor_put_map(out, n);
    else
        cbor_put_array(out, n);
    buf_append(out, inside.data, inside.size);
    if (indefinite)
        buf_append_u8(out, 0xff);
    buf_deinit(&inside);
}

/* Bytes of the largest bignum that is printed as a number, and one more. */
#define BIG_SIZE 66

static void put_integer(struct buf *out, const char *digits, size_t n, bool negative)
{
    uint8_t big[BIG_SIZE] = {0};
    size_t first = 0;

    for (size_t i = 0; i < n; i++) { /* big = big * 10 + digit */
        unsigned carry = (unsigned)(digits[i] - '0');

        for (size_t k = BIG_SIZE; k-- > 0;) {
            carry += big[k] * 10u;
            big[k] = (uint8_t)carry;
            carry >>= 8;
        }
        FUZZ_CHECK(carry == 0);
    }
    if (negative) { /* the argument of -v is v - 1 */
        size_t k = BIG_SIZE;

        while (k > 0 && big[--k]-- == 0) {
        }
    }
    while (first < BIG_SIZE && big[first] == 0)
        first++;
    if (BIG_SIZE - first > 8) {
        cbor_put_tag(out, negative ? 3 : 2);
        cbor_put_bytes(out, (struct bytes){big + first, BIG_SIZE - first});
        return;
    }
    size_t before = out->size;
    cbor_put_uint(out, bytes_get_u64(big + BIG_SIZE - 8));
    if (negative)
        out->data[before] |= 0x20;
}

/* A number, or a tag: that is a number with an item in parentheses. */
static void parse_number(const char **at, struct buf *out)
{
    const char *start = *at;
    size_t n = strspn(start, "+-.0123456789e");

    FUZZ_CHECK(n > 0);
    *at += n;
    if (memchr(start, '.', n)) {
        char *end;

        cbor_put_double(out, strtod(start, &end));
        FUZZ_CHECK(end == *at);
        return;
    }
    bool negative = *start == '-';
    FUZZ_CHECK(strspn(start + negative, "0123456789") == n - negative);
    if (try(at, "(")) {
        cbor_put_tag(out, strtoull(start, NULL, 10));
        parse_item(at, out);
        take(at, ")");
        return;
    }
    put_integer(out, start + negative, n - negative, negative);
}

static void parse_item(const char **at, struct buf *out)
{
    static const struct {
        const char *word;
        const char *bytes;
        size_t size;
    } words[] = {
        {"false", "\xf4", 1},
        {"true", "\xf5", 1},
        {"null", "\xf6", 1},
        {"undefined", "\xf7", 1},
        {"NaN", "\xf9\x7e\x00", 3},
        {"Infinity", "\xf9\x7c\x00", 3},
        {"-Infinity", "\xf9\xfc\x00", 3},
        {"''_", "\x5f\xff", 2},
        {"\"\"_", "\x7f\xff", 2},
    };

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (try(at, words[i].word)) {
            buf_append(out, words[i].bytes, words[i].size);
            return;
        }
    if (try(at, "simple(")) {
        char *end;
        unsigned long v = strtoul(*at, &end, 10);

        FUZZ_CHECK(v < 256);
        if (v >= 24)
            buf_append_u8(out, 0xf8);
        buf_append_u8(out, (uint8_t)(v < 24 ? 0xe0 | v : v));
        *at = end;
        take(at, ")");
    } else if (**at == '[' || **at == '{') {
        parse_container(at, out);
    } else if (**at == '(') {
        parse_chunks(at, out);
    } else if (**at == '"' || **at == 'h') {
        (void)parse_string(at, out);
    } else {
        parse_number(at, out);
    }
}

/* ---- JSON against the item ---- */

/* What RFC 8949 6.1 makes of byte strings, by tag. */
enum form { FORM_URL = 21, FORM_BASE64 = 22, FORM_HEX = 23 };

static void compare(struct cbor_reader *r, const json_t *json, enum form form);

static struct cbor_head head_of(struct cbor_reader *r)
{
    struct cbor_head h;

    FUZZ_CHECK(cbor_read_head(r, &h) == CBOR_OK);
    return h;
}

static struct buf content_of(struct cbor_reader *r, const struct cbor_head *string)
{
    struct buf content = BUF_INIT;

    if (!string->indefinite) {
        buf_append(&content, string->str.data, string->str.size);
        return content;
    }
    for (struct cbor_head h = head_of(r); h.type != CBOR_BREAK; h = head_of(r))
        buf_append(&content, h.str.data, h.str.size);
    return content;
}

static unsigned position_in(const char *alphabet, char c)
{
    const char *at = c ? strchr(alphabet, c) : NULL;

    FUZZ_CHECK(at != NULL);
    return (unsigned)(at - alphabet);
}

/* The bytes that a text of this form stands for. Bits left over must be zero. */
static struct buf decode_bytes(const char *text, size_t size, enum form form)
{
    static const char url[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    static const char standard[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct buf out = BUF_INIT;
    unsigned bits = form == FORM_HEX ? 4 : 6, have = 0;
    uint32_t v = 0;

    if (form == FORM_BASE64) {
        FUZZ_CHECK(size % 4 == 0);
        for (int i = 0; i < 2 && size > 0 && text[size - 1] == '='; i++)
            size--;
    }
    for (size_t i = 0; i < size; i++) {
        const char *alphabet = form == FORM_HEX   ? "0123456789ABCDEF"
                               : form == FORM_URL ? url
                                                  : standard;

        v = (v << bits | position_in(alphabet, text[i])) & 0xffff;
        have += bits;
        if (have >= 8) {
            have -= 8;
            buf_append_u8(&out, (uint8_t)(v >> have));
        }
    }
    FUZZ_CHECK(have < bits && (v & ((1u << have) - 1)) == 0);
    return out;
}

static void compare_bytes(struct cbor_reader *r, const struct cbor_head *h, const json_t *json,
                          enum form form, bool negative)
{
    const char *text = json_string_value(json);
    struct buf want = content_of(r, h);

    FUZZ_CHECK(text != NULL && (!negative || *text == '~'));
    struct buf got = decode_bytes(text + negative, json_string_length(json) - negative, form);
    FUZZ_CHECK(bytes_equal(buf_bytes(&got), buf_bytes(&want)));
    buf_deinit(&got);
    buf_deinit(&want);
}

static void compare_text(struct cbor_reader *r, const struct cbor_head *h, const json_t *json)
{
    struct buf want = content_of(r, h);

    FUZZ_CHECK(json_is_string(json));
    FUZZ_CHECK(bytes_equal(
        (struct bytes){(const uint8_t *)json_string_value(json), json_string_length(json)},
        buf_bytes(&want)));
    buf_deinit(&want);
}

static bool more(struct cbor_reader *r, const struct cbor_head *h, uint64_t i)
{
    if (!h->indefinite)
        return i < h->arg;
    if (*r->at != 0xff)
        return true;
    r->at++;
    return false;
}

/* The pairs of a map are compared when each key is text of its own; others become text, and keys
 * that are then the same are one member. */
static void compare_map(struct cbor_reader *r, const struct cbor_head *h, const json_t *json,
                        enum form form)
{
    struct cbor_reader first = *r;
    uint64_t n = 0;
    bool texts = true;

    FUZZ_CHECK(json_is_object(json));
    for (; more(r, h, n); n++) {
        texts = texts && *r->at >> 5 == CBOR_TEXT;
        FUZZ_CHECK(cbor_read_item(r, NULL) == CBOR_OK && cbor_read_item(r, NULL) == CBOR_OK);
    }
    FUZZ_CHECK(json_object_size(json) <= n && (json_object_size(json) > 0) == (n > 0));
    if (!texts || json_object_size(json) < n)
        return;
    for (uint64_t i = 0; more(&first, h, i); i++) {
        struct cbor_head key_head = head_of(&first);
        struct buf key = content_of(&first, &key_head);
        const json_t *value = json_object_get(json, buf_str(&key));

        FUZZ_CHECK(value != NULL);
        compare(&first, value, form);
        buf_deinit(&key);
    }
}

static void compare_tag(struct cbor_reader *r, uint64_t tag, const json_t *json, enum form form)
{
    struct cbor_reader ahead = *r;
    struct cbor_head inner = head_of(&ahead);

    if ((tag == 2 || tag == 3) && inner.type == CBOR_BYTES) {
        *r = ahead;
        compare_bytes(r, &inner, json, FORM_URL, tag == 3);
        return;
    }
    compare(r, json, tag >= FORM_URL && tag <= FORM_HEX ? (enum form)tag : form);
}

static void compare(struct cbor_reader *r, const json_t *json, enum form form)
{
    struct cbor_head h = head_of(r);
    double number = json_is_real(json) ? json_real_value(json) : NAN;
    uint64_t i = 0;

    switch (h.type) {
    case CBOR_UINT:
        FUZZ_CHECK(number == (double)h.arg);
        break;
    case CBOR_NINT:
        FUZZ_CHECK(number == (h.arg == UINT64_MAX ? -0x1p64 : -(double)(h.arg + 1)));
        break;
    case CBOR_BYTES:
        compare_bytes(r, &h, json, form, false);
        break;
    case CBOR_TEXT:
        compare_text(r, &h, json);
        break;
    case CBOR_ARRAY:
        FUZZ_CHECK(json_is_array(json));
        for (; more(r, &h, i); i++)
            compare(r, json_array_get(json, (size_t)i), form);
        FUZZ_CHECK(json_array_size(json) == i);
        break;
    case CBOR_MAP:
        compare_map(r, &h, json, form);
        break;
    case CBOR_TAG:
        compare_tag(r, h.arg, json, form);
        break;
    case CBOR_SIMPLE:
        FUZZ_CHECK(h.arg == CBOR_SIMPLE_TRUE    ? json_is_true(json)
                   : h.arg == CBOR_SIMPLE_FALSE ? json_is_false(json)
                                                : json_is_null(json));
        break;
    case CBOR_FLOAT:
        if (isfinite(h.number))
            FUZZ_CHECK(number == h.number && signbit(number) == signbit(h.number));
        else
            FUZZ_CHECK(json_is_null(json));
        break;
    case CBOR_BREAK:
        FUZZ_CHECK(!"a break in a well-formed item");
        break;
    }
}

/* ---- both ---- */

static void check_visible(struct bytes text)
{
    for (size_t i = 0; i < text.size;) {
        uint32_t code_point;
        size_t n = text_utf8_sequence(text.data + i, text.size - i, &code_point);

        FUZZ_CHECK(n > 0 && text_is_visible(code_point));
        i += n;
    }
}

static void check_diagnostic(struct bytes in)
{
    struct buf text = BUF_INIT, back = BUF_INIT, want = BUF_INIT;

    FUZZ_CHECK(cbor_print_diagnostic(in, &text) == CBOR_OK);
    check_visible(buf_bytes(&text));
    const char *at = buf_str(&text);
    parse_item(&at, &back);
    FUZZ_CHECK(*at == '\0');
    (void)rewrite(in, false, &want);
    FUZZ_CHECK(bytes_equal(buf_bytes(&back), buf_bytes(&want)));
    buf_deinit(&text);
    buf_deinit(&back);
    buf_deinit(&want);
}

static void check_json(struct bytes in)
{
    struct buf text = BUF_INIT, definite = BUF_INIT, text_of_definite = BUF_INIT;
    struct cbor_reader r = cbor_reader_init(in);
    json_error_t error;

    FUZZ_CHECK(cbor_print_json(in, &text) == CBOR_OK);
    check_visible(buf_bytes(&text));
    json_t *json = json_loadb((const char *)text.data, text.size,
                              JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &error);
    if (json) {
        compare(&r, json, FORM_URL);
        FUZZ_CHECK(r.at == r.end);
    } else { /* what jansson cannot hold */
        FUZZ_CHECK(json_error_code(&error) == json_error_null_byte_in_key);
    }
    json_decref(json);

    /* Lengths do not show in JSON, but for keys that are printed in diagnostic notation. */
    struct rewrite w = rewrite(in, true, &definite);
    FUZZ_CHECK(cbor_print_json(buf_bytes(&definite), &text_of_definite) == CBOR_OK);
    if (!w.container_keys)
        FUZZ_CHECK(bytes_equal(buf_bytes(&text), buf_bytes(&text_of_definite)));
    buf_deinit(&text);
    buf_deinit(&definite);
    buf_deinit(&text_of_definite);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes in = {data, size};
    struct buf out = BUF_INIT;
    enum cbor_fault fault = cbor_check(in, NULL);

    if (fault != CBOR_OK) {
        FUZZ_CHECK(cbor_print_diagnostic(in, &out) == fault && out.size == 0);
        FUZZ_CHECK(cbor_print_json(in, &out) == fault && out.size == 0);
        return 0;
    }
    check_diagnostic(in);
    check_json(in);
    return 0;
}
