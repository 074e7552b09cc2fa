/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cose_key.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codec/cose.h"
#include "unit.h"

/* RFC 8032 section 7.1, test 1. */
#define X    "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
#define D    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
#define KID  "866eefbd6718c884" /* docs/format.md */
#define KTY  "0101"
#define CRV  "2006"
#define X_IS "215820" X
#define D_IS "235820" D

static enum cose_key_fault decode_public(const char *hex, struct cose_key *ret)
{
    struct bytes in = unit_from_hex(hex);
    enum cose_key_fault fault = cose_key_decode_public(in, ret);

    unit_free(in);
    return fault;
}

static enum cose_key_fault decode_private(const char *hex, struct cose_key *ret, uint8_t *secret)
{
    struct bytes in = unit_from_hex(hex);
    enum cose_key_fault fault = cose_key_decode_private(in, ret, secret);

    unit_free(in);
    return fault;
}

static struct bytes array(const uint8_t *data, size_t size)
{
    return (struct bytes){data, size};
}

static void check_key(const struct cose_key *key, const char *kid, int64_t alg)
{
    unit_assert_hex(array(key->x, sizeof key->x), X);
    unit_assert_hex(cose_key_kid(key), kid);
    ck_assert_int_eq(key->alg, alg);
}

/* ---- writing ---- */

START_TEST(encoding_is_deterministic)
{
    struct cose_key key = {.alg = 0};
    uint8_t secret[COSE_KEY_SECRET_SIZE], out[COSE_KEY_PRIVATE_ENCODED_MAX];
    struct bytes d = unit_from_hex(D);

    ck_assert_int_eq(crypto_sign_seed_keypair(key.x, secret, d.data), 0);
    unit_assert_hex(array(out, cose_key_encode_public(&key, out)), "a3" KTY CRV X_IS);
    cose_key_default_kid(&key, key.kid);
    key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;
    unit_assert_hex(array(out, cose_key_encode_public(&key, out)), "a4" KTY "0248" KID CRV X_IS);
    unit_assert_hex(array(out, cose_key_encode_private(&key, secret, out)),
                    "a5" KTY "0248" KID CRV X_IS D_IS);
    key.alg = COSE_ALG_EDDSA;
    unit_assert_hex(array(out, cose_key_encode_public(&key, out)),
                    "a5" KTY "0248" KID "0327" CRV X_IS);
    key.alg = COSE_ALG_ED25519;
    unit_assert_hex(array(out, cose_key_encode_private(&key, secret, out)),
                    "a6" KTY "0248" KID "0332" CRV X_IS D_IS);
    unit_free(d);
}
END_TEST

START_TEST(the_longest_key_fits)
{
    struct cose_key key = {.alg = COSE_ALG_ED25519, .kid_size = COSE_KEY_KID_MAX}, again;
    uint8_t secret[COSE_KEY_SECRET_SIZE], secret_again[COSE_KEY_SECRET_SIZE];
    uint8_t out[COSE_KEY_PRIVATE_ENCODED_MAX];

    ck_assert_int_eq(crypto_sign_keypair(key.x, secret), 0);
    memset(key.kid, 0xff, sizeof key.kid);
    ck_assert_uint_eq(cose_key_encode_public(&key, out), COSE_KEY_PUBLIC_ENCODED_MAX);
    ck_assert_int_eq(cose_key_decode_public(array(out, COSE_KEY_PUBLIC_ENCODED_MAX), &again), 0);
    ck_assert_mem_eq(&key, &again, sizeof key);
    ck_assert_uint_eq(cose_key_encode_private(&key, secret, out), COSE_KEY_PRIVATE_ENCODED_MAX);
    ck_assert_int_eq(
        cose_key_decode_private(array(out, COSE_KEY_PRIVATE_ENCODED_MAX), &again, secret_again), 0);
    ck_assert_mem_eq(&key, &again, sizeof key);
    ck_assert_mem_eq(secret, secret_again, sizeof secret);
}
END_TEST

/* ---- reading ---- */

static const struct {
    const char *hex, *kid;
    int64_t alg;
} good[] = {
    {"a3" KTY CRV X_IS, KID, 0},
    {"a4" KTY "0248" KID CRV X_IS, KID, 0},
    {"a4" KTY "024161" CRV X_IS, "61", 0},
    {"a4" KTY "0327" CRV X_IS, KID, COSE_ALG_EDDSA},
    {"a4" KTY "0332" CRV X_IS, KID, COSE_ALG_ED25519},
    /* another order, other widths */
    {"a3" X_IS CRV KTY, KID, 0},
    {"b90003 1801 190001 3a00000000 1b0000000000000006 3801 590020" X, KID, 0},
    /* labels that we do not know: Base IV, -3 (an EC key's y), a text, and whatever they hold */
    {"a6" KTY "05 4100" CRV X_IS "22 f5 6178 9f bf ff ff", KID, 0},
    {"a4" KTY "04 83 02 20 6178" CRV X_IS, KID, 0},
    {"a4" KTY "04 81 1a00000002" CRV X_IS, KID, 0},
};

START_TEST(public_keys_are_read)
{
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        struct cose_key key;
        enum cose_key_fault fault = decode_public(good[i].hex, &key);

        ck_assert_msg(fault == COSE_KEY_OK, "%s: %s", good[i].hex, cose_key_fault_text(fault));
        check_key(&key, good[i].kid, good[i].alg);
    }
}
END_TEST

START_TEST(private_keys_are_read)
{
    static const char *const keys[] = {
        "a4" KTY CRV X_IS D_IS,
        "a3" KTY CRV D_IS, /* RFC 9053 7.2: x is only recommended */
        "a4" D_IS X_IS CRV KTY,
        "a5" KTY "04 82 01 02" CRV X_IS D_IS,
        "a5" KTY "04 81 01" CRV X_IS D_IS,
    };

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        struct cose_key key;
        uint8_t secret[COSE_KEY_SECRET_SIZE];
        enum cose_key_fault fault = decode_private(keys[i], &key, secret);

        ck_assert_msg(fault == COSE_KEY_OK, "%s: %s", keys[i], cose_key_fault_text(fault));
        check_key(&key, KID, 0);
        unit_assert_hex(array(secret, sizeof secret), D X);
    }
}
END_TEST

#define BYTES_31 "01020304050607080910111213141516171819202122232425262728293031"

/* Each is refused as a public and as a private key; as the latter D_IS is among its pairs. */
static const struct {
    const char *hex;
    enum cose_key_fault fault;
} never[] = {
    {"", COSE_KEY_TRUNCATED},
    {"a4" KTY, COSE_KEY_TRUNCATED},
    {"a5" KTY CRV X_IS D_IS, COSE_KEY_TRUNCATED},
    {"a4" KTY CRV X_IS D_IS "00", COSE_KEY_TRAILING},
    {"a1 00"
     "81818181818181818181818181818181"
     "81818181818181818181818181818181"
     "81818181818181818181818181818181"
     "81818181818181818181818181818181"
     "00",
     COSE_KEY_NESTING},
    {"a1 01 1c", COSE_KEY_CBOR},
    {"a1 01 61ff", COSE_KEY_CBOR},
    {"81 a4" KTY CRV X_IS D_IS, COSE_KEY_TYPE}, /* a COSE_KeySet */
    {"d9d9f7 a4" KTY CRV X_IS D_IS, COSE_KEY_TYPE},
    {"f6", COSE_KEY_TYPE},
    {"2d2d2d2d2d 424547494e 20", COSE_KEY_TYPE}, /* "-----BEGIN " */
    {"bf" KTY CRV X_IS D_IS "ff", COSE_KEY_INDEFINITE},
    {"a4" KTY CRV "21 5f 5820" X "ff" D_IS, COSE_KEY_INDEFINITE},
    {"a4" KTY CRV X_IS "23 5f 5820" D "ff", COSE_KEY_INDEFINITE},
    {"a5" KTY "02 5f 4161 ff" CRV X_IS D_IS, COSE_KEY_INDEFINITE},
    {"a5" KTY "04 9f 01 02 ff" CRV X_IS D_IS, COSE_KEY_INDEFINITE},
    {"a1 f6 00", COSE_KEY_LABEL},
    {"a1 4101 00", COSE_KEY_LABEL},
    {"a1 7f6161ff 00", COSE_KEY_LABEL},
    {"a5" KTY CRV X_IS D_IS KTY, COSE_KEY_DUPLICATE},
    {"a5" KTY CRV X_IS D_IS "1801 01", COSE_KEY_DUPLICATE},
    {"a6" KTY CRV X_IS D_IS "6161 00 6161 00", COSE_KEY_DUPLICATE},
    {"a5" KTY CRV X_IS D_IS D_IS, COSE_KEY_DUPLICATE},
    {"a0", COSE_KEY_KTY_MISSING},
    {"a3" CRV X_IS D_IS, COSE_KEY_KTY_MISSING},
    {"a4 0102" CRV X_IS D_IS, COSE_KEY_KTY},       /* EC2 */
    {"a4 0104" CRV X_IS D_IS, COSE_KEY_KTY},       /* symmetric */
    {"a4 01634f4b50" CRV X_IS D_IS, COSE_KEY_KTY}, /* "OKP" as in JOSE */
    {"a3" KTY X_IS D_IS, COSE_KEY_CRV_MISSING},
    {"a4" KTY "2004" X_IS D_IS, COSE_KEY_CRV}, /* X25519 */
    {"a4" KTY "2007" X_IS D_IS, COSE_KEY_CRV}, /* Ed448 */
    {"a4" KTY "206745643235353139" X_IS D_IS, COSE_KEY_CRV},
    {"a5" KTY "026161" CRV X_IS D_IS, COSE_KEY_KID},
    {"a5" KTY "0240" CRV X_IS D_IS, COSE_KEY_KID},
    {"a5" KTY "03f6" CRV X_IS D_IS, COSE_KEY_ALG_TYPE},
    {"a5" KTY "0326" CRV X_IS D_IS, COSE_KEY_ALG},           /* ES256 */
    {"a5" KTY "033834" CRV X_IS D_IS, COSE_KEY_ALG},         /* Ed448 */
    {"a5" KTY "0300" CRV X_IS D_IS, COSE_KEY_ALG},           /* reserved */
    {"a5" KTY "03654564445341" CRV X_IS D_IS, COSE_KEY_ALG}, /* "EdDSA" as in JOSE */
    {"a5" KTY "033bffffffffffffffff" CRV X_IS D_IS, COSE_KEY_ALG},
    {"a5" KTY "0402" CRV X_IS D_IS, COSE_KEY_KEY_OPS},
    {"a5" KTY "0480" CRV X_IS D_IS, COSE_KEY_KEY_OPS},
    {"a5" KTY "048301 02 f6" CRV X_IS D_IS, COSE_KEY_KEY_OPS},
    {"a5" KTY "048301 02 7fff" CRV X_IS D_IS, COSE_KEY_KEY_OPS},
};

/* As a public key alone. */
static const struct {
    const char *hex;
    enum cose_key_fault fault;
} not_public[] = {
    {"a4" KTY CRV X_IS D_IS, COSE_KEY_IS_PRIVATE},
    {"a4" KTY CRV X_IS "23f6", COSE_KEY_IS_PRIVATE},
    {"a2" KTY CRV, COSE_KEY_X_MISSING},
    {"a3" KTY CRV "21f5", COSE_KEY_X}, /* a sign, which EC2 keys may have */
    {"a3" KTY CRV "21581f" BYTES_31, COSE_KEY_X},
    {"a3" KTY CRV "215821" BYTES_31 "3233", COSE_KEY_X},
    {"a3" KTY CRV "2140", COSE_KEY_X},
    /* the neutral element, and a y that is on no point */
    {"a3" KTY CRV "215820 0100000000000000000000000000000000000000000000000000000000000000",
     COSE_KEY_X_POINT},
    {"a3" KTY CRV "215820 0200000000000000000000000000000000000000000000000000000000000000",
     COSE_KEY_X_POINT},
    {"a4" KTY "048101" CRV X_IS, COSE_KEY_NOT_FOR_VERIFYING},
    {"a4" KTY "048166766572696679" CRV X_IS, COSE_KEY_NOT_FOR_VERIFYING}, /* as in JOSE */
    {"a4" KTY "048122" CRV X_IS, COSE_KEY_NOT_FOR_VERIFYING},             /* -3 */
    {"a4" KTY "0481626162" CRV X_IS, COSE_KEY_NOT_FOR_VERIFYING},         /* a text of two bytes */
};

static const struct {
    const char *hex;
    enum cose_key_fault fault;
} not_private[] = {
    {"a3" KTY CRV X_IS, COSE_KEY_D_MISSING},
    {"a4" KTY CRV X_IS "23f6", COSE_KEY_D},
    {"a4" KTY CRV X_IS "2340", COSE_KEY_D},
    {"a4" KTY CRV X_IS "23581f" BYTES_31, COSE_KEY_D},
    {"a4" KTY CRV X_IS "235821" BYTES_31 "3233", COSE_KEY_D},
    {"a4" KTY CRV X_IS "235840" D X, COSE_KEY_D}, /* libsodium's secret key, which is both */
    {"a4" KTY CRV "21581f" BYTES_31 D_IS, COSE_KEY_X},
    {"a4" KTY CRV "215820" D D_IS, COSE_KEY_PAIR},
    {"a4" KTY CRV X_IS "235820" X, COSE_KEY_PAIR},
    {"a5" KTY "048102" CRV X_IS D_IS, COSE_KEY_NOT_FOR_SIGNING},
};

static void check_not_public(const char *hex, enum cose_key_fault wanted)
{
    struct cose_key key, untouched;

    memset(&key, 0xa5, sizeof key);
    memset(&untouched, 0xa5, sizeof untouched);
    enum cose_key_fault fault = decode_public(hex, &key);

    ck_assert_msg(fault == wanted, "%s: %s", hex, cose_key_fault_text(fault));
    ck_assert_mem_eq(&key, &untouched, sizeof key);
}

static void check_not_private(const char *hex, enum cose_key_fault wanted)
{
    struct cose_key key, untouched;
    uint8_t secret[COSE_KEY_SECRET_SIZE];

    memset(&key, 0xa5, sizeof key);
    memset(&untouched, 0xa5, sizeof untouched);
    memset(secret, 0xa5, sizeof secret);
    enum cose_key_fault fault = decode_private(hex, &key, secret);

    ck_assert_msg(fault == wanted, "%s: %s", hex, cose_key_fault_text(fault));
    ck_assert_mem_eq(&key, &untouched, sizeof key);
    ck_assert(sodium_is_zero(secret, sizeof secret));
}

START_TEST(each_refusal_has_its_reason)
{
    for (size_t i = 0; i < ARRAY_SIZE(never); i++) {
        check_not_public(never[i].hex, never[i].fault);
        check_not_private(never[i].hex, never[i].fault);
    }
    for (size_t i = 0; i < ARRAY_SIZE(not_public); i++)
        check_not_public(not_public[i].hex, not_public[i].fault);
    for (size_t i = 0; i < ARRAY_SIZE(not_private); i++)
        check_not_private(not_private[i].hex, not_private[i].fault);
}
END_TEST

/* Whatever is wrong with it besides: it is not to be shown. */
START_TEST(secrets_are_seen)
{
    static const char *const secret[] = {
        "a4" KTY CRV X_IS D_IS,
        "a4" D_IS X_IS CRV KTY,
        "a4" KTY CRV X_IS D_IS "0a",
        "a5" KTY "048101" CRV X_IS D_IS,
        "a5" KTY "0326" CRV X_IS D_IS,
        "a4" KTY "2004" X_IS D_IS,       /* X25519 */
        "a5 0102 2001" X_IS "22f5" D_IS, /* EC2 */
        "a4 01634f4b50" CRV X_IS D_IS,
        "bf" KTY CRV X_IS D_IS "ff",
        "a4" KTY CRV X_IS "23 5f 5820" D "ff",
        "a4" KTY CRV X_IS "23 5820 9d61",
        "d9d9f7 a4" KTY CRV X_IS D_IS,
        "82 a3" KTY CRV X_IS "a4" KTY CRV X_IS D_IS,
        "584b a4" KTY CRV X_IS D_IS,
        "d818 584b a4" KTY CRV X_IS D_IS,
        "82 01 584b a4" KTY CRV X_IS D_IS,
        "82 01 81 a4" KTY CRV X_IS D_IS,
        "a1 61 78 584b a4" KTY CRV X_IS D_IS,
        "584d 584b a4" KTY CRV X_IS D_IS,
        "5f 584b a4" KTY CRV X_IS D_IS "ff",
        "584b a4" KTY CRV X_IS "235820 9d61", /* cut off */
        "5901ff a4" KTY CRV X_IS D_IS,
        "a3 0103 2041ff 2242aabb",
        "a2 0104 2050 00112233445566778899aabbccddeeff",
    };
    static const char *const none[] = {
        "",
        "a3" KTY CRV X_IS,
        "a4" KTY CRV X_IS "23f6",
        "82 a3" KTY CRV X_IS "a3" KTY CRV X_IS,
        "a1 23 42aabb",                /* no key type, so no key */
        "a3 0103 2041ff 2143010001",   /* RSA: n, e */
        "a4 0102 2001 2141aa 2241bb",  /* EC2: x, y */
        "d28443a10126a041aa41bb",
        "5828 a3" KTY CRV X_IS,
        "a4" KTY "0246 a201042041aa" CRV X_IS, /* a kid of a public key is what it is */
        "9f", "ff", "bf", "d9d9f7",
    };

    for (size_t i = 0; i < ARRAY_SIZE(secret); i++) {
        struct bytes in = unit_from_hex(secret[i]);

        ck_assert_msg(cose_key_has_secret(in), "%s", secret[i]);
        unit_free(in);
    }
    for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
        struct bytes in = unit_from_hex(none[i]);

        ck_assert_msg(!cose_key_has_secret(in), "%s", none[i]);
        unit_free(in);
    }
}
END_TEST

START_TEST(too_many_labels)
{
    /* 0x18 nn: 00, for labels of two bytes that mean nothing */
    for (unsigned more = COSE_LABELS_MAX - 3; more <= COSE_LABELS_MAX - 2; more++) {
        struct buf in = BUF_INIT;
        struct cose_key key;
        struct bytes end = unit_from_hex(KTY CRV X_IS);

        cbor_put_map(&in, 3 + more);
        for (unsigned i = 0; i < more; i++) {
            cbor_put_uint(&in, 100 + i);
            cbor_put_uint(&in, 0);
        }
        buf_append(&in, end.data, end.size);
        ck_assert_int_eq(cose_key_decode_public(buf_bytes(&in), &key),
                         3 + more > COSE_LABELS_MAX ? COSE_KEY_LABELS : COSE_KEY_OK);
        buf_deinit(&in);
        unit_free(end);
    }
}
END_TEST

START_TEST(a_kid_may_have_255_bytes)
{
    for (size_t size = COSE_KEY_KID_MAX; size <= COSE_KEY_KID_MAX + 1; size++) {
        uint8_t kid[COSE_KEY_KID_MAX + 1] = {1};
        struct buf in = BUF_INIT;
        struct cose_key key;
        struct bytes rest = unit_from_hex(KTY CRV X_IS);

        cbor_put_map(&in, 4);
        cbor_put_uint(&in, 2);
        cbor_put_bytes(&in, array(kid, size));
        buf_append(&in, rest.data, rest.size);
        ck_assert_int_eq(cose_key_decode_public(buf_bytes(&in), &key),
                         size > COSE_KEY_KID_MAX ? COSE_KEY_KID : COSE_KEY_OK);
        buf_deinit(&in);
        unit_free(rest);
    }
}
END_TEST

START_TEST(cut_keys_are_refused)
{
    struct bytes whole = unit_from_hex("a5" KTY "0248" KID CRV X_IS D_IS);
    uint8_t secret[COSE_KEY_SECRET_SIZE];
    struct cose_key key;

    for (size_t size = 0; size < whole.size; size++) {
        struct bytes cut = unit_exact(array(whole.data, size));

        ck_assert_int_eq(cose_key_decode_public(cut, &key), COSE_KEY_TRUNCATED);
        ck_assert_int_eq(cose_key_decode_private(cut, &key, secret), COSE_KEY_TRUNCATED);
        unit_free(cut);
    }
    ck_assert_int_eq(cose_key_decode_private(whole, &key, secret), COSE_KEY_OK);
    unit_free(whole);
}
END_TEST

START_TEST(each_reason_has_its_sentence)
{
    const char *texts[COSE_KEY_PAIR + 2];

    for (int i = 0; i <= COSE_KEY_PAIR + 1; i++) {
        texts[i] = cose_key_fault_text((enum cose_key_fault)i);
        ck_assert_uint_gt(strlen(texts[i]), 10);
        ck_assert_int_eq(texts[i][strlen(texts[i]) - 1], '.');
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(texts[k], texts[i]);
    }
}
END_TEST

START_TEST(only_the_key_verifies)
{
    uint8_t secret[COSE_KEY_SECRET_SIZE], other_secret[COSE_KEY_SECRET_SIZE];
    uint8_t signature[COSE_KEY_SIGNATURE_SIZE + 1] = {0};
    struct cose_key key, other;
    struct bytes message = unit_bytes("message");

    ck_assert_int_eq(crypto_sign_keypair(key.x, secret), 0);
    ck_assert_int_eq(crypto_sign_keypair(other.x, other_secret), 0);
    cose_key_sign(secret, message, signature);
    ck_assert(cose_key_verifies(&key, message, array(signature, COSE_KEY_SIGNATURE_SIZE)));
    ck_assert(!cose_key_verifies(&other, message, array(signature, COSE_KEY_SIGNATURE_SIZE)));
    ck_assert(
        !cose_key_verifies(&key, unit_bytes("massage"), array(signature, COSE_KEY_SIGNATURE_SIZE)));
    ck_assert(!cose_key_verifies(&key, message, array(signature, COSE_KEY_SIGNATURE_SIZE - 1)));
    ck_assert(!cose_key_verifies(&key, message, array(signature, COSE_KEY_SIGNATURE_SIZE + 1)));
    ck_assert(!cose_key_verifies(&key, message, (struct bytes){NULL, 0}));
}
END_TEST

/* ---- secrets ---- */

/* How far below its caller's frame a function's use of the stack is looked at. */
#define STACK_SEEN 65536
/* Below the caller's frame, what looks uses as well: so the function is called from further down. */
#define STACK_SPARED 8192

/* To the compiler, somebody reads and writes it. */
#define KEEP(array) __asm__ volatile("" : : "r"(array) : "memory")

struct use {
    struct bytes private_key;
    uint8_t *secret, *encoded;
    uint8_t signature[COSE_KEY_SIGNATURE_SIZE];
    struct cose_key key;
    enum cose_key_fault fault;
};

static void decode_secret(struct use *use)
{
    use->fault = cose_key_decode_private(use->private_key, &use->key, use->secret);
}

static void encode_secret(struct use *use)
{
    (void)cose_key_encode_private(&use->key, use->secret, use->encoded);
}

static void sign_with_secret(struct use *use)
{
    cose_key_sign(use->secret, unit_bytes("message"), use->signature);
}

static void leave_secret(struct use *use)
{
    uint8_t copy[COSE_KEY_D_SIZE];

    memcpy(copy, use->secret, sizeof copy);
    KEEP(copy);
}

__attribute__((noinline)) static void wipe_stack(void)
{
    uint8_t all[STACK_SEEN];

    memset(all, 0, sizeof all);
    KEEP(all);
}

__attribute__((noinline)) static void call_below(void (*function)(struct use *), struct use *use)
{
    uint8_t spared[STACK_SPARED];

    KEEP(spared);
    function(use);
    KEEP(spared); /* and no tail call */
}

/* Whether any eight bytes of the secret stand on the stack after `function`. The kernel reads it
 * for us: to the sanitizers and to valgrind there is nothing any more. */
__attribute__((noinline)) static bool leaves_secret(void (*function)(struct use *), struct use *use,
                                                    int memory, uint8_t *seen)
{
    off_t at = (off_t)((uintptr_t)__builtin_frame_address(0) - STACK_SEEN);

    wipe_stack();
    call_below(function, use);
    ck_assert_int_eq(pread(memory, seen, STACK_SEEN, at), STACK_SEEN);
    for (size_t i = 0; i + 8 <= COSE_KEY_D_SIZE; i++)
        if (memmem(seen, STACK_SEEN, use->secret + i, 8))
            return true;
    return false;
}

START_TEST(secrets_are_not_left_on_the_stack)
{
    uint8_t secret[COSE_KEY_SECRET_SIZE], encoded[COSE_KEY_PRIVATE_ENCODED_MAX];
    struct use use = {
        .private_key = unit_from_hex("a4" KTY CRV X_IS D_IS),
        .secret = secret,
        .encoded = encoded,
    };
    static void (*const uses[])(struct use *) = {decode_secret, encode_secret, sign_with_secret};
    uint8_t *seen = malloc(STACK_SEEN);
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);

    ck_assert(seen != NULL && memory >= 0);
    /* Each alone, since the next would write over what it leaves. And once before: the dynamic linker,
     * when it looks up a function at its first call, saves all registers on the stack, whatever is
     * in them. That is for who links the program to prevent. */
    for (size_t i = 0; i < ARRAY_SIZE(uses); i++) {
        uses[i](&use);
        ck_assert_msg(!leaves_secret(uses[i], &use, memory, seen), "%zu", i);
    }
    ck_assert_int_eq(use.fault, COSE_KEY_OK);
    unit_assert_hex(array(secret, COSE_KEY_D_SIZE), D);
    ck_assert(leaves_secret(leave_secret, &use, memory, seen)); /* it would be found */
    ck_assert_int_eq(close(memory), 0);
    free(seen);
    unit_free(use.private_key);
}
END_TEST

UNIT_MAIN("cose_key", encoding_is_deterministic, the_longest_key_fits, public_keys_are_read,
          private_keys_are_read, each_refusal_has_its_reason, secrets_are_seen, too_many_labels,
          a_kid_may_have_255_bytes, cut_keys_are_refused, each_reason_has_its_sentence,
          only_the_key_verifies, secrets_are_not_left_on_the_stack)
