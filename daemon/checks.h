/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CHECKS_H
#define WALBUS_DAEMON_CHECKS_H

/*
 * Between the source and the journal: what policy asks of signatures.
 *
 *   checks_take ─► queue, in the order in which batches came ──────────────────► pass ─► journal, sessions
 *                    │ parts of some messages            ▲
 *                    └─► worker: verified ──► worker: what fails into quarantine, synced
 *
 * The order is kept strictly, that of marks too: a batch goes on when all before it have gone. So a mark is never told
 * before everything up to it is safe, in the journal or in quarantine. Of one with nothing to check nothing is looked
 * at, and while nothing waits it goes on at once.
 *
 * Batches are cut into parts of some milliseconds, CHECKS_AT_ONCE of which are at work; a large message is a part
 * alone. A message that fails where policy requires a signature is put into quarantine, and only when it is synced
 * there the batch goes on, with WITHHELD in its place. What came again is not checked: the journal compares it,
 * whatever policy says by now. If the journal had not got so far, since the router died or the journal failed, what
 * stands in quarantine stays withheld, whatever policy and trust say by now: subscribers may have been passed over it.
 * It is released from there.
 *
 * While the quarantine takes nothing, because it or the disk is full, everything stands: checks_is_full() says so, and
 * reading is to wait. It is tried again each second, and whenever something changed. Nothing goes by itself.
 *
 * Loop thread only, but for the work itself.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/macros.h"
#include "batch.h"
#include "check_rules.h"
#include "codec/verify.h"
#include "quarantine.h"

/** Parts at work at a time … */
#define CHECKS_AT_ONCE 2u
/** … and parts that are ready or at work: who ends one begins the next at once, while the loop is busy. */
#define CHECKS_GIVEN 8u
/** A part ends when it has cost so much: in bytes hashed, of which each message counts CHECKS_MESSAGE_COST beside its
 *  content, for its signature's arithmetic. Some 4 ms. */
#define CHECKS_PART         (2u << 20)
#define CHECKS_MESSAGE_COST (24u << 10)
/** Most bytes, and batches, that wait; then the owner lets reading wait, until half of it is gone. A single message
 *  may be larger. */
#define CHECKS_BYTES_MAX (8u << 20)
#define CHECKS_COUNT_MAX 1024u
/** Shortest time between two log lines about messages that failed. */
#define CHECKS_LOG_MS 10000u
/** How long checks_finish() waits, in ms. */
#define CHECKS_FINISH_MS 1000u

struct checks_ops {
    /** The next one, whose reference is handed over. */
    void (*pass)(void *owner, struct batch *batch);
    /** checks_is_full() may have become false, or true. */
    void (*room)(void *owner);
    /** The quarantine takes nothing for this reason, -EDQUOT: it is full; 0: it does again. Each is told once. */
    void (*stuck)(void *owner, int error);
    /** There was no memory: all that waited is dropped, and so is all that comes until checks_drop(). It must come
     *  again. */
    void (*no_memory)(void *owner);
};

/** verify_content, or what a test has in its place. */
typedef int (*check_verify)(const struct trust *trust, const struct verify_scope *scope, struct bytes content,
                            struct buf *scratch, struct verify_result *ret);

struct checks_counts {
    uint64_t statuses[VERIFY_STATUS_COUNT]; /* of messages looked at since the start */
    uint64_t withheld;                      /* of those, the ones that went to quarantine */
};

struct checks;

/** `quarantine` and `log` outlive it. NULL: no memory. */
struct checks *checks_new(uv_loop_t *loop, struct quarantine *quarantine, struct check_rules *rules, check_verify verify,
                          const struct checks_ops *ops, void *owner, struct logger *log) MUST_CHECK;
/** What waits is dropped, and nothing may come any more; then the loop is to run out. May be called twice. */
void checks_close(struct checks *c);
/** When it has: no work is under way. Returns NULL; takes NULL. */
struct checks *checks_free(struct checks *c);

/** For batches that come from here on; and what was checked and stands because the quarantine takes nothing is checked
 *  anew. Takes the reference. */
void checks_set_rules(struct checks *c, struct check_rules *rules);
struct check_rules *checks_rules(const struct checks *c);
/** The journal in which positions are from here on; a connection to the server begins. */
void checks_set_journal(struct checks *c, uint64_t system_identifier, uint32_t era);

/** Takes the reference over. May pass it, and others, before it returns. */
void checks_take(struct checks *c, struct batch *batch);
/** Bytes that wait; also of NULL. */
size_t checks_bytes(const struct checks *c);
/** Whether reading is to wait; with `half`: still. */
bool checks_is_full(const struct checks *c, bool half);
/** As told; 0: it is not. */
int checks_stuck(const struct checks *c);
const struct checks_counts *checks_counts(const struct checks *c);

/** Once a second, and when the quarantine has become emptier. */
void checks_tick(struct checks *c);
/** What waits goes nowhere; what comes from here on stands behind nothing that was dropped. */
void checks_drop(struct checks *c);
/** Waits until everything has passed, for CHECKS_FINISH_MS at most; what is left is dropped, and with it all that
 *  comes behind it: so many messages, the first one at *ret_first unless there is none. */
uint64_t checks_finish(struct checks *c, struct position *ret_first);

#endif
