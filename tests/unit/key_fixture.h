/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_KEY_FIXTURE_H
#define WALBUS_TESTS_UNIT_KEY_FIXTURE_H

#include <sodium.h>

#include "codec/cose_key.h"
#include "unit.h"

/* The key of RFC 8032 section 7.1, test 1, which cose-wg's Ed25519 examples use too. */
struct pair {
    struct cose_key key;
    uint8_t secret[COSE_KEY_SECRET_SIZE];
};

static inline struct pair test_pair(void)
{
    struct pair pair = {.key = {.alg = 0}};
    struct bytes d =
        unit_from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");

    ck_assert_int_eq(crypto_sign_seed_keypair(pair.key.x, pair.secret, d.data), 0);
    unit_free(d);
    return pair;
}

#endif
