/* SPDX-License-Identifier: PostgreSQL */
/* What the server sends again, against what the journal has. */
#include "journal_fixture.h"

#define LARGE (16u << 20)

static const struct position t1 = {1, 0x300, 0}, t2 = {1, 0x400, 0};

/* Message 0x200, t1 of three messages, a message at t2's commit LSN and t2 of one, message 0x500: over four batches. */
static void fill(void)
{
    struct batch *b = jf_batch();

    jf_received = 1000;
    jf_add(b, jf_at(0x200), 10, 0);
    jf_add_begin(b, t1);
    jf_add_part(b, t1, 1, 10);
    jf_append(b, 0x200);
    b = jf_batch();
    jf_starts_inside(b, t1);
    jf_add_part(b, t1, 2, 20);
    jf_append(b, 0);
    b = jf_batch();
    jf_starts_inside(b, t1);
    jf_add_part(b, t1, 3, 30);
    jf_add_commit(b, t1, 3);
    jf_add(b, jf_at(0x400), 40, 0);
    jf_append(b, 0x308);
    b = jf_batch();
    jf_add_begin(b, t2);
    jf_add_part(b, t2, 1, 50);
    jf_add_commit(b, t2, 1);
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x500);
    jf_finish();
    jf.synced_mark = 0;
    jf_received = 2000; /* what comes again comes later */
}

static void make(uint64_t segment_size)
{
    jf_make(segment_size, 0);
    fill();
}

static void done(void)
{
    jf_close();
    jf_remove();
    jf_received = 1;
}

static struct batch *again(void)
{
    struct batch *b = jf_batch();

    b->again = true;
    return b;
}

static void add_t1(struct batch *b)
{
    jf_add_begin(b, t1);
    for (uint32_t i = 1; i <= 3; i++)
        jf_add_part(b, t1, i, 10 * i);
    jf_add_commit(b, t1, 3);
}

static void add_t2(struct batch *b)
{
    jf_add_begin(b, t2);
    jf_add_part(b, t2, 1, 50);
    jf_add_commit(b, t2, 1);
}

static void check_same(uint64_t mark)
{
    jf_finish();
    ck_assert_msg(jf.differs == 0, "%s", jf.what);
    ck_assert_uint_eq(jf.synced_mark, mark);
    (void)fflush(jf.log.out);
    ck_assert_str_eq(jf.log_text, "");
}

/* Told once, in these words, and nothing is written or marked from that batch on: the mark is the one before. */
static void check_differs(struct position at, uint64_t mark, const char *what)
{
    jf_finish();
    uint64_t size = journal_size(jf.j);
    ck_assert_uint_eq(jf.differs, 1);
    ck_assert_msg(position_compare(jf.differs_at, at) == 0, "%s", jf.what);
    ck_assert_str_eq(jf.what, what);
    ck_assert_uint_eq(jf.synced_mark, mark);
    jf_append_message(0x9000, 10);
    jf_append(again(), 0x9000);
    jf_finish();
    ck_assert_uint_eq(jf.differs, 1);
    ck_assert_uint_eq(jf.synced_mark, mark);
    ck_assert_uint_eq(journal_size(jf.j), size);
    ck_assert_uint_eq(journal_pending(jf.j), 0);
    ck_assert_uint_eq(jf.pool.live, 0);
}

START_TEST(all_of_it)
{
    make(LARGE);
    uint64_t size = journal_size(jf.j);
    struct batch *b = again();

    jf_add(b, jf_at(0x200), 10, 0);
    add_t1(b);
    jf_add(b, jf_at(0x400), 40, 0);
    add_t2(b);
    jf_add(b, jf_at(0x500), 60, 0);
    b->mark = 0x4FF;
    jf_append(b, 0x4FF);
    ck_assert_uint_eq(journal_pending(jf.j), 0); /* nothing that a session could miss */
    check_same(0x4FF);
    ck_assert_uint_eq(journal_size(jf.j), size);
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x500);
    ck_assert_int_eq(journal_end(jf.j)->received_time, 1000);
    jf_append_message(0x501, 10);
    check_same(0x501);
    done();
}
END_TEST

/* Batches of any cut, from any start that a slot can have; after opening too, and with a segment for each. */
START_TEST(of_any_cut)
{
    for (unsigned round = 0; round < 2 * 2 * 5; round++) {
        unsigned start = round % 5;

        make(round / 5 % 2 ? 400 : LARGE);
        if (round >= 10) {
            jf_close();
            jf_open();
        }
        struct batch *b = again();
        if (start == 0)
            jf_add(b, jf_at(0x200), 10, 0);
        if (start <= 1) {
            jf_add_begin(b, t1);
            jf_append(b, 0);
            b = again();
            jf_starts_inside(b, t1);
            jf_add_part(b, t1, 1, 10);
            jf_add_part(b, t1, 2, 20);
            jf_append(b, 0);
            b = again();
            jf_starts_inside(b, t1);
            jf_add_part(b, t1, 3, 30);
            jf_append(b, 0);
            b = again();
            jf_starts_inside(b, t1);
            jf_add_commit(b, t1, 3);
        }
        if (start <= 2)
            jf_add(b, jf_at(0x400), 40, 0);
        if (start <= 3)
            add_t2(b);
        jf_append(b, 0x408);
        b = again();
        jf_add(b, jf_at(0x500), 60, 0);
        jf_append(b, 0x500);
        jf_append_message(0x600, 10);
        check_same(0x600);
        jf_read();
        ck_assert_uint_eq(jf_n_entries, 12);
        jf_forget();
        done();
    }
}
END_TEST

/* A connection that breaks, and another one that begins earlier, or where the last one was. */
START_TEST(again_and_again)
{
    make(LARGE);
    for (unsigned i = 0; i < 3; i++) {
        struct batch *b = again();

        jf_add(b, jf_at(0x200), 10, 0);
        jf_add_begin(b, t1);
        jf_add_part(b, t1, 1, 10);
        jf_append(b, 0x200);
    }
    check_same(0x200);
    struct batch *b = again();
    add_t1(b);
    jf_append(b, 0x308);
    b = again();
    jf_add(b, jf_at(0x400), 40, 0);
    jf_append(b, 0x400);
    b = again();
    jf_add(b, jf_at(0x400), 40, 0);
    add_t2(b);
    jf_append(b, 0x408);
    b = again();
    add_t2(b); /* the message with the same position was confirmed */
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x500);
    jf_append_message(0x501, 10);
    check_same(0x501);
    done();
}
END_TEST

START_TEST(the_mark_of_what_comes_again)
{
    make(LARGE);
    uint64_t size = journal_size(jf.j);
    struct batch *b = again();

    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x580); /* what came between left nothing but that */
    check_same(0x580);
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x580);
    ck_assert_uint_eq(journal_size(jf.j), size + RECORD_SIZE);
    jf_append(again(), 0x590);
    check_same(0x590);
    jf_close();
    jf_open();
    ck_assert_uint_eq(journal_end(jf.j)->mark, 0x590);
    ck_assert_uint_eq(journal_end(jf.j)->last.lsn, 0x500);
    jf_read();
    ck_assert_uint_eq(jf_n_entries, 11);
    jf_forget();
    done();
}
END_TEST

START_TEST(other_contents)
{
    struct frame_message f = {.position = {1, 0x200, 0},
                              .lsn = 0x1FF,
                              .received_time = 5,
                              .prefix = unit_bytes("orders.created")};
    uint8_t content[10];

    for (size_t i = 0; i < sizeof content; i++)
        content[i] = jf_byte(f.position, i);
    for (unsigned kind = 0; kind < 7; kind++) {
        struct frame_message other = f;
        uint8_t changed[11];
        void *owner = NULL;
        struct batch *b;

        make(LARGE);
        memcpy(changed, content, sizeof content);
        other.content = (struct bytes){changed, sizeof content};
        switch (kind) {
        case 0: /* as it was */
            break;
        case 1:
            changed[9] ^= 1;
            break;
        case 2:
            changed[0] ^= 1;
            break;
        case 3:
            changed[10] = 0;
            other.content.size++;
            break;
        case 4:
            other.prefix = unit_bytes("orders.creates");
            break;
        case 5:
            other.lsn++;
            break;
        default: /* the byte behind the received time */
            other.prefix = unit_bytes("orders.create");
            changed[0] = 'd';
            break;
        }
        b = again();
        ck_assert_int_eq(batch_add_message(b, &other, &owner), 0);
        jf_append(b, 0x200);
        if (kind == 0)
            check_same(0x200);
        else
            check_differs(
                jf_at(0x200), 0,
                "what the server sent again at 1:0/200:0 is not what the journal has there");
        done();
    }
}
END_TEST

START_TEST(other_ends)
{
    for (unsigned kind = 0; kind < 4; kind++) {
        struct position end = {1, 0x300, POSITION_INDEX_END};
        struct batch *b;

        make(LARGE);
        b = again();
        jf_add_begin(b, t1);
        for (uint32_t i = 1; i <= 3; i++)
            jf_add_part(b, t1, i, 10 * i);
        struct frame_commit f = {.begin = jf_begin_at(t1), .end_lsn = 0x308, .messages = 3};
        f.begin.flags = kind == 1 ? FRAME_FLAG_INCOMPLETE : 0; /* says what a gap has done */
        f.end_lsn += kind == 2;
        f.messages += kind == 3;
        ck_assert_int_eq(batch_add_commit(b, &f), 0);
        jf_append(b, 0x308);
        if (kind < 2)
            check_same(0x308);
        else
            check_differs(end, 0,
                          "what the server sent again at 1:0/300:4294967295 is not what the "
                          "journal has there");
        done();
    }
}
END_TEST

/* Larger than what is read at once. The last byte of all is another. */
START_TEST(large_contents)
{
    enum { SIZE = 700000 };
    for (unsigned kind = 0; kind < 2; kind++) {
        uint8_t *content = malloc(SIZE);
        void *owner = content;
        struct frame_message f = {.position = {1, 0x600, 0},
                                  .lsn = 0x5FF,
                                  .received_time = 5,
                                  .prefix = unit_bytes("orders.created"),
                                  .content = {content, SIZE}};
        struct batch *b;

        make(LARGE);
        jf_append_message(0x600, SIZE);
        for (size_t i = 0; i < SIZE; i++)
            content[i] = jf_byte(f.position, i);
        content[SIZE - 1] ^= (uint8_t)kind;
        b = again();
        ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
        ck_assert_ptr_null(owner);
        jf_append(b, 0x601);
        if (kind)
            check_differs(
                jf_at(0x600), 0x600,
                "what the server sent again at 1:0/600:0 is not what the journal has there");
        else
            check_same(0x601);
        done();
    }
}
END_TEST

/* ---- neighbours ---- */

START_TEST(not_in_the_journal)
{
    struct batch *b;

    make(LARGE); /* the first that comes */
    b = again();
    jf_add(b, jf_at(0x250), 10, 0);
    jf_append(b, 0x250);
    check_differs(jf_at(0x250), 0,
                  "the server sent an entry at 1:0/250:0 again, where the journal has none, though "
                  "it has one at 1:0/300:0");
    done();

    make(LARGE); /* between two that fit */
    b = again();
    jf_add(b, jf_at(0x200), 10, 0);
    jf_append(b, 0x200);
    b = again();
    jf_add(b, jf_at(0x250), 10, 0);
    jf_append(b, 0x250);
    check_differs(jf_at(0x250), 0x200,
                  "the server sent an entry at 1:0/250:0 again, where the journal has none, though "
                  "it has one at 1:0/300:0");
    done();

    make(LARGE); /* a fourth one in a transaction of three */
    b = again();
    jf_add_begin(b, t1);
    for (uint32_t i = 1; i <= 4; i++)
        jf_add_part(b, t1, i, 10 * i);
    jf_append(b, 0);
    check_differs((struct position){1, 0x300, 4}, 0,
                  "the server sent an entry at 1:0/300:4 again, where the journal has none, "
                  "though it has one at 1:0/300:4294967295");
    done();

    make(LARGE); /* behind its end */
    b = again();
    jf_add(b, jf_at(0x510), 10, 0);
    jf_append(b, 0x510);
    check_differs(jf_at(0x510), 0,
                  "the server sent an entry at 1:0/510:0 again, where the journal, which ends "
                  "before it, has none");
    done();

    make(LARGE); /* another kind of thing at its place */
    b = again();
    jf_add_begin(b, jf_at(0x500));
    jf_append(b, 0);
    check_differs(jf_at(0x500), 0,
                  "the server sent an entry at 1:0/500:0 again, where the journal, which ends "
                  "before it, has none");
    done();
}
END_TEST

START_TEST(did_not_come)
{
    struct batch *b;

    make(LARGE);
    b = again();
    jf_add(b, jf_at(0x200), 10, 0);
    jf_add(b, jf_at(0x400), 40, 0);
    jf_append(b, 0x400);
    check_differs(jf_at(0x300), 0,
                  "the journal has an entry at 1:0/300:0, which the server did not send again "
                  "before 1:0/400:0");
    done();

    make(LARGE); /* over two batches */
    b = again();
    jf_add_begin(b, t1);
    jf_add_part(b, t1, 1, 10);
    jf_append(b, 0);
    b = again();
    jf_starts_inside(b, t1);
    jf_add_part(b, t1, 3, 30);
    jf_append(b, 0);
    check_differs((struct position){1, 0x300, 2}, 0,
                  "the journal has an entry at 1:0/300:2, which the server did not send again "
                  "before 1:0/300:3");
    done();

    make(LARGE); /* the message, before the BEGIN that has its position */
    b = again();
    add_t1(b);
    add_t2(b);
    jf_append(b, 0x408);
    check_differs(jf_at(0x400), 0,
                  "the journal has an entry at 1:0/400:0, which the server did not send again "
                  "before 1:0/400:0");
    done();

    make(LARGE); /* something new comes before the journal's end was reached */
    b = again();
    jf_add(b, jf_at(0x400), 40, 0);
    add_t2(b);
    jf_append(b, 0x408);
    jf_append_message(0x600, 10);
    check_differs(jf_at(0x500), 0x408,
                  "the journal has an entry at 1:0/500:0, which the server did not send again "
                  "before 1:0/600:0");
    ck_assert_uint_eq(journal_end(jf.j)->last.lsn, 0x500);
    done();
}
END_TEST

static struct batch *expecting(uint64_t lsn)
{
    struct batch *b = again();

    b->expected_from = (struct position){1, lsn, 0};
    return b;
}

/* The slot stands before what the journal has, and the server has nothing there. */
START_TEST(nothing_came)
{
    struct batch *b;

    make(LARGE);
    jf_append(expecting(0x301), 0x400); /* up to what is next */
    check_same(0x400);
    jf_append(again(), 0x401);
    check_differs(jf_at(0x400), 0x400,
                  "the journal has an entry at 1:0/400:0, which the server, being past 0/401, did not send again");
    done();

    make(LARGE); /* the message ends where the slot stands, the transaction's commit begins there */
    b = expecting(0x400);
    add_t2(b);
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x600);
    check_same(0x600);
    jf_append(expecting(0x400), 0x600);
    check_differs(jf_at(0x400), 0x600,
                  "the journal has an entry at 1:0/400:0, which the server, being past 0/600, did not send again");
    done();

    make(LARGE);
    jf_append(expecting(0x500), 0x600);
    check_same(0x600);
    done();

    make(400); /* with a mark of what comes again itself; the first batch brings something */
    b = expecting(0x200);
    jf_add(b, jf_at(0x200), 10, 0);
    jf_append(b, 0x308);
    check_differs(jf_at(0x300), 0,
                  "the journal has an entry at 1:0/300:0, which the server, being past 0/308, did not send again");
    done();

    make(LARGE); /* it begins too late */
    b = expecting(0x301);
    add_t2(b);
    jf_append(b, 0);
    check_differs(jf_at(0x400), 0,
                  "the journal has an entry at 1:0/400:0, which the server did not send again before 1:0/400:0");
    done();

    make(LARGE); /* something new comes first */
    b = jf_batch();
    b->expected_from = (struct position){1, 0x4FF, 0};
    jf_add(b, jf_at(0x600), 10, 0);
    jf_append(b, 0x600);
    check_differs(jf_at(0x500), 0,
                  "the journal has an entry at 1:0/500:0, which the server did not send again before 1:0/600:0");
    done();
}
END_TEST

/* A slot may stand anywhere before, at and behind what there is, also behind what retention has left. */
START_TEST(all_that_is_expected_comes)
{
    for (size_t segment = 400; segment <= LARGE; segment += LARGE - 400)
        for (uint64_t from = 0x80; from <= 0x600; from += 0x40) {
            struct batch *b;

            make(segment);
            b = expecting(from);
            if (from <= 0x200)
                jf_add(b, jf_at(0x200), 10, 0);
            if (from <= 0x300)
                add_t1(b);
            if (from <= 0x400) {
                jf_add(b, jf_at(0x400), 40, 0);
                add_t2(b);
            }
            if (from <= 0x500)
                jf_add(b, jf_at(0x500), 60, 0);
            jf_append(b, 0x508);
            jf_append(again(), 0x600);
            jf_append_message(0x600, 10);
            check_same(0x600);
            jf_append(expecting(from), 0x100); /* the next connection, which is told the old place first */
            check_same(0x100);
            done();
        }

    make(400);
    ck_assert_int_eq(journal_drop_first(jf.j), 0);
    jf_append(expecting(0x200), 0x200);
    struct batch *b = again();
    jf_add(b, jf_at(0x200), 10, 0); /* which is not here any more */
    add_t1(b);
    jf_append(b, 0x308);
    check_same(0x308);
    jf_append(again(), 0x401);
    check_differs(jf_at(0x400), 0x308,
                  "the journal has an entry at 1:0/400:0, which the server, being past 0/401, did not send again");
    done();
}
END_TEST

/* An accepted gap ends where the slot stands, and the commit record of the first transaction behind it begins right there. */
START_TEST(right_behind_a_gap)
{
    const struct position t = {1, 0x800, 0};
    struct batch *b;

    make(LARGE);
    b = jf_batch();
    jf_add_gap(b, jf_at(0x501), jf_at(0x800));
    jf_add_begin(b, t);
    jf_add_part(b, t, 1, 10);
    jf_add_commit(b, t, 1);
    jf_append(b, 0x808);
    for (unsigned i = 0; i < 2; i++) {
        b = i ? again() : expecting(0x800);
        jf_add_begin(b, t);
        jf_add_part(b, t, 1, 10);
        jf_add_commit(b, t, 1);
        jf_append(b, 0x808);
        check_same(0x808);
    }
    jf_append(expecting(0x800), 0x900);
    check_differs((struct position){1, 0x800, 0}, 0x808,
                  "the journal has an entry at 1:0/800:0, which the server, being past 0/900, did not send again");
    done();
}
END_TEST

/* That a transaction was never finished is told in front of what is new: what else did not come is seen all the same. */
START_TEST(a_gap_in_front_of_what_is_new)
{
    const struct position t = {1, 0x700, 0};
    struct batch *b;

    make(LARGE);
    b = jf_batch();
    jf_add_begin(b, t);
    jf_add_part(b, t, 1, 10);
    jf_append(b, 0x500);
    jf_append(expecting(0x400), 0);
    b = jf_batch();
    jf_starts_inside(b, t);
    jf_add_gap(b, (struct position){1, 0x700, 2}, (struct position){1, 0x700, POSITION_INDEX_END});
    jf_add(b, jf_at(0x900), 10, 0);
    jf_append(b, 0x900);
    check_differs((struct position){1, 0x400, 0}, 0x500,
                  "the journal has an entry at 1:0/400:0, which the server did not send again before 1:0/900:0");
    done();

    make(LARGE); /* but not what another connection should have sent: it has begun anew, and what it has accepted is its own */
    jf_append(expecting(0x400), 0);
    jf_finish();
    b = jf_batch();
    b->connection = 1;
    jf_add_gap(b, jf_at(0x501), jf_at(0x800));
    jf_add(b, jf_at(0x900), 10, 0);
    jf_append(b, 0x900);
    check_same(0x900);
    done();
}
END_TEST

/* What retention lets go of while the server sends it again is not missed on either side. */
START_TEST(dropped_meanwhile)
{
    for (unsigned dropped = 1; dropped <= 3; dropped++) {
        make(400);
        struct batch *b = again();
        jf_add(b, jf_at(0x200), 10, 0);
        jf_append(b, 0x200);
        jf_finish();
        for (unsigned i = 0; i < dropped; i++)
            ck_assert_int_eq(journal_drop_first(jf.j), 0);
        b = again();
        add_t1(b);
        jf_append(b, 0x308);
        b = again();
        jf_add(b, jf_at(0x400), 40, 0);
        add_t2(b);
        jf_append(b, 0x408);
        check_same(0x408);
        b = again();
        jf_add(b, jf_at(0x500), 61, 0);
        jf_append(b, 0x500);
        check_differs(jf_at(0x500), 0x408,
                      "what the server sent again at 1:0/500:0 is not what the journal has there");
        done();
    }
}
END_TEST

/* What the journal has of a timeline that was left behind does not come; nor does a gap. */
START_TEST(what_cannot_come)
{
    struct batch *b;

    make(LARGE);
    b = expecting(0x301);
    jf_add(b, (struct position){2, 0x6F8, 0}, 10, 0);
    b->again = false;
    jf_append(b, 0x700);
    jf_append(again(), 0x701);
    check_same(0x701);
    done();

    make(LARGE);
    b = jf_batch();
    jf_add_gap(b, jf_at(0x501), jf_at(0x5FF));
    jf_append(b, 0x5FF);
    check_same(0x5FF);
    jf_append(expecting(0x501), 0x700);
    check_same(0x700);
    done();
}
END_TEST

/* Nothing came again: the slot was ahead, and nobody can say what should have. */
START_TEST(only_new)
{
    make(LARGE);
    jf_append_message(0x600, 10);
    check_same(0x600);
    done();
}
END_TEST

START_TEST(older_than_the_journal)
{
    struct batch *b;

    make(400);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(journal_drop_first(jf.j), 0);
    struct segment_info info;
    journal_segment_info(jf.j, 0, &info);
    ck_assert_int_eq(position_compare(info.after, (struct position){1, 0x300, 2}), 0);
    b = again();
    jf_add(b, jf_at(0x80), 99, 0); /* before it began; what it was is not known any more */
    jf_add(b, jf_at(0x200), 11, 0);
    jf_add_begin(b, t1);
    jf_add_part(b, t1, 1, 99);
    jf_add_part(b, t1, 2, 99);
    jf_add_part(b, t1, 3, 30);
    jf_add_commit(b, t1, 3);
    jf_add(b, jf_at(0x400), 40, 0);
    jf_append(b, 0x400);
    check_same(0x400);
    /* while retention goes on below the run */
    ck_assert_int_eq(journal_drop_first(jf.j), 0);
    b = again();
    add_t2(b);
    jf_append(b, 0x408);
    check_same(0x408);
    done();

    make(400); /* the first that is still there differs */
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(journal_drop_first(jf.j), 0);
    b = again();
    jf_add_begin(b, t1);
    jf_add_part(b, t1, 2, 99);
    jf_add_part(b, t1, 3, 31);
    jf_append(b, 0);
    check_differs((struct position){1, 0x300, 3}, 0,
                  "what the server sent again at 1:0/300:3 is not what the journal has there");
    done();
}
END_TEST

/* Message 0x600; t3 of which the first message is there; a gap from the second to 0x800, both its; message 0x900. */
static const struct position t3 = {1, 0x700, 0};

static void make_with_gap(void)
{
    struct batch *b;

    make(LARGE);
    jf_received = 1000;
    jf_append_message(0x600, 10);
    b = jf_batch();
    jf_add_begin(b, t3);
    jf_add_part(b, t3, 1, 10);
    jf_append(b, 0x600);
    b = jf_batch();
    jf_add_gap(b, (struct position){1, 0x700, 2}, jf_at(0x800));
    jf_append(b, 0x800);
    jf_append_message(0x900, 10);
    jf_finish();
    jf_received = 2000;
}

START_TEST(inside_a_gap)
{
    struct batch *b;

    for (unsigned start = 0; start < 4; start++) {
        make_with_gap();
        b = again();
        if (start == 0) {
            jf_add(b, jf_at(0x600), 10, 0);
            jf_add_begin(b, t3);
            jf_add_part(b, t3, 1, 10);
        }
        if (start <= 1) {
            jf_add_part(b, t3, 2, 99);
            jf_add_part(b, t3, 3, 99);
            jf_add_commit(b, t3, 3);
        }
        if (start <= 2)
            jf_add(b, jf_at(0x800), 99, 0); /* the last that is in it */
        jf_append(b, 0x800);
        b = again();
        jf_add(b, jf_at(0x900), 10, 0);
        jf_append(b, 0x900);
        jf_append_message(0xA00, 10);
        check_same(0xA00);
        done();
    }

    make_with_gap(); /* beside it nothing is passed over */
    b = again();
    jf_add(b, jf_at(0x600), 10, 0);
    jf_add_begin(b, t3);
    jf_add_part(b, t3, 1, 10);
    jf_add_part(b, t3, 2, 99);
    jf_add(b, jf_at(0x801), 10, 0);
    jf_append(b, 0x801);
    check_differs(jf_at(0x801), 0x900,
                  "the server sent an entry at 1:0/801:0 again, where the journal has none, though "
                  "it has one at 1:0/900:0");
    done();

    make_with_gap(); /* what came before it, and did not come again */
    b = again();
    jf_add(b, jf_at(0x600), 10, 0);
    jf_add(b, jf_at(0x900), 10, 0);
    jf_append(b, 0x901);
    check_differs(jf_at(0x700), 0x900,
                  "the journal has an entry at 1:0/700:0, which the server did not send again "
                  "before 1:0/900:0");
    done();

    make_with_gap(); /* a new gap says for itself what does not come */
    b = again();
    jf_add(b, jf_at(0x600), 10, 0);
    jf_append(b, 0x600);
    b = jf_batch();
    b->connection = 1; /* an accepted one is put before anything else of a connection */
    jf_add_gap(b, jf_at(0x901), jf_at(0xB00));
    jf_append(b, 0xB00);
    jf_append_message(0xC00, 10);
    check_same(0xC00);
    done();
}
END_TEST

/* A promoted standby did not have all that the journal has of the old timeline. */
START_TEST(of_an_older_timeline)
{
    struct position new = {2, 0x480, 0};
    struct batch *b;

    make(LARGE); /* what is new comes on the next one */
    b = again();
    add_t1(b);
    jf_append(b, 0x308);
    b = jf_batch();
    jf_add(b, new, 10, 0);
    jf_append(b, 0x480);
    check_same(0x480);
    ck_assert_uint_eq(journal_end(jf.j)->mark_timeline, 2);
    /* and when all of that comes again */
    b = again();
    add_t1(b);
    jf_add(b, new, 10, 0);
    jf_append(b, 0x480);
    check_same(0x480);
    done();
}
END_TEST

/* ---- a journal that cannot be read ---- */

/* Turns a byte of that segment, which was not looked at since it was opened, over. */
static void damage(size_t i, uint64_t offset)
{
    struct segment *s = journal_segment_first(jf.j), *next;
    uint8_t byte;

    while (i--) {
        next = journal_segment_after(jf.j, s);
        segment_unref(s);
        s = next;
    }
    int fd = open(s->path, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)offset), 1);
    (void)close(fd);
    segment_unref(s);
}

START_TEST(damaged)
{
    struct batch *b;

    make(400);
    jf_close();
    jf_open();
    ck_assert_uint_eq(journal_segments(jf.j), 4);
    damage(1, SEGMENT_HEADER_SIZE + RECORD_SIZE + 20); /* t1's second message */
    b = again();
    add_t1(b);
    jf_append(b, 0x308);
    b = again();
    jf_add(b, jf_at(0x400), 40, 0);
    add_t2(b);
    jf_append(b, 0x408);
    jf_finish();
    ck_assert_uint_eq(jf.differs, 0);
    ck_assert_uint_eq(jf.synced_mark, 0x408);
    (void)fflush(jf.log.out);
    ck_assert_ptr_nonnull(strstr(jf.log_text, "journal.not-compared"));
    ck_assert_ptr_nonnull(strstr(
        jf.log_text, "0000000000000002-00000001-0000000000000300-00000001.segment is damaged "
                     "at offset 512"));
    char *first = strstr(jf.log_text, "journal.not-compared");
    ck_assert_ptr_null(strstr(first + 1, "journal.not-compared")); /* once for all its entries */
    /* behind it all is compared again */
    b = again();
    jf_add(b, jf_at(0x400), 41, 0);
    jf_append(b, 0x409);
    check_differs(jf_at(0x400), 0x408,
                  "what the server sent again at 1:0/400:0 is not what the journal has there");
    done();
}
END_TEST

/* A failure ends the run: what it stood in may be gone. */
START_TEST(a_failure_between)
{
    struct batch *b;

    make(LARGE);
    b = again();
    jf_add(b, jf_at(0x400), 40, 0);
    add_t2(b);
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x400);
    jf_finish();
    disk_fail(DISK_WRITEV, EIO, 0);
    jf_append(jf_batch(), 0x700);
    JF_UNTIL(jf.failed);
    disk_mend();
    ck_assert_int_eq(jf_retry(), 0);
    b = again();
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x500);
    jf_append_message(0x600, 10);
    check_same(0x600);
    done();
}
END_TEST

/* An accepted gap begins another era, with which nothing of the old one is compared. */
/* Messages of `b` at these entries are withheld, as it goes into the journal. */
static void append_withheld(struct batch *b, const size_t *entries, size_t n, uint64_t mark)
{
    struct batch_withheld withheld[8];

    b->mark = mark;
    b->mark_position = jf_at(mark);
    batch_seal(b);
    for (size_t i = 0; i < n; i++) {
        struct frame_message f = batch_message_of(b, &b->entries[entries[i]]);
        withheld[i] = (struct batch_withheld){.entry = entries[i], .status = 1};
        batch_hash(&f, withheld[i].hash);
    }
    struct batch *to = batch_withhold(b, withheld, n);
    ck_assert_ptr_nonnull(to);
    journal_append(jf.j, to);
    batch_unref(to);
    batch_unref(b);
}

static void make_withheld(void)
{
    static const size_t of_t1[] = {2, 3}, of_t2[] = {1}, alone[] = {0};
    struct batch *b;

    jf_make(LARGE, 0);
    jf_received = 1000;
    b = jf_batch();
    jf_add(b, jf_at(0x200), 10, 0);
    append_withheld(b, alone, 1, 0x200);
    b = jf_batch();
    add_t1(b);
    append_withheld(b, of_t1, 2, 0x308);
    b = jf_batch();
    add_t2(b);
    append_withheld(b, of_t2, 1, 0x408);
    b = jf_batch();
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x500);
    jf_finish();
    ck_assert_uint_eq(jf.synced_mark, 0x500);
    ck_assert_uint_eq(journal_end(jf.j)->messages, 2); /* what is withheld is not counted: nobody gets it */
    jf.synced_mark = 0;
    jf_received = 2000;
}

/* The server sends it whole; what policy would say of it now is not asked. */
START_TEST(withheld_comes_again)
{
    make_withheld();
    struct batch *b = again();
    jf_add(b, jf_at(0x200), 10, 0);
    add_t1(b);
    add_t2(b);
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x500);
    check_same(0x500);
    done();
}
END_TEST

START_TEST(withheld_comes_as_another)
{
    static const struct {
        uint64_t lsn;
        size_t size;
        uint8_t flags;
    } others[] = {{0x200, 11, 0}, {0x200, 9, 0}};

    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        make_withheld();
        struct batch *b = again();
        jf_add(b, jf_at(others[i].lsn), others[i].size, others[i].flags);
        jf_append(b, 0x200);
        check_differs(jf_at(0x200), 0, "what the server sent again at 1:0/200:0 is not what the journal has there");
        done();
    }
    make_withheld();
    struct batch *b = again();
    jf_add(b, jf_at(0x200), 10, 0);
    b->head[b->head_size - 1] ^= 1;
    jf_append(b, 0x200);
    check_differs(jf_at(0x200), 0, "what the server sent again at 1:0/200:0 is not what the journal has there");
    done();
    /* and one that does not come */
    make_withheld();
    b = again();
    add_t1(b);
    jf_append(b, 0x308);
    jf_finish();
    ck_assert_uint_eq(jf.differs, 0); /* it may lie before where the slot stood */
    b = again();
    jf_add(b, jf_at(0x500), 60, 0);
    jf_append(b, 0x500);
    check_differs((struct position){1, 0x400, 0}, 0x308,
                  "the journal has an entry at 1:0/400:0, which the server did not send again before 1:0/500:0");
    done();
}
END_TEST

START_TEST(until_another_era)
{
    struct batch *b;

    make(LARGE);
    b = again();
    jf_add(b, jf_at(0x250), 10, 0);
    jf_append(b, 0x250);
    JF_UNTIL(jf.differs);
    ck_assert_int_eq(journal_begin_era(jf.j, JF_SYSTEM, 2, "shop", "walbus", jf_at(0x10), 0x10, 1),
                     0);
    jf_append_message(0x20, 10);
    jf_finish();
    ck_assert_uint_eq(jf.synced_mark, 0x20);
    b = again();
    jf_add(b, jf_at(0x20), 10, 0);
    jf_append(b, 0x20);
    jf_finish();
    ck_assert_uint_eq(jf.differs, 1);
    jf_check_messages(0x20, 0x21);
    done();
}
END_TEST

UNIT_MAIN("journal_again", all_of_it, of_any_cut, again_and_again, the_mark_of_what_comes_again,
          other_contents, other_ends, large_contents, not_in_the_journal, did_not_come, nothing_came,
          all_that_is_expected_comes, what_cannot_come, right_behind_a_gap,
          a_gap_in_front_of_what_is_new, dropped_meanwhile, only_new,
          older_than_the_journal, inside_a_gap, of_an_older_timeline, damaged, a_failure_between,
          until_another_era, withheld_comes_again, withheld_comes_as_another)
