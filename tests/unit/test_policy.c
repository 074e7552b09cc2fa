/* SPDX-License-Identifier: PostgreSQL */
#include "policy.h"

#include <errno.h>
#include <string.h>

#include "unit.h"

static char why[POLICY_WHY_SIZE];
static size_t wrong; /* the line that `why` is about */

static int init(struct policies *p, const char **lines, size_t n, char text[POLICY_WHY_SIZE])
{
    return policies_init(p, (char *const *)(uintptr_t)lines, n, &wrong, text);
}

static enum policy find(const struct policies *p, const char *prefix)
{
    return policies_find(p, unit_bytes(prefix));
}

START_TEST(the_first_that_matches)
{
    const char *lines[] = {"orders.internal.> ignore", "  orders.>\trequire ", "payments.* verify", "> ignore"};
    struct policies p;

    ck_assert_int_eq(init(&p, lines, ARRAY_SIZE(lines), why), 0);
    ck_assert(!p.idle);
    ck_assert_int_eq(find(&p, "orders.internal.a"), POLICY_IGNORE);
    ck_assert_int_eq(find(&p, "orders.internal"), POLICY_REQUIRE);
    ck_assert_int_eq(find(&p, "orders.a.b"), POLICY_REQUIRE);
    ck_assert_int_eq(find(&p, "orders"), POLICY_IGNORE);
    ck_assert_int_eq(find(&p, "payments.a"), POLICY_VERIFY);
    ck_assert_int_eq(find(&p, "payments.a.b"), POLICY_IGNORE);
    ck_assert_int_eq(find(&p, ""), POLICY_IGNORE);
    policies_deinit(&p);
    ck_assert(p.idle);
    ck_assert_int_eq(find(&p, "orders.a"), POLICY_IGNORE);
}
END_TEST

START_TEST(nothing_is_asked)
{
    const char *lines[] = {"orders.> ignore", "> ignore"}, *verify[] = {"> verify"};
    struct policies p;

    ck_assert_int_eq(policies_init(&p, NULL, 0, &wrong, why), 0);
    ck_assert(p.idle);
    ck_assert_int_eq(find(&p, "a"), POLICY_IGNORE);
    policies_deinit(&p);
    ck_assert_int_eq(init(&p, lines, 2, why), 0);
    ck_assert(p.idle);
    policies_deinit(&p);
    ck_assert_int_eq(init(&p, verify, 1, why), 0);
    ck_assert(!p.idle);
    policies_deinit(&p);
}
END_TEST

START_TEST(lines_that_are_none)
{
    static const struct {
        const char *line, *what;
    } cases[] = {
        {"", "it is empty"},
        {" \t", "it is empty"},
        {"orders.>", "the second word is missing"},
        {"orders.> required", "the second word is another"},
        {"orders.> REQUIRE", "the second word is another"},
        {"orders.> require now", "there are more than two words"},
        {"orders* require", "a '*' stands for a whole part"},
        {"*orders.> require", "a '*' stands for a whole part"},
        {"orders.a*b.c require", "a '*' stands for a whole part"},
        {"orders> require", "a '>' stands alone"},
        {"orders.>.created require", "a '>' stands alone"},
        {">> require", "a '>' stands alone"},
        {"gr\xc3\xb6\xc3\x9f" "e.> require", "the pattern is not ASCII"},
        {"a.\x80 ignore", "the pattern is not ASCII"},
    };
    struct policy_rule rule;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bytes line = unit_exact(unit_bytes(cases[i].line));

        ck_assert_int_eq(policy_parse(line, &rule, why), -EINVAL);
        ck_assert_msg(strstr(why, cases[i].what), "%s: %s", cases[i].line, why);
        unit_free(line);
    }
    const char *lines[] = {"a verify", "b"};
    struct policies p;
    ck_assert_int_eq(init(&p, lines, 2, why), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why, "the second word is missing"));
}
END_TEST

UNIT_MAIN("policy", the_first_that_matches, nothing_is_asked, lines_that_are_none)
