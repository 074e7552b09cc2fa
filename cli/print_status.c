/* SPDX-License-Identifier: PostgreSQL */
#include "print_status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "answer.h"
#include "base/text.h"
#include "codec/cbor.h"

/** Values begin here, or two columns behind a longer key. */
#define VALUE_COLUMN 24

/** How a position that is not known yet, or a session's without a subscription, is written. */
#define NO_POSITION "0:0/0:0"

/** Levels on one line: a session, and its lists. */
#define INLINE_DEPTH 2

static bool ends_with(struct bytes key, const char *end)
{
    size_t size = strlen(end);

    return key.size >= size && memcmp(key.data + key.size - size, end, size) == 0;
}

/** The key as words, without the unit that its value will carry. */
static void put_label(struct buf *out, struct bytes key)
{
    if (ends_with(key, "_ms"))
        key.size -= strlen("_ms");
    else if (ends_with(key, "_bytes"))
        key.size -= strlen("_bytes");
    else if (ends_with(key, "_seconds"))
        key.size -= strlen("_seconds");
    size_t mark = out->size;
    text_put_visible(out, key);
    for (size_t i = mark; i < out->size; i++)
        if (out->data[i] == '_')
            out->data[i] = ' ';
}

void print_size(struct buf *out, uint64_t bytes)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB"};
    double n = (double)bytes;
    size_t unit = 0;

    if (bytes < 1024) {
        buf_printf(out, "%" PRIu64 " B", bytes);
        return;
    }
    for (n /= 1024; n >= 1024 && unit + 1 < ARRAY_SIZE(units); n /= 1024)
        unit++;
    buf_printf(out, "%.1f %s", n, units[unit]);
}

void print_seconds(struct buf *out, uint64_t s)
{
    static const struct {
        const char *unit;
        uint64_t seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    size_t i = 0;

    /* two of a smaller unit say more than one of a larger */
    while (i + 1 < ARRAY_SIZE(units) && s < 2 * units[i].seconds)
        i++;
    buf_printf(out, "%" PRIu64 " %s", s / units[i].seconds, units[i].unit);
}

static void put_milliseconds(struct buf *out, uint64_t ms)
{
    if (ms < 1000)
        buf_printf(out, "%" PRIu64 " ms", ms);
    else
        buf_printf(out, "%" PRIu64 ".%" PRIu64 " s", ms / 1000, ms % 1000 / 100);
}

static void put_scalar(struct buf *out, struct bytes key, struct bytes item)
{
    struct cbor_reader r = cbor_reader_init(item);
    struct cbor_head h;

    if (cbor_read_head(&r, &h) != CBOR_OK)
        return;
    if (h.type == CBOR_UINT && ends_with(key, "bytes"))
        print_size(out, h.arg);
    else if (h.type == CBOR_UINT && ends_with(key, "_ms"))
        put_milliseconds(out, h.arg);
    else if (h.type == CBOR_UINT && ends_with(key, "_seconds"))
        print_seconds(out, h.arg);
    else if (h.type == CBOR_TEXT && !h.indefinite && bytes_equal(key, bytes_of_text("position")) &&
             bytes_equal(h.str, bytes_of_text(NO_POSITION)))
        buf_append_u8(out, '-');
    else if (h.type == CBOR_TEXT && !h.indefinite)
        text_put_visible(out, h.str);
    else if (h.type == CBOR_SIMPLE && h.arg == CBOR_SIMPLE_NULL)
        buf_append_u8(out, '-');
    else if (cbor_print_diagnostic(item, out) != CBOR_OK)
        buf_append_u8(out, '-');
}

/** "key value, key value" of a map, the values of an array with blanks between, a dash for an empty
 *  one; anything else as it is. `depth` more levels are taken apart, the rest is diagnostic. */
static void put_inline(struct buf *out, struct bytes key, struct bytes item, int depth)
{
    struct bytes inner = key, value;
    struct answer_walk w;
    bool first = true;

    if (depth == 0 ||
        (!answer_walk_start(&w, item, CBOR_MAP) && !answer_walk_start(&w, item, CBOR_ARRAY))) {
        put_scalar(out, key, item);
        return;
    }
    if (w.left == 0)
        buf_append_u8(out, '-');
    while (answer_walk_next(&w, &inner, &value)) {
        if (!first)
            buf_append_str(out, w.is_map ? ", " : " ");
        first = false;
        if (w.is_map) {
            put_label(out, inner);
            buf_append_u8(out, ' ');
        }
        put_inline(out, inner, value, depth - 1);
    }
}

static bool is_list_of_maps(struct bytes item)
{
    struct bytes value;
    struct answer_walk w;

    return answer_walk_start(&w, item, CBOR_ARRAY) && answer_walk_next(&w, &value, &value) &&
           value.data[0] >> 5 == CBOR_MAP;
}

static void put_entry(struct buf *out, struct bytes key, struct bytes item, const char *indent)
{
    struct bytes inner, value;
    size_t mark = out->size;
    struct answer_walk w;

    buf_append_str(out, indent);
    put_label(out, key);
    if (!*indent && answer_walk_start(&w, item, CBOR_MAP) && w.left > 0) {
        buf_append_u8(out, '\n');
        while (answer_walk_next(&w, &inner, &value))
            put_entry(out, inner, value, "  ");
        return;
    }
    if (is_list_of_maps(item) && answer_walk_start(&w, item, CBOR_ARRAY)) {
        buf_append_u8(out, '\n');
        while (answer_walk_next(&w, &inner, &value)) {
            buf_printf(out, "%s  - ", indent);
            put_inline(out, key, value, INLINE_DEPTH);
            buf_append_u8(out, '\n');
        }
        return;
    }
    do
        buf_append_u8(out, ' ');
    while (!out->failed && out->size - mark < VALUE_COLUMN);
    put_inline(out, key, item, INLINE_DEPTH);
    buf_append_u8(out, '\n');
}

int print_status(struct bytes status, struct buf *out)
{
    struct bytes key, value;
    struct answer_walk w;

    if (cbor_check(status, NULL) != CBOR_OK || !answer_walk_start(&w, status, CBOR_MAP))
        return -EINVAL;
    while (answer_walk_next(&w, &key, &value))
        put_entry(out, key, value, "");
    return w.left > 0 ? -EINVAL : 0;
}
