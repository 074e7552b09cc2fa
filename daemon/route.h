/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_ROUTE_H
#define WALBUS_DAEMON_ROUTE_H

/*
 * Which subscriptions get a prefix. See route.c for the structure. Loop thread only.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/subject.h"

struct route;

/** Embedded in whatever subscribes; the fields are the route's own. */
struct route_member {
    uint64_t matched, excluded; /* number of the look-up in which a filter, an exclusion matched */
    struct filter *filters, *exclusions; /* owned copies */
    size_t n_filters, n_exclusions;
    bool everything; /* one filter matches all and nothing is excluded */
    bool absent;     /* its owner's, set behind route_add: a durable name without a session (durable.h) */
};

struct route_set {
    struct route_member **members;
    size_t n;
};

/** NULL without memory. */
struct route *route_new(void) MUST_CHECK;
struct route *route_free(struct route *r);

/** Adds a subscription; its filters are copied. 0 or -ENOMEM (then nothing was added). */
int route_add(struct route *r, struct route_member *m, const struct filter *filters,
              size_t n_filters, const struct filter *exclusions, size_t n_exclusions) MUST_CHECK;
/** Takes it out again and frees the copies. */
void route_remove(struct route *r, struct route_member *m);

/**
 * The members that get `prefix`, each once, in no order. Valid until the next
 * call. 0 or -ENOMEM.
 */
int route_lookup(struct route *r, struct bytes prefix, struct route_set *ret) MUST_CHECK;

#endif
