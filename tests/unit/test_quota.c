/* SPDX-License-Identifier: PostgreSQL */
#include "quota.h"

#include "durable_fixture.h"

static struct router r;
static struct settings settings;
static struct session sessions[12];

#define ALICE 4000000001u
#define BOB   4000000002u

static void begin(void)
{
    setup();
    ck_assert_int_eq(settings_init(&settings), 0);
    settings.connections_per_uid = 3;
    settings.subscriptions_per_uid = 3;
    settings.bytes_per_uid = 1000;
    r = (struct router){.settings = &settings, .durables = ds};
    memset(sessions, 0, sizeof sessions);
}

static void end(void)
{
    r.sessions = NULL;
    settings_deinit(&settings);
    teardown();
}

static struct session *connected(unsigned i, uid_t uid, enum session_state state)
{
    struct session *s = &sessions[i];

    *s = (struct session){.uid = uid, .state = state, .next = r.sessions};
    r.sessions = s;
    return s;
}

static struct session *asks_for(unsigned i, uid_t uid, const char *name)
{
    struct session *s = connected(i, uid, SESSION_WAITING);

    s->subscribe.name = unit_bytes(name);
    return s;
}

START_TEST(connections)
{
    begin();
    for (unsigned i = 0; i < 3; i++)
        ck_assert(quota_has_connection(&r, connected(i, ALICE, SESSION_READY)));
    ck_assert(!quota_has_connection(&r, connected(3, ALICE, SESSION_GREETING)));
    ck_assert(quota_has_connection(&r, connected(4, BOB, SESSION_GREETING)));
    for (unsigned i = 5; i < 9; i++)
        ck_assert(quota_has_connection(&r, connected(i, 0, SESSION_GREETING)));
    end();
}
END_TEST

/* Those that wait for their answer count; those that have none, or are about to go, do not. */
START_TEST(subscriptions)
{
    begin();
    (void)connected(0, ALICE, SESSION_ACTIVE);
    (void)connected(1, ALICE, SESSION_READY);
    (void)connected(2, ALICE, SESSION_LEAVING);
    (void)connected(3, ALICE, SESSION_WAITING);
    (void)connected(4, BOB, SESSION_ACTIVE);
    ck_assert(quota_has_subscription(&r, asks_for(5, ALICE, "")));
    ck_assert(!quota_has_subscription(&r, asks_for(6, ALICE, "")));
    ck_assert(!quota_has_subscription(&r, asks_for(7, ALICE, "new")));
    ck_assert(quota_has_subscription(&r, asks_for(8, BOB, "")));
    (void)asks_for(9, 0, "");
    ck_assert(quota_has_subscription(&r, &sessions[9]));
    end();
}
END_TEST

/* A name is its maker's, whoever holds it; who asks for one of his own asks for nothing more. */
START_TEST(durable_names)
{
    struct durable *mine, *also, *yours;

    begin();
    mine = add_name("mine", ">", at(1, 0));
    also = add_name("also-mine", ">", at(1, 0));
    yours = add_name("yours", ">", at(1, 0));
    (void)add_name("of-before", ">", at(1, 0));
    durable_set_maker(mine, ALICE);
    durable_set_maker(also, ALICE);
    durable_set_maker(yours, BOB);
    ck_assert(quota_has_subscription(&r, asks_for(0, ALICE, "mine")));
    sessions[0].state = SESSION_ACTIVE;
    sessions[0].durable = mine;
    ck_assert(quota_has_subscription(&r, asks_for(1, ALICE, "yours")));
    sessions[1].state = SESSION_ACTIVE;
    sessions[1].durable = yours;
    /* three: two names, and one of another one's */
    ck_assert(!quota_has_subscription(&r, asks_for(2, ALICE, "")));
    r.sessions = r.sessions->next;
    ck_assert(!quota_has_subscription(&r, asks_for(2, ALICE, "of-before")));
    r.sessions = r.sessions->next;
    ck_assert(quota_has_subscription(&r, asks_for(2, ALICE, "also-mine")));
    ck_assert(quota_has_subscription(&r, asks_for(3, BOB, "yours")));
    ck_assert(quota_has_subscription(&r, asks_for(4, BOB, "new")));
    end();
}
END_TEST

/* Who has made a name is kept. */
START_TEST(makers_are_stored)
{
    begin();
    durable_set_maker(add_name("mine", ">", at(1, 0)), ALICE);
    (void)add_name("of-before", ">", at(1, 0));
    settle();
    reopen();
    ck_assert(find_name("mine")->has_maker);
    ck_assert_uint_eq(find_name("mine")->maker, ALICE);
    ck_assert(!find_name("of-before")->has_maker);
    end();
}
END_TEST

START_TEST(bytes)
{
    begin();
    connected(0, ALICE, SESSION_ACTIVE)->filters_cost = 600;
    connected(1, ALICE, SESSION_READY)->in_cap = 1u << 20; /* a large frame */
    connected(2, BOB, SESSION_READY)->filters_cost = 5000;
    ck_assert(!quota_has_bytes(&r, &sessions[0], 0));
    sessions[1].in_cap = 100; /* that everybody has */
    ck_assert(quota_has_bytes(&r, &sessions[1], 400));
    ck_assert(!quota_has_bytes(&r, &sessions[1], 401));
    ck_assert(!quota_has_bytes(&r, &sessions[1], SIZE_MAX));
    ck_assert(!quota_has_bytes(&r, &sessions[2], 1));
    ck_assert(quota_has_bytes(&r, connected(3, 0, SESSION_READY), SIZE_MAX));
    end();
}
END_TEST

/* What waits to be delivered: the setting holds, up to the half of what there is for all. */
START_TEST(accounts)
{
    begin();
    quota_limit_accounts(&r);
    ck_assert_uint_eq(r.accounts.most, 1000);
    struct session *a = connected(0, ALICE, SESSION_GREETING), *b = connected(1, ALICE, SESSION_GREETING);
    struct session *c = connected(2, BOB, SESSION_GREETING), *root = connected(3, 0, SESSION_GREETING);
    for (unsigned i = 0; i < 4; i++)
        ck_assert(quota_open_account(&r, &sessions[i]));
    ck_assert(a->account && a->account == b->account && a->outbox.account == a->account);
    ck_assert(c->account && c->account != a->account);
    ck_assert_ptr_null(root->account);
    account_charge(a->account, 1001);
    account_charge(root->account, SIZE_MAX);
    ck_assert_uint_eq(r.accounts.n_over, 1);
    ck_assert(!account_lacks(c->account, 1000));
    settings.bytes_per_uid = 1001; /* a reload */
    quota_limit_accounts(&r);
    ck_assert_uint_eq(r.accounts.n_over, 0);
    settings.bytes_per_uid = 64u << 20;
    quota_limit_accounts(&r);
    ck_assert_uint_eq(r.accounts.most, ROUTER_ACCOUNT_MAX);
    account_give_back(a->account, 1001);
    for (unsigned i = 0; i < 4; i++)
        (void)account_unref(sessions[i].account);
    accounts_deinit(&r.accounts);
    end();
}
END_TEST

UNIT_MAIN("quota", connections, subscriptions, durable_names, makers_are_stored, bytes, accounts)
