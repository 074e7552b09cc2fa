/* SPDX-License-Identifier: PostgreSQL */
/*
 * The examples of docs/protocol.md and docs/format.md, from their values: the encoders write the
 * documented bytes, the decoders read the values back. What marks an example is said in
 * tests/integration/harness/document.py, which replays the same ones over sockets.
 */
#include <ctype.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "codec/control.h"
#include "codec/event.h"
#include "codec/frame.h"
#include "codec/signed_event.h"
#include "codec/verify.h"
#include "journal/record.h"
#include "unit.h"

#define TEXT(s)                             \
    {                                       \
        (const uint8_t *)(s), sizeof(s) - 1 \
    }

/* ---- the pages ---- */

/* A page as a C string; free it. */
static char *read_page(const char *name)
{
    const char *root = getenv("WALBUS_SOURCE_ROOT");
    char path[PATH_MAX];
    struct buf page = BUF_INIT;
    size_t n;

    (void)snprintf(path, sizeof path, "%s/docs/%s", root ? root : ".", name);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    do {
        uint8_t *to = buf_reserve(&page, 65536);
        ck_assert_ptr_nonnull(to);
        n = fread(to, 1, 65536, file);
        page.size += n;
    } while (n > 0);
    ck_assert_int_eq(fclose(file), 0);
    char *text = strdup(buf_str(&page));
    ck_assert_ptr_nonnull(text);
    buf_deinit(&page);
    return text;
}

/* The next block whose first line begins with "```" and `kind`; *info is the rest of that line, *body
 * the lines in it. Both are on the heap. */
static bool next_block(const char **at, const char *kind, char **info, char **body)
{
    char opening[32];

    (void)snprintf(opening, sizeof opening, "\n```%s", kind);
    size_t size = strlen(opening);
    for (const char *found = strstr(*at, opening); found; found = strstr(found + 1, opening)) {
        const char *rest = found + size, *line = strchr(rest, '\n');
        if (*rest != ' ' && *rest != '\n')
            continue;
        const char *end = strstr(line, "\n```");
        ck_assert_ptr_nonnull(end);
        *info = strndup(*rest == ' ' ? rest + 1 : rest, (size_t)(line - rest) - (*rest == ' '));
        *body = strndup(line + 1, end > line ? (size_t)(end - line - 1) : 0);
        ck_assert(*info && *body);
        *at = end + 1; /* before the end's own "\n```" */
        return true;
    }
    return false;
}

/* The bytes of a hex block: without comments, and without the names of fields. */
static struct bytes bytes_of_block(const char *body)
{
    char *bare = malloc(strlen(body) + 1), *to = bare;

    ck_assert_ptr_nonnull(bare);
    for (const char *at = body; *at;) {
        if (*at == '#')
            at += strcspn(at, "\n");
        else if (*at == '<')
            at += strcspn(at, " ");
        else if (isxdigit((unsigned char)*at))
            *to++ = *at++;
        else
            at++;
    }
    *to = '\0';
    struct bytes bytes = unit_from_hex(bare);
    free(bare);
    return bytes;
}

/* The bytes of the one block "```KIND INFO". Free with unit_free. */
static struct bytes documented(const char *page, const char *kind, const char *wanted)
{
    struct bytes bytes = {NULL, 0};
    char *info, *body;
    bool found = false;

    while (next_block(&page, kind, &info, &body)) {
        if (strcmp(info, wanted) == 0) {
            ck_assert_msg(!found, "%s stands twice", wanted);
            bytes = bytes_of_block(body);
            found = true;
        }
        free(info);
        free(body);
    }
    ck_assert_msg(found, "%s is not on the page", wanted);
    return bytes;
}

/* ---- frames ---- */

#define T0 INT64_C(1768473000123456) /* 2026-01-15T10:30:00.123456Z */
#define NOW             \
    {                   \
        1, 0x16B3600, 0 \
    }
#define IDENTITY TEXT("7595371246853562370/1")

static struct filter orders[] = {{FILTER_PATTERN, TEXT("orders.>")}};
static struct filter everything[] = {{FILTER_PATTERN, TEXT(">")}};
static struct filter each_kind[] = {{FILTER_PATTERN, TEXT("orders.*")},
                                    {FILTER_EXACT, TEXT("gr\xc3\xb6\xc3\x9f"
                                                        "e")},
                                    {FILTER_STARTS_WITH, TEXT("neon-file:")}};
static struct filter internal[] = {{FILTER_PATTERN, TEXT("orders.internal")}};

static const struct {
    const char *name;
    struct control_hello c;
} hellos[] = {
    {"client hello", {1, 1, 1, TEXT("docs")}},
    {"client hello-newer", {2, 3, 1, {NULL, 0}}},
};

static const struct {
    const char *name;
    struct control_subscribe c;
} subscribes[] = {
    {"client subscribe", {.filters = orders, .n_filters = 1, .start = CONTROL_START_NOW}},
    {"client subscribe-stored",
     {.filters = everything,
      .n_filters = 1,
      .name = TEXT("billing"),
      .start = CONTROL_START_STORED,
      .take_over = true}},
    {"client subscribe-durable",
     {.filters = orders, .n_filters = 1, .name = TEXT("billing"), .start = CONTROL_START_NOW}},
    {"client subscribe-oldest",
     {.filters = everything, .n_filters = 1, .start = CONTROL_START_OLDEST}},
    {"client subscribe-time",
     {.filters = everything,
      .n_filters = 1,
      .start = CONTROL_START_TIME,
      .time = INT64_C(1768467600000000)}},
    {"client subscribe-beyond",
     {.filters = everything,
      .n_filters = 1,
      .start = CONTROL_START_POSITION,
      .position = {1, 0xFFFFFFFF00000000, 1}}},
    {"client subscribe-position",
     {.filters = everything,
      .n_filters = 1,
      .start = CONTROL_START_POSITION,
      .position = {1, 0x1000000, UINT32_MAX}}},
};

static const struct {
    const char *name;
    struct control_subscribed c;
} subscribeds[] = {
    {"router subscribed", {.position = NOW, .identity = IDENTITY, .timeline = 1}},
    {"router subscribed-position",
     {.position = {1, 0x1000000, UINT32_MAX}, .identity = IDENTITY, .timeline = 1}},
    {"router durable-stored",
     {.position = {1, 0x16D0200, 0},
      .stored = true,
      .redelivered_to = {1, 0x16D0240, 0},
      .identity = IDENTITY,
      .timeline = 1}},
    {"router journal-subscribed",
     {.position = {1, 0x2000100, 2},
      .stored = true,
      .redelivered_to = {1, 0x2000100, 3},
      .identity = IDENTITY,
      .timeline = 1}},
};

static const struct {
    const char *name;
    bool acked;
    struct control_ack c;
} acks[] = {
    {"client ack", false, {{1, 0x16B3748, UINT32_MAX}, true}},
    {"router acked", true, {{1, 0x16B3748, UINT32_MAX}, false}},
    {"client ack-beyond", false, {{1, 0xFFFFFFFF00000000, 0}, false}},
    {"client stop-ack", false, {{1, 0x16D0100, 0}, false}},
    {"client durable-ack", false, {{1, 0x16D0200, 0}, true}},
    {"router durable-acked", true, {{1, 0x16D0200, 0}, false}},
};

static const struct {
    const char *name;
    struct control_request c;
} requests[] = {
    {"client request", {1, TEXT("status"), {NULL, 0}}},
    {"client request-unknown",
     {2, TEXT("compact"),
      TEXT("\xa1\x64name\x67"
           "billing")}},
    {"client request-seek",
     {3, TEXT("seek"),
      TEXT("\xa2\x64name\x67"
           "billing\x68position\x66oldest")}},
};

static const struct {
    const char *name;
    struct control_error c;
} errors[] = {
    {"router error-unknown-name",
     {TEXT("unknown-name"), TEXT("there is no durable subscription of this name"), .fatal = false}},
    {"router error-held",
     {TEXT("held"), TEXT("process 4711 holds the durable subscription; stop it first"),
      .has_id = true, .id = 3}},
    {"router error-beyond",
     {TEXT("invalid"), TEXT("the position lies beyond the server's WAL"), .fatal = false}},
    {"router error-request",
     {TEXT("unsupported"), TEXT("this router does not know that request; it knows: status, subscriptions, remove, seek, reload, "
           "quarantine-list, quarantine-show, quarantine-drop, quarantine-release"),
      .has_id = true, .id = 2}},
    {"router error-unknown",
     {TEXT("protocol"), TEXT("a client does not send frame type 0x7e (unknown)"), .fatal = true}},
    {"router error-version",
     {TEXT("version"), TEXT("protocol versions 2 to 3 offered, this router speaks 1"),
      .fatal = true}},
    {"router error-timeout", {TEXT("timeout"), TEXT("no HELLO within 10 s"), .fatal = true}},
    {"router error-ack",
     {TEXT("invalid"), TEXT("ACK of 1:FFFFFFFF/0:0, but nothing beyond 1:0/16B3600:0 was sent"),
      .fatal = true}},
    {"router error-stopping",
     {TEXT("stopping"), TEXT("the router is being stopped"), .fatal = true}},
    {"client error-client",
     {TEXT("protocol"), TEXT("MESSAGE: Its length cannot be right."), .fatal = true}},
};

static const struct {
    const char *name;
    struct frame_begin f;
} begins[] = {
    {"router begin", {1, 0x16B3748, T0, 731, 0}},
    {"router filters-begin", {1, 0x16C0010, T0, 740, 0}},
    {"router journal-resumed", {1, 0x2000100, T0, 801, FRAME_FLAG_RESUMED}},
    {"router journal-begin", {1, 0x2000400, T0 + 5000000, 802, 0}},
    {"router journal-open", {1, 0x2000800, T0 + 6000000, 803, 0}},
};

static const struct {
    const char *name;
    struct frame_commit f;
} commits[] = {
    {"router commit", {{1, 0x16B3748, T0, 731, 0}, 0x16B3778, 3}},
    {"router filters-commit", {{1, 0x16C0010, T0, 740, 0}, 0x16C0040, 6}},
    {"router journal-commit", {{1, 0x2000100, T0, 801, 0}, 0x2000130, 4}},
    {"router journal-incomplete",
     {{1, 0x2000400, T0 + 5000000, 802, FRAME_FLAG_INCOMPLETE}, 0x2000430, 5}},
};

#define TRANSACTIONAL(lsn, index, own, xid, time, received, prefix, content)    \
    {                                                                           \
        {1, lsn, index}, own, xid, time, received, TEXT(prefix), TEXT(content), \
            FRAME_FLAG_TRANSACTIONAL                                            \
    }
#define PAID                                                   \
    "\xd9\xd9\xf7\xa4\x62id\x78\x24"                           \
    "018f4d3c-7a10-7c3e-9b1a-2f5f0c6a1d42\x64type\x6b"         \
    "orders.paid\x66source\x6c/shop/orders\x6bspecversion\x63" \
    "1.0"

static const struct {
    const char *name;
    struct frame_message f;
} messages[] = {
    {"router message",
     TRANSACTIONAL(0x16B3748, 1, 0x16B36A0, 731, T0, T0 + 310, "orders.created", "order 17")},
    {"router message-3",
     TRANSACTIONAL(0x16B3748, 3, 0x16B3730, 731, T0, T0 + 310, "orders.paid", PAID)},
    {"router message-alone",
     {{1, 0x16B37C0, 0}, 0x16B37C0, 0, 0, T0 + 2000000, TEXT("orders.seen"), {NULL, 0}, 0}},
    {"router filters-pattern",
     TRANSACTIONAL(0x16C0010, 2, 0x16BFF00, 740, T0, T0 + 250, "orders.created", "2")},
    {"router filters-exact", TRANSACTIONAL(0x16C0010, 3, 0x16BFF40, 740, T0, T0 + 250,
                                           "gr\xc3\xb6\xc3\x9f"
                                           "e",
                                           "3")},
    {"router filters-starts",
     TRANSACTIONAL(0x16C0010, 5, 0x16BFFC0, 740, T0, T0 + 250, "neon-file:a/b", "5")},
    {"router durable-first",
     {{1, 0x16D0200, 0}, 0x16D0200, 0, 0, T0 + 3000000, TEXT("orders.seen"), TEXT("first"), 0}},
    {"router durable-second",
     {{1, 0x16D0240, 0}, 0x16D0240, 0, 0, T0 + 4000000, TEXT("orders.seen"), TEXT("second"), 0}},
    {"router stop-message",
     {{1, 0x16D0100, 0}, 0x16D0100, 0, 0, T0 + 9000000, TEXT("orders.seen"), TEXT("last"), 0}},
    {"router journal-again",
     TRANSACTIONAL(0x2000100, 3, 0x20000A0, 801, T0, T0 + 400, "orders.created", "three")},
    {"router journal-new",
     TRANSACTIONAL(0x2000100, 4, 0x20000D0, 801, T0, T0 + 400, "orders.created", "four")},
    {"router journal-first", TRANSACTIONAL(0x2000400, 1, 0x2000370, 802, T0 + 5000000, T0 + 5000200,
                                           "orders.created", "one")},
    {"router journal-open-first", TRANSACTIONAL(0x2000800, 1, 0x2000770, 803, T0 + 6000000,
                                                T0 + 6000200, "orders.created", "one")},
};

static const struct {
    const char *name;
    struct position position;
} progresses[] = {
    {"router progress", {1, 0x16B3890, 0}},
    {"router journal-progress", {1, 0x2000900, 0}},
};

static const struct {
    const char *name;
    struct frame_gap f;
} gaps[] = {
    {"router gap",
     {{1, 0x1000001, 0},
      NOW,
      UINT64_MAX,
      UINT64_MAX,
      TEXT("the journal does not reach back so far any more")}},
    {"router journal-gap",
     {{1, 0x2000400, 2}, {1, 0x2000400, 5}, 4, 2048, TEXT("retention has passed this")}},
    {"router journal-gap-end",
     {{1, 0x2000800, 2},
      {1, 0x2000800, UINT32_MAX},
      UINT64_MAX,
      UINT64_MAX,
      TEXT("the server never finished this transaction")}},
};

/* What no encoder of walbus writes: types and keys that it does not know. */
static const char *const foreign[] = {"client ignorable", "client hello-more", "client unknown",
                                      "router journal-ignorable"};

/* Compares, empties `out`, and counts. */
static void check_frame(const char *page, const char *name, struct buf *out, unsigned *n)
{
    struct bytes want = documented(page, "wire", name);

    ck_assert(!out->failed);
    ck_assert_msg(bytes_equal(buf_bytes(out), want), "%s is written in other bytes", name);
    unit_free(want);
    buf_deinit(out);
    *n += 1;
}

/* Appends what an encoder that writes to memory has written. */
#define PUT(out, room, call)                               \
    do {                                                   \
        ck_assert_ptr_nonnull(buf_reserve((out), (room))); \
        uint8_t *to = (out)->data + (out)->size;           \
        (out)->size += (call);                             \
    } while (0)

static unsigned check_control(const char *page)
{
    struct buf out = BUF_INIT;
    unsigned n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(hellos); i++) {
        control_hello_encode(&hellos[i].c, &out);
        check_frame(page, hellos[i].name, &out, &n);
    }
    struct control_welcome welcome = {
        .version = 1,
        .layout = 1,
        .server = TEXT("walbusd " WALBUS_VERSION),
        .identity = IDENTITY,
        .timeline = 1,
        .position = NOW,
        .max_frame = FRAME_CONTROL_MAX,
        .max_filters = FILTERS_MAX,
    };
    control_welcome_encode(&welcome, &out);
    check_frame(page, "router welcome", &out, &n);
    for (size_t i = 0; i < ARRAY_SIZE(subscribes); i++) {
        control_subscribe_encode(&subscribes[i].c, &out);
        check_frame(page, subscribes[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(subscribeds); i++) {
        control_subscribed_encode(&subscribeds[i].c, &out);
        check_frame(page, subscribeds[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(acks); i++) {
        control_ack_encode(&acks[i].c, acks[i].acked, &out);
        check_frame(page, acks[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(requests); i++) {
        control_request_encode(&requests[i].c, &out);
        check_frame(page, requests[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        control_error_encode(&errors[i].c, &out);
        check_frame(page, errors[i].name, &out, &n);
    }
    return n;
}

/* These two are read first, and written again from what was read. */
static unsigned check_again(const char *page)
{
    char why[CONTROL_WHY_SIZE];
    struct buf out = BUF_INIT;
    struct control_reply reply;
    struct control_subscribe subscribe;
    unsigned n = 0;

    /* its result, the router's status, is compared by the replay against a router */
    struct bytes frame = documented(page, "wire", "router reply");
    struct bytes body = {frame.data + FRAME_HEADER_SIZE, frame.size - FRAME_HEADER_SIZE};
    ck_assert_int_eq(control_reply_decode(body, &reply, why), 0);
    ck_assert_uint_eq(reply.id, 1);
    control_reply_encode(&reply, &out);
    check_frame(page, "router reply", &out, &n);
    unit_free(frame);

    /* has no "start", which the encoder always writes */
    frame = documented(page, "wire", "client subscribe-filters");
    body = (struct bytes){frame.data + FRAME_HEADER_SIZE, frame.size - FRAME_HEADER_SIZE};
    ck_assert_int_eq(control_subscribe_decode(body, &subscribe, why), 0);
    ck_assert_int_eq(subscribe.start, CONTROL_START_NOW);
    ck_assert_uint_eq(subscribe.n_filters, ARRAY_SIZE(each_kind));
    for (size_t i = 0; i < ARRAY_SIZE(each_kind); i++)
        ck_assert(subscribe.filters[i].kind == each_kind[i].kind &&
                  bytes_equal(subscribe.filters[i].text, each_kind[i].text));
    ck_assert_uint_eq(subscribe.n_exclusions, 1);
    ck_assert(bytes_equal(subscribe.exclusions[0].text, internal[0].text));
    control_subscribe_deinit(&subscribe);
    unit_free(frame);
    return n + 1;
}

static unsigned check_data(const char *page)
{
    struct buf out = BUF_INIT;
    unsigned n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(begins); i++) {
        PUT(&out, FRAME_HEADER_SIZE + FRAME_BEGIN_BODY, frame_begin_encode(to, &begins[i].f));
        check_frame(page, begins[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(commits); i++) {
        PUT(&out, FRAME_HEADER_SIZE + FRAME_COMMIT_BODY, frame_commit_encode(to, &commits[i].f));
        check_frame(page, commits[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++) {
        const struct frame_message *f = &messages[i].f;

        PUT(&out, FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + f->prefix.size,
            frame_message_encode_head(to, f));
        buf_append(&out, f->content.data, f->content.size);
        check_frame(page, messages[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(progresses); i++) {
        PUT(&out, FRAME_HEADER_SIZE + FRAME_PROGRESS_BODY,
            frame_progress_encode(to, progresses[i].position));
        check_frame(page, progresses[i].name, &out, &n);
    }
    for (size_t i = 0; i < ARRAY_SIZE(gaps); i++) {
        PUT(&out, FRAME_HEADER_SIZE + FRAME_GAP_FIXED + gaps[i].f.reason.size,
            frame_gap_encode(to, &gaps[i].f));
        check_frame(page, gaps[i].name, &out, &n);
    }
    return n;
}

START_TEST(frames_as_documented)
{
    char *page = read_page("protocol.md"), *info, *body;
    const char *at = page;
    unsigned n = check_control(page) + check_again(page) + check_data(page), blocks = 0;

    for (size_t i = 0; i < ARRAY_SIZE(foreign); i++, n++)
        unit_free(documented(page, "wire", foreign[i]));
    while (next_block(&at, "wire", &info, &body)) {
        blocks++;
        free(info);
        free(body);
    }
    ck_assert_uint_eq(n, blocks); /* none was forgotten here */
    free(page);
}
END_TEST

/* ---- contents ---- */

static const struct {
    const char *name;
    struct event_attribute more[2];
    size_t n_more;
    struct bytes data;
} events[] = {
    {.name = "event-without-data"},
    {"event-with-cbor",
     {{.name = TEXT("time"), .value = TEXT("2026-01-15T10:30:00.123456Z"), .is_text = true},
      {.name = TEXT("subject"), .value = TEXT("17"), .is_text = true}},
     2,
     TEXT("\xa3\x64note\xf6\x65order\x11\x65total\xf9\x56\x38")},
    {"event-with-text",
     {{.name = TEXT("datacontenttype"), .value = TEXT("application/json"), .is_text = true}},
     1,
     TEXT("\x6d{\"order\": 17}")},
    {"event-with-bytes",
     {{.name = TEXT("datacontenttype"),
       .value = TEXT("application/octet-stream"),
       .is_text = true}},
     1,
     TEXT("\x44\x00\x01\xfe\xff")},
    {"event-with-more-attributes",
     {{.name = TEXT("partitionkey"), .value = TEXT("customer-9"), .is_text = true},
      {.name = TEXT("sequence"), .item = TEXT("\x07")}},
     2,
     {NULL, 0}},
};

static void add_required(struct event *event)
{
    ck_assert_int_eq(event_add(event, "specversion", "1.0"), 0);
    ck_assert_int_eq(event_add(event, "id", "018f4d3c-7a10-7c3e-9b1a-2f5f0c6a1d42"), 0);
    ck_assert_int_eq(event_add(event, "source", "/shop/orders"), 0);
    ck_assert_int_eq(event_add(event, "type", "orders.paid"), 0);
}

static void check_decoded(struct bytes content, const struct event *want)
{
    struct event got;

    ck_assert_int_eq(event_decode(content, &got), CBOR_OK);
    ck_assert_uint_eq(got.n_attributes, want->n_attributes);
    ck_assert(bytes_equal(got.data, want->data));
    for (size_t i = 0; i < want->n_attributes; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%.*s", (int)want->attributes[i].name.size,
                       (const char *)want->attributes[i].name.data);
        ck_assert_msg(bytes_equal(event_get(&got, name), want->attributes[i].value), "%s", name);
    }
}

START_TEST(events_as_documented)
{
    char *page = read_page("format.md");
    struct buf out = BUF_INIT;

    for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
        struct event event = {.data = events[i].data};

        add_required(&event);
        for (size_t j = 0; j < events[i].n_more; j++)
            event.attributes[event.n_attributes++] = events[i].more[j];
        struct bytes want = documented(page, "content", events[i].name);
        ck_assert_int_eq(event_encode(&event, &out), 0);
        ck_assert_msg(bytes_equal(buf_bytes(&out), want), "%s is written in other bytes",
                      events[i].name);
        check_decoded(want, &event);
        unit_free(want);
        buf_deinit(&out);
    }
    struct event event = {0};
    add_required(&event);
    struct bytes other = documented(page, "content", "event-in-another-encoding read");
    check_decoded(other, &event);
    unit_free(other);
    free(page);
}
END_TEST

START_TEST(kinds_of_contents_as_documented)
{
    static const struct {
        const char *name;
        enum content_kind kind;
    } rows[] = {
        {"event-with-cbor", CONTENT_UNSIGNED},
        {"event-in-another-encoding read", CONTENT_UNSIGNED},
        {"opaque-without-id", CONTENT_UNSIGNED}, /* by its first bytes */
        {"signed", CONTENT_SIGNED},
        {"opaque-text", CONTENT_OPAQUE},
        {"opaque-bytes", CONTENT_OPAQUE},
        {"opaque-empty", CONTENT_OPAQUE},
    };
    char *page = read_page("format.md");

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct bytes content = documented(page, "content", rows[i].name);
        struct event event;

        ck_assert_msg(content_kind_of(content) == rows[i].kind, "%s", rows[i].name);
        if (strncmp(rows[i].name, "event", 5) != 0)
            ck_assert_int_ne(event_decode(content, &event), CBOR_OK);
        unit_free(content);
    }
    free(page);
}
END_TEST

/* ---- keys and signatures ---- */

/* Both examples of keys are those of the signed event. */
START_TEST(keys_as_documented)
{
    char *page = read_page("format.md");
    struct bytes private_key = documented(page, "key", "private");
    struct bytes public_key = documented(page, "key", "public");
    struct cose_key key, again;
    uint8_t secret[COSE_KEY_SECRET_SIZE], out[COSE_KEY_PRIVATE_ENCODED_MAX];

    ck_assert_int_eq(cose_key_decode_private(private_key, &key, secret), COSE_KEY_OK);
    ck_assert_int_eq(cose_key_decode_public(public_key, &again), COSE_KEY_OK);
    ck_assert_mem_eq(&key, &again, sizeof key);
    unit_assert_hex(cose_key_kid(&key), "866eefbd6718c884");
    ck_assert(bytes_equal(public_key, (struct bytes){out, cose_key_encode_public(&key, out)}));
    ck_assert(
        bytes_equal(private_key, (struct bytes){out, cose_key_encode_private(&key, secret, out)}));
    cose_key_default_kid(&key, out);
    ck_assert(bytes_equal(cose_key_kid(&key), (struct bytes){out, COSE_KEY_KID_DEFAULT_SIZE}));
    unit_free(private_key);
    unit_free(public_key);
    free(page);
}
END_TEST

/* The signed event is what the signer writes, and was signed as the page says. */
START_TEST(signed_events_as_documented)
{
    char *page = read_page("format.md");
    struct bytes wanted = documented(page, "content", "signed"), content;
    struct bytes signed_bytes = documented(page, "content", "signed-bytes");
    struct bytes event = documented(page, "content", "event-with-cbor");
    struct bytes private_key = documented(page, "key", "private");
    struct bytes map = {event.data + EVENT_TAG_SIZE, event.size - EVENT_TAG_SIZE};
    struct signed_event_scope scope = {TEXT("orders.paid"), {NULL, 0}};
    struct buf room = BUF_INIT;
    struct cose_sign1 message;
    struct cose_key key;
    uint8_t secret[COSE_KEY_SECRET_SIZE];

    ck_assert_int_eq(cose_key_decode_private(private_key, &key, secret), COSE_KEY_OK);
    ck_assert_int_eq(signed_event_sign(map, &scope, &key, secret, &room, &content), 0);
    ck_assert(bytes_equal(content, wanted));

    ck_assert_int_eq(signed_event_parse(wanted, &message), COSE_SIGN1_OK);
    ck_assert(bytes_equal(message.payload, map));
    ck_assert_int_eq(signed_event_verify(&message, &key, &scope, &room), 0);
    ck_assert(bytes_equal(buf_bytes(&room), signed_bytes));
    /* by libsodium alone, from what stands on the page */
    ck_assert_int_eq(crypto_sign_verify_detached(message.signature.data, signed_bytes.data,
                                                 signed_bytes.size, key.x),
                     0);
    buf_deinit(&room);
    unit_free(private_key);
    unit_free(event);
    unit_free(signed_bytes);
    unit_free(wanted);
    free(page);
}
END_TEST

/* The trust file is one, and believes the signed event. */
START_TEST(trust_files_as_documented)
{
    char *page = read_page("format.md"), *info, *text;
    const char *at = page;
    struct bytes content = documented(page, "content", "signed");
    const struct verify_scope paid = {TEXT("orders.paid"), {NULL, 0}, INT64_C(1768473000000000)},
                              refunded = {TEXT("orders.refunded"), {NULL, 0}, paid.received_time_us},
                              later = {paid.prefix, {NULL, 0}, INT64_C(1768473601000000)};
    struct buf scratch = BUF_INIT;
    struct verify_result result;
    struct trust_fault fault;
    struct trust *trust;

    ck_assert(next_block(&at, "trust", &info, &text));
    ck_assert_msg(trust_parse(unit_bytes(text), &trust, &fault) == 0, "%s", fault.why);
    ck_assert_uint_eq(trust_at(trust, 0)->n_allow, 2);
    ck_assert_int_eq(verify_content(trust, &paid, content, &scratch, &result), 0);
    ck_assert_int_eq(result.status, VERIFY_VALID);
    ck_assert_int_eq(verify_content(trust, &refunded, content, &scratch, &result), 0);
    ck_assert_int_eq(result.status, VERIFY_BAD_SIGNATURE);
    ck_assert_int_eq(verify_content(trust, &later, content, &scratch, &result), 0);
    ck_assert_int_eq(result.status, VERIFY_STALE);
    (void)trust_free(trust);
    buf_deinit(&scratch);
    unit_free(content);
    free(info);
    free(text);
    free(page);
}
END_TEST

/* ---- the journal ---- */

static const struct segment_header first_segment = {
    .format = JOURNAL_FORMAT,
    .layout = FRAME_LAYOUT,
    .sequence = 1,
    .system_identifier = UINT64_C(7595371246853562370),
    .era = 1,
    .after = NOW,
    .mark = 0x16B3600,
    .mark_timeline = 1,
    .database = "shop",
    .slot = "walbus",
};

static void check_segment_header(const char *page)
{
    struct bytes want = documented(page, "journal", "segment-header");
    struct segment_header read;
    uint8_t out[SEGMENT_HEADER_SIZE];
    char name[SEGMENT_NAME_SIZE];

    segment_header_encode(&first_segment, out);
    ck_assert(bytes_equal((struct bytes){out, sizeof out}, want));
    ck_assert_int_eq(segment_header_decode(want.data, &read), 0);
    ck_assert_str_eq(read.database, "shop");
    ck_assert_str_eq(read.slot, "walbus");
    ck_assert_ptr_nonnull(strstr(page, segment_name_format(read.sequence, read.after, name)));
    unit_free(want);
}

static void check_record(const char *page)
{
    const struct frame_message message = {
        {1, 0x16B37C0, 0}, 0x16B37C0, 0, 0, T0 + 2000000, TEXT("orders.seen"), {NULL, 0}, 0};
    uint8_t frames[FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + 11], out[RECORD_SIZE];
    struct bytes piece = {frames, frame_message_encode_head(frames, &message)};
    struct record record = {
        .size = piece.size,
        .first = message.position,
        .last = message.position,
        .mark = 0x16B37C0,
        .mark_timeline = 1,
        .received_time = T0 + 2000000,
        .running_ms = 2500,
        .messages = 1,
    };
    struct bytes want = documented(page, "journal", "record");

    record_encode(&record, first_segment.previous_checksum, &piece, 1, out);
    ck_assert_uint_eq(want.size, sizeof out + piece.size);
    ck_assert_mem_eq(want.data, out, sizeof out);
    ck_assert_mem_eq(want.data + sizeof out, frames, piece.size);
    ck_assert(record_verify(want.data, 0, (struct bytes){want.data + RECORD_SIZE, piece.size}));
    unit_free(want);
}

static void check_withheld(const char *page)
{
    struct frame_withheld f = {
        .message = {{1, 0x16B37C0, 0}, 0x16B37C0, 0, 0, T0 + 2000000, TEXT("orders.seen"), TEXT("1"), 0},
        .status = VERIFY_UNSIGNED,
    };
    uint8_t frame[FRAME_HEADER_SIZE + FRAME_WITHHELD_BODY];
    struct bytes want = documented(page, "journal", "withheld");

    batch_hash(&f.message, f.hash);
    ck_assert_uint_eq(frame_withheld_encode(frame, &f), want.size);
    ck_assert_mem_eq(want.data, frame, sizeof frame);
    unit_free(want);
}

START_TEST(journal_as_documented)
{
    char *page = read_page("format.md");

    check_segment_header(page);
    check_record(page);
    check_withheld(page);
    free(page);
}
END_TEST

/* ---- positions and filters ---- */

static void check_position_line(const char *line, struct position *last)
{
    char text[64], again[POSITION_TEXT_SIZE];
    uint8_t raw[POSITION_SIZE];
    struct position p;
    size_t size = strcspn(line, " ");

    ck_assert_uint_lt(size, sizeof text);
    (void)snprintf(text, sizeof text, "%.*s", (int)size, line);
    ck_assert_msg(position_parse(text, &p) == 0, "%s", text);
    ck_assert_str_eq(position_format(p, again), text);
    position_encode(p, raw);
    unit_assert_hex((struct bytes){raw, sizeof raw}, line + size);
    ck_assert_int_eq(position_compare(position_decode(raw), p), 0);
    if (!position_is_zero(p)) /* "listed in rising order but for" the zero */
        ck_assert_int_lt(position_compare(*last, p), 0);
    *last = p;
}

START_TEST(positions_as_documented)
{
    char *page = read_page("format.md"), *info, *body, *save;
    const char *at = page;
    struct position last = {0};
    unsigned n = 0;

    ck_assert(next_block(&at, "position", &info, &body));
    for (char *line = strtok_r(body, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++)
        check_position_line(line, &last);
    ck_assert_uint_ge(n, 5);
    free(info);
    free(body);

    at = page;
    ck_assert(next_block(&at, "not-a-position", &info, &body));
    n = 0;
    for (char *line = strtok_r(body, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++)
        ck_assert_msg(position_parse(line, &last) < 0, "'%s'", line);
    ck_assert_uint_ge(n, 5);
    free(info);
    free(body);
    free(page);
}
END_TEST

/* A JSON string without escapes: its inside, and *at behind it. */
static struct bytes take_string(const char **at)
{
    const char *start = strchr(*at, '"'), *end = strchr(start + 1, '"');

    ck_assert(start && end && !memchr(start, '\\', (size_t)(end - start)));
    *at = end + 1;
    return (struct bytes){(const uint8_t *)start + 1, (size_t)(end - start - 1)};
}

START_TEST(filters_as_documented)
{
    static const char *const kinds[] = {"pattern", "exact", "starts-with"};
    char *page = read_page("format.md"), *info, *body, *save;
    const char *at = page;
    unsigned n = 0;

    ck_assert(next_block(&at, "match", &info, &body));
    for (char *line = strtok_r(body, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        struct filter filter = {.kind = FILTER_PATTERN};
        const char *rest = line + strcspn(line, " ");

        while (strncmp(line, kinds[filter.kind], (size_t)(rest - line)) != 0) {
            ck_assert_int_lt(filter.kind, FILTER_STARTS_WITH);
            filter.kind++;
        }
        filter.text = take_string(&rest);
        struct bytes prefix = take_string(&rest);
        rest += strspn(rest, " ");
        ck_assert(strcmp(rest, "yes") == 0 || strcmp(rest, "no") == 0);
        ck_assert_msg(filter_matches(&filter, prefix) == (*rest == 'y'), "%s", line);
    }
    ck_assert_uint_ge(n, 30);
    free(info);
    free(body);
    free(page);
}
END_TEST

UNIT_MAIN("documents", frames_as_documented, events_as_documented, kinds_of_contents_as_documented,
          keys_as_documented, signed_events_as_documented, trust_files_as_documented, journal_as_documented,
          positions_as_documented, filters_as_documented)
