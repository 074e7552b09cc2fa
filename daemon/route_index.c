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
 */
#include "route_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

/* ---- hooks ---- */

static int hooks_add(struct route_hooks *h, struct route_hook hook)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : 2;
        struct route_hook *at = realloc(h->at, cap * sizeof *at);

        if (!at)
            return -ENOMEM;
        h->at = at;
        h->cap = cap;
    }
    h->at[h->n++] = hook;
    return 0;
}

static void hooks_remove(struct route_hooks *h, const struct route_member *m)
{
    size_t kept = 0;

    for (size_t i = 0; i < h->n; i++)
        if (h->at[i].member != m)
            h->at[kept++] = h->at[i];
    h->n = kept;
    if (kept == 0) {
        free(h->at);
        *h = (struct route_hooks){0};
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
static size_t node_place(const struct route_node *node, struct bytes token, bool *ret_found)
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

static struct route_node *node_new(struct bytes token)
{
    struct route_node *node = calloc(1, sizeof *node);
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

static struct route_node *node_child(struct route_node *node, struct bytes token, bool make)
{
    bool found;
    size_t i = node_place(node, token, &found);

    if (found)
        return node->children[i];
    if (!make)
        return NULL;
    struct route_node *child = node_new(token);
    struct route_node **children =
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

static void node_deinit(struct route_node *node)
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
static struct route_hooks *trie_place(struct route_node *node, struct bytes rest, bool make)
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

static bool node_is_bare(const struct route_node *node)
{
    return !node->n_children && !node->star && !node->here.n && !node->rest.n;
}

/* Cuts what carries nothing off the path of a removed pattern; recursion as deep as the pattern
 * (FILTER_TEXT_MAX bytes, so at most that many levels of a few words each). */
static void trie_prune(struct route_node *node, struct bytes rest, bool more)
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

static size_t literal_bucket(const struct route_index *ix, struct bytes text, enum filter_kind kind)
{
    return XXH3_64bits_withSeed(text.data, text.size, kind) & (ix->n_buckets - 1);
}

static struct route_literal *literal_find(const struct route_index *ix, struct bytes text,
                                          enum filter_kind kind)
{
    if (!ix->n_buckets)
        return NULL;
    for (struct route_literal *l = ix->buckets[literal_bucket(ix, text, kind)]; l; l = l->next)
        if (l->kind == kind && bytes_equal(l->text, text))
            return l;
    return NULL;
}

static int literal_grow(struct route_index *ix)
{
    size_t old = ix->n_buckets, n = old ? old * 2 : 64;
    struct route_literal **buckets = calloc(n, sizeof *buckets), **before = ix->buckets;

    if (!buckets)
        return -ENOMEM;
    ix->buckets = buckets;
    ix->n_buckets = n;
    for (size_t i = 0; i < old; i++) {
        for (struct route_literal *l = before[i], *next; l; l = next) {
            next = l->next;
            size_t to = literal_bucket(ix, l->text, l->kind);
            l->next = buckets[to];
            buckets[to] = l;
        }
    }
    free(before);
    return 0;
}

static int length_use(struct route_index *ix, size_t size)
{
    for (size_t i = 0; i < ix->n_lengths; i++) {
        if (ix->lengths[i].size == size) {
            ix->lengths[i].users++;
            return 0;
        }
    }
    struct route_length *lengths = realloc(ix->lengths, (ix->n_lengths + 1) * sizeof *lengths);
    if (!lengths)
        return -ENOMEM;
    ix->lengths = lengths;
    ix->lengths[ix->n_lengths++] = (struct route_length){size, 1};
    return 0;
}

static void length_drop(struct route_index *ix, size_t size)
{
    for (size_t i = 0; i < ix->n_lengths; i++) {
        if (ix->lengths[i].size == size && --ix->lengths[i].users == 0) {
            ix->lengths[i] = ix->lengths[--ix->n_lengths];
            return;
        }
    }
}

static struct route_literal *literal_make(struct route_index *ix, struct bytes text,
                                          enum filter_kind kind)
{
    struct route_literal *l = literal_find(ix, text, kind);

    if (l)
        return l;
    if (ix->n_literals >= ix->n_buckets && literal_grow(ix) < 0)
        return NULL;
    l = calloc(1, sizeof *l);
    uint8_t *copy = malloc(text.size ? text.size : 1);
    if (!l || !copy || (kind == FILTER_STARTS_WITH && length_use(ix, text.size) < 0)) {
        free(l);
        free(copy);
        return NULL;
    }
    if (text.size)
        memcpy(copy, text.data, text.size);
    size_t bucket = literal_bucket(ix, text, kind);
    *l = (struct route_literal){{copy, text.size}, kind, {0}, ix->buckets[bucket]};
    ix->buckets[bucket] = l;
    ix->n_literals++;
    return l;
}

static void literal_prune(struct route_index *ix, struct route_literal *literal)
{
    struct route_literal **at = &ix->buckets[literal_bucket(ix, literal->text, literal->kind)];

    if (literal->hooks.n)
        return;
    while (*at != literal)
        at = &(*at)->next;
    *at = literal->next;
    if (literal->kind == FILTER_STARTS_WITH)
        length_drop(ix, literal->text.size);
    ix->n_literals--;
    free((void *)literal->text.data);
    free(literal);
}

/* ---- filters ---- */

static struct route_hooks *filter_place(struct route_index *ix, const struct filter *f, bool make,
                                        struct route_literal **ret_literal)
{
    *ret_literal = NULL;
    if (f->kind == FILTER_PATTERN)
        return trie_place(&ix->root, f->text, make);
    struct route_literal *l =
        make ? literal_make(ix, f->text, f->kind) : literal_find(ix, f->text, f->kind);
    *ret_literal = l;
    return l ? &l->hooks : NULL;
}

int route_index_add(struct route_index *ix, const struct filter *filter, struct route_hook hook)
{
    struct route_literal *literal;
    struct route_hooks *hooks = filter_place(ix, filter, true, &literal);

    if (!hooks)
        return -ENOMEM;
    /* the same filter twice; a member's are added in one go, so its hook is the last */
    if (hooks->n && hooks->at[hooks->n - 1].member == hook.member &&
        hooks->at[hooks->n - 1].exclude == hook.exclude)
        return 0;
    return hooks_add(hooks, hook);
}

void route_index_remove(struct route_index *ix, const struct filter *filter,
                        const struct route_member *member)
{
    struct route_literal *literal;
    struct route_hooks *hooks = filter_place(ix, filter, false, &literal);

    if (hooks)
        hooks_remove(hooks, member);
    if (literal)
        literal_prune(ix, literal);
    else if (filter->kind == FILTER_PATTERN)
        trie_prune(&ix->root, filter->text, true);
}

/* ---- look-up ---- */

/* What a look-up carries along. */
struct walk {
    route_index_visit *visit;
    void *owner;
};

static int visit_hooks(const struct walk *w, const struct route_hooks *hooks)
{
    return hooks->n ? w->visit(w->owner, hooks) : 0;
}

/* Recursion goes as deep as the trie, at most FILTER_TEXT_MAX + 1 levels. */
static int trie_walk(const struct walk *w, const struct route_node *node, struct bytes rest,
                     bool more)
{
    struct bytes token;

    if (!subject_next_token(&rest, &more, &token))
        return visit_hooks(w, &node->here);
    int e = visit_hooks(w, &node->rest);
    if (e == 0 && node->n_children) {
        bool found;
        size_t i = node_place(node, token, &found);

        if (found)
            e = trie_walk(w, node->children[i], rest, more);
    }
    if (e == 0 && node->star)
        e = trie_walk(w, node->star, rest, more);
    return e;
}

static int literals_walk(const struct route_index *ix, const struct walk *w, struct bytes prefix)
{
    if (!ix->n_literals)
        return 0;
    const struct route_literal *l = literal_find(ix, prefix, FILTER_EXACT);
    int e = l ? visit_hooks(w, &l->hooks) : 0;

    for (size_t i = 0; e == 0 && i < ix->n_lengths; i++) {
        if (ix->lengths[i].size > prefix.size)
            continue;
        l = literal_find(ix, (struct bytes){prefix.data, ix->lengths[i].size}, FILTER_STARTS_WITH);
        if (l)
            e = visit_hooks(w, &l->hooks);
    }
    return e;
}

int route_index_walk(const struct route_index *ix, struct bytes prefix, route_index_visit *visit,
                     void *owner)
{
    struct walk w = {visit, owner};
    int e = trie_walk(&w, &ix->root, prefix, true);

    return e == 0 ? literals_walk(ix, &w, prefix) : e;
}

void route_index_deinit(struct route_index *ix)
{
    node_deinit(&ix->root);
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (struct route_literal *l = ix->buckets[i], *next; l; l = next) {
            next = l->next;
            free((void *)l->text.data);
            free(l->hooks.at);
            free(l);
        }
    }
    free(ix->buckets);
    free(ix->lengths);
    *ix = (struct route_index){0};
}
