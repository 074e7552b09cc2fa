/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <stdio.h>

#include "answer.h"
#include "base/buf.h"
#include "base/text.h"
#include "codec/cbor.h"

#define COMMAND "reload"

/* "Changed: allow, log-level." Nothing for an empty list. */
static int put_list(struct buf *out, const char *begin, struct bytes list)
{
    struct answer_walk w;
    struct bytes item, name;
    const char *separator = begin;

    if (!answer_walk_start(&w, list, CBOR_ARRAY))
        return -EINVAL;
    while (answer_walk_next(&w, NULL, &item)) {
        struct cbor_reader r = cbor_reader_init(item);

        if (cbor_read_text(&r, &name) != CBOR_OK)
            return -EINVAL;
        buf_append_str(out, separator);
        text_put_visible(out, name);
        separator = ", ";
    }
    if (separator != begin)
        buf_append_str(out, ".\n");
    return w.left == 0 ? 0 : -EINVAL;
}

static int put_answer(struct buf *out, struct bytes answer, bool json)
{
    struct bytes restart = answer_item(answer, "restart");
    int rc;

    if (json) {
        rc = cbor_print_json(answer, out) == CBOR_OK ? 0 : -EINVAL;
        buf_append_u8(out, '\n');
        return rc;
    }
    rc = put_list(out, "Changed: ", answer_item(answer, "changed"));
    if (rc == 0 && restart.size)
        rc = put_list(out, "Takes effect at a restart of the router: ", restart);
    if (rc == 0 && out->size == 0)
        buf_append_str(out, "Nothing has changed.\n");
    return rc;
}

static int reload_run(struct cli *cli, void *state, int argc, char **argv)
{
    struct walbus_reply *reply;
    struct buf out = BUF_INIT;

    (void)state;
    if (argc > 0)
        return cli_usage(COMMAND, "There is nothing to be done with '%s'.", argv[0]);
    cli_begin_change(cli, "Reloaded");
    int status = answer_ask(cli, COMMAND, "reload", (struct bytes){NULL, 0}, NULL, NULL, &reply);
    if (status != CLI_OK)
        return status;
    int rc = put_answer(&out, answer_of(reply), cli->json);
    if (rc < 0)
        status = cli_fail(COMMAND, "The router's answer cannot be read.");
    else if (out.failed)
        status = cli_fail(COMMAND, "Not enough memory.");
    else
        (void)fwrite(out.data, 1, out.size, stdout); /* main asks for ferror */
    buf_deinit(&out);
    walbus_reply_free(reply);
    return status;
}

const struct cli_command cli_command_reload = {
    .name = COMMAND,
    .usage = "[OPTION...]",
    .sentence = "Make the router read its settings again.",
    .details =
        "Says which settings have changed, and which of them wait for a restart. When something is\n"
        "wrong with the router's settings file, nothing changes, and the line is named.\n"
        "\n"
        "Examples:\n"
        "  walbus reload\n"
        "  systemctl reload walbusd",
    .common = cli_common_router,
    .run = reload_run,
    .lists = true,
};
