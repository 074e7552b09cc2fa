/* SPDX-License-Identifier: PostgreSQL */
#include "codec/signed_event.h"

#include <errno.h>

#include "base/text.h"
#include "codec/cbor.h"
#include "codec/cose.h"

/* First of the three texts of external_aad: which application, and which version of this scheme. */
#define AAD_CONTEXT "walbus/1"

/* ---- reading ---- */

/* A byte string with the shortest head. */
static size_t string_size(struct bytes string)
{
    return cbor_head_size(string.size) + string.size;
}

/* Whether every head outside the protected header is the shortest: none can be shorter than that,
 * so they all are when the sum is. What is inside the protected header is signed, and may be as it
 * likes. */
static bool is_shortest(struct bytes content, const struct cose_sign1 *m)
{
    const size_t tag = 1, array = 1, empty_map = 1;

    return content.size == tag + array + string_size(m->protected_map) + empty_map +
                               string_size(m->payload) + string_size(m->signature);
}

enum cose_sign1_fault signed_event_parse(struct bytes content, struct cose_sign1 *ret)
{
    struct cose_sign1 m;
    enum cose_sign1_fault refused = cose_sign1_parse(content, &m);

    if (refused != COSE_SIGN1_OK)
        return refused;
    if (!m.tagged)
        return COSE_SIGN1_EVENT_TAG;
    if (!m.definite)
        return COSE_SIGN1_INDEFINITE;
    if (m.n_unprotected > 0)
        return COSE_SIGN1_EVENT_UNPROTECTED;
    if (m.detached)
        return COSE_SIGN1_EVENT_DETACHED;
    if (m.kid_place != COSE_PROTECTED)
        return COSE_SIGN1_EVENT_KID;
    if (m.signature.size != COSE_KEY_SIGNATURE_SIZE)
        return COSE_SIGN1_SIGNATURE_SIZE;
    if (!is_shortest(content, &m))
        return COSE_SIGN1_EVENT_LONGER;
    *ret = m;
    return COSE_SIGN1_OK;
}

/* ---- scope ---- */

static bool is_ascii(struct bytes text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.data[i] >= 0x80)
            return false;
    return true;
}

static enum cose_sign1_fault check_scope(const struct signed_event_scope *scope)
{
    if (!is_ascii(scope->prefix))
        return COSE_SIGN1_EVENT_PREFIX;
    return text_is_utf8(scope->audience) ? COSE_SIGN1_OK : COSE_SIGN1_EVENT_AUDIENCE;
}

static void put_aad(const struct signed_event_scope *scope, struct buf *out)
{
    cbor_put_array(out, 3);
    cbor_put_str(out, AAD_CONTEXT);
    cbor_put_text(out, scope->audience);
    cbor_put_text(out, scope->prefix);
}

int signed_event_verify(const struct cose_sign1 *message, const struct cose_key *key,
                        const struct signed_event_scope *scope, struct buf *scratch)
{
    struct buf aad = BUF_INIT;
    enum cose_sign1_fault refused = check_scope(scope);

    if (refused != COSE_SIGN1_OK)
        return (int)refused;
    put_aad(scope, &aad);

    int r = aad.failed ? -ENOMEM : cose_sign1_verify(message, key, buf_bytes(&aad), NULL, scratch);

    buf_deinit(&aad);
    if (r != 0)
        return r;
    /* It stands in the protected header, if anywhere: nothing is in the other one. */
    if (!bytes_equal(message->typ, bytes_of_text(SIGNED_EVENT_TYP)))
        return COSE_SIGN1_EVENT_TYP;
    return 0;
}

/* ---- signing ---- */

/* RFC 9052 table 3, RFC 9596 section 2: in deterministic order. */
static void put_protected(const struct cose_key *key, struct buf *out)
{
    uint8_t default_kid[COSE_KEY_KID_DEFAULT_SIZE];
    struct bytes kid = cose_key_kid(key);

    if (kid.size == 0) {
        cose_key_default_kid(key, default_kid);
        kid = (struct bytes){default_kid, sizeof default_kid};
    }
    cbor_put_map(out, 3);
    cbor_put_uint(out, 1);
    cbor_put_int(out, key->alg != 0 ? key->alg : COSE_ALG_EDDSA);
    cbor_put_uint(out, 4);
    cbor_put_bytes(out, kid);
    cbor_put_uint(out, 16);
    cbor_put_str(out, SIGNED_EVENT_TYP);
}

int signed_event_sign(struct bytes map, const struct signed_event_scope *scope,
                      const struct cose_key *key, const uint8_t secret[COSE_KEY_SECRET_SIZE],
                      struct buf *room, struct bytes *ret)
{
    static const uint8_t empty_map = 0xa0;
    struct buf headers = BUF_INIT; /* the protected header, then external_aad */
    size_t protected_size;
    int r;

    if (check_scope(scope) != COSE_SIGN1_OK)
        return -EINVAL;
    put_protected(key, &headers);
    protected_size = headers.size;
    put_aad(scope, &headers);
    if (headers.failed)
        return -ENOMEM;
    r = cose_sign1_sign(
        &(struct cose_sign1_parts){
            .protected_map = {headers.data, protected_size},
            .unprotected_map = {&empty_map, 1},
            .external_aad = {headers.data + protected_size, headers.size - protected_size},
            .payload = map,
        },
        secret, room, ret);
    buf_deinit(&headers);
    return r;
}
