/* SPDX-License-Identifier: PostgreSQL */
/* The structures are private to route.c: included, so that what is left behind in them can be seen.
 */
#include "route.c"

#include <stdio.h>

#include "unit.h"

static struct filter filter_of(enum filter_kind kind, const char *text)
{
    return (struct filter){kind, unit_bytes(text)};
}

static int lookup(struct route *r, const char *prefix, struct route_set *ret)
{
    struct bytes exact = unit_exact(unit_bytes(prefix));
    int e = route_lookup(r, exact, ret);

    unit_free(exact);
    return e;
}

static unsigned count_of(const struct route_set *set, const struct route_member *m)
{
    unsigned n = 0;

    for (size_t i = 0; i < set->n; i++)
        n += set->members[i] == m;
    return n;
}

static bool has(const struct route_set *set, const struct route_member *m)
{
    unsigned n = count_of(set, m);

    ck_assert_uint_le(n, 1);
    return n == 1;
}

static size_t nodes_of(const struct route_node *node)
{
    size_t n = 1;

    for (size_t i = 0; i < node->n_children; i++)
        n += nodes_of(node->children[i]);
    return n + (node->star ? nodes_of(node->star) : 0);
}

static void assert_bare(const struct route *r)
{
    ck_assert_uint_eq(nodes_of(&r->index.root), 1);
    ck_assert_ptr_null(r->index.root.here.at);
    ck_assert_ptr_null(r->index.root.rest.at);
    ck_assert_uint_eq(r->index.n_literals, 0);
    ck_assert_uint_eq(r->index.n_lengths, 0);
    for (size_t i = 0; i < r->index.n_buckets; i++)
        ck_assert_ptr_null(r->index.buckets[i]);
}

START_TEST(the_essays_tree)
{
    static const struct {
        const char *prefix;
        bool got[4];
    } cases[] = {
        {"orders.created", {true, true, true, true}},
        {"orders.paid", {false, true, true, true}},
        {"orders.created.x", {false, false, true, true}},
        {"orders.", {false, true, true, true}},
        {"orders", {false, false, false, true}},
        {"orders.created.", {false, false, true, true}},
        {"", {false, false, false, true}},
    };
    static const char *const patterns[] = {"orders.created", "orders.*", "orders.>", ">"};
    struct route *r = route_new();
    struct route_member m[4];
    struct route_set set;

    for (size_t i = 0; i < 4; i++) {
        struct filter f = filter_of(FILTER_PATTERN, patterns[i]);
        ck_assert_int_eq(route_add(r, &m[i], &f, 1, NULL, 0), 0);
        ck_assert_int_eq(m[i].everything, i == 3);
    }
    ck_assert_uint_eq(nodes_of(&r->index.root), 4); /* as drawn: root, orders, created, * */
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        ck_assert_int_eq(lookup(r, cases[i].prefix, &set), 0);
        for (size_t k = 0; k < 4; k++)
            ck_assert_int_eq(has(&set, &m[k]), cases[i].got[k]);
    }
    for (size_t i = 0; i < 4; i++)
        route_remove(r, &m[i]);
    assert_bare(r);
    ck_assert_ptr_null(route_free(r));
    ck_assert_ptr_null(route_free(NULL));
}
END_TEST

START_TEST(what_is_everything)
{
    static const struct {
        enum filter_kind kind;
        const char *text;
        bool everything;
    } cases[] = {
        {FILTER_PATTERN, ">", true},      {FILTER_PATTERN, "*", false},
        {FILTER_PATTERN, ">.>", false},   {FILTER_PATTERN, "", false},
        {FILTER_STARTS_WITH, "", true},   {FILTER_STARTS_WITH, "a", false},
        {FILTER_STARTS_WITH, ">", false}, {FILTER_EXACT, "", false},
        {FILTER_EXACT, ">", false},
    };
    const struct filter none = filter_of(FILTER_EXACT, "none");
    struct route *r = route_new();
    struct route_member m;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct filter f[2] = {filter_of(FILTER_EXACT, "x"),
                              filter_of(cases[i].kind, cases[i].text)};

        ck_assert_int_eq(route_add(r, &m, f, 2, NULL, 0), 0);
        ck_assert_int_eq(m.everything, cases[i].everything);
        route_remove(r, &m);
        ck_assert_int_eq(route_add(r, &m, f, 2, &none, 1), 0);
        ck_assert(!m.everything);
        route_remove(r, &m);
    }
    assert_bare(r);
    route_free(r);
}
END_TEST

START_TEST(filters_are_copied)
{
    char text[] = "a.b";
    struct filter f = filter_of(FILTER_PATTERN, text), x = filter_of(FILTER_EXACT, "a.c");
    struct route *r = route_new();
    struct route_member m;
    struct route_set set;

    ck_assert_int_eq(route_add(r, &m, &f, 1, &x, 1), 0);
    text[0] = 'z';
    ck_assert_int_eq(lookup(r, "a.b", &set), 0);
    ck_assert(has(&set, &m));
    route_remove(r, &m);
    assert_bare(r);
    route_free(r);
}
END_TEST

START_TEST(the_same_filter_twice_and_as_exclusion)
{
    const struct filter f[] = {filter_of(FILTER_PATTERN, "a.*"), filter_of(FILTER_PATTERN, "a.*"),
                               filter_of(FILTER_STARTS_WITH, "a"),
                               filter_of(FILTER_STARTS_WITH, "a"), filter_of(FILTER_EXACT, "a.b")};
    struct route *r = route_new();
    struct route_member m, other;
    struct route_set set;

    ck_assert_int_eq(route_add(r, &m, f, ARRAY_SIZE(f), NULL, 0), 0);
    ck_assert_int_eq(route_add(r, &other, f, 3, f + 1, 1), 0);
    ck_assert_int_eq(lookup(r, "a.b", &set), 0);
    ck_assert_uint_eq(set.n, 1);
    ck_assert(has(&set, &m));
    ck_assert_int_eq(lookup(r, "ab", &set), 0);
    ck_assert_uint_eq(set.n, 2);
    route_remove(r, &m); /* takes away nothing of the other's */
    ck_assert_int_eq(lookup(r, "ab", &set), 0);
    ck_assert_uint_eq(set.n, 1);
    ck_assert(has(&set, &other));
    route_remove(r, &other);
    assert_bare(r);
    ck_assert_int_eq(lookup(r, "ab", &set), 0);
    ck_assert_uint_eq(set.n, 0);
    route_free(r);
}
END_TEST

START_TEST(hits_of_the_cache)
{
    const struct filter f = filter_of(FILTER_PATTERN, "a");
    struct route *r = route_new();
    struct route_member m, other;
    struct route_set set;

    for (unsigned i = 0; i < 5; i++) {
        ck_assert_int_eq(route_add(r, &m, &f, 1, NULL, 0), 0);
        uint64_t lookups = r->lookup;
        ck_assert_int_eq(lookup(r, "a", &set), 0);
        ck_assert(set.n == 1 && has(&set, &m));
        ck_assert_int_eq(lookup(r, "a", &set), 0); /* from the cache */
        ck_assert(set.n == 1 && has(&set, &m));
        ck_assert_uint_eq(r->lookup, lookups + 1);
        ck_assert_int_eq(route_add(r, &other, &f, 1, NULL, 0), 0);
        ck_assert_int_eq(lookup(r, "a", &set), 0);
        ck_assert(set.n == 2 && has(&set, &m) && has(&set, &other));
        route_remove(r, &m);
        ck_assert_int_eq(lookup(r, "a", &set), 0);
        ck_assert(set.n == 1 && has(&set, &other));
        route_remove(r, &other);
        ck_assert_int_eq(lookup(r, "a", &set), 0);
        ck_assert_uint_eq(set.n, 0);
    }
    assert_bare(r);
    route_free(r);
}
END_TEST

START_TEST(prefixes_around_the_caches_size)
{
    const struct filter f = filter_of(FILTER_STARTS_WITH, "x");
    char text[CACHE_KEY + 3];
    struct route *r = route_new();
    struct route_member m;
    struct route_set set;

    ck_assert_int_eq(route_add(r, &m, &f, 1, NULL, 0), 0);
    for (size_t size = 0; size < sizeof text; size++) {
        for (unsigned twice = 0; twice < 2; twice++) {
            memset(text, 'x', size);
            text[size] = '\0';
            uint64_t lookups = r->lookup;
            ck_assert_int_eq(lookup(r, text, &set), 0);
            ck_assert_uint_eq(set.n, size > 0);
            ck_assert_uint_eq(r->lookup, lookups + (twice == 0 || size > CACHE_KEY));
        }
    }
    route_remove(r, &m);
    route_free(r);
}
END_TEST

START_TEST(long_filters_and_prefixes)
{
    static char text[FILTER_TEXT_MAX + 1], prefix[3 * FILTER_TEXT_MAX];
    struct route *r = route_new();
    struct route_member m[2];
    struct route_set set;

    memset(text, '.', FILTER_TEXT_MAX); /* the deepest: 4,097 empty tokens */
    struct filter f = filter_of(FILTER_PATTERN, text);
    ck_assert_int_eq(route_add(r, &m[0], &f, 1, NULL, 0), 0);
    text[FILTER_TEXT_MAX - 1] = '>';
    f = filter_of(FILTER_PATTERN, text);
    ck_assert_int_eq(route_add(r, &m[1], &f, 1, NULL, 0), 0);
    ck_assert_uint_eq(nodes_of(&r->index.root), FILTER_TEXT_MAX + 2);
    memset(prefix, '.', FILTER_TEXT_MAX);
    ck_assert_int_eq(lookup(r, prefix, &set), 0);
    ck_assert(has(&set, &m[0]) && has(&set, &m[1]));
    memset(prefix, '.', sizeof prefix - 1);
    ck_assert_int_eq(lookup(r, prefix, &set), 0);
    ck_assert(set.n == 1 && has(&set, &m[1]));
    route_remove(r, &m[0]);
    route_remove(r, &m[1]);
    assert_bare(r);
    route_free(r);
}
END_TEST

/* ---- against filter_matches ---- */

enum { MEMBERS = 24, FILTERS = 4, TEXT = 12 };

struct subscription {
    struct route_member member;
    bool in;
    char texts[2][FILTERS][TEXT];
    struct filter filters[2][FILTERS]; /* filters, exclusions */
    size_t n[2];
};

/* Few letters and many dots, so that most filters meet most prefixes. */
static const char *make_text(struct unit_random *random, char text[TEXT], bool wildcards)
{
    static const char letters[] = "..aab*>";
    size_t size = unit_random_below(random, 8);

    for (size_t i = 0; i < size; i++)
        text[i] = letters[unit_random_below(random, wildcards ? 7 : 5)];
    if (!wildcards && size && unit_random_below(random, 10) == 0)
        text[0] = unit_random_below(random, 2) ? '*' : '>'; /* ordinary bytes in a prefix */
    text[size] = '\0';
    return text;
}

static void subscribe(struct unit_random *random, struct route *r, struct subscription *s)
{
    for (unsigned k = 0; k < 2; k++) {
        s->n[k] = k ? unit_random_below(random, 3) : 1 + unit_random_below(random, FILTERS);
        for (size_t i = 0; i < s->n[k]; i++)
            s->filters[k][i] =
                filter_of((enum filter_kind)unit_random_below(random, 3),
                          make_text(random, s->texts[k][i], unit_random_below(random, 4)));
    }
    ck_assert_int_eq(route_add(r, &s->member, s->filters[0], s->n[0], s->filters[1], s->n[1]), 0);
    s->in = true;
}

static bool wants(const struct subscription *s, struct bytes prefix)
{
    bool got[2] = {false, false};

    for (unsigned k = 0; k < 2; k++)
        for (size_t i = 0; i < s->n[k]; i++)
            got[k] |= filter_matches(&s->filters[k][i], prefix);
    return s->in && got[0] && !got[1];
}

START_TEST(random_filters_and_prefixes)
{
    struct unit_random random = unit_random_init();
    static struct subscription s[MEMBERS];
    struct route *r = route_new();
    size_t matches = 0, misses = 0, nodes = 0;

    for (unsigned round = 0; round < 3000; round++) {
        struct subscription *one = &s[unit_random_below(&random, MEMBERS)];

        if (one->in) {
            route_remove(r, &one->member);
            one->in = false;
        } else {
            subscribe(&random, r, one);
        }
        nodes = MAX(nodes, nodes_of(&r->index.root));
        for (unsigned i = 0; i < 12; i++) {
            char text[TEXT];
            struct bytes prefix = unit_bytes(make_text(&random, text, false));
            struct route_set set;
            size_t n = 0;

            struct bytes exact = unit_exact(prefix);
            if (route_lookup(r, exact, &set) < 0)
                ck_abort_msg("\"%s\"", text);
            unit_free(exact);
            for (size_t k = 0; k < MEMBERS; k++) {
                bool want = wants(&s[k], prefix);

                /* an assertion costs a write to Check's pipe, and these are many */
                if (count_of(&set, &s[k].member) != want ||
                    (s[k].in && s[k].member.everything && !want))
                    ck_abort_msg("\"%s\", subscription %zu: %d wanted", text, k, want);
                n += want;
            }
            if (set.n != n)
                ck_abort_msg("\"%s\": %zu, wanted %zu", text, set.n, n);
            matches += n;
            misses += MEMBERS - n;
        }
        if (round % 500 == 499) { /* all go: nothing stays */
            for (size_t k = 0; k < MEMBERS; k++) {
                if (s[k].in)
                    route_remove(r, &s[k].member);
                s[k].in = false;
            }
            assert_bare(r);
        }
    }
    ck_assert_uint_gt(matches, 10000);
    ck_assert_uint_gt(misses, 10000);
    ck_assert_uint_gt(nodes, 20);
    route_free(r);
}
END_TEST

START_TEST(many_literals)
{
    enum { LITERALS = 1000 };
    static struct route_member m[LITERALS];
    struct route *r = route_new();
    struct route_set set;
    char text[16];

    for (unsigned i = 0; i < LITERALS; i++) {
        (void)snprintf(text, sizeof text, "%u", i);
        struct filter f = filter_of(i % 2 ? FILTER_EXACT : FILTER_STARTS_WITH, text);
        ck_assert_int_eq(route_add(r, &m[i], &f, 1, NULL, 0), 0);
    }
    ck_assert_uint_eq(r->index.n_literals, LITERALS);
    ck_assert_uint_eq(r->index.n_lengths, 3);
    ck_assert_uint_ge(r->index.n_buckets, LITERALS / 2);
    /* "864" exactly is the starts-with "8", "86" and "864" */
    ck_assert_int_eq(lookup(r, "864", &set), 0);
    ck_assert_uint_eq(set.n, 3);
    ck_assert(has(&set, &m[8]) && has(&set, &m[86]) && has(&set, &m[864]));
    ck_assert_int_eq(lookup(r, "863", &set), 0);
    ck_assert_uint_eq(set.n, 3);
    ck_assert(has(&set, &m[8]) && has(&set, &m[86]) && has(&set, &m[863]));
    for (unsigned i = 0; i < LITERALS; i++)
        route_remove(r, &m[i]);
    assert_bare(r);
    route_free(r);
}
END_TEST

UNIT_MAIN("route", the_essays_tree, what_is_everything, filters_are_copied,
          the_same_filter_twice_and_as_exclusion, hits_of_the_cache,
          prefixes_around_the_caches_size, long_filters_and_prefixes, random_filters_and_prefixes,
          many_literals)
