/* SPDX-License-Identifier: PostgreSQL */
#include "codec/subject.h"

#include <stdlib.h>
#include <string.h>

bool subject_next_token(struct bytes *rest, bool *more, struct bytes *token)
{
    if (!*more)
        return false;

    const uint8_t *dot = rest->size ? memchr(rest->data, '.', rest->size) : NULL;
    if (!dot) {
        *token = *rest;
        *rest = (struct bytes){NULL, 0};
        *more = false;
        return true;
    }
    size_t size = (size_t)(dot - rest->data);
    *token = (struct bytes){rest->data, size};
    *rest = (struct bytes){dot + 1, rest->size - size - 1};
    return true;
}

static bool token_is(struct bytes token, char c)
{
    return token.size == 1 && token.data[0] == (uint8_t)c;
}

static bool pattern_matches(struct bytes pattern, struct bytes prefix)
{
    struct bytes pattern_token, prefix_token;
    bool pattern_more = true, prefix_more = true;

    while (subject_next_token(&pattern, &pattern_more, &pattern_token)) {
        if (!subject_next_token(&prefix, &prefix_more, &prefix_token))
            return false;
        if (token_is(pattern_token, '>') && !pattern_more)
            return true;
        if (!token_is(pattern_token, '*') && !bytes_equal(pattern_token, prefix_token))
            return false;
    }
    return !prefix_more;
}

struct filter *filters_copy(const struct filter *filters, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += filters[i].text.size;
    struct filter *copy =
        malloc(n * sizeof *copy + bytes + 1); /* never of 0 bytes, which may give NULL */
    if (!copy)
        return NULL;
    uint8_t *text = (uint8_t *)(copy + n);
    for (size_t i = 0; i < n; i++) {
        copy[i] = (struct filter){filters[i].kind, {text, filters[i].text.size}};
        if (filters[i].text.size)
            memcpy(text, filters[i].text.data, filters[i].text.size);
        text += filters[i].text.size;
    }
    return copy;
}

size_t filter_tokens(const struct filter *filter)
{
    size_t n = 1;

    if (filter->kind != FILTER_PATTERN)
        return 0;
    for (size_t i = 0; i < filter->text.size; i++)
        n += filter->text.data[i] == '.';
    return n;
}

bool filter_matches(const struct filter *filter, struct bytes prefix)
{
    switch (filter->kind) {
    case FILTER_PATTERN:
        return pattern_matches(filter->text, prefix);
    case FILTER_EXACT:
        return bytes_equal(filter->text, prefix);
    case FILTER_STARTS_WITH:
        return prefix.size >= filter->text.size &&
               bytes_equal(filter->text, (struct bytes){prefix.data, filter->text.size});
    }
    return false;
}

static bool is_end(struct bytes token, bool more)
{
    return token_is(token, '>') && !more;
}

/* Token by token: what the pattern has there must match all that the other may have there. */
static bool pattern_covers_pattern(struct bytes pattern, struct bytes other)
{
    struct bytes token, other_token;
    bool more = true, other_more = true;

    while (subject_next_token(&pattern, &more, &token)) {
        if (!subject_next_token(&other, &other_more, &other_token))
            return false;
        if (is_end(token, more))
            return true;
        /* any number of tokens, where this one has a certain number, or two and more */
        if (is_end(other_token, other_more))
            return false;
        if (!token_is(token, '*') && (token_is(other_token, '*') || !bytes_equal(token, other_token)))
            return false;
    }
    return !other_more;
}

/* The last token of `begin` is only the beginning of one, and any may follow: nothing but a '>' matches there. */
static bool pattern_covers_beginning(struct bytes pattern, struct bytes begin)
{
    struct bytes token, begin_token;
    bool more = true, begin_more = true;

    while (subject_next_token(&pattern, &more, &token) && subject_next_token(&begin, &begin_more, &begin_token)) {
        if (is_end(token, more))
            return true;
        if (!begin_more || (!token_is(token, '*') && !bytes_equal(token, begin_token)))
            return false;
    }
    return false;
}

bool filter_is_covered(const struct filter *filter, struct bytes pattern)
{
    switch (filter->kind) {
    case FILTER_PATTERN:
        return pattern_covers_pattern(pattern, filter->text);
    case FILTER_EXACT:
        return pattern_matches(pattern, filter->text);
    case FILTER_STARTS_WITH:
        return pattern_covers_beginning(pattern, filter->text);
    }
    return false;
}

bool filters_match(const struct filter *filters, size_t n_filters, const struct filter *exclusions, size_t n_exclusions,
                   struct bytes prefix)
{
    bool some = false;

    for (size_t i = 0; !some && i < n_filters; i++)
        some = filter_matches(&filters[i], prefix);
    for (size_t i = 0; some && i < n_exclusions; i++)
        some = !filter_matches(&exclusions[i], prefix);
    return some;
}

/* ---- patterns that say something else than they look like ---- */

static bool is_empty(struct bytes token, bool last)
{
    (void)last;
    return token.size == 0;
}

static bool is_early_rest(struct bytes token, bool last)
{
    return token.size == 1 && token.data[0] == '>' && !last;
}

static bool has_star(struct bytes token, bool last)
{
    (void)last;
    return token.size > 1 && memchr(token.data, '*', token.size);
}

static bool has_rest(struct bytes token, bool last)
{
    (void)last;
    return token.size > 1 && memchr(token.data, '>', token.size);
}

static bool has_white_space(struct bytes token, bool last)
{
    (void)last;
    for (size_t i = 0; i < token.size; i++)
        if (token.data[i] == ' ' || (token.data[i] >= '\t' && token.data[i] <= '\r'))
            return true;
    return false;
}

/* What is said behind the token. */
static const struct {
    bool (*found)(struct bytes token, bool last);
    const char *sentence;
} oddities[] = {
    {is_empty, "beside a dot is an empty token; walbus publishes no prefix that has one."},
    {is_early_rest, "is taken literally; only as the last token it stands for the rest."},
    {has_star, "is taken literally; '*' stands for one whole token."},
    {has_rest, "is taken literally; '>' as the last token stands for one or more whole ones."},
    {has_white_space, "has white space; walbus publishes no prefix that has any."},
};

const char *subject_pattern_oddity(struct bytes pattern, struct bytes *ret_token)
{
    struct bytes token;
    bool more = true;

    while (subject_next_token(&pattern, &more, &token))
        for (size_t i = 0; i < ARRAY_SIZE(oddities); i++)
            if (oddities[i].found(token, !more)) {
                *ret_token = token;
                return oddities[i].sentence;
            }
    return NULL;
}

const char *subject_wildcard_fault(struct bytes pattern)
{
    struct bytes token;
    bool more = true;

    while (subject_next_token(&pattern, &more, &token)) {
        if (has_star(token, !more))
            return "a '*' stands for a whole part between dots, and does nothing inside one";
        if (has_rest(token, !more) || is_early_rest(token, !more))
            return "a '>' stands alone behind the last dot, or as the whole pattern";
    }
    return NULL;
}

static bool is_token_byte(uint8_t c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

enum subject_fault subject_check_publish(struct bytes prefix, size_t max_size, bool allow_reserved,
                                         size_t *ret_offset)
{
    enum subject_fault fault = SUBJECT_OK;
    size_t at = 0;

    if (prefix.size == 0) {
        fault = SUBJECT_EMPTY;
    } else if (prefix.size > max_size) {
        fault = SUBJECT_TOO_LONG;
        at = max_size;
    } else if (bytes_equal(prefix, bytes_of_text(SUBJECT_HEARTBEAT_PREFIX))) {
        fault = SUBJECT_HEARTBEAT;
    } else if (prefix.data[0] == '_' && !allow_reserved) {
        fault = SUBJECT_RESERVED;
    } else {
        bool token_begins = true;

        for (; at < prefix.size && fault == SUBJECT_OK; at++) {
            uint8_t c = prefix.data[at];

            if (c == '.' && token_begins)
                fault = SUBJECT_EMPTY_TOKEN;
            else if (c != '.' && !is_token_byte(c))
                fault = SUBJECT_CHARACTER;
            token_begins = c == '.';
        }
        if (fault != SUBJECT_OK)
            at--;
        else if (token_begins)
            fault = SUBJECT_EMPTY_TOKEN;
    }
    if (fault != SUBJECT_OK && ret_offset)
        *ret_offset = at;
    return fault;
}

const char *subject_fault_text(enum subject_fault fault)
{
    switch (fault) {
    case SUBJECT_OK:
        return "The prefix may be published.";
    case SUBJECT_EMPTY:
        return "The prefix is empty.";
    case SUBJECT_TOO_LONG:
        return "The prefix is too long.";
    case SUBJECT_EMPTY_TOKEN:
        return "The prefix has an empty token: a dot at its beginning, at its end, or next to "
               "another.";
    case SUBJECT_CHARACTER:
        return "The prefix has a character that is not a letter of ASCII, a digit, '_', '-' or "
               "'.'.";
    case SUBJECT_RESERVED:
        return "A prefix that begins with '_' is reserved.";
    case SUBJECT_HEARTBEAT:
        return "This prefix is the routers' own heartbeat, which is never delivered.";
    }
    return "The prefix may not be published.";
}
