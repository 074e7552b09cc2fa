/* SPDX-License-Identifier: PostgreSQL */
#include "environment.h"

#include <stdlib.h>

#include "unit.h"

void environment_clean(void)
{
    static const char *const names[] = {"WALBUS_DSN", "WALBUS_SOCKET", "RUNTIME_DIRECTORY",
                                        "XDG_RUNTIME_DIR"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        ck_assert_int_eq(unsetenv(names[i]), 0);
}

void environment_set(const char *name, const char *value)
{
    ck_assert_int_eq(setenv(name, value, 1), 0);
}
