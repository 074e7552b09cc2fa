/* SPDX-License-Identifier: PostgreSQL */
#include "print.h"

#include <errno.h>
#include <string.h>

#include "client/delivery.h"
#include "answer.h"
#include "print_status.h"
#include "unit.h"

/* 2024-03-01T12:00:00.000001Z and the second behind it. */
#define COMMITTED INT64_C(1709294400000001)
#define RECEIVED  INT64_C(1709294401000000)

/* An event without `data`: d9d9f7 and {id: "1", type: "t", source: "/s", specversion: "1.0"} */
#define EVENT_HEAD_OF(pairs)                                              \
    "d9d9f7 a" pairs " 626964 6131 6474797065 6174 66736f75726365 622f73" \
    " 6b7370656376657273696f6e 63312e30 "
#define EVENT_JSON "\"id\":\"1\",\"type\":\"t\",\"source\":\"/s\",\"specversion\":\"1.0\""
#define DATA       "6464617461 " /* the key */
#define JSON_HEAD                                                            \
    "{\"position\":\"1:0/16B3748:2\",\"lsn\":\"0/16B3700\",\"commit_time\":" \
    "\"2024-03-01T12:00:00.000001Z\",\"index\":2,\"xid\":4294967295,"        \
    "\"transactional\":true,\"redelivered\":false,\"prefix\":\"orders.created\","
#define TEXT_HEAD "2024-03-01T12:00:00.000001Z orders.created"

static struct frame_message message(struct bytes content)
{
    return (struct frame_message){
        .position = {1, 0x16B3748, 2},
        .lsn = 0x16B3700,
        .xid = UINT32_MAX,
        .commit_time = COMMITTED,
        .received_time = RECEIVED,
        .prefix = unit_bytes("orders.created"),
        .content = content,
        .flags = FRAME_FLAG_TRANSACTIONAL,
    };
}

static void printed_as(const struct frame_message *m, struct print print, bool redelivered,
                       const char *want)
{
    struct walbus_delivery d;
    struct buf out = BUF_INIT;

    delivery_message(&d, m, redelivered, false);
    ck_assert(print_message(&print, &d, &out));
    ck_assert(!out.failed);
    unit_assert_text(buf_bytes(&out), want);
    buf_deinit(&out);
}

/** Content of hex digits in every format; NULL for cloudevents: skipped. */
static void content_as(const char *hex, const char *text, const char *json, const char *cloudevents)
{
    struct bytes content = unit_from_hex(hex);
    struct frame_message m = message(content);
    struct print print = {.format = PRINT_CLOUDEVENTS};
    struct buf out = BUF_INIT, want = BUF_INIT;
    struct walbus_delivery d;

    buf_printf(&want, TEXT_HEAD "%s\n", text);
    printed_as(&m, (struct print){.format = PRINT_TEXT}, false, buf_str(&want));
    buf_clear(&want);
    buf_printf(&want, JSON_HEAD "%s}\n", json);
    printed_as(&m, (struct print){.format = PRINT_JSON}, false, buf_str(&want));

    delivery_message(&d, &m, false, false);
    ck_assert_int_eq(print_message(&print, &d, &out), cloudevents != NULL);
    ck_assert_uint_eq(print.skipped, cloudevents ? 0 : 1);
    buf_clear(&want);
    if (cloudevents)
        buf_printf(&want, "%s\n", cloudevents);
    unit_assert_text(buf_bytes(&out), buf_str(&want));

    buf_clear(&out);
    print.format = PRINT_RAW;
    ck_assert(print_message(&print, &d, &out));
    ck_assert(bytes_equal(buf_bytes(&out), content));
    buf_deinit(&out);
    buf_deinit(&want);
    unit_free(content);
}

START_TEST(events)
{
    content_as(EVENT_HEAD_OF("4"), "", "\"event\":{" EVENT_JSON "}", "{" EVENT_JSON "}");
    content_as(EVENT_HEAD_OF("5") DATA "a1 616e 182a", " {\"n\": 42}",
               "\"event\":{" EVENT_JSON ",\"data\":{\"n\":42}}",
               "{" EVENT_JSON ",\"data\":{\"n\":42}}");
    /* time as tag 0, an attribute that is a number, one that is a byte string */
    content_as(
        EVENT_HEAD_OF("7") "6474696d65 c0 74323032342d30332d30315431323a30303a30305a"
                           "6161 20 6162 43ffee00",
        "", "\"event\":{" EVENT_JSON ",\"time\":\"2024-03-01T12:00:00Z\",\"a\":-1,\"b\":\"/+4A\"}",
        "{" EVENT_JSON ",\"time\":\"2024-03-01T12:00:00Z\",\"a\":-1,\"b\":\"/+4A\"}");
}
END_TEST

START_TEST(big_numbers_stay_exact)
{
    content_as(EVENT_HEAD_OF("5") DATA "82 1bffffffffffffffff 3bffffffffffffffff",
               " [18446744073709551615, -18446744073709551616]",
               "\"event\":{" EVENT_JSON ",\"data\":[18446744073709551615,-18446744073709551616]}",
               "{" EVENT_JSON ",\"data\":[18446744073709551615,-18446744073709551616]}");
}
END_TEST

START_TEST(data_of_bytes_is_data_base64)
{
    content_as(EVENT_HEAD_OF("5") DATA "42fbff", " h'fbff'",
               "\"event\":{" EVENT_JSON ",\"data_base64\":\"+/8=\"}",
               "{" EVENT_JSON ",\"data_base64\":\"+/8=\"}");
    content_as(EVENT_HEAD_OF("5") DATA "5f 41fb 41ff ff", " (_ h'fb', h'ff')",
               "\"event\":{" EVENT_JSON ",\"data_base64\":\"+/8=\"}",
               "{" EVENT_JSON ",\"data_base64\":\"+/8=\"}");
    content_as(EVENT_HEAD_OF("5") DATA "40", " h''",
               "\"event\":{" EVENT_JSON ",\"data_base64\":\"\"}",
               "{" EVENT_JSON ",\"data_base64\":\"\"}");
}
END_TEST

START_TEST(control_characters_in_data)
{
    /* "\x1b[2J", DEL, U+009B, U+202E */
    content_as(EVENT_HEAD_OF("5") DATA "6a 1b5b324a 7f c29b e280ae",
               " \"\\u001b[2J\\u007f\\u009b\\u202e\"",
               "\"event\":{" EVENT_JSON ",\"data\":\"\\u001b[2J\\u007f\\u009b\\u202e\"}",
               "{" EVENT_JSON ",\"data\":\"\\u001b[2J\\u007f\\u009b\\u202e\"}");
}
END_TEST

START_TEST(opaque_content)
{
    content_as("", " opaque:", "\"payload\":\"\"", NULL);
    content_as("68c3a9 0a 1b 5c 22", " opaque: h\xc3\xa9\\n\\x1b\\\\\"",
               "\"payload\":\"h\xc3\xa9\\n\\u001b\\\\\\\"\"", NULL);
    content_as("ff00fe", " opaque: h'ff00fe'", "\"payload_base64\":\"/wD+\"", NULL);
    content_as("fffe", " opaque: h'fffe'", "\"payload_base64\":\"//4=\"", NULL);
    /* what begins as an event or a signed one does, but is none */
    content_as("d9d9f7 a0", " opaque: h'd9d9f7a0'", "\"payload_base64\":\"2dn3oA==\"", NULL);
    content_as("d2 84 40 a0 40 40", " (malformed) opaque: h'd28440a04040'",
               "\"payload_base64\":\"0oRAoEBA\",\"signature\":{\"status\":\"malformed\"}", NULL);
}
END_TEST

/* By a key "k" that nobody has, with the payload EVENT_HEAD_OF("4") less its tag, or with data null. */
#define SIGNED_AROUND(payload)                                                        \
    "d284 53 a301270441 6b 10 6b 77616c6275732b636f7365 a0" payload                   \
    "5840" "0000000000000000000000000000000000000000000000000000000000000000"          \
    "0000000000000000000000000000000000000000000000000000000000000000"
#define MAP_OF(pairs)                                                      \
    "a" pairs " 626964 6131 6474797065 6174 66736f75726365 622f73"         \
    " 6b7370656376657273696f6e 63312e30 "

START_TEST(signed_events)
{
    content_as(SIGNED_AROUND("5827" MAP_OF("4")), " (unknown-key 6b)",
               "\"event\":{" EVENT_JSON "},\"signature\":{\"status\":\"unknown-key\",\"kid\":\"6b\"}",
               "{" EVENT_JSON "}");
    content_as(SIGNED_AROUND("582d" MAP_OF("5") DATA "f6"), " (unknown-key 6b) null",
               "\"event\":{" EVENT_JSON ",\"data\":null},"
               "\"signature\":{\"status\":\"unknown-key\",\"kid\":\"6b\"}",
               "{" EVENT_JSON ",\"data\":null}");
    /* signed, but no event */
    content_as(SIGNED_AROUND("41 f6"),
               " (unknown-key 6b) opaque: h'd28453a3012704416b106b77616c6275732b636f7365a041f65840"
               "0000000000000000000000000000000000000000000000000000000000000000"
               "0000000000000000000000000000000000000000000000000000000000000000'",
               "\"payload_base64\":\"0oRTowEnBEFrEGt3YWxidXMrY29zZaBB9lhAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
               "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\","
               "\"signature\":{\"status\":\"unknown-key\",\"kid\":\"6b\"}",
               NULL);
}
END_TEST

/* As if it had been verified so. */
static void verified_as(enum verify_status status, struct print print, const char *want)
{
    struct bytes content = unit_from_hex(SIGNED_AROUND("5827" MAP_OF("4")));
    struct frame_message m = message(content);
    struct walbus_delivery d;
    struct buf out = BUF_INIT;

    delivery_message(&d, &m, false, true);
    d.verified = (struct verify_result){.status = status};
    if (status != VERIFY_UNSIGNED)
        d.verified.kid = unit_bytes("k");
    ck_assert(print_message(&print, &d, &out));
    unit_assert_text(buf_bytes(&out), want);
    buf_deinit(&out);
    unit_free(content);
}

START_TEST(what_a_signature_is_worth)
{
    struct print text = {.format = PRINT_TEXT, .trust = true};
    struct print coloured = {.format = PRINT_TEXT, .trust = true, .colour = true};
    struct print json = {.format = PRINT_JSON, .trust = true};

    verified_as(VERIFY_VALID, text, TEXT_HEAD " (valid 6b)\n");
    verified_as(VERIFY_NOT_ALLOWED, text, TEXT_HEAD " (not-allowed 6b)\n");
    verified_as(VERIFY_STALE, text, TEXT_HEAD " (stale 6b)\n");
    verified_as(VERIFY_UNSIGNED, text, TEXT_HEAD " (unsigned)\n");
    text.trust = false; /* nothing is expected to be signed */
    verified_as(VERIFY_UNSIGNED, text, TEXT_HEAD "\n");
    verified_as(VERIFY_BAD_SIGNATURE, text, TEXT_HEAD " (bad-signature 6b)\n");
    verified_as(VERIFY_VALID, coloured,
                "\033[2m2024-03-01T12:00:00.000001Z\033[0m \033[1;36morders.created\033[0m "
                "\033[32m(valid 6b)\033[0m\n");
    verified_as(VERIFY_STALE, coloured,
                "\033[2m2024-03-01T12:00:00.000001Z\033[0m \033[1;36morders.created\033[0m "
                "\033[33m(stale 6b)\033[0m\n");
    verified_as(VERIFY_VALID, json,
                JSON_HEAD "\"event\":{" EVENT_JSON
                          "},\"signature\":{\"status\":\"valid\",\"kid\":\"6b\"}}\n");
    verified_as(VERIFY_UNSIGNED, json, JSON_HEAD "\"event\":{" EVENT_JSON "}}\n");
}
END_TEST

START_TEST(prefixes)
{
    static const struct {
        const char *prefix, *text, *json;
    } cases[] = {
        {"", "\"\"", "\"prefix\":\"\""},
        {"a b", "\"a b\"", "\"prefix\":\"a b\""},
        {"a\x1b]0;x\x07\n", "a\\x1b]0;x\\x07\\n", "\"prefix\":\"a\\u001b]0;x\\u0007\\n\""},
        {"a.\xff", "a.\\xff", "\"prefix_base64\":\"YS7/\""},
        {"\xc3\xb6.\xc2\x85", "\xc3\xb6.\\u{85}", "\"prefix\":\"\xc3\xb6.\\u0085\""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct frame_message m = message(unit_bytes("x"));
        struct buf want = BUF_INIT;

        m.prefix = unit_bytes(cases[i].prefix);
        m.flags = 0;
        m.position = (struct position){3, UINT64_C(0x1FFFFFFFF), 0};
        m.xid = 0;
        m.commit_time = 0;
        buf_printf(&want,
                   "{\"position\":\"3:1/FFFFFFFF:0\",\"lsn\":\"0/16B3700\",\"index\":0,"
                   "\"transactional\":false,\"redelivered\":true,%s,\"payload\":\"x\"}\n",
                   cases[i].json);
        printed_as(&m, (struct print){.format = PRINT_JSON}, true, buf_str(&want));
        buf_clear(&want);
        buf_printf(&want, "2024-03-01T12:00:01.000000Z %s opaque: x\n", cases[i].text);
        printed_as(&m, (struct print){.format = PRINT_TEXT}, false, buf_str(&want));
        buf_deinit(&want);
    }
}
END_TEST

START_TEST(colours_only_when_asked_for)
{
    struct frame_message m = message(unit_bytes("x"));

    printed_as(&m, (struct print){.format = PRINT_TEXT, .colour = true}, false,
               "\033[2m2024-03-01T12:00:00.000001Z\033[0m \033[1;36morders.created\033[0m "
               "\033[33mopaque:\033[0m x\n");
    printed_as(&m, (struct print){.format = PRINT_TEXT, .colour = true}, true,
               "\033[2m2024-03-01T12:00:00.000001Z\033[0m \033[1;36morders.created\033[0m "
               "\033[33m(redelivered)\033[0m \033[33mopaque:\033[0m x\n");
}
END_TEST

START_TEST(what_comes_again_is_marked)
{
    struct frame_message m = message(unit_bytes("x"));

    printed_as(&m, (struct print){.format = PRINT_TEXT}, true,
               TEXT_HEAD " (redelivered) opaque: x\n");
    printed_as(&m, (struct print){.format = PRINT_RAW}, true, "x");
}
END_TEST

static void gap_as(const struct frame_gap *gap, const char *reason, const char *json,
                   const char *sentence)
{
    struct print print = {.format = PRINT_JSON};
    struct walbus_delivery d;
    struct buf out = BUF_INIT;

    delivery_gap(&d, gap, reason);
    ck_assert(print_gap(&print, &d, &out));
    unit_assert_text(buf_bytes(&out), json);
    buf_clear(&out);
    for (print.format = PRINT_TEXT; print.format <= PRINT_RAW; print.format++)
        if (print.format != PRINT_JSON)
            ck_assert(!print_gap(&print, &d, &out));
    ck_assert_uint_eq(out.size, 0);
    print_gap_sentence(&d, &out);
    unit_assert_text(buf_bytes(&out), sentence);
    buf_deinit(&out);
}

START_TEST(gaps)
{
    struct frame_gap gap = {
        .from = {1, 0x10, 1}, .to = {1, 0x20, POSITION_INDEX_END}, .messages = 7, .bytes = 1000};

    gap_as(&gap, "retention\x1b",
           "{\"gap\":{\"from\":\"1:0/10:1\",\"to\":\"1:0/20:4294967295\",\"messages\":7,"
           "\"bytes\":1000,\"reason\":\"retention\\u001b\"}}\n",
           "Messages may be missing from 1:0/10:1 to 1:0/20:4294967295, 7 messages, 1000 bytes: "
           "retention\\x1b");
    gap.messages = gap.bytes = 1;
    gap_as(&gap, "r",
           "{\"gap\":{\"from\":\"1:0/10:1\",\"to\":\"1:0/20:4294967295\",\"messages\":1,"
           "\"bytes\":1,\"reason\":\"r\"}}\n",
           "Messages may be missing from 1:0/10:1 to 1:0/20:4294967295, 1 message, 1 byte: r");
    gap.messages = gap.bytes = UINT64_MAX;
    gap_as(&gap, "",
           "{\"gap\":{\"from\":\"1:0/10:1\",\"to\":\"1:0/20:4294967295\",\"reason\":\"\"}}\n",
           "Messages may be missing from 1:0/10:1 to 1:0/20:4294967295");
}
END_TEST

START_TEST(names_of_formats)
{
    enum print_format format = PRINT_RAW;

    ck_assert_int_eq(print_format_parse("cloudevents", &format), 0);
    ck_assert_int_eq(format, PRINT_CLOUDEVENTS);
    ck_assert_int_eq(print_format_parse("text", &format), 0);
    ck_assert_int_eq(format, PRINT_TEXT);
    ck_assert_int_eq(print_format_parse("JSON", &format), -EINVAL);
    ck_assert_int_eq(print_format_parse("", &format), -EINVAL);
}
END_TEST

START_TEST(base64_has_its_padding)
{
    static const char *const want[] = {
        "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"}; /* RFC 4648 section 10 */

    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        struct buf out = BUF_INIT;

        print_base64(&out, (struct bytes){(const uint8_t *)"foobar", i});
        unit_assert_text(buf_bytes(&out), want[i]);
        buf_deinit(&out);
    }
}
END_TEST

/* ---- status ---- */

START_TEST(a_status_for_people)
{
    /* {state: "streaming", pid: 17, heartbeat_age_ms: 1234, last_error: null,
        slot: {name: "w\x1b", retained_bytes: 1536}, sessions: [{id: 1, filters: ["a", "b"],
        position: "0:0/0:0"}, {position: "1:0/2A:0"}], none: [], later: {}} */
    struct bytes status =
        unit_from_hex("a8 657374617465 6973747265616d696e67 63706964 11"
                      "70 6865617274 626561745f6167655f6d73 1904d2 6a6c6173745f6572726f72 f6"
                      "64736c6f74 a2 646e616d65 62771b 6e72657461696e65645f6279746573 190600"
                      "6873657373696f6e73 82 a3 626964 01 6766696c74657273 82 6161 6162"
                      "68706f736974696f6e 67303a302f303a30 a1 68706f736974696f6e 68313a302f32413a30"
                      "646e6f6e65 80 656c61746572 a0");
    struct buf out = BUF_INIT;

    ck_assert_int_eq(print_status(status, &out), 0);
    unit_assert_text(buf_bytes(&out), "state                   streaming\n"
                                      "pid                     17\n"
                                      "heartbeat age           1.2 s\n"
                                      "last error              -\n"
                                      "slot\n"
                                      "  name                  w\\x1b\n"
                                      "  retained              1.5 kB\n"
                                      "sessions\n"
                                      "  - id 1, filters a b, position -\n"
                                      "  - position 1:0/2A:0\n"
                                      "none                    -\n"
                                      "later                   -\n");
    unit_assert_text(answer_text(status, "state"), "streaming");
    ck_assert_uint_eq(answer_text(status, "pid").size, 0);
    ck_assert_uint_eq(answer_text(status, "nothing").size, 0);
    buf_deinit(&out);
    unit_free(status);
}
END_TEST

START_TEST(sizes_and_times)
{
    static const struct {
        uint64_t n;
        const char *size, *time;
    } cases[] = {
        {0, "0 B", "0 s"},           {119, "119 B", "119 s"},
        {120, "120 B", "2 min"},     {1024, "1.0 kB", "17 min"},
        {7199, "7.0 kB", "119 min"}, {7200, "7.0 kB", "2 h"},
        {172800, "168.8 kB", "2 d"}, {UINT64_C(1) << 50, "1024.0 TB", "13031248921 d"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf out = BUF_INIT;

        print_size(&out, cases[i].n);
        unit_assert_text(buf_bytes(&out), cases[i].size);
        buf_clear(&out);
        print_seconds(&out, cases[i].n);
        unit_assert_text(buf_bytes(&out), cases[i].time);
        buf_deinit(&out);
    }
}
END_TEST

START_TEST(a_subscription_in_a_status)
{
    /* {subscriptions: [{name: "billing", lag_bytes: 1536, lag_seconds: 300, lag_messages: 7, connected: true}]} */
    struct bytes status =
        unit_from_hex("a1 6d 737562736372697074696f6e73 81 a5 64 6e616d65 67 62696c6c696e67"
                      "69 6c61675f6279746573 190600 6b 6c61675f7365636f6e6473 19012c"
                      "6c 6c61675f6d65737361676573 07 69 636f6e6e6563746564 f5");
    struct buf out = BUF_INIT;
    uint64_t n;

    ck_assert_int_eq(print_status(status, &out), 0);
    unit_assert_text(buf_bytes(&out),
                     "subscriptions\n"
                     "  - name billing, lag 1.5 kB, lag 5 min, lag messages 7, connected true\n");
    struct answer_walk w;
    struct bytes key = {NULL, 0}, entry;
    ck_assert(answer_walk_start(&w, answer_item(status, "subscriptions"), CBOR_ARRAY));
    ck_assert(answer_walk_next(&w, &key, &entry));
    unit_assert_text(answer_text(entry, "name"), "billing");
    ck_assert(answer_uint(entry, "lag_messages", &n));
    ck_assert_uint_eq(n, 7);
    ck_assert(!answer_uint(entry, "name", &n) && !answer_uint(entry, "nothing", &n));
    ck_assert(!answer_walk_next(&w, &key, &entry));
    ck_assert_uint_eq(w.left, 0);
    ck_assert(!answer_walk_start(&w, status, CBOR_ARRAY));
    ck_assert_ptr_null(answer_item(answer_item(status, "nothing"), "name").data);
    buf_deinit(&out);
    unit_free(status);
}
END_TEST

START_TEST(a_status_that_is_none)
{
    static const char *const bad[] = {"", "80", "a1", "a1 01 02", "a1 6161 01 00", "bf ff"};

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct bytes status = unit_from_hex(bad[i]);
        struct buf out = BUF_INIT;

        ck_assert_int_eq(print_status(status, &out), -EINVAL);
        ck_assert_uint_eq(answer_text(status, "state").size, 0);
        buf_deinit(&out);
        unit_free(status);
    }
}
END_TEST

UNIT_MAIN("print", events, big_numbers_stay_exact, data_of_bytes_is_data_base64,
          control_characters_in_data, opaque_content, signed_events,
          what_a_signature_is_worth, prefixes, colours_only_when_asked_for,
          what_comes_again_is_marked, sizes_and_times, a_subscription_in_a_status, gaps,
          names_of_formats, base64_has_its_padding, a_status_for_people, a_status_that_is_none)
