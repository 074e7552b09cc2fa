/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_VERIFY_H
#define WALBUS_CODEC_VERIFY_H

/*
 * What a message's content is worth: the one answer that subscribers, the router's policy and the
 * command give. The checks come in this order, and the first that fails is the answer:
 *
 *    sizes, structure       MALFORMED      signed_event_parse
 *    the key                UNKNOWN_KEY    nothing in the trust file has this kid
 *    prefix and audience    MALFORMED      not ASCII, not UTF-8
 *    the algorithm          MALFORMED      neither -8 nor -19, or not allowed for that key
 *    the signature          BAD_SIGNATURE  for this prefix and audience
 *    the type               MALFORMED      typ is not "walbus+cose"
 *    the content            MALFORMED      the payload is no event
 *    the key's patterns     NOT_ALLOWED
 *    the key's max-delay    STALE
 *
 * So NOT_ALLOWED and STALE say that the key's holder did sign this: a reason to look at the trust
 * file or at a clock. What somebody else made, who merely wrote that key's id into it, is
 * BAD_SIGNATURE whatever the key may sign. Content that does not begin as signed content does,
 * events and anything else, is UNSIGNED.
 *
 * VALID says what design and docs/format.md say of it and no more: the key's holder once signed
 * these bytes for this prefix and audience.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "codec/trust.h"

/* Name, number and word: the numbers are also those of enum walbus_signature. */
#define VERIFY_STATUSES(ROW)               \
    ROW(UNSIGNED, 0, "unsigned")           \
    ROW(VALID, 1, "valid")                 \
    ROW(UNKNOWN_KEY, 2, "unknown-key")     \
    ROW(BAD_SIGNATURE, 3, "bad-signature") \
    ROW(MALFORMED, 4, "malformed")         \
    ROW(NOT_ALLOWED, 5, "not-allowed")     \
    ROW(STALE, 6, "stale")

enum verify_status {
#define VERIFY_ROW(name, number, word) VERIFY_##name = number,
    VERIFY_STATUSES(VERIFY_ROW)
#undef VERIFY_ROW
};
#define VERIFY_STATUS_COUNT 7

/** The word for a status, as in listings and JSON; never NULL. */
const char *verify_status_text(enum verify_status status);

/** There is no received time: max-delay is not asked. */
#define VERIFY_NO_TIME INT64_MIN

/** What the content came under. Borrowed. */
struct verify_scope {
    struct bytes prefix;
    struct bytes audience;    /* where the key's entry names none */
    int64_t received_time_us; /* since 1970-01-01 UTC, or VERIFY_NO_TIME */
};

/** A sentence and its NUL: the longest has an audience and a number or two. */
#define VERIFY_REASON_SIZE 512

struct verify_result {
    enum verify_status status;
    struct bytes kid; /* borrowed from the content; {NULL, 0} where none could be read */
    char reason[VERIFY_REASON_SIZE]; /* one sentence for people, of the status VALID too; only what
                                        a terminal shows */
};

/**
 * Verifies one content. `trust` NULL: no key is known. `scratch` is the caller's, one for each
 * thread; kept, it spares an allocation the next time (it grows with the content). 0, or -ENOMEM,
 * which says nothing about the content, and *ret is of no use.
 */
int verify_content(const struct trust *trust, const struct verify_scope *scope,
                   struct bytes content, struct buf *scratch,
                   struct verify_result *ret) MUST_CHECK;

#endif
