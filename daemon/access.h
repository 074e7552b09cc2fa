/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_ACCESS_H
#define WALBUS_DAEMON_ACCESS_H

/*
 * Who may do what: the rules of the setting "allow" (settings/access_rule.h), with their users and groups looked up.
 * What no rule allows is forbidden. Root and the router's own user are not asked about here.
 *
 * Users and groups are looked up once, by access_new, which may wait for a directory service: when the settings are
 * read, never for a client. Asking is pure.
 *
 * A subscription needs the right to each of its filters: there must be one pattern of one rule that covers it. Its
 * exclusions count for nothing: they only take away.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/subject.h"
#include "settings/access_rule.h"
#include "settings/settings.h"

/** Patterns of all rules together: each filter of a SUBSCRIBE is compared with all that are for its client. */
#define ACCESS_PATTERNS_MAX 2000u

/** Who asks, as the socket's credentials say. */
struct access_peer {
    uid_t uid;
    gid_t gid;
    const gid_t *groups; /* the supplementary ones; borrowed */
    size_t n_groups;
};

struct access;

/** Of rules that access_rule_check() has accepted. `requests`: what control may be about, NULL-terminated. 0; -EINVAL
 * with `why`, one sentence without a full stop, and the rule that it is about: there is no such user, group or
 * request, too many patterns; -ENOMEM. */
int access_new(const struct setting_list *rules, const char *const *requests, struct access **ret, size_t *ret_wrong,
               char why[SETTINGS_WHY_SIZE]) MUST_CHECK;
/** Returns NULL. Takes NULL. */
struct access *access_free(struct access *a);

/** Whether any rule is for it. */
bool access_knows(const struct access *a, const struct access_peer *peer);
/** Whether it may subscribe with this filter. */
bool access_may_subscribe(const struct access *a, const struct access_peer *peer, const struct filter *filter);
/** Whether it may use a durable name, or make a request. */
bool access_may_use(const struct access *a, const struct access_peer *peer, enum access_right right, struct bytes name);

/** The name of a user, as far as the machine's own list of users had it when the rules were read; NULL: none. */
const char *access_user_name(const struct access *a, uid_t uid);

#endif
