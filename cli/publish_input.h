/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_PUBLISH_INPUT_H
#define WALBUS_CLI_PUBLISH_INPUT_H

/* What `walbus publish` is given to publish, and what it says when that cannot be used. */

#include <stdbool.h>

#include "base/buf.h"
#include "base/macros.h"
#include "json_cbor.h"

/** Appends what the operand DATA stands for: its bytes as they are, or its JSON text as CBOR.
 *  CLI_OK; else says why and returns the exit status. */
int publish_input_data(const char *data, bool raw, struct buf *out) MUST_CHECK;

/** Says why reading `what` failed with the negative errno `r`; returns CLI_FAILED. */
int publish_input_failed(const char *what, int r);
/** Says why the text at `where` is no JSON that can be published; returns CLI_USAGE. */
int publish_input_not_json(const char *where, const struct json_cbor_error *error);

#endif
