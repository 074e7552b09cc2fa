/* SPDX-License-Identifier: PostgreSQL */
#include "builder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builder_fixture.h"
#include "unit.h"

/*
 * Random transactions and messages in delivery order, sent over connections that are cut anywhere;
 * each new one begins at a random earlier point, as the server may. What comes out, all batches
 * together, must be what one uncut connection would give, and the marks the ends of what was sent.
 */

enum { ITEMS = 120, MESSAGES_MAX = 6 };

struct item {
    uint64_t lsn, end; /* commit LSN and its end; of a message both are its LSN */
    unsigned n;        /* messages; 0 with `plain` false: an empty transaction */
    bool plain;        /* one non-transactional message */
    struct {
        bool heartbeat;
        uint64_t lsn;
        size_t large; /* content's size, 0: the number below as text */
        unsigned number;
    } messages[MESSAGES_MAX];
};

static struct item items[ITEMS];

static const char *prefix_of(const struct item *item, unsigned i)
{
    return item->messages[i].heartbeat ? SUBJECT_HEARTBEAT_PREFIX : item->plain ? "plain" : "tx.a";
}

static void make_items(struct unit_random *random)
{
    uint64_t lsn = 0xf000; /* so that the switch at 0/10000 comes on the way */
    unsigned number = 0;

    for (unsigned i = 0; i < ITEMS; i++) {
        struct item *item = &items[i];
        bool adjacent = i && items[i - 1].plain && unit_random_below(random, 2);

        *item = (struct item){.plain = unit_random_below(random, 3) == 0};
        item->n = item->plain ? 1 : unit_random_below(random, MESSAGES_MAX + 1);
        for (unsigned j = 0; j < item->n; j++) {
            item->messages[j].heartbeat = unit_random_below(random, 6) == 0;
            item->messages[j].lsn = lsn - unit_random_below(random, 100);
            item->messages[j].number = ++number;
            if (unit_random_below(random, 40) == 0)
                item->messages[j].large = BATCH_COPY_MAX - 1 + unit_random_below(random, 4);
        }
        if (item->plain) {
            lsn += 1 + unit_random_below(random, 64);
            item->lsn = item->end = item->messages[0].lsn = lsn;
        } else {
            if (!adjacent) /* else its commit LSN equals the LSN of the message before */
                lsn += 1 + unit_random_below(random, 64);
            item->lsn = lsn;
            lsn += 1 + unit_random_below(random, 64);
            item->end = lsn;
        }
    }
    ck_assert_uint_gt(lsn, 0x10000);
}

static void put_model(struct buf *out)
{
    for (unsigned i = 0; i < ITEMS; i++) {
        const struct item *item = &items[i];
        bool begun = false;
        unsigned timeline = (item->plain ? item->lsn - 1 : item->lsn) < 0x10000 ? 1 : 2;

        for (unsigned j = 0; j < item->n; j++) {
            if (item->messages[j].heartbeat)
                continue;
            if (!item->plain && !begun)
                buf_printf(out, "B %u:0/%" PRIX64 ":0 t%" PRIu64 " x%u\n", timeline, item->lsn,
                           item->lsn + TIME, i + 1);
            begun = !item->plain;
            buf_printf(out, "M %u:0/%" PRIX64 ":%u l0/%" PRIX64, timeline, item->lsn,
                       item->plain ? 0 : j + 1, item->messages[j].lsn);
            if (!item->plain)
                buf_printf(out, " t%" PRIu64 " x%u", item->lsn + TIME, i + 1);
            buf_printf(out, " %s=", prefix_of(item, j));
            if (item->messages[j].large)
                buf_printf(out, "%zu*z\n", item->messages[j].large);
            else
                buf_printf(out, "%u\n", item->messages[j].number);
        }
        if (begun)
            buf_printf(out, "C %u:0/%" PRIX64 " t%" PRIu64 " x%u e0/%" PRIX64 " n%u\n", timeline,
                       item->lsn, item->lsn + TIME, i + 1, item->end, item->n);
    }
}

struct model {
    struct unit_random *random;
    struct buf out;
    bool inside;              /* in what came out */
    uint64_t mark;            /* of this connection */
    unsigned batches, budget; /* steps until the cut */
};

/** What came again is what came before, line for line. */
static void model_take_again(struct model *m)
{
    struct buf again = BUF_INIT;
    bool inside = false;
    struct batch *batch = builder_take(&b);

    ck_assert(batch->again);
    /* a batch that begins inside a transaction says so by its first entry */
    inside = batch->first.index != 0 && batch->entries[0].type != FRAME_BEGIN;
    put_frames(&again, batch, &inside);
    for (char *line = strtok((char *)(uintptr_t)buf_str(&again), "\n"); line; line = strtok(NULL, "\n"))
        ck_assert_msg(strstr(buf_str(&m->out), line), "%s", line);
    buf_deinit(&again);
    (void)batch_unref(batch);
}

static void model_take(struct model *m)
{
    if (b.again)
        model_take_again(m);
    struct batch *batch = builder_take(&b);

    if (!batch)
        return;
    ck_assert(!batch->again);
    ck_assert_uint_eq(batch->mark, m->mark);
    if (batch->n_entries) {
        ck_assert_int_eq(batch->starts_inside, m->inside);
        put_frames(&m->out, batch, &m->inside);
        ck_assert_int_eq(batch->ends_inside, m->inside);
    }
    m->batches++;
    (void)batch_unref(batch);
}

/** After each step: hand on when that is due or just so; false when the connection is cut here. */
static bool model_step(struct model *m, int r)
{
    ck_assert_msg(r >= 0, "%d", r);
    if (builder_is_full(&b) || unit_random_below(m->random, 5) == 0)
        model_take(m);
    return --m->budget > 0;
}

static bool model_message(struct model *m, const struct item *item, unsigned j)
{
    char number[16];
    size_t size = item->messages[j].large;
    void *owner = NULL;
    struct bytes content;

    if (size) {
        owner = malloc(size);
        ck_assert_ptr_nonnull(owner);
        memset(owner, 'z', size);
        content = (struct bytes){owner, size};
    } else {
        (void)snprintf(number, sizeof number, "%u", item->messages[j].number);
        content = unit_bytes(number);
    }
    int r = message_of(!item->plain, item->messages[j].lsn, unit_bytes(prefix_of(item, j)), content,
                       &owner);
    free(owner);
    if (item->plain)
        m->mark = item->end;
    return model_step(m, r);
}

/** Sends one item; false when it was cut. */
static bool model_item(struct model *m, unsigned i)
{
    const struct item *item = &items[i];

    if (!item->plain && !model_step(m, begin_with(item->lsn, i + 1)))
        return false;
    for (unsigned j = 0; j < item->n; j++) {
        if (!model_message(m, item, j))
            return false;
        if (!item->plain && unit_random_below(m->random, 4) == 0)
            builder_keepalive(&b, item->lsn); /* inside: without effect */
    }
    if (!item->plain) {
        int r = commit(item->lsn, item->end);
        m->mark = item->end;
        if (!model_step(m, r))
            return false;
    }
    uint64_t next = i + 1 < ITEMS ? items[i + 1].lsn - items[i + 1].plain : item->end + 10;
    if (next >= item->end && unit_random_below(m->random, 4) == 0) {
        builder_keepalive(&b, next);
        m->mark = next;
    }
    return true;
}

START_TEST(random_cuts)
{
    struct unit_random random = unit_random_init();
    unsigned cuts = 0, repeated = 0;

    for (unsigned round = 0; round < 30; round++) {
        struct model m = {.random = &random};
        struct buf want = BUF_INIT;
        unsigned next = 0; /* the first item that was not sent to its end */

        make_items(&random);
        setup();
        while (next < ITEMS) {
            unsigned back = unit_random_below(&random, 3) ? unit_random_below(&random, 4)
                                                          : unit_random_below(&random, ITEMS);

            reconnect();
            m.mark = 0;
            m.budget = 1 + unit_random_below(&random, 150);
            for (unsigned i = next - MIN(back, next); i < ITEMS; i++) {
                if (!model_item(&m, i)) {
                    cuts++;
                    break;
                }
                next = MAX(next, i + 1);
            }
            model_take(&m);
        }
        repeated += (unsigned)b.repeated;
        put_model(&want);
        ck_assert_str_eq(buf_str(&m.out), buf_str(&want));
        ck_assert(!m.inside);
        buf_deinit(&want);
        buf_deinit(&m.out);
        teardown();
    }
    ck_assert_uint_gt(cuts, 30);
    ck_assert_uint_gt(repeated, 300);
}
END_TEST

UNIT_MAIN("builder_model", random_cuts)
