/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_ADMISSION_H
#define WALBUS_DAEMON_ADMISSION_H

/*
 * The router's side of policy: what comes from the source goes through the checks (checks.h) before it is kept and
 * delivered. A part of the router; loop thread only.
 *
 *   source ─► admission_batch ─► checks ─► intake_batch ─► deliver_batch
 */

#include "base/macros.h"
#include "batch.h"
#include "router.h"

/** Behind admission_set and intake_open. 0, or an exit code after logging why. */
int admission_open(struct router *r) MUST_CHECK;
/** Takes the reference over. */
void admission_batch(struct router *r, struct batch *batch);
/** A connection to the server begins, or an era, and what is read from here on has this journal's positions. */
void admission_started(struct router *r);
/** What messages are to be checked by, from the settings and from the trust file as it is now. 0; -EINVAL with `why`, a clause; -ENOMEM. */
int admission_prepare(const struct settings *settings, struct check_rules **ret, char why[SETTINGS_WHY_SIZE]) MUST_CHECK;
/** Whether another trust file is behind these than behind what is in force; false where either needs none. */
bool admission_is_other_trust(const struct router *r, const struct check_rules *rules);
/** What comes from here on is checked by these, and the quarantine is as large as the settings say. Takes the reference. */
void admission_set(struct router *r, struct check_rules *rules);
/** Once a second. */
void admission_tick(struct router *r);
/** Everything that was read passes, or is dropped; for the clean stop. */
void admission_finish(struct router *r);
/** Nothing passes any more. */
void admission_close(struct router *r);
/** When the loop has run out. */
void admission_deinit(struct router *r);

/** The sentence of what keeps reading waiting, and its mend; NULL: nothing does. */
const char *admission_stuck(const struct router *r);

#endif
