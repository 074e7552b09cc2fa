/* SPDX-License-Identifier: PostgreSQL */
#include "json_cbor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/cbor.h"
#include "unit.h"

static void assert_converted(const char *json, size_t size, const char *hex)
{
    struct bytes in = unit_exact((struct bytes){(const uint8_t *)json, size});
    struct buf out = BUF_INIT;
    struct json_cbor_error error = {0};

    ck_assert_msg(json_to_cbor(in, &out, &error) == 0, "%s: %zu:%zu: %s", json, error.line,
                  error.column, error.text);
    unit_assert_hex(buf_bytes(&out), hex);
    buf_deinit(&out);
    unit_free(in);
}

START_TEST(values)
{
    static const struct {
        const char *json, *hex;
    } cases[] = {
        {"null", "f6"},
        {"true", "f5"},
        {" false\n", "f4"},
        {"0", "00"},
        {"-1", "20"},
        {"9223372036854775807", "1b7fffffffffffffff"},
        {"-9223372036854775808", "3b7fffffffffffffff"},
        {"1.0", "f93c00"},
        {"1e3", "f963d0"},
        {"1.1", "fb3ff199999999999a"},
        {"1.10", "fb3ff199999999999a"},
        {"-0.0", "f98000"},
        {"1e300", "fb7e37e43c8800759c"},
        {"\"\"", "60"},
        {"\"\\u00fc\\ud83d\\ude00\"", "66c3bcf09f9880"},
        {"\"\xc3\xbc\"", "62c3bc"},
        {"\"a\\u0000b\"", "63610062"},
        {"[]", "80"},
        {"[1,[2,3]]", "8201820203"},
        {"{}", "a0"},
        {"{\"a\":{\"b\":[]}}", "a16161a1616280"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_converted(cases[i].json, strlen(cases[i].json), cases[i].hex);
}
END_TEST

START_TEST(keys_are_in_deterministic_order)
{
    static const char *const same[] = {
        "{\"b\":1,\"aa\":2,\"a\":3,\"\":4,\"\xc3\xbc\":5,\"ab\":6}",
        "{\"\xc3\xbc\":5,\"\":4,\"ab\":6,\"aa\":2,\"b\":1,\"a\":3}",
        "{\"ab\":6,\"a\":3,\"aa\":2,\"\\u00fc\":5,\"b\":1,\"\":4}",
    };

    for (size_t i = 0; i < ARRAY_SIZE(same); i++)
        assert_converted(same[i], strlen(same[i]),
                         "a6 60 04 6161 03 6162 01 626161 02 626162 06 62c3bc 05");
}
END_TEST

START_TEST(faults_are_placed_and_named)
{
    static const struct {
        const char *json;
        size_t line, column; /* column 0: any */
        const char *words;
    } cases[] = {
        {"", 1, 1, "no JSON value"},
        {" \n ", 2, 0, "no JSON value"},
        {"hello", 1, 5, "hello"},
        {"{\"a\":1,}", 1, 8, "'}'"},
        {"{\n  \"a\": tru\n}", 2, 0, "tru"},
        {"[1,2", 1, 0, "end of file"},
        {"1 2", 1, 0, "2"},
        {"{\"a\":1,\"a\":2}", 1, 0, "duplicate"},
        {"{\"b\":{\"a\":1,\"a\":2}}", 1, 0, "duplicate"},
        {"9223372036854775808", 1, 0, "put others into a string"},
        {"-9223372036854775809", 1, 0, "put others into a string"},
        {"[1,\n18446744073709551615]", 2, 0, "put others into a string"},
        {"1e400", 1, 0, "real number overflow"},
        {"\"\xff\"", 1, 0, "0xff"},
        {"\"\\ud800\"", 1, 0, "Unicode"},
        {"\"a\tb\"", 1, 0, "control character"},
        {"{\"a\\u0000\":1}", 1, 0, "NUL"},
        {"01", 1, 0, "invalid token"},
        {"'a'", 1, 0, "'"},
        {"NaN", 1, 0, "NaN"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes in = unit_exact(unit_bytes(cases[i].json));
        struct json_cbor_error error = {0};
        struct buf out = BUF_INIT;

        buf_append_str(&out, "before");
        ck_assert_msg(json_to_cbor(in, &out, &error) == -EINVAL, "%s", cases[i].json);
        unit_assert_text(buf_bytes(&out), "before");
        ck_assert_msg(error.line == cases[i].line, "%s: line %zu", cases[i].json, error.line);
        ck_assert_msg(cases[i].column == 0 || error.column == cases[i].column, "%s: column %zu",
                      cases[i].json, error.column);
        ck_assert_uint_gt(error.column, 0);
        ck_assert_msg(strstr(error.text, cases[i].words) != NULL, "%s: %s", cases[i].json,
                      error.text);
        buf_deinit(&out);
        unit_free(in);
    }
}
END_TEST

START_TEST(nesting_has_a_limit)
{
    static const size_t depths[] = {JSON_CBOR_NESTING_MAX, JSON_CBOR_NESTING_MAX + 1, 100000};

    for (size_t i = 0; i < ARRAY_SIZE(depths); i++) {
        struct json_cbor_error error = {0};
        struct buf in = BUF_INIT, out = BUF_INIT;

        /* What stands in a string does not count. */
        buf_append_str(&in, "[\"[[[[{{{{\\\"[[[\",\n");
        for (size_t k = 1; k < depths[i]; k++)
            buf_append_u8(&in, '[');
        for (size_t k = 0; k < depths[i]; k++)
            buf_append_u8(&in, ']');
        if (i == 0) {
            ck_assert_int_eq(json_to_cbor(buf_bytes(&in), &out, &error), 0);
            ck_assert_int_eq(cbor_check_inside(buf_bytes(&out), 2, NULL), CBOR_OK);
            ck_assert_int_eq(cbor_check_inside(buf_bytes(&out), 3, NULL), CBOR_FAULT_NESTING);
        } else {
            ck_assert_int_eq(json_to_cbor(buf_bytes(&in), &out, &error), -EINVAL);
            ck_assert_uint_eq(error.line, 2);
            ck_assert_uint_eq(error.column, JSON_CBOR_NESTING_MAX);
            ck_assert_ptr_nonnull(strstr(error.text, "62"));
        }
        buf_deinit(&in);
        buf_deinit(&out);
    }
}
END_TEST

/* What was written is well-formed and prints as the same JSON again. */
START_TEST(json_comes_back)
{
    const char *json = "{\"a\":[1,-2,1.5,true,false,null,\"x\\n\"],\"bb\":{\"c\":{}}}";
    struct json_cbor_error error;
    struct buf cbor = BUF_INIT, back = BUF_INIT;

    ck_assert_int_eq(json_to_cbor(unit_bytes(json), &cbor, &error), 0);
    ck_assert_int_eq(cbor_print_json(buf_bytes(&cbor), &back), CBOR_OK);
    unit_assert_text(buf_bytes(&back), json);
    buf_deinit(&cbor);
    buf_deinit(&back);
}
END_TEST

UNIT_MAIN("json_cbor", values, keys_are_in_deterministic_order, faults_are_placed_and_named,
          nesting_has_a_limit, json_comes_back)
