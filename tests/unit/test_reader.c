/* SPDX-License-Identifier: PostgreSQL */
#include "journal/reader.h"

#include "reader_fixture.h"

static struct buf got;
static uint64_t got_messages;

static struct journal_read reader(const struct filter *filters, size_t n, struct position told)
{
    return (struct journal_read){
        .journal = &journal,
        .filters = filters,
        .n_filters = n,
        .everything = n == 1 && filters[0].kind == FILTER_PATTERN &&
                      bytes_equal(filters[0].text, unit_bytes(">")),
        .chunk = READER_CHUNK,
        .told = told,
        .resume = told.index != POSITION_INDEX_NONTRANSACTIONAL && told.index != POSITION_INDEX_END,
    };
}

/* What the outbox is told of a chunk must be so. */
static void check_chunk(const struct journal_read *r, uint64_t skip_before)
{
    size_t at = r->rest, last = r->rest == r->size ? r->size : 0;

    if (r->size > r->chunk)
        ck_abort_msg("%zu bytes", r->size);
    if (skip_before == 0 && r->rest)
        ck_abort_msg("a rest of nothing");
    if (r->owed && r->rest && r->rest != r->size)
        ck_abort_msg("a piece behind a rest");
    while (at < r->size) {
        size_t size = FRAME_HEADER_SIZE + bytes_get_u32(r->data + at);

        last = at;
        at += size;
        if (r->data[last + 4] == FRAME_RECORD)
            ck_abort_msg("a RECORD");
    }
    if (r->last != last)
        ck_abort_msg("last %zu, not %zu of %zu", r->last, last, r->size);
    if (r->rest < r->size && at - r->size != r->owed)
        ck_abort_msg("owed %zu, not %zu", (size_t)r->owed, at - r->size);
    if (r->owed && r->skip == 0)
        ck_abort_msg("nothing to skip");
}

/* A step; its end. */
static enum read_end step(struct journal_read *r)
{
    uint64_t skip = r->skip;

    journal_read_step(r);
    ck_assert(r->end == READ_FAILED || r->error == 0);
    check_chunk(r, skip);
    if (r->data)
        buf_append(&got, r->data, r->size);
    else
        ck_assert_uint_eq(r->size, 0);
    got_messages += r->messages;
    free(r->data);
    r->data = NULL;
    if (r->end == READ_GAP || r->end == READ_DAMAGED) {
        uint8_t *frame = buf_reserve(&got, 300);
        ck_assert_ptr_nonnull(frame);
        got.size += frame_gap_encode(frame, &r->gap);
    }
    return r->end;
}

static void read_all(struct journal_read *r)
{
    buf_clear(&got);
    got_messages = 0;
    for (unsigned i = 0; step(r) != READ_END; i++)
        if (r->end == READ_FAILED || i > 100000)
            ck_abort_msg("end %d: %s", (int)r->end, r->why);
}

static void assert_got(const struct reference *want, size_t skip, const char *what, size_t n)
{
    struct bytes expected = {want->out.data + skip, want->out.size - skip};

    if (!bytes_equal(buf_bytes(&got), expected))
        ck_abort_msg("%s %zu: %zu bytes, not %zu", what, n, got.size, expected.size);
}

/* Everything behind `told` that matches, in chunks of that size. */
static void check_read(const struct filter *filters, size_t n, struct position told, size_t chunk)
{
    struct journal_read r = reader(filters, n, told);
    struct reference want = reference_of(filters, n, told);

    r.chunk = chunk;
    reference_run(&want);
    read_all(&r);
    assert_got(&want, 0, "chunk", chunk);
    if (got_messages != want.messages || position_compare(r.told, want.told) < 0 ||
        r.inside != want.inside || r.resume != want.resume)
        ck_abort_msg("told %lx inside %d resume %d", (unsigned long)r.told.lsn, r.inside, r.resume);
    if (position_compare(r.told, journal.written) < 0)
        ck_abort_msg("not to the end");
    journal_read_deinit(&r);
    buf_deinit(&want.out);
}

static const struct filter everything[] = {{FILTER_PATTERN, {(const uint8_t *)">", 1}}};

/* Records and segments cut transactions anywhere; one is never finished, one is still open, and there are messages between. */
static void some(void)
{
    put_message(0x110, "a.b", 10);
    put_begin(0x120);
    put_message(0x11c, "a.b", 20);
    put_message(0x11d, "c", 0);
    end_record();
    put_message(0x11e, "a.x.y", 700);
    put_commit();
    put_message(0x130, "c.d", 5);
    end_record();
    put_begin(0x140);
    put_message(0x138, "only", 5);
    end_record();
    end_segment();
    put_message(0x139, "a.b", 100);
    end_record();
    put_message(0x13a, "", 3000);
    put_message(0x13b, "c", 90);
    end_record();
    put_commit();
    end_record();
    end_record(); /* nothing but a mark */
    end_segment();
    put_begin(0x150);
    put_message(0x148, "a.b", 9);
    put_message(0x149, "c", 9);
    end_record();
    end_segment();
    put_message(0x14a, "c", 9);
    put_gap((struct position){1, 0x150, 4}, (struct position){1, 0x150, POSITION_INDEX_END});
    put_begin(0x160);
    put_message(0x158, "c", 1);
    put_commit();
    put_gap((struct position){1, 0x161, 0}, (struct position){1, 0x180, 0});
    put_message(0x190, "a.b", 33);
    end_record();
    put_begin(0x1a0);
    put_message(0x198, "a.b", 8);
    put_message(0x199, "c", 8);
    end_record();
}

static const struct filter filters_of_each_kind[][6] = {
    {{FILTER_PATTERN, {(const uint8_t *)">", 1}}},
    {{FILTER_PATTERN, {(const uint8_t *)"a.*", 3}}},
    {{FILTER_PATTERN, {(const uint8_t *)"a.>", 3}}},
    {{FILTER_EXACT, {(const uint8_t *)"c", 1}}},
    {{FILTER_EXACT, {(const uint8_t *)"", 0}}},
    {{FILTER_STARTS_WITH, {(const uint8_t *)"c", 1}}},
    {{FILTER_STARTS_WITH, {(const uint8_t *)"", 0}}},
    {{FILTER_EXACT, {(const uint8_t *)"nobody", 6}}},
    {{FILTER_EXACT, {(const uint8_t *)"only", 4}}, {FILTER_EXACT, {(const uint8_t *)"a.x.y", 5}}},
    {{FILTER_EXACT, {(const uint8_t *)"1", 1}}, /* so many that verdicts are kept */
     {FILTER_EXACT, {(const uint8_t *)"2", 1}},
     {FILTER_EXACT, {(const uint8_t *)"3", 1}},
     {FILTER_EXACT, {(const uint8_t *)"c", 1}},
     {FILTER_PATTERN, {(const uint8_t *)"*.*.y", 5}},
     {FILTER_EXACT, {(const uint8_t *)"5", 1}}},
};

static size_t filters_in(const struct filter *filters)
{
    size_t n = 0;

    while (n < 6 && (n == 0 || filters[n].text.size))
        n++;
    return n;
}

START_TEST(every_filter_from_everywhere_in_every_chunk)
{
    static const size_t chunks[] = {READER_CHUNK, READER_CHUNK_MIN, 513, 700, 1000, 4000};

    journal_setup();
    some();
    for (int restarted = 0; restarted < 2; restarted++) {
        for (size_t i = 0; i < ARRAY_SIZE(filters_of_each_kind); i++) {
            const struct filter *f = filters_of_each_kind[i];
            for (size_t j = 0; j < ARRAY_SIZE(chunks); j++) {
                check_read(f, filters_in(f), (struct position){1, 0x100, 0}, chunks[j]);
                for (size_t k = 0; k < n_entries; k++) { /* from each, and from between */
                    struct position p = entries[k].position;
                    check_read(f, filters_in(f), p, chunks[j]);
                    check_read(f, filters_in(f), (struct position){1, p.lsn + 1, 0}, chunks[j]);
                    check_read(f, filters_in(f),
                               (struct position){1, p.lsn - 1, POSITION_INDEX_END}, chunks[j]);
                }
            }
        }
        journal_reopen();
    }
    journal_teardown();
}
END_TEST

START_TEST(a_position_inside_what_never_was)
{
    journal_setup();
    some();
    check_read(everything, 1, (struct position){1, 0x125, 3}, READER_CHUNK);
    check_read(everything, 1, (struct position){1, 0x170, 2}, READER_CHUNK); /* inside a gap */
    check_read(&filters_of_each_kind[3][0], 1, (struct position){1, 0x125, 3}, READER_CHUNK_MIN);
    check_read(&filters_of_each_kind[7][0], 1, (struct position){1, 0x125, 3}, READER_CHUNK);
    check_read(everything, 1, (struct position){1, 0x1a0, 7}, READER_CHUNK); /* not yet there */
    check_read(everything, 1, (struct position){1, 0x300, 0}, READER_CHUNK);
    journal_teardown();
}
END_TEST

/* What was sent, cut at every byte of every MESSAGE, is gone on with from where the last frame before left the subscriber,
 * past whatever does not match; in one chunk and in many. */
static void skip_every_byte(const struct filter *filters, size_t n)
{
    static const size_t chunks[] = {READER_CHUNK, READER_CHUNK_MIN, 777};
    struct position told = {1, 0x100, 0};
    struct reference want = reference_of(filters, n, told);
    bool inside = false;
    size_t size;

    reference_run(&want);
    for (size_t at = 0; at < want.out.size; at += size) {
        const uint8_t *frame = want.out.data + at, *body = frame + FRAME_HEADER_SIZE;
        size = FRAME_HEADER_SIZE + bytes_get_u32(frame);
        for (size_t skip = 1; frame[4] == FRAME_MESSAGE && skip < size;
             skip += (skip > 300 && skip < size - 100 ? 37 : 1) * unit_sparse()) {
            for (size_t j = 0; j < ARRAY_SIZE(chunks); j++) {
                struct journal_read r = reader(filters, n, told);
                r.inside = inside;
                r.resume = false;
                r.skip = skip;
                r.skip_of = position_decode(body);
                r.chunk = chunks[j];
                read_all(&r);
                assert_got(&want, at + skip, "skip", skip);
                journal_read_deinit(&r);
            }
        }
        inside =
            frame[4] == FRAME_BEGIN || (frame[4] == FRAME_MESSAGE && position_decode(body).index);
        if (frame[4] == FRAME_MESSAGE)
            told = position_decode(body);
        else if (frame[4] == FRAME_BEGIN)
            told = (struct position){1, bytes_get_u64(body + 4), 0};
        else if (frame[4] == FRAME_COMMIT)
            told = (struct position){1, bytes_get_u64(body + 4), POSITION_INDEX_END};
        else if (frame[4] == FRAME_GAP)
            told = position_decode(body + POSITION_SIZE);
    }
    buf_deinit(&want.out);
}

START_TEST(skipping_every_byte)
{
    journal_setup();
    some();
    skip_every_byte(everything, 1);
    skip_every_byte(&filters_of_each_kind[1][0], 1);
    skip_every_byte(&filters_of_each_kind[3][0], 1);
    skip_every_byte(&filters_of_each_kind[4][0], 1);
    journal_teardown();
}
END_TEST

static void assert_lost(struct position told, bool inside, uint64_t skip, struct position of, const struct filter *f)
{
    struct journal_read r = reader(f, 1, told);

    r.inside = inside;
    r.skip = skip;
    r.skip_of = of;
    r.resume = false;
    journal_read_step(&r);
    ck_assert_int_eq(r.end, READ_FAILED);
    ck_assert_int_eq(r.error, ESTALE);
    ck_assert_ptr_null(r.data);
    journal_read_deinit(&r);
}

START_TEST(a_begun_frame_that_is_not_there)
{
    journal_setup();
    some();
    const struct position first = {1, 0x110, 0};
    assert_lost((struct position){1, 0x100, 0}, false, 70, first, everything); /* longer than it is */
    assert_lost((struct position){1, 0x100, 0}, false, 60, (struct position){1, 0x10f, 0}, everything); /* another one */
    assert_lost((struct position){1, 0x100, 0}, false, 60, (struct position){2, 0x110, 0}, everything);
    assert_lost(first, false, 60, first, everything); /* a BEGIN would stand before it */
    assert_lost((struct position){1, 0x140, 4}, true, 10, first, everything); /* a COMMIT */
    assert_lost((struct position){1, 0x150, 3}, true, 10, first, everything); /* a GAP */
    struct journal_read r = reader(everything, 1, (struct position){1, 0x1a0, 2});
    r.inside = true;
    r.resume = false;
    r.skip = 60;
    r.skip_of = (struct position){1, 0x1a0, 3};
    ck_assert_int_eq(step(&r), READ_END); /* not yet there */
    ck_assert_uint_eq(r.skip, 60);
    put_message(0x19a, "c", 300);
    end_record();
    buf_clear(&got);
    ck_assert_int_eq(step(&r), READ_END);
    ck_assert_uint_eq(got.size, entries[n_entries - 1].size - 60);
    journal_read_deinit(&r);
    journal_teardown();
}
END_TEST

/* ---- going on ---- */

START_TEST(what_is_written_meanwhile)
{
    journal_setup();
    struct journal_read r = reader(everything, 1, (struct position){1, 0x100, 0});
    struct reference want = reference_of(everything, 1, r.told);

    read_all(&r);
    ck_assert_uint_eq(got.size, 0);
    for (unsigned i = 0; i < 30; i++) {
        size_t from = n_entries;
        if (i % 7 == 3)
            put_begin(0x1000 + i * 16);
        put_message(0x1008 + i * 16, "a", i * 20);
        if (i % 7 == 5)
            put_commit();
        end_record();
        if (i % 5 == 4)
            end_segment();
        while (from < n_entries)
            reference_pass(&want, &entries[from++]);
        read_all(&r);
        assert_got(&want, 0, "round", i);
        buf_clear(&want.out);
        ck_assert_int_eq(position_compare(r.told, journal.written), 0);
    }
    ck_assert_uint_eq(got_messages, 1);
    journal_read_deinit(&r);
    buf_deinit(&want.out);
    journal_teardown();
}
END_TEST

/* Much that does not match ends a step, so that others get their turn. */
START_TEST(a_step_is_bounded)
{
    static const struct filter none = {FILTER_EXACT, {(const uint8_t *)"nobody", 6}};

    journal_setup();
    for (unsigned i = 0; i < 1200; i++) {
        put_message(0x1000 + i, "a", 10000);
        if (i % 6 == 5)
            end_record();
    }
    struct journal_read r = reader(&none, 1, (struct position){1, 0x100, 0});
    ck_assert_int_eq(step(&r), READ_MORE);
    ck_assert_int_gt(position_compare(r.told, (struct position){1, 0x1000, 0}), 0);
    ck_assert_int_lt(position_compare(r.told, journal.written), 0);
    ck_assert_int_eq(step(&r), READ_END);
    ck_assert_int_eq(position_compare(r.told, journal.written), 0);
    journal_read_deinit(&r);
    journal_teardown();
}
END_TEST

START_TEST(a_prefix_longer_than_a_chunk)
{
    journal_setup();
    uint8_t *prefix = malloc(3000);
    ck_assert_ptr_nonnull(prefix);
    memset(prefix, 'p', 3000);
    struct frame_message f = {
        .position = {1, 0x200, 0}, .prefix = {prefix, 3000}, .content = {prefix, 10}};
    void *owner = NULL;
    ck_assert_int_eq(batch_add_message(journal_batch(), &f, &owner), 0);
    journal_remember(f.position, "", 10);
    put_message(0x210, "q", 10);
    end_record();
    struct filter of_p = {FILTER_STARTS_WITH, {prefix, 2999}},
                  of_q = {FILTER_EXACT, unit_bytes("q")};
    for (int i = 0; i < 2; i++) {
        struct journal_read r = reader(i ? &of_q : &of_p, 1, (struct position){1, 0x100, 0});
        r.chunk = READER_CHUNK_MIN;
        read_all(&r);
        ck_assert_uint_eq(got.size, entries[i].size);
        ck_assert_mem_eq(got.data, all.data + entries[i].at, got.size);
        journal_read_deinit(&r);
    }
    free(prefix);
    journal_teardown();
}
END_TEST

/* ---- gaps ---- */

static void assert_gap(const struct journal_read *r, struct position from, struct position to)
{
    ck_assert_int_eq(position_compare(r->gap.from, from), 0);
    ck_assert_int_eq(position_compare(r->gap.to, to), 0);
    ck_assert_uint_gt(r->gap.reason.size, 0);
    ck_assert_int_eq(position_compare(r->told, to), 0);
}

/* From there on everything is as the reference has it, which was told of the gap. */
static void check_behind_gap(struct journal_read *r, const struct filter *filters, size_t n)
{
    struct reference want = reference_of(filters, n, r->told);

    want.inside = r->inside;
    want.resume = false;
    reference_run(&want);
    read_all(r);
    if (want.inside == false && r->told.index == POSITION_INDEX_END - 1)
        ck_abort_msg("no COMMIT came");
    assert_got(&want, 0, "behind", 0);
    buf_deinit(&want.out);
}

START_TEST(retention_has_passed)
{
    const struct position end = {1, 0x140, POSITION_INDEX_END};

    journal_setup();
    some();
    journal_drop_segment(); /* up to and with 0x140:1 */
    /* from before: the transaction in which the journal begins is swallowed */
    struct journal_read r = reader(everything, 1, (struct position){1, 0x100, 0});
    ck_assert_int_eq(step(&r), READ_GAP);
    assert_gap(&r, (struct position){1, 0x100, 1}, end);
    ck_assert_uint_eq(r.gap.messages, UINT64_MAX);
    ck_assert(!r.inside && !r.resume);
    check_behind_gap(&r, everything, 1);
    journal_read_deinit(&r);
    /* inside of another one */
    r = reader(everything, 1, (struct position){1, 0x120, 2});
    ck_assert(r.resume);
    ck_assert_int_eq(step(&r), READ_GAP);
    assert_gap(&r, (struct position){1, 0x120, 3}, end);
    ck_assert(!r.inside && !r.resume);
    check_behind_gap(&r, everything, 1);
    journal_read_deinit(&r);
    /* exactly where it begins, inside: no gap */
    check_read(everything, 1, (struct position){1, 0x140, 1}, READER_CHUNK);
    /* a transaction of which the subscriber was told the BEGIN: its messages are swallowed, its COMMIT comes */
    r = reader(everything, 1, (struct position){1, 0x140, 0});
    r.inside = true;
    ck_assert_int_eq(step(&r), READ_GAP);
    assert_gap(&r, (struct position){1, 0x140, 1},
               (struct position){1, 0x140, POSITION_INDEX_END - 1});
    ck_assert(r.inside && !r.resume);
    read_all(&r);
    ck_assert_uint_eq(got.data[4], FRAME_COMMIT);
    ck_assert_uint_eq(got.data[5], FRAME_FLAG_INCOMPLETE);
    ck_assert_uint_eq(got.data[FRAME_HEADER_SIZE + FRAME_COMMIT_BODY + 4],
                      FRAME_BEGIN); /* of the next one */
    ck_assert_uint_eq(got_messages, 7);
    journal_read_deinit(&r);
    /* the whole of a begun one is gone */
    r = reader(everything, 1, (struct position){1, 0x120, 1});
    r.inside = true;
    r.resume = false;
    ck_assert_int_eq(step(&r), READ_GAP);
    assert_gap(&r, (struct position){1, 0x120, 2}, end);
    ck_assert(!r.inside);
    journal_read_deinit(&r);
    journal_teardown();
}
END_TEST

START_TEST(retention_passes_a_reader)
{
    journal_setup();
    buf_clear(&got); /* without a process of its own a test finds what the one before has left */
    for (unsigned i = 0; i < 6; i++) {
        put_message(0x1000 + i * 16, "a", 2000);
        end_record();
        end_segment();
    }
    put_message(0x2000, "a", 10);
    end_record();
    struct journal_read r = reader(everything, 1, (struct position){1, 0x100, 0});
    r.chunk = READER_CHUNK_MIN;
    ck_assert_int_eq(step(&r), READ_MORE);
    ck_assert_uint_gt(r.skip, 0);
    journal_drop_segment();
    journal_drop_segment();
    journal_drop_segment();
    /* it reads its own segment to the end, unlinked as that is, and then is told */
    size_t size = got.size;
    while (step(&r) == READ_MORE)
        size = got.size;
    ck_assert_int_eq(r.end, READ_GAP);
    ck_assert_uint_ge(size, entries[0].size - READER_CHUNK_MIN);
    ck_assert_mem_eq(got.data, all.data, entries[0].size);
    assert_gap(&r, (struct position){1, 0x1000, 1}, (struct position){1, 0x1020, 0});
    check_behind_gap(&r, everything, 1);
    ck_assert_uint_eq(got_messages, 4);
    /* nothing lies in a hole that it was told */
    journal_place_drop(&r.place);
    r.told = (struct position){1, 0x1030, 0};
    ck_assert_int_eq(step(&r), READ_MORE);
    journal_drop_segment();
    journal_drop_segment();
    r.told = (struct position){1, 0x1050, 0};
    r.skip = 0;
    read_all(&r);
    ck_assert_uint_eq(got_messages, 1);
    journal_read_deinit(&r);
    journal_teardown();
}
END_TEST

/* A sync has failed: what was read is not there any more, and comes again in the next segment. */
START_TEST(the_end_falls_back)
{
    journal_setup();
    put_message(0x110, "a", 10);
    end_record();
    struct segment_state synced = segment_state_of(journal.segments[0]);
    put_begin(0x120);
    put_message(0x118, "a", 3000);
    end_record();
    struct journal_read r = reader(everything, 1, (struct position){1, 0x100, 0});
    r.chunk = READER_CHUNK_MIN * 2;
    buf_clear(&got);
    while (r.skip == 0)
        ck_assert_int_eq(step(&r), READ_MORE);
    ck_assert(r.inside);
    segment_fall_back(journal.segments[0], &synced);
    n_entries = 1;
    size_t before = got.size;
    ck_assert_int_eq(step(&r), READ_END); /* it waits */
    ck_assert_uint_eq(got.size, before);
    uint64_t skip = r.skip;
    ck_assert_uint_gt(skip, 56);
    end_segment();
    ck_assert_int_eq(step(&r), READ_END);
    transaction.inside = false;
    all.size = entries[1].at;
    put_begin(0x120);
    put_message(0x118, "a", 3000);
    put_commit();
    end_record();
    while (step(&r) != READ_END)
        ck_assert_int_eq(r.end, READ_MORE);
    ck_assert(bytes_equal(buf_bytes(&got), buf_bytes(&all)));
    journal_read_deinit(&r);
    journal_teardown();
}
END_TEST

/* ---- damage ---- */

static void flip(size_t segment, uint64_t at)
{
    uint8_t byte;
    int fd = open(journal.segments[segment]->path, O_RDWR | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 4;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    ck_assert_int_eq(close(fd), 0);
}

START_TEST(damage_is_not_handed_out)
{
    char where[200];

    journal_setup();
    put_message(0x110, "a", 10);
    end_record();
    uint64_t at = journal.segments[0]->end.offset;
    put_message(0x120, "a", 20);
    put_message(0x128, "b", 30);
    end_record();
    end_segment();
    put_message(0x130, "a", 10);
    end_record();
    flip(0, at + RECORD_SIZE + 70);
    journal_reopen();
    for (int i = 0; i < 3; i++) {
        struct journal_read r =
            reader(everything, 1, (struct position){1, i == 2 ? 0x120 : 0x100, 0});
        buf_clear(&got);
        ck_assert_int_eq(step(&r), READ_DAMAGED);
        ck_assert_int_eq(r.first, i == 0);
        assert_gap(&r, (struct position){1, i == 2 ? 0x120 : 0x110, 1},
                   (struct position){1, 0x128, 0});
        /* who stands in what is damaged has had some of it */
        ck_assert_uint_eq(r.gap.messages, i == 2 ? UINT64_MAX : 2);
        ck_assert_uint_eq(r.gap.bytes, i == 2 ? UINT64_MAX : 50);
        (void)snprintf(where, sizeof where, "%s: offset %zu", journal.segments[0]->path,
                       (size_t)at);
        ck_assert_str_eq(r.why, where);
        if (i < 2)
            ck_assert_mem_eq(got.data, all.data, entries[0].size);
        check_behind_gap(&r, everything, 1);
        ck_assert_uint_eq(got_messages, 1);
        journal_read_deinit(&r);
    }
    /* who stands behind it hears nothing of it */
    check_read(everything, 1, (struct position){1, 0x128, 0}, READER_CHUNK);
    journal_teardown();
}
END_TEST

/* At every byte: in no case is anything handed out that was not written. */
START_TEST(damage_at_every_byte)
{
    journal_setup();
    some();
    size_t told = 0;
    for (size_t i = 0; i < 3; i++) {
        uint64_t size = journal.segments[i]->size;
        for (uint64_t at = SEGMENT_HEADER_SIZE; at < size;
             at += (at > 1500 && at < size - 300 ? 53 : 1) * unit_sparse()) {
            flip(i, at);
            journal_reopen();
            struct journal_read r = reader(everything, 1, (struct position){1, 0x100, 0});
            buf_clear(&got);
            enum read_end end;
            unsigned damages = 0;
            while ((end = step(&r)) != READ_END) {
                if (end == READ_FAILED)
                    ck_abort_msg("segment %zu, byte %zu: %s", i, (size_t)at, r.why);
                damages += end == READ_DAMAGED;
            }
            /* the mark that stands last in the second one is nothing that anybody would miss */
            ck_assert_uint_eq(damages, i == 1 && at >= size - RECORD_SIZE ? 0 : 1);
            told += damages;
            /* each frame is one that was written, or the gap, or a BEGIN or COMMIT with its flag; and positions rise */
            struct position last = {0};
            for (size_t f = 0; f < got.size; f += FRAME_HEADER_SIZE + bytes_get_u32(got.data + f)) {
                size_t k = 0, n = FRAME_HEADER_SIZE + bytes_get_u32(got.data + f);
                uint8_t flags = got.data[f + 4] == FRAME_MESSAGE ? got.data[f + 5] : 0;
                if (got.data[f + 4] == FRAME_GAP)
                    continue;
                got.data[f + 5] = flags;
                while (k < n_entries && (entries[k].size != n ||
                                         memcmp(all.data + entries[k].at, got.data + f, n) != 0))
                    k++;
                ck_assert_uint_lt(k, n_entries);
                ck_assert(entries[k].type == FRAME_BEGIN ||
                          position_compare(entries[k].position, last) > 0);
                last = entries[k].position;
            }
            journal_read_deinit(&r);
            flip(i, at);
        }
    }
    journal_reopen();
    ck_assert_uint_gt(told, 1000 / (2 * unit_sparse()));
    check_read(everything, 1, (struct position){1, 0x100, 0}, READER_CHUNK);
    journal_teardown();
}
END_TEST

/* What the disk brings later is no longer verified, but nothing of it may do harm. */
START_TEST(rubbish_behind_the_verification)
{
    struct unit_random random = unit_random_init();

    journal_setup();
    some();
    end_segment();
    put_message(0x500, "c", 5);
    end_record();
    for (unsigned round = 0; round < 3000; round++) {
        size_t i = unit_random_below(&random, 4);
        uint64_t at =
            SEGMENT_HEADER_SIZE +
            unit_random_below(&random, (uint32_t)(journal.segments[i]->size - SEGMENT_HEADER_SIZE));
        struct journal_read r =
            reader(&filters_of_each_kind[round % 4][0], 1,
                   entries[unit_random_below(&random, (uint32_t)n_entries)].position);
        r.chunk = READER_CHUNK_MIN + unit_random_below(&random, 1000);
        if (unit_random_below(&random, 3) == 0) {
            r.skip = unit_random_below(&random, 500);
            r.skip_of = entries[unit_random_below(&random, (uint32_t)n_entries)].position;
        }
        flip(i, at);
        for (unsigned n = 0; n < 200; n++) {
            journal_read_step(&r);
            free(r.data);
            r.data = NULL;
            if (r.end == READ_END || r.end == READ_FAILED)
                break;
        }
        ck_assert_msg(r.end == READ_END || r.end == READ_FAILED, "it goes round");
        journal_read_deinit(&r);
        flip(i, at);
    }
    /* nor may a file that has become shorter, and without a next one there is nowhere to go on */
    ck_assert_int_eq(truncate(journal.segments[journal.n - 1]->path, SEGMENT_HEADER_SIZE + 20), 0);
    struct journal_read r = reader(everything, 1, (struct position){1, 0x300, 0});
    journal_read_step(&r);
    ck_assert_int_eq(r.end, READ_FAILED);
    ck_assert_int_eq(r.error, EBADMSG);
    ck_assert_ptr_nonnull(strstr(r.why, ".segment"));
    journal_read_deinit(&r);
    journal_teardown();
}
END_TEST

START_TEST(a_disk_that_fails)
{
    journal_setup();
    some();
    int fd = journal.segments[0]->fd;
    journal.segments[0]->fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* EISDIR */
    struct journal_read r = reader(everything, 1, (struct position){1, 0x100, 0});
    journal_read_step(&r);
    ck_assert_int_eq(r.end, READ_FAILED);
    ck_assert_int_eq(r.error, EISDIR);
    ck_assert_ptr_null(r.data);
    journal_read_deinit(&r);
    ck_assert_int_eq(close(journal.segments[0]->fd), 0);
    journal.segments[0]->fd = fd;
    check_read(everything, 1, (struct position){1, 0x100, 0}, READER_CHUNK);
    journal_teardown();
}
END_TEST

START_TEST(no_journal_yet)
{
    journal_setup();
    (void)segment_unref(journal.segments[0]);
    journal.n = 0;
    struct journal_read r = reader(everything, 1, (struct position){1, 0x100, 0});
    ck_assert_int_eq(step(&r), READ_END);
    journal_read_deinit(&r);
    journal_teardown();
}
END_TEST

/* ---- at random ---- */

START_TEST(random_reading)
{
    struct unit_random random = unit_random_init();

    for (unsigned round = 0; round < 12; round += unit_sparse()) {
        journal_setup();
        random_journal(&random, 50 + unit_random_below(&random, 900));
        for (unsigned i = 0; i < 60; i++) {
            struct filter filters[8], exclusions[1];
            struct position told =
                entries[unit_random_below(&random, (uint32_t)n_entries)].position;
            struct reference want = reference_of(filters, random_filters(&random, filters), told);
            struct journal_read r = reader(filters, want.n_filters, told);

            if (unit_random_below(&random, 3) == 0) {
                exclusions[0] = (struct filter){
                    FILTER_PATTERN, unit_bytes(unit_random_below(&random, 2) ? "a.b" : "b.>")};
                r.exclusions = want.exclusions = exclusions;
                r.n_exclusions = want.n_exclusions = 1;
                r.everything = false;
            }
            reference_run(&want);
            buf_clear(&got);
            do {
                r.chunk = READER_CHUNK_MIN + unit_random_below(&random, 3000);
                if (unit_random_below(&random, 10) == 0 && !r.skip)
                    journal_place_drop(&r.place); /* it finds the place again */
                ck_assert_int_ne(step(&r), READ_FAILED);
            } while (r.end != READ_END);
            assert_got(&want, 0, "round", round);
            journal_read_deinit(&r);
            buf_deinit(&want.out);
        }
        journal_teardown();
    }
}
END_TEST

UNIT_MAIN("reader", every_filter_from_everywhere_in_every_chunk, a_position_inside_what_never_was,
          skipping_every_byte, a_begun_frame_that_is_not_there, what_is_written_meanwhile,
          a_step_is_bounded, a_prefix_longer_than_a_chunk, retention_has_passed,
          retention_passes_a_reader, the_end_falls_back, damage_is_not_handed_out,
          damage_at_every_byte, rubbish_behind_the_verification, a_disk_that_fails, no_journal_yet,
          random_reading)
