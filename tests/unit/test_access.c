/* SPDX-License-Identifier: PostgreSQL */
#include "access.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"

static const char *const requests[] = {"status", "subscriptions", "remove", "seek", NULL};

/* ---- the machine's users, and some that it need not have ---- */

int __real_getpwnam_r(const char *name, struct passwd *entry, char *space, size_t size, struct passwd **ret);
int __wrap_getpwnam_r(const char *name, struct passwd *entry, char *space, size_t size, struct passwd **ret);
int __real_getgrnam_r(const char *name, struct group *entry, char *space, size_t size, struct group **ret);
int __wrap_getgrnam_r(const char *name, struct group *entry, char *space, size_t size, struct group **ret);

/* The room that the entry of the user "large" takes. */
static size_t large_entry = 1 << 16;

int __wrap_getpwnam_r(const char *name, struct passwd *entry, char *space, size_t size, struct passwd **ret)
{
    *ret = NULL;
    if (strcmp(name, "directory-is-away") == 0)
        return EIO;
    if (strcmp(name, "nowhere") == 0)
        return ENOENT; /* what some libraries say of a name that is not there */
    if (strcmp(name, "large") == 0 && size < large_entry)
        return ERANGE;
    if (strcmp(name, "large") != 0 && strcmp(name, "4711") != 0)
        return __real_getpwnam_r(name, entry, space, size, ret);
    *entry = (struct passwd){.pw_uid = *name == 'l' ? 78 : 77};
    *ret = entry;
    return 0;
}

int __wrap_getgrnam_r(const char *name, struct group *entry, char *space, size_t size, struct group **ret)
{
    if (strcmp(name, "4801") != 0)
        return __real_getgrnam_r(name, entry, space, size, ret);
    *entry = (struct group){.gr_gid = 79};
    *ret = entry;
    return 0;
}

/* ---- rules as text ---- */

START_TEST(rules)
{
    static const struct {
        const char *text;
        enum access_who who;
        enum access_right right;
        const char *name, *patterns;
    } cases[] = {
        {"any subscribe >", ACCESS_ANY, ACCESS_SUBSCRIBE, "", " >"},
        {"user:shop durable a b.*", ACCESS_USER, ACCESS_DURABLE, "shop", " a b.*"},
        {"  group:4711\tcontrol  status ", ACCESS_GROUP, ACCESS_CONTROL, "4711", "  status "},
        {"user:a:b subscribe *.>", ACCESS_USER, ACCESS_SUBSCRIBE, "a:b", " *.>"},
        {"group:\xc3\xa9quipe subscribe \xc3\xa9.. ..", ACCESS_GROUP, ACCESS_SUBSCRIBE, "\xc3\xa9quipe",
         " \xc3\xa9.. .."},
        {"user:any subscribe any", ACCESS_USER, ACCESS_SUBSCRIBE, "any", " any"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct access_rule rule;
        char why[SETTINGS_WHY_SIZE] = "";

        ck_assert_msg(access_rule_parse(cases[i].text, &rule, why) == 0, "%s: %s", cases[i].text, why);
        ck_assert_int_eq(rule.who, cases[i].who);
        ck_assert_int_eq(rule.right, cases[i].right);
        unit_assert_text(rule.name, cases[i].name);
        unit_assert_text(rule.patterns, cases[i].patterns);
        ck_assert_int_eq(access_rule_check(cases[i].text, why), 0);
    }
}
END_TEST

START_TEST(no_rules)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "it is empty; a rule begins with any, user:NAME or group:NAME"},
        {" \t ", "it is empty; a rule begins with any, user:NAME or group:NAME"},
        {"shop subscribe >", "found \"shop\"; a rule begins with any, user:NAME or group:NAME"},
        {"Any subscribe >", "found \"Any\"; a rule begins with any, user:NAME or group:NAME"},
        {"anybody subscribe >", "found \"anybody\"; a rule begins with any, user:NAME or group:NAME"},
        {"user: shop subscribe >",
         "found \"user:\"; a name or a number must stand behind the colon, without a blank between"},
        {"group: subscribe >",
         "found \"group:\"; a name or a number must stand behind the colon, without a blank between"},
        {"any", "it ends behind who is allowed; what is subscribe, durable or control"},
        {"any read >", "found \"read\"; what is allowed is subscribe, durable or control"},
        {"any Control status", "found \"Control\"; what is allowed is subscribe, durable or control"},
        {"any subscribe", "it ends behind subscribe; at least one pattern must follow, '>' is everything"},
        {"any durable  ", "it ends behind durable; at least one pattern must follow, '>' is everything"},
        {"any subscribe orders.cre*",
         "found \"orders.cre*\"; a '*' stands for a whole part between dots, and does nothing inside one"},
        {"any subscribe ok **",
         "found \"**\"; a '*' stands for a whole part between dots, and does nothing inside one"},
        {"any subscribe >.a", "found \">.a\"; a '>' stands alone behind the last dot, or as the whole pattern"},
        {"any subscribe a>", "found \"a>\"; a '>' stands alone behind the last dot, or as the whole pattern"},
        {"any subscribe \xff", "found \"\\xff\"; a pattern is UTF-8"},
        {"any \x1b[2J >", "found \"\\x1b[2J\"; what is allowed is subscribe, durable or control"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct access_rule rule = {.who = ACCESS_GROUP};
        char why[SETTINGS_WHY_SIZE] = "";

        ck_assert_msg(access_rule_parse(cases[i].text, &rule, why) == -EINVAL, "%s was accepted", cases[i].text);
        ck_assert_str_eq(why, cases[i].why);
        ck_assert_int_eq(rule.who, ACCESS_GROUP);
        ck_assert_int_eq(access_rule_check(cases[i].text, why), -EINVAL);
    }
}
END_TEST

START_TEST(long_patterns)
{
    char text[FILTER_TEXT_MAX + 32] = "any subscribe ", why[SETTINGS_WHY_SIZE];
    size_t begin = strlen(text);

    memset(text + begin, 'x', FILTER_TEXT_MAX);
    text[begin + FILTER_TEXT_MAX] = '\0';
    ck_assert_int_eq(access_rule_check(text, why), 0);
    text[begin + FILTER_TEXT_MAX] = 'x';
    text[begin + FILTER_TEXT_MAX + 1] = '\0';
    ck_assert_int_eq(access_rule_check(text, why), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why, "...\"; a pattern has at most 4096 bytes"));
}
END_TEST

/* ---- rules with their users looked up ---- */

static int read_rules(const char *const *texts, size_t n, struct access **ret, char why[SETTINGS_WHY_SIZE])
{
    const struct setting_row *row = settings_find("allow");
    struct settings s;

    ck_assert_int_eq(settings_init(&s), 0);
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(settings_set(&s, row, texts[i], SETTING_FILE, why), 0);
    size_t wrong;
    int r = access_new(&s.allow, requests, ret, &wrong, why);
    settings_deinit(&s);
    return r;
}

static struct access *rules_of(const char *const *texts, size_t n)
{
    struct access *a = NULL;
    char why[SETTINGS_WHY_SIZE] = "";

    ck_assert_msg(read_rules(texts, n, &a, why) == 0, "%s", why);
    return a;
}

static bool may_subscribe(const struct access *a, const struct access_peer *peer, const char *pattern)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes(pattern)};

    return access_may_subscribe(a, peer, &filter);
}

START_TEST(nothing_without_rules)
{
    struct access *a = rules_of(NULL, 0);
    struct access_peer root = {0};

    ck_assert(!access_knows(a, &root));
    ck_assert(!may_subscribe(a, &root, "a"));
    ck_assert(!access_may_use(a, &root, ACCESS_DURABLE, unit_bytes("a")));
    ck_assert(!access_may_use(a, &root, ACCESS_CONTROL, unit_bytes("status")));
    a = access_free(a);
    ck_assert_ptr_null(a);
    ck_assert_ptr_null(access_free(NULL));
}
END_TEST

START_TEST(who_a_rule_is_for)
{
    static const char *const texts[] = {"user:4712 subscribe u", "user:root subscribe r", "group:4802 subscribe g",
                                        "group:root subscribe rg", "any subscribe all"};
    static const gid_t groups[] = {1, 4802, 2}, roots[] = {0};
    static const struct {
        struct access_peer peer;
        const char *may;
    } cases[] = {
        {{.uid = 4712, .gid = 4712}, "u all"},
        {{.uid = 4802, .gid = 4712}, "all"},
        {{.uid = 0, .gid = 4802}, "r g all"},
        {{.uid = 5, .gid = 5, .groups = groups, .n_groups = 3}, "g all"},
        {{.uid = 4712, .gid = 5, .groups = groups, .n_groups = 1}, "u all"},
        {{.uid = 5, .gid = 5, .groups = roots, .n_groups = 1}, "rg all"},
        {{.uid = 5, .gid = 0}, "rg all"},
    };
    static const char *const all[] = {"u", "r", "g", "rg", "all"};
    struct access *a = rules_of(texts, ARRAY_SIZE(texts));

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf may = BUF_INIT;

        for (size_t k = 0; k < ARRAY_SIZE(all); k++)
            if (may_subscribe(a, &cases[i].peer, all[k]))
                buf_printf(&may, "%s%s", may.size ? " " : "", all[k]);
        ck_assert_msg(strcmp(buf_str(&may), cases[i].may) == 0, "case %zu: %s", i, buf_str(&may));
        ck_assert(access_knows(a, &cases[i].peer));
        buf_deinit(&may);
    }
    (void)access_free(a);
}
END_TEST

/* What is allowed for one right is not for another, and several rules add up, filter by filter. */
START_TEST(rights_are_apart)
{
    static const char *const texts[] = {"user:1 subscribe a.* b", "user:1 subscribe c.>", "user:1 durable n.*",
                                        "user:1 control status remove", "user:2 control *"};
    struct access *a = rules_of(texts, ARRAY_SIZE(texts));
    struct access_peer one = {.uid = 1, .gid = 1}, two = {.uid = 2, .gid = 2}, three = {.uid = 3, .gid = 3};

    ck_assert(may_subscribe(a, &one, "a.x") && may_subscribe(a, &one, "b") && may_subscribe(a, &one, "c.x.*"));
    ck_assert(!may_subscribe(a, &one, "a.>") && !may_subscribe(a, &one, "n.x") && !may_subscribe(a, &one, "status"));
    ck_assert(access_may_use(a, &one, ACCESS_DURABLE, unit_bytes("n.x")));
    ck_assert(!access_may_use(a, &one, ACCESS_DURABLE, unit_bytes("n.x.y")));
    ck_assert(!access_may_use(a, &one, ACCESS_DURABLE, unit_bytes("b")));
    /* a name is a name, whatever it looks like */
    ck_assert(!access_may_use(a, &one, ACCESS_DURABLE, unit_bytes("*.>")));
    ck_assert(access_may_use(a, &one, ACCESS_DURABLE, unit_bytes("n.*")));
    ck_assert(access_may_use(a, &one, ACCESS_CONTROL, unit_bytes("remove")));
    ck_assert(!access_may_use(a, &one, ACCESS_CONTROL, unit_bytes("seek")));
    ck_assert(!access_may_use(a, &one, ACCESS_CONTROL, unit_bytes("")));
    ck_assert(access_may_use(a, &two, ACCESS_CONTROL, unit_bytes("seek")));
    ck_assert(!access_may_use(a, &two, ACCESS_DURABLE, unit_bytes("n.x")));
    ck_assert(!access_knows(a, &three));
    (void)access_free(a);
}
END_TEST

START_TEST(what_is_not_there)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"user:no-such-user subscribe a", "allow = user:no-such-user subscribe a: there is no user \"no-such-user\""},
        {"group:no-such-group subscribe a",
         "allow = group:no-such-group subscribe a: there is no group \"no-such-group\""},
        {"user:-1 subscribe a", "allow = user:-1 subscribe a: there is no user \"-1\""},
        {"user:+1 subscribe a", "allow = user:+1 subscribe a: there is no user \"+1\""},
        {"user:0x10 subscribe a", "allow = user:0x10 subscribe a: there is no user \"0x10\""},
        {"group:4294967295 subscribe a", "allow = group:4294967295 subscribe a: there is no group \"4294967295\""},
        {"user:18446744073709551617 subscribe a",
         "allow = user:18446744073709551617 subscribe a: there is no user \"18446744073709551617\""},
        {"any control statsu", "allow = any control statsu: there is no request \"statsu\"; did you mean \"status\"?"},
        {"any control status kafka", "allow = any control status kafka: there is no request \"kafka\""},
        {"any control status.*",
         "allow = any control status.*: there is no request \"status.*\"; did you mean \"status\"?"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct access *a = NULL;
        char why[SETTINGS_WHY_SIZE] = "";

        ck_assert_msg(read_rules(&cases[i].text, 1, &a, why) == -EINVAL, "%s was accepted", cases[i].text);
        ck_assert_str_eq(why, cases[i].why);
        ck_assert_ptr_null(a);
    }
    static const char *const good[] = {"user:4294967294 subscribe a", "any control * >", "group:0 subscribe a"};
    (void)access_free(rules_of(good, ARRAY_SIZE(good)));
}
END_TEST

/* A user whose name is a number: the name counts, and not the number. */
START_TEST(names_that_are_numbers)
{
    static const char *const texts[] = {"user:4711 subscribe a", "group:4801 subscribe b"};
    static const gid_t groups[] = {4801, 79};
    struct access *a = rules_of(texts, ARRAY_SIZE(texts));
    struct access_peer named = {.uid = 77, .gid = 1};
    struct access_peer numbered = {.uid = 4711, .gid = 1, .groups = groups, .n_groups = 1};

    ck_assert(may_subscribe(a, &named, "a"));
    ck_assert(!access_knows(a, &numbered));
    numbered.n_groups = 2;
    ck_assert(may_subscribe(a, &numbered, "b"));
    ck_assert(!may_subscribe(a, &numbered, "a"));
    (void)access_free(a);
}
END_TEST

START_TEST(directories)
{
    static const char *const large = "user:large subscribe a", *const away = "user:directory-is-away subscribe a",
                             *const nowhere = "user:nowhere subscribe a";
    struct access_peer peer = {.uid = 78, .gid = 1};
    struct access *a = rules_of(&large, 1);
    char why[SETTINGS_WHY_SIZE];

    ck_assert(may_subscribe(a, &peer, "a"));
    a = access_free(a);
    large_entry = SIZE_MAX; /* there is an end to it */
    ck_assert_int_eq(read_rules(&large, 1, &a, why), -EINVAL);
    large_entry = 1 << 16;
    ck_assert_str_eq(why, "allow = user:large subscribe a: whether there is a user \"large\" cannot be told now: "
                          "Numerical result out of range");
    ck_assert_int_eq(read_rules(&away, 1, &a, why), -EINVAL);
    ck_assert_str_eq(why, "allow = user:directory-is-away subscribe a: whether there is a user \"directory-is-away\" "
                          "cannot be told now: Input/output error");
    ck_assert_int_eq(read_rules(&nowhere, 1, &a, why), -EINVAL);
    ck_assert_str_eq(why, "allow = user:nowhere subscribe a: there is no user \"nowhere\"");
}
END_TEST

START_TEST(patterns_are_bounded)
{
    struct buf text = BUF_INIT;
    const char *texts[3];
    struct access *a = NULL;
    char why[SETTINGS_WHY_SIZE] = "";

    buf_append_str(&text, "any subscribe");
    for (unsigned i = 0; i < ACCESS_PATTERNS_MAX / 2; i++)
        buf_append_str(&text, " a");
    texts[0] = texts[1] = buf_str(&text);
    texts[2] = "any durable b";
    (void)access_free(rules_of(texts, 2));
    ck_assert_int_eq(read_rules(texts, 3, &a, why), -EINVAL);
    ck_assert_str_eq(why, "allow = any durable b: all rules together have more than 2000 patterns");
    buf_deinit(&text);
}
END_TEST

START_TEST(names_of_users)
{
    struct access *a = rules_of(NULL, 0);

    ck_assert_str_eq(access_user_name(a, 0), "root");
    ck_assert_ptr_null(access_user_name(a, 4294967294));
    (void)access_free(a);
}
END_TEST

UNIT_MAIN("access", rules, no_rules, long_patterns, nothing_without_rules, who_a_rule_is_for, rights_are_apart,
          what_is_not_there, names_that_are_numbers, directories, patterns_are_bounded, names_of_users)
