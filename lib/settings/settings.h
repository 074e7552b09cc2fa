/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SETTINGS_SETTINGS_H
#define WALBUS_SETTINGS_SETTINGS_H

/*
 * The settings of walbusd and, as far as they concern it, of walbus: one table
 * of rows, from which parsing of options, environment and file, `--help`, and the man
 * page's table are made. An option beats the environment, the environment the
 * file, the file the default. An unknown key is an error that names the nearest known one.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/macros.h"

/** Room for a clause of 512 bytes, and what stands in front of it. */
#define SETTINGS_WHY_SIZE 1024
/** Room for the table's rows. */
#define SETTINGS_ROWS_MAX 40

enum setting_source { SETTING_DEFAULT = 0, SETTING_FILE, SETTING_ENVIRONMENT, SETTING_OPTION };

enum setting_type {
    SETTING_STRING,
    SETTING_SIZE,     /* uint64_t, bytes */
    SETTING_DURATION, /* uint64_t, µs */
    SETTING_MODE,     /* uint64_t, octal file mode */
    SETTING_CHOICE,   /* uint64_t, index into `choices` */
    SETTING_NUMBER,   /* uint64_t, a count */
    SETTING_LIST,     /* struct setting_list: given again it is one value more */
};

enum when_full { WHEN_FULL_PAUSE = 0, WHEN_FULL_DISCARD };

/** The values of a SETTING_LIST, in the order in which they were given. */
struct setting_list {
    char **values;
    unsigned long *lines; /* of the file, where each stands; 0: it is from elsewhere */
    size_t n;
};

/** What the table fills. Strings and lists are owned; free with settings_deinit. NULL: not set. */
struct settings {
    char *dsn;
    char *slot;
    char *publication;
    char *socket;
    uint64_t socket_mode;
    char *socket_group;
    char *state_dir;
    uint64_t journal_size, segment_size;  /* bytes */
    uint64_t journal_age, expire_after;   /* µs; 0: none */
    uint64_t sync_interval;               /* µs */
    uint64_t when_full;                   /* enum when_full */
    uint64_t heartbeat_interval; /* µs */
    struct setting_list allow;   /* rules of who may do what */
    uint64_t connections_per_uid, subscriptions_per_uid;
    uint64_t bytes_per_uid;      /* bytes */
    struct setting_list policy;  /* which prefixes must be signed */
    char *trust_file;
    char *audience;
    uint64_t quarantine_size;    /* bytes */
    uint64_t log_format; /* enum log_format */
    uint64_t log_level;  /* enum log_level */
    enum setting_source sources[SETTINGS_ROWS_MAX]; /* by row */
    unsigned long lines[SETTINGS_ROWS_MAX]; /* by row: of the file; 0: it is from elsewhere, or a list */
    char *file;          /* which file that is; owned; NULL: none was read */
    unsigned long line;  /* of the file that is being read; 0: none is */
};

struct setting_row {
    const char *name;   /* as in the file; "--name" as option */
    enum setting_type type;
    const char *unit;   /* durations: unit of a bare number */
    const char *preset; /* the default, as it would be written; NULL: none */
    uint64_t min, max;  /* bounds of numbers; of a string its bytes, with a max of 0 as many as one likes; of a list the
                           max is the most values */
    const char *characters;      /* all that a string may be made of; NULL: any */
    const char *characters_text; /* the same for people */
    const char *const *choices; /* NULL-terminated, for SETTING_CHOICE */
    /** Looks at a string or at one value of a list, or NULL. It is pure: names of users, files and such are not looked
     * up, as walbus reads the file too. 0; -EINVAL with `why`, one clause without the row's name and a full stop;
     * -ENOMEM. */
    int (*check)(const char *value, char why[SETTINGS_WHY_SIZE]);
    const char *environment; /* variable, or NULL */
    bool environment_for_command; /* only walbus reads the variable: it names the router to talk to,
                                     and a router must not be moved by it */
    bool for_command;   /* walbus has it as an option too */
    bool reloadable;    /* takes effect on SIGHUP */
    const char *metavar;
    const char *sentence;
    const char *places; /* where it is looked for without the setting, for --help; or NULL */
    const char *places_for_command;
    size_t offset;      /* in struct settings */
};

extern const struct setting_row settings_rows[];
extern const size_t settings_n_rows;

/** Defaults. 0 or -ENOMEM. */
int settings_init(struct settings *ret) MUST_CHECK;
void settings_deinit(struct settings *s);

/** Sets one row from text unless a stronger source has set it; the text is checked in either case. A list gets one
 * value more; the first value of a stronger source takes the place of all that it had. 0; -EINVAL with `why`, one
 * clause without a full stop; -ENOMEM. */
int settings_set(struct settings *s, const struct setting_row *row, const char *value,
                 enum setting_source source, char why[SETTINGS_WHY_SIZE]) MUST_CHECK;

/** The row of a name, or NULL. */
const struct setting_row *settings_find(const char *name);
/** The nearest known name, or NULL. */
const char *settings_nearest(const char *name);

/** Sets what the environment says; an empty variable counts for nothing. `command`: walbus asks, not
 *  walbusd, see environment_for_command. 0; -EINVAL with `why`; -ENOMEM. */
int settings_from_environment(struct settings *s, bool command, char why[SETTINGS_WHY_SIZE]) MUST_CHECK;

/** The option table for --help: one paragraph a row. command_only: for walbus, rows with for_command. */
void settings_help(struct buf *out, bool command_only);
/** One paragraph of it. command: as walbus has the option. */
void settings_help_row(struct buf *out, const struct setting_row *row, bool command);

#endif
