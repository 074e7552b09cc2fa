/* SPDX-License-Identifier: PostgreSQL */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "unit.h"

#define MAX_SIZE 100

static char *path_in(const char *folder, const char *name)
{
    char *path;

    ck_assert_int_ge(asprintf(&path, "%s/%s", folder, name), 0);
    return path;
}

static void refused(const char *path, unsigned flags, int error, const char *sentence)
{
    struct file_content content = {.size = 99};
    char why[FILE_WHY_SIZE];

    ck_assert_int_eq(file_read(path, MAX_SIZE, flags, &content, why), error);
    ck_assert_uint_eq(content.size, 99);
    ck_assert_int_eq(strncmp(why, path, MIN(strlen(path), (size_t)200)), 0);
    ck_assert_msg(strstr(why, sentence) != NULL, "%s", why);
}

static void read_back(const char *path, unsigned flags, struct bytes want)
{
    struct file_content content;
    char why[FILE_WHY_SIZE];

    ck_assert_msg(file_read(path, MAX_SIZE, flags, &content, why) == 0, "%s", why);
    ck_assert(bytes_equal(file_bytes(&content), want));
    ck_assert_ptr_nonnull(content.data);
    ck_assert_int_eq(content.data[content.size], 0);
    file_content_deinit(&content);
    file_content_deinit(&content);
}

START_TEST(up_to_as_much_as_is_asked_for)
{
    uint8_t bytes[MAX_SIZE + 1];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    for (size_t size = 0; size <= MAX_SIZE; size += MAX_SIZE / 2) {
        struct bytes want = {bytes, size};
        char *path = unit_temp_file(want);

        read_back(path, 0, want);
        ck_assert_int_eq(chmod(path, 0600), 0);
        read_back(path, FILE_PRIVATE, want);
        (void)unlink(path);
        free(path);
    }
    char *path = unit_temp_file((struct bytes){bytes, sizeof bytes});
    refused(path, 0, -EFBIG, ": It has 101 bytes; 100 are the most.");
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(a_file_whose_size_is_not_told)
{
    refused("/proc/self/smaps", 0, -EFBIG, ": It has more than 100 bytes, which are the most.");
}
END_TEST

START_TEST(what_is_no_regular_file)
{
    char *folder = unit_temp_folder(), *fifo = path_in(folder, "fifo"),
         *socket_path = path_in(folder, "socket"), *link = path_in(folder, "link");
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(fd_socket_address(socket_path, &address), 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(symlink(fifo, link), 0);
    refused(fifo, 0, -EINVAL, ": It is a pipe, and must be a regular file.");
    refused(link, FILE_PRIVATE, -EINVAL, "It is a pipe");
    refused(folder, 0, -EINVAL, "It is a folder");
    refused("/dev/zero", 0, -EINVAL, "It is a device");
    refused(socket_path, 0, -ENXIO, ": It cannot be opened: ");
    (void)fd_close(fd);
    free(fifo);
    free(socket_path);
    free(link);
    unit_temp_folder_remove(folder);
}
END_TEST

START_TEST(what_cannot_be_opened)
{
    char *folder = unit_temp_folder(), *none = path_in(folder, "none"),
         *loop = path_in(folder, "loop");
    char longer[8000];

    ck_assert_int_eq(symlink(loop, loop), 0);
    refused(none, 0, -ENOENT, ": It cannot be opened: No such file or directory.");
    refused(loop, 0, -ELOOP, "It cannot be opened");
    refused("", 0, -ENOENT, "It cannot be opened");
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    refused(longer, 0, -ENAMETOOLONG, "It cannot be opened");
    free(none);
    free(loop);
    unit_temp_folder_remove(folder);
}
END_TEST

START_TEST(private_is_the_owners_alone)
{
    struct bytes secret = unit_bytes("secret");
    char *path = unit_temp_file(secret);

    for (mode_t bit = 1; bit <= 0040; bit <<= 1) {
        ck_assert_int_eq(chmod(path, 0600 | bit), 0);
        refused(path, FILE_PRIVATE, -EPERM, ": Others than its owner have rights to it (mode 06");
        read_back(path, 0, secret);
    }
    for (mode_t mode = 0400; mode <= 0700; mode += 0100) {
        ck_assert_int_eq(chmod(path, mode), 0);
        read_back(path, FILE_PRIVATE, secret);
    }
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(trusted_is_not_everybodys_to_write)
{
    struct bytes text = unit_bytes("text");
    char *path = unit_temp_file(text);

    ck_assert_int_eq(chmod(path, 0664), 0);
    read_back(path, FILE_TRUSTED, text);
    ck_assert_int_eq(chmod(path, 0602), 0);
    refused(path, FILE_TRUSTED, -EPERM, ": Everybody may write it (mode 0602), and so nothing");
    read_back(path, 0, text);
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(private_is_ones_own_or_roots)
{
    struct bytes secret = unit_bytes("secret");
    char *path;

    if (geteuid() != 0) {
        unit_skipped("only root can give a file away");
        return;
    }
    path = unit_temp_file(secret);
    ck_assert_int_eq(chmod(path, 0600), 0);
    read_back(path, FILE_PRIVATE, secret);
    ck_assert_int_eq(chown(path, 12345, 0), 0);
    refused(path, FILE_PRIVATE, -EPERM, ": It belongs to the user 12345, and a secret must belong");
    (void)unlink(path);
    free(path);
}
END_TEST

/* The flags of the mapping that an address lies in, as /proc/self/smaps has them: "lo" locked, "dd"
 * left out of core dumps. */
static bool mapping_has(const void *address, const char *flag)
{
    FILE *smaps = fopen("/proc/self/smaps", "re");
    char line[512], *end;
    bool inside = false, found = false;

    ck_assert_ptr_nonnull(smaps);
    while (fgets(line, sizeof line, smaps)) {
        unsigned long from = strtoul(line, &end, 16), to = *end == '-' ? strtoul(end + 1, NULL, 16) : 0;

        if (to > from)
            inside = from <= (uintptr_t)address && (uintptr_t)address < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = found || strstr(line, flag) != NULL;
    }
    (void)fclose(smaps);
    return found;
}

START_TEST(a_secret_is_locked_and_not_dumped)
{
    struct file_content content;
    char why[FILE_WHY_SIZE];
    char *path = unit_temp_file(unit_bytes("secret"));

    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(file_read(path, MAX_SIZE, FILE_PRIVATE, &content, why), 0);
    ck_assert(mapping_has(content.data, " dd"));
    if (mapping_has(content.data, " lo"))
        ck_assert(!mapping_has(path, " dd"));
    else
        unit_skipped("this kernel shows no locks");
    file_content_deinit(&content);
    (void)unlink(path);
    free(path);
}
END_TEST

START_TEST(a_secret_that_cannot_be_locked_is_not_read)
{
    struct rlimit before, none;
    char *path = unit_temp_file(unit_bytes("secret"));
    struct file_content content;
    char why[FILE_WHY_SIZE];
    int r;

    if (geteuid() == 0) { /* whom the limit does not stop */
        unit_skipped("root may lock as much as there is");
        (void)unlink(path);
        free(path);
        return;
    }
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    r = file_read(path, MAX_SIZE, FILE_PRIVATE, &content, why);
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    ck_assert_int_eq(r, -ENOMEM);
    ck_assert_ptr_nonnull(strstr(why, "There is no memory for it that may be locked (ulimit -l)."));
    (void)unlink(path);
    free(path);
}
END_TEST

UNIT_MAIN("file", up_to_as_much_as_is_asked_for, a_file_whose_size_is_not_told,
          what_is_no_regular_file, what_cannot_be_opened, private_is_the_owners_alone, trusted_is_not_everybodys_to_write,
          private_is_ones_own_or_roots, a_secret_is_locked_and_not_dumped,
          a_secret_that_cannot_be_locked_is_not_read)
