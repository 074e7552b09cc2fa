/* SPDX-License-Identifier: PostgreSQL */
#include "heartbeat.h"

#include <errno.h>
#include <string.h>

#include <sodium.h>

#include "base/clock.h"
#include "builder.h"
#include "pg/emit.h"

#define CONTENT_SIZE 24 /* instance, number */
#define BYTEA_OID    17

/* The heartbeat's own commit must not hang on a synchronous standby that is away; the server shall give a query
 * up a little before we do (HEARTBEAT_QUERY_MS), and nothing else shall end the session. */
#define SETTINGS_SQL "SET synchronous_commit = local; SET statement_timeout = '10s'"
#define EMIT_SQL                                                                                   \
    "SELECT pg_catalog.pg_logical_emit_message(true, '" SUBJECT_HEARTBEAT_PREFIX "', $1)"

static void alarm_on(struct heartbeat *h, const char *what)
{
    if (h->alarmed)
        return;
    h->alarmed = true;
    log_line(h->log, LOG_WARNING, "heartbeat.failed",
             "The heartbeat does not work; without it an idle slot may keep WAL.",
             LOG_STR("at", what), LOG_STR("error", buf_str(&h->link.error)),
             LOG_STR("sqlstate", h->link.sqlstate));
}

static void alarm_off(struct heartbeat *h)
{
    if (!h->alarmed)
        return;
    h->alarmed = false;
    log_line(h->log, LOG_INFO, "heartbeat.works", "The heartbeat works again.");
}

static void heartbeat_on_timer(uv_timer_t *timer);

static uint64_t tick_ms(const struct heartbeat *h)
{
    return MIN((uint64_t)HEARTBEAT_RETRY_MS, h->interval_ns / 1000000);
}

/* What was to be published is over. */
static void publish_over(struct heartbeat *h, const char *error)
{
    heartbeat_published done = h->publish.done;

    h->publish.done = NULL;
    if (done)
        done(h->publish.context, error, h->publish.lsn);
}

static void publish_lost(struct heartbeat *h)
{
    publish_over(h, h->busy == HEARTBEAT_PUBLISHING
                        ? "the connection to the server was lost while it was published: look whether it came; it is still in quarantine"
                        : "the connection to the server was lost before it was published; try again");
}

static void heartbeat_drop(struct heartbeat *h, const char *what)
{
    bool told_to_go = strcmp(h->link.sqlstate, "57P01") == 0;

    h->ready = false;
    if (h->busy == HEARTBEAT_EMITTING)
        h->in_flight = false; /* it may have been committed or not */
    publish_lost(h);
    h->busy = HEARTBEAT_IDLE;
    pglink_close(&h->link);
    if (!told_to_go)
        alarm_on(h, what);
    else
        h->last_try = 0; /* shutdown, or one backend killed: a new connection tells, at once */
    if (h->running && told_to_go) {
        (void)uv_timer_stop(&h->timer);
        (void)uv_timer_start(&h->timer, heartbeat_on_timer, 0, tick_ms(h));
    }
}

static const char *const doing[] = {
    [HEARTBEAT_IDLE] = "idle",
    [HEARTBEAT_SETTING] = "settings",
    [HEARTBEAT_EMITTING] = "emit",
    [HEARTBEAT_LOOKING] = "look-up",
    [HEARTBEAT_PUBLISHING] = "publish",
};

static void send_query(struct heartbeat *h, int sent, const char *what)
{
    h->busy_since = clock_monotonic_ns();
    if (!sent) {
        pglink_note_error(&h->link, NULL);
        heartbeat_drop(h, what);
    } else if (pglink_flush(&h->link) < 0) {
        heartbeat_drop(h, what);
    }
}

static void emit(struct heartbeat *h, uint64_t now)
{
    uint8_t content[CONTENT_SIZE];
    const char *values[1] = {(const char *)content};
    const int lengths[1] = {sizeof content}, formats[1] = {1};
    const Oid types[1] = {BYTEA_OID};

    memcpy(content, h->instance, sizeof h->instance);
    bytes_put_u64(content + sizeof h->instance, ++h->number);
    h->busy = HEARTBEAT_EMITTING;
    h->emit_now = false;
    h->in_flight = true;
    h->last_emit = now;
    send_query(h, PQsendQueryParams(h->link.conn, EMIT_SQL, 1, types, values, lengths, formats, 1),
               "emit");
}

static void look_up(struct heartbeat *h, uint64_t now)
{
    struct buf sql = BUF_INIT;

    h->busy = HEARTBEAT_LOOKING;
    h->lookup_now = false;
    h->last_lookup = now;
    if (precondition_query(h->link.conn, h->slot, h->publication, &sql) < 0)
        h->busy = HEARTBEAT_IDLE;
    else
        send_query(h, PQsendQuery(h->link.conn, buf_str(&sql)), "look-up");
    buf_deinit(&sql);
}

static void publish(struct heartbeat *h)
{
    struct emit_statement statement;

    h->busy = HEARTBEAT_PUBLISHING;
    h->publish.read = false;
    h->publish.lsn = 0;
    buf_clear(&h->publish.error);
    /* its size was looked at before */
    int r = emit_one(&statement, PQserverVersion(h->link.conn), true, h->publish.prefix, h->publish.content);
    send_query(h, r == 0 && emit_send(h->link.conn, &statement), "publish");
}

/* The server's answer; an error of the statement ends nothing else. */
static void publish_result(struct heartbeat *h, const PGresult *result)
{
    if (emit_read(result, &h->publish.lsn, 1) == 0) {
        h->publish.read = true;
        return;
    }
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    buf_printf(&h->publish.error, "the server refuses to publish it: %s", text ? text : "its answer is not as expected");
}

/* Does what is due, one query at a time. */
static void heartbeat_work(struct heartbeat *h)
{
    uint64_t now = clock_monotonic_ns();
    uint64_t quiet_since = h->last_commit > h->last_emit ? h->last_commit : h->last_emit;

    if (!h->running || !h->ready || h->busy != HEARTBEAT_IDLE)
        return;
    if (h->in_flight && !h->missing && !h->held &&
        now - quiet_since >= HEARTBEAT_MISSING_INTERVALS * h->interval_ns) {
        h->missing = true;
        log_line(h->log, LOG_WARNING, "heartbeat.missing",
                 "A heartbeat was committed and does not come back through the slot.",
                 LOG_STR("slot", h->slot), LOG_U64("seconds", (now - h->last_emit) / 1000000000));
    }
    if (h->lookup_now) /* somebody waits for it */
        look_up(h, now);
    else if (h->publish.done)
        publish(h);
    else if (h->emit_now || (!h->in_flight && now - quiet_since >= h->interval_ns))
        emit(h, now);
    else if (now - h->last_lookup >= HEARTBEAT_LOOKUP_MS * UINT64_C(1000000))
        look_up(h, now);
}

static void heartbeat_on_timer(uv_timer_t *timer)
{
    struct heartbeat *h = timer->data;

    if (h->link.state == PGLINK_CLOSED) {
        uint64_t now = clock_monotonic_ns();

        if (h->last_try && now - h->last_try < HEARTBEAT_RETRY_MS * UINT64_C(1000000))
            return;
        h->last_try = now;
        const struct connect_options options = {
            .dsn = h->dsn,
            .application_name = "walbusd heartbeat",
            .client_encoding = "SQL_ASCII",
            .place = &h->place,
        };
        pglink_connect(&h->link, &options);
        return;
    }
    if (h->busy != HEARTBEAT_IDLE &&
        clock_monotonic_ns() - h->busy_since >= HEARTBEAT_QUERY_MS * UINT64_C(1000000)) {
        buf_clear(&h->link.error);
        buf_append_str(&h->link.error, "the server does not answer");
        h->link.sqlstate[0] = 0;
        heartbeat_drop(h, doing[h->busy]);
        return;
    }
    heartbeat_work(h);
}

static void on_opened(void *owner)
{
    struct heartbeat *h = owner;

    struct buf sql = BUF_INIT;

    h->busy = HEARTBEAT_SETTING;
    sql_put_patience(&sql, PQserverVersion(h->link.conn), false);
    buf_append_str(&sql, SETTINGS_SQL);
    send_query(h, PQsendQuery(h->link.conn, buf_str(&sql)), "settings");
    buf_deinit(&sql);
}

static void on_failed(void *owner)
{
    struct heartbeat *h = owner;

    /* 57P03 while the stream runs: not starting up, so shutting down */
    if (strcmp(h->link.sqlstate, "57P03") == 0) {
        if (!h->stopping_told) {
            h->stopping_told = true;
            h->ops->server_stopping(h->owner);
        }
        return;
    }
    alarm_on(h, "connect");
}

/* 0, or -EIO: the query failed, see the link's error. */
static int take_result(struct heartbeat *h, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);

    if (h->busy == HEARTBEAT_PUBLISHING) {
        publish_result(h, result);
        return 0;
    }
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
        pglink_note_error(&h->link, result);
        return -EIO;
    }
    if (h->busy == HEARTBEAT_LOOKING) {
        struct server_facts facts;

        if (precondition_read(h->link.conn, result, &facts) == 0)
            h->ops->facts(h->owner, &facts);
    }
    return 0;
}

static void on_readable(void *owner)
{
    struct heartbeat *h = owner;
    if (!PQconsumeInput(h->link.conn)) {
        /* a FATAL notice may have told why already; the broken socket says less */
        if (!h->link.sqlstate[0])
            pglink_note_error(&h->link, NULL);
        heartbeat_drop(h, doing[h->busy]);
        return;
    }
    while (h->busy != HEARTBEAT_IDLE && !PQisBusy(h->link.conn)) {
        PGresult *result = PQgetResult(h->link.conn);

        if (!result) {
            if (h->busy == HEARTBEAT_SETTING)
                h->ready = true;
            else if (h->busy == HEARTBEAT_EMITTING)
                alarm_off(h);
            bool published = h->busy == HEARTBEAT_PUBLISHING;
            h->busy = HEARTBEAT_IDLE;
            if (published)
                publish_over(h, h->publish.read ? NULL : buf_str(&h->publish.error));
            break;
        }
        int r = take_result(h, result);
        PQclear(result);
        if (r < 0) {
            heartbeat_drop(h, doing[h->busy]);
            return;
        }
        if (!h->running) /* facts may have ended the stream */
            return;
    }
    /* PQisBusy also parses what comes unasked: the FATAL notice that ends an idle session */
    if (h->busy == HEARTBEAT_IDLE && !PQisBusy(h->link.conn) && h->link.sqlstate[0]) {
        heartbeat_drop(h, "idle");
        return;
    }
    heartbeat_work(h);
}

static const struct pglink_ops link_ops = {
    .opened = on_opened, .failed = on_failed, .readable = on_readable};

int heartbeat_init(struct heartbeat *h, uv_loop_t *loop, const char *dsn, const char *slot,
                   const char *publication, uint64_t interval_ns, const struct heartbeat_ops *ops,
                   void *owner, struct logger *log)
{
    *h = (struct heartbeat){
        .ops = ops,
        .owner = owner,
        .log = log,
        .dsn = dsn,
        .slot = slot,
        .publication = publication,
        .interval_ns = interval_ns,
    };
    randombytes_buf(h->instance, sizeof h->instance);
    pglink_init(&h->link, loop, &link_ops, h);
    h->timer.data = h;
    return uv_timer_init(loop, &h->timer);
}

void heartbeat_start(struct heartbeat *h, const struct connect_place *place)
{
    h->place = *place;
    h->running = true;
    h->emit_now = true;
    h->in_flight = false;
    h->lookup_now = true;
    h->last_lookup = clock_monotonic_ns();
    h->stopping_told = false;
    h->last_try = 0;
    (void)uv_timer_start(&h->timer, heartbeat_on_timer, 0, tick_ms(h));
}

void heartbeat_stop(struct heartbeat *h)
{
    h->running = false;
    h->ready = false;
    publish_lost(h);
    h->busy = HEARTBEAT_IDLE;
    (void)uv_timer_stop(&h->timer);
    pglink_close(&h->link);
}

/* From the loop, and not from within who asks. */
static void heartbeat_soon(struct heartbeat *h)
{
    (void)uv_timer_stop(&h->timer);
    (void)uv_timer_start(&h->timer, heartbeat_on_timer, 0, tick_ms(h));
}

void heartbeat_look_up(struct heartbeat *h)
{
    h->lookup_now = true;
    heartbeat_work(h);
}

int heartbeat_publish(struct heartbeat *h, struct bytes prefix, struct bytes content, heartbeat_published done,
                      void *context)
{
    struct emit_statement statement;

    if (h->publish.done)
        return -EBUSY;
    if (!h->running || !h->ready)
        return -ENOTCONN;
    int r = emit_one(&statement, PQserverVersion(h->link.conn), true, prefix, content);
    if (r < 0)
        return r;
    h->publish.done = done;
    h->publish.context = context;
    h->publish.prefix = prefix;
    h->publish.content = content;
    heartbeat_soon(h);
    return 0;
}

void heartbeat_close(struct heartbeat *h)
{
    heartbeat_stop(h);
    buf_deinit(&h->publish.error);
    pglink_deinit(&h->link);
    uv_close((uv_handle_t *)&h->timer, NULL);
}

void heartbeat_commit_received(struct heartbeat *h, uint64_t now)
{
    h->last_commit = now;
}

void heartbeat_received(struct heartbeat *h, struct bytes content, uint64_t now)
{
    if (content.size != CONTENT_SIZE ||
        memcmp(content.data, h->instance, sizeof h->instance) != 0)
        return;
    h->received_at = now;
    if (bytes_get_u64(content.data + sizeof h->instance) != h->number)
        return; /* one of before a reconnect, which came again */
    h->in_flight = false;
    if (h->missing) {
        h->missing = false;
        log_line(h->log, LOG_INFO, "heartbeat.back", "Heartbeats come back again.");
    }
}

int64_t heartbeat_age_ms(const struct heartbeat *h, uint64_t now)
{
    return h->received_at ? (int64_t)((now - h->received_at) / 1000000) : -1;
}
