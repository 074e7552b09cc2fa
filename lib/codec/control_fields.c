/* SPDX-License-Identifier: PostgreSQL */
#include "codec/control_fields.h"

#include <errno.h>
#include <stdio.h>

#include "codec/cbor.h"

/* ---- writing ---- */

static bool field_is_zero(const struct control_field *f, const char *owner)
{
    const void *at = owner + f->offset;

    switch (f->type) {
    case FIELD_UINT:
        return *(const uint64_t *)at == 0;
    case FIELD_INT:
        return *(const int64_t *)at == 0;
    case FIELD_BOOL:
        return !*(const bool *)at;
    case FIELD_TEXT:
    case FIELD_ITEM:
        return ((const struct bytes *)at)->size == 0;
    case FIELD_POSITION:
        return position_is_zero(*(const struct position *)at);
    }
    return true;
}

static bool field_is_written(const struct control_field *f, const char *owner)
{
    switch (f->presence) {
    case FIELD_REQUIRED:
        return true;
    case FIELD_OPTIONAL:
        return !field_is_zero(f, owner);
    case FIELD_FLAGGED:
        return *(const bool *)(owner + f->flag);
    }
    return false;
}

static void put_field(struct buf *out, const struct control_field *f, const char *owner)
{
    const void *at = owner + f->offset;
    uint8_t raw[POSITION_SIZE];

    cbor_put_str(out, f->key);
    switch (f->type) {
    case FIELD_UINT:
        cbor_put_uint(out, *(const uint64_t *)at);
        break;
    case FIELD_INT:
        cbor_put_int(out, *(const int64_t *)at);
        break;
    case FIELD_BOOL:
        cbor_put_bool(out, *(const bool *)at);
        break;
    case FIELD_TEXT:
        cbor_put_text(out, *(const struct bytes *)at);
        break;
    case FIELD_POSITION:
        position_encode(*(const struct position *)at, raw);
        cbor_put_bytes(out, (struct bytes){raw, sizeof raw});
        break;
    case FIELD_ITEM:
        buf_append(out, ((const struct bytes *)at)->data, ((const struct bytes *)at)->size);
        break;
    }
}

void control_fields_put(struct buf *out, enum frame_type type, const struct control_field *fields,
                        size_t n, const void *owner)
{
    size_t start = out->size, present = 0;

    for (size_t i = 0; i < n; i++)
        present += field_is_written(&fields[i], owner);

    /* The length is known only behind the body, so its place is kept and filled in later. */
    if (!buf_reserve(out, FRAME_HEADER_SIZE))
        return;
    out->size += FRAME_HEADER_SIZE;
    cbor_put_map(out, present);
    for (size_t i = 0; i < n; i++)
        if (field_is_written(&fields[i], owner))
            put_field(out, &fields[i], owner);
    if (out->failed)
        return;
    struct frame_header h = {
        .size = (uint32_t)(out->size - start - FRAME_HEADER_SIZE),
        .type = (uint8_t)type,
    };
    frame_header_encode(out->data + start, h);
}

/* ---- reading ---- */

static const char *field_type_text(enum control_field_type type)
{
    switch (type) {
    case FIELD_UINT:
        return "an unsigned integer";
    case FIELD_INT:
        return "an integer of 64 bits";
    case FIELD_BOOL:
        return "true or false";
    case FIELD_TEXT:
        return "text";
    case FIELD_POSITION:
        return "a byte string of 16 bytes";
    case FIELD_ITEM:
        return "an item";
    }
    return "something else";
}

static enum cbor_fault read_position(struct cbor_reader *r, struct position *ret)
{
    struct bytes raw;
    enum cbor_fault fault = cbor_read_bytes(r, &raw);

    if (fault != CBOR_OK)
        return fault;
    if (raw.size != POSITION_SIZE)
        return CBOR_FAULT_TYPE;
    *ret = position_decode(raw.data);
    return CBOR_OK;
}

static enum cbor_fault read_field(struct cbor_reader *r, const struct control_field *f, char *owner)
{
    void *at = owner + f->offset;

    switch (f->type) {
    case FIELD_UINT:
        return cbor_read_uint(r, at);
    case FIELD_INT:
        return cbor_read_int(r, at);
    case FIELD_BOOL:
        return cbor_read_bool(r, at);
    case FIELD_TEXT:
        return cbor_read_text(r, at);
    case FIELD_POSITION:
        return read_position(r, at);
    case FIELD_ITEM:
        return cbor_read_item(r, at);
    }
    return CBOR_FAULT_TYPE;
}

static const struct control_field *find_field(const struct control_field *fields, size_t n,
                                              struct bytes key)
{
    for (size_t i = 0; i < n; i++)
        if (bytes_equal(key, bytes_of_text(fields[i].key)))
            return &fields[i];
    return NULL;
}

int control_fields_get(struct bytes body, const struct control_field *fields, size_t n, void *owner,
                       char why[CONTROL_WHY_SIZE])
{
    struct cbor_reader r = cbor_reader_init(body);
    uint32_t seen = 0;
    uint64_t pairs;
    size_t offset;
    enum cbor_fault fault = cbor_check(body, &offset);

    if (fault != CBOR_OK) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The body is not one CBOR item: %s, at byte %zu.",
                       cbor_fault_text(fault), offset);
        return -EBADMSG;
    }
    if (cbor_read_map(&r, &pairs) != CBOR_OK) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The body is not a map of definite length.");
        return -EBADMSG;
    }
    for (; pairs > 0; pairs--) {
        struct bytes key;

        if (cbor_read_text(&r, &key) != CBOR_OK) {
            (void)snprintf(why, CONTROL_WHY_SIZE,
                           "A key, at byte %zu, is not text of definite length.",
                           (size_t)(r.at - r.start));
            return -EBADMSG;
        }
        const struct control_field *f = find_field(fields, n, key);
        if (!f) {
            if (cbor_read_item(&r, NULL) != CBOR_OK) {
                (void)snprintf(why, CONTROL_WHY_SIZE, "The value at byte %zu is malformed.",
                               (size_t)(r.at - r.start));
                return -EBADMSG;
            }
            continue;
        }
        uint32_t bit = UINT32_C(1) << (f - fields);
        if (seen & bit) {
            (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"%s\" stands twice.", f->key);
            return -EBADMSG;
        }
        seen |= bit;
        if (read_field(&r, f, owner) != CBOR_OK) {
            (void)snprintf(why, CONTROL_WHY_SIZE, "The value of \"%s\" is not %s.", f->key,
                           field_type_text(f->type));
            return -EBADMSG;
        }
        if (f->presence == FIELD_FLAGGED)
            *(bool *)((char *)owner + f->flag) = true;
    }
    for (size_t i = 0; i < n; i++)
        if (fields[i].presence == FIELD_REQUIRED && !(seen & UINT32_C(1) << i)) {
            (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"%s\" is missing.", fields[i].key);
            return -EBADMSG;
        }
    return 0;
}
