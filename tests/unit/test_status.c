/* SPDX-License-Identifier: PostgreSQL */
#include "router.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "codec/cbor.h"
#include "durable_registry.h"
#include "fake_journal.h"
#include "unit.h"

static struct journal journal;
static struct durables durables;
static struct settings settings = {.journal_size = 1 << 30};

/* A router that has not begun: nothing in it is open, and its journal is empty. */
static struct router *new_router(void)
{
    struct router *r = calloc(1, sizeof *r);

    ck_assert_ptr_nonnull(r);
    fake_journal_init(&journal);
    journal.end.empty = true;
    durables = (struct durables){.journal = &journal};
    r->source.slot = "shop_bus";
    r->settings = &settings;
    r->journal = &journal;
    r->durables = &durables;
    return r;
}

static void free_router(struct router *r)
{
    buf_deinit(&r->source.last_error);
    free(r);
}

/* What a look-up of a streaming router finds. */
static void look_up(struct router *r)
{
    r->source.state = SOURCE_STREAMING;
    r->source.has_facts = true;
    r->source.facts = (struct server_facts){
        .slot_wal_status = "reserved",
        .slot_restart_lsn = 0x16B3000,
        .slot_confirmed_flush_lsn = 0x16B3748,
        .slot_retained_bytes = 1864,
        .slot_safe_wal_size = -1,
    };
}

/* The answer, one well-formed item, on the heap as by unit_exact. */
static struct bytes status_of(struct router *r)
{
    struct buf out = BUF_INIT;

    router_put_status(r, &out);
    ck_assert(!out.failed);
    ck_assert_int_eq(cbor_check(buf_bytes(&out), NULL), CBOR_OK);
    struct bytes status = unit_exact(buf_bytes(&out));
    buf_deinit(&out);
    return status;
}

/* The value of a key, which must be there once. */
static struct bytes value_of(struct bytes map, const char *key)
{
    struct cbor_reader r = cbor_reader_init(map);
    struct bytes name, value, found = {NULL, 0};
    uint64_t n;

    ck_assert_int_eq(cbor_read_map(&r, &n), CBOR_OK);
    for (; n > 0; n--) {
        ck_assert_int_eq(cbor_read_text(&r, &name), CBOR_OK);
        ck_assert_int_eq(cbor_read_item(&r, &value), CBOR_OK);
        if (!bytes_equal(name, bytes_of_text(key)))
            continue;
        ck_assert_msg(!found.data, "\"%s\" stands twice", key);
        found = value;
    }
    ck_assert_msg(found.data, "\"%s\" is missing", key);
    return found;
}

/* A value as JSON, as `walbus status --json` prints it. */
static void assert_json(struct bytes map, const char *key, const char *want)
{
    struct buf json = BUF_INIT;

    ck_assert_int_eq(cbor_print_json(value_of(map, key), &json), CBOR_OK);
    ck_assert_msg(strcmp(buf_str(&json), want) == 0, "%s is %s, not %s", key, buf_str(&json), want);
    buf_deinit(&json);
}

static enum cbor_kind kind_of(struct bytes item)
{
    struct cbor_reader r = cbor_reader_init(item);
    struct cbor_head h;

    ck_assert_int_eq(cbor_read_head(&r, &h), CBOR_OK);
    ck_assert(!h.indefinite);
    if (h.type == CBOR_SIMPLE)
        ck_assert(h.arg == CBOR_SIMPLE_NULL || h.arg == CBOR_SIMPLE_TRUE || h.arg == CBOR_SIMPLE_FALSE);
    return h.type;
}

/* ---- the contract: keys and types ---- */

struct key {
    const char *name;
    enum cbor_kind kind;
    bool may_be_null;
};

static void assert_keys(struct bytes map, const struct key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        enum cbor_kind kind = kind_of(value_of(map, keys[i].name));

        ck_assert_msg(kind == keys[i].kind || (keys[i].may_be_null && kind == CBOR_SIMPLE),
                      "\"%s\" is of the type %d", keys[i].name, (int)kind);
    }
}

static const struct key router_keys[] = {
    {"state", CBOR_TEXT, false},
    {"pid", CBOR_UINT, false},
    {"version", CBOR_TEXT, false},
    {"system_identifier", CBOR_TEXT, false},
    {"timeline", CBOR_UINT, false},
    {"position", CBOR_TEXT, false},
    {"slot", CBOR_MAP, false},
    {"journal", CBOR_MAP, false},
    {"messages", CBOR_UINT, false},
    {"turned_away", CBOR_UINT, false},
    {"refused", CBOR_UINT, false},
    {"connects", CBOR_UINT, false},
    {"heartbeat_age_ms", CBOR_UINT, true},
    {"memory_bytes", CBOR_UINT, false},
    {"sessions", CBOR_ARRAY, false},
    {"subscriptions", CBOR_ARRAY, false},
    {"last_error", CBOR_TEXT, true},
};

static const struct key slot_keys[] = {
    {"name", CBOR_TEXT, false},
    {"restart_lsn", CBOR_TEXT, false},
    {"confirmed_flush_lsn", CBOR_TEXT, false},
    {"wal_status", CBOR_TEXT, false},
    {"retained_bytes", CBOR_UINT, false},
    {"safe_wal_size", CBOR_UINT, true},
    {"mark", CBOR_TEXT, false},
};

static const struct key session_keys[] = {
    {"id", CBOR_UINT, false},       {"pid", CBOR_UINT, false},
    {"uid", CBOR_UINT, false},      {"state", CBOR_TEXT, false},
    {"filters", CBOR_ARRAY, false}, {"exclude", CBOR_ARRAY, false},
    {"position", CBOR_TEXT, false}, {"live", CBOR_SIMPLE, false}, {"queued_bytes", CBOR_UINT, false},
    {"messages", CBOR_UINT, false},
};

START_TEST(keys_and_types)
{
    struct router *r = new_router();
    struct session session = {.id = 1};
    struct bytes name, status = status_of(r), list;

    assert_keys(status, router_keys, ARRAY_SIZE(router_keys));
    assert_keys(value_of(status, "slot"), slot_keys, 1); /* the name alone, before a look-up */
    unit_free(status);

    look_up(r);
    r->sessions = &session;
    r->n_sessions = 1;
    r->source.heartbeat.received_at = clock_monotonic_ns();
    buf_append_str(&r->source.last_error, "No.");
    r->source.facts.slot_safe_wal_size = 1 << 20;
    status = status_of(r);
    assert_keys(status, router_keys, ARRAY_SIZE(router_keys));
    assert_keys(value_of(status, "slot"), slot_keys, ARRAY_SIZE(slot_keys));
    list = value_of(status, "sessions");
    struct cbor_reader at = cbor_reader_init(list);
    uint64_t n;
    ck_assert_int_eq(cbor_read_array(&at, &n), CBOR_OK);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(cbor_read_item(&at, &name), CBOR_OK);
    assert_keys(name, session_keys, ARRAY_SIZE(session_keys));
    unit_free(status);
    free_router(r);
}
END_TEST

/* ---- values ---- */

START_TEST(before_the_first_connect)
{
    struct router *r = new_router();
    struct bytes status = status_of(r);
    char pid[24];

    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    assert_json(status, "state", "\"connecting\"");
    assert_json(status, "pid", pid);
    assert_json(status, "version", "\"" WALBUS_VERSION "\"");
    assert_json(status, "system_identifier", "\"0\"");
    assert_json(status, "timeline", "0");
    assert_json(status, "position", "\"0:0/0:0\"");
    assert_json(status, "slot", "{\"name\":\"shop_bus\"}");
    assert_json(status, "journal", "{\"bytes\":0,\"limit_bytes\":1073741824}");
    assert_json(status, "messages", "0");
    assert_json(status, "heartbeat_age_ms", "null");
    assert_json(status, "sessions", "[]");
    assert_json(status, "subscriptions", "[]");
    assert_json(status, "last_error", "null");
    unit_free(status);
    free_router(r);
}
END_TEST

START_TEST(while_it_streams)
{
    struct router *r = new_router();

    look_up(r);
    r->source.continuity.system_identifier = UINT64_MAX;
    r->source.continuity.timeline = 3;
    r->source.reconnects = 4;
    r->source.stream.feedback.mark = 0x16B3800;
    r->progress = (struct position){3, 0x1000016B37, 2};
    r->messages = 5;
    r->listener.refused = 7;
    r->refusals.total = 9;
    r->pool.live_bytes = 1000;
    r->reads.pool.live_bytes = 70000;
    struct bytes status = status_of(r);
    assert_json(status, "state", "\"streaming\"");
    /* Text: as a number most readers of JSON would round it. */
    assert_json(status, "system_identifier", "\"18446744073709551615\"");
    assert_json(status, "timeline", "3");
    assert_json(status, "position", "\"3:10/16B37:2\"");
    assert_json(status, "slot",
                "{\"name\":\"shop_bus\",\"restart_lsn\":\"0/16B3000\","
                "\"confirmed_flush_lsn\":\"0/16B3748\",\"wal_status\":\"reserved\","
                "\"retained_bytes\":1864,\"safe_wal_size\":null,\"mark\":\"0/16B3800\"}");
    assert_json(status, "messages", "5");
    assert_json(status, "turned_away", "7");
    assert_json(status, "refused", "9");
    assert_json(status, "connects", "4");
    assert_json(status, "memory_bytes", "71000");
    unit_free(status);
    free_router(r);
}
END_TEST

/* What was acknowledged since the look-up counts; in recovery nothing is known of retained WAL. */
START_TEST(what_a_look_up_cannot_know)
{
    struct router *r = new_router();

    look_up(r);
    r->source.stream.feedback.reported = 0x16B3749;
    r->source.facts.slot_retained_bytes = -1;
    r->source.facts.slot_safe_wal_size = 0;
    struct bytes status = status_of(r), slot = value_of(status, "slot");
    assert_json(slot, "confirmed_flush_lsn", "\"0/16B3749\"");
    assert_json(slot, "retained_bytes", "-1");
    assert_json(slot, "safe_wal_size", "0");
    unit_free(status);
    r->source.stream.feedback.reported = 0x16B3747;
    status = status_of(r);
    assert_json(value_of(status, "slot"), "confirmed_flush_lsn", "\"0/16B3748\"");
    unit_free(status);
    free_router(r);
}
END_TEST

START_TEST(states)
{
    struct router *r = new_router();

    for (int state = SOURCE_STOPPED; state <= SOURCE_GIVEN_UP; state++) {
        const char *want = state == SOURCE_STREAMING ? "\"streaming\"" : state == SOURCE_GIVEN_UP ? "\"refused\"" : "\"connecting\"";
        const char *used = strcmp(want, "\"connecting\"") == 0 ? "\"waiting\"" : want;
        struct bytes status;

        r->source.state = (enum source_state)state;
        status = status_of(r);
        assert_json(status, "state", want);
        unit_free(status);
        r->source.in_use = true; /* somebody else reads the slot */
        status = status_of(r);
        assert_json(status, "state", used);
        unit_free(status);
        r->source.in_use = false;
        for (int phase = ROUTER_DRAINING; phase <= ROUTER_ENDED; phase++) {
            r->phase = (enum router_phase)phase;
            status = status_of(r);
            assert_json(status, "state", "\"stopping\"");
            unit_free(status);
        }
        r->phase = ROUTER_RUNNING;
    }
    free_router(r);
}
END_TEST

START_TEST(heartbeat_age)
{
    struct router *r = new_router();
    uint64_t age;

    /* One that came 5 s ago, or since the machine's start when that is less. */
    uint64_t now = clock_monotonic_ns(), ago = MIN(now - 1, UINT64_C(5000000000));
    r->source.heartbeat.received_at = now - ago;
    struct bytes status = status_of(r);
    struct cbor_reader at = cbor_reader_init(value_of(status, "heartbeat_age_ms"));
    ck_assert_int_eq(cbor_read_uint(&at, &age), CBOR_OK);
    ck_assert_uint_ge(age, ago / 1000000);
    ck_assert_uint_le(age, (clock_monotonic_ns() - now + ago) / 1000000);
    unit_free(status);
    free_router(r);
}
END_TEST

START_TEST(with_a_journal)
{
    struct session holder = {.id = 7, .pid = 70, .state = SESSION_ACTIVE};
    struct durable_filters filters = {0};
    struct durable billing = {.name = bytes_of_text("billing"), .filters = &filters, .cursor = {1, 200, 0}};
    struct durable paying = {.name = bytes_of_text("paying"), .filters = &filters, .cursor = {1, 300, 0},
                             .holder = &holder, .holder_pid = 70};
    struct durable *all[] = {&billing, &paying};
    struct router *r = new_router();

    journal.end.empty = false;
    for (uint64_t lsn = 100; lsn <= 300; lsn += 100)
        fake_journal_add(&journal, (struct position){1, lsn, 0}, "a", 10);
    durables.all = all;
    durables.n = 2;
    billing.measured = (struct durable_measured){
        .known = true, .at = billing.cursor, .messages = 2, .bytes = 20, .received_time = clock_realtime_us() - 90500000};
    holder.durable = &paying;
    r->sessions = &holder;
    r->n_sessions = 1;
    struct bytes status = status_of(r);
    char want[128];
    (void)snprintf(want, sizeof want, "{\"bytes\":%llu,\"limit_bytes\":1073741824,\"oldest\":\"1:0/0:0\",\"newest\":\"1:0/12C:0\"}",
                   (unsigned long long)journal_size(&journal));
    assert_json(status, "journal", want);
    assert_json(status, "subscriptions",
                "[{\"name\":\"billing\",\"position\":\"1:0/C8:0\",\"lag_messages\":1,\"lag_bytes\":10,"
                "\"lag_seconds\":90,\"connected\":false,\"filters\":[],\"exclude\":[]},"
                "{\"name\":\"paying\",\"position\":\"1:0/12C:0\",\"lag_messages\":0,\"lag_bytes\":0,"
                "\"lag_seconds\":0,\"connected\":true,\"pid\":70,\"filters\":[],\"exclude\":[]}]");
    assert_json(status, "sessions",
                "[{\"id\":7,\"name\":\"paying\",\"pid\":70,\"uid\":0,\"state\":\"active\",\"filters\":[],"
                "\"exclude\":[],\"position\":\"0:0/0:0\",\"live\":true,\"queued_bytes\":0,\"messages\":0}]");
    unit_free(status);
    free_router(r);
}
END_TEST

START_TEST(paused)
{
    struct router *r = new_router();
    static char name[] = "billing";

    look_up(r);
    r->retention.paused = true;
    r->retention.pinned_by = name;
    struct bytes status = status_of(r);
    assert_json(status, "state", "\"paused\"");
    assert_json(status, "last_error",
                "\"the journal is full, and the durable subscription billing needs its oldest messages\"");
    unit_free(status);
    r->retention.paused = false;
    r->journal_error = ENOSPC;
    status = status_of(r);
    assert_json(status, "state", "\"paused\"");
    assert_json(status, "last_error", "\"the journal cannot be written: No space left on device\"");
    unit_free(status);
    /* room would change nothing any more */
    r->retention.paused = true;
    r->source.state = SOURCE_GIVEN_UP;
    buf_append_str(&r->source.last_error, "The slot is gone.");
    status = status_of(r);
    assert_json(status, "state", "\"refused\"");
    assert_json(status, "last_error", "\"The slot is gone.\"");
    unit_free(status);
    free_router(r);
}
END_TEST

/* Two keys more, and no place for them where there is nothing to say. */
START_TEST(a_suspended_name)
{
    struct durable_filters filters = {0};
    struct durable d = {.name = unit_bytes("a"), .filters = &filters, .measured = {.known = true}}, *list[] = {&d};
    struct router *r = new_router();
    struct bytes status, names, name;
    uint64_t n;

    durables.all = list;
    durables.n = 1;
    journal.end.empty = false;
    for (int suspended = 0; suspended < 2; suspended++) {
        if (suspended)
            d.mark = (struct durable_mark){.since = 1768473000000000, .why = "It cannot be read."};
        status = status_of(r);
        names = value_of(status, "subscriptions");
        struct cbor_reader at = cbor_reader_init(names);
        ck_assert_int_eq(cbor_read_array(&at, &n), CBOR_OK);
        ck_assert_int_eq(cbor_read_item(&at, &name), CBOR_OK);
        at = cbor_reader_init(name);
        ck_assert_int_eq(cbor_read_map(&at, &n), CBOR_OK);
        ck_assert_uint_eq(n, suspended ? 10 : 8);
        if (suspended) {
            assert_json(name, "suspended", "\"It cannot be read.\"");
            assert_json(name, "suspended_since", "\"2026-01-15T10:30:00.000000Z\"");
        }
        unit_free(status);
    }
    free_router(r);
}
END_TEST

START_TEST(sessions)
{
    struct filter filters[] = {
        {FILTER_PATTERN, unit_bytes("orders.>")},       {FILTER_EXACT, unit_bytes("a")},
        {FILTER_STARTS_WITH, unit_bytes("neon-file:")}, {FILTER_PATTERN, unit_bytes("caf\xc3\xa9")},
        {FILTER_PATTERN, unit_bytes("fifth")},          {FILTER_PATTERN, unit_bytes("sixth")}};
    struct filter exclusion = {FILTER_PATTERN, unit_bytes("orders.*.debug")};
    struct session second = {.id = 2, .pid = 20, .uid = 1000, .state = SESSION_READY};
    struct session first = {
        .next = &second,
        .id = 1,
        .pid = 10,
        .state = SESSION_ACTIVE,
        .member = {.filters = filters, .n_filters = 6, .exclusions = &exclusion, .n_exclusions = 1},
        .told = {1, 0x16B3748, 2},
        .outbox = {.charge = 100},
        .messages = 9,
    };
    struct router *r = new_router();

    r->sessions = &first;
    r->n_sessions = 2;
    struct bytes status = status_of(r);
    assert_json(status, "sessions",
                "[{\"id\":1,\"pid\":10,\"uid\":0,\"state\":\"active\",\"filters\":[\"orders.>\","
                "\"exact:a\",\"starts-with:neon-file:\",\"caf\xc3\xa9\",\"and 2 more\"],"
                "\"exclude\":[\"orders.*.debug\"],\"position\":\"1:0/16B3748:2\","
                "\"live\":true,\"queued_bytes\":100,\"messages\":9},"
                "{\"id\":2,\"pid\":20,\"uid\":1000,\"state\":\"ready\",\"filters\":[],"
                "\"exclude\":[],\"position\":\"0:0/0:0\",\"live\":false,\"queued_bytes\":0,\"messages\":0}]");
    unit_free(status);
    free_router(r);
}
END_TEST

/* Filters may hold any bytes and be long; of the text that is shown, 48 bytes are the most. */
START_TEST(long_and_odd_filters)
{
    static const char long_ascii[] = "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeX";
    static const char whole[] = "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeee";
    uint8_t odd[48];
    struct filter filters[] = {
        {FILTER_PATTERN, unit_bytes(long_ascii)},
        {FILTER_EXACT, unit_bytes(whole)},
        {FILTER_STARTS_WITH, {(const uint8_t *)"\xff\n\x1b", 3}},
        {FILTER_PATTERN, {odd, sizeof odd}},
    };
    struct session session = {.member = {.filters = filters, .n_filters = 4}};
    struct router *r = new_router();

    memset(odd, 0xfe, sizeof odd);
    r->sessions = &session;
    r->n_sessions = 1;
    struct bytes status = status_of(r);
    struct cbor_reader at = cbor_reader_init(value_of(status, "sessions"));
    struct bytes item;
    uint64_t n;
    ck_assert_int_eq(cbor_read_array(&at, &n), CBOR_OK);
    ck_assert_int_eq(cbor_read_item(&at, &item), CBOR_OK);
    assert_json(item, "filters",
                "[\"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeee...\","
                "\"exact:aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeee\","
                "\"starts-with:\\\\xff\\\\n\\\\x1b\","
                "\"\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\\\xfe\\"
                "\\xfe...\"]");
    unit_free(status);
    free_router(r);
}
END_TEST

/* A character is shown whole, by its bytes, or not at all, wherever the 48 bytes end: status_of checks
 * that the answer is UTF-8. */
START_TEST(filters_cut_within_a_character)
{
    uint8_t text[64];
    struct filter filter = {FILTER_PATTERN, {text, 0}};
    struct session session = {.member = {.filters = &filter, .n_filters = 1}};
    struct router *r = new_router();

    r->sessions = &session;
    r->n_sessions = 1;
    for (size_t before = 44; before <= 48; before++) {
        memset(text, 'a', before);
        memcpy(text + before, "\xf0\x9f\x9a\x8c", 4);
        filter.text.size = before + 4;
        unit_free(status_of(r));
    }
    /* What is no UTF-8 is escaped and then cut. */
    for (size_t before = 0; before < 4; before++) {
        memset(text, 'a', before);
        text[before] = 0xff;
        filter.text.size = before + 1;
        while (filter.text.size + 4 <= 48) {
            memcpy(text + filter.text.size, "\xf0\x9f\x9a\x8c", 4);
            filter.text.size += 4;
        }
        unit_free(status_of(r));
    }
    free_router(r);
}
END_TEST

/* Whatever the clients subscribe to, the answer is one control frame. */
START_TEST(the_largest_answer_fits_into_a_frame)
{
    static uint8_t odd[FILTER_TEXT_MAX];
    static struct filter filters[FILTERS_MAX];
    struct session *all = calloc(ROUTER_SESSIONS_MAX, sizeof *all);
    struct router *r = new_router();

    ck_assert_ptr_nonnull(all);
    memset(odd, 0xff, sizeof odd);
    for (size_t i = 0; i < FILTERS_MAX; i++)
        filters[i] = (struct filter){FILTER_STARTS_WITH, {odd, sizeof odd}};
    for (size_t i = 0; i < ROUTER_SESSIONS_MAX; i++)
        all[i] = (struct session){
            .next = i + 1 < ROUTER_SESSIONS_MAX ? &all[i + 1] : NULL,
            .id = UINT64_MAX,
            .pid = INT32_MAX,
            .uid = UINT32_MAX,
            .state = SESSION_WAITING,
            .member = {.filters = filters,
                       .n_filters = FILTERS_MAX,
                       .exclusions = filters,
                       .n_exclusions = FILTERS_MAX},
            .told = {UINT32_MAX, UINT64_MAX, UINT32_MAX},
            .outbox = {.charge = SIZE_MAX},
            .messages = UINT64_MAX,
        };
    /* and as many names, the longest, with as many filters, each of them held */
    static char name[CATALOG_NAME_MAX + 1];
    static struct durable names[CATALOG_NAMES_MAX], *list[CATALOG_NAMES_MAX];
    static struct durable_filters kept = {.filters = filters, .exclusions = filters, .n_filters = FILTERS_MAX, .n_exclusions = FILTERS_MAX};
    memset(name, 'n', CATALOG_NAME_MAX);
    for (size_t i = 0; i < CATALOG_NAMES_MAX; i++) {
        names[i] = (struct durable){.name = {(const uint8_t *)name, CATALOG_NAME_MAX}, .filters = &kept,
                                    .cursor = {UINT32_MAX, UINT64_MAX - 1, UINT32_MAX}, .holder = &all[i], .holder_pid = INT32_MAX,
                                    .measured = {.known = true},
                                    .mark = {.since = INT64_MAX / 1000, .at = {UINT32_MAX, UINT64_MAX, 0}}};
        memset(names[i].mark.why, 'w', CATALOG_REASON_MAX);
        list[i] = &names[i];
        all[i].durable = &names[i];
    }
    durables.all = list;
    durables.n = CATALOG_NAMES_MAX;
    journal.end.empty = false;
    r->sessions = all;
    r->n_sessions = ROUTER_SESSIONS_MAX;
    look_up(r);
    struct bytes status = status_of(r);
    ck_assert_uint_le(status.size, FRAME_CONTROL_MAX - 4096); /* and room for a long last_error */
    unit_free(status);
    free(all);
    free_router(r);
}
END_TEST

/* Foreign text is made UTF-8: an error in the server's own encoding, a slot's name as it was given. */
START_TEST(foreign_text)
{
    struct router *r = new_router();

    buf_append_str(&r->source.last_error, "FATAL: \xe9"
                                          "chec");
    r->source.slot = "\xff";
    struct bytes status = status_of(r);
    assert_json(status, "last_error", "\"FATAL: \\\\xe9chec\"");
    assert_json(value_of(status, "slot"), "name", "\"\\\\xff\"");
    unit_free(status);
    free_router(r);
}
END_TEST

UNIT_MAIN("status", keys_and_types, before_the_first_connect, while_it_streams,
          what_a_look_up_cannot_know, states, heartbeat_age, a_suspended_name, sessions, long_and_odd_filters,
          filters_cut_within_a_character, the_largest_answer_fits_into_a_frame, foreign_text, with_a_journal, paused)
