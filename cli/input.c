/* SPDX-License-Identifier: PostgreSQL */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

/* Reads the next block when there is none: 1, at the end 0, or a negative errno. */
static int input_fill(struct input *in)
{
    ssize_t n;

    if (in->at < in->end)
        return 1;
    do
        n = read(in->fd, in->block, sizeof in->block);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    in->at = 0;
    in->end = (size_t)n;
    return n > 0;
}

int input_take(struct input *in, int delimiter, struct buf *out)
{
    bool any = false;
    int r;

    while ((r = input_fill(in)) > 0) {
        const uint8_t *from = in->block + in->at;
        size_t left = in->end - in->at;
        const uint8_t *found = delimiter < 0 ? NULL : memchr(from, delimiter, left);
        size_t n = found ? (size_t)(found - from) : left;

        any = true;
        buf_append(out, from, n);
        in->at += n + (found != NULL);
        if (out->failed)
            return -ENOMEM;
        if (out->size > INPUT_MAX)
            return -EFBIG;
        if (found)
            return 1;
    }
    return r < 0 ? r : any;
}

const char *input_operand_name(const char *operand)
{
    if (strcmp(operand, "-") == 0)
        return "stdin";
    return *operand == '@' ? operand + 1 : "DATA";
}

/* The whole of a file, or of stdin for NULL. */
static int read_whole(const char *path, struct buf *out)
{
    struct input *in = calloc(1, sizeof *in);
    int r;

    if (!in)
        return -ENOMEM;
    in->fd = path ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    r = in->fd < 0 ? -errno : input_take(in, -1, out);
    if (path)
        (void)fd_close(in->fd);
    sodium_memzero(in->block, sizeof in->block); /* it may have been a private key */
    free(in);
    return r < 0 ? r : 0;
}

int input_read_operand(const char *operand, struct buf *out)
{
    bool from_stdin = strcmp(operand, "-") == 0;

    if (from_stdin || *operand == '@')
        return read_whole(from_stdin ? NULL : operand + 1, out);
    buf_append_str(out, operand);
    return out->failed ? -ENOMEM : 0;
}

const char *input_file_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "stdin" : path;
}

int input_read_file(const char *path, struct buf *out)
{
    return read_whole(strcmp(path, "-") == 0 ? NULL : path, out);
}
