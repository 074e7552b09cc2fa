/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SETTINGS_SETTING_PLACE_H
#define WALBUS_SETTINGS_SETTING_PLACE_H

/* Where a value stands, for those who find a fault with it: also when that takes more than the text. */

#include <stddef.h>

#include "settings/settings.h"

/** Puts in front of `why`, a clause about a value of this row, where the value is from: "FILE:LINE: ", "VARIABLE: " or
 * "--NAME: ", or "--" alone where the clause begins with the row's name; nothing for a default. Of a list it is the value with
 * index `at`, of others 0. Where in the file a comment seems to have become a part of it, that is said as well. */
void setting_place_blame(const struct settings *s, const struct setting_row *row, size_t at,
                         char why[SETTINGS_WHY_SIZE]);

/** The same where the place of something was taken from a variable, without any setting; NULL: it was not. */
void setting_place_blame_variable(const char *variable, char why[SETTINGS_WHY_SIZE]);

/** What to know of a value that holds a comment in the wrong way, to be put behind a clause; "" for others. */
const char *setting_place_hint(const char *value);

#endif
