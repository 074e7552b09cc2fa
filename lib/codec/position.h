/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_POSITION_H
#define WALBUS_CODEC_POSITION_H

/*
 * Where a message stands in delivery order.
 *
 * A message's own LSN does not rise in delivery order: a transaction that began
 * to emit early may commit late. What rises strictly is the pair of the LSN by
 * which a thing is delivered and a counter within it:
 *
 *   transactional message      (timeline, commit LSN of its Begin, 1, 2, 3, …)
 *   end of a transaction       (timeline, commit LSN of its Begin, 2^32-1)
 *   non-transactional message  (timeline, its own LSN, 0)
 *
 * The commit LSN is the *start* of the commit record, a message's LSN the *end*
 * of its record, so the two can be equal; index 0 puts the message first, which
 * is the order of delivery.
 *
 * Text form "1:0/16B3748:1", binary form 16 bytes big-endian (u32, u64, u32).
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

struct position {
    uint32_t timeline;
    uint64_t lsn;
    uint32_t index;
};

#define POSITION_INDEX_NONTRANSACTIONAL 0u
#define POSITION_INDEX_END              UINT32_MAX
#define POSITION_SIZE                   16
/** Longest text with its NUL: "4294967295:FFFFFFFF/FFFFFFFF:4294967295". */
#define POSITION_TEXT_SIZE 40
/** Longest LSN text with its NUL: "FFFFFFFF/FFFFFFFF". */
#define LSN_TEXT_SIZE 18

/** <0, 0, >0 as `a` stands before, at, behind `b`. */
int position_compare(struct position a, struct position b);

static inline bool position_is_zero(struct position p)
{
    return p.timeline == 0 && p.lsn == 0 && p.index == 0;
}

/** Whether it lies behind a message of a transaction and before the transaction's end. */
static inline bool position_is_inside(struct position p)
{
    return p.index != POSITION_INDEX_NONTRANSACTIONAL && p.index != POSITION_INDEX_END;
}

/** The one that is not before the other. */
static inline struct position position_later(struct position a, struct position b)
{
    return position_compare(a, b) < 0 ? b : a;
}

/** The place in front of the transaction inside which, or at whose end, `p` lies; or in front of all that has its LSN. */
static inline struct position position_before_transaction(struct position p)
{
    return (struct position){p.timeline, p.lsn - 1, POSITION_INDEX_END};
}

/** The smallest position behind `p`. */
struct position position_next(struct position p);

void position_encode(struct position p, uint8_t out[POSITION_SIZE]);
struct position position_decode(const uint8_t in[POSITION_SIZE]);

/** Writes the text form with its NUL; returns `out`. */
char *position_format(struct position p, char out[POSITION_TEXT_SIZE]);
/** 0, or -EINVAL when `text` is not exactly one position (no blanks, no signs, nothing behind). */
int position_parse(const char *text, struct position *ret) MUST_CHECK;

/** PostgreSQL's %X/%X form with its NUL; returns `out`. */
char *lsn_format(uint64_t lsn, char out[LSN_TEXT_SIZE]);
/** 0, or -EINVAL when `text` is not exactly one LSN of 1 to 8 hex digits on each side. */
int lsn_parse(const char *text, uint64_t *ret) MUST_CHECK;

#endif
