/* SPDX-License-Identifier: PostgreSQL */
/* What the journal does when the disk fails, and when its router dies between any two system calls. */
#include "journal_fixture.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define HOUR_NS UINT64_C(3600000000000)
#define LARGE   (16u << 20)

/* What could be read of a segment, and was taken back, must not be followed by something else there: a reader has a place in it. */
START_TEST(what_was_read_is_not_written_over)
{
    for (unsigned read = 0; read < 2; read++) {
        jf_make(4000, HOUR_NS);
        jf_append_message(0x200, 3000); /* the first one is synced at once */
        JF_UNTIL(jf.synced);
        disk_fail(DISK_WRITEV, ENOSPC, read);
        jf_append_message(0x201, 1000);
        JF_UNTIL(jf.failed || (journal_end(jf.j)->last.lsn == 0x201));
        jf_append_message(0x202, 1000);
        JF_UNTIL(jf.failed);
        struct position second = {1, 0x200, 0};
        struct segment *s = journal_segment_of(jf.j, second);
        ck_assert_uint_eq(s->header.sequence, 2);
        disk_mend();
        disk_fail(DISK_ALLOCATE, ENOSPC, 0);
        ck_assert_int_eq(jf_retry(), -ENOSPC);
        disk_mend();
        ck_assert_int_eq(jf_retry(), 0);
        ck_assert_uint_eq(journal_segments(jf.j), 2 + read);
        jf_append_message(0x201, 1000);
        jf_finish();
        ck_assert_uint_eq(s->size > SEGMENT_HEADER_SIZE, !read);
        segment_unref(s);
        jf_check_messages(0x200, 0x202);
        jf_close();
        jf_remove();
    }
}
END_TEST

/* Before anything was written: the end is where it was found. */
START_TEST(failing_unlink_first_of_all)
{
    jf_make(1000, 0);
    for (uint64_t lsn = 0x200; lsn < 0x203; lsn++)
        jf_append_message(lsn, 500);
    jf_finish();
    jf_close();
    jf_open();
    ck_assert_uint_eq(journal_segments(jf.j), 3);
    disk_fail(DISK_UNLINK, EPERM, 0);
    ck_assert_int_eq(journal_drop_first(jf.j), 0);
    do {
        (void)uv_run(&jf.loop, UV_RUN_NOWAIT);
        (void)fflush(jf.log.out);
    } while (!strstr(jf.log_text, "journal.not-removed"));
    ck_assert_uint_eq(journal_end(jf.j)->last.lsn, 0x202);
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x202);
    ck_assert_uint_eq(journal_written(jf.j).lsn, 0x202);
    ck_assert_uint_eq(journal_end(jf.j)->messages, 3);
    disk_mend();
    jf_close();
    jf_remove();
}
END_TEST

/* Four messages: the first is on disk, the second and the third are written. */
static void make_unsynced(uint64_t segment_size)
{
    jf_make(segment_size, HOUR_NS);
    jf_append_message(0x200, 10);
    JF_UNTIL(jf.synced);
    jf_append_message(0x201, 10);
    jf_append_message(0x202, 10);
    JF_UNTIL(journal_pending(jf.j) == 0);
    ck_assert_uint_eq(journal_written(jf.j).lsn, 0x202);
}

static void check_fallen_back(int error, const char *what)
{
    const struct journal_end *end = journal_end(jf.j);

    ck_assert_uint_eq(jf.failed, 1);
    ck_assert_int_eq(jf.error, error);
    ck_assert_msg(strstr(jf.what, what) && strstr(jf.what, strerror(error)), "%s", jf.what);
    ck_assert(journal_has_failed(jf.j));
    ck_assert_uint_eq(end->last.lsn, 0x200);
    ck_assert_uint_eq(end->mark, 0x200);
    ck_assert_uint_eq(end->messages, 1);
    ck_assert_uint_eq(journal_written(jf.j).lsn, 0x200);
    ck_assert_uint_eq(journal_pending(jf.j), 0);
    ck_assert_uint_eq(jf.pool.live, 0);
    jf_check_messages(0x200, 0x201);
    /* nothing is taken any more */
    jf_append_message(0x203, 10);
    ck_assert_uint_eq(jf.pool.live, 0);
    ck_assert_uint_eq(journal_pending(jf.j), 0);
    ck_assert(!journal_is_full_queue(jf.j, true));
    ck_assert_int_eq(journal_finish(jf.j), -error);
    ck_assert_uint_eq(jf.failed, 1);
}

/* The server sends again what followed. */
static void go_on(void)
{
    disk_mend();
    if (journal_has_failed(jf.j))
        ck_assert_int_eq(jf_retry(), 0);
    unsigned retried = jf.retried;
    ck_assert(!journal_has_failed(jf.j));
    journal_retry(jf.j); /* nothing to try */
    jf_finish();
    ck_assert_uint_eq(jf.retried, retried);
    for (uint64_t lsn = 0x201; lsn < 0x208; lsn++)
        jf_append_message(lsn, 20);
    jf_finish();
    ck_assert_uint_eq(jf.synced_mark, 0x207);
    for (unsigned opened = 0; opened < 2; opened++) {
        ck_assert_uint_eq(journal_end(jf.j)->last.lsn, 0x207);
        ck_assert_uint_eq(journal_end(jf.j)->mark, 0x207);
        ck_assert_uint_eq(journal_end(jf.j)->messages, 8);
        ck_assert_uint_eq(journal_end(jf.j)->bytes, 10 + 7 * 20);
        jf_check_messages(0x200, 0x208);
        ck_assert_uint_eq(jf.failed, opened ? 0 : 1);
        jf_close();
        if (opened == 0)
            jf_open();
    }
    jf_remove();
}

START_TEST(failing_write)
{
    static const int errors[] = {ENOSPC, EIO};

    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        make_unsynced(LARGE);
        disk_fail(DISK_WRITEV, errors[i], 0);
        jf_append_message(0x203, 10);
        JF_UNTIL(jf.failed);
        check_fallen_back(errors[i], "writing /tmp/walbus-unit-");
        ck_assert_uint_eq(journal_segments(jf.j), 1);
        go_on();
    }
}
END_TEST

/* On a disk that stays full each attempt would leave a file. */
START_TEST(attempts_leave_no_files)
{
    make_unsynced(LARGE);
    for (unsigned i = 1; i <= 4; i++) {
        disk_fail(DISK_WRITEV, ENOSPC, 0);
        jf_append_message(0x203, 5000);
        JF_UNTIL(jf.failed == i);
        disk_mend();
        disk_fail(DISK_ALLOCATE, ENOSPC, 0); /* there is no room yet for what failed */
        ck_assert_int_eq(jf_retry(), -ENOSPC);
        ck_assert(journal_has_failed(jf.j));
        ck_assert_uint_eq(journal_segments(jf.j), i == 1 ? 1 : 2);
        disk_mend();
        ck_assert_int_eq(jf_retry(), 0);
        ck_assert(!journal_has_failed(jf.j));
        ck_assert_uint_eq(journal_segments(jf.j), 2);
    }
    for (uint64_t lsn = 0x201; lsn < 0x208; lsn++)
        jf_append_message(lsn, 20);
    jf_finish();
    for (unsigned opened = 0; opened < 2; opened++) {
        ck_assert_uint_eq(journal_end(jf.j)->mark, 0x207);
        jf_check_messages(0x200, 0x208);
        jf_close();
        if (opened == 0)
            jf_open();
    }
    jf_remove();
}
END_TEST

/* A part of it is there: it does not count, takes no room later, and is not overwritten. */
START_TEST(failing_write_half_way)
{
    struct stat st;

    make_unsynced(LARGE);
    struct segment *s = journal_segment_first(jf.j);
    disk.half = true;
    disk_fail(DISK_WRITEV, ENOSPC, 0); /* what follows the half */
    jf_append_message(0x203, 5000);
    JF_UNTIL(jf.failed);
    ck_assert_int_eq(fstat(s->fd, &st), 0); /* cut at once: a router that is killed now must not find it */
    ck_assert_uint_eq((uint64_t)st.st_size, s->size);
    check_fallen_back(ENOSPC, "writing ");
    disk_mend();
    ck_assert_int_eq(jf_retry(), 0);
    ck_assert_int_eq(fstat(s->fd, &st), 0);
    ck_assert_uint_eq((uint64_t)st.st_size, s->size);
    segment_unref(s);
    go_on();
}
END_TEST

START_TEST(half_a_write_is_no_failure)
{
    jf_make(LARGE, 0);
    for (uint64_t lsn = 0x200; lsn < 0x240; lsn++) {
        disk.half = true;
        jf_append_message(lsn, (size_t)(lsn % 7 * 300));
        if (lsn % 3 == 0)
            jf_append_message(++lsn, 100000); /* head and tail */
        jf_finish();
        ck_assert(!disk.half);
    }
    jf_check_messages(0x200, 0x240);
    ck_assert_uint_eq(jf.failed, 0);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(failing_sync)
{
    static const int errors[] = {ENOSPC, EIO};

    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        make_unsynced(LARGE);
        disk_fail(DISK_DATASYNC, errors[i], 0);
        ck_assert_int_eq(journal_finish(jf.j), -errors[i]);
        check_fallen_back(errors[i], "syncing /tmp/walbus-unit-");
        ck_assert_uint_eq(jf.synced_mark, 0x200);
        go_on();
    }
}
END_TEST

/* At each step of making one. What was in the old one was synced before, and stays. */
START_TEST(failing_segment)
{
    static const enum disk_call steps[] = {DISK_UNLINK, DISK_WRITE, DISK_SYNC, DISK_RENAME,
                                           DISK_SYNC};

    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        jf_make(1000, HOUR_NS);
        jf_append_message(0x200, 10);
        JF_UNTIL(jf.synced);
        disk_fail(steps[i], ENOSPC, i == 4 ? 1 : 0);
        jf_append_message(0x201, 500);
        JF_UNTIL(jf.failed);
        check_fallen_back(ENOSPC, "making a segment in /tmp/walbus-unit-");
        ck_assert_uint_eq(journal_segments(jf.j), 1);
        disk_fail(steps[i], EIO, i == 4 ? 1 : 0);
        ck_assert_int_eq(jf_retry(), -EIO);
        ck_assert(journal_has_failed(jf.j));
        go_on();
    }
}
END_TEST

/* … while what is in the old one was not yet on disk. */
START_TEST(failing_sync_at_a_change)
{
    make_unsynced(1200);
    disk_fail(DISK_DATASYNC, EIO, 0);
    jf_append_message(0x203, 500);
    JF_UNTIL(jf.failed);
    check_fallen_back(EIO, "syncing ");
    go_on();
}
END_TEST

START_TEST(no_room_to_go_on)
{
    make_unsynced(LARGE);
    disk_fail(DISK_WRITEV, ENOSPC, 0);
    jf_append_message(0x203, 10);
    JF_UNTIL(jf.failed);
    disk_mend();
    disk_fail(DISK_ALLOCATE, ENOSPC, 0);
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_int_eq(jf_retry(), -ENOSPC);
        ck_assert_uint_eq(journal_segments(jf.j), 1);
    }
    check_fallen_back(ENOSPC, "writing ");
    jf_close();
    jf_open(); /* nothing is left of the attempts */
    ck_assert_uint_eq(journal_segments(jf.j), 1);
    jf_close();
    jf_remove();

    make_unsynced(LARGE);
    disk_fail(DISK_WRITEV, ENOSPC, 0);
    jf_append_message(0x203, 10);
    JF_UNTIL(jf.failed);
    disk_mend();
    disk_fail(DISK_ALLOCATE, EOPNOTSUPP, 0); /* a file system that cannot say */
    ck_assert_int_eq(jf_retry(), 0);
    go_on();
}
END_TEST

/* The owner has not heard of the failure, and so not of the end that it must go on from. */
START_TEST(retry_before_it_was_told)
{
    make_unsynced(LARGE);
    disk.hold = true;
    disk_fail(DISK_WRITEV, EIO, 0);
    jf_append_message(0x203, 10);
    (void)uv_run(&jf.loop, UV_RUN_NOWAIT); /* wakes the thread; from here on the loop stands */
    disk.hold = false;
    while (!journal_has_failed(jf.j))
        (void)usleep(100);
    journal_retry(jf.j);
    (void)usleep(2000); /* time for what must not happen */
    ck_assert_uint_eq(jf.failed, 0);
    ck_assert_uint_eq(journal_segments(jf.j), 1);
    JF_UNTIL(jf.failed);
    check_fallen_back(EIO, "writing ");
    ck_assert_uint_eq(jf.retried, 0);
    go_on();
}
END_TEST

/* What a router that died has written may never have been synced: nothing is built on it before it is. */
START_TEST(failing_sync_at_opening)
{
    static const enum disk_call calls[] = {DISK_DATASYNC, DISK_SYNC};

    make_unsynced(LARGE);
    jf_close();
    for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
        disk_fail(calls[i], EIO, 0);
        ck_assert_int_eq(jf_try_open(), -EIO);
        ck_assert_msg(strstr(jf.why, ".segment cannot be synced: "), "%s", jf.why);
        disk_mend();
    }
    jf_open();
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x202);
    jf_check_messages(0x200, 0x203);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(failing_inside_a_transaction)
{
    struct position t = jf_at(0x300);
    struct batch *b;

    jf_make(LARGE, HOUR_NS);
    b = jf_batch();
    jf_add_begin(b, t);
    jf_add_part(b, t, 1, 10);
    jf_append(b, 0x200);
    JF_UNTIL(jf.synced);
    b = jf_batch();
    jf_starts_inside(b, t);
    jf_add_part(b, t, 2, 10);
    jf_add_commit(b, t, 2);
    jf_append(b, 0x308);
    JF_UNTIL(!journal_end(jf.j)->inside);
    disk_fail(DISK_WRITEV, EIO, 0);
    jf_append_message(0x400, 10);
    JF_UNTIL(jf.failed);
    ck_assert(journal_end(jf.j)->inside);
    ck_assert_uint_eq(journal_end(jf.j)->begin.commit_lsn, 0x300);
    ck_assert_uint_eq(journal_end(jf.j)->last.index, 1);
    disk_mend();
    ck_assert_int_eq(jf_retry(), 0);
    b = jf_batch();
    jf_starts_inside(b, t);
    jf_add_part(b, t, 2, 10);
    jf_add_commit(b, t, 2);
    jf_append(b, 0x308);
    jf_finish();
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 4);
    jf_forget();

    /* one whose begin is not there is no rest of anything */
    b = jf_batch();
    jf_starts_inside(b, jf_at(0x500));
    jf_add_part(b, jf_at(0x500), 7, 10);
    jf_append(b, 0);
    JF_UNTIL(jf.failed == 2);
    ck_assert_int_eq(jf.error, ESTALE);
    jf_close();
    jf_remove();
}
END_TEST

START_TEST(an_era_that_cannot_begin)
{
    jf_make(LARGE, 0);
    jf_append_message(0x200, 10);
    jf_finish();
    disk_fail(DISK_RENAME, EIO, 0);
    ck_assert_int_eq(
        journal_begin_era(jf.j, JF_SYSTEM + 1, 1, "shop", "walbus", jf_at(0x10), 0x10, 1), -EIO);
    disk_mend();
    ck_assert_uint_eq(journal_end(jf.j)->system_identifier, JF_SYSTEM);
    jf_append_message(0x201, 10);
    jf_finish();
    jf_check_messages(0x200, 0x202);

    /* one that begins ends a failure too */
    disk_fail(DISK_WRITEV, EIO, 0);
    jf_append_message(0x202, 10);
    JF_UNTIL(jf.failed);
    disk_mend();
    ck_assert_int_eq(
        journal_begin_era(jf.j, JF_SYSTEM + 1, 1, "shop", "walbus", jf_at(0x10), 0x10, 1), 0);
    ck_assert(!journal_has_failed(jf.j));
    jf_append_message(0x20, 10);
    jf_finish();
    jf_check_messages(0x20, 0x21);
    jf_close();
    jf_remove();
}
END_TEST

/* It stays, and so do those behind it: no crash may leave a hole. */
START_TEST(failing_unlink)
{
    jf_make(700, 0);
    for (uint64_t lsn = 0x200; lsn < 0x206; lsn++)
        jf_append_message(lsn, 300);
    jf_finish();
    disk_fail(DISK_UNLINK, EROFS, 0);
    ck_assert_int_eq(journal_drop_first(jf.j), 0);
    ck_assert_int_eq(journal_drop_first(jf.j), 0);
    jf_finish();
    (void)fflush(jf.log.out);
    ck_assert_ptr_nonnull(strstr(jf.log_text, "journal.not-removed"));
    ck_assert_ptr_nonnull(strstr(jf.log_text, strerror(EROFS)));
    jf_check_messages(0x202, 0x206);
    jf_close();
    jf_open(); /* they are back: nothing is lost by that */
    ck_assert_uint_eq(journal_segments(jf.j), 6);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(journal_drop_first(jf.j), 0);
    jf_finish();
    disk_mend();
    ck_assert_int_eq(journal_drop_first(jf.j), 0); /* takes the two with it */
    jf_finish();
    jf_close();
    jf_open();
    jf_check_messages(0x203, 0x206);
    jf_close();
    jf_remove();
}
END_TEST

/* ---- any call fails, any call is the last ---- */

#define SCRIPT_FROM 0x200
#define SCRIPT_TO   (SCRIPT_FROM + 16)

/* Messages up to the script's end, each turn a few; some fill a segment. Retention runs once there are many. */
static void script(void)
{
    while (journal_end(jf.j)->mark < SCRIPT_TO - 1) {
        uint64_t lsn = MAX(journal_end(jf.j)->last.lsn + 1, SCRIPT_FROM);

        if (journal_has_failed(jf.j)) {
            JF_UNTIL(jf.failed);
            if (jf_retry() < 0)
                continue;
        }
        for (unsigned i = 0; i < 1 + lsn % 3 && lsn < SCRIPT_TO; i++, lsn++) {
            jf_append_message(lsn, (size_t)(lsn % 4 * 120));
            if (jf_shared)
                jf_shared->appended = lsn;
        }
        jf.failed = 0;
        JF_UNTIL(jf.failed || (journal_pending(jf.j) == 0 && journal_end(jf.j)->mark == lsn - 1));
        while (journal_segments(jf.j) > 6)
            ck_assert_int_eq(journal_drop_first(jf.j), 0);
    }
}

static void open_or_begin(void)
{
    while (jf_try_open() < 0)
        ck_assert_msg(strstr(jf.why, "cannot be synced"), "%s", jf.why);
    if (journal_end(jf.j)->empty)
        while (journal_begin_era(jf.j, JF_SYSTEM, 1, "shop", "walbus",
                                 (struct position){1, 0x100, 0}, 0x100, 1) < 0)
            ;
}

/* What is left of it reads back whole up to the end. */
static void check_script(void)
{
    struct segment_info info;

    journal_segment_info(jf.j, 0, &info);
    jf_check_messages(MAX(info.after.lsn + 1, SCRIPT_FROM), SCRIPT_TO);
}

START_TEST(every_call_fails_once)
{
    static const int errors[] = {EIO, ENOSPC};
    bool all = false;

    for (int call = 1; !all; call += (int)unit_sparse()) {
        jf.folder = unit_temp_folder();
        memset(&disk, 0, sizeof disk);
        jf.options = (struct journal_options){.segment_size = 1000};
        disk.fail_error = errors[call / unit_sparse() % 2];
        disk.fail_at = call;
        open_or_begin();
        script();
        jf_finish();
        all = disk.fail_at > 0;
        for (unsigned opened = 0; opened < 2; opened++) {
            ck_assert_uint_eq(journal_end(jf.j)->last.lsn, SCRIPT_TO - 1);
            ck_assert_uint_eq(journal_end(jf.j)->messages, SCRIPT_TO - SCRIPT_FROM);
            check_script();
            disk.fail_at = 0;
            jf_close();
            if (opened == 0)
                jf_open();
        }
        jf_remove();
        ck_assert_int_lt(call, 1000);
    }
}
END_TEST

/* What was never synced may be lost, or half there, when the power goes. */
static void lose_power(struct unit_random *random)
{
    DIR *dir = opendir(jf.folder);

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;

        ck_assert_int_eq(fstatat(dirfd(dir), e->d_name, &st, 0), 0);
        for (unsigned i = 0; i < jf_shared->n_synced; i++) {
            off_t size = jf_shared->synced[i].size;

            if (!S_ISREG(st.st_mode) || jf_shared->synced[i].file != st.st_ino ||
                size >= st.st_size)
                continue;
            int fd = openat(dirfd(dir), e->d_name, O_RDWR);
            size += unit_random_below(random, (uint32_t)(st.st_size - size) + 1);
            ck_assert_int_eq(ftruncate(fd, size), 0);
            (void)close(fd);
        }
    }
    (void)closedir(dir);
}

static void kill_everywhere(bool power)
{
    struct unit_random random = unit_random_init();
    bool all = false;

    jf_shared =
        mmap(NULL, sizeof *jf_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(jf_shared, MAP_FAILED);
    for (int call = 1; !all; call += (int)unit_sparse()) {
        int status;

        jf.folder = unit_temp_folder();
        memset(&disk, 0, sizeof disk);
        memset(jf_shared, 0, sizeof *jf_shared);
        jf.options = (struct journal_options){.segment_size = 1000, .sync_interval_ns = 3000000};
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            disk.kill_at = call;
            open_or_begin();
            script();
            jf_shared->finished = true;
            for (;;)
                (void)pause(); /* an exit, or a signal of its own, would look for leaks */
        }
        while (waitpid(child, &status, WNOHANG) == 0) {
            if (jf_shared->finished || jf_shared->dies)
                (void)kill(child, SIGKILL);
            (void)usleep(500);
        }
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        all = jf_shared->finished;
        if (power)
            lose_power(&random);
        uint64_t mark = jf_shared->mark, appended = jf_shared->appended;
        struct jf_shared *shared = jf_shared;
        jf_shared = NULL;
        open_or_begin();
        const struct journal_end *end = journal_end(jf.j);
        ck_assert_uint_ge(end->mark, mark);
        ck_assert(end->last.lsn >= mark && (end->last.lsn <= appended || end->last.lsn == 0x100));
        ck_assert_uint_eq(end->mark, end->last.lsn);
        struct segment_info info;
        journal_segment_info(jf.j, 0, &info);
        if (end->last.lsn > 0x100)
            jf_check_messages(MAX(info.after.lsn + 1, SCRIPT_FROM), end->last.lsn + 1);
        script();
        jf_finish();
        check_script();
        jf_close();
        jf_open();
        check_script();
        jf_close();
        jf_remove();
        jf_shared = shared;
        ck_assert_int_lt(call, 1000);
    }
    ck_assert_int_eq(munmap(jf_shared, sizeof *jf_shared), 0);
    jf_shared = NULL;
}

START_TEST(killed_before_every_call)
{
    kill_everywhere(false);
}
END_TEST

START_TEST(power_lost_before_every_call)
{
    kill_everywhere(true);
}
END_TEST

UNIT_MAIN("journal_failure", what_was_read_is_not_written_over, failing_unlink_first_of_all, failing_write, attempts_leave_no_files, failing_write_half_way, half_a_write_is_no_failure,
          failing_sync, failing_segment, failing_sync_at_a_change, no_room_to_go_on,
          retry_before_it_was_told, failing_sync_at_opening, failing_inside_a_transaction,
          an_era_that_cannot_begin, failing_unlink, every_call_fails_once, killed_before_every_call,
          power_lost_before_every_call)
