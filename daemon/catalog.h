/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CATALOG_H
#define WALBUS_DAEMON_CATALOG_H

/*
 * What is kept beside the journal, in LMDB: which journal this is, whether the slot is proven, whether the last
 * stop was a clean one, and the durable subscriptions. Its file is made in its whole size at
 * once, so that an update never needs room on a full disk.
 *
 * Reading is for opening alone: the registry (durable.h) holds everything in memory. Writing is one transaction at a
 * time, prepared on the loop and committed (it waits for the disk) on a worker thread.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/position.h"
#include "codec/subject.h"

struct catalog;

/** The size of its file. */
#define CATALOG_SIZE (64u << 20)
/** Filters of all subscriptions together, as catalog_filters_size() counts them: at most half of the pages then hold
 *  them however badly they are filled, and there is always room for the new copies that an update makes. */
#define CATALOG_FILTERS_MAX (8u << 20)
/** Most subscriptions. */
#define CATALOG_NAMES_MAX 1000u
/** Filters that one commit should write, in the same measure; it may be more by one subscription's. */
#define CATALOG_COMMIT_MAX (1u << 20)
/** Longest name of a durable subscription, bytes; it is UTF-8 of visible characters. */
#define CATALOG_NAME_MAX 255
/** Longest reason of a mark, bytes: a sentence, which a thousand of are still one answer. */
#define CATALOG_REASON_MAX 120
#define CATALOG_WHY_SIZE 512

/** Which journal the catalog belongs to, and what was known when it was last written. */
struct catalog_head {
    uint64_t system_identifier; /* 0: no journal was begun yet */
    uint32_t era;
    bool proven;                /* a message came through this slot */
    bool clean;                 /* the last router stopped cleanly, and this was its last word */
};

/** That a subscription is suspended. */
struct catalog_mark {
    int64_t since;              /* µs since 1970; 0: there is no mark */
    struct position at;         /* what lies behind could not be read */
    struct bytes why;           /* one sentence in UTF-8, at most CATALOG_REASON_MAX bytes of it count */
};

/** One durable subscription as it is stored. Decoded: everything is borrowed. */
struct catalog_subscription {
    struct bytes name;
    const struct filter *filters, *exclusions;
    size_t n_filters, n_exclusions;
    struct position cursor;     /* everything up to it is processed, or does not match */
    bool resumes;               /* it lies inside a transaction of which the subscriber has had a part */
    struct position acked;      /* up to it by a subscriber's word; from there to the cursor nothing matched */
    struct position sent;       /* a subscriber may have seen everything up to it */
    bool has_gap;               /* what lies from the cursor up to gap_to was dropped, and is not yet told */
    struct position gap_to;
    uint64_t gap_messages, gap_bytes; /* in it: UINT64_MAX if not known */
    uint64_t seen_ms;           /* the journal's running time when it last had a subscriber */
    uint64_t made_ms;           /* … when it was made */
    bool has_maker;
    uint32_t maker;             /* the uid that has made it */
    struct catalog_mark mark;
};

/** Opens or makes FOLDER/catalog. 0, or a negative errno with `why`, one sentence: -EBUSY: it is open elsewhere; -EBADMSG: it is
 *  damaged, or no catalog; -ENOSPC: there is no room to make it. */
int catalog_open(const char *folder, struct catalog **ret, char why[CATALOG_WHY_SIZE]) MUST_CHECK;
/** Returns NULL. Takes NULL. */
struct catalog *catalog_close(struct catalog *c);

/** 0; -ENOENT: it is new; -EBADMSG: it is damaged. */
int catalog_read_head(struct catalog *c, struct catalog_head *ret) MUST_CHECK;
/** Calls `visit` for each subscription, by rising names. 0, a negative errno with `why` (-EBADMSG: an entry that cannot be
 *  read), or what `visit` returned when that was not 0 (`why` is then empty). */
int catalog_read_all(struct catalog *c, int (*visit)(void *owner, const struct catalog_subscription *s), void *owner,
                     char why[CATALOG_WHY_SIZE]) MUST_CHECK;

/** What the filters of a subscription count for. */
size_t catalog_filters_size(const struct filter *filters, size_t n_filters, const struct filter *exclusions,
                            size_t n_exclusions);

/* ---- writing: a list of changes, and their commit on any one thread at a time ---- */

struct catalog_changes;

/** NULL: no memory. */
struct catalog_changes *catalog_changes_new(void) MUST_CHECK;
/** Returns NULL. Takes NULL. */
struct catalog_changes *catalog_changes_free(struct catalog_changes *x);
/** They are made in their order. Each copies what it needs. 0 or -ENOMEM. */
int catalog_change_head(struct catalog_changes *x, const struct catalog_head *h) MUST_CHECK;
/** The whole subscription, new or not. */
int catalog_change_put(struct catalog_changes *x, const struct catalog_subscription *s) MUST_CHECK;
/** All but the filters, which stay what they are: it must be there. */
int catalog_change_state(struct catalog_changes *x, const struct catalog_subscription *s) MUST_CHECK;
/** It need not be there. */
int catalog_change_remove(struct catalog_changes *x, struct bytes name) MUST_CHECK;
/** All or nothing, synced. 0; -ENOSPC: it is full; -ENOENT: a change of state of what is not there; -EBADMSG: it is damaged;
 *  another negative errno. */
int catalog_commit(struct catalog *c, const struct catalog_changes *x) MUST_CHECK;

#endif
