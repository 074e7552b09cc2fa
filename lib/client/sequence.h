/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_SEQUENCE_H
#define WALBUS_CLIENT_SEQUENCE_H

/*
 * What a subscriber may rely on within one session, checked: positions rise
 * strictly, transactions are contiguous and do not nest, a transactional message
 * lies inside its own BEGIN and COMMIT, a non-transactional one outside any.
 *
 *   BEGIN 1:0/50   MESSAGE 1:0/50:1   MESSAGE 1:0/50:3   COMMIT 1:0/50 (:4294967295)
 *   MESSAGE 1:0/60:0   PROGRESS 1:0/90:0   …
 *
 * Each check moves the place forward on 0. On -EBADMSG it has written one sentence
 * into `why` and moved nothing.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "codec/frame.h"
#include "codec/position.h"

#define SEQUENCE_WHY_SIZE 160

struct sequence {
    struct position last; /* everything up to here has been seen, or was not asked for */
    bool in_transaction;
    uint32_t timeline; /* of the open transaction */
    uint64_t commit_lsn;
};

/** A new session: nothing at or before `last` may come, and no transaction is open. */
void sequence_start(struct sequence *s, struct position last);

/** Moves to index 0 of the transaction, which nothing else of it has, unless it is resumed. */
int sequence_begin(struct sequence *s, const struct frame_begin *f,
                   char why[SEQUENCE_WHY_SIZE]) MUST_CHECK;
int sequence_message(struct sequence *s, const struct frame_message *f,
                     char why[SEQUENCE_WHY_SIZE]) MUST_CHECK;
int sequence_commit(struct sequence *s, const struct frame_commit *f,
                    char why[SEQUENCE_WHY_SIZE]) MUST_CHECK;
/** Not inside a transaction. Saying the same position once more is no fault: it may have been asked for. */
int sequence_progress(struct sequence *s, struct position to,
                      char why[SEQUENCE_WHY_SIZE]) MUST_CHECK;
/** A gap up to or beyond the end of the open transaction closes it; otherwise its COMMIT follows.
 */
int sequence_gap(struct sequence *s, const struct frame_gap *f,
                 char why[SEQUENCE_WHY_SIZE]) MUST_CHECK;

#endif
