/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_JSON_CBOR_H
#define WALBUS_CLI_JSON_CBOR_H

/*
 * JSON text to deterministic CBOR (RFC 8949 4.2.1), for data that people type.
 *
 *   object                map, keys in bytewise order of their encoding; a key twice is refused
 *   array                 array
 *   string                text; "\u0000" is allowed in a value, not in a key
 *   true, false, null     the same
 *   123, -5               integer, exactly; outside int64 refused, never rounded
 *   1.10, 1e3             the nearest IEEE double, in the shortest of the three widths that keeps
 *                         it: 1.10 and 1.1 are the same, and 1e3 is a float
 */

#include <stddef.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"

/** Deepest nesting of arrays and objects: what CBOR_NESTING_MAX leaves inside an event. */
#define JSON_CBOR_NESTING_MAX 62

/** What is wrong with a JSON text, and where. */
struct json_cbor_error {
    size_t line, column; /* from 1; columns count characters */
    char text[256];      /* one phrase; it may quote the input, so print it with text_put_visible */
};

/** Appends `json`'s value. 0; -EINVAL with *ret_error; -ENOMEM. Nothing is appended on failure. */
int json_to_cbor(struct bytes json, struct buf *out, struct json_cbor_error *ret_error) MUST_CHECK;

#endif
