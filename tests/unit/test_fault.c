/* SPDX-License-Identifier: PostgreSQL */
/* The fault points themselves; built only with -Dfaults=true. */
#include "journal/fault.h"

#include "journal_fixture.h"

#include <sys/wait.h>

static void set(const char *faults)
{
    ck_assert_int_eq(setenv("WALBUS_FAULT", faults, 1), 0);
    fault_reset();
}

START_TEST(counted)
{
    set("a=EIO,b:3=ENOSPC,journal-write:1=short");
    for (unsigned i = 1; i <= 5; i++) {
        ck_assert_int_eq(fault_at("a"), -EIO);
        ck_assert_int_eq(fault_at("b"), i == 3 ? -ENOSPC : 0);
        ck_assert_int_eq(fault_at("journal-write"), i == 1 ? FAULT_SHORT : 0);
        ck_assert_int_eq(fault_at("c"), 0);
        FAULT_POINT("a"); /* can only die */
    }
    set("");
    ck_assert_int_eq(fault_at("a"), 0);
    ck_assert_int_eq(unsetenv("WALBUS_FAULT"), 0);
    fault_reset();
    ck_assert_int_eq(fault_at("a"), 0);
}
END_TEST

/* How a child ends that passes `point` so many times. */
static int end_of(const char *faults, const char *point, unsigned times)
{
    int status;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)close(2); /* its words on a wrong fault are not for the log */
        set(faults);
        while (times--)
            FAULT_POINT(point);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

START_TEST(kills)
{
    ck_assert_int_eq(end_of("feedback=kill", "feedback", 1), SIGKILL);
    ck_assert_int_eq(end_of("feedback=kill", "delivery", 9), 0);
    ck_assert_int_eq(end_of("feedback:3=kill", "feedback", 2), 0);
    ck_assert_int_eq(end_of("feedback:3=kill", "feedback", 3), SIGKILL);
    static const char *const wrong[] = {
        "x", "x=", "=kill", "x=KILL", "x:=kill", "x:1", "x=kill;y=kill", "x=kill2", "x:a=kill"};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        ck_assert_msg(end_of(wrong[i], "x", 1) == SIGABRT, "%s", wrong[i]);
}
END_TEST

/* Each point stands where it says: a router that dies there has done what comes before, and not what comes behind. */
START_TEST(points_of_the_journal)
{
    static const struct {
        const char *faults;
        uint64_t last; /* what is in the files when it died */
    } points[] = {
        {"journal-write:2=kill", 0x200},
        {"journal-wrote:2=kill", 0x201},
        {"journal-write:2=short,journal-wrote:2=kill", 0x200},
        {"journal-sync:2=kill", 0x201},
        {"journal-synced:2=kill", 0x201},
        {"journal-segment:4=kill",
         0x201}, /* the first three times are those of the first segment */
        {"journal-segment:5=kill", 0x201},
        {"journal-segment:6=kill", 0x201},
        {"journal-write:3=EIO,journal-retry=kill", 0x201},
    };

    for (size_t i = 0; i < ARRAY_SIZE(points); i++) {
        int status;

        memset(&disk, 0, sizeof disk);
        jf.folder = unit_temp_folder();
        jf.options = (struct journal_options){.segment_size = 1200};
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            set(points[i].faults);
            jf_open();
            jf_begin();
            for (uint64_t lsn = 0x200; lsn < 0x210; lsn++) {
                jf_append_message(lsn, 100);
                if (journal_finish(jf.j) < 0)
                    ck_assert_int_eq(jf_retry(), 0); /* dies in it */
            }
            _exit(0);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%s", points[i].faults);
        jf_open();
        ck_assert_msg(journal_end(jf.j)->last.lsn == points[i].last, "%s: %x", points[i].faults,
                      (unsigned)journal_end(jf.j)->last.lsn);
        ck_assert_uint_eq(journal_segments(jf.j), i >= 7 ? 2 : 1);
        jf_close();
        jf_remove();
    }
}
END_TEST

START_TEST(points_that_fail)
{
    static const struct {
        const char *faults;
        int error, retry;
        size_t segments; /* once it goes on */
        bool something;  /* stands in the segment behind the header */
    } points[] = {
        {"journal-write:1=ENOSPC", ENOSPC, 0, 1, false},
        {"journal-write:1=ENOSPC", ENOSPC, 0, 2, true},
        {"journal-write:1=short,journal-write:2=EIO", EIO, 0, 1, false},
        {"journal-write:1=short,journal-write:2=EIO", EIO, 0, 2, true},
        {"journal-sync:1=EIO", EIO, 0, 2, false}, /* a file whose sync failed is not used again */
        {"journal-segment=ENOSPC,journal-write:1=EIO", EIO, 0, 1, false}, /* none is needed */
        {"journal-segment:1=ENOSPC,journal-write:1=EIO", EIO, -ENOSPC, 2, true},
        {"journal-segment:2=ENOSPC,journal-write:1=EIO", EIO, -ENOSPC, 2, true},
        {"journal-segment:3=EIO,journal-write:1=EIO", EIO, -EIO, 2, true},
        {"journal-retry:1=ENOSPC,journal-write:1=EIO", EIO, -ENOSPC, 1, false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(points); i++) {
        uint64_t first = points[i].something ? 0x1ff : 0x200;

        jf_make(16u << 20, 0);
        if (points[i].something) {
            jf_append_message(0x1ff, 100);
            jf_finish();
        }
        set(points[i].faults);
        jf_append_message(0x200, 100);
        ck_assert_msg(journal_finish(jf.j) == -points[i].error, "%s", points[i].faults);
        ck_assert_uint_eq(journal_end(jf.j)->last.lsn, points[i].something ? 0x1ff : 0x100);
        ck_assert_int_eq(jf_retry(), points[i].retry);
        if (points[i].retry)
            ck_assert_int_eq(jf_retry(), 0);
        jf_append_message(0x200, 100);
        jf_finish();
        jf_check_messages(first, 0x201);
        ck_assert_msg(journal_segments(jf.j) == points[i].segments, "%s", points[i].faults);
        set("");
        jf_close();
        jf_remove();
    }
    set("journal-write=short"); /* is no failure */
    jf_make(16u << 20, 0);
    jf_append_message(0x200, 100000);
    jf_finish();
    jf_check_messages(0x200, 0x201);
    jf_close();
    jf_remove();
    ck_assert_int_eq(unsetenv("WALBUS_FAULT"), 0);
}
END_TEST

UNIT_MAIN("fault", counted, kills, points_of_the_journal, points_that_fail)
