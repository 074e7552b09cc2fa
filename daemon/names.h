/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_NAMES_H
#define WALBUS_DAEMON_NAMES_H

/*
 * The router's side of its durable subscriptions (durable.h): which journal they belong
 * to, and what of that journal is kept for them (retention.h). A part of the router; loop thread only.
 *
 * Catalog and journal are two things on disk that must not part. The catalog says which
 * journal its names are of: system identifier and era. It is written before a
 * journal is begun, and behind the first segment of a new era, so a crash in between leaves
 *
 *   catalog's era before the journal's    the names go into the new era now
 *   no journal, but a catalog             it was never begun: it is begun with the catalog's era. With names in the catalog it was
 *                                         taken away, with what they had not read: refused
 *   a journal, but no catalog             the names were lost; to go on would let every subscriber begin at
 *                                         "now" without a word: refused
 */

#include <stdbool.h>

#include "base/macros.h"
#include "codec/position.h"
#include "router.h"

/** Opens the catalog beside the open journal, and retention. 0, or an exit code after logging why. */
int names_open(struct router *r) MUST_CHECK;

/** The era that an empty journal begins with. */
uint32_t names_first_era(const struct router *r);
/** Before the first segment of a journal, or right behind that of a new era: the names are of it, and begin behind `after`. 0 or
 *  a negative errno. */
int names_begin_era(struct router *r, uint64_t system_identifier, uint32_t era, struct position after) MUST_CHECK;

/** How many messages of the journal the names have not read: said before a new era takes them away. */
void names_log_unread(struct router *r);

/** Streaming runs: the server's WAL position bounds what may come again. */
void names_streaming(struct router *r);
/** The source may not go on: the journal's end does. */
void names_given_up(struct router *r);
/** Nothing has come through this slot yet: it is another one. Waits for the disk: 0 or a negative errno. */
int names_unproven(struct router *r) MUST_CHECK;
/** Something of what came from the source is synced. */
void names_synced(struct router *r);
/** The journal has grown. */
void names_written(struct router *r);
/** Once a second. */
void names_tick(struct router *r);

/** All sessions are closed: stores everything; waits for the disk. */
void names_finish(struct router *r);
void names_close(struct router *r);

#endif
