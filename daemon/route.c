/* SPDX-License-Identifier: PostgreSQL */
/*
 * The problem: a message's prefix is to find, among all filters of all
 * subscriptions, those that match, with as little a look at the others as can
 * be, and with a bound on the work, whatever the prefix.
 *
 * Patterns stand in a trie of tokens. Four filters
 *
 *     A: orders.created    B: orders.*    C: orders.>    D: >
 *
 * make
 *
 *     root ── '>' {D}
 *      └─ orders ── '>' {C}
 *           ├─ created {A}
 *           └─ * {B}
 *
 * "orders.created" walks root → orders → {created, *} and collects D and C on
 * the way (each node's '>' list takes everything that has at least one token
 * more), A and B at the end. Every node is reached by one path only, so a walk
 * touches a node at most once, and it goes no deeper than the longest pattern:
 * the work is bounded by the trie, whatever the prefix, and the trie by
 * FILTERS_TOKENS_MAX nodes a subscription. Filters made for it (all of {*,a}^n)
 * reach that bound; ordinary ones share few levels with a prefix.
 *
 * Exact and starts-with filters stand in one hash table by their bytes; for
 * starts-with, the prefix's first L bytes are looked up for each length L that
 * occurs.
 *
 * An exclusion stands in the same structures with its member marked; a member
 * is in the result when a filter matched and no exclusion did. Marks are the
 * number of the look-up, so nothing needs clearing.
 *
 * In front stands a small direct-mapped cache of whole results, each entry
 * valid for one generation, that is until a subscription comes or goes. An
 * entry keeps its prefix inline, so a steady stream allocates nothing.
 */
#include "route.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define CACHE_SLOTS 1024u /* a power of two; 1024 × about 100 bytes */
#define CACHE_KEY   64u   /* longer prefixes are looked up each time */

struct hook { /* a member's filter or exclusion that stands somewhere */
    struct route_member *member;
    bool exclude;
};

struct hooks {
    struct hook *at;
    size_t n, cap;
};

struct node {
    struct bytes token; /* owned */
    struct node **children; /* by token, sorted */
    size_t n_children;
    struct node *star;
    struct hooks here;  /* patterns that end here */
    struct hooks rest;  /* patterns that go on with a last '>' */
};

struct literal {
    struct bytes text; /* owned */
    enum filter_kind kind;
    struct hooks hooks;
    struct literal *next; /* in the bucket */
};

struct length {
    size_t size;
    size_t users; /* starts-with literals of this size */
};

struct slot {
    uint64_t generation; /* 0: empty */
    uint8_t key[CACHE_KEY];
    uint8_t key_size;
    struct route_member **members;
    size_t n, cap;
};

struct route {
    struct node root;
    struct literal **buckets;
    size_t n_buckets, n_literals;
    struct length *lengths;
    size_t n_lengths;

    uint64_t generation, lookup;
    struct route_member **found; /* scratch */
    size_t n_found, found_cap;
    struct slot cache[CACHE_SLOTS];
};

/* ---- hooks ---- */

static int hooks_add(struct hooks *h, struct hook hook)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : 2;
        struct hook *at = realloc(h->at, cap * sizeof *at);

        if (!at)
            return -ENOMEM;
        h->at = at;
        h->cap = cap;
    }
    h->at[h->n++] = hook;
    return 0;
}

static void hooks_remove(struct hooks *h, const struct route_member *m)
{
    size_t kept = 0;

    for (size_t i = 0; i < h->n; i++)
        if (h->at[i].member != m)
            h->at[kept++] = h->at[i];
    h->n = kept;
    if (kept == 0) {
        free(h->at);
        *h = (struct hooks){0};
    }
}

/* ---- trie ---- */

static int token_compare(struct bytes a, struct bytes b)
{
    int c = 0;
    size_t n = MIN(a.size, b.size);

    if (n)
        c = memcmp(a.data, b.data, n);
    if (c)
        return c;
    return a.size < b.size ? -1 : a.size > b.size;
}

/* The place of `token` among the children: *ret_found tells whether it is there. */
static size_t node_place(const struct node *node, struct bytes token, bool *ret_found)
{
    size_t low = 0, high = node->n_children;

    *ret_found = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = token_compare(node->children[mid]->token, token);

        if (c == 0) {
            *ret_found = true;
            return mid;
        }
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct node *node_new(struct bytes token)
{
    struct node *node = calloc(1, sizeof *node);
    uint8_t *copy = malloc(token.size ? token.size : 1);

    if (!node || !copy) {
        free(node);
        free(copy);
        return NULL;
    }
    if (token.size)
        memcpy(copy, token.data, token.size);
    node->token = (struct bytes){copy, token.size};
    return node;
}

static struct node *node_child(struct node *node, struct bytes token, bool make)
{
    bool found;
    size_t i = node_place(node, token, &found);

    if (found)
        return node->children[i];
    if (!make)
        return NULL;
    struct node *child = node_new(token);
    struct node **children =
        child ? realloc(node->children, (node->n_children + 1) * sizeof *children) : NULL;
    if (!children) {
        if (child)
            free((void *)child->token.data);
        free(child);
        return NULL;
    }
    memmove(children + i + 1, children + i, (node->n_children - i) * sizeof *children);
    children[i] = child;
    node->children = children;
    node->n_children++;
    return child;
}

static void node_deinit(struct node *node)
{
    for (size_t i = 0; i < node->n_children; i++) {
        node_deinit(node->children[i]);
        free(node->children[i]);
    }
    if (node->star) {
        node_deinit(node->star);
        free(node->star);
    }
    free(node->children);
    free(node->here.at);
    free(node->rest.at);
    free((void *)node->token.data);
}

static bool is_token(struct bytes token, char c)
{
    return token.size == 1 && token.data[0] == (uint8_t)c;
}

/* The list in which a pattern stands; with `make` the way to it is built. NULL: not there, or no memory. */
static struct hooks *trie_place(struct node *node, struct bytes rest, bool make)
{
    bool more = true;
    struct bytes token;

    while (subject_next_token(&rest, &more, &token)) {
        if (!more && is_token(token, '>'))
            return &node->rest;
        if (is_token(token, '*')) {
            if (!node->star && make)
                node->star = node_new(token);
            node = node->star;
        } else {
            node = node_child(node, token, make);
        }
        if (!node)
            return NULL;
    }
    return &node->here;
}

static bool node_is_bare(const struct node *node)
{
    return !node->n_children && !node->star && !node->here.n && !node->rest.n;
}

/* Cuts what carries nothing off the path of a removed pattern; recursion as deep as the pattern
 * (FILTER_TEXT_MAX bytes, so at most that many levels of a few words each). */
static void trie_prune(struct node *node, struct bytes rest, bool more)
{
    struct bytes token;

    if (!subject_next_token(&rest, &more, &token) || (!more && is_token(token, '>')))
        return;
    if (is_token(token, '*')) {
        if (!node->star)
            return;
        trie_prune(node->star, rest, more);
        if (node_is_bare(node->star)) {
            node_deinit(node->star);
            free(node->star);
            node->star = NULL;
        }
        return;
    }
    bool found;
    size_t i = node_place(node, token, &found);
    if (!found)
        return;
    trie_prune(node->children[i], rest, more);
    if (node_is_bare(node->children[i])) {
        node_deinit(node->children[i]);
        free(node->children[i]);
        node->n_children--;
        memmove(node->children + i, node->children + i + 1,
                (node->n_children - i) * sizeof *node->children);
    }
}

/* ---- literals ---- */

static size_t literal_bucket(const struct route *r, struct bytes text, enum filter_kind kind)
{
    return XXH3_64bits_withSeed(text.data, text.size, kind) & (r->n_buckets - 1);
}

static struct literal *literal_find(const struct route *r, struct bytes text, enum filter_kind kind)
{
    if (!r->n_buckets)
        return NULL;
    for (struct literal *l = r->buckets[literal_bucket(r, text, kind)]; l; l = l->next)
        if (l->kind == kind && bytes_equal(l->text, text))
            return l;
    return NULL;
}

static int literal_grow(struct route *r)
{
    size_t old = r->n_buckets, n = old ? old * 2 : 64;
    struct literal **buckets = calloc(n, sizeof *buckets), **before = r->buckets;

    if (!buckets)
        return -ENOMEM;
    r->buckets = buckets;
    r->n_buckets = n;
    for (size_t i = 0; i < old; i++) {
        for (struct literal *l = before[i], *next; l; l = next) {
            next = l->next;
            size_t to = literal_bucket(r, l->text, l->kind);
            l->next = buckets[to];
            buckets[to] = l;
        }
    }
    free(before);
    return 0;
}

static int length_use(struct route *r, size_t size)
{
    for (size_t i = 0; i < r->n_lengths; i++) {
        if (r->lengths[i].size == size) {
            r->lengths[i].users++;
            return 0;
        }
    }
    struct length *lengths = realloc(r->lengths, (r->n_lengths + 1) * sizeof *lengths);
    if (!lengths)
        return -ENOMEM;
    r->lengths = lengths;
    r->lengths[r->n_lengths++] = (struct length){size, 1};
    return 0;
}

static void length_drop(struct route *r, size_t size)
{
    for (size_t i = 0; i < r->n_lengths; i++) {
        if (r->lengths[i].size == size && --r->lengths[i].users == 0) {
            r->lengths[i] = r->lengths[--r->n_lengths];
            return;
        }
    }
}

static struct literal *literal_make(struct route *r, struct bytes text, enum filter_kind kind)
{
    struct literal *l = literal_find(r, text, kind);

    if (l)
        return l;
    if (r->n_literals >= r->n_buckets && literal_grow(r) < 0)
        return NULL;
    l = calloc(1, sizeof *l);
    uint8_t *copy = malloc(text.size ? text.size : 1);
    if (!l || !copy || (kind == FILTER_STARTS_WITH && length_use(r, text.size) < 0)) {
        free(l);
        free(copy);
        return NULL;
    }
    if (text.size)
        memcpy(copy, text.data, text.size);
    size_t bucket = literal_bucket(r, text, kind);
    *l = (struct literal){{copy, text.size}, kind, {0}, r->buckets[bucket]};
    r->buckets[bucket] = l;
    r->n_literals++;
    return l;
}

static void literal_prune(struct route *r, struct literal *literal)
{
    struct literal **at = &r->buckets[literal_bucket(r, literal->text, literal->kind)];

    if (literal->hooks.n)
        return;
    while (*at != literal)
        at = &(*at)->next;
    *at = literal->next;
    if (literal->kind == FILTER_STARTS_WITH)
        length_drop(r, literal->text.size);
    r->n_literals--;
    free((void *)literal->text.data);
    free(literal);
}

/* ---- members ---- */

static struct hooks *filter_place(struct route *r, const struct filter *f, bool make,
                                  struct literal **ret_literal)
{
    *ret_literal = NULL;
    if (f->kind == FILTER_PATTERN)
        return trie_place(&r->root, f->text, make);
    struct literal *l = make ? literal_make(r, f->text, f->kind) : literal_find(r, f->text, f->kind);
    *ret_literal = l;
    return l ? &l->hooks : NULL;
}

static void filters_unhook(struct route *r, struct route_member *m, struct filter *filters, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct literal *literal;
        struct hooks *hooks = filter_place(r, &filters[i], false, &literal);

        if (hooks)
            hooks_remove(hooks, m);
        if (literal)
            literal_prune(r, literal);
        else if (filters[i].kind == FILTER_PATTERN)
            trie_prune(&r->root, filters[i].text, true);
    }
}

static int filters_hook(struct route *r, struct route_member *m, const struct filter *filters,
                        size_t n, bool exclude)
{
    for (size_t i = 0; i < n; i++) {
        struct literal *literal;
        struct hooks *hooks = filter_place(r, &filters[i], true, &literal);

        if (!hooks)
            return -ENOMEM;
        /* the same filter twice; a member's are added in one go, so its hook is the last */
        if (hooks->n && hooks->at[hooks->n - 1].member == m &&
            hooks->at[hooks->n - 1].exclude == exclude)
            continue;
        if (hooks_add(hooks, (struct hook){m, exclude}) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* One allocation: the structs, then their texts. */
static struct filter *filters_copy(const struct filter *filters, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += filters[i].text.size;
    struct filter *copy = malloc(n * sizeof *copy + bytes + 1);
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

static bool filter_is_everything(const struct filter *f)
{
    return (f->kind == FILTER_PATTERN && is_token(f->text, '>')) ||
           (f->kind == FILTER_STARTS_WITH && f->text.size == 0);
}

int route_add(struct route *r, struct route_member *m, const struct filter *filters,
              size_t n_filters, const struct filter *exclusions, size_t n_exclusions)
{
    *m = (struct route_member){
        .filters = filters_copy(filters, n_filters),
        .n_filters = n_filters,
        .exclusions = filters_copy(exclusions, n_exclusions),
        .n_exclusions = n_exclusions,
    };
    if (!m->filters || !m->exclusions || filters_hook(r, m, m->filters, n_filters, false) < 0 ||
        filters_hook(r, m, m->exclusions, n_exclusions, true) < 0) {
        if (!m->filters)
            m->n_filters = 0;
        if (!m->exclusions)
            m->n_exclusions = 0;
        route_remove(r, m);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n_filters && n_exclusions == 0; i++)
        m->everything |= filter_is_everything(&filters[i]);
    r->generation++;
    return 0;
}

void route_remove(struct route *r, struct route_member *m)
{
    filters_unhook(r, m, m->filters, m->n_filters);
    filters_unhook(r, m, m->exclusions, m->n_exclusions);
    free(m->filters);
    free(m->exclusions);
    *m = (struct route_member){0};
    r->generation++;
}

/* ---- look-up ---- */

static int collect(struct route *r, const struct hooks *hooks)
{
    for (size_t i = 0; i < hooks->n; i++) {
        struct route_member *m = hooks->at[i].member;

        if (hooks->at[i].exclude) {
            m->excluded = r->lookup;
            continue;
        }
        if (m->matched == r->lookup)
            continue;
        m->matched = r->lookup;
        if (r->n_found == r->found_cap) {
            size_t cap = r->found_cap ? r->found_cap * 2 : 64;
            struct route_member **found = realloc(r->found, cap * sizeof *found);

            if (!found)
                return -ENOMEM;
            r->found = found;
            r->found_cap = cap;
        }
        r->found[r->n_found++] = m;
    }
    return 0;
}

/* Recursion goes as deep as the trie, at most FILTER_TEXT_MAX + 1 levels. */
static int trie_collect(struct route *r, const struct node *node, struct bytes rest, bool more)
{
    struct bytes token;

    if (!subject_next_token(&rest, &more, &token))
        return collect(r, &node->here);
    int e = collect(r, &node->rest);
    if (e == 0 && node->n_children) {
        bool found;
        size_t i = node_place(node, token, &found);

        if (found)
            e = trie_collect(r, node->children[i], rest, more);
    }
    if (e == 0 && node->star)
        e = trie_collect(r, node->star, rest, more);
    return e;
}

static int literals_collect(struct route *r, struct bytes prefix)
{
    if (!r->n_literals)
        return 0;
    const struct literal *l = literal_find(r, prefix, FILTER_EXACT);
    int e = l ? collect(r, &l->hooks) : 0;

    for (size_t i = 0; e == 0 && i < r->n_lengths; i++) {
        if (r->lengths[i].size > prefix.size)
            continue;
        l = literal_find(r, (struct bytes){prefix.data, r->lengths[i].size}, FILTER_STARTS_WITH);
        if (l)
            e = collect(r, &l->hooks);
    }
    return e;
}

static int lookup_all(struct route *r, struct bytes prefix)
{
    size_t kept = 0;

    r->lookup++;
    r->n_found = 0;
    int e = trie_collect(r, &r->root, prefix, true);
    if (e == 0)
        e = literals_collect(r, prefix);
    if (e < 0)
        return e;
    for (size_t i = 0; i < r->n_found; i++)
        if (r->found[i]->excluded != r->lookup)
            r->found[kept++] = r->found[i];
    r->n_found = kept;
    return 0;
}

static void cache_fill(struct route *r, struct slot *slot, struct bytes prefix)
{
    slot->generation = 0;
    if (slot->cap < r->n_found) {
        struct route_member **members = realloc(slot->members, r->n_found * sizeof *members);

        if (!members)
            return; /* the result stands in r->found all the same */
        slot->members = members;
        slot->cap = r->n_found;
    }
    if (r->n_found)
        memcpy(slot->members, r->found, r->n_found * sizeof *slot->members);
    slot->n = r->n_found;
    if (prefix.size)
        memcpy(slot->key, prefix.data, prefix.size);
    slot->key_size = (uint8_t)prefix.size;
    slot->generation = r->generation;
}

int route_lookup(struct route *r, struct bytes prefix, struct route_set *ret)
{
    struct slot *slot = NULL;

    if (prefix.size <= CACHE_KEY) {
        slot = &r->cache[XXH3_64bits(prefix.data, prefix.size) & (CACHE_SLOTS - 1)];
        if (slot->generation == r->generation && slot->key_size == prefix.size &&
            (prefix.size == 0 || memcmp(slot->key, prefix.data, prefix.size) == 0)) {
            *ret = (struct route_set){slot->members, slot->n};
            return 0;
        }
    }
    int e = lookup_all(r, prefix);
    if (e < 0)
        return e;
    if (slot)
        cache_fill(r, slot, prefix);
    *ret = (struct route_set){r->found, r->n_found};
    return 0;
}

struct route *route_new(void)
{
    struct route *r = calloc(1, sizeof *r);

    if (r)
        r->generation = 1;
    return r;
}

struct route *route_free(struct route *r)
{
    if (!r)
        return NULL;
    node_deinit(&r->root);
    for (size_t i = 0; i < r->n_buckets; i++) {
        for (struct literal *l = r->buckets[i], *next; l; l = next) {
            next = l->next;
            free((void *)l->text.data);
            free(l->hooks.at);
            free(l);
        }
    }
    for (size_t i = 0; i < CACHE_SLOTS; i++)
        free(r->cache[i].members);
    free(r->buckets);
    free(r->lengths);
    free(r->found);
    free(r);
    return NULL;
}
