/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_CLI_H
#define WALBUS_CLI_CLI_H

/*
 * The frame that every subcommand hangs in: one file a subcommand, one entry in
 * main's table, common options accepted before and after the command's name.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/macros.h"
#include "settings/settings.h"

enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_UNREACHABLE = 3, /* neither router nor server could be reached */
};

struct cli {
    struct settings settings; /* options over environment over --config's file over defaults */
    bool json;                /* --json, where the command lists something */
    const char *done;         /* cli_begin_change(); NULL for a command that only looks */
};

/** One option of a subcommand; the common ones (dsn, slot, publication, socket, config, help) are
 * added. */
struct cli_option {
    const char *name;    /* without dashes */
    const char *metavar; /* NULL: takes no argument */
    const char *sentence;
};

struct cli_command {
    const char *name;
    const char *usage;                /* "[OPTION…] PREFIX [DATA]" */
    const char *sentence;             /* what it does, in one sentence */
    const char *details;              /* further text and examples for --help; may be NULL */
    const struct cli_option *options; /* ended by an entry without name */
    /** Called once per given option of `options`; `value` is NULL for one without argument. Returns
     * CLI_OK, or CLI_USAGE after saying why on stderr. `state` is the command's own. */
    int (*option)(void *state, const struct cli_option *option, const char *value);
    /** Runs with the operands that are left. Returns the exit status. */
    int (*run)(struct cli *cli, void *state, int argc, char **argv);
    size_t state_size; /* zeroed memory for `state` */
    bool lists;        /* takes --json */
    const char *const *common; /* the settings that it needs, for --help, ended by NULL; all are accepted. NULL: all */
    bool hermetic;     /* settings come from the command line, and --config's file if it is there,
                          alone: neither from the environment nor from the default file */
};

/** For `common`: of what asks the router, of what connects to the server, of what meets neither. */
extern const char *const cli_common_router[], *const cli_common_server[], *const cli_common_none[];

extern const struct cli_command cli_command_setup, cli_command_teardown, cli_command_tail,
    cli_command_publish, cli_command_subscriptions, cli_command_status, cli_command_dev,
    cli_command_quarantine, cli_command_reload, cli_command_keygen, cli_command_inspect, cli_command_verify,
    cli_command_trust;

/**
 * The whole program: finds the command in the NULL-terminated list, reads options (common ones
 * before or after the command's name, mixed with operands; "--" ends them; "-" and a minus before a
 * digit are operands), settings, and runs it. --help and --version print to stdout and win over
 * running. Returns the exit status; a stdout that could not be written is CLI_FAILED, whatever was
 * done before.
 */
int cli_main(const struct cli_command *const *commands, int argc, char **argv);

/**
 * From here on the command changes what outlives it. Who reads stdout can end it no more, half-way
 * least of all: SIGPIPE is ignored. A stdout that could not be written after CLI_OK is told behind
 * `done`, as "Published": whoever only saw a failure would do it all again.
 */
void cli_begin_change(struct cli *cli, const char *done);

/** Writes what stdio still has for stdout. 0, or the errno of this or an earlier write that failed
 *  (EIO when that is no longer known). */
int cli_flush(void) MUST_CHECK;

/** The longest time that an option takes: in ns it still leaves room below 2^64 for the clock. */
#define CLI_DURATION_MAX_DAYS 10000
#define CLI_DURATION_MAX_US   (CLI_DURATION_MAX_DAYS * UINT64_C(86400000000))

/** The argument of an option that is a time above 0, without a unit in seconds. CLI_OK, or
 *  CLI_USAGE after saying why. */
int cli_take_duration(const char *command, const char *option, const char *value,
                      uint64_t *ret_us) MUST_CHECK;

/** The clause for a pattern or prefix that is missing: what the shell may have done with it. */
extern const char cli_shell_hint[];

/** Whether a setting was given as an option on the command line. */
bool cli_given(const struct cli *cli, const char *setting);

/** "walbus COMMAND: sentence" on stderr; returns CLI_FAILED. */
int cli_fail(const char *command, const char *fmt, ...) PRINTF_LIKE(2, 3);
/** The same, returning CLI_UNREACHABLE. */
int cli_unreachable(const char *command, const char *fmt, ...) PRINTF_LIKE(2, 3);
/** "walbus COMMAND: sentence" and the pointer to --help on stderr; returns CLI_USAGE. */
int cli_usage(const char *command, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
