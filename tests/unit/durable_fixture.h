/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_DURABLE_FIXTURE_H
#define WALBUS_TESTS_UNIT_DURABLE_FIXTURE_H

/* A registry of durable names on a real catalog and a journal of the test's own. Each program of tests that includes this has one. */

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "durable.h"
#include "fake_journal.h"
#include "unit.h"
#include "wait_until.h"

static char folder[32];
static char why[CATALOG_WHY_SIZE];
static uv_loop_t loop;
static uv_timer_t alive; /* as a router's listener keeps its loop */
static struct journal journal;
static struct route *route;
static struct batch_pool pool;
static struct durables *ds;

static char *logged; /* what was logged since setup */
static size_t logged_size;
static struct logger logger;

static struct {
    unsigned confirmed, stored, measured;
    struct durable *which; /* the last confirmed */
    struct position position;
} told;

static uint64_t expire_ms;

static int disk_error; /* what each sync fails with; 0: none does */

static atomic_bool sync_waits;

/* LMDB's own: what it calls is looked up in the program first. */
int fdatasync(int fd)
{
    (void)fd;
    while (atomic_load(&sync_waits))
        (void)usleep(100);
    errno = disk_error;
    return disk_error ? -1 : 0;
}

static inline void on_confirmed(void *owner, struct durable *d, struct position position)
{
    ck_assert_ptr_eq(owner, &told);
    told.confirmed++;
    told.which = d;
    told.position = position;
}

/* A commit that has `d` in it stands still, until sync_waits says no more: else it might be over within one turn of the loop. */
#define hold_commit(d)                   \
    do {                                 \
        atomic_store(&sync_waits, true); \
        wait_until((d)->in_commit);      \
    } while (0)

static inline void let_commit(void)
{
    atomic_store(&sync_waits, false);
}

static inline void on_stored(void *owner)
{
    ck_assert_ptr_eq(owner, &told);
    told.stored++;
}

static inline void on_measured(void *owner)
{
    ck_assert_ptr_eq(owner, &told);
    told.measured++;
}

static const struct durables_ops ops = {on_confirmed, on_stored, on_measured};

static inline void keep_alive(uv_timer_t *timer)
{
    (void)timer;
}

static inline void open_names(void)
{
    int r = durables_open(folder, &loop, &journal, route, expire_ms, &ops, &told, &logger, &ds, why);

    ck_assert_msg(r == 0, "%s: %s", strerror(-r), why);
}

static inline void setup(void)
{
    memset(&told, 0, sizeof told);
    expire_ms = 0;
    disk_error = 0;
    strcpy(folder, "/tmp/walbus-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    (void)uv_timer_init(&loop, &alive);
    (void)uv_timer_start(&alive, keep_alive, 3600000, 3600000);
    fake_journal_init(&journal);
    route = route_new();
    ck_assert_ptr_nonnull(route);
    logger = (struct logger){.out = open_memstream(&logged, &logged_size), .level = LOG_INFO};
    ck_assert_ptr_nonnull(logger.out);
    open_names();
}

static inline void close_names(void)
{
    ds = durables_close(ds);
    uv_unref((uv_handle_t *)&alive);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    uv_ref((uv_handle_t *)&alive);
}

/* As after a kill: what is stored is stored. */
static inline void reopen(void)
{
    close_names();
    open_names();
}

static inline void stop_cleanly(void)
{
    ck_assert_int_eq(durables_finish(ds, true), 0);
    reopen();
}

static inline void teardown(void)
{
    char path[64];

    close_names();
    uv_close((uv_handle_t *)&alive, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    route = route_free(route);
    ck_assert_uint_eq(pool.live, 0);
    batch_pool_deinit(&pool);
    (void)fclose(logger.out);
    free(logged);
    (void)snprintf(path, sizeof path, "%s/catalog", folder);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

/** Everything that has changed is on disk. */
static inline void settle(void)
{
    uint64_t ticket = durables_ticket(ds);

    wait_until(durables_is_done(ds, ticket));
}

static inline bool was_logged(const char *id)
{
    (void)fflush(logger.out);
    return logged && strstr(logged, id);
}

static inline struct position at(uint64_t lsn, uint32_t index)
{
    return (struct position){1, lsn, index};
}

static inline void assert_at(struct position got, uint64_t lsn, uint32_t index)
{
    char text[POSITION_TEXT_SIZE];

    ck_assert_msg(position_compare(got, at(lsn, index)) == 0, "%s", position_format(got, text));
}

static inline struct durable *add_name(const char *name, const char *pattern, struct position cursor)
{
    struct filter filter = {FILTER_PATTERN, unit_bytes(pattern)};
    struct durable *d = NULL;

    ck_assert_int_eq(durables_add(ds, unit_bytes(name), &filter, 1, NULL, 0, cursor, &d), 0);
    ck_assert_ptr_eq(durables_find(ds, unit_bytes(name)), d);
    return d;
}

static inline struct durable *find_name(const char *name)
{
    struct durable *d = durables_find(ds, unit_bytes(name));

    ck_assert_msg(d, "there is no %s", name);
    return d;
}

/** Some session. */
static inline struct session *holder(unsigned i)
{
    static char sessions[8];

    return (struct session *)(void *)&sessions[i];
}

static inline void hold(struct durable *d)
{
    durable_hold(ds, d, holder(0), 10);
}

/* ---- routing, as deliver.c does it ---- */

struct part {
    uint8_t type; /* FRAME_…, 0: the end */
    uint64_t lsn;
    uint32_t index;
    const char *prefix;
};

/** Puts it into the journal too. */
static inline void route_parts(const struct part *parts, struct position mark)
{
    struct batch batch = {.mark_position = mark};

    for (size_t i = 0; parts[i].type; i++) {
        struct position p = at(parts[i].lsn, parts[i].type == FRAME_COMMIT ? POSITION_INDEX_END : parts[i].index);
        struct route_set set;

        batch.n_entries++;
        batch.last = p;
        if (parts[i].type == FRAME_BEGIN) {
            batch.ends_inside = true;
        } else if (parts[i].type == FRAME_COMMIT) {
            batch.ends_inside = false;
        } else if (parts[i].type == FRAME_GAP) {
            durables_gap_routed(ds, p);
        } else {
            batch.ends_inside = parts[i].index != 0;
            ck_assert_int_eq(route_lookup(route, unit_bytes(parts[i].prefix), &set), 0);
            for (size_t j = 0; j < set.n; j++) {
                ck_assert(set.members[j]->absent);
                durable_matched(ds, set.members[j], p);
            }
        }
        if (parts[i].type == FRAME_MESSAGE && position_compare(p, journal.end.last) > 0)
            fake_journal_add(&journal, p, parts[i].prefix, 10);
        else if (position_compare(p, journal.end.last) > 0)
            journal.end.last = journal.segments[journal.n_segments - 1].last = p;
    }
    journal.end.inside = batch.ends_inside;
    durables_routed(ds, &batch);
}

static inline void route_message(uint64_t lsn, const char *prefix)
{
    const struct part parts[] = {{FRAME_MESSAGE, lsn, 0, prefix}, {0}};

    route_parts(parts, at(lsn, 0));
}

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

#endif
