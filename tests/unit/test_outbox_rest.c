/* SPDX-License-Identifier: PostgreSQL */
/*
 * Streams that come in pieces, and what is left when what waits is dropped at some byte. One stream of
 * frames of every kind is put into the outbox, as one live batch or as chunks of some size, written to some byte,
 * let go of, and gone on with from where the outbox says: what arrives is the stream.
 */
#include "outbox.h"

#include "outbox_fixture.h"

/* ---- the stream ---- */

#define FRAMES 12

static struct {
    struct batch *batch; /* with entries */
    struct buf bytes;
    struct {
        size_t at, end;
        uint8_t type;
        struct position position;
    } frames[FRAMES];
    size_t n;
} stream;

static void note(uint8_t type, struct position position)
{
    const struct batch_entry *e = &stream.batch->entries[stream.batch->n_entries - 1];

    ck_assert_uint_eq(e->type, type);
    stream.frames[stream.n].at = e->offset;
    stream.frames[stream.n].end = e->offset + e->size;
    stream.frames[stream.n].type = type;
    stream.frames[stream.n++].position = position;
}

static void put_message(uint64_t lsn, uint32_t index, size_t size)
{
    uint8_t *memory = malloc(size ? size : 1);
    void *owner = memory;
    struct frame_message f = {.position = {1, lsn, index},
                              .prefix = unit_bytes("a.b"),
                              .content = {memory, size},
                              .flags = index ? FRAME_FLAG_TRANSACTIONAL : 0};

    ck_assert_ptr_nonnull(memory);
    for (size_t i = 0; i < size; i++)
        memory[i] = (uint8_t)(i * 31 + lsn + index);
    ck_assert_int_eq(batch_add_message(stream.batch, &f, &owner), 0);
    free(owner);
    note(FRAME_MESSAGE, f.position);
}

/* The last message has the tail, if there is to be one: nothing follows a tail in a batch. */
static void stream_make(size_t large, size_t last)
{
    struct frame_begin begin = {1, 0x200, 7, 5, 0};
    struct frame_commit commit = {{1, 0x200, 7, 5, 0}, 0x230, 3};
    struct frame_gap gap = {{1, 0x201, 0}, {1, 0x280, 0}, 5, 6, unit_bytes("because")};

    memset(&stream, 0, sizeof stream);
    stream.batch = new_batch();
    put_message(0x100, 0, 10);
    ck_assert_int_eq(batch_add_begin(stream.batch, &begin), 0);
    note(FRAME_BEGIN, (struct position){1, 0x200, 0});
    put_message(0x200, 1, 100);
    put_message(0x200, 2, large);
    put_message(0x200, 7, 0);
    ck_assert_int_eq(batch_add_commit(stream.batch, &commit), 0);
    note(FRAME_COMMIT, (struct position){1, 0x200, POSITION_INDEX_END});
    ck_assert_int_eq(batch_add_gap(stream.batch, &gap), 0);
    note(FRAME_GAP, gap.to);
    put_message(0x300, 0, last);
    batch_seal(stream.batch);
    append_range(&stream.bytes, stream.batch, 0, batch_size(stream.batch));
}

static void stream_free(void)
{
    stream.batch = batch_unref(stream.batch);
    buf_deinit(&stream.bytes);
}

/* Where a subscriber stands who was sent the first n frames. */
static struct outbox_place place_behind(size_t n)
{
    struct outbox_place place = {.told = {1, 0x50, 0}};

    for (size_t i = 0; i < n; i++) {
        place.told = stream.frames[i].position;
        place.inside =
            stream.frames[i].type == FRAME_BEGIN ||
            (stream.frames[i].type == FRAME_MESSAGE && stream.frames[i].position.index != 0);
    }
    return place;
}

static void assert_place(struct outbox_place got, size_t n, size_t at)
{
    struct outbox_place want = place_behind(n);

    if (position_compare(got.told, want.told) != 0 || got.inside != want.inside || got.resume)
        ck_abort_msg("after %zu bytes: at %lx:%u inside %d resume %d, not behind frame %zu", at,
                     (unsigned long)got.told.lsn, got.told.index, got.inside, got.resume, n);
}

/* The frame in which the byte lies. */
static size_t frame_of(size_t at)
{
    size_t i = 0;

    while (i < stream.n && stream.frames[i].end <= at)
        i++;
    return i;
}

/* Adds the stream from `from` on as the journal's reader does: whole frames, as many as fit into `chunk`, or a piece of one. */
static void add_chunks(size_t from, size_t chunk, size_t most)
{
    while (from < stream.bytes.size && most--) {
        size_t i = frame_of(from), end = from, last = SIZE_MAX;
        size_t rest = from == stream.frames[i].at ? 0 : stream.frames[i].end - from;
        uint64_t owed = 0;

        if (rest) {
            end = from + MIN(rest, chunk);
            last = end;
            owed = from + rest - end;
            rest = end - from;
            i++;
        }
        for (; !owed && i < stream.n && stream.frames[i].end - from <= chunk; i++) {
            last = stream.frames[i].at;
            end = stream.frames[i].end;
        }
        if (end == from) {
            last = from;
            end = from + chunk;
            owed = stream.frames[i].end - end;
        }
        uint8_t *data = malloc(end - from);
        ck_assert_ptr_nonnull(data);
        memcpy(data, stream.bytes.data + from, end - from);
        struct batch *batch = batch_wrap(&pool, data, end - from);
        ck_assert_ptr_nonnull(batch);
        ck_assert_int_eq(outbox_add_chunk(&box, batch, rest, last - from, owed), 0);
        (void)batch_unref(batch);
        from = end;
    }
}

static void add_live(void)
{
    add_range(stream.batch, 0, batch_size(stream.batch));
}

static void begin(void)
{
    setup(1 << 20);
    box.place.told = (struct position){1, 0x50, 0};
}

static void end(void)
{
    stream_free();
    teardown();
}

static void write_some(size_t n)
{
    allowed = n;
    ck_assert_int_ge(outbox_write(&box, pair[0]), 0);
    allowed = SIZE_MAX;
}

static const struct position everything = {UINT32_MAX, UINT64_MAX, UINT32_MAX};

/* MESSAGE frames that end behind this byte. */
static size_t messages_behind(size_t at)
{
    size_t n = 0;

    for (size_t i = 0; i < stream.n; i++)
        n += stream.frames[i].type == FRAME_MESSAGE && stream.frames[i].end > at;
    return n;
}

/* ---- letting go ---- */

/* The stream written up to a byte, let go of, and gone on with in chunks. */
static void let_go_at(size_t at, size_t large, size_t last, size_t chunk, size_t again)
{
    struct outbox_rest rest;

    begin();
    stream_make(large, last);
    if (chunk)
        add_chunks(0, chunk, SIZE_MAX);
    else
        add_live();
    batch_settle(stream.batch);
    write_some(at);
    ck_assert_uint_eq(box.written, at);
    ck_assert_uint_eq(box.waiting, stream.bytes.size - at);
    outbox_let_go(&box, &pool, everything, &rest);

    size_t i = frame_of(at),
           left = i < stream.n && at > stream.frames[i].at ? stream.frames[i].end - at : 0;
    size_t kept = box.waiting, reached = at + kept;
    if (left <= OUTBOX_KEEP) {
        ck_assert_uint_eq(kept, left);
        ck_assert_uint_eq(rest.skip, 0);
        assert_place(rest.place, left ? i + 1 : i, at);
    } else { /* no more than its fixed part */
        ck_assert_uint_eq(stream.frames[i].type, FRAME_MESSAGE);
        ck_assert_uint_eq(reached,
                          MAX(at, stream.frames[i].at + FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED));
        ck_assert_uint_eq(rest.skip, reached - stream.frames[i].at);
        ck_assert_int_eq(position_compare(rest.skip_of, position_decode(stream.bytes.data + stream.frames[i].at + FRAME_HEADER_SIZE)), 0);
        assert_place(rest.place, i, at);
    }
    assert_place(box.place, i, at);
    ck_assert_uint_eq(rest.messages, messages_behind(reached));
    ck_assert_uint_eq(outbox_owed(&box), rest.skip ? stream.frames[i].end - reached : 0);
    ck_assert_uint_eq(pool.live, 1 + (kept > 0)); /* the stream's own, and a copy */
    ck_assert_uint_le(box.charge, sizeof(struct batch) + OUTBOX_KEEP);

    /* again: the same, whatever of it is written by now */
    write_some(kept / 2);
    struct outbox_rest second;
    outbox_let_go(&box, &pool, everything, &second);
    ck_assert_int_eq(position_compare(second.place.told, rest.place.told), 0);
    ck_assert_int_eq(second.place.inside, rest.place.inside);
    ck_assert_uint_eq(second.skip, rest.skip);
    ck_assert_uint_eq(second.messages, 0);
    ck_assert_uint_eq(box.waiting, kept - kept / 2);

    put_control(1);
    add_chunks(reached, again, SIZE_MAX);
    write_all();
    size_t boundary = stream.frames[MIN(frame_of(at + kept / 2), stream.n - 1)].at;
    if (at + kept / 2 > boundary) /* the control frame waits for the end of the frame */
        boundary = at + kept / 2 == stream.bytes.size ? stream.bytes.size
                                                      : stream.frames[frame_of(at + kept / 2)].end;
    const uint8_t frame[] = {0, 0, 0, 4, FRAME_REPLY, 0, 0, 0, 0, 0, 0, 1};
    struct buf want = BUF_INIT;
    buf_append(&want, stream.bytes.data, boundary);
    buf_append(&want, frame, sizeof frame);
    buf_append(&want, stream.bytes.data + boundary, stream.bytes.size - boundary);
    ck_assert_msg(bytes_equal(buf_bytes(&received), buf_bytes(&want)), "let go at %zu", at);
    buf_deinit(&want);
    assert_place(box.place, stream.n, at);
    end();
}

static size_t size_of_stream(size_t large, size_t last)
{
    begin();
    stream_make(large, last);
    size_t size = stream.bytes.size;
    end();
    return size;
}

/* Small messages: every byte. */
START_TEST(let_go_at_every_byte)
{
    size_t size = size_of_stream(300, 40);

    for (size_t at = 0; at <= size; at += unit_sparse()) {
        let_go_at(at, 300, 40, 0, 1000000);
        let_go_at(at, 300, 40, 200, 1000000);
        let_go_at(at, 300, 40, 64 + at % 100, 64 + at % 70);
    }
}
END_TEST

/* One that is not kept: at every byte around its ends, and here and there within. */
START_TEST(let_go_within_a_large_one)
{
    enum { LARGE = 2 * OUTBOX_KEEP + 100, TAIL = BATCH_COPY_MAX + 5000 };
    size_t size = size_of_stream(LARGE, TAIL);

    for (size_t at = 0; at <= size; at += unit_sparse()) {
        size_t keep = 260 + LARGE - OUTBOX_KEEP; /* about where the large one begins to be kept */
        if ((at < 160 || at > 330) && (at < keep - 20 || at > keep + 20) &&
            (at < size - TAIL - 80 || at > size - TAIL + 5) && at % 1997 && at < size - 5)
            continue;
        let_go_at(at, LARGE, TAIL, 0, 1000000);
        let_go_at(at, LARGE, TAIL, 1000000, 30000);
        let_go_at(at, LARGE, TAIL, 3000, 512);
    }
}
END_TEST

START_TEST(what_cannot_be_read_again_is_kept)
{
    enum { TAIL = BATCH_COPY_MAX + 5000 };
    struct outbox_rest rest;

    begin();
    stream_make(3 * OUTBOX_KEEP, TAIL);
    add_live();
    size_t at = stream.bytes.size - TAIL + 5;
    write_some(at);
    /* the journal has all but this last message */
    outbox_let_go(&box, &pool, (struct position){1, 0x2ff, 0}, &rest);
    ck_assert_uint_eq(rest.skip, 0);
    ck_assert_uint_eq(rest.messages, 0);
    assert_place(rest.place, stream.n, at);
    ck_assert_uint_eq(box.waiting, stream.bytes.size - at);
    ck_assert_uint_eq(stream.batch->refs, 2);
    write_all();
    ck_assert(bytes_equal(buf_bytes(&received), buf_bytes(&stream.bytes)));
    end();

    /* and of one that comes in pieces only the rest is asked for that is not here */
    begin();
    stream_make(3 * OUTBOX_KEEP, 10);
    add_chunks(0, 2 * OUTBOX_KEEP, 2); /* to the middle of the large one */
    ck_assert_uint_gt(outbox_owed(&box), 0);
    at = stream.frames[3].at + 100;
    write_some(at);
    outbox_let_go(&box, &pool, (struct position){1, 0x100, 0}, &rest);
    assert_place(rest.place, 3, at);
    ck_assert_uint_eq(rest.skip, 2 * OUTBOX_KEEP);
    ck_assert_uint_eq(box.waiting, 2 * OUTBOX_KEEP - 100);
    add_chunks(stream.frames[3].at + rest.skip, 1000, SIZE_MAX);
    write_all();
    ck_assert(bytes_equal(buf_bytes(&received), buf_bytes(&stream.bytes)));
    end();
}
END_TEST

/* ---- pieces ---- */

START_TEST(a_control_frame_waits_for_the_rest)
{
    enum { LARGE = 5000, CHUNK = 700 };

    begin();
    stream_make(LARGE, 10);
    size_t first = stream.frames[3].at, last = stream.frames[3].end;
    add_chunks(0, CHUNK, 2); /* what stands before the large one, and a piece of that */
    ck_assert_int_eq(outbox_write(&box, pair[0]), OUTBOX_OWED);
    ck_assert_uint_eq(box.written, first + CHUNK);
    ck_assert(!outbox_is_empty(&box));
    put_control(1);
    ck_assert_int_eq(outbox_write(&box, pair[0]), OUTBOX_OWED); /* not into its middle */
    ck_assert_uint_eq(box.written, first + CHUNK);
    for (size_t at = first + CHUNK; last - at > CHUNK; at += CHUNK) {
        add_chunks(at, CHUNK, 1);
        ck_assert_int_eq(outbox_write(&box, pair[0]), OUTBOX_OWED);
        ck_assert_uint_eq(outbox_waiting_control(&box), 12);
    }
    size_t at = box.written;
    add_chunks(at, CHUNK, 1);
    ck_assert_int_eq(outbox_write(&box, pair[0]), OUTBOX_NOTHING);
    ck_assert_uint_eq(outbox_waiting_control(&box), 0);
    receive_all();
    ck_assert_uint_eq(received.data[last + 4], FRAME_REPLY);
    ck_assert_mem_eq(received.data, stream.bytes.data, last);
    ck_assert_mem_eq(received.data + last + 12, stream.bytes.data + last,
                     received.size - last - 12);
    end();
}
END_TEST

/* At a fatal error the frame that is being sent is finished, and nothing more; what of it is not here is owed. */
START_TEST(dropping_at_every_byte_of_pieces)
{
    enum { LARGE = 900, CHUNK = 250 };
    size_t size = size_of_stream(LARGE, 10);

    for (size_t at = 0; at < size; at += unit_sparse()) {
        begin();
        stream_make(LARGE, 10);
        add_chunks(0, CHUNK, SIZE_MAX);
        write_some(at);
        size_t i = frame_of(at), boundary = at > stream.frames[i].at ? stream.frames[i].end : at;
        ck_assert_uint_eq(outbox_drop(&box), messages_behind(boundary));
        ck_assert_uint_eq(box.waiting, boundary - at);
        ck_assert_uint_eq(outbox_owed(&box), 0);
        ck_assert_uint_eq(outbox_drop(&box), 0);
        write_all();
        ck_assert_uint_eq(received.size, boundary);
        ck_assert_mem_eq(received.data, stream.bytes.data, boundary);
        end();

        begin(); /* the same, and the chunks behind the one that is written are still to come */
        stream_make(LARGE, 10);
        size_t added = 0;
        for (size_t n = 1; added <= at; n++) {
            (void)outbox_drop(&box);
            outbox_deinit(&box);
            add_chunks(0, CHUNK, n);
            added = box.waiting;
        }
        box.place.told = (struct position){1, 0x50, 0};
        write_some(at);
        (void)outbox_drop(&box);
        size_t here = MIN(boundary, added);
        ck_assert_uint_eq(box.waiting, here - at);
        ck_assert_uint_eq(outbox_owed(&box), boundary - here);
        if (boundary > here)
            add_chunks(here, CHUNK, SIZE_MAX);
        (void)outbox_drop(&box);
        write_all();
        ck_assert_uint_eq(received.size, boundary);
        ck_assert_mem_eq(received.data, stream.bytes.data, boundary);
        end();
    }
}
END_TEST

START_TEST(where_the_subscriber_stands)
{
    begin();
    stream_make(100, 10);
    add_live();
    size_t i = 0;
    for (size_t at = 0; at < stream.bytes.size;
         at++) { /* by items that are written; within one nobody asks */
        write_some(1);
        assert_place(box.place, at + 1 == stream.bytes.size ? stream.n : 0, at + 1);
    }
    receive_all();
    buf_clear(&received);
    box.place = place_behind(0);
    for (; i < stream.n; i++) {
        const struct batch_entry *e = &stream.batch->entries[i];
        add_range(stream.batch, e->offset, e->size);
        write_all();
        assert_place(box.place, i + 1, stream.frames[i].end);
    }
    /* a BEGIN that was told on another connection is told by now; the end of what a gap has begun comes */
    box.place = (struct outbox_place){.told = {1, 0x200, 1}, .resume = true};
    add_begin(stream.batch);
    write_all();
    end();

    begin();
    struct batch *batch = new_batch();
    struct frame_begin f = {1, 0x200, 7, 5, 0};
    struct frame_gap gap = {
        {1, 0x200, 3}, {1, 0x200, POSITION_INDEX_END - 1}, 1, 2, unit_bytes("because")};
    ck_assert_int_eq(batch_add_begin(batch, &f), 0);
    ck_assert_int_eq(batch_add_gap(batch, &gap), 0);
    batch_seal(batch);
    box.place = (struct outbox_place){.told = {1, 0x200, 2}, .resume = true};
    add_begin(batch);
    write_all();
    ck_assert(box.place.inside && !box.place.resume);
    ck_assert_uint_eq(box.place.told.index, 2);
    add_range(batch, batch->entries[1].offset, batch->entries[1].size);
    write_all();
    ck_assert(box.place.inside);
    ck_assert_uint_eq(box.place.told.index, POSITION_INDEX_END - 1);
    box.place.told.lsn = 0x1ff; /* of another transaction */
    add_range(batch, batch->entries[1].offset, batch->entries[1].size);
    write_all();
    ck_assert(!box.place.inside);
    (void)batch_unref(batch);
    teardown();
}
END_TEST

/* Written, let go of and gone on with at random, until it has arrived. */
START_TEST(random_letting_go)
{
    struct unit_random random = unit_random_init();
    unsigned let_go = 0, skipped = 0;

    for (unsigned round = 0; round < 150; round++) {
        begin();
        stream_make(unit_random_below(&random, 3 * OUTBOX_KEEP),
                    unit_random_below(&random, 2) ? BATCH_COPY_MAX + 20000 : 100);
        bool live = unit_random_below(&random, 2);
        size_t added = 0;
        while (received.size < stream.bytes.size) {
            size_t chunk =
                64 + unit_random_below(&random, unit_random_below(&random, 2) ? 500 : 40000);
            if (live) {
                add_live();
                live = false;
                added = stream.bytes.size;
            } else if (box.waiting < 30000) {
                uint64_t before = box.waiting;
                add_chunks(added, chunk, 1);
                added += box.waiting - before;
            }
            write_some(unit_random_below(&random, 9000));
            receive_all();
            if (unit_random_below(&random, 4))
                continue;
            struct outbox_rest rest;
            outbox_let_go(&box, &pool, everything, &rest);
            let_go++;
            skipped += rest.skip > 0;
            size_t n = 0;
            while (n < stream.n) { /* the place says where to go on */
                struct outbox_place p = place_behind(n);
                if (position_compare(p.told, rest.place.told) == 0 && p.inside == rest.place.inside)
                    break;
                n++;
            }
            added = (n < stream.n ? stream.frames[n].at : stream.bytes.size) + rest.skip;
            ck_assert_uint_eq(added, received.size + box.waiting);
        }
        ck_assert(bytes_equal(buf_bytes(&received), buf_bytes(&stream.bytes)));
        end();
    }
    ck_assert_uint_gt(let_go, 100);
    ck_assert_uint_gt(skipped, 20);
}
END_TEST

UNIT_MAIN("outbox_rest", let_go_at_every_byte, let_go_within_a_large_one,
          what_cannot_be_read_again_is_kept, a_control_frame_waits_for_the_rest,
          dropping_at_every_byte_of_pieces, where_the_subscriber_stands, random_letting_go)
