/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_BATCH_H
#define WALBUS_DAEMON_BATCH_H

/*
 * A batch is an immutable, counted run of ready-made frames (BEGIN, MESSAGE,
 * COMMIT), encoded once and then only pointed at: by the queue of every session
 * that gets a part of it. Its bytes are one stream,
 *
 *     head (our own buffer)  |  tail (content of the last message, not copied)
 *
 * where the tail exists only when the last message's content is over
 * BATCH_COPY_MAX: then it stays in the buffer that libpq handed out, which the
 * batch owns. Offsets count over both. A transaction may span many batches;
 * each one that starts inside a transaction carries that transaction's BEGIN
 * frame, for sessions of which nothing matched so far.
 *
 * A batch may hold no frames at all and only move the mark. One that was read from
 * the journal for a session holds its bytes and nothing else. Loop thread only.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/frame.h"
#include "codec/position.h"

/** Head size at which a batch is handed on; one frame may take it beyond. */
#define BATCH_SIZE 65536u
/** Content above this is not copied: it stays in libpq's buffer, which the batch then owns. */
#define BATCH_COPY_MAX 65536u
#define BATCH_BEGIN_SIZE (FRAME_HEADER_SIZE + FRAME_BEGIN_BODY)

struct batch_pool;

struct batch_entry {
    uint8_t type;         /* FRAME_BEGIN, FRAME_MESSAGE, FRAME_COMMIT, FRAME_GAP, FRAME_WITHHELD */
    size_t offset, size;  /* of the whole frame */
    struct bytes prefix;  /* MESSAGE: inside the head */
    struct position position; /* BEGIN: index 0; GAP: its end */
};

struct batch {
    unsigned refs;
    bool handed; /* counted in the pool; nothing is added any more */
    bool again;  /* what the server sent again: for the journal, which compares it, and for nobody else */
    struct batch_pool *pool;

    uint8_t *head;
    size_t head_size, head_cap;
    struct bytes tail;
    void *tail_owner; /* freed by PQfreemem */

    struct batch_entry *entries; /* for routing; gone when settled */
    size_t n_entries, entries_cap;

    bool starts_inside; /* a transaction was open, its BEGIN already handed on */
    uint8_t begin[BATCH_BEGIN_SIZE];
    struct position first, last; /* of the entries; last of a COMMIT has POSITION_INDEX_END */
    bool ends_inside;            /* a begun transaction is open behind the last entry */
    bool has_begin;              /* a BEGIN is among the entries, … */
    size_t begin_offset;         /* … the last one there */
    uint32_t withheld;           /* WITHHELD frames among the entries: then it goes to nobody whole */
    uint32_t messages;           /* MESSAGE frames among the entries, … */
    uint64_t content_bytes;      /* … the bytes of their contents, … */
    int64_t received_time;       /* … and the last one's */
    uint64_t mark;               /* everything that ends at or before it has been read; 0: no news */
    struct position mark_position; /* the same as a position: nothing at or below it is still to come */
    uint32_t connection;           /* of the router's to the server, which alone may be told the mark */
    struct position expected_from; /* a connection's first one: what the journal has from there on must come again; zero: nobody knows */
};

/**
 * Keeps some free batches, so that a steady stream allocates nothing, and
 * counts what is alive. Outlives every batch made from it.
 */
struct batch_pool {
    struct batch *free[16];
    size_t n_free;
    size_t live_bytes;  /* batch_charge() of the batches handed on and alive */
    size_t live;
};

void batch_pool_deinit(struct batch_pool *pool);

/** An empty batch with one reference, or NULL (no memory). */
struct batch *batch_new(struct batch_pool *pool) MUST_CHECK;
struct batch *batch_ref(struct batch *b);
/** Returns NULL. Takes NULL. */
struct batch *batch_unref(struct batch *b);

/**
 * Many wait to be written: gives back what the head and the entries do not use, so that a batch of one small message
 * costs little more than that. Before others know of it.
 */
void batch_trim(struct batch *b);

/**
 * Routing is over and somebody still waits to send from it: gives back the
 * entries and the head's unused rest, so that a batch of one small message, of
 * which a reader that fell behind may hold thousands, costs what it holds.
 */
void batch_settle(struct batch *b);

/** A batch of frames that stand ready in `data`, malloc'ed, which it takes over (freed on failure too): what was read from the
 *  journal for one session, or a frame for it alone. It is sealed, has no entries, and its ends may lie within a frame. NULL: no memory. */
struct batch *batch_wrap(struct batch_pool *pool, uint8_t *data, size_t size) MUST_CHECK;

/** Bytes in the stream: head and tail. */
static inline size_t batch_size(const struct batch *b)
{
    return b->head_size + b->tail.size;
}
/** Memory that the batch keeps once it is settled, in bytes. Constant once it was handed on. */
static inline size_t batch_charge(const struct batch *b)
{
    return sizeof *b + b->head_size + b->tail.size;
}

/** The builder is done with it: it is immutable from here on, and counted. */
void batch_seal(struct batch *b);

/** Adding, by its builder only, before it is sealed. 0 or -ENOMEM (then nothing was added). */
int batch_add_begin(struct batch *b, const struct frame_begin *f) MUST_CHECK;
int batch_add_commit(struct batch *b, const struct frame_commit *f) MUST_CHECK;
int batch_add_gap(struct batch *b, const struct frame_gap *f) MUST_CHECK;
/** Takes `*owner` (memory of PQgetCopyData that holds f->content) over when it keeps the content
 *  uncopied, and then sets *owner to NULL. */
int batch_add_message(struct batch *b, const struct frame_message *f, void **owner) MUST_CHECK;

/** The MESSAGE of that entry; it borrows from the batch. Any thread, as long as the batch lives. */
struct frame_message batch_message_of(const struct batch *b, const struct batch_entry *entry);
/** What is known of a message by the WITHHELD in its place. Any thread. */
void batch_hash(const struct frame_message *f, uint8_t hash[FRAME_HASH_SIZE]);

/** A MESSAGE that goes. */
struct batch_withheld {
    size_t entry;
    uint32_t status; /* enum verify_status */
    uint8_t hash[FRAME_HASH_SIZE];
};
/** A batch like `b`, which is sealed and known to nobody else, with WITHHELD in the places of these messages, by rising entries. It is
 *  sealed, and takes the tail of `b` over if that stays. NULL: no memory, and `b` is as it was. */
struct batch *batch_withhold(struct batch *b, const struct batch_withheld *withheld, size_t n) MUST_CHECK;

/** The bytes [offset, offset + size) of the stream as one or two pieces; returns how many. */
unsigned batch_pieces(const struct batch *b, size_t offset, size_t size, struct bytes out[2]);

#endif
