/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SETTINGS_ACCESS_RULE_H
#define WALBUS_SETTINGS_ACCESS_RULE_H

/*
 * One rule of the setting "allow" as text. Pure: whether there is such a user is not asked here.
 *
 *   WHO subscribe PATTERN...     WHO    any
 *   WHO durable PATTERN...              user:NAME    user:UID
 *   WHO control PATTERN...              group:NAME   group:GID
 *
 * The patterns are those of filters (codec/subject.h): over prefixes, over durable names, over requests. A '*' or '>'
 * that would stand for itself is refused: who writes one means more than he would get.
 */

#include <stdbool.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "settings/settings.h"

enum access_who { ACCESS_ANY, ACCESS_USER, ACCESS_GROUP };
enum access_right { ACCESS_SUBSCRIBE, ACCESS_DURABLE, ACCESS_CONTROL };

struct access_rule {
    enum access_who who;
    struct bytes name;     /* of the user or group, or its number; borrowed from the text */
    enum access_right right;
    struct bytes patterns; /* with blanks between; borrowed from the text */
};

/** 0; -EINVAL with `why`, one clause without a full stop: the text is no rule. */
int access_rule_parse(const char *text, struct access_rule *ret, char why[SETTINGS_WHY_SIZE]) MUST_CHECK;

/** The same as a setting_row's check. */
int access_rule_check(const char *text, char why[SETTINGS_WHY_SIZE]) MUST_CHECK;

/** Splits off the next word: sets *ret_word, moves *rest behind it; false when none is left. */
bool access_rule_next(struct bytes *rest, struct bytes *ret_word);

/** "subscribe", "durable", "control". */
const char *access_right_text(enum access_right right);

#endif
