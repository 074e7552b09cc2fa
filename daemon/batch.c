/* SPDX-License-Identifier: PostgreSQL */
#include "batch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>
#include <sodium.h>

#define ENTRIES_START 256u

static void batch_destroy(struct batch *b)
{
    free(b->head);
    free(b->entries);
    free(b);
}

void batch_pool_deinit(struct batch_pool *pool)
{
    while (pool->n_free)
        batch_destroy(pool->free[--pool->n_free]);
}

static struct batch *batch_alloc(void)
{
    struct batch *b = calloc(1, sizeof *b);

    if (!b)
        return NULL;
    b->head_cap = BATCH_SIZE + 8192; /* so that the last small frame seldom makes it grow */
    b->head = malloc(b->head_cap);
    b->entries_cap = ENTRIES_START;
    b->entries = malloc(b->entries_cap * sizeof *b->entries);
    if (!b->head || !b->entries) {
        batch_destroy(b);
        return NULL;
    }
    return b;
}

struct batch *batch_new(struct batch_pool *pool)
{
    struct batch *b = pool->n_free ? pool->free[--pool->n_free] : batch_alloc();

    if (!b)
        return NULL;
    b->refs = 1;
    b->pool = pool;
    pool->live++;
    return b;
}

struct batch *batch_wrap(struct batch_pool *pool, uint8_t *data, size_t size)
{
    struct batch *b = malloc(sizeof *b);

    if (!b) {
        free(data);
        return NULL;
    }
    *b = (struct batch){.refs = 1, .pool = pool, .head = data, .head_size = size, .head_cap = size};
    pool->live++;
    batch_seal(b);
    return b;
}

struct batch *batch_ref(struct batch *b)
{
    b->refs++;
    return b;
}

struct batch *batch_unref(struct batch *b)
{
    if (!b || --b->refs)
        return NULL;

    struct batch_pool *pool = b->pool;
    pool->live--;
    if (b->handed)
        pool->live_bytes -= batch_charge(b);
    if (b->tail_owner)
        PQfreemem(b->tail_owner);
    /* one that grew for a long prefix or very many tiny messages, or was settled, is not worth keeping */
    if (pool->n_free == ARRAY_SIZE(pool->free) || b->head_cap > 2 * BATCH_SIZE ||
        b->head_cap < BATCH_SIZE || !b->entries || b->entries_cap > 16 * ENTRIES_START) {
        batch_destroy(b);
        return NULL;
    }
    *b = (struct batch){.head = b->head,
                        .head_cap = b->head_cap,
                        .entries = b->entries,
                        .entries_cap = b->entries_cap};
    pool->free[pool->n_free++] = b;
    return NULL;
}

void batch_seal(struct batch *b)
{
    b->handed = true;
    b->pool->live_bytes += batch_charge(b);
}

/* Less than this is not worth a move of the bytes. */
#define SETTLE_MIN 4096u

static void give_back_head(struct batch *b)
{
    if (b->head_cap - b->head_size < SETTLE_MIN)
        return;
    uint8_t *head = realloc(b->head, b->head_size ? b->head_size : 1);
    if (!head)
        return;
    for (size_t i = 0; i < b->n_entries; i++) /* prefixes point into it */
        if (b->entries[i].prefix.data)
            b->entries[i].prefix.data = head + b->entries[i].offset + FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED;
    b->head = head;
    b->head_cap = b->head_size;
}

void batch_settle(struct batch *b)
{
    free(b->entries);
    b->entries = NULL;
    b->n_entries = 0;
    b->entries_cap = 0;
    give_back_head(b);
}

void batch_trim(struct batch *b)
{
    give_back_head(b);
    if ((b->entries_cap - b->n_entries) * sizeof *b->entries < SETTLE_MIN)
        return;
    struct batch_entry *entries = realloc(b->entries, MAX(b->n_entries, (size_t)1) * sizeof *entries);
    if (!entries)
        return;
    b->entries = entries;
    b->entries_cap = MAX(b->n_entries, (size_t)1);
}

/* Makes room for one more entry and `size` more head bytes; where the bytes go, or NULL. */
static uint8_t *batch_room(struct batch *b, size_t size)
{
    if (b->n_entries == b->entries_cap) {
        size_t cap = b->entries_cap * 2; /* never 0 before the batch is settled */
        struct batch_entry *entries = realloc(b->entries, cap * sizeof *entries);

        if (!entries)
            return NULL;
        b->entries = entries;
        b->entries_cap = cap;
    }
    if (b->head_cap - b->head_size < size) {
        size_t cap = b->head_size + size;
        uint8_t *head = realloc(b->head, cap);

        if (!head)
            return NULL;
        for (size_t i = 0; i < b->n_entries; i++) /* prefixes point into the head */
            if (b->entries[i].prefix.data)
                b->entries[i].prefix.data = head + (b->entries[i].prefix.data - b->head);
        b->head = head;
        b->head_cap = cap;
    }
    return b->head + b->head_size;
}

static void batch_note(struct batch *b, uint8_t type, size_t size, struct position position,
                       struct bytes prefix)
{
    b->entries[b->n_entries++] = (struct batch_entry){
        .type = type,
        .offset = b->head_size,
        .size = size,
        .prefix = prefix,
        .position = position,
    };
    if (b->n_entries == 1)
        b->first = position;
    b->last = position;
    b->ends_inside = type == FRAME_BEGIN ||
                     ((type == FRAME_MESSAGE || type == FRAME_WITHHELD) &&
                      position.index != POSITION_INDEX_NONTRANSACTIONAL);
}

int batch_add_begin(struct batch *b, const struct frame_begin *f)
{
    uint8_t *to = batch_room(b, BATCH_BEGIN_SIZE);

    if (!to)
        return -ENOMEM;
    size_t size = frame_begin_encode(to, f);
    b->has_begin = true;
    b->begin_offset = b->head_size;
    batch_note(b, FRAME_BEGIN, size, (struct position){f->timeline, f->commit_lsn, 0},
               (struct bytes){NULL, 0});
    b->head_size += size;
    return 0;
}

int batch_add_commit(struct batch *b, const struct frame_commit *f)
{
    uint8_t *to = batch_room(b, FRAME_HEADER_SIZE + FRAME_COMMIT_BODY);

    if (!to)
        return -ENOMEM;
    size_t size = frame_commit_encode(to, f);
    batch_note(b, FRAME_COMMIT, size,
               (struct position){f->begin.timeline, f->begin.commit_lsn, POSITION_INDEX_END},
               (struct bytes){NULL, 0});
    b->head_size += size;
    return 0;
}

int batch_add_gap(struct batch *b, const struct frame_gap *f)
{
    uint8_t *to = batch_room(b, FRAME_HEADER_SIZE + FRAME_GAP_FIXED + f->reason.size);

    if (!to)
        return -ENOMEM;
    size_t size = frame_gap_encode(to, f);
    batch_note(b, FRAME_GAP, size, f->to, (struct bytes){NULL, 0});
    b->head_size += size;
    return 0;
}

int batch_add_message(struct batch *b, const struct frame_message *f, void **owner)
{
    bool keep = f->content.size > BATCH_COPY_MAX;
    size_t head = FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + f->prefix.size;
    uint8_t *to = batch_room(b, head + (keep ? 0 : f->content.size));

    if (!to)
        return -ENOMEM;
    (void)frame_message_encode_head(to, f);
    if (!keep && f->content.size)
        memcpy(to + head, f->content.data, f->content.size);
    batch_note(b, FRAME_MESSAGE, head + f->content.size, f->position,
               (struct bytes){to + FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED, f->prefix.size});
    b->head_size += head + (keep ? 0 : f->content.size);
    b->messages++;
    b->content_bytes += f->content.size;
    b->received_time = f->received_time;
    if (keep) {
        b->tail = f->content;
        b->tail_owner = *owner;
        *owner = NULL;
    }
    return 0;
}

unsigned batch_pieces(const struct batch *b, size_t offset, size_t size, struct bytes out[2])
{
    unsigned n = 0;

    if (offset < b->head_size && size) {
        size_t part = MIN(size, b->head_size - offset);
        out[n++] = (struct bytes){b->head + offset, part};
        offset += part;
        size -= part;
    }
    if (size)
        out[n++] = (struct bytes){b->tail.data + (offset - b->head_size), size};
    return n;
}

/* ---- what is withheld ---- */

struct frame_message batch_message_of(const struct batch *b, const struct batch_entry *entry)
{
    const uint8_t *frame = b->head + entry->offset;
    const size_t head = FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + entry->prefix.size;
    struct bytes pieces[2] = {{NULL, 0}, {NULL, 0}};

    /* the content is wholly in the head, or wholly the tail */
    (void)batch_pieces(b, entry->offset + head, entry->size - head, pieces);
    return (struct frame_message){
        .position = entry->position,
        .lsn = bytes_get_u64(frame + FRAME_HEADER_SIZE + 16),
        .xid = bytes_get_u32(frame + FRAME_HEADER_SIZE + 24),
        .commit_time = (int64_t)bytes_get_u64(frame + FRAME_HEADER_SIZE + 28),
        .received_time = (int64_t)bytes_get_u64(frame + FRAME_HEADER_SIZE + 36),
        .prefix = entry->prefix,
        .content = pieces[0],
        .flags = frame[5],
    };
}

void batch_hash(const struct frame_message *f, uint8_t hash[FRAME_HASH_SIZE])
{
    crypto_hash_sha256_state state;
    uint8_t size[4];

    bytes_put_u32(size, (uint32_t)f->prefix.size);
    (void)crypto_hash_sha256_init(&state);
    (void)crypto_hash_sha256_update(&state, size, sizeof size);
    (void)crypto_hash_sha256_update(&state, f->prefix.data, f->prefix.size);
    (void)crypto_hash_sha256_update(&state, f->content.data, f->content.size);
    (void)crypto_hash_sha256_final(&state, hash);
}

static int add_withheld(struct batch *b, const struct batch *from, const struct batch_withheld *w)
{
    struct frame_withheld f = {.message = batch_message_of(from, &from->entries[w->entry]), .status = w->status};
    uint8_t *to = batch_room(b, FRAME_HEADER_SIZE + FRAME_WITHHELD_BODY);

    if (!to)
        return -ENOMEM;
    memcpy(f.hash, w->hash, sizeof f.hash);
    size_t size = frame_withheld_encode(to, &f);
    batch_note(b, FRAME_WITHHELD, size, f.message.position, (struct bytes){NULL, 0});
    b->head_size += size;
    b->withheld++;
    return 0;
}

/* An entry as it is in `from`. */
static int add_as_it_is(struct batch *b, struct batch *from, const struct batch_entry *entry)
{
    struct bytes pieces[2] = {{NULL, 0}, {NULL, 0}};

    (void)batch_pieces(from, entry->offset, entry->size, pieces);
    uint8_t *to = batch_room(b, pieces[0].size);
    if (!to)
        return -ENOMEM;
    memcpy(to, pieces[0].data, pieces[0].size);
    if (entry->type == FRAME_BEGIN) {
        b->has_begin = true;
        b->begin_offset = b->head_size;
    }
    batch_note(b, entry->type, entry->size, entry->position,
               entry->prefix.data ? (struct bytes){to + FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED, entry->prefix.size}
                                  : (struct bytes){NULL, 0});
    b->head_size += pieces[0].size;
    if (entry->type == FRAME_MESSAGE) {
        struct frame_message f = batch_message_of(from, entry);

        b->messages++;
        b->content_bytes += f.content.size;
        b->received_time = f.received_time;
    }
    if (pieces[1].size) {
        b->tail = from->tail;
        b->tail_owner = from->tail_owner;
    }
    return 0;
}

struct batch *batch_withhold(struct batch *b, const struct batch_withheld *withheld, size_t n)
{
    struct batch *to = batch_new(b->pool);
    int r = to ? 0 : -ENOMEM;

    if (to) {
        to->starts_inside = b->starts_inside;
        memcpy(to->begin, b->begin, sizeof to->begin);
        to->mark = b->mark;
        to->mark_position = b->mark_position;
        to->connection = b->connection;
        to->expected_from = b->expected_from;
    }
    for (size_t i = 0; i < b->n_entries && r == 0; i++) {
        if (n && withheld->entry == i) {
            r = add_withheld(to, b, withheld++);
            n--;
        } else {
            r = add_as_it_is(to, b, &b->entries[i]);
        }
    }
    if (r < 0) {
        if (to)
            to->tail_owner = NULL;
        (void)batch_unref(to);
        return NULL;
    }
    batch_seal(to);
    if (to->tail_owner) {
        b->pool->live_bytes -= b->tail.size; /* what `b` was charged with it */
        b->tail = (struct bytes){NULL, 0};
        b->tail_owner = NULL;
    }
    return to;
}
