/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/publish.h"

#include <errno.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "client/event_content.h"
#include "client/known_struct.h"
#include "client/pg_state.h"
#include "codec/event.h"
#include "codec/signed_event.h"
#include "codec/subject.h"
#include "codec/trust.h"
#include "keys/key_file.h"
#include "pg/connect.h"
#include "pg/emit.h"

#define MAX_PREFIX_MAX ((size_t)1024 * 1024)
#define KNOWN_FLAGS    (WALBUS_NON_TRANSACTIONAL | WALBUS_REQUIRE_TRANSACTION | WALBUS_ALLOW_RESERVED)
/* Each event takes at least two heads of array elements; more cannot fit whatever they hold. */
#define EVENTS_MAX (EMIT_STATEMENT_MAX / 8)

struct walbus_publisher {
    char *source;
    size_t max_prefix, max_content;
    struct signing_key *key; /* NULL: events are unsigned */
    char *audience;          /* with `key` */
    enum walbus_result result; /* of the last call */
    struct buf why;            /* why it failed */
    char sqlstate[PG_SQLSTATE_SIZE];
};

/* ---- the publisher ---- */

enum walbus_result walbus_publisher_new(const struct walbus_publisher_options *options,
                                        struct walbus_publisher **ret)
{
    if (!options || !ret || !struct_is_known(options, options->size, sizeof *options) ||
        !options->source)
        return WALBUS_BAD_ARGUMENT;
    struct bytes source = bytes_of_text(options->source);
    if (source.size == 0 || !text_is_utf8(source) || options->max_prefix > MAX_PREFIX_MAX ||
        options->max_content > WALBUS_LARGEST_CONTENT)
        return WALBUS_BAD_ARGUMENT;

    struct walbus_publisher *p = calloc(1, sizeof *p);
    if (!p)
        return WALBUS_NO_MEMORY;
    p->source = strdup(options->source);
    p->max_prefix = options->max_prefix ? options->max_prefix : WALBUS_MAX_PREFIX;
    p->max_content = options->max_content ? options->max_content : WALBUS_MAX_CONTENT;
    if (!p->source) {
        walbus_publisher_free(p);
        return WALBUS_NO_MEMORY;
    }
    *ret = p;
    return WALBUS_OK;
}

struct walbus_publisher *walbus_publisher_free(struct walbus_publisher *p)
{
    if (p) {
        buf_deinit(&p->why);
        (void)signing_key_free(p->key);
        free(p->audience);
        free(p->source);
        free(p);
    }
    return NULL;
}

const char *walbus_publisher_error(const struct walbus_publisher *p)
{
    if (p->result == WALBUS_OK)
        return "";
    return p->why.size > 0 ? (const char *)p->why.data : walbus_result_text(p->result);
}

const char *walbus_publisher_sqlstate(const struct walbus_publisher *p)
{
    return p->sqlstate;
}

/** Begins a call: nothing has failed yet. */
static void begin(struct walbus_publisher *p)
{
    p->result = WALBUS_OK;
    p->sqlstate[0] = '\0';
    buf_clear(&p->why);
}

/** Ends a call; the text in `why`, if any, becomes a C string. */
static enum walbus_result finish(struct walbus_publisher *p, enum walbus_result result)
{
    if (p->why.size > 0)
        (void)buf_str(&p->why);
    p->result = result;
    return result;
}

static enum walbus_result fail(struct walbus_publisher *p, enum walbus_result result,
                               const char *sentence)
{
    buf_append_str(&p->why, sentence);
    return result;
}

/* ---- the key ---- */

static enum walbus_result read_key(struct walbus_publisher *p, const char *path,
                                   struct signing_key **ret)
{
    char why[KEY_FILE_WHY_SIZE];
    int r = key_file_read_private(path, ret, why);

    if (r == 0)
        return WALBUS_OK;
    return fail(p, r == -ENOMEM ? WALBUS_NO_MEMORY : WALBUS_BAD_KEY, why);
}

enum walbus_result walbus_publisher_set_key(struct walbus_publisher *p, const char *path,
                                            const char *audience)
{
    struct signing_key *key = NULL;

    if (!p)
        return WALBUS_BAD_ARGUMENT;
    begin(p);
    const char *fault = trust_audience_fault(bytes_of_text(audience));
    if (fault) {
        buf_printf(&p->why, "The audience %s.", fault);
        return finish(p, WALBUS_BAD_ARGUMENT);
    }
    char *copy = strdup(audience ? audience : "");
    enum walbus_result result = !copy  ? WALBUS_NO_MEMORY
                                : path ? read_key(p, path, &key)
                                       : WALBUS_OK;
    if (result == WALBUS_OK) {
        (void)signing_key_free(p->key);
        free(p->audience);
        p->key = key;
        p->audience = copy;
    } else {
        free(copy);
    }
    return finish(p, result);
}

/* ---- what can be refused before anything is sent ---- */

static enum walbus_result check_flags(struct walbus_publisher *p, unsigned flags)
{
    if (flags & ~KNOWN_FLAGS)
        return fail(p, WALBUS_BAD_ARGUMENT, "A flag is not known.");
    if ((flags & WALBUS_NON_TRANSACTIONAL) && (flags & WALBUS_REQUIRE_TRANSACTION))
        return fail(p, WALBUS_BAD_ARGUMENT,
                    "WALBUS_NON_TRANSACTIONAL and WALBUS_REQUIRE_TRANSACTION exclude each other.");
    return WALBUS_OK;
}

static enum walbus_result check_prefix(struct walbus_publisher *p, const char *prefix,
                                       unsigned flags)
{
    size_t offset = 0;

    if (!prefix)
        return fail(p, WALBUS_BAD_ARGUMENT, "The prefix is NULL.");
    struct bytes text = bytes_of_text(prefix);
    enum subject_fault fault =
        subject_check_publish(text, p->max_prefix, flags & WALBUS_ALLOW_RESERVED, &offset);
    if (fault == SUBJECT_OK)
        return WALBUS_OK;
    buf_append_str(&p->why, "The prefix ");
    if (fault == SUBJECT_TOO_LONG) {
        buf_printf(&p->why, "has %zu bytes; it may have %zu.", text.size, p->max_prefix);
    } else {
        buf_append_str(&p->why, "\"");
        text_put_visible(&p->why, text);
        buf_printf(&p->why, "\" may not be published: %s (byte %zu).", subject_fault_text(fault),
                   offset);
    }
    return WALBUS_BAD_PREFIX;
}

static enum walbus_result check_content(struct walbus_publisher *p, size_t size)
{
    if (size <= p->max_content)
        return WALBUS_OK;
    buf_printf(&p->why, "The content has %zu bytes; it may have %zu.", size, p->max_content);
    return WALBUS_TOO_LARGE;
}

static enum walbus_result check_call(struct walbus_publisher *p, const struct pg_conn *conn,
                                     unsigned flags, bool waits)
{
    if (!conn)
        return fail(p, WALBUS_BAD_ARGUMENT, "The connection is NULL.");
    enum walbus_result result = check_flags(p, flags);
    return result == WALBUS_OK ? pg_state_check(conn, flags & WALBUS_REQUIRE_TRANSACTION, waits)
                               : result;
}

/* ---- from events to a statement ---- */

/** Events on their way, with all memory that the answer will need. */
struct outgoing {
    struct emit_batch batch;
    struct emit_statement statement;
    struct walbus_receipt *receipts; /* NULL: not asked for */
    uint64_t *lsns;                  /* NULL: not asked for */
    struct buf plain, room;          /* of the event that is being signed */
};

static void outgoing_deinit(struct outgoing *out)
{
    emit_batch_deinit(&out->batch);
    free(out->receipts);
    free(out->lsns);
    buf_deinit(&out->plain);
    buf_deinit(&out->room);
}

/** Appends the event's content to `content`, signed if there is a key. */
static enum walbus_result put_content(struct walbus_publisher *p, struct outgoing *out,
                                      const struct walbus_event *event, int64_t now_us,
                                      struct buf *content, char id[WALBUS_ID_SIZE])
{
    const struct event_defaults defaults = {p->source, now_us, p->max_content};
    const struct signed_event_scope scope = {bytes_of_text(event->prefix),
                                             bytes_of_text(p->audience)};
    struct bytes signed_event;

    if (!p->key)
        return event_content_put(event, &defaults, content, id, &p->why);
    buf_clear(&out->plain);
    enum walbus_result result = event_content_put(event, &defaults, &out->plain, id, &p->why);
    if (result != WALBUS_OK)
        return result;
    struct bytes map = {out->plain.data + EVENT_TAG_SIZE, out->plain.size - EVENT_TAG_SIZE};
    /* Prefix and audience have been checked, so there is but one way to fail. */
    if (signed_event_sign(map, &scope, &p->key->key, p->key->secret, &out->room, &signed_event) < 0)
        return WALBUS_NO_MEMORY;
    buf_append(content, signed_event.data, signed_event.size);
    return WALBUS_OK;
}

static enum walbus_result add_event(struct walbus_publisher *p, struct outgoing *out,
                                    const struct walbus_event *event, size_t i, unsigned flags,
                                    int64_t now_us)
{
    char id[WALBUS_ID_SIZE];

    if (!struct_is_known(event, event->size, sizeof *event))
        return fail(p, WALBUS_BAD_ARGUMENT,
                    "The size of the event is too small, or it has members of a later version.");
    enum walbus_result result = check_prefix(p, event->prefix, flags);
    if (result != WALBUS_OK)
        return result;

    struct bytes prefix = bytes_of_text(event->prefix);
    struct buf *content = emit_batch_begin(&out->batch, prefix);
    size_t before = content->size;
    result = put_content(p, out, event, now_us, content, id);
    if (result == WALBUS_OK)
        result = check_content(p, content->size - before);
    if (result != WALBUS_OK)
        return result;
    if (out->receipts)
        memcpy(out->receipts[i].id, id, sizeof id);

    switch (emit_batch_end(&out->batch)) {
    case 0:
        return WALBUS_OK;
    case -ENOMEM:
        return WALBUS_NO_MEMORY;
    default:
        return WALBUS_BATCH_TOO_LARGE;
    }
}

static enum walbus_result add_events(struct walbus_publisher *p, struct outgoing *out,
                                     const struct walbus_event *events, size_t n, unsigned flags)
{
    int64_t now_us = clock_realtime_us();

    for (size_t i = 0; i < n; i++) {
        /* The distance between two is the caller's size, which may be a later version's. */
        const struct walbus_event *event =
            (const struct walbus_event *)(const void *)((const char *)events + i * events->size);
        struct buf why = BUF_INIT;
        enum walbus_result result =
            event->size == events->size
                ? add_event(p, out, event, i, flags, now_us)
                : fail(p, WALBUS_BAD_ARGUMENT, "Its size differs from the first one's.");

        if (result != WALBUS_OK && n > 1 && p->why.size > 0) {
            buf_printf(&why, "Event %zu of %zu: ", i + 1, n);
            buf_append(&why, p->why.data, p->why.size);
            buf_deinit(&p->why);
            p->why = why;
        }
        if (result != WALBUS_OK)
            return result;
    }
    return WALBUS_OK;
}

/** Makes everything ready to be sent. `out` is to be deinited whatever the result. */
static enum walbus_result outgoing_init(struct walbus_publisher *p, struct outgoing *out,
                                        struct pg_conn *conn, const struct walbus_event *events,
                                        size_t n, unsigned flags, bool receipts)
{
    *out = (struct outgoing){0};
    emit_batch_init(&out->batch);
    if (n > EVENTS_MAX)
        return WALBUS_BATCH_TOO_LARGE;
    if (receipts) {
        out->receipts = calloc(n, sizeof *out->receipts);
        out->lsns = calloc(n, sizeof *out->lsns);
        if (!out->receipts || !out->lsns)
            return WALBUS_NO_MEMORY;
    }
    enum walbus_result result = add_events(p, out, events, n, flags);
    if (result != WALBUS_OK)
        return result;
    switch (emit_many(&out->statement, PQserverVersion(conn), !(flags & WALBUS_NON_TRANSACTIONAL),
                      &out->batch)) {
    case 0:
        return WALBUS_OK;
    case -ENOMEM:
        return WALBUS_NO_MEMORY;
    default:
        return WALBUS_BATCH_TOO_LARGE;
    }
}

/* ---- the server's answer ---- */

/** What became of a statement; conn is NULL where only its result is known. */
static enum walbus_result read_result(struct walbus_publisher *p, const struct pg_conn *conn,
                                      const struct pg_result *result, uint64_t *lsns, size_t n)
{
    if (result && PQresultStatus(result) == PGRES_TUPLES_OK)
        return emit_read(result, lsns, n) == 0 ? WALBUS_OK : WALBUS_BAD_RESULT;
    enum walbus_result failure = pg_state_error(conn, result, &p->why, p->sqlstate);
    return failure == WALBUS_SERVER && strcmp(p->sqlstate, "42501") == 0 ? WALBUS_NOT_PERMITTED
                                                                         : failure;
}

static enum walbus_result execute(struct walbus_publisher *p, struct pg_conn *conn,
                                  const struct emit_statement *statement, uint64_t *lsns, size_t n)
{
    struct pg_result *answer = emit_exec(conn, statement);
    enum walbus_result result = read_result(p, conn, answer, lsns, n);

    PQclear(answer);
    return result;
}

static enum walbus_result send_only(struct walbus_publisher *p, struct pg_conn *conn,
                                    const struct emit_statement *statement)
{
    if (emit_send(conn, statement))
        return WALBUS_OK;
    return read_result(p, conn, NULL, NULL, 0);
}

/* ---- publishing ---- */

enum walbus_result walbus_publish_many(struct walbus_publisher *p, struct pg_conn *conn,
                                       const struct walbus_event *events, size_t n, unsigned flags,
                                       struct walbus_receipt *ret)
{
    struct outgoing out;

    if (!p)
        return WALBUS_BAD_ARGUMENT;
    begin(p);
    if (!events && n > 0)
        return finish(p, fail(p, WALBUS_BAD_ARGUMENT, "The events are NULL."));
    enum walbus_result result = check_call(p, conn, flags, true);
    if (result != WALBUS_OK || n == 0)
        return finish(p, result);

    result = outgoing_init(p, &out, conn, events, n, flags, ret != NULL);
    if (result == WALBUS_OK)
        result = execute(p, conn, &out.statement, out.lsns, n);
    for (size_t i = 0; ret && result == WALBUS_OK && i < n; i++) {
        ret[i] = out.receipts[i];
        ret[i].lsn = out.lsns[i];
    }
    outgoing_deinit(&out);
    return finish(p, result);
}

enum walbus_result walbus_publish(struct walbus_publisher *p, struct pg_conn *conn,
                                  const struct walbus_event *event, unsigned flags,
                                  struct walbus_receipt *ret)
{
    return walbus_publish_many(p, conn, event, 1, flags, ret);
}

enum walbus_result walbus_publish_send(struct walbus_publisher *p, struct pg_conn *conn,
                                       const struct walbus_event *events, size_t n, unsigned flags,
                                       struct walbus_receipt *ids)
{
    struct outgoing out;

    if (!p)
        return WALBUS_BAD_ARGUMENT;
    begin(p);
    if (!events || n == 0)
        return finish(p, fail(p, WALBUS_BAD_ARGUMENT, "There are no events."));
    enum walbus_result result = check_call(p, conn, flags, false);
    if (result != WALBUS_OK)
        return finish(p, result);

    result = outgoing_init(p, &out, conn, events, n, flags, ids != NULL);
    if (result == WALBUS_OK)
        result = send_only(p, conn, &out.statement);
    if (ids && result == WALBUS_OK)
        memcpy(ids, out.receipts, n * sizeof *ids);
    outgoing_deinit(&out);
    return finish(p, result);
}

/** A raw content as a statement, which borrows both. */
static enum walbus_result raw_statement(struct walbus_publisher *p, struct pg_conn *conn,
                                        const char *prefix, const void *content, size_t size,
                                        unsigned flags, bool waits, struct emit_statement *ret)
{
    if (!content && size > 0)
        return fail(p, WALBUS_BAD_ARGUMENT, "The content is NULL, but its size is not 0.");
    enum walbus_result result = check_call(p, conn, flags, waits);
    if (result == WALBUS_OK)
        result = check_prefix(p, prefix, flags);
    if (result == WALBUS_OK)
        result = check_content(p, size);
    if (result != WALBUS_OK)
        return result;
    int rc = emit_one(ret, PQserverVersion(conn), !(flags & WALBUS_NON_TRANSACTIONAL),
                      bytes_of_text(prefix), (struct bytes){content, size});
    return rc < 0 ? WALBUS_BATCH_TOO_LARGE : WALBUS_OK;
}

enum walbus_result walbus_publish_raw(struct walbus_publisher *p, struct pg_conn *conn,
                                      const char *prefix, const void *content, size_t size,
                                      unsigned flags, uint64_t *ret_lsn)
{
    struct emit_statement statement;

    if (!p)
        return WALBUS_BAD_ARGUMENT;
    begin(p);
    enum walbus_result result =
        raw_statement(p, conn, prefix, content, size, flags, true, &statement);
    if (result == WALBUS_OK)
        result = execute(p, conn, &statement, ret_lsn, 1);
    return finish(p, result);
}

enum walbus_result walbus_publish_send_raw(struct walbus_publisher *p, struct pg_conn *conn,
                                           const char *prefix, const void *content, size_t size,
                                           unsigned flags)
{
    struct emit_statement statement;

    if (!p)
        return WALBUS_BAD_ARGUMENT;
    begin(p);
    enum walbus_result result =
        raw_statement(p, conn, prefix, content, size, flags, false, &statement);
    if (result == WALBUS_OK)
        result = send_only(p, conn, &statement);
    return finish(p, result);
}

enum walbus_result walbus_publish_read(struct walbus_publisher *p, const struct pg_result *result,
                                       uint64_t *ret_lsns, size_t n)
{
    if (!p)
        return WALBUS_BAD_ARGUMENT;
    begin(p);
    if (!result || n == 0)
        return finish(p, fail(p, WALBUS_BAD_ARGUMENT, "There is no result."));
    return finish(p, read_result(p, NULL, result, ret_lsns, n));
}
