/* SPDX-License-Identifier: PostgreSQL */
#include "account.h"

#include <assert.h>
#include <stdlib.h>

static bool is_over(const struct account *a)
{
    return account_lacks(a, 0);
}

void accounts_limit(struct accounts *all, size_t most)
{
    all->most = most;
    all->n_over = 0;
    for (const struct account *a = all->first; a; a = a->next)
        all->n_over += is_over(a);
}

void accounts_deinit(struct accounts *all)
{
    (void)all;
    assert(!all->first && all->n_over == 0);
}

struct account *account_of(struct accounts *all, uid_t uid)
{
    struct account *a = all->first;

    while (a && a->uid != uid)
        a = a->next;
    if (a)
        return account_ref(a);
    a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    *a = (struct account){.all = all, .next = all->first, .uid = uid, .refs = 1};
    if (a->next)
        a->next->prev = a;
    all->first = a;
    return a;
}

struct account *account_ref(struct account *a)
{
    if (a)
        a->refs++;
    return a;
}

struct account *account_unref(struct account *a)
{
    if (!a || --a->refs)
        return NULL;
    assert(a->bytes == 0 && !a->newest);
    if (a->prev)
        a->prev->next = a->next;
    else
        a->all->first = a->next;
    if (a->next)
        a->next->prev = a->prev;
    free(a);
    return NULL;
}

void account_charge(struct account *a, size_t bytes)
{
    if (!a)
        return;
    bool was_over = is_over(a);
    a->bytes += bytes;
    a->all->n_over += !was_over && is_over(a);
}

void account_give_back(struct account *a, size_t bytes)
{
    if (!a)
        return;
    bool was_over = is_over(a);
    assert(bytes <= a->bytes);
    a->bytes -= bytes;
    a->all->n_over -= was_over && !is_over(a);
}

struct account_hold *account_hold(struct account *a, const struct batch *batch)
{
    if (!a)
        return NULL;
    struct account_hold *h = a->newest;
    if (h && h->batch == batch) {
        h->n++;
        return h;
    }
    h = malloc(sizeof *h);
    if (!h)
        return NULL;
    *h = (struct account_hold){.account = account_ref(a), .batch = batch, .n = 1};
    a->newest = h;
    account_charge(a, batch_charge(batch));
    return h;
}

void account_let_go(struct account_hold *h)
{
    if (!h || --h->n)
        return;
    struct account *a = h->account;
    if (a->newest == h)
        a->newest = NULL;
    account_give_back(a, batch_charge(h->batch));
    free(h);
    (void)account_unref(a);
}
