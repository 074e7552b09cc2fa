/* SPDX-License-Identifier: PostgreSQL */
#include "quota.h"

#include "permit.h"

bool quota_has_connection(const struct router *r, const struct session *s)
{
    uint64_t n = 0;

    if (permit_is_privileged(s))
        return true;
    for (const struct session *other = r->sessions; other; other = other->next)
        n += other->uid == s->uid;
    return n <= r->settings->connections_per_uid;
}

/* The durable name that a session holds, or asks for. */
static const struct durable *name_of(const struct router *r, const struct session *s)
{
    if (s->durable || s->state != SESSION_WAITING || s->subscribe.name.size == 0)
        return s->durable;
    return durables_find(r->durables, s->subscribe.name);
}

static bool is_made_by(const struct durable *d, uid_t uid)
{
    return d->has_maker && d->maker == uid;
}

/* Its subscription counts beside the names that its user has made. */
static bool counts(const struct router *r, const struct session *s)
{
    const struct durable *d;

    if (s->state != SESSION_ACTIVE && s->state != SESSION_WAITING)
        return false;
    d = name_of(r, s);
    return !d || !is_made_by(d, s->uid);
}

bool quota_has_subscription(const struct router *r, const struct session *s)
{
    uint64_t n = 0;

    if (permit_is_privileged(s) || !counts(r, s))
        return true;
    for (const struct session *other = r->sessions; other; other = other->next)
        n += other->uid == s->uid && counts(r, other);
    for (size_t i = 0; i < durables_count(r->durables); i++)
        n += is_made_by(durables_at(r->durables, i), s->uid);
    return n <= r->settings->subscriptions_per_uid;
}

bool quota_has_bytes(const struct router *r, const struct session *s, size_t bytes)
{
    size_t held = 0;
    uint64_t most = r->settings->bytes_per_uid;

    if (permit_is_privileged(s))
        return true;
    for (const struct session *other = r->sessions; other; other = other->next)
        if (other->uid == s->uid)
            held += session_held(other);
    return held <= most && bytes <= most - held;
}

_Static_assert(ROUTER_ACCOUNT_MAX <= SESSION_READS_BYTES / 2 && ROUTER_ACCOUNT_MAX <= ROUTER_BYTES_MAX / 2,
               "others have their share of either");

void quota_limit_accounts(struct router *r)
{
    accounts_limit(&r->accounts, (size_t)MIN(r->settings->bytes_per_uid, (uint64_t)ROUTER_ACCOUNT_MAX));
}

bool quota_open_account(struct router *r, struct session *s)
{
    if (permit_is_privileged(s))
        return true;
    struct account *account = account_of(&r->accounts, s->uid);
    if (account)
        session_charge_to(s, account);
    return account != NULL;
}
