/* SPDX-License-Identifier: PostgreSQL */
#include "vectors.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "unit.h"

json_t *vectors_load(const char *file)
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
    if (json_is_object(all)) {
        json_t *tests = json_incref(json_object_get(all, "tests"));

        json_decref(all);
        all = tests;
    }
    ck_assert_msg(json_is_array(all), "%s holds no rows", path);
    return all;
}

const char *vectors_text(const json_t *row, const char *name)
{
    return json_string_value(json_object_get(row, name));
}
