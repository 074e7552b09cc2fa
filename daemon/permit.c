/* SPDX-License-Identifier: PostgreSQL */
#include "permit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "access.h"
#include "base/text.h"
#include "subscribe.h"

/* So much of a filter or name is shown; in a rule that is to be copied nothing is cut. */
#define SHOWN_SIZE 60u
/* Supplementary groups of most users. */
#define GROUPS_FEW 64u

void permit_meet(const struct router *r, struct session *s)
{
    if (!r->strangers.are)
        return;
    if (s->uid == r->strangers.uid)
        s->uid = STRANGER_UID;
    if (s->gid == r->strangers.gid)
        s->gid = STRANGER_GID;
}

bool permit_is_privileged(const struct session *s)
{
    return s->uid == 0 || s->uid == geteuid();
}

/* ---- who asks ---- */

struct peer {
    struct access_peer is;
    gid_t few[GROUPS_FEW];
    gid_t *many; /* when they are more */
};

/* The kernel keeps the groups as they were when the client connected. Who cannot be asked for any has none. */
static void peer_init(struct peer *p, const struct router *router, const struct session *s)
{
    socklen_t size = sizeof p->few;
    gid_t *groups = p->few;

    p->many = NULL;
    p->is = (struct access_peer){.uid = s->uid, .gid = s->gid};
#ifdef SO_PEERGROUPS
    int r = getsockopt(s->fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size);
    if (r < 0 && errno == ERANGE) {
        groups = p->many = malloc(size);
        r = groups ? getsockopt(s->fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) : -1;
    }
    if (r == 0) {
        p->is.groups = groups;
        p->is.n_groups = size / sizeof *groups;
        for (size_t i = 0; i < p->is.n_groups && router->strangers.are; i++)
            if (groups[i] == router->strangers.gid)
                groups[i] = STRANGER_GID;
    }
#endif
}

static void peer_deinit(struct peer *p)
{
    free(p->many);
}

void permit_put_who(const struct router *r, uid_t uid, struct buf *out)
{
    const char *name = access_user_name(r->access, uid);

    if (uid == STRANGER_UID) {
        buf_append_str(out, "a user whom the router's user namespace does not have");
    } else if (name) {
        buf_append_str(out, "user ");
        text_put_visible(out, bytes_of_text(name));
        buf_printf(out, " (uid %ju)", (uintmax_t)uid);
    } else {
        buf_printf(out, "uid %ju", (uintmax_t)uid);
    }
}

/* ---- words ---- */

/* Can be copied from a sentence into the file, and is there what it is here. */
static bool is_plain(struct bytes text, bool wildcards)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.data[i] <= ' ' || text.data[i] >= 0x7f || memchr(";#\"\\", text.data[i], 4) ||
            (!wildcards && (text.data[i] == '*' || text.data[i] == '>')))
            return false;
    return text.size > 0 && text.size <= SHOWN_SIZE;
}

/* A pattern that covers the filter, or the word PATTERN. */
static void put_pattern(struct buf *out, const struct filter *filter)
{
    struct bytes text = filter->text;
    const uint8_t *dot = text.size ? memrchr(text.data, '.', text.size) : NULL;
    struct bytes whole_tokens = {text.data, dot ? (size_t)(dot - text.data) : 0};

    if (filter->kind == FILTER_PATTERN && is_plain(text, true)) {
        buf_append(out, text.data, text.size);
    } else if (filter->kind == FILTER_EXACT && is_plain(text, false)) {
        buf_append(out, text.data, text.size);
    } else if (filter->kind == FILTER_STARTS_WITH && (!dot || is_plain(whole_tokens, false))) {
        buf_append(out, text.data, dot ? whole_tokens.size + 1 : 0);
        buf_append_str(out, ">");
    } else {
        buf_append_str(out, "PATTERN");
    }
}

static void put_shown(struct buf *out, struct bytes text)
{
    text_put_visible(out, (struct bytes){text.data, MIN(text.size, (size_t)SHOWN_SIZE)});
    if (text.size > SHOWN_SIZE)
        buf_append_str(out, "...");
}

/* "…; ask whoever runs the router for "allow = WHO RIGHT PATTERN" in FILE". `filter` NULL: the word PATTERN. */
static void put_mend(const struct router *r, const struct session *s, enum access_right right,
                     const struct filter *filter, struct buf *out)
{
    const char *name = access_user_name(r->access, s->uid);

    buf_append_str(out, "; ask whoever runs the router for the line \"allow = ");
    if (s->uid == STRANGER_UID) /* there is no rule for it alone */
        buf_append_str(out, "any");
    else if (name && is_plain(bytes_of_text(name), false))
        buf_printf(out, "user:%s", name);
    else
        buf_printf(out, "user:%ju", (uintmax_t)s->uid);
    buf_printf(out, " %s ", access_right_text(right));
    if (filter)
        put_pattern(out, filter);
    else
        buf_append_str(out, "PATTERN");
    buf_printf(out, "\" in %s", r->origin.file ? r->origin.file : "its settings");
}

static void finish(struct buf *text, char why[PERMIT_WHY_SIZE])
{
    (void)snprintf(why, PERMIT_WHY_SIZE, "%s", buf_str(text));
    buf_deinit(text);
}

static void forbid(const struct router *r, const struct session *s, enum access_right right,
                   const struct filter *filter, char why[PERMIT_WHY_SIZE])
{
    static const char *const what[] = {
        [ACCESS_SUBSCRIBE] = "subscribe to",
        [ACCESS_DURABLE] = "use the durable name",
        [ACCESS_CONTROL] = "make the request",
    };
    struct buf text = BUF_INIT;

    permit_put_who(r, s->uid, &text);
    buf_printf(&text, " may not %s ", what[right]);
    if (right == ACCESS_SUBSCRIBE && filter->kind != FILTER_PATTERN)
        buf_append_str(&text, filter->kind == FILTER_EXACT ? "exactly " : "what starts with ");
    buf_append_u8(&text, '"');
    put_shown(&text, filter->text);
    buf_append_u8(&text, '"');
    put_mend(r, s, right, filter, &text);
    finish(&text, why);
}

/* ---- questions ---- */

bool permit_entry(const struct router *r, const struct session *s, char why[PERMIT_WHY_SIZE])
{
    struct buf text = BUF_INIT;
    struct peer peer;

    if (permit_is_privileged(s))
        return true;
    peer_init(&peer, r, s);
    bool known = access_knows(r->access, &peer.is);
    peer_deinit(&peer);
    if (known)
        return true;
    permit_put_who(r, s->uid, &text);
    buf_append_str(&text, " may do nothing here");
    put_mend(r, s, ACCESS_SUBSCRIBE, NULL, &text);
    finish(&text, why);
    return false;
}

static bool may_use(const struct router *r, const struct session *s, enum access_right right, struct bytes name,
                    char why[PERMIT_WHY_SIZE])
{
    struct filter filter = {FILTER_EXACT, name};
    struct peer peer;

    if (permit_is_privileged(s))
        return true;
    peer_init(&peer, r, s);
    bool may = access_may_use(r->access, &peer.is, right, name);
    peer_deinit(&peer);
    if (!may)
        forbid(r, s, right, &filter, why);
    return may;
}

bool permit_name(const struct router *r, const struct session *s, struct bytes name, char why[PERMIT_WHY_SIZE])
{
    return may_use(r, s, ACCESS_DURABLE, name, why);
}

bool permit_request(const struct router *r, const struct session *s, struct bytes what, char why[PERMIT_WHY_SIZE])
{
    return may_use(r, s, ACCESS_CONTROL, what, why);
}

bool permit_subscription(const struct router *r, const struct session *s, char why[PERMIT_WHY_SIZE])
{
    bool waits = s->state == SESSION_WAITING;
    const struct filter *filters = waits ? s->subscribe.filters : s->member.filters;
    size_t n = waits ? s->subscribe.n_filters : s->member.n_filters;
    struct bytes name = waits ? s->subscribe.name : s->durable ? s->durable->name : (struct bytes){NULL, 0};
    struct peer peer;
    size_t i = 0;

    if (permit_is_privileged(s))
        return true;
    if (name.size && !permit_name(r, s, name, why))
        return false;
    peer_init(&peer, r, s);
    while (i < n && access_may_subscribe(r->access, &peer.is, &filters[i]))
        i++;
    peer_deinit(&peer);
    if (i < n)
        forbid(r, s, ACCESS_SUBSCRIBE, &filters[i], why);
    return i == n;
}

/* ---- refusing ---- */

static void note(struct router *r, const struct session *s, const char *code, const char *text)
{
    struct refusal what = {.id = "access.refused", .sentence = "A client is refused something.", .level = LOG_WARNING,
                           .uid = s->uid, .pid = s->pid, .session = s->id, .code = code, .text = text};

    refusals_note(&r->refusals, r->log, uv_now(r->loop), &what);
}

void permit_refuse(struct router *r, struct session *s, const char *code, const char *text, bool fatal)
{
    note(r, s, code, text);
    session_refuse(s, code, text, fatal);
}

void permit_refuse_request(struct router *r, struct session *s, uint64_t id, const char *text)
{
    note(r, s, CONTROL_ERROR_FORBIDDEN, text);
    session_request_error(s, id, CONTROL_ERROR_FORBIDDEN, text);
}

void permit_check_all(struct router *r)
{
    char why[PERMIT_WHY_SIZE];

    for (struct session *s = r->sessions, *next; s; s = next) {
        bool subscribed = s->state == SESSION_ACTIVE || s->state == SESSION_WAITING;

        next = s->next;
        if (s->state == SESSION_CLOSED || s->state == SESSION_LEAVING)
            continue;
        if (permit_entry(r, s, why) && (!subscribed || permit_subscription(r, s, why)))
            continue;
        subscribe_release(r, s);
        permit_refuse(r, s, CONTROL_ERROR_FORBIDDEN, why, true);
        session_flush(s);
    }
}
