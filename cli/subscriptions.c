/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "base/text.h"
#include "codec/control.h"
#include "print_status.h"
#include "start.h"

#define COMMAND "subscriptions"

/* ---- the list ---- */

enum { NAME, POSITION, MESSAGES, BYTES, BEHIND, HOLDER, COLUMNS };

static const char *const headings[COLUMNS] = {"NAME",  "POSITION", "MESSAGES",
                                              "BYTES", "BEHIND",   "HELD BY"};

static size_t width_of(struct bytes text)
{
    size_t n = 0;

    for (size_t i = 0; i < text.size; i++)
        n += (text.data[i] & 0xc0) !=
             0x80; /* characters, as far as a terminal shows each in one place */
    return n;
}

static void put_number(struct buf *out, struct bytes entry, const char *key,
                       void (*put)(struct buf *out, uint64_t n))
{
    uint64_t n;

    if (answer_uint(entry, key, &n))
        put(out, n);
    else
        buf_append_u8(out, '-');
}

static void put_count(struct buf *out, uint64_t n)
{
    buf_printf(out, "%" PRIu64, n);
}

static void put_pid(struct buf *out, uint64_t n)
{
    buf_printf(out, "pid %" PRIu64, n);
}

static void put_cell(struct buf *out, int column, struct bytes entry)
{
    switch (column) {
    case NAME:
        text_put_visible(out, answer_text(entry, "name"));
        break;
    case POSITION:
        text_put_visible(out, answer_text(entry, "position"));
        break;
    case MESSAGES:
        put_number(out, entry, "lag_messages", put_count);
        break;
    case BYTES:
        put_number(out, entry, "lag_bytes", print_size);
        break;
    case BEHIND:
        put_number(out, entry, "lag_seconds", print_seconds);
        break;
    default:
        put_number(out, entry, "pid", put_pid);
        break;
    }
}

/** Below its entry, why it is suspended. */
static void put_suspended(struct buf *out, struct bytes entry)
{
    struct bytes why = answer_text(entry, "suspended");

    if (why.size == 0)
        return;
    buf_append_str(out, "  suspended since ");
    text_put_visible(out, answer_text(entry, "suspended_since"));
    buf_append_str(out, ": ");
    text_put_visible(out, why);
    buf_append_u8(out, '\n');
}

/** Each entry, the headings first, in columns as wide as the widest. Twice: first for the widths alone. */
static void put_list(struct buf *out, struct bytes list)
{
    size_t widths[COLUMNS] = {0};
    struct buf cell = BUF_INIT;

    for (int round = 0; round < 2; round++) {
        struct bytes entry = {NULL, 0};
        struct answer_walk w;
        bool more = answer_walk_start(&w, list, CBOR_ARRAY);

        for (bool heading = true; more;
             heading = false, more = answer_walk_next(&w, &entry, &entry)) {
            for (int c = 0; c < COLUMNS; c++) {
                buf_clear(&cell);
                if (heading)
                    buf_append_str(&cell, headings[c]);
                else
                    put_cell(&cell, c, entry);
                size_t width = width_of(buf_bytes(&cell));
                if (round == 0) {
                    widths[c] = MAX(widths[c], width);
                    continue;
                }
                buf_append(out, cell.data, cell.size);
                for (; c + 1 < COLUMNS && width < widths[c] + 2; width++)
                    buf_append_u8(out, ' ');
                if (c + 1 == COLUMNS)
                    buf_append_u8(out, '\n');
            }
            if (round == 1 && !heading)
                put_suspended(out, entry);
        }
    }
    if (cell.failed)
        out->failed = true;
    buf_deinit(&cell);
}

static int show_list(const struct cli *cli, struct bytes list)
{
    struct buf out = BUF_INIT;
    struct answer_walk w;
    int status = CLI_OK;

    if (!list.data || !answer_walk_start(&w, list, CBOR_ARRAY))
        return cli_fail(COMMAND, "The router's answer cannot be read.");
    if (cli->json) {
        if (cbor_print_json(list, &out) != CBOR_OK)
            status = cli_fail(COMMAND, "The router's answer cannot be read.");
        buf_append_u8(&out, '\n');
    } else if (w.left == 0) {
        (void)fputs("There are no durable subscriptions.\n", stderr);
    } else {
        put_list(&out, list);
    }
    if (out.failed)
        status = cli_fail(COMMAND, "Not enough memory.");
    else if (status == CLI_OK && out.size > 0)
        (void)fwrite(out.data, 1, out.size, stdout); /* main asks for ferror */
    buf_deinit(&out);
    return status;
}

static int list_all(struct cli *cli)
{
    struct walbus_reply *reply;
    int status =
        answer_ask(cli, COMMAND, "subscriptions", (struct bytes){NULL, 0}, NULL, NULL, &reply);

    if (status != CLI_OK)
        return status;
    status = show_list(cli, answer_item(answer_of(reply), "subscriptions"));
    walbus_reply_free(reply);
    return status;
}

/* ---- changing one ---- */

static int check_name(const char *name)
{
    return control_name_is_good(bytes_of_text(name))
               ? CLI_OK
               : cli_usage(COMMAND,
                           "'%s' cannot be a durable subscription's name: that has 1 to %d bytes, "
                           "all visible, without blanks.",
                           name, CONTROL_NAME_MAX);
}

/** Asks for `what` of this name, at a position or without, and says that it is done. */
static int change(struct cli *cli, const char *what, const char *name, const char *position,
                  const char *done)
{
    struct buf args = BUF_INIT;
    struct walbus_reply *reply = NULL;
    int status;

    cbor_put_map(&args, position ? 2 : 1);
    cbor_put_str(&args, "name");
    cbor_put_str(&args, name);
    if (position) {
        cbor_put_str(&args, "position");
        cbor_put_str(&args, position);
    }
    cli_begin_change(cli, done);
    status = args.failed ? cli_fail(COMMAND, "Not enough memory.")
                         : answer_ask(cli, COMMAND, what, buf_bytes(&args), NULL, NULL, &reply);
    walbus_reply_free(reply);
    buf_deinit(&args);
    if (status == CLI_OK)
        (void)printf("%s %s.\n", done, name); /* a name is visible */
    return status;
}

static int remove_one(struct cli *cli, int argc, char **argv)
{
    if (argc != 2)
        return cli_usage(COMMAND, "rm needs one name.");
    int status = check_name(argv[1]);
    return status == CLI_OK ? change(cli, "remove", argv[1], NULL, "Removed") : status;
}

static int seek_one(struct cli *cli, int argc, char **argv)
{
    struct start start = {.start = WALBUS_START_TIME};

    if (argc != 3)
        return cli_usage(COMMAND, "seek needs a name and where: a position, now or oldest.");
    int status = check_name(argv[1]);
    if (status != CLI_OK)
        return status;
    if (start_parse(argv[2], 0, &start) < 0 || start.start == WALBUS_START_TIME)
        return cli_usage(
            COMMAND, "Where to is a position as 1:0/16B3748:1, now or oldest, not '%s'.", argv[2]);
    return change(cli, "seek", argv[1], argv[2], "Moved");
}

static int subscriptions_run(struct cli *cli, void *state, int argc, char **argv)
{
    (void)state;
    if (argc == 0)
        return list_all(cli);
    if (strcmp(argv[0], "rm") == 0)
        return remove_one(cli, argc, argv);
    if (strcmp(argv[0], "seek") == 0)
        return seek_one(cli, argc, argv);
    return cli_usage(COMMAND, "There is nothing to be done with '%s'; there is rm and seek.",
                     argv[0]);
}

const struct cli_command cli_command_subscriptions = {
    .name = COMMAND,
    .usage = "[OPTION...] [rm NAME | seek NAME WHERE]",
    .sentence = "List the durable subscriptions, remove one, or move one.",
    .details =
        "The list says where each stands, how much of the journal lies behind that (all of it,\n"
        "whatever its filters are), how long ago the first of that was received, and who has it "
        "now;\n"
        "and, of one for which the journal could not be read, why, and since when.\n"
        "\n"
        "rm forgets a name; seek moves it behind a position, or to now or the oldest that the\n"
        "journal has. Neither while a subscriber has it. Only the router's own user and root may\n"
        "do either.\n"
        "\n"
        "Examples:\n"
        "  walbus subscriptions\n"
        "  walbus subscriptions --json\n"
        "  walbus subscriptions rm billing\n"
        "  walbus subscriptions seek billing oldest\n"
        "  walbus subscriptions seek billing 1:0/16B3748:4294967295",
    .common = cli_common_router,
    .run = subscriptions_run,
    .lists = true,
};
