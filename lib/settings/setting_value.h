/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SETTINGS_SETTING_VALUE_H
#define WALBUS_SETTINGS_SETTING_VALUE_H

/* One value of a row as text: read, checked against the row's bounds, and written for people. */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"
#include "settings/settings.h"

/** Checks `text` as a value of the row; unless the row is a string or a list, *ret is its number, as struct
 *  settings holds it. 0; -EINVAL with `why`, one clause without a full stop. */
int setting_value_parse(const struct setting_row *row, const char *text, uint64_t *ret,
                        char why[SETTINGS_WHY_SIZE]) MUST_CHECK;

/** What a row that is no list takes: its choices as "a|b", its bounds as "100ms to 1h", or as "1 to 9 characters of a-z".
 *  A string's row has a max and characters, or neither. */
void setting_value_put_range(struct buf *out, const struct setting_row *row);

/** A word of the user's, made fit for a message: visible, and cut when it is long. In `out`, which
 *  is the caller's to free. */
const char *setting_value_shown(struct buf *out, const char *word, size_t size);

#endif
