/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_FILE_H
#define WALBUS_BASE_FILE_H

/*
 * Small files that are read whole: keys, trust files, settings. Never waits: what is no regular
 * file (a FIFO, a device, a folder) is refused, by the descriptor that is then read.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

#define FILE_WHY_SIZE 512

/** Whoever may read or write the file, group and others may not, and it belongs to this process's
 *  user or to root. Its bytes are a secret: they stand in locked memory. */
#define FILE_PRIVATE 1u
/** Not everybody may write the file: something hangs on what it says. */
#define FILE_TRUSTED 2u

/** What stood in a file. */
struct file_content {
    uint8_t *data; /* owned; never NULL, also for an empty file; a NUL stands behind the last byte */
    size_t size;   /* bytes, without that NUL */
    unsigned flags;
};

static inline struct bytes file_bytes(const struct file_content *content)
{
    return (struct bytes){content->data, content->size};
}

/**
 * Reads a file of at most `max` bytes. 0; -ENOMEM; or another negative errno, and `why` is a
 * sentence for people that begins with the path: what open(2) or read(2) answer; -EINVAL: no
 * regular file; -EFBIG: longer; -EPERM: against FILE_PRIVATE or FILE_TRUSTED.
 * With -ENOMEM `why` is written too: it may be that no more memory may be locked (RLIMIT_MEMLOCK).
 */
int file_read(const char *path, size_t max, unsigned flags, struct file_content *ret,
              char why[FILE_WHY_SIZE]) MUST_CHECK;

/** Wipes the bytes, which may be a secret that nobody expected there, and frees them. Twice is once. */
void file_content_deinit(struct file_content *content);

#endif
