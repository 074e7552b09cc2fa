/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_QUARANTINE_H
#define WALBUS_DAEMON_QUARANTINE_H

/*
 * The messages that policy has kept out of the journal, in one file of the state folder (quarantine_format.h), until
 * somebody releases or drops them.
 *
 * A message is there once: one that the server sends again, because the router died before its journal knew of it, is
 * known by journal identity, position and hash. What is put is synced before anything says so; what an unclean end has
 * torn at the file's end was never said. Entries that go leave a record, and room when the file is made anew: as soon
 * as a quarter of the limit is taken by what is gone. So the file may be a quarter larger than the limit. It is full,
 * by bytes or by entries, when the next message does not fit: nothing ever goes by itself. When all entries go, and
 * the file cannot be made anew because the disk is full, it is cut down in its place, which needs no room. A crash
 * before that is synced may bring entries back that were about to go; it never takes one that was to stay. Somebody
 * who removes the file, or moves it away, removes no entry: with the next one it is made anew.
 *
 * Any thread may call, and each call but quarantine_count() may wait for the disk; the loop opens and closes it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"
#include "quarantine_format.h"

/** Most entries: of each some bytes are kept in memory. */
#define QUARANTINE_ENTRIES_MAX 65536u
/** One sentence with a file's name. */
#define QUARANTINE_WHY_SIZE 512
/** Of a longer prefix quarantine_list() gives the beginning. */
#define QUARANTINE_PREFIX_SHOWN 1024u

struct quarantine;

/** What opening found beside whole entries. */
struct quarantine_found {
    uint64_t torn;    /* bytes at the end that are no whole record */
    uint64_t damaged; /* bytes before that which are not those that were written: what stood there is lost */
    uint64_t damaged_at;
};

struct quarantine_count {
    uint64_t entries, bytes, limit;
    uint64_t newest;     /* its id; 0: there is none */
    uint64_t file_bytes; /* what the file takes on disk */
};

/** `path` is made with the first message. 0; a negative errno with `why`: -EBADMSG, -EPROTONOSUPPORT: it is no
 *  quarantine of this router. */
int quarantine_open(const char *path, uint64_t limit, struct quarantine **ret, struct quarantine_found *ret_found,
                    char why[QUARANTINE_WHY_SIZE]) MUST_CHECK;
/** Returns NULL; takes NULL. */
struct quarantine *quarantine_close(struct quarantine *q);

void quarantine_set_limit(struct quarantine *q, uint64_t limit);
/** Waits for nothing. */
struct quarantine_count quarantine_count(const struct quarantine *q);
/** Whether `position` of that journal is behind all that is in quarantine: then nothing of it stands there. Waits for
 *  nothing. */
bool quarantine_is_behind(const struct quarantine *q, uint64_t system_identifier, uint32_t era, struct position position);

/** Puts them all, synced, and gives each its id; those that stand there already are passed over (*ret_new: the
 *  others). 0; -EDQUOT: they do not fit; another negative errno. Then none of them is put. */
int quarantine_put(struct quarantine *q, struct quarantine_message *messages, size_t n, size_t *ret_new) MUST_CHECK;
/** What stands there of that journal's position, with that hash: 1 with why (enum verify_status); 0: nothing; a
 *  negative errno. */
int quarantine_find(struct quarantine *q, const struct quarantine_message *m, uint32_t *ret_status) MUST_CHECK;
/** The same, but whatever the hash: whether it is worth to be made. */
bool quarantine_may_have(struct quarantine *q, uint64_t system_identifier, uint32_t era, struct position position);
/** Removes the entries with ids from first to last. 0 with how many there were; a negative errno: none was removed,
 *  or, if they were all there are, the disk does not say that they will stay away after a crash. */
int quarantine_remove(struct quarantine *q, uint64_t first, uint64_t last, enum quarantine_gone why,
                      uint64_t *ret_n) MUST_CHECK;

/** The first entry with an id behind `after`: its id; 0: there is none. */
uint64_t quarantine_next(struct quarantine *q, uint64_t after);
/** The newest entry at that position; 0: there is none. */
uint64_t quarantine_at(struct quarantine *q, struct position position);

/**
 * Reads an entry into *storage, from which *ret borrows: of the content at most `max` bytes from `from` on.
 * `ret->content` is that part; *ret_size all of it. With `all_of_prefix` the whole prefix, else its beginning. 0;
 * -ENOENT; -EBADMSG: the bytes on disk are not those that were written (looked at when `from` is 0 and `max` is not);
 * another negative errno.
 */
int quarantine_read(struct quarantine *q, uint64_t id, uint64_t from, size_t max, bool all_of_prefix, struct buf *storage,
                    struct quarantine_message *ret, uint64_t *ret_size) MUST_CHECK;

#endif
