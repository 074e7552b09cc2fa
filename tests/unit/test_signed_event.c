/* SPDX-License-Identifier: PostgreSQL */
#include "codec/signed_event.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/cose.h"
#include "codec/event.h"
#include "key_fixture.h"
#include "unit.h"

static struct signed_event_scope scope(const char *prefix, const char *audience)
{
    return (struct signed_event_scope){bytes_of_text(prefix), bytes_of_text(audience)};
}

/* The map of an event whose `data` makes it about `size` bytes long. */
static struct buf event_map(size_t size)
{
    struct event event = {.n_attributes = 0};
    struct buf content = BUF_INIT, map = BUF_INIT, data = BUF_INIT;
    uint8_t *filler = calloc(1, size + 1);

    ck_assert_ptr_nonnull(filler);
    cbor_put_bytes(&data, (struct bytes){filler, size});
    ck_assert_int_eq(event_add(&event, "specversion", "1.0"), 0);
    ck_assert_int_eq(event_add(&event, "type", "orders.paid"), 0);
    ck_assert_int_eq(event_add(&event, "source", "/shop"), 0);
    ck_assert_int_eq(event_add(&event, "id", "1"), 0);
    event.data = buf_bytes(&data);
    ck_assert_int_eq(event_encode(&event, &content), 0);
    buf_append(&map, content.data + EVENT_TAG_SIZE, content.size - EVENT_TAG_SIZE);
    buf_deinit(&content);
    buf_deinit(&data);
    free(filler);
    return map;
}

/* Free with unit_free. */
static struct bytes sign(struct bytes map, const char *prefix, const char *audience)
{
    struct pair pair = test_pair();
    struct signed_event_scope s = scope(prefix, audience);
    struct buf room = BUF_INIT;
    struct bytes content;

    ck_assert_int_eq(signed_event_sign(map, &s, &pair.key, pair.secret, &room, &content), 0);
    content = unit_exact(content);
    buf_deinit(&room);
    return content;
}

/* 0 for valid, else the reason: as a subscriber does it, but with the right key whatever the kid says. */
static int check(struct bytes content, const char *prefix, const char *audience)
{
    struct pair pair = test_pair();
    struct signed_event_scope s = scope(prefix, audience);
    struct buf scratch = BUF_INIT;
    struct cose_sign1 m;
    int r = (int)signed_event_parse(content, &m);

    if (r == 0)
        r = signed_event_verify(&m, &pair.key, &s, &scratch);
    buf_deinit(&scratch);
    return r;
}

START_TEST(signed_and_verified)
{
    static const size_t sizes[] = {0, 1, 23, 24, 150, 255, 256, 65536};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct buf map = event_map(sizes[i]);
        struct bytes content = sign(buf_bytes(&map), "orders.paid", "production");
        struct event event;
        struct cose_sign1 m;

        ck_assert_int_eq(content_kind_of(content), CONTENT_SIGNED);
        ck_assert_int_eq(check(content, "orders.paid", "production"), 0);
        ck_assert_int_eq(signed_event_parse(content, &m), COSE_SIGN1_OK);
        ck_assert(bytes_equal(m.payload, buf_bytes(&map)));
        ck_assert_int_eq(event_decode_map(m.payload, &event), CBOR_OK);
        unit_assert_text(event_get(&event, "type"), "orders.paid");
        unit_assert_hex(m.kid, "866eefbd6718c884");
        unit_free(content);
        buf_deinit(&map);
    }
}
END_TEST

START_TEST(kid_and_alg_are_the_keys)
{
    struct pair pair = test_pair();
    struct signed_event_scope s = scope("p", "");
    struct buf room = BUF_INIT, scratch = BUF_INIT;
    struct bytes content;
    struct cose_sign1 m;

    pair.key.alg = COSE_ALG_ED25519;
    pair.key.kid_size = COSE_KEY_KID_MAX;
    memset(pair.key.kid, 'k', COSE_KEY_KID_MAX);
    ck_assert_int_eq(
        signed_event_sign(unit_bytes("\xa0"), &s, &pair.key, pair.secret, &room, &content), 0);
    ck_assert_int_eq(signed_event_parse(content, &m), COSE_SIGN1_OK);
    ck_assert_int_eq(m.alg, COSE_ALG_ED25519);
    ck_assert(bytes_equal(m.kid, cose_key_kid(&pair.key)));
    ck_assert_int_eq(signed_event_verify(&m, &pair.key, &s, &scratch), 0);
    pair.key.alg = COSE_ALG_EDDSA;
    ck_assert_int_eq(signed_event_verify(&m, &pair.key, &s, &scratch), COSE_SIGN1_ALG_KEY);
    buf_deinit(&room);
    buf_deinit(&scratch);
}
END_TEST

/* ---- what is never valid ---- */

START_TEST(only_for_its_prefix_and_audience)
{
    static const struct {
        const char *prefix, *audience;
        int result;
    } cases[] = {
        {"orders.paid", "production", 0},
        {"orders.pai", "production", COSE_SIGN1_SIGNATURE},
        {"orders.paid.", "production", COSE_SIGN1_SIGNATURE},
        {"Orders.paid", "production", COSE_SIGN1_SIGNATURE},
        {"", "production", COSE_SIGN1_SIGNATURE},
        {"orders.paid", "staging", COSE_SIGN1_SIGNATURE},
        {"orders.paid", "", COSE_SIGN1_SIGNATURE},
        {"production", "orders.paid", COSE_SIGN1_SIGNATURE},
        /* the same bytes, split elsewhere */
        {"paid", "productionorders.", COSE_SIGN1_SIGNATURE},
        {"orders.paid\x80", "production", COSE_SIGN1_EVENT_PREFIX},
        {"gr\xc3\xb6\xc3\x9f"
         "e",
         "production", COSE_SIGN1_EVENT_PREFIX},
        {"orders.paid", "\xff", COSE_SIGN1_EVENT_AUDIENCE},
        {"orders.paid",
         "gr\xc3\xb6\xc3\x9f"
         "e",
         COSE_SIGN1_SIGNATURE},
    };
    struct buf map = event_map(10);
    struct bytes content = sign(buf_bytes(&map), "orders.paid", "production");

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        ck_assert_int_eq(check(content, cases[i].prefix, cases[i].audience), cases[i].result);
    unit_free(content);
    content = sign(buf_bytes(&map), "",
                   "gr\xc3\xb6\xc3\x9f"
                   "e");
    ck_assert_int_eq(check(content, "",
                           "gr\xc3\xb6\xc3\x9f"
                           "e"),
                     0);
    unit_free(content);
    buf_deinit(&map);
}
END_TEST

START_TEST(nothing_is_signed_for_no_scope)
{
    struct pair pair = test_pair();
    struct buf room = BUF_INIT;
    struct bytes untouched = {NULL, 7}, content = untouched;
    struct signed_event_scope prefix = scope("\xc3\xa4", ""), audience = scope("a", "\xc3");

    ck_assert_int_eq(
        signed_event_sign(unit_bytes("\xa0"), &prefix, &pair.key, pair.secret, &room, &content),
        -EINVAL);
    ck_assert_int_eq(
        signed_event_sign(unit_bytes("\xa0"), &audience, &pair.key, pair.secret, &room, &content),
        -EINVAL);
    ck_assert_uint_eq(content.size, untouched.size);
}
END_TEST

/* The event's size such that the heads of the payload have one, two and three bytes. */
static const size_t altered_sizes[] = {0, 100, 300};

START_TEST(altered_in_any_byte)
{
    for (size_t i = 0; i < ARRAY_SIZE(altered_sizes); i++) {
        struct buf map = event_map(altered_sizes[i]);
        struct bytes content = sign(buf_bytes(&map), "orders.paid", "");
        uint8_t *bytes = (uint8_t *)(uintptr_t)content.data;

        for (size_t at = 0; at < content.size; at += unit_sparse()) {
            uint8_t was = bytes[at];

            for (unsigned bit = 0; bit < 8; bit++) {
                bytes[at] = (uint8_t)(was ^ 1u << bit);
                ck_assert_msg(check(content, "orders.paid", "") > 0, "bit %u of byte %zu", bit, at);
            }
            bytes[at] = was;
        }
        ck_assert_int_eq(check(content, "orders.paid", ""), 0);
        unit_free(content);
        buf_deinit(&map);
    }
}
END_TEST

/* All 255 others of each byte that no signature covers, and of those that say where it begins. */
START_TEST(altered_in_a_head_to_any_value)
{
    struct buf map = event_map(100);
    struct bytes content = sign(buf_bytes(&map), "orders.paid", "");
    uint8_t *bytes = (uint8_t *)(uintptr_t)content.data;
    const size_t payload_head = 2 + 2 + 26 + 1, signature_head = content.size - 66;
    const size_t heads[] = {0,
                            1,
                            2,
                            3,
                            payload_head - 1,
                            payload_head,
                            payload_head + 1,
                            signature_head,
                            signature_head + 1};

    for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
        uint8_t was = bytes[heads[i]];

        for (unsigned value = 0; value < 256; value++) {
            bytes[heads[i]] = (uint8_t)value;
            ck_assert_msg((check(content, "orders.paid", "") == 0) == (value == was),
                          "%u at byte %zu", value, heads[i]);
        }
        bytes[heads[i]] = was;
    }
    unit_free(content);
    buf_deinit(&map);
}
END_TEST

START_TEST(truncated_at_any_length)
{
    for (size_t i = 0; i < ARRAY_SIZE(altered_sizes); i++) {
        struct buf map = event_map(altered_sizes[i]);
        struct bytes content = sign(buf_bytes(&map), "orders.paid", "");

        for (size_t size = 0; size < content.size; size++) {
            struct bytes cut = unit_exact((struct bytes){content.data, size});

            ck_assert_int_eq(check(cut, "orders.paid", ""), COSE_SIGN1_TRUNCATED);
            unit_free(cut);
        }
        unit_free(content);
        buf_deinit(&map);
    }
}
END_TEST

START_TEST(with_a_byte_more_or_less)
{
    static const uint8_t values[] = {0x00, 0x40, 0x58, 0x5f, 0x81, 0xa0, 0xd2, 0xf6, 0xff};
    struct buf map = event_map(20);
    struct bytes content = sign(buf_bytes(&map), "orders.paid", "");

    for (size_t at = 0; at <= content.size; at += unit_sparse()) {
        struct buf other = BUF_INIT;

        for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
            buf_clear(&other);
            buf_append(&other, content.data, at);
            buf_append_u8(&other, values[i]);
            buf_append(&other, content.data + at, content.size - at);
            ck_assert_int_gt(check(buf_bytes(&other), "orders.paid", ""), 0);
        }
        if (at < content.size) {
            buf_clear(&other);
            buf_append(&other, content.data, at);
            buf_append(&other, content.data + at + 1, content.size - at - 1);
            ck_assert_int_gt(check(buf_bytes(&other), "orders.paid", ""), 0);
        }
        buf_deinit(&other);
    }
    unit_free(content);
    buf_deinit(&map);
}
END_TEST

#define P26   "581a a3012704 48866eefbd6718c884 106b77616c6275732b636f7365"
#define SIG64 "5840 $"

/* `hex` with the signature of the event `map` under P26 in the place of each $. */
static struct bytes with_signature(const char *hex, struct bytes signature)
{
    struct buf text = BUF_INIT;
    char digits[2 * COSE_KEY_SIGNATURE_SIZE + 1];

    sodium_bin2hex(digits, sizeof digits, signature.data, signature.size);
    for (; *hex; hex++)
        if (*hex == '$')
            buf_append_str(&text, digits);
        else
            buf_append_u8(&text, (uint8_t)*hex);
    struct bytes bytes = unit_from_hex(buf_str(&text));
    buf_deinit(&text);
    return bytes;
}

/* The right signature over the same bytes each time, so that nothing but the form can be the
 * reason. The payload is the empty map, which is no event: that is not asked here. */
START_TEST(in_another_form)
{
    static const struct {
        const char *hex;
        int result;
    } forms[] = {
        {"d2 84 " P26 " a0 41a0 " SIG64, COSE_SIGN1_OK},
        {"84 " P26 " a0 41a0 " SIG64, COSE_SIGN1_EVENT_TAG},
        {"d812 84 " P26 " a0 41a0 " SIG64, COSE_SIGN1_EVENT_LONGER},
        {"d2 9804 " P26 " a0 41a0 " SIG64, COSE_SIGN1_EVENT_LONGER},
        {"d2 9f " P26 " a0 41a0 " SIG64 "ff", COSE_SIGN1_INDEFINITE},
        {"d2 84 59001a a3012704 48866eefbd6718c884 106b77616c6275732b636f7365 a0 41a0 " SIG64,
         COSE_SIGN1_EVENT_LONGER},
        {"d2 84 " P26 " b800 41a0 " SIG64, COSE_SIGN1_EVENT_LONGER},
        {"d2 84 " P26 " bfff 41a0 " SIG64, COSE_SIGN1_INDEFINITE},
        {"d2 84 " P26 " a1 18ff f6 41a0 " SIG64, COSE_SIGN1_EVENT_UNPROTECTED},
        {"d2 84 " P26 " a1 01 27 41a0 " SIG64, COSE_SIGN1_DUPLICATE_ACROSS},
        {"d2 84 " P26 " a0 5801a0 " SIG64, COSE_SIGN1_EVENT_LONGER},
        {"d2 84 " P26 " a0 5f41a0ff " SIG64, COSE_SIGN1_INDEFINITE},
        {"d2 84 " P26 " a0 f6 " SIG64, COSE_SIGN1_EVENT_DETACHED},
        {"d2 84 " P26 " a0 41a0 590040 $", COSE_SIGN1_EVENT_LONGER},
        {"d2 84 " P26 " a0 41a0 5f 5840 $ ff", COSE_SIGN1_INDEFINITE},
        {"d2 84 " P26 " a0 41a0 5841 $ 00", COSE_SIGN1_SIGNATURE_SIZE},
        /* stripped of it */
        {"d2 84 " P26 " a0 41a0 40", COSE_SIGN1_SIGNATURE_SIZE},
        {"d2 84 " P26 " a0 41a0 f6", COSE_SIGN1_SIGNATURE_TYPE},
        {"d2 83 " P26 " a0 41a0", COSE_SIGN1_ARRAY},
        {"d9d9f7 a0", COSE_SIGN1_TAG},
        {"a0", COSE_SIGN1_ARRAY},
        /* the headers moved out of it */
        {"d2 84 40 a3012704 48866eefbd6718c884 106b77616c6275732b636f7365 41a0 " SIG64,
         COSE_SIGN1_EVENT_UNPROTECTED},
        {"d2 84 40 a0 41a0 " SIG64, COSE_SIGN1_EVENT_KID},
        {"d2 84 43a10127 a0 41a0 " SIG64, COSE_SIGN1_EVENT_KID},
    };
    struct bytes content = sign(unit_bytes("\xa0"), "orders.paid", "");
    struct bytes signature = {content.data + content.size - 64, 64};

    for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
        struct bytes form = with_signature(forms[i].hex, signature);
        int r = check(form, "orders.paid", "");

        ck_assert_msg(r == forms[i].result, "%s: %s", forms[i].hex,
                      cose_sign1_fault_text((enum cose_sign1_fault)r));
        /* no key is needed to tell */
        struct cose_sign1 parts;

        ck_assert_int_eq(signed_event_parse(form, &parts), r);
        if (r == 0)
            ck_assert(bytes_equal(form, content));
        unit_free(form);
    }
    unit_free(content);
}
END_TEST

/* Signed rightly by the key's holder for this scope, under another protected header: what is passed
 * over, and what is not. */
START_TEST(under_another_protected_header)
{
    static const struct {
        const char *protected_map;
        int result;
    } headers[] = {
        {"a3 0127 044161 106b77616c6275732b636f7365", COSE_SIGN1_OK},
        {"a3 0132 044161 106b77616c6275732b636f7365", COSE_SIGN1_OK},
        {"a3 106b77616c6275732b636f7365 044161 0127", COSE_SIGN1_OK}, /* in another order */
        {"a4 0127 044161 106b77616c6275732b636f7365 6178 8100", COSE_SIGN1_OK},
        {"a3 0127 0440 106b77616c6275732b636f7365", COSE_SIGN1_OK}, /* the empty kid is one */
        {"bf 0127 044161 106b77616c6275732b636f7365 ff", COSE_SIGN1_INDEFINITE},
        {"a4 0127 028110 044161 106b77616c6275732b636f7365", COSE_SIGN1_CRIT},
        {"a2 0127 106b77616c6275732b636f7365", COSE_SIGN1_EVENT_KID},
        {"a2 044161 106b77616c6275732b636f7365", COSE_SIGN1_ALG_MISSING},
        {"a3 0126 044161 106b77616c6275732b636f7365", COSE_SIGN1_ALG_UNSUPPORTED},
        {"a2 0127 044161", COSE_SIGN1_EVENT_TYP},
        {"a3 0127 044161 106a77616c6275732b636f73", COSE_SIGN1_EVENT_TYP},
        {"a3 0127 044161 106b57616c6275732b636f7365", COSE_SIGN1_EVENT_TYP},
        {"a3 0127 044161 10 6f6170706c69636174696f6e2f63776e", COSE_SIGN1_EVENT_TYP},
        {"a3 0127 044161 10 1854", COSE_SIGN1_EVENT_TYP}, /* a CoAP content format */
        {"a3 0127 044161 10 4b77616c6275732b636f7365", COSE_SIGN1_TYP_TYPE},
    };
    struct pair pair = test_pair();
    struct buf aad = BUF_INIT, room = BUF_INIT;

    cbor_put_array(&aad, 3);
    cbor_put_str(&aad, "walbus/1");
    cbor_put_str(&aad, "");
    cbor_put_str(&aad, "orders.paid");
    for (size_t i = 0; i < ARRAY_SIZE(headers); i++) {
        struct bytes protected_map = unit_from_hex(headers[i].protected_map), content;
        struct cose_sign1_parts parts = {protected_map, unit_bytes("\xa0"), buf_bytes(&aad),
                                         unit_bytes("\xa0")};

        ck_assert_int_eq(cose_sign1_sign(&parts, pair.secret, &room, &content), 0);
        int r = check(content, "orders.paid", "");

        ck_assert_msg(r == headers[i].result, "%s: %s", headers[i].protected_map,
                      cose_sign1_fault_text((enum cose_sign1_fault)r));
        unit_free(protected_map);
    }
    buf_deinit(&aad);
    buf_deinit(&room);
}
END_TEST

/* A wrong type under a wrong signature is a bad signature: the type of what nobody signed means nothing. */
START_TEST(the_signature_comes_before_the_type)
{
    struct bytes content = sign(unit_bytes("\xa0"), "orders.paid", "");
    uint8_t *typ = memmem(content.data, content.size, SIGNED_EVENT_TYP, strlen(SIGNED_EVENT_TYP));

    ck_assert_ptr_nonnull(typ);
    *typ ^= 0x20;
    ck_assert_int_eq(check(content, "orders.paid", ""), COSE_SIGN1_SIGNATURE);
    unit_free(content);
}
END_TEST

UNIT_MAIN("signed_event", signed_and_verified, kid_and_alg_are_the_keys,
          only_for_its_prefix_and_audience, nothing_is_signed_for_no_scope, altered_in_any_byte,
          altered_in_a_head_to_any_value, truncated_at_any_length, with_a_byte_more_or_less,
          in_another_form, under_another_protected_header, the_signature_comes_before_the_type)
