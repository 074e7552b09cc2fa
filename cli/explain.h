/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_EXPLAIN_H
#define WALBUS_CLI_EXPLAIN_H

/*
 * What a content is made of, byte by byte, for `walbus inspect`. Pure: bytes in, rows out. A row is
 * one CBOR head, or up to EXPLAIN_ROW_BYTES of a string or of what is no CBOR. The rows' bytes, and
 * those that a row says are left out, are the content, in order and each once. What is inside the
 * byte strings of a COSE_Sign1 is taken apart as well.
 *
 * Malformed CBOR is explained as far as it goes; then comes the reason, and the rest as bytes.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/bytes.h"

#define EXPLAIN_ROW_BYTES 8

/** Most bytes that are shown of one string, or of what cannot be explained, unless all is asked for … */
#define EXPLAIN_STRING_MAX ((size_t)256)
/** … and most rows, one not counted that says what is behind them. */
#define EXPLAIN_ROWS_MAX ((size_t)10000)

struct explain_row {
    size_t offset; /* of its first byte in the content */
    struct bytes
        bytes;       /* those that it explains; none: it is about those left out, or why it ends */
    size_t left_out; /* bytes from `offset` on that are not shown; the text says no more */
    unsigned depth;  /* how deep inside others it is */
    struct bytes text; /* UTF-8, visible on a terminal as it is */
};

enum explain_kind {
    EXPLAIN_OPAQUE = 0,
    EXPLAIN_EVENT,
    EXPLAIN_SIGNED_EVENT,
    EXPLAIN_COSE_SIGN1, /* but no signed event */
    EXPLAIN_COSE_KEY,   /* a public one */
    EXPLAIN_CBOR,       /* well-formed, and nothing else of all this */
};

/** As --json calls it; never NULL. */
const char *explain_kind_text(enum explain_kind kind);

/** The kind, and appends one sentence about it for people, without full stop. */
enum explain_kind explain_what(struct bytes content, struct buf *sentence);

struct explain_limits {
    size_t string_max, rows_max;
};

/** Calls `row` for each row; its pointers are valid until it returns. 0 or -ENOMEM. */
int explain_rows(struct bytes content, const struct explain_limits *limits,
                 void (*row)(void *context, const struct explain_row *row), void *context);

#endif
