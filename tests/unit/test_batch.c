/* SPDX-License-Identifier: PostgreSQL */
#include "batch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "unit.h"

/* A size that no allocator has, so that -ENOMEM can be seen; the sanitizer must give NULL for it
 * too. */
#define TOO_LARGE ((size_t)1 << 46)
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static struct batch_pool pool;

static void teardown(void)
{
    ck_assert_uint_eq(pool.live, 0);
    ck_assert_uint_eq(pool.live_bytes, 0);
    batch_pool_deinit(&pool);
    ck_assert_uint_eq(pool.n_free, 0);
}

static struct batch *new_batch(void)
{
    struct batch *b = batch_new(&pool);

    ck_assert_ptr_nonnull(b);
    return b;
}

static struct frame_message message_of(uint32_t index, struct bytes prefix, struct bytes content)
{
    return (struct frame_message){
        .position = {1, 0x100, index}, .lsn = 0x90, .prefix = prefix, .content = content};
}

/** Adds a message with a content of our own memory, kept or copied. */
static void add_message(struct batch *b, uint32_t index, const char *prefix, size_t size)
{
    uint8_t *memory = malloc(size ? size : 1);
    void *owner = memory;

    ck_assert_ptr_nonnull(memory);
    for (size_t i = 0; i < size; i++)
        memory[i] = (uint8_t)(i * 31 + index);
    struct frame_message f = message_of(index, unit_bytes(prefix), (struct bytes){memory, size});
    ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
    ck_assert_ptr_eq(owner, size > BATCH_COPY_MAX ? NULL : memory);
    free(owner);
}

static void add_transaction(struct batch *b)
{
    const struct frame_begin begin = {.timeline = 1, .commit_lsn = 0x100, .xid = 7};
    const struct frame_commit commit = {.begin = begin, .end_lsn = 0x108, .messages = 4};

    ck_assert_int_eq(batch_add_begin(b, &begin), 0);
    for (uint32_t i = 1; i <= 3; i++)
        add_message(b, i, "orders.created", 10 * i);
    ck_assert_int_eq(batch_add_commit(b, &commit), 0);
}

static void check_same_frame(const struct batch *a, const struct batch *b, size_t i)
{
    struct bytes x[2] = {{NULL, 0}, {NULL, 0}}, y[2] = {{NULL, 0}, {NULL, 0}};

    ck_assert_uint_eq(a->entries[i].type, b->entries[i].type);
    ck_assert_uint_eq(a->entries[i].size, b->entries[i].size);
    (void)batch_pieces(a, a->entries[i].offset, a->entries[i].size, x);
    (void)batch_pieces(b, b->entries[i].offset, b->entries[i].size, y);
    ck_assert_uint_eq(x[0].size, y[0].size);
    ck_assert_int_eq(memcmp(x[0].data, y[0].data, x[0].size), 0);
}

/* Each choice of messages to withhold, of a transaction and of one behind it that is copied or not. */
START_TEST(withheld_in_their_places)
{
    for (unsigned choice = 0; choice < 32; choice++) {
        struct batch *b = new_batch(), *to;
        struct batch_withheld withheld[4];
        size_t n = 0, size = choice & 16 ? 100000 : 1000;
        static const size_t entries[] = {1, 2, 3, 5};

        add_transaction(b);
        add_message(b, POSITION_INDEX_NONTRANSACTIONAL, "orders.paid", size);
        b->entries[5].position.lsn = b->last.lsn = 0x200;
        b->mark = 0x200;
        b->connection = 3;
        batch_seal(b);
        for (unsigned k = 0; k < 4; k++)
            if (choice & 1u << k) {
                withheld[n] = (struct batch_withheld){.entry = entries[k], .status = k};
                struct frame_message f = batch_message_of(b, &b->entries[entries[k]]);
                ck_assert_uint_eq(f.content.size, k < 3 ? 10 * (k + 1) : size);
                batch_hash(&f, withheld[n++].hash);
            }
        to = batch_withhold(b, withheld, n);
        ck_assert_ptr_nonnull(to);
        ck_assert_uint_eq(to->n_entries, 6);
        ck_assert_uint_eq(to->withheld, n);
        ck_assert_uint_eq(to->messages, 4 - n);
        ck_assert_uint_eq(to->mark, 0x200);
        ck_assert_uint_eq(to->connection, 3);
        ck_assert(to->has_begin);
        ck_assert_uint_eq(to->begin_offset, 0);
        ck_assert_int_eq(position_compare(to->first, b->first), 0);
        ck_assert_int_eq(position_compare(to->last, b->last), 0);
        ck_assert(to->ends_inside == b->ends_inside);
        uint64_t bytes = 0;
        for (size_t i = 0, at = 0; i < 6; i++) {
            ck_assert_int_eq(position_compare(to->entries[i].position, b->entries[i].position), 0);
            if (at < n && withheld[at].entry == i) {
                ck_assert_uint_eq(to->entries[i].type, FRAME_WITHHELD);
                ck_assert_uint_eq(to->entries[i].size, FRAME_HEADER_SIZE + FRAME_WITHHELD_BODY);
                at++;
                continue;
            }
            if (i == 5 && size > BATCH_COPY_MAX) { /* it has moved */
                ck_assert_uint_eq(to->tail.size, size);
                ck_assert_uint_eq(b->tail.size, 0);
            } else {
                check_same_frame(b, to, i);
            }
            if (b->entries[i].type == FRAME_MESSAGE)
                bytes += i == 5 ? size : 10 * i;
        }
        ck_assert_uint_eq(to->content_bytes, bytes);
        if (choice & 8)
            ck_assert_uint_eq(to->tail.size, 0);
        (void)batch_unref(b);
        (void)batch_unref(to);
        ck_assert_uint_eq(pool.live_bytes, 0);
    }
    teardown();
}
END_TEST

START_TEST(frames_and_entries)
{
    struct frame_begin begin = {1, 0x100, 7, 5, 0};
    struct frame_commit commit = {.begin = begin, .end_lsn = 0x130, .messages = 1};
    struct batch *b = new_batch();
    struct frame_message f = message_of(1, unit_bytes("a.b"), unit_bytes("xy"));
    void *owner = NULL;

    ck_assert_uint_eq(batch_size(b), 0);
    ck_assert(!b->ends_inside);
    ck_assert_int_eq(batch_add_begin(b, &begin), 0);
    ck_assert(b->ends_inside);
    ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
    ck_assert(b->ends_inside);
    ck_assert_int_eq(batch_add_commit(b, &commit), 0);
    ck_assert(!b->ends_inside);
    f.position.index = 0;
    ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
    ck_assert(!b->ends_inside);
    unit_assert_hex((struct bytes){b->head, b->head_size},
                    "00000018 10 00 0000 00000001 0000000000000100 0000000000000007 00000005"
                    "00000035 11 00 0000 00000001 0000000000000100 00000001 0000000000000090"
                    "00000000 0000000000000000 0000000000000000 00000003 612e62 7879"
                    "00000024 12 00 0000 00000001 0000000000000100 0000000000000007 00000005"
                    "0000000000000130 00000001"
                    "00000035 11 00 0000 00000001 0000000000000100 00000000 0000000000000090"
                    "00000000 0000000000000000 0000000000000000 00000003 612e62 7879");
    static const struct {
        uint8_t type;
        size_t offset, size;
        uint32_t index;
    } want[] = {{FRAME_BEGIN, 0, 32, 0},
                {FRAME_MESSAGE, 32, 61, 1},
                {FRAME_COMMIT, 93, 44, POSITION_INDEX_END},
                {FRAME_MESSAGE, 137, 61, 0}};
    ck_assert_uint_eq(b->n_entries, ARRAY_SIZE(want));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        const struct batch_entry *e = &b->entries[i];

        ck_assert_uint_eq(e->type, want[i].type);
        ck_assert_uint_eq(e->offset, want[i].offset);
        ck_assert_uint_eq(e->size, want[i].size);
        ck_assert_int_eq(position_compare(e->position, (struct position){1, 0x100, want[i].index}),
                         0);
        unit_assert_text(e->prefix, want[i].type == FRAME_MESSAGE ? "a.b" : "");
    }
    ck_assert_int_eq(position_compare(b->first, (struct position){1, 0x100, 0}), 0);
    ck_assert_int_eq(position_compare(b->last, (struct position){1, 0x100, 0}), 0);
    ck_assert_ptr_null(batch_unref(b));
    teardown();
}
END_TEST

START_TEST(growing_keeps_the_prefixes)
{
    enum { MESSAGES = 3000 };
    struct batch *b = new_batch();
    char prefix[16];

    for (unsigned i = 0; i < MESSAGES; i++) {
        (void)snprintf(prefix, sizeof prefix, "p%u", i);
        add_message(b, i, i % 100 ? prefix : "", i % 7);
    }
    ck_assert_uint_eq(b->n_entries, MESSAGES);
    size_t offset = 0;
    for (unsigned i = 0; i < MESSAGES; i++) {
        const struct batch_entry *e = &b->entries[i];

        (void)snprintf(prefix, sizeof prefix, "p%u", i);
        unit_assert_text(e->prefix, i % 100 ? prefix : "");
        ck_assert_ptr_eq(e->prefix.data, b->head + offset + 8 + 48);
        ck_assert_uint_eq(e->offset, offset);
        offset += e->size;
    }
    ck_assert_uint_eq(offset, b->head_size);
    ck_assert_ptr_null(batch_unref(b));
    ck_assert_uint_eq(pool.n_free, 0); /* it grew too far to be kept */
    teardown();
}
END_TEST

START_TEST(pieces_of_every_range)
{
    struct unit_random random = unit_random_init();

    for (int with_tail = 0; with_tail < 2; with_tail++) {
        struct batch *b = new_batch();
        struct buf flat = BUF_INIT;

        add_message(b, 1, "one", 10);
        add_message(b, 2, "two", 0);
        add_message(b, 3, "three", with_tail ? BATCH_COPY_MAX + 1 : 300);
        buf_append(&flat, b->head, b->head_size);
        buf_append(&flat, b->tail.data, b->tail.size);
        ck_assert_uint_eq(flat.size, batch_size(b));
        ck_assert_uint_eq(b->tail.size, with_tail ? BATCH_COPY_MAX + 1 : 0);
        for (unsigned i = 0; i < 5000; i++) {
            size_t offset = unit_random_below(&random, (uint32_t)flat.size + 1);
            size_t size = unit_random_below(&random, (uint32_t)(flat.size - offset) + 1);
            struct bytes out[2];

            if (with_tail && i % 2) { /* around the seam */
                offset = b->head_size - 2 + unit_random_below(&random, 5);
                size = unit_random_below(&random, 5);
            }
            unsigned n = batch_pieces(b, offset, size, out), want = 0;
            want += size && offset < b->head_size;
            want += size && offset + size > b->head_size;
            ck_assert_uint_eq(n, want);
            size_t at = offset;
            for (unsigned k = 0; k < n; k++) {
                ck_assert_uint_gt(out[k].size, 0);
                ck_assert_mem_eq(out[k].data, flat.data + at, out[k].size);
                at += out[k].size;
            }
            ck_assert_uint_eq(at, offset + size);
        }
        buf_deinit(&flat);
        ck_assert_ptr_null(batch_unref(b));
    }
    teardown();
}
END_TEST

/* What is given back changes nothing that anybody sees. */
START_TEST(trimmed)
{
    struct batch *b = new_batch();
    add_message(b, 1, "orders.created", 40);
    add_message(b, 2, "", 10);
    add_message(b, 3, "p", BATCH_COPY_MAX + 1);
    uint8_t before[1000];
    size_t size = b->head_size;
    ck_assert_uint_le(size, sizeof before);
    memcpy(before, b->head, size);
    batch_seal(b);
    batch_trim(b);
    ck_assert_uint_eq(b->head_cap, size);
    ck_assert_uint_eq(b->entries_cap, 3);
    ck_assert_mem_eq(b->head, before, size);
    unit_assert_text(b->entries[0].prefix, "orders.created");
    unit_assert_text(b->entries[1].prefix, "");
    unit_assert_text(b->entries[2].prefix, "p");
    ck_assert_ptr_eq(b->entries[0].prefix.data, b->head + 8 + 48);
    batch_trim(b); /* again: nothing more */
    ck_assert_uint_eq(b->head_cap, size);
    batch_settle(b);
    ck_assert_uint_eq(batch_charge(b), sizeof *b + size + BATCH_COPY_MAX + 1);
    (void)batch_unref(b);
    /* one without anything */
    b = new_batch();
    batch_seal(b);
    batch_trim(b);
    (void)batch_unref(b);
    teardown();
}
END_TEST

START_TEST(wrapped)
{
    uint8_t *data = malloc(500);
    ck_assert_ptr_nonnull(data);
    memset(data, 'x', 500);
    struct batch *b = batch_wrap(&pool, data, 500);
    struct bytes pieces[2];

    ck_assert_ptr_nonnull(b);
    ck_assert_uint_eq(pool.live, 1);
    ck_assert_uint_eq(pool.live_bytes, batch_charge(b));
    ck_assert_uint_eq(batch_size(b), 500);
    ck_assert_uint_eq(b->n_entries, 0);
    ck_assert_uint_eq(batch_pieces(b, 100, 400, pieces), 1);
    ck_assert_ptr_eq(pieces[0].data, data + 100);
    batch_settle(b);
    (void)batch_unref(b);
    ck_assert_uint_eq(pool.n_free, 0); /* such a one is not kept */
    teardown();
}
END_TEST

START_TEST(what_the_pool_counts)
{
    struct batch *b[3];
    static const size_t sizes[] = {10, BATCH_COPY_MAX, 9000000};
    size_t charge = 0;

    for (unsigned i = 0; i < 3; i++) {
        b[i] = new_batch();
        add_message(b[i], 1, "p", sizes[i]);
        ck_assert_uint_eq(pool.live, i + 1);
        ck_assert_uint_eq(pool.live_bytes, charge); /* not before it is handed on */
        batch_seal(b[i]);
        charge += sizeof **b + 57 + sizes[i];
        ck_assert_uint_eq(batch_charge(b[i]), sizeof **b + 57 + sizes[i]);
        ck_assert_uint_eq(pool.live_bytes, charge);
    }
    ck_assert_ptr_eq(batch_ref(b[2]), b[2]);
    ck_assert_ptr_null(batch_unref(b[2]));
    ck_assert_uint_eq(pool.live, 3);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_ptr_null(batch_unref(b[i]));
    ck_assert_ptr_null(batch_unref(NULL));
    ck_assert_ptr_null(batch_unref(new_batch())); /* never handed on, never counted */
    teardown();
}
END_TEST

START_TEST(the_pool_keeps_some)
{
    struct batch *b[20];

    for (unsigned i = 0; i < ARRAY_SIZE(b); i++) {
        b[i] = new_batch();
        add_message(b[i], 1, "p", BATCH_COPY_MAX + 1);
        b[i]->starts_inside = true;
        b[i]->mark = 7;
        batch_seal(b[i]);
    }
    for (unsigned i = 0; i < ARRAY_SIZE(b); i++)
        (void)batch_unref(b[i]);
    ck_assert_uint_eq(pool.n_free, ARRAY_SIZE(pool.free));
    ck_assert_uint_eq(ARRAY_SIZE(pool.free), 16);
    /* and gives them out as new */
    struct batch *again = new_batch();
    ck_assert_ptr_eq(again, b[15]);
    ck_assert_uint_eq(pool.n_free, 15);
    ck_assert_uint_eq(batch_size(again), 0);
    ck_assert_uint_eq(again->n_entries, 0);
    ck_assert(!again->handed && !again->starts_inside && !again->ends_inside);
    ck_assert_uint_eq(again->mark, 0);
    ck_assert(position_is_zero(again->first) && position_is_zero(again->last));
    ck_assert_ptr_null(again->tail_owner);
    add_message(again, 1, "p", 3);
    (void)batch_unref(again);
    teardown();
}
END_TEST

START_TEST(settling_gives_back_the_rest)
{
    struct batch *b = new_batch();
    struct bytes pieces[2];

    add_message(b, 1, "p", 100);
    batch_seal(b);
    size_t charge = batch_charge(b);
    struct bytes before = unit_exact((struct bytes){b->head, b->head_size});
    batch_settle(b);
    ck_assert_ptr_null(b->entries);
    ck_assert_uint_eq(b->n_entries, 0);
    ck_assert_uint_eq(b->head_cap, 157);
    ck_assert_uint_eq(batch_charge(b), charge);
    ck_assert_uint_eq(pool.live_bytes, charge);
    ck_assert_uint_eq(batch_pieces(b, 0, batch_size(b), pieces), 1);
    ck_assert(bytes_equal(pieces[0], before));
    ck_assert_int_eq(position_compare(b->last, (struct position){1, 0x100, 1}), 0);
    batch_settle(b); /* again: nothing more to give */
    ck_assert_uint_eq(b->head_cap, 157);
    (void)batch_unref(b);
    ck_assert_uint_eq(pool.n_free, 0); /* what is settled is not used again */
    unit_free(before);

    /* nearly full: the bytes stay, the entries go, and it is not used again either */
    b = new_batch();
    for (unsigned i = 0; b->head_cap - b->head_size > 1057; i++)
        add_message(b, i, "p", 1000);
    size_t cap = b->head_cap;
    batch_seal(b);
    batch_settle(b);
    ck_assert_uint_eq(b->head_cap, cap);
    ck_assert_ptr_null(b->entries);
    (void)batch_unref(b);
    ck_assert_uint_eq(pool.n_free, 0);

    /* one without frames */
    b = new_batch();
    batch_seal(b);
    batch_settle(b);
    ck_assert_uint_eq(batch_size(b), 0);
    ck_assert_uint_eq(b->head_cap, 0);
    (void)batch_unref(b);
    teardown();
}
END_TEST

START_TEST(without_memory_nothing_is_added)
{
    static const uint8_t byte = 'p';
    struct batch *b = new_batch();
    struct frame_message f = message_of(2, (struct bytes){&byte, TOO_LARGE}, unit_bytes("x"));
    void *memory = malloc(BATCH_COPY_MAX + 1), *owner = memory;

    ck_assert_ptr_nonnull(memory);
    add_message(b, 1, "first", 3);
    struct bytes before = unit_exact((struct bytes){b->head, b->head_size});
    ck_assert_int_eq(batch_add_message(b, &f, &owner), -ENOMEM);
    f.content = (struct bytes){memory, BATCH_COPY_MAX + 1};
    ck_assert_int_eq(batch_add_message(b, &f, &owner), -ENOMEM);
    ck_assert_ptr_eq(owner, memory);
    free(memory);
    ck_assert_uint_eq(b->n_entries, 1);
    ck_assert(bytes_equal((struct bytes){b->head, b->head_size}, before));
    ck_assert_uint_eq(b->last.index, 1);
    ck_assert_ptr_null(b->tail_owner);
    add_message(b, 2, "second", 3);
    unit_assert_text(b->entries[0].prefix, "first");
    unit_assert_text(b->entries[1].prefix, "second");
    unit_free(before);
    (void)batch_unref(b);
    teardown();
}
END_TEST

UNIT_MAIN("batch", withheld_in_their_places, frames_and_entries, growing_keeps_the_prefixes, pieces_of_every_range,
          trimmed, wrapped, what_the_pool_counts, the_pool_keeps_some, settling_gives_back_the_rest,
          without_memory_nothing_is_added)
