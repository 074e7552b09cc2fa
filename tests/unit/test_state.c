/* SPDX-License-Identifier: PostgreSQL */
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

static char folder[64], why[STATE_WHY_SIZE];

static const char *in(const char *name)
{
    static char path[4][160];
    static unsigned next;
    char *to = path[next++ % 4];

    (void)snprintf(to, sizeof path[0], "%s/%s", folder, name);
    return to;
}

static void setup(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/walbus-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)unsetenv("STATE_DIRECTORY");
    (void)unsetenv("XDG_STATE_HOME");
}

static void teardown(void)
{
    char command[128];

    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(parts_that_are_missing)
{
    static const char *const parts[] = {"lock", "journal", "catalog"};
    struct state s = STATE_INIT;

    setup();
    ck_assert_int_eq(state_open(&s, in("s"), why), 0);
    ck_assert_ptr_null(state_missing(&s)); /* nothing was noted */
    ck_assert_int_eq(mkdir(in("s/journal"), 0700), 0);
    FILE *f = fopen(in("s/catalog"), "w");
    ck_assert_ptr_nonnull(f);
    (void)fclose(f);
    state_note(&s);
    ck_assert_ptr_null(state_missing(&s));
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        char from[160], to[160];

        (void)snprintf(from, sizeof from, "%s/s/%s", folder, parts[i]);
        (void)snprintf(to, sizeof to, "%s/moved", folder);
        ck_assert_int_eq(rename(from, to), 0);
        ck_assert_str_eq(state_missing(&s), parts[i]);
        f = fopen(from, "w"); /* another one of its name */
        ck_assert_ptr_nonnull(f);
        (void)fclose(f);
        ck_assert_str_eq(state_missing(&s), parts[i]);
        ck_assert_int_eq(unlink(from), 0);
        ck_assert_int_eq(rename(to, from), 0);
        ck_assert_ptr_null(state_missing(&s));
    }
    ck_assert_int_eq(rename(in("s"), in("t")), 0);
    ck_assert_str_eq(state_missing(&s), "lock");
    ck_assert_int_eq(rename(in("t"), in("s")), 0);
    ck_assert_ptr_null(state_missing(&s));
    state_close(&s);
    teardown();
}
END_TEST

START_TEST(made_and_locked)
{
    struct state a = STATE_INIT, b = STATE_INIT;
    struct stat st;
    char want[STATE_WHY_SIZE];

    setup();
    ck_assert_int_eq(state_open(&a, in("s"), why), 0);
    ck_assert_str_eq(a.folder, in("s"));
    ck_assert_int_eq(stat(in("s"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    ck_assert_int_eq(stat(in("s/lock"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    /* one at a time: a second descriptor of this process is another holder */
    ck_assert_int_eq(state_open(&b, in("s"), why), -EBUSY);
    (void)snprintf(want, sizeof want, "another router uses the state folder %s: process %ld", in("s"), (long)getpid());
    ck_assert_str_eq(why, want);
    ck_assert_ptr_null(b.folder);
    state_close(&a);
    ck_assert_int_eq(state_open(&b, in("s"), why), 0);
    state_close(&b);
    state_close(&b); /* of one that is not open */
    teardown();
}
END_TEST

/* A router that was killed leaves the file and no lock. */
START_TEST(a_killed_holder)
{
    struct state s = STATE_INIT;

    setup();
    pid_t child = fork();
    if (child == 0) {
        if (state_open(&s, in("s"), why) < 0)
            _exit(1);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(access(in("s/lock"), F_OK), 0);
    ck_assert_int_eq(state_open(&s, in("s"), why), 0);
    state_close(&s);
    teardown();
}
END_TEST

START_TEST(places)
{
    struct state s = STATE_INIT;
    char value[160];

    setup();
    (void)snprintf(value, sizeof value, "%s:/nowhere", in("unit"));
    (void)setenv("STATE_DIRECTORY", value, 1);
    ck_assert_int_eq(state_open(&s, NULL, why), 0);
    ck_assert_str_eq(s.folder, in("unit"));
    state_close(&s);
    (void)setenv("STATE_DIRECTORY", in("no/such"), 1);
    ck_assert_int_eq(state_open(&s, NULL, why), -ENOENT);
    ck_assert_int_eq(strncmp(why, "STATE_DIRECTORY: the state folder /", 35), 0);
    ck_assert_int_eq(state_open(&s, in("given"), why), 0); /* what is given comes first */
    ck_assert_str_eq(s.folder, in("given"));
    state_close(&s);
    /* only the last component is made of a place that somebody named */
    ck_assert_int_eq(state_open(&s, in("no/such"), why), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, "cannot be made: No such file or directory"));
    FILE *file = fopen(in("file"), "w");
    ck_assert_ptr_nonnull(file);
    (void)fclose(file);
    ck_assert_int_eq(state_open(&s, in("file"), why), -ENOTDIR);
    /* another one from wherever the router is started */
    static const char *const relative[] = {"", "state", "./state", "~/state"};
    for (size_t i = 0; i < ARRAY_SIZE(relative); i++) {
        ck_assert_int_eq(chdir(folder), 0);
        ck_assert_int_eq(state_open(&s, relative[i], why), -EINVAL);
        (void)snprintf(value, sizeof value, "the state folder %s has no absolute path: ", relative[i]);
        ck_assert_int_eq(strncmp(why, value, strlen(value)), 0);
        ck_assert_int_eq(access("state", F_OK), -1);
        ck_assert_int_eq(chdir("/"), 0);
    }
    teardown();
}
END_TEST

/* Without root's folder: those of a user, with what leads to them. */
START_TEST(places_of_a_user)
{
    struct state s = STATE_INIT;
    int status;

    setup();
    ck_assert_int_eq(chmod(folder, 0777), 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && seteuid(65534) < 0)
            _exit(1);
        (void)setenv("HOME", in("home"), 1);
        if (state_open(&s, NULL, why) < 0 || strcmp(s.folder, in("home/.local/state/walbus")) != 0)
            _exit(2);
        state_close(&s);
        (void)setenv("XDG_STATE_HOME", in("xdg"), 1);
        if (state_open(&s, NULL, why) < 0 || strcmp(s.folder, in("xdg/walbus")) != 0)
            _exit(3);
        state_close(&s);
        (void)unsetenv("XDG_STATE_HOME");
        (void)unsetenv("HOME");
        _exit(state_open(&s, NULL, why) == -EINVAL && strstr(why, "--state-dir") ? 0 : 4);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    teardown();
}
END_TEST

UNIT_MAIN("state", made_and_locked, parts_that_are_missing, a_killed_holder, places, places_of_a_user)
