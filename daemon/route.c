/* SPDX-License-Identifier: PostgreSQL */
/*
 * A subscription is a member. Its filters and exclusions stand in the index,
 * each as a hook of the member; a member is in the result when a filter matched
 * and no exclusion did. Marks are the number of the look-up, so nothing needs
 * clearing.
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

#include "route_index.h"

#define CACHE_SLOTS 1024u /* a power of two; 1024 × about 100 bytes */
#define CACHE_KEY   64u   /* longer prefixes are looked up each time */

struct slot {
    uint64_t generation; /* 0: empty */
    uint8_t key[CACHE_KEY];
    uint8_t key_size;
    struct route_member **members;
    size_t n, cap;
};

struct route {
    struct route_index index;
    uint64_t generation, lookup;
    struct route_member **found; /* scratch */
    size_t n_found, found_cap;
    struct slot cache[CACHE_SLOTS];
};

/* ---- members ---- */

static void filters_unhook(struct route *r, struct route_member *m, struct filter *filters,
                           size_t n)
{
    for (size_t i = 0; i < n; i++)
        route_index_remove(&r->index, &filters[i], m);
}

static int filters_hook(struct route *r, struct route_member *m, const struct filter *filters,
                        size_t n, bool exclude)
{
    int e = 0;

    for (size_t i = 0; e == 0 && i < n; i++)
        e = route_index_add(&r->index, &filters[i], (struct route_hook){m, exclude});
    return e;
}

static bool filter_is_everything(const struct filter *f)
{
    return (f->kind == FILTER_PATTERN && bytes_equal(f->text, bytes_of_text(">"))) ||
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

static int collect(void *owner, const struct route_hooks *hooks)
{
    struct route *r = owner;

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

static int lookup_all(struct route *r, struct bytes prefix)
{
    size_t kept = 0;

    r->lookup++;
    r->n_found = 0;
    int e = route_index_walk(&r->index, prefix, collect, r);
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
    route_index_deinit(&r->index);
    for (size_t i = 0; i < CACHE_SLOTS; i++)
        free(r->cache[i].members);
    free(r->found);
    free(r);
    return NULL;
}
