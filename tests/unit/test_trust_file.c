/* SPDX-License-Identifier: PostgreSQL */
#include "keys/trust_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "trust_fixture.h"
#include "unit.h"

/* Later than anything that was asked before: each look is due. */
static uint64_t later(void)
{
    static uint64_t now;

    return now += WATCHED_FILE_INTERVAL_NS;
}

static void put(const char *path, struct bytes text)
{
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text.data, 1, text.size, file), text.size);
    ck_assert_int_eq(fclose(file), 0);
}

/* A trust file of the keys from 0 on. */
static void put_keys(const char *path, unsigned n)
{
    struct buf text = BUF_INIT;

    for (unsigned i = 0; i < n; i++) {
        struct pair pair = nth_pair(i);

        put_trust_section(&text, &pair.key);
        buf_append_str(&text, "allow = >\n");
    }
    put(path, buf_bytes(&text));
    buf_deinit(&text);
}

static struct trust_file opened(const char *path)
{
    struct trust_file f;
    char why[TRUST_FILE_WHY_SIZE];

    ck_assert_msg(trust_file_init(&f, path, why) == 0, "%s", why);
    f.watched.quiet_ns = 0; /* what is written here is whole */
    return f;
}

START_TEST(read_again_when_it_changes)
{
    char *path = unit_temp_file(unit_bytes(""));
    char why[TRUST_FILE_WHY_SIZE];

    put_keys(path, 1);
    struct trust_file f = opened(path);
    ck_assert_int_eq(trust_file_refresh(&f, later(), why), TRUST_FILE_SAME);
    put_keys(path, 2);
    uint64_t now = later();
    ck_assert_int_eq(trust_file_refresh(&f, now, why), TRUST_FILE_NEW);
    ck_assert_uint_eq(trust_count(f.trust), 2);
    put_keys(path, 3);
    ck_assert_int_eq(trust_file_refresh(&f, now, why), TRUST_FILE_SAME); /* not yet */
    ck_assert_int_eq(trust_file_refresh(&f, later(), why), TRUST_FILE_NEW);
    ck_assert_uint_eq(trust_count(f.trust), 3);
    ck_assert_int_eq(trust_file_refresh(&f, later(), why), TRUST_FILE_SAME);
    trust_file_deinit(&f);
    (void)unlink(path);
    free(path);
}
END_TEST

/* Told once, by its sentence, and the keys stay. */
static void stays(struct trust_file *f, const char *sentence)
{
    char why[TRUST_FILE_WHY_SIZE];

    ck_assert_int_eq(trust_file_refresh(f, later(), why), TRUST_FILE_BROKEN);
    ck_assert_msg(strstr(why, sentence) != NULL, "%s", why);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(trust_file_refresh(f, later(), why), TRUST_FILE_SAME);
    ck_assert_uint_eq(trust_count(f->trust), 1);
}

static void comes_back(struct trust_file *f)
{
    char why[TRUST_FILE_WHY_SIZE];

    ck_assert_int_eq(trust_file_refresh(f, later(), why), TRUST_FILE_NEW);
    ck_assert_int_eq(trust_file_refresh(f, later(), why), TRUST_FILE_SAME);
}

START_TEST(the_old_keys_stay_while_it_is_broken)
{
    char *path = unit_temp_file(unit_bytes("")), *away;

    put_keys(path, 1);
    struct trust_file f = opened(path);
    put(path, unit_bytes("what\n"));
    stays(&f, ": line 1: \"what\" is neither");
    put(path, unit_bytes("\nwhat else\n"));
    stays(&f, ": line 2: \"what else\" is neither");
    put_keys(path, 1);
    comes_back(&f);

    ck_assert_int_ge(asprintf(&away, "%s.away", path), 0);
    ck_assert_int_eq(rename(path, away), 0);
    stays(&f, "It cannot be opened: No such file");
    ck_assert_int_eq(mkdir(path, 0700), 0);
    stays(&f, "It is a folder");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(rename(away, path), 0);
    comes_back(&f);
    if (geteuid() != 0) { /* who may read whatever its mode */
        ck_assert_int_eq(chmod(path, 0), 0);
        stays(&f, "It cannot be opened: Permission denied");
        ck_assert_int_eq(chmod(path, 0600), 0);
        comes_back(&f);
    }
    trust_file_deinit(&f);
    (void)unlink(path);
    free(path);
    free(away);
}
END_TEST

START_TEST(broken_at_first)
{
    char *path = unit_temp_file(unit_bytes("[x]\n"));
    struct trust_file f;
    struct trust *trust;
    char why[TRUST_FILE_WHY_SIZE];

    ck_assert_int_eq(trust_file_init(&f, path, why), -EBADMSG);
    ck_assert_ptr_nonnull(strstr(why, ": line 1: [x] is not a key's id"));
    ck_assert_int_eq(strncmp(why, path, strlen(path)), 0);
    ck_assert_int_eq(trust_file_read(path, &trust, why), -EBADMSG);
    (void)unlink(path);
    ck_assert_int_eq(trust_file_init(&f, path, why), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, "It cannot be opened"));
    ck_assert_int_eq(trust_file_read("/dev/zero", &trust, why), -EINVAL);
    put_keys(path, 1);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_int_eq(trust_file_read(path, &trust, why), -EPERM);
    (void)unlink(path);
    free(path);
}
END_TEST

/* Emptied, to be written again: an empty one has no keys, and half a section may say more than the whole. */
START_TEST(what_is_being_written_is_not_read)
{
    char *path = unit_temp_file(unit_bytes(""));
    char why[TRUST_FILE_WHY_SIZE];

    put_keys(path, 1);
    struct trust_file f = opened(path);
    put(path, unit_bytes(""));
    f.watched.quiet_ns = INT64_C(3600) * 1000000000;
    ck_assert_int_eq(trust_file_refresh(&f, later(), why), TRUST_FILE_SAME);
    ck_assert_uint_eq(trust_count(f.trust), 1);
    f.watched.quiet_ns = 0;
    ck_assert_int_eq(trust_file_refresh(&f, f.watched.next_ns, why), TRUST_FILE_NEW);
    ck_assert_uint_eq(trust_count(f.trust), 0);
    trust_file_deinit(&f);
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(everybodys_is_not_believed)
{
    char *path = unit_temp_file(unit_bytes(""));
    struct trust *trust;
    char why[TRUST_FILE_WHY_SIZE];

    put_keys(path, 1);
    struct trust_file f = opened(path);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_int_eq(trust_file_read(path, &trust, why), -EPERM);
    stays(&f, ": Everybody may write it (mode 0666)");
    ck_assert_int_eq(chmod(path, 0664), 0);
    comes_back(&f);
    trust_file_deinit(&f);
    (void)unlink(path);
    free(path);
}
END_TEST

UNIT_MAIN("trust_file", read_again_when_it_changes, the_old_keys_stay_while_it_is_broken,
          broken_at_first, what_is_being_written_is_not_read, everybodys_is_not_believed)
