/* SPDX-License-Identifier: PostgreSQL */
#include "durable_fixture.h"

/* ---- names ---- */

START_TEST(kept)
{
    struct filter filters[] = {{FILTER_PATTERN, unit_bytes("a.>")}, {FILTER_EXACT, unit_bytes("b")}};
    struct filter exclusion = {FILTER_STARTS_WITH, unit_bytes("a.x")};
    struct durable *d;

    setup();
    ck_assert_uint_eq(durables_count(ds), 0);
    ck_assert_ptr_null(durables_find(ds, unit_bytes("worker")));
    ck_assert_ptr_null(durables_find(ds, unit_bytes("")));
    journal.running_ms = 500;
    ck_assert_int_eq(durables_add(ds, unit_bytes("worker"), filters, 2, &exclusion, 1, at(0x50, 2), &d), 0);
    ck_assert(!durable_is_stored(d));
    uint64_t ticket = durables_ticket(ds);
    ck_assert(!durables_is_done(ds, ticket));
    wait_until(durable_is_stored(d));
    ck_assert(durables_is_done(ds, ticket));
    ck_assert(durables_is_done(ds, durables_ticket(ds)));
    ck_assert_uint_eq(told.stored, 1);
    reopen();

    d = find_name("worker");
    ck_assert_uint_eq(durables_count(ds), 1);
    ck_assert_ptr_eq(durables_at(ds, 0), d);
    ck_assert(durable_is_stored(d));
    unit_assert_text(d->name, "worker");
    ck_assert_uint_eq(d->name.data[6], 0);
    ck_assert_uint_eq(d->filters->n_filters, 2);
    ck_assert_uint_eq(d->filters->n_exclusions, 1);
    unit_assert_text(d->filters->filters[1].text, "b");
    ck_assert_int_eq(d->filters->exclusions[0].kind, FILTER_STARTS_WITH);
    assert_at(durable_stands(ds, d), 0x50, 2);
    ck_assert(d->resumes);
    ck_assert_uint_eq(d->made_ms, 500);
    ck_assert_uint_eq(d->seen_ms, 500);
    ck_assert_ptr_null(d->holder);
    teardown();
}
END_TEST

START_TEST(listed_by_name)
{
    static const char *const names[] = {"b", "ab", "a", "c", "B", "\xc3\xa9", "abc"};
    static const char *const want[] = {"B", "a", "ab", "abc", "b", "c", "\xc3\xa9"};

    setup();
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        (void)add_name(names[i], ">", at(1, 0));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        unit_assert_text(durables_at(ds, i)->name, want[i]);
        ck_assert_ptr_eq(find_name(want[i]), durables_at(ds, i));
    }
    teardown();
}
END_TEST

START_TEST(removed)
{
    setup();
    (void)add_name("a", ">", at(1, 0));
    (void)add_name("b", ">", at(1, 0));
    (void)add_name("c", ">", at(1, 0));
    settle();
    durables_remove(ds, find_name("b"));
    ck_assert_uint_eq(durables_count(ds), 2);
    ck_assert_ptr_null(durables_find(ds, unit_bytes("b")));
    settle();
    reopen();
    ck_assert_uint_eq(durables_count(ds), 2);
    ck_assert_ptr_null(durables_find(ds, unit_bytes("b")));

    /* removed and made anew in one commit, and one that never got so far */
    durables_remove(ds, find_name("a"));
    (void)add_name("a", "new.>", at(2, 0));
    durables_remove(ds, add_name("d", ">", at(2, 0)));
    settle();
    reopen();
    ck_assert_uint_eq(durables_count(ds), 2);
    unit_assert_text(find_name("a")->filters->filters[0].text, "new.>");
    assert_at(find_name("a")->cursor, 2, 0);

    /* removed while it is being written */
    struct durable *e = add_name("e", ">", at(2, 0));
    hold_commit(e);
    durables_remove(ds, e);
    let_commit();
    settle();
    reopen();
    ck_assert_uint_eq(durables_count(ds), 2);
    teardown();
}
END_TEST

/* ---- acknowledgement ---- */

START_TEST(acknowledged)
{
    setup();
    struct durable *d = add_name("a", ">", at(0x10, 0));
    hold(d);
    settle();
    durable_acked(ds, d, at(0x20, 0), false);
    assert_at(durable_stands(ds, d), 0x20, 0);
    durable_acked(ds, d, at(0x15, 0), false); /* never back */
    assert_at(durable_stands(ds, d), 0x20, 0);
    assert_at(d->sent, 0x20, 0); /* what is acknowledged was sent */
    settle();
    ck_assert_uint_eq(told.confirmed, 0);
    reopen();
    assert_at(find_name("a")->cursor, 0x20, 0);
    teardown();
}
END_TEST

START_TEST(confirmed)
{
    setup();
    struct durable *d = add_name("a", ">", at(0x10, 0)), *b = add_name("b", ">", at(0x10, 0));
    hold(d);
    durable_hold(ds, b, holder(1), 11);
    settle();
    unsigned stored = told.stored;
    for (uint64_t lsn = 0x20; lsn < 0x40; lsn++)
        durable_acked(ds, d, at(lsn, 0), lsn % 2);
    ck_assert_uint_eq(told.confirmed, 0);
    wait_until(told.confirmed);
    ck_assert_uint_eq(told.confirmed, 1); /* one commit, one word */
    ck_assert_uint_eq(told.stored, stored + 1);
    ck_assert_ptr_eq(told.which, d);
    assert_at(told.position, 0x3f, 0);

    durable_acked(ds, d, at(0x3f, 0), true); /* there already: at once */
    ck_assert_uint_eq(told.confirmed, 2);
    durable_acked(ds, d, at(0x3d, 0), true);
    ck_assert_uint_eq(told.confirmed, 3);
    assert_at(told.position, 0x3d, 0);

    /* What came while a commit was under way waits for the next. */
    durable_acked(ds, d, at(0x50, 0), true);
    hold_commit(d);
    durable_acked(ds, d, at(0x60, 0), true);
    durable_acked(ds, b, at(0x60, 0), true);
    let_commit();
    wait_until(told.confirmed == 5);
    wait_until(told.stored == stored + 3);
    ck_assert_uint_eq(told.confirmed, 5);

    /* Who is gone is not told. */
    durable_acked(ds, d, at(0x70, 0), true);
    durable_release(ds, d, false);
    settle();
    ck_assert_uint_eq(told.confirmed, 5);
    durable_hold(ds, d, holder(2), 12);
    durable_acked(ds, d, at(0x80, 0), true);
    durable_hold(ds, d, holder(3), 13); /* taken over */
    settle();
    ck_assert_uint_eq(told.confirmed, 5);
    teardown();
}
END_TEST

/* Nobody waits: one commit in DURABLE_COMMIT_MS, whatever comes. */
START_TEST(paced)
{
    setup();
    struct durable *d = add_name("a", ">", at(0x10, 0));
    hold(d);
    settle();
    told.stored = 0;
    uint64_t begin = clock_monotonic_ns(), lsn = 0x20;
    while (clock_monotonic_ns() - begin < 3 * DURABLE_COMMIT_MS * UINT64_C(1000000)) {
        durable_acked(ds, d, at(lsn++, 0), false);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        (void)usleep(500);
    }
    ck_assert_uint_ge(told.stored, 1);
    ck_assert_uint_le(told.stored, 4);
    teardown();
}
END_TEST

/* ---- what may come again ---- */

START_TEST(sent_after_a_clean_stop)
{
    setup();
    ck_assert(durables_is_bound(ds)); /* nobody was ever sent anything */
    struct durable *d = add_name("a", ">", at(0x10, 0));
    hold(d);
    durable_sent(ds, d, at(0x40, 0));
    durable_sent(ds, d, at(0x30, 0));
    durable_acked(ds, d, at(0x20, 0), false);
    durable_release(ds, d, false);
    stop_cleanly();
    ck_assert(durables_is_bound(ds));
    assert_at(find_name("a")->cursor, 0x20, 0);
    assert_at(find_name("a")->sent, 0x40, 0);
    durables_bound(ds, at(0x90, 0), true); /* the first connect: known already */
    assert_at(find_name("a")->sent, 0x40, 0);
    teardown();
}
END_TEST

START_TEST(sent_after_an_unclean_stop)
{
    setup();
    (void)add_name("a", ">", at(0x10, 0));
    settle();
    reopen();
    ck_assert(!durables_is_bound(ds));
    /* stopped before the server was ever reached: what is not known does not become known by that */
    stop_cleanly();
    ck_assert(!durables_is_bound(ds));
    durables_bound(ds, at(0x90, 0), true);
    ck_assert(durables_is_bound(ds));
    assert_at(find_name("a")->sent, 0x90, 0);
    durables_bound(ds, at(0xa0, 0), true); /* of another connect */
    assert_at(find_name("a")->sent, 0x90, 0);
    ck_assert(position_is_zero(add_name("new", ">", at(0x10, 0))->sent));
    teardown();
}
END_TEST

/* ---- floating ---- */

START_TEST(floats_until_something_matches)
{
    setup();
    struct durable *d = add_name("a", "a.>", at(0x10, 0)), *other = add_name("b", "b.>", at(0x10, 0));
    ck_assert(durables_float(ds));
    route_message(0x20, "c");
    assert_at(durable_stands(ds, d), 0x20, 0);
    route_parts((struct part[]){{0}}, at(0x30, POSITION_INDEX_END)); /* a mark alone */
    assert_at(durable_stands(ds, d), 0x30, POSITION_INDEX_END);
    const struct part parts[] = {{FRAME_BEGIN, 0x40, 0, NULL},
                                 {FRAME_MESSAGE, 0x40, 1, "c"},
                                 {FRAME_MESSAGE, 0x40, 2, "a.b"},
                                 {FRAME_MESSAGE, 0x40, 3, "a.c"},
                                 {FRAME_COMMIT, 0x40, 0, NULL},
                                 {0}};
    route_parts(parts, at(0x40, POSITION_INDEX_END));
    assert_at(durable_stands(ds, d), 0x30, POSITION_INDEX_END); /* in front of what matched */
    assert_at(durable_stands(ds, other), 0x40, POSITION_INDEX_END);
    ck_assert(!d->floats);
    ck_assert(other->floats);
    struct route_set set;
    ck_assert_int_eq(route_lookup(route, unit_bytes("a.b"), &set), 0);
    ck_assert_uint_eq(set.n, 0); /* it costs nothing any more */
    route_message(0x50, "a.d");
    assert_at(durable_stands(ds, d), 0x30, POSITION_INDEX_END);
    route_message(0x60, "b.d");
    ck_assert(!durables_float(ds));

    /* That it has floated is known after a clean stop. */
    stop_cleanly();
    assert_at(find_name("a")->cursor, 0x30, POSITION_INDEX_END);
    assert_at(find_name("b")->cursor, 0x50, 0);
    ck_assert(!durables_float(ds));
    teardown();
}
END_TEST

START_TEST(floats_again_after_a_restart)
{
    setup();
    (void)add_name("a", "a.>", at(0x10, 0));
    (void)add_name("pending", "c", at(0x10, 0));
    route_message(0x20, "c");
    stop_cleanly();
    ck_assert(find_name("a")->floats);
    ck_assert(!find_name("pending")->floats);
    assert_at(durable_stands(ds, find_name("a")), 0x20, 0);
    route_message(0x30, "d");
    assert_at(durable_stands(ds, find_name("a")), 0x30, 0);
    teardown();
}
END_TEST

/* What the server sends again, after the journal lost its unsynced end, is no news to whom it has passed. */
START_TEST(what_comes_again_does_not_match)
{
    setup();
    struct durable *d = add_name("a", "a.>", at(0x30, 0));
    ck_assert(d->floats);
    route_message(0x20, "a.b");
    route_message(0x30, "a.b");
    ck_assert(d->floats);
    assert_at(durable_stands(ds, d), 0x30, 0);
    route_message(0x31, "a.b");
    ck_assert(!d->floats);
    assert_at(durable_stands(ds, d), 0x30, 0);
    teardown();
}
END_TEST

/* The journal ends after its first message, whatever was routed. */
static void cut_end(void)
{
    journal.n_messages = 1;
    journal.end.last = journal.segments[0].last = journal.messages[0].position;
}

/* What was routed is not in the journal yet: a name that is moved to its end must not float over it. */
START_TEST(moved_behind_what_is_routed)
{
    setup();
    fake_journal_add(&journal, at(0x10, 0), "a", 10);
    struct durable *d = add_name("a", "a", at(0x10, 0));
    route_message(0x20, "a");
    cut_end();
    assert_at(durable_stands(ds, d), 0x10, 0);
    durable_move(ds, d, at(0x10, 0));
    ck_assert(!d->floats);
    assert_at(durable_stands(ds, d), 0x10, 0);
    durable_move(ds, d, at(0x20, 0));
    ck_assert(d->floats);
    struct durable *other = add_name("b", "a", at(0x10, 0));
    ck_assert(!other->floats);
    assert_at(durable_stands(ds, other), 0x10, 0);
    teardown();
}
END_TEST

/* A disk that was full: who floated has had nothing that comes again, who was behind gets it. */
START_TEST(the_journal_lost_its_end)
{
    setup();
    fake_journal_add(&journal, at(0x10, 0), "a", 10);
    struct durable *floats = add_name("a", "b", at(0x10, 0)), *held = add_name("b", "a", at(0x10, 0));
    hold(held);
    route_message(0x20, "a");
    route_message(0x30, "a");
    assert_at(durable_stands(ds, floats), 0x30, 0);
    cut_end();
    durables_fell_back(ds);
    assert_at(durable_stands(ds, floats), 0x30, 0);
    durable_release(ds, held, true); /* it was told up to the journal's end */
    ck_assert(held->floats);
    assert_at(durable_stands(ds, held), 0x10, 0);
    route_message(0x20, "a");
    ck_assert(!held->floats);
    assert_at(durable_stands(ds, held), 0x10, 0);
    route_message(0x30, "b"); /* it cannot be, but the place is passed */
    ck_assert(floats->floats);
    route_message(0x40, "b");
    ck_assert(!floats->floats);
    assert_at(durable_stands(ds, floats), 0x30, 0);
    teardown();
}
END_TEST

START_TEST(a_gap_is_for_everybody)
{
    setup();
    struct durable *d = add_name("a", "nothing", at(0x10, 0)), *ahead = add_name("b", "nothing", at(0x50, 0));
    route_parts((struct part[]){{FRAME_GAP, 0x40, 0, NULL}, {0}}, at(0x40, 0));
    ck_assert(!d->floats);
    assert_at(durable_stands(ds, d), 0x10, 0);
    ck_assert(ahead->floats);
    teardown();
}
END_TEST

/* A transaction of which nothing matched so far is no place to stand: its beginning is still to come. */
START_TEST(in_front_of_a_transaction)
{
    setup();
    struct durable *d = add_name("a", "a", at(0x10, 0));
    route_parts((struct part[]){{FRAME_BEGIN, 0x40, 0, NULL}, {FRAME_MESSAGE, 0x40, 1, "c"}, {0}}, at(0, 0));
    assert_at(durable_stands(ds, d), 0x40, 1); /* nothing before is needed … */
    hold(d);
    assert_at(durable_stands(ds, d), 0x40, 0); /* … but it begins with it */
    ck_assert(!d->resumes);
    durable_release(ds, d, true);
    ck_assert(d->floats);
    /* the journal has lost the beginning: that is nobody's gap */
    fake_journal_cut(&journal);
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    hold(d);
    assert_at(durable_stands(ds, d), 0x40, 1);
    ck_assert(!d->resumes);
    ck_assert(!d->gap.is);
    teardown();
}
END_TEST

START_TEST(held_and_let_go)
{
    setup();
    struct durable *d = add_name("a", "a", at(0x10, 0));
    journal.running_ms = 7000;
    durable_hold(ds, d, holder(1), 77);
    ck_assert(!d->floats);
    ck_assert_ptr_eq(d->holder, holder(1));
    ck_assert_int_eq(d->holder_pid, 77);
    ck_assert_uint_eq(d->seen_ms, 7000);
    route_message(0x20, "b");
    assert_at(durable_stands(ds, d), 0x10, 0); /* the session's told is another matter */
    durable_float(ds, d, at(0x20, 0));
    assert_at(durable_stands(ds, d), 0x20, 0);
    durable_float(ds, d, at(0x15, 0));
    assert_at(durable_stands(ds, d), 0x20, 0);
    journal.running_ms = 9000;
    durable_release(ds, d, true);
    ck_assert_ptr_null(d->holder);
    ck_assert_uint_eq(d->seen_ms, 9000);
    ck_assert(d->floats);
    durable_float(ds, d, at(0x90, 0)); /* only while held */
    assert_at(durable_stands(ds, d), 0x20, 0);

    hold(d); /* let go with something unacknowledged */
    route_message(0x30, "b");
    durable_release(ds, d, false);
    ck_assert(!d->floats);
    route_message(0x40, "b");
    assert_at(durable_stands(ds, d), 0x20, 0);

    hold(d); /* inside a transaction: its end is still to come */
    durable_acked(ds, d, at(0x40, 1), false);
    ck_assert(d->resumes);
    durable_float(ds, d, at(0x50, 0));
    assert_at(durable_stands(ds, d), 0x40, 1);
    durable_release(ds, d, true);
    ck_assert(!d->floats);
    hold(d);
    durable_acked(ds, d, at(0x40, POSITION_INDEX_END), false);
    ck_assert(!d->resumes);
    durable_release(ds, d, true);
    ck_assert(d->floats);
    teardown();
}
END_TEST

/* ---- filters, moves ---- */

START_TEST(other_filters)
{
    struct filter same = {FILTER_PATTERN, unit_bytes("a")}, other = {FILTER_PATTERN, unit_bytes("b")};

    setup();
    struct durable *d = add_name("a", "a", at(0x10, 0));
    hold(d);
    settle();
    ck_assert_int_eq(durable_set_filters(ds, d, &same, 1, NULL, 0), 0);
    ck_assert(durable_is_stored(d));
    ck_assert_int_eq(durable_set_filters(ds, d, &other, 1, &same, 1), 0);
    ck_assert(!durable_is_stored(d));
    assert_at(durable_stands(ds, d), 0x10, 0);
    wait_until(durable_is_stored(d));

    /* others again while these are being written */
    ck_assert_int_eq(durable_set_filters(ds, d, &other, 1, NULL, 0), 0);
    hold_commit(d);
    ck_assert_int_eq(durable_set_filters(ds, d, &same, 1, NULL, 0), 0);
    let_commit();
    wait_until(!d->in_commit);
    ck_assert(!durable_is_stored(d));
    wait_until(durable_is_stored(d));
    reopen();
    d = find_name("a");
    ck_assert_uint_eq(d->filters->n_exclusions, 0);
    unit_assert_text(d->filters->filters[0].text, "a");
    assert_at(d->cursor, 0x10, 0);
    teardown();
}
END_TEST

START_TEST(moved)
{
    setup();
    for (uint64_t lsn = 0x10; lsn <= 0x50; lsn += 0x10)
        fake_journal_add(&journal, at(lsn, 0), "a", 10);
    struct durable *d = add_name("a", "a", at(0x30, 0));
    hold(d);
    durable_acked(ds, d, at(0x40, 0), false);
    durable_release(ds, d, false);
    settle();
    durable_move(ds, d, at(0x20, 3));
    assert_at(durable_stands(ds, d), 0x20, 3);
    assert_at(d->sent, 0x40, 0); /* that comes again */
    ck_assert(d->resumes);
    ck_assert(!d->gap.is);
    ck_assert(!d->floats);
    /* What is on disk is ahead of it: no word on that before it is written. */
    hold(d);
    durable_acked(ds, d, at(0x30, 0), true);
    ck_assert_uint_eq(told.confirmed, 0);
    ck_assert(!durables_stored_behind(ds, at(0x30, 0)));
    wait_until(told.confirmed);
    assert_at(told.position, 0x30, 0);
    durable_release(ds, d, false);

    durable_move(ds, d, at(0x50, 0)); /* to the end */
    ck_assert(d->floats);
    assert_at(d->sent, 0x40, 0);
    route_message(0x60, "b");
    durable_move(ds, d, at(0x10, 0));
    assert_at(d->sent, 0x60, 0);
    settle();
    reopen();
    assert_at(find_name("a")->cursor, 0x10, 0);
    assert_at(find_name("a")->sent, 0x60, 0);
    teardown();
}
END_TEST

/* ---- suspended ---- */

static unsigned times_logged(const char *id)
{
    unsigned n = 0;

    ck_assert_int_eq(fflush(logger.out), 0);
    for (const char *at = logged; (at = strstr(at, id)); at++)
        n++;
    return n;
}

START_TEST(suspended)
{
    static const char why_not[] = "the router cannot read its journal: Input/output error";

    setup();
    for (uint64_t lsn = 0x10; lsn <= 0x50; lsn += 0x10)
        fake_journal_add(&journal, at(lsn, 0), "a", 10);
    struct durable *d = add_name("a", "a", at(0x10, 0));
    (void)add_name("b", "a", at(0x10, 0));
    hold(d);
    int64_t before = clock_realtime_us();
    ck_assert(durable_suspend(ds, d, at(0x20, 0), why_not));
    int64_t since = d->mark.since;
    ck_assert(since >= before && since <= clock_realtime_us());
    durable_release(ds, d, false);
    settle();
    reopen(); /* it is kept, of one name */
    d = find_name("a");
    ck_assert_int_eq(d->mark.since, since);
    assert_at(d->mark.at, 0x20, 0);
    ck_assert_str_eq(d->mark.why, why_not);
    ck_assert_int_eq(find_name("b")->mark.since, 0);

    /* Again: it is known, and since when. Another reason is noted. */
    hold(d);
    ck_assert(!durable_suspend(ds, d, at(0x20, 0), why_not));
    durable_read_on(ds, d, at(0x30, 0), false);
    ck_assert_int_eq(d->mark.since, 0);
    ck_assert(durable_suspend(ds, d, at(0x40, 0), why_not));
    since = d->mark.since;
    ck_assert(!durable_suspend(ds, d, at(0x50, 0), why_not)); /* elsewhere is no news, another reason is */
    ck_assert(durable_suspend(ds, d, at(0x30, 0), "otherwise"));
    ck_assert_int_eq(d->mark.since, since);
    ck_assert_str_eq(d->mark.why, "otherwise");
    assert_at(d->mark.at, 0x30, 0);
    ck_assert_uint_eq(times_logged(" durable.suspended "), 3);

    /* Only what lies behind the place that could not be read is news. */
    durable_read_on(ds, d, at(0x20, 0), false);
    durable_read_on(ds, d, at(0x30, 0), false);
    ck_assert_int_eq(d->mark.since, since);
    durable_read_on(ds, d, at(0x30, 0), true); /* or that nothing lies there */
    ck_assert_int_eq(d->mark.since, 0);
    durable_read_on(ds, d, at(0x30, 0), true);
    ck_assert_uint_eq(times_logged(" durable.unsuspended "), 2);
    durable_release(ds, d, false);
    settle();
    reopen();
    ck_assert_int_eq(find_name("a")->mark.since, 0);

    /* It goes with the place. */
    d = find_name("a");
    ck_assert(durable_suspend(ds, d, at(0x40, 0), why_not));
    durable_move(ds, d, at(0x50, 0));
    ck_assert_int_eq(d->mark.since, 0);
    durable_move(ds, d, at(0x10, 0));
    ck_assert(durable_suspend(ds, d, at(0x40, 0), why_not));
    ck_assert_int_eq(durables_new_era(ds, &(struct catalog_head){43, 2, false, false}, at(0x50, 0)), 0);
    reopen();
    ck_assert_int_eq(find_name("a")->mark.since, 0);
    teardown();
}
END_TEST

/* ---- what is not in the journal any more ---- */

START_TEST(older_than_the_journal)
{
    setup();
    fake_journal_add(&journal, at(0x10, 0), "a", 10);
    (void)add_name("opened", "a", at(0x5, 0));
    (void)add_name("no gap", "a", at(0x10, 0));
    settle();
    fake_journal_cut(&journal);
    fake_journal_add(&journal, at(0x20, 0), "a", 10);
    ck_assert_int_eq(journal_drop_first(&journal), 0);
    struct durable *d = add_name("new", "a", at(0x8, 0));
    ck_assert(d->gap.is);
    assert_at(d->gap.to, 0x10, 0);
    ck_assert_uint_eq(d->gap.messages, UINT64_MAX);
    assert_at(durable_stands(ds, d), 0x10, 0);
    d = add_name("moved", "a", at(0x10, 0));
    ck_assert(!d->gap.is);
    durable_move(ds, d, at(0xf, 0));
    ck_assert(d->gap.is);
    durable_move(ds, d, at(0x18, 0));
    ck_assert(!d->gap.is);
    reopen();
    d = find_name("opened");
    ck_assert(d->gap.is);
    assert_at(d->gap.to, 0x10, 0);
    assert_at(d->cursor, 0x5, 0);
    ck_assert(!find_name("no gap")->gap.is);
    teardown();
}
END_TEST

START_TEST(passed_over)
{
    setup();
    fake_journal_add(&journal, at(0x90, 0), "z", 10);
    struct durable *d = add_name("a", "a", at(0x10, 0));
    durable_pass(ds, d, at(0x20, 5), 3, 30);
    assert_at(durable_stands(ds, d), 0x20, 5);
    ck_assert(!d->resumes); /* it has had no part of that transaction */
    ck_assert(!d->gap.is);
    durable_pass(ds, d, at(0x15, 0), 1, 10);
    assert_at(durable_stands(ds, d), 0x20, 5);

    struct durable *inside = add_name("b", "a", at(0x20, 2));
    durable_pass(ds, inside, at(0x20, 5), 3, 30);
    ck_assert(inside->resumes);
    durable_pass(ds, inside, at(0x30, 2), 3, 30);
    ck_assert(!inside->resumes);
    settle();
    reopen();
    assert_at(find_name("a")->cursor, 0x20, 5);
    ck_assert(!find_name("a")->resumes);
    teardown();
}
END_TEST

/* One that floats has nothing to pass over, and goes on floating. */
START_TEST(passed_over_while_floating)
{
    setup();
    struct durable *d = add_name("a", "a", at(0x10, 0));
    durable_pass(ds, d, at(0x20, 5), 3, 30);
    ck_assert(d->floats);
    assert_at(durable_stands(ds, d), 0x20, 5);
    route_message(0x30, "b");
    assert_at(durable_stands(ds, d), 0x30, 0);
    teardown();
}
END_TEST

START_TEST(lost)
{
    setup();
    fake_journal_add(&journal, at(0x90, 0), "z", 10);
    struct durable *d = add_name("a", "a", at(0x10, 0));
    durable_lost(ds, d, at(0x20, 5), 3, 30);
    ck_assert(d->gap.is);
    assert_at(d->cursor, 0x10, 0);
    assert_at(d->gap.to, 0x20, 5);
    assert_at(durable_stands(ds, d), 0x20, 5);
    durable_lost(ds, d, at(0x20, 5), 3, 30); /* the same again counts for nothing */
    ck_assert_uint_eq(d->gap.messages, 3);
    durable_lost(ds, d, at(0x30, 0), 4, 40);
    durable_pass(ds, d, at(0x40, 0), 2, 20); /* behind a gap nothing is passed over: it is a part of it */
    ck_assert_uint_eq(d->gap.messages, 9);
    ck_assert_uint_eq(d->gap.bytes, 90);
    assert_at(d->gap.to, 0x40, 0);
    settle();
    reopen();
    d = find_name("a");
    ck_assert(d->gap.is);
    assert_at(d->gap.to, 0x40, 0);
    ck_assert_uint_eq(d->gap.messages, 9);

    hold(d);
    durable_float(ds, d, at(0x90, 0)); /* not before it is told */
    assert_at(d->cursor, 0x10, 0);
    durable_acked(ds, d, at(0x18, 0), false); /* sent before it was dropped */
    ck_assert(d->gap.is);
    ck_assert_uint_eq(d->gap.messages, UINT64_MAX);
    durable_lost(ds, d, at(0x50, 0), 1, 10);
    ck_assert_uint_eq(d->gap.messages, UINT64_MAX);
    durable_acked(ds, d, at(0x50, 0), false);
    ck_assert(!d->gap.is);
    settle();
    reopen();
    ck_assert(!find_name("a")->gap.is);
    teardown();
}
END_TEST

/* A segment does not go before the disk says that nobody needs it. */
START_TEST(stored_behind)
{
    setup();
    fake_journal_add(&journal, at(0x90, 0), "z", 10);
    ck_assert(durables_stored_behind(ds, at(0x20, 0)));
    struct durable *d = add_name("a", "a", at(0x10, 0)), *b = add_name("b", "a", at(0x30, 0));
    ck_assert(durables_stored_behind(ds, at(0x20, 0))); /* a crash would leave no such names */
    settle();
    ck_assert(!durables_stored_behind(ds, at(0x20, 0)));
    settle();
    ck_assert(!durables_stored_behind(ds, at(0x20, 0))); /* it stands before it, and needs it */
    durable_pass(ds, d, at(0x20, 0), 1, 10);
    ck_assert(!durables_stored_behind(ds, at(0x20, 0)));
    unsigned stored = told.stored;
    wait_until(told.stored > stored);
    ck_assert(durables_stored_behind(ds, at(0x20, 0)));
    durable_lost(ds, d, at(0x28, 0), 1, 10);
    ck_assert(!durables_stored_behind(ds, at(0x28, 0)));
    settle();
    ck_assert(durables_stored_behind(ds, at(0x28, 0)));
    durable_move(ds, b, at(0x40, 0)); /* what the disk says of it is not so any more */
    ck_assert(!durables_stored_behind(ds, at(0x28, 0)));
    settle();
    ck_assert(durables_stored_behind(ds, at(0x28, 0)));
    teardown();
}
END_TEST

/* Where it floats is stored when that matters. */
START_TEST(stored_behind_who_floats)
{
    setup();
    struct durable *d = add_name("a", "a", at(0x10, 0));
    settle();
    route_message(0x20, "b");
    ck_assert(!durables_stored_behind(ds, at(0x20, 0)));
    settle();
    ck_assert(durables_stored_behind(ds, at(0x20, 0)));
    ck_assert(d->floats);
    reopen();
    assert_at(find_name("a")->cursor, 0x20, 0);
    teardown();
}
END_TEST

/* ---- time ---- */

START_TEST(expires)
{
    setup();
    durables_set_expiry(ds, 1000);
    journal.running_ms = 100;
    struct durable *d = add_name("held", "a", at(0x10, 0));
    hold(d);
    (void)add_name("forgotten", "a", at(0x10, 0));
    journal.running_ms = 1099;
    durables_tick(ds);
    ck_assert_uint_eq(durables_count(ds), 2);
    ck_assert(!was_logged("durable.expired"));
    journal.running_ms = 1100;
    durables_tick(ds);
    ck_assert_uint_eq(durables_count(ds), 1);
    ck_assert(was_logged("durable.expired"));
    ck_assert(was_logged("forgotten"));
    journal.running_ms = 9000;
    durables_tick(ds);
    durable_release(ds, d, false);
    settle();
    reopen(); /* the settings of before */
    ck_assert_uint_eq(durables_count(ds), 1);
    durables_set_expiry(ds, 0); /* never */
    journal.running_ms = UINT64_MAX;
    durables_tick(ds);
    ck_assert_uint_eq(durables_count(ds), 1);
    durables_set_expiry(ds, 1000);
    journal.running_ms = 5; /* another journal's time */
    durables_tick(ds);
    ck_assert_uint_eq(durables_count(ds), 1);
    journal.running_ms = 9999;
    durables_tick(ds);
    ck_assert_uint_eq(durables_count(ds), 1);
    journal.running_ms = 10000;
    durables_tick(ds);
    ck_assert_uint_eq(durables_count(ds), 0);
    teardown();
}
END_TEST

/* One that was held for long and has acknowledged nothing is not forgotten after a crash. */
START_TEST(seen_is_stored)
{
    setup();
    struct durable *d = add_name("a", "a", at(0x10, 0));
    hold(d);
    settle();
    journal.running_ms = DURABLE_SEEN_MS - 1;
    durables_tick(ds);
    ck_assert(!d->dirty);
    journal.running_ms = DURABLE_SEEN_MS;
    durables_tick(ds);
    ck_assert(d->dirty);
    settle();
    durables_tick(ds);
    ck_assert(!d->dirty);
    reopen();
    ck_assert_uint_eq(find_name("a")->seen_ms, DURABLE_SEEN_MS);
    teardown();
}
END_TEST

/* Or a router that is killed would find it expired before it can come again. */
START_TEST(seen_is_stored_four_times_within_expiry)
{
    setup();
    durables_set_expiry(ds, 4000);
    struct durable *d = add_name("a", "a", at(0x10, 0));
    hold(d);
    settle();
    journal.running_ms = 999;
    durables_tick(ds);
    ck_assert(!d->dirty);
    journal.running_ms = 1000;
    durables_tick(ds);
    ck_assert(d->dirty);
    settle();
    reopen();
    durables_set_expiry(ds, 4000);
    journal.running_ms = 4999;
    durables_tick(ds);
    ck_assert_uint_eq(durables_count(ds), 1);
    /* whoever waits to be answered is stored like one who holds it */
    d = find_name("a");
    durable_seen(ds, d);
    durables_tick(ds);
    ck_assert(d->dirty);
    settle();
    reopen();
    ck_assert_uint_eq(find_name("a")->seen_ms, 4999);
    teardown();
}
END_TEST

/* ---- identity ---- */

START_TEST(head)
{
    struct catalog_head h = {.system_identifier = 42, .era = 1, .proven = true}, got;

    setup();
    ck_assert(!durables_head(ds, &got));
    durables_set_head(ds, &h);
    ck_assert(durables_head(ds, &got));
    settle();
    reopen();
    ck_assert(durables_head(ds, &got));
    ck_assert_uint_eq(got.system_identifier, 42);
    ck_assert_uint_eq(got.era, 1);
    ck_assert(got.proven);
    ck_assert(!got.clean);
    stop_cleanly();
    ck_assert(durables_head(ds, &got));
    ck_assert(got.clean);
    reopen(); /* opening is the end of that */
    ck_assert(durables_head(ds, &got));
    ck_assert(!got.clean);
    ck_assert_uint_eq(got.system_identifier, 42);
    teardown();
}
END_TEST

START_TEST(a_new_era)
{
    struct catalog_head h = {.system_identifier = 43, .era = 2}, got;

    setup();
    fake_journal_add(&journal, at(0x90, 0), "z", 10);
    struct durable *d = add_name("a", "a", at(0x50, 2));
    durable_lost(ds, d, at(0x60, 0), 1, 1);
    (void)add_name("b", "b", at(0x90, 0));
    settle();
    reopen();
    ck_assert(!durables_is_bound(ds));
    fake_journal_init(&journal);
    journal.end.last = at(0x20, POSITION_INDEX_END);
    ck_assert_int_eq(durables_new_era(ds, &h, at(0x20, POSITION_INDEX_END)), 0);
    ck_assert(durables_is_bound(ds));
    /* stored when it returns; then the gap comes, which all are told */
    route_parts((struct part[]){{FRAME_GAP, 0x30, 0, NULL}, {0}}, at(0x30, 0));
    for (size_t i = 0; i < 2; i++) {
        d = durables_at(ds, i);
        ck_assert(!d->floats && !d->resumes && !d->gap.is);
        assert_at(durable_stands(ds, d), 0x20, POSITION_INDEX_END);
        ck_assert(position_is_zero(d->sent));
    }
    reopen();
    ck_assert(durables_head(ds, &got));
    ck_assert_uint_eq(got.era, 2);
    assert_at(find_name("a")->cursor, 0x20, POSITION_INDEX_END);
    ck_assert(!find_name("a")->gap.is);
    teardown();
}
END_TEST

/* ---- limits ---- */

START_TEST(most_names)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes("a")};
    char name[24];
    struct durable *d;

    setup();
    for (unsigned i = 0; i < CATALOG_NAMES_MAX; i++) {
        (void)snprintf(name, sizeof name, "name-%u", i);
        (void)add_name(name, "a", at(0x10, 0));
    }
    ck_assert_int_eq(durables_add(ds, unit_bytes("one more"), &filter, 1, NULL, 0, at(1, 0), &d), DURABLE_TOO_MANY);
    ck_assert_uint_eq(durables_count(ds), CATALOG_NAMES_MAX);
    settle();
    durables_remove(ds, find_name("name-7"));
    /* it is one of them, with its filters, for as long as it is in the catalog */
    ck_assert_int_eq(durables_add(ds, unit_bytes("one more"), &filter, 1, NULL, 0, at(1, 0), &d), DURABLE_TOO_MANY);
    settle();
    (void)add_name("one-more", "a", at(0x10, 0));
    settle();
    reopen();
    ck_assert_uint_eq(durables_count(ds), CATALOG_NAMES_MAX);
    (void)find_name("one-more");
    teardown();
}
END_TEST

/* As many filters as fit, to the byte; they take more than one commit, and none of it is told before all is stored. */
START_TEST(most_filters)
{
    static uint8_t text[FILTER_TEXT_MAX];
    static struct filter filters[FILTERS_MAX];
    const size_t one = FILTER_TEXT_MAX + DURABLE_FILTER_COST;
    struct durable *d;
    size_t left = DURABLES_FILTERS_MAX, n = 250;
    char name[24];

    setup();
    for (size_t i = 0; i < FILTERS_MAX; i++)
        filters[i] = (struct filter){FILTER_EXACT, {text, sizeof text}};
    for (unsigned i = 0; left; i++) {
        struct filter last = {FILTER_EXACT, {text, left - MIN(left, DURABLE_FILTER_COST)}};

        (void)snprintf(name, sizeof name, "name-%u", i);
        if (left >= n * one) {
            ck_assert_int_eq(durables_add(ds, unit_bytes(name), filters, n, NULL, 0, at(1, 0), &d), 0);
            left -= n * one;
        } else if (left >= 2 * one) {
            n = left / one - 1;
        } else if (left > FILTER_TEXT_MAX + DURABLE_FILTER_COST) {
            ck_assert_int_eq(durables_add(ds, unit_bytes(name), filters, 0, &last, 0, at(1, 0), &d), 0);
            filters[0].text.size = 1000;
            ck_assert_int_eq(durables_add(ds, unit_bytes("thousand"), filters, 1, NULL, 0, at(1, 0), &d), 0);
            left -= 1000 + DURABLE_FILTER_COST;
        } else {
            ck_assert_int_eq(durables_add(ds, unit_bytes(name), &last, 1, NULL, 0, at(1, 0), &d), 0);
            left = 0;
        }
    }
    struct filter shortest = {FILTER_EXACT, {text, 0}};
    ck_assert_int_eq(durables_add(ds, unit_bytes("full"), &shortest, 1, NULL, 0, at(1, 0), &d), DURABLE_FULL);
    ck_assert_ptr_null(durables_find(ds, unit_bytes("full")));
    d = find_name("thousand");
    hold(d);
    filters[0].text.size = 1001;
    ck_assert_int_eq(durable_set_filters(ds, d, filters, 1, NULL, 0), DURABLE_FULL);
    ck_assert_uint_eq(d->filters->filters[0].text.size, 1000);
    filters[0].text.size = 999;
    ck_assert_int_eq(durable_set_filters(ds, d, filters, 1, NULL, 0), 0);
    durable_release(ds, d, false);

    size_t count = durables_count(ds);
    uint64_t ticket = durables_ticket(ds);
    told.stored = 0;
    while (!durables_is_done(ds, ticket)) {
        size_t stored = 0;

        for (size_t i = 0; i < count; i++)
            stored += durable_is_stored(durables_at(ds, i));
        wait_until(told.stored || durables_is_done(ds, ticket));
        if (told.stored < 4)
            ck_assert(stored < count);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_ge(told.stored, 4); /* nearly 8 MiB, in commits of up to twice 1 MiB */
    for (size_t i = 0; i < count; i++)
        ck_assert(durable_is_stored(durables_at(ds, i)));
    reopen();
    ck_assert_uint_eq(durables_count(ds), count);
    ck_assert_uint_eq(find_name("thousand")->filters->filters[0].text.size, 999);
    teardown();
}
END_TEST

START_TEST(tokens_count)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes("a.b.c")};

    setup();
    struct durable *d = add_name("a", "a.b.c", at(1, 0));
    ck_assert_uint_eq(d->filters->cost, 5 + 4 * DURABLE_FILTER_COST);
    hold(d);
    ck_assert_int_eq(durable_set_filters(ds, d, &filter, 1, &filter, 1), 0);
    ck_assert_uint_eq(d->filters->cost, 2 * (5 + 4 * DURABLE_FILTER_COST));
    teardown();
}
END_TEST

/* ---- faults ---- */

START_TEST(a_disk_that_fails)
{
    setup();
    struct durable *d = add_name("a", ">", at(0x10, 0));
    (void)add_name("b", ">", at(0x10, 0));
    hold(d);
    settle();
    disk_error = EIO;
    durable_acked(ds, d, at(0x20, 0), true);
    durables_remove(ds, find_name("b"));
    struct durable *c = add_name("c", ">", at(0x20, 0));
    uint64_t ticket = durables_ticket(ds);
    wait_until(was_logged("catalog.failed"));
    ck_assert(!durable_is_stored(c));
    ck_assert_uint_eq(told.confirmed, 0);
    uint64_t begin = clock_monotonic_ns();
    unsigned stored = told.stored;
    wait_until(told.stored > stored);
    ck_assert_uint_ge(clock_monotonic_ns() - begin, DURABLE_RETRY_MS * UINT64_C(500000)); /* not without a pause */
    ck_assert(!durables_is_done(ds, ticket));
    ck_assert(!was_logged("catalog.recovered"));
    disk_error = 0;
    wait_until(durables_is_done(ds, ticket));
    ck_assert(was_logged("catalog.recovered"));
    ck_assert(durable_is_stored(c));
    ck_assert_uint_eq(told.confirmed, 1);
    reopen();
    ck_assert_uint_eq(durables_count(ds), 2);
    ck_assert_ptr_null(durables_find(ds, unit_bytes("b")));
    assert_at(find_name("a")->cursor, 0x20, 0);
    teardown();
}
END_TEST

START_TEST(a_clean_stop_that_fails)
{
    setup();
    struct durable *d = add_name("a", ">", at(0x10, 0));
    settle();
    hold(d);
    durable_acked(ds, d, at(0x20, 0), false);
    disk_error = ENOSPC;
    ck_assert_int_eq(durables_finish(ds, true), -ENOSPC);
    disk_error = 0;
    reopen();
    ck_assert(!durables_is_bound(ds));
    assert_at(find_name("a")->cursor, 0x10, 0);
    teardown();
}
END_TEST

/* Whatever a commit under way has got to, what comes behind it is stored too. */
START_TEST(stopped_while_it_is_written)
{
    setup();
    struct durable *d = add_name("a", ">", at(0x10, 0));
    settle();
    for (unsigned i = 0; i < 20; i++) {
        hold(d);
        durable_acked(ds, d, at(0x1000 * (i + 1), 0), true);
        if (i % 2)
            hold_commit(d);
        let_commit();
        if (i % 3)
            (void)usleep(1000 * i);
        durable_acked(ds, d, at(0x1000 * (i + 1) + 1, 0), false);
        told.confirmed = 0;
        ck_assert_int_eq(durables_finish(ds, true), 0);
        ck_assert_uint_le(told.confirmed, 1);
        reopen();
        d = find_name("a");
        assert_at(d->cursor, 0x1000 * (i + 1) + 1, 0);
        ck_assert(durables_is_bound(ds));
    }
    /* and closed so, without a word */
    hold(d);
    durable_acked(ds, d, at(0x100000, 0), true);
    hold_commit(d);
    let_commit();
    teardown();
}
END_TEST

START_TEST(two_openings)
{
    struct durables *second = NULL;

    setup();
    ck_assert_int_eq(durables_open(folder, &loop, &journal, route, 0, &ops, &told, &logger, &second, why), -EBUSY);
    ck_assert_ptr_null(second);
    ck_assert_ptr_nonnull(strstr(why, "is open in another process"));
    teardown();
}
END_TEST

UNIT_MAIN("durable", kept, listed_by_name, removed, acknowledged, confirmed, paced,
          sent_after_a_clean_stop, sent_after_an_unclean_stop, floats_until_something_matches,
          floats_again_after_a_restart, what_comes_again_does_not_match, moved_behind_what_is_routed,
          the_journal_lost_its_end, a_gap_is_for_everybody,
          in_front_of_a_transaction, held_and_let_go, other_filters, moved, suspended, older_than_the_journal, passed_over,
          passed_over_while_floating, lost, stored_behind, stored_behind_who_floats, expires, seen_is_stored, seen_is_stored_four_times_within_expiry, head,
          a_new_era, most_names, most_filters, tokens_count, a_disk_that_fails, a_clean_stop_that_fails,
          stopped_while_it_is_written, two_openings)
