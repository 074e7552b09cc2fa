/* SPDX-License-Identifier: PostgreSQL */
/* What is asked of the journal without reading it out, against what was put in. */
#include "journal/reader.h"

#include <fcntl.h>

#include "reader_fixture.h"

static const struct filter everything[] = {{FILTER_PATTERN, {(const uint8_t *)">", 1}}};

/* ---- measuring ---- */

static void check_measure(struct position at)
{
    struct journal_measure m = {
        .at = at, .messages = 99, .bytes = 99, .received_time = 99, .error = 99};
    uint64_t messages = 0, bytes = 0;
    int64_t received = 0;

    journal_measure(&journal, &m);
    for (size_t i = 0; i < n_entries; i++) {
        const struct entry *e = &entries[i];
        if (e->type != FRAME_MESSAGE)
            continue;
        if (position_compare(e->position, at) <= 0) {
            messages++;
            bytes += e->content;
        } else if (received == 0) {
            received = e->received;
        }
    }
    if (m.error || m.messages != messages || m.bytes != bytes || m.received_time != received)
        ck_abort_msg("at %lx:%u: error %d, %lu and %lu messages, %lu and %lu bytes, %ld and %ld",
                     (unsigned long)at.lsn, at.index, m.error, (unsigned long)m.messages,
                     (unsigned long)messages, (unsigned long)m.bytes, (unsigned long)bytes,
                     (long)m.received_time, (long)received);
}

static void check_measures(void)
{
    check_measure((struct position){1, 0x100, 0});
    check_measure((struct position){1, 0x10000000, 0});
    for (size_t i = 0; i < n_entries; i++) {
        check_measure(entries[i].position);
        check_measure(position_next(entries[i].position));
        check_measure((struct position){1, entries[i].position.lsn - 1, POSITION_INDEX_END});
    }
}

START_TEST(measuring)
{
    struct unit_random random = unit_random_init();

    for (unsigned round = 0; round < 8; round++) {
        journal_setup();
        random_journal(&random, 200);
        check_measures();
        journal_reopen();
        check_measures();
        journal_teardown();
    }
}
END_TEST

START_TEST(measuring_what_is_gone)
{
    journal_setup();
    put_message(0x110, "a", 10);
    end_record();
    end_segment();
    journal_clock = 2000;
    put_message(0x120, "a", 20);
    put_message(0x130, "a", 20);
    end_record();
    journal_drop_segment();
    /* all that is gone counts as behind it */
    struct journal_measure m = {.at = {1, 0x100, 0}};
    journal_measure(&journal, &m);
    ck_assert_int_eq(m.error, 0);
    ck_assert_uint_eq(m.messages, 1);
    ck_assert_uint_eq(m.bytes, 10);
    ck_assert_int_eq(m.received_time, 2000);
    journal_drop_segment();
    journal_measure(&journal, &m);
    ck_assert_int_eq(m.error, 0);
    ck_assert_uint_eq(m.messages, 0);
    ck_assert_int_eq(m.received_time, 0);
    journal_teardown();
}
END_TEST

/* ---- by time ---- */

/* How often the answer was a transaction whose beginning is gone. */
static unsigned parts;

/* `after`: behind which the journal begins. */
static void check_time(int64_t time, struct position after)
{
    struct position got, want = journal.segments[journal.first]->header.after;
    bool found = false;

    ck_assert_int_eq(journal_find_time(&journal, time, &got), 0);
    for (size_t i = 0; i < n_entries && !found; i++) {
        const struct entry *e = &entries[i];
        found = e->type == FRAME_MESSAGE && e->received >= time;
        if (found && e->position.index)
            want = (struct position){1, e->position.lsn, 0};
        else if (!found)
            want = e->position;
    }
    if (!found && want.index != POSITION_INDEX_END)
        want.index = 0;
    if (position_compare(want, after) <= 0) {
        want = after;
        if (want.index != 0 && want.index != POSITION_INDEX_END) { /* its beginning is gone */
            want.lsn--;
            want.index = POSITION_INDEX_END;
            parts++;
        }
    }
    if (position_compare(got, want) != 0)
        ck_abort_msg("time %ld: %lx:%u, not %lx:%u", (long)time, (unsigned long)got.lsn, got.index,
                     (unsigned long)want.lsn, want.index);
}

START_TEST(finding_a_time)
{
    struct unit_random random = unit_random_init();

    for (unsigned round = 0; round < 12 || (!parts && round < 500); round++) {
        journal_setup();
        random_journal(&random, 300);
        for (int restarted = 0; restarted < 2; restarted++) {
            for (int64_t time = 990; time < journal_clock + 5; time++)
                check_time(time, (struct position){1, 0x100, 0});
            check_time(INT64_MIN, (struct position){1, 0x100, 0});
            check_time(INT64_MAX, (struct position){1, 0x100, 0});
            journal_reopen();
        }
        if (journal.n > 1) {
            journal_drop_segment();
            size_t first = 0;
            while (first < n_entries && entries[first].segment == 0)
                first++;
            /* what is gone is not there to be found */
            memmove(entries, entries + first, (n_entries - first) * sizeof *entries);
            n_entries -= first;
            for (int64_t time = 990; n_entries && time < journal_clock + 5; time++)
                check_time(time, journal.segments[1]->header.after);
        }
        journal_teardown();
    }
    ck_assert_uint_gt(parts, 0);
}
END_TEST

START_TEST(a_time_in_no_journal)
{
    struct position got;

    journal_setup();
    ck_assert_int_eq(journal_find_time(&journal, 5, &got), 0);
    ck_assert_int_eq(position_compare(got, (struct position){1, 0x100, 0}), 0);
    journal_drop_segment();
    ck_assert_int_eq(journal_find_time(&journal, 5, &got), -ENODATA);
    journal_teardown();
}
END_TEST

/* ---- probing ---- */

/* Anything may have stood behind the damage: it is no segment in which nothing matches. */
START_TEST(probing_a_damaged_segment)
{
    struct filter nothing = {FILTER_EXACT, unit_bytes("no such prefix")};

    journal_setup();
    for (unsigned i = 0; i < 5; i++) {
        put_message(0x1000 + i * 16, "a", 100);
        end_record();
    }
    for (unsigned damaged = 0; damaged < 2; damaged++) {
        struct journal_probe probe = {.filters = &nothing, .n_filters = 1, .after = {1, 0x100, 0}};

        if (damaged) {
            uint8_t byte;
            int fd = open(journal.segments[0]->path, O_RDWR | O_CLOEXEC);
            ck_assert_int_eq(pread(fd, &byte, 1, SEGMENT_HEADER_SIZE + 100), 1);
            byte ^= 1;
            ck_assert_int_eq(pwrite(fd, &byte, 1, SEGMENT_HEADER_SIZE + 100), 1);
            ck_assert_int_eq(close(fd), 0);
        }
        journal_reopen();
        journal_probe_first(&journal, &probe, 1);
        ck_assert_int_eq(probe.error, 0);
        ck_assert(!probe.matches);
        ck_assert_int_eq(probe.gap, (int)damaged);
    }
    journal_teardown();
}
END_TEST

START_TEST(probing_the_oldest_segment)
{
    struct unit_random random = unit_random_init();

    for (unsigned round = 0; round < 20; round++) {
        enum { PROBES = 7 };
        struct journal_probe probes[PROBES];
        struct filter filters[PROBES][8], exclusion = {FILTER_PATTERN, unit_bytes("a.b")};
        unsigned matching = 0;

        journal_setup();
        random_journal(&random, 120);
        if (unit_random_below(&random, 2))
            journal_reopen();
        if (journal.n > 1 && unit_random_below(&random, 2))
            journal_drop_segment();
        for (size_t i = 0; i < PROBES; i++) {
            probes[i] = (struct journal_probe){
                .filters = filters[i],
                .n_filters = random_filters(&random, filters[i]),
                .exclusions = &exclusion,
                .n_exclusions = unit_random_below(&random, 2),
                .after = entries[unit_random_below(&random, (uint32_t)n_entries)].position,
                .matches = true,
                .messages = 77};
        }
        journal_probe_first(&journal, probes, PROBES);
        for (size_t i = 0; i < PROBES; i++) {
            struct reference x =
                reference_of(probes[i].filters, probes[i].n_filters, probes[i].after);
            uint64_t messages = 0, bytes = 0;
            bool matches = false;
            x.exclusions = &exclusion;
            x.n_exclusions = probes[i].n_exclusions;
            for (size_t k = 0; k < n_entries; k++) {
                const struct entry *e = &entries[k];
                if (e->segment != journal.first || e->type != FRAME_MESSAGE ||
                    position_compare(e->position, probes[i].after) <= 0)
                    continue;
                messages++;
                bytes += e->content;
                matches |= reference_matches(&x, e);
            }
            ck_assert_int_eq(probes[i].error, 0);
            ck_assert_uint_eq(probes[i].messages, messages);
            ck_assert_uint_eq(probes[i].bytes, bytes);
            ck_assert_int_eq(probes[i].matches, matches);
            matching += matches;
        }
        journal_teardown();
    }
}
END_TEST

START_TEST(a_disk_that_fails)
{
    struct position got;
    struct journal_probe probe = {.filters = everything, .n_filters = 1};
    struct journal_measure m = {.at = {1, 0x100, 0}};

    journal_setup();
    put_message(0x110, "a", 10);
    end_record();
    int fd = journal.segments[0]->fd;
    journal.segments[0]->fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    journal_measure(&journal, &m);
    ck_assert_int_eq(m.error, EISDIR);
    ck_assert_int_eq(journal_find_time(&journal, 5, &got), -EISDIR);
    journal_probe_first(&journal, &probe, 1);
    ck_assert_int_eq(probe.error, EISDIR);
    ck_assert_int_eq(close(journal.segments[0]->fd), 0);
    journal.segments[0]->fd = fd;
    journal_teardown();
}
END_TEST

UNIT_MAIN("survey", measuring, measuring_what_is_gone, finding_a_time, a_time_in_no_journal,
          probing_a_damaged_segment, probing_the_oldest_segment, a_disk_that_fails)
