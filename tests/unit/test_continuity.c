/* SPDX-License-Identifier: PostgreSQL */
#include "continuity.h"

#include <string.h>

#include "unit.h"

#define MS UINT64_C(1000000)
#define T0 UINT64_C(5000000000)

/** A router that has read to `told` on `timeline` of the server 7. */
static struct continuity known(uint32_t timeline, uint64_t told)
{
    struct continuity c = {0};

    ck_assert_int_eq(continuity_server(&c, 7), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_slot(&c, told), CONTINUITY_GOES_ON);
    continuity_streaming(&c, timeline);
    return c;
}

START_TEST(the_first_connect_adopts)
{
    struct continuity c = {0};

    ck_assert_int_eq(continuity_server(&c, 7), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_slot(&c, 0x100), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_timeline(&c, 3, 0x100), CONTINUITY_GOES_ON);
    ck_assert_uint_eq(c.told, 0x100);
    ck_assert_uint_eq(c.timeline, 0); /* not before it streams */
    continuity_streaming(&c, 3);
    ck_assert_uint_eq(c.timeline, 3);
    continuity_deinit(&c);
}
END_TEST

START_TEST(another_server)
{
    struct continuity c = known(1, 0x100);

    ck_assert_int_eq(continuity_server(&c, 8), CONTINUITY_OTHER_SYSTEM);
    ck_assert_uint_eq(c.system_identifier, 7);
    ck_assert_int_eq(continuity_server(&c, 7), CONTINUITY_GOES_ON);
    continuity_deinit(&c);
}
END_TEST

START_TEST(slot_at_and_around_what_was_told)
{
    struct continuity c = known(1, 0x100);

    ck_assert_int_eq(continuity_slot(&c, 0xFF), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_slot(&c, 0), CONTINUITY_GOES_ON);
    ck_assert_uint_eq(c.told, 0x100); /* never falls: a crashed server gives an older place */
    ck_assert_int_eq(continuity_slot(&c, 0x100), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_slot(&c, 0x101), CONTINUITY_SLOT_MOVED);
    ck_assert_uint_eq(c.told, 0x100); /* a refusal leaves what is known */
    continuity_advance(&c, 0x101);
    ck_assert_int_eq(continuity_slot(&c, 0x101), CONTINUITY_GOES_ON);
    continuity_advance(&c, 0x80);
    ck_assert_uint_eq(c.told, 0x101);
    continuity_deinit(&c);
}
END_TEST

START_TEST(restored_to_an_older_state)
{
    struct continuity c = known(3, 0x100);

    ck_assert_int_eq(continuity_timeline(&c, 2, 0x900), CONTINUITY_SERVER_RESTORED);
    ck_assert_int_eq(continuity_timeline(&c, 3, 0xFF), CONTINUITY_SERVER_RESTORED);
    ck_assert_int_eq(continuity_timeline(&c, 3, 0x100), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_timeline(&c, 3, 0), CONTINUITY_GOES_ON); /* unknown */
    /* on a newer timeline the WAL may end before what was read of the old one */
    ck_assert_int_eq(continuity_timeline(&c, 4, 0xFF), CONTINUITY_GOES_ON);
    continuity_deinit(&c);
}
END_TEST

START_TEST(another_database)
{
    struct continuity c = known(1, 0x100);

    ck_assert_int_eq(continuity_database(&c, "shop"), CONTINUITY_GOES_ON); /* the first is adopted */
    ck_assert_int_eq(continuity_database(&c, "shops"), CONTINUITY_OTHER_DATABASE);
    ck_assert_str_eq(c.database, "shop");
    ck_assert_int_eq(continuity_database(&c, "shop"), CONTINUITY_GOES_ON);
    continuity_deinit(&c);
}
END_TEST

/* What was refused is adopted at the next connect; a moved slot leaves the server and its timeline what they are. */
START_TEST(accepted)
{
    static const enum continuity_verdict eras[] = {CONTINUITY_OTHER_SYSTEM, CONTINUITY_OTHER_DATABASE,
                                                   CONTINUITY_SERVER_RESTORED};
    struct continuity c = known(3, 0x100);

    ck_assert_int_eq(continuity_database(&c, "shop"), CONTINUITY_GOES_ON);
    continuity_accept(&c, CONTINUITY_SLOT_MOVED);
    ck_assert(!continuity_is_new_era(CONTINUITY_SLOT_MOVED));
    ck_assert_int_eq(continuity_server(&c, 8), CONTINUITY_OTHER_SYSTEM);
    ck_assert_int_eq(continuity_timeline(&c, 2, 0x900), CONTINUITY_SERVER_RESTORED);
    ck_assert_int_eq(continuity_slot(&c, 0x300), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_slot(&c, 0x301), CONTINUITY_SLOT_MOVED);
    for (size_t i = 0; i < ARRAY_SIZE(eras); i++) {
        ck_assert(continuity_is_new_era(eras[i]));
        continuity_accept(&c, eras[i]);
        ck_assert_int_eq(continuity_server(&c, 8 + i), CONTINUITY_GOES_ON);
        ck_assert_int_eq(continuity_database(&c, "other"), CONTINUITY_GOES_ON);
        ck_assert_int_eq(continuity_slot(&c, 0x50), CONTINUITY_GOES_ON);
        ck_assert_int_eq(continuity_timeline(&c, 1, 0x60), CONTINUITY_GOES_ON);
        continuity_streaming(&c, 1);
        ck_assert_int_eq(continuity_slot(&c, 0x51), CONTINUITY_SLOT_MOVED);
        ck_assert_int_eq(continuity_server(&c, 99), CONTINUITY_OTHER_SYSTEM);
    }
    continuity_deinit(&c);
}
END_TEST

/* A sibling was promoted: what was read of 2, and from where on, is not in its history. */
START_TEST(timeline_that_is_no_ancestor)
{
    struct timeline_switch switches[] = {{1, 0x80}, {3, 0xC0}};
    const struct timeline_history history = {.current = 4, .switches = switches, .n = 2};
    struct continuity c = {0};

    ck_assert_int_eq(continuity_history(&c, &history), CONTINUITY_GOES_ON); /* nothing was read */
    for (uint32_t timeline = 1; timeline <= 4; timeline++) {
        continuity_streaming(&c, timeline);
        ck_assert_int_eq(continuity_history(&c, &history),
                         timeline == 2 ? CONTINUITY_SERVER_RESTORED : CONTINUITY_GOES_ON);
    }
    continuity_deinit(&c);
}
END_TEST

START_TEST(timeline_that_was_left)
{
    struct timeline_switch switches[] = {{1, 0x80}, {3, 0xC0}, {4, 0xF0}};
    const struct timeline_history history = {.current = 5, .switches = switches, .n = 3};
    struct continuity c = known(3, 0x100);
    uint64_t at = 77;

    ck_assert(continuity_left(&c, &history, &at));
    ck_assert_uint_eq(at, 0xC0); /* where 3 was left, whatever came then */
    ck_assert_uint_eq(c.told, 0xC0);
    at = 77;
    ck_assert(!continuity_left(&c, &history, &at)); /* exactly the switch point is part of both */
    ck_assert_uint_eq(at, 77);
    /* a slot made anew in the new history: what lies between the switch point and it was never read */
    ck_assert_int_eq(continuity_slot(&c, 0xC1), CONTINUITY_SLOT_MOVED);
    ck_assert_int_eq(continuity_slot(&c, 0xC0), CONTINUITY_GOES_ON);
    continuity_streaming(&c, 5);
    continuity_advance(&c, 0x200);
    ck_assert(!continuity_left(&c, &history, &at)); /* the present one was never left */
    ck_assert_uint_eq(c.told, 0x200);
    continuity_deinit(&c);
}
END_TEST

START_TEST(poisoned_slot)
{
    struct continuity c = known(1, 0x100);
    uint64_t min = CONTINUITY_SAME_ERROR_MS * MS;

    ck_assert_uint_eq(CONTINUITY_SAME_ERROR_MAX, 3);
    ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, T0), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, T0 + 1), CONTINUITY_GOES_ON);
    /* often enough, not yet long enough */
    ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, T0 + min - 1), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, T0 + min), CONTINUITY_SLOT_POISONED);
    continuity_deinit(&c);
}
END_TEST

START_TEST(poisoned_needs_three)
{
    struct continuity c = known(1, 0x100);
    uint64_t min = CONTINUITY_SAME_ERROR_MS * MS;

    ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, T0), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, T0 + 5 * min), CONTINUITY_GOES_ON);
    ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, T0 + 5 * min),
                     CONTINUITY_SLOT_POISONED);
    continuity_deinit(&c);
}
END_TEST

START_TEST(progress_or_another_error_counts_anew)
{
    struct continuity c = known(1, 0x100);
    uint64_t min = CONTINUITY_SAME_ERROR_MS * MS, now = T0;

    for (int i = 0; i < 10; i++, now += min) { /* further each time */
        ck_assert_int_eq(continuity_error(&c, "e", "XX000", false, now), CONTINUITY_GOES_ON);
        continuity_advance(&c, c.told + 1);
    }
    for (int i = 0; i < 10; i++, now += min) /* another one each time */
        ck_assert_int_eq(continuity_error(&c, i % 2 ? "e" : "f", "XX000", false, now),
                         CONTINUITY_GOES_ON);
    continuity_deinit(&c);
}
END_TEST

START_TEST(errors_that_may_pass)
{
    static const char *const passing[] = {"",      "08006", "40001", "53100",
                                          "55006", "57014", "57P01", "58030"};
    static const char *const lasting[] = {"XX000", "42704", "22021", "0A000", "54000"};
    uint64_t min = CONTINUITY_SAME_ERROR_MS * MS;

    for (size_t i = 0; i < ARRAY_SIZE(passing); i++) {
        struct continuity c = known(1, 0x100);

        for (unsigned n = 0; n < 10; n++)
            ck_assert_int_eq(continuity_error(&c, "e", passing[i], false, T0 + n * min),
                             CONTINUITY_GOES_ON);
        /* what came cannot be read here: whatever the code of the end, it will come again */
        for (unsigned n = 0; n < 2; n++)
            ck_assert_int_eq(continuity_error(&c, "e", passing[i], true, T0 + n * min),
                             CONTINUITY_GOES_ON);
        ck_assert_int_eq(continuity_error(&c, "e", passing[i], true, T0 + 2 * min),
                         CONTINUITY_SLOT_POISONED);
        continuity_deinit(&c);
    }
    for (size_t i = 0; i < ARRAY_SIZE(lasting); i++) {
        struct continuity c = known(1, 0x100);

        for (unsigned n = 0; n < 2; n++)
            ck_assert_int_eq(continuity_error(&c, "e", lasting[i], false, T0 + n * min),
                             CONTINUITY_GOES_ON);
        /* one that may pass in between is passed over */
        ck_assert_int_eq(continuity_error(&c, "gone", "57P01", false, T0 + 2 * min),
                         CONTINUITY_GOES_ON);
        ck_assert_int_eq(continuity_error(&c, "e", lasting[i], false, T0 + 3 * min),
                         CONTINUITY_SLOT_POISONED);
        continuity_deinit(&c);
    }
}
END_TEST

START_TEST(refusals_have_their_words)
{
    static const struct {
        enum continuity_verdict verdict;
        const char *id, *mend;
    } cases[] = {
        {CONTINUITY_OTHER_SYSTEM, "other-system", "--accept-gap"},
        {CONTINUITY_OTHER_DATABASE, "other-database", "--accept-gap"},
        {CONTINUITY_SLOT_MOVED, "slot-moved", "--accept-gap"},
        {CONTINUITY_SERVER_RESTORED, "server-restored", "--accept-gap"},
        {CONTINUITY_SLOT_POISONED, "slot-poisoned", "walbus teardown, walbus setup; then walbusd --accept-gap"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct continuity_refusal *r = continuity_refusal(cases[i].verdict);

        ck_assert_str_eq(r->id, cases[i].id);
        ck_assert_int_eq(r->text[strlen(r->text) - 1], '.');
        ck_assert_ptr_nonnull(strstr(r->mend, cases[i].mend));
    }
}
END_TEST

UNIT_MAIN("continuity", the_first_connect_adopts, another_server, slot_at_and_around_what_was_told,
          restored_to_an_older_state, timeline_that_is_no_ancestor, timeline_that_was_left, another_database, accepted, poisoned_slot, poisoned_needs_three,
          progress_or_another_error_counts_anew, errors_that_may_pass, refusals_have_their_words)
