/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "codec/event.h"
#include "codec/position.h"
#include "codec/subject.h"
#include "input.h"
#include "json_cbor.h"
#include "server.h"
#include "walbus/walbus.h"

#define NAME "publish"

_Static_assert(INPUT_MAX == WALBUS_LARGEST_CONTENT, "no input that cannot be published is needed");

/* Longest name of an --attr. CloudEvents advises 20 characters. */
#define ATTRIBUTE_NAME_SIZE 64

struct publish {
    bool non_transactional, lines, raw, reserved;
    struct walbus_event event; /* what all events of this run have in common */
    const char *source;
    struct walbus_attribute attributes[EVENT_ATTRIBUTES_MAX];
    char names[EVENT_ATTRIBUTES_MAX][ATTRIBUTE_NAME_SIZE];
};

/* ---- options ---- */

static const struct cli_option options[] = {
    {"non-transactional", NULL,
     "Deliver at once, by a statement outside any transaction; not with --lines."},
    {"lines", NULL,
     "Every line of stdin is one event's data; all are published in one transaction or none."},
    {"raw", NULL, "Publish DATA's bytes as they are, without an event around them."},
    {"type", "TYPE", "The event's type (default: PREFIX)."},
    {"source", "URI", "The event's source (default: /walbus/DATABASE)."},
    {"subject", "TEXT", "What in the source the event is about."},
    {"attr", "NAME=VALUE",
     "A further attribute: id, time, datacontenttype, traceparent, your own. May be repeated."},
    {"allow-reserved", NULL, "Allow a PREFIX that begins with '_', other than _walbus.heartbeat."},
    {NULL, NULL, NULL},
};

static int take_time(struct publish *p, const char *value)
{
    if (clock_parse_rfc3339(value, &p->event.time_us) < 0)
        return cli_usage(NAME, "--attr time: '%s' is no RFC 3339 time with a zone.", value);
    if (p->event.time_us == 0) /* which means "now" to the library */
        return cli_usage(NAME, "--attr time: 1970-01-01T00:00:00Z itself cannot be published.");
    return CLI_OK;
}

/* NAME=VALUE of --attr; the attributes that the library has members for go there. */
static int take_attribute(struct publish *p, const char *text)
{
    static const char *const elsewhere[] = {"type", "source", "subject"};
    const char *equals = strchr(text, '=');
    size_t size = equals ? (size_t)(equals - text) : 0;

    if (!equals)
        return cli_usage(NAME, "--attr needs NAME=VALUE, not '%s'.", text);
    if (size >= ATTRIBUTE_NAME_SIZE)
        return cli_usage(NAME, "--attr: a name has at most %d characters.",
                         ATTRIBUTE_NAME_SIZE - 1);
    if (!event_name_is_valid((struct bytes){(const uint8_t *)text, size}))
        return cli_usage(NAME, "--attr: '%.*s' is no attribute name: a-z and 0-9, not 'data'.",
                         (int)size, text);
    if (p->event.n_attributes == EVENT_ATTRIBUTES_MAX)
        return cli_usage(NAME, "An event has at most %d attributes.", EVENT_ATTRIBUTES_MAX);

    char *name = p->names[p->event.n_attributes];

    memcpy(name, text, size);
    name[size] = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(elsewhere); i++)
        if (strcmp(name, elsewhere[i]) == 0)
            return cli_usage(NAME, "For the attribute %s there is the option --%s.", name, name);
    if (strcmp(name, "specversion") == 0)
        return cli_usage(NAME, "--attr: specversion is always 1.0.");
    for (size_t i = 0; i < p->event.n_attributes; i++)
        if (strcmp(name, p->names[i]) == 0)
            return cli_usage(NAME, "--attr: %s is given twice.", name);
    if ((strcmp(name, "id") == 0 && p->event.id) ||
        (strcmp(name, "time") == 0 && p->event.time_us != 0) ||
        (strcmp(name, "datacontenttype") == 0 && p->event.content_type))
        return cli_usage(NAME, "--attr: %s is given twice.", name);

    if (strcmp(name, "time") == 0)
        return take_time(p, equals + 1);
    if (strcmp(name, "id") == 0)
        p->event.id = equals + 1;
    else if (strcmp(name, "datacontenttype") == 0)
        p->event.content_type = equals + 1;
    else
        p->attributes[p->event.n_attributes++] = (struct walbus_attribute){name, equals + 1};
    return CLI_OK;
}

static int take_option(void *state, const struct cli_option *option, const char *value)
{
    struct publish *p = state;

    if (strcmp(option->name, "non-transactional") == 0)
        p->non_transactional = true;
    else if (strcmp(option->name, "lines") == 0)
        p->lines = true;
    else if (strcmp(option->name, "raw") == 0)
        p->raw = true;
    else if (strcmp(option->name, "allow-reserved") == 0)
        p->reserved = true;
    else if (strcmp(option->name, "type") == 0)
        p->event.type = value;
    else if (strcmp(option->name, "source") == 0)
        p->source = value;
    else if (strcmp(option->name, "subject") == 0)
        p->event.subject = value;
    else
        return take_attribute(p, value);
    return CLI_OK;
}

/* ---- input ---- */

static int input_error(const char *what, int r)
{
    if (r == -EFBIG)
        return cli_fail(NAME, "%s is larger than %zu bytes.", what, INPUT_MAX);
    return cli_fail(NAME, "Cannot read %s: %s.", what, strerror(-r));
}

/* The bytes that the operand DATA stands for. */
static int read_operand(const char *data, struct buf *out)
{
    int r = input_read_operand(data, out);

    return r < 0 ? input_error(input_operand_name(data), r) : CLI_OK;
}

/* ---- connection ---- */

/* /walbus/DATABASE, everything percent-encoded that RFC 3986 does not call unreserved. */
static void put_default_source(struct buf *out, const char *database)
{
    static const char unreserved[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                     "0123456789-._~";

    buf_append_str(out, "/walbus/");
    for (; *database; database++) {
        if (strchr(unreserved, *database))
            buf_append_u8(out, (uint8_t)*database);
        else
            buf_printf(out, "%%%02X", (unsigned)(unsigned char)*database);
    }
}

struct connection {
    struct pg_conn *conn;
    struct walbus_publisher *publisher;
    unsigned flags;
};

static void connection_close(struct connection *c)
{
    c->publisher = walbus_publisher_free(c->publisher);
    PQfinish(c->conn); /* rolls back what was not committed */
    c->conn = NULL;
}

/* Says so when the server's settings make publishing pointless. */
static int warn_of_wal_level(struct connection *c)
{
    PGresult *result = PQexec(c->conn, "SHOW wal_level");
    int status = CLI_OK;

    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        status = cli_server_error(NAME, "Cannot read wal_level", c->conn, result);
    else if (strcmp(PQgetvalue(result, 0, 0), "logical") != 0)
        (void)cli_fail(NAME,
                       "Warning: wal_level is %s, not logical: nobody will see what is published.",
                       PQgetvalue(result, 0, 0));
    PQclear(result);
    return status;
}

static int connection_open(struct cli *cli, const struct publish *p, struct connection *ret)
{
    struct connection c = {0};
    struct buf source = BUF_INIT;
    struct walbus_publisher_options with = WALBUS_PUBLISHER_OPTIONS_INIT;
    enum walbus_result result = WALBUS_NO_MEMORY;
    int status = cli_connect(cli, NAME, &c.conn);

    if (status != CLI_OK)
        return status;
    c.flags = (p->non_transactional ? WALBUS_NON_TRANSACTIONAL : 0) |
              (p->reserved ? WALBUS_ALLOW_RESERVED : 0);
    put_default_source(&source, PQdb(c.conn));
    with.source = p->source ? p->source : buf_str(&source);
    if (!source.failed)
        result = walbus_publisher_new(&with, &c.publisher);
    if (result == WALBUS_BAD_ARGUMENT)
        status = cli_usage(NAME, "--source must be UTF-8 and not empty.");
    else if (result != WALBUS_OK)
        status = cli_fail(NAME, "Cannot publish: %s.", walbus_result_text(result));
    else
        status = warn_of_wal_level(&c);
    buf_deinit(&source);
    if (status != CLI_OK)
        connection_close(&c);
    else
        *ret = c;
    return status;
}

/* What a result of the library other than WALBUS_OK means to the user. `where` is "" or "Lines 1 to
 * 20: ". */
static int publishing_failed(const struct connection *c, const char *where,
                             enum walbus_result result)
{
    const char *why = walbus_publisher_error(c->publisher);

    if (*why == '\0')
        why = walbus_result_text(result);
    switch (result) {
    case WALBUS_CONNECTION_LOST:
    case WALBUS_NOT_CONNECTED:
        return cli_unreachable(NAME, "%s%s", where, why);
    case WALBUS_BAD_PREFIX:
    case WALBUS_BAD_EVENT:
        return cli_usage(NAME, "%s%s", where, why);
    default:
        return cli_fail(NAME, "%s%s", where, why);
    }
}

/* ---- one event ---- */

static void print_lsn(uint64_t lsn)
{
    char text[LSN_TEXT_SIZE];

    (void)puts(lsn_format(lsn, text));
}

static int not_json(const char *where, const struct json_cbor_error *error)
{
    return cli_usage(NAME, "%s, column %zu: no usable JSON: %s. --raw publishes bytes as they are.",
                     where, error->column, error->text);
}

/* Reads and converts DATA before anything is connected. */
static int prepare_data(const struct publish *p, const char *data, struct buf *out)
{
    struct buf input = BUF_INIT, where = BUF_INIT;
    struct json_cbor_error error;
    int status;

    if (!data)
        return CLI_OK;
    if (p->raw)
        return read_operand(data, out);
    status = read_operand(data, &input);
    if (status == CLI_OK) {
        int r = json_to_cbor(buf_bytes(&input), out, &error);

        if (r == -EINVAL) {
            buf_printf(&where, "%s, line %zu", input_operand_name(data), error.line);
            status = not_json(buf_str(&where), &error);
        } else if (r < 0) {
            status = cli_fail(NAME, "Not enough memory.");
        }
    }
    buf_deinit(&where);
    buf_deinit(&input);
    return status;
}

static int publish_one(struct cli *cli, struct publish *p, const char *data)
{
    struct connection c;
    struct walbus_receipt receipt = {0};
    struct buf content = BUF_INIT;
    enum walbus_result result;
    int status = prepare_data(p, data, &content);

    if (status == CLI_OK)
        status = connection_open(cli, p, &c);
    if (status != CLI_OK) {
        buf_deinit(&content);
        return status;
    }
    if (p->raw) {
        result = walbus_publish_raw(c.publisher, c.conn, p->event.prefix, content.data,
                                    content.size, c.flags, &receipt.lsn);
    } else {
        p->event.data = data ? content.data : NULL;
        p->event.data_size = content.size;
        result = walbus_publish(c.publisher, c.conn, &p->event, c.flags, &receipt);
    }
    if (result != WALBUS_OK)
        status = publishing_failed(&c, "", result);
    else if (p->raw)
        print_lsn(receipt.lsn);
    else
        (void)puts(p->event.id ? p->event.id : receipt.id);
    connection_close(&c);
    buf_deinit(&content);
    return status;
}

/* ---- many events: --lines ---- */

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
    const struct publish *p;
    struct connection c;
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
        l->events[i] = l->p->event;
        l->events[i].data = l->data.data + start;
        l->events[i].data_size = l->ends[i] - start;
        start = l->ends[i];
    }

    enum walbus_result result =
        walbus_publish_many(l->c.publisher, l->c.conn, l->events, l->n, l->c.flags, l->receipts);

    if (result != WALBUS_OK) {
        char where[80];

        (void)snprintf(where, sizeof where,
                       "Lines %zu to %zu, nothing is published: ", l->n_lines - l->n + 1,
                       l->n_lines);
        return publishing_failed(&l->c, where, result);
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
        return not_json(where, &error);
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
    enum walbus_result result = walbus_publish_raw(l->c.publisher, l->c.conn, l->p->event.prefix,
                                                   l->line.data, l->line.size, l->c.flags, &lsn);

    if (result != WALBUS_OK) {
        (void)snprintf(where, sizeof where, "Line %zu, nothing is published: ", l->n_lines);
        return publishing_failed(&l->c, where, result);
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
            return input_error(what, r);
        }
        status = l->p->raw ? take_raw_line(l) : take_json_line(l);
        if (status != CLI_OK)
            return status;
    }
}

/* A statement that begins or ends the transaction. A failed transaction answers COMMIT with
 * ROLLBACK, and no error. */
static int run_statement(struct lines *l, const char *sql)
{
    PGresult *result = PQexec(l->c.conn, sql);
    int status = CLI_OK;

    if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        bool unknown = strcmp(sql, "COMMIT") == 0 && PQstatus(l->c.conn) != CONNECTION_OK;

        status = cli_server_error(
            NAME, unknown ? "COMMIT, and whether it was done is unknown" : sql, l->c.conn, result);
    } else if (strcmp(PQcmdStatus(result), sql) != 0)
        status = cli_fail(NAME, "Nothing is published: the server answered %s with %s.", sql,
                          PQcmdStatus(result));
    PQclear(result);
    return status;
}

static int publish_lines(struct cli *cli, const struct publish *p)
{
    struct lines *l = calloc(1, sizeof *l);
    int status;

    if (!l)
        return cli_fail(NAME, "Not enough memory.");
    l->p = p;
    l->in.fd = STDIN_FILENO;
    status = connection_open(cli, p, &l->c);
    if (status == CLI_OK)
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
    connection_close(&l->c);
    spool_deinit(&l->spool);
    buf_deinit(&l->line);
    buf_deinit(&l->data);
    free(l);
    return status;
}

/* ---- the command ---- */

/* Finds what does not go together, before anything is connected. */
static int check_usage(const struct publish *p, int argc, char **argv)
{
    if (argc < 1)
        return cli_usage(NAME, "PREFIX is missing; %s.", cli_shell_hint);
    if (argc > 2)
        return cli_usage(NAME, "DATA is one argument, '%s' is one more: put it into quotes.",
                         argv[2]);
    if (p->lines && argc == 2 && strcmp(argv[1], "-") != 0)
        return cli_usage(NAME, "--lines reads stdin and takes no DATA.");
    if (p->lines && p->non_transactional)
        return cli_usage(NAME, "--lines is one transaction: not with --non-transactional.");
    if (p->lines && p->event.id)
        return cli_usage(NAME, "--lines: the events would all have the same id.");
    if (p->raw && (p->event.type || p->source || p->event.subject || p->event.n_attributes > 0 ||
                   p->event.id || p->event.time_us != 0 || p->event.content_type))
        return cli_usage(NAME, "--raw has no event around DATA, so no attributes.");

    size_t at;
    enum subject_fault fault =
        subject_check_publish(bytes_of_text(argv[0]), WALBUS_MAX_PREFIX, p->reserved, &at);

    if (fault == SUBJECT_RESERVED)
        return cli_usage(NAME, "PREFIX '%s' is reserved; --allow-reserved publishes it.", argv[0]);
    if (fault != SUBJECT_OK)
        return cli_usage(NAME, "PREFIX '%s', byte %zu: %s", argv[0], at + 1,
                         subject_fault_text(fault));
    return CLI_OK;
}

static int run(struct cli *cli, void *state, int argc, char **argv)
{
    struct publish *p = state;
    int status = check_usage(p, argc, argv);

    if (status != CLI_OK)
        return status;
    p->event.size = sizeof p->event;
    p->event.prefix = argv[0];
    p->event.attributes = p->attributes;
    return p->lines ? publish_lines(cli, p) : publish_one(cli, p, argc == 2 ? argv[1] : NULL);
}

const struct cli_command cli_command_publish = {
    .name = NAME,
    .usage = "[OPTION...] PREFIX [DATA]",
    .sentence = "Publish one event, or one for each line of stdin.",
    .details =
        "DATA is JSON text, @FILE for a file with JSON text, - for JSON text on stdin, or absent\n"
        "for an event without data. It is published as CBOR: integers exactly (outside int64 they\n"
        "are refused), other numbers as the nearest double, so 1.10 arrives as 1.1. With --raw it\n"
        "may be any bytes, none when absent.\n"
        "\n"
        "Prints the event's id, with --raw the LSN of the message; with --lines one for each "
        "line,\n"
        "after the commit. When a line is bad nothing is published.\n"
        "\n"
        "Examples:\n"
        "  walbus publish orders.created '{\"order\": 17, \"total\": \"12.50\"}'\n"
        "  walbus publish --subject 17 --attr partitionkey=eu orders.created @order.json\n"
        "  jq -c '.[]' orders.json | walbus publish --lines orders.imported\n"
        "  walbus publish --raw legacy.feed @message.bin",
    .options = options,
    .option = take_option,
    .run = run,
    .state_size = sizeof(struct publish),
};
