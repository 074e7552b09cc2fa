/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/buf.h"
#include "base/fd.h"
#include "settings/setting_place.h"
#include "settings/setting_value.h"

#define SECTION "walbusd"

/*
 * inih does the parsing, but some of what it does in silence would change a setting unnoticed, and
 * much of that depends on how it was built: it cuts lines that are longer than its buffer (200
 * bytes unless the build says otherwise) and goes on with the rest as a line of its own, ends a
 * line at a NUL, takes an indented line for more of the value above, ignores what stands behind a
 * section's ']', cuts a section's name after 49 bytes, and never mentions a section without keys.
 * So the lines are handed to it one by one through a reader that refuses what inih would
 * misunderstand, and takes the blanks off both ends. Line numbers are the reader's own.
 */

/* Debian's inih has its limit in a variable, others compiled in. Where the variable is, lines may
 * be as long as a connection string with every certificate's path in it. */
extern int ini_max_line __attribute__((weak));
#define LINE_MAX_WANTED 8192

struct file_reader {
    FILE *file;
    const char *path;
    struct settings *settings;
    char *why;
    char *line; /* getline's */
    size_t cap;
    unsigned long number;                    /* of the current line, from 1 */
    unsigned long set_at[SETTINGS_ROWS_MAX]; /* where a row was set, 0: not yet */
    int result;                              /* 0, or a negative errno: the reader stops */
};

static void PRINTF_LIKE(2, 3) file_fault(struct file_reader *f, const char *fmt, ...)
{
    struct buf text = BUF_INIT;
    va_list ap;

    if (f->result < 0)
        return;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    (void)snprintf(f->why, SETTINGS_WHY_SIZE, "%.200s:%lu: %.280s", f->path, f->number,
                   buf_str(&text));
    buf_deinit(&text);
    f->result = -EINVAL;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void check_section(struct file_reader *f, const char *line)
{
    const char *end = strchr(line, ']');

    /* Without the bracket inih itself refuses the line. */
    if (!end)
        return;
    const char *behind = end + 1;
    while (is_blank(*behind))
        behind++;
    if (*behind != '\0' && *behind != ';' && *behind != '#') {
        file_fault(f, "nothing may stand behind a section's ']'");
        return;
    }
    size_t size = (size_t)(end - line - 1);
    if (size != strlen(SECTION) || memcmp(line + 1, SECTION, size) != 0) {
        struct buf word = BUF_INIT;

        file_fault(f, "unknown section [%s]; the settings stand in [" SECTION "]",
                   setting_value_shown(&word, line + 1, size));
        buf_deinit(&word);
    }
}

/* inih takes a ';' behind a blank for the beginning of a comment, inside quotes as well, where a
 * connection string may well have one: `password='a ;b'`. */
static void check_comment(struct file_reader *f, const char *line)
{
    char quote = '\0';

    for (const char *at = line; *at; at++) {
        if (quote && *at == quote) {
            quote = '\0';
        } else if (quote && *at == ';' && is_blank(at[-1])) {
            file_fault(f, "a ';' behind a blank inside quotes would begin a comment; write the "
                          "connection as a URI, with %%20 and %%3B");
            return;
        } else if (!quote && *at == ';' && at > line && is_blank(at[-1])) {
            return;
        } else if (!quote && (*at == '\'' || *at == '"')) {
            quote = *at;
        }
    }
}

/* ini_reader: the next line without its blanks at both ends, or NULL at the end or at a fault. */
static char *file_next_line(char *out, int out_size, void *user)
{
    struct file_reader *f = user;

    if (f->result < 0)
        return NULL;
    errno = 0;
    ssize_t got = getline(&f->line, &f->cap, f->file);
    if (got < 0) {
        if (errno == ENOMEM)
            f->result = -ENOMEM;
        else if (ferror(f->file)) {
            (void)snprintf(f->why, SETTINGS_WHY_SIZE, "%.300s: cannot be read: %s", f->path,
                           strerror(errno));
            f->result = -EINVAL;
        }
        return NULL;
    }
    f->number++;

    size_t size = (size_t)got;
    char *line = f->line;
    if (memchr(line, '\0', size)) {
        file_fault(f, "the line holds a NUL byte");
        return NULL;
    }
    if (f->number == 1 && size >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
        size -= 3;
    }
    while (size > 0 && is_blank(line[size - 1]))
        size--;
    while (size > 0 && is_blank(*line)) {
        line++;
        size--;
    }
    line[size] = '\0';

    bool comment = *line == ';' || *line == '#';
    if (comment) {
        size = 0;
        line[0] = '\0';
    } else if (size >= (size_t)out_size) {
        file_fault(f, "the line has %zu bytes; %d are the most", size, out_size - 1);
    } else if (*line == '[') {
        check_section(f, line);
    } else {
        check_comment(f, line);
    }
    if (f->result < 0)
        return NULL;
    memcpy(out, line, size + 1);
    return out;
}

/* ini_handler: one key. What it returns counts for nothing, the reader stops at the first fault. */
static int file_key(void *user, const char *section, const char *name, const char *value)
{
    struct file_reader *f = user;
    const struct setting_row *row = settings_find(name);
    struct buf word = BUF_INIT;
    char fault[SETTINGS_WHY_SIZE];

    if (*section == '\0') {
        file_fault(f, "\"%s\" stands before any section; begin with [" SECTION "]",
                   setting_value_shown(&word, name, strlen(name)));
    } else if (!row) {
        const char *nearest = settings_nearest(name);

        file_fault(f,
                   nearest ? "unknown setting \"%s\"; did you mean \"%s\"?"
                           : "unknown setting \"%s\"%s",
                   setting_value_shown(&word, name, strlen(name)), nearest ? nearest : "");
    } else if (row->type != SETTING_LIST && f->set_at[row - settings_rows]) {
        file_fault(f, "%s was set before, in line %lu", row->name, f->set_at[row - settings_rows]);
    } else {
        f->settings->line = f->number;
        int r = settings_set(f->settings, row, value ? value : "", SETTING_FILE, fault);

        f->settings->line = 0;
        f->set_at[row - settings_rows] = f->number;
        if (r == -EINVAL)
            file_fault(f, "%.*s%s", SETTINGS_WHY_SIZE / 2, fault, setting_place_hint(value ? value : ""));
        else if (r < 0)
            f->result = r;
    }
    buf_deinit(&word);
    return 1;
}

/* Linux, Documentation/admin-guide/devices.txt: the device that is /dev/null, by whatever name. It is an empty file. */
static bool is_null_device(const struct stat *st)
{
    return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

/* Nothing is waited for: a FIFO, or a terminal, would stop the router in a reload. */
static int open_file(const char *path, FILE **ret, char why[SETTINGS_WHY_SIZE])
{
    struct stat st = {.st_mode = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd >= 0 && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode) && !is_null_device(&st)) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%.300s: is a %s, and must be a regular file or /dev/null", path,
                       S_ISDIR(st.st_mode) ? "folder" : S_ISFIFO(st.st_mode) ? "pipe" : "device");
        (void)fd_close(fd);
        return -EINVAL;
    }
    if (fd >= 0 && st.st_size > SETTINGS_FILE_MAX) { /* the router waits while it is read */
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%.300s: has %jd bytes; %d are the most", path, (intmax_t)st.st_size,
                       SETTINGS_FILE_MAX);
        (void)fd_close(fd);
        return -EINVAL;
    }
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%.300s: cannot be opened: %s", path, strerror(errno));
        if (fd >= 0)
            (void)fd_close(fd);
        return -EINVAL;
    }
    *ret = file;
    return 0;
}

int settings_from_file(struct settings *s, const char *path, char why[SETTINGS_WHY_SIZE])
{
    struct file_reader f = {.path = path, .settings = s, .why = why};
    int opened = open_file(path, &f.file, why);

    if (opened < 0)
        return opened;
    char *file = strdup(path);
    if (!file) {
        (void)fclose(f.file);
        return -ENOMEM;
    }
    free(s->file);
    s->file = file;
    int limit = 0;
    if (&ini_max_line) {
        limit = ini_max_line;
        ini_max_line = MAX(limit, LINE_MAX_WANTED);
    }
    int r = ini_parse_stream(file_next_line, &f, file_key, &f);
    if (&ini_max_line)
        ini_max_line = limit;
    (void)fclose(f.file);
    free(f.line);
    if (r > 0) {
        /* inih goes on behind a line that it cannot parse, so what the reader found came later. */
        f.result = 0;
        f.number = (unsigned long)r;
        file_fault(&f, "neither a [section] nor \"name = value\"");
    } else if (r < 0 && f.result == 0) {
        f.result = -ENOMEM;
    }
    return f.result;
}
