/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_PRINT_H
#define WALBUS_CLI_PRINT_H

/*
 * How `walbus tail` shows what it received. Pure: deliveries in, bytes out.
 *
 *   text         TIME PREFIX DATA, for people, with "(redelivered)" before DATA if it is, then as "(valid KID)" what the
 *                signature is worth, where there is one or `trust` is set; DATA in CBOR diagnostic notation, or what follows
 *                "opaque:", as text if it is UTF-8, else as h'…'; TIME is when the transaction was
 *                committed, of a non-transactional message when the router received it. Nothing
 *                that could drive a terminal passes through
 *   json         one object a line; with "signature" where there is one
 *   cloudevents  one CloudEvents JSON object a line; a message that is no event is skipped
 *   raw          the contents with nothing between
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "walbus/subscribe.h"

enum print_format {
    PRINT_TEXT = 0,
    PRINT_JSON,
    PRINT_CLOUDEVENTS,
    PRINT_RAW,
};

/** 0, or -EINVAL when `name` is none of "text", "json", "cloudevents", "raw". */
int print_format_parse(const char *name, enum print_format *ret) MUST_CHECK;

struct print {
    enum print_format format;
    bool colour;      /* text only */
    bool trust;       /* there are keys to verify with: what has no signature says so; text only */
    uint64_t skipped; /* messages that the format has no form for */
};

/** Appends one MESSAGE. False when it was skipped (and counted), which only `cloudevents` does.
 *  As with all building, out->failed says at the end whether memory was enough. */
bool print_message(struct print *p, const struct walbus_delivery *d, struct buf *out);

/** Appends one GAP. False when the format has no form for it: then it is for stderr. */
bool print_gap(const struct print *p, const struct walbus_delivery *d, struct buf *out);

/** Appends the gap as a sentence for people, without full stop and newline. */
void print_gap_sentence(const struct walbus_delivery *d, struct buf *out);

/** Appends standard base64 with padding. */
void print_base64(struct buf *out, struct bytes data);

#endif
