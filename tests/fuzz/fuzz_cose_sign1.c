/* SPDX-License-Identifier: PostgreSQL */
/*
 * COSE_Sign1, which anyone may have put on the bus. What was taken apart is put together again from
 * its parts, signed with a known key, and has to be the same message with a signature that
 * verifies. A content is a signed event only if what walbus would write of its parts is that
 * content to the byte, but for the signature.
 */
#include "codec/cose_sign1.h"

#include <sodium.h>

#include "codec/cbor.h"
#include "codec/cose.h"
#include "codec/event.h"
#include "codec/signed_event.h"
#include "fuzz.h"
#include "rewrite.h"

/* Any secret will do: what is signed with it is made here. */
static const uint8_t seed[crypto_sign_SEEDBYTES] = {1};

static void check_inside(struct bytes part, struct bytes message)
{
    FUZZ_CHECK(part.size == 0 || (part.data >= message.data && part.size <= message.size &&
                                  (size_t)(part.data - message.data) <= message.size - part.size));
}

/* What cose_sign1_parse promises. */
static void check_parts(const struct cose_sign1 *m, struct bytes message)
{
    check_inside(m->protected_map, message);
    check_inside(m->unprotected_map, message);
    check_inside(m->payload, message);
    check_inside(m->signature, message);
    check_inside(m->kid, message);
    check_inside(m->typ, message);
    FUZZ_CHECK(m->protected_map.size > 0 || m->n_protected == 0);
    FUZZ_CHECK(m->protected_map.size == 0 || cbor_check(m->protected_map, NULL) == CBOR_OK);
    FUZZ_CHECK(cbor_check(m->unprotected_map, NULL) == CBOR_OK);
    FUZZ_CHECK(m->n_protected <= COSE_LABELS_MAX && m->n_unprotected <= COSE_LABELS_MAX);
    FUZZ_CHECK(!m->detached || m->payload.size == 0);
    FUZZ_CHECK(m->alg == 0 || m->alg_place != COSE_NOWHERE);
    FUZZ_CHECK(m->kid.size == 0 || m->kid_place != COSE_NOWHERE);
    FUZZ_CHECK(m->typ.size == 0 || m->typ_place != COSE_NOWHERE);
}

/* The message with the shortest heads, without its headers being touched, and this signature. */
static void put_message(const struct cose_sign1 *m, struct bytes signature, struct buf *out)
{
    if (m->tagged)
        cbor_put_tag(out, 18);
    cbor_put_array(out, 4);
    cbor_put_bytes(out, m->protected_map);
    buf_append(out, m->unprotected_map.data, m->unprotected_map.size);
    if (m->detached)
        cbor_put_null(out);
    else
        cbor_put_bytes(out, m->payload);
    cbor_put_bytes(out, signature);
}

static void check_same(const struct cose_sign1 *a, const struct cose_sign1 *b)
{
    FUZZ_CHECK(bytes_equal(a->protected_map, b->protected_map));
    FUZZ_CHECK(bytes_equal(a->unprotected_map, b->unprotected_map));
    FUZZ_CHECK(bytes_equal(a->payload, b->payload));
    FUZZ_CHECK(bytes_equal(a->kid, b->kid) && bytes_equal(a->typ, b->typ));
    FUZZ_CHECK(a->n_protected == b->n_protected && a->n_unprotected == b->n_unprotected);
    FUZZ_CHECK(a->alg == b->alg && a->alg_place == b->alg_place && a->kid_place == b->kid_place &&
               a->typ_place == b->typ_place && a->detached == b->detached);
}

/* Signs the same parts, and verifies that. */
static void check_signing(const struct cose_sign1 *m, const struct cose_key *key,
                          const uint8_t *secret)
{
    const struct cose_sign1_parts parts = {
        .protected_map = m->n_protected > 0 ? m->protected_map : (struct bytes){NULL, 0},
        .unprotected_map = m->unprotected_map,
        .external_aad = m->kid, /* something that varies */
        .payload = m->payload,
    };
    struct buf room = BUF_INIT, scratch = BUF_INIT;
    struct bytes message;
    struct cose_sign1 again;
    bool accepted = m->alg_place == COSE_PROTECTED && cose_alg_is_accepted(m->alg);

    FUZZ_CHECK(cose_sign1_sign(&parts, secret, &room, &message) == 0);
    if (cose_sign1_parse(message, &again) == COSE_SIGN1_NESTING) {
        FUZZ_CHECK(!m->tagged); /* the tag, which it had not before, is a level more */
        buf_deinit(&room);
        return;
    }
    FUZZ_CHECK(cose_sign1_parse(message, &again) == COSE_SIGN1_OK);
    FUZZ_CHECK(again.tagged && bytes_equal(again.unprotected_map, m->unprotected_map));

    int r = cose_sign1_verify(&again, key, parts.external_aad, NULL, &scratch);

    FUZZ_CHECK((r == 0) == accepted);
    if (accepted) {
        struct cose_sign1 other = again;
        uint8_t *signature = (uint8_t *)(uintptr_t)again.signature.data;

        signature[0] ^= 1;
        FUZZ_CHECK(cose_sign1_verify(&other, key, parts.external_aad, NULL, &scratch) ==
                   COSE_SIGN1_SIGNATURE);
    }
    buf_deinit(&room);
    buf_deinit(&scratch);
}

/* With the signature that was sent: nobody has signed it with this key. */
static void check_foreign(const struct cose_sign1 *m, const struct cose_key *key)
{
    struct buf scratch = BUF_INIT;
    struct bytes none = {NULL, 0};
    int r = cose_sign1_verify(m, key, none, m->detached ? &none : NULL, &scratch);

    FUZZ_CHECK(r > 0 && cose_sign1_fault_text((enum cose_sign1_fault)r)[0] != '\0');
    FUZZ_CHECK(cose_sign1_verify(m, key, none, m->detached ? NULL : &none, &scratch) ==
               (m->detached ? COSE_SIGN1_DETACHED : COSE_SIGN1_PAYLOAD_TWICE));
    buf_deinit(&scratch);
}

static void check_event(struct bytes content, const struct cose_sign1 *m)
{
    struct buf again = BUF_INIT;

    FUZZ_CHECK(content_kind_of(content) == CONTENT_SIGNED);
    FUZZ_CHECK(m->kid_place == COSE_PROTECTED && m->n_unprotected == 0 && !m->detached);
    put_message(m, m->signature, &again);
    FUZZ_CHECK(bytes_equal(content, buf_bytes(&again)));
    buf_deinit(&again);
    FUZZ_CHECK(rewrite(content, false, &again).preferred);
    buf_deinit(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes in = {data, size};
    struct cose_sign1 m, event, again;
    struct cose_key key = {.alg = 0};
    uint8_t secret[COSE_KEY_SECRET_SIZE];
    struct buf out = BUF_INIT;

    fuzz_mark(&m, sizeof m);
    fuzz_mark(&event, sizeof event);
    enum cose_sign1_fault refused = cose_sign1_parse(in, &m);
    enum cose_sign1_fault no_event = signed_event_parse(in, &event);

    FUZZ_CHECK(cose_sign1_fault_text(refused)[0] != '\0');
    if (refused != COSE_SIGN1_OK) {
        FUZZ_CHECK(fuzz_is_marked(&m, sizeof m) && no_event == refused);
        return 0;
    }
    FUZZ_CHECK(cbor_check(in, NULL) == CBOR_OK);
    check_parts(&m, in);

    put_message(&m, m.signature, &out);
    FUZZ_CHECK(cose_sign1_parse(buf_bytes(&out), &again) == COSE_SIGN1_OK);
    check_same(&m, &again);
    FUZZ_CHECK(bytes_equal(m.signature, again.signature));
    buf_deinit(&out);

    (void)crypto_sign_seed_keypair(key.x, secret, seed);
    check_signing(&m, &key, secret);
    check_foreign(&m, &key);
    if (no_event != COSE_SIGN1_OK)
        FUZZ_CHECK(fuzz_is_marked(&event, sizeof event));
    else
        check_event(in, &event);
    return 0;
}
