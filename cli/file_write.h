/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_FILE_WRITE_H
#define WALBUS_CLI_FILE_WRITE_H

/* Files that are there whole and on disk, or not at all. */

#include <stdbool.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/macros.h"

/** Makes a file that must not be there yet, not even as a dangling symbolic link, and syncs it; of a
 *  failure nothing is left. 0; -EEXIST; another negative errno. */
int file_write_new(const char *path, mode_t mode, struct bytes content) MUST_CHECK;

/**
 * Puts `content` into the place of the file at `path`, by a file beside it that is synced and
 * renamed: who reads gets the old one or the new one. `like` is what the old one is, or NULL when
 * there is none: its mode and owner are kept, and it is a failure when they cannot be; without, the
 * mode is 0644, whatever the umask. No signal comes in between. 0 or a negative errno, and the old one is
 * as it was; unless the folder alone could not be synced.
 */
int file_write_replace(const char *path, const struct stat *like, struct bytes content) MUST_CHECK;

/** Syncs the folder that `path` is in, so that its name is on disk. 0 or a negative errno. */
int file_write_sync_folder(const char *path) MUST_CHECK;

/** Keeps others away who change files in the same folder by these functions. */
struct file_lock {
    int fd; /* of the folder; -1: not locked */
};
#define FILE_LOCK_INIT ((struct file_lock){-1})

/** Waits for others, for up to 10 seconds. 0; -EAGAIN: they still have it; -ENOENT: there is no such
 *  folder; another negative errno. */
int file_write_lock(const char *path, struct file_lock *ret) MUST_CHECK;
void file_write_unlock(struct file_lock *lock);

/** Whether `path` is a symbolic link, to whatever. */
bool file_write_is_link(const char *path);

/** What is at `path`, itself and not what it points to: "a file", "a symbolic link", …; never NULL. */
const char *file_write_what_is_at(const char *path);

#endif
