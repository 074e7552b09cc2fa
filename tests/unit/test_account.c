/* SPDX-License-Identifier: PostgreSQL */
#include "account.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "outbox.h"
#include "unit.h"

#define ALICE 4000000001u
#define BOB   4000000002u

static struct batch_pool pool;
static struct accounts all;
static struct account *alice, *bob;
static struct outbox boxes[3]; /* of Alice two, of Bob one */

static void setup(void)
{
    pool = (struct batch_pool){0};
    all = (struct accounts){0};
    accounts_limit(&all, 10000);
    alice = account_of(&all, ALICE);
    bob = account_of(&all, BOB);
    ck_assert(alice && bob && alice != bob);
    memset(boxes, 0, sizeof boxes);
    boxes[0].account = boxes[1].account = alice;
    boxes[2].account = bob;
}

static void teardown(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(boxes); i++)
        outbox_deinit(&boxes[i]);
    ck_assert_uint_eq(alice->bytes + bob->bytes, 0);
    alice = account_unref(alice);
    bob = account_unref(bob);
    ck_assert_ptr_null(all.first);
    accounts_deinit(&all);
    ck_assert_uint_eq(pool.live, 0);
    batch_pool_deinit(&pool);
}

/* One reference is the caller's. */
static struct batch *batch_of(size_t size)
{
    uint8_t *frame = calloc(1, size);

    ck_assert_ptr_nonnull(frame);
    bytes_put_u32(frame, (uint32_t)(size - FRAME_HEADER_SIZE));
    frame[4] = FRAME_MESSAGE;
    frame[FRAME_HEADER_SIZE + 3] = 1; /* the timeline of its position */
    struct batch *b = batch_wrap(&pool, frame, size);
    ck_assert_ptr_nonnull(b);
    return b;
}

static void add(size_t i, struct batch *b)
{
    ck_assert_int_eq(outbox_add(&boxes[i], b, 0, batch_size(b), 0), 0);
}

START_TEST(one_a_user)
{
    setup();
    struct account *again = account_of(&all, ALICE);
    ck_assert_ptr_eq(again, alice);
    ck_assert_uint_eq(alice->refs, 2);
    ck_assert_ptr_null(account_unref(again));
    ck_assert_ptr_eq(all.first->next, alice);
    /* whoever goes first */
    struct account *third = account_of(&all, 7);
    bob = account_unref(bob);
    ck_assert(all.first == third && third->next == alice && alice->prev == third);
    bob = account_of(&all, BOB);
    (void)account_unref(third);
    ck_assert(all.first == bob && bob->next == alice && alice->prev == bob);
    teardown();
}
END_TEST

/* However many sessions of a user wait to send it, a batch is kept for him once; and for another one as well. */
START_TEST(a_batch_is_charged_once)
{
    setup();
    struct batch *a = batch_of(1000), *b = batch_of(2000);
    size_t both = batch_charge(a) + batch_charge(b);

    for (size_t i = 0; i < 3; i++)
        add(i, a);
    for (size_t i = 1; i < 3; i++)
        add(i, b);
    ck_assert_uint_eq(alice->bytes, both);
    ck_assert_uint_eq(bob->bytes, both);
    (void)outbox_drop(&boxes[1]); /* the other one still waits for the first */
    ck_assert_uint_eq(alice->bytes, batch_charge(a));
    outbox_deinit(&boxes[0]);
    ck_assert_uint_eq(alice->bytes, 0);
    ck_assert_uint_eq(bob->bytes, both);
    (void)batch_unref(a);
    (void)batch_unref(b);
    teardown();
}
END_TEST

/* Several pieces of a batch in one outbox are one holder; whoever holds none later, and comes back, is charged anew. */
START_TEST(pieces)
{
    const uint8_t frame[OUTBOX_FRAME_SIZE] = {0};

    setup();
    struct batch *a = batch_of(1000), *b = batch_of(500);
    ck_assert_int_eq(outbox_add_frame(&boxes[0], a, frame, sizeof frame), 0);
    add(0, a);
    add(0, b);
    add(0, a); /* as after catching up: once more, and that is given back too */
    ck_assert_uint_eq(alice->bytes, 2 * batch_charge(a) + batch_charge(b));
    ck_assert_uint_eq(boxes[0].charge, alice->bytes);
    outbox_deinit(&boxes[0]);
    ck_assert_uint_eq(alice->bytes, 0);
    ck_assert_int_eq(outbox_add_frame(&boxes[1], a, frame, sizeof frame), 0);
    ck_assert_uint_eq(alice->bytes, batch_charge(a));
    (void)batch_unref(a);
    (void)batch_unref(b);
    teardown();
}
END_TEST

/* Who is not counted costs nothing. */
START_TEST(without_an_account)
{
    setup();
    struct batch *a = batch_of(1000);

    boxes[0].account = NULL;
    add(0, a);
    ck_assert_uint_eq(alice->bytes + bob->bytes, 0);
    ck_assert(!account_lacks(NULL, SIZE_MAX));
    ck_assert_ptr_null(account_ref(NULL));
    ck_assert_ptr_null(account_unref(NULL));
    account_charge(NULL, 7);
    account_give_back(NULL, 7);
    account_let_go(NULL);
    (void)batch_unref(a);
    teardown();
}
END_TEST

START_TEST(the_limit)
{
    setup();
    account_charge(alice, 9999);
    ck_assert(!account_lacks(alice, 1));
    ck_assert(account_lacks(alice, 2));
    ck_assert(account_lacks(alice, SIZE_MAX));
    account_charge(alice, 1);
    ck_assert(!account_lacks(alice, 0));
    ck_assert_uint_eq(all.n_over, 0);
    account_charge(alice, 1);
    ck_assert(account_lacks(alice, 0));
    ck_assert(!account_lacks(bob, 10000));
    account_charge(alice, 5);
    account_charge(bob, 20000);
    ck_assert_uint_eq(all.n_over, 2);
    account_give_back(alice, 5);
    ck_assert_uint_eq(all.n_over, 2);
    account_give_back(alice, 1);
    ck_assert_uint_eq(all.n_over, 1);
    /* another one */
    accounts_limit(&all, 9999);
    ck_assert_uint_eq(all.n_over, 2);
    accounts_limit(&all, 20000);
    ck_assert_uint_eq(all.n_over, 0);
    account_give_back(alice, 10000);
    account_give_back(bob, 20000);
    ck_assert_uint_eq(all.n_over, 0);
    teardown();
}
END_TEST

/* Whoever lets go keeps a short rest as a copy, and is charged for that. */
START_TEST(letting_go)
{
    struct outbox_rest rest;
    int pair[2];

    setup();
    struct batch *a = batch_of(3000), *b = batch_of(60000);
    add(0, a);
    add(0, b);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    ck_assert_int_eq(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &(int){4608}, sizeof(int)), 0);
    ck_assert_int_eq(outbox_write(&boxes[0], pair[0]), OUTBOX_BLOCKED);
    outbox_let_go(&boxes[0], &pool, (struct position){0}, &rest); /* not to be read again: it stays */
    ck_assert_uint_eq(alice->bytes, boxes[0].charge);
    ck_assert_uint_gt(alice->bytes, 0);
    outbox_let_go(&boxes[0], &pool, (struct position){1, UINT64_MAX, 0}, &rest);
    ck_assert_uint_eq(alice->bytes, boxes[0].charge);
    ck_assert_uint_lt(alice->bytes, 5000);
    ck_assert_int_eq(close(pair[0]), 0);
    ck_assert_int_eq(close(pair[1]), 0);
    (void)batch_unref(a);
    (void)batch_unref(b);
    teardown();
}
END_TEST

UNIT_MAIN("account", one_a_user, a_batch_is_charged_once, pieces, without_an_account, the_limit, letting_go)
