/* SPDX-License-Identifier: PostgreSQL */
#include "settings/setting_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* So much of a foreign word is shown that the sentence around it still fits. */
#define SHOWN_SIZE 60

const char *setting_value_shown(struct buf *out, const char *word, size_t size)
{
    text_put_visible(out, (struct bytes){(const uint8_t *)word, MIN(size, (size_t)SHOWN_SIZE)});
    if (size > SHOWN_SIZE)
        buf_append_str(out, "...");
    return buf_str(out);
}

static void put_number(struct buf *out, const struct setting_row *row, uint64_t v)
{
    switch (row->type) {
    case SETTING_SIZE:
        text_put_size(out, v);
        break;
    case SETTING_DURATION:
        text_put_duration(out, v);
        break;
    case SETTING_MODE:
        buf_printf(out, "%04" PRIo64, v);
        break;
    case SETTING_NUMBER:
        buf_printf(out, "%" PRIu64, v);
        break;
    case SETTING_STRING:
    case SETTING_CHOICE:
    case SETTING_LIST:
        break;
    }
}

void setting_value_put_range(struct buf *out, const struct setting_row *row)
{
    if (row->type == SETTING_CHOICE) {
        for (size_t i = 0; row->choices[i]; i++)
            buf_printf(out, "%s%s", i ? "|" : "", row->choices[i]);
        return;
    }
    if (row->type == SETTING_STRING) {
        buf_printf(out, "%" PRIu64 " to %" PRIu64 " characters of %s", row->min, row->max,
                   row->characters_text);
        return;
    }
    put_number(out, row, row->min);
    buf_append_str(out, " to ");
    put_number(out, row, row->max);
}

/* Digits of a base up to ten, and nothing else. */
static int parse_digits(const char *text, uint64_t base, uint64_t *ret)
{
    uint64_t v = 0;

    if (*text == '\0')
        return -EINVAL;
    for (const char *at = text; *at; at++)
        if (*at < '0' || *at >= '0' + (int)base)
            return -EINVAL;
    for (; *text; text++) {
        uint64_t digit = (uint64_t)(*text - '0');

        if (v > (UINT64_MAX - digit) / base)
            return -ERANGE;
        v = v * base + digit;
    }
    *ret = v;
    return 0;
}

static int parse_choice(const char *text, const char *const *choices, uint64_t *ret)
{
    for (size_t i = 0; choices[i]; i++)
        if (strcmp(text, choices[i]) == 0) {
            *ret = i;
            return 0;
        }
    return -EINVAL;
}

static const char *expected_text(enum setting_type type)
{
    switch (type) {
    case SETTING_STRING:
    case SETTING_LIST:
        return "";
    case SETTING_SIZE:
        return "a size as 16MB (B, kB, MB, GB, TB)";
    case SETTING_DURATION:
        return "a time as 10s (us, ms, s, min, h, d)";
    case SETTING_MODE:
        return "octal permissions as 0660";
    case SETTING_NUMBER:
        return "a whole number";
    case SETTING_CHOICE:
        return "one of ";
    }
    return "something else";
}

/* The sentence for a value that is not accepted. */
static int refuse(const struct setting_row *row, const char *value, bool out_of_range,
                  char why[SETTINGS_WHY_SIZE])
{
    struct buf shown = BUF_INIT, expected = BUF_INIT;

    if ((row->type == SETTING_STRING || row->type == SETTING_LIST) && *value == '\0') {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%s must not be empty", row->name);
        return -EINVAL;
    }
    buf_append_str(&expected, out_of_range ? "from " : expected_text(row->type));
    if (out_of_range || row->type == SETTING_CHOICE || row->type == SETTING_STRING)
        setting_value_put_range(&expected, row);
    (void)snprintf(why, SETTINGS_WHY_SIZE, "%s is \"%s\", but must be %s", row->name,
                   setting_value_shown(&shown, value, strlen(value)), buf_str(&expected));
    buf_deinit(&shown);
    buf_deinit(&expected);
    return -EINVAL;
}

static int parse_number(const struct setting_row *row, const char *value, uint64_t *ret)
{
    switch (row->type) {
    case SETTING_SIZE:
        return text_parse_size(value, ret);
    case SETTING_DURATION:
        return text_parse_duration(value, row->unit, ret);
    case SETTING_MODE:
        return parse_digits(value, 8, ret);
    case SETTING_NUMBER:
        return parse_digits(value, 10, ret);
    case SETTING_CHOICE:
        return parse_choice(value, row->choices, ret);
    case SETTING_STRING:
    case SETTING_LIST:
        break;
    }
    return -EINVAL;
}

static bool string_fits(const struct setting_row *row, const char *text)
{
    size_t size = strlen(text);

    return size >= row->min && (row->max == 0 || size <= row->max) &&
           (!row->characters || strspn(text, row->characters) == size);
}

/* What only the row itself knows of a text. */
static int check_text(const struct setting_row *row, const char *text, char why[SETTINGS_WHY_SIZE])
{
    char fault[SETTINGS_WHY_SIZE];
    int r = row->check ? row->check(text, fault) : 0;

    if (r == -EINVAL)
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%s: %.480s", row->name, fault);
    return r;
}

int setting_value_parse(const struct setting_row *row, const char *text, uint64_t *ret,
                        char why[SETTINGS_WHY_SIZE])
{
    uint64_t number;

    if (row->type == SETTING_LIST)
        return *text ? check_text(row, text, why) : refuse(row, text, false, why);
    if (row->type == SETTING_STRING)
        return string_fits(row, text) ? check_text(row, text, why) : refuse(row, text, false, why);

    int r = parse_number(row, text, &number);
    if (r == -EINVAL)
        return refuse(row, text, false, why);
    if (r < 0 || (row->type != SETTING_CHOICE && (number < row->min || number > row->max)))
        return refuse(row, text, true, why);
    *ret = number;
    return 0;
}
