/* SPDX-License-Identifier: PostgreSQL */
/*
 * What a content is worth. An input is
 *
 *     u8 which of the trust files below, u8 prefix's size, prefix, i8 days between time and receipt,
 *     content
 *
 * A foreign content is never valid, since nobody else has these keys. The payload of every one that
 * can be taken apart is signed with a trusted key, and has to be valid then if it is an event, the
 * key may sign for the prefix, and the time fits: all that is answered here from the parts.
 */
#include "codec/verify.h"

#include <sodium.h>

#include "base/clock.h"
#include "base/text.h"
#include "codec/event.h"
#include "codec/signed_event.h"
#include "codec/trust_edit.h"
#include "fuzz.h"

#define AUDIENCE "production"
#define DAY_US   (INT64_C(86400) * 1000000)

static const struct {
    const char *pattern;
    bool audience;
    int64_t max_delay_us;
} entries[] = {
    {">", false, 0},
    {"orders.*", true, 0},
    {"orders.>", false, DAY_US},
};

struct known {
    struct cose_key key;
    uint8_t secret[COSE_KEY_SECRET_SIZE];
    struct trust *trust;
};

static struct known known_init(size_t i)
{
    const uint8_t seed[crypto_sign_SEEDBYTES] = {7};
    const struct bytes pattern = bytes_of_text(entries[i].pattern),
                       audience = bytes_of_text(AUDIENCE);
    struct known k = {.key = {.alg = 0}};
    struct buf text = BUF_INIT;
    struct trust_fault fault;
    enum trust_edit_done done;

    (void)crypto_sign_seed_keypair(k.key.x, k.secret, seed);
    cose_key_default_kid(&k.key, k.key.kid);
    k.key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;

    const struct trust_edit_entry entry = {
        .key = k.key,
        .patterns = &pattern,
        .n_patterns = 1,
        .audience = entries[i].audience ? &audience : NULL,
        .max_delay_us = entries[i].max_delay_us,
    };

    FUZZ_CHECK(trust_edit_add(buf_bytes(&text), &entry, &text, &done, &fault) == 0);
    FUZZ_CHECK(trust_parse(buf_bytes(&text), &k.trust, &fault) == 0);
    buf_deinit(&text);
    return k;
}

static struct verify_result ask(const struct trust *trust, const struct verify_scope *scope,
                                struct bytes content)
{
    struct buf scratch = BUF_INIT;
    struct verify_result result;

    FUZZ_CHECK(verify_content(trust, scope, content, &scratch, &result) == 0);
    FUZZ_CHECK_WHY(result.reason);
    FUZZ_CHECK(text_is_utf8(bytes_of_text(result.reason)));
    FUZZ_CHECK(result.kid.size == 0 || (result.kid.data >= content.data &&
                                        result.kid.data + result.kid.size <= content.data + content.size));
    buf_deinit(&scratch);
    return result;
}

/* By another way than verify.c's. */
static enum verify_status expected(size_t which, const struct verify_scope *scope, struct bytes map)
{
    const struct filter filter = {FILTER_PATTERN, bytes_of_text(entries[which].pattern)};
    const uint64_t max = (uint64_t)entries[which].max_delay_us;
    struct event event;
    char text[64] = "";
    int64_t time;

    if (event_decode_map(map, &event) != CBOR_OK)
        return VERIFY_MALFORMED;
    if (!filter_matches(&filter, scope->prefix))
        return VERIFY_NOT_ALLOWED;
    if (max == 0)
        return VERIFY_VALID;

    struct bytes written = event_get(&event, "time");

    if (written.size < sizeof text && written.size > 0)
        memcpy(text, written.data, written.size);
    if (strlen(text) != written.size || clock_parse_rfc3339(text, &time) < 0)
        return VERIFY_STALE;
    uint64_t distance = time > scope->received_time_us ? (uint64_t)(time - scope->received_time_us)
                                                       : (uint64_t)(scope->received_time_us - time);
    return distance <= max ? VERIFY_VALID : VERIFY_STALE;
}

static bool is_ascii(struct bytes text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.data[i] >= 0x80)
            return false;
    return true;
}

static void check_signed(const struct known *k, size_t which, const struct verify_scope *scope,
                         struct bytes map)
{
    const struct signed_event_scope for_scope = {
        scope->prefix, entries[which].audience ? bytes_of_text(AUDIENCE) : scope->audience};
    struct verify_scope other = *scope;
    struct buf room = BUF_INIT;
    struct bytes content;
    int r = signed_event_sign(map, &for_scope, &k->key, k->secret, &room, &content);

    FUZZ_CHECK((r == 0) == is_ascii(scope->prefix));
    if (r == 0) {
        struct verify_result result = ask(k->trust, scope, content);

        FUZZ_CHECK(bytes_equal(result.kid, cose_key_kid(&k->key)));
        FUZZ_CHECK(result.status == expected(which, scope, map));
        FUZZ_CHECK(ask(NULL, scope, content).status == VERIFY_UNKNOWN_KEY);
        other.prefix = bytes_of_text("elsewhere");
        if (!bytes_equal(other.prefix, scope->prefix))
            FUZZ_CHECK(ask(k->trust, &other, content).status == VERIFY_BAD_SIGNATURE);
    }
    buf_deinit(&room);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    size_t which = fuzz_u8(&in) % ARRAY_SIZE(entries);
    struct bytes prefix = fuzz_bytes(&in, fuzz_u8(&in));
    int64_t received = INT64_C(1795953600000000) + (int8_t)fuzz_u8(&in) * DAY_US; /* 2026-11-29 */
    uint8_t *copy = fuzz_copy((struct bytes){in.at, in.left});
    struct bytes content = {copy, in.left};
    struct known k = known_init(which);
    const struct verify_scope scope = {prefix, bytes_of_text("assumed"), received};
    struct verify_result result = ask(k.trust, &scope, content);
    struct cose_sign1 m;
    struct event event;

    FUZZ_CHECK(result.status != VERIFY_VALID);
    FUZZ_CHECK(result.status != VERIFY_NOT_ALLOWED && result.status != VERIFY_STALE);
    FUZZ_CHECK((result.status == VERIFY_UNSIGNED) == (content_kind_of(content) != CONTENT_SIGNED));
    if (signed_event_parse(content, &m) == COSE_SIGN1_OK)
        check_signed(&k, which, &scope, m.payload);
    else if (event_decode(content, &event) == CBOR_OK)
        check_signed(&k, which, &scope,
                     (struct bytes){content.data + EVENT_TAG_SIZE, content.size - EVENT_TAG_SIZE});
    (void)trust_free(k.trust);
    free(copy);
    return 0;
}
