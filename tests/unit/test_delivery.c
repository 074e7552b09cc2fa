/* SPDX-License-Identifier: PostgreSQL */
#include "client/delivery.h"

#include <string.h>

#include "codec/signed_event.h"
#include "fake_router.h"
#include "trust_fixture.h"
#include "unit.h"

/* An event without `data`: d9d9f7 and {id: "1", type: "t", source: "/s", specversion: "1.0"} */
#define EVENT_OF(pairs)                                                   \
    "d9d9f7 a" pairs " 626964 6131 6474797065 6174 66736f75726365 622f73" \
    " 6b7370656376657273696f6e 63312e30 "
#define DATA "6464617461 " /* the key */

/** What of a delivery is not zero or NULL. */
struct want {
    enum walbus_delivery_kind kind;
    unsigned flags;
    struct position position, from;
    uint64_t lsn, end_lsn, messages, bytes;
    uint32_t xid;
    int64_t commit_time, received_time;
    const char *reason, *prefix, *content;
};

static void check_bytes(const void *got, size_t size, const char *want)
{
    if (!want) {
        ck_assert_ptr_null(got);
        ck_assert_uint_eq(size, 0);
    } else {
        ck_assert_ptr_nonnull(got);
        unit_assert_text((struct bytes){got, size}, want);
    }
}

static void check(const struct walbus_delivery *d, struct want want)
{
    size_t size = 99, item_size = 99;
    const void *item = d;

    ck_assert_int_eq(walbus_delivery_kind(d), want.kind);
    ck_assert_uint_eq(walbus_delivery_flags(d), want.flags);
    fake_assert_position(walbus_delivery_position(d), want.position);
    fake_assert_position(walbus_delivery_from(d), want.from);
    ck_assert_uint_eq(walbus_delivery_lsn(d), want.lsn);
    ck_assert_uint_eq(walbus_delivery_end_lsn(d), want.end_lsn);
    ck_assert_uint_eq(walbus_delivery_messages(d), want.messages);
    ck_assert_uint_eq(walbus_delivery_bytes(d), want.bytes);
    ck_assert_uint_eq(walbus_delivery_xid(d), want.xid);
    ck_assert_int_eq(walbus_delivery_commit_time_us(d), want.commit_time);
    ck_assert_int_eq(walbus_delivery_received_time_us(d), want.received_time);
    ck_assert_pstr_eq(walbus_delivery_reason(d), want.reason);
    const void *got = walbus_delivery_prefix(d, &size);
    check_bytes(got, size, want.prefix);
    got = walbus_delivery_content(d, &size);
    check_bytes(got, size, want.content);

    /* None of these is an event. */
    ck_assert_int_eq(walbus_delivery_form(d), WALBUS_FORM_OPAQUE);
    ck_assert_uint_eq(walbus_delivery_attributes(d), 0);
    ck_assert_ptr_null(walbus_delivery_attribute(d, "id", &size));
    ck_assert_uint_eq(size, 0);
    size = 99;
    ck_assert_ptr_null(walbus_delivery_attribute_at(d, 0, &size, &item, &item_size));
    ck_assert_uint_eq(size, 0);
    ck_assert_uint_eq(item_size, 0);
    ck_assert_ptr_null(item);
    size = 99;
    ck_assert_ptr_null(walbus_delivery_data(d, &size));
    ck_assert_uint_eq(size, 0);
    size = 99;
    ck_assert_ptr_null(walbus_delivery_data_text(d, &size));
    ck_assert_uint_eq(size, 0);
    size = 99;
    ck_assert_ptr_null(walbus_delivery_data_bytes(d, &size));
    ck_assert_uint_eq(size, 0);
}

/** A delivery with all of another one still in it: nothing may shine through. */
static struct walbus_delivery used(void)
{
    struct bytes content = unit_from_hex(EVENT_OF("5") DATA "6178");
    struct frame_message m = {.position = {9, 9, 9},
                              .lsn = 9,
                              .xid = 9,
                              .commit_time = 9,
                              .received_time = 9,
                              .prefix = unit_bytes("used"),
                              .content = content,
                              .flags = FRAME_FLAG_TRANSACTIONAL};
    struct walbus_delivery d;

    delivery_message(&d, &m, true, false);
    ck_assert_int_eq(walbus_delivery_form(&d), WALBUS_FORM_EVENT);
    unit_free(content);
    return d;
}

START_TEST(every_kind_says_what_it_says_and_nothing_else)
{
    const struct position p = {1, 200, 3}, from = {1, 100, 1};
    struct frame_begin begin = {.timeline = 1, .commit_lsn = 200, .commit_time = 77, .xid = 8};
    struct frame_commit commit = {.begin = begin, .end_lsn = 240, .messages = 5};
    struct frame_message message = {.position = p,
                                    .lsn = 190,
                                    .xid = 8,
                                    .commit_time = 77,
                                    .received_time = 78,
                                    .prefix = unit_bytes("a.b"),
                                    .content = unit_bytes("hello"),
                                    .flags = FRAME_FLAG_TRANSACTIONAL};
    struct frame_gap gap = {.from = from, .to = p, .messages = 6, .bytes = UINT64_MAX};
    struct walbus_delivery d = used();

    delivery_ready(&d, p, false);
    check(&d, (struct want){.kind = WALBUS_DELIVERY_READY, .position = p});
    delivery_ready(&d, p, true);
    check(&d, (struct want){
                  .kind = WALBUS_DELIVERY_READY, .flags = WALBUS_DELIVERY_STORED, .position = p});
    delivery_progress(&d, p);
    check(&d, (struct want){.kind = WALBUS_DELIVERY_PROGRESS, .position = p});
    delivery_acked(&d, p);
    check(&d, (struct want){.kind = WALBUS_DELIVERY_ACKED, .position = p});

    struct want want = {.kind = WALBUS_DELIVERY_BEGIN,
                        .flags = WALBUS_DELIVERY_TRANSACTIONAL,
                        .position = {1, 200, 0},
                        .lsn = 200,
                        .xid = 8,
                        .commit_time = 77};
    delivery_begin(&d, &begin, want.position);
    check(&d, want);
    begin.flags = FRAME_FLAG_RESUMED;
    delivery_begin(&d, &begin, p);
    want.position = p;
    want.flags |= WALBUS_DELIVERY_RESUMED;
    check(&d, want);

    want.kind = WALBUS_DELIVERY_COMMIT;
    want.flags = WALBUS_DELIVERY_TRANSACTIONAL;
    want.position.index = POSITION_INDEX_END;
    want.end_lsn = 240;
    want.messages = 5;
    delivery_commit(&d, &commit);
    check(&d, want);
    commit.begin.flags = FRAME_FLAG_INCOMPLETE;
    want.flags |= WALBUS_DELIVERY_INCOMPLETE;
    delivery_commit(&d, &commit);
    check(&d, want);

    d = used();
    delivery_message(&d, &message, false, false);
    want = (struct want){.kind = WALBUS_DELIVERY_MESSAGE,
                         .flags = WALBUS_DELIVERY_TRANSACTIONAL,
                         .position = p,
                         .lsn = 190,
                         .xid = 8,
                         .commit_time = 77,
                         .received_time = 78,
                         .prefix = "a.b",
                         .content = "hello"};
    check(&d, want);
    message.flags = 0;
    message.prefix = message.content = (struct bytes){NULL, 0};
    want.flags = WALBUS_DELIVERY_REDELIVERED;
    want.prefix = want.content = "";
    delivery_message(&d, &message, true, false);
    check(&d, want);

    delivery_gap(&d, &gap, "because");
    check(&d, (struct want){.kind = WALBUS_DELIVERY_GAP,
                            .position = p,
                            .from = from,
                            .messages = 6,
                            .bytes = UINT64_MAX,
                            .reason = "because"});
}
END_TEST

/* ---- events ---- */

/** A delivery of this content, hex; its bytes are to be freed. */
static struct bytes deliver(struct walbus_delivery *d, const char *hex)
{
    struct bytes content = unit_from_hex(hex);
    struct frame_message m = {.position = {1, 2, 0}, .content = content};

    memset(d, 0xa5, sizeof *d);
    delivery_message(d, &m, false, false);
    return content;
}

START_TEST(attributes)
{
    /* further: time as tag 0, "a" a number, "b" an empty text */
    static const char hex[] =
        EVENT_OF("7") "6474696d65 c0 74323032342d30332d30315431323a30303a30305a 6161 20 6162 60";
    static const struct {
        const char *name, *item, *text;
    } want[] = {
        {"id", "6131", "1"},
        {"type", "6174", "t"},
        {"source", "622f73", "/s"},
        {"specversion", "63312e30", "1.0"},
        {"time", "c074323032342d30332d30315431323a30303a30305a", "2024-03-01T12:00:00Z"},
        {"a", "20", NULL},
        {"b", "60", ""},
    };
    struct walbus_delivery d;
    struct bytes content = deliver(&d, hex);

    ck_assert_uint_eq(walbus_delivery_attributes(&d), ARRAY_SIZE(want)); /* parses it */
    ck_assert_int_eq(walbus_delivery_form(&d), WALBUS_FORM_EVENT);
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        size_t size, name_size, item_size;
        const void *item;
        const char *name = walbus_delivery_attribute_at(&d, i, &name_size, &item, &item_size);

        unit_assert_text((struct bytes){(const uint8_t *)name, name_size}, want[i].name);
        unit_assert_hex((struct bytes){item, item_size}, want[i].item);
        const char *text = walbus_delivery_attribute(&d, want[i].name, &size);
        check_bytes(text, size, want[i].text);
        ck_assert_ptr_eq(walbus_delivery_attribute(&d, want[i].name, NULL), text);
        ck_assert_ptr_eq(walbus_delivery_attribute_at(&d, i, NULL, NULL, NULL), name);
    }
    ck_assert_ptr_null(walbus_delivery_attribute_at(&d, ARRAY_SIZE(want), NULL, NULL, NULL));
    ck_assert_ptr_null(walbus_delivery_attribute_at(&d, SIZE_MAX, NULL, NULL, NULL));
    ck_assert_ptr_null(walbus_delivery_attribute(&d, "subject", NULL));
    ck_assert_ptr_null(walbus_delivery_attribute(&d, "", NULL));
    ck_assert_ptr_null(walbus_delivery_attribute(&d, NULL, NULL));
    ck_assert_ptr_null(walbus_delivery_data(&d, NULL));
    unit_free(content);
}
END_TEST

static void data_as(const char *hex, const char *item, const char *text, const char *bytes)
{
    struct walbus_delivery d;
    struct bytes content = deliver(&d, hex);
    size_t size;
    const void *got = walbus_delivery_data_text(&d, &size); /* parses it */

    check_bytes(got, size, text);
    got = walbus_delivery_data_bytes(&d, &size);
    check_bytes(got, size, bytes);
    got = walbus_delivery_data(&d, &size);
    unit_assert_hex((struct bytes){got, size}, item);
    ck_assert_ptr_null(walbus_delivery_attribute(&d, "data", NULL));
    ck_assert_uint_eq(walbus_delivery_attributes(&d), 4);
    unit_free(content);
}

START_TEST(data)
{
    data_as(EVENT_OF("5") DATA "a1 616e 182a", "a1616e182a", NULL, NULL);
    data_as(EVENT_OF("5") DATA "63616263", "63616263", "abc", NULL);
    data_as(EVENT_OF("5") DATA "60", "60", "", NULL);
    data_as(EVENT_OF("5") DATA "43616263", "43616263", NULL, "abc");
    data_as(EVENT_OF("5") DATA "40", "40", NULL, "");
    data_as(EVENT_OF("5") DATA "7f 6161 ff", "7f6161ff", NULL, NULL); /* not of definite length */
    data_as(EVENT_OF("5") DATA "5f 4161 ff", "5f4161ff", NULL, NULL);
    data_as(EVENT_OF("5") DATA "c0 6161", "c06161", NULL, NULL);
    data_as(EVENT_OF("5") DATA "f6", "f6", NULL, NULL);
}
END_TEST

static void form_is(const char *hex, enum walbus_form form)
{
    struct walbus_delivery d;
    struct bytes content = deliver(&d, hex);
    size_t size;

    ck_assert_int_eq(walbus_delivery_form(&d), form);
    if (form != WALBUS_FORM_EVENT) {
        ck_assert_uint_eq(walbus_delivery_attributes(&d), 0);
        ck_assert_ptr_null(walbus_delivery_attribute(&d, "id", NULL));
        ck_assert_ptr_null(walbus_delivery_data(&d, NULL));
    }
    const void *got = walbus_delivery_content(&d, &size);
    ck_assert(bytes_equal((struct bytes){got, size}, content));
    ck_assert_ptr_nonnull(got);
    unit_free(content);
}

START_TEST(forms)
{
    form_is(EVENT_OF("4"), WALBUS_FORM_EVENT);
    form_is(EVENT_OF("5") DATA "01", WALBUS_FORM_EVENT);
    form_is("d2 84 40 a0 40 40", WALBUS_FORM_OPAQUE); /* begins as a signed one does, no more */
    form_is("", WALBUS_FORM_OPAQUE);
    form_is("7b7d", WALBUS_FORM_OPAQUE);
    form_is("d9d9f7 a0", WALBUS_FORM_OPAQUE);                 /* nothing of what an event needs */
    form_is(EVENT_OF("5") DATA, WALBUS_FORM_OPAQUE);          /* cut off */
    form_is(EVENT_OF("4") "00", WALBUS_FORM_OPAQUE);          /* something behind it */
    form_is(EVENT_OF("5") "626964 6132", WALBUS_FORM_OPAQUE); /* an id twice */
}
END_TEST

/* ---- signatures ---- */

static void signature_is(const struct walbus_delivery *d, enum walbus_signature signature,
                         const char *kid_hex, const char *sentence)
{
    size_t size = 99;
    const void *kid;

    ck_assert_int_eq(walbus_delivery_signature(d), signature);
    ck_assert_msg(strstr(walbus_delivery_signature_reason(d), sentence) != NULL, "%s",
                  walbus_delivery_signature_reason(d));
    kid = walbus_delivery_kid(d, &size);
    if (kid_hex)
        unit_assert_hex((struct bytes){kid, size}, kid_hex);
    else
        ck_assert(!kid && size == 0);
    ck_assert_ptr_eq(walbus_delivery_kid(d, NULL), kid);
}

START_TEST(signed_events_are_read_like_others)
{
    struct pair pair = test_pair();
    struct bytes content = sign_event(&pair, "orders.paid", "", "2026-11-30T12:00:00Z");
    struct frame_message m = {.content = content, .prefix = unit_bytes("orders.paid")};
    struct walbus_delivery d = used();
    size_t size;

    delivery_message(&d, &m, false, false);
    ck_assert_int_eq(walbus_delivery_form(&d), WALBUS_FORM_SIGNED);
    ck_assert_uint_eq(walbus_delivery_attributes(&d), 5);
    check_bytes(walbus_delivery_attribute(&d, "source", &size), 5, "/shop");
    check_bytes(walbus_delivery_data_text(&d, &size), 5, "hello");
    const void *got = walbus_delivery_content(&d, &size);
    ck_assert(bytes_equal((struct bytes){got, size}, content));
    signature_is(&d, WALBUS_SIGNATURE_UNKNOWN_KEY, "866eefbd6718c884", "There is no trust file");
    unit_free(content);
}
END_TEST

START_TEST(what_a_signature_is_worth)
{
    struct pair pair = test_pair();
    struct trust *trust;
    struct bytes content = sign_event(&pair, "orders.paid", "production", NULL);
    struct frame_message m = {.content = content, .prefix = unit_bytes("orders.paid")};
    struct walbus_delivery d = used();
    struct buf scratch = BUF_INIT;

    cose_key_default_kid(&pair.key, pair.key.kid);
    pair.key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;
    trust = trust_of(&pair.key, "allow = orders.>\n");
    ck_assert_int_eq(delivery_verify(&d, &m, trust, unit_bytes("production"), &scratch), 0);
    delivery_message(&d, &m, false, true);
    signature_is(&d, WALBUS_SIGNATURE_VALID, "866eefbd6718c884", "The signature is right");
    ck_assert_int_eq(delivery_verify(&d, &m, trust, unit_bytes("staging"), &scratch), 0);
    delivery_message(&d, &m, false, true);
    signature_is(&d, WALBUS_SIGNATURE_BAD_SIGNATURE, "866eefbd6718c884", "\"staging\"");
    /* What was found of one message says nothing about the next. */
    delivery_message(&d, &m, false, false);
    signature_is(&d, WALBUS_SIGNATURE_UNKNOWN_KEY, "866eefbd6718c884", "");
    m.content = unit_bytes("{}");
    delivery_message(&d, &m, false, false);
    signature_is(&d, WALBUS_SIGNATURE_UNSIGNED, NULL, "The content is not signed.");
    m.content = unit_bytes("\xd2\x84");
    delivery_message(&d, &m, false, false);
    signature_is(&d, WALBUS_SIGNATURE_MALFORMED, NULL, "The message ends before it is whole.");
    ck_assert_int_eq(delivery_verify(&d, &m, trust, unit_bytes(""), &scratch), 0);
    delivery_progress(&d, (struct position){1, 2, 0});
    signature_is(&d, WALBUS_SIGNATURE_UNSIGNED, NULL, "");
    ck_assert_str_eq(walbus_delivery_signature_reason(&d), "");
    unit_free(content);
    buf_deinit(&scratch);
    (void)trust_free(trust);
}
END_TEST

START_TEST(signatures_have_words)
{
    ck_assert_str_eq(walbus_signature_text(WALBUS_SIGNATURE_UNSIGNED), "unsigned");
    ck_assert_str_eq(walbus_signature_text(WALBUS_SIGNATURE_STALE), "stale");
    ck_assert_str_eq(walbus_signature_text((enum walbus_signature)99), "unknown");
}
END_TEST

UNIT_MAIN("delivery", every_kind_says_what_it_says_and_nothing_else, attributes, data, forms,
          signed_events_are_read_like_others, what_a_signature_is_worth, signatures_have_words)
