/* SPDX-License-Identifier: PostgreSQL */
#include "session.h"

#include "session_fixture.h"
#include "unit.h"

static void add_begin(struct batch *batch, uint64_t lsn)
{
    struct frame_begin f = {1, lsn, 7, 5, 0};

    ck_assert_int_eq(batch_add_begin(batch, &f), 0);
}

static void add_commit(struct batch *batch, uint64_t lsn)
{
    struct frame_commit f = {{1, lsn, 7, 5, 0}, lsn + 0x30, 3};

    ck_assert_int_eq(batch_add_commit(batch, &f), 0);
}

/** BEGIN, messages `first` to `last`, COMMIT; without BEGIN when `first` is not 1, without COMMIT
 * when open. */
static struct batch *transaction(uint64_t lsn, uint32_t first, uint32_t last, bool open)
{
    struct batch *batch = new_batch();

    if (first == 1) {
        add_begin(batch, lsn);
    } else {
        struct frame_begin f = {1, lsn, 7, 5, 0};
        batch->starts_inside = true;
        (void)frame_begin_encode(batch->begin, &f);
    }
    for (uint32_t i = first; i <= last; i++)
        add_message(batch, lsn, i, 10);
    if (!open)
        add_commit(batch, lsn);
    batch_seal(batch);
    return batch;
}

static void assert_begin(uint64_t lsn, uint8_t flags)
{
    struct bytes body = next(FRAME_BEGIN);
    struct frame_begin f;

    ck_assert_int_eq(frame_begin_decode((struct frame_header){(uint32_t)body.size, FRAME_BEGIN,
                                                              body.data[-FRAME_HEADER_SIZE + 5]},
                                        body.data, &f),
                     0);
    ck_assert_uint_eq(f.commit_lsn, lsn);
    ck_assert_uint_eq(f.flags, flags);
    ck_assert_uint_eq(f.xid, 5);
}

static void assert_commit(uint64_t lsn)
{
    ck_assert_uint_eq(bytes_get_u64(next(FRAME_COMMIT).data + 4), lsn);
    ck_assert_int_eq(position_compare(session->told, (struct position){1, lsn, POSITION_INDEX_END}),
                     0);
    ck_assert(!session->inside);
}

START_TEST(begin_only_around_what_matches)
{
    setup();
    subscribe();
    deliver(transaction(0x100, 1, 1, false), 1); /* its only message does not match */
    assert_silent();
    ck_assert_int_eq(position_compare(session->told, (struct position){1, 0x50, 0}), 0);
    deliver(transaction(0x200, 1, 3, false), 1);
    assert_begin(0x200, 0);
    assert_message(0x200, 2);
    assert_message(0x200, 3);
    assert_commit(0x200);
    assert_silent();
    ck_assert_uint_eq(session->messages, 2);
    /* over several batches; the first match is in the second, whose BEGIN was in the first */
    deliver(transaction(0x300, 1, 1, true), 1);
    assert_silent();
    deliver(transaction(0x300, 2, 3, true), 3);
    assert_begin(0x300, 0);
    assert_message(0x300, 2);
    ck_assert(session->inside);
    deliver(transaction(0x300, 4, 4, false), 0);
    assert_message(0x300, 4);
    assert_commit(0x300);
    /* two in one batch, of which only the second matches, and a message alone */
    struct batch *batch = new_batch();
    add_begin(batch, 0x400);
    add_message(batch, 0x400, 1, 1);
    add_commit(batch, 0x400);
    add_message(batch, 0x430, 0, 1);
    add_begin(batch, 0x500);
    add_message(batch, 0x500, 1, 1);
    add_message(batch, 0x500, 2, 1);
    add_commit(batch, 0x500);
    batch_seal(batch);
    deliver(batch, 1);
    assert_message(0x430, 0);
    assert_begin(0x500, 0);
    assert_message(0x500, 2);
    assert_commit(0x500);
    assert_silent();
    teardown();
}
END_TEST

START_TEST(told_never_falls)
{
    setup();
    subscribe_at((struct position){1, 0x200, 0});
    deliver(transaction(0x100, 1, 3, false), 0); /* before its start */
    assert_silent();
    deliver(transaction(0x200, 1, 2, false), 0);
    assert_begin(0x200, 0);
    assert_message(0x200, 1);
    assert_message(0x200, 2);
    assert_commit(0x200);
    deliver(transaction(0x200, 1, 3, false),
            0); /* again, and longer: at or below what it was told */
    deliver(transaction(0x100, 1, 3, false), 0);
    struct batch *batch = new_batch();
    add_message(batch, 0x200, 0, 1);
    batch_seal(batch);
    deliver(batch, 0);
    assert_silent();
    ck_assert_int_eq(
        position_compare(session->told, (struct position){1, 0x200, POSITION_INDEX_END}), 0);
    teardown();
}
END_TEST

START_TEST(resumed_within_a_transaction)
{
    /* with a rest, in its own batch and in one that starts inside */
    for (int inside = 0; inside < 2; inside++) {
        setup();
        subscribe_at((struct position){1, 0x100, 2});
        ck_assert(session->resume);
        deliver(transaction(0x100, inside ? 2 : 1, 4, false), 0);
        assert_begin(0x100, FRAME_FLAG_RESUMED);
        assert_message(0x100, 3);
        assert_message(0x100, 4);
        assert_commit(0x100);
        ck_assert(!session->resume);
        deliver(transaction(0x200, 1, 1, false), 0);
        assert_begin(0x200, 0);
        assert_message(0x200, 1);
        assert_commit(0x200);
        assert_silent();
        teardown();
        /* without a rest: still BEGIN and COMMIT */
        setup();
        subscribe_at((struct position){1, 0x100, 2});
        deliver(transaction(0x100, inside ? 2 : 1, 2, false), 0);
        assert_begin(0x100, FRAME_FLAG_RESUMED);
        assert_commit(0x100);
        assert_silent();
        teardown();
    }
    /* the frame of the batch itself is not touched */
    setup();
    subscribe_at((struct position){1, 0x100, 1});
    struct batch *batch = transaction(0x100, 1, 2, false);
    (void)batch_ref(batch);
    deliver(batch, 0);
    ck_assert_uint_eq(batch->head[5], 0);
    (void)batch_unref(batch);
    teardown();
    /* at an end, or at a message outside of transactions, there is nothing to resume */
    setup();
    subscribe_at((struct position){1, 0x100, POSITION_INDEX_END});
    ck_assert(!session->resume);
    deliver(transaction(0x100, 1, 2, false), 0);
    assert_silent();
    teardown();
}
END_TEST

/** The next frame is a GAP of these bounds, of which nothing more is known. */
static void assert_gap(struct position from, struct position to)
{
    struct bytes body = next(FRAME_GAP);
    struct frame_gap gap;

    ck_assert_int_eq(
        frame_gap_decode((struct frame_header){(uint32_t)body.size, FRAME_GAP, 0}, body.data, &gap),
        0);
    ck_assert_int_eq(position_compare(gap.from, from), 0);
    ck_assert_int_eq(position_compare(gap.to, to), 0);
    ck_assert_uint_eq(gap.messages, UINT64_MAX);
    ck_assert_uint_eq(gap.bytes, UINT64_MAX);
    ck_assert_uint_gt(gap.reason.size, 0);
    ck_assert_int_eq(position_compare(session->told, to), 0);
    ck_assert(!session->inside && !session->resume);
}

START_TEST(resumed_where_another_transaction_goes_on)
{
    setup();
    subscribe_at((struct position){1, 0x100, 2});
    deliver(transaction(0x200, 1, 1, false), 0);
    struct bytes body =
        next(FRAME_GAP); /* told is beyond it by now: the rest was delivered in the same turn */
    ck_assert_uint_gt(body.size, FRAME_GAP_FIXED);
    ck_assert_int_eq(position_compare(position_decode(body.data), (struct position){1, 0x100, 3}),
                     0);
    ck_assert_int_eq(position_compare(position_decode(body.data + POSITION_SIZE),
                                      (struct position){1, 0x100, POSITION_INDEX_END}),
                     0);
    assert_begin(0x200, 0);
    assert_message(0x200, 1);
    assert_commit(0x200);
    assert_silent();
    teardown();
    /* only a COMMIT of it matches */
    setup();
    subscribe_at((struct position){1, 0x100, 2});
    deliver(transaction(0x200, 1, 1, false), 1);
    assert_gap((struct position){1, 0x100, 3}, (struct position){1, 0x100, POSITION_INDEX_END});
    assert_silent();
    teardown();
    /* the same LSN of another timeline is another transaction */
    setup();
    subscribe_at((struct position){0, 0x100, 2});
    deliver(transaction(0x100, 1, 1, false), 1);
    assert_gap((struct position){0, 0x100, 3}, (struct position){0, 0x100, POSITION_INDEX_END});
    teardown();
    /* one that stands before it comes again: nothing of it, and it is waited on */
    setup();
    subscribe_at((struct position){1, 0x100, 2});
    deliver(transaction(0x80, 1, 1, false), 0);
    assert_silent();
    ck_assert(session->resume);
    deliver(transaction(0x100, 3, 3, false), 0);
    assert_begin(0x100, FRAME_FLAG_RESUMED);
    assert_message(0x100, 3);
    assert_commit(0x100);
    teardown();
}
END_TEST

static void send_gap(struct position to, const char *reason)
{
    session_send_gap(session, &pool, to, UINT64_MAX, UINT64_MAX, reason);
    if (session)
        session_flush(session);
}

START_TEST(a_gap_swallows_what_is_open)
{
    setup();
    subscribe();
    deliver(transaction(0x100, 1, 2, true), 0);
    assert_begin(0x100, 0);
    assert_message(0x100, 1);
    assert_message(0x100, 2);
    ck_assert(session->inside);
    send_gap((struct position){1, 0x100, POSITION_INDEX_END}, "never finished");
    assert_gap((struct position){1, 0x100, 3}, (struct position){1, 0x100, POSITION_INDEX_END});
    send_gap(session->told, "nothing lies between");
    send_gap((struct position){1, 0x80, 0}, "it has passed");
    assert_silent();
    send_gap((struct position){1, 0x180, 0}, "because");
    assert_gap((struct position){1, 0x101, 0}, (struct position){1, 0x180, 0});
    deliver(transaction(0x180, 1, 1, false), 0);
    assert_begin(0x180, 0);
    assert_message(0x180, 1);
    assert_commit(0x180);
    teardown();
}
END_TEST

/** A GAP as an entry of a batch, with a message behind it. */
static struct batch *gap_batch(struct position from, struct position to, uint64_t lsn)
{
    struct batch *batch = new_batch();
    struct frame_gap gap = {from, to, 3, 40, unit_bytes("accepted")};

    ck_assert_int_eq(batch_add_gap(batch, &gap), 0);
    add_message(batch, lsn, 0, 5);
    batch_seal(batch);
    return batch;
}

static struct frame_gap next_gap(void)
{
    struct bytes body = next(FRAME_GAP);
    struct frame_gap gap;

    ck_assert_int_eq(
        frame_gap_decode((struct frame_header){(uint32_t)body.size, FRAME_GAP, 0}, body.data, &gap),
        0);
    return gap;
}

START_TEST(a_gap_that_stands_in_the_journal)
{
    const struct position from = {1, 0x140, 1}, to = {1, 0x180, 0};

    for (int everything = 0; everything < 2; everything++) {
        /* to whoever stands before it: as it is, whether anything of its range would have matched or not */
        setup();
        subscribe();
        session->member.everything = everything;
        deliver(transaction(0x100, 1, 1, true), 0);
        assert_begin(0x100, 0);
        assert_message(0x100, 1);
        struct batch *batch = gap_batch(from, to, 0x200);
        ck_assert(!session_send_batch(session, batch)); /* it may begin before what was told */
        deliver(batch, 0);
        struct frame_gap gap = next_gap();
        ck_assert_int_eq(position_compare(gap.from, from), 0);
        ck_assert_int_eq(position_compare(gap.to, to), 0);
        ck_assert_uint_eq(gap.messages, 3);
        ck_assert_uint_eq(gap.bytes, 40);
        assert_message(0x200, 0);
        ck_assert(!session->inside); /* what was open is swallowed */
        teardown();
        /* to whoever stands in it: from there on */
        setup();
        subscribe_at((struct position){1, 0x150, 4});
        session->member.everything = everything;
        deliver(gap_batch(from, to, 0x200), 0);
        gap = next_gap();
        ck_assert_int_eq(position_compare(gap.from, (struct position){1, 0x150, 5}), 0);
        ck_assert_int_eq(position_compare(gap.to, to), 0);
        ck_assert_uint_eq(gap.messages, UINT64_MAX);
        ck_assert_uint_eq(gap.bytes, UINT64_MAX);
        ck_assert(!session->resume);
        assert_message(0x200, 0);
        teardown();
        /* to whoever stands behind it: not at all */
        setup();
        subscribe_at(to);
        session->member.everything = everything;
        deliver(gap_batch(from, to, 0x200), 0);
        assert_message(0x200, 0);
        assert_silent();
        teardown();
    }
}
END_TEST

START_TEST(incomplete)
{
    setup();
    subscribe();
    deliver(transaction(0x100, 1, 2, true), 0);
    assert_begin(0x100, 0);
    assert_message(0x100, 1);
    assert_message(0x100, 2);
    /* as a reader leaves it, when retention has dropped messages of the transaction */
    session->told = (struct position){1, 0x100, POSITION_INDEX_END - 1};
    deliver(transaction(0x100, 7, 9, false), 0);
    struct bytes body = next(FRAME_COMMIT);
    ck_assert_uint_eq(body.data[-FRAME_HEADER_SIZE + 5], FRAME_FLAG_INCOMPLETE);
    ck_assert_uint_eq(bytes_get_u64(body.data + 4), 0x100);
    ck_assert(!session->inside);
    deliver(transaction(0x200, 1, 1, false), 0);
    assert_begin(0x200, 0);
    assert_message(0x200, 1);
    body = next(FRAME_COMMIT);
    ck_assert_uint_eq(body.data[-FRAME_HEADER_SIZE + 5], 0);
    /* who gets everything gets no batch whole that begins with the COMMIT */
    session->member.everything = true;
    deliver(transaction(0x300, 1, 1, true), 0);
    assert_begin(0x300, 0);
    assert_message(0x300, 1);
    session->told = (struct position){1, 0x300, POSITION_INDEX_END - 1};
    struct batch *rest = transaction(0x300, 9, 8, false);
    ck_assert(!session_send_batch(session, rest));
    deliver(rest, 0);
    body = next(FRAME_COMMIT);
    ck_assert_uint_eq(body.data[-FRAME_HEADER_SIZE + 5], FRAME_FLAG_INCOMPLETE);
    teardown();
}
END_TEST

/* Without a journal there is nothing to go back to. */
START_TEST(full_without_a_journal)
{
    setup();
    subscribe();
    for (unsigned i = 0; i <= OUTBOX_ITEMS_MAX && session->state == SESSION_ACTIVE; i++) {
        struct batch *batch = transaction(0x100 + i * 0x10, 1, 1, false);
        (void)session_send_message(session, batch, &batch->entries[1], &batch->entries[0]);
        session_send_commit(session, batch, &batch->entries[2], NULL);
        (void)batch_unref(batch);
    }
    ck_assert_int_eq(session->state, SESSION_LEAVING);
    ck_assert_uint_eq(session->messages, 0); /* what was dropped does not count as queued */
    session_flush(session);
    assert_fatal(CONTROL_ERROR_TOO_SLOW, NULL);
    teardown();
}
END_TEST

/** Delivers a batch whole; what session_send_batch said. Gives the batch away. */
static bool send_batch(struct batch *batch)
{
    bool taken_whole = session_send_batch(session, batch);

    session_flush(session);
    (void)batch_unref(batch);
    return taken_whole;
}

START_TEST(whole_batches)
{
    setup();
    subscribe();
    ck_assert(!send_batch(transaction(0x100, 1, 2, false))); /* it has filters */
    session->member.everything = true;
    ck_assert(!send_batch(transaction(0x50, 2, 2, false))); /* inside of what it does not know */
    ck_assert(!send_batch(new_batch()));                    /* no frames */
    assert_silent();
    ck_assert(send_batch(transaction(0x100, 1, 2, true)));
    ck_assert(session->inside);
    ck_assert_int_eq(position_compare(session->told, (struct position){1, 0x100, 2}), 0);
    ck_assert(send_batch(transaction(0x100, 3, 3, true)));
    ck_assert(send_batch(transaction(0x100, 4, 3, false))); /* only the COMMIT */
    assert_begin(0x100, 0);
    for (uint32_t i = 1; i <= 3; i++)
        assert_message(0x100, i);
    assert_commit(0x100);
    ck_assert_uint_eq(session->messages, 3);
    /* told before, in part or all: entry by entry */
    ck_assert(!send_batch(transaction(0x100, 1, 2, false)));
    struct batch *batch = new_batch();
    add_message(batch, 0x100, 0, 1);
    add_message(batch, 0x200, 0, 1);
    batch_seal(batch);
    ck_assert(!session_send_batch(session, batch));
    deliver(batch, 0);
    assert_message(0x200, 0);
    batch = new_batch(); /* exactly its first */
    add_message(batch, 0x200, 0, 1);
    batch_seal(batch);
    ck_assert(!send_batch(batch));
    assert_silent();
    teardown();
    /* one that resumes must have its BEGIN flagged */
    setup();
    subscribe_at((struct position){1, 0x100, 1});
    session->member.everything = true;
    ck_assert(!send_batch(transaction(0x200, 1, 2, false)));
    teardown();
}
END_TEST

START_TEST(nothing_before_it_is_active)
{
    setup();
    greet();
    session->member.everything = true;
    ck_assert(!session_send_batch(session, (struct batch *)NULL));
    deliver(transaction(0x100, 1, 2, false), 0);
    session_send_progress(session, (struct position){1, 0x900, 0});
    assert_silent();
    ck_assert(position_is_zero(session->told));
    teardown();
}
END_TEST

START_TEST(progress_only_when_idle)
{
    static const struct position p = {1, 0x180, 0};

    setup();
    subscribe();
    session_send_progress(session, (struct position){1, 0x50, 0}); /* no news */
    session_send_progress(session, (struct position){1, 0x4f, 9});
    session_flush(session);
    assert_silent();
    deliver(transaction(0x100, 1, 1, true), 0);
    assert_begin(0x100, 0);
    assert_message(0x100, 1);
    session_send_progress(session, p); /* inside */
    session_flush(session);
    assert_silent();
    struct batch *batch = transaction(0x100, 2, 1, false);
    session_send_commit(session, batch, &batch->entries[0], NULL);
    (void)batch_unref(batch);
    session_send_progress(session, p); /* the COMMIT still waits to be written */
    session_flush(session);
    assert_commit(0x100);
    assert_silent();
    session_send_progress(session, p);
    session_flush(session);
    ck_assert_int_eq(position_compare(position_decode(next(FRAME_PROGRESS).data), p), 0);
    ck_assert_int_eq(position_compare(session->told, p), 0);
    session_send_progress(session, p); /* once */
    session_flush(session);
    assert_silent();
    teardown();
    /* not while it waits for the rest of a transaction */
    setup();
    subscribe_at((struct position){1, 0x100, 1});
    session_send_progress(session, p);
    session_flush(session);
    assert_silent();
    teardown();
}
END_TEST

UNIT_MAIN("session_delivery", begin_only_around_what_matches, told_never_falls,
          resumed_within_a_transaction, resumed_where_another_transaction_goes_on,
          a_gap_swallows_what_is_open, a_gap_that_stands_in_the_journal, incomplete,
          full_without_a_journal, whole_batches, nothing_before_it_is_active,
          progress_only_when_idle)
