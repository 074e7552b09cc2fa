/* SPDX-License-Identifier: PostgreSQL */
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "unit.h"

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

/* Eight bytes of ASCII are passed at a time: what is wrong is found at every place of them. */
START_TEST(utf8_size)
{
    static const struct {
        const char *sequence;
        bool good;
    } cases[] = {
        {"\xc3\xa4", true}, {"\xe2\x82\xac", true}, {"\xf0\x9f\x98\x80", true},
        {"\x80", false},    {"\xe2\x82", false},     {"\xff", false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t before = 0; before < 20; before++) {
            for (size_t behind = 0; behind < 20; behind++) {
                size_t size = before + strlen(cases[i].sequence) + behind;
                uint8_t *raw = malloc(size); /* to its end alone: ASan sees who reads on */

                ck_assert_ptr_nonnull(raw);
                memset(raw, 'a', size);
                memcpy(raw + before, cases[i].sequence, strlen(cases[i].sequence));
                struct bytes text = {raw, size};
                ck_assert_uint_eq(text_utf8_size(text), cases[i].good ? size : before);
                ck_assert_int_eq(text_is_utf8(text), cases[i].good);
                free(raw);
            }
        }
    }
    ck_assert_uint_eq(text_utf8_size((struct bytes){NULL, 0}), 0);
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

START_TEST(hex_back_to_bytes)
{
    uint8_t out[4] = {1, 2, 3, 4};

    ck_assert_int_eq(text_from_hex("", 0, out), 0);
    ck_assert_int_eq(text_from_hex("0fA9", 4, out), 0);
    unit_assert_hex((struct bytes){out, 4}, "0fa90304");
    for (int c = 0; c < 256; c++) {
        const char text[] = {'0', (char)c};
        bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');

        ck_assert_int_eq(text_from_hex(text, 2, out), good ? 0 : -EINVAL);
    }
    out[0] = 7; /* nothing is written of what is refused */
    ck_assert_int_eq(text_from_hex("00f", 3, out), -EINVAL);
    ck_assert_int_eq(text_from_hex("00fg", 4, out), -EINVAL);
    ck_assert_uint_eq(out[0], 7);
}
END_TEST

UNIT_MAIN("text", hex_back_to_bytes, utf8_limits, utf8_every_code_point, utf8_size, visible,
          visible_is_safe_for_every_byte_pair, nearest, hex, sizes, durations,
          quantities_are_written)
