/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_PRINT_STATUS_H
#define WALBUS_CLI_PRINT_STATUS_H

#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"

/**
 * Appends the router's status, a CBOR map, for people: a line an entry, in the map's order,
 * whatever its keys are; maps in it indented, a list's maps a line each. Keys ending in "bytes" are
 * shown as sizes, those ending in "_ms" and "_seconds" as times. 0, or -EINVAL when it is no well-formed map with
 * text keys.
 */
int print_status(struct bytes status, struct buf *out) MUST_CHECK;

/** Appends a size as 1.5 kB. */
void print_size(struct buf *out, uint64_t bytes);
/** Appends a time as 17 min. */
void print_seconds(struct buf *out, uint64_t s);

#endif
