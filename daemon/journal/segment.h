/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_SEGMENT_H
#define WALBUS_DAEMON_JOURNAL_SEGMENT_H

/*
 * One file of the journal in memory: private to daemon/journal. Counted, any thread: the journal's list holds a
 * reference, and so does each reader that stands in it, who can thus go on reading a file that is unlinked.
 *
 * What can be read is [SEGMENT_HEADER_SIZE, size): whole records. The writer raises `size` when a record is written,
 * not when it is synced; a failed sync lowers it again, to what is synced.
 *
 * Verification. A file is read once from its start to its end, checksum by checksum, before anything of it is handed out;
 * that makes the sparse index too. A record that does not fit ends what can be read: `damaged_at`. What this process writes is
 * handed out as it is, until its segment is closed: from then on whoever enters it finds it like any other file.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "journal/journal.h"
#include "journal/record.h"

/** Distance in a file between two entries of the index. */
#define SEGMENT_INDEX_STEP 65536u

/** Where a record begins, and what is before it. */
struct segment_mark {
    uint64_t offset;
    struct position before;     /* the last entry before it */
    bool starts_inside;
    int64_t received_time;      /* of what is before it */
    uint64_t messages, bytes;   /* before it in this era */
    uint64_t checksum;          /* that seeds the record */
};

struct segment {
    atomic_uint refs;
    char *path;
    int fd;                     /* read and, for the last one, written; closed with the last reference */
    struct segment_header header;
    uint64_t file_size;         /* when it was opened or closed; 0: made by this process and written, which knows by `size` */
    atomic_uint_fast64_t size;  /* bytes that can be read */
    pthread_mutex_t lock;       /* of all below */
    bool verified;
    uint64_t damaged_at;        /* 0: not damaged */
    bool damage_told;           /* a reader has met it */
    struct segment_mark end;    /* behind the last whole record; known when verified */
    struct frame_begin end_begin; /* of the transaction that is open there, if one is */
    uint64_t mark;              /* of the last record that has one, or the header's */
    uint32_t mark_timeline;
    uint64_t running_ms;        /* of the last record, or the header's */
    struct segment_mark *index; /* rising, never empty; the first is the first record, or where it will be */
    size_t n_index, index_cap;
    bool has_next;              /* its successor's header seeds its first record with … */
    uint64_t next_checksum;     /* … this: what the chain here must end in */
};

/** What the writer may have to fall back to. */
struct segment_state {
    struct segment_mark end;
    struct frame_begin end_begin;
    uint64_t mark;
    uint32_t mark_timeline;
    uint64_t running_ms;
};

/** Opens a file and reads its header. `size`: how far it is valid as its successor says; 0: as long as it is. 0 or a negative
 *  errno (-EBADMSG, -EPROTONOSUPPORT as segment_header_decode). */
int segment_open(const char *path, uint64_t size, struct segment **ret) MUST_CHECK;
/** Makes a file with this header (format and layout are set here) and syncs it and its folder. It gets its name when
 *  its header is on disk: one with that name and another content is damaged, never half made. */
int segment_create(const char *folder, const struct segment_header *h, struct segment **ret) MUST_CHECK;
/** Syncs what was made, renamed or unlinked in a folder. 0 or a negative errno. */
int segment_sync_folder(const char *folder) MUST_CHECK;
/** The name of a file that is being made; one that is left from a crash is in nobody's way. */
#define SEGMENT_UNNAMED "new"
struct segment *segment_ref(struct segment *s);
/** Returns NULL. Takes NULL. */
struct segment *segment_unref(struct segment *s);

/** Reads it to its last whole record, if that was not done. 0 also when it is damaged; a negative errno: it could not be read,
 *  try again. `torn_is_end`: what does not fit behind the last whole record is no damage but a torn end (the last segment of
 *  an unclean stop): `size` becomes what is whole. */
int segment_verify(struct segment *s, bool torn_is_end) MUST_CHECK;

/** The record to start at to find what lies behind `p`: the last one of the index before which everything is at or
 *  before `p`. Verified segments only. */
struct segment_mark segment_locate(struct segment *s, struct position p);
/** The same by received time: everything before it was received before `time`. */
struct segment_mark segment_locate_time(struct segment *s, int64_t time);

/** Notes, by the writer, a record that was appended at `offset`, the end so far, and raises `size` behind it. `open_at_end` is
 *  looked at when r->ends_inside. */
void segment_note(struct segment *s, uint64_t offset, const struct record *r, const struct frame_begin *open_at_end);
/** Moves behind that record, which begins at to->end.offset. */
void segment_state_move(struct segment_state *to, const struct record *r, const struct frame_begin *open_at_end);
/** What segment_note has left; and back to it, after a failure: `size` too. */
struct segment_state segment_state_of(struct segment *s);
void segment_fall_back(struct segment *s, const struct segment_state *to);

/** Nothing is written to it any more, and the next one is seeded with this: whoever enters it from here on verifies it first, as
 *  one that was found. */
void segment_close(struct segment *s, uint64_t next_checksum);

/** Where it is damaged, as far as it is verified; 0: nowhere. */
uint64_t segment_damaged_at(struct segment *s);

/** Bytes that it takes on the disk: what can be read, or what was there when it was opened. */
uint64_t segment_disk_size(const struct segment *s);

/** Any thread; each gives a reference, or NULL. The segment in which what lies behind `p` begins, the oldest when that is
 *  no longer here (see its header.after), the one behind `s`, the oldest one. */
struct segment *journal_segment_of(struct journal *j, struct position p);
struct segment *journal_segment_of_time(struct journal *j, int64_t time);
struct segment *journal_segment_after(struct journal *j, struct segment *s);
struct segment *journal_segment_first(struct journal *j);

#endif
