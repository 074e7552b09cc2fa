/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_INTAKE_H
#define WALBUS_DAEMON_INTAKE_H

/*
 * The router's side of its journal: what comes from the source is kept, and what is
 * safe goes back as the mark. A part of the router; loop thread only.
 *
 *   source ─► intake_batch ─► journal ─► synced mark ─► source_advance ─► feedback
 *
 * A mark that comes with messages is written with them. One that comes alone, from a server
 * whose other traffic moves on, would fill the journal with nothing: it is written when the
 * server asks for a report, and else at most every INTAKE_MARK_MS.
 *
 * When the journal fails nothing is read, nothing is kept and nothing is lost: the source is
 * stopped, the builder goes back to where the journal ends, and once there is room again the server
 * sends from there.
 */

#include <stdbool.h>

#include "base/macros.h"
#include "batch.h"
#include "continuity.h"
#include "router.h"

/** Shortest time between two marks that are written alone without being asked for, in ms. */
#define INTAKE_MARK_MS 1000u

/** Takes the state folder and opens the journal. 0, or an exit code after logging why; then too intake_close. */
int intake_open(struct router *r) MUST_CHECK;
/** Tells the source, which is not yet started, and its builder what they go on from. */
void intake_restore(struct router *r);
/** The source's state has changed. */
void intake_changed(struct router *r);
/** Before streaming: begins the journal, or its new era, or keeps the accepted gap; as source_ops.started. */
bool intake_started(struct router *r, struct position start, bool looked_at,
                    enum continuity_verdict accepted) MUST_CHECK;
/** A batch comes from the source: notes in it to which connection it belongs. False: it is of no use, and comes again. */
bool intake_stamp(struct router *r, struct batch *batch);
/** Reading waits, or goes on, as there is room for what is read. */
void intake_hold(struct router *r);
/** Keeps it; it was stamped, and all before it were kept. False: there is nothing to deliver. */
bool intake_batch(struct router *r, struct batch *batch);
/** Once a second: what waits for its time. */
void intake_tick(struct router *r);
/** Everything that was read is made safe and told to the source; for the clean stop, waits for the disk. */
void intake_finish(struct router *r);
void intake_close(struct router *r);

#endif
