/* SPDX-License-Identifier: PostgreSQL */
#include "permit.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access.h"
#include "requests.h"
#include "unit.h"

static struct router r;
static struct settings settings;

static void setup(const char *const *rules, size_t n)
{
    char why[SETTINGS_WHY_SIZE] = "";
    size_t wrong;

    r = (struct router){.settings = &settings, .origin = {.file = "/etc/x.conf"}};
    ck_assert_int_eq(settings_init(&settings), 0);
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(settings_set(&settings, settings_find("allow"), rules[i], SETTING_FILE, why), 0);
    ck_assert_int_eq(access_new(&settings.allow, requests_names, &r.access, &wrong, why), 0);
}

static void teardown(void)
{
    r.access = access_free(r.access);
    settings_deinit(&settings);
}

/* Users that no machine has, and that are not who runs the test. */
static struct session client(uid_t uid)
{
    return (struct session){.fd = -1, .uid = uid, .gid = uid, .state = SESSION_READY};
}

/* "": it may; else why not. */
static const char *subscribing(struct session *s, const char *name, enum filter_kind kind, const char *text)
{
    static char why[PERMIT_WHY_SIZE];
    struct filter filters[2] = {{FILTER_PATTERN, unit_bytes("a.b")}, {kind, unit_bytes(text)}};

    why[0] = '\0';
    s->state = SESSION_WAITING;
    s->subscribe = (struct control_subscribe){.filters = filters, .n_filters = 2, .name = unit_bytes(name)};
    bool may = permit_subscription(&r, s, why);
    s->subscribe = (struct control_subscribe){0};
    ck_assert_int_eq(may, why[0] == '\0');
    return why;
}

#define MEND "; ask whoever runs the router for the line \"allow = user:4000000001 "

START_TEST(root_and_the_router_may_all)
{
    struct session root = client(0), own = client(geteuid());
    char why[PERMIT_WHY_SIZE];

    setup(NULL, 0);
    for (struct session *s = &root;; s = &own) {
        ck_assert(permit_is_privileged(s) && permit_entry(&r, s, why));
        ck_assert(permit_request(&r, s, unit_bytes("reload"), why) && permit_name(&r, s, unit_bytes("x"), why));
        ck_assert_str_eq(subscribing(s, "name", FILTER_PATTERN, ">"), "");
        if (s == &own)
            break;
    }
    teardown();
}
END_TEST

/* In a user namespace that has not all users the others look like one: also like the router, if that is the one. */
START_TEST(strangers)
{
    static const char *const rules[] = {"user:4000000001 subscribe >", "group:4000000001 subscribe >"};
    struct session like_router = client(geteuid()), like_rule = client(4000000001), known = client(4000000002);
    char why[PERMIT_WHY_SIZE];

    setup(rules, 2);
    permit_meet(&r, &like_rule); /* there can be none */
    ck_assert(permit_entry(&r, &like_rule, why));
    r.strangers = (struct strangers){true, geteuid(), 4000000001};
    permit_meet(&r, &like_router);
    ck_assert(!permit_is_privileged(&like_router) && !permit_entry(&r, &like_router, why));
    ck_assert_str_eq(why, "a user whom the router's user namespace does not have may do nothing here; ask whoever runs the router for "
                          "the line \"allow = any subscribe PATTERN\" in /etc/x.conf");
    r.strangers.uid = 4000000001;
    permit_meet(&r, &like_rule);
    permit_meet(&r, &known);
    ck_assert(!permit_entry(&r, &like_rule, why));
    ck_assert(!permit_entry(&r, &known, why));
    ck_assert_uint_eq(known.uid, 4000000002);
    teardown();
    ck_assert(strangers_map_is_whole("         0          0 4294967295\n"));
    ck_assert(!strangers_map_is_whole("         0     100000      65536\n"));
    ck_assert(!strangers_map_is_whole("         0       1000          1\n         1     100000      65536\n"));
    ck_assert(!strangers_map_is_whole("1 1 4294967294"));
    ck_assert(!strangers_map_is_whole("nothing"));
    struct strangers here;
    strangers_find(&here);
    ck_assert(here.uid > 0 && here.gid > 0);
}
END_TEST

START_TEST(nobody_else_may_anything)
{
    struct session s = client(4000000001);
    char why[PERMIT_WHY_SIZE];

    setup(NULL, 0);
    ck_assert(!permit_is_privileged(&s));
    ck_assert(!permit_entry(&r, &s, why));
    ck_assert_str_eq(why, "uid 4000000001 may do nothing here" MEND "subscribe PATTERN\" in /etc/x.conf");
    ck_assert(!permit_request(&r, &s, unit_bytes("status"), why));
    ck_assert_str_eq(why, "uid 4000000001 may not make the request \"status\"" MEND "control status\" in /etc/x.conf");
    ck_assert(!permit_name(&r, &s, unit_bytes("x"), why));
    teardown();
}
END_TEST

/* Which filter, and a line that would allow it, or no such line where it cannot be copied. */
START_TEST(sentences)
{
    static const char *const rules[] = {"user:4000000001 subscribe a.b", "user:4000000001 durable mine"};
    static const struct {
        enum filter_kind kind;
        const char *text, *shown, *line;
    } cases[] = {
        {FILTER_PATTERN, "orders.>", "\"orders.>\"", "orders.>"},
        {FILTER_EXACT, "orders.paid", "exactly \"orders.paid\"", "orders.paid"},
        {FILTER_STARTS_WITH, "orders.pa", "what starts with \"orders.pa\"", "orders.>"},
        {FILTER_STARTS_WITH, "neon-file:", "what starts with \"neon-file:\"", ">"},
        {FILTER_STARTS_WITH, "", "what starts with \"\"", ">"},
        {FILTER_STARTS_WITH, "a b.c", "what starts with \"a b.c\"", "PATTERN"},
        {FILTER_EXACT, "a.*", "exactly \"a.*\"", "PATTERN"},
        {FILTER_EXACT, "", "exactly \"\"", "PATTERN"},
        {FILTER_PATTERN, "a b", "\"a b\"", "PATTERN"},
        {FILTER_PATTERN, "\x1b[2J", "\"\\x1b[2J\"", "PATTERN"},
        {FILTER_PATTERN, "a;b", "\"a;b\"", "PATTERN"},
        {FILTER_PATTERN, "long.long.long.long.long.long.long.long.long.long.long.long.long", 
         "\"long.long.long.long.long.long.long.long.long.long.long.long....\"", "PATTERN"},
    };
    struct session s = client(4000000001);

    setup(rules, ARRAY_SIZE(rules));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char want[PERMIT_WHY_SIZE];

        (void)snprintf(want, sizeof want, "uid 4000000001 may not subscribe to %s" MEND "subscribe %s\" in /etc/x.conf",
                       cases[i].shown, cases[i].line);
        ck_assert_str_eq(subscribing(&s, "", cases[i].kind, cases[i].text), want);
    }
    ck_assert_str_eq(subscribing(&s, "", FILTER_EXACT, "a.b"), "");
    ck_assert_str_eq(subscribing(&s, "mine", FILTER_EXACT, "a.b"), "");
    ck_assert_str_eq(subscribing(&s, "yours", FILTER_EXACT, "a.b"),
                     "uid 4000000001 may not use the durable name \"yours\"" MEND "durable yours\" in /etc/x.conf");
    teardown();
}
END_TEST

/* What it has, and not only what it asks for. */
START_TEST(subscriptions_that_are_there)
{
    static const char *const rules[] = {"user:4000000001 subscribe a", "user:4000000001 durable mine"};
    struct filter filters[] = {{FILTER_PATTERN, unit_bytes("a")}, {FILTER_PATTERN, unit_bytes("b")}};
    struct durable mine = {.name = unit_bytes("mine")}, yours = {.name = unit_bytes("yours")};
    struct session s = client(4000000001);
    char why[PERMIT_WHY_SIZE] = "";

    setup(rules, ARRAY_SIZE(rules));
    s.state = SESSION_ACTIVE;
    s.member.filters = filters;
    s.member.n_filters = 1;
    ck_assert(permit_subscription(&r, &s, why));
    s.durable = &mine;
    ck_assert(permit_subscription(&r, &s, why));
    s.member.n_filters = 2;
    ck_assert(!permit_subscription(&r, &s, why));
    ck_assert_ptr_nonnull(strstr(why, "\"b\""));
    s.member.n_filters = 1;
    s.durable = &yours;
    ck_assert(!permit_subscription(&r, &s, why));
    ck_assert_ptr_nonnull(strstr(why, "\"yours\""));
    teardown();
}
END_TEST

/* The kernel's word: of a socket whose other end was made with these groups. */
START_TEST(groups_of_the_peer)
{
    static const char *const rules[] = {"group:4801 control status"};
    gid_t groups[200];

    if (geteuid() != 0) {
        unit_skipped("only root can have other groups");
        return;
    }
    setup(rules, ARRAY_SIZE(rules));
    static const size_t counts[] = {0, 1, 64, 65, 200};
    for (size_t i = 0; i < 3 * ARRAY_SIZE(counts); i++) {
        size_t n = counts[i / 3];
        bool in = i % 3 && n > 0, is_strangers = i % 3 == 2; /* then what looks like that group may be any */
        pid_t child;

        for (size_t k = 0; k < ARRAY_SIZE(groups); k++)
            groups[k] = (gid_t)(5000 + k);
        if (in)
            groups[n - 1] = 4801;
        child = fork(); /* in another process: these are the whole process's */
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            int own[2];
            char why[PERMIT_WHY_SIZE];
            struct session s = client(4000000001);

            if (setgroups(n, groups) < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, own) < 0)
                _exit(2);
            s.fd = own[0];
            r.strangers = (struct strangers){is_strangers, 4801, 4801};
            _exit(permit_request(&r, &s, unit_bytes("status"), why));
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == (in && !is_strangers), "%zu groups, %d, %d: %d", n, in,
                      is_strangers, status);
    }
    teardown();
}
END_TEST

UNIT_MAIN("permit", root_and_the_router_may_all, strangers, nobody_else_may_anything, sentences, subscriptions_that_are_there,
          groups_of_the_peer)
