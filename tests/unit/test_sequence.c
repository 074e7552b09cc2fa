/* SPDX-License-Identifier: PostgreSQL */
#include "client/sequence.h"

#include <errno.h>
#include <string.h>

#include "unit.h"

/* One step of a session, written short: which frame, where, and whether it may come there. */
struct step {
    char frame; /* Begin, Message, nontransactional, Commit, Progress, Gap; 0 ends the list */
    uint32_t timeline;
    uint64_t lsn;
    uint32_t index;
    int rc;
    struct position to; /* Gap */
};

static int apply(struct sequence *s, const struct step *step, char why[SEQUENCE_WHY_SIZE])
{
    struct position p = {step->timeline, step->lsn, step->index};
    struct frame_begin begin = {.timeline = p.timeline, .commit_lsn = p.lsn};
    struct frame_message message = {.position = p,
                                    .flags = step->frame == 'M' ? FRAME_FLAG_TRANSACTIONAL : 0};
    struct frame_commit commit = {.begin = begin};
    struct frame_gap gap = {.from = p, .to = step->to};

    switch (step->frame) {
    case 'B':
        return sequence_begin(s, &begin, why);
    case 'M':
    case 'n':
        return sequence_message(s, &message, why);
    case 'C':
        return sequence_commit(s, &commit, why);
    case 'P':
        return sequence_progress(s, p, why);
    default:
        ck_assert_int_eq(step->frame, 'G');
        return sequence_gap(s, &gap, why);
    }
}

static void run(const struct step *steps)
{
    struct sequence s;

    sequence_start(&s, (struct position){1, 100, 5});
    for (size_t i = 0; steps[i].frame; i++) {
        char why[SEQUENCE_WHY_SIZE] = "";
        struct sequence before = s;
        int rc = apply(&s, &steps[i], why);

        ck_assert_msg(rc == steps[i].rc, "step %zu (%c): %d, %s", i, steps[i].frame, rc, why);
        if (rc < 0) {
            ck_assert_msg(why[0] != '\0' && why[strlen(why) - 1] == '.', "step %zu: \"%s\"", i,
                          why);
            ck_assert_int_eq(position_compare(s.last, before.last), 0);
            ck_assert_int_eq(s.in_transaction, before.in_transaction);
        }
    }
}

#define BAD (-EBADMSG)
#define END POSITION_INDEX_END

START_TEST(a_session_as_it_should_be)
{
    run((const struct step[]){
        {.frame = 'B', 1, 100, 0, 0}, /* resumed: the start lies inside it */
        {.frame = 'M', 1, 100, 6, 0},
        {.frame = 'M', 1, 100, 9, 0},
        {.frame = 'C', 1, 100, 0, 0},
        {.frame = 'n', 1, 200, 0, 0},
        {.frame = 'B', 1, 200, 0, 0}, /* the commit LSN may equal the message's before it */
        {.frame = 'M', 1, 200, 8, 0},
        {.frame = 'C', 1, 200, 0, 0},
        {.frame = 'P', 1, 300, 0, 0},
        {.frame = 'P', 1, 300, 0, 0},
        {.frame = 'G', 1, 300, 1, 0, {2, 5, 0}},
        {.frame = 'n', 2, 6, 0, 0}, /* a timeline beats every LSN of the one before */
        {.frame = 'B', 2, 7, 0, 0},
        {.frame = 'C', 2, 7, 0, 0},
        {0},
    });
}
END_TEST

START_TEST(positions_that_do_not_rise)
{
    run((const struct step[]){
        {.frame = 'n', 1, 100, 0, BAD},
        {.frame = 'n', 1, 99, 0, BAD},
        {.frame = 'n', 0, 900, 0, BAD},
        {.frame = 'B', 1, 99, 0, BAD},
        {.frame = 'P', 1, 100, 4, BAD},
        {.frame = 'P', 1, 100, 5, 0},
        {.frame = 'G', 1, 100, 5, BAD, {1, 200, 0}},
        {.frame = 'G', 1, 101, 0, BAD, {1, 100, 9}},
        {.frame = 'B', 1, 100, 0, 0},
        {.frame = 'M', 1, 100, 5, BAD},
        {.frame = 'M', 1, 100, 4, BAD},
        {.frame = 'M', 1, 100, 6, 0},
        {.frame = 'M', 1, 100, 6, BAD},
        {.frame = 'C', 1, 100, 0, 0},
        {.frame = 'C', 1, 100, 0, BAD},
        {.frame = 'B', 1, 100, 0, BAD},
        {0},
    });
}
END_TEST

START_TEST(frames_outside_their_transaction)
{
    run((const struct step[]){
        {.frame = 'M', 1, 200, 1, BAD}, /* no BEGIN */
        {.frame = 'C', 1, 200, 0, BAD},
        {.frame = 'n', 1, 200, 1, BAD}, /* an index only transactional ones have */
        {.frame = 'B', 1, 200, 0, 0},
        {.frame = 'B', 1, 300, 0, BAD},
        {.frame = 'n', 1, 300, 0, BAD},
        {.frame = 'M', 1, 201, 1, BAD},
        {.frame = 'M', 2, 200, 1, BAD},
        {.frame = 'M', 1, 200, 0, BAD},
        {.frame = 'M', 1, 200, END, BAD},
        {.frame = 'P', 1, 200, 0, BAD}, /* no progress inside, not even to where it stands */
        {.frame = 'P', 1, 200, 7, BAD},
        {.frame = 'P', 1, 200, END, BAD},
        {.frame = 'P', 1, 300, 0, BAD},
        {.frame = 'C', 1, 201, 0, BAD},
        {.frame = 'C', 2, 200, 0, BAD},
        {.frame = 'C', 1, 200, 0, 0},
        {0},
    });
}
END_TEST

START_TEST(gaps_and_the_open_transaction)
{
    run((const struct step[]){
        {.frame = 'B', 1, 200, 0, 0},
        {.frame = 'G', 1, 200, 1, 0, {1, 200, 50}}, /* inside: COMMIT still comes */
        {.frame = 'n', 1, 300, 0, BAD},
        {.frame = 'C', 1, 200, 0, 0},
        {.frame = 'B', 1, 300, 0, 0},
        {.frame = 'G', 1, 300, 1, 0, {1, 300, END}}, /* never finished: closed */
        {.frame = 'C', 1, 300, 0, BAD},
        {.frame = 'n', 1, 400, 0, 0},
        {0},
    });
}
END_TEST

UNIT_MAIN("sequence", a_session_as_it_should_be, positions_that_do_not_rise,
          frames_outside_their_transaction, gaps_and_the_open_transaction)
