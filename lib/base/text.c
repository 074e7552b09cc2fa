/* SPDX-License-Identifier: PostgreSQL */
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/macros.h"

/* ---- UTF-8 ---- */

size_t text_utf8_sequence(const uint8_t *p, size_t size, uint32_t *ret_code_point)
{
    /* The second byte's range is what rules out overlong forms, surrogates and everything
     * beyond U+10FFFF (RFC 3629, section 4); the bytes behind it are free. */
    uint8_t low = 0x80, high = 0xbf;
    uint32_t code_point;
    size_t n;

    if (size == 0)
        return 0;
    uint8_t first = p[0];
    if (first < 0x80) {
        *ret_code_point = first;
        return 1;
    } else if (first >= 0xc2 && first <= 0xdf) {
        n = 2;
        code_point = first & 0x1fu;
    } else if (first >= 0xe0 && first <= 0xef) {
        n = 3;
        code_point = first & 0x0fu;
        if (first == 0xe0)
            low = 0xa0;
        else if (first == 0xed)
            high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
        n = 4;
        code_point = first & 0x07u;
        if (first == 0xf0)
            low = 0x90;
        else if (first == 0xf4)
            high = 0x8f;
    } else {
        return 0;
    }
    if (size < n)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (p[i] < low || p[i] > high)
            return 0;
        code_point = code_point << 6 | (p[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    *ret_code_point = code_point;
    return n;
}

size_t text_utf8_size(struct bytes text)
{
    size_t at = 0;

    while (at < text.size) {
        uint64_t eight;
        uint32_t code_point;

        /* most texts are ASCII from end to end */
        if (text.size - at >= sizeof eight) {
            memcpy(&eight, text.data + at, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t n = text_utf8_sequence(text.data + at, text.size - at, &code_point);
        if (n == 0)
            break;
        at += n;
    }
    return at;
}

bool text_is_utf8(struct bytes text)
{
    return text_utf8_size(text) == text.size;
}

struct range {
    uint32_t first, last;
};

static bool is_in(uint32_t code_point, const struct range *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (code_point >= ranges[i].first && code_point <= ranges[i].last)
            return true;
    return false;
}

bool text_is_visible(uint32_t code_point)
{
    static const struct range hidden[] = {
        {0x0000, 0x001f}, /* C0 */
        {0x007f, 0x009f}, /* DEL, C1 */
        {0x061c, 0x061c}, /* Arabic letter mark */
        {0x200e, 0x200f}, /* left-to-right, right-to-left mark */
        {0x2028, 0x202e}, /* line, paragraph separator; embeddings and overrides */
        {0x2066, 0x2069}, /* isolates */
    };

    return !is_in(code_point, hidden, ARRAY_SIZE(hidden));
}

bool text_is_graphic(uint32_t code_point)
{
    /* neighbours of different categories share a row */
    static const struct range blank[] = {
        {0x0000, 0x0020},   {0x007f, 0x00a0},   {0x00ad, 0x00ad},   {0x0600, 0x0605},
        {0x061c, 0x061c},   {0x06dd, 0x06dd},   {0x070f, 0x070f},   {0x0890, 0x0891},
        {0x08e2, 0x08e2},   {0x1680, 0x1680},   {0x180e, 0x180e},   {0x2000, 0x200f},
        {0x2028, 0x202f},   {0x205f, 0x2064},   {0x2066, 0x206f},   {0x3000, 0x3000},
        {0xfeff, 0xfeff},   {0xfff9, 0xfffb},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
        {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0001, 0xe0001},
        {0xe0020, 0xe007f},
    };

    return !is_in(code_point, blank, ARRAY_SIZE(blank));
}

void text_put_visible(struct buf *out, struct bytes text)
{
    size_t at = 0;

    while (at < text.size) {
        uint32_t code_point;
        size_t n = text_utf8_sequence(text.data + at, text.size - at, &code_point);

        if (n == 0) {
            buf_printf(out, "\\x%02x", text.data[at]);
            n = 1;
        } else if (code_point == '\\') {
            buf_append_str(out, "\\\\");
        } else if (code_point == '\n') {
            buf_append_str(out, "\\n");
        } else if (code_point == '\t') {
            buf_append_str(out, "\\t");
        } else if (text_is_visible(code_point)) {
            buf_append(out, text.data + at, n);
        } else if (n == 1) {
            buf_printf(out, "\\x%02x", (unsigned)code_point);
        } else {
            buf_printf(out, "\\u{%x}", (unsigned)code_point);
        }
        at += n;
    }
}

/* ---- what did the user mean ---- */

/* Longest word that is compared; option and key names are far shorter. */
#define NEAREST_WORD_MAX 63

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/*
 * How many insertions, deletions, replacements and swaps of neighbours lead from `a` to `b`
 * (optimal string alignment), letters' case aside. Three rows of the matrix are enough: a swap
 * looks back two.
 */
static unsigned word_distance(const char *a, size_t a_size, const char *b, size_t b_size)
{
    unsigned rows[3][NEAREST_WORD_MAX + 1];

    for (size_t j = 0; j <= b_size; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= a_size; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_size; j++) {
            char x = lower(a[i - 1]), y = lower(b[j - 1]);
            unsigned best = above[j - 1] + (x != y);

            best = MIN(best, above[j] + 1);
            best = MIN(best, row[j - 1] + 1);
            if (i > 1 && j > 1 && x == lower(b[j - 2]) && y == lower(a[i - 2]))
                best = MIN(best, above2[j - 2] + 1);
            row[j] = best;
        }
    }
    return rows[a_size % 3][b_size];
}

const char *text_nearest(const char *word, const char *const *list)
{
    size_t size = strlen(word);
    const char *nearest = NULL;
    unsigned nearest_distance = 0;

    if (size == 0 || size > NEAREST_WORD_MAX)
        return NULL;
    for (; *list; list++) {
        size_t entry_size = strlen(*list);

        if (entry_size > NEAREST_WORD_MAX)
            continue;
        unsigned distance = word_distance(word, size, *list, entry_size);
        /* The beginning of a name, as "heartbeat" of "heartbeat-interval", is as good as one slip.
         */
        if (distance > 1 && size >= 3 && strncmp(word, *list, size) == 0)
            distance = 1;
        /* One slip in three letters is still a slip; more is another word. */
        if (distance > (size + 2) / 3)
            continue;
        if (!nearest || distance < nearest_distance) {
            nearest = *list;
            nearest_distance = distance;
        }
    }
    return nearest;
}

char *text_hex(const void *data, size_t size, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;

    for (size_t i = 0; i < size; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * size] = '\0';
    return out;
}

void text_put_hex(struct buf *out, struct bytes data)
{
    char *to = (char *)buf_reserve(out, 2 * data.size + 1);

    if (!to)
        return;
    (void)text_hex(data.data, data.size, to);
    out->size += 2 * data.size;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int text_from_hex(const char *text, size_t size, uint8_t *out)
{
    if (size % 2 != 0)
        return -EINVAL;
    for (size_t i = 0; i < size; i++)
        if (hex_digit(text[i]) < 0)
            return -EINVAL;
    for (size_t i = 0; i < size / 2; i++)
        out[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    return 0;
}

/* ---- sizes and times ---- */

struct unit {
    const char *word;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"B", 1},
    {"kB", UINT64_C(1) << 10},
    {"MB", UINT64_C(1) << 20},
    {"GB", UINT64_C(1) << 30},
    {"TB", UINT64_C(1) << 40},
    {NULL, 0},
};

static const struct unit duration_units[] = {
    {"us", 1},
    {"ms", UINT64_C(1000)},
    {"s", UINT64_C(1000000)},
    {"min", UINT64_C(60) * 1000000},
    {"h", UINT64_C(3600) * 1000000},
    {"d", UINT64_C(86400) * 1000000},
    {NULL, 0},
};

/* Digits behind the point that count; nine tell bytes within a GB apart. */
#define FRACTION_DIGITS 9

static int parse_quantity(const char *text, const struct unit *units, const char *default_unit,
                          uint64_t *ret)
{
    const char *at = text;
    uint64_t whole = 0, fraction = 0, scale = 1;
    bool overflow = false;

    if (*at < '0' || *at > '9')
        return -EINVAL;
    for (; *at >= '0' && *at <= '9'; at++) {
        overflow |= __builtin_mul_overflow(whole, UINT64_C(10), &whole);
        overflow |= __builtin_add_overflow(whole, (uint64_t)(*at - '0'), &whole);
    }
    if (*at == '.') {
        at++;
        if (*at < '0' || *at > '9')
            return -EINVAL;
        for (int i = 0; *at >= '0' && *at <= '9'; at++, i++) {
            if (i < FRACTION_DIGITS) {
                fraction = fraction * 10 + (uint64_t)(*at - '0');
                scale *= 10;
            }
        }
    }
    const char *word = default_unit;
    if (*at) {
        while (*at == ' ' || *at == '\t')
            at++;
        word = at;
    }
    for (; units->word; units++)
        if (strcmp(units->word, word) == 0)
            break;
    if (!units->word)
        return -EINVAL;
    if (overflow)
        return -ERANGE;

    uint64_t value;
    /* Whole and remainder of the unit apart: factor * fraction itself would not fit. */
    uint64_t part =
        units->factor / scale * fraction + (units->factor % scale * fraction + scale / 2) / scale;
    if (__builtin_mul_overflow(whole, units->factor, &value) ||
        __builtin_add_overflow(value, part, &value))
        return -ERANGE;
    *ret = value;
    return 0;
}

int text_parse_size(const char *text, uint64_t *ret_bytes)
{
    return parse_quantity(text, size_units, "B", ret_bytes);
}

int text_parse_duration(const char *text, const char *default_unit, uint64_t *ret_us)
{
    return parse_quantity(text, duration_units, default_unit, ret_us);
}

static void put_quantity(struct buf *out, const struct unit *units, uint64_t v)
{
    const struct unit *largest = units;

    for (const struct unit *u = units; u->word; u++)
        if (v % u->factor == 0)
            largest = u;
    buf_printf(out, "%" PRIu64 "%s", v / largest->factor, largest->word);
}

void text_put_size(struct buf *out, uint64_t bytes)
{
    put_quantity(out, size_units, bytes);
}

void text_put_duration(struct buf *out, uint64_t us)
{
    put_quantity(out, duration_units, us);
}
