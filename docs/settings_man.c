/* SPDX-License-Identifier: PostgreSQL */
/*
 * Makes walbusd.8 from walbusd.8.in: the template's line @SETTINGS@ becomes one
 * list entry for each row of the table in lib/settings, so the page cannot
 * say something else than the program does. Built, never installed.
 *
 *   settings_man TEMPLATE OUTPUT
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "settings/settings.h"

#define MARKER    "@SETTINGS@"
#define LINE_SIZE 78

static _Noreturn void fail(const char *fmt, ...) PRINTF_LIKE(1, 2);

static _Noreturn void fail(const char *fmt, ...)
{
    va_list ap;

    fputs("settings_man: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

/* Text of mdoc: no request at a line's start, no escape, each sentence on lines of its own, none
 * over 80 bytes. */
static void put_text(FILE *out, const char *text)
{
    size_t column = 0;

    for (const char *at = text; *at;) {
        size_t word = strcspn(at, " ");
        bool sentence =
            at > text + 1 && at[-2] == '.' && (*at == '(' || isupper((unsigned char)*at));

        if (column && (sentence || column + 1 + word > LINE_SIZE)) {
            fputc('\n', out);
            column = 0;
        } else if (column) {
            fputc(' ', out);
            column++;
        }
        if (column == 0 && (*at == '.' || *at == '\''))
            fputs("\\&", out);
        column += word;
        for (; word > 0; word--, at++)
            fputs(*at == '\\' ? "\\e" : (char[]){*at, '\0'}, out);
        at += *at == ' ';
    }
    fputc('\n', out);
}

/*
 * --help is made from the same rows, and it alone knows how bounds and defaults
 * are written: "  --name METAVAR", a line with the sentence and, between
 * parentheses, the rest. Returns what stands behind this row's lines.
 */
static const char *put_row(FILE *out, const struct setting_row *row, const char *help)
{
    struct buf head = BUF_INIT, text = BUF_INIT;

    buf_printf(&head, "  --%s %s\n      ", row->name, row->metavar);
    if (strncmp(help, buf_str(&head), head.size) != 0)
        fail("--help does not show %s where the table has it", row->name);
    help += head.size;
    size_t size = strcspn(help, "\n");
    buf_append(&text, help, size);
    fprintf(out, ".It Fl -%s Ar %s\n", row->name, row->metavar);
    put_text(out, buf_str(&text));
    if (row->reloadable)
        fputs("Takes effect on\n.Dv SIGHUP .\n", out);
    if (head.failed || text.failed)
        fail("not enough memory");
    buf_deinit(&head);
    buf_deinit(&text);
    return help + size + (help[size] == '\n');
}

static void put_settings(FILE *out)
{
    struct buf help = BUF_INIT;

    settings_help(&help, false);
    const char *at = buf_str(&help);
    for (size_t i = 0; i < settings_n_rows; i++)
        at = put_row(out, &settings_rows[i], at);
    if (*at || help.failed)
        fail("--help shows more than the table has");
    buf_deinit(&help);
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0, found = 0;

    if (argc != 3)
        fail("usage: settings_man TEMPLATE OUTPUT");
    FILE *in = fopen(argv[1], "re");
    if (!in)
        fail("%s: %s", argv[1], strerror(errno));
    FILE *out = fopen(argv[2], "we");
    if (!out)
        fail("%s: %s", argv[2], strerror(errno));
    while (getline(&line, &cap, in) >= 0) {
        if (strcmp(line, MARKER "\n") == 0) {
            put_settings(out);
            found++;
        } else {
            fputs(line, out);
        }
    }
    if (ferror(in))
        fail("%s cannot be read", argv[1]);
    if (found != 1)
        fail("%s has the line " MARKER " %zu times, not once", argv[1], found);
    free(line);
    (void)fclose(in);
    if (fclose(out) != 0)
        fail("%s: %s", argv[2], strerror(errno));
    return 0;
}
