/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SETTINGS_SETTINGS_CHANGE_H
#define WALBUS_SETTINGS_SETTINGS_CHANGE_H

/* Settings that are read again while others are in force. */

#include <stdbool.h>

#include "base/macros.h"
#include "settings/settings.h"

/** A copy of its own, with the sources and lines. 0 or -ENOMEM. */
int settings_copy(const struct settings *s, struct settings *ret) MUST_CHECK;
/** Whether a row has the same value in both, wherever it comes from. */
bool settings_row_equal(const struct settings *a, const struct settings *b, const struct setting_row *row);
/** Exchanges a row's values, and where they come from; both are of the same file. */
void settings_row_swap(struct settings *a, struct settings *b, const struct setting_row *row);

#endif
