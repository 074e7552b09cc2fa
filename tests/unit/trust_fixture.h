/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_TRUST_FIXTURE_H
#define WALBUS_TESTS_UNIT_TRUST_FIXTURE_H

/* Trust files of keys that are made from a number. */

#include <sodium.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "codec/cose_key.h"
#include "codec/event.h"
#include "codec/signed_event.h"
#include "codec/trust.h"
#include "key_fixture.h"
#include "unit.h"

/* The n-th key, with its default kid. */
static inline struct pair nth_pair(unsigned n)
{
    struct pair pair = {.key = {.alg = 0}};
    uint8_t seed[crypto_sign_SEEDBYTES] = {(uint8_t)n, (uint8_t)(n >> 8), 1};

    ck_assert_int_eq(crypto_sign_seed_keypair(pair.key.x, pair.secret, seed), 0);
    cose_key_default_kid(&pair.key, pair.key.kid);
    pair.key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;
    return pair;
}

/* Appends "[KID]\nkey = BASE64\n". */
static inline void put_trust_section(struct buf *out, const struct cose_key *key)
{
    uint8_t encoded[COSE_KEY_PUBLIC_ENCODED_MAX];
    char hex[2 * COSE_KEY_KID_MAX + 1], base64[2 * COSE_KEY_PUBLIC_ENCODED_MAX];
    size_t size = cose_key_encode_public(key, encoded);

    buf_printf(out, "[%s]\nkey = %s\n", text_hex(key->kid, key->kid_size, hex),
               sodium_bin2base64(base64, sizeof base64, encoded, size,
                                 sodium_base64_VARIANT_ORIGINAL));
}

/* A trust file of one key and these lines. */
static inline struct trust *trust_of(const struct cose_key *key, const char *lines)
{
    struct buf text = BUF_INIT;
    struct trust_fault fault;
    struct trust *trust;

    put_trust_section(&text, key);
    buf_append_str(&text, lines);
    ck_assert_msg(trust_parse(buf_bytes(&text), &trust, &fault) == 0, "%s", fault.why);
    buf_deinit(&text);
    return trust;
}

/* An event signed by a key for a scope; a `time` without data is none. Free with unit_free. */
static inline struct bytes sign_event_at(const struct pair *pair, const char *prefix,
                                         const char *audience, struct bytes time)
{
    struct event event = {.n_attributes = 0};
    struct buf content = BUF_INIT, room = BUF_INIT;
    struct bytes out;
    const struct signed_event_scope scope = {bytes_of_text(prefix), bytes_of_text(audience)};

    ck_assert_int_eq(event_add(&event, "specversion", "1.0"), 0);
    ck_assert_int_eq(event_add(&event, "type", "orders.paid"), 0);
    ck_assert_int_eq(event_add(&event, "source", "/shop"), 0);
    ck_assert_int_eq(event_add(&event, "id", "1"), 0);
    if (time.data) {
        ck_assert_int_eq(event_add(&event, "time", ""), 0);
        event.attributes[event.n_attributes - 1].value = time;
    }
    event.data = unit_bytes("\x65hello");
    ck_assert_int_eq(event_encode(&event, &content), 0);
    ck_assert_int_eq(
        signed_event_sign((struct bytes){content.data + EVENT_TAG_SIZE, content.size - EVENT_TAG_SIZE},
                          &scope, &pair->key, pair->secret, &room, &out),
        0);
    out = unit_exact(out);
    buf_deinit(&content);
    buf_deinit(&room);
    return out;
}

/* The same; `time` may be NULL. */
static inline struct bytes sign_event(const struct pair *pair, const char *prefix,
                                      const char *audience, const char *time)
{
    return sign_event_at(pair, prefix, audience, bytes_of_text(time));
}

#endif
