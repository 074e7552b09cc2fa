/* SPDX-License-Identifier: PostgreSQL */
#include "refusals.h"

#include <stdlib.h>
#include <string.h>

#include "unit.h"

static struct refusals refusals;
static struct logger logger;
static char *logged;
static size_t logged_size;

static void setup(void)
{
    memset(&refusals, 0, sizeof refusals);
    logger = (struct logger){.out = open_memstream(&logged, &logged_size), .level = LOG_INFO};
    ck_assert_ptr_nonnull(logger.out);
}

static void teardown(void)
{
    (void)fclose(logger.out);
    free(logged);
    logged = NULL;
}

static void refuse(uint64_t now, uid_t uid)
{
    struct refusal what = {.id = "access.refused", .sentence = "No.", .level = LOG_WARNING, .uid = uid, .pid = 7,
                           .session = 3, .code = "forbidden", .text = "you may not"};

    refusals_note(&refusals, &logger, now, &what);
}

/* How many lines have this in them. */
static unsigned lines(const char *part)
{
    unsigned n = 0;

    (void)fflush(logger.out);
    for (const char *at = logged; at && (at = strstr(at, part)); at++)
        n++;
    return n;
}

START_TEST(each_is_a_line)
{
    setup();
    refuse(1000, 5);
    ck_assert_uint_eq(
        lines("warning access.refused No. session=3 pid=7 uid=5 code=forbidden text=\"you may not\" suppressed=0\n"),
        1);
    ck_assert_uint_eq(refusals.total, 1);
    teardown();
}
END_TEST

START_TEST(so_many_of_one_user)
{
    setup();
    for (unsigned i = 0; i < 100; i++)
        refuse(1000 + i, 5);
    ck_assert_uint_eq(lines("uid=5 "), REFUSALS_AT_ONCE);
    refuse(1100, 6); /* others have their own */
    ck_assert_uint_eq(lines("uid=6 "), 1);
    ck_assert_uint_eq(refusals.total, 101);
    refuse(1000 + REFUSALS_EVERY_MS - 1, 5);
    ck_assert_uint_eq(lines("uid=5 "), REFUSALS_AT_ONCE);
    refuse(1000 + REFUSALS_EVERY_MS, 5);
    ck_assert_uint_eq(lines("uid=5 "), REFUSALS_AT_ONCE + 1);
    ck_assert_uint_eq(lines("suppressed=96\n"), 1);
    /* in a loop for a long time: no more than one in so many ms */
    for (uint64_t t = 0; t < 100 * REFUSALS_EVERY_MS; t += 10)
        refuse(1000 + REFUSALS_EVERY_MS + t, 5);
    ck_assert_uint_le(lines("uid=5 "), REFUSALS_AT_ONCE + 1 + 100);
    ck_assert_uint_ge(lines("uid=5 "), REFUSALS_AT_ONCE + 1 + 99);
    teardown();
}
END_TEST

START_TEST(what_was_left_out_is_told)
{
    setup();
    for (unsigned i = 0; i < 10; i++)
        refuse(1000, 5);
    refuse(1000, 6);
    refusals_tick(&refusals, &logger, 1001);
    ck_assert_uint_eq(lines("access.refused-more"), 0);
    refusals_tick(&refusals, &logger, 1000 + REFUSALS_EVERY_MS);
    ck_assert_uint_eq(lines("warning access.refused-more"), 1);
    ck_assert_uint_eq(lines("uid=5 suppressed=5\n"), 1);
    refusals_tick(&refusals, &logger, 1000 + 10 * REFUSALS_EVERY_MS);
    ck_assert_uint_eq(lines("access.refused-more"), 1);
    /* who was quiet for long has all of it again, and not more */
    for (unsigned i = 0; i < 10; i++)
        refuse(1000 + 100 * REFUSALS_EVERY_MS, 5);
    ck_assert_uint_eq(lines("access.refused No."), 2 * REFUSALS_AT_ONCE + 1);
    teardown();
}
END_TEST

/* More users than are told apart: whoever was refused longest ago is forgotten, and what was left out of him is told.
 */
START_TEST(many_users)
{
    setup();
    for (unsigned i = 0; i < 10; i++)
        refuse(1000, 1);
    for (unsigned i = 0; i < REFUSALS_USERS; i++)
        refuse(1001 + i, 100 + i);
    ck_assert_uint_eq(lines("access.refused-more"), 1);
    ck_assert_uint_eq(lines("uid=1 suppressed=5\n"), 1);
    for (unsigned i = 0; i < REFUSALS_USERS; i++)
        ck_assert_uint_eq(refusals.users[i].uid >= 100, true);
    refuse(1200, 100 + REFUSALS_USERS); /* in the place of 100 */
    for (unsigned i = 0; i < REFUSALS_USERS; i++)
        ck_assert_uint_ne(refusals.users[i].uid, 100);
    teardown();
}
END_TEST

UNIT_MAIN("refusals", each_is_a_line, so_many_of_one_user, what_was_left_out_is_told, many_users)
