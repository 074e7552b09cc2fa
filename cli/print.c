/* SPDX-License-Identifier: PostgreSQL */
#include "print.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "codec/cbor.h"
#include "codec/event.h"
#include "codec/position.h"

int print_format_parse(const char *name, enum print_format *ret)
{
    static const char *const names[] = {"text", "json", "cloudevents", "raw"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum print_format)i;
            return 0;
        }
    return -EINVAL;
}

void print_base64(struct buf *out, struct bytes data)
{
    size_t size = sodium_base64_ENCODED_LEN(data.size, sodium_base64_VARIANT_ORIGINAL);
    char *to = (char *)buf_reserve(out, size);

    if (!to)
        return;
    (void)sodium_bin2base64(to, size, data.data, data.size, sodium_base64_VARIANT_ORIGINAL);
    out->size += size - 1; /* less its NUL */
}

/* ---- JSON ---- */

static void put_key(struct buf *out, const char *name)
{
    buf_append_u8(out, '"');
    buf_append_str(out, name);
    buf_append_str(out, "\":");
}

static void put_base64_member(struct buf *out, const char *name, struct bytes data)
{
    put_key(out, name);
    buf_append_u8(out, '"');
    print_base64(out, data);
    buf_append_u8(out, '"');
}

/** If a well-formed item is a byte string, appends it as base64 in quotes. */
static bool put_byte_string(struct buf *out, struct bytes item)
{
    struct cbor_reader r = cbor_reader_init(item);
    struct cbor_head head, chunk;

    if (cbor_read_head(&r, &head) != CBOR_OK || head.type != CBOR_BYTES)
        return false;
    struct buf joined = BUF_INIT;
    struct bytes whole = head.str;
    if (head.indefinite) {
        while (cbor_read_head(&r, &chunk) == CBOR_OK && chunk.type == CBOR_BYTES)
            buf_append(&joined, chunk.str.data, chunk.str.size);
        whole = buf_bytes(&joined);
    }
    buf_append_u8(out, '"');
    print_base64(out, whole);
    buf_append_u8(out, '"');
    if (joined.failed)
        out->failed = true;
    buf_deinit(&joined);
    return true;
}

static bool is_byte_string(struct bytes item)
{
    return item.size > 0 && item.data[0] >> 5 == CBOR_BYTES;
}

/** The event as CloudEvents JSON. False, with a part of it appended, when the CBOR cannot be
 *  printed. */
static bool put_event(struct buf *out, const struct event *event)
{
    buf_append_u8(out, '{');
    for (size_t i = 0; i < event->n_attributes; i++) {
        const struct event_attribute *a = &event->attributes[i];

        if (i > 0)
            buf_append_u8(out, ',');
        json_put_string(out, a->name);
        buf_append_u8(out, ':');
        if (a->is_text)
            json_put_string(out, a->value);
        else if (!put_byte_string(out, a->item) && cbor_print_json(a->item, out) != CBOR_OK)
            return false;
    }
    if (is_byte_string(event->data)) {
        buf_append_str(out, ",\"data_base64\":");
        (void)put_byte_string(out, event->data);
    } else if (event->data.size > 0) {
        buf_append_str(out, ",\"data\":");
        if (cbor_print_json(event->data, out) != CBOR_OK)
            return false;
    }
    buf_append_u8(out, '}');
    return true;
}

static void put_text_or_base64(struct buf *out, const char *name, const char *base64_name,
                               struct bytes value)
{
    if (text_is_utf8(value)) {
        put_key(out, name);
        json_put_string(out, value);
    } else {
        put_base64_member(out, base64_name, value);
    }
}

/* The fixed members are put together by hand: printf would be half the time that a message takes.
 */

static void put_text_member(struct buf *out, const char *name, const char *safe)
{
    put_key(out, name);
    buf_append_u8(out, '"');
    buf_append_str(out, safe);
    buf_append_str(out, "\",");
}

static void put_number_member(struct buf *out, const char *name, uint32_t n)
{
    char digits[10], *at = digits + sizeof digits;

    do
        *--at = (char)('0' + n % 10);
    while (n /= 10);
    put_key(out, name);
    buf_append(out, at, (size_t)(digits + sizeof digits - at));
    buf_append_u8(out, ',');
}

static void put_truth_member(struct buf *out, const char *name, bool v)
{
    put_key(out, name);
    buf_append_str(out, v ? "true," : "false,");
}

static void put_json(struct buf *out, const struct frame_message *m, bool redelivered)
{
    bool transactional = m->flags & FRAME_FLAG_TRANSACTIONAL;
    char position[POSITION_TEXT_SIZE], lsn[LSN_TEXT_SIZE], time[CLOCK_TEXT_SIZE];
    struct event event;

    buf_append_u8(out, '{');
    put_text_member(out, "position", position_format(m->position, position));
    put_text_member(out, "lsn", lsn_format(m->lsn, lsn));
    if (transactional)
        put_text_member(out, "commit_time", clock_format_rfc3339(m->commit_time, time));
    put_number_member(out, "index", m->position.index);
    if (transactional)
        put_number_member(out, "xid", m->xid);
    put_truth_member(out, "transactional", transactional);
    put_truth_member(out, "redelivered", redelivered);
    put_text_or_base64(out, "prefix", "prefix_base64", m->prefix);
    buf_append_u8(out, ',');

    size_t mark = out->size;
    bool printed = false;
    if (event_decode(m->content, &event) == CBOR_OK) {
        put_key(out, "event");
        printed = put_event(out, &event);
        if (!printed && !out->failed)
            out->size = mark;
    }
    if (!printed)
        put_text_or_base64(out, "payload", "payload_base64", m->content);
    buf_append_str(out, "}\n");
}

static bool put_cloudevent(struct buf *out, const struct frame_message *m)
{
    size_t mark = out->size;
    struct event event;

    if (event_decode(m->content, &event) != CBOR_OK)
        return false;
    if (!put_event(out, &event)) {
        if (!out->failed)
            out->size = mark;
        return false;
    }
    buf_append_u8(out, '\n');
    return true;
}

/* ---- text ---- */

#define COLOUR_TIME   "\033[2m"
#define COLOUR_PREFIX "\033[1;36m"
#define COLOUR_NOTE   "\033[33m"
#define COLOUR_END    "\033[0m"

static void colour(const struct print *p, struct buf *out, const char *sequence)
{
    if (p->colour)
        buf_append_str(out, sequence);
}

/** In quotes where it would not be seen as one word. */
static void put_prefix(struct buf *out, struct bytes prefix)
{
    bool quote = prefix.size == 0 || memchr(prefix.data, ' ', prefix.size);

    if (quote)
        buf_append_u8(out, '"');
    text_put_visible(out, prefix);
    if (quote)
        buf_append_u8(out, '"');
}

static void put_hex(struct buf *out, struct bytes data)
{
    buf_append_str(out, "h'");
    char *to = (char *)buf_reserve(out, 2 * data.size + 1);
    if (!to)
        return;
    (void)text_hex(data.data, data.size, to);
    out->size += 2 * data.size;
    buf_append_u8(out, '\'');
}

static void put_text(const struct print *p, struct buf *out, const struct frame_message *m)
{
    bool transactional = m->flags & FRAME_FLAG_TRANSACTIONAL;
    char time[CLOCK_TEXT_SIZE];
    struct event event;

    colour(p, out, COLOUR_TIME);
    buf_append_str(out,
                   clock_format_rfc3339(transactional ? m->commit_time : m->received_time, time));
    colour(p, out, COLOUR_END);
    buf_append_u8(out, ' ');
    colour(p, out, COLOUR_PREFIX);
    put_prefix(out, m->prefix);
    colour(p, out, COLOUR_END);

    size_t mark = out->size;
    bool printed = event_decode(m->content, &event) == CBOR_OK;
    if (printed && event.data.size > 0) {
        buf_append_u8(out, ' ');
        printed = cbor_print_diagnostic(event.data, out) == CBOR_OK;
        if (!printed && !out->failed)
            out->size = mark;
    }
    if (!printed) {
        buf_append_u8(out, ' ');
        colour(p, out, COLOUR_NOTE);
        buf_append_str(out, "opaque:");
        colour(p, out, COLOUR_END);
        if (m->content.size > 0)
            buf_append_u8(out, ' ');
        if (text_is_utf8(m->content))
            text_put_visible(out, m->content);
        else
            put_hex(out, m->content);
    }
    buf_append_u8(out, '\n');
}

/* ---- either ---- */

bool print_message(struct print *p, const struct frame_message *m, bool redelivered,
                   struct buf *out)
{
    switch (p->format) {
    case PRINT_JSON:
        put_json(out, m, redelivered);
        return true;
    case PRINT_CLOUDEVENTS:
        if (put_cloudevent(out, m))
            return true;
        p->skipped++;
        return false;
    case PRINT_RAW:
        buf_append(out, m->content.data, m->content.size);
        return true;
    default:
        put_text(p, out, m);
        return true;
    }
}

void print_gap_sentence(const struct frame_gap *g, struct buf *out)
{
    char from[POSITION_TEXT_SIZE], to[POSITION_TEXT_SIZE];

    buf_printf(out, "gap from %s to %s", position_format(g->from, from),
               position_format(g->to, to));
    if (g->messages != UINT64_MAX)
        buf_printf(out, ", %" PRIu64 " message%s", g->messages, g->messages == 1 ? "" : "s");
    if (g->bytes != UINT64_MAX)
        buf_printf(out, ", %" PRIu64 " byte%s", g->bytes, g->bytes == 1 ? "" : "s");
    if (g->reason.size > 0) {
        buf_append_str(out, ": ");
        text_put_visible(out, g->reason);
    }
}

static void put_json_gap(struct buf *out, const struct frame_gap *g)
{
    char from[POSITION_TEXT_SIZE], to[POSITION_TEXT_SIZE];

    buf_printf(out, "{\"gap\":{\"from\":\"%s\",\"to\":\"%s\"", position_format(g->from, from),
               position_format(g->to, to));
    if (g->messages != UINT64_MAX)
        buf_printf(out, ",\"messages\":%" PRIu64, g->messages);
    if (g->bytes != UINT64_MAX)
        buf_printf(out, ",\"bytes\":%" PRIu64, g->bytes);
    buf_append_str(out, ",\"reason\":");
    json_put_string(out, g->reason);
    buf_append_str(out, "}}\n");
}

bool print_gap(const struct print *p, const struct frame_gap *g, struct buf *out)
{
    if (p->format == PRINT_JSON) {
        put_json_gap(out, g);
        return true;
    }
    if (p->format != PRINT_TEXT)
        return false;
    colour(p, out, COLOUR_NOTE);
    buf_append_str(out, "-- ");
    print_gap_sentence(g, out);
    colour(p, out, COLOUR_END);
    buf_append_u8(out, '\n');
    return true;
}
