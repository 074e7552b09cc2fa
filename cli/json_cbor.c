/* SPDX-License-Identifier: PostgreSQL */
#include "json_cbor.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/event.h"

_Static_assert(JSON_CBOR_NESTING_MAX == CBOR_NESTING_MAX - EVENT_NESTING,
               "data has to fit into its event");

/*
 * Finds what jansson would not tell or not place: no value at all, and nesting
 * beyond the limit (jansson's own is 2048, and its values do not know where they
 * stood). Everything else about the text is jansson's to judge.
 */
static int scan(struct bytes json, struct json_cbor_error *ret_error)
{
    size_t line = 1, column = 0, depth = 0, i = 0;
    bool in_string = false, blank = true;

    for (; i < json.size; i++) {
        uint8_t c = json.data[i];

        if (c == '\n') {
            line++;
            column = 0;
        } else if ((c & 0xc0) != 0x80) { /* UTF-8 continuation bytes are no column of their own */
            column++;
        }
        blank = blank && (c == ' ' || c == '\t' || c == '\r' || c == '\n');
        if (in_string) {
            if (c == '"')
                in_string = false;
            else if (c == '\\' && i + 1 < json.size && json.data[i + 1] != '\n') {
                i++;
                column++;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if ((c == '[' || c == '{') && ++depth > JSON_CBOR_NESTING_MAX) {
            *ret_error = (struct json_cbor_error){.line = line, .column = column};
            (void)snprintf(ret_error->text, sizeof ret_error->text,
                           "arrays and objects nested more than %d levels deep",
                           JSON_CBOR_NESTING_MAX);
            return -EINVAL;
        }
    }
    if (blank) {
        *ret_error = (struct json_cbor_error){line, column + 1, "no value, only blanks"};
        if (json.size == 0)
            (void)snprintf(ret_error->text, sizeof ret_error->text, "no value, the text is empty");
        return -EINVAL;
    }
    return 0;
}

static int explain(const json_error_t *error, struct json_cbor_error *ret_error)
{
    enum json_error_code code = json_error_code(error);
    const char *hint = "";

    if (code == json_error_out_of_memory)
        return -ENOMEM;
    if (code == json_error_numeric_overflow && strstr(error->text, "integer"))
        hint = "; integers go from -9223372036854775808 to 9223372036854775807, put others into "
               "a string";
    *ret_error = (struct json_cbor_error){
        .line = error->line > 0 ? (size_t)error->line : 1,
        .column = error->column > 0 ? (size_t)error->column : 1,
    };
    (void)snprintf(ret_error->text, sizeof ret_error->text, "%s%s", error->text, hint);
    return -EINVAL;
}

struct member {
    const char *key;
    size_t size;
    json_t *value;
};

/* The bytewise order of the encoded keys: a text's head rises with its length. */
static int compare_members(const void *left, const void *right)
{
    const struct member *a = left, *b = right;

    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return memcmp(a->key, b->key, a->size);
}

static int put_value(struct buf *out, json_t *value);

static int put_object(struct buf *out, json_t *object)
{
    size_t n = json_object_size(object), i = 0;
    const char *key;
    json_t *value;
    int r = 0;

    cbor_put_map(out, n);
    if (n == 0)
        return 0;

    struct member *members = calloc(n, sizeof *members);

    if (!members)
        return -ENOMEM;
    json_object_foreach(object, key, value) members[i++] = (struct member){key, strlen(key), value};
    qsort(members, n, sizeof *members, compare_members);
    for (i = 0; i < n && r == 0; i++) {
        cbor_put_text(out, (struct bytes){(const uint8_t *)members[i].key, members[i].size});
        r = put_value(out, members[i].value);
    }
    free(members);
    return r;
}

static int put_array(struct buf *out, json_t *array)
{
    size_t n = json_array_size(array);
    int r = 0;

    cbor_put_array(out, n);
    for (size_t i = 0; i < n && r == 0; i++)
        r = put_value(out, json_array_get(array, i));
    return r;
}

/* Recursion is bounded by scan(). */
static int put_value(struct buf *out, json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return put_object(out, value);
    case JSON_ARRAY:
        return put_array(out, value);
    case JSON_STRING:
        cbor_put_text(out, (struct bytes){(const uint8_t *)json_string_value(value),
                                          json_string_length(value)});
        break;
    case JSON_INTEGER:
        cbor_put_int(out, json_integer_value(value));
        break;
    case JSON_REAL:
        cbor_put_double(out, json_real_value(value));
        break;
    case JSON_TRUE:
        cbor_put_bool(out, true);
        break;
    case JSON_FALSE:
        cbor_put_bool(out, false);
        break;
    case JSON_NULL:
        cbor_put_null(out);
        break;
    }
    return out->failed ? -ENOMEM : 0;
}

int json_to_cbor(struct bytes json, struct buf *out, struct json_cbor_error *ret_error)
{
    json_error_t error;
    size_t before = out->size;
    int r = scan(json, ret_error);

    if (r != 0)
        return r;

    json_t *value = json_loadb((const char *)json.data, json.size,
                               JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

    if (!value)
        return explain(&error, ret_error);
    r = put_value(out, value);
    json_decref(value);
    if (r != 0 && !out->failed)
        out->size = before;
    return r;
}
