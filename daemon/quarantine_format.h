/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_QUARANTINE_FORMAT_H
#define WALBUS_DAEMON_QUARANTINE_FORMAT_H

/*
 * The quarantine's file: what it begins with, and its records. Pure: bytes in, structs out.
 *
 *   file     header | record | record | …     only appended to, or made anew as a whole
 *   header   "walbusQ1" | u64 checksum of the rest (XXH3-64, seed 0) | u32 format | u32 zero | u64 seed | u64 first free id
 *            | 24 zero bytes
 *   record   "wbqr" | u8 kind | three zero bytes | u64 size of the body | u64 checksum of the body | u64 checksum of what
 *            stands before it in the record | body       both checksums XXH3-64, seeded with the seed
 *
 *   PUT (1)  a message. u64 id | u64 system identifier | u32 era | u32 status | position (16) | u64 LSN | u32 xid | u32 flags |
 *            i64 commit time | i64 received time | SHA-256 as in WITHHELD (32) | u32 prefix size | u16 kid size | u16 reason size | u32 zero |
 *            prefix | kid | reason | content (the rest)
 *   GONE (2) an entry is no more. u64 id | u32 why
 *
 * All integers are big-endian. The seed is random, so nobody who publishes can make bytes that look like a record: after
 * damage the next whole record can be looked for.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/frame.h"
#include "codec/position.h"

#define QUARANTINE_FORMAT      1u
#define QUARANTINE_HEADER_SIZE 64u
#define QUARANTINE_RECORD_SIZE 32u /* in front of the body */
#define QUARANTINE_PUT_FIXED   116u
#define QUARANTINE_GONE_BODY   12u
#define QUARANTINE_KID_MAX     255u
#define QUARANTINE_REASON_MAX  1024u

enum quarantine_kind { QUARANTINE_PUT = 1, QUARANTINE_GONE = 2 };

enum quarantine_gone {
    QUARANTINE_DROPPED = 1,
    QUARANTINE_RELEASED = 2,
};

struct quarantine_header {
    uint64_t seed, next_id;
};

struct quarantine_record {
    enum quarantine_kind kind;
    uint64_t size; /* of the body */
    uint64_t checksum;
};

/** A message in quarantine. Borrows. */
struct quarantine_message {
    uint64_t id;
    uint64_t system_identifier;
    uint32_t era;
    uint32_t status; /* enum verify_status */
    struct position position;
    uint64_t lsn;
    uint32_t xid;
    uint32_t flags; /* of the MESSAGE frame */
    int64_t commit_time, received_time;
    uint8_t hash[FRAME_HASH_SIZE];
    struct bytes prefix, kid, reason, content;
};

void quarantine_header_encode(const struct quarantine_header *h, uint8_t out[QUARANTINE_HEADER_SIZE]);
/** 0; -EBADMSG: not one, or damaged; -EPROTONOSUPPORT: of another format. */
int quarantine_header_decode(const uint8_t in[QUARANTINE_HEADER_SIZE], struct quarantine_header *ret) MUST_CHECK;

/** What stands in front of a body that comes in pieces; its size and checksum are found here. */
void quarantine_record_encode(enum quarantine_kind kind, uint64_t seed, const struct bytes *pieces, size_t n,
                              uint8_t out[QUARANTINE_RECORD_SIZE]);
/** 0, or -EBADMSG. The body's checksum is not looked at. */
int quarantine_record_decode(const uint8_t in[QUARANTINE_RECORD_SIZE], uint64_t seed, struct quarantine_record *ret) MUST_CHECK;

/** The fixed part of a PUT's body; prefix, kid, reason and content follow. */
void quarantine_put_encode(const struct quarantine_message *m, uint8_t out[QUARANTINE_PUT_FIXED]);
/** Of the fixed part of a body that has `size` bytes: of what follows the sizes alone. 0, or -EBADMSG. */
int quarantine_put_decode(const uint8_t in[QUARANTINE_PUT_FIXED], uint64_t size, struct quarantine_message *ret) MUST_CHECK;
void quarantine_gone_encode(uint64_t id, enum quarantine_gone why, uint8_t out[QUARANTINE_GONE_BODY]);
int quarantine_gone_decode(struct bytes body, uint64_t *ret_id, uint32_t *ret_why) MUST_CHECK;

#endif
