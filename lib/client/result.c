/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/result.h"

#include "walbus/version.h"

const char *walbus_result_text(enum walbus_result result)
{
    switch (result) {
#define CASE(name, number, text) \
    case WALBUS_##name:          \
        return text;
        WALBUS_RESULTS(CASE)
#undef CASE
    }
    return "unknown result";
}

const char *walbus_result_name(enum walbus_result result)
{
    switch (result) {
#define CASE(name, number, text) \
    case WALBUS_##name:          \
        return "WALBUS_" #name;
        WALBUS_RESULTS(CASE)
#undef CASE
    }
    return "WALBUS_?";
}

int walbus_version_number(void)
{
    return WALBUS_VERSION_NUMBER;
}

const char *walbus_version_text(void)
{
    return WALBUS_VERSION_TEXT;
}
