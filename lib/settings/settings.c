/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings.h"

#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/text.h"

#define SECTION "walbusd"

static const char *const log_formats[] = {
    [LOG_FORMAT_TEXT] = "text",
    [LOG_FORMAT_JSON] = "json",
    NULL,
};

static const char *const log_levels[] = {
    [LOG_DEBUG] = "debug",
    [LOG_INFO] = "info",
    [LOG_WARNING] = "warning",
    [LOG_ERROR] = "error",
    NULL,
};

#define MS   UINT64_C(1000)
#define HOUR (UINT64_C(3600) * 1000 * MS)

const struct setting_row settings_rows[] = {
    {
        .name = "dsn",
        .type = SETTING_STRING,
        .environment = "WALBUS_DSN",
        .for_command = true,
        .metavar = "CONNINFO",
        .sentence = "The server and database, as libpq's connection string or URI; what it leaves "
                    "out, libpq takes from its PG... variables and its own defaults.",
        .offset = offsetof(struct settings, dsn),
    },
    {
        .name = "slot",
        .type = SETTING_STRING,
        .preset = "walbus",
        .min = 1,
        .for_command = true,
        .metavar = "NAME",
        .sentence = "The replication slot that the router reads.",
        .offset = offsetof(struct settings, slot),
    },
    {
        .name = "publication",
        .type = SETTING_STRING,
        .preset = "walbus",
        .min = 1,
        .for_command = true,
        .metavar = "NAME",
        .sentence = "The publication that the slot is read with; an empty one is enough.",
        .offset = offsetof(struct settings, publication),
    },
    {
        .name = "socket",
        .type = SETTING_STRING,
        .min = 1,
        .environment = "WALBUS_SOCKET",
        .environment_for_command = true,
        .for_command = true,
        .metavar = "PATH",
        .sentence = "The Unix socket between router and subscribers.",
        .places = "$RUNTIME_DIRECTORY/walbus.sock, as root /run/walbus/walbus.sock, else "
                  "$XDG_RUNTIME_DIR/walbus.sock",
        .places_for_command = "the first that exists of $XDG_RUNTIME_DIR/walbus.sock and "
                              "/run/walbus/walbus.sock",
        .offset = offsetof(struct settings, socket),
    },
    {
        .name = "socket-mode",
        .type = SETTING_MODE,
        .preset = "0660",
        .max = 0777,
        .metavar = "MODE",
        .sentence = "The octal permissions of the socket.",
        .offset = offsetof(struct settings, socket_mode),
    },
    {
        .name = "socket-group",
        .type = SETTING_STRING,
        .min = 1,
        .metavar = "GROUP",
        .sentence = "The group that owns the socket, if not the router's own.",
        .offset = offsetof(struct settings, socket_group),
    },
    {
        .name = "heartbeat-interval",
        .type = SETTING_DURATION,
        .unit = "ms",
        .preset = "10s",
        .min = 100 * MS,
        .max = HOUR,
        .metavar = "TIME",
        .sentence = "How long no transaction may come before the router emits a heartbeat.",
        .offset = offsetof(struct settings, heartbeat_interval),
    },
    {
        .name = "log-format",
        .type = SETTING_CHOICE,
        .preset = "text",
        .choices = log_formats,
        .metavar = "FORMAT",
        .sentence = "How log lines are written to standard error.",
        .offset = offsetof(struct settings, log_format),
    },
    {
        .name = "log-level",
        .type = SETTING_CHOICE,
        .preset = "info",
        .choices = log_levels,
        .metavar = "LEVEL",
        .sentence = "The least serious log lines that are written.",
        .offset = offsetof(struct settings, log_level),
    },
};

#define N_ROWS ARRAY_SIZE(settings_rows)
const size_t settings_n_rows = N_ROWS;

_Static_assert(N_ROWS <= ARRAY_SIZE(((struct settings *)0)->sources), "a source for each row");

static char **string_of(struct settings *s, const struct setting_row *row)
{
    return (char **)(void *)((char *)s + row->offset);
}

static uint64_t *number_of(struct settings *s, const struct setting_row *row)
{
    return (uint64_t *)(void *)((char *)s + row->offset);
}

static enum setting_source *source_of(struct settings *s, const struct setting_row *row)
{
    return &s->sources[row - settings_rows];
}

int settings_init(struct settings *ret)
{
    struct settings s = {0};
    char why[SETTINGS_WHY_SIZE];

    for (size_t i = 0; i < N_ROWS; i++) {
        const struct setting_row *row = &settings_rows[i];
        int r = row->preset ? settings_set(&s, row, row->preset, SETTING_DEFAULT, why) : 0;

        if (r < 0) {
            settings_deinit(&s);
            return r;
        }
    }
    *ret = s;
    return 0;
}

void settings_deinit(struct settings *s)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (settings_rows[i].type == SETTING_STRING)
            free(*string_of(s, &settings_rows[i]));
    *s = (struct settings){0};
}

/* ---- one value ---- */

static void put_choices(struct buf *out, const char *const *choices)
{
    for (size_t i = 0; choices[i]; i++)
        buf_printf(out, "%s%s", i ? "|" : "", choices[i]);
}

/* The largest unit in which a number of µs or bytes is whole. */
static void put_number(struct buf *out, const struct setting_row *row, uint64_t v)
{
    static const struct {
        enum setting_type type;
        const char *word;
        uint64_t factor;
    } units[] = {
        {SETTING_DURATION, "d", 24 * HOUR},
        {SETTING_DURATION, "h", HOUR},
        {SETTING_DURATION, "min", HOUR / 60},
        {SETTING_DURATION, "s", 1000 * MS},
        {SETTING_DURATION, "ms", MS},
        {SETTING_DURATION, "us", 1},
        {SETTING_SIZE, "TB", UINT64_C(1) << 40},
        {SETTING_SIZE, "GB", UINT64_C(1) << 30},
        {SETTING_SIZE, "MB", UINT64_C(1) << 20},
        {SETTING_SIZE, "kB", UINT64_C(1) << 10},
        {SETTING_SIZE, "B", 1},
    };

    if (row->type == SETTING_MODE) {
        buf_printf(out, "%04" PRIo64, v);
        return;
    }
    for (size_t i = 0; i < ARRAY_SIZE(units); i++)
        if (units[i].type == row->type && v % units[i].factor == 0) {
            buf_printf(out, "%" PRIu64 "%s", v / units[i].factor, units[i].word);
            return;
        }
}

static int parse_mode(const char *text, uint64_t *ret)
{
    uint64_t v = 0;

    if (*text == '\0')
        return -EINVAL;
    for (; *text; text++) {
        if (*text < '0' || *text > '7')
            return -EINVAL;
        if (v > UINT64_MAX >> 3)
            return -ERANGE;
        v = v << 3 | (uint64_t)(*text - '0');
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
        return "text";
    case SETTING_SIZE:
        return "a size as 16MB (B, kB, MB, GB, TB)";
    case SETTING_DURATION:
        return "a time as 10s (us, ms, s, min, h, d)";
    case SETTING_MODE:
        return "octal permissions as 0660";
    case SETTING_CHOICE:
        return "one of ";
    }
    return "something else";
}

/* The sentence for a value that is not accepted. Foreign text in it is cut short. */
static int refuse(const struct setting_row *row, const char *value, bool out_of_range,
                  char why[SETTINGS_WHY_SIZE])
{
    struct buf shown = BUF_INIT, expected = BUF_INIT;
    size_t size = strlen(value);

    text_put_visible(&shown, (struct bytes){(const uint8_t *)value, MIN(size, 60u)});
    if (size > 60)
        buf_append_str(&shown, "...");
    if (row->type == SETTING_STRING) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%s must not be empty", row->name);
    } else if (out_of_range) {
        put_number(&expected, row, row->min);
        buf_append_str(&expected, " to ");
        put_number(&expected, row, row->max);
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%s is \"%s\", but must be from %s", row->name,
                       buf_str(&shown), buf_str(&expected));
    } else {
        buf_append_str(&expected, expected_text(row->type));
        if (row->type == SETTING_CHOICE)
            put_choices(&expected, row->choices);
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%s is \"%s\", but must be %s", row->name,
                       buf_str(&shown), buf_str(&expected));
    }
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
        return parse_mode(value, ret);
    case SETTING_CHOICE:
        return parse_choice(value, row->choices, ret);
    case SETTING_STRING:
        break;
    }
    return -EINVAL;
}

int settings_set(struct settings *s, const struct setting_row *row, const char *value,
                 enum setting_source source, char why[SETTINGS_WHY_SIZE])
{
    bool overruled = *source_of(s, row) > source;

    /* A value that a stronger source overrules is still looked at: a wrong line in the file is
     * wrong, whatever the options say. */
    if (row->type == SETTING_STRING) {
        if (strlen(value) < row->min)
            return refuse(row, value, false, why);
        if (overruled)
            return 0;
        char *copy = strdup(value);
        if (!copy)
            return -ENOMEM;
        free(*string_of(s, row));
        *string_of(s, row) = copy;
    } else {
        uint64_t number;
        int r = parse_number(row, value, &number);

        if (r == -EINVAL)
            return refuse(row, value, false, why);
        if (r < 0 || (row->type != SETTING_CHOICE && (number < row->min || number > row->max)))
            return refuse(row, value, true, why);
        if (overruled)
            return 0;
        *number_of(s, row) = number;
    }
    *source_of(s, row) = source;
    return 0;
}

const struct setting_row *settings_find(const char *name)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (strcmp(name, settings_rows[i].name) == 0)
            return &settings_rows[i];
    return NULL;
}

const char *settings_nearest(const char *name)
{
    const char *names[N_ROWS + 1];

    for (size_t i = 0; i < N_ROWS; i++)
        names[i] = settings_rows[i].name;
    names[N_ROWS] = NULL;
    return text_nearest(name, names);
}

int settings_from_environment(struct settings *s, bool command, char why[SETTINGS_WHY_SIZE])
{
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct setting_row *row = &settings_rows[i];
        char fault[SETTINGS_WHY_SIZE];

        if (!row->environment || (row->environment_for_command && !command))
            continue;
        const char *value = getenv(row->environment);
        /* Set to nothing is how shells and units say "not set". */
        if (!value || *value == '\0')
            continue;
        int r = settings_set(s, row, value, SETTING_ENVIRONMENT, fault);
        if (r == -EINVAL)
            (void)snprintf(why, SETTINGS_WHY_SIZE, "%s: %.400s", row->environment, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- the file ----
 *
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
    unsigned long number;         /* of the current line, from 1 */
    unsigned long set_at[N_ROWS]; /* where a row was set, 0: not yet */
    int result;                   /* 0, or a negative errno: the reader stops */
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

/* A foreign word, made fit for a message, in `out`. */
static const char *shown(struct buf *out, const char *word, size_t size)
{
    text_put_visible(out, (struct bytes){(const uint8_t *)word, MIN(size, 60u)});
    if (size > 60)
        buf_append_str(out, "...");
    return buf_str(out);
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
                   shown(&word, line + 1, size));
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
                   shown(&word, name, strlen(name)));
    } else if (!row) {
        const char *nearest = settings_nearest(name);

        file_fault(f,
                   nearest ? "unknown setting \"%s\"; did you mean \"%s\"?"
                           : "unknown setting \"%s\"%s",
                   shown(&word, name, strlen(name)), nearest ? nearest : "");
    } else if (f->set_at[row - settings_rows]) {
        file_fault(f, "%s was set before, in line %lu", row->name, f->set_at[row - settings_rows]);
    } else {
        int r = settings_set(f->settings, row, value ? value : "", SETTING_FILE, fault);

        f->set_at[row - settings_rows] = f->number;
        if (r == -EINVAL)
            file_fault(f, "%s", fault);
        else if (r < 0)
            f->result = r;
    }
    buf_deinit(&word);
    return 1;
}

int settings_from_file(struct settings *s, const char *path, char why[SETTINGS_WHY_SIZE])
{
    struct file_reader f = {.path = path, .settings = s, .why = why};

    f.file = fopen(path, "re");
    if (!f.file && errno == ENOENT)
        return -ENOENT;
    if (!f.file) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%.300s: cannot be opened: %s", path,
                       strerror(errno));
        return -EINVAL;
    }
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

/* ---- for people ---- */

static void put_help_row(struct buf *out, const struct setting_row *row, bool command)
{
    const char *separator = " (";

    buf_printf(out, "  --%s %s\n      %s", row->name, row->metavar, row->sentence);
    if (row->choices) {
        buf_printf(out, "%s", separator);
        put_choices(out, row->choices);
        separator = "; ";
    } else if (row->max) {
        buf_printf(out, "%s", separator);
        put_number(out, row, row->min);
        buf_append_str(out, " to ");
        put_number(out, row, row->max);
        separator = "; ";
    }
    if (row->preset) {
        buf_printf(out, "%sdefault %s", separator, row->preset);
        separator = "; ";
    }
    const char *places = command ? row->places_for_command : row->places;
    if (places) {
        buf_printf(out, "%sif not given: %s", separator, places);
        separator = "; ";
    }
    if (row->type == SETTING_DURATION) {
        buf_printf(out, "%sa bare number is in %s", separator, row->unit);
        separator = "; ";
    }
    if (row->environment && (command || !row->environment_for_command)) {
        buf_printf(out, "%senvironment %s", separator, row->environment);
        separator = "; ";
    }
    if (separator[0] == ';')
        buf_append_u8(out, ')');
    buf_append_u8(out, '\n');
}

void settings_help(struct buf *out, bool command_only)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (!command_only || settings_rows[i].for_command)
            put_help_row(out, &settings_rows[i], command_only);
}

/* ---- places ---- */

#define SOCKET_NAME        "walbus.sock"
#define SYSTEM_SOCKET_PATH "/run/walbus/" SOCKET_NAME

/* Hands a path over, if a socket can have it. */
static int give_path(const char *path, char **ret, char why[SETTINGS_WHY_SIZE])
{
    size_t size = strlen(path);

    if (size > FD_SOCKET_PATH_MAX) {
        (void)snprintf(why, SETTINGS_WHY_SIZE,
                       "the socket path has %zu bytes, a socket can have %zu: %.300s", size,
                       FD_SOCKET_PATH_MAX, path);
        return -EINVAL;
    }
    char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    *ret = copy;
    return 0;
}

/* The socket in a folder, of which only the first `size` bytes count. */
static int give_path_in(const char *folder, size_t size, char **ret, char why[SETTINGS_WHY_SIZE])
{
    struct buf path = BUF_INIT;

    buf_append(&path, folder, size);
    buf_append_str(&path, "/" SOCKET_NAME);
    int r = -ENOMEM;
    const char *text = buf_str(&path);
    if (!path.failed)
        r = give_path(text, ret, why);
    buf_deinit(&path);
    return r;
}

/* A variable that names a folder, NULL when there is none. */
static const char *folder_variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value == '/' ? value : NULL;
}

int settings_router_socket(const struct settings *s, char **ret, char why[SETTINGS_WHY_SIZE])
{
    const char *folder;

    if (s->socket)
        return give_path(s->socket, ret, why);
    /* systemd separates the folders of several RuntimeDirectory= by colons. */
    folder = folder_variable("RUNTIME_DIRECTORY");
    if (folder)
        return give_path_in(folder, strcspn(folder, ":"), ret, why);
    if (geteuid() == 0)
        return give_path(SYSTEM_SOCKET_PATH, ret, why);
    folder = folder_variable("XDG_RUNTIME_DIR");
    if (folder)
        return give_path_in(folder, strlen(folder), ret, why);
    (void)snprintf(why, SETTINGS_WHY_SIZE,
                   "no place for the socket: neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set; "
                   "give one with --socket");
    return -EINVAL;
}

int settings_client_socket(const struct settings *s, char **ret, char why[SETTINGS_WHY_SIZE])
{
    const char *folder = folder_variable("XDG_RUNTIME_DIR");
    char *path = NULL;

    if (s->socket)
        return give_path(s->socket, ret, why);
    if (folder) {
        int r = give_path_in(folder, strlen(folder), &path, why);

        /* A folder too deep for a socket cannot hold one: look further. */
        if (r == -ENOMEM)
            return r;
        if (r == 0 && access(path, F_OK) == 0) {
            *ret = path;
            return 0;
        }
        free(path);
    }
    if (access(SYSTEM_SOCKET_PATH, F_OK) == 0)
        return give_path(SYSTEM_SOCKET_PATH, ret, why);
    (void)snprintf(why, SETTINGS_WHY_SIZE,
                   "no router found: there is no socket at %.200s%s" SYSTEM_SOCKET_PATH
                   "; start walbusd, or name its socket with --socket",
                   folder ? folder : "", folder ? "/" SOCKET_NAME " or " : "");
    return -ENOENT;
}
