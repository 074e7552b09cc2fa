/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "environment.h"
#include "unit.h"

static int set(struct settings *s, const char *name, const char *value, enum setting_source source,
               char why[SETTINGS_WHY_SIZE])
{
    const struct setting_row *row = settings_find(name);

    ck_assert_ptr_nonnull(row);
    why[0] = '\0';
    return settings_set(s, row, value, source, why);
}

static enum setting_source source_of(const struct settings *s, const char *name)
{
    const struct setting_row *row = settings_find(name);

    ck_assert_ptr_nonnull(row);
    return s->sources[row - settings_rows];
}

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

    environment_clean();
    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(settings_from_environment(&s, true, why), 0);
    ck_assert_ptr_null(s.dsn);
    ck_assert_ptr_null(s.socket);
    environment_set("WALBUS_DSN", "");
    environment_set("WALBUS_SOCKET", "");
    ck_assert_int_eq(settings_from_environment(&s, true, why), 0);
    ck_assert_ptr_null(s.dsn);
    ck_assert_ptr_null(s.socket);

    environment_set("WALBUS_DSN", "dbname=shop");
    environment_set("WALBUS_SOCKET", "/elsewhere/walbus.sock");
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

UNIT_MAIN("settings", defaults, rows_are_whole, values, long_values_are_cut_in_messages_only,
          stronger_sources_win_in_any_order, environment, help)
