/* SPDX-License-Identifier: PostgreSQL */
#include "client/delivery.h"

#include <assert.h>
#include <stddef.h>

#include "client/position.h"
#include "codec/cbor.h"
#include "codec/signed_event.h"

#define SIGNATURE_IS(name, number, word)                                                  \
    _Static_assert((int)WALBUS_SIGNATURE_##name == number, "the statuses are verify.h's");
VERIFY_STATUSES(SIGNATURE_IS)
#undef SIGNATURE_IS

/* ---- making ---- */

void delivery_ready(struct walbus_delivery *d, struct position position, bool stored)
{
    d->head = (struct delivery_head){
        .kind = WALBUS_DELIVERY_READY,
        .flags = stored ? WALBUS_DELIVERY_STORED : 0,
        .position = position,
    };
}

void delivery_begin(struct walbus_delivery *d, const struct frame_begin *f, struct position behind)
{
    d->head = (struct delivery_head){
        .kind = WALBUS_DELIVERY_BEGIN,
        .flags = WALBUS_DELIVERY_TRANSACTIONAL |
                 (f->flags & FRAME_FLAG_RESUMED ? WALBUS_DELIVERY_RESUMED : 0),
        .position = behind,
        .lsn = f->commit_lsn,
        .xid = f->xid,
        .commit_time = f->commit_time,
    };
}

int delivery_verify(struct walbus_delivery *d, const struct frame_message *f,
                    const struct trust *trust, struct bytes audience, struct buf *scratch)
{
    const struct verify_scope scope = {
        .prefix = f->prefix,
        .audience = audience,
        /* Whatever the router says is a time. */
        .received_time_us =
            f->received_time != VERIFY_NO_TIME ? f->received_time : VERIFY_NO_TIME + 1,
    };

    return verify_content(trust, &scope, f->content, scratch, &d->verified);
}

void delivery_message(struct walbus_delivery *d, const struct frame_message *f, bool redelivered,
                      bool verified)
{
    d->head = (struct delivery_head){
        .kind = WALBUS_DELIVERY_MESSAGE,
        .flags = (f->flags & FRAME_FLAG_TRANSACTIONAL ? WALBUS_DELIVERY_TRANSACTIONAL : 0) |
                 (redelivered ? WALBUS_DELIVERY_REDELIVERED : 0),
        .position = f->position,
        .lsn = f->lsn,
        .xid = f->xid,
        .commit_time = f->commit_time,
        .received_time = f->received_time,
        .prefix = f->prefix,
        .content = f->content,
        .verified = verified,
    };
}

void delivery_commit(struct walbus_delivery *d, const struct frame_commit *f)
{
    d->head = (struct delivery_head){
        .kind = WALBUS_DELIVERY_COMMIT,
        .flags = WALBUS_DELIVERY_TRANSACTIONAL |
                 (f->begin.flags & FRAME_FLAG_INCOMPLETE ? WALBUS_DELIVERY_INCOMPLETE : 0),
        .position = {f->begin.timeline, f->begin.commit_lsn, POSITION_INDEX_END},
        .lsn = f->begin.commit_lsn,
        .end_lsn = f->end_lsn,
        .xid = f->begin.xid,
        .commit_time = f->begin.commit_time,
        .messages = f->messages,
    };
}

void delivery_progress(struct walbus_delivery *d, struct position position)
{
    d->head = (struct delivery_head){.kind = WALBUS_DELIVERY_PROGRESS, .position = position};
}

void delivery_gap(struct walbus_delivery *d, const struct frame_gap *f, const char *reason)
{
    d->head = (struct delivery_head){
        .kind = WALBUS_DELIVERY_GAP,
        .position = f->to,
        .from = f->from,
        .messages = f->messages,
        .bytes = f->bytes,
        .reason = reason,
    };
}

void delivery_acked(struct walbus_delivery *d, struct position position)
{
    d->head = (struct delivery_head){.kind = WALBUS_DELIVERY_ACKED, .position = position};
}

/* ---- what every delivery has ---- */

enum walbus_delivery_kind walbus_delivery_kind(const struct walbus_delivery *d)
{
    return d->head.kind;
}

unsigned walbus_delivery_flags(const struct walbus_delivery *d)
{
    return d->head.flags;
}

struct walbus_position walbus_delivery_position(const struct walbus_delivery *d)
{
    return position_shown(d->head.position);
}

struct walbus_position walbus_delivery_from(const struct walbus_delivery *d)
{
    return position_shown(d->head.from);
}

uint64_t walbus_delivery_lsn(const struct walbus_delivery *d)
{
    return d->head.lsn;
}

uint64_t walbus_delivery_end_lsn(const struct walbus_delivery *d)
{
    return d->head.end_lsn;
}

uint32_t walbus_delivery_xid(const struct walbus_delivery *d)
{
    return d->head.xid;
}

int64_t walbus_delivery_commit_time_us(const struct walbus_delivery *d)
{
    return d->head.commit_time;
}

int64_t walbus_delivery_received_time_us(const struct walbus_delivery *d)
{
    return d->head.received_time;
}

uint64_t walbus_delivery_messages(const struct walbus_delivery *d)
{
    return d->head.messages;
}

uint64_t walbus_delivery_bytes(const struct walbus_delivery *d)
{
    return d->head.bytes;
}

const char *walbus_delivery_reason(const struct walbus_delivery *d)
{
    return d->head.reason;
}

/** Hands bytes out; a value without any is not NULL, no value is. */
static const void *give(struct bytes bytes, bool there, size_t *ret_size)
{
    if (ret_size)
        *ret_size = there ? bytes.size : 0;
    if (!there)
        return NULL;
    return bytes.data ? (const void *)bytes.data : "";
}

static bool is_message(const struct walbus_delivery *d)
{
    return d->head.kind == WALBUS_DELIVERY_MESSAGE;
}

const char *walbus_delivery_prefix(const struct walbus_delivery *d, size_t *ret_size)
{
    return give(d->head.prefix, is_message(d), ret_size);
}

const void *walbus_delivery_content(const struct walbus_delivery *d, size_t *ret_size)
{
    return give(d->head.content, is_message(d), ret_size);
}

/* Deliveries are never const objects; the functions promise that theirs is not changed to be seen. */
static struct walbus_delivery *own(const struct walbus_delivery *d)
{
    return (struct walbus_delivery *)(uintptr_t)d;
}

/* ---- events ---- */

static enum walbus_form parse(struct bytes content, struct event *ret)
{
    struct cose_sign1 message;

    if (content_kind_of(content) != CONTENT_SIGNED)
        return event_decode(content, ret) == CBOR_OK ? WALBUS_FORM_EVENT : WALBUS_FORM_OPAQUE;
    if (signed_event_parse(content, &message) != COSE_SIGN1_OK ||
        event_decode_map(message.payload, ret) != CBOR_OK)
        return WALBUS_FORM_OPAQUE;
    return WALBUS_FORM_SIGNED;
}

/** The event in the content; NULL: it is none. */
static const struct event *event_of(const struct walbus_delivery *d)
{
    if (!d->head.parsed) {
        own(d)->form =
            is_message(d) ? parse(d->head.content, &own(d)->event) : WALBUS_FORM_OPAQUE;
        own(d)->head.parsed = true;
    }
    return d->form != WALBUS_FORM_OPAQUE ? &d->event : NULL;
}

enum walbus_form walbus_delivery_form(const struct walbus_delivery *d)
{
    (void)event_of(d);
    return d->form;
}

const char *walbus_delivery_attribute(const struct walbus_delivery *d, const char *name,
                                      size_t *ret_size)
{
    const struct event *event = event_of(d);
    struct bytes value = {NULL, 0};

    if (event && name)
        value = event_get(event, name);
    return give(value, value.data != NULL, ret_size);
}

size_t walbus_delivery_attributes(const struct walbus_delivery *d)
{
    const struct event *event = event_of(d);

    return event ? event->n_attributes : 0;
}

const char *walbus_delivery_attribute_at(const struct walbus_delivery *d, size_t i,
                                         size_t *ret_name_size, const void **ret_item,
                                         size_t *ret_item_size)
{
    const struct event *event = event_of(d);
    bool there = event && i < event->n_attributes;
    struct bytes name = {NULL, 0}, item = {NULL, 0};

    if (there) {
        name = event->attributes[i].name;
        item = event->attributes[i].item;
    }
    const void *given = give(item, there, ret_item_size);
    if (ret_item)
        *ret_item = given;
    return give(name, there, ret_name_size);
}

static struct bytes data_of(const struct walbus_delivery *d)
{
    const struct event *event = event_of(d);

    return event ? event->data : (struct bytes){NULL, 0};
}

const void *walbus_delivery_data(const struct walbus_delivery *d, size_t *ret_size)
{
    struct bytes data = data_of(d);

    return give(data, data.size > 0, ret_size);
}

const char *walbus_delivery_data_text(const struct walbus_delivery *d, size_t *ret_size)
{
    struct cbor_reader r = cbor_reader_init(data_of(d));
    struct bytes text = {NULL, 0};
    bool there = r.start && cbor_read_text(&r, &text) == CBOR_OK;

    return give(text, there, ret_size);
}

const void *walbus_delivery_data_bytes(const struct walbus_delivery *d, size_t *ret_size)
{
    struct cbor_reader r = cbor_reader_init(data_of(d));
    struct bytes bytes = {NULL, 0};
    bool there = r.start && cbor_read_bytes(&r, &bytes) == CBOR_OK;

    return give(bytes, there, ret_size);
}

/* ---- signatures ---- */

/** What the content is worth. Without a trust file nobody's key is known, and no memory is needed to say so. */
static const struct verify_result *verified(const struct walbus_delivery *d)
{
    const struct verify_scope scope = {
        .prefix = d->head.prefix,
        .received_time_us = d->head.received_time,
    };

    if (!d->head.verified) {
        int rc = verify_content(NULL, &scope, d->head.content, NULL, &own(d)->verified);

        assert(rc == 0);
        (void)rc;
        own(d)->head.verified = true;
    }
    return &d->verified;
}

enum walbus_signature walbus_delivery_signature(const struct walbus_delivery *d)
{
    return is_message(d) ? (enum walbus_signature)verified(d)->status : WALBUS_SIGNATURE_UNSIGNED;
}

const char *walbus_delivery_signature_reason(const struct walbus_delivery *d)
{
    return is_message(d) ? verified(d)->reason : "";
}

const void *walbus_delivery_kid(const struct walbus_delivery *d, size_t *ret_size)
{
    struct bytes kid = is_message(d) ? verified(d)->kid : (struct bytes){NULL, 0};

    return give(kid, kid.data != NULL, ret_size);
}

const char *walbus_signature_text(enum walbus_signature signature)
{
    return verify_status_text((enum verify_status)signature);
}
