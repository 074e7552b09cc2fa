/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_COSE_KEY_H
#define WALBUS_CODEC_COSE_KEY_H

/*
 * Ed25519 keys (RFC 8032) as COSE_Key (RFC 9052 section 7, RFC 9053 section 7.2), and the two
 * things that are done with them. A COSE_Key is a map; these are its labels:
 *
 *    1  kty      1: OKP
 *    2  kid      byte string; without it the default below
 *    3  alg      -8 or -19, when there: then no other is for this key
 *    4  key_ops  when there, 1 (sign) must be among them to sign with it, 2 (verify) to verify
 *   -1  crv      6: Ed25519
 *   -2  x        the public key, 32 bytes
 *   -4  d        the secret, 32 bytes (RFC 8032's private key, libsodium's seed)
 *
 * Any others are passed over. What we write is deterministic (RFC 8949 4.2.1): the labels in this
 * order, kid and alg when set, no key_ops.
 *
 * The default kid is the first 8 bytes of the SHA-256 COSE Key Thumbprint (RFC 9679): of the map of
 * the labels 1, -1 and -2 alone.
 *
 * Secrets stand only where the caller has put them: in the bytes that are decoded, in `secret`, in
 * what is encoded. Nothing here allocates or keeps a copy, on the stack neither. Whoever calls
 * holds those three in memory that is locked (sodium_malloc, sodium_mlock), and wipes it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

#define COSE_KEY_X_SIZE         32 /* RFC 8032 5.1.5 */
#define COSE_KEY_D_SIZE         32 /* RFC 8032 5.1.5 */
#define COSE_KEY_SIGNATURE_SIZE 64 /* RFC 8032 5.1.6 */
/** libsodium's secret key: d, then x. */
#define COSE_KEY_SECRET_SIZE      64
#define COSE_KEY_KID_DEFAULT_SIZE 8
/** Longest kid of a key, so that a key has a known size; as long as a prefix for publishing. */
#define COSE_KEY_KID_MAX 255

/** Most that the encoders write: the map's head, kty, kid with label and head, alg, crv, x and d
 *  with label and head each. */
#define COSE_KEY_PUBLIC_ENCODED_MAX  (1 + 2 + 3 + COSE_KEY_KID_MAX + 2 + 2 + 3 + COSE_KEY_X_SIZE)
#define COSE_KEY_PRIVATE_ENCODED_MAX (COSE_KEY_PUBLIC_ENCODED_MAX + 3 + COSE_KEY_D_SIZE)

/** A key's public part: nothing in it is secret, and it borrows nothing. */
struct cose_key {
    uint8_t x[COSE_KEY_X_SIZE];
    uint8_t kid[COSE_KEY_KID_MAX];
    uint8_t kid_size; /* bytes; never 0 when decoded */
    int64_t alg;      /* COSE_ALG_EDDSA, COSE_ALG_ED25519; 0: either */
};

static inline struct bytes cose_key_kid(const struct cose_key *key)
{
    return (struct bytes){key->kid, key->kid_size};
}

/* Why a key is refused: name, and one sentence for people. */
#define COSE_KEY_FAULTS(ROW)                                                                       \
    ROW(TRUNCATED, "The key ends before it is whole.")                                             \
    ROW(TRAILING, "There are bytes behind the key.")                                               \
    ROW(NESTING, "The key is nested too deeply.")                                                  \
    ROW(CBOR, "The key is not well-formed CBOR.")                                                  \
    ROW(TYPE, "A COSE_Key is a CBOR map, and this is none.")                                       \
    ROW(INDEFINITE, "The key has a map, array or string of indefinite length.")                    \
    ROW(LABEL, "The key has a label that is neither an integer nor a text of definite length.")    \
    ROW(LABELS, "The key has more labels than a key may have.")                                    \
    ROW(DUPLICATE, "The key has a label twice.")                                                   \
    ROW(KTY_MISSING, "The key has no key type (kty, 1).")                                          \
    ROW(KTY, "The key's type (kty, 1) is not OKP (1), which Ed25519 keys have.")                   \
    ROW(CRV_MISSING, "The key has no curve (crv, -1).")                                            \
    ROW(CRV, "The key's curve (crv, -1) is not Ed25519 (6).")                                      \
    ROW(KID, "The key's kid (2) is not a byte string of 1 to 255 bytes.")                          \
    ROW(ALG_TYPE, "The key's algorithm (alg, 3) is neither an integer nor a text.")                \
    ROW(ALG, "The key is for an algorithm (alg, 3) other than EdDSA (-8) and Ed25519 (-19).")      \
    ROW(KEY_OPS, "The key's key_ops (4) is not an array of integers and texts with one at least.") \
    ROW(NOT_FOR_VERIFYING, "The key's key_ops (4) do not allow to verify (2) with it.")            \
    ROW(NOT_FOR_SIGNING, "The key's key_ops (4) do not allow to sign (1) with it.")                \
    ROW(IS_PRIVATE, "The key is a private one (it has a d, -4), and a public one is needed.")      \
    ROW(X_MISSING, "The key has no public part (x, -2).")                                          \
    ROW(X, "The key's public part (x, -2) is not a byte string of 32 bytes.")                      \
    ROW(X_POINT, "The key's public part (x, -2) is not one that a secret key can have.")           \
    ROW(D_MISSING, "The key has no secret part (d, -4): it is a public one.")                      \
    ROW(D, "The key's secret part (d, -4) is not a byte string of 32 bytes.")                      \
    ROW(PAIR, "The key's public part (x, -2) does not belong to its secret part (d, -4).")

enum cose_key_fault {
    COSE_KEY_OK = 0,
#define COSE_KEY_ROW(name, text) COSE_KEY_##name,
    COSE_KEY_FAULTS(COSE_KEY_ROW)
#undef COSE_KEY_ROW
};

/** One sentence for people; never NULL. */
const char *cose_key_fault_text(enum cose_key_fault fault);

/**
 * Reads a public key: one map of definite length, nothing behind it, labels in any order and width.
 * COSE_KEY_OK, or one reason: of the CBOR before that of a value. A key that holds a secret is
 * refused: it stands where it should not. So is an x that is not a point of the prime-order group
 * of RFC 8032 5.1: no secret leads to it.
 */
enum cose_key_fault cose_key_decode_public(struct bytes in, struct cose_key *ret) MUST_CHECK;

/**
 * Whether it looks like a key with a secret in it, of whatever type and algorithm, also cut off,
 * tagged, in a key set, in a byte string or a map, or with bytes behind it: for what is about to be
 * shown. False of a public key.
 */
bool cose_key_has_secret(struct bytes in);

/**
 * Reads a private key; x may be missing (RFC 9053 7.2), and is computed then. Both outputs are
 * written only with COSE_KEY_OK, but `secret` is zeroed otherwise.
 */
enum cose_key_fault cose_key_decode_private(struct bytes in, struct cose_key *ret,
                                            uint8_t secret[COSE_KEY_SECRET_SIZE]) MUST_CHECK;

/**
 * Write the deterministic COSE_Key; the number of bytes. A kid_size of 0 writes no kid, alg 0 no
 * alg. A new pair is made by crypto_sign_keypair(key.x, secret).
 */
size_t cose_key_encode_public(const struct cose_key *key, uint8_t out[COSE_KEY_PUBLIC_ENCODED_MAX]);
size_t cose_key_encode_private(const struct cose_key *key,
                               const uint8_t secret[COSE_KEY_SECRET_SIZE],
                               uint8_t out[COSE_KEY_PRIVATE_ENCODED_MAX]);

/** The default kid of key->x. */
void cose_key_default_kid(const struct cose_key *key, uint8_t out[COSE_KEY_KID_DEFAULT_SIZE]);

/**
 * Whether `signature` is key's over `message`, by libsodium: exactly 64 bytes, S below the group's
 * order, neither R nor x of small order, x canonical (tests/unit/test_ed25519.c pins what that
 * means for the published edge cases).
 */
bool cose_key_verifies(const struct cose_key *key, struct bytes message,
                       struct bytes signature) MUST_CHECK;

/** Signs; the same message always gets the same signature (RFC 8032 5.1.6). */
void cose_key_sign(const uint8_t secret[COSE_KEY_SECRET_SIZE], struct bytes message,
                   uint8_t out[COSE_KEY_SIGNATURE_SIZE]);

#endif
