/* SPDX-License-Identifier: PostgreSQL */
/*
 * A rule of who may do what, and what it allows. A rule that is accepted is taken apart here by other means, and made
 * of its parts again. Then, for a filter and a prefix: a filter that lies within a pattern matches nothing that the
 * pattern does not. The input is the rule, the filter's kind and text, and the prefix, with a NUL between.
 */
#include "settings/access_rule.h"

#include <errno.h>

#include "base/buf.h"
#include "base/text.h"
#include "codec/subject.h"
#include "fuzz.h"

/* Up to the next NUL, which is passed over. */
static struct bytes part(struct fuzz_in *in)
{
    const uint8_t *end = in->left ? memchr(in->at, 0, in->left) : NULL;
    struct bytes taken = fuzz_bytes(in, end ? (size_t)(end - in->at) : in->left);

    (void)fuzz_u8(in);
    return taken;
}

/* ---- the grammar, over words ---- */

static bool is_pattern(const char *word)
{
    size_t size = strlen(word);

    if (size > FILTER_TEXT_MAX || !text_is_utf8(bytes_of_text(word)))
        return false;
    for (const char *at = word; *at; at++) {
        bool first = at == word || at[-1] == '.', last = at[1] == '\0' || at[1] == '.';

        if ((*at == '*' || *at == '>') && (!first || !last))
            return false;
        if (*at == '>' && at[1])
            return false;
    }
    return true;
}

static bool is_who(const char *word)
{
    return strcmp(word, "any") == 0 || (strncmp(word, "user:", 5) == 0 && word[5]) ||
           (strncmp(word, "group:", 6) == 0 && word[6]);
}

static bool is_right(const char *word)
{
    return strcmp(word, "subscribe") == 0 || strcmp(word, "durable") == 0 || strcmp(word, "control") == 0;
}

static bool is_rule(char *text)
{
    char *rest = NULL;
    size_t n = 0;

    for (char *word = strtok_r(text, " \t\n\v\f\r", &rest); word; word = strtok_r(NULL, " \t\n\v\f\r", &rest), n++)
        if (n == 0 ? !is_who(word) : n == 1 ? !is_right(word) : !is_pattern(word))
            return false;
    return n >= 3;
}

/* ---- */

static void put_rule(struct buf *out, const struct access_rule *rule)
{
    static const char *const whos[] = {[ACCESS_ANY] = "any", [ACCESS_USER] = "user:", [ACCESS_GROUP] = "group:"};
    struct bytes rest = rule->patterns, word;

    buf_append_str(out, whos[rule->who]);
    buf_append(out, rule->name.data, rule->name.size);
    buf_printf(out, " %s", access_right_text(rule->right));
    while (access_rule_next(&rest, &word)) {
        buf_append_u8(out, ' ');
        buf_append(out, word.data, word.size);
    }
}

static void check_cover(const struct access_rule *rule, const struct filter *filter, struct bytes prefix)
{
    struct bytes rest = rule->patterns, pattern;

    while (access_rule_next(&rest, &pattern)) {
        struct filter as_filter = {FILTER_PATTERN, pattern}, exactly = {FILTER_EXACT, prefix};
        bool covered = filter_is_covered(filter, pattern);

        FUZZ_CHECK(filter_is_covered(&as_filter, pattern));
        FUZZ_CHECK(filter_is_covered(&exactly, pattern) == filter_matches(&as_filter, prefix));
        if (covered && filter_matches(filter, prefix))
            FUZZ_CHECK(filter_matches(&as_filter, prefix));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    struct bytes text = part(&in);
    struct access_rule rule, again;
    struct buf copy = BUF_INIT, made = BUF_INIT, made_again = BUF_INIT;
    char why[SETTINGS_WHY_SIZE];

    struct filter filter = {.kind = (enum filter_kind)(fuzz_u8(&in) % 3)};
    filter.text = part(&in);
    struct bytes prefix = part(&in);

    buf_append(&copy, text.data, text.size);
    buf_append_u8(&copy, 0);
    fuzz_mark(&rule, sizeof rule);
    int r = access_rule_parse((const char *)copy.data, &rule, why);
    if (r == 0) {
        put_rule(&made, &rule);
        FUZZ_CHECK(access_rule_parse(buf_str(&made), &again, why) == 0);
        put_rule(&made_again, &again);
        FUZZ_CHECK(bytes_equal(buf_bytes(&made), buf_bytes(&made_again)));
        FUZZ_CHECK(again.who == rule.who && again.right == rule.right && bytes_equal(again.name, rule.name));
        check_cover(&rule, &filter, prefix);
    } else {
        FUZZ_CHECK(r == -EINVAL && fuzz_is_marked(&rule, sizeof rule));
        FUZZ_CHECK_WHY(why);
    }
    FUZZ_CHECK((r == 0) == is_rule((char *)copy.data)); /* last: it cuts it into words */
    buf_deinit(&copy);
    buf_deinit(&made);
    buf_deinit(&made_again);
    return 0;
}
