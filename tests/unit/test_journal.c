/* SPDX-License-Identifier: PostgreSQL */
/* Writing, reading back, segments, opening: what happens when all goes well, and at a crash. Failures: test_journal_failure. */
#include "journal/writer.h"
#include "journal_fixture.h"

#include <dirent.h>

#define HOUR_NS UINT64_C(3600000000000)
#define LARGE   (16u << 20)

static void check_end(uint64_t lsn, uint64_t mark)
{
    const struct journal_end *end = journal_end(jf.j);

    ck_assert(!end->empty);
    ck_assert_uint_eq(end->system_identifier, JF_SYSTEM);
    ck_assert_uint_eq(end->era, 1);
    ck_assert_str_eq(end->database, "shop");
    ck_assert_str_eq(end->slot, "walbus");
    ck_assert_uint_eq(end->last.lsn, lsn);
    ck_assert_uint_eq(end->mark, mark);
    ck_assert_uint_eq(end->mark_timeline, 1);
    ck_assert_uint_eq(journal_written(jf.j).lsn, lsn);
}

START_TEST(empty)
{
    jf_make(LARGE, 0);
    check_end(0x100, 0x100);
    ck_assert_uint_eq(journal_segments(jf.j), 1);
    ck_assert_uint_eq(journal_size(jf.j), SEGMENT_HEADER_SIZE);
    ck_assert_int_eq(journal_drop_first(jf.j), -EBUSY);
    jf_finish();
    jf_close();
    jf_open();
    check_end(0x100, 0x100);
    ck_assert_uint_eq(journal_segments(jf.j), 1);
    ck_assert_ptr_null(journal_close(NULL));
    jf_close();
    jf_remove();
}
END_TEST

/* Opened and closed without an era: only the folder is there. */
START_TEST(nothing_is_changed_before_it_must)
{
    struct stat st;

    memset(&disk, 0, sizeof disk);
    jf.folder = unit_temp_folder();
    ck_assert_int_eq(rmdir(jf.folder), 0);
    jf.options = (struct journal_options){.segment_size = LARGE};
    jf_open();
    ck_assert_int_eq(stat(jf.folder, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0700);
    ck_assert(journal_end(jf.j)->empty);
    ck_assert_uint_eq(journal_segments(jf.j), 0);
    ck_assert_uint_eq(journal_size(jf.j), 0);
    ck_assert_ptr_null(journal_segment_first(jf.j));
    ck_assert_ptr_null(journal_segment_of(jf.j, jf_at(5)));
    ck_assert_int_eq(journal_drop_first(jf.j), -EBUSY);
    jf_finish();
    jf_close();
    jf_open();
    jf_begin();
    jf_append_message(0x200, 10);
    jf_finish();
    jf_close();
    uint64_t size = disk.counts[DISK_WRITE] + disk.counts[DISK_WRITEV] + disk.counts[DISK_RENAME] +
                    disk.counts[DISK_UNLINK];
    jf_open();
    check_end(0x200, 0x200);
    jf_finish();
    jf_close();
    ck_assert_uint_eq(disk.counts[DISK_WRITE] + disk.counts[DISK_WRITEV] +
                          disk.counts[DISK_RENAME] + disk.counts[DISK_UNLINK],
                      size);
    jf_remove();
}
END_TEST

START_TEST(written_then_synced)
{
    jf_make(LARGE, 0);
    disk.hold = true;
    jf_append_message(0x200, 10);
    jf_append_message(0x201, 20);
    ck_assert_uint_eq(journal_pending(jf.j), 2);
    ck_assert_uint_eq(journal_pending_at(jf.j, 0)->last.lsn, 0x200);
    ck_assert_uint_eq(journal_pending_at(jf.j, 1)->last.lsn, 0x201);
    ck_assert_uint_eq(journal_pending_at(jf.j, 1)->n_entries, 1);
    (void)uv_run(&jf.loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(journal_pending(jf.j), 2);
    ck_assert_uint_eq(journal_written(jf.j).lsn, 0x100);
    ck_assert_uint_eq(jf.pool.live, 2);
    disk.hold = false;
    JF_UNTIL(jf.synced && jf.synced_mark == 0x201);
    ck_assert_uint_ge(jf.written, 1);
    ck_assert_uint_eq(journal_pending(jf.j), 0);
    ck_assert_uint_eq(jf.pool.live, 0);
    check_end(0x201, 0x201);
    ck_assert_uint_eq(journal_end(jf.j)->messages, 2);
    ck_assert_uint_eq(journal_end(jf.j)->bytes, 30);
    jf_check_messages(0x200, 0x202);
    jf_close();
    jf_remove();
}
END_TEST

/* One turn's batches are one write, and wake the thread once. */
START_TEST(a_turn_is_one_write)
{
    jf_make(LARGE, 0);
    for (uint64_t lsn = 0x200; lsn < 0x200 + 100; lsn++)
        jf_append_message(lsn, 100);
    JF_UNTIL(jf.synced && jf.synced_mark == 0x200 + 99);
    ck_assert_uint_eq(disk.counts[DISK_WRITEV], 1);
    jf_check_messages(0x200, 0x200 + 100);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(syncs_are_paced)
{
    jf_make(LARGE, HOUR_NS);
    jf_append_message(0x200, 10);
    JF_UNTIL(jf.synced); /* the first at once: the last was long ago */
    ck_assert_uint_eq(jf.synced_mark, 0x200);
    ck_assert_uint_eq(disk.counts[DISK_DATASYNC], 1);
    for (uint64_t lsn = 0x201; lsn < 0x220; lsn++) {
        jf_append_message(lsn, 10);
        JF_UNTIL(journal_pending(jf.j) == 0);
    }
    ck_assert_uint_eq(disk.counts[DISK_DATASYNC], 1);
    ck_assert_uint_eq(journal_written(jf.j).lsn, 0x21F);
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x200);
    ck_assert_uint_eq(jf.synced_mark, 0x200);
    jf_finish();
    ck_assert_uint_eq(disk.counts[DISK_DATASYNC], 2);
    ck_assert_uint_eq(jf.synced_mark, 0x21F);
    check_end(0x21F, 0x21F);
    jf_finish(); /* nothing is left to sync */
    ck_assert_uint_eq(disk.counts[DISK_DATASYNC], 2);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(a_pause_is_kept)
{
    enum { PAUSE_MS = 100, ROUNDS = 4 };
    jf_make(LARGE, PAUSE_MS * UINT64_C(1000000));
    uint64_t began = clock_monotonic_ns();

    for (uint64_t i = 0; i < ROUNDS; i++) {
        jf_append_message(0x200 + i, 10);
        JF_UNTIL(jf.synced && jf.synced_mark == 0x200 + i);
    }
    ck_assert_uint_eq(disk.counts[DISK_DATASYNC], ROUNDS);
    ck_assert_uint_ge(clock_monotonic_ns() - began, (ROUNDS - 1) * PAUSE_MS * UINT64_C(1000000));
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(marks_alone)
{
    jf_make(LARGE, 0);
    jf_append(jf_batch(), 0x180);
    JF_UNTIL(jf.synced);
    ck_assert_uint_eq(jf.synced_mark, 0x180);
    check_end(0x100, 0x180);
    uint64_t size = journal_size(jf.j);
    ck_assert_uint_eq(size, SEGMENT_HEADER_SIZE + RECORD_SIZE);
    /* no news: told, since it went by on its connection, but not written */
    jf_append(jf_batch(), 0x170);
    JF_UNTIL(jf.synced_mark == 0x170);
    jf_append(jf_batch(), 0x180);
    JF_UNTIL(jf.synced_mark == 0x180);
    ck_assert_uint_eq(journal_size(jf.j), size);
    check_end(0x100, 0x180);
    /* of a later timeline: less, and yet news */
    struct batch *b = jf_batch();
    b->mark = 0x150;
    b->connection = 7;
    b->mark_position = (struct position){2, 0x150, 0};
    batch_seal(b);
    journal_append(jf.j, b);
    batch_unref(b);
    JF_UNTIL(jf.synced_mark == 0x150);
    ck_assert_uint_eq(jf.synced_connection, 7);
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x150);
    ck_assert_uint_eq(journal_end(jf.j)->mark_timeline, 2);
    jf_close();
    jf_open();
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x150);
    ck_assert_uint_eq(journal_end(jf.j)->mark_timeline, 2);
    ck_assert_uint_eq(journal_end(jf.j)->last.lsn, 0x100);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(ten_thousand_read_back)
{
    enum { BATCHES = 10000, SEGMENT = 100000 };
    jf_make(SEGMENT, 1000000);
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < BATCHES; i++) {
        size_t size = i * 37 % 900;

        jf_received = (int64_t)(i / 3);
        bytes += size;
        jf_append_message(0x1000 + i, size);
        if (i % 50 == 49)
            (void)uv_run(&jf.loop, UV_RUN_NOWAIT);
    }
    jf_finish();
    ck_assert_uint_eq(jf.pool.live, 0);
    for (unsigned opened = 0; opened < 2; opened++) {
        check_end(0x1000 + BATCHES - 1, 0x1000 + BATCHES - 1);
        ck_assert_uint_eq(journal_end(jf.j)->messages, BATCHES);
        ck_assert_uint_eq(journal_end(jf.j)->bytes, bytes);
        ck_assert_int_eq(journal_end(jf.j)->received_time, (BATCHES - 1) / 3);
        jf_check_messages(0x1000, 0x1000 + BATCHES);
        ck_assert_uint_gt(journal_segments(jf.j), 40);
        uint64_t size = 0;
        struct segment_info info, before = {0};
        for (size_t i = 0; i < journal_segments(jf.j); i++) {
            journal_segment_info(jf.j, i, &info);
            ck_assert_uint_eq(info.sequence, i + 1);
            ck_assert_uint_le(info.size, SEGMENT);
            ck_assert_uint_ge(info.size, i + 1 < journal_segments(jf.j) ? SEGMENT - 1200
                                                                        : SEGMENT_HEADER_SIZE);
            ck_assert_int_eq(position_compare(info.after, i ? before.last : jf_at(0x100)), 0);
            ck_assert_uint_ge(info.messages_before, before.messages_before + (i ? 50 : 0));
            ck_assert_int_ge(info.received_time, before.received_time);
            ck_assert(!info.ends_inside);
            size += info.size;
            before = info;
        }
        ck_assert_uint_eq(info.last.lsn, 0x1000 + BATCHES - 1);
        ck_assert_uint_eq(journal_size(jf.j), size);
        if (opened == 0) {
            jf_close();
            jf_open();
        }
    }
    /* which one a position, or a time, lies in */
    for (uint64_t lsn = 0x80; lsn < 0x1000 + BATCHES + 10; lsn += 7) {
        struct segment *s = journal_segment_of(jf.j, jf_at(lsn)),
                       *next = journal_segment_after(jf.j, s);

        ck_assert(s->header.sequence == 1 || s->header.after.lsn <= lsn);
        ck_assert(!next || next->header.after.lsn > lsn);
        segment_unref(next);
        segment_unref(s);
        int64_t time = (int64_t)lsn / 3;
        s = journal_segment_of_time(jf.j, time);
        next = journal_segment_after(jf.j, s);
        ck_assert(s->header.sequence == 1 || s->header.received_time < time);
        ck_assert(!next || next->header.received_time >= time);
        segment_unref(next);
        segment_unref(s);
    }
    jf_close();
    jf_remove();
    jf_received = 1;
}
END_TEST

START_TEST(larger_than_a_segment)
{
    jf_make(10000, 0);
    jf_append_message(0x200, 100);
    jf_append_message(0x201, 300000); /* uncopied: head and tail */
    jf_append_message(0x202, 20000);
    jf_append_message(0x203, 100);
    jf_append_message(0x204, 100);
    jf_finish();
    static const unsigned messages_before[] = {0, 1, 2, 3};
    ck_assert_uint_eq(journal_segments(jf.j), 4);
    for (size_t i = 0; i < 4; i++) {
        struct segment_info info;

        journal_segment_info(jf.j, i, &info);
        ck_assert_uint_eq(info.messages_before, messages_before[i]);
    }
    jf_check_messages(0x200, 0x205);
    jf_close();
    jf_open();
    jf_check_messages(0x200, 0x205);
    jf_close();
    jf_remove();
}
END_TEST

/* A transaction over many batches and segments; wherever the journal ends, it knows the open one. */
START_TEST(inside_a_transaction)
{
    struct position t = jf_at(0x500);
    struct batch *b;

    jf_make(2000, 0);
    jf_append_message(0x200, 10);
    ck_assert(!journal_end(jf.j)->inside);
    b = jf_batch();
    jf_add(b, jf_at(0x300), 5, 0);
    jf_add_begin(b, jf_at(0x400)); /* one that is whole before the one that is not */
    jf_add_part(b, jf_at(0x400), 1, 10);
    jf_add_commit(b, jf_at(0x400), 1);
    jf_add_begin(b, t);
    jf_add_part(b, t, 1, 10);
    jf_append(b, 0x408);
    for (uint32_t i = 2; i <= 20; i++) {
        b = jf_batch();
        jf_starts_inside(b, t);
        jf_add_part(b, t, i, 500);
        jf_append(b, 0x408);
        if (i % 5)
            continue;
        jf_finish();
        for (unsigned opened = 0; opened < 2; opened++) {
            const struct journal_end *end = journal_end(jf.j);

            ck_assert(end->inside);
            ck_assert_uint_eq(end->last.index, i);
            ck_assert_uint_eq(end->begin.timeline, 1);
            ck_assert_uint_eq(end->begin.commit_lsn, 0x500);
            ck_assert_int_eq(end->begin.commit_time, JF_BEGIN_TIME);
            ck_assert_uint_eq(end->begin.xid, 5);
            ck_assert_uint_eq(end->mark, i >= 10 && (i > 10 || opened) ? 0x40A : 0x408);
            if (opened == 0) {
                if (i == 10) { /* a mark inside */
                    jf_append(jf_batch(), 0x40A);
                    jf_finish();
                }
                jf_close();
                jf_open();
            }
        }
    }
    size_t n = journal_segments(jf.j);
    struct segment_info info;
    journal_segment_info(jf.j, n - 2, &info);
    ck_assert(info.ends_inside);
    b = jf_batch();
    jf_starts_inside(b, t);
    jf_add_commit(b, t, 20);
    jf_append(b, 0x508);
    jf_finish();
    ck_assert(!journal_end(jf.j)->inside);
    ck_assert_uint_eq(journal_end(jf.j)->begin.commit_lsn, 0);
    jf_close();
    jf_open();
    ck_assert(!journal_end(jf.j)->inside);
    ck_assert_uint_eq(journal_end(jf.j)->last.index, POSITION_INDEX_END);
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 2 + 3 + 2 + 19 + 1);
    jf_forget();
    jf_close();
    jf_remove();
}
END_TEST

/* The segment that is new after opening has no record when its router dies: its header has the open transaction. */
START_TEST(inside_where_a_segment_is_empty)
{
    struct position t = jf_at(0x500);
    struct batch *b = jf_batch();

    jf_make(LARGE, 0);
    jf_add_begin(b, t);
    jf_add_part(b, t, 1, 10);
    jf_append(b, 0);
    jf_finish();
    jf_close();
    jf_open();
    disk_fail(DISK_WRITEV, EIO, 0);
    b = jf_batch();
    jf_starts_inside(b, t);
    jf_add_part(b, t, 2, 10);
    jf_append(b, 0);
    JF_UNTIL(jf.failed);
    jf_close();
    disk_mend();
    jf_open();
    ck_assert_uint_eq(journal_segments(jf.j), 2);
    ck_assert_uint_eq(journal_size(jf.j), SEGMENT_HEADER_SIZE * 2 + RECORD_SIZE + BATCH_BEGIN_SIZE +
                                              FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + 14 + 10);
    ck_assert(journal_end(jf.j)->inside);
    ck_assert_uint_eq(journal_end(jf.j)->begin.commit_lsn, 0x500);
    ck_assert_uint_eq(journal_end(jf.j)->begin.xid, 5);
    ck_assert_uint_eq(journal_end(jf.j)->last.index, 1);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(a_gap_stands_in_it)
{
    struct position t = jf_at(0x500);
    struct batch *b = jf_batch();

    jf_make(LARGE, 0);
    jf_add_begin(b, t);
    jf_add_part(b, t, 1, 10);
    jf_append(b, 0x300);
    b = jf_batch();
    jf_add_gap(b, (struct position){1, 0x500, 2}, (struct position){2, 0x600, 0});
    jf_append(b, 0x600);
    b = jf_batch();
    jf_add(b, (struct position){2, 0x700, 0}, 10, 0);
    jf_append(b, 0x700);
    jf_finish();
    ck_assert(!journal_end(jf.j)->inside);
    ck_assert_uint_eq(journal_end(jf.j)->mark_timeline, 2);
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 4);
    ck_assert_uint_eq(jf_entries[2].type, FRAME_GAP);
    ck_assert_uint_eq(jf_entries[2].position.lsn, 0x600);
    jf_forget();
    jf_close();
    jf_remove();
}
END_TEST

/* Neither goes back with the clock, or when a router starts again. */
START_TEST(times_never_fall)
{
    jf_make(700, 0);
    jf_received = 1000;
    jf_append_message(0x200, 10);
    jf_received = 900;
    jf_append_message(0x201, 10);
    jf_finish();
    ck_assert_int_eq(journal_end(jf.j)->received_time, 1000);
    (void)usleep(20000);
    journal_tick(jf.j);
    uint64_t running = journal_running_ms(jf.j);
    ck_assert_uint_ge(running, 20);
    jf_append_message(0x202, 10);
    jf_finish();
    jf_close();
    jf_open();
    ck_assert_uint_ge(journal_running_ms(jf.j), running);
    ck_assert_int_eq(journal_end(jf.j)->received_time, 1000);
    jf_append_message(0x203, 10);
    jf_finish();
    struct segment_info info;
    journal_segment_info(jf.j, journal_segments(jf.j) - 1, &info);
    ck_assert_uint_ge(info.running_ms, running);
    ck_assert_int_eq(info.received_time, 1000);
    ck_assert_int_eq(journal_begin_era(jf.j, JF_SYSTEM, 2, "shop", "walbus", jf_at(0x10), 0x10, 1),
                     0);
    ck_assert_int_eq(journal_end(jf.j)->received_time, 1000);
    journal_segment_info(jf.j, 0, &info);
    ck_assert_uint_ge(info.running_ms, running);
    jf_close();
    jf_remove();
    jf_received = 1;
}
END_TEST

START_TEST(the_queue_is_bounded)
{
    enum { SIZE = 1u << 20 };
    jf_make(64u << 20, 0);
    disk.hold = true;
    uint64_t lsn = 0x200;
    while (!journal_is_full_queue(jf.j, false)) {
        ck_assert_int_eq(journal_is_full_queue(jf.j, true), (lsn - 0x200) >= 8);
        jf_append_message(lsn++, SIZE);
        ck_assert_uint_lt(lsn, 0x200 + 20);
    }
    ck_assert_uint_eq(lsn, 0x200 + 16);
    ck_assert(journal_is_full_queue(jf.j, true));
    disk.hold = false;
    JF_UNTIL(!journal_is_full_queue(jf.j, true));
    jf_finish();
    ck_assert_uint_gt(jf.written, 0);
    jf_check_messages(0x200, lsn);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(closed_with_a_queue)
{
    jf_make(LARGE, HOUR_NS);
    jf_append_message(0x200, 10);
    JF_UNTIL(jf.synced);
    for (uint64_t lsn = 0x201; lsn < 0x300; lsn++)
        jf_append_message(lsn, 10);
    jf_close(); /* looks at the pool */
    jf_open();
    uint64_t last = journal_written(jf.j).lsn;
    ck_assert_uint_ge(last, 0x200);
    jf_check_messages(0x200, last + 1);
    jf.close_when_written = true;
    jf_append_message(last + 1, 10);
    jf_append_message(last + 2, 10);
    JF_UNTIL(!jf.j);
    jf.close_when_written = false;
    jf_close();
    jf_remove();
}
END_TEST

/* Whoever reads on another thread holds the journal and a segment, whatever happens to them. */
START_TEST(held_by_a_reader)
{
    uint8_t byte;
    struct stat st;

    jf_make(700, 0);
    for (uint64_t lsn = 0x200; lsn < 0x208; lsn++)
        jf_append_message(lsn, 300);
    jf_finish();
    ck_assert_uint_eq(journal_segments(jf.j), 8);
    struct journal *j = journal_ref(jf.j);
    struct segment *first = journal_segment_first(j), *next;
    uint64_t size = journal_size(j);

    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(journal_drop_first(jf.j), 0);
    ck_assert_uint_eq(journal_segments(jf.j), 5);
    ck_assert_uint_lt(journal_size(jf.j), size);
    jf_finish(); /* they are unlinked when it rests */
    ck_assert_int_eq(stat(first->path, &st), -1);
    ck_assert_int_eq(pread(first->fd, &byte, 1, (off_t)first->size - 1), 1);
    ck_assert_int_eq(fstat(first->fd, &st), 0);
    ck_assert_uint_eq(st.st_nlink, 0);
    next = journal_segment_after(j, first);
    ck_assert_uint_eq(next->header.sequence, 4);
    segment_unref(next);
    next = journal_segment_of(j, jf_at(0x150));
    ck_assert_uint_eq(next->header.sequence, 4);
    segment_unref(next);
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 5);
    ck_assert_uint_eq(jf_entries[0].position.lsn, 0x203);
    jf_forget();
    jf_close();
    ck_assert_uint_eq(journal_segments(j), 5);
    segment_unref(first);
    ck_assert_ptr_null(journal_unref(j));
    ck_assert_ptr_null(journal_unref(NULL));

    jf_open();
    ck_assert_uint_eq(journal_segments(jf.j), 5);
    while (journal_segments(jf.j) > 1)
        ck_assert_int_eq(journal_drop_first(jf.j), 0);
    ck_assert_int_eq(journal_drop_first(jf.j), -EBUSY);
    jf_finish();
    jf_append_message(0x208, 300);
    jf_finish();
    jf_close();
    jf_open();
    jf_check_messages(0x207, 0x209);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(another_era)
{
    jf_make(700, 0);
    for (uint64_t lsn = 0x200; lsn < 0x204; lsn++)
        jf_append_message(lsn, 300);
    ck_assert_int_eq(journal_begin_era(jf.j, JF_SYSTEM, 1, "shop", "walbus", jf_at(0x10), 0x10, 1),
                     -EEXIST);
    char name[JOURNAL_NAME_SIZE + 2];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(journal_begin_era(jf.j, JF_SYSTEM, 2, name, "walbus", jf_at(0x10), 0x10, 1),
                     -ENAMETOOLONG);
    ck_assert_int_eq(journal_begin_era(jf.j, JF_SYSTEM, 2, "shop", name, jf_at(0x10), 0x10, 1),
                     -ENAMETOOLONG);
    name[sizeof name - 2] = '\0';
    ck_assert_int_eq(journal_begin_era(jf.j, JF_SYSTEM, 2, name, "other",
                                       (struct position){3, 0x10, 7}, 0x18, 3),
                     0);
    for (unsigned opened = 0; opened < 2; opened++) {
        const struct journal_end *end = journal_end(jf.j);

        ck_assert_uint_eq(end->era, 2);
        ck_assert_str_eq(end->database, name);
        ck_assert_str_eq(end->slot, "other");
        ck_assert_int_eq(position_compare(end->last, (struct position){3, 0x10, 7}), 0);
        ck_assert_uint_eq(end->mark, 0x18);
        ck_assert_uint_eq(end->mark_timeline, 3);
        ck_assert_uint_eq(end->messages, 0);
        ck_assert_uint_eq(end->bytes, 0);
        ck_assert_uint_eq(journal_segments(jf.j), 1);
        ck_assert_uint_eq(journal_size(jf.j), SEGMENT_HEADER_SIZE);
        jf_finish();
        if (opened == 0) {
            jf_close();
            jf_open();
        }
    }
    struct batch *b = jf_batch();
    jf_add(b, (struct position){3, 0x20, 0}, 10, 0);
    jf_append(b, 0x20);
    jf_finish();
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 1);
    jf_forget();
    unsigned files = 0;
    DIR *dir = opendir(jf.folder);
    for (struct dirent *e; (e = readdir(dir));)
        files += e->d_name[0] != '.';
    (void)closedir(dir);
    ck_assert_uint_eq(files, 2);
    jf_close();
    jf_remove();
}
END_TEST

/* The router died before it had unlinked them, or all of them. They are no part of the journal, and go with the first change. */
START_TEST(left_of_an_older_era)
{
    for (unsigned unlinked = 0; unlinked < 4; unlinked++) {
        jf_make(700, 0);
        for (uint64_t lsn = 0x200; lsn < 0x204; lsn++)
            jf_append_message(lsn, 300);
        jf_finish();
        disk_fail(DISK_UNLINK, EACCES, 1 + unlinked); /* one is of what is not there */
        ck_assert_int_eq(
            journal_begin_era(jf.j, JF_SYSTEM, 2, "shop", "walbus", jf_at(0x10), 0x10, 1), 0);
        jf_finish();
        ck_assert_ptr_nonnull(strstr((fflush(jf.log.out), jf.log_text), "journal.not-removed"));
        ck_assert_ptr_nonnull(strstr(jf.log_text, ".segment: Permission denied"));
        jf_close();
        disk_mend();
        unsigned unlinks = disk.counts[DISK_UNLINK];
        jf_open();
        jf_finish();
        ck_assert_uint_eq(journal_segments(jf.j), 1);
        ck_assert_uint_eq(journal_end(jf.j)->era, 2);
        ck_assert_uint_eq(disk.counts[DISK_UNLINK], unlinks);
        jf_append_message(0x20, 10);
        jf_finish();
        ck_assert_uint_eq(disk.counts[DISK_UNLINK], unlinks + 1 + 4 - unlinked);
        jf_close();
        jf_open();
        jf_check_messages(0x20, 0x21);
        jf_close();
        jf_remove();
    }
}
END_TEST

/* ---- opening what is not as it was left ---- */

/* The files in order; malloc'ed paths. */
static unsigned list(char *paths[16])
{
    struct dirent **entries;
    int found = scandir(jf.folder, &entries, NULL, alphasort);
    unsigned n = 0;

    ck_assert_int_ge(found, 0);
    for (int i = 0; i < found; i++) {
        if (entries[i]->d_name[0] != '.') {
            ck_assert_uint_lt(n, 16);
            ck_assert_int_gt(asprintf(&paths[n++], "%s/%s", jf.folder, entries[i]->d_name), 0);
        }
        free(entries[i]);
    }
    free(entries);
    return n;
}

static void copy_file(const char *from, const char *to)
{
    uint8_t data[4096];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t n = read(in, data, sizeof data);

    ck_assert_int_gt(n, 0);
    ck_assert_int_eq(write(out, data, (size_t)n), n);
    (void)close(in);
    (void)close(out);
}

START_TEST(torn_at_every_byte)
{
    uint64_t ends[4];

    jf_make(LARGE, 0);
    for (unsigned i = 0; i < 4; i++) {
        jf_append_message(0x200 + i, 30 * i);
        jf_finish();
        ends[i] = journal_size(jf.j);
    }
    jf_close();
    char *paths[16], whole[64];
    ck_assert_uint_eq(list(paths), 1);
    (void)snprintf(whole, sizeof whole, "%s/whole", jf.folder);
    copy_file(paths[0], whole);
    unsigned left = 4;
    /* the last two records: test_segment cuts all of one */
    for (uint64_t size = ends[3]; size >= ends[1]; size -= unit_sparse()) {
        ck_assert_int_eq(truncate(paths[0], (off_t)size), 0);
        while (left && ends[left - 1] > size)
            left--;
        uint64_t last = left ? 0x200 + left - 1 : 0x100,
                 valid = left ? ends[left - 1] : SEGMENT_HEADER_SIZE;
        jf_open();
        check_end(last, last);
        ck_assert_uint_eq(journal_size(jf.j), size);
        (void)fflush(jf.log.out);
        if (size == valid) {
            ck_assert_str_eq(jf.log_text, "");
        } else { /* named, with its place */
            char offset[32];
            (void)snprintf(offset, sizeof offset, " offset=%u ", (unsigned)valid);
            ck_assert_ptr_nonnull(strstr(jf.log_text, "journal.torn"));
            ck_assert_ptr_nonnull(strstr(jf.log_text, paths[0]));
            ck_assert_ptr_nonnull(strstr(jf.log_text, offset));
        }
        for (uint64_t lsn = 0x200 + left; lsn < 0x206; lsn++)
            jf_append_message(lsn, 10);
        jf_finish();
        jf_check_messages(0x200, 0x206);
        struct stat st; /* what was torn takes no room any more */
        ck_assert_int_eq(stat(paths[0], &st), 0);
        ck_assert_uint_eq((uint64_t)st.st_size, valid);
        jf_close();
        jf_open();
        jf_check_messages(0x200, 0x206);
        jf_close();
        char *now[16];
        unsigned n = list(now);
        ck_assert_uint_eq(n, 3); /* with the copy */
        ck_assert_int_eq(unlink(now[1]), 0);
        copy_file(whole, paths[0]);
        while (n)
            free(now[--n]);
    }
    ck_assert_uint_eq(left, 2);
    free(paths[0]);
    jf_remove();
}
END_TEST

/* Nothing damaged is ever taken for what was written; where it is, is said. */
START_TEST(every_bit_flipped)
{
    enum { RECORDS = 2 };
    uint64_t ends[RECORDS];

    jf_make(LARGE, 0);
    for (unsigned i = 0; i < RECORDS; i++) {
        jf_append_message(0x200 + i, 5);
        jf_finish();
        ends[i] = journal_size(jf.j);
    }
    jf_close();
    char *paths[16];
    ck_assert_uint_eq(list(paths), 1);
    int fd = open(paths[0], O_RDWR);
    /* of the header every ninth: test_record turns each */
    for (uint64_t bit = 0; bit < 8 * ends[RECORDS - 1];
         bit += (bit < 8 * SEGMENT_HEADER_SIZE ? 9 : 1) * unit_sparse()) {
        uint8_t value, flipped;
        unsigned left = 0;

        ck_assert_int_eq(pread(fd, &value, 1, (off_t)(bit / 8)), 1);
        flipped = value ^ (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(pwrite(fd, &flipped, 1, (off_t)(bit / 8)), 1);
        int r = jf_try_open();
        if (bit / 8 < SEGMENT_HEADER_SIZE) {
            ck_assert_int_eq(r, -EBADMSG);
            ck_assert_ptr_nonnull(strstr(jf.why, paths[0]));
        } else {
            ck_assert_int_eq(r, 0);
            while (ends[left] <= bit / 8)
                left++;
            check_end(left ? 0x200 + left - 1 : 0x100, left ? 0x200 + left - 1 : 0x100);
            jf_check_messages(0x200, 0x200 + left);
            char offset[32];
            (void)snprintf(offset, sizeof offset, " offset=%u ",
                           (unsigned)(left ? ends[left - 1] : SEGMENT_HEADER_SIZE));
            (void)fflush(jf.log.out);
            ck_assert_ptr_nonnull(strstr(jf.log_text, paths[0]));
            ck_assert_ptr_nonnull(strstr(jf.log_text, offset));
            jf_close();
        }
        ck_assert_int_eq(pwrite(fd, &value, 1, (off_t)(bit / 8)), 1);
    }
    (void)close(fd);
    free(paths[0]);
    jf_remove();
}
END_TEST

/* Bytes behind what the next header calls valid do not exist, whole records too. */
START_TEST(behind_what_is_valid)
{
    char *paths[16];
    uint8_t data[4096];

    jf_make(LARGE, 0);
    jf_append_message(0x200, 10);
    jf_append_message(0x201, 10);
    jf_finish();
    uint64_t size = journal_size(jf.j);
    jf_close();
    ck_assert_uint_eq(list(paths), 1);
    ck_assert_int_eq(truncate(paths[0], (off_t)size - 1), 0);
    jf_open();
    check_end(0x200, 0x200);
    jf_append_message(0x201, 20);
    jf_finish();
    jf_close();
    /* … as if the torn record had been there all along */
    int fd = open(paths[0], O_RDWR | O_APPEND);
    memset(data, 0x11, sizeof data);
    ck_assert_int_eq(write(fd, data, sizeof data), sizeof data);
    (void)close(fd);
    jf_open();
    check_end(0x201, 0x201);
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 2);
    ck_assert_uint_eq(jf_entries[1].content, 20);
    jf_forget();
    jf_close();
    free(paths[0]);
    jf_remove();
}
END_TEST

static void refused(const char *file, const char *words)
{
    ck_assert_int_eq(jf_try_open(), -EBADMSG);
    ck_assert_msg(strstr(jf.why, file) && strstr(jf.why, words), "%s", jf.why);
}

START_TEST(folders_that_are_no_journal)
{
    char *paths[16], other[128], twice[128];
    uint8_t header[SEGMENT_HEADER_SIZE], changed[SEGMENT_HEADER_SIZE];
    struct segment_header h;

    jf_make(700, 0);
    for (uint64_t lsn = 0x200; lsn < 0x204; lsn++)
        jf_append_message(lsn, 300);
    jf_finish();
    jf_close();
    ck_assert_uint_eq(list(paths), 4);

    /* other files are nobody's business */
    (void)snprintf(other, sizeof other, "%s/other", jf.folder);
    copy_file(paths[0], other);
    jf_open();
    jf_check_messages(0x200, 0x204);
    jf_close();

    ck_assert_int_eq(rename(paths[1], other), 0);
    refused(jf.folder, "is missing");
    ck_assert_int_eq(rename(other, paths[1]), 0);

    /* the oldest may be gone */
    ck_assert_int_eq(rename(paths[0], other), 0);
    jf_open();
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 3);
    jf_forget();
    jf_close();
    ck_assert_int_eq(rename(other, paths[0]), 0);

    copy_file(paths[1], other);
    int fd = open(other, O_RDONLY);
    ck_assert_int_eq(pread(fd, header, sizeof header, 0), sizeof header);
    (void)close(fd);
    ck_assert_int_eq(truncate(paths[1], SEGMENT_HEADER_SIZE - 1), 0);
    refused(paths[1], "header is damaged");
    copy_file(other, paths[1]);

    (void)snprintf(twice, sizeof twice,
                   "%s/0000000000000002-00000001-0000000000000150-00000000.segment", jf.folder);
    ck_assert_int_eq(segment_header_decode(header, &h), 0);
    h.after.lsn = 0x150; /* wrong in itself, so that it is not refused for its name */
    segment_header_encode(&h, changed);
    fd = open(twice, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(write(fd, changed, sizeof changed), sizeof changed);
    (void)close(fd);
    refused(jf.folder, "two of one number");
    ck_assert_int_eq(unlink(twice), 0);

    copy_file(paths[0], paths[1]);
    refused(paths[1], "name of another segment");

    static const struct {
        int what;
        const char *words;
    } cases[] = {{0, "another journal"}, {1, "another journal"}, {2, "format"}, {3, "how far"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        copy_file(other, paths[1]);
        ck_assert_int_eq(segment_header_decode(header, &h), 0);
        switch (cases[i].what) {
        case 0:
            h.era++;
            break;
        case 1:
            h.system_identifier++;
            break;
        case 2:
            h.format++;
            break;
        default:
            h.previous_size = SEGMENT_HEADER_SIZE - 1;
            break;
        }
        segment_header_encode(&h, changed);
        fd = open(paths[1], O_RDWR);
        ck_assert_int_eq(pwrite(fd, changed, sizeof changed, 0), sizeof changed);
        (void)close(fd);
        refused(paths[1], cases[i].words);
    }
    for (unsigned i = 0; i < 4; i++)
        free(paths[i]);

    char *folder = jf.folder, none[64];
    (void)snprintf(none, sizeof none, "%s/none/journal", folder);
    jf.folder = none;
    ck_assert_int_eq(jf_try_open(), -ENOENT);
    jf.folder = folder;
    jf_remove();
}
END_TEST

/* Damage in one that is not the last: found before anything is read from it, and the rest is there. */
START_TEST(damage_in_the_middle)
{
    char *paths[16];

    jf_make(700, 0);
    for (uint64_t lsn = 0x200; lsn < 0x204; lsn++)
        jf_append_message(lsn, 300);
    jf_finish();
    jf_close();
    ck_assert_uint_eq(list(paths), 4);
    ck_assert_int_eq(truncate(paths[1], SEGMENT_HEADER_SIZE + 100), 0);
    jf_open();
    check_end(0x203, 0x203);
    struct segment *first = journal_segment_first(jf.j), *s = journal_segment_after(jf.j, first);
    ck_assert_int_eq(segment_verify(s, false), 0);
    ck_assert_uint_eq(s->damaged_at, SEGMENT_HEADER_SIZE);
    ck_assert_str_eq(s->path, paths[1]);
    ck_assert_int_eq(segment_verify(first, false), 0);
    ck_assert_uint_eq(first->damaged_at, 0);
    segment_unref(s);
    segment_unref(first);
    jf_close();
    for (unsigned i = 0; i < 4; i++)
        free(paths[i]);
    jf_remove();
}
END_TEST

/* Also of what this process has written, once the segment is closed. */
START_TEST(damage_of_ones_own)
{
    char *paths[16];

    jf_make(700, 0);
    for (uint64_t lsn = 0x200; lsn < 0x204; lsn++)
        jf_append_message(lsn, 300);
    jf_finish();
    ck_assert_uint_eq(list(paths), 4);
    int fd = open(paths[1], O_RDWR | O_CLOEXEC);
    uint8_t byte;
    ck_assert_int_eq(pread(fd, &byte, 1, SEGMENT_HEADER_SIZE + 200), 1);
    byte ^= 1;
    ck_assert_int_eq(pwrite(fd, &byte, 1, SEGMENT_HEADER_SIZE + 200), 1);
    ck_assert_int_eq(close(fd), 0);
    struct segment *s = journal_segment_first(jf.j), *next;
    uint64_t size = journal_size(jf.j);
    for (unsigned i = 0; i < 3; i++, s = next) {
        ck_assert_int_eq(segment_verify(s, false), 0);
        ck_assert_uint_eq(s->damaged_at, i == 1 ? SEGMENT_HEADER_SIZE : 0);
        next = journal_segment_after(jf.j, s);
        segment_unref(s);
    }
    ck_assert(s->verified); /* it is being written */
    ck_assert_uint_eq(journal_size(jf.j), size);
    uint64_t left = segment_disk_size(s);
    segment_unref(s);
    check_end(0x203, 0x203);
    jf_append_message(0x204, 300); /* the chain goes on, whatever is read of it */
    jf_finish();
    jf_close();
    for (unsigned i = 0; i < 4; i++)
        free(paths[i]);
    jf_open();
    check_end(0x204, 0x204);
    jf_close();
    jf_remove();
    /* what is dropped takes as much from the journal's size as it had there */
    jf_make(700, 0);
    for (uint64_t lsn = 0x200; lsn < 0x204; lsn++)
        jf_append_message(lsn, 300);
    jf_finish();
    s = journal_segment_first(jf.j);
    ck_assert_int_eq(truncate(s->path, SEGMENT_HEADER_SIZE + 100), 0);
    ck_assert_int_eq(segment_verify(s, false), 0);
    ck_assert_uint_ne(s->damaged_at, 0);
    segment_unref(s);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(journal_drop_first(jf.j), 0);
    ck_assert_uint_eq(journal_size(jf.j), left);
    jf_close();
    jf_remove();
}
END_TEST

/* A router that stood still has not run. */
START_TEST(time_that_a_router_stood)
{
    jf_make(700, 0);
    uint64_t began = journal_running_ms(jf.j);
    jf.j->ticked_at -= (JOURNAL_STOOD_MS + 5000) * UINT64_C(1000000); /* as if that had been so long ago */
    ck_assert_uint_eq(journal_running_ms(jf.j), began); /* whoever asks before the tick does not get what that takes back */
    journal_tick(jf.j);
    ck_assert_uint_eq(journal_running_ms(jf.j), began + JOURNAL_STOOD_MS);
    jf.j->ticked_at -= 1200 * UINT64_C(1000000); /* a tick that was late */
    journal_tick(jf.j);
    ck_assert_uint_ge(journal_running_ms(jf.j), began + JOURNAL_STOOD_MS + 1200);
    ck_assert_uint_lt(journal_running_ms(jf.j), began + 2 * JOURNAL_STOOD_MS);
    jf_close();
    jf_remove();
}
END_TEST

UNIT_MAIN("journal", empty, nothing_is_changed_before_it_must, written_then_synced,
          a_turn_is_one_write, syncs_are_paced, a_pause_is_kept, marks_alone,
          ten_thousand_read_back, larger_than_a_segment, inside_a_transaction,
          inside_where_a_segment_is_empty, a_gap_stands_in_it, times_never_fall,
          the_queue_is_bounded, closed_with_a_queue, held_by_a_reader, another_era,
          left_of_an_older_era, torn_at_every_byte, every_bit_flipped, behind_what_is_valid,
          folders_that_are_no_journal, damage_in_the_middle, damage_of_ones_own,
          time_that_a_router_stood)
