/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "environment.h"
#include "settings/setting_value.h"
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
        ck_assert_int_eq(row->characters != NULL, row->type == SETTING_STRING && row->max > 0);
        ck_assert(!row->check || row->type == SETTING_STRING || row->type == SETTING_LIST);
        ck_assert(row->type != SETTING_LIST || (row->max > 0 && !row->preset && !row->environment));
        ck_assert_int_eq(row->characters != NULL, row->characters_text != NULL);
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
        {"connections-per-uid", "1", NULL, 1},
        {"connections-per-uid", "0001000", NULL, 1000},
        {"connections-per-uid", "0", "connections-per-uid is \"0\", but must be from 1 to 1000", 0},
        {"connections-per-uid", "1001", "connections-per-uid is \"1001\", but must be from 1 to 1000", 0},
        {"connections-per-uid", "18446744073709551616",
         "connections-per-uid is \"18446744073709551616\", but must be from 1 to 1000", 0},
        {"connections-per-uid", "", "connections-per-uid is \"\", but must be a whole number", 0},
        {"connections-per-uid", "-1", "connections-per-uid is \"-1\", but must be a whole number", 0},
        {"connections-per-uid", "+1", "connections-per-uid is \"+1\", but must be a whole number", 0},
        {"connections-per-uid", "1k", "connections-per-uid is \"1k\", but must be a whole number", 0},
        {"connections-per-uid", "0x10", "connections-per-uid is \"0x10\", but must be a whole number", 0},
        {"bytes-per-uid", "1MB", NULL, 1u << 20},
        {"bytes-per-uid", "1023kB", "bytes-per-uid is \"1023kB\", but must be from 1MB to 64MB", 0},
        {"quarantine-size", "1GB", NULL, 1u << 30},
        {"allow", "", "allow must not be empty", 0},
        {"policy", "", "policy must not be empty", 0},
        {"trust-file", "", "trust-file must not be empty", 0},
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
        {"slot", "Bad name",
         "slot is \"Bad name\", but must be 1 to 63 characters of a-z, 0-9 and _", 0},
        {"slot", "na\xc3\xafve",
         "slot is \"na\xc3\xafve\", but must be 1 to 63 characters of a-z, 0-9 and _", 0},
        {"slot", "a-b", "slot is \"a-b\", but must be 1 to 63 characters of a-z, 0-9 and _", 0},
        {"slot", "a2345678901234567890123456789012345678901234567890123456789_1234",
         "slot is \"a2345678901234567890123456789012345678901234567890123456789_...\", but must be "
         "1 to 63 characters of a-z, 0-9 and _",
         0},
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
        static const char longest[] =
            "0_23456789abcdefghijklmnopqrstuvwxyz___________________________";
        ck_assert_uint_eq(sizeof longest - 1, 63);
        ck_assert_int_eq(set(&s, "slot", longest, SETTING_OPTION, why), 0);
        ck_assert_str_eq(s.slot, longest);
        /* What is overruled is still looked at. */
        ck_assert_int_eq(set(&s, "log-level", "loud", SETTING_FILE, why), -EINVAL);
        ck_assert_int_eq(set(&s, "slot", "", SETTING_FILE, why), -EINVAL);
        settings_deinit(&s);
    }
}
END_TEST

static int refuses_x(const char *value, char why[SETTINGS_WHY_SIZE])
{
    if (strcmp(value, "memory") == 0)
        return -ENOMEM;
    if (*value != 'x')
        return 0;
    (void)snprintf(why, SETTINGS_WHY_SIZE, "an x is too much");
    return -EINVAL;
}

START_TEST(check_of_a_row)
{
    static const enum setting_type types[] = {SETTING_STRING, SETTING_LIST};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        struct setting_row row = {.name = "row", .type = types[i], .check = refuses_x};
        char why[SETTINGS_WHY_SIZE] = "";
        uint64_t number = 7;

        ck_assert_int_eq(setting_value_parse(&row, "y", &number, why), 0);
        ck_assert_uint_eq(number, 7);
        ck_assert_str_eq(why, "");
        ck_assert_int_eq(setting_value_parse(&row, "memory", &number, why), -ENOMEM);
        ck_assert_int_eq(setting_value_parse(&row, "x", &number, why), -EINVAL);
        ck_assert_str_eq(why, "row: an x is too much");
        row.min = 1;
        ck_assert_int_eq(setting_value_parse(&row, "", &number, why), -EINVAL);
        ck_assert_str_eq(why, "row must not be empty");
    }
}
END_TEST

static void expect_policies(const struct settings *s, const char *expected)
{
    struct buf have = BUF_INIT;

    for (size_t i = 0; i < s->policy.n; i++)
        buf_printf(&have, "%s;", s->policy.values[i]);
    ck_assert_str_eq(buf_str(&have), expected);
    buf_deinit(&have);
}

/* Each source's whole list takes the place of a weaker one's, in whatever order they come. */
START_TEST(lists)
{
    struct settings s;
    char why[SETTINGS_WHY_SIZE];

    ck_assert_int_eq(settings_init(&s), 0);
    expect_policies(&s, "");
    ck_assert_ptr_null(s.policy.values);
    ck_assert_int_eq(set(&s, "policy", "a verify", SETTING_FILE, why), 0);
    ck_assert_int_eq(set(&s, "policy", "b verify", SETTING_FILE, why), 0);
    ck_assert_int_eq(set(&s, "policy", "a verify", SETTING_FILE, why), 0);
    expect_policies(&s, "a verify;b verify;a verify;");
    ck_assert_int_eq(source_of(&s, "policy"), SETTING_FILE);
    ck_assert_int_eq(set(&s, "policy", "", SETTING_OPTION, why), -EINVAL);
    expect_policies(&s, "a verify;b verify;a verify;");
    ck_assert_int_eq(set(&s, "policy", "c require", SETTING_OPTION, why), 0);
    expect_policies(&s, "c require;");
    ck_assert_int_eq(set(&s, "policy", "d verify", SETTING_FILE, why), 0);
    ck_assert_int_eq(set(&s, "policy", "e ignore", SETTING_OPTION, why), 0);
    expect_policies(&s, "c require;e ignore;");
    ck_assert_uint_eq(s.allow.n, 0);
    ck_assert_int_eq(source_of(&s, "policy"), SETTING_OPTION);
    settings_deinit(&s);
    ck_assert_uint_eq(s.policy.n, 0);
    ck_assert_ptr_null(s.policy.values);
}
END_TEST

START_TEST(lists_are_bounded)
{
    const struct setting_row *row = settings_find("policy");
    struct settings s;
    char why[SETTINGS_WHY_SIZE];

    ck_assert_int_eq(settings_init(&s), 0);
    for (uint64_t i = 0; i < row->max; i++)
        ck_assert_int_eq(set(&s, "policy", "a verify", SETTING_FILE, why), 0);
    ck_assert_int_eq(set(&s, "policy", "a verify", SETTING_FILE, why), -EINVAL);
    ck_assert_str_eq(why, "policy may be given 1000 times");
    ck_assert_uint_eq(s.policy.n, row->max);
    ck_assert_int_eq(set(&s, "policy", "a verify", SETTING_OPTION, why), 0);
    ck_assert_uint_eq(s.policy.n, 1);
    settings_deinit(&s);
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
    ck_assert_ptr_nonnull(strstr(buf_str(&all), " (1 to 1000; default 256)\n"));
    ck_assert_ptr_nonnull(strstr(buf_str(&all), " (may be given again, up to 1000 times)\n"));
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
          stronger_sources_win_in_any_order, check_of_a_row, lists, lists_are_bounded, environment, help)
