/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_EVENT_H
#define WALBUS_CODEC_EVENT_H

/*
 * The envelope: a CloudEvents 1.0 map in deterministic CBOR (RFC 8949 4.2.1),
 * after the working draft of the CloudEvents CBOR event format. Keys are the
 * attribute names as text; `time` is tag 0; `data` is the application's CBOR
 * item itself. Unsigned content is tag 55799 (0xd9d9f7) and the map.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "codec/cbor.h"

/** Most attributes of one envelope, `data` not counted. One more is refused. */
#define EVENT_ATTRIBUTES_MAX 64
/** UUID text and its NUL. */
#define EVENT_ID_SIZE 37

struct event_attribute {
    struct bytes name;  /* text */
    struct bytes value; /* text (of `time` the RFC 3339 text inside the tag) */
    struct bytes item;  /* the value as CBOR, when parsed */
    bool is_text;       /* `value` is set; false: another CBOR type, only `item` */
};

struct event {
    struct event_attribute attributes[EVENT_ATTRIBUTES_MAX]; /* in the order of the map */
    size_t n_attributes;
    struct bytes data; /* one CBOR item; size 0: no data */
};

/** Levels of nesting that the envelope itself takes of CBOR_NESTING_MAX: the tag and the map. */
#define EVENT_NESTING 2

/** Bytes of tag 55799, which stands before the map in unsigned content. */
#define EVENT_TAG_SIZE 3

/** What content is, by its first bytes alone. */
enum content_kind {
    CONTENT_OPAQUE = 0,
    CONTENT_UNSIGNED, /* d9d9f7 and a map head */
    CONTENT_SIGNED,   /* d2 and an array head: COSE_Sign1 */
};
enum content_kind content_kind_of(struct bytes content);

/** Adds a text attribute. -E2BIG when there are EVENT_ATTRIBUTES_MAX already. Borrowed, not copied. */
int event_add(struct event *event, const char *name, const char *value) MUST_CHECK;

/** A text attribute by name, or {NULL, 0}. */
struct bytes event_get(const struct event *event, const char *name);

/** Whether a CloudEvents attribute name: [a-z0-9]+, not "data". */
bool event_name_is_valid(struct bytes name);

/**
 * Appends the content: tag 55799 and the deterministic map. `time` becomes tag 0, every other text
 * attribute text; an attribute that is not text is written as its `item`. 0; -ENOMEM; -EINVAL, and
 * nothing appended, for what event_decode would not take back: a value that is not UTF-8, a name
 * that is not valid or stands twice, a required attribute missing or empty, a specversion other
 * than "1.0", `data` that is not exactly one well-formed item of at most CBOR_NESTING_MAX less
 * EVENT_NESTING levels. Whether `time` is RFC 3339 is the caller's to check.
 */
int event_encode(const struct event *event, struct buf *out) MUST_CHECK;

/**
 * Reads unsigned content (the tag and the map). CBOR_OK, or why it is no event:
 * then it is delivered as opaque. The event borrows from `content`. Required: id, source,
 * specversion "1.0", type, all non-empty text (CBOR_FAULT_REQUIRED); keys text of definite length,
 * none twice; at most EVENT_ATTRIBUTES_MAX attributes (CBOR_FAULT_COUNT). The map need not be in
 * deterministic order or encoding, and attributes may have any name.
 */
enum cbor_fault event_decode(struct bytes content, struct event *ret) MUST_CHECK;

/** event_decode of the map alone, as it is the payload of signed content. It may nest as deeply as
 *  the same map in unsigned content. */
enum cbor_fault event_decode_map(struct bytes map, struct event *ret) MUST_CHECK;

/** A new UUIDv7 (RFC 9562 5.7): unix_ms (clamped to 48 bits) and 74 random bits of libsodium. */
void event_new_id(int64_t unix_ms, char out[EVENT_ID_SIZE]);

#endif
