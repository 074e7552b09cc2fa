/* SPDX-License-Identifier: PostgreSQL */
#include "vectors.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"

static json_t *load(const char *file)
{
    const char *folder = getenv("WALBUS_VECTORS");
    const char *root = getenv("WALBUS_SOURCE_ROOT");
    char path[PATH_MAX];
    json_error_t error;

    if (folder && *folder)
        (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    else
        (void)snprintf(path, sizeof path, "%s/../shared/vectors/%s", root ? root : ".", file);
    if (access(path, R_OK) != 0) {
        unit_skipped("no %s: neither WALBUS_VECTORS names its folder, nor is there shared/vectors "
                     "beside the checkout",
                     file);
        return NULL;
    }
    json_t *all = json_load_file(path, JSON_DECODE_INT_AS_REAL, &error);

    ck_assert_msg(all != NULL, "%s: line %d: %s", path, error.line, error.text);
    return all;
}

json_t *vectors_document(const char *file)
{
    json_t *all = load(file);

    ck_assert_msg(!all || json_is_object(all), "%s is no object", file);
    return all;
}

json_t *vectors_load(const char *file)
{
    json_t *all = load(file);

    if (!all)
        return NULL;
    if (json_is_object(all)) {
        json_t *tests = json_incref(json_object_get(all, "tests"));

        json_decref(all);
        all = tests;
    }
    ck_assert_msg(json_is_array(all), "%s holds no rows", file);
    return all;
}

struct bytes vectors_bytes(const json_t *row, const char *name)
{
    const char *text = vectors_text(row, name);

    ck_assert_msg(text != NULL, "there is no %s", name);
    char *hex = strdup(text);
    ck_assert_ptr_nonnull(hex);
    for (char *c = hex; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    struct bytes bytes = unit_from_hex(hex);
    free(hex);
    return bytes;
}

const char *vectors_text(const json_t *row, const char *name)
{
    return json_string_value(json_object_get(row, name));
}
