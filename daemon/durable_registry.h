/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_DURABLE_REGISTRY_H
#define WALBUS_DAEMON_DURABLE_REGISTRY_H

/* The inside of the registry: what durable.c, durable_store.c and durable_lag.c share. */

#include "durable.h"

struct durable_commit;
struct durable_lags;

struct durables {
    uv_loop_t *loop;
    struct journal *journal;
    struct route *route;
    const struct durables_ops *ops;
    void *owner;
    struct logger *log;
    struct catalog *catalog;
    uint64_t expire_ms;

    struct durable **all; /* by rising names */
    size_t n, cap;
    size_t n_removed;        /* so many more were, and are still in the catalog */
    size_t cost;             /* of all their filters, those of the removed ones too */
    uint64_t filters_made;   /* so many, of names that are gone too */
    size_t floating;
    size_t matched;          /* of these, since the last durables_routed() */
    struct position floated; /* where the floating ones are; also inside a transaction of which they have had no part */
    bool bound;              /* nothing was sent that `sent` does not tell, … */
    bool known;              /* … and that is so for the next router too */

    struct catalog_head head; /* .clean: whether the stop before was */
    bool has_head;
    bool head_dirty, head_in_commit;
    struct durable *removed, *removing; /* to be removed from the catalog; in the commit */
    bool changed, urgent;     /* something is to be written; somebody waits for it */
    bool failed;              /* the last commit did */
    struct durable_commit *commit; /* under way; NULL: none */
    uint64_t started, done;   /* commits: the last that began, the last before whose begin all changes are on disk */
    uint64_t started_at, ended_at; /* uv_now() */
    uv_timer_t timer;         /* the next one is due */
    struct durable_lags *lags; /* a measurement under way; NULL: none */
    bool measure_again;
    bool timer_closed, closed;
};

/** Leaves the route; the cursor is where it floated. */
void durable_sink(struct durables *ds, struct durable *d);
/** Up to date, it joins the route, if there is memory; else it is pending. */
void durable_rise(struct durables *ds, struct durable *d);
/** What retention has already dropped of what it needs is its gap. */
void durable_note_hole(const struct durables *ds, struct durable *d);

/** The catalog is to be written: of `d`, with `filters` them too, or NULL: of the rest. `urgent`: somebody waits. */
void durables_touch(struct durables *ds, struct durable *d, bool filters, bool urgent);
/** Frees it when nothing is under way any more. */
void durables_free_if_idle(struct durables *ds);

/** Adds one with these filters, which it takes over, where it belongs by its name. NULL: no memory; then nothing is taken over. */
struct durable *durables_insert(struct durables *ds, struct bytes name, struct durable_filters *filters) MUST_CHECK;
struct durable_filters *durable_filters_new(const struct filter *filters, size_t n_filters, const struct filter *exclusions,
                                            size_t n_exclusions) MUST_CHECK;
/** Returns NULL. */
struct durable_filters *durable_filters_unref(struct durable_filters *f);
/** Frees one that is in no list. */
void durable_free(struct durable *d);

#endif
