/* SPDX-License-Identifier: PostgreSQL */
#include "codec/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/text.h"
#include "trust_fixture.h"
#include "unit.h"

#define PREFIX "orders.paid"

static int64_t at(const char *time)
{
    int64_t us;

    ck_assert_int_eq(clock_parse_rfc3339(time, &us), 0);
    return us;
}

static struct verify_result result_of(const struct trust *trust, struct bytes content,
                                      const char *prefix, const char *audience,
                                      int64_t received_us)
{
    const struct verify_scope scope = {bytes_of_text(prefix), bytes_of_text(audience), received_us};
    struct verify_result result;
    struct buf scratch = BUF_INIT;

    ck_assert_int_eq(verify_content(trust, &scope, content, &scratch, &result), 0);
    buf_deinit(&scratch);
    ck_assert_uint_gt(strlen(result.reason), 0);
    ck_assert_uint_lt(strlen(result.reason), sizeof result.reason - 1);
    return result;
}

static void answers(const struct trust *trust, struct bytes content, const char *prefix,
                    const char *audience, enum verify_status status, const char *sentence)
{
    struct verify_result result = result_of(trust, content, prefix, audience, VERIFY_NO_TIME);

    ck_assert_msg(result.status == status, "%s: %s", verify_status_text(result.status),
                  result.reason);
    ck_assert_msg(strstr(result.reason, sentence) != NULL, "%s", result.reason);
}

static enum verify_status status_of(const struct trust *trust, struct bytes content,
                                    const char *prefix, const char *audience)
{
    return result_of(trust, content, prefix, audience, VERIFY_NO_TIME).status;
}

/* ---- every answer ---- */

START_TEST(valid)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = orders.>\n");
    struct bytes content = sign_event(&pair, PREFIX, "", NULL);
    struct verify_result result = result_of(trust, content, PREFIX, "", VERIFY_NO_TIME);

    ck_assert_int_eq(result.status, VERIFY_VALID);
    ck_assert(bytes_equal(result.kid, cose_key_kid(&pair.key)));
    ck_assert_str_eq(result.reason, "The signature is right, and the key may sign for this prefix.");
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

START_TEST(unsigned_is_whatever_does_not_begin_as_signed)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    static const char *const contents[] = {"", "00", "d9d9f7a0", "d9d9f7a1616100", "7b7d", "d2",
                                           "d2a0", "d9d9f7d28440a04040", "d81284"};

    for (size_t i = 0; i < ARRAY_SIZE(contents); i++) {
        struct bytes content = unit_from_hex(contents[i]);
        struct verify_result result = result_of(trust, content, PREFIX, "", 0);

        ck_assert_int_eq(result.status, VERIFY_UNSIGNED);
        ck_assert_str_eq(result.reason, "The content is not signed.");
        ck_assert_ptr_null(result.kid.data);
        answers(NULL, content, PREFIX, "", VERIFY_UNSIGNED, "not signed");
        unit_free(content);
    }
    (void)trust_free(trust);
}
END_TEST

START_TEST(unknown_keys)
{
    struct pair pair = nth_pair(1), other = nth_pair(2);
    struct trust *trust = trust_of(&other.key, "allow = >\n");
    struct bytes content = sign_event(&pair, PREFIX, "", NULL);

    answers(trust, content, PREFIX, "", VERIFY_UNKNOWN_KEY, "No trusted key has this id.");
    answers(NULL, content, PREFIX, "", VERIFY_UNKNOWN_KEY, "There is no trust file");
    ck_assert(bytes_equal(result_of(NULL, content, PREFIX, "", 0).kid, cose_key_kid(&pair.key)));
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

/* A key of the same id, which whoever forges has to claim. */
START_TEST(another_keys_signature)
{
    struct pair pair = nth_pair(1), forger = nth_pair(2);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");

    memcpy(forger.key.kid, pair.key.kid, pair.key.kid_size);
    struct bytes content = sign_event(&forger, PREFIX, "", NULL);
    answers(trust, content, PREFIX, "", VERIFY_BAD_SIGNATURE,
            "The signature is not this key's over these bytes for this prefix and the audience "
            "\"\"; if it was signed for another, --audience or the setting audience names it.");
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

START_TEST(the_audience_of_the_key_or_else_the_assumed_one)
{
    struct pair pair = nth_pair(1);
    struct trust *own = trust_of(&pair.key, "allow = >\naudience = production\n"),
                 *empty = trust_of(&pair.key, "allow = >\naudience =\n"),
                 *none = trust_of(&pair.key, "allow = >\n");
    struct bytes production = sign_event(&pair, PREFIX, "production", NULL),
                 plain = sign_event(&pair, PREFIX, "", NULL);

    answers(own, production, PREFIX, "staging", VERIFY_VALID, "");
    answers(own, plain, PREFIX, "", VERIFY_BAD_SIGNATURE, "the audience \"production\"");
    answers(empty, plain, PREFIX, "production", VERIFY_VALID, "");
    answers(empty, production, PREFIX, "production", VERIFY_BAD_SIGNATURE, "the audience \"\"");
    answers(none, production, PREFIX, "production", VERIFY_VALID, "");
    answers(none, production, PREFIX, "staging", VERIFY_BAD_SIGNATURE, "the audience \"staging\"");
    answers(none, production, PREFIX, "", VERIFY_BAD_SIGNATURE, "the audience \"\"");
    answers(none, production, PREFIX, "a\x1b[31m\xff", VERIFY_MALFORMED, "audience is not UTF-8");
    answers(none, production, PREFIX, "a\x1b[31m", VERIFY_BAD_SIGNATURE, "\"a\\x1b[31m\"");
    unit_free(production);
    unit_free(plain);
    (void)trust_free(own);
    (void)trust_free(empty);
    (void)trust_free(none);
}
END_TEST

START_TEST(not_for_this_prefix)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = payments.>\nallow = orders.*\n");
    struct bytes one = sign_event(&pair, "orders.paid", "", NULL),
                 two = sign_event(&pair, "orders.eu.paid", "", NULL);

    answers(trust, one, "orders.paid", "", VERIFY_VALID, "");
    answers(trust, two, "orders.eu.paid", "", VERIFY_NOT_ALLOWED,
            "The key has signed this, but may not sign for the prefix \"orders.eu.paid\".");
    /* Not signed by it for this prefix: then that is what counts. */
    answers(trust, two, "warehouse", "", VERIFY_BAD_SIGNATURE, "");
    unit_free(one);
    unit_free(two);
    (void)trust_free(trust);
}
END_TEST

START_TEST(a_prefix_beyond_ascii_is_never_valid)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    struct bytes content = sign_event(&pair, "b", "", NULL);

    answers(trust, content, "\xc3\xa4", "", VERIFY_MALFORMED, "The prefix is not ASCII");
    answers(trust, content, "b\x80", "", VERIFY_MALFORMED, "The prefix is not ASCII");
    answers(NULL, content, "\xc3\xa4", "", VERIFY_UNKNOWN_KEY, "");
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

START_TEST(several_keys_for_a_prefix)
{
    struct pair old = nth_pair(1), new = nth_pair(2);
    struct buf text = BUF_INIT;
    struct trust_fault fault;
    struct trust *trust;

    put_trust_section(&text, &old.key);
    buf_append_str(&text, "allow = orders.>\n");
    put_trust_section(&text, &new.key);
    buf_append_str(&text, "allow = orders.>\n");
    ck_assert_int_eq(trust_parse(buf_bytes(&text), &trust, &fault), 0);
    struct bytes before = sign_event(&old, PREFIX, "", NULL), after = sign_event(&new, PREFIX, "", NULL);
    answers(trust, before, PREFIX, "", VERIFY_VALID, "");
    answers(trust, after, PREFIX, "", VERIFY_VALID, "");
    unit_free(before);
    unit_free(after);
    (void)trust_free(trust);
    buf_deinit(&text);
}
END_TEST

/* ---- signed, and yet no event ---- */

/* A message of these parts with the right signature. */
static struct bytes sign_parts(const struct pair *pair, const char *protected_hex, struct bytes payload)
{
    struct bytes protected_map = unit_from_hex(protected_hex), empty = unit_bytes("\xa0"), out;
    struct buf aad = BUF_INIT, room = BUF_INIT;

    cbor_put_array(&aad, 3);
    cbor_put_str(&aad, "walbus/1");
    cbor_put_str(&aad, "");
    cbor_put_str(&aad, PREFIX);
    ck_assert_int_eq(cose_sign1_sign(&(struct cose_sign1_parts){protected_map, empty,
                                                                buf_bytes(&aad), payload},
                                     pair->secret, &room, &out),
                     0);
    out = unit_exact(out);
    buf_deinit(&aad);
    buf_deinit(&room);
    unit_free(protected_map);
    return out;
}

START_TEST(type_and_content_are_signed_too)
{
    struct pair pair = test_pair(); /* kid 866eefbd6718c884 */
    struct trust *trust;
    static const struct {
        const char *protected_hex, *payload, *sentence;
    } cases[] = {
        {"a20127 0448866eefbd6718c884", "a0", "The type (typ, 16) in the protected header is not"},
        {"a30127 0448866eefbd6718c884 1069617070632f6a736f6e", "a0", "The type (typ, 16)"},
        {"a30127 0448866eefbd6718c884 106b77616c6275732b636f7365", "a0",
         "The payload is signed, but is no event: "},
        {"a30127 0448866eefbd6718c884 106b77616c6275732b636f7365", "", "but is no event: "},
        {"a30127 0448866eefbd6718c884 106b77616c6275732b636f7365", "d9d9f7a0", "is no event: "},
        {"a3013823 0448866eefbd6718c884 106b77616c6275732b636f7365", "a0", "The algorithm (alg, 1)"},
        {"a20448866eefbd6718c884 106b77616c6275732b636f7365", "a0", "The message names no algorithm"},
    };

    cose_key_default_kid(&pair.key, pair.key.kid);
    pair.key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;
    trust = trust_of(&pair.key, "allow = >\n");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes payload = unit_from_hex(cases[i].payload),
                     content = sign_parts(&pair, cases[i].protected_hex, payload);

        answers(trust, content, PREFIX, "", VERIFY_MALFORMED, cases[i].sentence);
        unit_free(payload);
        unit_free(content);
    }
    (void)trust_free(trust);
}
END_TEST

START_TEST(a_key_for_one_algorithm)
{
    struct pair pair = nth_pair(1);
    struct bytes content = sign_event(&pair, PREFIX, "", NULL); /* alg -8 */

    pair.key.alg = -19;
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    answers(trust, content, PREFIX, "", VERIFY_MALFORMED,
            "The key is for another algorithm (alg) than the message's.");
    (void)trust_free(trust);
    pair.key.alg = -8;
    trust = trust_of(&pair.key, "allow = >\n");
    answers(trust, content, PREFIX, "", VERIFY_VALID, "");
    (void)trust_free(trust);
    unit_free(content);
}
END_TEST

/* ---- never valid ---- */

static const struct {
    const char *prefix, *audience;
} scopes[] = {
    {"orders.paid", ""}, {"orders.paid", "production"}, {"orders.pai", "d"}, {"orders.paid2", ""},
    {"orders", ""},      {"", ""},                      {"ORDERS.PAID", ""}, {"orders.paid", "Production"},
};

START_TEST(moved_to_another_prefix_or_audience)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");

    for (size_t i = 0; i < ARRAY_SIZE(scopes); i++) {
        struct bytes content = sign_event(&pair, scopes[i].prefix, scopes[i].audience, NULL);

        for (size_t j = 0; j < ARRAY_SIZE(scopes); j++)
            ck_assert_int_eq(status_of(trust, content, scopes[j].prefix, scopes[j].audience),
                             i == j ? VERIFY_VALID : VERIFY_BAD_SIGNATURE);
        unit_free(content);
    }
    (void)trust_free(trust);
}
END_TEST

START_TEST(altered_in_any_bit)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    struct bytes content = sign_event(&pair, PREFIX, "production", NULL);

    for (size_t i = 0; i < content.size; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            struct bytes altered = unit_exact(content);

            ((uint8_t *)(uintptr_t)altered.data)[i] ^= (uint8_t)(1u << bit);
            ck_assert_int_ne(status_of(trust, altered, PREFIX, "production"), VERIFY_VALID);
            unit_free(altered);
        }
    }
    ck_assert_int_eq(status_of(trust, content, PREFIX, "production"), VERIFY_VALID);
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

/* Every value of every byte, of a short one: a few thousand of them get as far as the signature. */
START_TEST(altered_in_any_byte)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    struct bytes content = sign_event(&pair, PREFIX, "", NULL);
    struct bytes altered = unit_exact(content);
    uint8_t *bytes = (uint8_t *)(uintptr_t)altered.data;

    for (size_t i = 0; i < content.size; i++) {
        for (unsigned value = 0; value < 256; value += unit_sparse()) {
            if (value == content.data[i])
                continue;
            bytes[i] = (uint8_t)value;
            ck_assert_int_ne(status_of(trust, altered, PREFIX, ""), VERIFY_VALID);
        }
        bytes[i] = content.data[i];
    }
    unit_free(altered);
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

START_TEST(truncated_at_any_length_or_prolonged)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    struct bytes content = sign_event(&pair, PREFIX, "", NULL);
    struct buf longer = BUF_INIT;

    for (size_t size = 0; size < content.size; size++) {
        struct bytes head = unit_exact((struct bytes){content.data, size}),
                     tail = unit_exact((struct bytes){content.data + content.size - size, size});

        ck_assert_int_ne(status_of(trust, head, PREFIX, ""), VERIFY_VALID);
        ck_assert_int_ne(status_of(trust, tail, PREFIX, ""), VERIFY_VALID);
        unit_free(head);
        unit_free(tail);
    }
    for (unsigned value = 0; value < 256; value++) {
        buf_clear(&longer);
        buf_append(&longer, content.data, content.size);
        buf_append_u8(&longer, (uint8_t)value);
        ck_assert_int_eq(status_of(trust, buf_bytes(&longer), PREFIX, ""), VERIFY_MALFORMED);
    }
    buf_clear(&longer);
    buf_append(&longer, content.data, content.size);
    buf_append(&longer, content.data, content.size);
    ck_assert_int_eq(status_of(trust, buf_bytes(&longer), PREFIX, ""), VERIFY_MALFORMED);
    buf_deinit(&longer);
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

static void put_message(struct buf *out, const struct cose_sign1 *m, struct bytes signature)
{
    buf_clear(out);
    cbor_put_tag(out, 18);
    cbor_put_array(out, 4);
    cbor_put_bytes(out, m->protected_map);
    buf_append(out, m->unprotected_map.data, m->unprotected_map.size);
    cbor_put_bytes(out, m->payload);
    cbor_put_bytes(out, signature);
}

START_TEST(stripped_of_its_signature)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    struct bytes content = sign_event(&pair, PREFIX, "", NULL);
    struct buf out = BUF_INIT;
    uint8_t zeros[COSE_KEY_SIGNATURE_SIZE] = {0};
    struct cose_sign1 m;

    ck_assert_int_eq(signed_event_parse(content, &m), COSE_SIGN1_OK);
    put_message(&out, &m, m.signature);
    ck_assert(bytes_equal(buf_bytes(&out), content));
    for (size_t size = 0; size < sizeof zeros; size++) {
        put_message(&out, &m, (struct bytes){m.signature.data, size});
        ck_assert_int_eq(status_of(trust, buf_bytes(&out), PREFIX, ""), VERIFY_MALFORMED);
    }
    put_message(&out, &m, (struct bytes){zeros, sizeof zeros});
    ck_assert_int_eq(status_of(trust, buf_bytes(&out), PREFIX, ""), VERIFY_BAD_SIGNATURE);

    /* Its payload as plain content. */
    buf_clear(&out);
    cbor_put_tag(&out, 55799);
    buf_append(&out, m.payload.data, m.payload.size);
    ck_assert_int_eq(status_of(trust, buf_bytes(&out), PREFIX, ""), VERIFY_UNSIGNED);
    ck_assert_int_eq(status_of(trust, m.payload, PREFIX, ""), VERIFY_UNSIGNED);
    buf_deinit(&out);
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

/* ---- max-delay ---- */

static void delayed(const struct trust *trust, struct bytes content, int64_t received_us,
                    enum verify_status status, const char *sentence)
{
    struct verify_result result = result_of(trust, content, PREFIX, "", received_us);

    ck_assert_msg(result.status == status, "%" PRId64 ": %s: %s", received_us,
                  verify_status_text(result.status), result.reason);
    ck_assert_msg(strstr(result.reason, sentence) != NULL, "%s", result.reason);
}

START_TEST(in_time)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\nmax-delay = 10min\n");
    const char *time = "2026-11-30T12:00:00.5Z";
    struct bytes content = sign_event(&pair, PREFIX, "", time);
    const int64_t now = at(time), max = INT64_C(600000000);

    delayed(trust, content, now, VERIFY_VALID, "it is in time");
    delayed(trust, content, now + max, VERIFY_VALID, "");
    delayed(trust, content, now + max + 1, VERIFY_STALE,
            "The event's time is 600.0 s before it was received, and 10min are the most for this "
            "key.");
    delayed(trust, content, now - max, VERIFY_VALID, "");
    delayed(trust, content, now - max - 1, VERIFY_STALE, "The event's time is 600.0 s after it was");
    delayed(trust, content, 0, VERIFY_STALE, " s after it was received");
    delayed(trust, content, INT64_MAX, VERIFY_STALE, " s before");
    delayed(trust, content, INT64_MIN + 1, VERIFY_STALE, " s after");
    delayed(trust, content, VERIFY_NO_TIME, VERIFY_VALID, "");
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

START_TEST(a_time_with_something_behind_its_end)
{
    static const char time[] = "2026-11-30T12:00:00Z\0 or so";
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\nmax-delay = 36500d\n");
    struct bytes content = sign_event_at(
        &pair, PREFIX, "", (struct bytes){(const uint8_t *)time, sizeof time - 1});

    delayed(trust, content, at("2026-11-30T12:00:00Z"), VERIFY_STALE, "no time that could be read");
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

START_TEST(a_time_that_is_none)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\nmax-delay = 36500d\n"),
                 *without = trust_of(&pair.key, "allow = >\n"),
                 *elsewhere = trust_of(&pair.key, "allow = x\nmax-delay = 1s\n");
    static const char *const times[] = {
        NULL,
        "yesterday",
        "2026-11-30T12:00:00",
        "2026-11-30T12:00:00.0000000000000000000000000000000000000000000000Z",
    };

    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        struct bytes content = sign_event(&pair, PREFIX, "", times[i]);

        delayed(trust, content, at("2026-11-30T12:00:00Z"), VERIFY_STALE,
                "The event has no time that could be read, and its key has a max-delay.");
        delayed(without, content, 0, VERIFY_VALID, "");
        delayed(elsewhere, content, 0, VERIFY_NOT_ALLOWED, "");
        unit_free(content);
    }
    (void)trust_free(trust);
    (void)trust_free(without);
    (void)trust_free(elsewhere);
}
END_TEST

/* ---- threads, and the rest ---- */

struct work {
    const struct trust *trust;
    struct bytes good, bad;
};

static void *work(void *user)
{
    const struct work *w = user;
    const struct verify_scope scope = {bytes_of_text(PREFIX), {NULL, 0}, VERIFY_NO_TIME};
    struct buf scratch = BUF_INIT;
    struct verify_result result;
    size_t wrong = 0;

    for (int i = 0; i < 200; i++) {
        wrong += verify_content(w->trust, &scope, w->good, &scratch, &result) != 0 ||
                 result.status != VERIFY_VALID;
        wrong += verify_content(w->trust, &scope, w->bad, &scratch, &result) != 0 ||
                 result.status != VERIFY_BAD_SIGNATURE;
    }
    buf_deinit(&scratch);
    return wrong ? user : NULL;
}

START_TEST(threads_verify_with_one_trust)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\n");
    struct work w = {trust, sign_event(&pair, PREFIX, "", NULL), sign_event(&pair, "x", "", NULL)};
    pthread_t threads[4];
    void *wrong;

    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &w), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        ck_assert_int_eq(pthread_join(threads[i], &wrong), 0);
        ck_assert_ptr_null(wrong);
    }
    unit_free(w.good);
    unit_free(w.bad);
    (void)trust_free(trust);
}
END_TEST

START_TEST(long_names_are_cut_in_sentences)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = x\n");
    char name[TRUST_AUDIENCE_MAX + 1];

    memset(name, '\x01', sizeof name - 1); /* four signs each when shown */
    name[sizeof name - 1] = '\0';
    struct bytes content = sign_event(&pair, name, name, NULL);
    answers(trust, content, name, "", VERIFY_BAD_SIGNATURE, "");
    answers(trust, content, name, name, VERIFY_NOT_ALLOWED, "...");
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

START_TEST(words)
{
    static const char *const texts[] = {"unsigned",  "valid",       "unknown-key", "bad-signature",
                                        "malformed", "not-allowed", "stale"};

    ck_assert_uint_eq(ARRAY_SIZE(texts), VERIFY_STATUS_COUNT);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        ck_assert_str_eq(verify_status_text((enum verify_status)i), texts[i]);
    ck_assert_str_eq(verify_status_text((enum verify_status)VERIFY_STATUS_COUNT), "unknown");
}
END_TEST

UNIT_MAIN("verify", valid, unsigned_is_whatever_does_not_begin_as_signed, unknown_keys,
          another_keys_signature, the_audience_of_the_key_or_else_the_assumed_one,
          not_for_this_prefix, a_prefix_beyond_ascii_is_never_valid, several_keys_for_a_prefix,
          type_and_content_are_signed_too, a_key_for_one_algorithm,
          moved_to_another_prefix_or_audience, altered_in_any_bit, altered_in_any_byte,
          truncated_at_any_length_or_prolonged, stripped_of_its_signature, in_time,
          a_time_with_something_behind_its_end, a_time_that_is_none, threads_verify_with_one_trust, long_names_are_cut_in_sentences,
          words)
