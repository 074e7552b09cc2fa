/* SPDX-License-Identifier: PostgreSQL */
/*
 * A durable subscriber whose effects are rows of a database, each once: the loop that
 * walbus/exactly_once.h describes. Run by test_schedules.py, which kills it, its router and its database.
 *
 *   apply_once SOCKET DSN NAME BATCH PAUSE TAKE-OVER KIND:TEXT …
 *
 * BATCH deliveries share a transaction, or fewer when no more are there; -BATCH: never fewer, but at the end. Before one in
 * four COMMITs it sleeps up to PAUSE ms, so that it is killed between its effects and their COMMIT too. TAKE-OVER is 0 or 1. A filter's kind is
 * its number.
 *
 * SIGTERM: commits what it has, acknowledges it and ends with 0. Exit 3: another holder took over, or is ahead. 4:
 * the position that is kept belongs to another journal. 1: anything else; why is on stderr.
 */
#include <libpq-fe.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <walbus/walbus.h>

#define EXIT_OVERTAKEN 3
#define EXIT_LOST      4
#define FILTERS_MAX    16
/* How often SIGTERM is looked for. */
#define WAIT_MS 200

static volatile sig_atomic_t over;

static void on_signal(int sig)
{
    (void)sig;
    over = 1;
}

static void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

    (void)nanosleep(&t, NULL);
}

struct applier {
    const char *dsn;
    int batch;
    bool whole; /* waits for all of it */
    long pause_ms;
    struct walbus_subscription_options options;
    PGconn *conn;
    struct walbus_position_store *store;
    struct walbus_subscription *sub;
    int pending; /* deliveries in the open transaction; 0: none is open */
    struct walbus_position last;
};

/* False: it failed, and its transaction with it. An error that is not the connection's ends the program: the rows
 * that are written here give no other. */
static bool succeeded(struct applier *a, PGresult *result, const char *what)
{
    ExecStatusType status = PQresultStatus(result);
    bool ok = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    /* 57P0x: the server stops, or is starting. */
    if (!ok && state != NULL && strncmp(state, "57P", 3) != 0)
        die(what, PQerrorMessage(a->conn));
    if (ok && strcmp(what, "COMMIT") == 0 && strcmp(PQcmdStatus(result), "COMMIT") != 0)
        ok = false;
    PQclear(result);
    return ok;
}

static bool command(struct applier *a, const char *sql)
{
    return succeeded(a, PQexec(a->conn, sql), sql);
}

static void format_position(struct walbus_position p, char out[64])
{
    (void)snprintf(out, 64, "%u:%X/%X:%u", (unsigned)p.timeline, (unsigned)(p.lsn >> 32),
                   (unsigned)p.lsn, (unsigned)p.index);
}

/* A row of the effects: what came, and where. */
static bool apply(struct applier *a, const struct walbus_delivery *d)
{
    size_t prefix_size, content_size;
    const char *prefix = walbus_delivery_prefix(d, &prefix_size);
    const char *content = walbus_delivery_content(d, &content_size);
    char position[64];
    const char *identity = walbus_subscription_identity(a->sub);
    const char *values[] = {prefix, content, identity, position};
    int sizes[] = {(int)prefix_size, (int)content_size, 0, 0};
    int formats[] = {1, 1, 0, 0};

    format_position(walbus_delivery_position(d), position);
    return succeeded(
        a,
        PQexecParams(a->conn,
                     "INSERT INTO effects (prefix, id, size, md5, identity, position) "
                     "VALUES ($1::bytea, split_part(convert_from(substr($2::bytea, 1, 100), "
                     "'LATIN1'), ' ', 1), length($2::bytea), md5($2::bytea), $3, $4)",
                     4, NULL, values, sizes, formats, 0),
        "INSERT");
}

static bool note_gap(struct applier *a, const struct walbus_delivery *d)
{
    const char *values[] = {walbus_subscription_identity(a->sub), walbus_delivery_reason(d)};

    return succeeded(a,
                     PQexecParams(a->conn, "INSERT INTO gaps (identity, reason) VALUES ($1, $2)", 2,
                                  NULL, values, NULL, NULL, 0),
                     "INSERT of a gap");
}

static bool lost_database(enum walbus_result result)
{
    return result == WALBUS_CONNECTION_LOST || result == WALBUS_NOT_CONNECTED ||
           result == WALBUS_FAILED_TRANSACTION;
}

/* False: begin anew. */
static bool commit(struct applier *a)
{
    if (a->pending == 0)
        return true;
    a->pending = 0;
    enum walbus_result result = walbus_position_store_save(
        a->store, a->conn, walbus_subscription_identity(a->sub), a->last);
    if (result == WALBUS_CONFLICT)
        exit(EXIT_OVERTAKEN);
    if (result != WALBUS_OK) {
        const char *state = walbus_position_store_sqlstate(a->store);

        if (!lost_database(result) && strncmp(state, "57P", 3) != 0)
            die("save", walbus_position_store_error(a->store));
        return false;
    }
    if (a->pause_ms > 0 && rand() % 4 == 0)
        sleep_ms(rand() % a->pause_ms);
    if (!command(a, "COMMIT"))
        return false;
    if (walbus_subscription_ack(a->sub, a->last, 0) != WALBUS_OK)
        die("ack", walbus_subscription_error(a->sub));
    return true;
}

/* One delivery into the open transaction, and its end when it is full. False: begin anew. */
static bool take(struct applier *a, const struct walbus_delivery *d)
{
    enum walbus_delivery_kind kind = walbus_delivery_kind(d);
    bool ok = true;

    if (kind != WALBUS_DELIVERY_MESSAGE && kind != WALBUS_DELIVERY_COMMIT &&
        kind != WALBUS_DELIVERY_PROGRESS && kind != WALBUS_DELIVERY_GAP)
        return true;
    if (a->pending == 0 && !command(a, "BEGIN"))
        return false;
    a->pending++;
    a->last = walbus_delivery_position(d);
    if (kind == WALBUS_DELIVERY_MESSAGE)
        ok = apply(a, d);
    else if (kind == WALBUS_DELIVERY_GAP)
        ok = note_gap(a, d);
    return ok && (a->pending < a->batch || commit(a));
}

static void connect_database(struct applier *a)
{
    while (!over) {
        if (a->conn == NULL)
            a->conn = PQconnectdb(a->dsn);
        else
            PQreset(a->conn);
        if (PQstatus(a->conn) == CONNECTION_OK)
            return;
        sleep_ms(50);
    }
    exit(0);
}

/* From what the database says until something breaks, or the end. */
static void follow(struct applier *a)
{
    enum walbus_result result = walbus_position_store_create_table(a->store, a->conn);

    if (result == WALBUS_OK)
        result = walbus_position_store_load(a->store, a->conn, &a->options);
    if (result != WALBUS_OK) {
        if (!lost_database(result) &&
            strncmp(walbus_position_store_sqlstate(a->store), "57P", 3) != 0)
            die("load", walbus_position_store_error(a->store));
        return;
    }
    result = walbus_subscription_open(&a->options, &a->sub);
    if (result != WALBUS_OK)
        die("open", walbus_result_text(result));
    a->pending = 0;
    while (!over) {
        const struct walbus_delivery *d;

        result = walbus_subscription_next(a->sub, a->pending > 0 && !a->whole ? 0 : WAIT_MS, &d);
        if (result == WALBUS_TIMEOUT || result == WALBUS_INTERRUPTED) {
            if (!a->whole && !commit(a))
                return;
        } else if (result != WALBUS_OK) {
            const char *code = walbus_subscription_error_code(a->sub);

            (void)fprintf(stderr, "next: %s: %s (%s)\n", walbus_result_text(result),
                          walbus_subscription_error(a->sub), code);
            if (result == WALBUS_POSITION_LOST)
                exit(EXIT_LOST);
            exit(strcmp(code, "taken-over") == 0 ? EXIT_OVERTAKEN : 1);
        } else {
            /* A place that was taken over counts once: connecting again must not take it back. */
            if (walbus_delivery_kind(d) == WALBUS_DELIVERY_READY)
                a->options.flags &= ~WALBUS_TAKE_OVER;
            if (!take(a, d))
                return;
        }
    }
    if (!commit(a))
        return;
    for (int i = 0; i < 100 && walbus_subscription_flush(a->sub) == WALBUS_AGAIN; i++)
        sleep_ms(20);
    exit(0);
}

int main(int argc, char **argv)
{
    struct applier a = {0};
    struct walbus_filter filters[FILTERS_MAX];
    struct sigaction action = {.sa_handler = on_signal};

    if (argc < 8 || argc - 7 > FILTERS_MAX)
        die("usage", "apply_once SOCKET DSN NAME BATCH PAUSE TAKE-OVER KIND:TEXT …");
    (void)sigaction(SIGTERM, &action, NULL);
    a.dsn = argv[2];
    a.batch = abs(atoi(argv[4]));
    a.whole = argv[4][0] == '-';
    a.pause_ms = atol(argv[5]);
    srand((unsigned)time(NULL));
    struct walbus_subscription_options preset = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    a.options = preset;
    a.options.socket = argv[1];
    a.options.client = "apply_once";
    a.options.flags = WALBUS_WAIT_FOR_ROUTER | (strcmp(argv[6], "1") == 0 ? WALBUS_TAKE_OVER : 0);
    for (int i = 7; i < argc; i++)
        filters[i - 7] = (struct walbus_filter){(enum walbus_filter_kind)(argv[i][0] - '0'),
                                                argv[i] + 2, strlen(argv[i] + 2)};
    a.options.filters = filters;
    a.options.n_filters = (size_t)argc - 7;
    if (walbus_position_store_new(argv[3], &a.store) != WALBUS_OK)
        die("store", "cannot be made");
    for (;;) {
        connect_database(&a);
        follow(&a);
        a.sub = walbus_subscription_close(a.sub);
    }
}
