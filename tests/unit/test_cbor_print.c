/* SPDX-License-Identifier: PostgreSQL */
#include "codec/cbor.h"

#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "vectors.h"

/* ---- helpers ---- */

static void assert_diagnostic(const char *hex, const char *want)
{
    struct bytes in = unit_from_hex(hex);
    struct buf out = BUF_INIT;

    ck_assert_msg(cbor_print_diagnostic(in, &out) == CBOR_OK, "%s was refused", hex);
    ck_assert_msg(strcmp(buf_str(&out), want) == 0, "%s: got %s, wanted %s", hex, buf_str(&out),
                  want);
    buf_deinit(&out);
    unit_free(in);
}

static void assert_json(const char *hex, const char *want)
{
    struct bytes in = unit_from_hex(hex);
    struct buf out = BUF_INIT;

    ck_assert_msg(cbor_print_json(in, &out) == CBOR_OK, "%s was refused", hex);
    ck_assert_msg(strcmp(buf_str(&out), want) == 0, "%s: got %s, wanted %s", hex, buf_str(&out),
                  want);
    buf_deinit(&out);
    unit_free(in);
}

/* A repeated piece of hex and something behind it. */
static char *repeat_hex(const char *piece, size_t n, const char *behind)
{
    size_t size = strlen(piece);
    char *hex = malloc(size * n + strlen(behind) + 1);

    ck_assert_ptr_nonnull(hex);
    for (size_t i = 0; i < n; i++)
        memcpy(hex + size * i, piece, size);
    strcpy(hex + size * n, behind);
    return hex;
}

/* xorshift64: the same inputs in every run. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- vectors ---- */

/* jansson's value of a printed text, or NULL. All numbers are reals, as in what vectors_load gives. */
static json_t *json_of(struct buf *text)
{
    return json_loads(buf_str(text), JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
}

/* Takes out what diagnostic notation has and JSON has not: "_ " behind a bracket, and the
 * parentheses around chunks, which are joined. Only for the items of the vectors, of which no text
 * holds any of these. */
static void make_json_of_diagnostic(struct buf *text)
{
    struct buf json = BUF_INIT;
    bool chunks = false;

    for (const char *p = buf_str(text); *p; p++) {
        if (strncmp(p, "(_ ", 3) == 0) {
            chunks = true;
            p += 2;
        } else if (strncmp(p, "_ ", 2) == 0) {
            p++;
        } else if (chunks && strncmp(p, "\", \"", 4) == 0) {
            p += 3;
        } else if (chunks && *p == ')') {
            chunks = false;
        } else {
            buf_append_u8(&json, (uint8_t)*p);
        }
    }
    buf_deinit(text);
    *text = json;
}

/* Each row has its diagnostic notation, or its value as JSON; then the diagnostic notation, as far
 * as it is JSON, is that value too. */
START_TEST(appendix_a_is_printed)
{
    json_t *rows = vectors_load("cbor/appendix_a.json");
    size_t i, n_diagnostic = 0, n_value = 0, n_json = 0, n_refused = 0;
    json_t *row;

    if (!rows)
        return;
    json_array_foreach(rows, i, row)
    {
        const char *hex = vectors_text(row, "hex");
        const char *diagnostic = vectors_text(row, "diagnostic");
        json_t *decoded = json_object_get(row, "decoded");
        struct bytes in = unit_from_hex(hex);
        struct buf text = BUF_INIT, json_text = BUF_INIT;

        ck_assert(!diagnostic != !decoded);
        if (strcmp(hex, "f818") == 0) { /* the one that RFC 8949 made malformed */
            ck_assert_int_eq(cbor_print_diagnostic(in, &text), CBOR_FAULT_SIMPLE);
            ck_assert_int_eq(cbor_print_json(in, &json_text), CBOR_FAULT_SIMPLE);
            ck_assert_uint_eq(text.size + json_text.size, 0);
            n_refused++;
        } else {
            ck_assert_int_eq(cbor_print_json(in, &json_text), CBOR_OK);
            json_t *json = json_of(&json_text);
            ck_assert_msg(json != NULL, "%s as JSON: %s", hex, buf_str(&json_text));
            if (diagnostic) {
                assert_diagnostic(hex, diagnostic);
                n_diagnostic++;
            } else {
                ck_assert_int_eq(cbor_print_diagnostic(in, &text), CBOR_OK);
                make_json_of_diagnostic(&text);
                json_t *value = json_of(&text);
                ck_assert_msg(value && json_equal(value, decoded), "%s: %s", hex, buf_str(&text));
                json_decref(value);
                n_value++;
            }
            /* Bignums are numbers to the vectors, and base64url in RFC 8949 6.1. */
            if (decoded && strncmp(hex, "c2", 2) != 0 && strncmp(hex, "c3", 2) != 0) {
                ck_assert_msg(json_equal(json, decoded), "%s as JSON: %s", hex,
                              buf_str(&json_text));
                n_json++;
            }
            json_decref(json);
        }
        buf_deinit(&text);
        buf_deinit(&json_text);
        unit_free(in);
    }
    ck_assert_uint_eq(json_array_size(rows), 82);
    ck_assert_uint_eq(n_diagnostic + n_value, 81);
    ck_assert_uint_eq(n_json, n_value - 2);
    ck_assert_uint_eq(n_refused, 1);
    json_decref(rows);
}
END_TEST

/* Every byte replaced by every other: nothing is read outside, and what is still well-formed
 * prints, as JSON that a JSON parser takes. */
START_TEST(appendix_a_with_any_byte_replaced)
{
    json_t *rows = vectors_load("cbor/appendix_a.json");
    size_t i, n_good = 0;
    json_t *row;

    if (!rows)
        return;
    json_array_foreach(rows, i, row)
    {
        struct bytes in = unit_from_hex(vectors_text(row, "hex"));
        uint8_t *raw = (uint8_t *)(uintptr_t)in.data;

        for (size_t at = 0; at < in.size; at++) {
            uint8_t before = raw[at];

            for (unsigned value = 0; value < 256; value++) {
                struct buf json = BUF_INIT, diagnostic = BUF_INIT;

                raw[at] = (uint8_t)value;
                enum cbor_fault fault = cbor_check(in, NULL);
                /* No ck_assert where 150,000 come by: each writes into the runner's pipe. */
                if (cbor_print_json(in, &json) != fault ||
                    cbor_print_diagnostic(in, &diagnostic) != fault)
                    ck_abort_msg("printing and checking differ");
                if (fault == CBOR_OK) {
                    json_error_t error;
                    json_t *got = json_loads(
                        buf_str(&json), JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL,
                        &error);

                    /* jansson cannot hold a NUL in a key. */
                    if (!got && !strstr(error.text, "NUL"))
                        ck_abort_msg("%s: %s", buf_str(&json), error.text);
                    if (diagnostic.size == 0)
                        ck_abort_msg("nothing was printed");
                    json_decref(got);
                    n_good++;
                }
                buf_deinit(&json);
                buf_deinit(&diagnostic);
            }
            raw[at] = before;
        }
        unit_free(in);
    }
    ck_assert_uint_ge(n_good, 10000);
    json_decref(rows);
}
END_TEST

/* Takes out the indicators of head widths ("1_1", "[_0 false, true]"), which are not printed. */
static char *without_widths(const char *edn)
{
    char *out = malloc(strlen(edn) + 1), *to = out;

    ck_assert_ptr_nonnull(out);
    while (*edn) {
        if (*edn == '_' && edn[1] >= '0' && edn[1] <= '3') {
            bool bracket = to > out && (to[-1] == '[' || to[-1] == '{');

            edn += bracket ? 3 : 2;
        } else {
            *to++ = *edn++;
        }
    }
    *to = '\0';
    return out;
}

START_TEST(extended_notation_is_printed)
{
    json_t *rows = vectors_load("cbor/edn_output.json");
    size_t i;
    json_t *row;

    if (!rows)
        return;
    json_array_foreach(rows, i, row)
    {
        char *want = without_widths(vectors_text(row, "edn"));

        assert_diagnostic(vectors_text(row, "hex"), want);
        free(want);
    }
    ck_assert_uint_eq(json_array_size(rows), 34);
    json_decref(rows);
}
END_TEST

/* ---- printing ---- */

START_TEST(diagnostic_notation)
{
    static const struct {
        const char *hex, *text;
    } cases[] = {
        {"1bffffffffffffffff", "18446744073709551615"},
        {"3bffffffffffffffff", "-18446744073709551616"},
        {"c249010000000000000000", "18446744073709551616"},
        {"c349010000000000000000", "-18446744073709551617"},
        {"c34a00ffffffffffffffffff", "3(h'00ffffffffffffffffff')"}, /* leading zero */
        {"c348ffffffffffffffff", "3(h'ffffffffffffffff')"},         /* an integer could hold it */
        {"c349ffffffffffffffffff", "-4722366482869645213696"},
        {"c24a01000000000000000000", "4722366482869645213696"},
        {"c25f49010000000000000000ff", "2((_ h'010000000000000000'))"},
        {"c26161", "2(\"a\")"},
        {"fa47c35000", "100000.0"},
        {"fb7e37e43c8800759c", "1.0e+300"},
        {"f90001", "5.960464477539063e-8"},
        {"f90400", "0.00006103515625"},
        {"fbc010666666666666", "-4.1"},
        {"fa7f7fffff", "3.4028234663852886e+38"},
        {"fb0000000000000001", "5.0e-324"},
        {"fb0000000000000003", "1.5e-323"},
        {"fb0010000000000000", "2.2250738585072014e-308"},
        {"fb3fb999999999999a", "0.1"},
        {"fb7fefffffffffffff", "1.7976931348623157e+308"},
        {"fb444b1ae4d6e2ef50", "1.0e+21"},
        {"fb4415af1d78b58c40", "100000000000000000000.0"},
        {"f98000", "-0.0"},
        {"9f018202039f0405ffff", "[_ 1, [2, 3], [_ 4, 5]]"},
        {"bf61610161629f0203ffff", "{_ \"a\": 1, \"b\": [_ 2, 3]}"},
        {"9fff", "[_ ]"},
        {"bfff", "{_ }"},
        {"a1a10102a0", "{{1: 2}: {}}"},
        {"d9d9f7a0", "55799({})"},
        {"66220a5c7f0909", "\"\\\"\\u000a\\\\\\u007f\\u0009\\u0009\""},
        {"62c285", "\"\\u0085\""},
        {"63e280ae", "\"\\u202e\""}, /* right-to-left override */
        {"62d89c", "\"\\u061c\""},
        {"64f09f9880", "\"\xf0\x9f\x98\x80\""},
        {"f820", "simple(32)"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_diagnostic(cases[i].hex, cases[i].text);
}
END_TEST

START_TEST(bignums_are_decimal_up_to_a_size)
{
    struct buf out = BUF_INIT;
    char *hex = repeat_hex("ff", 64, "");
    char *bignum = repeat_hex("c25840", 1, hex);
    struct bytes in = unit_from_hex(bignum);

    ck_assert_int_eq(cbor_print_diagnostic(in, &out), CBOR_OK);
    ck_assert_str_eq(buf_str(&out), "134078079299425970995740249982058461274793658205923933"
                                    "777235614437217640300735469768018742981669034276900318"
                                    "58186486050853753882811946569946433649006084095");
    buf_clear(&out);
    unit_free(in);
    free(bignum);
    free(hex);

    hex = repeat_hex("ff", 65, "");
    bignum = repeat_hex("c35841", 1, hex);
    in = unit_from_hex(bignum);
    ck_assert_int_eq(cbor_print_diagnostic(in, &out), CBOR_OK);
    ck_assert_uint_eq(out.size, strlen("3(h'')") + 130);
    unit_free(in);
    free(bignum);
    free(hex);
    buf_deinit(&out);
}
END_TEST

START_TEST(json_by_rfc_8949_6_1)
{
    static const struct {
        const char *hex, *text;
    } cases[] = {
        {"1bffffffffffffffff", "18446744073709551615"},
        {"3bffffffffffffffff", "-18446744073709551616"},
        {"fb3ff199999999999a", "1.1"},
        {"f93c00", "1.0"},
        {"f97e00", "null"},
        {"f97c00", "null"},
        {"f9fc00", "null"},
        {"f7", "null"},
        {"f0", "null"},
        {"f8ff", "null"},
        {"40", "\"\""},
        {"41fb", "\"-w\""},
        {"42fbff", "\"-_8\""},
        {"43fbffff", "\"-___\""},
        {"d541fb", "\"-w\""},
        {"d641fb", "\"+w==\""},
        {"d642fbff", "\"+/8=\""},
        {"d643fbffff", "\"+///\""},
        {"d742fbff", "\"FBFF\""},
        {"d78241fa d641fb", "[\"FA\",\"+w==\"]"}, /* inherited, until another says otherwise */
        {"d61854", "84"},
        {"5f42fbff41ff4100ff", "\"-___AA\""}, /* chunks join before they are encoded */
        {"5fff", "\"\""},
        {"c249010000000000000000", "\"AQAAAAAAAAAA\""},
        {"c349010000000000000000", "\"~AQAAAAAAAAAA\""},
        {"d7c341fb", "\"~-w\""},
        {"c25f41fb41ffff", "\"-_8\""},
        {"c074323031332d30332d32315432303a30343a30305a", "\"2013-03-21T20:04:00Z\""},
        {"7f657374726561646d696e67ff", "\"streaming\""},
        {"9f0102ff", "[1,2]"},
        {"bf616101ff", "{\"a\":1}"},
        {"a201020304", "{\"1\":2,\"3\":4}"},
        {"a1f93e0000", "{\"1.5\":0}"},
        {"a1f600", "{\"null\":0}"},
        {"a1f400", "{\"false\":0}"},
        {"a141fb00", "{\"-w\":0}"},
        {"a1c161 6100", "{\"a\":0}"},
        {"a1c10500", "{\"5\":0}"},
        {"a1c249010000000000000000 00", "{\"AQAAAAAAAAAA\":0}"},
        {"a1 8201 622261 00", "{\"[1, \\\"\\\\\\\"a\\\"]\":0}"},
        {"a1 81 610a 00", "{\"[\\\"\\\\u000a\\\"]\":0}"},
        {"a1 a1 6161 615c 00", "{\"{\\\"a\\\": \\\"\\\\\\\\\\\"}\":0}"},
        {"a1 81 7fff 00", "{\"[\\\"\\\"_]\":0}"},
        {"67220a5c7f09082f", "\"\\\"\\n\\\\\\u007f\\t\\b/\""},
        {"62c285", "\"\\u0085\""},
        {"6100", "\"\\u0000\""},
        {"63e280a8", "\"\\u2028\""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_json(cases[i].hex, cases[i].text);
}
END_TEST

/* Doubles of all magnitudes, and the powers of two where the distance to the next one changes, come
 * back from their text. */
START_TEST(floats_are_printed_to_read_back)
{
    uint64_t state = 0x9e3779b97f4a7c15;

    for (int i = 0; i < 20000; i++) {
        uint64_t bits = i < 2047 ? (uint64_t)i << 52 : next_random(&state);
        struct buf in = BUF_INIT, out = BUF_INIT;
        double v;

        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v))
            continue;
        cbor_put_double(&in, v);
        if (cbor_print_diagnostic(buf_bytes(&in), &out) != CBOR_OK ||
            strtod(buf_str(&out), NULL) != v || !strchr(buf_str(&out), '.'))
            ck_abort_msg("%.17g: %s", v, buf_str(&out));
        buf_deinit(&in);
        buf_deinit(&out);
    }
}
END_TEST

/* The locale's decimal comma, where there is such a locale, does not get in. */
START_TEST(floats_are_printed_alike_in_any_locale)
{
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8",
                                          "ru_RU.UTF-8"};

    for (size_t i = 0; i < ARRAY_SIZE(locales); i++)
        if (setlocale(LC_ALL, locales[i])) {
            assert_diagnostic("f93e00", "1.5");
            assert_json("fb3ff199999999999a", "1.1");
            return;
        }
    unit_skipped("no locale with a decimal comma is installed");
}
END_TEST

/* A key inside a key inside a key … must not double its quoting at each level. */
START_TEST(keys_in_keys_stay_linear)
{
    char *values = repeat_hex("00", CBOR_NESTING_MAX, "");
    char *inside = repeat_hex("62225c", 1, values);
    char *hex = repeat_hex("a1", CBOR_NESTING_MAX, inside);
    struct bytes in = unit_from_hex(hex);
    struct buf out = BUF_INIT;

    ck_assert_int_eq(cbor_print_json(in, &out), CBOR_OK);
    ck_assert_uint_lt(out.size, 6 * in.size);
    json_t *json = json_loads(buf_str(&out), 0, NULL);
    ck_assert(json_is_object(json));
    json_decref(json);
    buf_clear(&out);
    ck_assert_int_eq(cbor_print_diagnostic(in, &out), CBOR_OK);
    ck_assert_uint_lt(out.size, 6 * in.size);
    buf_deinit(&out);
    unit_free(in);
    free(hex);
    free(inside);
    free(values);
}
END_TEST

START_TEST(json_strings_are_never_broken)
{
    struct buf out = BUF_INIT;

    json_put_string(&out, unit_bytes("a\"b\\c\r\n\x01\x7f\xc2\x9f\xe2\x82\xac"));
    ck_assert_str_eq(buf_str(&out), "\"a\\\"b\\\\c\\r\\n\\u0001\\u007f\\u009f\xe2\x82\xac\"");
    buf_clear(&out);
    /* What a terminal would obey: direction marks, separators, overrides, isolates; and neighbours. */
    json_put_string(&out, unit_bytes("\xd8\x9c\xe2\x80\x8d\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\xa7"
                                     "\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\xe2\x80\xae\xe2\x80\xaf"
                                     "\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xaa"));
    ck_assert_str_eq(buf_str(&out),
                     "\"\\u061c\xe2\x80\x8d\\u200e\\u200f\xe2\x80\xa7\\u2028\\u2029\\u202a\\u202e"
                     "\xe2\x80\xaf\\u2066\\u2069\xe2\x81\xaa\"");
    buf_clear(&out);
    json_put_string(&out, unit_bytes("a\xff\xc3")); /* not UTF-8, which it should have been */
    ck_assert_str_eq(buf_str(&out), "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_clear(&out);
    json_put_string(&out, (struct bytes){NULL, 0});
    ck_assert_str_eq(buf_str(&out), "\"\"");
    buf_deinit(&out);
}
END_TEST

UNIT_MAIN("cbor_print", appendix_a_is_printed, appendix_a_with_any_byte_replaced,
          extended_notation_is_printed, diagnostic_notation, bignums_are_decimal_up_to_a_size,
          json_by_rfc_8949_6_1, floats_are_printed_to_read_back,
          floats_are_printed_alike_in_any_locale, keys_in_keys_stay_linear,
          json_strings_are_never_broken)
