/* SPDX-License-Identifier: PostgreSQL */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/text.h"
#include "unit.h"

/* ---- bytes and buf ---- */

START_TEST(bytes_big_endian)
{
    uint8_t raw[8];

    bytes_put_u64(raw, 0x0102030405060708);
    unit_assert_hex((struct bytes){raw, 8}, "0102030405060708");
    ck_assert_uint_eq(bytes_get_u64(raw), 0x0102030405060708);
    ck_assert_uint_eq(bytes_get_u32(raw + 4), 0x05060708);
    ck_assert_uint_eq(bytes_get_u16(raw + 6), 0x0708);
    memset(raw, 0xff, sizeof raw);
    ck_assert_uint_eq(bytes_get_u64(raw), UINT64_MAX);
    ck_assert_uint_eq(bytes_get_u32(raw), UINT32_MAX);
    ck_assert_uint_eq(bytes_get_u16(raw), UINT16_MAX);
    bytes_put_u16(raw, 0x8001);
    unit_assert_hex((struct bytes){raw, 3}, "8001ff");
}
END_TEST

START_TEST(bytes_equal_compares_all)
{
    ck_assert(bytes_equal((struct bytes){NULL, 0}, unit_bytes("")));
    ck_assert(bytes_equal(unit_bytes("ab"), unit_bytes("ab")));
    ck_assert(!bytes_equal(unit_bytes("ab"), unit_bytes("ac")));
    ck_assert(!bytes_equal(unit_bytes("ab"), unit_bytes("a")));
    ck_assert(!bytes_equal(unit_bytes(""), unit_bytes("a")));
    ck_assert(bytes_equal(bytes_of_text("ab"), unit_bytes("ab")));
    ck_assert_uint_eq(bytes_of_text(NULL).size, 0);
}
END_TEST

START_TEST(buf_builds)
{
    struct buf b = BUF_INIT;

    ck_assert_str_eq(buf_str(&b), "");
    buf_append(&b, NULL, 0);
    ck_assert_uint_eq(b.size, 0);
    buf_append_u8(&b, 0x01);
    buf_append_u16(&b, 0x0203);
    buf_append_u32(&b, 0x04050607);
    buf_append_u64(&b, 0x08090a0b0c0d0e0f);
    unit_assert_hex(buf_bytes(&b), "010203 04050607 08090a0b0c0d0e0f");
    buf_clear(&b);
    buf_append_str(&b, "x=");
    buf_printf(&b, "%d %s", -7, "seven");
    ck_assert_str_eq(buf_str(&b), "x=-7 seven");
    ck_assert_uint_eq(b.size, 10);
    ck_assert(!b.failed);
    buf_deinit(&b);
    ck_assert_ptr_null(b.data);
    ck_assert_uint_eq(b.cap, 0);
}
END_TEST

START_TEST(buf_grows_over_every_size)
{
    struct buf b = BUF_INIT;

    for (size_t i = 0; i < 1000; i++) {
        ck_assert_uint_eq(b.size, i);
        buf_printf(&b, "%c", (int)('a' + i % 26));
    }
    for (size_t i = 0; i < 1000; i++)
        if (b.data[i] != 'a' + i % 26)
            ck_abort_msg("byte %zu is %u", i, b.data[i]);
    buf_deinit(&b);
}
END_TEST

START_TEST(buf_failure_latches)
{
    struct buf b = BUF_INIT;

    buf_append_str(&b, "something");
    ck_assert_ptr_null(buf_reserve(&b, SIZE_MAX - 4));
    ck_assert(b.failed);
    ck_assert_uint_eq(b.size, 0);
    buf_append_str(&b, "more");
    buf_printf(&b, "%d", 1);
    ck_assert_uint_eq(b.size, 0);
    ck_assert_str_eq(buf_str(&b), "");
    buf_clear(&b);
    buf_append_str(&b, "again");
    ck_assert_str_eq(buf_str(&b), "again");
    buf_deinit(&b);
}
END_TEST

/* ---- clock ---- */

static const struct {
    int64_t us;
    const char *text;
} moments[] = {
    {0, "1970-01-01T00:00:00.000000Z"},
    {1, "1970-01-01T00:00:00.000001Z"},
    {-1, "1969-12-31T23:59:59.999999Z"},
    {-1000000, "1969-12-31T23:59:59.000000Z"},
    {CLOCK_PG_EPOCH_US, "2000-01-01T00:00:00.000000Z"},
    {INT64_C(951782400000000), "2000-02-29T00:00:00.000000Z"},
    {INT64_C(1795979653123456), "2026-11-29T19:14:13.123456Z"},
    {INT64_C(4107542399999999), "2100-02-28T23:59:59.999999Z"},
    {INT64_C(4107542400000000), "2100-03-01T00:00:00.000000Z"},
    {INT64_C(-62167219200000000), "0000-01-01T00:00:00.000000Z"},
    {INT64_C(253402300799999999), "9999-12-31T23:59:59.999999Z"},
};

START_TEST(clock_text_round_trip)
{
    for (size_t i = 0; i < ARRAY_SIZE(moments); i++) {
        char text[CLOCK_TEXT_SIZE];
        int64_t us = 7;

        ck_assert_ptr_eq(clock_format_rfc3339(moments[i].us, text), text);
        ck_assert_str_eq(text, moments[i].text);
        ck_assert_int_eq(clock_parse_rfc3339(text, &us), 0);
        ck_assert_int_eq(us, moments[i].us);
    }
}
END_TEST

START_TEST(clock_text_is_clamped)
{
    char text[CLOCK_TEXT_SIZE];

    ck_assert_str_eq(clock_format_rfc3339(INT64_MIN, text), "0000-01-01T00:00:00.000000Z");
    ck_assert_str_eq(clock_format_rfc3339(INT64_C(-62167219200000001), text),
                     "0000-01-01T00:00:00.000000Z");
    ck_assert_str_eq(clock_format_rfc3339(INT64_C(253402300800000000), text),
                     "9999-12-31T23:59:59.999999Z");
    ck_assert_str_eq(clock_format_rfc3339(INT64_MAX, text), "9999-12-31T23:59:59.999999Z");
}
END_TEST

START_TEST(clock_parses_zones_and_fractions)
{
    static const struct {
        const char *text;
        int64_t us;
    } cases[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"1970-01-01t00:00:00z", 0},
        {"1970-01-01 00:00:00Z", 0},
        {"1970-01-01T00:00:00+00:00", 0},
        {"1970-01-01T00:00:00-00:00", 0},
        {"1970-01-01T01:00:00+01:00", 0},
        {"1969-12-31T16:30:00-07:30", 0},
        {"1970-01-01T00:00:00+23:59", INT64_C(-86340000000)},
        {"1970-01-01T00:00:00-23:59", INT64_C(86340000000)},
        {"1970-01-01T00:00:00.5Z", 500000},
        {"1970-01-01T00:00:00.000001Z", 1},
        {"1970-01-01T00:00:00.0000019Z", 1},
        {"1970-01-01T00:00:00.999999999999999999999999Z", 999999},
        {"1970-01-01T00:00:00.25+00:01", -59750000},
        {"1972-06-30T23:59:60Z", INT64_C(78796800000000)},
        {"2024-02-29T12:00:00Z", INT64_C(1709208000000000)},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int64_t us = 7;

        ck_assert_msg(clock_parse_rfc3339(cases[i].text, &us) == 0, "%s", cases[i].text);
        ck_assert_msg(us == cases[i].us, "%s: %lld", cases[i].text, (long long)us);
    }
}
END_TEST

START_TEST(clock_refuses)
{
    static const char *const wrong[] = {
        "",
        "now",
        "1970-01-01",
        "1970-01-01T00:00:00",
        "1970-01-01T00:00Z",
        "1970-01-01T00:00:00.Z",
        "1970-01-01T00:00:00,5Z",
        "1970-01-01T00:00:00Z ",
        " 1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00ZZ",
        "1970-01-01T00:00:00 Z",
        "1970-01-01T00:00:00+0000",
        "1970-01-01T00:00:00+00",
        "1970-01-01T00:00:00+00:0",
        "1970-01-01T00:00:00+24:00",
        "1970-01-01T00:00:00+00:60",
        "1970-01-01T00:00:00+00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:60:00Z",
        "1970-01-01T00:00:61Z",
        "1970-00-01T00:00:00Z",
        "1970-13-01T00:00:00Z",
        "1970-01-00T00:00:00Z",
        "1970-01-32T00:00:00Z",
        "1970-04-31T00:00:00Z",
        "1970-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "2000-02-30T00:00:00Z",
        "70-01-01T00:00:00Z",
        "19700-01-01T00:00:00Z",
        "-970-01-01T00:00:00Z",
        "1970-1-01T00:00:00Z",
        "1970/01/01T00:00:00Z",
        "1970-01-01T0:00:00Z",
        "1970-01-01T00:00:00.-5Z",
    };

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        int64_t us = 7;

        ck_assert_msg(clock_parse_rfc3339(wrong[i], &us) == -EINVAL, "%s", wrong[i]);
        ck_assert_int_eq(us, 7);
    }
    /* No part of a text is one. */
    static const char good[] = "2026-11-29T19:14:13.123456+01:00";
    for (size_t size = 0; size < sizeof good - 1; size++) {
        char cut[sizeof good] = "";
        int64_t us;

        memcpy(cut, good, size);
        ck_assert_msg(clock_parse_rfc3339(cut, &us) == -EINVAL, "%s", cut);
    }
}
END_TEST

START_TEST(clocks_run)
{
    uint64_t before = clock_monotonic_ns();
    int64_t now = clock_realtime_us();
    struct timespec pause = {0, 2000000};

    /* After 2025 and before 2100: µs, not another unit. */
    ck_assert_int_gt(now, INT64_C(1735689600000000));
    ck_assert_int_lt(now, INT64_C(4102444800000000));
    (void)nanosleep(&pause, NULL);
    ck_assert_uint_ge(clock_monotonic_ns() - before, 2000000);
}
END_TEST

START_TEST(clock_time_left)
{
    uint64_t now = clock_monotonic_ns();

    ck_assert_int_eq(clock_ms_until(0), 0);
    ck_assert_int_eq(clock_ms_until(now), 0);
    ck_assert_int_eq(clock_ms_until(UINT64_MAX), INT_MAX);
    int left = clock_ms_until(now + UINT64_C(3600000) * 1000000);
    ck_assert_int_le(left, 3600000);
    ck_assert_int_gt(left, 3600000 - 20000);
    /* Rounded up: what is left of a ms is a ms. A test that is held up for so long tries again. */
    do {
        now = clock_monotonic_ns();
        left = clock_ms_until(now + 900000);
    } while (clock_monotonic_ns() >= now + 900000);
    ck_assert_int_eq(left, 1);
}
END_TEST

/* ---- text ---- */

START_TEST(utf8_limits)
{
    static const struct {
        const char *hex;
        size_t length;
        uint32_t code_point;
    } cases[] = {
        {"00", 1, 0},
        {"7f", 1, 0x7f},
        {"80", 0, 0},
        {"bf", 0, 0},
        {"c080", 0, 0}, /* overlong */
        {"c1bf", 0, 0},
        {"c280", 2, 0x80},
        {"dfbf", 2, 0x7ff},
        {"c27f", 0, 0},
        {"c2c0", 0, 0},
        {"e08080", 0, 0},
        {"e09fbf", 0, 0},
        {"e0a080", 3, 0x800},
        {"ed9fbf", 3, 0xd7ff},
        {"eda080", 0, 0}, /* surrogates */
        {"edbfbf", 0, 0},
        {"ee8080", 3, 0xe000},
        {"efbfbf", 3, 0xffff},
        {"e1807f", 0, 0},
        {"e180c0", 0, 0},
        {"f0808080", 0, 0},
        {"f08fbfbf", 0, 0},
        {"f0908080", 4, 0x10000},
        {"f48fbfbf", 4, 0x10ffff},
        {"f4908080", 0, 0},
        {"f5808080", 0, 0},
        {"f180807f", 0, 0},
        {"f880808080", 0, 0},
        {"fe", 0, 0},
        {"ff", 0, 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes raw = unit_from_hex(cases[i].hex);
        uint32_t code_point = 0;

        ck_assert_msg(text_utf8_sequence(raw.data, raw.size, &code_point) == cases[i].length, "%s",
                      cases[i].hex);
        ck_assert_uint_eq(code_point, cases[i].code_point);
        ck_assert_int_eq(text_is_utf8(raw), cases[i].length > 0);
        /* Cut at every byte it is none, and nothing behind the cut is read. */
        for (size_t size = 0; size < cases[i].length; size++) {
            struct bytes cut = unit_exact((struct bytes){raw.data, size});

            ck_assert_uint_eq(text_utf8_sequence(cut.data, cut.size, &code_point), 0);
            ck_assert_int_eq(text_is_utf8(cut), size == 0);
            unit_free(cut);
        }
        unit_free(raw);
    }
}
END_TEST

static void put_utf8(struct buf *b, uint32_t c)
{
    if (c < 0x80) {
        buf_append_u8(b, (uint8_t)c);
    } else if (c < 0x800) {
        buf_append_u8(b, (uint8_t)(0xc0 | c >> 6));
        buf_append_u8(b, (uint8_t)(0x80 | (c & 0x3f)));
    } else if (c < 0x10000) {
        buf_append_u8(b, (uint8_t)(0xe0 | c >> 12));
        buf_append_u8(b, (uint8_t)(0x80 | (c >> 6 & 0x3f)));
        buf_append_u8(b, (uint8_t)(0x80 | (c & 0x3f)));
    } else {
        buf_append_u8(b, (uint8_t)(0xf0 | c >> 18));
        buf_append_u8(b, (uint8_t)(0x80 | (c >> 12 & 0x3f)));
        buf_append_u8(b, (uint8_t)(0x80 | (c >> 6 & 0x3f)));
        buf_append_u8(b, (uint8_t)(0x80 | (c & 0x3f)));
    }
}

START_TEST(utf8_every_code_point)
{
    struct buf b = BUF_INIT;

    for (uint32_t c = 0; c <= 0x110000; c++) {
        bool good = c < 0xd800 || (c > 0xdfff && c <= 0x10ffff);
        uint32_t got = 0;

        buf_clear(&b);
        put_utf8(&b, c);
        size_t n = text_utf8_sequence(b.data, b.size, &got);
        if (good ? n != b.size || got != c : n != 0)
            ck_abort_msg("U+%04X: %zu bytes, U+%04X", (unsigned)c, n, (unsigned)got);
    }
    buf_deinit(&b);
}
END_TEST

START_TEST(visible)
{
    static const struct {
        const char *raw, *shown;
    } cases[] = {
        {"", ""},
        {"orders.created", "orders.created"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x9a\x8c", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x9a\x8c"},
        {"a\\b", "a\\\\b"},
        {"a\nb\tc\rd", "a\\nb\\tc\\x0dd"},
        {"\x1b[31m", "\\x1b[31m"},
        {"\x01\x1f\x7f", "\\x01\\x1f\\x7f"},
        {"\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0", "\\u{80}\\u{9b}\\u{9f}\xc2\xa0"},
        {"\xe2\x80\xa8\xe2\x80\xa9", "\\u{2028}\\u{2029}"},
        {"\xe2\x80\xaa\xe2\x80\xae\xe2\x80\xaf", "\\u{202a}\\u{202e}\xe2\x80\xaf"},
        {"\xe2\x80\x8d\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\x90",
         "\xe2\x80\x8d\\u{200e}\\u{200f}\xe2\x80\x90"},
        {"\xe2\x81\xa5\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xaa",
         "\xe2\x81\xa5\\u{2066}\\u{2069}\xe2\x81\xaa"},
        {"\xd8\x9c", "\\u{61c}"},
        {"\xff\xc3(", "\\xff\\xc3("},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
        {"\xe2\x82", "\\xe2\\x82"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes raw = unit_exact(unit_bytes(cases[i].raw));
        struct buf out = BUF_INIT;

        text_put_visible(&out, raw);
        unit_assert_text(buf_bytes(&out), cases[i].shown);
        buf_deinit(&out);
        unit_free(raw);
    }
    struct buf out = BUF_INIT;
    text_put_visible(&out, (struct bytes){(const uint8_t *)"a\0b", 3});
    ck_assert_str_eq(buf_str(&out), "a\\x00b");
    buf_deinit(&out);
}
END_TEST

START_TEST(visible_is_safe_for_every_byte_pair)
{
    struct buf out = BUF_INIT;

    for (unsigned v = 0; v < 0x10000; v++) {
        uint8_t raw[] = {(uint8_t)(v >> 8), (uint8_t)v};

        buf_clear(&out);
        text_put_visible(&out, (struct bytes){raw, 2});
        bool safe = text_is_utf8(buf_bytes(&out));
        for (size_t i = 0; i < out.size; i++)
            safe = safe && out.data[i] >= 0x20 && out.data[i] != 0x7f;
        if (!safe)
            ck_abort_msg("bytes %02x %02x give \"%s\"", raw[0], raw[1], buf_str(&out));
    }
    buf_deinit(&out);
}
END_TEST

START_TEST(nearest)
{
    static const char *const list[] = {"dsn",        "slot",        "publication",
                                       "socket",     "socket-mode", "heartbeat-interval",
                                       "log-format", "log-level",   NULL};
    static const char *const nothing[] = {NULL};
    static const struct {
        const char *word, *nearest;
    } cases[] = {
        {"slot", "slot"},
        {"slots", "slot"},
        {"solt", "slot"},
        {"SLOT", "slot"},
        {"sot", "slot"},
        {"dns", "dsn"},
        {"publicaton", "publication"},
        {"sokcet", "socket"},
        {"socket_mode", "socket-mode"},
        {"heartbeat", "heartbeat-interval"},
        {"hartbeet-intervall", "heartbeat-interval"},
        {"loglevel", "log-level"},
        {"log-leven", "log-level"},
        {"", NULL},
        {"x", NULL},
        {"password", NULL},
        {"retention", NULL},
    };
    char longest[65];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *got = text_nearest(cases[i].word, list);

        if (cases[i].nearest)
            ck_assert_pstr_eq(got, cases[i].nearest);
        else
            ck_assert_msg(!got, "%s is near %s", cases[i].word, got);
    }
    ck_assert_ptr_null(text_nearest("slot", nothing));
    memset(longest, 'a', sizeof longest - 1);
    longest[64] = '\0';
    const char *one[] = {longest, NULL};
    ck_assert_ptr_null(text_nearest(longest, one));
    ck_assert_ptr_null(text_nearest("aaa", one));
    longest[63] = '\0';
    ck_assert_ptr_eq(text_nearest(longest, one), longest);
}
END_TEST

START_TEST(hex)
{
    static const uint8_t raw[] = {0x00, 0x0f, 0xf0, 0xff, 0x5a};
    char out[11];

    ck_assert_ptr_eq(text_hex(raw, sizeof raw, out), out);
    ck_assert_str_eq(out, "000ff0ff5a");
    ck_assert_str_eq(text_hex(raw, 0, out), "");
}
END_TEST

START_TEST(sizes)
{
    static const struct {
        const char *text;
        int result;
        uint64_t bytes;
    } cases[] = {
        {"0", 0, 0},
        {"1", 0, 1},
        {"1B", 0, 1},
        {"1kB", 0, 1024},
        {"16MB", 0, 16777216},
        {"16 MB", 0, 16777216},
        {"16 \t MB", 0, 16777216},
        {"1GB", 0, 1073741824},
        {"1.5GB", 0, 1610612736},
        {"0.5kB", 0, 512},
        {"0.0001kB", 0, 0},
        {"0.4B", 0, 0},
        {"0.5B", 0, 1},
        {"1.999999999B", 0, 2},
        {"1.9999999999999999B", 0, 2},
        {"007kB", 0, 7168},
        {"2TB", 0, 2199023255552},
        {"0.000000001GB", 0, 1},
        {"18446744073709551615", 0, UINT64_MAX},
        {"18014398509481983kB", 0, UINT64_MAX - 1023},
        {"16777215TB", 0, UINT64_MAX - ((UINT64_C(1) << 40) - 1)},
        {"18446744073709551616", -ERANGE, 0},
        {"99999999999999999999999999", -ERANGE, 0},
        {"18446744073709551615.5", -ERANGE, 0},
        {"18014398509481984kB", -ERANGE, 0},
        {"16777216TB", -ERANGE, 0},
        {"", -EINVAL, 0},
        {" ", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1x", -EINVAL, 0},
        {"1 ", -EINVAL, 0},
        {"1kB ", -EINVAL, 0},
        {"1 k B", -EINVAL, 0},
        {"1KB", -EINVAL, 0},
        {"1mb", -EINVAL, 0},
        {"1b", -EINVAL, 0},
        {"1MBB", -EINVAL, 0},
        {"1s", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {"MB", -EINVAL, 0},
        {".5MB", -EINVAL, 0},
        {"1.MB", -EINVAL, 0},
        {"1.5.5MB", -EINVAL, 0},
        {"1,5MB", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
        {"1e3", -EINVAL, 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint64_t bytes = 7;
        int r = text_parse_size(cases[i].text, &bytes);

        ck_assert_msg(r == cases[i].result, "\"%s\": %d", cases[i].text, r);
        ck_assert_msg(bytes == (r < 0 ? 7 : cases[i].bytes), "\"%s\": %llu", cases[i].text,
                      (unsigned long long)bytes);
    }
}
END_TEST

START_TEST(durations)
{
    static const struct {
        const char *text, *unit;
        int result;
        uint64_t us;
    } cases[] = {
        {"10s", "ms", 0, 10000000},
        {"10", "ms", 0, 10000},
        {"10", "s", 0, 10000000},
        {"10", "us", 0, 10},
        {"1us", "s", 0, 1},
        {"100ms", "s", 0, 100000},
        {"2 min", "s", 0, 120000000},
        {"1h", "s", 0, UINT64_C(3600000000)},
        {"30d", "s", 0, UINT64_C(2592000000000)},
        {"1.5h", "s", 0, UINT64_C(5400000000)},
        {"0.25", "s", 0, 250000},
        {"0", "d", 0, 0},
        {"213503982d", "s", 0, UINT64_C(18446744044800000000)},
        {"213503983d", "s", -ERANGE, 0},
        {"1m", "s", -EINVAL, 0},
        {"1M", "s", -EINVAL, 0},
        {"1S", "s", -EINVAL, 0},
        {"1kB", "s", -EINVAL, 0},
        {"-1s", "s", -EINVAL, 0},
        {"", "s", -EINVAL, 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint64_t us = 7;
        int r = text_parse_duration(cases[i].text, cases[i].unit, &us);

        ck_assert_msg(r == cases[i].result, "\"%s\": %d", cases[i].text, r);
        ck_assert_msg(us == (r < 0 ? 7 : cases[i].us), "\"%s\": %llu", cases[i].text,
                      (unsigned long long)us);
    }
}
END_TEST

/* What is written is read back as the same number, and in the largest unit that needs no fraction. */
START_TEST(quantities_are_written)
{
    static const struct {
        uint64_t v;
        const char *size, *duration;
    } cases[] = {
        {0, "0TB", "0d"},
        {1, "1B", "1us"},
        {999, "999B", "999us"},
        {1000, "1000B", "1ms"},
        {1024, "1kB", "1024us"},
        {1536, "1536B", "1536us"},
        {60000000, "60000000B", "1min"},
        {UINT64_C(5400000000), "5400000000B", "90min"},
        {UINT64_C(86400000000), "84375000kB", "1d"},
        {UINT64_C(3) << 40, "3TB", "3298534883328us"},
        {UINT64_MAX, "18446744073709551615B", "18446744073709551615us"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf out = BUF_INIT;
        uint64_t back = 7;

        text_put_size(&out, cases[i].v);
        ck_assert_int_eq(text_parse_size(buf_str(&out), &back), 0);
        ck_assert_uint_eq(back, cases[i].v);
        ck_assert_str_eq(buf_str(&out), cases[i].size);
        buf_clear(&out);
        text_put_duration(&out, cases[i].v);
        ck_assert_str_eq(buf_str(&out), cases[i].duration);
        ck_assert_int_eq(text_parse_duration(buf_str(&out), "d", &back), 0);
        ck_assert_uint_eq(back, cases[i].v);
        buf_deinit(&out);
    }
}
END_TEST

/* ---- log ---- */

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

/* ---- descriptors ---- */

START_TEST(fd_close_keeps_errno)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    errno = ENOTTY;
    ck_assert_int_eq(fd_close(fd), -1);
    ck_assert_int_eq(errno, ENOTTY);
    ck_assert_int_lt(fcntl(fd, F_GETFD), 0);
    errno = ENOTTY;
    ck_assert_int_eq(fd_close(-1), -1);
    ck_assert_int_eq(errno, ENOTTY);
}
END_TEST

START_TEST(fd_address_limits)
{
    struct sockaddr_un address;
    char path[FD_SOCKET_PATH_MAX + 2];

    ck_assert_uint_eq(FD_SOCKET_PATH_MAX, 107);
    ck_assert_int_eq(fd_socket_address("", &address), -EINVAL);
    ck_assert_int_eq(fd_socket_address("/s", &address), 0);
    ck_assert_int_eq(address.sun_family, AF_UNIX);
    ck_assert_str_eq(address.sun_path, "/s");
    memset(path, 'p', sizeof path - 1);
    path[FD_SOCKET_PATH_MAX + 1] = '\0';
    ck_assert_int_eq(fd_socket_address(path, &address), -ENAMETOOLONG);
    ck_assert_str_eq(address.sun_path, "/s");
    path[FD_SOCKET_PATH_MAX] = '\0';
    ck_assert_int_eq(fd_socket_address(path, &address), 0);
    ck_assert_str_eq(address.sun_path, path);
}
END_TEST

START_TEST(fd_connects)
{
    char folder[] = "/tmp/walbus-unit-XXXXXX", path[64];
    struct sockaddr_un address;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/s", folder);
    ck_assert_int_eq(fd_connect_unix(path), -ENOENT);
    ck_assert_int_eq(fd_socket_address(path, &address), 0);

    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(server, 0);
    ck_assert_int_eq(bind(server, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(fd_connect_unix(path), -ECONNREFUSED);
    ck_assert_int_eq(listen(server, 0), 0);

    int fd = fd_connect_unix(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ne(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    /* The backlog of one is full: no waiting, and no descriptor left behind. */
    ck_assert_int_eq(fd_connect_unix(path), -EAGAIN);

    int peer = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(peer, 0);
    ck_assert_int_eq(write(fd, "x", 1), 1);
    char c = 0;
    ck_assert_int_eq(read(peer, &c, 1), 1);
    ck_assert_int_eq(c, 'x');
    (void)fd_close(peer);
    (void)fd_close(fd);
    (void)fd_close(server);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

UNIT_MAIN("base", bytes_big_endian, bytes_equal_compares_all, buf_builds, buf_grows_over_every_size,
          buf_failure_latches, clock_text_round_trip, clock_text_is_clamped,
          clock_parses_zones_and_fractions, clock_refuses, clocks_run, clock_time_left, utf8_limits,
          utf8_every_code_point, visible, visible_is_safe_for_every_byte_pair, nearest, hex, sizes,
          durations, quantities_are_written, log_text, log_json, log_levels, log_writes_once,
          fd_close_keeps_errno, fd_address_limits, fd_connects)
