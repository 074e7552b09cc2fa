/* SPDX-License-Identifier: PostgreSQL */
#include "base/watched_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "unit.h"

static void write_file(const char *path, const char *content)
{
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(content, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* What is read is good, however long this test takes: nothing is to be read once more. */
static bool good(struct watched_file *w)
{
    w->unsettled = false;
    return watched_file_good(w);
}

static struct watched_file watch(const char *path)
{
    struct watched_file w;

    ck_assert_int_eq(watched_file_init(&w, path, 1000), 0);
    ck_assert_int_eq(watched_file_look(&w), WATCHED_CHANGED);
    ck_assert_int_eq(watched_file_look(&w), WATCHED_CHANGED); /* nothing has been read yet */
    ck_assert(!good(&w));
    ck_assert_int_eq(watched_file_look(&w), WATCHED_SAME);
    return w;
}

static void changed(struct watched_file *w)
{
    ck_assert_int_eq(watched_file_look(w), WATCHED_CHANGED);
    ck_assert(!good(w));
    ck_assert_int_eq(watched_file_look(w), WATCHED_SAME);
}

START_TEST(changes_are_seen)
{
    char *path = unit_temp_file(unit_bytes("one")), *other = unit_temp_file(unit_bytes("two"));
    struct watched_file w = watch(path);

    write_file(path, "longer");
    changed(&w);
    ck_assert_int_eq(chmod(path, 0640), 0);
    changed(&w);
    ck_assert_int_eq(utimensat(AT_FDCWD, path, (const struct timespec[2]){{1, 0}, {1, 0}}, 0), 0);
    changed(&w);
    ck_assert_int_eq(rename(other, path), 0);
    changed(&w);
    watched_file_deinit(&w);
    (void)unlink(path);
    free(path);
    free(other);
}
END_TEST

START_TEST(a_link_that_points_elsewhere)
{
    char *one = unit_temp_file(unit_bytes("one")), *two = unit_temp_file(unit_bytes("two"));
    char *folder = unit_temp_folder(), *link;

    ck_assert_int_ge(asprintf(&link, "%s/link", folder), 0);
    ck_assert_int_eq(symlink(one, link), 0);
    struct watched_file w = watch(link);
    ck_assert_int_eq(unlink(link), 0);
    ck_assert_int_eq(symlink(two, link), 0);
    changed(&w);
    watched_file_deinit(&w);
    (void)unlink(one);
    (void)unlink(two);
    free(one);
    free(two);
    free(link);
    unit_temp_folder_remove(folder);
}
END_TEST

START_TEST(a_file_that_is_gone_is_looked_for)
{
    char *path = unit_temp_file(unit_bytes("one"));
    struct watched_file w = watch(path);

    ck_assert_int_eq(unlink(path), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(watched_file_look(&w), WATCHED_CHANGED);
    write_file(path, "one");
    changed(&w);
    watched_file_deinit(&w);
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(what_is_wrong_is_told_once)
{
    char *path = unit_temp_file(unit_bytes("one"));
    struct watched_file w = watch(path);

    write_file(path, "broken");
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(watched_file_look(&w), WATCHED_CHANGED);
        ck_assert_int_eq(watched_file_bad(&w, "line 1"), i == 0);
    }
    ck_assert(watched_file_bad(&w, "line 2"));
    ck_assert(watched_file_bad(&w, "line 1"));
    ck_assert_int_eq(watched_file_look(&w), WATCHED_CHANGED);
    ck_assert(good(&w));
    ck_assert_int_eq(watched_file_look(&w), WATCHED_SAME);
    ck_assert(!good(&w));
    ck_assert(watched_file_bad(&w, "line 1"));
    watched_file_deinit(&w);
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(a_fresh_change_is_read_once_more)
{
    struct watched_file w = watch("/bin/sh"), fresh; /* which was written a while ago */
    char *path = unit_temp_file(unit_bytes("fresh"));

    w.unsettled = true; /* as if it had been fresh when it was looked at last */
    ck_assert_int_eq(watched_file_look(&w), WATCHED_CHANGED);
    ck_assert(!w.unsettled);
    ck_assert(!watched_file_good(&w));
    ck_assert_int_eq(watched_file_look(&w), WATCHED_SAME);
    watched_file_deinit(&w);
    /* Unless this took longer. */
    ck_assert_int_eq(watched_file_init(&fresh, path, 1000), 0);
    ck_assert_int_eq(watched_file_look(&fresh), WATCHED_CHANGED);
    int64_t changed_us = fresh.seen.ctime.tv_sec * INT64_C(1000000) + fresh.seen.ctime.tv_nsec / 1000;
    ck_assert(fresh.unsettled ||
              changed_us + WATCHED_FILE_SETTLE_NS / 1000 <= clock_realtime_us());
    watched_file_deinit(&fresh);
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(what_is_being_written_is_left_alone)
{
    const int64_t hour_ns = INT64_C(3600) * 1000000000;
    struct watched_file old = watch("/bin/sh"), w;
    char *path = unit_temp_file(unit_bytes("one"));

    ck_assert(watched_file_is_quiet(&old, 5));
    ck_assert_uint_eq(old.next_ns, 0);
    ck_assert_int_eq(watched_file_init(&w, path, 1000), 0);
    w.quiet_ns = hour_ns;
    ck_assert(watched_file_is_due(&w, 5));
    ck_assert(!watched_file_is_quiet(&w, 5));
    ck_assert_uint_gt(w.next_ns, 5); /* less than an hour behind the last change */
    ck_assert_uint_le(w.next_ns, 5 + (uint64_t)hour_ns);
    w.quiet_ns = 0;
    ck_assert(watched_file_is_quiet(&w, 5));
    w.quiet_ns = hour_ns;
    (void)unlink(path);
    ck_assert(watched_file_is_quiet(&w, 5)); /* reading says what is wrong */
    watched_file_deinit(&w);
    watched_file_deinit(&old);
    free(path);
}
END_TEST

START_TEST(written_while_it_was_read)
{
    char *path = unit_temp_file(unit_bytes("one"));
    struct watched_file w = watch(path);

    ck_assert(!watched_file_is_other(&w));
    write_file(path, "longer");
    ck_assert(watched_file_is_other(&w));
    changed(&w);
    ck_assert(!watched_file_is_other(&w));
    (void)unlink(path);
    ck_assert(watched_file_is_other(&w));
    watched_file_deinit(&w);
    free(path);
}
END_TEST

/* What fits no number of nanoseconds: anybody may set an mtime, and tmpfs takes any. */
START_TEST(times_of_any_size)
{
    static const time_t seconds[] = {INT64_C(15000000000), INT64_C(1) << 62, -(INT64_C(1) << 62)};
    char *path = unit_temp_file(unit_bytes("one"));
    struct watched_file w = watch(path);

    for (size_t i = 0; i < ARRAY_SIZE(seconds); i++) {
        const struct timespec times[2] = {{seconds[i], 0}, {seconds[i], 0}};

        ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
        changed(&w);
    }
    watched_file_deinit(&w);
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(looked_at_no_more_often_than_wanted)
{
    struct watched_file w;

    ck_assert_int_eq(watched_file_init(&w, "/none", 1000), 0);
    ck_assert(watched_file_is_due(&w, 5));
    ck_assert(!watched_file_is_due(&w, 5));
    ck_assert(!watched_file_is_due(&w, 1004));
    ck_assert(watched_file_is_due(&w, 1005));
    ck_assert(!watched_file_is_due(&w, 2004));
    ck_assert(watched_file_is_due(&w, 9000));
    watched_file_deinit(&w);
}
END_TEST

START_TEST(a_relative_path_is_that_of_now)
{
    char *folder = unit_temp_folder(), *path;
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    ck_assert_int_ge(here, 0);
    ck_assert_int_ge(asprintf(&path, "%s/file", folder), 0);
    write_file(path, "one");
    ck_assert_int_eq(chdir(folder), 0);
    struct watched_file w = watch("file");
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(watched_file_look(&w), WATCHED_SAME);
    ck_assert_ptr_nonnull(strstr(w.path, "/file"));
    watched_file_deinit(&w);
    ck_assert_int_eq(fchdir(here), 0);
    (void)fd_close(here);
    free(path);
    unit_temp_folder_remove(folder);
}
END_TEST

UNIT_MAIN("watched_file", changes_are_seen, a_link_that_points_elsewhere,
          a_file_that_is_gone_is_looked_for, what_is_wrong_is_told_once,
          a_fresh_change_is_read_once_more, what_is_being_written_is_left_alone,
          written_while_it_was_read, times_of_any_size, looked_at_no_more_often_than_wanted,
          a_relative_path_is_that_of_now)
