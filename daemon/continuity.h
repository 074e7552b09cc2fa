/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CONTINUITY_H
#define WALBUS_DAEMON_CONTINUITY_H

/*
 * Whether what a server offers now continues what was read before: the judgement
 * on slot and server at every connect. Pure: it is told what was found and answers
 * whether reading may go on; asking, logging and giving up are source.c's.
 *
 * What is known is what the journal has kept, and nothing at the first connect of an
 * empty one, which therefore adopts the slot as it stands. Known are the server (its system
 * identifier), the database, the timeline of the last stream, and `told`: the highest LSN up to
 * which everything is synced in the journal, which is what is acknowledged to the slot. From then
 * on the slot can stand at or before `told`, never beyond: the server moves it to
 * what it is told and nowhere else. Hence
 *
 *   slot ≤ told                 goes on; what comes again is dropped by position
 *   slot > told                 somebody moved it or made it anew: what lies
 *                               between is lost
 *   timeline older, or the WAL
 *   of the same one ends < told the server was restored: new messages may get
 *                               positions that were there before
 *   timeline newer              promoted. What was read of the old one behind the
 *                               switch point is not in the new history, so `told`
 *                               falls back to the switch point
 *
 * The order of questions is that of the steps of connecting: server, slot, timeline,
 * history, streaming. A refusal ends them: what is known stays what it was.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"
#include "timeline.h"

/** May reading go on? All but the first need somebody's decision: messages are lost, or would be. */
enum continuity_verdict {
    CONTINUITY_GOES_ON = 0,
    CONTINUITY_OTHER_SYSTEM,    /* another server than before */
    CONTINUITY_OTHER_DATABASE,  /* another database of it */
    CONTINUITY_SLOT_MOVED,      /* beyond all that was acknowledged */
    CONTINUITY_SERVER_RESTORED, /* to an older state */
    CONTINUITY_SLOT_POISONED,   /* cannot be decoded any further */
};

/** A slot that cannot be decoded gives the same error at the same place each time: so often it is tried,
 *  and at least for so long, in ms. */
#define CONTINUITY_SAME_ERROR_MAX 3u
#define CONTINUITY_SAME_ERROR_MS  10000u

struct continuity {
    uint64_t system_identifier; /* of the first connect; 0: none yet */
    char database[64];          /* PostgreSQL's NAMEDATALEN; "": none yet */
    uint32_t timeline;          /* of the last stream; 0: none yet */
    uint64_t told; /* highest value ever reported to this slot, or found in it at first */

    struct buf same_error; /* the last error of a stream that need not pass … */
    uint64_t same_error_at, same_error_since; /* … where, and since when (clock_monotonic_ns) */
    unsigned same_errors;                     /* … how often in a row */
};

void continuity_deinit(struct continuity *c);

/** The server that answers. It comes before its slot: another server usually has none. */
enum continuity_verdict continuity_server(struct continuity *c,
                                          uint64_t system_identifier) MUST_CHECK;

/** The database that the slot belongs to; the first one is adopted. */
enum continuity_verdict continuity_database(struct continuity *c, const char *database) MUST_CHECK;

/** The slot's confirmed_flush_lsn; the first one is adopted. */
enum continuity_verdict continuity_slot(struct continuity *c,
                                        uint64_t confirmed_flush_lsn) MUST_CHECK;

/** The server's timeline, and how far its WAL reaches (0: unknown). */
enum continuity_verdict continuity_timeline(const struct continuity *c, uint32_t timeline,
                                            uint64_t wal_lsn) MUST_CHECK;

/** The history that leads to the server's timeline: one that does not have what was read last is another's, and how much of it was
 *  read nobody can say. */
enum continuity_verdict continuity_history(const struct continuity *c,
                                           const struct timeline_history *history) MUST_CHECK;

/** Of such a history: true when something was read that is not part of it; `told` falls
 *  back to *ret_at, where the timeline was left. */
bool continuity_left(struct continuity *c, const struct timeline_history *history,
                     uint64_t *ret_at) MUST_CHECK;

/** Somebody has accepted what was refused: the next connect adopts what it finds. */
void continuity_accept(struct continuity *c, enum continuity_verdict verdict);
/** Whether what lies behind an accepted refusal has positions that do not compare with those before. */
bool continuity_is_new_era(enum continuity_verdict verdict);

/** Streaming began, on that timeline. */
void continuity_streaming(struct continuity *c, uint32_t timeline);

/** Everything up to `lsn` is safe and will be acknowledged. Never falls. */
void continuity_advance(struct continuity *c, uint64_t lsn);

/**
 * A stream ended by an error at `now` (clock_monotonic_ns). `sqlstate` "": not the server's word.
 * `undecodable`: what was sent could not be read here. POISONED when the same error came at the
 * same place CONTINUITY_SAME_ERROR_MAX times within at least CONTINUITY_SAME_ERROR_MS, and it is
 * not one that may pass.
 */
enum continuity_verdict continuity_error(struct continuity *c, const char *error,
                                         const char *sqlstate, bool undecodable,
                                         uint64_t now) MUST_CHECK;

/** What is said of a verdict other than CONTINUITY_GOES_ON: the log line's stable id, its sentence, and what
 *  to do about it. All static. */
struct continuity_refusal {
    const char *id, *text, *mend;
};
const struct continuity_refusal *continuity_refusal(enum continuity_verdict verdict) MUST_CHECK;

#endif
