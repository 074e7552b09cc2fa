/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_POSITION_H
#define WALBUS_POSITION_H

/*
 * Where a message stands in the order of delivery.
 *
 * Positions rise strictly from one READY of a subscription to the next, are the
 * same whenever the server sends a message again, and compare only within one
 * journal, which an identity names ("7713721267252945510/1"): keep the two
 * together. Behind a further READY they go on from a lower one when a durable
 * subscription goes back to its stored cursor, and when the server has lost the
 * end of its WAL: then a GAP at that position stands there too (see subscribe.h).
 *
 *   transactional message      (timeline, commit LSN of its transaction, 1, 2, 3, …)
 *   end of a transaction       (timeline, commit LSN, WALBUS_INDEX_END)
 *   non-transactional message  (timeline, its own LSN, 0)
 *
 * A message's LSN alone is no position: it does not rise in the order of delivery.
 */

#include <stdint.h>

#include "walbus/macros.h"
#include "walbus/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/** This struct does not grow. All zero: no position. */
struct walbus_position {
    uint64_t lsn;
    uint32_t timeline;
    uint32_t index;
};

/** Index of a transaction's end. */
#define WALBUS_INDEX_END UINT32_MAX

/** Bytes of the binary form, which sorts like the positions: u32 timeline, u64 LSN, u32 index, big-endian. */
#define WALBUS_POSITION_SIZE 16
/** Longest text form with its NUL. */
#define WALBUS_POSITION_TEXT_SIZE 40

/** Less than 0, 0 or more than 0, as `a` stands before, at or behind `b`. Any thread. */
WALBUS_PUBLIC int walbus_position_compare(struct walbus_position a, struct walbus_position b);

/** Writes the text form "1:0/16B3748:1" (timeline, LSN as PostgreSQL prints it, index) with its NUL and returns
 *  `out`. Any thread. */
WALBUS_PUBLIC char *walbus_position_format(struct walbus_position position,
                                           char out[WALBUS_POSITION_TEXT_SIZE]);

/**
 * Reads the text form. Any thread.
 *
 * WALBUS_OK            *ret is set
 * WALBUS_BAD_ARGUMENT  NULL, or not exactly one position: no blanks, no signs, nothing behind it
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_position_parse(const char *text, struct walbus_position *ret);

/** Writes the binary form. Any thread. */
WALBUS_PUBLIC void walbus_position_pack(struct walbus_position position,
                                        uint8_t out[WALBUS_POSITION_SIZE]);
/** Reads it: every 16 bytes are a position. Any thread. */
WALBUS_PUBLIC struct walbus_position
walbus_position_unpack(const uint8_t in[WALBUS_POSITION_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
