/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_FRAME_H
#define WALBUS_CODEC_FRAME_H

/*
 * The frames of the subscriber protocol, as both ends see them.
 *
 *   u32 body length | u8 type | u8 flags | u16 zero | body
 *
 * Big-endian. Control bodies are CBOR maps (control.h); the data frames below
 * are fixed binary, so that the router makes them once and every subscriber
 * gets the same bytes. Times are µs since 1970-01-01 UTC.
 *
 *   BEGIN     u32 timeline, u64 commit LSN, i64 commit time, u32 xid
 *   MESSAGE   position (16), u64 own LSN, u32 xid, i64 commit time, i64 received time,
 *             u32 prefix length, prefix, content (the rest); xid and commit time
 *             are 0 when non-transactional
 *   COMMIT    as BEGIN, u64 end LSN, u32 number of messages in the transaction
 *   PROGRESS  position (16)
 *   GAP       position from (16), position to (16), u64 messages, u64 bytes (2^64-1: unknown),
 *             reason as UTF-8 (the rest); both ends belong to the gap
 *
 * and one that stands only in the router's journal, in the place of a MESSAGE that went to quarantine:
 *
 *   WITHHELD  as MESSAGE up to and with the prefix length, u32 content length, u32 status,
 *             SHA-256 of u32 prefix length, prefix and content (32); flags as MESSAGE's, and ignorable
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/position.h"

#define FRAME_HEADER_SIZE 8
/** Version of the protocol, and of the layout of the data frames above. */
#define PROTOCOL_VERSION  1
#define FRAME_LAYOUT      1

enum frame_type {
    FRAME_HELLO = 0x01,
    FRAME_WELCOME = 0x02,
    FRAME_SUBSCRIBE = 0x03,
    FRAME_SUBSCRIBED = 0x04,
    FRAME_ACK = 0x05,
    FRAME_ACKED = 0x06,
    FRAME_REQUEST = 0x07,
    FRAME_REPLY = 0x08,
    FRAME_ERROR = 0x09,
    FRAME_BEGIN = 0x10,
    FRAME_MESSAGE = 0x11,
    FRAME_COMMIT = 0x12,
    FRAME_PROGRESS = 0x13,
    FRAME_GAP = 0x14,
    FRAME_RECORD = 0x15, /* stands in front of a run of frames in the router's journal; always ignorable */
    FRAME_WITHHELD = 0x16, /* in the journal alone: a message that is in quarantine stood there; always ignorable */
};

/** Any frame: whoever does not know the type may skip it. Without it an unknown type is fatal. */
#define FRAME_FLAG_IGNORABLE 0x80
/** MESSAGE */
#define FRAME_FLAG_TRANSACTIONAL 0x01
/** BEGIN: the subscriber has had a part of this transaction before. */
#define FRAME_FLAG_RESUMED 0x01
/** COMMIT: a gap swallowed a part of this transaction. */
#define FRAME_FLAG_INCOMPLETE 0x01

/** Largest body of a control frame that either end accepts. One byte more is an error. */
#define FRAME_CONTROL_MAX (1u << 20)

struct frame_header {
    uint32_t size; /* of the body */
    uint8_t type;
    uint8_t flags;
};

void frame_header_encode(uint8_t out[FRAME_HEADER_SIZE], struct frame_header h);
/** 0, or -EBADMSG when the two zero bytes are not zero. */
int frame_header_decode(const uint8_t in[FRAME_HEADER_SIZE], struct frame_header *ret) MUST_CHECK;
/** "MESSAGE" and so on, "unknown" otherwise. */
const char *frame_type_name(uint8_t type);

struct frame_begin {
    uint32_t timeline;
    uint64_t commit_lsn;
    int64_t commit_time;
    uint32_t xid;
    uint8_t flags;
};

struct frame_message {
    struct position position;
    uint64_t lsn;
    uint32_t xid;
    int64_t commit_time;
    int64_t received_time;
    struct bytes prefix;
    struct bytes content;
    uint8_t flags;
};

struct frame_commit {
    struct frame_begin begin;
    uint64_t end_lsn;
    uint32_t messages;
};

#define FRAME_HASH_SIZE 32

struct frame_withheld {
    struct frame_message message; /* of prefix and content the sizes alone */
    uint32_t status;              /* why: enum verify_status */
    uint8_t hash[FRAME_HASH_SIZE];
};

struct frame_gap {
    struct position from, to;
    uint64_t messages, bytes; /* UINT64_MAX: unknown */
    struct bytes reason;
};

#define FRAME_BEGIN_BODY    24
#define FRAME_MESSAGE_FIXED 48 /* up to the prefix */
#define FRAME_COMMIT_BODY   36
#define FRAME_PROGRESS_BODY 16
#define FRAME_GAP_FIXED     48
#define FRAME_WITHHELD_BODY 88

/** Encoders write header and body to `out`, which has room for them, and return the bytes written. */
size_t frame_begin_encode(uint8_t *out, const struct frame_begin *f);
size_t frame_commit_encode(uint8_t *out, const struct frame_commit *f);
size_t frame_progress_encode(uint8_t *out, struct position p);
/** Header, fixed part and prefix; the content follows and is the caller's to append. */
size_t frame_message_encode_head(uint8_t *out, const struct frame_message *f);
size_t frame_gap_encode(uint8_t *out, const struct frame_gap *f);
size_t frame_withheld_encode(uint8_t *out, const struct frame_withheld *f);

/** Decoders take the body and borrow from it. 0, or -EBADMSG: a length that cannot be right. */
int frame_begin_decode(struct frame_header h, const uint8_t *body, struct frame_begin *ret) MUST_CHECK;
int frame_message_decode(struct frame_header h, const uint8_t *body, struct frame_message *ret) MUST_CHECK;
int frame_commit_decode(struct frame_header h, const uint8_t *body, struct frame_commit *ret) MUST_CHECK;
int frame_progress_decode(struct frame_header h, const uint8_t *body, struct position *ret) MUST_CHECK;
int frame_gap_decode(struct frame_header h, const uint8_t *body, struct frame_gap *ret) MUST_CHECK;
int frame_withheld_decode(struct frame_header h, const uint8_t *body, struct frame_withheld *ret) MUST_CHECK;

#endif
