/* SPDX-License-Identifier: PostgreSQL */
#include "settings/settings_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings/setting_place.h"
#include "settings/settings_change.h"
#include "unit.h"

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
                               "state-dir = /srv/walbus\n"
                               "journal-size = 64 MB\n"
                               "journal-age = 1d\n"
                               "segment-size = 1MB\n"
                               "sync-interval = 0\n"
                               "when-full = discard\n"
                               "expire-after = 0\n"
                               "heartbeat-interval = 5 s\n"
                               "allow = any subscribe orders.> ; to all\n"
                               "connections-per-uid = 3\n"
                               "policy = > verify\n"
                               "allow = user:x control status\n"
                               "subscriptions-per-uid = 4\n"
                               "bytes-per-uid = 2MB\n"
                               "trust-file = /srv/trust\n"
                               "audience = shop\n"
                               "quarantine-size = 3MB\n"
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
    ck_assert_str_eq(s.state_dir, "/srv/walbus");
    ck_assert_uint_eq(s.journal_size, 64u << 20);
    ck_assert_uint_eq(s.journal_age, UINT64_C(86400000000));
    ck_assert_uint_eq(s.segment_size, 1u << 20);
    ck_assert_uint_eq(s.sync_interval, 0);
    ck_assert_uint_eq(s.when_full, WHEN_FULL_DISCARD);
    ck_assert_uint_eq(s.expire_after, 0);
    ck_assert_uint_eq(s.heartbeat_interval, 5000000);
    ck_assert_uint_eq(s.allow.n, 2);
    ck_assert_str_eq(s.allow.values[0], "any subscribe orders.>");
    ck_assert_str_eq(s.allow.values[1], "user:x control status");
    ck_assert_uint_eq(s.policy.n, 1);
    ck_assert_str_eq(s.policy.values[0], "> verify");
    ck_assert_uint_eq(s.connections_per_uid, 3);
    ck_assert_uint_eq(s.subscriptions_per_uid, 4);
    ck_assert_uint_eq(s.bytes_per_uid, 2u << 20);
    ck_assert_str_eq(s.trust_file, "/srv/trust");
    ck_assert_str_eq(s.audience, "shop");
    ck_assert_uint_eq(s.quarantine_size, 3u << 20);
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
        {"[walbusd]\npolicy = > verify\npolicy =\n", "FILE:3: policy must not be empty"},
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

/* There where inih's limit is a variable that settings_file.c can raise, as in Debian. */
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
    ck_assert_str_eq(why + strlen(folder), ": is a folder, and must be a regular file or /dev/null");
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* nobody writes into it, and nobody waits for that */
    ck_assert_int_eq(settings_from_file(&s, path, why), -EINVAL);
    ck_assert_str_eq(why + strlen(path), ": is a pipe, and must be a regular file or /dev/null");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(settings_from_file(&s, "/dev/zero", why), -EINVAL); /* it never ends */
    ck_assert_str_eq(why, "/dev/zero: is a device, and must be a regular file or /dev/null");
    ck_assert_int_eq(settings_from_file(&s, "/dev/null", why), 0);
    ck_assert_int_eq(symlink(path, path), 0);
    ck_assert_int_eq(settings_from_file(&s, path, why), -EINVAL);
    ck_assert_str_eq(why + strlen(path), ": cannot be opened: Too many levels of symbolic links");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    settings_deinit(&s);
}
END_TEST

START_TEST(file_that_is_too_long)
{
    char path[] = "/tmp/walbus-unit-XXXXXX", why[SETTINGS_WHY_SIZE] = "", line[1024];
    int fd = mkstemp(path);
    struct settings s;

    memset(line, '#', sizeof line - 1);
    line[sizeof line - 1] = '\n';
    ck_assert_int_eq(settings_init(&s), 0);
    for (int i = 0; i < SETTINGS_FILE_MAX / 1024; i++)
        ck_assert_int_eq(write(fd, line, sizeof line), (ssize_t)sizeof line);
    ck_assert_int_eq(settings_from_file(&s, path, why), 0);
    ck_assert_int_eq(write(fd, "\n", 1), 1);
    ck_assert_int_eq(settings_from_file(&s, path, why), -EINVAL);
    ck_assert_str_eq(why + strlen(path), ": has 1048577 bytes; 1048576 are the most");
    (void)close(fd);
    ck_assert_int_eq(unlink(path), 0);
    settings_deinit(&s);
}
END_TEST

START_TEST(file_under_options)
{
    struct settings s;
    char why[SETTINGS_WHY_SIZE];

    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_int_eq(settings_set(&s, settings_find("slot"), "option", SETTING_OPTION, why), 0);
    ck_assert_int_eq(settings_set(&s, settings_find("policy"), "a verify", SETTING_OPTION, why), 0);
    ck_assert_int_eq(read_text(&s, "[walbusd]\nslot = file\npublication = file\npolicy = b verify\n", why), 0);
    ck_assert_uint_eq(s.policy.n, 1);
    ck_assert_str_eq(s.policy.values[0], "a verify");
    ck_assert_str_eq(s.slot, "option");
    ck_assert_str_eq(s.publication, "file");
    settings_deinit(&s);
}
END_TEST

/* The clause "wrong" about a value, with its place. */
static const char *blame(const struct settings *s, const char *name, size_t at, char why[SETTINGS_WHY_SIZE])
{
    strcpy(why, "wrong");
    setting_place_blame(s, settings_find(name), at, why);
    const char *base = strrchr(why, '/');
    if (!base)
        return why;
    return strchr(base ? base : why, ':') ? strchr(base ? base : why, ':') : why;
}

START_TEST(file_places)
{
    struct settings s, copy, other;
    char why[SETTINGS_WHY_SIZE];

    ck_assert_int_eq(settings_init(&s), 0);
    ck_assert_str_eq(blame(&s, "slot", 0, why), "wrong");
    ck_assert_int_eq(settings_set(&s, settings_find("audience"), "option", SETTING_OPTION, why), 0);
    ck_assert_int_eq(settings_set(&s, settings_find("allow"), "any control status", SETTING_OPTION, why), 0);
    ck_assert_int_eq(settings_set(&s, settings_find("allow"), "any subscribe a", SETTING_OPTION, why), 0);
    ck_assert_int_eq(settings_set(&s, settings_find("dsn"), "x=y", SETTING_ENVIRONMENT, why), 0);
    ck_assert_int_eq(read_text(&s, "[walbusd]\nslot = a\npolicy = b verify\n\npolicy = c verify # d\naudience = x\n"
                                   "trust-file = /t # why\njournal-size = 1GB\n", why), 0);
    ck_assert_int_eq(settings_copy(&s, &copy), 0);
    ck_assert_int_eq(settings_init(&other), 0);
    settings_row_swap(&copy, &other, settings_find("slot"));
    for (struct settings *each = &s;; each = &copy) {
        ck_assert_str_eq(blame(each, "policy", 0, why), ":3: wrong");
        ck_assert_str_eq(blame(each, "policy", 1, why), ":5: wrong; behind a value a comment begins with ';'");
        ck_assert_str_eq(blame(each, "policy", 2, why), "wrong");
        ck_assert_str_eq(blame(each, "audience", 0, why), "--audience: wrong");
        ck_assert_str_eq(blame(each, "dsn", 0, why), "WALBUS_DSN: wrong");
        ck_assert_str_eq(blame(each, "allow", 1, why), "--allow: wrong");
        ck_assert_str_eq(blame(each, "state-dir", 0, why), "wrong");
        strcpy(why, "audience: wrong");
        setting_place_blame(each, settings_find("audience"), 0, why);
        ck_assert_str_eq(why, "--audience: wrong");
        strcpy(why, "allow = x: wrong");
        setting_place_blame(each, settings_find("allow"), 0, why);
        ck_assert_str_eq(why, "--allow = x: wrong");
        ck_assert_str_eq(blame(each, "trust-file", 0, why), ":7: wrong; behind a value a comment begins with ';'");
        ck_assert_str_eq(blame(each, "journal-size", 0, why), ":8: wrong");
        ck_assert_str_eq(blame(each, "slot", 0, why), each == &s ? ":2: wrong" : "wrong");
        if (each == &copy)
            break;
    }
    ck_assert_uint_eq(other.lines[settings_find("slot") - settings_rows], 2);
    settings_deinit(&s);
    settings_deinit(&copy);
    settings_deinit(&other);
}
END_TEST

UNIT_MAIN("settings_file", file_sets, file_of_nothing, file_faults, file_with_nul,
          file_with_long_lines, file_with_lines_too_long, file_that_cannot_be_read, file_that_is_too_long,
          file_under_options, file_places)
