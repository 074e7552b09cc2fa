/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_RECORD_H
#define WALBUS_DAEMON_JOURNAL_RECORD_H

/*
 * The journal's format on disk: what a segment file begins with, and what stands
 * in front of each run of frames. Pure: bytes in, structs out.
 *
 *   segment file   header | record | record | …
 *   record         RECORD frame | frames of one batch, as they go to subscribers
 *
 * The RECORD frame is flagged ignorable, so that a stretch of records can be sent
 * to a subscriber of everything as it is. All integers are big-endian.
 *
 * The RECORD frame's own eight header bytes are always the same; its checksum covers the rest of it and its frames, and
 * is seeded with the checksum of the record before it, across segments: a record
 * that was written in another place, or after another one, does not fit.
 *
 * A segment's header says how far its predecessor is valid. What stands behind
 * that was never synced, or was torn, and does not exist.
 *
 *   RECORD frame's body
 *     u64 checksum         XXH3-64 of all that follows in the record, seeded with the previous one
 *     u64 size             bytes of frames behind the RECORD frame
 *     position first (16), position last (16)   of the entries; zero when there are none
 *     u64 mark, u32 its timeline                0: no news
 *     i64 received time    µs since 1970, of its last message; never falls
 *     u64 running time     ms that routers of this journal have run
 *     u64 messages, u64 bytes of content        in this era's journal before this record
 *     u32 messages, u64 bytes of content        in this record
 *     u32 timeline, u64 commit LSN, i64 commit time, u32 xid   of the transaction that was open at
 *                                               its start; zero when none was
 *     u8 flags             1: starts inside that transaction; 2: a transaction is open at its end
 *
 *   segment header, SEGMENT_HEADER_SIZE bytes, unused ones zero
 *     "walbusJ1" | u64 checksum of the rest of the header (XXH3-64, seed 0) | u32 format | u32 layout of the data frames
 *     u64 sequence | u64 system identifier | u32 era
 *     position after (16)                       every entry in it lies behind
 *     u64 valid size of the predecessor, 0 if none | u64 checksum that seeds its first record
 *     u64 messages, u64 bytes before it         as in RECORD
 *     i64 received time, u64 running time       of what is before it
 *     u64 mark, u32 its timeline                synced before it
 *     u8 flags                                  1: begins inside a transaction, …
 *     u32 timeline, u64 commit LSN, i64 commit time, u32 xid   … this one; else zero
 *     database (64), slot (64)                  UTF-8 or any bytes, zero-padded
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/frame.h"
#include "codec/position.h"

#define JOURNAL_FORMAT      1u
#define SEGMENT_HEADER_SIZE 512u
#define RECORD_BODY         129u
#define RECORD_SIZE         (FRAME_HEADER_SIZE + RECORD_BODY)
#define RECORD_STARTS_INSIDE 0x01
#define RECORD_ENDS_INSIDE   0x02
/** PostgreSQL's NAMEDATALEN. */
#define JOURNAL_NAME_SIZE 64u

struct record {
    uint64_t checksum;
    uint64_t size;
    struct position first, last;
    uint64_t mark;
    uint32_t mark_timeline;
    int64_t received_time;
    uint64_t running_ms;
    uint64_t messages_before, bytes_before;
    uint32_t messages;
    uint64_t bytes;
    struct frame_begin begin;
    bool starts_inside, ends_inside;
};

struct segment_header {
    uint32_t format, layout;
    uint64_t sequence;
    uint64_t system_identifier;
    uint32_t era;
    struct position after;
    uint64_t previous_size, previous_checksum;
    uint64_t messages_before, bytes_before;
    int64_t received_time;
    uint64_t running_ms;
    uint64_t mark;
    uint32_t mark_timeline;
    bool starts_inside;
    struct frame_begin begin;
    char database[JOURNAL_NAME_SIZE + 1], slot[JOURNAL_NAME_SIZE + 1]; /* with a NUL */
};

/** Writes the RECORD frame with the checksum over it and the frames, in `pieces`, seeded with `seed`; sets r->checksum. */
void record_encode(struct record *r, uint64_t seed, const struct bytes *pieces, size_t n_pieces,
                   uint8_t out[RECORD_SIZE]);
/** 0, or -EBADMSG: not a RECORD frame, or one with flags or numbers that no writer puts there. The checksum is not looked at. */
int record_decode(const uint8_t in[RECORD_SIZE], struct record *ret) MUST_CHECK;
/** Whether the checksum is right; `frames` are the r->size bytes behind the RECORD frame `in`. */
bool record_verify(const uint8_t in[RECORD_SIZE], uint64_t seed, struct bytes frames) MUST_CHECK;

/** The same for frames that come in pieces: begin, add each, ask. */
struct record_check;
/** NULL: no memory. */
struct record_check *record_check_new(void) MUST_CHECK;
/** Returns NULL. Takes NULL. */
struct record_check *record_check_free(struct record_check *c);
void record_check_begin(struct record_check *c, const uint8_t in[RECORD_SIZE], uint64_t seed);
void record_check_add(struct record_check *c, struct bytes piece);
bool record_check_is_right(const struct record_check *c) MUST_CHECK;

void segment_header_encode(const struct segment_header *h, uint8_t out[SEGMENT_HEADER_SIZE]);
/** 0; -EBADMSG: not a segment, or damaged; -EPROTONOSUPPORT: of another format or layout (ret is written). */
int segment_header_decode(const uint8_t in[SEGMENT_HEADER_SIZE], struct segment_header *ret) MUST_CHECK;

/** "SEQUENCE-TIMELINE-LSN-INDEX.segment", hex of 16, 8, 16, 8 digits; the position is `after`. */
#define SEGMENT_NAME_SIZE 64u
char *segment_name_format(uint64_t sequence, struct position after, char out[SEGMENT_NAME_SIZE]);
/** 0, or -EINVAL: not such a name. */
int segment_name_parse(const char *name, uint64_t *ret_sequence, struct position *ret_after) MUST_CHECK;

#endif
