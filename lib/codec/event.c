/* SPDX-License-Identifier: PostgreSQL */
#include "codec/event.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* RFC 8949 3.4.6: "self-described CBOR". */
#define TAG_SELF_DESCRIBED 55799
/* RFC 8949 3.4.1: date and time as RFC 3339 text. */
#define TAG_DATE_TIME 0

static bool bytes_are(struct bytes b, const char *s)
{
    return bytes_equal(b, bytes_of_text(s));
}

static bool is_head_of(uint8_t initial, enum cbor_kind type)
{
    uint8_t info = initial & 0x1f;

    return initial >> 5 == (uint8_t)type && (info < 28 || info == 31);
}

enum content_kind content_kind_of(struct bytes content)
{
    const uint8_t *p = content.data;

    if (content.size >= 4 && p[0] == 0xd9 && p[1] == 0xd9 && p[2] == 0xf7 &&
        is_head_of(p[3], CBOR_MAP))
        return CONTENT_UNSIGNED;
    if (content.size >= 2 && p[0] == 0xd2 && is_head_of(p[1], CBOR_ARRAY))
        return CONTENT_SIGNED;
    return CONTENT_OPAQUE;
}

int event_add(struct event *event, const char *name, const char *value)
{
    if (event->n_attributes == EVENT_ATTRIBUTES_MAX)
        return -E2BIG;
    event->attributes[event->n_attributes++] = (struct event_attribute){
        .name = bytes_of_text(name),
        .value = bytes_of_text(value),
        .is_text = true,
    };
    return 0;
}

static const struct event_attribute *find(const struct event *event, struct bytes name)
{
    for (size_t i = 0; i < event->n_attributes; i++)
        if (bytes_equal(event->attributes[i].name, name))
            return &event->attributes[i];
    return NULL;
}

struct bytes event_get(const struct event *event, const char *name)
{
    const struct event_attribute *a = find(event, bytes_of_text(name));

    return a && a->is_text ? a->value : (struct bytes){NULL, 0};
}

bool event_name_is_valid(struct bytes name)
{
    for (size_t i = 0; i < name.size; i++) {
        uint8_t c = name.data[i];

        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9'))
            return false;
    }
    return name.size > 0 && !bytes_are(name, "data");
}

/* CloudEvents 1.0: the attributes without which it is no event. */
static bool has_required(const struct event *event)
{
    return event_get(event, "id").size > 0 && event_get(event, "source").size > 0 &&
           event_get(event, "type").size > 0 && bytes_are(event_get(event, "specversion"), "1.0");
}

/* ---- writing ---- */

/* A pair of the map; the one without attribute is `data`. */
struct pair {
    struct bytes name;
    const struct event_attribute *attribute;
};

/* The bytewise order of the encoded keys (RFC 8949 4.2.1): a text's head rises with its length. */
static int compare_pairs(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;

    if (a->name.size != b->name.size)
        return a->name.size < b->name.size ? -1 : 1;
    return memcmp(a->name.data, b->name.data, a->name.size);
}

static bool attribute_is_valid(const struct event_attribute *a)
{
    if (!event_name_is_valid(a->name))
        return false;
    return a->is_text ? text_is_utf8(a->value)
                      : cbor_check_inside(a->item, EVENT_NESTING, NULL) == CBOR_OK;
}

static void put_pair(struct buf *out, const struct pair *p, struct bytes data)
{
    cbor_put_text(out, p->name);
    if (!p->attribute) {
        buf_append(out, data.data, data.size);
    } else if (!p->attribute->is_text) {
        buf_append(out, p->attribute->item.data, p->attribute->item.size);
    } else {
        if (bytes_are(p->name, "time"))
            cbor_put_tag(out, TAG_DATE_TIME);
        cbor_put_text(out, p->attribute->value);
    }
}

int event_encode(const struct event *event, struct buf *out)
{
    struct pair pairs[EVENT_ATTRIBUTES_MAX + 1];
    size_t n = 0;

    if (!has_required(event))
        return -EINVAL;
    for (size_t i = 0; i < event->n_attributes; i++) {
        const struct event_attribute *a = &event->attributes[i];

        if (!attribute_is_valid(a))
            return -EINVAL;
        pairs[n++] = (struct pair){a->name, a};
    }
    if (event->data.size > 0) {
        if (cbor_check_inside(event->data, EVENT_NESTING, NULL) != CBOR_OK)
            return -EINVAL;
        pairs[n++] = (struct pair){bytes_of_text("data"), NULL};
    }
    qsort(pairs, n, sizeof pairs[0], compare_pairs);
    for (size_t i = 1; i < n; i++)
        if (compare_pairs(&pairs[i - 1], &pairs[i]) == 0)
            return -EINVAL;

    cbor_put_tag(out, TAG_SELF_DESCRIBED);
    cbor_put_map(out, n);
    for (size_t i = 0; i < n; i++)
        put_pair(out, &pairs[i], event->data);
    return out->failed ? -ENOMEM : 0;
}

/* ---- reading ---- */

/* The text in an attribute's item: as it is, and for `time` inside tag 0. */
static bool text_of(struct bytes name, struct bytes item, struct bytes *ret)
{
    struct cbor_reader r = cbor_reader_init(item), inside;
    struct cbor_head h;

    if (bytes_are(name, "time")) {
        inside = r;
        if (cbor_read_head(&inside, &h) == CBOR_OK && h.type == CBOR_TAG && h.arg == TAG_DATE_TIME)
            r = inside;
    }
    return cbor_read_text(&r, ret) == CBOR_OK;
}

static enum cbor_fault read_pair(struct cbor_reader *r, struct event *event)
{
    struct bytes name, item;
    enum cbor_fault fault = cbor_read_text(r, &name);

    if (fault != CBOR_OK)
        return fault;
    fault = cbor_read_item(r, &item);
    if (fault != CBOR_OK)
        return fault;
    if (bytes_are(name, "data")) {
        if (event->data.size > 0)
            return CBOR_FAULT_DUPLICATE;
        event->data = item;
        return CBOR_OK;
    }
    if (find(event, name))
        return CBOR_FAULT_DUPLICATE;
    if (event->n_attributes == EVENT_ATTRIBUTES_MAX)
        return CBOR_FAULT_COUNT;

    struct event_attribute *a = &event->attributes[event->n_attributes++];

    *a = (struct event_attribute){.name = name, .item = item};
    a->is_text = text_of(name, item, &a->value);
    return CBOR_OK;
}

enum cbor_fault event_decode_map(struct bytes in, struct event *ret)
{
    struct event event = {0};
    struct cbor_reader r = cbor_reader_init(in);
    struct cbor_head map;
    enum cbor_fault fault = cbor_check_inside(in, EVENT_NESTING - 1, NULL); /* inside the tag */

    if (fault == CBOR_OK)
        fault = cbor_read_head(&r, &map);
    if (fault == CBOR_OK && map.type != CBOR_MAP)
        fault = CBOR_FAULT_TYPE;
    for (uint64_t i = 0; fault == CBOR_OK; i++) {
        if (map.indefinite ? *r.at == 0xff : i == map.arg)
            break;
        fault = read_pair(&r, &event);
    }
    if (fault != CBOR_OK)
        return fault;
    if (!has_required(&event))
        return CBOR_FAULT_REQUIRED;
    *ret = event;
    return CBOR_OK;
}

enum cbor_fault event_decode(struct bytes content, struct event *ret)
{
    if (content_kind_of(content) != CONTENT_UNSIGNED)
        return CBOR_FAULT_TYPE;
    return event_decode_map(
        (struct bytes){content.data + EVENT_TAG_SIZE, content.size - EVENT_TAG_SIZE}, ret);
}

/* ---- identifiers ---- */

void event_new_id(int64_t unix_ms, char out[EVENT_ID_SIZE])
{
    static const uint8_t group_sizes[] = {4, 2, 2, 2, 6};
    uint8_t id[16];
    const uint8_t *from = id;
    uint64_t ms = unix_ms < 0 ? 0 : (uint64_t)unix_ms;

    if (ms >> 48 != 0)
        ms = (UINT64_C(1) << 48) - 1;
    bytes_put_u16(id, (uint16_t)(ms >> 32));
    bytes_put_u32(id + 2, (uint32_t)ms);

    int ready = sodium_init(); /* makes the generator's first use safe between threads; if it
                                  cannot, randombytes_buf aborts by itself */

    (void)ready;
    randombytes_buf(id + 6, 10);
    id[6] = (uint8_t)(0x70 | (id[6] & 0x0f)); /* version 7 */
    id[8] = (uint8_t)(0x80 | (id[8] & 0x3f)); /* variant of RFC 9562 */

    for (size_t i = 0; i < ARRAY_SIZE(group_sizes); i++) {
        if (i > 0)
            *out++ = '-';
        (void)text_hex(from, group_sizes[i], out);
        out += 2 * group_sizes[i];
        from += group_sizes[i];
    }
}
