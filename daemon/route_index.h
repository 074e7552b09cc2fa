/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_ROUTE_INDEX_H
#define WALBUS_DAEMON_ROUTE_INDEX_H

/*
 * Which filters match a prefix. See route_index.c for the structure. Loop thread only.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/subject.h"

struct route_member;

struct route_hook { /* a member's filter or exclusion that stands somewhere */
    struct route_member *member;
    bool exclude;
};

struct route_hooks {
    struct route_hook *at;
    size_t n, cap;
};

struct route_node {
    struct bytes token;           /* owned */
    struct route_node **children; /* by token, sorted */
    size_t n_children;
    struct route_node *star;
    struct route_hooks here; /* patterns that end here */
    struct route_hooks rest; /* patterns that go on with a last '>' */
};

struct route_literal {
    struct bytes text; /* owned */
    enum filter_kind kind;
    struct route_hooks hooks;
    struct route_literal *next; /* in the bucket */
};

struct route_length {
    size_t size;
    size_t users; /* starts-with literals of this size */
};

/** Zeroed: empty. */
struct route_index {
    struct route_node root;
    struct route_literal **buckets;
    size_t n_buckets, n_literals;
    struct route_length *lengths;
    size_t n_lengths;
};

void route_index_deinit(struct route_index *ix);

/** Puts a member's hook at a filter; all of one member are put before another's. The filter's text
 *  is copied. 0 or -ENOMEM, after which route_index_remove takes away what was begun. */
int route_index_add(struct route_index *ix, const struct filter *filter,
                    struct route_hook hook) MUST_CHECK;
/** Takes all hooks of the member away from a filter, if it has any there. */
void route_index_remove(struct route_index *ix, const struct filter *filter,
                        const struct route_member *member);

/** Called with the hooks, at least one, of a filter that matches; a negative errno ends the walk. It
 *  must not change the index. */
typedef int route_index_visit(void *owner, const struct route_hooks *hooks);

/** Visits the hooks of all filters that match, each filter once. 0, or what `visit` returned. */
int route_index_walk(const struct route_index *ix, struct bytes prefix, route_index_visit *visit,
                     void *owner) MUST_CHECK;

#endif
