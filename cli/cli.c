/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/text.h"
#include "settings/settings_file.h"

/* ---- words on stderr ---- */

const char cli_shell_hint[] =
    "an unquoted > is taken by the shell as a redirection, so write it in "
    "quotes, as in 'orders.>'";

PRINTF_LIKE(2, 0) static void complain(const char *command, const char *fmt, va_list ap)
{
    struct buf sentence = BUF_INIT, line = BUF_INIT;

    buf_vprintf(&sentence, fmt, ap);
    buf_append_str(&line, "walbus");
    if (command)
        buf_printf(&line, " %s", command);
    buf_append_str(&line, ": ");
    text_put_visible(&line, buf_bytes(&sentence));
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s\n",
                  line.failed || sentence.failed ? "walbus: Not enough memory." : buf_str(&line));
    buf_deinit(&line);
    buf_deinit(&sentence);
}

int cli_fail(const char *command, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    complain(command, fmt, ap);
    va_end(ap);
    return CLI_FAILED;
}

int cli_unreachable(const char *command, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    complain(command, fmt, ap);
    va_end(ap);
    return CLI_UNREACHABLE;
}

int cli_usage(const char *command, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    complain(command, fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, "Try 'walbus %s%s--help'.\n", command ? command : "", command ? " " : "");
    return CLI_USAGE;
}

int cli_take_duration(const char *command, const char *option, const char *value, uint64_t *ret_us)
{
    uint64_t us;
    int rc = text_parse_duration(value, "s", &us);

    if (rc == -EINVAL || (rc == 0 && us == 0))
        return cli_usage(command, "--%s needs a time above 0 in seconds, not '%s'.", option, value);
    if (rc < 0 || us > CLI_DURATION_MAX_US)
        return cli_usage(command, "--%s can be %d days at most, not '%s'.", option,
                         CLI_DURATION_MAX_DAYS, value);
    *ret_us = us;
    return CLI_OK;
}

bool cli_given(const struct cli *cli, const char *setting)
{
    const struct setting_row *row = settings_find(setting);

    return row && cli->settings.sources[row - settings_rows] == SETTING_OPTION;
}

/* ---- help ---- */

static void put_option(struct buf *out, const char *name, const char *metavar, const char *sentence)
{
    buf_printf(out, "  --%s%s%s\n      %s\n", name, metavar ? " " : "", metavar ? metavar : "",
               sentence);
}

const char *const cli_common_router[] = {"socket", NULL};
const char *const cli_common_server[] = {"dsn", NULL};
const char *const cli_common_none[] = {NULL};

/* `names`: NULL-terminated; NULL: all. */
static bool is_named(const char *const *names, const char *name)
{
    for (size_t i = 0; names && names[i]; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return !names;
}

static void put_common_options(struct buf *out, const char *const *names, bool lists)
{
    for (size_t i = 0; i < settings_n_rows; i++)
        if (settings_rows[i].for_command && is_named(names, settings_rows[i].name))
            settings_help_row(out, &settings_rows[i], true);
    put_option(out, "config", "FILE",
               "Read settings from this file (default: " SETTINGS_DEFAULT_FILE
               ", if it is there).");
    if (lists)
        put_option(out, "json", NULL, "Print JSON.");
    put_option(out, "help", NULL, "Print this and exit.");
    put_option(out, "version", NULL, "Print the version and exit.");
}

static int print(struct buf *out)
{
    int status = CLI_OK;

    if (out->failed)
        status = cli_fail(NULL, "Not enough memory.");
    else
        (void)fwrite(out->data, 1, out->size, stdout);
    buf_deinit(out);
    return status;
}

static int help_program(const struct cli_command *const *commands)
{
    struct buf out = BUF_INIT;

    buf_append_str(&out, "Usage: walbus [OPTION...] COMMAND [OPTION...] [OPERAND...]\n"
                         "\n"
                         "Publish and subscribe on PostgreSQL's write-ahead log.\n"
                         "\n"
                         "Commands ('walbus COMMAND --help' explains each):\n");
    for (size_t i = 0; commands[i]; i++)
        buf_printf(&out, "  %-14s %s\n", commands[i]->name, commands[i]->sentence);
    buf_append_str(&out, "\nOptions, before or after the command:\n");
    put_common_options(&out, NULL, false);
    buf_append_str(
        &out,
        "\n"
        "Exit status: 0 success, 1 failed, 2 usage, 3 cannot reach the router or the server.\n"
        "\n"
        "Examples:\n"
        "  walbus setup --dsn 'host=/run/postgresql dbname=shop'\n"
        "  walbus tail 'orders.>'\n"
        "  walbus publish orders.created '{\"order\": 17}'\n");
    return print(&out);
}

static int help_command(const struct cli_command *command)
{
    struct buf out = BUF_INIT;

    buf_printf(&out, "Usage: walbus %s%s%s\n\n%s\n", command->name, *command->usage ? " " : "",
               command->usage, command->sentence);
    if (command->options && command->options[0].name) {
        buf_append_str(&out, "\nOptions:\n");
        for (const struct cli_option *o = command->options; o->name; o++)
            put_option(&out, o->name, o->metavar, o->sentence);
    }
    buf_append_str(&out, "\nCommon options:\n");
    put_common_options(&out, command->common, command->lists);
    if (command->details)
        buf_printf(&out, "\n%s\n", command->details);
    return print(&out);
}

/* ---- reading the command line ---- */

struct parse {
    struct cli *cli;
    const struct cli_command *const *commands;
    const struct cli_command *command; /* NULL until its name was read */
    void *state;
    const char *config;
    bool help, version;
    int argc;
    char **argv;
    int at;         /* the next argument */
    int n_operands; /* operands are gathered at the front of argv */
};

static const char *command_name(const struct parse *p)
{
    return p->command ? p->command->name : NULL;
}

/** Whether an option's argument is a pattern or prefix, a part of which the shell may have. */
static bool takes_prefix(const struct cli_command *command, const char *name)
{
    for (const struct cli_option *o = command ? command->options : NULL; o && o->name; o++)
        if (strcmp(o->name, name) == 0 && o->metavar)
            return strcmp(o->metavar, "PATTERN") == 0 || strcmp(o->metavar, "PREFIX") == 0;
    return false;
}

/** The argument of an option: behind its '=', or the next word. NULL after saying that there is
 * none. */
static const char *option_value(struct parse *p, const char *name, const char *inline_value)
{
    if (inline_value)
        return inline_value;
    if (p->at < p->argc)
        return p->argv[p->at++];
    bool hint = takes_prefix(p->command, name);
    (void)cli_usage(command_name(p), "The option --%s needs an argument%s%s.", name,
                    hint ? "; " : "", hint ? cli_shell_hint : "");
    return NULL;
}

static const struct cli_option *own_option(const struct parse *p, const char *name)
{
    const struct cli_option *o = p->command ? p->command->options : NULL;

    for (; o && o->name; o++)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

/** Every option's name that may stand here, for the nearest one to a wrong one. */
static int unknown_option(struct parse *p, const char *name)
{
    static const char *const always[] = {"config", "help", "version"};
    const struct cli_option *own = p->command ? p->command->options : NULL;
    size_t n_own = 0, n = 0;

    while (own && own[n_own].name)
        n_own++;
    const char **names = calloc(n_own + settings_n_rows + ARRAY_SIZE(always) + 2, sizeof *names);
    if (!names)
        return cli_fail(command_name(p), "Not enough memory.");
    if (strcmp(name, "json") == 0 && own_option(p, "output")) {
        free(names);
        return cli_usage(command_name(p), "There is no option --json; did you mean --output json?");
    }
    for (size_t i = 0; i < n_own; i++)
        names[n++] = own[i].name;
    for (size_t i = 0; i < settings_n_rows; i++)
        if (settings_rows[i].for_command)
            names[n++] = settings_rows[i].name;
    for (size_t i = 0; i < ARRAY_SIZE(always); i++)
        names[n++] = always[i];
    if (p->command && p->command->lists)
        names[n++] = "json";
    const char *nearest = text_nearest(name, names);
    int status = nearest ? cli_usage(command_name(p), "There is no option --%s; did you mean --%s?",
                                     name, nearest)
                         : cli_usage(command_name(p), "There is no option --%s.", name);
    free(names);
    return status;
}

/** What is wrong with a setting; some sentences end with a question. */
static int wrong_setting(const struct parse *p, const char *why)
{
    size_t size = strlen(why);

    return cli_usage(command_name(p), size > 0 && why[size - 1] == '?' ? "%s" : "%s.", why);
}

static int take_setting(struct parse *p, const struct setting_row *row, const char *value)
{
    char why[SETTINGS_WHY_SIZE];
    int rc = settings_set(&p->cli->settings, row, value, SETTING_OPTION, why);

    if (rc == -ENOMEM)
        return cli_fail(command_name(p), "Not enough memory.");
    return rc < 0 ? wrong_setting(p, why) : CLI_OK;
}

static int take_option(struct parse *p, const char *name, const char *inline_value)
{
    const struct cli_option *own = own_option(p, name);
    const struct setting_row *row = settings_find(name);
    const char *value = NULL;
    bool *flag = NULL;

    if (row && !row->for_command)
        row = NULL;
    if (!own && !row) {
        if (strcmp(name, "help") == 0)
            flag = &p->help;
        else if (strcmp(name, "version") == 0)
            flag = &p->version;
        else if (strcmp(name, "json") == 0 && (!p->command || p->command->lists))
            flag = &p->cli->json;
        else if (strcmp(name, "config") != 0)
            return unknown_option(p, name);
    }
    if (flag || (own && !own->metavar)) {
        if (inline_value)
            return cli_usage(command_name(p), "The option --%s takes no argument.", name);
    } else {
        value = option_value(p, name, inline_value);
        if (!value)
            return CLI_USAGE;
    }
    if (own)
        return p->command->option(p->state, own, value);
    if (row)
        return take_setting(p, row, value);
    if (flag)
        *flag = true;
    else
        p->config = value;
    return CLI_OK;
}

static int take_command(struct parse *p, const char *name)
{
    size_t n = 0;

    for (; p->commands[n]; n++)
        if (strcmp(p->commands[n]->name, name) == 0)
            break;
    p->command = p->commands[n];
    if (p->command) {
        if (p->command->state_size > 0) {
            p->state = calloc(1, p->command->state_size);
            if (!p->state)
                return cli_fail(name, "Not enough memory.");
        }
        return CLI_OK;
    }

    const char **names = calloc(n + 1, sizeof *names);
    if (!names)
        return cli_fail(NULL, "Not enough memory.");
    for (size_t i = 0; i < n; i++)
        names[i] = p->commands[i]->name;
    const char *nearest = text_nearest(name, names);
    int status =
        nearest ? cli_usage(NULL, "There is no command '%s'; did you mean '%s'?", name, nearest)
                : cli_usage(NULL, "There is no command '%s'.", name);
    free(names);
    return status;
}

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0' && !(word[1] >= '0' && word[1] <= '9');
}

static int take_word(struct parse *p, char *word)
{
    if (!is_option(word)) {
        if (!p->command)
            return take_command(p, word);
        p->argv[p->n_operands++] = word;
        return CLI_OK;
    }
    if (strcmp(word, "-h") == 0) {
        p->help = true;
        return CLI_OK;
    }
    if (word[1] != '-')
        return cli_usage(command_name(p), "There is no option %s; options begin with two dashes.",
                         word);

    char *equals = strchr(word, '=');
    if (!equals)
        return take_option(p, word + 2, NULL);
    char *name = strndup(word + 2, (size_t)(equals - word) - 2);
    if (!name)
        return cli_fail(command_name(p), "Not enough memory.");
    int status = take_option(p, name, equals + 1);
    free(name);
    return status;
}

static int take_words(struct parse *p)
{
    bool options = true;

    while (p->at < p->argc) {
        char *word = p->argv[p->at++];

        if (options && strcmp(word, "--") == 0) {
            options = false;
            continue;
        }
        if (!options && p->command) {
            p->argv[p->n_operands++] = word;
            continue;
        }
        int status = options ? take_word(p, word) : take_command(p, word);
        if (status != CLI_OK)
            return status;
    }
    return CLI_OK;
}

/* ---- running ---- */

static int read_settings(struct parse *p)
{
    const char *path = p->config ? p->config : SETTINGS_DEFAULT_FILE;
    char why[SETTINGS_WHY_SIZE];
    bool hermetic = p->command->hermetic;
    int rc = hermetic ? 0 : settings_from_environment(&p->cli->settings, true, why);

    if (hermetic && !p->config)
        return CLI_OK;
    /* the router's file may hold a dsn and be closed to others: users of the command go without */
    if (rc == 0 && !p->config && access(path, R_OK) < 0 && errno == EACCES)
        return CLI_OK;
    if (rc == 0)
        rc = settings_from_file(&p->cli->settings, path, why);
    if (rc == -ENOENT && !p->config)
        return CLI_OK;
    if (rc == -ENOENT)
        return cli_usage(command_name(p), "There is no file %s.", path);
    if (rc == -ENOMEM)
        return cli_fail(command_name(p), "Not enough memory.");
    return rc < 0 ? wrong_setting(p, why) : CLI_OK;
}

static int parse_and_run(struct parse *p)
{
    int status = take_words(p);

    if (status != CLI_OK)
        return status;
    if (p->help)
        return p->command ? help_command(p->command) : help_program(p->commands);
    if (p->version) {
        (void)puts("walbus " WALBUS_VERSION);
        return CLI_OK;
    }
    if (!p->command)
        return cli_usage(NULL, "A command is missing.");
    if (p->cli->json && !p->command->lists) /* given before the command's name */
        return unknown_option(p, "json");
    status = read_settings(p);
    if (status != CLI_OK)
        return status;
    p->argv[p->n_operands] = NULL;
    return p->command->run(p->cli, p->state, p->n_operands, p->argv);
}

void cli_begin_change(struct cli *cli, const char *done)
{
    cli->done = done;
    (void)signal(SIGPIPE, SIG_IGN);
}

int cli_flush(void)
{
    /* A write that failed before this flush has dropped what it had, and left only its mark. */
    bool failed = ferror(stdout);

    errno = 0;
    if (fflush(stdout) == 0 && !failed)
        return 0;
    return errno ? errno : EIO;
}

int cli_main(const struct cli_command *const *commands, int argc, char **argv)
{
    struct cli cli = {0};

    if (argc < 1)
        return CLI_USAGE;
    int opened = fd_open_standard();
    if (opened < 0)
        return cli_fail(NULL, "Cannot open /dev/null: %s.", strerror(-opened));
    if (settings_init(&cli.settings) < 0)
        return cli_fail(NULL, "Not enough memory.");
    struct parse p = {.cli = &cli, .commands = commands, .argc = argc, .argv = argv, .at = 1};
    int status = parse_and_run(&p);
    free(p.state);
    settings_deinit(&cli.settings);
    int why = cli_flush();
    if (why != 0 && status == CLI_OK)
        status =
            cli_fail(command_name(&p), "%s%s write to standard output: %s.",
                     cli.done ? cli.done : "", cli.done ? ", but cannot" : "Cannot", strerror(why));
    return status;
}
