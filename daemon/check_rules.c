/* SPDX-License-Identifier: PostgreSQL */
#include "check_rules.h"

#include <stdlib.h>
#include <string.h>

struct check_rules *check_rules_new(struct policies *policies, struct trust *trust, const char *audience)
{
    struct check_rules *rules = calloc(1, sizeof *rules);
    char *copy = strdup(audience ? audience : "");

    if (!rules || !copy) {
        free(rules);
        free(copy);
        policies_deinit(policies);
        (void)trust_free(trust);
        return NULL;
    }
    *rules = (struct check_rules){.refs = 1, .policies = *policies, .trust = trust, .audience = copy};
    return rules;
}

struct check_rules *check_rules_ref(struct check_rules *rules)
{
    rules->refs++;
    return rules;
}

struct check_rules *check_rules_unref(struct check_rules *rules)
{
    if (!rules || --rules->refs)
        return NULL;
    policies_deinit(&rules->policies);
    (void)trust_free(rules->trust);
    free(rules->audience);
    free(rules);
    return NULL;
}
