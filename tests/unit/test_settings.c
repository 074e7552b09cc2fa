/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

static void clean_environment(void)
{
    static const char *const names[] = {"WALBUS_DSN", "WALBUS_SOCKET", "RUNTIME_DIRECTORY",
                                        "XDG_RUNTIME_DIR"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        ck_assert_int_eq(unsetenv(names[i]), 0);
}

static void set_environment(const char *name, const char *value)
{
    ck_assert_int_eq(setenv(name, value, 1), 0);
}

static enum setting_source source_of(const struct settings *s, const char *name)
{
    const struct setting_row *row = settings_find(name);

    ck_assert_ptr_nonnull(row);
    return s->sources[row - settings_rows];
}

static int set(struct settings *s, const char *name, const char *value, enum setting_source source,
               char why[SETTINGS_WHY_SIZE])
{
    const struct setting_row *row = settings_find(name);

    ck_assert_ptr_nonnull(row);
    why[0] = '\0';
    return settings_set(s, row, value, source, why);
}

/* ---- the table ---- */

START_TEST(defaults)
{
    struct settings s;

    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_ptr_null(s.dsn);
    ck_assert_str_eq(s.slot, "walbus");
    ck_assert_str_eq(s.publication, "walbus");
    ck_assert_ptr_null(s.socket);
    ck_assert_uint_eq(s.socket_mode, 0660);
    ck_assert_ptr_null(s.socket_group);
    ck_assert_uint_eq(s.heartbeat_interval, 10000000);
    ck_assert_uint_eq(s.log_format, LOG_FORMAT_TEXT);
    ck_assert_uint_eq(s.log_level, LOG_INFO);
    for (size_t i = 0; i < settings_n_rows; i++)
        ck_assert_int_eq(s.sources[i], SETTING_DEFAULT);
    settings_deinit(&s);
    ck_assert_ptr_null(s.slot);
    settings_deinit(&s);
}
END_TEST

START_TEST(rows_are_whole)
{
    for (size_t i = 0; i < settings_n_rows; i++) {
        const struct setting_row *row = &settings_rows[i];

        ck_assert_ptr_nonnull(row->metavar);
        ck_assert_int_eq(row->sentence[strlen(row->sentence) - 1], '.');
        ck_assert_int_eq(row->choices != NULL, row->type == SETTING_CHOICE);
        ck_assert_int_eq(row->unit != NULL, row->type == SETTING_DURATION);
        ck_assert_uint_le(row->offset, sizeof(struct settings) - sizeof(uint64_t));
        ck_assert_ptr_eq(settings_find(row->name), row);
        ck_assert_str_eq(settings_nearest(row->name), row->name);
        for (size_t j = 0; j < i; j++)
            ck_assert_uint_ne(settings_rows[j].offset, row->offset);
    }
    ck_assert_ptr_null(settings_find(""));
    ck_assert_ptr_null(settings_find("Slot"));
    ck_assert_ptr_null(settings_find("slo"));
    ck_assert_str_eq(settings_nearest("heartbeat"), "heartbeat-interval");
    ck_assert_str_eq(settings_nearest("sloot"), "slot");
    ck_assert_ptr_null(settings_nearest("kafka"));
}
END_TEST

START_TEST(values)
{
    static const struct {
        const char *name, *value;
        const char *why; /* NULL: accepted, as `number` */
        uint64_t number;
    } cases[] = {
        {"socket-mode", "0600", NULL, 0600},
        {"socket-mode", "0", NULL, 0},
        {"socket-mode", "777", NULL, 0777},
        {"socket-mode", "1000", "socket-mode is \"1000\", but must be from 0000 to 0777", 0},
        {"socket-mode", "7777777777777777777777777777",
         "socket-mode is \"7777777777777777777777777777\", but must be from 0000 to 0777", 0},
        {"socket-mode", "0668", "socket-mode is \"0668\", but must be octal permissions as 0660",
         0},
        {"socket-mode", "", "socket-mode is \"\", but must be octal permissions as 0660", 0},
        {"socket-mode", "rw", "socket-mode is \"rw\", but must be octal permissions as 0660", 0},
        {"heartbeat-interval", "100ms", NULL, 100000},
        {"heartbeat-interval", "100", NULL, 100000},
        {"heartbeat-interval", "99999us",
         "heartbeat-interval is \"99999us\", but must be from 100ms to 1h", 0},
        {"heartbeat-interval", "1h", NULL, UINT64_C(3600000000)},
        {"heartbeat-interval", "3600000001us",
         "heartbeat-interval is \"3600000001us\", but must be from 100ms to 1h", 0},
        {"heartbeat-interval", "99999999999999999999d",
         "heartbeat-interval is \"99999999999999999999d\", but must be from 100ms to 1h", 0},
        {"heartbeat-interval", "10 parsecs",
         "heartbeat-interval is \"10 parsecs\", but must be a time as 10s (us, ms, s, min, h, d)",
         0},
        {"log-format", "text", NULL, LOG_FORMAT_TEXT},
        {"log-format", "json", NULL, LOG_FORMAT_JSON},
        {"log-format", "xml", "log-format is \"xml\", but must be one of text|json", 0},
        {"log-level", "debug", NULL, LOG_DEBUG},
        {"log-level", "info", NULL, LOG_INFO},
        {"log-level", "warning", NULL, LOG_WARNING},
        {"log-level", "error", NULL, LOG_ERROR},
        {"log-level", "Error",
         "log-level is \"Error\", but must be one of debug|info|warning|error", 0},
        {"log-level", "\x1b[2J\n",
         "log-level is \"\\x1b[2J\\n\", but must be one of debug|info|warning|error", 0},
        {"slot", "", "slot must not be empty", 0},
        {"publication", "", "publication must not be empty", 0},
        {"socket", "", "socket must not be empty", 0},
        {"socket-group", "", "socket-group must not be empty", 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct settings s;
        char why[SETTINGS_WHY_SIZE];

        ck_assert_int_eq(settings_init(&s), 0);
        int r = set(&s, cases[i].name, cases[i].value, SETTING_OPTION, why);
        if (cases[i].why) {
            ck_assert_int_eq(r, -EINVAL);
            ck_assert_str_eq(why, cases[i].why);
            ck_assert_int_eq(source_of(&s, cases[i].name), SETTING_DEFAULT);
        } else {
            const struct setting_row *row = settings_find(cases[i].name);
            uint64_t number;

            ck_assert_int_eq(r, 0);
            memcpy(&number, (const char *)&s + row->offset, sizeof number);
            ck_assert_uint_eq(number, cases[i].number);
            ck_assert_int_eq(source_of(&s, cases[i].name), SETTING_OPTION);
        }
        settings_deinit(&s);
    }
}
END_TEST

START_TEST(long_values_are_cut_in_messages_only)
{
    struct settings s;
    char why[SETTINGS_WHY_SIZE], value[5000];

    memset(value, 'x', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(set(&s, "log-level", value, SETTING_OPTION, why), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why, "xxx...\", but must be one of debug|info|warning|error"));
    memset(value, '\x1b', sizeof value - 1);
    ck_assert_int_eq(set(&s, "log-level", value, SETTING_OPTION, why), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why, "\\x1b...\", but must be one of debug|info|warning|error"));
    ck_assert_int_eq(set(&s, "dsn", value, SETTING_OPTION, why), 0);
    ck_assert_str_eq(s.dsn, value);
    settings_deinit(&s);
}
END_TEST

START_TEST(stronger_sources_win_in_any_order)
{
    static const enum setting_source orders[][3] = {
        {SETTING_FILE, SETTING_ENVIRONMENT, SETTING_OPTION},
        {SETTING_FILE, SETTING_OPTION, SETTING_ENVIRONMENT},
        {SETTING_ENVIRONMENT, SETTING_FILE, SETTING_OPTION},
        {SETTING_ENVIRONMENT, SETTING_OPTION, SETTING_FILE},
        {SETTING_OPTION, SETTING_FILE, SETTING_ENVIRONMENT},
        {SETTING_OPTION, SETTING_ENVIRONMENT, SETTING_FILE},
    };
    static const char *const slots[] = {"default", "file", "environment", "option"};
    static const char *const levels[] = {"debug", "info", "warning", "error"};

    for (size_t i = 0; i < ARRAY_SIZE(orders); i++) {
        struct settings s;
        char why[SETTINGS_WHY_SIZE];
        enum setting_source strongest = SETTING_DEFAULT;

        ck_assert_int_eq(settings_init(&s), 0);
        for (size_t j = 0; j < 3; j++) {
            enum setting_source source = orders[i][j];

            strongest = MAX(strongest, source);
            ck_assert_int_eq(set(&s, "slot", slots[source], source, why), 0);
            ck_assert_int_eq(set(&s, "log-level", levels[source], source, why), 0);
            ck_assert_str_eq(s.slot, slots[strongest]);
            ck_assert_uint_eq(s.log_level, strongest);
            ck_assert_int_eq(source_of(&s, "slot"), strongest);
        }
        /* The last of equals wins: an option given twice. */
        ck_assert_int_eq(set(&s, "slot", "again", SETTING_OPTION, why), 0);
        ck_assert_str_eq(s.slot, "again");
        /* What is overruled is still looked at. */
        ck_assert_int_eq(set(&s, "log-level", "loud", SETTING_FILE, why), -EINVAL);
        ck_assert_int_eq(set(&s, "slot", "", SETTING_FILE, why), -EINVAL);
        settings_deinit(&s);
    }
}
END_TEST

START_TEST(environment)
{
    struct settings s;
    char why[SETTINGS_WHY_SIZE] = "";

    clean_environment();
    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(settings_from_environment(&s, true, why), 0);
    ck_assert_ptr_null(s.dsn);
    ck_assert_ptr_null(s.socket);
    set_environment("WALBUS_DSN", "");
    set_environment("WALBUS_SOCKET", "");
    ck_assert_int_eq(settings_from_environment(&s, true, why), 0);
    ck_assert_ptr_null(s.dsn);
    ck_assert_ptr_null(s.socket);

    set_environment("WALBUS_DSN", "dbname=shop");
    set_environment("WALBUS_SOCKET", "/elsewhere/walbus.sock");
    ck_assert_int_eq(settings_from_environment(&s, false, why), 0);
    ck_assert_str_eq(s.dsn, "dbname=shop");
    ck_assert_int_eq(source_of(&s, "dsn"), SETTING_ENVIRONMENT);
    /* WALBUS_SOCKET says where a client looks; it must not move the router. */
    ck_assert_ptr_null(s.socket);
    ck_assert_int_eq(source_of(&s, "socket"), SETTING_DEFAULT);
    ck_assert_int_eq(settings_from_environment(&s, true, why), 0);
    ck_assert_str_eq(s.socket, "/elsewhere/walbus.sock");
    ck_assert_int_eq(source_of(&s, "socket"), SETTING_ENVIRONMENT);
    settings_deinit(&s);
}
END_TEST

/* ---- the file ---- */

static int read_bytes(struct settings *s, struct bytes content, char why[SETTINGS_WHY_SIZE])
{
    char *path = unit_temp_file(content);
    size_t size = strlen(path);

    why[0] = '\0';
    int r = settings_from_file(s, path, why);
    /* Without the random path: "FILE:3: …". */
    if (strncmp(why, path, size) == 0) {
        memmove(why + 4, why + size, strlen(why + size) + 1);
        memcpy(why, "FILE", 4);
    }
    ck_assert_int_eq(unlink(path), 0);
    free(path);
    return r;
}

static int read_text(struct settings *s, const char *content, char why[SETTINGS_WHY_SIZE])
{
    return read_bytes(s, unit_bytes(content), why);
}

START_TEST(file_sets)
{
    struct settings s;
    char why[SETTINGS_WHY_SIZE];

    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(read_text(&s,
                               "# a comment = with a key\n"
                               "; [another]\n"
                               "\n"
                               "[walbusd] ; behind a section\n"
                               "dsn = host=/run/postgresql dbname='my shop;x' password=a;b#c\n"
                               "  slot = indented\r\n"
                               "\tpublication:colon\n"
                               "socket=/run/x.sock   ; behind a value\n"
                               "socket-mode = 0600\n"
                               "[walbusd]\n"
                               "socket-group = \xc3\xa9quipe\n"
                               "heartbeat-interval = 5 s\n"
                               "log-format = json\n"
                               "log-level = debug", /* no newline at the end */
                               why),
                     0);
    ck_assert_str_eq(why, "");
    ck_assert_str_eq(s.dsn, "host=/run/postgresql dbname='my shop;x' password=a;b#c");
    ck_assert_str_eq(s.slot, "indented");
    ck_assert_str_eq(s.publication, "colon");
    ck_assert_str_eq(s.socket, "/run/x.sock");
    ck_assert_uint_eq(s.socket_mode, 0600);
    ck_assert_str_eq(s.socket_group, "\xc3\xa9quipe");
    ck_assert_uint_eq(s.heartbeat_interval, 5000000);
    ck_assert_uint_eq(s.log_format, LOG_FORMAT_JSON);
    ck_assert_uint_eq(s.log_level, LOG_DEBUG);
    for (size_t i = 0; i < settings_n_rows; i++)
        ck_assert_int_eq(s.sources[i], SETTING_FILE);
    settings_deinit(&s);
}
END_TEST

START_TEST(file_of_nothing)
{
    static const char *const files[] = {
        "", "\n", "\n\n \n\t\n", "# only\n;comments", "[walbusd]", "\xef\xbb\xbf[walbusd]\n",
    };

    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        struct settings s;
        char why[SETTINGS_WHY_SIZE];

        ck_assert_int_eq(settings_init(&s), 0);
        ck_assert_msg(read_text(&s, files[i], why) == 0, "file %zu: %s", i, why);
        for (size_t j = 0; j < settings_n_rows; j++)
            ck_assert_int_eq(s.sources[j], SETTING_DEFAULT);
        settings_deinit(&s);
    }
}
END_TEST

START_TEST(file_faults)
{
    static const struct {
        const char *content, *why;
    } cases[] = {
        {"[walbusd]\nsloot = x\n", "FILE:2: unknown setting \"sloot\"; did you mean \"slot\"?"},
        {"[walbusd]\n\n# c\nkafka = x\n", "FILE:4: unknown setting \"kafka\""},
        {"[walbusd]\n= x\n", "FILE:2: unknown setting \"\""},
        {"[walbusd]\nSlot = x\n", "FILE:2: unknown setting \"Slot\"; did you mean \"slot\"?"},
        {"[walbusd]\n\x1b[2Jx = 1\n", "FILE:2: unknown setting \"\\x1b[2Jx\""},
        {"[walbus]\nslot = x\n",
         "FILE:1: unknown section [walbus]; the settings stand in [walbusd]"},
        {"[other]\n", "FILE:1: unknown section [other]; the settings stand in [walbusd]"},
        {"[]\n", "FILE:1: unknown section []; the settings stand in [walbusd]"},
        {"[ walbusd ]\n", "FILE:1: unknown section [ walbusd ]; the settings stand in [walbusd]"},
        {"[walbusd]\nslot = x\n[WALBUSD]\n",
         "FILE:3: unknown section [WALBUSD]; the settings stand in [walbusd]"},
        {"[walbusd] slot = x\n", "FILE:1: nothing may stand behind a section's ']'"},
        {"[walbusd\nslot = x\n", "FILE:1: neither a [section] nor \"name = value\""},
        {"slot = x\n[walbusd]\n",
         "FILE:1: \"slot\" stands before any section; begin with [walbusd]"},
        {"[walbusd]\nslot\n", "FILE:2: neither a [section] nor \"name = value\""},
        {"[walbusd]\nslot ; = x\n", "FILE:2: neither a [section] nor \"name = value\""},
        /* the first fault is the one that is named, whoever finds it */
        {"[walbusd]\nslot\nsloot = x\n", "FILE:2: neither a [section] nor \"name = value\""},
        {"[walbusd]\nsloot = x\nslot\n",
         "FILE:2: unknown setting \"sloot\"; did you mean \"slot\"?"},
        {"[walbusd]\nslot\n[other]\n", "FILE:2: neither a [section] nor \"name = value\""},
        {"[walbusd]\nslot = a\nslot = b\n", "FILE:3: slot was set before, in line 2"},
        {"[walbusd]\nslot = a\n[walbusd]\n\nslot = a\n", "FILE:5: slot was set before, in line 2"},
        {"[walbusd]\nslot = a\n  more = b\n", "FILE:3: unknown setting \"more\""},
        {"[walbusd]\nslot = a\n  more\n", "FILE:3: neither a [section] nor \"name = value\""},
        {"[walbusd]\nslot =\n", "FILE:2: slot must not be empty"},
        {"[walbusd]\nslot = ; a comment\n", "FILE:2: slot must not be empty"},
        {"[walbusd]\nlog-level = loud\n",
         "FILE:2: log-level is \"loud\", but must be one of debug|info|warning|error"},
        {"[walbusd]\nheartbeat-interval = 1d\n",
         "FILE:2: heartbeat-interval is \"1d\", but must be from 100ms to 1h"},
        {"[walbusd]\ndsn = password='a ;b'\n",
         "FILE:2: a ';' behind a blank inside quotes would begin a comment; write the connection "
         "as a URI, with %20 and %3B"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct settings s;
        char why[SETTINGS_WHY_SIZE];

        ck_assert_int_eq(settings_init(&s), 0);
        ck_assert_msg(read_text(&s, cases[i].content, why) == -EINVAL, "case %zu was accepted", i);
        ck_assert_str_eq(why, cases[i].why);
        settings_deinit(&s);
    }
}
END_TEST

START_TEST(file_with_nul)
{
    static const char content[] = "[walbusd]\nslot = good\0bad\n";
    struct settings s;
    char why[SETTINGS_WHY_SIZE];

    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(
        read_bytes(&s, (struct bytes){(const uint8_t *)content, sizeof content - 1}, why), -EINVAL);
    ck_assert_str_eq(why, "FILE:2: the line holds a NUL byte");
    ck_assert_str_eq(s.slot, "walbus");
    settings_deinit(&s);
}
END_TEST

/* There where inih's limit is a variable that settings.c can raise, as in Debian. */
extern int ini_max_line __attribute__((weak));

/* Around inih's own limit of 200 bytes, and far beyond: whole, or refused with its line. */
START_TEST(file_with_long_lines)
{
    static const size_t sizes[] = {150, 180, 190, 191, 192, 193, 194, 195, 196,
                                   197, 198, 199, 200, 201, 202, 250, 400, 4000};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct settings s;
        struct buf content = BUF_INIT;
        char why[SETTINGS_WHY_SIZE];

        ck_assert_int_eq(settings_init(&s), 0);
        buf_append_str(&content, "[walbusd]\ndsn = ");
        for (size_t n = 0; n < sizes[i]; n++)
            buf_append_u8(&content, 'x');
        buf_append_str(&content, "\nslot = behind\n");
        int r = read_bytes(&s, buf_bytes(&content), why);
        if (r == 0) {
            ck_assert_uint_eq(strlen(s.dsn), sizes[i]);
            ck_assert_str_eq(s.slot, "behind");
        } else {
            ck_assert_int_eq(r, -EINVAL);
            ck_assert_ptr_null(&ini_max_line);
            ck_assert_uint_gt(sizes[i], 190);
            ck_assert_int_eq(strncmp(why, "FILE:2: the line has ", 21), 0);
        }
        buf_deinit(&content);
        settings_deinit(&s);
    }
}
END_TEST

START_TEST(file_with_lines_too_long)
{
    static const char *const begins[] = {"dsn = ", "", "[walbusd] ;", "x"};

    for (size_t i = 0; i < ARRAY_SIZE(begins); i++) {
        struct settings s;
        struct buf content = BUF_INIT;
        char why[SETTINGS_WHY_SIZE];

        ck_assert_int_eq(settings_init(&s), 0);
        buf_printf(&content, "[walbusd]\n# a comment\n%s", begins[i]);
        for (size_t n = 0; n < 100000; n++)
            buf_append_u8(&content, n % 100 ? 'x' : '=');
        ck_assert_int_eq(read_bytes(&s, buf_bytes(&content), why), -EINVAL);
        ck_assert_int_eq(strncmp(why, "FILE:3: the line has 1000", 25), 0);
        ck_assert_ptr_null(s.dsn);
        buf_deinit(&content);
        settings_deinit(&s);
    }

    /* A comment may be as long as it likes, and blanks do not count. */
    struct settings s;
    struct buf content = BUF_INIT;
    char why[SETTINGS_WHY_SIZE];
    ck_assert_int_eq(settings_init(&s), 0);
    buf_append_str(&content, "[walbusd]\n#");
    for (size_t n = 0; n < 100000; n++)
        buf_append_u8(&content, 'x');
    buf_printf(&content, "\n%100000sslot = x%100000s\n", "", "");
    ck_assert_int_eq(read_bytes(&s, buf_bytes(&content), why), 0);
    ck_assert_str_eq(s.slot, "x");
    buf_deinit(&content);
    settings_deinit(&s);
}
END_TEST

START_TEST(file_that_cannot_be_read)
{
    struct settings s;
    char folder[] = "/tmp/walbus-unit-XXXXXX", path[64], why[SETTINGS_WHY_SIZE] = "";

    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/missing", folder);
    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(settings_from_file(&s, path, why), -ENOENT);
    ck_assert_str_eq(why, "");
    ck_assert_int_eq(settings_from_file(&s, folder, why), -EINVAL);
    ck_assert_int_eq(strncmp(why, folder, strlen(folder)), 0);
    ck_assert_str_eq(why + strlen(folder), ": cannot be read: Is a directory");
    ck_assert_int_eq(symlink(path, path), 0);
    ck_assert_int_eq(settings_from_file(&s, path, why), -EINVAL);
    ck_assert_str_eq(why + strlen(path), ": cannot be opened: Too many levels of symbolic links");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    settings_deinit(&s);
}
END_TEST

START_TEST(file_under_options)
{
    struct settings s;
    char why[SETTINGS_WHY_SIZE];

    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(set(&s, "slot", "option", SETTING_OPTION, why), 0);
    ck_assert_int_eq(read_text(&s, "[walbusd]\nslot = file\npublication = file\n", why), 0);
    ck_assert_str_eq(s.slot, "option");
    ck_assert_str_eq(s.publication, "file");
    settings_deinit(&s);
}
END_TEST

/* ---- help ---- */

START_TEST(help)
{
    struct buf all = BUF_INIT, command = BUF_INIT;

    settings_help(&all, false);
    settings_help(&command, true);
    for (size_t i = 0; i < settings_n_rows; i++) {
        const struct setting_row *row = &settings_rows[i];
        char option[64];

        (void)snprintf(option, sizeof option, "  --%s %s\n", row->name, row->metavar);
        ck_assert_ptr_nonnull(strstr(buf_str(&all), option));
        ck_assert_ptr_nonnull(strstr(buf_str(&all), row->sentence));
        ck_assert_int_eq(strstr(buf_str(&command), option) != NULL, row->for_command);
    }
    ck_assert_ptr_nonnull(strstr(buf_str(&all), "  --socket-mode MODE\n"
                                                "      The octal permissions of the socket. (0000 "
                                                "to 0777; default 0660)\n"));
    ck_assert_ptr_nonnull(
        strstr(buf_str(&all), " (100ms to 1h; default 10s; a bare number is in ms)\n"));
    ck_assert_ptr_nonnull(strstr(buf_str(&all), " (debug|info|warning|error; default info)\n"));
    ck_assert_ptr_nonnull(strstr(buf_str(&all), " (environment WALBUS_DSN)\n"));
    ck_assert_ptr_null(strstr(buf_str(&all), "WALBUS_SOCKET"));
    ck_assert_ptr_nonnull(strstr(buf_str(&command), "; environment WALBUS_SOCKET)\n"));
    ck_assert_ptr_nonnull(strstr(buf_str(&all), "$RUNTIME_DIRECTORY/walbus.sock, "));
    ck_assert_ptr_null(strstr(buf_str(&command), "RUNTIME_DIRECTORY"));
    ck_assert_ptr_nonnull(strstr(buf_str(&command), "$XDG_RUNTIME_DIR/walbus.sock and "
                                                    "/run/walbus/walbus.sock"));
    buf_deinit(&all);
    buf_deinit(&command);
}
END_TEST

/* ---- places ---- */

static void expect_router(const struct settings *s, const char *want)
{
    char *path = NULL, why[SETTINGS_WHY_SIZE] = "";

    ck_assert_msg(settings_router_socket(s, &path, why) == 0, "%s", why);
    ck_assert_str_eq(path, want);
    free(path);
}

START_TEST(router_socket)
{
    struct settings s = {0};
    char why[SETTINGS_WHY_SIZE] = "", *path = NULL;
    bool root = geteuid() == 0;

    clean_environment();
    if (root) {
        expect_router(&s, "/run/walbus/walbus.sock");
    } else {
        ck_assert_int_eq(settings_router_socket(&s, &path, why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why, "--socket"));
    }
    set_environment("XDG_RUNTIME_DIR", "/run/user/1000");
    expect_router(&s, root ? "/run/walbus/walbus.sock" : "/run/user/1000/walbus.sock");
    set_environment("RUNTIME_DIRECTORY", "relative");
    expect_router(&s, root ? "/run/walbus/walbus.sock" : "/run/user/1000/walbus.sock");
    set_environment("RUNTIME_DIRECTORY", "/run/walbusd");
    expect_router(&s, "/run/walbusd/walbus.sock");
    set_environment("RUNTIME_DIRECTORY", "/run/first:/run/second");
    expect_router(&s, "/run/first/walbus.sock");
    set_environment("WALBUS_SOCKET", "/elsewhere");
    expect_router(&s, "/run/first/walbus.sock");
    s.socket = (char *)(uintptr_t) "/given/by/option";
    expect_router(&s, "/given/by/option");
}
END_TEST

START_TEST(socket_path_limit)
{
    char path[109], why[SETTINGS_WHY_SIZE] = "", *got = NULL;
    struct settings s = {.socket = path};

    clean_environment();
    memset(path, 'p', sizeof path);
    path[0] = '/';
    path[108] = '\0';
    ck_assert_int_eq(settings_router_socket(&s, &got, why), -EINVAL);
    ck_assert_int_eq(strncmp(why, "the socket path has 108 bytes, a socket can have 107: /ppp", 58),
                     0);
    why[0] = '\0';
    ck_assert_int_eq(settings_client_socket(&s, &got, why), -EINVAL);
    ck_assert_int_eq(strncmp(why, "the socket path has 108 bytes", 29), 0);
    ck_assert_ptr_null(got);
    path[107] = '\0';
    expect_router(&s, path);
    ck_assert_int_eq(settings_client_socket(&s, &got, why), 0);
    ck_assert_str_eq(got, path);
    free(got);
}
END_TEST

START_TEST(client_socket)
{
    char folder[] = "/tmp/walbus-unit-XXXXXX", path[64], why[SETTINGS_WHY_SIZE] = "", *got = NULL;
    struct settings s = {0};
    bool system_router = access("/run/walbus/walbus.sock", F_OK) == 0;

    clean_environment();
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/walbus.sock", folder);
    set_environment("XDG_RUNTIME_DIR", folder);
    if (!system_router) {
        ck_assert_int_eq(settings_client_socket(&s, &got, why), -ENOENT);
        ck_assert_ptr_nonnull(strstr(why, path));
        ck_assert_ptr_nonnull(strstr(why, " or /run/walbus/walbus.sock; "));
        ck_assert_int_eq(unsetenv("XDG_RUNTIME_DIR"), 0);
        ck_assert_int_eq(settings_client_socket(&s, &got, why), -ENOENT);
        ck_assert_ptr_nonnull(strstr(why, " at /run/walbus/walbus.sock; "));
        set_environment("XDG_RUNTIME_DIR", folder);
    }
    FILE *there = fopen(path, "we");
    ck_assert_ptr_nonnull(there);
    ck_assert_int_eq(fclose(there), 0);
    ck_assert_int_eq(settings_client_socket(&s, &got, why), 0);
    ck_assert_str_eq(got, path);
    free(got);
    /* What is given is taken, whether it exists or not. */
    s.socket = (char *)(uintptr_t) "/given";
    ck_assert_int_eq(settings_client_socket(&s, &got, why), 0);
    ck_assert_str_eq(got, "/given");
    free(got);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

UNIT_MAIN("settings", defaults, rows_are_whole, values, long_values_are_cut_in_messages_only,
          stronger_sources_win_in_any_order, environment, file_sets, file_of_nothing, file_faults,
          file_with_nul, file_with_long_lines, file_with_lines_too_long, file_that_cannot_be_read,
          file_under_options, help, router_socket, socket_path_limit, client_socket)
