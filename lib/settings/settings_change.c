/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings_change.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a row's member is, by its type. */
union value {
    char *string;
    uint64_t number;
    struct setting_list list;
};

static size_t size_of(const struct setting_row *row)
{
    switch (row->type) {
    case SETTING_STRING:
        return sizeof(char *);
    case SETTING_LIST:
        return sizeof(struct setting_list);
    case SETTING_SIZE:
    case SETTING_DURATION:
    case SETTING_MODE:
    case SETTING_CHOICE:
    case SETTING_NUMBER:
        break;
    }
    return sizeof(uint64_t);
}

static union value get(const struct settings *s, const struct setting_row *row)
{
    union value v = {.list = {NULL, NULL, 0}};

    memcpy(&v, (const char *)s + row->offset, size_of(row));
    return v;
}

static void put(struct settings *s, const struct setting_row *row, union value v)
{
    memcpy((char *)s + row->offset, &v, size_of(row));
}

static int copy_row(const struct settings *s, struct settings *to, const struct setting_row *row)
{
    enum setting_source source = s->sources[row - settings_rows];
    union value v = get(s, row);
    char why[SETTINGS_WHY_SIZE]; /* it was accepted before */
    int r = 0;

    if (row->type == SETTING_LIST) {
        for (size_t i = 0; r == 0 && i < v.list.n; i++) {
            to->line = v.list.lines[i];
            r = settings_set(to, row, v.list.values[i], source, why);
        }
        to->line = 0;
    } else if (row->type == SETTING_STRING && v.string) {
        r = settings_set(to, row, v.string, source, why);
    } else {
        put(to, row, v);
    }
    to->sources[row - settings_rows] = source;
    to->lines[row - settings_rows] = s->lines[row - settings_rows];
    return r;
}

int settings_copy(const struct settings *s, struct settings *ret)
{
    struct settings copy = {.file = s->file ? strdup(s->file) : NULL};
    int r = s->file && !copy.file ? -ENOMEM : 0;

    for (size_t i = 0; r == 0 && i < settings_n_rows; i++)
        r = copy_row(s, &copy, &settings_rows[i]);
    if (r < 0) {
        settings_deinit(&copy);
        return r;
    }
    *ret = copy;
    return 0;
}

static bool texts_equal(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool settings_row_equal(const struct settings *a, const struct settings *b, const struct setting_row *row)
{
    union value x = get(a, row), y = get(b, row);

    if (row->type == SETTING_STRING)
        return texts_equal(x.string, y.string);
    if (row->type != SETTING_LIST)
        return x.number == y.number;
    bool equal = x.list.n == y.list.n;
    for (size_t i = 0; equal && i < x.list.n; i++)
        equal = texts_equal(x.list.values[i], y.list.values[i]);
    return equal;
}

void settings_row_swap(struct settings *a, struct settings *b, const struct setting_row *row)
{
    union value x = get(a, row), y = get(b, row);
    size_t at = (size_t)(row - settings_rows);
    enum setting_source source = a->sources[at];
    unsigned long line = a->lines[at];

    put(a, row, y);
    put(b, row, x);
    a->sources[at] = b->sources[at];
    b->sources[at] = source;
    a->lines[at] = b->lines[at];
    b->lines[at] = line;
}
