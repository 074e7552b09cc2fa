/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_INPUT_H
#define WALBUS_CLI_INPUT_H

/* Reading what the user hands over: an operand that is the thing itself, @FILE or - for stdin; and
 * stdin line by line. Neither grows beyond INPUT_MAX. */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"

/** Most bytes of one operand or line: WALBUS_LARGEST_CONTENT; nothing larger can be published. */
#define INPUT_MAX ((size_t)512 * 1024 * 1024)

/** A descriptor that is read in blocks. Set `fd`, and `at` and `end` to 0. */
struct input {
    int fd;
    size_t at, end; /* what of the block is still to be taken */
    uint8_t block[64 * 1024];
};

/**
 * Appends what comes up to `delimiter` (which is taken and left out), or with -1 up to the end.
 * 1; 0 when the end was reached before any byte; -EFBIG past INPUT_MAX; -ENOMEM; another negative
 * errno. After a failure the place in the input is not defined.
 */
int input_take(struct input *in, int delimiter, struct buf *out) MUST_CHECK;

/** Appends the bytes that an operand stands for: those of FILE for "@FILE", of stdin for "-", else
 *  its own. 0; -EFBIG past INPUT_MAX; -ENOMEM; another negative errno. */
int input_read_operand(const char *operand, struct buf *out) MUST_CHECK;

/** What to call an operand in a message: the file's name, "stdin", or "DATA". */
const char *input_operand_name(const char *operand);

/** The same for an operand that is a file's name, or - for stdin. */
int input_read_file(const char *path, struct buf *out) MUST_CHECK;
const char *input_file_name(const char *path);

#endif
