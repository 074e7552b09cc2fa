/* SPDX-License-Identifier: PostgreSQL */
#include "policy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "settings/access_rule.h"

static const char *const policy_texts[] = {
    [POLICY_IGNORE] = "ignore",
    [POLICY_VERIFY] = "verify",
    [POLICY_REQUIRE] = "require",
};

static int wrong(char why[POLICY_WHY_SIZE], const char *what)
{
    (void)snprintf(why, POLICY_WHY_SIZE,
                   "expected a pattern and ignore, verify or require, as in \"orders.> require\"; %s", what);
    return -EINVAL;
}

int policy_parse(struct bytes line, struct policy_rule *ret, char why[POLICY_WHY_SIZE])
{
    struct bytes pattern, word, more;

    if (!access_rule_next(&line, &pattern))
        return wrong(why, "it is empty");
    if (pattern.size > FILTER_TEXT_MAX)
        return wrong(why, "the pattern is too long");
    if (!access_rule_next(&line, &word))
        return wrong(why, "the second word is missing");
    if (access_rule_next(&line, &more))
        return wrong(why, "there are more than two words");
    /* One who writes "orders*" means more than the one prefix that it would match: what he wants signed would go
     * through unlooked at. */
    const char *fault = subject_wildcard_fault(pattern);
    if (fault)
        return wrong(why, fault);
    /* A prefix comes in the database's encoding, the line in that of who wrote it: it would not match what it shows. */
    for (size_t i = 0; i < pattern.size; i++)
        if (pattern.data[i] >= 0x80)
            return wrong(why, "the pattern is not ASCII: prefixes come in the database's encoding, so cover such ones by a wildcard");
    for (size_t i = 0; i < ARRAY_SIZE(policy_texts); i++) {
        if (!bytes_equal(word, bytes_of_text(policy_texts[i])))
            continue;
        *ret = (struct policy_rule){.filter = {FILTER_PATTERN, pattern}, .policy = (enum policy)i};
        return 0;
    }
    return wrong(why, "the second word is another");
}

int policies_init(struct policies *ret, char *const *lines, size_t n, size_t *ret_wrong, char why[POLICY_WHY_SIZE])
{
    struct policies p = {.rules = calloc(n ? n : 1, sizeof *p.rules), .idle = true};

    if (!p.rules)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct policy_rule *rule = &p.rules[i];
        int r = policy_parse(bytes_of_text(lines[i]), rule, why);
        struct bytes text = rule->filter.text;
        uint8_t *copy = r == 0 ? malloc(text.size) : NULL;

        if (r == 0 && !copy)
            r = -ENOMEM;
        if (r < 0) {
            policies_deinit(&p);
            *ret_wrong = i;
            return r;
        }
        memcpy(copy, text.data, text.size);
        rule->filter.text.data = copy;
        p.n++;
        p.idle = p.idle && rule->policy == POLICY_IGNORE;
    }
    *ret = p;
    return 0;
}

void policies_deinit(struct policies *p)
{
    for (size_t i = 0; i < p->n; i++)
        free((void *)(uintptr_t)p->rules[i].filter.text.data);
    free(p->rules);
    *p = (struct policies){.idle = true};
}

enum policy policies_find(const struct policies *p, struct bytes prefix)
{
    for (size_t i = 0; i < p->n; i++)
        if (filter_matches(&p->rules[i].filter, prefix))
            return p->rules[i].policy;
    return POLICY_IGNORE;
}
