/* SPDX-License-Identifier: PostgreSQL */
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

/* Descriptors that are watched. The ones of valgrind lie above, at the end of the limit. */
#define DESCRIPTORS 512

static bool open_before[DESCRIPTORS];

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void descriptors_note(void)
{
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        open_before[fd] = is_open(fd);
}

static void descriptors_compare(void)
{
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        char link[64], target[PATH_MAX] = "?";

        if (is_open(fd) == open_before[fd])
            continue;
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        if (n >= 0)
            target[n] = '\0';
        ck_abort_msg("descriptor %d (%s) was left %s", fd, target,
                     open_before[fd] ? "closed" : "open");
    }
}

int unit_run(const char *name, const TTest *const *tests, size_t n)
{
    Suite *suite = suite_create(name);

    for (size_t i = 0; i < n; i++) {
        TCase *test_case = tcase_create(tests[i]->name);

        tcase_set_timeout(test_case, UNIT_TIMEOUT_S);
        tcase_add_checked_fixture(test_case, descriptors_note, descriptors_compare);
        tcase_add_test(test_case, tests[i]);
        suite_add_tcase(suite, test_case);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    bool good = srunner_ntests_failed(runner) == 0 && srunner_ntests_run(runner) > 0;
    srunner_free(runner);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

void unit_skipped(const char *fmt, ...)
{
    va_list ap;

    (void)printf("SKIP: %s: ", tcase_name());
    va_start(ap, fmt);
    (void)vprintf(fmt, ap);
    va_end(ap);
    (void)putchar('\n');
    (void)fflush(stdout);
}

struct bytes unit_bytes(const char *s)
{
    return (struct bytes){(const uint8_t *)s, strlen(s)};
}

struct bytes unit_exact(struct bytes bytes)
{
    /* malloc(0) may give NULL; a byte that nobody may read would hide a read past the end. */
    uint8_t *copy = malloc(bytes.size);

    if (bytes.size) {
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, bytes.data, bytes.size);
    }
    return (struct bytes){copy, bytes.size};
}

void unit_free(struct bytes bytes)
{
    free((void *)(uintptr_t)bytes.data);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    ck_abort_msg("'%c' is no hex digit", c);
}

struct bytes unit_from_hex(const char *hex)
{
    uint8_t *raw = malloc(strlen(hex) / 2 + 1);
    size_t size = 0;

    ck_assert_ptr_nonnull(raw);
    for (const char *at = hex; *at;) {
        if (*at == ' ') {
            at++;
            continue;
        }
        raw[size++] = (uint8_t)(hex_digit(at[0]) << 4 | hex_digit(at[1]));
        at += 2;
    }
    struct bytes exact = unit_exact((struct bytes){raw, size});
    free(raw);
    return exact;
}

void unit_assert_hex(struct bytes got, const char *hex)
{
    struct bytes want = unit_from_hex(hex);
    char *text = malloc(2 * got.size + 1);

    ck_assert_ptr_nonnull(text);
    text[0] = '\0';
    for (size_t i = 0; i < got.size; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", got.data[i]);
    ck_assert_msg(bytes_equal(got, want), "got %s, wanted %s", text, hex);
    free(text);
    unit_free(want);
}

void unit_assert_text(struct bytes got, const char *want)
{
    ck_assert_msg(bytes_equal(got, unit_bytes(want)), "got \"%.*s\", wanted \"%s\"", (int)got.size,
                  got.data ? (const char *)got.data : "", want);
}

struct unit_random unit_random_init(void)
{
    const char *given = getenv("WALBUS_TEST_SEED");
    struct unit_random r = {.state = given ? strtoull(given, NULL, 0) : clock_monotonic_ns()};

    printf("WALBUS_TEST_SEED=%llu\n", (unsigned long long)r.state);
    (void)fflush(stdout);
    return r;
}

uint64_t unit_random_next(struct unit_random *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t unit_random_below(struct unit_random *r, uint32_t n)
{
    return (uint32_t)(unit_random_next(r) >> 32) % n;
}

char *unit_temp_file(struct bytes content)
{
    char path[] = "/tmp/walbus-unit-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content.data, content.size), (ssize_t)content.size);
    ck_assert_int_eq(close(fd), 0);
    char *copy = strdup(path);
    ck_assert_ptr_nonnull(copy);
    return copy;
}

char *unit_temp_folder(void)
{
    char *path = strdup("/tmp/walbus-unit-XXXXXX");

    ck_assert_ptr_nonnull(path);
    ck_assert_ptr_nonnull(mkdtemp(path));
    return path;
}

void unit_temp_folder_remove(char *path)
{
    DIR *dir = opendir(path);

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            ck_assert_int_eq(unlinkat(dirfd(dir), e->d_name, 0), 0);
    (void)closedir(dir);
    ck_assert_int_eq(rmdir(path), 0);
    free(path);
}

unsigned unit_sparse(void)
{
    const char *text = getenv("WALBUS_UNIT_SPARSE");

    return text ? (unsigned)MAX(strtoul(text, NULL, 10), 1ul) : 1;
}
