/* SPDX-License-Identifier: PostgreSQL */
/*
 * Lines of policy and a prefix. A line that is accepted is its pattern and its word with a blank between; and the first
 * line that matches decides, which is found here line by line. The input is the lines, each with a NUL behind it, an
 * empty one, and the prefix.
 */
#include "policy.h"

#include <errno.h>

#include "base/buf.h"
#include "fuzz.h"

#define LINES_MAX 8u

static const char *const words[] = {"ignore", "verify", "require"};

static struct bytes part(struct fuzz_in *in)
{
    const uint8_t *end = in->left ? memchr(in->at, 0, in->left) : NULL;
    struct bytes taken = fuzz_bytes(in, end ? (size_t)(end - in->at) : in->left);

    (void)fuzz_u8(in);
    return taken;
}

static bool is_good(struct bytes line)
{
    struct policy_rule rule, again;
    struct buf made = BUF_INIT;
    char why[POLICY_WHY_SIZE];

    fuzz_mark(&rule, sizeof rule);
    int r = policy_parse(line, &rule, why);
    if (r < 0) {
        FUZZ_CHECK(r == -EINVAL && fuzz_is_marked(&rule, sizeof rule));
        FUZZ_CHECK_WHY(why);
        return false;
    }
    for (size_t i = 0; i < rule.filter.text.size; i++)
        FUZZ_CHECK(rule.filter.text.data[i] < 0x80);
    buf_append(&made, rule.filter.text.data, rule.filter.text.size);
    buf_printf(&made, " %s", words[rule.policy]);
    FUZZ_CHECK(policy_parse(buf_bytes(&made), &again, why) == 0);
    FUZZ_CHECK(again.policy == rule.policy && bytes_equal(again.filter.text, rule.filter.text));
    buf_deinit(&made);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    struct buf lines[LINES_MAX] = {0};
    char *texts[LINES_MAX], why[POLICY_WHY_SIZE];
    enum policy expected = POLICY_IGNORE;
    struct policies policies;
    size_t n = 0, good = 0, wrong;
    bool decided = false;

    for (struct bytes line = part(&in); line.size && n < LINES_MAX; line = part(&in)) {
        buf_append(&lines[n], line.data, line.size);
        buf_append_u8(&lines[n], 0);
        texts[n] = (char *)lines[n].data;
        good += good == n && is_good(line);
        n++;
    }
    struct bytes prefix = {in.at, in.left};
    int r = policies_init(&policies, texts, n, &wrong, why);
    if (good < n) {
        FUZZ_CHECK(r == -EINVAL && wrong == good);
        FUZZ_CHECK_WHY(why);
    } else {
        FUZZ_CHECK(r == 0 && policies.n == n);
        for (size_t i = 0; i < n && !decided; i++) {
            struct policy_rule rule;

            FUZZ_CHECK(policy_parse(bytes_of_text(texts[i]), &rule, why) == 0);
            decided = filter_matches(&rule.filter, prefix);
            expected = decided ? rule.policy : POLICY_IGNORE;
        }
        FUZZ_CHECK(policies_find(&policies, prefix) == expected);
        policies_deinit(&policies);
    }
    for (size_t i = 0; i < n; i++)
        buf_deinit(&lines[i]);
    return 0;
}
