/* SPDX-License-Identifier: PostgreSQL */
#include "access.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "settings/setting_value.h"

/* Where the names in sentences come from: the file itself, since asking a directory service about a client may take
 * long. */
#define USERS_FILE "/etc/passwd"
/* Of its entries so many are kept, those that come first. */
#define USERS_MAX 10000u
/* The most that is tried for one entry of a directory. */
#define ENTRY_MAX (1u << 20)

struct rule {
    struct access_rule parsed; /* borrows from `text` */
    char *text;
    id_t id; /* of the user or group */
};

struct user {
    uid_t uid;
    char *name;
};

struct access {
    struct rule *rules;
    size_t n, n_patterns;
    struct user *users; /* by rising uid, each once */
    size_t n_users;
};

struct access *access_free(struct access *a)
{
    if (!a)
        return NULL;
    for (size_t i = 0; i < a->n; i++)
        free(a->rules[i].text);
    for (size_t i = 0; i < a->n_users; i++)
        free(a->users[i].name);
    free(a->rules);
    free(a->users);
    free(a);
    return NULL;
}

/* ---- reading ---- */

static int refuse(char why[SETTINGS_WHY_SIZE], const char *rule, const char *fmt, ...) PRINTF_LIKE(3, 4);

static int refuse(char why[SETTINGS_WHY_SIZE], const char *rule, const char *fmt, ...)
{
    struct buf shown = BUF_INIT, text = BUF_INIT;
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    (void)snprintf(why, SETTINGS_WHY_SIZE, "allow = %s: %s", setting_value_shown(&shown, rule, strlen(rule)),
                   buf_str(&text));
    buf_deinit(&shown);
    buf_deinit(&text);
    return -EINVAL;
}

/* Decimal digits alone. The number that stands for nobody is none. */
static bool parse_id(const char *name, id_t *ret)
{
    unsigned long long v = 0;

    for (const char *at = name; *at; at++) {
        if (*at < '0' || *at > '9')
            return false;
        v = v * 10 + (unsigned)(*at - '0');
        if (v >= UINT_MAX)
            return false;
    }
    *ret = (id_t)v;
    return *name;
}

/* 0; -ENOENT: there is none of this name; another negative errno: that cannot be told. */
static int look_up_with(const char *name, bool group, char *space, size_t size, id_t *ret)
{
    struct passwd user, *found_user = NULL;
    struct group entry, *found_group = NULL;
    int e = group ? getgrnam_r(name, &entry, space, size, &found_group)
                  : getpwnam_r(name, &user, space, size, &found_user);

    if (found_user)
        *ret = found_user->pw_uid;
    if (found_group)
        *ret = found_group->gr_gid;
    if (found_user || found_group)
        return 0;
    /* what libraries say of a name that is nowhere, by getpwnam(3) */
    return e == 0 || e == ENOENT || e == ESRCH || e == EBADF || e == EPERM ? -ENOENT : -e;
}

static int look_up(const char *name, bool group, id_t *ret)
{
    char *space = NULL;
    int r = -ERANGE;

    for (size_t size = 4096; r == -ERANGE && size <= ENTRY_MAX; size *= 2) {
        char *more = realloc(space, size);

        if (!more) {
            free(space);
            return -ENOMEM;
        }
        space = more;
        r = look_up_with(name, group, space, size, ret);
    }
    free(space);
    return r;
}

/* The name first: there are users whose name is a number, and then it is not theirs. */
static int resolve(struct rule *rule, char why[SETTINGS_WHY_SIZE])
{
    bool group = rule->parsed.who == ACCESS_GROUP;
    const char *what = group ? "group" : "user";
    struct buf shown = BUF_INIT;
    id_t id;

    if (rule->parsed.who == ACCESS_ANY)
        return 0;
    char *name = strndup((const char *)rule->parsed.name.data, rule->parsed.name.size);
    if (!name)
        return -ENOMEM;
    int r = look_up(name, group, &id);
    if (r == -ENOENT && parse_id(name, &id))
        r = 0;
    if (r == 0)
        rule->id = id;
    else if (r == -ENOENT)
        r = refuse(why, rule->text, "there is no %s \"%s\"", what, setting_value_shown(&shown, name, strlen(name)));
    else if (r != -ENOMEM)
        r = refuse(why, rule->text, "whether there is a %s \"%s\" cannot be told now: %s", what,
                   setting_value_shown(&shown, name, strlen(name)), strerror(-r));
    buf_deinit(&shown);
    free(name);
    return r;
}

/* A word of no pattern that is no request is a slip, or of another version. */
static int check_requests(const struct rule *rule, const char *const *requests, char why[SETTINGS_WHY_SIZE])
{
    struct bytes rest = rule->parsed.patterns, word;
    struct buf shown = BUF_INIT;
    int r = 0;

    while (r == 0 && access_rule_next(&rest, &word)) {
        struct filter filter = {FILTER_PATTERN, word};
        size_t i = 0;

        while (requests[i] && !filter_matches(&filter, bytes_of_text(requests[i])))
            i++;
        if (requests[i])
            continue;
        const char *name = setting_value_shown(&shown, (const char *)word.data, word.size);
        const char *nearest = text_nearest(name, requests);
        r = refuse(why, rule->text,
                   nearest ? "there is no request \"%s\"; did you mean \"%s\"?" : "there is no request \"%s\"%s", name,
                   nearest ? nearest : "");
    }
    buf_deinit(&shown);
    return r;
}

static int add_rule(struct access *a, const char *text, const char *const *requests, char why[SETTINGS_WHY_SIZE])
{
    struct rule *rule = &a->rules[a->n];
    struct bytes rest, word;
    int r;

    rule->text = strdup(text);
    if (!rule->text)
        return -ENOMEM;
    a->n++;
    r = access_rule_parse(rule->text, &rule->parsed, why);
    if (r < 0)
        return r;
    for (rest = rule->parsed.patterns; access_rule_next(&rest, &word);)
        a->n_patterns++;
    if (a->n_patterns > ACCESS_PATTERNS_MAX)
        return refuse(why, text, "all rules together have more than %u patterns", ACCESS_PATTERNS_MAX);
    if (rule->parsed.right == ACCESS_CONTROL)
        r = check_requests(rule, requests, why);
    return r < 0 ? r : resolve(rule, why);
}

static int compare_users(const void *a, const void *b)
{
    const struct user *x = a, *y = b;

    return (x->uid > y->uid) - (x->uid < y->uid);
}

/* Names make sentences better, no more: without them it goes on. */
static void read_users(struct access *a)
{
    FILE *file = fopen(USERS_FILE, "re");
    const struct passwd *entry;
    size_t cap = 0;

    while (file && a->n_users < USERS_MAX && (entry = fgetpwent(file))) {
        if (a->n_users == cap) {
            size_t more = cap ? cap * 2 : 64;
            struct user *users = reallocarray(a->users, more, sizeof *users);

            if (!users)
                break;
            a->users = users;
            cap = more;
        }
        char *name = strdup(entry->pw_name);
        if (!name)
            break;
        a->users[a->n_users++] = (struct user){entry->pw_uid, name};
    }
    if (file)
        (void)fclose(file);
    if (a->n_users)
        qsort(a->users, a->n_users, sizeof *a->users, compare_users);
}

int access_new(const struct setting_list *rules, const char *const *requests, struct access **ret, size_t *ret_wrong,
               char why[SETTINGS_WHY_SIZE])
{
    struct access *a = calloc(1, sizeof *a);
    int r = 0;

    if (!a)
        return -ENOMEM;
    a->rules = calloc(rules->n + 1, sizeof *a->rules);
    if (!a->rules)
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < rules->n; i++)
        r = add_rule(a, rules->values[*ret_wrong = i], requests, why);
    if (r < 0) {
        (void)access_free(a);
        return r;
    }
    read_users(a);
    *ret = a;
    return 0;
}

/* ---- asking ---- */

static bool is_for(const struct rule *rule, const struct access_peer *peer)
{
    bool is = rule->parsed.who == ACCESS_ANY;

    if (rule->parsed.who == ACCESS_USER)
        return rule->id == peer->uid;
    if (rule->parsed.who == ACCESS_GROUP)
        is = rule->id == peer->gid;
    for (size_t i = 0; !is && i < peer->n_groups; i++)
        is = rule->id == peer->groups[i];
    return is;
}

bool access_knows(const struct access *a, const struct access_peer *peer)
{
    for (size_t i = 0; i < a->n; i++)
        if (is_for(&a->rules[i], peer))
            return true;
    return false;
}

static bool covers(const struct rule *rule, const struct filter *filter)
{
    struct bytes rest = rule->parsed.patterns, pattern;

    while (access_rule_next(&rest, &pattern))
        if (filter_is_covered(filter, pattern))
            return true;
    return false;
}

static bool is_allowed(const struct access *a, const struct access_peer *peer, enum access_right right,
                       const struct filter *filter)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->rules[i].parsed.right == right && is_for(&a->rules[i], peer) && covers(&a->rules[i], filter))
            return true;
    return false;
}

bool access_may_subscribe(const struct access *a, const struct access_peer *peer, const struct filter *filter)
{
    return is_allowed(a, peer, ACCESS_SUBSCRIBE, filter);
}

bool access_may_use(const struct access *a, const struct access_peer *peer, enum access_right right, struct bytes name)
{
    struct filter exactly = {FILTER_EXACT, name};

    return is_allowed(a, peer, right, &exactly);
}

const char *access_user_name(const struct access *a, uid_t uid)
{
    size_t low = 0, high = a->n_users;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (a->users[middle].uid < uid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a->n_users && a->users[low].uid == uid ? a->users[low].name : NULL;
}
