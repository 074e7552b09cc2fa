/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_CLOCK_H
#define WALBUS_BASE_CLOCK_H

#include <stdint.h>

#include "base/macros.h"

/** CLOCK_MONOTONIC in ns: for intervals. */
uint64_t clock_monotonic_ns(void);
/** The ms from now to `deadline_ns` (of clock_monotonic_ns; UINT64_MAX: never) as a timeout of
 *  poll: rounded up, so that the deadline has passed when it is over; 0 when it has; at most
 *  INT_MAX. */
int clock_ms_until(uint64_t deadline_ns);
/** CLOCK_REALTIME in µs since 1970-01-01 UTC. */
int64_t clock_realtime_us(void);

/** µs from PostgreSQL's epoch, 2000-01-01 UTC, to 1970-01-01 UTC. */
#define CLOCK_PG_EPOCH_US INT64_C(946684800000000)

/** "2026-11-29T19:14:13.123456Z" and a NUL; years outside 0 to 9999 are clamped. */
#define CLOCK_TEXT_SIZE 28
char *clock_format_rfc3339(int64_t unix_us, char out[CLOCK_TEXT_SIZE]);

/** RFC 3339 with a zone ("Z" or ±hh:mm), fraction optional (digits past µs are dropped); 't', 'z' and
 *  a blank for 'T' are accepted, a leap second is the second behind it. 0 or -EINVAL. */
int clock_parse_rfc3339(const char *text, int64_t *ret_us) MUST_CHECK;

#endif
