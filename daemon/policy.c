/* SPDX-License-Identifier: PostgreSQL */
#include "policy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const policy_texts[] = {
    [POLICY_IGNORE] = "ignore",
    [POLICY_VERIFY] = "verify",
    [POLICY_REQUIRE] = "require",
};

const char *policy_text(enum policy policy)
{
    return policy_texts[policy];
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t';
}

/* The next word, {NULL, 0} at the end. */
static struct bytes next_word(struct bytes *rest)
{
    while (rest->size && is_blank(rest->data[0])) {
        rest->data++;
        rest->size--;
    }
    struct bytes word = {rest->data, 0};
    while (word.size < rest->size && !is_blank(rest->data[word.size]))
        word.size++;
    rest->data += word.size;
    rest->size -= word.size;
    return word;
}

static int wrong(char why[POLICY_WHY_SIZE], const char *what)
{
    (void)snprintf(why, POLICY_WHY_SIZE, "expected a pattern and ignore, verify or require, as in \"orders.> require\"; %s", what);
    return -EINVAL;
}

/* One who writes "orders*" means more than the one prefix that it would match: what he wants signed would go through
 * unlooked at. */
static const char *mistake_in(struct bytes pattern)
{
    struct bytes token;
    bool more = true;

    while (subject_next_token(&pattern, &more, &token)) {
        if (token.size > 1 && memchr(token.data, '*', token.size))
            return "a '*' stands for a whole part between dots, and does nothing inside one";
        if (token.size && memchr(token.data, '>', token.size) && (token.size > 1 || more))
            return "a '>' stands alone behind the last dot, or as the whole pattern";
    }
    return NULL;
}

int policy_parse(struct bytes line, struct policy_rule *ret, char why[POLICY_WHY_SIZE])
{
    struct bytes pattern = next_word(&line), word = next_word(&line), more = next_word(&line);

    if (!pattern.size)
        return wrong(why, "it is empty");
    if (pattern.size > FILTER_TEXT_MAX)
        return wrong(why, "the pattern is too long");
    if (!word.size)
        return wrong(why, "the second word is missing");
    if (more.size)
        return wrong(why, "there are more than two words");
    const char *mistake = mistake_in(pattern);
    if (mistake)
        return wrong(why, mistake);
    for (size_t i = 0; i < ARRAY_SIZE(policy_texts); i++) {
        if (!bytes_equal(word, bytes_of_text(policy_texts[i])))
            continue;
        *ret = (struct policy_rule){.filter = {FILTER_PATTERN, pattern}, .policy = (enum policy)i};
        return 0;
    }
    return wrong(why, "the second word is another");
}

int policies_init(struct policies *ret, char *const *lines, size_t n, char why[POLICY_WHY_SIZE])
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
            return r;
        }
        memcpy(copy, text.data, text.size);
        rule->filter.text.data = copy;
        p.n++;
        p.idle = p.idle && rule->policy == POLICY_IGNORE;
        p.requires = p.requires || rule->policy == POLICY_REQUIRE;
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
