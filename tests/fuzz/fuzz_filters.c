/* SPDX-License-Identifier: PostgreSQL */
/*
 * Filters over prefixes: the router's trie against filter_matches, while subscriptions come and go,
 * and filter_matches against a definition of its own. The input is a list of steps (enum step, then
 * operands).
 */
#include "route.h"

#include "codec/subject.h"
#include "fuzz.h"

enum step {
    STEP_ADD,    /* which member, numbers of filters and exclusions, then each: kind, text */
    STEP_REMOVE, /* which member */
    STEP_LOOKUP, /* prefix */
    STEPS,
};

#define MEMBERS  8
#define FILTERS  6
#define PREFIXES 16 /* looked up again after every change, so that a stale cache shows */
#define TEXT_MAX 48

struct text {
    uint8_t at[TEXT_MAX];
    size_t size;
};

struct member {
    struct route_member route; /* first: what a look-up gives is cast back */
    bool present;
    struct filter filters[FILTERS], exclusions[FILTERS];
    struct text texts[2 * FILTERS];
    size_t n_filters, n_exclusions;
};

static struct member members[MEMBERS];
static struct text prefixes[PREFIXES];
static size_t n_prefixes;
static struct route *route;

/* A size, of which the top bit says that the bytes are taken from a few, so that texts meet. */
static void take_text(struct fuzz_in *in, struct text *ret)
{
    static const char few[] = ".*>ab._\xff";
    uint8_t head = fuzz_u8(in);
    struct bytes raw = fuzz_bytes(in, MIN(head & 0x7f, TEXT_MAX));

    ret->size = raw.size;
    for (size_t i = 0; i < raw.size; i++)
        ret->at[i] = head & 0x80 ? (uint8_t)few[raw.data[i] % (sizeof few - 1)] : raw.data[i];
}

/* ---- the definition, by recursion over bytes instead of tokens ---- */

static bool is_token_end(struct bytes text, size_t at)
{
    return at == text.size || text.data[at] == '.';
}

/* From the beginning of a token in both. */
static bool pattern_takes(struct bytes pattern, size_t i, struct bytes prefix, size_t k)
{
    if (pattern.size - i == 1 && pattern.data[i] == '>')
        return true;
    if (i < pattern.size && pattern.data[i] == '*' && is_token_end(pattern, i + 1)) {
        i++;
        while (!is_token_end(prefix, k))
            k++;
    } else {
        while (!is_token_end(pattern, i)) {
            if (is_token_end(prefix, k) || pattern.data[i] != prefix.data[k])
                return false;
            i++;
            k++;
        }
        if (!is_token_end(prefix, k))
            return false;
    }
    if (i == pattern.size || k == prefix.size)
        return i == pattern.size && k == prefix.size;
    return pattern_takes(pattern, i + 1, prefix, k + 1);
}

static bool takes(const struct filter *f, struct bytes prefix)
{
    switch (f->kind) {
    case FILTER_PATTERN:
        return pattern_takes(f->text, 0, prefix, 0);
    case FILTER_EXACT:
        return f->text.size == prefix.size &&
               (prefix.size == 0 || memcmp(f->text.data, prefix.data, prefix.size) == 0);
    case FILTER_STARTS_WITH:
        return f->text.size <= prefix.size &&
               (f->text.size == 0 || memcmp(f->text.data, prefix.data, f->text.size) == 0);
    }
    abort();
}

static bool any_takes(const struct filter *filters, size_t n, struct bytes prefix)
{
    bool any = false;

    for (size_t i = 0; i < n; i++) {
        bool taken = takes(&filters[i], prefix);

        FUZZ_CHECK(filter_matches(&filters[i], prefix) == taken);
        any = any || taken;
    }
    return any;
}

/* ---- looking up ---- */

static void lookup(struct bytes prefix)
{
    struct route_set set;
    bool found[MEMBERS] = {false};

    FUZZ_CHECK(route_lookup(route, prefix, &set) == 0);
    for (size_t i = 0; i < set.n; i++) {
        size_t which = (size_t)((struct member *)set.members[i] - members);

        FUZZ_CHECK(which < MEMBERS && !found[which]);
        found[which] = true;
    }
    for (size_t i = 0; i < MEMBERS; i++) {
        const struct member *m = &members[i];
        bool want = m->present && any_takes(m->filters, m->n_filters, prefix);

        if (m->present && any_takes(m->exclusions, m->n_exclusions, prefix))
            want = false;
        FUZZ_CHECK(found[i] == want);
        if (m->present && m->route.everything)
            FUZZ_CHECK(want);
    }
}

static void lookup_all(void)
{
    for (size_t i = 0; i < MIN(n_prefixes, PREFIXES); i++)
        lookup((struct bytes){prefixes[i].at, prefixes[i].size});
}

/* A prefix that may be published is a pattern that matches nothing but itself. */
static void check_publish(struct bytes prefix)
{
    struct bytes rest = prefix, token;
    size_t offset = SIZE_MAX, tokens = 0;
    bool more = true;
    const struct filter itself = {FILTER_PATTERN, prefix};

    while (subject_next_token(&rest, &more, &token))
        tokens++;
    FUZZ_CHECK(filter_tokens(&itself) == tokens);

    enum subject_fault fault = subject_check_publish(prefix, TEXT_MAX - 1, true, &offset);
    FUZZ_CHECK(subject_fault_text(fault)[0] != '\0');
    if (fault != SUBJECT_OK) {
        FUZZ_CHECK(offset <= prefix.size);
        return;
    }
    FUZZ_CHECK(offset == SIZE_MAX && filter_matches(&itself, prefix));
    rest = prefix;
    more = true;
    while (subject_next_token(&rest, &more, &token))
        FUZZ_CHECK(token.size > 0 && !memchr(token.data, '*', token.size) &&
                   !memchr(token.data, '>', token.size));
    fault = subject_check_publish(prefix, TEXT_MAX - 1, false, NULL);
    FUZZ_CHECK(fault == (prefix.data[0] == '_' ? SUBJECT_RESERVED : SUBJECT_OK));
}

/* ---- steps ---- */

static void remove_member(struct member *m)
{
    if (m->present)
        route_remove(route, &m->route);
    m->present = false;
}

static void add_member(struct member *m, struct fuzz_in *in)
{
    uint8_t numbers = fuzz_u8(in);

    remove_member(m);
    m->n_filters = (numbers & 0xf) % (FILTERS + 1);
    m->n_exclusions = (numbers >> 4) % (FILTERS + 1);
    for (size_t i = 0; i < m->n_filters + m->n_exclusions; i++) {
        struct filter *f = i < m->n_filters ? &m->filters[i] : &m->exclusions[i - m->n_filters];

        f->kind = (enum filter_kind)(fuzz_u8(in) % (FILTER_STARTS_WITH + 1));
        take_text(in, &m->texts[i]);
        f->text = (struct bytes){m->texts[i].at, m->texts[i].size};
    }
    FUZZ_CHECK(
        route_add(route, &m->route, m->filters, m->n_filters, m->exclusions, m->n_exclusions) == 0);
    m->present = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};

    memset(members, 0, sizeof members);
    n_prefixes = 0;
    route = route_new();
    FUZZ_CHECK(route != NULL);
    while (in.left > 0) {
        switch (fuzz_u8(&in) % STEPS) {
        case STEP_ADD: {
            struct member *m = &members[fuzz_u8(&in) % MEMBERS];

            add_member(m, &in);
            break;
        }
        case STEP_REMOVE:
            remove_member(&members[fuzz_u8(&in) % MEMBERS]);
            break;
        case STEP_LOOKUP: {
            struct text *prefix = &prefixes[n_prefixes++ % PREFIXES];

            take_text(&in, prefix);
            check_publish((struct bytes){prefix->at, prefix->size});
            break;
        }
        }
        lookup_all();
        lookup_all(); /* from the cache */
    }
    for (size_t i = 0; i < MEMBERS; i++)
        remove_member(&members[i]);
    lookup_all();
    route = route_free(route);
    return 0;
}
