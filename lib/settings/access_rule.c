/* SPDX-License-Identifier: PostgreSQL */
#include "settings/access_rule.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "codec/subject.h"
#include "settings/setting_value.h"

static const char *const rights[] = {
    [ACCESS_SUBSCRIBE] = "subscribe",
    [ACCESS_DURABLE] = "durable",
    [ACCESS_CONTROL] = "control",
};

const char *access_right_text(enum access_right right)
{
    return rights[right];
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool access_rule_next(struct bytes *rest, struct bytes *ret_word)
{
    size_t at = 0, end;

    while (at < rest->size && is_blank(rest->data[at]))
        at++;
    for (end = at; end < rest->size && !is_blank(rest->data[end]);)
        end++;
    if (end == at)
        return false;
    *ret_word = (struct bytes){rest->data + at, end - at};
    *rest = (struct bytes){rest->data + end, rest->size - end};
    return true;
}

/* "found WORD; expected …". */
static int refuse(char why[SETTINGS_WHY_SIZE], struct bytes word, const char *fmt, ...) PRINTF_LIKE(3, 4);

static int refuse(char why[SETTINGS_WHY_SIZE], struct bytes word, const char *fmt, ...)
{
    struct buf shown = BUF_INIT, text = BUF_INIT;
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    (void)snprintf(why, SETTINGS_WHY_SIZE, "found \"%s\"; %s",
                   setting_value_shown(&shown, (const char *)word.data, word.size), buf_str(&text));
    buf_deinit(&shown);
    buf_deinit(&text);
    return -EINVAL;
}

/* Sets *name to what stands behind `begin`. */
static bool begins_with(struct bytes word, const char *begin, struct bytes *name)
{
    size_t size = strlen(begin);

    if (word.size < size || memcmp(word.data, begin, size) != 0)
        return false;
    *name = (struct bytes){word.data + size, word.size - size};
    return true;
}

static int parse_who(struct bytes word, struct access_rule *rule, char why[SETTINGS_WHY_SIZE])
{
    rule->name = (struct bytes){NULL, 0};
    if (bytes_equal(word, bytes_of_text("any")))
        rule->who = ACCESS_ANY;
    else if (begins_with(word, "user:", &rule->name))
        rule->who = ACCESS_USER;
    else if (begins_with(word, "group:", &rule->name))
        rule->who = ACCESS_GROUP;
    else
        return refuse(why, word, "a rule begins with any, user:NAME or group:NAME");
    if (rule->who != ACCESS_ANY && rule->name.size == 0)
        return refuse(why, word, "a name or a number must stand behind the colon, without a blank between");
    return 0;
}

static int parse_right(struct bytes word, struct access_rule *rule, char why[SETTINGS_WHY_SIZE])
{
    for (size_t i = 0; i < ARRAY_SIZE(rights); i++)
        if (bytes_equal(word, bytes_of_text(rights[i]))) {
            rule->right = (enum access_right)i;
            return 0;
        }
    return refuse(why, word, "what is allowed is subscribe, durable or control");
}

static int check_pattern(struct bytes word, char why[SETTINGS_WHY_SIZE])
{
    if (word.size > FILTER_TEXT_MAX)
        return refuse(why, word, "a pattern has at most %d bytes", FILTER_TEXT_MAX);
    if (!text_is_utf8(word))
        return refuse(why, word, "a pattern is UTF-8");
    const char *fault = subject_wildcard_fault(word);

    return fault ? refuse(why, word, "%s", fault) : 0;
}

int access_rule_parse(const char *text, struct access_rule *ret, char why[SETTINGS_WHY_SIZE])
{
    struct bytes rest = bytes_of_text(text), word;
    struct access_rule rule;
    size_t n = 0;
    int r;

    if (!access_rule_next(&rest, &word)) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "it is empty; a rule begins with any, user:NAME or group:NAME");
        return -EINVAL;
    }
    r = parse_who(word, &rule, why);
    if (r < 0)
        return r;
    if (!access_rule_next(&rest, &word)) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "it ends behind who is allowed; what is subscribe, durable or control");
        return -EINVAL;
    }
    r = parse_right(word, &rule, why);
    if (r < 0)
        return r;
    rule.patterns = rest;
    for (; access_rule_next(&rest, &word); n++) {
        r = check_pattern(word, why);
        if (r < 0)
            return r;
    }
    if (n == 0) {
        (void)snprintf(why, SETTINGS_WHY_SIZE, "it ends behind %s; at least one pattern must follow, '>' is everything",
                       rights[rule.right]);
        return -EINVAL;
    }
    *ret = rule;
    return 0;
}

int access_rule_check(const char *text, char why[SETTINGS_WHY_SIZE])
{
    struct access_rule rule;

    return access_rule_parse(text, &rule, why);
}
