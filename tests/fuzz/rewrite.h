/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_FUZZ_REWRITE_H
#define WALBUS_TESTS_FUZZ_REWRITE_H

/* A CBOR item written again from what the reader says of it. */

#include <stdbool.h>

#include "base/buf.h"
#include "codec/cbor.h"

struct rewrite {
    bool definite;       /* asked: lengths that were indefinite become definite */
    bool preferred;      /* found: every head is the shortest, every float the shortest, NaN 7e00 */
    bool indefinite;     /* found: there is a length that is indefinite */
    bool container_keys; /* found: a map has a key that is an array or a map */
};

/** Appends the item at `r`, which is well-formed, and moves behind it. `w->preferred` is to be true
 *  before; what is found adds up. */
void rewrite_item(struct rewrite *w, struct cbor_reader *r, struct buf *out);

/** All of `in`, one well-formed item, into an empty `out`. */
struct rewrite rewrite(struct bytes in, bool definite, struct buf *out);

#endif
