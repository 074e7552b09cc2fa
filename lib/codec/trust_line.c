/* SPDX-License-Identifier: PostgreSQL */
#include "codec/trust_line.h"

#include <string.h>

#include "codec/trust.h"

struct trust_lines trust_lines_init(char *text, size_t size)
{
    struct trust_lines lines = {text, text + size, 0};

    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        lines.at += 3;
    return lines;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Without its blanks at both ends, and with a NUL behind it: there is always a byte, of the blanks,
 * the line's end, a '=' or a ']', or the one behind the text. */
static struct bytes trim(char *from, char *to)
{
    while (from < to && is_blank(to[-1]))
        to--;
    while (from < to && is_blank(*from))
        from++;
    *to = '\0';
    return (struct bytes){(const uint8_t *)from, (size_t)(to - from)};
}

static void take_apart(struct trust_line *line, char *from, char *to)
{
    char *equals;

    while (from < to && is_blank(*from))
        from++;
    while (from < to && is_blank(to[-1]))
        to--;
    equals = from < to ? memchr(from, '=', (size_t)(to - from)) : NULL;
    if (from == to || *from == '#' || *from == ';') {
        line->kind = TRUST_LINE_BLANK;
    } else if (*from == '[' && to[-1] == ']') {
        line->kind = TRUST_LINE_SECTION;
        line->name = trim(from + 1, to - 1);
    } else if (*from != '[' && equals) {
        line->kind = TRUST_LINE_ENTRY;
        line->value = trim(equals + 1, to);
        line->name = trim(from, equals);
    } else {
        line->kind = TRUST_LINE_OTHER;
        line->value = trim(from, to);
    }
}

bool trust_lines_next(struct trust_lines *lines, struct trust_line *ret)
{
    char *from = lines->at, *to, *next;

    if (from == lines->end)
        return false;
    to = memchr(from, '\n', (size_t)(lines->end - from));
    next = to ? to + 1 : lines->end;
    to = to ? to : lines->end;
    *ret = (struct trust_line){
        .whole = {(const uint8_t *)from, (size_t)(next - from)},
    };
    lines->at = next;
    lines->number++;
    if ((size_t)(to - from) > TRUST_LINE_MAX) {
        ret->kind = TRUST_LINE_TOO_LONG;
        ret->value = (struct bytes){(const uint8_t *)from, (size_t)(to - from)};
    } else if (memchr(from, '\0', (size_t)(to - from))) {
        ret->kind = TRUST_LINE_NUL;
    } else {
        take_apart(ret, from, to);
    }
    return true;
}

bool trust_comment_in(struct bytes value)
{
    for (size_t i = 0; i < value.size; i++)
        if ((value.data[i] == '#' || value.data[i] == ';') &&
            (i == 0 || value.data[i - 1] == ' ' || value.data[i - 1] == '\t'))
            return true;
    return false;
}
