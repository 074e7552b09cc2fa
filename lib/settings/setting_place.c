/* SPDX-License-Identifier: PostgreSQL */
#include "settings/setting_place.h"

#include <stdio.h>
#include <string.h>

const char *setting_place_hint(const char *value)
{
    for (const char *at = strchr(value, '#'); at; at = strchr(at + 1, '#'))
        if (at > value && (at[-1] == ' ' || at[-1] == '\t'))
            return "; behind a value a comment begins with ';'";
    return "";
}

/* What a value of the file is, to look for a comment in it; NULL: not text. */
static const char *value_of(const struct settings *s, const struct setting_row *row, size_t at, unsigned long *ret_line)
{
    const char *member = (const char *)s + row->offset;

    if (row->type == SETTING_LIST) {
        const struct setting_list *list = (const struct setting_list *)(const void *)member;

        *ret_line = at < list->n ? list->lines[at] : 0;
        return at < list->n ? list->values[at] : NULL;
    }
    *ret_line = s->lines[row - settings_rows];
    return row->type == SETTING_STRING ? *(char *const *)(const void *)member : NULL;
}

void setting_place_blame_variable(const char *variable, char why[SETTINGS_WHY_SIZE])
{
    char text[SETTINGS_WHY_SIZE];

    if (!variable)
        return;
    (void)snprintf(text, sizeof text, "%s: %.900s", variable, why);
    memcpy(why, text, sizeof text);
}

void setting_place_blame(const struct settings *s, const struct setting_row *row, size_t at,
                         char why[SETTINGS_WHY_SIZE])
{
    unsigned long line;
    const char *value = value_of(s, row, at, &line);
    size_t name = strlen(row->name);
    char text[SETTINGS_WHY_SIZE];

    switch (s->sources[row - settings_rows]) {
    case SETTING_FILE:
        if (!line || !s->file)
            return;
        (void)snprintf(text, sizeof text, "%.300s:%lu: %.600s%s", s->file, line, why,
                       value ? setting_place_hint(value) : "");
        break;
    case SETTING_ENVIRONMENT:
        setting_place_blame_variable(row->environment, why);
        return;
    case SETTING_OPTION:
        if (strncmp(why, row->name, name) == 0 && (why[name] == ':' || why[name] == ' '))
            (void)snprintf(text, sizeof text, "--%.900s", why);
        else
            (void)snprintf(text, sizeof text, "--%s: %.900s", row->name, why);
        break;
    case SETTING_DEFAULT:
    default:
        return;
    }
    memcpy(why, text, sizeof text);
}
