/* SPDX-License-Identifier: PostgreSQL */
/* What the router does with what its source reads and its journal tells; both are recorded here, and do nothing. */
#include "intake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients.h"
#include "deliver.h"
#include "names.h"
#include "unit.h"

struct journal {
    const struct journal_ops *ops;
    void *owner;
    struct journal_end end;
    struct segment_info first;
    struct position written;
    bool failed, full;
    unsigned retries, begun;
    int begin_error;
    struct batch *appended[32];
    size_t n;
};

static struct journal journal;
static struct router r;
static uv_loop_t loop;
static struct settings settings;
static struct logger logger;
static char *logged;
static size_t logged_size;
static char folder[64];

/* What the source was told. */
static struct {
    bool held;
    unsigned settled, suspended, went_on, differed, accepted;
    uint64_t advanced;
    struct position restored, gap;
} told;

/* ---- in the place of the journal ---- */

int journal_open(const struct journal_options *options, uv_loop_t *on, const struct journal_ops *ops, void *owner,
                 struct logger *log, struct journal **ret, char why[JOURNAL_WHY_SIZE])
{
    (void)on, (void)log, (void)why;
    ck_assert_int_eq(mkdir(options->folder, 0700), 0);
    journal.ops = ops;
    journal.owner = owner;
    *ret = &journal;
    return 0;
}

struct journal *journal_close(struct journal *j)
{
    while (j && j->n)
        (void)batch_unref(j->appended[--j->n]);
    return NULL;
}

const struct journal_end *journal_end(const struct journal *j)
{
    return &j->end;
}

int journal_begin_era(struct journal *j, uint64_t system_identifier, uint32_t era, const char *database, const char *slot,
                      struct position after, uint64_t mark, uint32_t mark_timeline)
{
    if (j->begin_error)
        return j->begin_error;
    j->begun++;
    j->end = (struct journal_end){.system_identifier = system_identifier,
                                  .era = era,
                                  .database = database,
                                  .slot = slot,
                                  .last = after,
                                  .mark = mark,
                                  .mark_timeline = mark_timeline};
    j->first.after = after;
    return 0;
}

void journal_append(struct journal *j, struct batch *batch)
{
    ck_assert_uint_lt(j->n, ARRAY_SIZE(j->appended));
    j->appended[j->n++] = batch_ref(batch);
}

bool journal_is_full_queue(const struct journal *j, bool half)
{
    (void)half;
    return j->full;
}

struct position journal_written(const struct journal *j)
{
    return j->written;
}

void journal_retry(struct journal *j)
{
    j->retries++;
}

bool journal_has_failed(const struct journal *j)
{
    return j->failed;
}

int journal_finish(struct journal *j)
{
    (void)j;
    return 0;
}

void journal_segment_info(const struct journal *j, size_t i, struct segment_info *ret)
{
    ck_assert_uint_eq(i, 0);
    *ret = j->first;
}

/* ---- in the place of the source ---- */

void source_hold(struct source *s, bool on)
{
    (void)s;
    told.held = on;
}

void source_settled(struct source *s)
{
    (void)s;
    told.settled++;
}

void source_advance(struct source *s, uint64_t lsn)
{
    (void)s;
    told.advanced = lsn;
}

void source_suspend(struct source *s, const char *why)
{
    ck_assert_uint_gt(strlen(why), 0);
    s->state = SOURCE_SUSPENDED;
    told.suspended++;
}

void source_go_on(struct source *s)
{
    ck_assert_int_eq(s->state, SOURCE_SUSPENDED);
    s->state = SOURCE_BACKING_OFF;
    told.went_on++;
}

void source_differs(struct source *s, struct position position, const char *what)
{
    (void)s, (void)position, (void)what;
    told.differed++;
}

bool source_is_asked(const struct source *s)
{
    (void)s;
    return true;
}

void builder_restore(struct builder *b, struct position last, const struct frame_begin *inside, int64_t received_time)
{
    (void)b, (void)inside, (void)received_time;
    told.restored = last;
}

int builder_accept_gap(struct builder *b, struct position to, const char *reason)
{
    (void)b;
    ck_assert_ptr_eq(strstr(reason, "accepted by the operator: "), reason);
    told.accepted++;
    told.gap = to;
    return 0;
}

/* ---- in the place of the others ---- */

int names_open(struct router *router)
{
    (void)router;
    return 0;
}

void names_close(struct router *router)
{
    (void)router;
}

uint32_t names_first_era(const struct router *router)
{
    (void)router;
    return 1;
}

int names_begin_era(struct router *router, uint64_t system_identifier, uint32_t era, struct position after)
{
    (void)router, (void)system_identifier, (void)era, (void)after;
    return 0;
}

static unsigned unproven_slots;

int names_unproven(struct router *router)
{
    (void)router;
    unproven_slots++;
    return 0;
}

void names_log_unread(struct router *router)
{
    (void)router;
}

void names_synced(struct router *router)
{
    (void)router;
}

void names_written(struct router *router)
{
    (void)router;
}

void names_tick(struct router *router)
{
    (void)router;
}

void durables_fell_back(struct durables *ds)
{
    (void)ds;
}

void deliver_written(struct router *router)
{
    (void)router;
}

void retention_appended(struct retention *retention)
{
    (void)retention;
}

void clients_new_era(struct router *router)
{
    (void)router;
}

/* ---- fixture ---- */

static struct position at(uint64_t lsn)
{
    return (struct position){1, lsn, 0};
}

/* A router that has read up to 1:0/100:0 of era `era`, and has marked 0/100. */
static void setup(uint32_t era)
{
    journal = (struct journal){.end = {.system_identifier = 7,
                                       .era = era,
                                       .database = "shop",
                                       .slot = "walbus",
                                       .last = at(0x100),
                                       .mark = 0x100,
                                       .mark_timeline = 1,
                                       .messages = 1},
                               .first = {.after = at(0x10)},
                               .written = at(0x100)};
    memset(&told, 0, sizeof told);
    unproven_slots = 0;
    strcpy(folder, "/tmp/walbus-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    settings.state_dir = folder;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    logger = (struct logger){.out = open_memstream(&logged, &logged_size), .level = LOG_INFO};
    ck_assert_ptr_nonnull(logger.out);
    r = (struct router){.loop = &loop, .log = &logger, .settings = &settings, .state = STATE_INIT};
    r.source.state = SOURCE_CONFIRMING;
    r.source.slot = "walbus";
    ck_assert_int_eq(intake_open(&r), 0);
}

static void teardown(void)
{
    char command[128];

    intake_close(&r);
    state_close(&r.state);
    batch_pool_deinit(&r.pool);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    (void)fclose(logger.out);
    free(logged);
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static bool has_logged(const char *id)
{
    (void)fflush(logger.out);
    return strstr(logged, id) != NULL;
}

/* A new connection from `lsn` on. */
static void start(uint64_t lsn)
{
    ck_assert(intake_started(&r, at(lsn), true, CONTINUITY_GOES_ON));
    r.source.state = SOURCE_STREAMING;
}

/* One message, or, at 0, a mark alone. Returns whether it is to be delivered. */
static bool receive(uint64_t lsn, uint64_t mark, bool again)
{
    struct batch *b = batch_new(&r.pool);

    ck_assert_ptr_nonnull(b);
    if (lsn) {
        const struct frame_message f = {.position = at(lsn), .prefix = unit_bytes("a"), .content = unit_bytes("1")};
        void *owner = NULL;
        ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
    }
    b->again = again;
    b->mark = mark;
    b->mark_position = at(mark);
    batch_seal(b);
    bool deliver = intake_stamp(&r, b) && intake_batch(&r, b);
    (void)batch_unref(b);
    return deliver;
}

static void synced(uint64_t mark, uint32_t connection)
{
    journal.ops->synced(journal.owner, mark, connection);
}

/* ---- marks ---- */

/* What an earlier connection said is not for this one: neither while it is set up nor later. */
START_TEST(marks_of_another_connection)
{
    setup(1);
    start(0x101);
    ck_assert(receive(0x200, 0x200, false));
    ck_assert_uint_eq(journal.n, 1);
    uint32_t first = journal.appended[0]->connection;
    synced(0x200, first);
    ck_assert_uint_eq(told.advanced, 0x200);
    ck_assert(receive(0x300, 0x300, false));
    r.source.state = SOURCE_BACKING_OFF;
    intake_changed(&r);
    r.source.state = SOURCE_CONFIRMING; /* its stream reports already, and may be another server's */
    intake_changed(&r);
    synced(0x300, first);
    ck_assert_uint_eq(told.advanced, 0x200);
    start(0x101);
    synced(0x300, first);
    ck_assert_uint_eq(told.advanced, 0x200);
    ck_assert(!receive(0x200, 0x200, true));
    ck_assert_uint_ne(journal.appended[2]->connection, first);
    synced(0x200, journal.appended[2]->connection);
    ck_assert_uint_eq(told.advanced, 0x200);
    teardown();
}
END_TEST

/* Only a connection's first batch says from where on what the journal has must come. */
START_TEST(what_is_expected)
{
    setup(1);
    start(0x80);
    ck_assert(!receive(0x90, 0x90, true));
    ck_assert(!receive(0x100, 0x100, true));
    ck_assert_int_eq(position_compare(journal.appended[0]->expected_from, at(0x80)), 0);
    ck_assert(position_is_zero(journal.appended[1]->expected_from));

    start(0x80); /* a mark alone, which would wait otherwise */
    ck_assert(receive(0, 0x200, false));
    ck_assert_uint_eq(journal.n, 3);
    ck_assert_int_eq(position_compare(journal.appended[2]->expected_from, at(0x80)), 0);

    start(0x101); /* behind all there is */
    ck_assert(receive(0x200, 0x200, false));
    ck_assert(position_is_zero(journal.appended[3]->expected_from));

    ck_assert(intake_started(&r, at(0x80), false, CONTINUITY_GOES_ON)); /* nobody has looked */
    ck_assert(!receive(0x100, 0x100, true));
    ck_assert(position_is_zero(journal.appended[4]->expected_from));
    teardown();
}
END_TEST

/* ---- comparing ---- */

/* --accept-gap stays armed until what came again was compared: by something new that is written, or by a mark beyond the end. */
START_TEST(settled_once_it_is_proven)
{
    setup(1);
    start(0x80);
    ck_assert(r.unproven);
    synced(0x90, r.connection);
    ck_assert_uint_eq(told.settled, 0);
    ck_assert_uint_eq(told.advanced, 0x90);
    synced(0x100, r.connection); /* not beyond */
    ck_assert(r.unproven);
    synced(0x101, r.connection);
    ck_assert(!r.unproven);
    ck_assert_uint_eq(told.settled, 1);

    start(0x80);
    ck_assert(!receive(0x100, 0x100, true));
    ck_assert(receive(0x200, 0x200, false));
    synced(0x101, r.connection); /* a mark is no proof any more: something new waits */
    ck_assert(r.unproven);
    journal.ops->written(journal.owner);
    ck_assert(r.unproven);
    journal.written = at(0x200);
    journal.ops->written(journal.owner);
    ck_assert(!r.unproven);
    synced(0x200, r.connection);
    ck_assert_uint_eq(told.settled, 2);

    start(0x101);
    ck_assert(!r.unproven);
    teardown();
}
END_TEST

/* Also while the source is between two connections. */
START_TEST(a_difference_is_handed_on)
{
    setup(1);
    start(0x80);
    r.source.state = SOURCE_BACKING_OFF;
    intake_changed(&r);
    journal.ops->differs(journal.owner, at(0x100), "they differ");
    ck_assert_uint_eq(told.differed, 1);
    teardown();
}
END_TEST

/* ---- failures ---- */

static void fail_writing(int error)
{
    journal.failed = true;
    journal.ops->failed(journal.owner, error, "writing failed");
}

/* A filled queue is empty then, and nothing that is written later says so. */
START_TEST(a_full_queue_that_fails)
{
    setup(1);
    start(0x101);
    journal.full = true;
    ck_assert(receive(0x200, 0x200, false));
    ck_assert(told.held);
    journal.full = false;
    fail_writing(ENOSPC);
    ck_assert(!told.held);
    ck_assert_uint_eq(told.suspended, 1);
    ck_assert_int_eq(r.journal_error, ENOSPC);
    ck_assert(!receive(0x300, 0x300, false)); /* it comes again */
    ck_assert_uint_eq(journal.n, 1);
    intake_tick(&r);
    ck_assert_uint_eq(journal.retries, 1);
    journal.ops->retried(journal.owner, EIO);
    ck_assert_int_eq(r.journal_error, EIO);
    ck_assert_uint_eq(told.went_on, 0);
    intake_tick(&r);
    journal.failed = false;
    journal.ops->retried(journal.owner, 0);
    ck_assert_int_eq(r.journal_error, 0);
    ck_assert_uint_eq(told.went_on, 1);
    ck_assert_int_eq(position_compare(told.restored, at(0x100)), 0);
    ck_assert(has_logged(" journal.failed ") && has_logged("make room") && has_logged(" journal.recovered "));
    teardown();
}
END_TEST

START_TEST(a_state_folder_that_is_moved)
{
    char moved[80];

    setup(1);
    start(0x101);
    intake_tick(&r);
    ck_assert_uint_eq(told.suspended, 0);
    (void)snprintf(moved, sizeof moved, "%s.moved", folder);
    ck_assert_int_eq(rename(folder, moved), 0);
    intake_tick(&r);
    intake_tick(&r);
    ck_assert_uint_eq(told.suspended, 1);
    ck_assert_uint_eq(told.went_on, 0);
    fail_writing(ENOENT); /* what is tried now is no use */
    intake_tick(&r);
    ck_assert_uint_eq(journal.retries, 0);
    journal.failed = false;
    journal.ops->retried(journal.owner, 0);
    ck_assert_uint_eq(told.went_on, 0);
    ck_assert_int_eq(rename(moved, folder), 0);
    intake_tick(&r);
    ck_assert_uint_eq(told.went_on, 1);
    ck_assert(has_logged(" state.gone ") && has_logged(" state.back "));
    teardown();
}
END_TEST

/* ---- gaps ---- */

START_TEST(an_accepted_gap_is_put_until_it_is_written)
{
    setup(1);
    for (unsigned i = 1; i <= 2; i++) {
        ck_assert(intake_started(&r, at(0x200), true, CONTINUITY_SLOT_MOVED));
        ck_assert_uint_eq(told.accepted, i);
        ck_assert_uint_eq(unproven_slots, i);
        ck_assert_int_eq(position_compare(told.gap, at(0x200)), 0);
    }
    journal.end.last = at(0x200); /* there it is */
    ck_assert(intake_started(&r, at(0x200), true, CONTINUITY_SLOT_MOVED));
    journal.end.mark = 0x300; /* the slot has gone on since, by a mark alone */
    ck_assert(intake_started(&r, at(0x300), true, CONTINUITY_SLOT_MOVED));
    ck_assert_uint_eq(told.accepted, 2);
    teardown();
}
END_TEST

START_TEST(a_new_era_begins_with_its_gap)
{
    setup(1);
    r.source.continuity.system_identifier = 8;
    r.source.facts.slot_confirmed_flush_lsn = 0x40;
    ck_assert(intake_started(&r, at(0x40), true, CONTINUITY_OTHER_SYSTEM));
    ck_assert_uint_eq(journal.begun, 1);
    ck_assert_uint_eq(journal.end.era, 2);
    ck_assert_uint_eq(told.accepted, 1);
    ck_assert_int_eq(position_compare(told.gap, at(0x40)), 0);
    /* it was not written: a failure, or another start of the router, which knows nothing of what was accepted */
    ck_assert(intake_started(&r, at(0x40), true, CONTINUITY_GOES_ON));
    ck_assert_uint_eq(told.accepted, 2);
    journal.end.last = at(0x40);
    ck_assert(intake_started(&r, at(0x40), true, CONTINUITY_GOES_ON));
    ck_assert_uint_eq(told.accepted, 2);
    ck_assert_uint_eq(journal.begun, 1);
    teardown();

    setup(1); /* one that cannot be begun is tried again */
    journal.begin_error = -ENOSPC;
    ck_assert(!intake_started(&r, at(0x40), true, CONTINUITY_SERVER_RESTORED));
    ck_assert_int_eq(r.journal_error, ENOSPC);
    r.source.state = SOURCE_SUSPENDED;
    intake_tick(&r);
    ck_assert_uint_eq(told.went_on, 1);
    ck_assert_uint_eq(told.accepted, 0);
    teardown();

    setup(1); /* the first era of a journal has none */
    journal.end = (struct journal_end){.empty = true};
    ck_assert(intake_started(&r, at(0x40), true, CONTINUITY_GOES_ON));
    ck_assert_uint_eq(journal.begun, 1);
    ck_assert_uint_eq(told.accepted, 0);
    teardown();
}
END_TEST

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

UNIT_MAIN("intake", marks_of_another_connection, what_is_expected, settled_once_it_is_proven,
          a_difference_is_handed_on, a_full_queue_that_fails, a_state_folder_that_is_moved,
          an_accepted_gap_is_put_until_it_is_written, a_new_era_begins_with_its_gap)
