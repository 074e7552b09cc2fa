/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cose_sign1.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/cose.h"
#include "key_fixture.h"
#include "unit.h"
#include "vectors.h"

static enum cose_sign1_fault parse(const char *hex)
{
    struct bytes in = unit_from_hex(hex);
    struct cose_sign1 m, untouched;

    memset(&m, 0xa5, sizeof m);
    memset(&untouched, 0xa5, sizeof untouched);
    enum cose_sign1_fault fault = cose_sign1_parse(in, &m);

    ck_assert(fault == COSE_SIGN1_OK || memcmp(&m, &untouched, sizeof m) == 0);
    unit_free(in);
    return fault;
}

#define DEEP_15 "818181818181818181818181818181"
#define DEEP_60 DEEP_15 DEEP_15 DEEP_15 DEEP_15

/* ---- taking apart ---- */

START_TEST(the_parts)
{
    struct bytes in = unit_from_hex("d284 48a20127 0443313233 a2 10 6174 6178 01 4170 43010203");
    struct cose_sign1 m;

    ck_assert_int_eq(cose_sign1_parse(in, &m), COSE_SIGN1_OK);
    ck_assert(m.tagged && m.definite && !m.detached);
    unit_assert_hex(m.protected_map, "a20127 0443313233");
    unit_assert_hex(m.unprotected_map, "a2 10 6174 6178 01");
    ck_assert(m.n_protected == 2 && m.n_unprotected == 2);
    unit_assert_text(m.payload, "p");
    unit_assert_hex(m.signature, "010203");
    ck_assert(m.alg_place == COSE_PROTECTED && m.alg == COSE_ALG_EDDSA);
    ck_assert(m.kid_place == COSE_PROTECTED);
    unit_assert_text(m.kid, "123");
    ck_assert(m.typ_place == COSE_UNPROTECTED);
    unit_assert_text(m.typ, "t");
    unit_free(in);

    in = unit_from_hex("84 40 a3 0132 0441 61 10 00 f6 40");
    ck_assert_int_eq(cose_sign1_parse(in, &m), COSE_SIGN1_OK);
    ck_assert(!m.tagged && m.definite && m.detached);
    ck_assert(m.protected_map.size == 0 && m.n_protected == 0 && m.n_unprotected == 3);
    ck_assert(m.payload.size == 0 && m.signature.size == 0);
    ck_assert(m.alg_place == COSE_UNPROTECTED && m.alg == COSE_ALG_ED25519);
    ck_assert(m.kid_place == COSE_UNPROTECTED && m.typ_place == COSE_UNPROTECTED);
    ck_assert_uint_eq(m.typ.size, 0);
    unit_free(in);
}
END_TEST

static const struct {
    const char *hex;
    bool definite;
} taken[] = {
    {"84 40 a0 40 40", true},
    {"84 41a0 a0 40 40", true}, /* an empty map (RFC 9052 section 3) */
    {"84 42b800 a0 40 40", true},
    {"84 42bfff a0 40 40", false},
    {"9f 40 a0 40 40 ff", false},
    {"d2 9f 40 bfff f6 40 ff", false},
    {"d812 9804 5800 b800 5a00000000 5b0000000000000000", true},
    {"84 40 a1 01 61 78 40 40", true},              /* an alg that is a text */
    {"84 40 a1 01 3bffffffffffffffff 40 40", true}, /* beyond int64 */
    {"84 43a10300 a0 40 40", true},
    {"84 40 a3 03 6161 05 4161 6178 9f bf00f6ff ff 40 40", true},
    {"84 44a1064161 a0 40 40", true},
    {"84 40 a1 04 40 40 40", true},
};

START_TEST(whatever_rfc_9052_allows)
{
    for (size_t i = 0; i < ARRAY_SIZE(taken); i++) {
        struct bytes in = unit_from_hex(taken[i].hex);
        struct cose_sign1 m;
        enum cose_sign1_fault fault = cose_sign1_parse(in, &m);

        ck_assert_msg(fault == COSE_SIGN1_OK, "%s: %s", taken[i].hex, cose_sign1_fault_text(fault));
        ck_assert_msg(m.definite == taken[i].definite, "%s", taken[i].hex);
        unit_free(in);
    }
}
END_TEST

static const struct {
    const char *hex;
    enum cose_sign1_fault fault;
} refused[] = {
    {"", COSE_SIGN1_TRUNCATED},
    {"d2", COSE_SIGN1_TRUNCATED},
    {"84 40 a0 40", COSE_SIGN1_TRUNCATED},
    {"84 40 a0 40 4100 00", COSE_SIGN1_TRAILING},
    {"84 40 a1 00 " DEEP_60 "8181 00 40 40", COSE_SIGN1_OK}, /* 62 levels inside two */
    {"84 40 a1 00 " DEEP_60 "818181 00 40 40", COSE_SIGN1_NESTING},
    {"d284 40 a1 00 " DEEP_60 "8181 00 40 40", COSE_SIGN1_NESTING},
    {"84 5841 a1 00 " DEEP_60 "8181 00 a0 40 40", COSE_SIGN1_NESTING},
    {"84 5840 a1 00 " DEEP_60 "81 00 a0 40 40", COSE_SIGN1_OK},
    {"84 40 a0 40 1c", COSE_SIGN1_CBOR},
    {"84 40 a1 00 61ff 40 40", COSE_SIGN1_CBOR},
    {"d1 84 40 a0 40 40", COSE_SIGN1_TAG},   /* COSE_Mac0 */
    {"d862 84 40 a0 40 80", COSE_SIGN1_TAG}, /* COSE_Sign */
    {"d9d9f7 d2 84 40 a0 40 40", COSE_SIGN1_TAG},
    {"d2 d2 84 40 a0 40 40", COSE_SIGN1_TAG},
    {"a0", COSE_SIGN1_ARRAY},
    {"d2 40", COSE_SIGN1_ARRAY},
    {"80", COSE_SIGN1_ARRAY},
    {"83 40 a0 40", COSE_SIGN1_ARRAY},
    {"85 40 a0 40 40 40", COSE_SIGN1_ARRAY},
    {"9f 40 a0 40 ff", COSE_SIGN1_ARRAY},
    {"9f 40 a0 40 40 40 ff", COSE_SIGN1_ARRAY},
    {"9f ff", COSE_SIGN1_ARRAY},
    {"84 a0 a0 40 40", COSE_SIGN1_PROTECTED_TYPE},
    {"84 60 a0 40 40", COSE_SIGN1_PROTECTED_TYPE},
    {"84 f6 a0 40 40", COSE_SIGN1_PROTECTED_TYPE},
    {"84 40 80 40 40", COSE_SIGN1_UNPROTECTED_TYPE},
    {"84 40 41a0 40 40", COSE_SIGN1_UNPROTECTED_TYPE},
    {"84 40 a0 60 40", COSE_SIGN1_PAYLOAD_TYPE},
    {"84 40 a0 f7 40", COSE_SIGN1_PAYLOAD_TYPE},
    {"84 40 a0 a0 40", COSE_SIGN1_PAYLOAD_TYPE},
    {"84 40 a0 40 60", COSE_SIGN1_SIGNATURE_TYPE},
    {"84 40 a0 40 f6", COSE_SIGN1_SIGNATURE_TYPE},
    {"84 5f41a0ff a0 40 40", COSE_SIGN1_INDEFINITE},
    {"84 40 a0 5f4161ff 40", COSE_SIGN1_INDEFINITE},
    {"84 40 a0 40 5fff", COSE_SIGN1_INDEFINITE},
    {"84 40 a1 04 5fff 40 40", COSE_SIGN1_INDEFINITE},
    {"84 40 a1 10 7fff 40 40", COSE_SIGN1_INDEFINITE},
    {"84 4180 a0 40 40", COSE_SIGN1_PROTECTED_MAP},
    {"84 41f6 a0 40 40", COSE_SIGN1_PROTECTED_MAP},
    {"84 42a000 a0 40 40", COSE_SIGN1_PROTECTED_MAP},
    {"84 42a101 a0 40 40", COSE_SIGN1_PROTECTED_MAP},
    {"84 41ff a0 40 40", COSE_SIGN1_PROTECTED_MAP},
    {"84 40 a1 4101 00 40 40", COSE_SIGN1_LABEL},
    {"84 40 a1 f6 00 40 40", COSE_SIGN1_LABEL},
    {"84 40 a1 7f6161ff 00 40 40", COSE_SIGN1_LABEL},
    {"84 43a1 8000 a0 40 40", COSE_SIGN1_LABEL},
    {"84 45a201270127 a0 40 40", COSE_SIGN1_DUPLICATE},
    {"84 46a20127180127 a0 40 40", COSE_SIGN1_DUPLICATE}, /* by value */
    {"84 40 a2 6178 00 7801 78 00 40 40", COSE_SIGN1_DUPLICATE},
    {"84 40 a2 23 00 3803 00 40 40", COSE_SIGN1_DUPLICATE},
    {"84 43a10127 a1 01 27 40 40", COSE_SIGN1_DUPLICATE_ACROSS},
    {"84 44a1044161 a1 04 4161 40 40", COSE_SIGN1_DUPLICATE_ACROSS},
    {"84 44a1617800 a1 6178 00 40 40", COSE_SIGN1_DUPLICATE_ACROSS},
    {"84 44a1028104 a0 40 40", COSE_SIGN1_CRIT},
    {"84 43a10280 a0 40 40", COSE_SIGN1_CRIT},
    {"84 40 a1 02 8104 40 40", COSE_SIGN1_CRIT},
    {"84 43a101f6 a0 40 40", COSE_SIGN1_ALG_TYPE},
    {"84 40 a1 01 4127 40 40", COSE_SIGN1_ALG_TYPE},
    {"84 43a10320 a0 40 40", COSE_SIGN1_CONTENT_TYPE_TYPE},
    {"84 40 a1 03 40 40 40", COSE_SIGN1_CONTENT_TYPE_TYPE},
    {"84 43a10460 a0 40 40", COSE_SIGN1_KID_TYPE},
    {"84 40 a1 04 00 40 40", COSE_SIGN1_KID_TYPE},
    {"84 43a10500 a0 40 40", COSE_SIGN1_IV_TYPE},
    {"84 40 a1 06 60 40 40", COSE_SIGN1_IV_TYPE},
    {"84 40 a2 05 40 06 40 40 40", COSE_SIGN1_IV_TWICE},
    {"84 43a10540 a1 06 40 40 40", COSE_SIGN1_IV_TWICE},
    {"84 43a11040 a0 40 40", COSE_SIGN1_TYP_TYPE},
    {"84 40 a1 10 20 40 40", COSE_SIGN1_TYP_TYPE},
};

START_TEST(each_refusal_has_its_reason)
{
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        enum cose_sign1_fault fault = parse(refused[i].hex);

        ck_assert_msg(fault == refused[i].fault, "%s: %s", refused[i].hex,
                      cose_sign1_fault_text(fault));
    }
}
END_TEST

START_TEST(as_many_labels_as_allowed)
{
    for (unsigned n = COSE_LABELS_MAX; n <= COSE_LABELS_MAX + 1; n++) {
        struct buf in = BUF_INIT, map = BUF_INIT;
        struct cose_sign1 m;

        cbor_put_map(&map, n);
        for (unsigned i = 0; i < n; i++) {
            cbor_put_uint(&map, 100 + i);
            cbor_put_uint(&map, 0);
        }
        cbor_put_array(&in, 4);
        cbor_put_bytes(&in, buf_bytes(&map));
        /* as many again in the other header, and none of them the same */
        cbor_put_map(&in, COSE_LABELS_MAX);
        for (unsigned i = 0; i < COSE_LABELS_MAX; i++) {
            cbor_put_uint(&in, 1000 + i);
            cbor_put_uint(&in, 0);
        }
        cbor_put_bytes(&in, (struct bytes){NULL, 0});
        cbor_put_bytes(&in, (struct bytes){NULL, 0});
        ck_assert_int_eq(cose_sign1_parse(buf_bytes(&in), &m),
                         n > COSE_LABELS_MAX ? COSE_SIGN1_LABELS : COSE_SIGN1_OK);
        buf_deinit(&in);
        buf_deinit(&map);
    }
}
END_TEST

START_TEST(each_reason_has_its_sentence)
{
    const char *texts[COSE_SIGN1_EVENT_TYP + 2];

    for (int i = 0; i <= COSE_SIGN1_EVENT_TYP + 1; i++) {
        texts[i] = cose_sign1_fault_text((enum cose_sign1_fault)i);
        ck_assert_uint_gt(strlen(texts[i]), 10);
        ck_assert_int_eq(texts[i][strlen(texts[i]) - 1], '.');
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(texts[k], texts[i]);
    }
}
END_TEST

/* ---- signing and verifying ---- */

/* Signs "payload" under these headers; free it with unit_free. */
static struct bytes sign(const struct pair *pair, const char *protected_hex,
                         const char *unprotected_hex, const char *aad)
{
    struct bytes protected_map = unit_from_hex(protected_hex);
    struct bytes unprotected_map = unit_from_hex(unprotected_hex), message;
    struct buf room = BUF_INIT;
    struct cose_sign1_parts parts = {protected_map, unprotected_map, unit_bytes(aad),
                                     unit_bytes("payload")};

    ck_assert_int_eq(cose_sign1_sign(&parts, pair->secret, &room, &message), 0);
    message = unit_exact(message);
    buf_deinit(&room);
    unit_free(protected_map);
    unit_free(unprotected_map);
    return message;
}

static int verify(struct bytes message, const struct cose_key *key, const char *aad,
                  const struct bytes *detached)
{
    struct buf scratch = BUF_INIT;
    struct cose_sign1 m;
    int r = (int)cose_sign1_parse(message, &m);

    if (r == 0)
        r = cose_sign1_verify(&m, key, unit_bytes(aad), detached, &scratch);
    buf_deinit(&scratch);
    return r;
}

START_TEST(headers_decide_about_the_algorithm)
{
    static const struct {
        const char *protected_map, *unprotected_map;
        int64_t key_alg;
        int result;
    } cases[] = {
        {"a10127", "a0", 0, COSE_SIGN1_OK},
        {"a10132", "a0", 0, COSE_SIGN1_OK},
        {"a10127", "a0", COSE_ALG_EDDSA, COSE_SIGN1_OK},
        {"a10132", "a0", COSE_ALG_ED25519, COSE_SIGN1_OK},
        {"a10127", "a0", COSE_ALG_ED25519, COSE_SIGN1_ALG_KEY},
        {"a10132", "a0", COSE_ALG_EDDSA, COSE_SIGN1_ALG_KEY},
        {"", "a0", 0, COSE_SIGN1_ALG_MISSING},
        {"a10300", "a0", 0, COSE_SIGN1_ALG_MISSING},
        {"", "a10127", 0, COSE_SIGN1_ALG_UNPROTECTED},
        {"", "a10126", 0, COSE_SIGN1_ALG_UNSUPPORTED},
        {"a10126", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED},            /* ES256 */
        {"a1013834", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED},          /* Ed448 */
        {"a10108", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED},            /* 8, not -8 */
        {"a10113", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED},            /* 19, not -19 */
        {"a10100", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED},            /* reserved */
        {"a10165 4564445341", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED}, /* "EdDSA" */
        {"a1013bffffffffffffffff", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED},
        {"a1013b7fffffffffffffff", "a0", 0, COSE_SIGN1_ALG_UNSUPPORTED},
        {"a101 3a00000007", "a0", 0, COSE_SIGN1_OK}, /* -8 in more bytes than needed */
        {"a10127", "a1044161", 0, COSE_SIGN1_OK},
        {"a20127044161", "a0", 0, COSE_SIGN1_OK},
        {"bf0127ff", "bfff", 0, COSE_SIGN1_OK},
    };
    struct pair pair = test_pair();

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes message = sign(&pair, cases[i].protected_map, cases[i].unprotected_map, "aad");

        pair.key.alg = cases[i].key_alg;
        int r = verify(message, &pair.key, "aad", NULL);

        ck_assert_msg(r == cases[i].result, "%s %s: %s", cases[i].protected_map,
                      cases[i].unprotected_map, cose_sign1_fault_text((enum cose_sign1_fault)r));
        unit_free(message);
    }
}
END_TEST

START_TEST(what_is_signed_decides)
{
    struct pair pair = test_pair(), other = {.key = {.alg = 0}};
    struct bytes message = sign(&pair, "a10127", "a0", "aad"), payload = unit_bytes("payload");

    ck_assert_int_eq(crypto_sign_keypair(other.key.x, other.secret), 0);
    ck_assert_int_eq(verify(message, &pair.key, "aad", NULL), 0);
    ck_assert_int_eq(verify(message, &other.key, "aad", NULL), COSE_SIGN1_SIGNATURE);
    ck_assert_int_eq(verify(message, &pair.key, "", NULL), COSE_SIGN1_SIGNATURE);
    ck_assert_int_eq(verify(message, &pair.key, "aae", NULL), COSE_SIGN1_SIGNATURE);
    ck_assert_int_eq(verify(message, &pair.key, "aad", &payload), COSE_SIGN1_PAYLOAD_TWICE);
    unit_free(message);
}
END_TEST

/* The same signature, with the payload taken out. */
START_TEST(detached_payloads)
{
    struct pair pair = test_pair();
    struct bytes message = sign(&pair, "a10127", "a0", ""), payload = unit_bytes("payload");
    struct bytes wrong = unit_bytes("payloae"), none = {NULL, 0};
    struct buf detached = BUF_INIT;
    size_t before = 2 + 4 + 1; /* d284, 43a10127, a0 */

    buf_append(&detached, message.data, before);
    cbor_put_null(&detached);
    buf_append(&detached, message.data + before + 8, message.size - before - 8);
    ck_assert_int_eq(verify(buf_bytes(&detached), &pair.key, "", &payload), 0);
    ck_assert_int_eq(verify(buf_bytes(&detached), &pair.key, "", &wrong), COSE_SIGN1_SIGNATURE);
    ck_assert_int_eq(verify(buf_bytes(&detached), &pair.key, "", &none), COSE_SIGN1_SIGNATURE);
    ck_assert_int_eq(verify(buf_bytes(&detached), &pair.key, "", NULL), COSE_SIGN1_DETACHED);
    buf_deinit(&detached);
    unit_free(message);
}
END_TEST

START_TEST(signatures_have_64_bytes)
{
    struct pair pair = test_pair();
    struct bytes message = sign(&pair, "a10127", "a0", "");

    for (size_t size = 0; size <= 128; size++) {
        struct buf other = BUF_INIT;
        uint8_t signature[128] = {0};
        int r;

        memcpy(signature, message.data + message.size - 64, 64);
        buf_append(&other, message.data, message.size - 66);
        cbor_put_bytes(&other, (struct bytes){signature, size});
        r = verify(buf_bytes(&other), &pair.key, "", NULL);
        ck_assert_int_eq(r, size == 64 ? 0 : COSE_SIGN1_SIGNATURE_SIZE);
        buf_deinit(&other);
    }
    unit_free(message);
}
END_TEST

/* What cose_sign1_sign builds in place is what one gets part by part, wherever the fronts meet: the
 * lengths of header, external_aad and payload, and what was in the buffer before, make no
 * difference. */
START_TEST(signing_in_place)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 23, 24, 100, 255, 256, 5000, 65535, 65536};
    struct pair pair = test_pair();
    struct buf room = BUF_INIT;
    uint8_t *filler = malloc(65536);

    ck_assert_ptr_nonnull(filler);
    memset(filler, 0x5a, 65536);
    for (size_t u = 0; u < ARRAY_SIZE(sizes); u++)
        for (size_t a = 0; a < ARRAY_SIZE(sizes); a += 2)
            for (size_t p = 0; p < ARRAY_SIZE(sizes); p += 2) {
                struct buf unprotected_map = BUF_INIT, tbs = BUF_INIT, built = BUF_INIT;
                struct bytes protected_map = unit_bytes("\xa1\x01\x27"), message;
                uint8_t signature[COSE_KEY_SIGNATURE_SIZE];

                cbor_put_map(&unprotected_map, 1);
                cbor_put_uint(&unprotected_map, 4);
                cbor_put_bytes(&unprotected_map, (struct bytes){filler, sizes[u]});
                struct cose_sign1_parts parts = {
                    .protected_map = protected_map,
                    .unprotected_map = buf_bytes(&unprotected_map),
                    .external_aad = {filler, sizes[a]},
                    .payload = {filler, sizes[p]},
                };

                cbor_put_array(&tbs, 4);
                cbor_put_str(&tbs, "Signature1");
                cbor_put_bytes(&tbs, protected_map);
                cbor_put_bytes(&tbs, parts.external_aad);
                cbor_put_bytes(&tbs, parts.payload);
                ck_assert_int_eq(
                    crypto_sign_detached(signature, NULL, tbs.data, tbs.size, pair.secret), 0);
                cbor_put_tag(&built, 18);
                cbor_put_array(&built, 4);
                cbor_put_bytes(&built, protected_map);
                buf_append(&built, unprotected_map.data, unprotected_map.size);
                cbor_put_bytes(&built, parts.payload);
                cbor_put_bytes(&built, (struct bytes){signature, sizeof signature});

                ck_assert_int_eq(cose_sign1_sign(&parts, pair.secret, &room, &message), 0);
                ck_assert(bytes_equal(message, buf_bytes(&built)));
                ck_assert(message.data >= room.data &&
                          message.data + message.size == room.data + room.size);
                buf_deinit(&unprotected_map);
                buf_deinit(&tbs);
                buf_deinit(&built);
            }
    free(filler);
    buf_deinit(&room);
}
END_TEST

/* ---- cose-wg ---- */

/* One of their files, as rows have it in the others. */
struct example {
    json_t *document;
    struct bytes message, tbs, aad;
};

static bool load_example(const char *folder, const char *name, struct example *ret)
{
    char file[64];

    (void)snprintf(file, sizeof file, "cose/%s/%s.json", folder, name);
    ret->document = vectors_document(file);
    if (!ret->document)
        return false;
    json_t *sign0 = json_object_get(json_object_get(ret->document, "input"), "sign0");

    ret->message = vectors_bytes(json_object_get(ret->document, "output"), "cbor");
    ret->tbs = sign0
                   ? vectors_bytes(json_object_get(ret->document, "intermediates"), "ToBeSign_hex")
                   : unit_from_hex("");
    ret->aad = sign0 && json_object_get(sign0, "external") ? vectors_bytes(sign0, "external")
                                                           : unit_from_hex("");
    return true;
}

static void unload_example(struct example *example)
{
    unit_free(example->message);
    unit_free(example->tbs);
    unit_free(example->aad);
    json_decref(example->document);
}

static bool signs(const struct cose_sign1 *m, const struct example *example)
{
    struct buf out = BUF_INIT;

    ck_assert_int_eq(cose_sign1_to_be_signed(m, example->aad, m->payload, &out), 0);
    bool same = bytes_equal(buf_bytes(&out), example->tbs);
    buf_deinit(&out);
    return same;
}

START_TEST(ed25519_example)
{
    struct example example;
    struct cose_sign1 m;
    struct pair pair = test_pair();
    struct buf scratch = BUF_INIT, room = BUF_INIT;
    struct bytes again;

    if (!load_example("eddsa-examples", "eddsa-sig-01", &example))
        return;
    ck_assert_int_eq(cose_sign1_parse(example.message, &m), COSE_SIGN1_OK);
    ck_assert(m.tagged && m.alg == COSE_ALG_EDDSA && m.kid_place == COSE_UNPROTECTED);
    unit_assert_text(m.kid, "11");
    ck_assert(signs(&m, &example));
    ck_assert_int_eq(cose_sign1_verify(&m, &pair.key, example.aad, NULL, &scratch), 0);
    ck_assert(bytes_equal(buf_bytes(&scratch), example.tbs));

    struct cose_sign1_parts parts = {m.protected_map, m.unprotected_map, example.aad, m.payload};

    ck_assert_int_eq(cose_sign1_sign(&parts, pair.secret, &room, &again), 0);
    ck_assert(bytes_equal(again, example.message));
    buf_deinit(&scratch);
    buf_deinit(&room);
    unload_example(&example);
}
END_TEST

/* Ed448, and COSE_Sign, which has several signatures. */
START_TEST(other_eddsa_examples)
{
    static const struct {
        const char *name;
        int result;
    } examples[] = {
        {"eddsa-sig-02", COSE_SIGN1_SIGNATURE_SIZE},
        {"eddsa-01", COSE_SIGN1_TAG},
        {"eddsa-02", COSE_SIGN1_TAG},
    };
    struct pair pair = test_pair();

    for (size_t i = 0; i < ARRAY_SIZE(examples); i++) {
        struct example example;

        if (!load_example("eddsa-examples", examples[i].name, &example))
            return;
        ck_assert_int_eq(verify(example.message, &pair.key, "", NULL), examples[i].result);
        unload_example(&example);
    }
}
END_TEST

/* ES256, of which we have what is signed, and no verifier. Where the file changes the message after
 * signing it, what is signed is another thing. 01 names its algorithm in the unprotected header alone. */
START_TEST(sign1_examples)
{
    static const struct {
        const char *name;
        bool same;
        int result;
    } examples[] = {
        {"sign-pass-01", true, COSE_SIGN1_ALG_UNSUPPORTED},
        {"sign-pass-02", true, COSE_SIGN1_ALG_UNSUPPORTED},
        {"sign-pass-03", true, COSE_SIGN1_ALG_UNSUPPORTED},
        {"sign-fail-01", false, COSE_SIGN1_TAG},
        {"sign-fail-02", false, COSE_SIGN1_ALG_UNSUPPORTED},
        {"sign-fail-03", false, COSE_SIGN1_ALG_UNSUPPORTED},
        {"sign-fail-04", false, COSE_SIGN1_ALG_UNSUPPORTED},
        {"sign-fail-06", false, COSE_SIGN1_ALG_UNSUPPORTED},
        {"sign-fail-07", false, COSE_SIGN1_ALG_UNSUPPORTED},
    };
    struct pair pair = test_pair();

    for (size_t i = 0; i < ARRAY_SIZE(examples); i++) {
        struct example example;
        struct cose_sign1 m;
        struct buf scratch = BUF_INIT;

        if (!load_example("sign1-tests", examples[i].name, &example))
            return;
        int r = (int)cose_sign1_parse(example.message, &m);

        if (r == 0) {
            ck_assert_msg(signs(&m, &example) == examples[i].same, "%s", examples[i].name);
            r = cose_sign1_verify(&m, &pair.key, example.aad, NULL, &scratch);
        }
        ck_assert_msg(r == examples[i].result, "%s: %s", examples[i].name,
                      cose_sign1_fault_text((enum cose_sign1_fault)r));
        buf_deinit(&scratch);
        unload_example(&example);
    }
}
END_TEST

UNIT_MAIN("cose_sign1", the_parts, whatever_rfc_9052_allows, each_refusal_has_its_reason,
          as_many_labels_as_allowed, each_reason_has_its_sentence,
          headers_decide_about_the_algorithm, what_is_signed_decides, detached_payloads,
          signatures_have_64_bytes, signing_in_place, ed25519_example, other_eddsa_examples,
          sign1_examples)
