/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_SIGNED_EVENT_H
#define WALBUS_CODEC_SIGNED_EVENT_H

/*
 * Signed content: a COSE_Sign1 (codec/cose_sign1.h) of a form that leaves nothing open which the
 * signature does not cover. Whoever can emit could otherwise change the bytes of another's event,
 * and they would stay valid.
 *
 *     protected     {1: alg, 4: kid, 16: "walbus+cose"}; further labels are passed over when read
 *     unprotected   empty
 *     payload       the event's map, without tag 55799 (codec/event.h)
 *     signature     64 bytes
 *
 * with tag 18, all lengths definite and heads as short as they can be. external_aad is the
 * deterministic array ["walbus/1", audience, prefix] of three texts: an event signed for
 * one prefix or audience is not valid under another. docs/format.md has an example to the byte.
 */

#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "codec/cose_key.h"
#include "codec/cose_sign1.h"

/** The value of typ (RFC 9596), which keeps other things that the same key signs from being events. */
#define SIGNED_EVENT_TYP "walbus+cose"

/** What an event is signed for. Borrowed. */
struct signed_event_scope {
    struct bytes prefix;   /* of the message; only ASCII can be valid, since what arrives is in the
                              server's encoding */
    struct bytes audience; /* UTF-8; may be empty */
};

/**
 * Takes a signed content apart. COSE_SIGN1_OK; what cose_sign1_parse answers; INDEFINITE; EVENT_TAG
 * to EVENT_LONGER; SIGNATURE_SIZE. The kid tells which key to verify with. Whether the payload is
 * an event is not looked at: that is for event_decode_map, after the signature.
 */
enum cose_sign1_fault signed_event_parse(struct bytes content, struct cose_sign1 *ret) MUST_CHECK;

/**
 * Verifies what signed_event_parse has taken apart with one key, for one scope. `scratch` as for
 * cose_sign1_verify. 0; -ENOMEM; or, positive, an enum cose_sign1_fault: EVENT_PREFIX,
 * EVENT_AUDIENCE; what cose_sign1_verify answers; and when the signature is right EVENT_TYP. Of all
 * reasons, SIGNATURE alone is a bad signature to whoever asks; the others make the content
 * malformed.
 */
int signed_event_verify(const struct cose_sign1 *message, const struct cose_key *key,
                        const struct signed_event_scope *scope, struct buf *scratch) MUST_CHECK;

/**
 * Signs an event for a scope: `map` is what event_encode has written, without its first
 * EVENT_TAG_SIZE bytes. alg is the key's when that is for one alone, else -8. A key without kid
 * signs under its default kid. The same input always gives the same bytes. `room` and *ret as for
 * cose_sign1_sign. 0; -ENOMEM; -EINVAL: the prefix is not ASCII or the audience not UTF-8.
 */
int signed_event_sign(struct bytes map, const struct signed_event_scope *scope,
                      const struct cose_key *key, const uint8_t secret[COSE_KEY_SECRET_SIZE],
                      struct buf *room, struct bytes *ret) MUST_CHECK;

#endif
