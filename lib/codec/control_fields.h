/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_CONTROL_FIELDS_H
#define WALBUS_CODEC_CONTROL_FIELDS_H

/*
 * What control.c and control_subscribe.c share: each body is a table of its keys, from which it is
 * both written and read, so that the two cannot drift apart. The rows stand in the order of
 * deterministic CBOR (RFC 8949 4.2.1): shorter keys first, then bytewise.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "codec/control.h"
#include "codec/frame.h"

enum control_field_type {
    FIELD_UINT,     /* uint64_t */
    FIELD_INT,      /* int64_t */
    FIELD_BOOL,     /* bool */
    FIELD_TEXT,     /* struct bytes */
    FIELD_POSITION, /* struct position */
    FIELD_ITEM,     /* struct bytes: one whole item of any type */
};

enum control_field_presence {
    FIELD_REQUIRED, /* always written, missing is an error */
    FIELD_OPTIONAL, /* left out when zero, false or empty; zero when missing */
    FIELD_FLAGGED,  /* written when the bool at `flag` is set, which tells the reader as well */
};

struct control_field {
    const char *key;
    enum control_field_type type;
    enum control_field_presence presence;
    size_t offset;
    size_t flag;
};

/* Most rows of one table: while a body is read, `seen` has a bit for each. */
#define CONTROL_FIELDS_MAX 32

/* The rows: type, struct, key on the wire, member; of FLAGGED also the bool that says it is there. */
#define REQUIRED(type, owner, key, member)                    \
    {                                                         \
        key, type, FIELD_REQUIRED, offsetof(owner, member), 0 \
    }
#define OPTIONAL(type, owner, key, member)                    \
    {                                                         \
        key, type, FIELD_OPTIONAL, offsetof(owner, member), 0 \
    }
#define FLAGGED(type, owner, key, member, flag)                                  \
    {                                                                            \
        key, type, FIELD_FLAGGED, offsetof(owner, member), offsetof(owner, flag) \
    }

/** Appends a frame, header and body, with what `owner` holds. */
void control_fields_put(struct buf *out, enum frame_type type, const struct control_field *fields,
                        size_t n, const void *owner);

/** Reads a body into *owner, which the caller has zeroed. 0, or -EBADMSG with `why`; then *owner
 *  holds what came before the fault. */
int control_fields_get(struct bytes body, const struct control_field *fields, size_t n, void *owner,
                       char why[CONTROL_WHY_SIZE]) MUST_CHECK;

#endif
