/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_COSE_SIGN1_H
#define WALBUS_CODEC_COSE_SIGN1_H

/*
 * COSE_Sign1 (RFC 9052 section 4.2) with Ed25519, whoever made it: tag 18, which may be missing,
 * and an array of four,
 *
 *     protected     byte string around a map, or empty when that map is
 *     unprotected   map
 *     payload       byte string, or nil: detached
 *     signature     byte string
 *
 * What is signed is the Sig_structure (section 4.4), deterministic CBOR whatever the message is:
 *
 *     ["Signature1", protected, external_aad, payload]
 *
 * protected, external_aad and payload being byte strings: protected as it was transported, and
 * empty when its map is; external_aad what both sides know without its being sent. Only the
 * protected header and the payload are under the signature. What walbus's own events ask beyond
 * that is in codec/signed_event.h.
 *
 * Reading and verifying are two steps, since the key is chosen in between, by the kid. The checks
 * so come in this order: sizes and structure (cose_sign1_parse); the key (the caller's); whether
 * there is a payload, the algorithm and whether it is allowed for that key, the signature
 * (cose_sign1_verify). Type and content come last, and are the caller's.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "codec/cose_key.h"

/* Why a message is refused: name, and one sentence for people. EVENT_…: by codec/signed_event.h alone. */
#define COSE_SIGN1_FAULTS(ROW)                                                                   \
    ROW(TRUNCATED, "The message ends before it is whole.")                                       \
    ROW(TRAILING, "There are bytes behind the message.")                                         \
    ROW(NESTING, "The message is nested too deeply.")                                            \
    ROW(CBOR, "The message is not well-formed CBOR.")                                            \
    ROW(TAG, "The message has a tag that is not COSE_Sign1's (18), or two tags.")                \
    ROW(ARRAY, "A COSE_Sign1 is an array of four, and this is none.")                            \
    ROW(PROTECTED_TYPE, "The protected header is not a byte string.")                            \
    ROW(UNPROTECTED_TYPE, "The unprotected header is not a map.")                                \
    ROW(PAYLOAD_TYPE, "The payload is neither a byte string nor nil.")                           \
    ROW(SIGNATURE_TYPE, "The signature is not a byte string.")                                   \
    ROW(INDEFINITE, "A part is of indefinite length where that is not accepted.")                \
    ROW(PROTECTED_MAP, "The protected header is neither empty nor exactly one map.")             \
    ROW(LABEL, "A header has a label that is neither an integer nor a text of definite length.") \
    ROW(LABELS, "A header has more labels than a header may have.")                              \
    ROW(DUPLICATE, "A header has a label twice.")                                                \
    ROW(DUPLICATE_ACROSS, "A label stands in the protected and in the unprotected header.")      \
    ROW(CRIT, "The message has critical header parameters (crit, 2), and none are supported.")   \
    ROW(ALG_TYPE, "The algorithm (alg, 1) is neither an integer nor a text.")                    \
    ROW(CONTENT_TYPE_TYPE, "The content type (3) is neither an unsigned integer nor a text.")    \
    ROW(KID_TYPE, "The key's id (kid, 4) is not a byte string.")                                 \
    ROW(IV_TYPE, "An initialization vector (5, 6) is not a byte string.")                        \
    ROW(IV_TWICE, "The message has both an IV (5) and a partial IV (6).")                        \
    ROW(TYP_TYPE, "The type (typ, 16) is neither an unsigned integer nor a text.")               \
    ROW(EVENT_TAG, "A signed event has the tag 18, and this has none.")                          \
    ROW(EVENT_UNPROTECTED, "A signed event has nothing in its unprotected header.")              \
    ROW(EVENT_DETACHED, "A signed event carries its payload.")                                   \
    ROW(EVENT_KID, "A signed event names its key (kid, 4) in the protected header.")             \
    ROW(EVENT_LONGER, "A signed event's lengths are written as shortly as they can be.")         \
    ROW(EVENT_PREFIX, "The prefix is not ASCII, and so nothing signed for it is valid.")         \
    ROW(EVENT_AUDIENCE, "The audience is not UTF-8, and so nothing signed for it is valid.")     \
    ROW(DETACHED, "The message does not carry its payload (it is nil), and none was given.")     \
    ROW(PAYLOAD_TWICE, "The message carries its payload, and another one was given.")            \
    ROW(ALG_MISSING, "The message names no algorithm (alg, 1).")                                 \
    ROW(ALG_UNSUPPORTED, "The algorithm (alg, 1) is neither EdDSA (-8) nor Ed25519 (-19).")      \
    ROW(ALG_UNPROTECTED, "The algorithm (alg, 1) stands in the unprotected header alone.")       \
    ROW(ALG_KEY, "The key is for another algorithm (alg) than the message's.")                   \
    ROW(SIGNATURE_SIZE, "The signature is not 64 bytes long.")                                   \
    ROW(SIGNATURE, "The signature is not this key's over these bytes.")                          \
    ROW(EVENT_TYP, "The type (typ, 16) in the protected header is not \"walbus+cose\".")

enum cose_sign1_fault {
    COSE_SIGN1_OK = 0,
#define COSE_SIGN1_ROW(name, text) COSE_SIGN1_##name,
    COSE_SIGN1_FAULTS(COSE_SIGN1_ROW)
#undef COSE_SIGN1_ROW
};

/** One sentence for people; never NULL. */
const char *cose_sign1_fault_text(enum cose_sign1_fault fault);

/** A header parameter is nowhere, or in one of the headers: in both is refused. */
enum cose_place { COSE_NOWHERE = 0, COSE_PROTECTED, COSE_UNPROTECTED };

/** A message, taken apart. All bytes borrow from what was parsed. */
struct cose_sign1 {
    bool tagged;   /* has tag 18 */
    bool definite; /* the array and both headers are of definite length; strings always are */
    bool detached; /* the payload is nil */
    struct bytes protected_map;   /* as transported, without the byte string's head; may be empty */
    struct bytes unprotected_map; /* with its head */
    size_t n_protected, n_unprotected; /* labels */
    struct bytes payload;
    struct bytes signature; /* of any size */
    enum cose_place alg_place, kid_place, typ_place;
    int64_t alg;      /* 0: a text, or beyond int64; no such is ever accepted */
    struct bytes kid; /* may be empty */
    struct bytes typ; /* a text, else empty: a number, RFC 9596 */
};

/**
 * Takes a message apart: everything is checked but algorithm, key and signature. Heads may be of
 * any width, array and maps of indefinite length; nesting counts the protected header as if it were
 * no byte string. COSE_SIGN1_OK, or one of TRUNCATED to TYP_TYPE.
 */
enum cose_sign1_fault cose_sign1_parse(struct bytes in, struct cose_sign1 *ret) MUST_CHECK;

/** Appends the Sig_structure. `protected_map` is empty when it has no labels. 0; -ENOMEM. */
int cose_sig_structure_put(struct bytes protected_map, struct bytes external_aad,
                           struct bytes payload, struct buf *out) MUST_CHECK;

/** Appends what `message` says was signed; `payload` is its own, or the detached one. 0; -ENOMEM. */
int cose_sign1_to_be_signed(const struct cose_sign1 *message, struct bytes external_aad,
                            struct bytes payload, struct buf *out) MUST_CHECK;

/**
 * Verifies with one key. `detached` is the payload of a message that carries none, else NULL.
 * `scratch` gets the bytes that were signed, instead of what was in it: the one copy of the
 * payload; kept, it spares an allocation the next time. 0; -ENOMEM; or, positive, an enum
 * cose_sign1_fault: one of DETACHED to SIGNATURE.
 */
int cose_sign1_verify(const struct cose_sign1 *message, const struct cose_key *key,
                      struct bytes external_aad, const struct bytes *detached,
                      struct buf *scratch) MUST_CHECK;

/** What goes into a message. Borrowed; nothing of it in the buffer that it is built in. */
struct cose_sign1_parts {
    struct bytes protected_map;   /* a map with labels, or empty */
    struct bytes unprotected_map; /* a map; of no labels: a0 */
    struct bytes external_aad;
    struct bytes payload;
};

/**
 * Signs, and builds the message with tag 18, the shortest heads and the headers as they are given;
 * whether they are what they have to be is the caller's. The payload is copied once: first what is
 * signed stands in `room`, instead of what was in it, then the message around the same payload.
 * *ret is the message inside `room`, valid until that changes. 0; -ENOMEM.
 */
int cose_sign1_sign(const struct cose_sign1_parts *parts,
                    const uint8_t secret[COSE_KEY_SECRET_SIZE], struct buf *room,
                    struct bytes *ret) MUST_CHECK;

#endif
