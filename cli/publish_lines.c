/* SPDX-License-Identifier: PostgreSQL */
#include "publish_lines.h"

#include <errno.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "codec/position.h"
#include "input.h"
#include "publish_input.h"
#include "server.h"

#define NAME "publish"

/*
 * Lines are gathered into chunks, each sent with one statement, all within one
 * transaction. What is to be printed is kept until the commit has succeeded,
 * since an id that was printed is taken for published; beyond SPOOL_MAX it waits
 * in a temporary file. So memory is bounded however many lines come.
 */

#define CHUNK_EVENTS 1000
#define CHUNK_BYTES  (4u * 1024 * 1024)
#define SPOOL_MAX    (1024u * 1024)

struct spool {
    struct buf text; /* what is not in the file */
    FILE *file;      /* NULL while everything is in `text` */
};

/* 0 or a negative errno. */
static int spool_line(struct spool *s, const char *line)
{
    buf_append_str(&s->text, line);
    buf_append_u8(&s->text, '\n');
    if (s->text.failed)
        return -ENOMEM;
    if (s->text.size < SPOOL_MAX)
        return 0;
    if (!s->file && !(s->file = tmpfile()))
        return -errno;
    if (fwrite(s->text.data, 1, s->text.size, s->file) != s->text.size)
        return -errno;
    buf_clear(&s->text);
    return 0;
}

/* Everything to stdout, whose own errors cli_main finds. 0 or a negative errno. */
static int spool_print(struct spool *s)
{
    if (s->file) {
        char block[16 * 1024];
        size_t n;

        if (fflush(s->file) != 0)
            return -errno;
        rewind(s->file);
        while ((n = fread(block, 1, sizeof block, s->file)) > 0)
            (void)fwrite(block, 1, n, stdout);
        if (ferror(s->file))
            return -EIO;
    }
    if (s->text.size > 0)
        (void)fwrite(s->text.data, 1, s->text.size, stdout);
    return 0;
}

static void spool_deinit(struct spool *s)
{
    buf_deinit(&s->text);
    if (s->file)
        (void)fclose(s->file);
}

struct lines {
    struct publish_connection *c;
    const struct walbus_event *common;
    bool raw;
    struct input in;
    struct spool spool;
    struct buf line;           /* the one being read */
    size_t n_lines;            /* read so far */
    struct buf data;           /* of the chunk's events, one behind the other */
    size_t n;                  /* events in the chunk */
    size_t ends[CHUNK_EVENTS]; /* of each event's data in `data` */
    struct walbus_event events[CHUNK_EVENTS];
    struct walbus_receipt receipts[CHUNK_EVENTS];
};

static int spool_failed(int r)
{
    return cli_fail(NAME, "Cannot keep the ids until the commit: %s. Nothing is published.",
                    strerror(-r));
}

static int send_chunk(struct lines *l)
{
    size_t start = 0;

    if (l->n == 0)
        return CLI_OK;
    for (size_t i = 0; i < l->n; i++) {
        l->events[i] = *l->common;
        l->events[i].data = l->data.data + start;
        l->events[i].data_size = l->ends[i] - start;
        start = l->ends[i];
    }

    enum walbus_result result =
        walbus_publish_many(l->c->publisher, l->c->conn, l->events, l->n, l->c->flags, l->receipts);

    if (result != WALBUS_OK) {
        char where[80];

        (void)snprintf(where, sizeof where,
                       "Lines %zu to %zu, nothing is published: ", l->n_lines - l->n + 1,
                       l->n_lines);
        return publish_connection_failed(l->c, where, result);
    }
    for (size_t i = 0; i < l->n; i++) {
        int r = spool_line(&l->spool, l->receipts[i].id);

        if (r < 0)
            return spool_failed(r);
    }
    l->n = 0;
    buf_clear(&l->data);
    return CLI_OK;
}

/* The line just read becomes an event of the chunk. */
static int take_json_line(struct lines *l)
{
    struct json_cbor_error error;
    int r = json_to_cbor(buf_bytes(&l->line), &l->data, &error);

    if (r == -EINVAL) {
        char where[64];

        (void)snprintf(where, sizeof where, "Nothing is published: line %zu", l->n_lines);
        return publish_input_not_json(where, &error);
    }
    if (r < 0)
        return cli_fail(NAME, "Not enough memory.");
    l->ends[l->n++] = l->data.size;
    if (l->n == CHUNK_EVENTS || l->data.size >= CHUNK_BYTES)
        return send_chunk(l);
    return CLI_OK;
}

/* The line just read is a message of its own. */
static int take_raw_line(struct lines *l)
{
    char text[LSN_TEXT_SIZE], where[64];
    uint64_t lsn;
    enum walbus_result result = walbus_publish_raw(l->c->publisher, l->c->conn, l->common->prefix,
                                                   l->line.data, l->line.size, l->c->flags, &lsn);

    if (result != WALBUS_OK) {
        (void)snprintf(where, sizeof where, "Line %zu, nothing is published: ", l->n_lines);
        return publish_connection_failed(l->c, where, result);
    }
    int r = spool_line(&l->spool, lsn_format(lsn, text));

    return r < 0 ? spool_failed(r) : CLI_OK;
}

static int read_lines(struct lines *l)
{
    int r, status = CLI_OK;

    for (;;) {
        buf_clear(&l->line);
        r = input_take(&l->in, '\n', &l->line);
        if (r == 0)
            return send_chunk(l);
        l->n_lines++;
        if (r < 0) {
            char what[48];

            (void)snprintf(what, sizeof what, "line %zu of stdin", l->n_lines);
            return publish_input_failed(what, r);
        }
        status = l->raw ? take_raw_line(l) : take_json_line(l);
        if (status != CLI_OK)
            return status;
    }
}

/* A statement that begins or ends the transaction. A failed transaction answers COMMIT with
 * ROLLBACK, and no error. */
static int run_statement(struct lines *l, const char *sql)
{
    PGresult *result = PQexec(l->c->conn, sql);
    int status = CLI_OK;

    if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        bool unknown = strcmp(sql, "COMMIT") == 0 && PQstatus(l->c->conn) != CONNECTION_OK;

        status = cli_server_error(
            NAME, unknown ? "COMMIT, and whether it was done is unknown" : sql, l->c->conn, result);
    } else if (strcmp(PQcmdStatus(result), sql) != 0)
        status = cli_fail(NAME, "Nothing is published: the server answered %s with %s.", sql,
                          PQcmdStatus(result));
    PQclear(result);
    return status;
}

int publish_lines(struct publish_connection *c, const struct walbus_event *common, bool raw)
{
    struct lines *l = calloc(1, sizeof *l);
    int status;

    if (!l)
        return cli_fail(NAME, "Not enough memory.");
    l->c = c;
    l->common = common;
    l->raw = raw;
    l->in.fd = STDIN_FILENO;
    status = run_statement(l, "BEGIN");
    if (status == CLI_OK)
        status = read_lines(l);
    if (status == CLI_OK)
        status = run_statement(l, "COMMIT");
    if (status == CLI_OK) {
        int r = spool_print(&l->spool);

        if (r < 0)
            status =
                cli_fail(NAME, "Published, but the ids cannot be read back: %s.", strerror(-r));
    }
    spool_deinit(&l->spool);
    buf_deinit(&l->line);
    buf_deinit(&l->data);
    free(l);
    return status;
}
