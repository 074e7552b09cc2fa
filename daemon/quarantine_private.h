/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_QUARANTINE_PRIVATE_H
#define WALBUS_DAEMON_QUARANTINE_PRIVATE_H

/* What quarantine.c, the entries, and quarantine_file.c, their file, share. All under the lock. */

#include <pthread.h>
#include <stdatomic.h>

#include "quarantine.h"

/** Of an entry in memory. */
struct quarantine_entry {
    uint64_t id;
    uint64_t offset, size; /* of its record, with what stands in front of the body */
    uint64_t system_identifier;
    struct position position;
    uint32_t era;
};

struct quarantine {
    pthread_mutex_t lock; /* held while the disk is waited for */
    char *path, *new_path;
    atomic_uint_fast64_t limit;
    int fd;            /* -1: there is no file yet */
    uint64_t seed;
    uint64_t next_id;
    uint64_t end;      /* what is synced */
    bool renew;        /* it must be made anew before anything is written behind `end` */
    bool keep_damaged; /* … and what it was is kept beside it … */
    bool kept;         /* … which is done */
    struct quarantine_entry *entries; /* by rising ids */
    size_t n, cap;
    uint64_t live;     /* bytes of their records */

    pthread_mutex_t told_lock; /* never held for long */
    struct quarantine_count told;
    struct quarantine_entry told_newest; /* id 0: there is none */
};

bool quarantine_index_add(struct quarantine *q, const struct quarantine_entry *entry) MUST_CHECK;
void quarantine_index_remove(struct quarantine *q, uint64_t first, uint64_t last);
/** Counts are what they are now. */
void quarantine_tell(struct quarantine *q);

/** There is a file to which `size` bytes can be written behind `end`. 0 or a negative errno, as all that follow. */
int quarantine_file_ready(struct quarantine *q, uint64_t size) MUST_CHECK;
/** Writes a record at *offset and moves that. */
int quarantine_file_write(struct quarantine *q, enum quarantine_kind kind, const struct bytes *body, size_t n,
                          uint64_t *offset) MUST_CHECK;
/** What was written up to `end` is on the disk, and counts. */
int quarantine_file_sync(struct quarantine *q, uint64_t end) MUST_CHECK;
/** What was written behind `end` does not count. */
void quarantine_file_undo(struct quarantine *q);
/** Makes the file anew, of the present entries alone. */
int quarantine_file_renew(struct quarantine *q) MUST_CHECK;
/** Cuts it down to its header, in its place: no entry is left. q->end says whether that was done, also when it could
 *  not be synced. */
int quarantine_file_empty(struct quarantine *q) MUST_CHECK;
/** What it takes on disk. */
uint64_t quarantine_file_bytes(const struct quarantine *q);
/** The fixed part of an entry. */
int quarantine_file_fixed(struct quarantine *q, const struct quarantine_entry *e, struct quarantine_message *ret) MUST_CHECK;
/** Whether its bytes are those that were written: 0 or -EBADMSG, … */
int quarantine_file_check(struct quarantine *q, const struct quarantine_entry *e) MUST_CHECK;
int quarantine_file_read(struct quarantine *q, const struct quarantine_entry *e, uint64_t from, size_t max,
                         bool all_of_prefix, struct buf *storage, struct quarantine_message *ret,
                         uint64_t *ret_size) MUST_CHECK;

#endif
