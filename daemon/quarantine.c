/* SPDX-License-Identifier: PostgreSQL */
#include "quarantine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "quarantine_private.h"

/* ---- the index ---- */

static struct quarantine_entry *find(const struct quarantine *q, uint64_t id)
{
    size_t low = 0, high = q->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (q->entries[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < q->n ? &q->entries[low] : NULL;
}

bool quarantine_index_add(struct quarantine *q, const struct quarantine_entry *entry)
{
    if (q->n == q->cap) {
        size_t cap = q->cap ? 2 * q->cap : 64;
        struct quarantine_entry *entries = realloc(q->entries, cap * sizeof *entries);

        if (!entries)
            return false;
        q->entries = entries;
        q->cap = cap;
    }
    q->entries[q->n++] = *entry;
    q->live += entry->size;
    return true;
}

void quarantine_index_remove(struct quarantine *q, uint64_t first, uint64_t last)
{
    size_t kept = 0;

    for (size_t i = 0; i < q->n; i++) {
        if (q->entries[i].id >= first && q->entries[i].id <= last)
            q->live -= q->entries[i].size;
        else
            q->entries[kept++] = q->entries[i];
    }
    q->n = kept;
}

/* The newest entry has the highest position of its journal, since messages come in order; what came again is searched
 * for. */
static bool is_same_journal(const struct quarantine_entry *e, uint64_t system_identifier, uint32_t era)
{
    return e->system_identifier == system_identifier && e->era == era;
}

void quarantine_tell(struct quarantine *q)
{
    const struct quarantine_entry *newest = NULL;
    uint64_t file_bytes = quarantine_file_bytes(q);

    for (size_t i = q->n; i-- > 0;)
        if (!newest || (is_same_journal(newest, q->entries[i].system_identifier, q->entries[i].era) &&
                        position_compare(q->entries[i].position, newest->position) > 0))
            newest = &q->entries[i];
    (void)pthread_mutex_lock(&q->told_lock);
    q->told = (struct quarantine_count){.entries = q->n, .bytes = q->live, .limit = q->limit,
                                        .newest = q->n ? q->entries[q->n - 1].id : 0, .file_bytes = file_bytes};
    q->told_newest = newest ? *newest : (struct quarantine_entry){0};
    (void)pthread_mutex_unlock(&q->told_lock);
}

struct quarantine_count quarantine_count(const struct quarantine *q)
{
    struct quarantine *shared = (struct quarantine *)(uintptr_t)q; /* a lock is no state */

    (void)pthread_mutex_lock(&shared->told_lock);
    struct quarantine_count count = q->told;
    (void)pthread_mutex_unlock(&shared->told_lock);
    return count;
}

bool quarantine_is_behind(const struct quarantine *q, uint64_t system_identifier, uint32_t era, struct position position)
{
    struct quarantine *shared = (struct quarantine *)(uintptr_t)q;

    (void)pthread_mutex_lock(&shared->told_lock);
    struct quarantine_entry newest = q->told_newest;
    (void)pthread_mutex_unlock(&shared->told_lock);
    return !newest.id || !is_same_journal(&newest, system_identifier, era) ||
           position_compare(position, newest.position) > 0;
}

/* ---- putting ---- */

/* The id under which it stands there already; 0: it does not; a negative errno. */
static int64_t known(struct quarantine *q, const struct quarantine_message *m, uint32_t *ret_status)
{
    if (quarantine_is_behind(q, m->system_identifier, m->era, m->position))
        return 0;
    for (size_t i = q->n; i-- > 0;) {
        const struct quarantine_entry *e = &q->entries[i];
        struct quarantine_message there;

        if (!is_same_journal(e, m->system_identifier, m->era) || position_compare(e->position, m->position) != 0)
            continue;
        int r = quarantine_file_fixed(q, e, &there);
        if (r < 0)
            return r;
        if (memcmp(there.hash, m->hash, sizeof m->hash) != 0)
            continue;
        *ret_status = there.status;
        return (int64_t)e->id;
    }
    return 0;
}

static uint64_t size_of(const struct quarantine_message *m)
{
    return QUARANTINE_RECORD_SIZE + (uint64_t)QUARANTINE_PUT_FIXED + m->prefix.size + m->kid.size + m->reason.size +
           m->content.size;
}

static int append(struct quarantine *q, struct quarantine_message *m, uint64_t *offset)
{
    uint8_t fixed[QUARANTINE_PUT_FIXED];
    const struct bytes body[] = {{fixed, sizeof fixed}, m->prefix, m->kid, m->reason, m->content};

    quarantine_put_encode(m, fixed);
    return quarantine_file_write(q, QUARANTINE_PUT, body, ARRAY_SIZE(body), offset);
}

/* Those without an id. */
static int put_new(struct quarantine *q, struct quarantine_message *messages, size_t n, uint64_t size)
{
    size_t before = q->n;
    uint64_t next = q->next_id, offset;
    int r = quarantine_file_ready(q, size);

    offset = q->end;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct quarantine_message *m = &messages[i];
        const struct quarantine_entry entry = {
            .id = next,
            .offset = offset,
            .size = size_of(m),
            .position = m->position,
            .system_identifier = m->system_identifier,
            .era = m->era,
        };

        if (m->id)
            continue;
        m->id = next++;
        r = quarantine_index_add(q, &entry) ? append(q, m, &offset) : -ENOMEM;
    }
    if (r == 0)
        r = quarantine_file_sync(q, offset);
    if (r < 0) {
        if (q->n > before)
            quarantine_index_remove(q, q->next_id, UINT64_MAX);
        quarantine_file_undo(q);
        return r;
    }
    q->next_id = next;
    return 0;
}

int quarantine_put(struct quarantine *q, struct quarantine_message *messages, size_t n, size_t *ret_new)
{
    uint64_t size = 0;
    size_t n_new = 0;
    int r = 0;

    (void)pthread_mutex_lock(&q->lock);
    for (size_t i = 0; i < n && r == 0; i++) {
        uint32_t status;
        int64_t id = known(q, &messages[i], &status);

        r = id < 0 ? (int)id : 0;
        messages[i].id = id > 0 ? (uint64_t)id : 0;
        if (id == 0) {
            size += size_of(&messages[i]);
            n_new++;
        }
    }
    if (r == 0 && n_new && (q->live + size > q->limit || q->n + n_new > QUARANTINE_ENTRIES_MAX))
        r = -EDQUOT;
    if (r == 0 && n_new)
        r = put_new(q, messages, n, size);
    quarantine_tell(q);
    (void)pthread_mutex_unlock(&q->lock);
    if (r == 0)
        *ret_new = n_new;
    return r;
}

/* ---- removing ---- */

/* Under the lock: of the entries from first to last. */
static int remove_some(struct quarantine *q, uint64_t first, uint64_t last, enum quarantine_gone why, uint64_t *ret_n)
{
    uint8_t body[QUARANTINE_GONE_BODY];
    const struct bytes piece = {body, sizeof body};
    struct quarantine_entry *e = find(q, first);
    size_t left = e ? q->n - (size_t)(e - q->entries) : 0;
    uint64_t n = 0, offset;

    while (n < left && e[n].id <= last)
        n++;
    *ret_n = n;
    if (!n)
        return 0;
    if (n == q->n) { /* nothing is left that the file is kept for */
        struct quarantine_entry *entries = q->entries;
        uint64_t live = q->live;

        q->n = 0;
        q->live = 0;
        int r = quarantine_file_renew(q);
        if (r < 0 && q->end != QUARANTINE_HEADER_SIZE)
            r = quarantine_file_empty(q); /* the disk is full, say */
        if (r == 0 || q->end == QUARANTINE_HEADER_SIZE)
            return r; /* if its folder cannot be synced, that file is in its place all the same */
        q->entries = entries;
        q->n = (size_t)n;
        q->live = live;
    }
    int r = quarantine_file_ready(q, n * (QUARANTINE_RECORD_SIZE + QUARANTINE_GONE_BODY));
    offset = q->end;
    for (uint64_t i = 0; i < n && r == 0; i++) {
        quarantine_gone_encode(e[i].id, why, body);
        r = quarantine_file_write(q, QUARANTINE_GONE, &piece, 1, &offset);
    }
    if (r == 0)
        r = quarantine_file_sync(q, offset);
    if (r < 0) {
        quarantine_file_undo(q);
        return r;
    }
    quarantine_index_remove(q, first, last);
    if (q->end - QUARANTINE_HEADER_SIZE - q->live > q->limit / 4)
        (void)!quarantine_file_renew(q); /* it is tried again with the next one */
    return 0;
}

int quarantine_remove(struct quarantine *q, uint64_t first, uint64_t last, enum quarantine_gone why, uint64_t *ret_n)
{
    uint64_t n;

    (void)pthread_mutex_lock(&q->lock);
    int r = remove_some(q, first, last, why, &n);
    quarantine_tell(q);
    (void)pthread_mutex_unlock(&q->lock);
    if (r == 0)
        *ret_n = n;
    return r;
}

/* ---- looking ---- */

uint64_t quarantine_next(struct quarantine *q, uint64_t after)
{
    (void)pthread_mutex_lock(&q->lock);
    const struct quarantine_entry *e = after == UINT64_MAX ? NULL : find(q, after + 1);
    uint64_t id = e ? e->id : 0;
    (void)pthread_mutex_unlock(&q->lock);
    return id;
}

int quarantine_find(struct quarantine *q, const struct quarantine_message *m, uint32_t *ret_status)
{
    (void)pthread_mutex_lock(&q->lock);
    int64_t id = known(q, m, ret_status);
    (void)pthread_mutex_unlock(&q->lock);
    return id < 0 ? (int)id : id > 0;
}

bool quarantine_may_have(struct quarantine *q, uint64_t system_identifier, uint32_t era, struct position position)
{
    bool has = false;

    (void)pthread_mutex_lock(&q->lock);
    for (size_t i = q->n; i-- > 0 && !has;)
        has = is_same_journal(&q->entries[i], system_identifier, era) &&
              position_compare(q->entries[i].position, position) == 0;
    (void)pthread_mutex_unlock(&q->lock);
    return has;
}

uint64_t quarantine_at(struct quarantine *q, struct position position)
{
    uint64_t id = 0;

    (void)pthread_mutex_lock(&q->lock);
    for (size_t i = q->n; i-- > 0 && !id;)
        if (position_compare(q->entries[i].position, position) == 0)
            id = q->entries[i].id;
    (void)pthread_mutex_unlock(&q->lock);
    return id;
}

int quarantine_read(struct quarantine *q, uint64_t id, uint64_t from, size_t max, bool all_of_prefix, struct buf *storage,
                    struct quarantine_message *ret, uint64_t *ret_size)
{
    (void)pthread_mutex_lock(&q->lock);
    const struct quarantine_entry *e = find(q, id);
    int r = !id || !e || e->id != id ? -ENOENT : 0;

    if (r == 0 && from == 0 && max)
        r = quarantine_file_check(q, e);
    if (r == 0)
        r = quarantine_file_read(q, e, from, max, all_of_prefix, storage, ret, ret_size);
    (void)pthread_mutex_unlock(&q->lock);
    return r;
}

/* ---- life ---- */

void quarantine_set_limit(struct quarantine *q, uint64_t limit)
{
    atomic_store_explicit(&q->limit, limit, memory_order_relaxed);
    (void)pthread_mutex_lock(&q->told_lock);
    q->told.limit = limit;
    (void)pthread_mutex_unlock(&q->told_lock);
}

struct quarantine *quarantine_close(struct quarantine *q)
{
    if (!q)
        return NULL;
    q->fd = fd_close(q->fd);
    free(q->entries);
    free(q->path);
    free(q->new_path);
    (void)pthread_mutex_destroy(&q->lock);
    (void)pthread_mutex_destroy(&q->told_lock);
    free(q);
    return NULL;
}
