/* SPDX-License-Identifier: PostgreSQL */
/* Batches between source and journal, with a verifier that takes its time and answers by what stands in the content. */
#include "checks.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quarantine_private.h"
#include "unit.h"

static uv_loop_t loop;
static struct batch_pool pool;
static struct logger logger;
static char *logged, *folder, path[160];
static size_t logged_size;
static struct quarantine *q;
static struct checks *c;

static struct {
    uint64_t marks[4096];
    struct batch *last;
    size_t n;
    unsigned room, no_memory, stuck_told;
    int stuck;
} told;

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

static atomic_uint verified, at_once, most_at_once, hold, no_memory_for;
static atomic_int slow_us;
static atomic_bool all_valid;
static size_t kid_size;
static uint8_t kid_bytes[QUARANTINE_KID_MAX + 1];

/* "v" is valid; "b": bad-signature; "u": unsigned; but for all_valid. */
static int fake_verify(const struct trust *trust, const struct verify_scope *scope, struct bytes content,
                       struct buf *scratch, struct verify_result *ret)
{
    unsigned now = ++at_once;

    (void)trust;
    (void)scratch;
    if (now > most_at_once)
        most_at_once = now;
    while (hold)
        (void)usleep(500);
    if (slow_us)
        (void)usleep((useconds_t)(rand() % slow_us));
    verified++;
    at_once--;
    if (no_memory_for && --no_memory_for == 0)
        return -ENOMEM;
    ck_assert_uint_gt(scope->prefix.size, 0);
    *ret = (struct verify_result){.status = content.data[0] == 'v' || all_valid ? VERIFY_VALID
                                            : content.data[0] == 'b' ? VERIFY_BAD_SIGNATURE
                                                                     : VERIFY_UNSIGNED,
                                   .kid = {kid_bytes, kid_size}};
    (void)snprintf(ret->reason, sizeof ret->reason, "Because of %c.", content.data[0]);
    return 0;
}

static void on_pass(void *owner, struct batch *batch)
{
    (void)owner;
    ck_assert_uint_lt(told.n, ARRAY_SIZE(told.marks));
    told.marks[told.n++] = batch->mark;
    (void)batch_unref(told.last);
    told.last = batch;
}

static void on_room(void *owner)
{
    (void)owner;
    told.room++;
}

static void on_stuck(void *owner, int error)
{
    (void)owner;
    told.stuck = error;
    told.stuck_told++;
}

static void on_no_memory(void *owner)
{
    (void)owner;
    told.no_memory++;
}

static const struct checks_ops ops = {.pass = on_pass, .room = on_room, .stuck = on_stuck, .no_memory = on_no_memory};

static struct check_rules *rules_of(const char *line)
{
    struct policies policies;
    char why[POLICY_WHY_SIZE];
    size_t wrong;

    ck_assert_int_eq(policies_init(&policies, (char *const *)(uintptr_t)&line, line ? 1 : 0, &wrong, why), 0);
    struct check_rules *rules = check_rules_new(&policies, NULL, "");
    ck_assert_ptr_nonnull(rules);
    return rules;
}

static void open_quarantine(uint64_t limit)
{
    struct quarantine_found found;
    char why[QUARANTINE_WHY_SIZE];

    ck_assert_int_eq(quarantine_open(path, limit, &q, &found, why), 0);
}

static void setup(const char *line)
{
    memset(&told, 0, sizeof told);
    verified = most_at_once = hold = no_memory_for = 0;
    all_valid = false;
    kid_size = 0;
    slow_us = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    logger = (struct logger){.level = LOG_INFO, .out = open_memstream(&logged, &logged_size)};
    folder = unit_temp_folder();
    (void)snprintf(path, sizeof path, "%s/quarantine", folder);
    open_quarantine(1 << 20);
    c = checks_new(&loop, q, rules_of(line), fake_verify, &ops, NULL, &logger);
    ck_assert_ptr_nonnull(c);
    checks_set_journal(c, 77, 1);
}

static void teardown(void)
{
    checks_close(c);
    ck_assert_uint_eq(checks_bytes(c), 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    c = checks_free(c);
    told.last = batch_unref(told.last);
    ck_assert_uint_eq(pool.live, 0);
    ck_assert_uint_eq(pool.live_bytes, 0);
    batch_pool_deinit(&pool);
    q = quarantine_close(q);
    unit_temp_folder_remove(folder);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    (void)fclose(logger.out);
    free(logged);
}

/* A batch whose messages have these contents, at LSNs from `lsn` on; its mark is `lsn`. */
static struct batch *batch_of(uint64_t lsn, const char *contents, size_t size)
{
    struct batch *b = batch_new(&pool);

    ck_assert_ptr_nonnull(b);
    for (const char *at = contents; *at; at++) {
        uint8_t *content = malloc(size);
        void *owner = content;
        struct frame_message f = {
            .position = {1, lsn + (uint64_t)(at - contents), 0},
            .lsn = lsn,
            .prefix = unit_bytes(*at >= 'a' ? "orders.created" : "other"),
            .content = {content, size},
        };

        memset(content, *at, size);
        ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
        free(owner);
    }
    b->mark = lsn;
    batch_seal(b);
    return b;
}

static void take(uint64_t lsn, const char *contents)
{
    checks_take(c, batch_of(lsn, contents, 20));
}

/* Turns the loop until so many have passed. */
static void until_passed(size_t n)
{
    while (told.n < n)
        (void)uv_run(&loop, UV_RUN_ONCE);
}

static void until_idle(void)
{
    (void)uv_run(&loop, UV_RUN_DEFAULT);
}

START_TEST(nothing_is_asked)
{
    setup(NULL);
    take(0x100, "buv");
    ck_assert_uint_eq(told.n, 1); /* at once */
    checks_set_rules(c, rules_of("payments.> require"));
    take(0x200, "buv");
    ck_assert_uint_eq(told.n, 2);
    ck_assert_uint_eq(verified, 0);
    ck_assert_uint_eq(told.room, 0);
    checks_set_rules(c, rules_of("orders.> require"));
    take(0x300, "XYZ");
    ck_assert_uint_eq(told.n, 3);
    take(0x400, "");
    ck_assert_uint_eq(told.n, 4);
    ck_assert_uint_eq(verified, 0);
    teardown();
}
END_TEST

START_TEST(order_is_kept)
{
    struct unit_random random = unit_random_init();
    static const char *const contents[] = {"v", "vvvvvvvvv", "X", "", "vXvX", "vb", "u"};
    size_t n = 300, withheld = 0;

    setup("orders.> require");
    slow_us = 300;
    for (size_t i = 0; i < n; i++) {
        const char *content = contents[unit_random_below(&random, ARRAY_SIZE(contents))];

        withheld += strpbrk(content, "bu") != NULL;
        take(0x100 * (i + 1), content);
        if (unit_random_below(&random, 8) == 0)
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        ck_assert(checks_bytes(c) == 0 || told.n < i + 1);
    }
    until_passed(n);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(told.marks[i], 0x100 * (i + 1));
    ck_assert_uint_eq(quarantine_count(q).entries, withheld);
    ck_assert_uint_eq(checks_counts(c)->withheld, withheld);
    ck_assert_uint_eq(checks_bytes(c), 0);
    until_idle();
    teardown();
}
END_TEST

START_TEST(what_is_required)
{
    setup("orders.> require");
    take(0x100, "vbXuv");
    until_passed(1);
    const struct batch *b = told.last;
    static const uint8_t types[] = {FRAME_MESSAGE, FRAME_WITHHELD, FRAME_MESSAGE, FRAME_WITHHELD, FRAME_MESSAGE};
    ck_assert_uint_eq(b->n_entries, ARRAY_SIZE(types));
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        ck_assert_uint_eq(b->entries[i].type, types[i]);
        ck_assert_uint_eq(b->entries[i].position.lsn, 0x100 + i);
    }
    ck_assert_uint_eq(b->messages, 3);
    ck_assert_uint_eq(b->withheld, 2);
    ck_assert_uint_eq(b->mark, 0x100);
    ck_assert_uint_eq(quarantine_count(q).entries, 2);
    struct quarantine_message m;
    struct buf storage = BUF_INIT;
    uint64_t size;
    ck_assert_int_eq(quarantine_read(q, 1, 0, 100, true, &storage, &m, &size), 0);
    ck_assert_uint_eq(m.status, VERIFY_BAD_SIGNATURE);
    ck_assert_uint_eq(m.position.lsn, 0x101);
    ck_assert_uint_eq(m.system_identifier, 77);
    unit_assert_text(m.reason, "Because of b.");
    unit_assert_text(m.prefix, "orders.created");
    unit_assert_text(m.content, "bbbbbbbbbbbbbbbbbbbb");
    buf_deinit(&storage);
    ck_assert_uint_eq(checks_counts(c)->statuses[VERIFY_VALID], 2);
    ck_assert_uint_eq(checks_counts(c)->statuses[VERIFY_UNSIGNED], 1);
    (void)fflush(logger.out);
    ck_assert_ptr_nonnull(strstr(logged, "policy.withheld"));
    ck_assert_ptr_nonnull(strstr(logged, "orders.created"));
    ck_assert_ptr_null(strstr(logged, "bbbb"));
    until_idle();
    teardown();
}
END_TEST

/* What the policy asks is looked up for each prefix, however like the one before. */
START_TEST(each_prefix_has_its_policy)
{
    static const char *const prefixes[] = {"aaaa.x", "bbbb.x", "aaaa.x", "bbbb.x", "bbbb.x"};
    struct batch *b = batch_new(&pool);

    setup("bbbb.x require");
    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++) {
        struct frame_message f = {.position = {1, 0x100 + i, 0}, .prefix = unit_bytes(prefixes[i]), .content = unit_bytes("u")};
        void *owner = NULL;

        ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
    }
    b->mark = 0x100;
    batch_seal(b);
    checks_take(c, b);
    until_passed(1);
    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
        ck_assert_uint_eq(told.last->entries[i].type, *prefixes[i] == 'b' ? FRAME_WITHHELD : FRAME_MESSAGE);
    until_idle();
    teardown();
}
END_TEST

/* A foreign key's id is as long as somebody likes: its beginning stands in quarantine. */
START_TEST(a_long_kid)
{
    struct quarantine_message m;
    struct buf storage = BUF_INIT;
    uint64_t size;

    setup("orders.> require");
    for (size_t i = 0; i < 2; i++) {
        kid_size = QUARANTINE_KID_MAX + i;
        take(0x100 * (i + 1), "b");
        until_passed(i + 1);
        ck_assert_int_eq(quarantine_read(q, i + 1, 0, 100, true, &storage, &m, &size), 0);
        ck_assert_uint_eq(m.kid.size, QUARANTINE_KID_MAX);
    }
    until_idle();
    q = quarantine_close(q);
    open_quarantine(1 << 20);
    ck_assert_uint_eq(quarantine_count(q).entries, 2); /* it can be read again */
    buf_deinit(&storage);
    teardown();
}
END_TEST

START_TEST(what_is_only_verified)
{
    setup("orders.> verify");
    take(0x100, "vbXuv");
    take(0x200, "b");
    until_passed(2);
    ck_assert_uint_eq(told.last->withheld, 0);
    ck_assert_uint_eq(told.last->messages, 1);
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    ck_assert_uint_eq(checks_counts(c)->statuses[VERIFY_BAD_SIGNATURE], 2);
    ck_assert_uint_eq(checks_counts(c)->withheld, 0);
    (void)fflush(logger.out);
    char *line = strstr(logged, "policy.unverified");
    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_null(strstr(line + 1, "policy.unverified")); /* not each */
    until_idle();
    teardown();
}
END_TEST

START_TEST(again_is_not_checked)
{
    setup("orders.> require");
    struct batch *b = batch_of(0x100, "bbb", 20);
    b->again = true;
    checks_take(c, b);
    ck_assert_uint_eq(told.n, 1);
    hold = 1;
    take(0x200, "v");
    b = batch_of(0x110, "bbb", 20);
    b->again = true;
    checks_take(c, b);
    ck_assert_uint_eq(told.n, 1); /* but waits for its turn */
    hold = 0;
    until_passed(3);
    ck_assert_uint_eq(verified, 1);
    ck_assert(told.last->again);
    until_idle();
    teardown();
}
END_TEST

START_TEST(two_at_work)
{
    setup("> verify");
    slow_us = 200;
    char many[1001];
    memset(many, 'v', 1000);
    many[1000] = 0;
    take(0x100, many); /* one batch is cut */
    until_passed(1);
    ck_assert_uint_eq(verified, 1000);
    ck_assert_uint_eq(most_at_once, 2);
    checks_take(c, batch_of(0x900, "v", 3 << 20)); /* and a large message is alone, not copied */
    until_passed(2);
    ck_assert_uint_eq(told.last->tail.size, 3 << 20);
    checks_set_rules(c, rules_of("> require"));
    checks_take(c, batch_of(0xa00, "u", 100000));
    until_passed(3);
    ck_assert_uint_eq(told.last->tail.size, 0);
    ck_assert_uint_eq(told.last->withheld, 1);
    checks_take(c, batch_of(0xb00, "v", 100000));
    until_passed(4);
    ck_assert_uint_eq(told.last->tail.size, 100000);
    ck_assert_uint_eq(told.last->withheld, 0);
    until_idle();
    teardown();
}
END_TEST

START_TEST(bounded)
{
    setup("> require");
    hold = 1;
    uint64_t lsn = 0;
    while (!checks_is_full(c, false))
        checks_take(c, batch_of(lsn += 0x100, "v", 60000));
    ck_assert_uint_gt(checks_bytes(c), CHECKS_BYTES_MAX);
    ck_assert_uint_lt(checks_bytes(c), CHECKS_BYTES_MAX + 200000);
    ck_assert_uint_eq(told.n, 0);
    hold = 0;
    until_passed((size_t)(lsn / 0x100) * 2 / 3);
    ck_assert(!checks_is_full(c, true));
    until_idle();
    hold = 1;
    for (size_t n = 0; n <= CHECKS_COUNT_MAX; n++) {
        ck_assert(!checks_is_full(c, false));
        take(lsn += 0x100, n ? "" : "v");
    }
    ck_assert(checks_is_full(c, false));
    ck_assert_uint_lt(checks_bytes(c), 4 << 20);
    hold = 0;
    until_idle();
    ck_assert(!checks_is_full(c, true));
    teardown();
}
END_TEST

START_TEST(stands_while_it_is_full)
{
    uint64_t n;

    setup("> require");
    quarantine_set_limit(q, 300);
    take(0x100, "u");
    take(0x200, "v");
    take(0x300, "u");
    take(0x400, "");
    until_passed(2);
    until_idle();
    ck_assert_uint_eq(told.n, 2);
    ck_assert_int_eq(told.stuck, -EDQUOT);
    ck_assert_int_eq(checks_stuck(c), -EDQUOT);
    ck_assert(checks_is_full(c, true));
    take(0x500, "v");
    checks_tick(c);
    until_idle();
    ck_assert_uint_eq(told.n, 2);
    ck_assert_uint_eq(told.stuck_told, 1); /* once */
    ck_assert_int_eq(quarantine_remove(q, 1, 1, QUARANTINE_DROPPED, &n), 0);
    checks_tick(c);
    until_passed(5);
    ck_assert_int_eq(told.stuck, 0);
    ck_assert(!checks_is_full(c, true));
    ck_assert_uint_eq(told.marks[4], 0x500);
    ck_assert_uint_eq(quarantine_count(q).entries, 1);
    until_idle();
    /* other rules let through what stands */
    take(0x600, "u");
    until_idle();
    ck_assert_int_eq(checks_stuck(c), -EDQUOT);
    checks_set_rules(c, rules_of("> verify"));
    until_idle();
    checks_tick(c);
    until_passed(6);
    ck_assert_int_eq(checks_stuck(c), 0);
    ck_assert_uint_eq(told.last->withheld, 0);
    until_idle();
    teardown();
}
END_TEST

START_TEST(dropped)
{
    setup("> require");
    hold = 1;
    take(0x100, "vu");
    take(0x200, "v");
    take(0x300, "");
    checks_drop(c);
    ck_assert_uint_eq(checks_bytes(c), 0);
    checks_set_journal(c, 77, 2);
    take(0x50, "vv");
    hold = 0;
    until_passed(1);
    until_idle();
    ck_assert_uint_eq(told.n, 1);
    ck_assert_uint_eq(told.marks[0], 0x50);
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    teardown();
}
END_TEST

/* What the log says was withheld, in all. */
static unsigned long logged_withheld(void)
{
    unsigned long n = 0;

    (void)fflush(logger.out);
    for (const char *at = logged; (at = strstr(at, "policy.withheld ")); at++)
        n += strtoul(strstr(at, " messages=") + 10, NULL, 10);
    return n;
}

START_TEST(finished)
{
    struct position first = {0};

    setup("> require");
    slow_us = 1000;
    for (uint64_t i = 1; i <= 20; i++)
        take(i * 0x100, i % 3 ? "vv" : "vu");
    ck_assert_uint_eq(checks_finish(c, &first), 0); /* the loop is not turned */
    ck_assert_uint_eq(told.n, 20);
    for (uint64_t i = 0; i < 20; i++)
        ck_assert_uint_eq(told.marks[i], (i + 1) * 0x100);
    ck_assert_uint_eq(quarantine_count(q).entries, 6);
    ck_assert_uint_eq(logged_withheld(), 6); /* the last ones too, although 10 s have not passed */
    hold = 1;
    take(0x7000, "v");
    take(0x8100, "uv");
    ck_assert_uint_eq(checks_finish(c, &first), 3); /* one that does not come to an end is let go of, … */
    ck_assert_uint_eq(first.lsn, 0x7000);
    take(0x9000, ""); /* … and nothing overtakes it */
    ck_assert_uint_eq(told.n, 20);
    ck_assert_uint_eq(checks_bytes(c), 0);
    hold = 0;
    until_idle();
    teardown();
}
END_TEST

START_TEST(no_memory)
{
    setup("> require");
    no_memory_for = 3;
    take(0x100, "v");
    take(0x200, "vvv");
    take(0x300, "v");
    until_idle();
    ck_assert_uint_eq(told.no_memory, 1);
    ck_assert_uint_le(told.n, 1);
    ck_assert_uint_eq(checks_bytes(c), 0);
    /* what is read before the owner hears must not overtake what is lost */
    size_t passed = told.n;
    take(0x400, "");
    take(0x500, "v");
    until_idle();
    ck_assert_uint_eq(told.n, passed);
    ck_assert_uint_eq(checks_bytes(c), 0);
    checks_drop(c);
    take(0x200, "vvv");
    until_passed(passed + 1);
    ck_assert_uint_eq(told.marks[passed], 0x200);
    until_idle();
    teardown();
}
END_TEST

/* What goes into quarantine together is more than it takes: the first of it goes. */
START_TEST(a_part_fits)
{
    setup("> require");
    quarantine_set_limit(q, 700);
    (void)pthread_mutex_lock(&q->lock); /* so that the others are checked until it is done */
    for (uint64_t i = 1; i <= 6; i++)
        take(i * 0x100, "u");
    for (unsigned i = 0; verified < 6 || i < 20; i++) { /* and what the last ones have found is taken */
        (void)usleep(1000);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    (void)pthread_mutex_unlock(&q->lock);
    until_idle();
    ck_assert_uint_eq(told.n, 3);
    ck_assert_int_eq(told.stuck, -EDQUOT);
    ck_assert_uint_eq(quarantine_count(q).entries, 3);
    teardown();
}
END_TEST

/* They are read again right while it is tried once more: that is not known to the try, but to the next one. */
START_TEST(other_rules_while_it_is_stored)
{
    setup("> require");
    quarantine_set_limit(q, 100);
    take(0x100, "u");
    take(0x200, "u");
    until_idle();
    ck_assert_int_eq(checks_stuck(c), -EDQUOT);
    checks_tick(c); /* tries, on a worker */
    checks_set_rules(c, rules_of("> verify"));
    until_idle();
    for (unsigned i = 0; i < 3; i++) {
        checks_tick(c);
        until_idle();
    }
    ck_assert_uint_eq(told.n, 2);
    ck_assert_uint_eq(told.last->withheld, 0);
    ck_assert_int_eq(checks_stuck(c), 0);
    ck_assert_uint_eq(quarantine_count(q).entries, 0);
    teardown();
}
END_TEST

/* What was dropped is still being put into quarantine when it comes again, and would be let through by then. */
START_TEST(dropped_while_it_is_stored)
{
    setup("> require");
    (void)pthread_mutex_lock(&q->lock);
    take(0x100, "u");
    while (!verified)
        (void)usleep(500);
    (void)uv_run(&loop, UV_RUN_ONCE); /* it is to be stored */
    checks_drop(c);
    checks_set_journal(c, 77, 1);
    checks_set_rules(c, rules_of(NULL));
    take(0x100, "u");
    (void)pthread_mutex_unlock(&q->lock);
    until_passed(1);
    until_idle();
    ck_assert_uint_eq(told.last->withheld, 1);
    ck_assert_uint_eq(quarantine_count(q).entries, 1);
    teardown();
}
END_TEST

/* Nothing is told of what is at work then, and it is freed all the same. */
START_TEST(closed_at_work)
{
    setup("> require");
    slow_us = 3000;
    for (uint64_t i = 1; i <= 20; i++)
        take(0x100 * i, "uvv");
    while (!verified)
        (void)usleep(500);
    teardown(); /* which counts the batches */
    ck_assert_uint_eq(told.n, 0);
}
END_TEST

/* The router died between quarantine and journal. */
START_TEST(what_came_before)
{
    setup("> require");
    take(0x100, "uvu");
    take(0x200, "uu");
    until_passed(2);
    until_idle();
    ck_assert_uint_eq(quarantine_count(q).entries, 4);
    checks_drop(c);
    checks_set_journal(c, 77, 1);
    take(0x100, "uvu");
    until_passed(3);
    until_idle();
    ck_assert_uint_eq(quarantine_count(q).entries, 4);
    ck_assert_uint_eq(told.last->withheld, 2);
    checks_drop(c);
    checks_set_journal(c, 77, 1);
    /* nobody asks any more, or asks for less: who was passed over them would not get them */
    checks_set_rules(c, rules_of(NULL));
    take(0x100, "uvu");
    until_passed(4);
    ck_assert_uint_eq(told.last->withheld, 2);
    ck_assert_uint_eq(told.last->messages, 1);
    checks_set_rules(c, rules_of("> verify"));
    take(0x200, "uuu");
    until_passed(5);
    ck_assert_uint_eq(told.last->withheld, 2);
    ck_assert_uint_eq(told.last->messages, 1);
    take(0x300, "uu");
    until_passed(6);
    until_idle();
    ck_assert_uint_eq(told.last->withheld, 0);
    ck_assert_uint_eq(quarantine_count(q).entries, 4);
    teardown();
}
END_TEST

static void counted(uint64_t valid, uint64_t not_signed)
{
    ck_assert_uint_eq(checks_counts(c)->statuses[VERIFY_VALID], valid);
    ck_assert_uint_eq(checks_counts(c)->statuses[VERIFY_UNSIGNED], not_signed);
}

/* Each message that goes on, by what was made of it. */
START_TEST(counted_once)
{
    setup("> require");
    take(0x100, "uvu");
    until_passed(1);
    until_idle();
    counted(1, 2);
    checks_drop(c);
    checks_set_journal(c, 77, 1);
    all_valid = true; /* a key has come, but they stay where they are */
    take(0x100, "uvu");
    until_passed(2);
    until_idle();
    ck_assert_uint_eq(told.last->withheld, 2);
    counted(2, 4);
    all_valid = false;
    quarantine_set_limit(q, 100);
    take(0x200, "uv");
    take(0x300, "v");
    until_idle();
    counted(2, 4); /* they stand */
    checks_drop(c);
    checks_set_journal(c, 77, 1);
    take(0x200, "uv");
    take(0x300, "v");
    until_idle();
    ck_assert_int_eq(checks_stuck(c), -EDQUOT);
    checks_set_rules(c, rules_of("> verify"));
    for (unsigned i = 0; i < 3; i++) {
        checks_tick(c);
        until_idle();
    }
    ck_assert_uint_eq(told.n, 4);
    counted(4, 5);
    checks_set_rules(c, rules_of("other.> require")); /* nothing is looked at */
    take(0x400, "uv");
    until_passed(5);
    until_idle();
    counted(4, 5);
    teardown();
}
END_TEST

UNIT_MAIN("checks", counted_once, nothing_is_asked, order_is_kept, what_is_required, each_prefix_has_its_policy, a_long_kid,
          what_is_only_verified, again_is_not_checked, two_at_work,
          bounded, stands_while_it_is_full, dropped, finished, no_memory, what_came_before,
          a_part_fits, other_rules_while_it_is_stored,
          dropped_while_it_is_stored, closed_at_work)
