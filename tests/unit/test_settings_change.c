/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings_change.h"

#include <string.h>

#include "unit.h"

static void set(struct settings *s, const char *name, const char *value, enum setting_source source)
{
    char why[SETTINGS_WHY_SIZE] = "";

    ck_assert_msg(settings_set(s, settings_find(name), value, source, why) == 0, "%s", why);
}

static void fill(struct settings *s)
{
    ck_assert_int_eq(settings_init(s), 0);
    set(s, "dsn", "dbname=shop", SETTING_ENVIRONMENT);
    set(s, "socket-mode", "0600", SETTING_OPTION);
    set(s, "log-level", "debug", SETTING_FILE);
    set(s, "allow", "any subscribe a", SETTING_OPTION);
    set(s, "allow", "any subscribe b", SETTING_OPTION);
}

static void assert_equal(const struct settings *a, const struct settings *b, const char *but)
{
    for (size_t i = 0; i < settings_n_rows; i++)
        ck_assert_msg(settings_row_equal(a, b, &settings_rows[i]) == (!but || strcmp(but, settings_rows[i].name) != 0),
                      "%s", settings_rows[i].name);
}

START_TEST(copies)
{
    struct settings s, copy;

    fill(&s);
    ck_assert_int_eq(settings_copy(&s, &copy), 0);
    assert_equal(&s, &copy, NULL);
    ck_assert_mem_eq(s.sources, copy.sources, sizeof s.sources);
    ck_assert_ptr_ne(s.dsn, copy.dsn);
    ck_assert_ptr_ne(s.allow.values, copy.allow.values);
    ck_assert_ptr_null(copy.socket);
    /* what was weaker there is weaker here */
    set(&copy, "allow", "any subscribe c", SETTING_FILE);
    set(&copy, "dsn", "dbname=other", SETTING_FILE);
    assert_equal(&s, &copy, NULL);
    settings_deinit(&s);
    ck_assert_str_eq(copy.dsn, "dbname=shop");
    ck_assert_uint_eq(copy.allow.n, 2);
    settings_deinit(&copy);
}
END_TEST

START_TEST(differences)
{
    static const struct {
        const char *name, *value;
    } cases[] = {
        {"dsn", "dbname=other"}, {"socket", "/x"},    {"socket-mode", "0601"}, {"log-level", "error"},
        {"bytes-per-uid", "1MB"}, {"connections-per-uid", "7"}, {"allow", "any subscribe a"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct settings s, copy;

        fill(&s);
        ck_assert_int_eq(settings_copy(&s, &copy), 0);
        set(&copy, cases[i].name, cases[i].value, SETTING_OPTION);
        assert_equal(&s, &copy, cases[i].name);
        assert_equal(&copy, &s, cases[i].name);
        settings_deinit(&s);
        settings_deinit(&copy);
    }
}
END_TEST

START_TEST(where_it_comes_from_is_no_difference)
{
    struct settings s, copy;

    fill(&s);
    ck_assert_int_eq(settings_copy(&s, &copy), 0);
    set(&copy, "log-level", "debug", SETTING_OPTION);
    assert_equal(&s, &copy, NULL);
    settings_deinit(&s);
    settings_deinit(&copy);
}
END_TEST

START_TEST(swaps)
{
    static const char *const names[] = {"dsn", "allow", "log-level"};
    struct settings s, other;

    fill(&s);
    ck_assert_int_eq(settings_init(&other), 0);
    set(&other, "allow", "any control status", SETTING_FILE);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        settings_row_swap(&s, &other, settings_find(names[i]));
    ck_assert_ptr_null(s.dsn);
    ck_assert_str_eq(other.dsn, "dbname=shop");
    ck_assert_uint_eq(s.allow.n, 1);
    ck_assert_str_eq(s.allow.values[0], "any control status");
    ck_assert_int_eq(s.sources[settings_find("allow") - settings_rows], SETTING_FILE);
    ck_assert_uint_eq(other.allow.n, 2);
    ck_assert_int_eq(other.sources[settings_find("allow") - settings_rows], SETTING_OPTION);
    ck_assert_uint_eq(s.log_level, LOG_INFO);
    ck_assert_uint_eq(other.log_level, LOG_DEBUG);
    ck_assert_uint_eq(s.socket_mode, 0600);
    settings_deinit(&s);
    settings_deinit(&other);
}
END_TEST

UNIT_MAIN("settings_change", copies, differences, where_it_comes_from_is_no_difference, swaps)
