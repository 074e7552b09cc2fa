/* SPDX-License-Identifier: PostgreSQL */
#include "check_tally.h"

#include <stdlib.h>
#include <string.h>

#include "unit.h"

/* Whoever emits says how long prefix and key's id are, and a log line is made of them. */
START_TEST(only_so_much_is_told)
{
    const size_t size = 1000000;
    char *long_text = malloc(size);
    struct check_tally t = {.messages = 0};

    ck_assert_ptr_nonnull(long_text);
    memset(long_text, 'k', size);
    for (size_t kid_size = 0; kid_size <= size; kid_size += size / 2) {
        const struct bytes kid = {(const uint8_t *)long_text, kid_size};
        char reason[] = "why";
        const struct check_note note = {
            .withheld = {.status = VERIFY_UNKNOWN_KEY}, .reason = reason, .kid = kid};

        check_tally_add(&t, kid, &note);
        ck_assert_uint_eq(t.kid.size, kid_size ? 2 * COSE_KEY_KID_MAX : 0);
        ck_assert_uint_eq(t.prefix.size, kid_size ? 200 : 0);
        ck_assert_str_eq(buf_str(&t.reason), "why");
    }
    ck_assert_uint_eq(t.messages, 3);
    check_tally_deinit(&t);
    free(long_text);
}
END_TEST

START_TEST(an_id_is_told_in_hex)
{
    const struct check_note note = {.kid = unit_bytes("\x01\xfe")};
    struct check_tally t = {.messages = 0};

    check_tally_add(&t, unit_bytes("a\n"), &note);
    ck_assert_str_eq(buf_str(&t.kid), "01fe");
    ck_assert_str_eq(buf_str(&t.prefix), "a\\n");
    ck_assert_str_eq(buf_str(&t.reason), "");
    check_tally_deinit(&t);
}
END_TEST

UNIT_MAIN("check_tally", only_so_much_is_told, an_id_is_told_in_hex)
