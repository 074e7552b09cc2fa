/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_SOURCE_STEPS_H
#define WALBUS_DAEMON_SOURCE_STEPS_H

/*
 * From a connection that stands to START_REPLICATION: one query at a time on the
 * replication connection, and one handler for each answer. Called by source.c only,
 * which owns what lies before (connecting) and behind (the stream).
 */

#include <stddef.h>

#include "base/macros.h"
#include "source.h"

/** The connection stands: the first step. May end the attempt, as the next may. */
void source_steps_begin(struct source *s);
/** A step's query is over, its answer is s->result: takes it, and the next step. */
void source_steps_answer(struct source *s);

/* What the steps use of source.c. All but the first two may end the attempt. */

void source_set(struct source *s, enum source_state state);
/** The step has `ms`; then `late` is called with the source as the timer's data. */
void source_time_limit(struct source *s, uv_timer_cb late, uint64_t ms);
/** A failure that may pass: says it once as long as the words in the link's error stay the same, and tries again. */
void source_fail(struct source *s, const char *id, const char *sentence);
/** The same with words of our own. */
void source_fail_with(struct source *s, const char *error, const char *id, const char *sentence);
/** n > 0 findings: gives up, or waits and tries again. Frees them. */
void source_findings(struct source *s, struct precondition_finding *findings, size_t n);
/** True: reading may go on. Else it was given up. */
bool source_judge(struct source *s, enum continuity_verdict verdict) MUST_CHECK;

#endif
