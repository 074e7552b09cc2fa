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

void setting_place_blame(const struct settings *s, const struct setting_row *row, size_t at,
                         char why[SETTINGS_WHY_SIZE])
{
    unsigned long line;
    const char *value = value_of(s, row, at, &line);
    char text[SETTINGS_WHY_SIZE];

    if (!line || !s->file)
        return;
    (void)snprintf(text, sizeof text, "%.160s:%lu: %.270s%s", s->file, line, why,
                   value ? setting_place_hint(value) : "");
    memcpy(why, text, sizeof text);
}
