/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cose_key.h"

#include <assert.h>
#include <cbor/encoding.h>
#include <sodium.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/cose.h"

static_assert(COSE_KEY_X_SIZE == crypto_sign_PUBLICKEYBYTES, "libsodium's sizes are RFC 8032's");
static_assert(COSE_KEY_D_SIZE == crypto_sign_SEEDBYTES, "libsodium's sizes are RFC 8032's");
static_assert(COSE_KEY_SECRET_SIZE == crypto_sign_SECRETKEYBYTES, "libsodium's layout");
static_assert(COSE_KEY_SIGNATURE_SIZE == crypto_sign_BYTES, "libsodium's sizes are RFC 8032's");

/* RFC 9052 table 3, RFC 9053 table 19. */
enum {
    LABEL_KTY = 1,
    LABEL_KID = 2,
    LABEL_ALG = 3,
    LABEL_KEY_OPS = 4,
    LABEL_CRV = -1,
    LABEL_X = -2,
    LABEL_D = -4,
};
#define KTY_OKP     1 /* RFC 9053 table 17 */
#define CRV_ED25519 6 /* RFC 9053 table 18 */
/* RFC 9052 table 4. */
#define KEY_OP_SIGN   1
#define KEY_OP_VERIFY 2

const char *cose_key_fault_text(enum cose_key_fault fault)
{
    switch (fault) {
    case COSE_KEY_OK:
        return "The key is good.";
#define COSE_KEY_ROW(name, text) \
    case COSE_KEY_##name:        \
        return text;
        COSE_KEY_FAULTS(COSE_KEY_ROW)
#undef COSE_KEY_ROW
    }
    return "The key is refused for an unknown reason.";
}

/* ---- reading ---- */

/* The values of the labels that we know, each a whole item; size 0: not there. */
struct items {
    struct bytes kty, kid, alg, key_ops, crv, x, d;
};

static struct bytes *item_of(struct items *items, const struct cose_label *label)
{
    const struct {
        int64_t label;
        struct bytes *item;
    } known[] = {
        {LABEL_KTY, &items->kty}, {LABEL_KID, &items->kid},
        {LABEL_ALG, &items->alg}, {LABEL_KEY_OPS, &items->key_ops},
        {LABEL_CRV, &items->crv}, {LABEL_X, &items->x},
        {LABEL_D, &items->d},
    };

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (cose_label_is(label, known[i].label))
            return known[i].item;
    return NULL;
}

static enum cose_key_fault fault_of(enum cbor_fault fault)
{
    switch (fault) {
    case CBOR_OK:
        return COSE_KEY_OK;
    case CBOR_FAULT_TRUNCATED:
        return COSE_KEY_TRUNCATED;
    case CBOR_FAULT_TRAILING:
        return COSE_KEY_TRAILING;
    case CBOR_FAULT_NESTING:
        return COSE_KEY_NESTING;
    case CBOR_FAULT_TYPE: /* only cose_labels_read answers the next three */
        return COSE_KEY_LABEL;
    case CBOR_FAULT_COUNT:
        return COSE_KEY_LABELS;
    case CBOR_FAULT_DUPLICATE:
        return COSE_KEY_DUPLICATE;
    default:
        return COSE_KEY_CBOR;
    }
}

static enum cose_key_fault read_map(struct bytes in, struct items *items)
{
    struct cose_labels labels = {.n = 0};
    struct cbor_reader r = cbor_reader_init(in);
    struct cbor_head map;
    enum cbor_fault fault = cbor_check(in, NULL);

    if (in.size && in.data[0] >> 5 != CBOR_MAP) /* before all else: it may be a PEM file, and is told what it should be */
        return COSE_KEY_TYPE;
    if (fault == CBOR_OK)
        fault = cbor_read_head(&r, &map);
    if (fault != CBOR_OK)
        return fault_of(fault);
    if (map.indefinite)
        return COSE_KEY_INDEFINITE;
    for (uint64_t i = 0; i < map.arg; i++) {
        struct cose_label label;
        struct bytes item;

        fault = cose_labels_read(&labels, &r, &label);
        if (fault == CBOR_OK)
            fault = cbor_read_item(&r, &item);
        if (fault != CBOR_OK)
            return fault_of(fault);

        struct bytes *known = item_of(items, &label);

        if (known && (cose_item_is_chunked(item) || item.data[0] == 0x9f || item.data[0] == 0xbf))
            return COSE_KEY_INDEFINITE;
        if (known)
            *known = item;
    }
    return COSE_KEY_OK;
}

static bool is_uint(struct bytes item, uint64_t wanted)
{
    struct cbor_reader r = cbor_reader_init(item);
    uint64_t v;

    return cbor_read_uint(&r, &v) == CBOR_OK && v == wanted;
}

static bool is_bytes(struct bytes item, size_t min, size_t max, struct bytes *ret)
{
    struct cbor_reader r = cbor_reader_init(item);
    struct bytes v;

    if (cbor_read_bytes(&r, &v) != CBOR_OK || v.size < min || v.size > max)
        return false;
    *ret = v;
    return true;
}

/* Whether `wanted` is among the operations; `refusal` when not. A text is no operation that we
 * know: the registered ones are numbers. */
static enum cose_key_fault check_key_ops(struct bytes item, uint64_t wanted,
                                         enum cose_key_fault refusal)
{
    struct cbor_reader r = cbor_reader_init(item);
    uint64_t n;

    if (cbor_read_array(&r, &n) != CBOR_OK || n == 0)
        return COSE_KEY_KEY_OPS;
    for (uint64_t i = 0; i < n; i++) {
        struct cbor_head h;

        if (cbor_read_head(&r, &h) != CBOR_OK || h.indefinite ||
            (h.type != CBOR_UINT && h.type != CBOR_NINT && h.type != CBOR_TEXT))
            return COSE_KEY_KEY_OPS;
        if (h.type == CBOR_UINT && h.arg == wanted)
            refusal = COSE_KEY_OK;
    }
    return refusal;
}

/* Everything but x and d. */
static enum cose_key_fault read_common(const struct items *items, bool private_key,
                                       struct cose_key *key)
{
    struct bytes kid;

    if (items->kty.size == 0)
        return COSE_KEY_KTY_MISSING;
    if (!is_uint(items->kty, KTY_OKP))
        return COSE_KEY_KTY;
    if (items->crv.size == 0)
        return COSE_KEY_CRV_MISSING;
    if (!is_uint(items->crv, CRV_ED25519))
        return COSE_KEY_CRV;
    if (items->kid.size > 0) {
        if (!is_bytes(items->kid, 1, COSE_KEY_KID_MAX, &kid))
            return COSE_KEY_KID;
        memcpy(key->kid, kid.data, kid.size);
        key->kid_size = (uint8_t)kid.size;
    }
    if (items->alg.size > 0) {
        if (cose_alg_read(items->alg, &key->alg) != CBOR_OK)
            return COSE_KEY_ALG_TYPE;
        if (!cose_alg_is_accepted(key->alg))
            return COSE_KEY_ALG;
    }
    if (items->key_ops.size == 0)
        return COSE_KEY_OK;
    return private_key ? check_key_ops(items->key_ops, KEY_OP_SIGN, COSE_KEY_NOT_FOR_SIGNING)
                       : check_key_ops(items->key_ops, KEY_OP_VERIFY, COSE_KEY_NOT_FOR_VERIFYING);
}

static void set_default_kid(struct cose_key *key)
{
    if (key->kid_size > 0)
        return;
    cose_key_default_kid(key, key->kid);
    key->kid_size = COSE_KEY_KID_DEFAULT_SIZE;
}

enum cose_key_fault cose_key_decode_public(struct bytes in, struct cose_key *ret)
{
    struct cose_key key = {.kid_size = 0};
    struct items items = {0};
    struct bytes x;
    enum cose_key_fault fault = read_map(in, &items);

    if (fault == COSE_KEY_OK)
        fault = read_common(&items, false, &key);
    if (fault != COSE_KEY_OK)
        return fault;
    if (items.d.size > 0)
        return COSE_KEY_IS_PRIVATE;
    if (items.x.size == 0)
        return COSE_KEY_X_MISSING;
    if (!is_bytes(items.x, COSE_KEY_X_SIZE, COSE_KEY_X_SIZE, &x))
        return COSE_KEY_X;
    if (!crypto_core_ed25519_is_valid_point(x.data))
        return COSE_KEY_X_POINT;
    memcpy(key.x, x.data, sizeof key.x);
    set_default_kid(&key);
    *ret = key;
    return COSE_KEY_OK;
}

static enum cose_key_fault decode_private(struct bytes in, struct cose_key *key,
                                          uint8_t secret[COSE_KEY_SECRET_SIZE])
{
    struct items items = {0};
    struct bytes x = {NULL, 0}, d;
    enum cose_key_fault fault = read_map(in, &items);

    if (fault == COSE_KEY_OK)
        fault = read_common(&items, true, key);
    if (fault != COSE_KEY_OK)
        return fault;
    if (items.x.size > 0 && !is_bytes(items.x, COSE_KEY_X_SIZE, COSE_KEY_X_SIZE, &x))
        return COSE_KEY_X;
    if (items.d.size == 0)
        return COSE_KEY_D_MISSING;
    if (!is_bytes(items.d, COSE_KEY_D_SIZE, COSE_KEY_D_SIZE, &d))
        return COSE_KEY_D;
    (void)crypto_sign_seed_keypair(key->x, secret, d.data); /* always 0 */
    if (x.size > 0 && memcmp(key->x, x.data, sizeof key->x) != 0)
        return COSE_KEY_PAIR;
    set_default_kid(key);
    return COSE_KEY_OK;
}

enum cose_key_fault cose_key_decode_private(struct bytes in, struct cose_key *ret,
                                            uint8_t secret[COSE_KEY_SECRET_SIZE])
{
    struct cose_key key = {.kid_size = 0};
    enum cose_key_fault fault = decode_private(in, &key, secret);

    if (fault == COSE_KEY_OK)
        *ret = key;
    else
        sodium_memzero(secret, COSE_KEY_SECRET_SIZE);
    return fault;
}

/* ---- looking ---- */

/* Of RSA keys, and of symmetric ones (RFC 8230 table 4, RFC 9053 table 21). */
#define KTY_RSA         3
#define KTY_SYMMETRIC   4
#define LABEL_RSA_D     (-3)
#define LABEL_SYMMETRIC (-1)

/* One map, in any order, as far as it can be read; a value counts once it begins to be there. */
static bool map_has_secret(struct cbor_reader *r)
{
    int64_t kty = 0; /* none */
    bool d = false, rsa_d = false, symmetric = false;
    struct cbor_head map;

    if (cbor_read_head(r, &map) != CBOR_OK || map.type != CBOR_MAP)
        return false;
    for (uint64_t i = 0; map.indefinite || i < map.arg; i++) {
        struct cbor_reader number = *r;
        int64_t label;

        if (cbor_read_item(r, NULL) != CBOR_OK || r->at == r->end)
            break;
        if (cbor_read_int(&number, &label) != CBOR_OK)
            label = 0;
        bool is_string = *r->at >> 5 == CBOR_BYTES;

        d = d || (is_string && label == LABEL_D);
        rsa_d = rsa_d || (is_string && label == LABEL_RSA_D);
        symmetric = symmetric || (is_string && label == LABEL_SYMMETRIC);
        number = *r;
        if (label == LABEL_KTY && cbor_read_int(&number, &kty) != CBOR_OK)
            kty = -1; /* a text */
        if (cbor_read_item(r, NULL) != CBOR_OK)
            break;
    }
    return (kty != 0 && d) || (kty == KTY_RSA && rsa_d) || (kty == KTY_SYMMETRIC && symmetric);
}

/* Byte strings within byte strings that are looked into. */
#define LOOK_DEPTH 8u

/* What a byte string that is cut off has of its bytes. */
static struct bytes rest_of_string(const struct cbor_reader *r)
{
    static const uint8_t sizes[] = {2, 3, 5, 9}; /* of heads whose argument follows */
    unsigned info = *r->at & 31;
    size_t head = info < 24 ? 1 : info < 28 ? sizes[info - 24] : SIZE_MAX, left = (size_t)(r->end - r->at);

    if (*r->at >> 5 != CBOR_BYTES || head >= left)
        return (struct bytes){NULL, 0};
    return (struct bytes){r->at + head, left - head};
}

static bool is_public_key(struct cbor_reader r)
{
    struct cbor_reader start = r;
    struct cose_key key;

    return cbor_read_item(&r, NULL) == CBOR_OK &&
           cose_key_decode_public((struct bytes){start.at, (size_t)(r.at - start.at)}, &key) == COSE_KEY_OK;
}

/* Head by head, whatever is inside what. */
static bool has_secret(struct bytes in, unsigned depth)
{
    struct cbor_reader r = cbor_reader_init(in);

    while (r.at < r.end) {
        struct cbor_reader start = r, map = r;
        struct cbor_head h;

        if (cbor_read_head(&r, &h) != CBOR_OK) {
            struct bytes rest = rest_of_string(&start);

            return depth && rest.size && has_secret(rest, depth - 1);
        }
        if (h.type == CBOR_MAP && map_has_secret(&map))
            return true;
        if (h.type == CBOR_MAP && is_public_key(start)) {
            r = map; /* its bytes are what they are */
            continue;
        }
        if (h.type == CBOR_BYTES && !h.indefinite && depth && has_secret(h.str, depth - 1))
            return true;
    }
    return false;
}

bool cose_key_has_secret(struct bytes in)
{
    return has_secret(in, LOOK_DEPTH);
}

/* ---- writing: into the caller's memory, since a struct buf would leave secrets on the heap ---- */

struct place {
    uint8_t *at, *end;
};

static void put_int(struct place *p, int64_t v)
{
    size_t room = (size_t)(p->end - p->at);

    p->at += v >= 0 ? cbor_encode_uint((uint64_t)v, p->at, room)
                    : cbor_encode_negint(~(uint64_t)v, p->at, room);
}

static void put_bytes(struct place *p, int64_t label, const uint8_t *data, size_t size)
{
    put_int(p, label);
    p->at += cbor_encode_bytestring_start(size, p->at, (size_t)(p->end - p->at));
    memcpy(p->at, data, size);
    p->at += size;
}

static size_t encode(const struct cose_key *key, const uint8_t *d, uint8_t *out, size_t size)
{
    struct place p = {out, out + size};
    size_t n = 3 + (key->kid_size > 0) + (key->alg != 0) + (d != NULL);

    p.at += cbor_encode_map_start(n, p.at, size);
    put_int(&p, LABEL_KTY);
    put_int(&p, KTY_OKP);
    if (key->kid_size > 0)
        put_bytes(&p, LABEL_KID, key->kid, key->kid_size);
    if (key->alg != 0) {
        put_int(&p, LABEL_ALG);
        put_int(&p, key->alg);
    }
    put_int(&p, LABEL_CRV);
    put_int(&p, CRV_ED25519);
    put_bytes(&p, LABEL_X, key->x, sizeof key->x);
    if (d)
        put_bytes(&p, LABEL_D, d, COSE_KEY_D_SIZE);
    return (size_t)(p.at - out);
}

size_t cose_key_encode_public(const struct cose_key *key, uint8_t out[COSE_KEY_PUBLIC_ENCODED_MAX])
{
    return encode(key, NULL, out, COSE_KEY_PUBLIC_ENCODED_MAX);
}

size_t cose_key_encode_private(const struct cose_key *key,
                               const uint8_t secret[COSE_KEY_SECRET_SIZE],
                               uint8_t out[COSE_KEY_PRIVATE_ENCODED_MAX])
{
    return encode(key, secret, out, COSE_KEY_PRIVATE_ENCODED_MAX);
}

void cose_key_default_kid(const struct cose_key *key, uint8_t out[COSE_KEY_KID_DEFAULT_SIZE])
{
    struct cose_key bare = {.kid_size = 0};
    uint8_t encoded[COSE_KEY_PUBLIC_ENCODED_MAX], thumbprint[crypto_hash_sha256_BYTES];

    /* RFC 9679 section 4: kty, crv and x alone, deterministic: the public key without kid and alg. */
    memcpy(bare.x, key->x, sizeof bare.x);
    (void)crypto_hash_sha256(thumbprint, encoded, cose_key_encode_public(&bare, encoded));
    memcpy(out, thumbprint, COSE_KEY_KID_DEFAULT_SIZE);
}

/* ---- use ---- */

bool cose_key_verifies(const struct cose_key *key, struct bytes message, struct bytes signature)
{
    return signature.size == COSE_KEY_SIGNATURE_SIZE &&
           crypto_sign_verify_detached(signature.data, message.data, message.size, key->x) == 0;
}

void cose_key_sign(const uint8_t secret[COSE_KEY_SECRET_SIZE], struct bytes message,
                   uint8_t out[COSE_KEY_SIGNATURE_SIZE])
{
    (void)crypto_sign_detached(out, NULL, message.data, message.size, secret); /* always 0 */
}
