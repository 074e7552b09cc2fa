/* SPDX-License-Identifier: PostgreSQL */
#include "outbox.h"

#include "outbox_fixture.h"

/* ---- tests ---- */

START_TEST(ranges_that_follow_are_joined)
{
    struct batch *a, *b;

    setup(1 << 20);
    a = batch_of(3, 0);
    b = batch_of(2, 0);
    const struct batch_entry *e = a->entries;
    add_range(a, e[0].offset, e[0].size);
    add_range(a, e[1].offset, e[1].size);
    ck_assert_uint_eq(box.n, 1);
    add_range(a, e[3].offset, e[3].size); /* not the next one */
    ck_assert_uint_eq(box.n, 2);
    add_range(b, 0, b->entries[0].size);
    ck_assert_uint_eq(box.n, 3);
    add_begin(b);
    /* a frame of its own is no range that could be followed */
    add_range(b, b->entries[1].offset, b->entries[1].size);
    ck_assert_uint_eq(box.n, 5);
    ck_assert_uint_eq(box.charge, batch_charge(a) + batch_charge(b));
    ck_assert_uint_eq(a->refs, 3);
    ck_assert_uint_eq(b->refs, 4);
    struct buf want = BUF_INIT;
    append_range(&want, a, 0, e[0].size + e[1].size);
    append_range(&want, a, e[3].offset, e[3].size);
    append_range(&want, b, 0, b->entries[0].size);
    append_range(&want, b, 0, BATCH_BEGIN_SIZE);
    append_range(&want, b, b->entries[1].offset, b->entries[1].size);
    (void)batch_unref(a);
    (void)batch_unref(b);
    write_all();
    ck_assert(bytes_equal(buf_bytes(&received), buf_bytes(&want)));
    ck_assert_uint_eq(box.written, want.size);
    buf_deinit(&want);
    teardown();
}
END_TEST

/* Two batches, three ranges of the first, one of them a BEGIN of its own. */
static struct buf queue_some(size_t tail)
{
    struct batch *a = batch_of(4, tail), *b = batch_of(1, 0);
    const struct batch_entry *e = a->entries;
    size_t rest = batch_size(a) - e[2].offset;
    struct buf want = BUF_INIT;

    add_begin(a);
    add_range(a, e[1].offset, e[1].size);
    add_range(a, e[2].offset, rest);
    add_range(b, 0, batch_size(b));
    append_range(&want, a, 0, BATCH_BEGIN_SIZE);
    append_range(&want, a, e[1].offset, e[1].size + rest);
    append_range(&want, b, 0, batch_size(b));
    batch_settle(a);
    batch_settle(b);
    (void)batch_unref(a);
    (void)batch_unref(b);
    return want;
}

/** Cuts the writing behind `at` bytes, then lets a control frame come, with or without a drop. */
static void cut_at(size_t tail, size_t at, bool drop)
{
    setup(1 << 20);
    struct buf want = queue_some(tail);
    size_t total = want.size, boundary = boundary_of(&want, at);

    allowed = at;
    ck_assert_int_eq(outbox_write(&box, pair[0]), at < total ? 1 : 0);
    ck_assert_uint_eq(box.written, at);
    put_control(1);
    if (drop) {
        (void)outbox_drop(&box);
        ck_assert_uint_eq(box.n, boundary > at ? 1 : 0);
        if (boundary == at)
            ck_assert_uint_eq(box.charge, 0);
        want.size = boundary;
    }
    put_control(2);
    allowed = SIZE_MAX;
    write_all();

    struct buf expected = BUF_INIT;
    buf_append(&expected, want.data, boundary);
    for (uint8_t i = 1; i <= 2; i++) {
        const uint8_t frame[] = {0, 0, 0, 4, FRAME_REPLY, 0, 0, 0, 0, 0, 0, i};
        buf_append(&expected, frame, sizeof frame);
    }
    buf_append(&expected, want.data + boundary, want.size - boundary);
    ck_assert_msg(bytes_equal(buf_bytes(&received), buf_bytes(&expected)), "cut at %zu", at);
    ck_assert_uint_eq(box.written, expected.size);
    buf_deinit(&expected);
    buf_deinit(&want);
    teardown();
}

START_TEST(a_cut_at_every_byte)
{
    setup(1 << 20);
    struct buf want = queue_some(0);
    size_t total = want.size;
    buf_deinit(&want);
    write_all();
    teardown();

    ck_assert_uint_gt(total, 300);
    for (size_t at = 0; at <= total; at++) {
        cut_at(0, at, false);
        cut_at(0, at, true);
    }
}
END_TEST

START_TEST(a_cut_around_the_tail)
{
    const size_t tail = BATCH_COPY_MAX + 1;

    setup(1 << 20);
    struct buf want = queue_some(tail);
    size_t total = want.size, end = boundary_of(&want, total - 32 - 57 - 1), start = end - tail;
    buf_deinit(&want);
    write_all();
    teardown();

    for (size_t i = 0; i < 7; i++) {
        for (int drop = 0; drop < 2; drop++) {
            cut_at(tail, start - 57 - 3 + i, drop); /* the frame's first byte */
            cut_at(tail, start - 3 + i, drop);      /* the seam of head and tail */
            cut_at(tail, end - 3 + i, drop);        /* the frame's last byte */
            cut_at(tail, start + i * 9001, drop);
        }
    }
}
END_TEST

START_TEST(a_cut_within_a_control_frame)
{
    for (size_t at = 0; at <= 24; at++) {
        setup(1 << 20);
        put_control(1);
        put_control(2);
        allowed = at;
        ck_assert_int_eq(outbox_write(&box, pair[0]), at < 24 ? 1 : 0);
        struct buf data = queue_some(0), expected = BUF_INIT;
        put_control(3);
        if (at % 2) { /* what is not begun can be dropped; the control frames stay */
            (void)outbox_drop(&box);
            ck_assert_uint_eq(box.n, 0);
            ck_assert_uint_eq(pool.live, 0);
            data.size = 0;
        }
        allowed = SIZE_MAX;
        write_all();
        for (uint8_t i = 1; i <= 3; i++) {
            const uint8_t frame[] = {0, 0, 0, 4, FRAME_REPLY, 0, 0, 0, 0, 0, 0, i};
            buf_append(&expected, frame, sizeof frame);
        }
        buf_append(&expected, data.data, data.size);
        ck_assert_msg(bytes_equal(buf_bytes(&received), buf_bytes(&expected)), "cut at %zu", at);
        buf_deinit(&expected);
        buf_deinit(&data);
        teardown();
    }
}
END_TEST

START_TEST(deinit_in_mid_frame)
{
    setup(1 << 20);
    struct buf want = queue_some(BATCH_COPY_MAX + 1);

    allowed = 40;
    ck_assert_int_eq(outbox_write(&box, pair[0]), 1);
    put_control(1);
    ck_assert_uint_eq(pool.live, 2);
    outbox_deinit(&box);
    buf_deinit(&want);
    teardown();
}
END_TEST

/* ---- full ---- */

/** A batch whose charge is exactly this. */
static struct batch *batch_charging(size_t charge)
{
    struct batch *batch = new_batch();

    add_message(batch, charge - sizeof *batch - 57);
    batch_seal(batch);
    ck_assert_uint_eq(batch_charge(batch), charge);
    return batch;
}

static void queue_whole(struct batch *batch)
{
    add_range(batch, 0, batch_size(batch));
    (void)batch_unref(batch);
}

static void drop_all(void)
{
    (void)outbox_drop(&box);
    ck_assert_uint_eq(box.n, 0);
    ck_assert_uint_eq(box.charge, 0);
    ck_assert_uint_eq(box.waiting, 0);
}

static void queue_charging(size_t charge)
{
    while (charge > OUTBOX_BYTES_MAX / 2) {
        queue_whole(batch_charging(OUTBOX_BYTES_MAX / 4));
        charge -= OUTBOX_BYTES_MAX / 4;
    }
    queue_whole(batch_charging(charge));
}

START_TEST(full_of_bytes)
{
    setup(1 << 20);
    ck_assert(!outbox_is_full(&box));
    queue_whole(batch_charging(2 * OUTBOX_BYTES_MAX)); /* at the head: not counted */
    ck_assert(!outbox_is_full(&box));
    queue_charging(OUTBOX_BYTES_MAX);
    ck_assert(!outbox_is_full(&box)); /* exactly all, behind it */
    ck_assert_uint_eq(outbox_behind(&box), OUTBOX_BYTES_MAX);
    queue_charging(1000);
    ck_assert(outbox_is_full(&box));
    ck_assert_uint_eq(box.charge, 3 * OUTBOX_BYTES_MAX + 1000);
    drop_all();
    ck_assert(!outbox_is_full(&box));
    teardown();
}
END_TEST

START_TEST(full_of_ranges)
{
    struct batch *batch;

    setup(1 << 20);
    batch = batch_of(0, 0);
    for (unsigned i = 0; i < OUTBOX_ITEMS_MAX; i++) {
        if (outbox_is_full(&box))
            ck_abort_msg("with %u ranges", i);
        if (outbox_add_frame(&box, batch, batch->head, BATCH_BEGIN_SIZE) < 0)
            ck_abort_msg("no memory");
    }
    ck_assert(!outbox_is_full(&box));
    add_begin(batch);
    ck_assert(outbox_is_full(&box));
    ck_assert_uint_eq(box.charge, batch_charge(batch)); /* one batch, charged once */
    ck_assert_uint_eq(batch->refs, OUTBOX_ITEMS_MAX + 2);
    (void)batch_unref(batch);
    write_all();
    ck_assert_uint_eq(received.size, (OUTBOX_ITEMS_MAX + 1) * BATCH_BEGIN_SIZE);
    teardown();
}
END_TEST

START_TEST(full_of_a_large_content)
{
    setup(1 << 20);
    queue_whole(batch_of(0, 2 * OUTBOX_BYTES_MAX)); /* at the head any size may be sent */
    queue_whole(batch_of(0, 100));
    ck_assert(!outbox_is_full(&box));
    drop_all();
    queue_whole(batch_of(0, 100));
    queue_whole(batch_of(0, 2 * OUTBOX_BYTES_MAX));
    ck_assert(outbox_is_full(&box));
    ck_assert_uint_gt(outbox_behind(&box), OUTBOX_BYTES_MAX);
    drop_all();
    teardown();
}
END_TEST

/* ---- the peer ---- */

START_TEST(a_peer_that_is_gone)
{
    setup(1 << 20);
    struct buf want = queue_some(0);

    ck_assert_int_eq(close(pair[1]), 0);
    ck_assert_int_eq(outbox_write(&box, pair[0]), -EPIPE);
    put_control(1);
    ck_assert_int_eq(outbox_write(&box, pair[0]), -EPIPE);
    pair[1] = dup(pair[0]);
    outbox_deinit(&box);
    buf_deinit(&want);
    teardown();
}
END_TEST

/*
 * Random batches, ranges of them, BEGINs, control frames and drops, written to a small socket
 * buffer and read in random pieces. The data frames that come out are those that went in, whole and
 * in order, but for those dropped; a control frame comes before every data frame that begins behind
 * the moment when it was queued.
 */

enum { CONTROLS_MAX = 4000 };

static uint64_t control_at[CONTROLS_MAX]; /* bytes written when control frame i was queued */

static void check_stream(const struct buf *data, uint32_t n_controls)
{
    size_t at = 0, data_at = 0;
    uint32_t seen = 0;

    while (at < received.size) {
        struct frame_header h;

        ck_assert_uint_ge(received.size - at, FRAME_HEADER_SIZE);
        ck_assert_int_eq(frame_header_decode(received.data + at, &h), 0);
        size_t size = FRAME_HEADER_SIZE + h.size;
        ck_assert_uint_ge(received.size - at, size);
        if (h.type == FRAME_REPLY) {
            ck_assert_uint_eq(bytes_get_u32(received.data + at + FRAME_HEADER_SIZE), seen);
            seen++;
        } else {
            ck_assert_uint_ge(data->size - data_at, size);
            ck_assert_mem_eq(received.data + at, data->data + data_at, size);
            data_at += size;
            ck_assert_msg(seen == n_controls || control_at[seen] > at,
                          "a data frame begins at %zu, the control frame was there at %zu", at,
                          (size_t)control_at[seen]);
        }
        at += size;
    }
    ck_assert_uint_eq(seen, n_controls);
    ck_assert_uint_eq(data_at, data->size);
}

static void queue_random(struct unit_random *random, struct buf *data)
{
    size_t last = unit_random_below(random, 12) ? unit_random_below(random, 3000)
                                                : BATCH_COPY_MAX + unit_random_below(random, 3);
    struct batch *batch = batch_of(unit_random_below(random, 30), last);

    if (unit_random_below(random, 3) == 0) {
        add_range(batch, 0, batch_size(batch));
        append_range(data, batch, 0, batch_size(batch));
    } else {
        if (unit_random_below(random, 2)) {
            add_begin(batch);
            buf_append(data, batch->head, BATCH_BEGIN_SIZE);
        }
        for (size_t i = 0; i < batch->n_entries; i++) {
            if (unit_random_below(random, 3) == 0)
                continue;
            add_range(batch, batch->entries[i].offset, batch->entries[i].size);
            append_range(data, batch, batch->entries[i].offset, batch->entries[i].size);
        }
    }
    if (unit_random_below(random, 2))
        batch_settle(batch);
    (void)batch_unref(batch);
}

START_TEST(random_streams)
{
    struct unit_random random = unit_random_init();

    for (unsigned round = 0; round < 4; round++) {
        struct buf data = BUF_INIT;
        uint32_t n_controls = 0;

        setup(4608); /* the kernel's least */
        for (unsigned i = 0; i < 400; i++) {
            switch (unit_random_below(&random, 5)) {
            case 0:
                queue_random(&random, &data);
                break;
            case 1:
                control_at[n_controls] = box.written;
                put_control(n_controls++);
                break;
            case 2:
                (void)receive(1 + unit_random_below(&random, 20000));
                break;
            default:
                if (unit_random_below(&random, 2))
                    allowed = unit_random_below(&random, 5000);
                ck_assert_int_ge(outbox_write(&box, pair[0]), 0);
                allowed = SIZE_MAX;
            }
        }
        write_all();
        check_stream(&data, n_controls);
        ck_assert_uint_eq(box.written, received.size);
        ck_assert_uint_gt(n_controls, 20);
        buf_deinit(&data);
        teardown();
    }
}
END_TEST

START_TEST(random_drops)
{
    struct unit_random random = unit_random_init();
    unsigned mid = 0;

    for (unsigned round = 0; round < 120; round++) {
        struct buf data = BUF_INIT;

        setup(4608);
        for (unsigned i = 0; i < 1 + unit_random_below(&random, 4); i++)
            queue_random(&random, &data);
        for (unsigned i = unit_random_below(&random, 4); i > 0; i--) {
            allowed = unit_random_below(&random, 4000);
            ck_assert_int_ge(outbox_write(&box, pair[0]), 0);
            receive_all();
        }
        data.size = boundary_of(&data, box.written);
        mid += data.size > box.written;
        (void)outbox_drop(&box);
        ck_assert_uint_eq(pool.live, data.size > box.written ? 1 : 0);
        (void)outbox_drop(&box); /* again: the same */
        ck_assert_uint_eq(box.n, data.size > box.written ? 1 : 0);
        queue_random(&random, &data); /* and it can be used on */
        allowed = SIZE_MAX;
        write_all();
        ck_assert(bytes_equal(buf_bytes(&received), buf_bytes(&data)));
        buf_deinit(&data);
        teardown();
    }
    ck_assert_uint_gt(mid, 20);
}
END_TEST

UNIT_MAIN("outbox", ranges_that_follow_are_joined, a_cut_at_every_byte, a_cut_around_the_tail,
          a_cut_within_a_control_frame, deinit_in_mid_frame, full_of_bytes, full_of_ranges,
          full_of_a_large_content, a_peer_that_is_gone, random_streams, random_drops)
