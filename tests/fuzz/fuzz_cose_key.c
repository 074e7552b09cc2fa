/* SPDX-License-Identifier: PostgreSQL */
/*
 * COSE_Key, which an operator or another tool has written. What is read as one kind of key is
 * written and read again; it may not be of the other kind as well. A private key signs what its
 * public part verifies.
 */
#include "codec/cose_key.h"

#include <sodium.h>

#include "codec/cbor.h"
#include "codec/cose.h"
#include "fuzz.h"
#include "rewrite.h"

/* What both decoders promise. */
static void check_key(const struct cose_key *key)
{
    struct cose_key bare = *key, again;
    uint8_t out[COSE_KEY_PUBLIC_ENCODED_MAX], kid[COSE_KEY_KID_DEFAULT_SIZE];

    FUZZ_CHECK(key->kid_size > 0);
    FUZZ_CHECK(key->alg == 0 || cose_alg_is_accepted(key->alg));
    FUZZ_CHECK(crypto_core_ed25519_is_valid_point(key->x));

    bare.kid_size = 0;
    bare.alg = 0;
    size_t size = cose_key_encode_public(&bare, out);
    FUZZ_CHECK(cose_key_decode_public((struct bytes){out, size}, &again) == COSE_KEY_OK);
    cose_key_default_kid(key, kid);
    FUZZ_CHECK(bytes_equal(cose_key_kid(&again), (struct bytes){kid, sizeof kid}));
}

static void check_same(const struct cose_key *a, const struct cose_key *b)
{
    FUZZ_CHECK(memcmp(a->x, b->x, sizeof a->x) == 0 && a->alg == b->alg);
    FUZZ_CHECK(bytes_equal(cose_key_kid(a), cose_key_kid(b)));
}

/* Both encodings have the shortest heads, and are read back as the same. */
static void check_encoding(const struct cose_key *key, const uint8_t *secret)
{
    uint8_t out[COSE_KEY_PRIVATE_ENCODED_MAX], secret_again[COSE_KEY_SECRET_SIZE];
    struct buf rewritten = BUF_INIT;
    struct cose_key again;
    size_t size =
        secret ? cose_key_encode_private(key, secret, out) : cose_key_encode_public(key, out);
    uint8_t *exact = fuzz_copy((struct bytes){out, size});

    FUZZ_CHECK(size <= (secret ? COSE_KEY_PRIVATE_ENCODED_MAX : COSE_KEY_PUBLIC_ENCODED_MAX));
    FUZZ_CHECK(rewrite((struct bytes){out, size}, false, &rewritten).preferred);
    buf_deinit(&rewritten);
    if (secret) {
        FUZZ_CHECK(cose_key_decode_private((struct bytes){exact, size}, &again, secret_again) ==
                   COSE_KEY_OK);
        FUZZ_CHECK(memcmp(secret, secret_again, sizeof secret_again) == 0);
    } else {
        FUZZ_CHECK(cose_key_decode_public((struct bytes){exact, size}, &again) == COSE_KEY_OK);
    }
    check_same(key, &again);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes in = {data, size};
    struct cose_key public_key, private_key;
    uint8_t secret[COSE_KEY_SECRET_SIZE], signature[COSE_KEY_SIGNATURE_SIZE];

    fuzz_mark(&public_key, sizeof public_key);
    fuzz_mark(&private_key, sizeof private_key);
    fuzz_mark(secret, sizeof secret);
    enum cose_key_fault not_public = cose_key_decode_public(in, &public_key);
    enum cose_key_fault not_private = cose_key_decode_private(in, &private_key, secret);

    FUZZ_CHECK(cose_key_fault_text(not_public)[0] != '\0');
    FUZZ_CHECK(not_public != COSE_KEY_OK || not_private != COSE_KEY_OK);
    FUZZ_CHECK(not_private != COSE_KEY_OK || cose_key_has_secret(in));
    if (not_public != COSE_KEY_OK) {
        FUZZ_CHECK(fuzz_is_marked(&public_key, sizeof public_key));
    } else {
        FUZZ_CHECK(cbor_check(in, NULL) == CBOR_OK);
        FUZZ_CHECK(!cose_key_has_secret(in));
        check_key(&public_key);
        check_encoding(&public_key, NULL);
    }
    if (not_private != COSE_KEY_OK) {
        FUZZ_CHECK(fuzz_is_marked(&private_key, sizeof private_key));
        FUZZ_CHECK(sodium_is_zero(secret, sizeof secret));
        return 0;
    }
    FUZZ_CHECK(cbor_check(in, NULL) == CBOR_OK);
    check_key(&private_key);
    check_encoding(&private_key, NULL);
    check_encoding(&private_key, secret);
    cose_key_sign(secret, in, signature);
    FUZZ_CHECK(cose_key_verifies(&private_key, in, (struct bytes){signature, sizeof signature}));
    return 0;
}
