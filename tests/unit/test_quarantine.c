/* SPDX-License-Identifier: PostgreSQL */
#include "quarantine.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "journal/fault.h"
#include "unit.h"

#define LIMIT (1u << 20)

static char *folder, path[160], why[QUARANTINE_WHY_SIZE];
static struct quarantine *q;
static struct quarantine_found found;
static uint8_t content[4096];

static void setup(void)
{
    folder = unit_temp_folder();
    (void)snprintf(path, sizeof path, "%s/quarantine", folder);
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)(i * 7);
}

/* That many calls from now on one fails; 0: none. */
static unsigned fsync_fails;
int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    if (fsync_fails && --fsync_fails == 0) {
        errno = EIO;
        return -1;
    }
    return __real_fsync(fd);
}

static int try_open(void)
{
    return quarantine_open(path, LIMIT, &q, &found, why);
}

static void reopen(void)
{
    q = quarantine_close(q);
    int r = try_open();
    ck_assert_msg(r == 0, "%s", why);
}

static void teardown(void)
{
    q = quarantine_close(q);
    unit_temp_folder_remove(folder);
}

static struct quarantine_message message(uint64_t lsn, size_t size)
{
    struct quarantine_message m = {
        .system_identifier = 77,
        .era = 1,
        .status = 1,
        .position = {1, lsn, 0},
        .lsn = lsn,
        .received_time = 5,
        .prefix = unit_bytes("orders.created"),
        .kid = unit_bytes("kid"),
        .reason = unit_bytes("It is not signed."),
        .content = {content, size},
    };
    memset(m.hash, (int)(lsn & 0xff), sizeof m.hash);
    return m;
}

static uint64_t put(uint64_t lsn, size_t size)
{
    struct quarantine_message m = message(lsn, size);
    size_t n_new;

    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), 0);
    ck_assert_uint_eq(n_new, 1);
    return m.id;
}

static void check_entry(uint64_t id, uint64_t lsn, size_t size)
{
    struct quarantine_message m;
    struct buf storage = BUF_INIT;
    uint64_t whole;

    ck_assert_int_eq(quarantine_read(q, id, 0, SIZE_MAX, true, &storage, &m, &whole), 0);
    ck_assert_uint_eq(m.id, id);
    ck_assert_uint_eq(m.lsn, lsn);
    ck_assert_uint_eq(m.system_identifier, 77);
    ck_assert_uint_eq(m.position.lsn, lsn);
    ck_assert_uint_eq(whole, size);
    unit_assert_text(m.prefix, "orders.created");
    unit_assert_text(m.kid, "kid");
    unit_assert_text(m.reason, "It is not signed.");
    ck_assert_uint_eq(m.content.size, size);
    ck_assert(size == 0 || memcmp(m.content.data, content, size) == 0);
    buf_deinit(&storage);
}

START_TEST(put_and_found_again)
{
    setup();
    ck_assert_int_eq(try_open(), 0);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_uint_eq(quarantine_next(q, 0), 0);
    ck_assert_uint_eq(put(0x100, 10), 1);
    ck_assert_uint_eq(put(0x200, 0), 2);
    ck_assert_uint_eq(put(0x300, 4096), 3);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(quarantine_count(q).entries, 3);
        check_entry(1, 0x100, 10);
        check_entry(2, 0x200, 0);
        check_entry(3, 0x300, 4096);
        ck_assert_uint_eq(quarantine_next(q, 0), 1);
        ck_assert_uint_eq(quarantine_next(q, 2), 3);
        ck_assert_uint_eq(quarantine_next(q, 3), 0);
        ck_assert_uint_eq(quarantine_at(q, (struct position){1, 0x200, 0}), 2);
        ck_assert_uint_eq(quarantine_at(q, (struct position){1, 0x201, 0}), 0);
        reopen();
        ck_assert_uint_eq(found.torn + found.damaged, 0);
    }
    struct quarantine_message m;
    struct buf storage = BUF_INIT;
    uint64_t whole;
    ck_assert_int_eq(quarantine_read(q, 3, 4000, 50, false, &storage, &m, &whole), 0);
    ck_assert_uint_eq(m.content.size, 50);
    ck_assert_int_eq(memcmp(m.content.data, content + 4000, 50), 0);
    ck_assert_int_eq(quarantine_read(q, 3, 4090, 50, false, &storage, &m, &whole), 0);
    ck_assert_uint_eq(m.content.size, 6);
    ck_assert_int_eq(quarantine_read(q, 3, 5000, 50, false, &storage, &m, &whole), 0);
    ck_assert_uint_eq(m.content.size, 0);
    ck_assert_int_eq(quarantine_read(q, 4, 0, 50, false, &storage, &m, &whole), -ENOENT);
    ck_assert_int_eq(quarantine_read(q, 0, 0, 50, false, &storage, &m, &whole), -ENOENT);
    buf_deinit(&storage);
    teardown();
}
END_TEST

START_TEST(what_comes_again_stands_once)
{
    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)put(0x100, 10);
    (void)put(0x200, 10);
    reopen();
    ck_assert(!quarantine_is_behind(q, 77, 1, (struct position){1, 0x200, 0}));
    ck_assert(quarantine_is_behind(q, 77, 1, (struct position){1, 0x201, 0}));
    ck_assert(quarantine_is_behind(q, 77, 2, (struct position){1, 0x100, 0}));
    struct quarantine_message again[] = {message(0x100, 10), message(0x150, 10), message(0x200, 10), message(0x300, 10)};
    size_t n_new;
    ck_assert_int_eq(quarantine_put(q, again, 4, &n_new), 0);
    ck_assert_uint_eq(n_new, 2);
    ck_assert_uint_eq(again[0].id, 1);
    ck_assert_uint_eq(again[1].id, 3);
    ck_assert_uint_eq(again[2].id, 2);
    ck_assert_uint_eq(again[3].id, 4);
    /* asked for */
    struct quarantine_message m = message(0x150, 10);
    uint32_t status = 0;
    ck_assert(quarantine_may_have(q, 77, 1, m.position));
    ck_assert_int_eq(quarantine_find(q, &m, &status), 1);
    ck_assert_uint_eq(status, 1);
    m.hash[0]++;
    ck_assert_int_eq(quarantine_find(q, &m, &status), 0);
    ck_assert(!quarantine_may_have(q, 77, 1, (struct position){1, 0x160, 0}));
    ck_assert(!quarantine_may_have(q, 77, 3, m.position));
    /* another one in its place, of a server that was restored, and one of another journal, are others */
    struct quarantine_message other[] = {message(0x100, 20), message(0x100, 10)};
    other[0].hash[0]++;
    other[1].era = 2;
    ck_assert_int_eq(quarantine_put(q, other, 2, &n_new), 0);
    ck_assert_uint_eq(n_new, 2);
    ck_assert_uint_eq(quarantine_count(q).entries, 6);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 6);
    teardown();
}
END_TEST

START_TEST(removed)
{
    uint64_t n;

    setup();
    ck_assert_int_eq(try_open(), 0);
    for (uint64_t i = 1; i <= 5; i++)
        (void)put(0x100 * i, 100);
    ck_assert_int_eq(quarantine_remove(q, 9, 12, QUARANTINE_DROPPED, &n), 0);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(quarantine_remove(q, 2, 3, QUARANTINE_DROPPED, &n), 0);
    ck_assert_uint_eq(n, 2);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 3);
    ck_assert_uint_eq(quarantine_next(q, 1), 4);
    check_entry(1, 0x100, 100);
    check_entry(5, 0x500, 100);
    ck_assert_int_eq(quarantine_remove(q, 1, UINT64_MAX, QUARANTINE_RELEASED, &n), 0);
    ck_assert_uint_eq(n, 3);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, QUARANTINE_HEADER_SIZE);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    ck_assert_uint_eq(quarantine_count(q).bytes, 0);
    ck_assert_uint_eq(put(0x600, 10), 6); /* no id comes twice */
    teardown();
}
END_TEST

START_TEST(full)
{
    struct quarantine_message m = message(1, sizeof content), large = message(2, 10);
    size_t n_new;
    uint64_t lsn = 0, n;

    setup();
    ck_assert_int_eq(try_open(), 0);
    for (;;) {
        m = message(++lsn, sizeof content);
        int r = quarantine_put(q, &m, 1, &n_new);
        if (r < 0) {
            ck_assert_int_eq(r, -EDQUOT);
            break;
        }
    }
    uint64_t entries = quarantine_count(q).entries;
    ck_assert_uint_gt(entries, LIMIT / (sizeof content + 400));
    ck_assert_uint_le(quarantine_count(q).bytes, LIMIT);
    /* one goes, one comes, often: the file does not grow beyond a quarter */
    for (int i = 0; i < 600; i++) {
        ck_assert_int_eq(quarantine_remove(q, 1, quarantine_next(q, 0), QUARANTINE_DROPPED, &n), 0);
        (void)put(++lsn, sizeof content);
        struct stat st;
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_int_le(st.st_size, LIMIT + LIMIT / 4 + 8192);
    }
    reopen();
    ck_assert_uint_eq(found.torn + found.damaged, 0);
    ck_assert_uint_eq(quarantine_count(q).entries, entries);
    check_entry(quarantine_next(q, 0), lsn - entries + 1, sizeof content);
    large.content.size = 0;
    quarantine_set_limit(q, 100);
    ck_assert_int_eq(quarantine_put(q, &large, 1, &n_new), -EDQUOT);
    ck_assert_uint_eq(quarantine_count(q).limit, 100);
    teardown();
}
END_TEST

/* ---- bytes that are not those that were written ---- */

static uint8_t *image;
static size_t image_size;

static void write_image(const uint8_t *bytes, size_t size)
{
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
    ck_assert_int_eq(fclose(f), 0);
}

static void make_image(void)
{
    struct stat st;

    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)put(0x100, 40);
    (void)put(0x200, 50);
    (void)put(0x300, 60);
    q = quarantine_close(q);
    ck_assert_int_eq(stat(path, &st), 0);
    image_size = (size_t)st.st_size;
    image = malloc(image_size);
    FILE *f = fopen(path, "r");
    ck_assert_uint_eq(fread(image, 1, image_size, f), image_size);
    (void)fclose(f);
}

START_TEST(torn_at_every_byte)
{
    make_image();
    size_t record = QUARANTINE_RECORD_SIZE + QUARANTINE_PUT_FIXED + 14 + 3 + 17;
    size_t ends[] = {QUARANTINE_HEADER_SIZE, QUARANTINE_HEADER_SIZE + record + 40, QUARANTINE_HEADER_SIZE + 2 * record + 90,
                     image_size};
    ck_assert_uint_eq(image_size, QUARANTINE_HEADER_SIZE + 3 * record + 150);
    for (size_t size = 0; size <= image_size; size += size < 70 ? 1 : 7 * unit_sparse()) {
        size_t whole = 0;

        write_image(image, size);
        if (size < QUARANTINE_HEADER_SIZE) {
            ck_assert_int_eq(try_open(), -EBADMSG);
            ck_assert_ptr_nonnull(strstr(why, "move it away"));
            continue;
        }
        while (whole < 3 && ends[whole + 1] <= size)
            whole++;
        ck_assert_int_eq(try_open(), 0);
        ck_assert_uint_eq(quarantine_count(q).entries, whole);
        ck_assert_uint_eq(found.torn, size - ends[whole]);
        ck_assert_uint_eq(found.damaged, 0);
        ck_assert_uint_eq(put(0x400, 70), whole + 1);
        reopen();
        ck_assert_uint_eq(found.torn + found.damaged, 0);
        ck_assert_uint_eq(quarantine_count(q).entries, whole + 1);
        check_entry(whole + 1, 0x400, 70);
        if (whole)
            check_entry(whole, 0x100 * whole, 30 + 10 * whole);
        q = quarantine_close(q);
    }
    free(image);
    teardown();
}
END_TEST

START_TEST(any_bit)
{
    uint8_t *copy;

    make_image();
    copy = malloc(image_size);
    for (size_t bit = 0; bit < 8 * image_size; bit += 97 * unit_sparse()) {
        memcpy(copy, image, image_size);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_image(copy, image_size);
        if (bit / 8 < QUARANTINE_HEADER_SIZE) {
            ck_assert_int_lt(try_open(), 0);
            continue;
        }
        size_t record = QUARANTINE_RECORD_SIZE + QUARANTINE_PUT_FIXED + 14 + 3 + 17, at = bit / 8 - QUARANTINE_HEADER_SIZE;
        unsigned hit = at < record + 40 ? 1 : at < 2 * record + 90 ? 2 : 3;
        ck_assert_int_eq(try_open(), 0);
        ck_assert_uint_eq(quarantine_count(q).entries, 2);
        ck_assert_uint_eq(hit == 3 ? found.torn : found.damaged, record + 30 + 10 * hit);
        for (unsigned i = 1; i <= 3; i++)
            if (i != hit)
                check_entry(i, 0x100 * i, 30 + 10 * i);
        (void)put(0x400, 70); /* what was damaged is kept beside */
        reopen();
        ck_assert_uint_eq(found.torn + found.damaged, 0);
        ck_assert_uint_eq(quarantine_count(q).entries, 3);
        q = quarantine_close(q);
        char damaged[200];
        (void)snprintf(damaged, sizeof damaged, "%s.damaged", path);
        ck_assert_int_eq(unlink(damaged), hit == 3 ? -1 : 0);
    }
    free(copy);
    free(image);
    teardown();
}
END_TEST

START_TEST(of_another_format)
{
    uint8_t header[QUARANTINE_HEADER_SIZE];
    const struct quarantine_header h = {.seed = 1, .next_id = 9};

    setup();
    quarantine_header_encode(&h, header);
    write_image(header, sizeof header);
    ck_assert_int_eq(try_open(), 0);
    ck_assert_uint_eq(put(1, 1), 9);
    q = quarantine_close(q);
    write_image((const uint8_t *)"something else, and long enough to be looked at as if it were a header", 70);
    ck_assert_int_eq(try_open(), -EBADMSG);
    ck_assert_int_eq(unlink(path), 0);
    static const char *const targets[] = {"/dev/zero", "quarantine.other"};
    for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
        char other[200];

        (void)snprintf(other, sizeof other, "%s.other", path);
        write_image(header, sizeof header);
        if (i)
            ck_assert_int_eq(rename(path, other), 0); /* also not to one that would do */
        else
            ck_assert_int_eq(unlink(path), 0);
        ck_assert_int_eq(symlink(targets[i], path), 0);
        ck_assert_int_eq(try_open(), -EBADMSG);
        ck_assert_int_eq(unlink(path), 0);
    }
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(try_open(), -EBADMSG);
    ck_assert_ptr_nonnull(strstr(why, "move it away"));
    ck_assert_int_eq(rmdir(path), 0);
    teardown();
}
END_TEST

/* ---- a disk that fails ---- */

START_TEST(a_folder_that_is_gone)
{
    struct quarantine_message m = message(1, 10);
    size_t n_new;
    char moved[200];

    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)snprintf(moved, sizeof moved, "%s-moved", folder);
    ck_assert_int_eq(rename(folder, moved), 0);
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), -ENOENT);
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    ck_assert_int_eq(rename(moved, folder), 0);
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), 0);
    ck_assert_uint_eq(m.id, 1);
    reopen();
    check_entry(1, 1, 10);
    teardown();
}
END_TEST

/* As many as there may be, and no more. */
START_TEST(entries_at_most)
{
    struct quarantine_message *all = calloc(QUARANTINE_ENTRIES_MAX, sizeof *all), one = message(0x900000, 1);
    size_t n_new;

    setup();
    ck_assert_int_eq(quarantine_open(path, UINT64_C(1) << 30, &q, &found, why), 0);
    for (size_t i = 0; i < QUARANTINE_ENTRIES_MAX; i++) {
        all[i] = message(0x1000 + i, 1);
        all[i].kid = all[i].reason = (struct bytes){NULL, 0};
    }
    ck_assert_int_eq(quarantine_put(q, all, QUARANTINE_ENTRIES_MAX, &n_new), 0);
    ck_assert_uint_eq(n_new, QUARANTINE_ENTRIES_MAX);
    ck_assert_int_eq(quarantine_put(q, &one, 1, &n_new), -EDQUOT);
    ck_assert_uint_eq(quarantine_count(q).entries, QUARANTINE_ENTRIES_MAX);
    uint64_t n;
    ck_assert_int_eq(quarantine_remove(q, 1, 1, QUARANTINE_DROPPED, &n), 0);
    ck_assert_int_eq(quarantine_put(q, &one, 1, &n_new), 0);
    free(all);
    teardown();
}
END_TEST

/* Several damaged files are kept, each under a name of its own. */
START_TEST(each_damaged_one_is_kept)
{
    char name[200];

    make_image();
    image[QUARANTINE_HEADER_SIZE + 20] ^= 1;
    for (unsigned i = 0; i < 12; i++) {
        image[QUARANTINE_HEADER_SIZE + 21] = (uint8_t)i; /* each is another one */
        write_image(image, image_size);
        ck_assert_int_eq(try_open(), 0);
        ck_assert_uint_gt(found.damaged, 0);
        (void)put(0x400, 70);
        q = quarantine_close(q);
    }
    for (unsigned i = 0; i < 11; i++) {
        uint8_t byte;

        (void)snprintf(name, sizeof name, i ? "%s.damaged.%u" : "%s.damaged", path, i);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (i == 10) { /* with so many there is no end of it */
            ck_assert_int_eq(fd, -1);
            break;
        }
        ck_assert_int_eq(pread(fd, &byte, 1, QUARANTINE_HEADER_SIZE + 21), 1);
        ck_assert_uint_eq(byte, i);
        (void)close(fd);
        ck_assert_int_eq(unlink(name), 0);
    }
    free(image);
    teardown();
}
END_TEST

/* Somebody removes the file, or puts another one in its place. */
START_TEST(a_file_that_is_gone)
{
    struct quarantine_message m = message(0x300, 10);
    struct stat st;
    size_t n_new;

    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)put(0x100, 40);
    ck_assert_int_eq(unlink(path), 0);
    (void)put(0x200, 50);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 2);
    check_entry(1, 0x100, 40);
    check_entry(2, 0x200, 50);
    ck_assert_int_eq(unlink(path), 0);
    write_image((const uint8_t *)"mine", 4);
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), -EEXIST);
    uint64_t n;
    ck_assert_int_eq(quarantine_remove(q, 1, 2, QUARANTINE_DROPPED, &n), -EEXIST);
    ck_assert_uint_eq(quarantine_count(q).entries, 2);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, 4);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), 0);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 3);
    check_entry(1, 0x100, 40);
    teardown();
}
END_TEST

/* It is made anew, since all are to go, and nobody knows whether the old one is back after a crash. */
START_TEST(a_folder_that_is_not_synced)
{
    uint64_t n;

    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)put(0x100, 40);
    (void)put(0x200, 50);
    fsync_fails = 2; /* the file, then the folder */
    ck_assert_int_eq(quarantine_remove(q, 1, 2, QUARANTINE_DROPPED, &n), -EIO);
    ck_assert_uint_eq(fsync_fails, 0);
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    (void)put(0x300, 60);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 1);
    check_entry(3, 0x300, 60);
    fsync_fails = 1; /* the file alone: all stays */
    ck_assert_int_eq(quarantine_remove(q, 3, 3, QUARANTINE_DROPPED, &n), 0); /* by a record */
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    teardown();
}
END_TEST

/* No file can be made: what is there is cut down, and gives its room back. */
START_TEST(all_go_from_a_full_disk)
{
    struct stat st;
    char new_path[200];
    uint64_t n;

    setup();
    (void)snprintf(new_path, sizeof new_path, "%s.new", path);
    ck_assert_int_eq(try_open(), 0);
    for (uint64_t i = 1; i <= 50; i++)
        (void)put(0x100 * i, sizeof content);
    ck_assert_uint_eq(quarantine_count(q).newest, 50);
    uint64_t before = quarantine_count(q).file_bytes;
    ck_assert_uint_ge(before, 50 * sizeof content);
    ck_assert_int_eq(mkdir(new_path, 0700), 0);
    ck_assert_int_eq(quarantine_remove(q, 1, UINT64_MAX, QUARANTINE_DROPPED, &n), 0);
    ck_assert_uint_eq(n, 50);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, QUARANTINE_HEADER_SIZE);
    ck_assert_uint_lt(quarantine_count(q).file_bytes, before / 2);
    ck_assert_uint_eq(quarantine_count(q).newest, 0);
    reopen();
    ck_assert_uint_eq(found.torn + found.damaged, 0);
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    ck_assert_uint_eq(put(0x9000, 10), 51);
    reopen();
    check_entry(51, 0x9000, 10);

    fsync_fails = 1; /* it is gone, and nobody knows whether it stays so */
    ck_assert_int_eq(quarantine_remove(q, 51, 51, QUARANTINE_DROPPED, &n), -EIO);
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    ck_assert_int_eq(rmdir(new_path), 0);
    ck_assert_uint_eq(put(0x9100, 10), 52);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 1);
    check_entry(52, 0x9100, 10);
    teardown();
}
END_TEST

/* A disk of its own, where one can be made, with not a byte left. */
START_TEST(a_full_disk)
{
    struct stat st;
    char other[200];
    uint64_t n, lsn = 0;
    int r;

    setup();
    if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", "", MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("none", folder, "tmpfs", 0, "size=1m") == 0) {
        ck_assert_int_eq(try_open(), 0);
        quarantine_set_limit(q, 1u << 30);
        do {
            struct quarantine_message m = message(++lsn, sizeof content);
            size_t n_new;

            r = quarantine_put(q, &m, 1, &n_new);
        } while (r == 0);
        ck_assert_int_eq(r, -ENOSPC);
        (void)snprintf(other, sizeof other, "%s/other", folder);
        int fd = open(other, O_WRONLY | O_CREAT, 0600);
        while (write(fd, content, sizeof content) > 0)
            continue;
        ck_assert_int_eq(close(fd), 0);
        ck_assert_int_eq(quarantine_remove(q, 1, 2, QUARANTINE_DROPPED, &n), 0); /* in the room that is kept */
        ck_assert_int_eq(quarantine_remove(q, 1, UINT64_MAX, QUARANTINE_DROPPED, &n), 0);
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_int_eq(st.st_size, QUARANTINE_HEADER_SIZE);
        for (int i = 0; i < 10; i++)
            (void)put(++lsn, sizeof content);
        reopen();
        ck_assert_uint_eq(quarantine_count(q).entries, 10);
        ck_assert_int_eq(unlink(other), 0);
        q = quarantine_close(q);
        ck_assert_int_eq(umount2(folder, MNT_DETACH), 0);
    } else {
        unit_skipped("no right to mount a tmpfs");
    }
    teardown();
}
END_TEST

#ifdef WALBUS_FAULTS
/* Not even the header can be written over. */
START_TEST(all_go_where_nothing_can_be_written)
{
    struct stat st;
    uint64_t n;

    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)put(0x100, 100);
    (void)put(0x200, 100);
    (void)setenv("WALBUS_FAULT", "quarantine-write=ENOSPC", 1);
    fault_reset();
    ck_assert_int_eq(quarantine_remove(q, 1, 1, QUARANTINE_DROPPED, &n), -ENOSPC);
    ck_assert_uint_eq(quarantine_count(q).entries, 2);
    ck_assert_int_eq(quarantine_remove(q, 1, 2, QUARANTINE_DROPPED, &n), 0);
    (void)unsetenv("WALBUS_FAULT");
    fault_reset();
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, QUARANTINE_HEADER_SIZE);
    ck_assert_uint_eq(put(0x300, 10), 3);
    reopen();
    ck_assert_uint_eq(quarantine_count(q).entries, 1);
    check_entry(3, 0x300, 10);
    teardown();
}
END_TEST

static void fail_at(const char *faults)
{
    if (faults)
        (void)setenv("WALBUS_FAULT", faults, 1);
    else
        (void)unsetenv("WALBUS_FAULT");
    fault_reset();
}

static ino_t inode(void)
{
    struct stat st;

    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_ino;
}

/* What a sync that failed was to keep may be lost although the next one works: the file is made anew. */
START_TEST(a_sync_that_failed_is_not_relied_on)
{
    struct quarantine_message m = message(0x200, 50);
    size_t n_new;

    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)put(0x100, 40);
    ino_t before = inode();
    (void)put(0x180, 40);
    ck_assert_uint_eq(inode(), before);
    fail_at("quarantine-sync:1=EIO");
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), -EIO);
    fail_at(NULL);
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), 0);
    ck_assert_uint_ne(inode(), before);
    reopen();
    ck_assert_uint_eq(found.torn + found.damaged, 0);
    ck_assert_uint_eq(quarantine_count(q).entries, 3);
    check_entry(3, 0x200, 50);
    teardown();
}
END_TEST

/* Of what was put together, and was written in part, nothing is left. */
START_TEST(what_was_refused_leaves_nothing)
{
    struct quarantine_message m[3];
    size_t n_new;

    setup();
    ck_assert_int_eq(try_open(), 0);
    (void)put(0x100, 40);
    for (unsigned at = 1; at <= 18; at++) {
        char fault[64];

        for (size_t i = 0; i < 3; i++)
            m[i] = message(0x200 + i, 70);
        (void)snprintf(fault, sizeof fault, "quarantine-write:%u=ENOSPC", at);
        fail_at(fault);
        ck_assert_int_eq(quarantine_put(q, m, 3, &n_new), -ENOSPC);
        fail_at(NULL);
        ck_assert_uint_eq(quarantine_count(q).entries, at);
        (void)put(0x1000 + at, 1); /* shorter than what was written */
        reopen();
        ck_assert_uint_eq(found.torn + found.damaged, 0);
        ck_assert_uint_eq(quarantine_count(q).entries, at + 1);
    }
    teardown();
}
END_TEST

/* Where a file can have one name only, what was damaged is copied; where nothing can be written, it stays as it is. */
START_TEST(damaged_where_there_are_no_links)
{
    char damaged[200], new_path[220];
    uint8_t *kept;
    uint64_t n;
    struct quarantine_message m = message(0x400, 70);
    size_t n_new;

    make_image();
    (void)snprintf(damaged, sizeof damaged, "%s.damaged", path);
    image[QUARANTINE_HEADER_SIZE + 20] ^= 1;
    write_image(image, image_size);
    ck_assert_int_eq(try_open(), 0);
    ck_assert_uint_gt(found.damaged, 0);
    (void)setenv("WALBUS_FAULT", "quarantine-keep=EIO,quarantine-write=ENOSPC", 1);
    fault_reset();
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), -ENOSPC);
    ck_assert_int_eq(quarantine_remove(q, 1, 3, QUARANTINE_DROPPED, &n), -ENOSPC);
    ck_assert_int_eq(access(damaged, F_OK), -1);
    (void)setenv("WALBUS_FAULT", "quarantine-keep=EIO,quarantine-write:1=short,quarantine-write:2=ENOSPC", 1);
    fault_reset();
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), -ENOSPC); /* half of it */
    ck_assert_int_eq(access(damaged, F_OK), -1);
    ck_assert_int_eq(access(strcat(strcpy(new_path, path), ".new"), F_OK), -1);
    for (int i = 0; i < 2; i++) { /* kept, once, although the new one cannot be put in its place */
        (void)setenv("WALBUS_FAULT", "quarantine-keep=EIO,quarantine-renew:1=ENOSPC", 1);
        fault_reset();
        ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), -ENOSPC);
        ck_assert_int_eq(access(damaged, F_OK), 0);
    }
    (void)setenv("WALBUS_FAULT", "quarantine-keep=EIO", 1);
    fault_reset();
    ck_assert_int_eq(quarantine_put(q, &m, 1, &n_new), 0);
    ck_assert_int_eq(access(strcat(strcpy(new_path, damaged), ".1"), F_OK), -1);
    (void)unsetenv("WALBUS_FAULT");
    fault_reset();
    int fd = open(damaged, O_RDONLY | O_CLOEXEC);
    kept = malloc(image_size + 1);
    ck_assert_int_eq(read(fd, kept, image_size + 1), (ssize_t)image_size);
    ck_assert_mem_eq(kept, image, image_size);
    (void)close(fd);
    free(kept);
    ck_assert_int_eq(unlink(damaged), 0);
    reopen();
    ck_assert_uint_eq(found.torn + found.damaged, 0);
    ck_assert_uint_eq(quarantine_count(q).entries, 3);
    free(image);
    teardown();
}
END_TEST
#define WITH_FAULTS , all_go_where_nothing_can_be_written, damaged_where_there_are_no_links, \
    a_sync_that_failed_is_not_relied_on, what_was_refused_leaves_nothing
#else
#define WITH_FAULTS
#endif

UNIT_MAIN("quarantine", put_and_found_again, what_comes_again_stands_once, removed, full, torn_at_every_byte, any_bit,
          of_another_format, entries_at_most, each_damaged_one_is_kept, a_folder_that_is_gone, a_file_that_is_gone, a_folder_that_is_not_synced,
          all_go_from_a_full_disk, a_full_disk WITH_FAULTS)
