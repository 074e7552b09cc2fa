/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CHECK_ITEM_H
#define WALBUS_DAEMON_CHECK_ITEM_H

/* A batch in the queue of checks.c, and what was found of it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "batch.h"
#include "check_rules.h"

/** A message that is not valid. */
struct check_note {
    struct batch_withheld withheld; /* the hash where policy requires a signature */
    bool required;
    struct bytes kid;               /* borrowed from the content */
    char *reason;                   /* owned; NULL: there was no memory for it */
};

struct check_notes {
    struct check_note *notes;
    size_t n, cap;
};

void check_notes_deinit(struct check_notes *notes);

/** A batch in the queue. */
struct check_item {
    struct check_item *next;
    struct batch *batch;       /* one reference; nobody else has one */
    struct check_rules *rules; /* NULL: there is nothing to check */
    uint8_t *policies;         /* enum policy of each entry, while there are rules */
    size_t charge;
    size_t cut;                /* entries before it are given to workers */
    unsigned jobs;             /* at work on it */
    bool dropped;              /* it is in no queue any more */
    bool sorted, stored;       /* its notes are by rising entries; what is required of them is in quarantine */
    bool came_before;          /* something of it may be in quarantine already */
    struct check_notes notes;
    size_t n_required;         /* of them */
    uint64_t valid;            /* messages without a note that were looked at */
};

/** What is asked of a batch. 1 with *ret_policies, malloc'ed, an enum policy for each entry; 0: nothing is; -ENOMEM. */
int check_policies(const struct check_rules *rules, const struct batch *batch, uint8_t **ret_policies) MUST_CHECK;

/** Returns NULL. No worker may have it. */
struct check_item *check_item_free(struct check_item *item);
/** Nothing of it is left to be verified. */
bool check_item_is_checked(const struct check_item *item);
/** A checked one with rules: it must pass through the quarantine. Its notes are sorted with it. */
bool check_item_must_store(struct check_item *item);
/** What goes on of a checked batch: one reference; NULL: no memory. */
struct batch *check_item_result(struct check_item *item) MUST_CHECK;
/** It is to be checked from the beginning, by other rules. 0 or -ENOMEM. */
int check_item_anew(struct check_item *item, struct check_rules *rules) MUST_CHECK;

#endif
