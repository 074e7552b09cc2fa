/* SPDX-License-Identifier: PostgreSQL */
#include "quarantine_requests.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "clients.h"
#include "codec/cbor.h"
#include "codec/control_fields.h"

/* Of one answer: so many entries, so many bytes of content. */
#define LIST_MAX  100u
#define CHUNK_MAX (256u << 10)
/* What is asked for before such an answer is made: a chunk, and what stands around it, as it stays until it is
 * sent. A worker has some of it twice while it makes it: as many at once as libuv has workers. */
#define ANSWER_ROOM (CHUNK_MAX + (4u << 10))

enum what { LIST, SHOW, DROP, RELEASE };

struct args {
    uint64_t id, from, last, after, first;
    struct bytes position;
};

static const struct control_field arg_fields[] = {
    OPTIONAL(FIELD_UINT, struct args, "id", id),
    OPTIONAL(FIELD_UINT, struct args, "from", from),
    OPTIONAL(FIELD_UINT, struct args, "last", last),
    OPTIONAL(FIELD_UINT, struct args, "after", after),
    OPTIONAL(FIELD_UINT, struct args, "first", first),
    OPTIONAL(FIELD_TEXT, struct args, "position", position),
};

/* While a worker has it, its alone, but for what says whose it is. */
struct quarantine_job {
    uv_work_t work;
    struct router *router;
    struct quarantine_job *next; /* the router's list */
    uint64_t session, request;
    pid_t pid;
    uid_t uid;
    enum what what;
    size_t room;              /* of the session's replies_room */
    struct args args;
    struct position position; /* instead of an id; zero: none was given */
    uint64_t newest;          /* the id of the newest entry when it was asked for */
    struct quarantine *quarantine;
    struct check_rules *rules; /* RELEASE: one reference */
    int64_t now_us;

    const char *refused;       /* the error's code; NULL: it went well */
    char why[1024];
    struct buf result;
    uint64_t removed;

    /* RELEASE */
    bool removing;             /* it was committed */
    struct buf storage;
    struct quarantine_message message;
    uint64_t lsn;
};

/* ---- on a worker ---- */

static void refuse(struct quarantine_job *job, const char *code, const char *fmt, ...) PRINTF_LIKE(3, 4);

static void refuse(struct quarantine_job *job, const char *code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(job->why, sizeof job->why, fmt, ap);
    va_end(ap);
    job->refused = code;
}

static void refuse_read(struct quarantine_job *job, int error)
{
    if (error == -ENOENT)
        refuse(job, CONTROL_ERROR_UNKNOWN_NAME, "there is no such message in quarantine");
    else if (error == -EBADMSG)
        refuse(job, CONTROL_ERROR_JOURNAL, "the quarantine is damaged where this message stands; all that can be done is to drop it");
    else
        refuse(job, CONTROL_ERROR_JOURNAL, "the quarantine cannot be read: %s", strerror(-error));
}

static void put_text_or_bytes(struct buf *out, const char *key, struct bytes value)
{
    cbor_put_str(out, key);
    if (text_is_utf8(value))
        cbor_put_text(out, value);
    else
        cbor_put_bytes(out, value);
}

static void put_entry(struct buf *out, const struct quarantine_message *m, uint64_t size)
{
    char text[MAX(POSITION_TEXT_SIZE, CLOCK_TEXT_SIZE)];
    struct buf words = BUF_INIT;

    cbor_put_map(out, 10);
    cbor_put_str(out, "id");
    cbor_put_uint(out, m->id);
    cbor_put_str(out, "position");
    cbor_put_str(out, position_format(m->position, text));
    buf_printf(&words, "%llu/%u", (unsigned long long)m->system_identifier, (unsigned)m->era);
    cbor_put_str(out, "journal");
    cbor_put_str(out, buf_str(&words));
    cbor_put_str(out, "received");
    cbor_put_str(out, clock_format_rfc3339(m->received_time, text));
    cbor_put_str(out, "transactional");
    cbor_put_bool(out, m->flags & FRAME_FLAG_TRANSACTIONAL);
    put_text_or_bytes(out, "prefix", m->prefix);
    cbor_put_str(out, "size");
    cbor_put_uint(out, size);
    cbor_put_str(out, "status");
    cbor_put_str(out, m->status < VERIFY_STATUS_COUNT ? verify_status_text((enum verify_status)m->status) : "unknown");
    cbor_put_str(out, "kid");
    buf_clear(&words);
    for (size_t i = 0; i < m->kid.size; i++)
        buf_printf(&words, "%02x", m->kid.data[i]);
    cbor_put_str(out, buf_str(&words));
    put_text_or_bytes(out, "reason", m->reason);
    buf_deinit(&words);
}

static void list(struct quarantine_job *job)
{
    struct buf entries = BUF_INIT, storage = BUF_INIT;
    uint64_t id = job->args.after, size;
    struct quarantine_message m;
    size_t n = 0;

    while (n < LIST_MAX && entries.size < CHUNK_MAX && (id = quarantine_next(job->quarantine, id)) != 0) {
        int r = quarantine_read(job->quarantine, id, 0, 0, false, &storage, &m, &size);

        if (r == -ENOENT) /* it has gone meanwhile */
            continue;
        if (r < 0) {
            refuse_read(job, r);
            break;
        }
        put_entry(&entries, &m, size);
        n++;
    }
    cbor_put_map(&job->result, 3);
    cbor_put_str(&job->result, "more");
    cbor_put_bool(&job->result, id != 0);
    cbor_put_str(&job->result, "newest");
    cbor_put_uint(&job->result, job->newest);
    cbor_put_str(&job->result, "entries");
    cbor_put_array(&job->result, n);
    buf_append(&job->result, entries.data, entries.size);
    job->result.failed |= entries.failed;
    buf_deinit(&entries);
    buf_deinit(&storage);
}

static void show(struct quarantine_job *job)
{
    struct quarantine_message m;
    struct buf storage = BUF_INIT;
    uint64_t size;
    int r = quarantine_read(job->quarantine, job->args.id, job->args.from, CHUNK_MAX, false, &storage, &m, &size);

    if (r < 0) {
        refuse_read(job, r);
    } else {
        cbor_put_map(&job->result, 2);
        cbor_put_str(&job->result, "entry");
        put_entry(&job->result, &m, size);
        cbor_put_str(&job->result, "content");
        cbor_put_bytes(&job->result, m.content);
    }
    buf_deinit(&storage);
}

static void drop(struct quarantine_job *job)
{
    /* what has come since it was asked for is another matter */
    const uint64_t first = job->args.first, last = MIN(job->args.last, job->newest);
    int r = first <= last ? quarantine_remove(job->quarantine, first, last, QUARANTINE_DROPPED, &job->removed) : 0;

    if (r < 0) {
        refuse(job, CONTROL_ERROR_JOURNAL, "the quarantine cannot be written: %s", strerror(-r));
        return;
    }
    cbor_put_map(&job->result, 1);
    cbor_put_str(&job->result, "dropped");
    cbor_put_uint(&job->result, job->removed);
}

static const char *mend_of(enum verify_status status)
{
    switch (status) {
    case VERIFY_UNKNOWN_KEY:
        return "add its key to the trust file (walbus trust add), walbus reload, and release it then";
    case VERIFY_NOT_ALLOWED:
        return "add the pattern to its key in the trust file (walbus trust add), walbus reload, and release it then";
    case VERIFY_STALE:
        return "its key's max-delay has passed: have it signed and published anew, and drop this one, or change the trust file or the policy";
    default:
        return "have it signed and published anew, and drop this one, or change the policy";
    }
}

/* Whether it would be let through now. */
static void verify(struct quarantine_job *job)
{
    const struct quarantine_message *m = &job->message;
    const struct verify_scope scope = {m->prefix, bytes_of_text(job->rules->audience), job->now_us};
    struct verify_result result;
    struct buf scratch = BUF_INIT;

    if (policies_find(&job->rules->policies, m->prefix) != POLICY_REQUIRE)
        return;
    int r = verify_content(job->rules->trust, &scope, m->content, &scratch, &result);
    if (r < 0)
        refuse(job, CONTROL_ERROR_LIMIT, "the router has no memory to verify it");
    else if (result.status != VERIFY_VALID)
        refuse(job, CONTROL_ERROR_INVALID, "it would be kept back again, as %s: %s To mend it, %s", verify_status_text(result.status),
               result.reason, mend_of(result.status));
    buf_deinit(&scratch);
}

static void prepare_release(struct quarantine_job *job)
{
    uint64_t size;
    int r = quarantine_read(job->quarantine, job->args.id, 0, SIZE_MAX, true, &job->storage, &job->message, &size);

    if (r < 0)
        refuse_read(job, r);
    else
        verify(job);
}

static void finish_release(struct quarantine_job *job)
{
    char lsn[LSN_TEXT_SIZE];
    int r = quarantine_remove(job->quarantine, job->args.id, job->args.id, QUARANTINE_RELEASED, &job->removed);

    if (r < 0)
        refuse(job, CONTROL_ERROR_JOURNAL,
               "it was published anew, but could not be removed from quarantine: %s; drop it, do not release it again",
               strerror(-r));
    cbor_put_map(&job->result, 2);
    cbor_put_str(&job->result, "id");
    cbor_put_uint(&job->result, job->args.id);
    cbor_put_str(&job->result, "lsn");
    cbor_put_str(&job->result, lsn_format(job->lsn, lsn));
}

static void on_work(uv_work_t *work)
{
    struct quarantine_job *job = work->data;

    if (!position_is_zero(job->position)) {
        job->args.id = quarantine_at(job->quarantine, job->position);
        job->args.first = job->args.last = job->args.id;
        job->position = (struct position){0};
        if (!job->args.id) {
            refuse_read(job, -ENOENT);
            return;
        }
    }
    switch (job->what) {
    case LIST:
        list(job);
        break;
    case SHOW:
        show(job);
        break;
    case DROP:
        drop(job);
        break;
    case RELEASE:
        if (job->removing)
            finish_release(job);
        else
            prepare_release(job);
        break;
    }
}

/* ---- on the loop ---- */

static void job_free(struct quarantine_job *job)
{
    struct quarantine_job **at = &job->router->quarantine_jobs;

    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    (void)check_rules_unref(job->rules);
    buf_deinit(&job->result);
    buf_deinit(&job->storage);
    free(job);
}

static struct session *session_of(const struct quarantine_job *job)
{
    for (struct session *s = job->router->sessions; s; s = s->next)
        if (s->id == job->session)
            return s;
    return NULL;
}

static void log_done(const struct quarantine_job *job)
{
    struct router *r = job->router;

    if (job->what == DROP && job->removed)
        log_line(r->log, LOG_INFO, "quarantine.dropped", "Messages were dropped from quarantine.",
                 LOG_U64("first", job->args.first),
                 LOG_U64("last", MIN(job->args.last, job->newest)), LOG_U64("messages", job->removed),
                 LOG_I64("pid", job->pid), LOG_I64("uid", job->uid));
    if (job->what == RELEASE && job->removing)
        log_line(r->log, LOG_INFO, "quarantine.released", "A message in quarantine was published anew.",
                 LOG_U64("id", job->args.id), LOG_I64("pid", job->pid), LOG_I64("uid", job->uid));
}

static void answer(struct quarantine_job *job)
{
    struct router *r = job->router;
    struct session *s = session_of(job);
    const struct control_reply reply = {.id = job->request, .result = buf_bytes(&job->result)};

    log_done(job);
    if (s) {
        s->replies_due--;
        s->replies_room -= job->room;
    }
    if (s && job->refused)
        session_request_error(s, job->request, job->refused, job->why);
    else if (s && job->result.failed)
        session_close(s, "no memory");
    else if (s)
        session_reply(s, &reply);
    if (job->removed && r->phase != ROUTER_ENDED)
        checks_tick(r->checks); /* it may have stood for want of room */
    job_free(job);
    router_flush(r);
}

static void on_worked(uv_work_t *work, int status);

static void start(struct quarantine_job *job)
{
    (void)uv_queue_work(job->router->loop, &job->work, on_work, on_worked); /* fails without a function alone */
}

static void on_published(void *context, const char *error, uint64_t lsn)
{
    struct quarantine_job *job = context;

    if (error) {
        refuse(job, CONTROL_ERROR_SOURCE, "%s", error);
        answer(job);
        return;
    }
    buf_deinit(&job->storage);
    job->lsn = lsn;
    job->removing = true;
    start(job);
}

/* The journal has on disk that it was withheld. Before that it comes again if the router dies or the journal fails,
 * and may be let through then: whoever had it released would get it twice. */
static bool is_noted(const struct quarantine_job *job)
{
    const struct journal_end *end = journal_end(job->router->journal);
    const struct quarantine_message *m = &job->message;
    const struct position p = m->position;

    if (m->system_identifier != end->system_identifier || m->era != end->era)
        return true;
    if (end->mark_timeline != p.timeline)
        return end->mark_timeline > p.timeline;
    return p.index == POSITION_INDEX_NONTRANSACTIONAL ? end->mark >= p.lsn : end->mark > p.lsn;
}

static void publish(struct quarantine_job *job)
{
    if (job->router->phase == ROUTER_RUNNING && !is_noted(job)) {
        refuse(job, CONTROL_ERROR_JOURNAL,
               "the journal does not have yet that it was kept back; try again, and if that lasts see last_error of "
               "walbus status");
        answer(job);
        return;
    }
    int e = job->router->phase == ROUTER_RUNNING
                ? heartbeat_publish(&job->router->source.heartbeat, job->message.prefix, job->message.content, on_published, job)
                : -ENOTCONN;

    if (e == 0)
        return;
    refuse(job, CONTROL_ERROR_SOURCE, e == -E2BIG ? "it is too large to be published in one statement"
                                      : e == -EBUSY
                                          ? "another message is just being released"
                                          : "the router has no connection to the server over which to publish it; try again");
    answer(job);
}

static void on_worked(uv_work_t *work, int status)
{
    struct quarantine_job *job = work->data;

    (void)status; /* nobody cancels */
    if (job->what == RELEASE && !job->removing && !job->refused)
        publish(job);
    else
        answer(job);
}

/* What is being released must not be answered as dropped for good meanwhile, and is published by one alone. */
static bool is_in_the_way(enum what one, enum what other)
{
    return (one == RELEASE && (other == RELEASE || other == DROP)) || (one == DROP && other == RELEASE);
}

static bool is_busy(const struct router *r, const struct session *s, enum what what)
{
    for (const struct quarantine_job *job = r->quarantine_jobs; job; job = job->next)
        if (job->session == s->id || is_in_the_way(what, job->what))
            return true;
    return false;
}

/* NULL, or what is wrong with the arguments. */
static const char *take_args(const struct control_request *request, enum what what, struct args *args,
                             struct position *ret_position, char why[CONTROL_WHY_SIZE])
{
    char word[POSITION_TEXT_SIZE];

    if (request->args.size &&
        control_fields_get(request->args, arg_fields, ARRAY_SIZE(arg_fields), args, why) < 0)
        return why;
    if (args->position.size) {
        if (args->position.size >= sizeof word)
            return "a position is TIMELINE:LSN:INDEX";
        memcpy(word, args->position.data, args->position.size);
        word[args->position.size] = 0;
        if (strlen(word) != args->position.size || position_parse(word, ret_position) < 0 || position_is_zero(*ret_position))
            return "a position is TIMELINE:LSN:INDEX";
    } else if (what == DROP && args->id) {
        args->first = args->last = args->id;
    }
    if (position_is_zero(*ret_position) &&
        (what == DROP ? !args->first || args->last < args->first : what != LIST && !args->id))
        return what == DROP ? "expected an id, a position, or first and last" : "expected an id or a position";
    return NULL;
}

static void take(struct router *r, struct session *s, const struct control_request *request, enum what what)
{
    struct args args = {0};
    struct position position = {0};
    char why[CONTROL_WHY_SIZE], text[CONTROL_WHY_SIZE + 16];
    const char *wrong = take_args(request, what, &args, &position, why);

    if (wrong) {
        (void)snprintf(text, sizeof text, "args: %s", wrong);
        session_request_error(s, request->id, CONTROL_ERROR_INVALID, text);
        return;
    }
    if (is_busy(r, s, what)) {
        session_request_error(s, request->id, CONTROL_ERROR_LIMIT,
                              "a request before, or somebody's release or drop, has no answer yet; try again");
        return;
    }
    const size_t room = what == LIST || what == SHOW ? ANSWER_ROOM : 0;
    const char *whose = room ? clients_lack_room(r, s, room) : NULL;
    if (whose) {
        (void)snprintf(text, sizeof text, "too many answers to %s wait to be read", whose);
        session_request_error(s, request->id, CONTROL_ERROR_LIMIT, text);
        return;
    }
    struct quarantine_job *job = malloc(sizeof *job);
    if (!job) {
        session_close(s, "no memory");
        return;
    }
    *job = (struct quarantine_job){
        .router = r,
        .next = r->quarantine_jobs,
        .session = s->id,
        .request = request->id,
        .pid = s->pid,
        .uid = s->uid,
        .what = what,
        .room = room,
        .args = args,
        .position = position,
        .newest = quarantine_count(r->quarantine).newest,
        .quarantine = r->quarantine,
        .rules = check_rules_ref(checks_rules(r->checks)),
        .now_us = clock_realtime_us(),
    };
    job->args.position = (struct bytes){NULL, 0};
    job->work.data = job;
    r->quarantine_jobs = job;
    s->replies_due++;
    s->replies_room += room;
    start(job);
}

void quarantine_requests_list(struct router *r, struct session *s, const struct control_request *request)
{
    take(r, s, request, LIST);
}

void quarantine_requests_show(struct router *r, struct session *s, const struct control_request *request)
{
    take(r, s, request, SHOW);
}

void quarantine_requests_drop(struct router *r, struct session *s, const struct control_request *request)
{
    take(r, s, request, DROP);
}

void quarantine_requests_release(struct router *r, struct session *s, const struct control_request *request)
{
    take(r, s, request, RELEASE);
}
