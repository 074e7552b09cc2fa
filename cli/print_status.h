/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_PRINT_STATUS_H
#define WALBUS_CLI_PRINT_STATUS_H

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"

/**
 * Appends the router's status, a CBOR map, for people: a line an entry, in the map's order,
 * whatever its keys are; maps in it indented, a list's maps a line each. Keys ending in "bytes" are
 * shown as sizes, those ending in "_ms" as times. 0, or -EINVAL when it is no well-formed map with
 * text keys.
 */
int print_status(struct bytes status, struct buf *out) MUST_CHECK;

/** The text under a key of the map, or {NULL, 0}. */
struct bytes print_status_text(struct bytes status, const char *key);

#endif
