/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "base/text.h"
#include "codec/control.h"
#include "codec/position.h"
#include "explain.h"
#include "print.h"
#include "print_status.h"

#define COMMAND "quarantine"

struct options {
    bool raw;
};

/* One that is named: by its id, or by its position. */
struct which {
    uint64_t id; /* 0: by position */
    const char *position;
};

static int unreadable(void)
{
    return cli_fail(COMMAND, "The router's answer cannot be read.");
}

/* ---- asking ---- */

static void put_which(struct buf *args, const struct which *which)
{
    if (which->position) {
        cbor_put_str(args, "position");
        cbor_put_str(args, which->position);
    } else {
        cbor_put_str(args, "id");
        cbor_put_uint(args, which->id);
    }
}

static int ask_list(struct cli *cli, uint64_t after, struct walbus_reply **ret)
{
    struct buf args = BUF_INIT;

    cbor_put_map(&args, 1);
    cbor_put_str(&args, "after");
    cbor_put_uint(&args, after);
    int status = answer_ask(cli, COMMAND, "quarantine-list", buf_bytes(&args), NULL, NULL, ret);
    buf_deinit(&args);
    return status;
}

/* Calls `each` for every entry that stands there when it is first asked, page by page, until it says something else
 * than CLI_OK; *ret_n: how many there were. */
static int walk(struct cli *cli, int (*each)(void *context, struct bytes entry), void *context, uint64_t *ret_n)
{
    uint64_t after = 0, n = 0, newest = 0;
    int status = CLI_OK;
    bool more = true;

    while (more && status == CLI_OK) {
        struct walbus_reply *reply = NULL;
        struct bytes key, entry;
        struct answer_walk w;

        status = ask_list(cli, after, &reply);
        if (status != CLI_OK)
            break;
        struct bytes item = answer_item(answer_of(reply), "more");
        more = item.size == 1 && item.data[0] == 0xf5;
        if (after == 0 && !answer_uint(answer_of(reply), "newest", &newest))
            status = unreadable();
        else if (!answer_walk_start(&w, answer_item(answer_of(reply), "entries"), CBOR_ARRAY))
            status = unreadable();
        uint64_t before = after;
        while (status == CLI_OK && answer_walk_next(&w, &key, &entry)) {
            status = answer_uint(entry, "id", &after) ? CLI_OK : unreadable();
            if (status != CLI_OK || after > newest)
                break;
            status = each(context, entry);
            n++;
        }
        more = more && after < newest;
        if (more && after == before) /* it would never end */
            more = false;
        walbus_reply_free(reply);
    }
    *ret_n = n;
    return status;
}

/* ---- list ---- */

struct listing {
    struct buf out;
    bool json, first;
};

static void put_column(struct buf *out, struct bytes text, size_t width)
{
    size_t mark = out->size;

    text_put_visible(out, text);
    buf_append_str(out, "  ");
    while (!out->failed && out->size - mark < width)
        buf_append_u8(out, ' ');
}

static struct bytes prefix_of(struct bytes entry)
{
    struct bytes item = answer_item(entry, "prefix");
    struct cbor_reader r = cbor_reader_init(item);
    struct cbor_head h;

    return item.data && cbor_read_head(&r, &h) == CBOR_OK && (h.type == CBOR_TEXT || h.type == CBOR_BYTES)
               ? h.str
               : (struct bytes){NULL, 0};
}

/* A member that is bytes where others are text has its bytes under another name. */
static void put_json_bytes(struct bytes key, struct bytes value, struct buf *out)
{
    struct buf name = BUF_INIT;

    buf_append(&name, key.data, key.size);
    buf_append_str(&name, "_base64");
    json_put_string(out, buf_bytes(&name));
    buf_append_str(out, ":\"");
    print_base64(out, value);
    buf_append_u8(out, '"');
    out->failed |= name.failed;
    buf_deinit(&name);
}

/* As tail has it: what is no text says so by its name. False: it cannot be read. */
static bool put_json(struct bytes entry, struct buf *out)
{
    struct answer_walk w;
    struct bytes key, value;
    bool first = true;

    if (!answer_walk_start(&w, entry, CBOR_MAP))
        return false;
    buf_append_u8(out, '{');
    while (answer_walk_next(&w, &key, &value)) {
        struct cbor_reader v = cbor_reader_init(value);
        struct bytes raw;

        buf_append_str(out, first ? "" : ",");
        first = false;
        if (cbor_read_bytes(&v, &raw) == CBOR_OK) {
            put_json_bytes(key, raw, out);
            continue;
        }
        json_put_string(out, key);
        buf_append_u8(out, ':');
        if (cbor_print_json(value, out) != CBOR_OK)
            return false;
    }
    buf_append_u8(out, '}');
    return w.left == 0;
}

static int list_one(void *context, struct bytes entry)
{
    struct listing *l = context;
    uint64_t id = 0, size = 0;
    struct buf cell = BUF_INIT;

    if (l->json) {
        buf_append_str(&l->out, l->first ? "" : ",\n");
        l->first = false;
        return put_json(entry, &l->out) ? CLI_OK : unreadable();
    }
    if (l->first)
        buf_append_str(&l->out, "ID      RECEIVED                     POSITION                STATUS         SIZE        PREFIX\n");
    l->first = false;
    if (!answer_uint(entry, "id", &id) || !answer_uint(entry, "size", &size))
        return unreadable();
    buf_printf(&cell, "%" PRIu64, id);
    put_column(&l->out, buf_bytes(&cell), 8);
    put_column(&l->out, answer_text(entry, "received"), 29);
    put_column(&l->out, answer_text(entry, "position"), 24);
    put_column(&l->out, answer_text(entry, "status"), 15);
    buf_clear(&cell);
    print_size(&cell, size);
    put_column(&l->out, buf_bytes(&cell), 12);
    text_put_visible(&l->out, prefix_of(entry));
    buf_append_u8(&l->out, '\n');
    buf_deinit(&cell);
    return CLI_OK;
}

static int list(struct cli *cli)
{
    struct listing l = {.out = BUF_INIT, .json = cli->json, .first = true};
    uint64_t n;

    if (l.json)
        buf_append_u8(&l.out, '[');
    int status = walk(cli, list_one, &l, &n);
    if (l.json)
        buf_append_str(&l.out, "]\n");
    if (l.out.failed)
        status = cli_fail(COMMAND, "Not enough memory.");
    else if (status == CLI_OK && l.out.size)
        (void)fwrite(l.out.data, 1, l.out.size, stdout); /* main asks for ferror */
    if (status == CLI_OK && n == 0 && !l.json)
        (void)fputs("There is nothing in quarantine.\n", stderr);
    buf_deinit(&l.out);
    return status;
}

/* ---- show ---- */

/* Of the entry what people want to know. */
static void put_entry(struct buf *out, struct bytes entry)
{
    static const char *const keys[] = {"position", "journal", "received", "status", "kid", "reason"};
    uint64_t n;

    if (answer_uint(entry, "id", &n))
        buf_printf(out, "id        %" PRIu64 "\n", n);
    buf_append_str(out, "prefix    ");
    text_put_visible(out, prefix_of(entry));
    buf_append_u8(out, '\n');
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        struct bytes text = answer_text(entry, keys[i]);

        if (!text.size)
            continue;
        buf_printf(out, "%-8s  ", keys[i]);
        text_put_visible(out, text);
        buf_append_u8(out, '\n');
    }
    if (answer_uint(entry, "size", &n)) {
        buf_append_str(out, "size      ");
        print_size(out, n);
        buf_append_u8(out, '\n');
    }
}

/* The whole content, chunk by chunk; of the first answer the entry is copied. */
static int fetch(struct cli *cli, struct which which, struct buf *entry, struct buf *content)
{
    uint64_t size = 0;
    int status;

    do {
        struct walbus_reply *reply = NULL;
        struct buf args = BUF_INIT;
        struct cbor_head h;

        cbor_put_map(&args, 2);
        put_which(&args, &which);
        cbor_put_str(&args, "from");
        cbor_put_uint(&args, content->size);
        status = answer_ask(cli, COMMAND, "quarantine-show", buf_bytes(&args), NULL, NULL, &reply);
        buf_deinit(&args);
        if (status != CLI_OK)
            break;
        struct bytes got = answer_item(answer_of(reply), "entry"), part = answer_item(answer_of(reply), "content");
        struct cbor_reader r = cbor_reader_init(part);
        if (!got.data || !part.data || !answer_uint(got, "size", &size) || !answer_uint(got, "id", &which.id) ||
            cbor_read_head(&r, &h) != CBOR_OK || h.type != CBOR_BYTES || (h.str.size == 0 && content->size < size))
            status = unreadable();
        which.position = NULL; /* the very same from here on */
        if (status == CLI_OK && !entry->size)
            buf_append(entry, got.data, got.size);
        if (status == CLI_OK)
            buf_append(content, h.str.data, h.str.size);
        if (entry->failed || content->failed)
            status = cli_fail(COMMAND, "Not enough memory.");
        walbus_reply_free(reply);
    } while (status == CLI_OK && content->size < size);
    return status;
}

static int show(struct cli *cli, const struct which *which, const struct options *options)
{
    struct buf entry = BUF_INIT, content = BUF_INIT, out = BUF_INIT;
    int status = fetch(cli, *which, &entry, &content);

    if (status == CLI_OK && options->raw) {
        if (content.size)
            (void)fwrite(content.data, 1, content.size, stdout);
    } else if (status == CLI_OK && cli->json) {
        status = put_json(buf_bytes(&entry), &out) ? CLI_OK : unreadable();
        buf_append_u8(&out, '\n');
    } else if (status == CLI_OK) {
        put_entry(&out, buf_bytes(&entry));
        buf_append_str(&out, "content   ");
        (void)explain_what(buf_bytes(&content), &out);
        buf_append_u8(&out, '\n');
    }
    if (out.failed)
        status = cli_fail(COMMAND, "Not enough memory.");
    else if (status == CLI_OK && out.size)
        (void)fwrite(out.data, 1, out.size, stdout);
    buf_deinit(&entry);
    buf_deinit(&content);
    buf_deinit(&out);
    return status;
}

/* ---- release and drop ---- */

struct change {
    struct cli *cli;
    const char *what, *done, *name;
    uint64_t changed, refused;
    bool forbidden, unknown; /* why the last one was refused */
};

/* The others go on, unless it is nothing of theirs. */
static int on_refused(void *context, const char *code, const char *sentence)
{
    struct change *c = context;

    c->forbidden = strcmp(code, CONTROL_ERROR_FORBIDDEN) == 0;
    c->unknown = strcmp(code, CONTROL_ERROR_UNKNOWN_NAME) == 0;
    c->refused++;
    (void)fprintf(stderr, "walbus %s: %s: %s\n", COMMAND, c->name, sentence);
    return CLI_FAILED;
}

static int change_which(struct change *c, const struct which *which, const char *name)
{
    struct buf args = BUF_INIT;
    struct walbus_reply *reply = NULL;
    uint64_t n = 1, refused = c->refused;

    cbor_put_map(&args, 1);
    put_which(&args, which);
    c->name = name;
    int status = args.failed ? cli_fail(COMMAND, "Not enough memory.")
                             : answer_ask(c->cli, COMMAND, c->what, buf_bytes(&args), on_refused, c, &reply);
    if (status == CLI_OK && answer_uint(answer_of(reply), "dropped", &n) && n == 0) {
        (void)fprintf(stderr, "walbus %s: %s: there is no such message in quarantine\n", COMMAND, name);
        c->refused++;
    } else if (status == CLI_OK) {
        c->changed++;
        (void)printf("%s %s.\n", c->done, name);
    } else if (c->refused > refused && !c->unknown) {
        (void)fprintf(stderr, "walbus %s: %s is still in quarantine\n", COMMAND, name);
    }
    walbus_reply_free(reply);
    buf_deinit(&args);
    return c->refused > refused && !c->forbidden ? CLI_OK : status;
}

/* All that stand there when the router is asked: with one request. */
static int drop_all(struct change *c)
{
    struct buf args = BUF_INIT;
    struct walbus_reply *reply = NULL;

    cbor_put_map(&args, 2);
    cbor_put_str(&args, "first");
    cbor_put_uint(&args, 1);
    cbor_put_str(&args, "last");
    cbor_put_uint(&args, UINT64_MAX);
    int status = args.failed ? cli_fail(COMMAND, "Not enough memory.")
                             : answer_ask(c->cli, COMMAND, c->what, buf_bytes(&args), on_refused, c, &reply);
    if (status == CLI_OK && !answer_uint(answer_of(reply), "dropped", &c->changed))
        status = unreadable();
    if (status == CLI_OK && c->changed)
        (void)printf("%s %" PRIu64 " message%s.\n", c->done, c->changed, c->changed == 1 ? "" : "s");
    walbus_reply_free(reply);
    buf_deinit(&args);
    return status;
}

static int change_entry(void *context, struct bytes entry)
{
    struct which which = {0};
    char name[24];

    if (!answer_uint(entry, "id", &which.id))
        return unreadable();
    (void)snprintf(name, sizeof name, "%" PRIu64, which.id);
    return change_which(context, &which, name);
}

static int parse_which(const char *text, struct which *ret)
{
    struct position position;
    char *end;

    *ret = (struct which){0};
    if (strchr(text, ':') && position_parse(text, &position) == 0) {
        ret->position = text;
        return CLI_OK;
    }
    errno = 0;
    ret->id = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || !ret->id)
        return cli_usage(COMMAND, "A message in quarantine is named by its id, or by its position as 1:0/16B3748:1, not '%s'.",
                         text);
    return CLI_OK;
}

static int change(struct cli *cli, const char *what, const char *done, int argc, char **argv)
{
    struct change c = {.cli = cli, .what = what, .done = done, .name = "all"};
    struct which which;
    uint64_t n;
    int status = CLI_OK;

    if (argc < 2)
        return cli_usage(COMMAND, "%s needs ids, positions, or all.", argv[0]);
    bool all = strcmp(argv[1], "all") == 0, drops = strcmp(argv[0], "drop") == 0;
    if (all && argc > 2)
        return cli_usage(COMMAND, "Behind all there is nothing to be named.");
    for (int i = 1; i < argc && !all; i++)
        if ((status = parse_which(argv[i], &which)) != CLI_OK)
            return status;
    cli_begin_change(cli, done);
    if (all)
        status = drops ? drop_all(&c) : walk(cli, change_entry, &c, &n);
    for (int i = 1; i < argc && !all && status == CLI_OK; i++) {
        status = parse_which(argv[i], &which);
        if (status == CLI_OK)
            status = change_which(&c, &which, argv[i]);
    }
    if (status == CLI_OK && all && !c.changed && !c.refused)
        (void)fputs("There is nothing in quarantine.\n", stderr);
    return status != CLI_OK ? status : c.refused ? CLI_FAILED : CLI_OK;
}

/* ---- the command ---- */

static int quarantine_option(void *state, const struct cli_option *option, const char *value)
{
    struct options *options = state;

    (void)option;
    (void)value;
    options->raw = true;
    return CLI_OK;
}

static int quarantine_run(struct cli *cli, void *state, int argc, char **argv)
{
    const struct options *options = state;
    const char *verb = argc ? argv[0] : "list";
    struct which which;

    if (options->raw && strcmp(verb, "show") != 0)
        return cli_usage(COMMAND, "--raw is for show.");
    if (strcmp(verb, "list") == 0)
        return argc > 1 ? cli_usage(COMMAND, "list takes no operand.") : list(cli);
    if (strcmp(verb, "show") == 0) {
        if (argc != 2)
            return cli_usage(COMMAND, "show needs one id or position.");
        int status = parse_which(argv[1], &which);
        return status == CLI_OK ? show(cli, &which, options) : status;
    }
    if (strcmp(verb, "release") == 0)
        return change(cli, "quarantine-release", "Released", argc, argv);
    if (strcmp(verb, "drop") == 0)
        return change(cli, "quarantine-drop", "Dropped", argc, argv);
    return cli_usage(COMMAND, "There is nothing to be done with '%s'; there is list, show, release and drop.", verb);
}

static const struct cli_option quarantine_options[] = {
    {"raw", NULL, "With show: the content's bytes alone, as they are."},
    {0},
};

const struct cli_command cli_command_quarantine = {
    .name = COMMAND,
    .usage = "[OPTION...] [list | show ID | release ID... | drop ID...]",
    .sentence = "Look at the messages that policy has kept back, release or drop them.",
    .details =
        "A message whose signature is not valid, where the router's policy requires one, is in\n"
        "quarantine instead of being delivered. ID is what list shows first, or its position; for\n"
        "release and drop also all.\n"
        "\n"
        "release publishes the same prefix and content again, in a transaction of its own, over the\n"
        "router's connection, and then removes the entry. That is done only when the message would be\n"
        "let through by now, because its key has been added to the trust file, or the policy is\n"
        "another; else it says why not. drop removes it for good.\n"
        "\n"
        "Only the router's own user and root may do any of it, and whom the setting allow lets.\n"
        "\n"
        "Examples:\n"
        "  walbus quarantine\n"
        "  walbus quarantine list --json\n"
        "  walbus quarantine show 17\n"
        "  walbus quarantine show 17 --raw | walbus inspect -\n"
        "  walbus quarantine release 17 18\n"
        "  walbus quarantine drop all",
    .options = quarantine_options,
    .option = quarantine_option,
    .common = cli_common_router,
    .run = quarantine_run,
    .state_size = sizeof(struct options),
    .lists = true,
};
