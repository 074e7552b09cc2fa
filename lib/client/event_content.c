/* SPDX-License-Identifier: PostgreSQL */
#include "client/event_content.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "codec/cbor.h"
#include "codec/event.h"

_Static_assert(WALBUS_ID_SIZE == EVENT_ID_SIZE, "both are a UUID's text");

/* clock_format_rfc3339 writes the years 0 to 9999; RFC 3339 readers often know no year 0. */
#define TIME_MIN INT64_C(-62135596800000000) /* 0001-01-01T00:00:00Z */
#define TIME_MAX INT64_C(253402300799999999) /* 9999-12-31T23:59:59.999999Z */

/** Where the first control character stands (C0, DEL, C1; CloudEvents forbids them), or size. */
static size_t control_character(struct bytes text)
{
    size_t at = 0, n;
    uint32_t code_point;

    for (; at < text.size; at += n) {
        n = text_utf8_sequence(text.data + at, text.size - at, &code_point);
        if (n == 0) /* not UTF-8, which the encoder refuses */
            return text.size;
        if (code_point < 0x20 || (code_point >= 0x7f && code_point <= 0x9f))
            return at;
    }
    return at;
}

/** What of an event the encoder refused. */
static void explain(const struct event *event, struct buf *why)
{
    size_t offset = 0;

    for (size_t i = 0; i < event->n_attributes; i++) {
        const struct event_attribute *a = &event->attributes[i];

        if (!event_name_is_valid(a->name)) {
            buf_append_str(why, "The attribute name \"");
            text_put_visible(why, a->name);
            buf_append_str(why, "\" is not one of lower-case letters and digits, or is \"data\".");
            return;
        }
        const char *fault = !text_is_utf8(a->value) ? "is not UTF-8" : NULL;
        for (size_t j = 0; j < i && !fault; j++)
            if (bytes_equal(a->name, event->attributes[j].name))
                fault = "stands there twice";
        if (!fault && a->value.size == 0 &&
            (bytes_equal(a->name, bytes_of_text("id")) ||
             bytes_equal(a->name, bytes_of_text("source")) ||
             bytes_equal(a->name, bytes_of_text("type"))))
            fault = "is empty";
        if (fault) {
            buf_append_str(why, "The attribute \"");
            text_put_visible(why, a->name);
            buf_printf(why, "\" %s.", fault);
            return;
        }
    }
    enum cbor_fault fault = cbor_check_inside(event->data, EVENT_NESTING, &offset);
    buf_printf(why, "The data is not one well-formed CBOR item: %s, at byte %zu.",
               cbor_fault_text(fault), offset);
}

/** The data as one CBOR item; `item` holds it when it must be made. */
static enum walbus_result take_data(const struct walbus_event *in, size_t max_content,
                                    struct buf *item, struct bytes *ret, struct buf *why)
{
    struct bytes data = {in->data, in->data_size};

    if (!in->data && in->data_size > 0) {
        buf_append_str(why, "The data is NULL, but its size is not 0.");
        return WALBUS_BAD_ARGUMENT;
    }
    if (in->data_size > max_content) {
        buf_printf(why, "The data has %zu bytes; a content may have %zu.", in->data_size,
                   max_content);
        return WALBUS_TOO_LARGE;
    }
    switch (in->data_kind) {
    case WALBUS_DATA_CBOR:
        if (in->data && in->data_size == 0) {
            buf_append_str(why, "The data has no bytes, and so is no CBOR item.");
            return WALBUS_BAD_EVENT;
        }
        *ret = data;
        return WALBUS_OK;
    case WALBUS_DATA_TEXT:
        if (!text_is_utf8(data)) {
            buf_append_str(why, "The data is text, but not UTF-8.");
            return WALBUS_BAD_EVENT;
        }
        if (in->data)
            cbor_put_text(item, data);
        break;
    case WALBUS_DATA_BYTES:
        if (in->data)
            cbor_put_bytes(item, data);
        break;
    default:
        buf_append_str(why, "The kind of the data is not known.");
        return WALBUS_BAD_ARGUMENT;
    }
    *ret = buf_bytes(item);
    return item->failed ? WALBUS_NO_MEMORY : WALBUS_OK;
}

static enum walbus_result put(const struct walbus_event *in, const struct event_defaults *defaults,
                              struct bytes data, struct buf *out, char id[WALBUS_ID_SIZE],
                              struct buf *why)
{
    char time[CLOCK_TEXT_SIZE];
    struct event event = {.data = data};

    id[0] = '\0';
    if (!in->id)
        event_new_id(defaults->now_us / 1000, id);
    (void)clock_format_rfc3339(in->time_us ? in->time_us : defaults->now_us, time);
    const struct walbus_attribute own[] = {
        {"specversion", "1.0"},
        {"id", in->id ? in->id : id},
        {"source", in->source ? in->source : defaults->source},
        {"type", in->type ? in->type : in->prefix},
        {"time", time},
        {"subject", in->subject},
        {"datacontenttype", in->content_type},
    };
    int rc = 0;
    /* Programs keep and print ids one a line. */
    struct bytes given_id = bytes_of_text(in->id);
    size_t at = control_character(given_id);

    if (at < given_id.size) {
        buf_printf(why, "The id has a control character, at byte %zu.", at);
        return WALBUS_BAD_EVENT;
    }
    for (size_t i = 0; i < ARRAY_SIZE(own) && rc == 0; i++)
        if (own[i].value)
            rc = event_add(&event, own[i].name, own[i].value);
    for (size_t i = 0; i < in->n_attributes && rc == 0; i++) {
        if (!in->attributes[i].name || !in->attributes[i].value) {
            buf_printf(why, "Name or value of the further attribute %zu is NULL.", i);
            return WALBUS_BAD_ARGUMENT;
        }
        rc = event_add(&event, in->attributes[i].name, in->attributes[i].value);
    }
    if (rc < 0) {
        buf_printf(why, "It has more than %d attributes.", EVENT_ATTRIBUTES_MAX);
        return WALBUS_BAD_EVENT;
    }
    rc = event_encode(&event, out);
    if (rc == -EINVAL) {
        explain(&event, why);
        return WALBUS_BAD_EVENT;
    }
    return rc < 0 ? WALBUS_NO_MEMORY : WALBUS_OK;
}

enum walbus_result event_content_put(const struct walbus_event *event,
                                     const struct event_defaults *defaults, struct buf *out,
                                     char id[WALBUS_ID_SIZE], struct buf *why)
{
    struct buf item = BUF_INIT;
    struct bytes data = {NULL, 0};

    if (event->time_us < TIME_MIN || event->time_us > TIME_MAX) {
        buf_append_str(why, "The time is outside the years 1 to 9999.");
        return WALBUS_BAD_ARGUMENT;
    }
    if (!event->attributes && event->n_attributes > 0) {
        buf_append_str(why, "The attributes are NULL, but their number is not 0.");
        return WALBUS_BAD_ARGUMENT;
    }
    enum walbus_result result = take_data(event, defaults->max_content, &item, &data, why);
    if (result == WALBUS_OK)
        result = put(event, defaults, data, out, id, why);
    buf_deinit(&item);
    return result;
}
