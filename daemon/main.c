/* SPDX-License-Identifier: PostgreSQL */
/* walbusd: options, limits of the process, one router, its exit status. */
#include <errno.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <sodium.h>
#include <uv.h>

#include "base/fd.h"
#include "base/macros.h"
#include "base/socket_place.h"
#include "pg/connect.h"
#include "router.h"
#include "settings/setting_place.h"
#include "settings/settings.h"
#include "settings/settings_change.h"
#include "settings/settings_file.h"

/* The settings, and what is an option only. */
#define OPTIONS_MAX (SETTINGS_ROWS_MAX + 5)

enum { OPTION_HELP = 256, OPTION_VERSION, OPTION_CONFIG, OPTION_ACCEPT_GAP, OPTION_ROW };

static void print_help(void)
{
    struct buf text = BUF_INIT;

    buf_append_str(&text,
                   "Usage: walbusd [OPTION…]\n"
                   "Reads one replication slot of PostgreSQL and hands every logical message on,\n"
                   "by its prefix, to subscribers on a Unix socket.\n\n"
                   "Every setting below is an option and a key of the file's section [walbusd].\n\n");
    settings_help(&text, false);
    buf_append_str(&text,
                   "  --config FILE\n"
                   "      Settings file instead of " SETTINGS_DEFAULT_FILE ", which may be missing.\n"
                   "  --accept-gap\n"
                   "      Goes on although messages are lost: when at this start the slot or the\n"
                   "      server is not what the journal was read from. The gap is logged and told\n"
                   "      to every subscriber. An option only, for one start.\n"
                   "  --help, --version\n\n"
                   "SIGTERM and SIGINT stop it. SIGHUP reads the settings file again, as 'walbus reload'.\n\n"
                   "Exit status: 0 clean stop, 1 failure, 2 usage or configuration,\n"
                   "4 the slot or the server is not what it was: the operator must decide.\n\n"
                   "Example:\n"
                   "  walbusd --dsn 'host=/run/postgresql dbname=shop user=walbus'\n");
    (void)fputs(buf_str(&text), stdout);
    buf_deinit(&text);
}

static int usage(const char *fmt, ...) PRINTF_LIKE(1, 2);

static int usage(const char *fmt, ...)
{
    va_list ap;

    (void)fputs("walbusd: ", stderr);
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void)fputs(" (walbusd --help)\n", stderr);
    return ROUTER_EXIT_USAGE;
}

static int unknown_option(const char *word)
{
    const char *name = word;

    while (*name == '-')
        name++;
    const char *near = settings_nearest(name);
    (void)fprintf(stderr, "walbusd: unknown option \"%s\"", word);
    if (near)
        (void)fprintf(stderr, ", did you mean --%s?", near);
    (void)fputs(" (walbusd --help)\n", stderr);
    return ROUTER_EXIT_USAGE;
}

/* -1: go on; else the exit status. */
static int read_options(int argc, char **argv, struct settings *settings, const char **ret_config,
                        bool *ret_accept_gap)
{
    struct option options[OPTIONS_MAX];
    char why[SETTINGS_WHY_SIZE];
    size_t n = 0;
    int option;

    for (size_t i = 0; i < settings_n_rows; i++)
        options[n++] = (struct option){settings_rows[i].name, required_argument, NULL,
                                       OPTION_ROW + (int)i};
    options[n++] = (struct option){"config", required_argument, NULL, OPTION_CONFIG};
    options[n++] = (struct option){"accept-gap", no_argument, NULL, OPTION_ACCEPT_GAP};
    options[n++] = (struct option){"help", no_argument, NULL, OPTION_HELP};
    options[n++] = (struct option){"version", no_argument, NULL, OPTION_VERSION};
    options[n] = (struct option){0};
    opterr = 0;
    while (true) {
        int at = optind;

        option = getopt_long(argc, argv, ":", options, NULL);
        if (option < 0)
            break;
        if (option == OPTION_HELP) {
            print_help();
            return ROUTER_EXIT_OK;
        }
        if (option == OPTION_VERSION) {
            (void)puts("walbusd " WALBUS_VERSION);
            return ROUTER_EXIT_OK;
        }
        if (option == OPTION_CONFIG) {
            *ret_config = optarg;
            continue;
        }
        if (option == OPTION_ACCEPT_GAP) {
            *ret_accept_gap = true;
            continue;
        }
        if (option == ':')
            return usage("option \"%s\" misses its value", argv[at]);
        if (option == '?')
            return unknown_option(argv[at]);
        int r = settings_set(settings, &settings_rows[option - OPTION_ROW], optarg, SETTING_OPTION, why);
        if (r < 0)
            return usage("%s", r == -ENOMEM ? "no memory" : why);
    }
    if (optind < argc)
        return usage("unexpected operand \"%s\"", argv[optind]);
    return -1;
}

static int check_dsn(const struct settings *settings)
{
    struct buf why = BUF_INIT;
    const struct setting_row *row = settings_find("dsn");
    int r = connect_dsn_check(settings->dsn, &why), status = -1;
    char text[SETTINGS_WHY_SIZE];

    (void)snprintf(text, sizeof text, "dsn: %.450s", r == -ENOMEM ? "no memory" : buf_str(&why));
    if (r < 0) {
        setting_place_blame(settings, row, 0, text);
        status = usage("%s", text);
    } else if (settings->dsn && settings->sources[row - settings_rows] == SETTING_OPTION &&
             connect_dsn_has_password(settings->dsn)) {
        (void)fputs("walbusd: warning: a password in --dsn can be read by every user of this machine; "
                    "PGPASSFILE names a file for it\n", stderr);
    }
    buf_deinit(&why);
    return status;
}

/* `above`: what the file is read under, to read it again. */
static int read_settings(int argc, char **argv, struct settings *settings, struct settings *above,
                         struct router_origin *ret_origin, bool *ret_accept_gap)
{
    char why[SETTINGS_WHY_SIZE] = "no memory";
    const char *config = NULL;
    int e = read_options(argc, argv, settings, &config, ret_accept_gap);

    if (e >= 0)
        return e;
    if (settings_from_environment(settings, false, why) < 0)
        return usage("%s", why);
    if (settings_copy(settings, above) < 0)
        return usage("no memory");
    *ret_origin = (struct router_origin){.without_file = above, .file = config ? config : SETTINGS_DEFAULT_FILE};
    int r = settings_from_file(settings, ret_origin->file, why);
    ret_origin->file_was_there = r == 0;
    if (r == -ENOENT && config)
        return usage("there is no file \"%s\"", config);
    if (r < 0 && r != -ENOENT)
        return usage("%s", why);
    return check_dsn(settings);
}

static void prepare_process(void)
{
    struct rlimit files;

    (void)signal(SIGPIPE, SIG_IGN);
    /* Large contents go back to the system when they are freed, at any time: glibc would otherwise
     * raise this threshold after the first one and keep later ones on the heap. */
    (void)mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    (void)mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
    /* libuv's own number, four, are readers of the journal and the catalog's commits; two more check signatures, and one puts into
     * quarantine. It is read with the first work. */
    (void)setenv("UV_THREADPOOL_SIZE", "7", 0);
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* else the stream's pause of 50 µs lasts 120 */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max; /* one descriptor a subscriber; select() is not used */
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

static int run(struct settings *settings, struct router_origin origin, const char *socket_path, bool accept_gap,
               struct logger *log)
{
    uv_loop_t loop;
    struct router router;
    int e = uv_loop_init(&loop);

    if (e < 0) {
        log_line(log, LOG_ERROR, "router.start", "The event loop cannot start.",
                 LOG_STR("error", uv_strerror(e)));
        return ROUTER_EXIT_FAILURE;
    }
    /* One that comes before the router can act on it waits, instead of ending the process and leaving the socket. */
    sigset_t stop, before;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTERM);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &stop, &before);
    int status = router_open(&router, &loop, settings, origin, socket_path, accept_gap, log);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == 0) {
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        (void)pthread_sigmask(SIG_BLOCK, &stop, NULL); /* it ends anyway, with its own status */
        status = router.exit_code;
        router_deinit(&router);
        log_line(log, LOG_INFO, "router.stopped", "The router has stopped.",
                 LOG_I64("exit", status));
    } else {
        (void)uv_run(&loop, UV_RUN_DEFAULT); /* lets what was closed go */
    }
    (void)uv_loop_close(&loop);
    return status;
}

int main(int argc, char **argv)
{
    struct settings settings, above = {0};
    struct router_origin origin;
    struct logger log = {.out = stderr, .level = LOG_INFO};
    char why[MAX(SOCKET_PLACE_WHY_SIZE, SETTINGS_WHY_SIZE)];
    char *socket_path = NULL;
    bool accept_gap = false;

    (void)signal(SIGHUP, SIG_IGN); /* until the loop takes it: there is nothing to be read again yet */
    if (fd_open_standard() < 0 || sodium_init() < 0 || settings_init(&settings) < 0) {
        (void)fputs("walbusd: no memory, or no descriptors\n", stderr);
        return ROUTER_EXIT_FAILURE;
    }
    int status = read_settings(argc, argv, &settings, &above, &origin, &accept_gap);
    if (status < 0) {
        log.level = (enum log_level)settings.log_level;
        log.format = (enum log_format)settings.log_format;
        int r = socket_place_of_router(settings.socket, &socket_path, &origin.socket_variable, why);
        if (r == -ENOMEM) {
            status = usage("no memory");
        } else if (r < 0) {
            setting_place_blame(&settings, settings_find("socket"), 0, why);
            setting_place_blame_variable(origin.socket_variable, why);
            status = usage("%s", why);
        } else {
            prepare_process();
            status = run(&settings, origin, socket_path, accept_gap, &log);
        }
    }
    free(socket_path);
    settings_deinit(&settings);
    settings_deinit(&above);
    return status;
}
