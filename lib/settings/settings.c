/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "codec/trust.h"
#include "settings/access_rule.h"
#include "settings/setting_value.h"

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

static const char *const when_fulls[] = {
    [WHEN_FULL_PAUSE] = "pause",
    [WHEN_FULL_DISCARD] = "discard",
    NULL,
};

/* As whoever signs and verifies takes it: for another one nothing could ever be valid. */
static int check_audience(const char *text, char why[SETTINGS_WHY_SIZE])
{
    const char *fault = trust_audience_fault(bytes_of_text(text));

    if (!fault)
        return 0;
    (void)snprintf(why, SETTINGS_WHY_SIZE, "the audience %s", fault);
    return -EINVAL;
}

/* PostgreSQL's: ReplicationSlotValidateName in slot.c, whose length is NAMEDATALEN less its NUL. */
#define SLOT_NAME_MAX 63

#define MS   UINT64_C(1000)
#define HOUR (UINT64_C(3600) * 1000 * MS)
#define DAY  (24 * HOUR)
#define MB   (UINT64_C(1) << 20)

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
        .max = SLOT_NAME_MAX,
        .characters = "abcdefghijklmnopqrstuvwxyz0123456789_",
        .characters_text = "a-z, 0-9 and _",
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
        .name = "state-dir",
        .type = SETTING_STRING,
        .min = 1,
        .metavar = "FOLDER",
        .sentence = "Where the journal and the durable subscriptions are kept; an absolute path.",
        .places = "$STATE_DIRECTORY, as root /var/lib/walbus, else $XDG_STATE_HOME/walbus or "
                  "~/.local/state/walbus",
        .offset = offsetof(struct settings, state_dir),
    },
    {
        .name = "journal-size",
        .type = SETTING_SIZE,
        .preset = "1GB",
        .min = 4 * MB,
        .max = UINT64_C(1) << 50,
        .metavar = "SIZE",
        .sentence = "How much the journal keeps, in whole segments.",
        .offset = offsetof(struct settings, journal_size),
    },
    {
        .name = "journal-age",
        .type = SETTING_DURATION,
        .unit = "s",
        .preset = "0",
        .max = 36500 * DAY,
        .metavar = "TIME",
        .sentence = "How long the journal keeps what nobody waits for, of the router's running time; 0: as long as "
                    "there is room.",
        .offset = offsetof(struct settings, journal_age),
    },
    {
        .name = "segment-size",
        .type = SETTING_SIZE,
        .preset = "16MB",
        .min = 1 * MB,
        .max = 1024 * MB,
        .metavar = "SIZE",
        .sentence = "The size of the journal's files.",
        .offset = offsetof(struct settings, segment_size),
    },
    {
        .name = "sync-interval",
        .type = SETTING_DURATION,
        .unit = "ms",
        .preset = "10ms",
        .max = 10000 * MS,
        .metavar = "TIME",
        .sentence = "The shortest time between two syncs of the journal.",
        .offset = offsetof(struct settings, sync_interval),
    },
    {
        .name = "when-full",
        .type = SETTING_CHOICE,
        .preset = "pause",
        .choices = when_fulls,
        .metavar = "WHAT",
        .sentence = "What happens when a durable subscription needs what the full journal should drop: reading from "
                    "the server waits, or the subscription loses the oldest and is told a gap.",
        .offset = offsetof(struct settings, when_full),
    },
    {
        .name = "expire-after",
        .type = SETTING_DURATION,
        .unit = "s",
        .preset = "30d",
        .max = 36500 * DAY,
        .metavar = "TIME",
        .sentence = "After how long without a subscriber, of the router's running time, a durable name is removed; 0: "
                    "never.",
        .offset = offsetof(struct settings, expire_after),
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
        .name = "allow",
        .type = SETTING_LIST,
        .max = 1000,
        .check = access_rule_check,
        .reloadable = true,
        .metavar = "RULE",
        .sentence = "Who else than root and the router's own user may do what: any, user:NAME or group:NAME; then "
                    "subscribe and patterns, durable and patterns of names, or control and requests.",
        .offset = offsetof(struct settings, allow),
    },
    {
        .name = "connections-per-uid",
        .type = SETTING_NUMBER,
        .preset = "256",
        .min = 1,
        .max = 1000,
        .reloadable = true,
        .metavar = "NUMBER",
        .sentence = "Most connections of one user at a time; root and the router's own user are not counted.",
        .offset = offsetof(struct settings, connections_per_uid),
    },
    {
        .name = "subscriptions-per-uid",
        .type = SETTING_NUMBER,
        .preset = "128",
        .min = 1,
        .max = 1000,
        .reloadable = true,
        .metavar = "NUMBER",
        .sentence = "Most subscriptions of one user: those that are connected, and the durable names that it has "
                    "made; root and the router's own user are not counted.",
        .offset = offsetof(struct settings, subscriptions_per_uid),
    },
    {
        .name = "bytes-per-uid",
        .type = SETTING_SIZE,
        .preset = "8MB",
        .min = 1 * MB,
        .max = 64 * MB,
        .reloadable = true,
        .metavar = "SIZE",
        .sentence = "Most bytes of unfinished frames, answers and filters that are held for one user, and as many "
                    "again, 8MB at most, of what waits for its clients to read it; root and the router's own user are "
                    "not counted.",
        .offset = offsetof(struct settings, bytes_per_uid),
    },
    {
        .name = "policy",
        .type = SETTING_LIST,
        .max = 1000,
        .reloadable = true,
        .metavar = "RULE",
        .sentence = "What is asked of the signatures of a pattern's messages: the pattern, then ignore, verify or "
                    "require; the first that matches counts, without one it is ignore.",
        .offset = offsetof(struct settings, policy),
    },
    {
        .name = "trust-file",
        .type = SETTING_STRING,
        .preset = "/etc/walbus/trust",
        .min = 1,
        .reloadable = true,
        .metavar = "FILE",
        .sentence = "Which keys are trusted, and for which prefixes.",
        .offset = offsetof(struct settings, trust_file),
    },
    {
        .name = "audience",
        .type = SETTING_STRING,
        .check = check_audience,
        .reloadable = true,
        .metavar = "TEXT",
        .sentence = "For whom messages are signed, where a key of the trust file says nothing else; without it nobody "
                    "in particular.",
        .offset = offsetof(struct settings, audience),
    },
    {
        .name = "quarantine-size",
        .type = SETTING_SIZE,
        .preset = "256MB",
        .min = 1 * MB,
        .max = UINT64_C(1) << 50,
        .reloadable = true,
        .metavar = "SIZE",
        .sentence = "How much is kept of the messages that policy has kept back.",
        .offset = offsetof(struct settings, quarantine_size),
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
        .reloadable = true,
        .metavar = "LEVEL",
        .sentence = "The least serious log lines that are written.",
        .offset = offsetof(struct settings, log_level),
    },
};

#define N_ROWS ARRAY_SIZE(settings_rows)
const size_t settings_n_rows = N_ROWS;

_Static_assert(N_ROWS <= SETTINGS_ROWS_MAX, "a source for each row");

static char **string_of(struct settings *s, const struct setting_row *row)
{
    return (char **)(void *)((char *)s + row->offset);
}

static uint64_t *number_of(struct settings *s, const struct setting_row *row)
{
    return (uint64_t *)(void *)((char *)s + row->offset);
}

static struct setting_list *list_of(struct settings *s, const struct setting_row *row)
{
    return (struct setting_list *)(void *)((char *)s + row->offset);
}

static void list_clear(struct setting_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->values[i]);
    free(list->values);
    free(list->lines);
    *list = (struct setting_list){0};
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
        else if (settings_rows[i].type == SETTING_LIST)
            list_clear(list_of(s, &settings_rows[i]));
    free(s->file);
    *s = (struct settings){0};
}

static int set_string(char **at, const char *value)
{
    char *copy = strdup(value);

    if (!copy)
        return -ENOMEM;
    free(*at);
    *at = copy;
    return 0;
}

/* One value more; `replace`: all that there was came from a weaker source. */
static int set_list(struct setting_list *list, const struct setting_row *row, const char *value, bool replace,
                    unsigned long line, char why[SETTINGS_WHY_SIZE])
{
    struct setting_list before = *list;
    size_t n = replace ? 0 : before.n;

    if (n >= row->max) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "%s may be given %" PRIu64 " times", row->name, row->max);
        return -EINVAL;
    }
    struct setting_list grown = replace ? (struct setting_list){0} : before;
    char *copy = strdup(value);
    char **values = copy ? reallocarray(grown.values, n + 1, sizeof *values) : NULL;
    if (values)
        grown.values = values;
    unsigned long *lines = values ? reallocarray(grown.lines, n + 1, sizeof *lines) : NULL;
    if (!lines) {
        free(copy);
        if (replace)
            free(grown.values);
        else
            *list = grown;
        return -ENOMEM;
    }
    if (replace)
        list_clear(&before);
    values[n] = copy;
    lines[n] = line;
    *list = (struct setting_list){.values = values, .lines = lines, .n = n + 1};
    return 0;
}

int settings_set(struct settings *s, const struct setting_row *row, const char *value,
                 enum setting_source source, char why[SETTINGS_WHY_SIZE])
{
    uint64_t number = 0;
    /* A value that a stronger source overrules is still looked at: a wrong line in the file is
     * wrong, whatever the options say. */
    int r = setting_value_parse(row, value, &number, why);

    if (r < 0 || *source_of(s, row) > source)
        return r;
    if (row->type == SETTING_STRING)
        r = set_string(string_of(s, row), value);
    else if (row->type == SETTING_LIST)
        r = set_list(list_of(s, row), row, value, *source_of(s, row) < source, s->line, why);
    else
        *number_of(s, row) = number;
    if (r < 0)
        return r;
    *source_of(s, row) = source;
    if (row->type != SETTING_LIST)
        s->lines[row - settings_rows] = s->line;
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

void settings_help_row(struct buf *out, const struct setting_row *row, bool command)
{
    const char *separator = " (";

    buf_printf(out, "  --%s %s\n      %s", row->name, row->metavar, row->sentence);
    if (row->type == SETTING_LIST) {
        buf_printf(out, "%smay be given again, up to %" PRIu64 " times", separator, row->max);
        separator = "; ";
    } else if (row->choices || row->max) {
        buf_append_str(out, separator);
        setting_value_put_range(out, row);
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
            settings_help_row(out, &settings_rows[i], command_only);
}
