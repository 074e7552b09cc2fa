/* SPDX-License-Identifier: PostgreSQL */
#include "publish_input.h"

#include <errno.h>
#include <string.h>

#include "cli.h"
#include "input.h"
#include "walbus/walbus.h"

#define NAME "publish"

_Static_assert(INPUT_MAX == WALBUS_LARGEST_CONTENT, "no input that cannot be published is needed");

int publish_input_failed(const char *what, int r)
{
    if (r == -EFBIG)
        return cli_fail(NAME, "%s is larger than %zu bytes.", what, INPUT_MAX);
    return cli_fail(NAME, "Cannot read %s: %s.", what, strerror(-r));
}

/* The bytes that the operand DATA stands for. */
static int read_operand(const char *data, struct buf *out)
{
    int r = input_read_operand(data, out);

    return r < 0 ? publish_input_failed(input_operand_name(data), r) : CLI_OK;
}

int publish_input_not_json(const char *where, const struct json_cbor_error *error)
{
    return cli_usage(NAME, "%s, column %zu: no usable JSON: %s. --raw publishes bytes as they are.",
                     where, error->column, error->text);
}

int publish_input_data(const char *data, bool raw, struct buf *out)
{
    struct buf input = BUF_INIT, where = BUF_INIT;
    struct json_cbor_error error;
    int status;

    if (raw)
        return read_operand(data, out);
    status = read_operand(data, &input);
    if (status == CLI_OK) {
        int r = json_to_cbor(buf_bytes(&input), out, &error);

        if (r == -EINVAL) {
            buf_printf(&where, "%s, line %zu", input_operand_name(data), error.line);
            status = publish_input_not_json(buf_str(&where), &error);
        } else if (r < 0) {
            status = cli_fail(NAME, "Not enough memory.");
        }
    }
    buf_deinit(&where);
    buf_deinit(&input);
    return status;
}
