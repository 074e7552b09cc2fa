/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "codec/event.h"
#include "codec/position.h"
#include "codec/subject.h"
#include "publish_connection.h"
#include "publish_input.h"
#include "publish_lines.h"
#include "walbus/walbus.h"

#define NAME "publish"

/* Longest name of an --attr. CloudEvents advises 20 characters. */
#define ATTRIBUTE_NAME_SIZE 64

struct publish {
    bool non_transactional, lines, raw, reserved;
    struct walbus_event event; /* what all events of this run have in common */
    const char *source, *key, *audience; /* NULL: not given */
    struct walbus_attribute attributes[EVENT_ATTRIBUTES_MAX];
    char names[EVENT_ATTRIBUTES_MAX][ATTRIBUTE_NAME_SIZE];
};

/* ---- options ---- */

static const struct cli_option options[] = {
    {"non-transactional", NULL,
     "Deliver at once, by a statement outside any transaction; not with --lines."},
    {"lines", NULL,
     "Every line of stdin is one event's data; all are published in one transaction or none."},
    {"key", "FILE", "Sign with this private key; 'walbus keygen' makes one."},
    {"audience", "TEXT", "With --key: for whom besides PREFIX it is signed (default: '')."},
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
    else if (strcmp(option->name, "key") == 0)
        p->key = value;
    else if (strcmp(option->name, "audience") == 0)
        p->audience = value;
    else if (strcmp(option->name, "subject") == 0)
        p->event.subject = value;
    else
        return take_attribute(p, value);
    return CLI_OK;
}

/* ---- publishing ---- */

static void print_lsn(uint64_t lsn)
{
    char text[LSN_TEXT_SIZE];

    (void)puts(lsn_format(lsn, text));
}

/* The event, or with --raw the message, that DATA is for. */
static int publish_one(const struct publish_connection *c, struct publish *p, const char *data,
                       struct bytes content)
{
    struct walbus_receipt receipt = {0};
    enum walbus_result result;

    if (p->raw) {
        result = walbus_publish_raw(c->publisher, c->conn, p->event.prefix, content.data,
                                    content.size, c->flags, &receipt.lsn);
    } else {
        p->event.data = data ? content.data : NULL;
        p->event.data_size = content.size;
        result = walbus_publish(c->publisher, c->conn, &p->event, c->flags, &receipt);
    }
    if (result != WALBUS_OK)
        return publish_connection_failed(c, "", result);
    if (p->raw)
        print_lsn(receipt.lsn);
    else
        (void)puts(p->event.id ? p->event.id : receipt.id);
    return CLI_OK;
}

static int publish(struct cli *cli, struct publish *p, const char *data)
{
    const struct publish_connection_options with = {
        .source = p->source,
        .key = p->key,
        .audience = p->audience,
        .flags = (p->non_transactional ? WALBUS_NON_TRANSACTIONAL : 0) |
                 (p->reserved ? WALBUS_ALLOW_RESERVED : 0),
    };
    struct publish_connection c;
    struct buf content = BUF_INIT;
    int status = CLI_OK;

    /* What is wrong with DATA is found before anything is connected. */
    if (data && !p->lines)
        status = publish_input_data(data, p->raw, &content);
    if (status == CLI_OK)
        status = publish_connection_open(cli, &with, &c);
    if (status == CLI_OK) {
        cli_begin_change(cli, PUBLISH_DONE);
        status = p->lines ? publish_lines(&c, &p->event, p->raw)
                          : publish_one(&c, p, data, buf_bytes(&content));
        publish_connection_close(&c);
    }
    buf_deinit(&content);
    return status;
}

/* ---- the command ---- */

/* Finds what does not go together, before anything is connected. */
static int check_usage(const struct publish *p, int argc, char **argv)
{
    if (argc < 1)
        return cli_usage(NAME, "PREFIX is missing: what the event is published under, as orders.created.");
    if (argc > 2)
        return cli_usage(NAME, "DATA is one argument, '%s' is one more: put it into quotes.",
                         argv[2]);
    if (p->lines && argc == 2 && strcmp(argv[1], "-") != 0)
        return cli_usage(NAME, "--lines reads stdin and takes no DATA.");
    if (argc == 2 && strcmp(argv[1], "@") == 0)
        return cli_usage(NAME, "DATA '@' is no file's name: write it behind the @, as in @FILE.");
    if (p->lines && p->non_transactional)
        return cli_usage(NAME, "--lines is one transaction: not with --non-transactional.");
    if (p->lines && p->event.id)
        return cli_usage(NAME, "--lines: the events would all have the same id.");
    if (p->raw && (p->event.type || p->source || p->event.subject || p->event.n_attributes > 0 ||
                   p->event.id || p->event.time_us != 0 || p->event.content_type))
        return cli_usage(NAME, "--raw has no event around DATA, so no attributes.");

    if (p->raw && p->key)
        return cli_usage(NAME, "--raw publishes DATA's bytes as they are: --key has no event to sign.");
    if (p->audience && !p->key)
        return cli_usage(NAME, "--audience is what --key signs for, and there is none.");

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
    return publish(cli, p, argc == 2 ? argv[1] : NULL);
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
        "  walbus publish --key orders.key orders.paid '{\"order\": 17}'\n"
        "  walbus publish --raw legacy.feed @message.bin",
    .options = options,
    .option = take_option,
    .common = cli_common_server,
    .run = run,
    .state_size = sizeof(struct publish),
};
