/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SETTINGS_SETTINGS_FILE_H
#define WALBUS_SETTINGS_SETTINGS_FILE_H

/* The settings file: INI, section [walbusd], keys as the options without dashes in front. */

#include "base/macros.h"
#include "settings/settings.h"

#define SETTINGS_DEFAULT_FILE "/etc/walbus/walbus.conf"

/** Longest file, in bytes: all settings with a thousand rules are a tenth of it. */
#define SETTINGS_FILE_MAX (1 << 20)

/** Reads a file. A missing one is -ENOENT, without `why`. Every fault is -EINVAL with file and line in
 *  `why` ("/etc/walbus/walbus.conf:3: …"): a syntax error, an unknown section or key, a key twice that is no list, a value that is
 *  not accepted, a NUL, a line that is too long. A file that is no regular one (or /dev/null), is longer than
 *  SETTINGS_FILE_MAX, or cannot be opened or read: -EINVAL. -ENOMEM.
 *  After a fault the lines above it are set. Not for two threads at once: inih's limits are global. */
int settings_from_file(struct settings *s, const char *path,
                       char why[SETTINGS_WHY_SIZE]) MUST_CHECK;

#endif
