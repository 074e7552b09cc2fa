/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "codec/cbor.h"
#include "codec/cose_key.h"
#include "explain.h"
#include "input.h"

#define NAME "inspect"

/* The column of the explanations: a head has up to 9 bytes, a row of a string fewer. */
#define HEX_WIDTH (3 * CBOR_HEAD_MAX)

struct inspect {
    bool all;
};

static const struct cli_option options[] = {
    {"all", NULL,
     "Show everything, however long; without it, at most 256 bytes of a string and 10,000 lines."},
    {NULL, NULL, NULL},
};

static int take_option(void *state, const struct cli_option *option, const char *value)
{
    struct inspect *i = state;

    (void)option;
    (void)value;
    i->all = true;
    return CLI_OK;
}

/* ---- rows ---- */

struct rows {
    int offset_width;
    bool json, any;
    struct buf line;
    bool failed;
};

static void print_line(struct rows *rows)
{
    rows->failed = rows->failed || rows->line.failed;
    (void)fwrite(rows->line.data, 1, rows->line.size, stdout); /* main asks for ferror */
    buf_clear(&rows->line);
}

static void print_row(void *context, const struct explain_row *row)
{
    struct rows *rows = context;
    struct buf *line = &rows->line;

    buf_printf(line, "%0*zx  ", rows->offset_width, row->offset);
    size_t start = line->size;
    for (size_t i = 0; i < row->bytes.size; i++)
        buf_printf(line, "%s%02x", i > 0 ? " " : "", row->bytes.data[i]);
    if (row->left_out > 0)
        buf_append_str(line, "…                        "); /* one column, three bytes */
    while (!line->failed && line->size - start < HEX_WIDTH)
        buf_append_u8(line, ' ');
    for (unsigned i = 0; i < row->depth; i++)
        buf_append_str(line, "  ");
    if (row->left_out > 0)
        buf_printf(line, "%zu more byte%s: ", row->left_out, row->left_out == 1 ? "" : "s");
    buf_append(line, row->text.data, row->text.size);
    buf_append_u8(line, '\n');
    print_line(rows);
}

static void print_row_json(void *context, const struct explain_row *row)
{
    struct rows *rows = context;
    struct buf *line = &rows->line;

    buf_printf(line, "%s\n{\"offset\":%zu,\"depth\":%u,", rows->any ? "," : "", row->offset,
               row->depth);
    if (row->left_out > 0) {
        buf_printf(line, "\"left_out\":%zu,", row->left_out);
    } else {
        buf_append_str(line, "\"bytes\":\"");
        text_put_hex(line, row->bytes);
        buf_append_str(line, "\",");
    }
    buf_append_str(line, "\"text\":");
    json_put_string(line, row->text);
    buf_append_u8(line, '}');
    rows->any = true;
    print_line(rows);
}

static int print_all(const struct cli *cli, const struct inspect *i, struct bytes content)
{
    const struct explain_limits bounded = {EXPLAIN_STRING_MAX, EXPLAIN_ROWS_MAX},
                                unbounded = {SIZE_MAX, SIZE_MAX};
    struct rows rows = {.offset_width = content.size > 0x10000 ? 8 : 4};
    struct buf what = BUF_INIT;
    enum explain_kind kind = explain_what(content, &what);
    int r;

    if (cli->json) {
        buf_printf(&rows.line, "{\"size\":%zu,\"kind\":\"%s\",\"is\":", content.size,
                   explain_kind_text(kind));
        json_put_string(&rows.line, buf_bytes(&what));
        buf_append_str(&rows.line, ",\"rows\":[");
    } else {
        buf_printf(&rows.line, "%zu byte%s, %s\n", content.size, content.size == 1 ? "" : "s",
                   buf_str(&what));
        if (content.size > 0)
            buf_append_u8(&rows.line, '\n');
    }
    print_line(&rows);
    r = explain_rows(content, i->all ? &unbounded : &bounded,
                     cli->json ? print_row_json : print_row, &rows);
    if (cli->json)
        (void)fputs("]}\n", stdout);
    if (r < 0 || rows.failed || what.failed)
        r = cli_fail(NAME, "Not enough memory.");
    buf_deinit(&rows.line);
    buf_deinit(&what);
    return r;
}

/* ---- the command ---- */

static int run(struct cli *cli, void *state, int argc, char **argv)
{
    struct buf content = BUF_INIT;
    int r, status;

    if (argc < 1)
        return cli_usage(NAME, "FILE is missing: what holds the content; - is stdin.");
    if (argc > 1)
        return cli_usage(NAME, "FILE is one argument, '%s' is one more.", argv[1]);
    r = input_read_file(argv[0], &content);
    if (r == -EFBIG)
        status = cli_fail(NAME, "%s is larger than %zu bytes, and so no content.",
                          input_file_name(argv[0]), INPUT_MAX);
    else if (r < 0)
        status = cli_fail(NAME, "Cannot read %s: %s.", input_file_name(argv[0]), strerror(-r));
    else if (cose_key_has_secret(buf_bytes(&content)))
        status = cli_fail(
            NAME,
            "%s is a private key: its bytes are for no screen. The public one can be inspected.",
            input_file_name(argv[0]));
    else
        status = print_all(cli, state, buf_bytes(&content));
    if (content.data)
        sodium_memzero(content.data, content.size);
    buf_deinit(&content);
    return status;
}

const struct cli_command cli_command_inspect = {
    .name = NAME,
    .usage = "[OPTION...] FILE",
    .sentence = "Explain a content byte by byte: event, signature, or what else it is.",
    .details = "FILE holds one message's content, as --output raw prints it; - is stdin. The first "
               "line says\n"
               "what it is. Each further one has an offset in hexadecimal, bytes, and what they "
               "say; what is\n"
               "inside is indented. What is malformed is explained as far as it goes, and then why "
               "it ends.\n"
               "Whether a signature is right is for 'walbus verify' to say.\n"
               "\n"
               "Examples:\n"
               "  walbus tail --output raw --count 1 'orders.>' | walbus inspect -\n"
               "  walbus inspect --json content.bin\n"
               "  walbus inspect orders.key.pub",
    .options = options,
    .option = take_option,
    .common = cli_common_none,
    .run = run,
    .state_size = sizeof(struct inspect),
    .lists = true,
};
