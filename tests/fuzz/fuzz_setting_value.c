/* SPDX-License-Identifier: PostgreSQL */
/*
 * A value of each row: what is accepted is within the row's bounds, and reads the same when it is written again; what
 * is not has its sentence. The input is the row's number and the text.
 */
#include "settings/setting_value.h"

#include <errno.h>

#include "fuzz.h"
#include "settings_text.h"

static void check_number(const struct setting_row *row, uint64_t number)
{
    struct buf text = BUF_INIT;
    char why[SETTINGS_WHY_SIZE];
    uint64_t again;

    if (row->type == SETTING_CHOICE) {
        for (uint64_t i = 0; i <= number; i++)
            FUZZ_CHECK(row->choices[i]);
    } else {
        FUZZ_CHECK(number >= row->min && number <= row->max);
    }
    put_setting_number(&text, row, number);
    FUZZ_CHECK(setting_value_parse(row, buf_str(&text), &again, why) == 0 && again == number);
    buf_deinit(&text);
}

static void check_accepted(const struct setting_row *row, const char *text, uint64_t number)
{
    struct settings s;
    char why[SETTINGS_WHY_SIZE];
    size_t size = strlen(text);

    if (row->type != SETTING_STRING && row->type != SETTING_LIST) {
        check_number(row, number);
        return;
    }
    FUZZ_CHECK(fuzz_is_marked(&number, sizeof number));
    FUZZ_CHECK(row->type == SETTING_LIST ? size > 0 : size >= row->min && (row->max == 0 || size <= row->max));
    FUZZ_CHECK(settings_init(&s) == 0);
    FUZZ_CHECK(settings_set(&s, row, text, SETTING_OPTION, why) == 0);
    const char *const *at = (const char *const *)(const void *)((const char *)&s + row->offset);
    FUZZ_CHECK(strcmp(row->type == SETTING_LIST ? **(const char *const *const *)(const void *)at : *at, text) == 0);
    settings_deinit(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    const struct setting_row *row = &settings_rows[fuzz_u8(&in) % settings_n_rows];
    struct bytes raw = fuzz_bytes(&in, in.left);
    struct buf text = BUF_INIT;
    char why[SETTINGS_WHY_SIZE];
    uint64_t number;

    buf_append(&text, raw.data, raw.size);
    fuzz_mark(&number, sizeof number);
    int r = setting_value_parse(row, buf_str(&text), &number, why);
    if (r == 0) {
        check_accepted(row, buf_str(&text), number);
    } else {
        FUZZ_CHECK(r == -EINVAL && fuzz_is_marked(&number, sizeof number));
        FUZZ_CHECK_WHY(why);
        FUZZ_CHECK(strncmp(why, row->name, strlen(row->name)) == 0);
    }
    buf_deinit(&text);
    return 0;
}
