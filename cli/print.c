/* SPDX-License-Identifier: PostgreSQL */
#include "print.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "codec/cbor.h"
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

static struct bytes prefix_of(const struct walbus_delivery *d)
{
    struct bytes prefix;

    prefix.data = (const uint8_t *)walbus_delivery_prefix(d, &prefix.size);
    return prefix;
}

static struct bytes content_of(const struct walbus_delivery *d)
{
    struct bytes content;

    content.data = walbus_delivery_content(d, &content.size);
    return content;
}

/** One CBOR item; none when the event has no data. */
static struct bytes data_of(const struct walbus_delivery *d)
{
    struct bytes data;

    data.data = walbus_delivery_data(d, &data.size);
    return data;
}

static struct bytes kid_of(const struct walbus_delivery *d)
{
    struct bytes kid;

    kid.data = walbus_delivery_kid(d, &kid.size);
    return kid;
}

static bool is_transactional(const struct walbus_delivery *d)
{
    return walbus_delivery_flags(d) & WALBUS_DELIVERY_TRANSACTIONAL;
}

/** The event as CloudEvents JSON. False, with a part of it appended, when it is none, or the CBOR cannot be
 *  printed. */
static bool put_event(struct buf *out, const struct walbus_delivery *d)
{
    if (walbus_delivery_form(d) == WALBUS_FORM_OPAQUE)
        return false;
    buf_append_u8(out, '{');
    for (size_t i = 0; i < walbus_delivery_attributes(d); i++) {
        struct bytes name, item;
        const void *value;

        name.data =
            (const uint8_t *)walbus_delivery_attribute_at(d, i, &name.size, &value, &item.size);
        item.data = value;
        if (i > 0)
            buf_append_u8(out, ',');
        json_put_string(out, name);
        buf_append_u8(out, ':');
        if (!put_byte_string(out, item) && cbor_print_json(item, out) != CBOR_OK)
            return false;
    }
    struct bytes data = data_of(d);
    if (is_byte_string(data)) {
        buf_append_str(out, ",\"data_base64\":");
        (void)put_byte_string(out, data);
    } else if (data.size > 0) {
        buf_append_str(out, ",\"data\":");
        if (cbor_print_json(data, out) != CBOR_OK)
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

/* Of what begins as signed content does. */
static void put_signature_member(struct buf *out, const struct walbus_delivery *d)
{
    enum walbus_signature signature = walbus_delivery_signature(d);
    struct bytes kid = kid_of(d);

    if (signature == WALBUS_SIGNATURE_UNSIGNED)
        return;
    buf_append_str(out, ",\"signature\":{\"status\":\"");
    buf_append_str(out, walbus_signature_text(signature));
    if (kid.data) {
        buf_append_str(out, "\",\"kid\":\"");
        text_put_hex(out, kid);
    }
    buf_append_str(out, "\"}");
}

static void put_json(struct buf *out, const struct walbus_delivery *d)
{
    char position[WALBUS_POSITION_TEXT_SIZE], lsn[LSN_TEXT_SIZE], time[CLOCK_TEXT_SIZE];
    bool transactional = is_transactional(d);
    struct walbus_position at = walbus_delivery_position(d);

    buf_append_u8(out, '{');
    put_text_member(out, "position", walbus_position_format(at, position));
    put_text_member(out, "lsn", lsn_format(walbus_delivery_lsn(d), lsn));
    if (transactional)
        put_text_member(out, "commit_time",
                        clock_format_rfc3339(walbus_delivery_commit_time_us(d), time));
    put_number_member(out, "index", at.index);
    if (transactional)
        put_number_member(out, "xid", walbus_delivery_xid(d));
    put_truth_member(out, "transactional", transactional);
    put_truth_member(out, "redelivered", walbus_delivery_flags(d) & WALBUS_DELIVERY_REDELIVERED);
    put_text_or_base64(out, "prefix", "prefix_base64", prefix_of(d));
    buf_append_u8(out, ',');

    size_t mark = out->size;
    put_key(out, "event");
    if (!put_event(out, d)) {
        if (!out->failed)
            out->size = mark;
        put_text_or_base64(out, "payload", "payload_base64", content_of(d));
    }
    put_signature_member(out, d);
    buf_append_str(out, "}\n");
}

static bool put_cloudevent(struct buf *out, const struct walbus_delivery *d)
{
    size_t mark = out->size;

    if (!put_event(out, d)) {
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
#define COLOUR_VALID  "\033[32m"
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

static void put_opaque(const struct print *p, struct buf *out, struct bytes content)
{
    buf_append_u8(out, ' ');
    colour(p, out, COLOUR_NOTE);
    buf_append_str(out, "opaque:");
    colour(p, out, COLOUR_END);
    if (content.size > 0)
        buf_append_u8(out, ' ');
    if (text_is_utf8(content))
        text_put_visible(out, content);
    else {
        buf_append_str(out, "h'");
        text_put_hex(out, content);
        buf_append_u8(out, '\'');
    }
}

/* What the signature is worth, in words that stand before the data. */
static void put_signature(const struct print *p, struct buf *out, const struct walbus_delivery *d)
{
    enum walbus_signature signature = walbus_delivery_signature(d);
    struct bytes kid = kid_of(d);

    if (signature == WALBUS_SIGNATURE_UNSIGNED && !p->trust)
        return;
    buf_append_u8(out, ' ');
    colour(p, out, signature == WALBUS_SIGNATURE_VALID ? COLOUR_VALID : COLOUR_NOTE);
    buf_append_u8(out, '(');
    buf_append_str(out, walbus_signature_text(signature));
    if (kid.data) {
        buf_append_u8(out, ' ');
        text_put_hex(out, kid);
    }
    buf_append_u8(out, ')');
    colour(p, out, COLOUR_END);
}

static void put_text(const struct print *p, struct buf *out, const struct walbus_delivery *d)
{
    int64_t at = is_transactional(d) ? walbus_delivery_commit_time_us(d)
                                     : walbus_delivery_received_time_us(d);
    char time[CLOCK_TEXT_SIZE];

    colour(p, out, COLOUR_TIME);
    buf_append_str(out, clock_format_rfc3339(at, time));
    colour(p, out, COLOUR_END);
    buf_append_u8(out, ' ');
    colour(p, out, COLOUR_PREFIX);
    put_prefix(out, prefix_of(d));
    colour(p, out, COLOUR_END);
    if (walbus_delivery_flags(d) & WALBUS_DELIVERY_REDELIVERED) {
        buf_append_u8(out, ' ');
        colour(p, out, COLOUR_NOTE);
        buf_append_str(out, "(redelivered)");
        colour(p, out, COLOUR_END);
    }
    put_signature(p, out, d);

    size_t mark = out->size;
    bool printed = walbus_delivery_form(d) != WALBUS_FORM_OPAQUE;
    struct bytes data = data_of(d);
    if (printed && data.size > 0) {
        buf_append_u8(out, ' ');
        printed = cbor_print_diagnostic(data, out) == CBOR_OK;
        if (!printed && !out->failed)
            out->size = mark;
    }
    if (!printed)
        put_opaque(p, out, content_of(d));
    buf_append_u8(out, '\n');
}

/* ---- either ---- */

bool print_message(struct print *p, const struct walbus_delivery *d, struct buf *out)
{
    struct bytes content;

    switch (p->format) {
    case PRINT_JSON:
        put_json(out, d);
        return true;
    case PRINT_CLOUDEVENTS:
        if (put_cloudevent(out, d))
            return true;
        p->skipped++;
        return false;
    case PRINT_RAW:
        content = content_of(d);
        buf_append(out, content.data, content.size);
        return true;
    default:
        put_text(p, out, d);
        return true;
    }
}

void print_gap_sentence(const struct walbus_delivery *d, struct buf *out)
{
    char from[WALBUS_POSITION_TEXT_SIZE], to[WALBUS_POSITION_TEXT_SIZE];
    uint64_t messages = walbus_delivery_messages(d), bytes = walbus_delivery_bytes(d);
    struct bytes reason = bytes_of_text(walbus_delivery_reason(d));

    buf_printf(out, "Messages may be missing from %s to %s",
               walbus_position_format(walbus_delivery_from(d), from),
               walbus_position_format(walbus_delivery_position(d), to));
    if (messages != UINT64_MAX)
        buf_printf(out, ", %" PRIu64 " message%s", messages, messages == 1 ? "" : "s");
    if (bytes != UINT64_MAX)
        buf_printf(out, ", %" PRIu64 " byte%s", bytes, bytes == 1 ? "" : "s");
    if (reason.size > 0) {
        buf_append_str(out, ": ");
        text_put_visible(out, reason);
    }
}

bool print_gap(const struct print *p, const struct walbus_delivery *d, struct buf *out)
{
    char from[WALBUS_POSITION_TEXT_SIZE], to[WALBUS_POSITION_TEXT_SIZE];

    if (p->format != PRINT_JSON)
        return false;
    buf_printf(out, "{\"gap\":{\"from\":\"%s\",\"to\":\"%s\"",
               walbus_position_format(walbus_delivery_from(d), from),
               walbus_position_format(walbus_delivery_position(d), to));
    if (walbus_delivery_messages(d) != UINT64_MAX)
        buf_printf(out, ",\"messages\":%" PRIu64, walbus_delivery_messages(d));
    if (walbus_delivery_bytes(d) != UINT64_MAX)
        buf_printf(out, ",\"bytes\":%" PRIu64, walbus_delivery_bytes(d));
    buf_append_str(out, ",\"reason\":");
    json_put_string(out, bytes_of_text(walbus_delivery_reason(d)));
    buf_append_str(out, "}}\n");
    return true;
}
