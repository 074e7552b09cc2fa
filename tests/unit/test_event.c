/* SPDX-License-Identifier: PostgreSQL */
#include "codec/event.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

/* The four required attributes. */
static void begin(struct event *event)
{
    memset(event, 0, sizeof *event);
    ck_assert_int_eq(event_add(event, "specversion", "1.0"), 0);
    ck_assert_int_eq(event_add(event, "type", "t"), 0);
    ck_assert_int_eq(event_add(event, "source", "/s"), 0);
    ck_assert_int_eq(event_add(event, "id", "i"), 0);
}

#define REQUIRED_HEX "626964 6169 6474797065 6174 66736f75726365 622f73"
#define VERSION_HEX  "6b7370656376657273696f6e 63312e30"
/* A content of the four required attributes alone: 4 pairs in deterministic order. */
#define SMALLEST_HEX "d9d9f7 a4" REQUIRED_HEX VERSION_HEX

static int encode(const struct event *event, struct buf *out)
{
    *out = BUF_INIT;
    return event_encode(event, out);
}

static void assert_refused(const struct event *event)
{
    struct buf out = BUF_INIT;

    buf_append_str(&out, "before");
    ck_assert_int_eq(event_encode(event, &out), -EINVAL);
    unit_assert_text(buf_bytes(&out), "before");
    buf_deinit(&out);
}

static enum cbor_fault decode_hex(const char *hex)
{
    struct bytes in = unit_from_hex(hex);
    struct event event;

    event.n_attributes = 12345;
    enum cbor_fault fault = event_decode(in, &event);
    if (fault != CBOR_OK)
        ck_assert_uint_eq(event.n_attributes, 12345);
    if (content_kind_of(in) == CONTENT_UNSIGNED) {
        struct event again = {.n_attributes = 12345};
        struct bytes map = {in.data + EVENT_TAG_SIZE, in.size - EVENT_TAG_SIZE};

        ck_assert_int_eq(event_decode_map(map, &again), fault);
        ck_assert_uint_eq(again.n_attributes, event.n_attributes);
        if (fault == CBOR_OK)
            ck_assert_int_eq(event_decode_map(in, &again), CBOR_FAULT_TYPE); /* with the tag */
    }
    unit_free(in);
    return fault;
}

START_TEST(smallest_event_has_these_bytes)
{
    struct event event;
    struct buf out;

    begin(&event);
    ck_assert_int_eq(encode(&event, &out), 0);
    unit_assert_hex(buf_bytes(&out), SMALLEST_HEX);
    buf_deinit(&out);
}
END_TEST

START_TEST(full_event_has_these_bytes)
{
    struct event event;
    struct buf out;
    struct bytes data = unit_from_hex("a1616101");

    begin(&event);
    ck_assert_int_eq(event_add(&event, "time", "2026-01-02T03:04:05Z"), 0);
    ck_assert_int_eq(event_add(&event, "subject", "\xc3\xbc"), 0);
    event.data = data;
    ck_assert_int_eq(encode(&event, &out), 0);
    unit_assert_hex(buf_bytes(&out),
                    "d9d9f7 a7"
                    "626964 6169"                                               /* id */
                    "6464617461 a1616101"                                       /* data */
                    "6474696d65 c0 74 323032362d30312d30325430333a30343a30355a" /* time */
                    "6474797065 6174"                                           /* type */
                    "66736f75726365 622f73"                                     /* source */
                    "677375626a656374 62c3bc"                                   /* subject */
                    "6b7370656376657273696f6e 63312e30");                       /* specversion */
    buf_deinit(&out);
    unit_free(data);
}
END_TEST

/* The same attributes in every order give the same bytes. */
START_TEST(order_of_adding_does_not_matter)
{
    static const char *const names[] = {"id", "type", "time", "source",
                                        "a",  "aa",   "ab",   "specversion"};
    struct buf first = BUF_INIT;

    for (unsigned round = 0; round < 64; round++) {
        struct event event = {0};
        struct buf out;
        size_t order[ARRAY_SIZE(names)];

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            order[i] = i;
        for (size_t i = ARRAY_SIZE(names) - 1; i > 0; i--) {
            size_t j = (round * 2654435761u >> i) % (i + 1), kept = order[i];

            order[i] = order[j];
            order[j] = kept;
        }
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            ck_assert_int_eq(event_add(&event, names[order[i]],
                                       strcmp(names[order[i]], "specversion") == 0 ? "1.0" : "x"),
                             0);
        ck_assert_int_eq(encode(&event, &out), 0);
        if (round == 0)
            first = out;
        else {
            ck_assert(bytes_equal(buf_bytes(&first), buf_bytes(&out)));
            buf_deinit(&out);
        }
    }
    buf_deinit(&first);
}
END_TEST

START_TEST(decoded_is_what_was_encoded)
{
    struct event event, back;
    struct buf out, again;
    struct bytes data = unit_from_hex("d64101");

    begin(&event);
    ck_assert_int_eq(event_add(&event, "time", "2026-01-02T03:04:05.678901Z"), 0);
    ck_assert_int_eq(event_add(&event, "partitionkey", ""), 0);
    event.data = data;
    ck_assert_int_eq(encode(&event, &out), 0);

    struct bytes content = unit_exact(buf_bytes(&out));
    ck_assert_int_eq(content_kind_of(content), CONTENT_UNSIGNED);
    ck_assert_int_eq(event_decode(content, &back), CBOR_OK);
    ck_assert_uint_eq(back.n_attributes, event.n_attributes);
    for (size_t i = 0; i < event.n_attributes; i++) {
        char name[32];

        ck_assert_uint_lt(event.attributes[i].name.size, sizeof name);
        memcpy(name, event.attributes[i].name.data, event.attributes[i].name.size);
        name[event.attributes[i].name.size] = '\0';
        ck_assert(bytes_equal(event_get(&back, name), event.attributes[i].value));
    }
    for (size_t i = 0; i < back.n_attributes; i++) {
        ck_assert(back.attributes[i].is_text);
        ck_assert_int_eq(cbor_check(back.attributes[i].item, NULL), CBOR_OK);
    }
    unit_assert_hex(back.data, "d64101");
    ck_assert_int_eq(encode(&back, &again), 0);
    ck_assert(bytes_equal(buf_bytes(&again), content));

    ck_assert_ptr_null(event_get(&back, "nosuch").data);
    ck_assert_uint_eq(event_get(&back, "nosuch").size, 0);
    ck_assert_ptr_null(event_get(&back, "data").data);
    buf_deinit(&again);
    unit_free(content);
    buf_deinit(&out);
    unit_free(data);
}
END_TEST

START_TEST(attributes_have_a_limit)
{
    char names[EVENT_ATTRIBUTES_MAX][8];
    struct event event, back;
    struct bytes data = unit_from_hex("00");
    struct buf out;

    begin(&event);
    for (size_t i = event.n_attributes; i < EVENT_ATTRIBUTES_MAX; i++) {
        (void)snprintf(names[i], sizeof names[i], "n%zu", i);
        ck_assert_int_eq(event_add(&event, names[i], "v"), 0);
    }
    ck_assert_int_eq(event_add(&event, "onemore", "v"), -E2BIG);
    ck_assert_uint_eq(event.n_attributes, EVENT_ATTRIBUTES_MAX);
    event.data = data; /* is not counted */
    ck_assert_int_eq(encode(&event, &out), 0);
    unit_assert_hex((struct bytes){out.data, 5}, "d9d9f7 b841");
    ck_assert_int_eq(event_decode(buf_bytes(&out), &back), CBOR_OK);
    ck_assert_uint_eq(back.n_attributes, EVENT_ATTRIBUTES_MAX);

    out.data[4]++; /* one pair more than the map says so far */
    cbor_put_str(&out, "onemore");
    cbor_put_str(&out, "v");
    ck_assert_int_eq(cbor_check(buf_bytes(&out), NULL), CBOR_OK);
    ck_assert_int_eq(event_decode(buf_bytes(&out), &back), CBOR_FAULT_COUNT);
    buf_deinit(&out);
    unit_free(data);
}
END_TEST

START_TEST(encoding_refuses_what_is_no_event)
{
    static const char *const wrong_names[] = {"",    "data", "Upper",    "a-b",
                                              "a_b", "a b",  "\xc3\xbc", "a."};
    static const char *const required[] = {"id", "source", "specversion", "type"};
    struct event event;

    for (size_t i = 0; i < ARRAY_SIZE(wrong_names); i++) {
        begin(&event);
        ck_assert(!event_name_is_valid(unit_bytes(wrong_names[i])));
        ck_assert_int_eq(event_add(&event, wrong_names[i], "v"), 0);
        assert_refused(&event);
    }
    for (size_t i = 0; i < ARRAY_SIZE(required); i++) {
        begin(&event);
        for (size_t k = 0; k < event.n_attributes; k++)
            if (bytes_equal(event.attributes[k].name, unit_bytes(required[i]))) {
                struct event without = event;

                without.attributes[k] = without.attributes[--without.n_attributes];
                assert_refused(&without);
                event.attributes[k].value = unit_bytes("");
                assert_refused(&event);
            }
    }
    begin(&event);
    event.attributes[0].value = unit_bytes("1.1"); /* specversion */
    assert_refused(&event);

    begin(&event);
    ck_assert_int_eq(event_add(&event, "subject", "\xff"), 0);
    assert_refused(&event);

    begin(&event);
    ck_assert_int_eq(event_add(&event, "twice", "a"), 0);
    ck_assert_int_eq(event_add(&event, "twice", "b"), 0);
    assert_refused(&event);
    ck_assert(event_name_is_valid(unit_bytes("az09")));
}
END_TEST

START_TEST(data_is_exactly_one_item)
{
    /* The last one would swallow the pair behind it, had it not been looked at alone. */
    static const char *const wrong[] = {"0000", "18", "ff", "61ff", "f818", "00 00 6b"};

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct bytes data = unit_from_hex(wrong[i]);
        struct event event;

        begin(&event);
        event.data = data;
        assert_refused(&event);
        unit_free(data);
    }
}
END_TEST

START_TEST(data_may_nest_as_deep_as_the_envelope_leaves)
{
    for (size_t depth = CBOR_NESTING_MAX - EVENT_NESTING; depth <= CBOR_NESTING_MAX; depth++) {
        struct event event, back;
        struct buf data = BUF_INIT, out;

        for (size_t i = 0; i < depth; i++)
            cbor_put_array(&data, 1);
        cbor_put_null(&data);
        ck_assert_int_eq(cbor_check(buf_bytes(&data), NULL), CBOR_OK);
        begin(&event);
        event.data = buf_bytes(&data);
        if (depth == CBOR_NESTING_MAX - EVENT_NESTING) {
            ck_assert_int_eq(encode(&event, &out), 0);
            ck_assert_int_eq(event_decode(buf_bytes(&out), &back), CBOR_OK);
            ck_assert(bytes_equal(back.data, event.data));
            buf_deinit(&out);
        } else {
            struct bytes before = unit_from_hex("d9d9f7 a5" REQUIRED_HEX VERSION_HEX "6464617461");

            assert_refused(&event);
            out = BUF_INIT;
            buf_append(&out, before.data, before.size);
            buf_append(&out, data.data, data.size);
            ck_assert_int_eq(event_decode(buf_bytes(&out), &back), CBOR_FAULT_NESTING);
            ck_assert_int_eq(
                event_decode_map(
                    (struct bytes){out.data + EVENT_TAG_SIZE, out.size - EVENT_TAG_SIZE}, &back),
                CBOR_FAULT_NESTING);
            buf_deinit(&out);
            unit_free(before);
        }
        buf_deinit(&data);
    }
}
END_TEST

START_TEST(decoding_takes_other_encodings_of_a_map)
{
    static const char *const good[] = {
        SMALLEST_HEX,
        "d9d9f7 a4" VERSION_HEX REQUIRED_HEX,                 /* another order */
        "d9d9f7 bf" REQUIRED_HEX VERSION_HEX "ff",            /* indefinite length */
        "d9d9f7 b804" REQUIRED_HEX VERSION_HEX,               /* a longer head */
        "d9d9f7 a5" REQUIRED_HEX VERSION_HEX "615f 00",       /* a name that may not be published */
        "d9d9f7 a5" REQUIRED_HEX VERSION_HEX "60 00",         /* even none */
        "d9d9f7 a5" REQUIRED_HEX VERSION_HEX "616e 7f6161ff", /* text in chunks is not `is_text` */
    };

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        ck_assert_msg(decode_hex(good[i]) == CBOR_OK, "%s", good[i]);
}
END_TEST

START_TEST(attributes_of_other_types_are_kept)
{
    struct bytes in = unit_from_hex("d9d9f7 a7" REQUIRED_HEX VERSION_HEX "616e 1a00010000"
                                    "6474696d65 c1 1a514b67b0"
                                    "6162 c061 61");
    struct event event;
    struct buf out;

    ck_assert_int_eq(event_decode(in, &event), CBOR_OK);
    ck_assert_uint_eq(event.n_attributes, 7);
    for (size_t i = 4; i < 7; i++)
        ck_assert(!event.attributes[i].is_text);
    ck_assert_ptr_null(event_get(&event, "n").data);
    unit_assert_hex(event.attributes[4].item, "1a00010000");
    unit_assert_hex(event.attributes[5].item, "c11a514b67b0");
    unit_assert_hex(event.attributes[6].item, "c06161"); /* tag 0 is the time's alone */

    ck_assert_int_eq(encode(&event, &out), 0);
    ck_assert_int_eq(event_decode(buf_bytes(&out), &event), CBOR_OK);
    ck_assert_uint_eq(event.n_attributes, 7);
    buf_deinit(&out);
    unit_free(in);
}
END_TEST

START_TEST(time_is_taken_with_and_without_its_tag)
{
    static const char *const times[] = {"c0 6178", "6178"};

    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        char hex[256];
        struct event event;

        (void)snprintf(hex, sizeof hex, "d9d9f7 a5%s%s 6474696d65 %s", REQUIRED_HEX, VERSION_HEX,
                       times[i]);
        struct bytes in = unit_from_hex(hex);
        ck_assert_int_eq(event_decode(in, &event), CBOR_OK);
        unit_assert_text(event_get(&event, "time"), "x");
        unit_free(in);
    }
}
END_TEST

START_TEST(anything_else_is_opaque)
{
    static const struct {
        const char *hex;
        enum content_kind kind;
        enum cbor_fault fault;
    } cases[] = {
        {"", CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"7b7d", CONTENT_OPAQUE, CBOR_FAULT_TYPE}, /* {} in JSON */
        {"d9d9f7", CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"d9d9f7 80", CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"d9d9f7 bc", CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"d9d9f6 a0", CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"da0000d9f7 a0", CONTENT_OPAQUE, CBOR_FAULT_TYPE}, /* the tag in a longer head */
        {"a4" REQUIRED_HEX VERSION_HEX, CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"d2", CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"d2 a0", CONTENT_OPAQUE, CBOR_FAULT_TYPE},
        {"d2 84 40a04040", CONTENT_SIGNED, CBOR_FAULT_TYPE},
        {"d2 9f", CONTENT_SIGNED, CBOR_FAULT_TYPE},
        {"d9d9f7 a0", CONTENT_UNSIGNED, CBOR_FAULT_REQUIRED},
        {"d9d9f7 bfff", CONTENT_UNSIGNED, CBOR_FAULT_REQUIRED},
        {"d9d9f7 bb", CONTENT_UNSIGNED, CBOR_FAULT_TRUNCATED},
        {"d9d9f7 bb8000000000000000", CONTENT_UNSIGNED, CBOR_FAULT_TRUNCATED},
        {SMALLEST_HEX "00", CONTENT_UNSIGNED, CBOR_FAULT_TRAILING},
        {"d9d9f7 a3" REQUIRED_HEX, CONTENT_UNSIGNED, CBOR_FAULT_REQUIRED},
        {"d9d9f7 a4" REQUIRED_HEX "6b7370656376657273696f6e 63312e31", CONTENT_UNSIGNED,
         CBOR_FAULT_REQUIRED}, /* 1.1 */
        {"d9d9f7 a4" REQUIRED_HEX "6b7370656376657273696f6e f93c00", CONTENT_UNSIGNED,
         CBOR_FAULT_REQUIRED}, /* the number 1.0 */
        {"d9d9f7 a4 626964 60 6474797065 6174 66736f75726365 622f73" VERSION_HEX, CONTENT_UNSIGNED,
         CBOR_FAULT_REQUIRED}, /* an empty id */
        {"d9d9f7 a5" REQUIRED_HEX VERSION_HEX "00 00", CONTENT_UNSIGNED, CBOR_FAULT_TYPE},
        {"d9d9f7 a5" REQUIRED_HEX VERSION_HEX "4161 00", CONTENT_UNSIGNED, CBOR_FAULT_TYPE},
        {"d9d9f7 a5" REQUIRED_HEX VERSION_HEX "7f6161ff 00", CONTENT_UNSIGNED, CBOR_FAULT_TYPE},
        {"d9d9f7 a5" REQUIRED_HEX VERSION_HEX "61ff 00", CONTENT_UNSIGNED, CBOR_FAULT_UTF8},
        {"d9d9f7 a5" REQUIRED_HEX VERSION_HEX "626964 6169", CONTENT_UNSIGNED,
         CBOR_FAULT_DUPLICATE},
        {"d9d9f7 a6" REQUIRED_HEX VERSION_HEX "6464617461 00 6464617461 00", CONTENT_UNSIGNED,
         CBOR_FAULT_DUPLICATE},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes in = unit_from_hex(cases[i].hex);

        ck_assert_msg(content_kind_of(in) == cases[i].kind, "%s", cases[i].hex);
        ck_assert_msg(decode_hex(cases[i].hex) == cases[i].fault, "%s: %s", cases[i].hex,
                      cbor_fault_text(decode_hex(cases[i].hex)));
        unit_free(in);
    }
}
END_TEST

/* Cut anywhere, or with any byte replaced: nothing is read outside, and whatever is still taken for
 * an event comes back from the encoder, unless a name is not to be published. */
START_TEST(damaged_events_do_no_harm)
{
    struct event event;
    struct buf out;
    size_t n_good = 0;

    begin(&event);
    ck_assert_int_eq(event_add(&event, "time", "2026-01-02T03:04:05Z"), 0);
    ck_assert_int_eq(event_add(&event, "n", "v"), 0);
    struct bytes data = unit_from_hex("8301f5a0");
    event.data = data;
    ck_assert_int_eq(encode(&event, &out), 0);

    for (size_t size = 0; size < out.size; size++) {
        struct bytes cut = unit_exact((struct bytes){out.data, size});

        ck_assert_int_eq(event_decode(cut, &event),
                         size < 4 ? CBOR_FAULT_TYPE : CBOR_FAULT_TRUNCATED);
        unit_free(cut);
    }
    struct bytes damaged = unit_exact(buf_bytes(&out));
    uint8_t *raw = (uint8_t *)(uintptr_t)damaged.data;

    for (size_t at = 0; at < damaged.size; at++) {
        for (unsigned value = 0; value < 256; value++) {
            struct event first, second;
            struct buf again;

            raw[at] = (uint8_t)value;
            if (event_decode(damaged, &first) != CBOR_OK)
                continue;
            n_good++;
            if (encode(&first, &again) == 0) {
                ck_assert_int_eq(event_decode(buf_bytes(&again), &second), CBOR_OK);
                ck_assert_uint_eq(second.n_attributes, first.n_attributes);
                ck_assert(bytes_equal(second.data, first.data));
            }
            buf_deinit(&again);
        }
        raw[at] = out.data[at];
    }
    ck_assert_uint_ge(n_good, 1000);
    unit_free(damaged);
    unit_free(data);
    buf_deinit(&out);
}
END_TEST

START_TEST(ids_are_uuid_version_7)
{
    static const struct {
        int64_t ms;
        const char *start;
    } cases[] = {
        {0, "00000000-0000-7"},
        {INT64_C(0x017F22E279B0), "017f22e2-79b0-7"}, /* RFC 9562, appendix A.6 */
        {(INT64_C(1) << 48) - 1, "ffffffff-ffff-7"},
        {INT64_C(1) << 48, "ffffffff-ffff-7"},
        {INT64_MAX, "ffffffff-ffff-7"},
        {-1, "00000000-0000-7"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char id[EVENT_ID_SIZE + 1];

        memset(id, '#', sizeof id);
        event_new_id(cases[i].ms, id);
        ck_assert_int_eq(id[EVENT_ID_SIZE], '#');
        ck_assert_uint_eq(strlen(id), EVENT_ID_SIZE - 1);
        ck_assert_msg(strncmp(id, cases[i].start, strlen(cases[i].start)) == 0, "%s", id);
        for (size_t k = 0; k < EVENT_ID_SIZE - 1; k++)
            ck_assert(k == 8 || k == 13 || k == 18 || k == 23
                          ? id[k] == '-'
                          : strchr("0123456789abcdef", id[k]) != NULL);
        ck_assert(strchr("89ab", id[19]) != NULL);
    }
}
END_TEST

START_TEST(ids_rise_with_the_millisecond_and_are_random_within)
{
    char before[EVENT_ID_SIZE] = "", id[EVENT_ID_SIZE];
    bool differs[EVENT_ID_SIZE] = {false};

    for (int64_t ms = 1767312000000; ms < 1767312000000 + 1000; ms++) {
        event_new_id(ms, id);
        ck_assert_str_lt(before, id);
        memcpy(before, id, sizeof id);
    }
    for (int i = 0; i < 1000; i++) {
        event_new_id(1767312000000, id);
        ck_assert_str_ne(before, id);
        for (size_t k = 0; k < EVENT_ID_SIZE - 1; k++)
            differs[k] = differs[k] || (i > 0 && id[k] != before[k]);
        memcpy(before, id, sizeof id);
    }
    for (size_t k = 0; k < EVENT_ID_SIZE - 1; k++) /* 74 random bits behind 48 of time */
        ck_assert_msg(differs[k] == (k > 14 && k != 18 && k != 23), "character %zu", k);
}
END_TEST

UNIT_MAIN("event", smallest_event_has_these_bytes, full_event_has_these_bytes,
          order_of_adding_does_not_matter, decoded_is_what_was_encoded, attributes_have_a_limit,
          encoding_refuses_what_is_no_event, data_is_exactly_one_item,
          data_may_nest_as_deep_as_the_envelope_leaves, decoding_takes_other_encodings_of_a_map,
          attributes_of_other_types_are_kept, time_is_taken_with_and_without_its_tag,
          anything_else_is_opaque, damaged_events_do_no_harm, ids_are_uuid_version_7,
          ids_rise_with_the_millisecond_and_are_random_within)
