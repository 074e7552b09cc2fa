/* SPDX-License-Identifier: PostgreSQL */
#include "requests.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients.h"
#include "codec/cbor.h"
#include "codec/control_fields.h"
#include "permit.h"
#include "quarantine_requests.h"
#include "reload.h"
#include "subscribe.h"

/* An answer to "status" has some hundred bytes, and so for each session and each name. */
#define ANSWER_ROOM 256u
/* While there is no room for an answer: who has more than this to read and asks on is let go. */
#define ANSWERS_FEW 4096u
/* What REPLY puts around its result, with room to spare. */
#define REPLY_FRAME 64u

enum what { WHAT_STATUS, WHAT_SUBSCRIPTIONS, WHAT_REMOVE, WHAT_SEEK };

/* A request whose answer takes a while. */
struct request_waiting {
    struct request_waiting *next;
    uint64_t session, id;
    enum what what;
    uint64_t ticket;                   /* REMOVE, SEEK: of the catalog's commit */
    char name[CATALOG_NAME_MAX + 1];   /* … the name, */
    struct position position;          /* … and where it was put */
};

static struct session *session_of(const struct router *r, uint64_t id)
{
    for (struct session *s = r->sessions; s; s = s->next)
        if (s->id == id)
            return s;
    return NULL;
}

/* ---- answers ---- */

static void reply(struct session *s, uint64_t id, struct buf *result)
{
    const struct control_reply frame = {.id = id, .result = buf_bytes(result)};

    if (result->failed)
        session_close(s, "no memory");
    else if (result->size > FRAME_CONTROL_MAX - REPLY_FRAME)
        session_request_error(s, id, CONTROL_ERROR_LIMIT, "the answer does not fit into a frame");
    else
        session_reply(s, &frame);
}

static void refuse(struct session *s, uint64_t id, const char *code, const char *fmt, ...) PRINTF_LIKE(4, 5);

static void refuse(struct session *s, uint64_t id, const char *code, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    session_request_error(s, id, code, text);
}

static void answer_list(struct router *r, struct session *s, uint64_t id, enum what what)
{
    struct buf result = BUF_INIT;

    if (what == WHAT_STATUS) {
        router_put_status(r, &result);
    } else {
        cbor_put_map(&result, 1);
        router_put_subscriptions(r, &result);
    }
    reply(s, id, &result);
    buf_deinit(&result);
}

static void answer_changed(struct session *s, const struct request_waiting *w)
{
    struct buf result = BUF_INIT;
    char text[POSITION_TEXT_SIZE];

    cbor_put_map(&result, w->what == WHAT_SEEK ? 2 : 1);
    cbor_put_str(&result, "name");
    cbor_put_str(&result, w->name);
    if (w->what == WHAT_SEEK) {
        cbor_put_str(&result, "position");
        cbor_put_str(&result, position_format(w->position, text));
    }
    reply(s, w->id, &result);
    buf_deinit(&result);
}

/* ---- who waits ---- */

static bool is_waiting(const struct router *r, const struct session *s)
{
    for (const struct request_waiting *w = r->waiting; w; w = w->next)
        if (w->session == s->id)
            return true;
    return false;
}

/* False: no memory. */
static bool wait_for(struct router *r, struct session *s, uint64_t id, enum what what, struct request_waiting **ret)
{
    struct request_waiting *w = calloc(1, sizeof *w);

    if (!w)
        return false;
    w->session = s->id;
    w->id = id;
    w->what = what;
    w->next = r->waiting;
    r->waiting = w;
    s->replies_due++;
    if (ret)
        *ret = w;
    return true;
}

static bool is_change(const struct request_waiting *w)
{
    return w->what == WHAT_REMOVE || w->what == WHAT_SEEK;
}

/* Takes out of the list, and answers, whoever is ready. */
static void answer_waiting(struct router *r, bool changes)
{
    struct request_waiting *ready = NULL, **at = &r->waiting;

    while (*at) {
        struct request_waiting *w = *at;

        if (is_change(w) != changes || (changes && !durables_is_done(r->durables, w->ticket))) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->next = ready;
        ready = w;
    }
    while (ready) {
        struct request_waiting *w = ready;
        struct session *s = session_of(r, w->session);

        ready = w->next;
        if (s)
            s->replies_due--;
        if (s && changes)
            answer_changed(s, w);
        else if (s)
            answer_list(r, s, w->id, w->what);
        free(w);
    }
    router_flush(r);
}

void requests_measured(struct router *r)
{
    answer_waiting(r, false);
}

void requests_stored(struct router *r)
{
    answer_waiting(r, true);
}

void requests_forget(struct router *r, const struct session *s)
{
    for (struct request_waiting **at = &r->waiting; *at;) {
        struct request_waiting *w = *at;

        if (s && w->session != s->id) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free(w);
    }
}

/* ---- requests ---- */

static void take_list(struct router *r, struct session *s, uint64_t id, enum what what)
{
    if (is_waiting(r, s) || !durables_measure(r->durables) || !wait_for(r, s, id, what, NULL))
        answer_list(r, s, id, what);
}

struct name_args {
    struct bytes name, position;
};

static const struct control_field name_fields[] = {
    REQUIRED(FIELD_TEXT, struct name_args, "name", name),
    OPTIONAL(FIELD_TEXT, struct name_args, "position", position),
};

/* The name that `args` tell, which nobody holds. NULL: the request was refused. */
static struct durable *take_name(struct router *r, struct session *s, const struct control_request *request,
                                 struct name_args *ret)
{
    char why[CONTROL_WHY_SIZE], text[PERMIT_WHY_SIZE];

    *ret = (struct name_args){0};
    if (control_fields_get(request->args, name_fields, ARRAY_SIZE(name_fields), ret, why) < 0) {
        refuse(s, request->id, CONTROL_ERROR_INVALID, "args: %s", why);
        return NULL;
    }
    if (!permit_name(r, s, ret->name, text)) {
        permit_refuse_request(r, s, request->id, text);
        return NULL;
    }
    struct durable *d = durables_find(r->durables, ret->name);
    if (!d)
        refuse(s, request->id, CONTROL_ERROR_UNKNOWN_NAME, "there is no durable subscription of this name");
    else if (d->holder)
        refuse(s, request->id, CONTROL_ERROR_HELD, "process %ld holds the durable subscription; stop it first",
               (long)d->holder_pid);
    return d && !d->holder ? d : NULL;
}

/* Where "seek" puts it. False: it was refused. */
static bool take_position(struct router *r, struct session *s, uint64_t id, struct bytes text, struct position *ret)
{
    char word[POSITION_TEXT_SIZE];

    if (journal_end(r->journal)->empty) {
        refuse(s, id, CONTROL_ERROR_INVALID, "the journal is empty yet");
        return false;
    }
    if (bytes_equal(text, bytes_of_text("now"))) {
        *ret = builder_now(&r->source.stream.builder);
        return true;
    }
    if (bytes_equal(text, bytes_of_text("oldest"))) {
        *ret = subscribe_oldest(r);
        return true;
    }
    if (text.size >= sizeof word) {
        refuse(s, id, CONTROL_ERROR_INVALID, "a position has at most %zu bytes, found %zu", sizeof word - 1, text.size);
        return false;
    }
    memcpy(word, text.data, text.size);
    word[text.size] = 0;
    if (strlen(word) != text.size || position_parse(word, ret) < 0) {
        refuse(s, id, CONTROL_ERROR_INVALID, "expected a position as TIMELINE:LSN:INDEX, \"now\" or \"oldest\"");
        return false;
    }
    if (position_compare(*ret, clients_farthest(r)) > 0) {
        refuse(s, id, CONTROL_ERROR_INVALID, "the position lies beyond the server's WAL");
        return false;
    }
    return true;
}

static void take_change(struct router *r, struct session *s, const struct control_request *request, enum what what)
{
    struct request_waiting *w;
    struct name_args args;
    struct position position = {0};
    struct durable *d;
    char text[POSITION_TEXT_SIZE];

    if (is_waiting(r, s)) {
        refuse(s, request->id, CONTROL_ERROR_LIMIT, "the request before has no answer yet");
        return;
    }
    d = take_name(r, s, request, &args);
    if (!d || (what == WHAT_SEEK && !take_position(r, s, request->id, args.position, &position)))
        return;
    if (!wait_for(r, s, request->id, what, &w)) {
        session_close(s, "no memory");
        return;
    }
    memcpy(w->name, d->name.data, d->name.size);
    w->position = position;
    log_line(r->log, LOG_INFO, what == WHAT_REMOVE ? "durable.removed" : "durable.moved",
             what == WHAT_REMOVE ? "A durable subscription was removed." : "A durable subscription was put elsewhere.",
             LOG_STR("subscription", w->name),
             LOG_STR("position", position_format(what == WHAT_REMOVE ? durable_cursor(r->durables, d) : position, text)),
             LOG_I64("pid", s->pid), LOG_I64("uid", s->uid));
    if (what == WHAT_REMOVE)
        durables_remove(r->durables, d);
    else
        durable_move(r->durables, d, position);
    w->ticket = durables_ticket(r->durables);
    retention_check(&r->retention);
    requests_stored(r); /* it may be there already */
}

static void take_reload(struct router *r, struct session *s, const struct control_request *request)
{
    const uint64_t id = request->id;
    struct buf result = BUF_INIT;
    struct reload_answer answer;
    char why[SETTINGS_WHY_SIZE];
    int e = reload_settings(r, "request", &answer, why);

    if (e < 0) {
        refuse(s, id, CONTROL_ERROR_INVALID, "nothing has changed: %s", e == -EINVAL ? why : strerror(-e));
        return;
    }
    cbor_put_map(&result, 2);
    cbor_put_str(&result, "changed");
    cbor_put_array(&result, answer.n_changed);
    buf_append(&result, answer.changed.data, answer.changed.size);
    cbor_put_str(&result, "restart");
    cbor_put_array(&result, answer.n_restart);
    buf_append(&result, answer.restart.data, answer.restart.size);
    result.failed |= answer.changed.failed || answer.restart.failed;
    reload_answer_deinit(&answer);
    if (s->state == SESSION_LEAVING || s->state == SESSION_CLOSED) /* it may not do that any more */
        buf_clear(&result);
    else
        reply(s, id, &result);
    buf_deinit(&result);
}

/* ---- the table ---- */

static void take_status(struct router *r, struct session *s, const struct control_request *request)
{
    take_list(r, s, request->id, WHAT_STATUS);
}

static void take_subscriptions(struct router *r, struct session *s, const struct control_request *request)
{
    take_list(r, s, request->id, WHAT_SUBSCRIPTIONS);
}

static void take_remove(struct router *r, struct session *s, const struct control_request *request)
{
    take_change(r, s, request, WHAT_REMOVE);
}

static void take_seek(struct router *r, struct session *s, const struct control_request *request)
{
    take_change(r, s, request, WHAT_SEEK);
}

/* What a rule can allow, and who answers it: nothing else is answered, so nothing is without being asked for. */
#define REQUESTS(ROW)                                    \
    ROW("status", take_status)                           \
    ROW("subscriptions", take_subscriptions)             \
    ROW("remove", take_remove)                           \
    ROW("seek", take_seek)                               \
    ROW("reload", take_reload)                           \
    ROW("quarantine-list", quarantine_requests_list)     \
    ROW("quarantine-show", quarantine_requests_show)     \
    ROW("quarantine-drop", quarantine_requests_drop)     \
    ROW("quarantine-release", quarantine_requests_release)

#define NAME(name, handler) name,
#define ROW(name, handler) {name, handler},
const char *const requests_names[] = {REQUESTS(NAME) NULL};

static const struct request_row {
    const char *name;
    void (*take)(struct router *r, struct session *s, const struct control_request *request);
} rows[] = {REQUESTS(ROW)};

static const struct request_row *find_row(struct bytes what)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (bytes_equal(what, bytes_of_text(rows[i].name)))
            return &rows[i];
    return NULL;
}

void requests_take(struct router *r, struct session *s, const struct control_request *request)
{
    const struct request_row *row = find_row(request->what);
    char why[PERMIT_WHY_SIZE];

    if (row && !permit_request(r, s, request->what, why)) {
        permit_refuse_request(r, s, request->id, why);
        return;
    }
    const char *whose = clients_lack_room(r, s, ANSWER_ROOM * (1 + r->n_sessions + durables_count(r->durables)));
    if (whose) { /* before it is made: that is what costs */
        if (outbox_waiting_control(&s->outbox) > ANSWERS_FEW) {
            (void)snprintf(why, sizeof why, "too many answers to %s wait to be read, some of them to this one", whose);
            session_error(s, CONTROL_ERROR_LIMIT, why, true);
        } else {
            refuse(s, request->id, CONTROL_ERROR_LIMIT, "too many answers to %s wait to be read", whose);
        }
        return;
    }
    if (row)
        row->take(r, s, request);
    else /* no rule could allow it */
        refuse(s, request->id, CONTROL_ERROR_UNSUPPORTED,
               "this router does not know that request; it knows: status, subscriptions, remove, seek, reload, "
               "quarantine-list, quarantine-show, quarantine-drop, quarantine-release");
}
