/* SPDX-License-Identifier: PostgreSQL */
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "unit.h"

struct log_capture {
    struct logger log;
    char *text;
    size_t size;
};

static void capture_open(struct log_capture *c, enum log_format format, enum log_level level)
{
    *c = (struct log_capture){.log = {.format = format, .level = level}};
    c->log.out = open_memstream(&c->text, &c->size);
    ck_assert_ptr_nonnull(c->log.out);
}

/* What was logged, with the time of each line checked and taken out; then empty again. */
static void capture_expect(struct log_capture *c, const char *time_begin, const char *rest)
{
    size_t begin = strlen(time_begin);
    char time[CLOCK_TEXT_SIZE] = "";
    int64_t us;

    ck_assert_int_eq(fflush(c->log.out), 0);
    ck_assert_uint_gt(c->size, begin + CLOCK_TEXT_SIZE - 1);
    c->text[c->size] = '\0'; /* behind it stands what is left of a longer line */
    ck_assert_int_eq(strncmp(c->text, time_begin, begin), 0);
    memcpy(time, c->text + begin, CLOCK_TEXT_SIZE - 1);
    ck_assert_int_eq(clock_parse_rfc3339(time, &us), 0);
    ck_assert_int_le(us, clock_realtime_us());
    ck_assert_int_gt(us, clock_realtime_us() - 60000000);
    ck_assert_str_eq(c->text + begin + CLOCK_TEXT_SIZE - 1, rest);
    ck_assert_int_eq(fseeko(c->log.out, 0, SEEK_SET), 0);
}

static void capture_close(struct log_capture *c)
{
    ck_assert_int_eq(fclose(c->log.out), 0);
    free(c->text);
}

START_TEST(log_text)
{
    struct log_capture c;

    capture_open(&c, LOG_FORMAT_TEXT, LOG_DEBUG);
    log_line(&c.log, LOG_INFO, "source.streaming", "Streaming from the server.",
             LOG_STR("slot", "walbus"), LOG_U64("pid", 12));
    capture_expect(&c, "",
                   " info source.streaming Streaming from the server. slot=walbus pid=12\n");
    log_line(&c.log, LOG_DEBUG, "a.b", "Nothing more.");
    capture_expect(&c, "", " debug a.b Nothing more.\n");
    log_line(&c.log, LOG_WARNING, "a.b", "Numbers.", LOG_U64("most", UINT64_MAX),
             LOG_I64("least", INT64_MIN), LOG_I64("minus", -1), LOG_U64("zero", 0));
    capture_expect(&c, "",
                   " warning a.b Numbers. most=18446744073709551615 least=-9223372036854775808 "
                   "minus=-1 zero=0\n");
    log_line(&c.log, LOG_ERROR, "a.b", "Values.", LOG_STR("empty", ""), LOG_STR("null", NULL),
             LOG_STR("blank", "a b"), LOG_STR("quote", "a\"b"), LOG_STR("equals", "a=b"),
             LOG_STR("backslash", "a\\b"), LOG_STR("newline", "a\nlevel=error"),
             LOG_STR("escape", "\x1b[2J"), LOG_STR("utf8", "\xc3\xa9"), LOG_STR("raw", "\xff"));
    capture_expect(&c, "",
                   " error a.b Values. empty=\"\" null=\"\" blank=\"a b\" quote=\"a\\\"b\" "
                   "equals=\"a=b\" backslash=\"a\\\\b\" newline=\"a\\nlevel=error\" "
                   "escape=\"\\x1b[2J\" utf8=\xc3\xa9 raw=\"\\xff\"\n");
    log_line(&c.log, LOG_ERROR, "a.b", "Two\nlines.");
    capture_expect(&c, "", " error a.b Two\\nlines.\n");
    capture_close(&c);
}
END_TEST

START_TEST(log_json)
{
    struct log_capture c;

    capture_open(&c, LOG_FORMAT_JSON, LOG_DEBUG);
    log_line(&c.log, LOG_INFO, "source.streaming", "Streaming from the server.",
             LOG_STR("slot", "walbus"), LOG_U64("pid", 12), LOG_I64("lag", -3));
    capture_expect(&c, "{\"time\":\"",
                   "\",\"level\":\"info\",\"id\":\"source.streaming\","
                   "\"message\":\"Streaming from the server.\",\"slot\":\"walbus\",\"pid\":12,"
                   "\"lag\":-3}\n");
    log_line(&c.log, LOG_ERROR, "a.b", "Values \"quoted\".", LOG_STR("null", NULL),
             LOG_STR("controls", "\x01\n\t\r\x7f\xc2\x85\xe2\x80\xae"),
             LOG_STR("backslash", "a\\b/c"), LOG_STR("utf8", "\xc3\xa9\xf0\x9f\x9a\x8c"),
             LOG_STR("raw", "a\xff"));
    capture_expect(&c, "{\"time\":\"",
                   "\",\"level\":\"error\",\"id\":\"a.b\",\"message\":\"Values \\\"quoted\\\".\","
                   "\"null\":\"\",\"controls\":\"\\u0001\\n\\t\\u000d\\u007f\\u0085\\u202e\","
                   "\"backslash\":\"a\\\\b/c\",\"utf8\":\"\xc3\xa9\xf0\x9f\x9a\x8c\","
                   "\"raw\":\"a\\\\xff\"}\n");
    capture_close(&c);
}
END_TEST

START_TEST(log_levels)
{
    struct log_capture c;

    capture_open(&c, LOG_FORMAT_TEXT, LOG_WARNING);
    log_line(&c.log, LOG_DEBUG, "a", "No.");
    log_line(&c.log, LOG_INFO, "a", "No.");
    log_line(&c.log, LOG_INFO, "a", "No.");
    ck_assert_int_eq(fflush(c.log.out), 0);
    ck_assert_uint_eq(c.size, 0);
    log_line(&c.log, LOG_WARNING, "a", "Yes.");
    capture_expect(&c, "", " warning a Yes.\n");
    log_line(&c.log, LOG_ERROR, "a", "Yes.");
    capture_expect(&c, "", " error a Yes.\n");
    ck_assert_uint_eq(c.log.lines[LOG_DEBUG], 1);
    ck_assert_uint_eq(c.log.lines[LOG_INFO], 2);
    ck_assert_uint_eq(c.log.lines[LOG_WARNING], 1);
    ck_assert_uint_eq(c.log.lines[LOG_ERROR], 1);
    capture_close(&c);

    struct logger silent = {0};
    log_line(&silent, LOG_ERROR, "a", "Nobody hears.");
    ck_assert_uint_eq(silent.lines[LOG_ERROR], 1);
}
END_TEST

/* A line reaches the descriptor in one write: a datagram socket keeps writes apart. */
START_TEST(log_writes_once)
{
    int pair[2];
    char got[4096], value[2001];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
    FILE *out = fdopen(pair[0], "w");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(setvbuf(out, NULL, _IONBF, 0), 0); /* as stderr is */
    struct logger log = {.out = out};
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    log_line(&log, LOG_INFO, "a.b", "A line.", LOG_STR("first", value), LOG_STR("second", "x y"));
    ssize_t n = recv(pair[1], got, sizeof got, MSG_DONTWAIT);
    ck_assert_int_gt(n, 2000);
    ck_assert_int_eq(got[n - 1], '\n');
    ck_assert_int_lt(recv(pair[1], got, sizeof got, MSG_DONTWAIT), 0);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(fd_close(pair[1]), -1);
}
END_TEST

UNIT_MAIN("log", log_text, log_json, log_levels, log_writes_once)
