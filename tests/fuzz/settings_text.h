/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_FUZZ_SETTINGS_TEXT_H
#define WALBUS_TESTS_FUZZ_SETTINGS_TEXT_H

/* A number of a setting, written so that it is read back as it is. */

#include <inttypes.h>

#include "base/buf.h"
#include "settings/settings.h"

static inline void put_setting_number(struct buf *out, const struct setting_row *row, uint64_t number)
{
    switch (row->type) {
    case SETTING_SIZE:
    case SETTING_NUMBER:
        buf_printf(out, "%" PRIu64, number);
        break;
    case SETTING_DURATION:
        buf_printf(out, "%" PRIu64 "us", number);
        break;
    case SETTING_MODE:
        buf_printf(out, "%" PRIo64, number);
        break;
    case SETTING_CHOICE:
        buf_append_str(out, row->choices[number]);
        break;
    case SETTING_STRING:
    case SETTING_LIST:
        break;
    }
}

#endif
