/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_UNIT_H
#define WALBUS_TESTS_UNIT_UNIT_H

/*
 * The runner of the unit tests, on Check. Every test is a case of its own, named after its
 * function, so that CK_RUN_CASE=NAME runs it alone; it runs in a process of its own (Check's fork
 * mode; CK_FORK=no for a debugger), under a time limit, and fails when it leaves a descriptor open.
 *
 *   START_TEST(position_text)
 *   {
 *       ck_assert_str_eq(...);
 *   }
 *   END_TEST
 *
 *   UNIT_MAIN("position", position_text)
 */

#include <check.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

/** Seconds that one test may take. CK_TIMEOUT_MULTIPLIER stretches it, for valgrind. */
#define UNIT_TIMEOUT_S 30

/** Runs the tests in order; returns main's exit status. */
int unit_run(const char *name, const TTest *const *tests, size_t n);

#define UNIT_MAIN(name, ...)                                           \
    int main(void)                                                     \
    {                                                                  \
        const TTest *const unit_tests_[] = {__VA_ARGS__};              \
        return unit_run((name), unit_tests_, ARRAY_SIZE(unit_tests_)); \
    }

/** 1, or how many of the cases that a test goes through are passed over for each one that is taken: set by
 *  WALBUS_UNIT_SPARSE, for valgrind, under which all of them take half an hour. */
unsigned unit_sparse(void);

/** Says that the running test does not test, and why; it is then to return. tests/summary.py counts
 *  such lines: Check itself knows no skipped tests. */
__attribute__((format(printf, 1, 2))) void unit_skipped(const char *fmt, ...);

/** The bytes of a C string, without its NUL; borrowed. */
struct bytes unit_bytes(const char *s);

/** A copy on the heap with not a byte to spare, so that the sanitizers see a read past its end.
 *  Free it with unit_free. */
struct bytes unit_exact(struct bytes bytes);
/** Frees what unit_exact or unit_from_hex made. */
void unit_free(struct bytes bytes);

/** The bytes of hex digits (blanks between are skipped), on the heap as by unit_exact. */
struct bytes unit_from_hex(const char *hex);

/** Fails unless `got` is exactly the bytes that `hex` writes. */
void unit_assert_hex(struct bytes got, const char *hex);

/** Fails unless `got` is exactly the text `want`. */
void unit_assert_text(struct bytes got, const char *want);

/** A generator for random tests (splitmix64), which must be able to run again as they ran. */
struct unit_random {
    uint64_t state;
};
/** Seeded from WALBUS_TEST_SEED, else from the clock; the seed is printed. */
struct unit_random unit_random_init(void);
uint64_t unit_random_next(struct unit_random *r);
/** One of 0 … n - 1. */
uint32_t unit_random_below(struct unit_random *r, uint32_t n);

/** A file that holds `content`; its path is malloc'ed. The caller unlinks and frees. */
char *unit_temp_file(struct bytes content);

/** A new folder; its path is malloc'ed. */
char *unit_temp_folder(void) MUST_CHECK;
/** Removes it with the files in it, and frees. */
void unit_temp_folder_remove(char *path);

#endif
