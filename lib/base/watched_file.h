/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_WATCHED_FILE_H
#define WALBUS_BASE_WATCHED_FILE_H

/*
 * Whether a file has changed since it was read, for whoever keeps what it says and has no loop to
 * put inotify into. It costs a stat(2), at most so often: device, inode, size, mtime and ctime
 * together. A file that was changed twice within one tick of the file system's clock, keeping its
 * size, would look the same: so one whose ctime was less than WATCHED_FILE_SETTLE_NS ago when it
 * was read is read once more after that. And one that is being written has not yet all that is to
 * stand in it: so a change is left alone until WATCHED_FILE_QUIET_NS have passed since, by the file
 * system's clock.
 *
 * The loop of an owner, who reads and parses by itself and keeps the old version when the new one
 * is no good:
 *
 *     now = clock_monotonic_ns();
 *     if (watched_file_is_due(&w, now) && watched_file_is_quiet(&w, now) &&
 *         watched_file_look(&w) == WATCHED_CHANGED) {
 *         r = read and parse;
 *         if (watched_file_is_other(&w))
 *             leave it, since it was written meanwhile; the next look says so again
 *         else if (r == 0)
 *             take the new one; watched_file_good(&w);
 *         else if (watched_file_bad(&w, why))
 *             say `why`, once for as long as it stays the same
 *     }
 *
 * Until a version is called good every look is WATCHED_CHANGED, and so is every look at a file that
 * is gone or cannot be looked at: reading it says what is wrong, and once it can be read it is.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/macros.h"

/** Between two looks unless told otherwise: a change is seen within a second. */
#define WATCHED_FILE_INTERVAL_NS UINT64_C(1000000000)
/** The coarsest clock of a file system in use: FAT's, two seconds. */
#define WATCHED_FILE_SETTLE_NS INT64_C(2000000000)
/** Editors and shells empty a file and write it again within a millisecond or two; on a busy machine,
 *  within some more. */
#define WATCHED_FILE_QUIET_NS INT64_C(200000000)

enum watched_change { WATCHED_SAME = 0, WATCHED_CHANGED };

struct watched_stamp {
    bool there;
    uint64_t device, inode, size;
    struct timespec mtime, ctime; /* anybody may set an mtime to any number of seconds */
};

struct watched_file {
    char *path; /* owned; absolute, so that chdir(2) changes nothing */
    uint64_t interval_ns, next_ns;
    int64_t quiet_ns;          /* WATCHED_FILE_QUIET_NS; a test may have no time for it */
    struct watched_stamp seen; /* at the last look that said CHANGED */
    bool good;                 /* what was read then is in use */
    bool unsettled;            /* it may have changed since without its showing */
    char *complaint;           /* owned; why what was read last was no good; NULL: it was good */
};

/** `path` may be relative: it is that of now. 0; -ENOMEM; a negative errno of getcwd(3). `w` is to be
 *  deinited only with 0. */
int watched_file_init(struct watched_file *w, const char *path, uint64_t interval_ns) MUST_CHECK;
void watched_file_deinit(struct watched_file *w);

/** Whether it is time for a look; if so, the next time is `interval_ns` from `now_ns`
 *  (clock_monotonic_ns). The first time always. */
bool watched_file_is_due(struct watched_file *w, uint64_t now_ns);

/** Whether nobody has changed the file just now; if so, the next time for a look is soon. One that is
 *  not there is quiet, and so is one of a later time than ours: its clock says nothing to us. */
bool watched_file_is_quiet(struct watched_file *w, uint64_t now_ns);

/** Looks, and remembers what is there. To be called before the file is read, so that a change in
 *  between is not lost. */
enum watched_change watched_file_look(struct watched_file *w);

/** Whether it is another file by now than at the last look: what was read in between may be half of each. */
bool watched_file_is_other(const struct watched_file *w);

/** What was read is good, and is in use. True if there had been a complaint. */
bool watched_file_good(struct watched_file *w);

/** What was read is no good. True if that is to be said: it was not for the same reason the last time. */
bool watched_file_bad(struct watched_file *w, const char *why);

#endif
