/* SPDX-License-Identifier: PostgreSQL */
/*
 * The published vectors of Ed25519, through the functions by which walbus signs and verifies: what
 * libsodium accepts is part of the format, so another version of it must not answer otherwise.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "codec/cose_key.h"
#include "unit.h"
#include "vectors.h"

static struct cose_key key_of(struct bytes x)
{
    struct cose_key key = {.kid_size = 0};

    ck_assert_uint_eq(x.size, sizeof key.x);
    memcpy(key.x, x.data, sizeof key.x);
    return key;
}

/* RFC 8032 section 7.1: keys, signatures, and the same to the byte when signed again. */
START_TEST(rfc_8032)
{
    json_t *document = vectors_document("ed25519/rfc8032_section7_1.json");
    json_t *row;
    size_t i;

    if (!document)
        return;
    json_t *rows = json_object_get(document, "tests");

    ck_assert_uint_eq(json_array_size(rows), 5);
    json_array_foreach(rows, i, row)
    {
        struct bytes seed = vectors_bytes(row, "seed"), x = vectors_bytes(row, "public_key");
        struct bytes message = vectors_bytes(row, "message");
        struct bytes signature = vectors_bytes(row, "signature");
        struct cose_key key;
        uint8_t secret[COSE_KEY_SECRET_SIZE], again[COSE_KEY_SIGNATURE_SIZE];

        ck_assert_uint_eq(seed.size, COSE_KEY_D_SIZE);
        ck_assert_int_eq(crypto_sign_seed_keypair(key.x, secret, seed.data), 0);
        ck_assert(bytes_equal((struct bytes){key.x, sizeof key.x}, x));
        cose_key_sign(secret, message, again);
        ck_assert_msg(bytes_equal((struct bytes){again, sizeof again}, signature), "%s",
                      vectors_text(row, "name"));
        ck_assert_msg(cose_key_verifies(&key, message, signature), "%s", vectors_text(row, "name"));
        unit_free(seed);
        unit_free(x);
        unit_free(message);
        unit_free(signature);
    }
    /* Section 7.3 signs a digest with another variant, Ed25519ph: no signature over the message itself. */
    row = json_array_get(json_object_get(document, "must_reject_as_pure"), 0);
    struct bytes x = vectors_bytes(row, "public_key"), message = vectors_bytes(row, "message");
    struct bytes signature = vectors_bytes(row, "signature");
    struct cose_key key = key_of(x);

    ck_assert(!cose_key_verifies(&key, message, signature));
    unit_free(x);
    unit_free(message);
    unit_free(signature);
    json_decref(document);
}
END_TEST

/* All of Wycheproof: every flag comes out as expected, none differs. */
START_TEST(wycheproof)
{
    json_t *document = vectors_document("ed25519/wycheproof_ed25519_test.json");
    json_t *group, *row;
    size_t i, k, n = 0, n_valid = 0;

    if (!document)
        return;
    json_array_foreach(json_object_get(document, "testGroups"), i, group)
    {
        struct bytes x = vectors_bytes(json_object_get(group, "publicKey"), "pk");
        struct cose_key key = key_of(x);

        json_array_foreach(json_object_get(group, "tests"), k, row)
        {
            struct bytes message = vectors_bytes(row, "msg"), signature = vectors_bytes(row, "sig");
            const char *result = vectors_text(row, "result");
            bool valid = strcmp(result, "valid") == 0;

            ck_assert(valid || strcmp(result, "invalid") == 0);
            ck_assert_msg(cose_key_verifies(&key, message, signature) == valid,
                          "test %.0f (%s) should be %s",
                          json_real_value(json_object_get(row, "tcId")),
                          vectors_text(row, "comment"), result);
            n++;
            n_valid += valid;
            unit_free(message);
            unit_free(signature);
        }
        unit_free(x);
    }
    ck_assert_uint_eq(n, 151);
    ck_assert_uint_eq(n_valid, 88);
    json_decref(document);
}
END_TEST

/*
 * Verifiers differ in these twelve. libsodium takes 3 alone, and as a key of ours not even that
 * one's is read. A is the public key, R the signature's first half; small, mixed and prime are the
 * orders of these points.
 */
static const struct {
    bool accepted;
    bool key_accepted; /* by cose_key_decode_public, which asks for the prime-order group */
    const char *what;
} speccheck[] = {
    {false, false, "0: A small, R small, S = 0"},
    {false, false, "1: A small, R mixed"},
    {false, false, "2: A mixed, R small"},
    {true, false, "3: A mixed, R mixed; satisfies the equation without the cofactor"},
    {false, false, "4: A mixed, R mixed; the one with the cofactor alone"},
    {false, false, "5: A mixed, R prime; the one with the cofactor alone"},
    {false, true, "6: A prime, R prime, S beyond the group's order"},
    {false, true, "7: A prime, R prime, S beyond twice the group's order"},
    {false, false, "8: A mixed, R small and not canonical"},
    {false, false, "9: A mixed, R small and not canonical"},
    {false, false, "10: A small and not canonical, R mixed"},
    {false, false, "11: A small and not canonical, R mixed"},
};

START_TEST(speccheck_policy)
{
    json_t *rows = vectors_load("ed25519/speccheck_cases.json");
    json_t *row;
    size_t i;

    if (!rows)
        return;
    ck_assert_uint_eq(json_array_size(rows), ARRAY_SIZE(speccheck));
    json_array_foreach(rows, i, row)
    {
        struct bytes x = vectors_bytes(row, "pub_key"), message = vectors_bytes(row, "message");
        struct bytes signature = vectors_bytes(row, "signature");
        struct cose_key key = key_of(x), decoded;
        uint8_t encoded[COSE_KEY_PUBLIC_ENCODED_MAX];
        size_t size = cose_key_encode_public(&key, encoded);

        ck_assert_msg(cose_key_verifies(&key, message, signature) == speccheck[i].accepted, "%s",
                      speccheck[i].what);
        enum cose_key_fault fault = cose_key_decode_public((struct bytes){encoded, size}, &decoded);

        ck_assert_msg(fault == (speccheck[i].key_accepted ? COSE_KEY_OK : COSE_KEY_X_POINT),
                      "%s: %s", speccheck[i].what, cose_key_fault_text(fault));
        unit_free(x);
        unit_free(message);
        unit_free(signature);
    }
    json_decref(rows);
}
END_TEST

UNIT_MAIN("ed25519", rfc_8032, wycheproof, speccheck_policy)
