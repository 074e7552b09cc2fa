/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_STATE_H
#define WALBUS_DAEMON_STATE_H

/*
 * The state folder: journal and catalog stand in it, and one router at a time holds
 * it by a lock on its file "lock" (LMDB itself could be opened twice). The file says
 * whose it is, and stays; a lock goes with its process.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "base/macros.h"
#include "settings/settings.h"

#define STATE_WHY_SIZE SETTINGS_WHY_SIZE

/** What stands in the folder: lock, journal, catalog. */
#define STATE_PARTS 3u

struct state {
    char *folder; /* owned */
    int lock;     /* descriptor; -1: not held */
    struct {
        dev_t device;
        ino_t file;
    } parts[STATE_PARTS]; /* as they were when state_note() was called */
};

#define STATE_INIT {NULL, -1, {{0}}}

/**
 * `given`, else (NULL) $STATE_DIRECTORY, as root /var/lib/walbus, else $XDG_STATE_HOME/walbus or
 * ~/.local/state/walbus. The folder is made, 0700, when it is missing; of the last two places what leads to it too.
 * 0; a negative errno with one sentence in `why`, which begins with the variable that has named the place: -EBUSY, another process
 * holds it; -EINVAL, no place, or a relative one.
 */
int state_open(struct state *s, const char *given, char why[STATE_WHY_SIZE]) MUST_CHECK;

/** Journal and catalog were opened: these are the ones. */
void state_note(struct state *s);
/** The name of a part that does not stand there any more, or is another than the one noted: what is written goes elsewhere. NULL: all do,
 *  or nothing can be found out. */
const char *state_missing(const struct state *s) MUST_CHECK;

/** Lets go of the lock. Takes one that is not open. */
void state_close(struct state *s);

#endif
