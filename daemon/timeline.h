/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_TIMELINE_H
#define WALBUS_DAEMON_TIMELINE_H

/*
 * Which timeline a record belongs to. A connection names the server's current
 * timeline; a failover slot re-sends records of the one before, so the record
 * decides: it is on the first timeline of the history whose switch point lies
 * behind it, else on the current one.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

struct timeline_switch {
    uint32_t timeline;
    uint64_t at; /* first LSN that is no longer on it */
};

struct timeline_history {
    uint32_t current;
    struct timeline_switch *switches; /* owned, oldest first */
    size_t n;
};

/** Reads the text of a history file ("TLI<tab>LSN<tab>reason" a line, '#' comments, rising).
 *  0; -EBADMSG; -ENOMEM. `text` may be empty: no switches. */
int timeline_history_parse(struct timeline_history *ret, uint32_t current, struct bytes text) MUST_CHECK;
void timeline_history_deinit(struct timeline_history *h);

/** The timeline of a record that starts at `lsn`, or contains it. */
uint32_t timeline_of(const struct timeline_history *h, uint64_t lsn);

#endif
