/* SPDX-License-Identifier: PostgreSQL */
/* Retention against a journal of segments that are numbers: the functions of the journal that it calls are made here. */
#include "retention.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "journal/reader.h"
#include "unit.h"

#define MB       (UINT64_C(1) << 20)
#define SEGMENTS 40
/* Among a segment's topics: a GAP stands in it. */
#define GAP (1u << 31)

/* ---- the journal ---- */

/* Segment i holds one message of each topic in its bits, and ends at LSN 100 * (i + 1). */
struct journal {
    unsigned first, end;
    unsigned topics[SEGMENTS];
    uint64_t begun_ms[SEGMENTS], running_ms;
    size_t queued;
    unsigned drop_error, probe_error, probes, dropped, refs;
};

static struct journal journal;

size_t journal_segments(const struct journal *j)
{
    return j->end - j->first;
}

void journal_segment_info(const struct journal *j, size_t i, struct segment_info *ret)
{
    unsigned at = j->first + (unsigned)i;

    *ret = (struct segment_info){
        .sequence = at, .after = {1, 100 * at, 0}, .running_ms = j->begun_ms[at]};
}

uint64_t journal_size(const struct journal *j)
{
    return journal_segments(j) * MB;
}

size_t journal_queued(const struct journal *j)
{
    return j->queued;
}

uint64_t journal_running_ms(const struct journal *j)
{
    return j->running_ms;
}

int journal_drop_first(struct journal *j)
{
    if (j->drop_error)
        return -(int)j->drop_error;
    ck_assert_uint_gt(journal_segments(j), JOURNAL_SEGMENTS_MIN);
    j->first++;
    j->dropped++;
    return 0;
}

struct journal *journal_ref(struct journal *j)
{
    j->refs++;
    return j;
}

struct journal *journal_unref(struct journal *j)
{
    ck_assert_uint_gt(j->refs--, 0);
    return NULL;
}

/* A filter's text is its topic's number. Each message has 10 bytes. */
void journal_probe_first(struct journal *j, struct journal_probe *probes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned topics = j->topics[j->first];

        probes[i].error = (int)j->probe_error;
        probes[i].matches = topics & (1u << (probes[i].filters[0].text.data[0] - '0'));
        probes[i].gap = topics & GAP;
        topics &= ~GAP;
        probes[i].messages = (unsigned)__builtin_popcount(topics);
        probes[i].bytes = 10 * probes[i].messages;
        j->probes++;
    }
}

/* ---- the names ---- */

struct name {
    const char *name, *topic;
    uint64_t cursor, lost_to, lost_messages, filters_made;
    struct filter filter;
};

static struct name names[100];
static size_t n_names;
static unsigned pauses;
static uint64_t passed;
static bool stored;

static struct name *find(const char *name)
{
    for (size_t i = 0; i < n_names; i++)
        if (strcmp(names[i].name, name) == 0)
            return &names[i];
    return NULL;
}

static size_t on_behind(void *owner, struct position last, struct retention_name *out, size_t max)
{
    size_t n = 0;

    (void)owner;
    for (size_t i = 0; i < n_names; i++) {
        struct name *m = &names[i];

        if (m->cursor >= last.lsn || m->lost_to >= last.lsn)
            continue;
        m->filter = (struct filter){FILTER_EXACT, bytes_of_text(m->topic)};
        if (n < max)
            out[n] = (struct retention_name){.name = m->name,
                                             .cursor = {1, m->cursor, 0},
                                             .filters_made = m->filters_made,
                                             .filters = &m->filter,
                                             .n_filters = 1};
        n++;
    }
    return n;
}

static bool on_stands(void *owner, const char *name, struct position cursor, uint64_t filters_made)
{
    const struct name *m = find(name);

    (void)owner;
    return m && m->cursor == cursor.lsn && m->filters_made == filters_made;
}

static void on_pass(void *owner, const char *name, struct position to, uint64_t messages,
                    uint64_t bytes)
{
    (void)owner;
    ck_assert_uint_eq(bytes, 10 * messages);
    passed += messages;
    ck_assert_uint_gt(to.lsn, find(name)->cursor);
    find(name)->cursor = to.lsn;
}

static void on_lost(void *owner, const char *name, struct position to, uint64_t messages,
                    uint64_t bytes)
{
    (void)owner;
    ck_assert(messages == UINT64_MAX ? bytes == UINT64_MAX : bytes == 10 * messages);
    find(name)->lost_to = to.lsn;
    find(name)->lost_messages += messages;
}

static bool on_may_go(void *owner, struct position last)
{
    (void)owner;
    ck_assert_uint_eq(last.lsn, 100 * (journal.first + 1));
    return stored;
}

static void on_held(void *owner)
{
    (void)owner;
    pauses++;
}

static const struct retention_ops ops = {on_behind, on_stands, on_pass,
                                         on_lost,   on_may_go, on_held};

/* ---- fixture ---- */

static uv_loop_t loop;
static struct retention r;
static struct logger silent = {0};

static void setup(struct retention_limits limits, unsigned segments)
{
    journal = (struct journal){.end = segments};
    for (unsigned i = 0; i < SEGMENTS; i++)
        journal.topics[i] = 1;
    n_names = 0;
    pauses = 0;
    passed = 0;
    stored = true;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    retention_init(&r, &loop, &journal, &limits, &ops, NULL, &silent);
}

static void add(const char *name, const char *topic, uint64_t cursor)
{
    names[n_names++] = (struct name){.name = name, .topic = topic, .cursor = cursor};
}

static void check(void)
{
    retention_check(&r);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
}

static void teardown(void)
{
    retention_close(&r);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_uint_eq(journal.refs, 0);
    uv_library_shutdown(); /* its own descriptors and threads */
}

/* of segments so large that reading never waits only for what is dropped */
static const struct retention_limits pause_at_8 = {
    .size = 8 * MB, .segment_size = 80 * MB, .when_full = WHEN_FULL_PAUSE};
static const struct retention_limits discard_at_8 = {
    .size = 8 * MB, .segment_size = 80 * MB, .when_full = WHEN_FULL_DISCARD};

/* ---- tests ---- */

START_TEST(decisions)
{
    static const struct {
        size_t segments, behind;
        uint64_t size, running, second, age;
        enum retention_verdict verdict;
        bool full;
    } cases[] = {
        {5, 0, 100, 0, 0, 0, RETENTION_KEEP, false}, /* exactly the limit */
        {5, 0, 101, 0, 0, 0, RETENTION_DROP, true},
        {5, 1, 101, 0, 0, 0, RETENTION_PROBE, true},
        {JOURNAL_SEGMENTS_MIN, 0, 101, 0, 0, 0, RETENTION_KEEP, true},
        {JOURNAL_SEGMENTS_MIN + 1, 0, 101, 0, 0, 0, RETENTION_DROP, true},
        {5, 0, 50, 1000, 500, 500, RETENTION_KEEP, false}, /* exactly as old */
        {5, 0, 50, 1001, 500, 500, RETENTION_DROP, false},
        {5, 3, 50, 1001, 500, 500, RETENTION_PROBE, false},
        {JOURNAL_SEGMENTS_MIN, 0, 50, 9999, 0, 500, RETENTION_KEEP, false},
        {5, 0, 50, 9999, 0, 0, RETENTION_KEEP, false}, /* no age is set */
        {7, 1, 50, 0, 0, 0, RETENTION_KEEP, false},    /* exactly as many as there may be */
        {8, 0, 50, 0, 0, 0, RETENTION_DROP, true},
        {8, 1, 50, 0, 0, 0, RETENTION_PROBE, true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct retention_limits limits = {
            .size = 100, .segments = 7, .age_ms = cases[i].age};
        bool full;

        ck_assert_int_eq(retention_decide(&limits, cases[i].segments, cases[i].size,
                                          cases[i].running, cases[i].second, cases[i].behind,
                                          &full),
                         cases[i].verdict);
        ck_assert_int_eq(full, cases[i].full);
    }
}
END_TEST

START_TEST(needed_by_nobody)
{
    setup(pause_at_8, 20);
    add("done", "0", 2000);
    check();
    ck_assert_uint_eq(journal.dropped, RETENTION_DROPS_A_TURN); /* the loop goes on in between */
    check();
    check();
    ck_assert_uint_eq(journal.first, 12);
    check();
    ck_assert_uint_eq(journal.first, 12);
    ck_assert_uint_eq(journal.probes, 0);
    ck_assert(!r.paused);
    teardown();
}
END_TEST

/* Reading waits at half a segment beyond the limit, what waits to be written included, until the oldest has gone. */
START_TEST(ahead_of_what_is_dropped)
{
    static const struct retention_limits limits = {.size = 8 * MB, .segment_size = MB};

    setup(limits, 8);
    journal.queued = MB / 2;
    retention_appended(&r);
    ck_assert(!retention_holds(&r));
    journal.queued = MB / 2 + 1;
    retention_appended(&r);
    ck_assert(retention_holds(&r) && !r.paused);
    ck_assert_uint_eq(pauses, 1);
    journal.queued =
        0; /* written, 6 segments of it: all that is too much goes at once, since nothing else comes */
    journal.end += 6;
    check();
    ck_assert_uint_eq(journal.dropped, 6);
    ck_assert(!retention_holds(&r));
    ck_assert_uint_eq(pauses, 2);
    journal.queued = 5 * MB;
    stored = false;
    retention_appended(&r);
    journal.end++;
    check(); /* it may not go yet */
    ck_assert(retention_holds(&r));
    ck_assert_uint_eq(journal.dropped, 6);
    journal.queued = 0;
    stored = true;
    check();
    ck_assert(!retention_holds(&r));
    ck_assert_uint_eq(journal.dropped, 7);
    ck_assert_uint_eq(pauses, 4);
    teardown();
    static const struct retention_limits small = {.size = MB, .segment_size = MB};
    setup(
        small,
        JOURNAL_SEGMENTS_MIN); /* nothing could go, and no segment is to come: it does not wait for that */
    journal.queued = MB - 1;
    retention_appended(&r);
    ck_assert(!retention_holds(&r));
    journal.queued = MB; /* that makes one */
    retention_appended(&r);
    ck_assert(retention_holds(&r));
    teardown();
}
END_TEST

START_TEST(pinned_and_let_go)
{
    setup(pause_at_8, 10);
    add("slow", "0", 0);
    check();
    ck_assert(r.paused);
    ck_assert_str_eq(r.pinned_by, "slow");
    ck_assert_uint_eq(journal.dropped, 0);
    ck_assert_uint_eq(pauses, 1);
    for (int i = 0; i < 5; i++)
        check();
    ck_assert_uint_eq(journal.probes, 1); /* it is known who needs it */
    names[0].cursor = 50; /* it has moved within the segment: looked up again, and still needed */
    check();
    ck_assert_uint_eq(journal.probes, 2);
    ck_assert(r.paused);
    names[0].cursor = 100;
    check();
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert(r.paused); /* 9 of 8 */
    names[0].cursor = 200;
    check();
    ck_assert_uint_eq(journal.dropped, 2);
    ck_assert(!r.paused);
    ck_assert_uint_eq(pauses, 2);
    teardown();
}
END_TEST

START_TEST(removed_while_it_pins)
{
    setup(pause_at_8, 10);
    add("slow", "0", 0);
    check();
    ck_assert(r.paused);
    n_names = 0;
    check();
    ck_assert_uint_eq(journal.dropped, 2);
    ck_assert(!r.paused);
    teardown();
}
END_TEST

START_TEST(what_matches_nothing_pins_nothing)
{
    setup(pause_at_8, 10);
    add("nothing", "5", 0);
    check();
    ck_assert_uint_eq(journal.dropped, 2);
    ck_assert_uint_eq(names[0].cursor, 200); /* it has passed over them */
    ck_assert_uint_eq(passed, 2);
    ck_assert(!r.paused);
    ck_assert_uint_eq(pauses, 0);
    teardown();
}
END_TEST

/* One passes over the first segment, the other needs the second. */
/* It pins nothing either, but is told. */
START_TEST(a_gap_is_lost_and_not_passed_over)
{
    setup(pause_at_8, 9);
    journal.topics[0] = 1 | GAP;
    add("nothing", "5", 0);
    check();
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert_uint_eq(names[0].cursor, 0);
    ck_assert_uint_eq(names[0].lost_to, 100);
    ck_assert_uint_eq(names[0].lost_messages, UINT64_MAX);
    ck_assert(!r.paused);
    teardown();
}
END_TEST

START_TEST(not_before_it_is_stored)
{
    setup(pause_at_8, 9);
    add("nothing", "5", 0);
    stored = false;
    check();
    ck_assert_uint_eq(names[0].cursor, 100);
    ck_assert_uint_eq(journal.dropped, 0);
    stored = true;
    check();
    ck_assert_uint_eq(journal.dropped, 1);
    teardown();
}
END_TEST

START_TEST(several_names)
{
    setup(pause_at_8, 10);
    journal.topics[0] = 4;
    add("a", "0", 0);
    add("b", "1", 0);
    check();
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert_str_eq(r.pinned_by, "a");
    ck_assert_uint_eq(names[0].cursor, 100);
    ck_assert_uint_eq(names[1].cursor, 200);
    ck_assert(r.paused);
    teardown();
}
END_TEST

START_TEST(more_names_than_are_looked_up_at_once)
{
    static char texts[RETENTION_PROBES_MAX + 10][8];

    setup(pause_at_8, 9);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        (void)snprintf(texts[i], sizeof texts[i], "n%zu", i);
        add(texts[i], "5", 0);
    }
    check();
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert_uint_eq(journal.probes, ARRAY_SIZE(texts));
    teardown();
}
END_TEST

START_TEST(discarded)
{
    setup(discard_at_8, 10);
    journal.topics[0] = 3;
    add("slow", "0", 0);
    check();
    ck_assert_uint_eq(journal.dropped, 2);
    ck_assert_uint_eq(names[0].cursor, 0);
    ck_assert_uint_eq(names[0].lost_to, 200);
    ck_assert_uint_eq(names[0].lost_messages, 3); /* whether they match or not */
    ck_assert(!r.paused);
    teardown();
}
END_TEST

START_TEST(age)
{
    setup(
        (struct retention_limits){.size = 100 * MB, .age_ms = 1000, .when_full = WHEN_FULL_DISCARD},
        10);
    for (unsigned i = 0; i < SEGMENTS; i++)
        journal.begun_ms[i] = 100 * i;
    journal.running_ms = 1300;
    add("slow", "0", 150);
    check();
    ck_assert_uint_eq(journal.dropped,
                      1); /* the second is old enough, but needed: age takes nothing from anybody */
    ck_assert(!r.paused);
    ck_assert_uint_eq(names[0].lost_to, 0);
    names[0].cursor = 1000;
    check();
    ck_assert_uint_eq(journal.dropped,
                      2); /* the third began at 200 and ended at 300: exactly as old */
    teardown();
}
END_TEST

/* It was only old, and needed; then the journal is too large, and the oldest is discarded after all. */
START_TEST(old_then_full)
{
    setup((struct retention_limits){.size = 8 * MB, .age_ms = 1, .when_full = WHEN_FULL_DISCARD},
          8);
    journal.running_ms = 1000;
    add("slow", "0", 0);
    check();
    ck_assert_uint_eq(journal.dropped, 0);
    journal.end = 9;
    check();
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert_uint_eq(names[0].lost_to, 100);
    teardown();
}
END_TEST

START_TEST(what_cannot_be_read_is_kept)
{
    setup(discard_at_8, 10);
    journal.probe_error = EIO;
    add("slow", "0", 0);
    check();
    ck_assert_uint_eq(journal.dropped, 0);
    ck_assert(r.paused);
    teardown();
}
END_TEST

/* … but looked at again, and the same name is found to need nothing. */
START_TEST(what_could_not_be_read_for_a_while)
{
    setup(pause_at_8, 9);
    add("slow", "7", 0);
    journal.probe_error = ENOMEM;
    check();
    ck_assert(r.paused);
    journal.probe_error = 0;
    check();
    ck_assert_uint_eq(journal.probes, 1);
    (void)usleep(RETENTION_AGAIN_MS * 1000);
    uv_update_time(&loop);
    check();
    ck_assert_uint_eq(journal.probes, 2);
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert(!r.paused);
    teardown();
}
END_TEST

START_TEST(what_cannot_be_removed)
{
    setup(pause_at_8, 10);
    journal.drop_error = EIO;
    check();
    ck_assert_uint_eq(journal.dropped, 0);
    ck_assert(!r.paused);
    teardown();
}
END_TEST

START_TEST(changed_while_it_is_looked_up)
{
    setup(pause_at_8, 9);
    add("slow", "0", 0);
    retention_check(&r);
    ck_assert_ptr_nonnull(r.job);
    names[0].cursor = 5000;
    retention_check(&r);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert(!r.paused);
    teardown();
}
END_TEST

/* The cursor is where it was, but what was looked up says nothing of the new filters. */
START_TEST(other_filters_while_it_is_looked_up)
{
    setup(pause_at_8, 9);
    add("slow", "7", 0); /* nothing matches */
    retention_check(&r);
    ck_assert_ptr_nonnull(r.job);
    names[0].topic = "0";
    names[0].filters_made++;
    retention_check(&r);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_uint_eq(names[0].cursor, 0);
    ck_assert_uint_eq(passed, 0);
    ck_assert_uint_eq(journal.dropped, 0);
    ck_assert(r.paused);
    names[0].topic = "7"; /* and what pinned it may pin it no more */
    names[0].filters_made++;
    check();
    ck_assert_uint_eq(journal.dropped, 1);
    ck_assert(!r.paused);
    teardown();
}
END_TEST

START_TEST(closed_while_it_is_looked_up)
{
    setup(pause_at_8, 9);
    add("slow", "0", 0);
    retention_check(&r);
    retention_close(&r);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_uint_eq(journal.dropped, 0);
    ck_assert_uint_eq(pauses, 0);
    teardown();
}
END_TEST

UNIT_MAIN("retention", decisions, needed_by_nobody, ahead_of_what_is_dropped, pinned_and_let_go,
          removed_while_it_pins, what_matches_nothing_pins_nothing,
          a_gap_is_lost_and_not_passed_over, not_before_it_is_stored, several_names,
          more_names_than_are_looked_up_at_once, discarded, age, old_then_full,
          what_cannot_be_read_is_kept, what_could_not_be_read_for_a_while, what_cannot_be_removed,
          changed_while_it_is_looked_up, other_filters_while_it_is_looked_up,
          closed_while_it_is_looked_up)
