/* SPDX-License-Identifier: PostgreSQL */
#include "check_item.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void check_notes_deinit(struct check_notes *notes)
{
    for (size_t i = 0; i < notes->n; i++)
        free(notes->notes[i].reason);
    free(notes->notes);
    *notes = (struct check_notes){0};
}

struct check_item *check_item_free(struct check_item *item)
{
    (void)batch_unref(item->batch);
    (void)check_rules_unref(item->rules);
    free(item->policies);
    check_notes_deinit(&item->notes);
    free(item);
    return NULL;
}

int check_policies(const struct check_rules *rules, const struct batch *batch, uint8_t **ret_policies)
{
    uint8_t *policies = NULL;
    struct bytes before = {NULL, 0};
    enum policy policy = POLICY_IGNORE;

    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *entry = &batch->entries[i];

        if (entry->type != FRAME_MESSAGE)
            continue;
        if (!before.data || before.size != entry->prefix.size ||
            memcmp(before.data, entry->prefix.data, before.size) != 0)
            policy = policies_find(&rules->policies, entry->prefix);
        before = entry->prefix;
        if (policy == POLICY_IGNORE)
            continue;
        if (!policies)
            policies = calloc(batch->n_entries, 1);
        if (!policies)
            return -ENOMEM;
        policies[i] = (uint8_t)policy;
    }
    *ret_policies = policies;
    return policies != NULL;
}

bool check_item_is_checked(const struct check_item *item)
{
    return !item->rules || (item->cut == item->batch->n_entries && !item->jobs);
}

static int by_entry(const void *a, const void *b)
{
    const struct check_note *x = a, *y = b;

    return (x->withheld.entry > y->withheld.entry) - (x->withheld.entry < y->withheld.entry);
}

static void sort_notes(struct check_item *item)
{
    if (item->sorted)
        return;
    if (item->notes.n > 1)
        qsort(item->notes.notes, item->notes.n, sizeof *item->notes.notes, by_entry);
    item->n_required = 0;
    for (size_t i = 0; i < item->notes.n; i++)
        item->n_required += item->notes.notes[i].required;
    item->sorted = true;
}

bool check_item_must_store(struct check_item *item)
{
    sort_notes(item);
    return !item->stored && (item->n_required || item->came_before);
}

struct batch *check_item_result(struct check_item *item)
{
    struct batch_withheld *withheld;
    size_t n = 0;

    if (!item->n_required)
        return batch_ref(item->batch);
    withheld = calloc(item->n_required, sizeof *withheld);
    if (!withheld)
        return NULL;
    for (size_t i = 0; i < item->notes.n; i++)
        if (item->notes.notes[i].required)
            withheld[n++] = item->notes.notes[i].withheld;
    struct batch *batch = batch_withhold(item->batch, withheld, n);
    free(withheld);
    return batch;
}

int check_item_anew(struct check_item *item, struct check_rules *rules)
{
    uint8_t *policies = NULL;
    int r = check_policies(rules, item->batch, &policies);

    if (r == 0)
        policies = calloc(item->batch->n_entries, 1);
    if (r < 0 || !policies)
        return -ENOMEM;
    free(item->policies);
    item->policies = policies;
    (void)check_rules_unref(item->rules);
    item->rules = check_rules_ref(rules);
    check_notes_deinit(&item->notes);
    item->valid = 0;
    item->cut = 0;
    item->sorted = false;
    return 0;
}
