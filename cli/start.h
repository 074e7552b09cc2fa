/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_START_H
#define WALBUS_CLI_START_H

/* A place in the journal, as people write it. */

#include <stdint.h>

#include "base/macros.h"
#include "walbus/walbus.h"

struct start {
    enum walbus_start start;
    struct walbus_position position; /* WALBUS_START_POSITION */
    int64_t time_us;                 /* WALBUS_START_TIME, µs since 1970 */
};

/** now, oldest, a position as 1:0/16B3748:1, a time as 2026-01-15T10:30:00Z (RFC 3339, with a zone), or so long before
 *  `now_us` as -15min, without a unit in seconds. 0, or -EINVAL. */
int start_parse(const char *text, int64_t now_us, struct start *ret) MUST_CHECK;

#endif
