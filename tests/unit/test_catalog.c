/* SPDX-License-Identifier: PostgreSQL */
#include "catalog.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lmdb.h>

#include "base/buf.h"
#include "unit.h"

static char folder[32], path[64];
static char why[CATALOG_WHY_SIZE];
static struct catalog *catalog;

/* ---- a disk that fails ---- */

static int disk_error; /* what each sync fails with; 0: none does */

/* LMDB's own: what it calls is looked up in the program first. Nothing here needs what a sync does for a machine. */
int fdatasync(int fd)
{
    (void)fd;
    errno = disk_error;
    return disk_error ? -1 : 0;
}

static bool pages_fail; /* a write of LMDB's two first pages fails */

/* Under the name that LMDB calls it by: here it would be pwrite64. */
ssize_t pwrite_lmdb(int fd, const void *data, size_t size, off_t at) __asm__("pwrite");

ssize_t pwrite_lmdb(int fd, const void *data, size_t size, off_t at)
{
    if (pages_fail && at < 8192) {
        errno = EIO;
        return -1;
    }
    return pwrite(fd, data, size, at);
}

/* ---- helpers ---- */

static void setup_folder(void)
{
    strcpy(folder, "/tmp/walbus-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/catalog", folder);
}

static void open_catalog(void)
{
    int r = catalog_open(folder, &catalog, why);

    ck_assert_msg(r == 0, "%s: %s", strerror(-r), why);
}

static void setup(void)
{
    setup_folder();
    open_catalog();
}

static void reopen(void)
{
    catalog = catalog_close(catalog);
    open_catalog();
}

static void teardown(void)
{
    catalog = catalog_close(catalog);
    (void)unlink(path);
    ck_assert_int_eq(rmdir(folder), 0);
}

static struct catalog_subscription subscription(const char *name)
{
    static const struct filter filters[] = {{FILTER_PATTERN, {(const uint8_t *)"orders.>", 8}},
                                            {FILTER_EXACT, {(const uint8_t *)"a\0b", 3}}};
    static const struct filter exclusions[] = {{FILTER_STARTS_WITH, {(const uint8_t *)"\xff", 1}}};

    return (struct catalog_subscription){
        .name = unit_bytes(name),
        .filters = filters,
        .n_filters = 2,
        .exclusions = exclusions,
        .n_exclusions = 1,
        .cursor = {1, 0x100, 2},
        .resumes = true,
        .acked = {1, 0xf0, 3},
        .sent = {1, 0x200, 0},
        .has_gap = true,
        .gap_to = {1, 0x180, UINT32_MAX},
        .gap_messages = 7,
        .gap_bytes = UINT64_MAX,
        .seen_ms = 8,
        .made_ms = UINT64_MAX - 1,
        .has_maker = true,
        .maker = 4294967294,
    };
}

enum what { HEAD, PUT, STATE, REMOVE };

static int commit_one(enum what what, const struct catalog_subscription *s)
{
    struct catalog_changes *x = catalog_changes_new();
    struct catalog_head head = {.system_identifier = 42};

    ck_assert_ptr_nonnull(x);
    int r = what == PUT      ? catalog_change_put(x, s)
            : what == STATE  ? catalog_change_state(x, s)
            : what == REMOVE ? catalog_change_remove(x, s->name)
                             : catalog_change_head(x, &head);
    ck_assert_int_eq(r, 0);
    r = catalog_commit(catalog, x);
    x = catalog_changes_free(x);
    return r;
}

static void put(const struct catalog_subscription *s)
{
    ck_assert_int_eq(commit_one(PUT, s), 0);
}

static void assert_filters(const struct filter *a, size_t n, const struct filter *b, size_t m)
{
    ck_assert_uint_eq(n, m);
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(a[i].kind, b[i].kind);
        ck_assert(bytes_equal(a[i].text, b[i].text));
    }
}

static void assert_same(const struct catalog_subscription *a, const struct catalog_subscription *b)
{
    ck_assert(bytes_equal(a->name, b->name));
    assert_filters(a->filters, a->n_filters, b->filters, b->n_filters);
    assert_filters(a->exclusions, a->n_exclusions, b->exclusions, b->n_exclusions);
    ck_assert_int_eq(position_compare(a->cursor, b->cursor), 0);
    ck_assert_int_eq(a->resumes, b->resumes);
    ck_assert_int_eq(position_compare(a->acked, b->acked), 0);
    ck_assert_int_eq(position_compare(a->sent, b->sent), 0);
    ck_assert_int_eq(a->has_gap, b->has_gap);
    ck_assert_int_eq(position_compare(a->gap_to, b->gap_to), 0);
    ck_assert_uint_eq(a->gap_messages, b->gap_messages);
    ck_assert_uint_eq(a->gap_bytes, b->gap_bytes);
    ck_assert_uint_eq(a->seen_ms, b->seen_ms);
    ck_assert_uint_eq(a->made_ms, b->made_ms);
    ck_assert_int_eq(a->has_maker, b->has_maker);
    ck_assert_uint_eq(a->maker, b->maker);
    ck_assert_int_eq(a->mark.since, b->mark.since);
    ck_assert_int_eq(position_compare(a->mark.at, b->mark.at), 0);
    ck_assert(bytes_equal(a->mark.why, b->mark.why));
}

struct expected {
    const struct catalog_subscription *all;
    size_t n, at;
};

static int visit_expected(void *owner, const struct catalog_subscription *s)
{
    struct expected *e = owner;

    ck_assert_uint_lt(e->at, e->n);
    assert_same(s, &e->all[e->at++]);
    return 0;
}

static void assert_all(const struct catalog_subscription *all, size_t n)
{
    struct expected e = {all, n, 0};
    int r = catalog_read_all(catalog, visit_expected, &e, why);

    ck_assert_msg(r == 0, "%s", why);
    ck_assert_uint_eq(e.at, n);
}

/* ---- what goes in comes out ---- */

START_TEST(a_new_one)
{
    struct catalog_head head;
    struct stat st;

    setup();
    ck_assert_int_eq(catalog_read_head(catalog, &head), -ENOENT);
    assert_all(NULL, 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, CATALOG_SIZE);
    ck_assert_int_ge(st.st_blocks * 512, CATALOG_SIZE); /* room that is there, not a promise */
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    reopen();
    ck_assert_int_eq(catalog_read_head(catalog, &head), -ENOENT);
    assert_all(NULL, 0);
    teardown();
}
END_TEST

START_TEST(the_head)
{
    static const struct catalog_head heads[] = {{UINT64_MAX, UINT32_MAX, true, true},
                                                {1, 2, false, true},
                                                {3, 4, true, false},
                                                {0, 0, false, false}};
    struct catalog_head got;

    setup();
    for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
        struct catalog_changes *x = catalog_changes_new();
        ck_assert_ptr_nonnull(x);
        ck_assert_int_eq(catalog_change_head(x, &heads[i]), 0);
        ck_assert_int_eq(catalog_commit(catalog, x), 0);
        x = catalog_changes_free(x);
        reopen();
        ck_assert_int_eq(catalog_read_head(catalog, &got), 0);
        ck_assert_uint_eq(got.system_identifier, heads[i].system_identifier);
        ck_assert_uint_eq(got.era, heads[i].era);
        ck_assert_int_eq(got.proven, heads[i].proven);
        ck_assert_int_eq(got.clean, heads[i].clean);
    }
    teardown();
}
END_TEST

/* What is on a disk must stay readable: other bytes are another format, with another number. */
START_TEST(as_written)
{
    static const uint8_t before[] = {
        0x03, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x01, 0x80, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x07, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0x00, 0x00, 0x00, 0x18, 0x7d, 0xa2,
        0xa4, 0xbc, 0xfc, 0x41, 0x10, 0x6a, 0xcb, 0xcd, 0xa7, 0x21, 0x90, 0x62, 0xf6, 0x63,
    };
    struct catalog_subscription a = subscription("a");
    MDB_val key = {2, (void *)(uintptr_t)"na"}, value;
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;

    setup();
    a.has_maker = false; /* as it was before makers were kept */
    a.maker = 0;
    put(&a);
    catalog = catalog_close(catalog);
    ck_assert_int_eq(mdb_env_create(&env), 0);
    ck_assert_int_eq(mdb_env_set_mapsize(env, CATALOG_SIZE), 0);
    ck_assert_int_eq(mdb_env_open(env, path, MDB_NOSUBDIR | MDB_NOTLS | MDB_NOLOCK | MDB_RDONLY, 0600), 0);
    ck_assert_int_eq(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), 0);
    ck_assert_int_eq(mdb_dbi_open(txn, NULL, 0, &dbi), 0);
    ck_assert_int_eq(mdb_get(txn, dbi, &key, &value), 0);
    ck_assert(bytes_equal((struct bytes){value.mv_data, value.mv_size}, (struct bytes){before, sizeof before}));
    mdb_txn_abort(txn);
    mdb_env_close(env);
    open_catalog();
    assert_all(&a, 1);
    teardown();
}
END_TEST

START_TEST(marks)
{
    static const char longest[CATALOG_REASON_MAX + 1] = {[0 ... CATALOG_REASON_MAX] = 'x'};
    struct catalog_subscription all[] = {subscription("a"), subscription("b"), subscription("c")};

    setup();
    all[1].has_maker = all[2].has_maker = false;
    all[1].maker = all[2].maker = 0;
    for (size_t i = 0; i < 3; i++)
        put(&all[i]);
    /* of one, with a reason that is too long, one without, and one more comes and goes */
    all[0].mark = (struct catalog_mark){INT64_MAX, {1, 0x120, 3}, {(const uint8_t *)longest, sizeof longest}};
    all[1].mark = (struct catalog_mark){.since = 1};
    all[2].mark = (struct catalog_mark){5, {1, 0x130, 0}, unit_bytes("It cannot be read.")};
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(commit_one(STATE, &all[i]), 0);
    all[0].mark.why.size = CATALOG_REASON_MAX;
    assert_all(all, 3);
    reopen();
    assert_all(all, 3);
    all[2].mark = (struct catalog_mark){0};
    ck_assert_int_eq(commit_one(STATE, &all[2]), 0);
    put(&all[0]);
    ck_assert_int_eq(commit_one(REMOVE, &all[1]), 0);
    all[1] = all[2];
    reopen();
    assert_all(all, 2);
    teardown();
}
END_TEST

START_TEST(subscriptions)
{
    struct catalog_subscription all[] = {subscription("a"), subscription("b"),
                                         subscription("\xc3\xa9")};

    setup();
    all[1].n_exclusions = 0;
    all[1].has_gap = all[1].resumes = false;
    all[2].filters++;
    all[2].n_filters = 1;
    put(&all[2]);
    put(&all[0]);
    put(&all[1]);
    assert_all(all, 3);
    reopen();
    assert_all(all, 3);

    /* A state leaves the filters alone, whatever is given. */
    struct catalog_subscription moved = all[0];
    moved.n_filters = moved.n_exclusions = 0;
    moved.cursor = all[0].cursor = (struct position){2, 0x300, 0};
    moved.resumes = all[0].resumes = false;
    ck_assert_int_eq(commit_one(STATE, &moved), 0);
    assert_all(all, 3);
    reopen();
    assert_all(all, 3);

    /* A put replaces them. */
    all[0].n_filters = 1;
    put(&all[0]);
    assert_all(all, 3);

    ck_assert_int_eq(commit_one(REMOVE, &all[1]), 0);
    ck_assert_int_eq(commit_one(REMOVE, &all[1]), 0); /* it need not be there */
    ck_assert_int_eq(commit_one(STATE, &all[1]), -ENOENT);
    all[1] = all[2];
    assert_all(all, 2);
    reopen();
    assert_all(all, 2);
    teardown();
}
END_TEST

START_TEST(all_or_nothing)
{
    struct catalog_subscription a = subscription("a"), b = subscription("b");

    setup();
    put(&a);
    struct catalog_changes *x = catalog_changes_new();
    ck_assert_ptr_nonnull(x);
    ck_assert_int_eq(catalog_change_remove(x, a.name), 0);
    ck_assert_int_eq(catalog_change_state(x, &b), 0); /* there is none */
    ck_assert_int_eq(catalog_commit(catalog, x), -ENOENT);
    x = catalog_changes_free(x);
    assert_all(&a, 1);
    reopen();
    assert_all(&a, 1);
    teardown();
}
END_TEST

/* In their order: what is removed and made anew is there. */
START_TEST(changes_are_made_in_order)
{
    struct catalog_subscription a = subscription("a");

    setup();
    put(&a);
    struct catalog_changes *x = catalog_changes_new();
    ck_assert_ptr_nonnull(x);
    ck_assert_int_eq(catalog_change_remove(x, a.name), 0);
    a.n_filters = 1;
    ck_assert_int_eq(catalog_change_put(x, &a), 0);
    a.cursor.lsn++;
    ck_assert_int_eq(catalog_change_state(x, &a), 0);
    ck_assert_int_eq(catalog_commit(catalog, x), 0);
    x = catalog_changes_free(x);
    assert_all(&a, 1);
    teardown();
}
END_TEST

static int stop_at_second(void *owner, const struct catalog_subscription *s)
{
    unsigned *n = owner;

    ck_assert_uint_eq(s->name.size, 1);
    return ++*n == 2 ? -EXDEV : 0;
}

START_TEST(a_visitor_ends_it)
{
    struct catalog_subscription a = subscription("a"), b = subscription("b"), c = subscription("c");
    unsigned n = 0;

    setup();
    put(&a);
    put(&b);
    put(&c);
    ck_assert_int_eq(catalog_read_all(catalog, stop_at_second, &n, why), -EXDEV);
    ck_assert_uint_eq(n, 2);
    ck_assert_str_eq(why, "");
    teardown();
}
END_TEST

/* Filters around the pieces' sizes, and the largest that a SUBSCRIBE can bring. */
START_TEST(sizes_of_filters)
{
    static uint8_t text[FILTER_TEXT_MAX];
    static struct filter filters[FILTERS_MAX];
    static const size_t sizes[] = {0, 1, 1991, 1992, 1993, 3991, 3992, 3993, FILTER_TEXT_MAX};
    struct catalog_subscription s = subscription("a");

    setup();
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)i;
    s.filters = filters;
    s.n_exclusions = 0;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        filters[0] = (struct filter){FILTER_EXACT, {text, sizes[i]}};
        s.n_filters = 1;
        put(&s);
        reopen();
        assert_all(&s, 1);
    }
    for (size_t i = 0; i < FILTERS_MAX; i++)
        filters[i] = (struct filter){(enum filter_kind)(i % 3), {text + i, 1000}};
    s.n_filters = FILTERS_MAX;
    s.exclusions = filters;
    s.n_exclusions = FILTERS_MAX;
    put(&s);
    reopen();
    assert_all(&s, 1);
    s.n_filters = 1; /* the pieces behind the last one go */
    s.n_exclusions = 0;
    put(&s);
    reopen();
    assert_all(&s, 1);
    teardown();
}
END_TEST

START_TEST(longest_name)
{
    char name[CATALOG_NAME_MAX + 1];
    struct catalog_subscription s;

    setup();
    memset(name, 'n', CATALOG_NAME_MAX);
    name[CATALOG_NAME_MAX] = '\0';
    s = subscription(name);
    put(&s);
    reopen();
    assert_all(&s, 1);
    ck_assert_int_eq(commit_one(REMOVE, &s), 0);
    assert_all(NULL, 0);
    teardown();
}
END_TEST

/* ---- room ---- */

/* Names and filters up to their bounds, changed at random as an unkind registry would: there is always room. */
START_TEST(there_is_room_within_the_bounds)
{
    static uint8_t text[FILTER_TEXT_MAX];
    static struct filter filters[FILTERS_MAX];
    struct unit_random random = unit_random_init();
    size_t sizes[CATALOG_NAMES_MAX] = {0}, total = 0;

    setup();
    memset(text, 'x', sizeof text);
    for (unsigned round = 0; round < 120; round++) {
        struct catalog_changes *x = catalog_changes_new();
        size_t put_size = 0;

        ck_assert_ptr_nonnull(x);
        for (unsigned i = 0; i < 100 && put_size < CATALOG_COMMIT_MAX; i++) {
            char name[CATALOG_NAME_MAX + 1];
            unsigned which = unit_random_below(&random, CATALOG_NAMES_MAX);
            struct catalog_subscription s;

            memset(name, 'a', CATALOG_NAME_MAX);
            name[CATALOG_NAME_MAX] = '\0';
            (void)snprintf(name, 8, "%07u", which);
            name[7] = 'x';
            s = subscription(name);
            if (sizes[which] && unit_random_below(&random, 3)) {
                ck_assert_int_eq(catalog_change_state(x, &s), 0);
                continue;
            }
            s.filters = filters;
            s.n_filters =
                1 + (unit_random_below(&random, 10) ? 0 : unit_random_below(&random, 250));
            s.n_exclusions = 0;
            for (size_t j = 0; j < s.n_filters; j++)
                filters[j] = (struct filter){
                    FILTER_EXACT, {text, 1 + unit_random_below(&random, FILTER_TEXT_MAX)}};
            size_t size = catalog_filters_size(filters, s.n_filters, NULL, 0);
            if (total - sizes[which] + size > CATALOG_FILTERS_MAX) {
                ck_assert_int_eq(catalog_change_remove(x, s.name), 0);
                total -= sizes[which];
                sizes[which] = 0;
                continue;
            }
            ck_assert_int_eq(catalog_change_put(x, &s), 0);
            total = total - sizes[which] + size;
            sizes[which] = size;
            put_size += size;
        }
        int r = catalog_commit(catalog, x);
        ck_assert_msg(r == 0, "round %u: %s, with %zu bytes", round, strerror(-r), total);
        x = catalog_changes_free(x);
    }
    ck_assert_uint_gt(total, CATALOG_FILTERS_MAX / 2);
    teardown();
}
END_TEST

/* Far beyond them it is full at some time: told, nothing half done, and room again when something goes. */
START_TEST(full)
{
    static uint8_t text[FILTER_TEXT_MAX];
    static struct filter filters[FILTERS_MAX];
    struct catalog_subscription s;
    char name[24];
    unsigned n = 0;
    int r = 0;

    setup();
    for (size_t i = 0; i < FILTERS_MAX; i++)
        filters[i] = (struct filter){FILTER_EXACT, {text, sizeof text}};
    for (; r == 0 && n < 100; n++) {
        (void)snprintf(name, sizeof name, "name %03u", n);
        s = subscription(name);
        s.filters = filters;
        s.n_filters = FILTERS_MAX;
        r = commit_one(PUT, &s);
    }
    ck_assert_int_eq(r, -ENOSPC);
    ck_assert_uint_gt((n - 1) * (FILTERS_MAX * FILTER_TEXT_MAX), 2 * CATALOG_FILTERS_MAX);
    reopen();
    struct catalog_subscription gone = subscription("name 000");
    ck_assert_int_eq(commit_one(STATE, &s), -ENOENT);
    ck_assert_int_eq(commit_one(REMOVE, &gone), 0);
    ck_assert_int_eq(commit_one(HEAD, NULL), 0);
    ck_assert_int_eq(commit_one(HEAD, NULL),
                     0); /* what a commit has freed the next but one may use */
    s.n_filters = 16;
    ck_assert_int_eq(commit_one(PUT, &s), 0);
    teardown();
}
END_TEST

START_TEST(sizes_that_count)
{
    struct catalog_subscription s = subscription("a");

    ck_assert_uint_eq(catalog_filters_size(s.filters, 2, s.exclusions, 1), 8 + 3 + 1 + 3 * 4);
    ck_assert_uint_eq(catalog_filters_size(NULL, 0, NULL, 0), 0);
}
END_TEST

/* ---- faults ---- */

START_TEST(two_opens)
{
    struct catalog *second = NULL;

    setup();
    ck_assert_int_eq(catalog_open(folder, &second, why), -EBUSY);
    ck_assert_ptr_null(second);
    ck_assert_ptr_nonnull(strstr(why, "/catalog\" is open in another process"));
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child ==
        0) /* a process of its own: the parent's descriptor is not its own lock to give away */
        _exit(catalog_open(folder, &second, why) == -EBUSY ? 0 : 1);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    reopen();
    teardown();
}
END_TEST

/* One that is killed while it commits leaves what it has confirmed, and at most one commit more. */
static int visit_lsn(void *owner, const struct catalog_subscription *s)
{
    *(uint64_t *)owner = s->cursor.lsn;
    return 0;
}

START_TEST(reopened_after_a_kill)
{
    setup_folder();
    for (unsigned round = 0; round < 10; round++) {
        int pipe_fds[2];
        uint64_t confirmed = 0, n;

        ck_assert_int_eq(pipe(pipe_fds), 0);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            struct catalog_subscription s = subscription("a");

            (void)close(pipe_fds[0]);
            if (catalog_open(folder, &catalog, why) < 0)
                _exit(1);
            for (n = 1;; n++) {
                s.cursor = (struct position){1, n, 0};
                if (commit_one(PUT, &s) < 0 || write(pipe_fds[1], &n, sizeof n) != sizeof n)
                    _exit(1);
            }
        }
        ck_assert_int_eq(close(pipe_fds[1]), 0);
        for (unsigned i = 0; i < 3 + round; i++)
            ck_assert_int_eq(read(pipe_fds[0], &confirmed, sizeof confirmed), sizeof confirmed);
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        while (read(pipe_fds[0], &n, sizeof n) == sizeof n)
            confirmed = n;
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFSIGNALED(status));
        ck_assert_int_eq(close(pipe_fds[0]), 0);

        struct catalog_subscription want = subscription("a");
        open_catalog();
        want.cursor = (struct position){1, confirmed, 0};
        struct catalog_subscription next = want;
        next.cursor.lsn++;
        uint64_t lsn = 0;
        ck_assert_int_eq(catalog_read_all(catalog, visit_lsn, &lsn, why), 0);
        assert_all(lsn == confirmed ? &want : &next, 1); /* one of the two */
        catalog = catalog_close(catalog);
    }
    teardown();
}
END_TEST

/* A sync that fails: told, and when the disk is well again it goes on. */
START_TEST(a_disk_that_fails)
{
    struct catalog_subscription a = subscription("a"), b = subscription("b"), both[2];

    setup();
    put(&a);
    disk_error = EIO;
    ck_assert_int_eq(commit_one(PUT, &b), -EIO);
    ck_assert_int_eq(commit_one(PUT, &b), -EIO);
    disk_error = 0;
    assert_all(&a, 1);
    both[0] = a;
    both[1] = b;
    put(&b);
    assert_all(both, 2);

    pages_fail = true;
    ck_assert_int_eq(commit_one(REMOVE, &a), -EIO);
    ck_assert_int_lt(commit_one(REMOVE, &a), 0);
    pages_fail = false;
    ck_assert_int_eq(commit_one(HEAD, NULL), 0);
    assert_all(both, 2);
    reopen();
    assert_all(both, 2);
    teardown();
}
END_TEST

static void write_file(const void *data, size_t size, off_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, size), (ssize_t)size);
    ck_assert_int_eq(ftruncate(fd, length), 0);
    ck_assert_int_eq(close(fd), 0);
}

static void assert_refused(int error, const char *sentence)
{
    struct catalog *c = NULL;

    ck_assert_int_eq(catalog_open(folder, &c, why), error);
    ck_assert_ptr_null(c);
    ck_assert_msg(strstr(why, sentence) && strstr(why, path), "%s", why);
}

START_TEST(what_is_no_catalog)
{
    setup_folder();
    write_file("", 0, 0);
    assert_refused(-EBADMSG,
                   "is damaged, or no catalog of walbus: it has 0 bytes instead of 67108864");
    write_file("hello", 5, 5);
    assert_refused(-EBADMSG, "it has 5 bytes instead of 67108864");
    write_file("hello", 5, CATALOG_SIZE);
    assert_refused(-EBADMSG, "its pages are not what they should be");
    write_file("", 0, CATALOG_SIZE);
    assert_refused(-EBADMSG, "its pages are not what they should be");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    assert_refused(-EISDIR, "cannot open");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(symlink("elsewhere", path), 0);
    assert_refused(-ELOOP, "cannot open");
    teardown();
}
END_TEST

START_TEST(no_folder)
{
    setup_folder();
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(catalog_open(folder, &catalog, why), -ENOENT);
    ck_assert_msg(strstr(why, "cannot make"), "%s", why);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    teardown();
}
END_TEST

/* What was left of an attempt to make one that did not end is no hindrance. */
START_TEST(half_made)
{
    char left[80];

    setup_folder();
    (void)snprintf(left, sizeof left, "%s.new", path);
    ck_assert_int_eq(symlink("/dev/null", left), 0);
    open_catalog();
    ck_assert_int_lt(access(left, F_OK), 0);
    assert_all(NULL, 0);
    teardown();
}
END_TEST

static int visit_any(void *owner, const struct catalog_subscription *s)
{
    struct expected *e = owner;
    bool same = false;

    /* what is handed out is what was written */
    for (size_t i = 0; i < e->n; i++)
        if (bytes_equal(s->name, e->all[i].name)) {
            assert_same(s, &e->all[i]);
            same = true;
        }
    ck_assert(same);
    e->at++;
    return 0;
}

static uint8_t image[1 << 17];

/* One flipped bit, at each byte in turn of what is used of the file. Either it does not matter, or it is refused with a
 * sentence; it is never believed, and never the router's death. */
START_TEST(flipped_bits)
{
    struct catalog_subscription all[] = {subscription("a"), subscription("b"), subscription("c")};
    struct unit_random random = unit_random_init();
    unsigned refused = 0, tried = 0;

    all[1].mark = (struct catalog_mark){5, {1, 0x130, 0}, unit_bytes("It cannot be read.")};
    setup();
    for (size_t i = 0; i < 3; i++)
        put(&all[i]);
    /* both of LMDB's first pages lead to the same: which one counts is a number in them, and believed */
    ck_assert_int_eq(commit_one(HEAD, NULL), 0);
    ck_assert_int_eq(commit_one(HEAD, NULL), 0);
    catalog = catalog_close(catalog);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, image, sizeof image, 0), (ssize_t)sizeof image);
    for (size_t at = 0; at < sizeof image; at++) {
        uint8_t wrong = image[at] ^ (uint8_t)(1u << unit_random_below(&random, 8));
        struct catalog_head head;
        struct expected e = {all, 3, 0};

        if ((image[at] == 0 && at % 61) || at % unit_sparse()) /* of the many zeros some */
            continue;
        tried++;
        ck_assert_int_eq(pwrite(fd, &wrong, 1, (off_t)at), 1);
        int r = catalog_open(folder, &catalog, why);
        if (r == 0)
            r = catalog_read_head(catalog, &head);
        if (r == 0)
            r = catalog_read_all(catalog, visit_any, &e, why);
        catalog = catalog_close(catalog);
        if (r < 0) {
            ck_assert_int_eq(r, -EBADMSG);
            ck_assert_msg(strstr(why, " is damaged"), "%s", why);
            refused++;
        } else {
            ck_assert_uint_eq(e.at, 3);
            ck_assert_uint_eq(head.system_identifier, 42);
        }
        ck_assert_int_eq(pwrite(fd, &image[at], 1, (off_t)at), 1);
    }
    ck_assert_int_eq(close(fd), 0);
    ck_assert_uint_gt(tried, 1900 / unit_sparse());
    ck_assert_uint_gt(refused, unit_sparse() == 1 ? 250 : 5);
    open_catalog();
    teardown();
}
END_TEST

/* The same in a large one, with branches and free pages, at random: then it is also written to. */
START_TEST(flipped_bits_in_a_large_one)
{
    static uint8_t text[FILTER_TEXT_MAX];
    static struct filter filters[FILTERS_MAX];
    struct unit_random random = unit_random_init();
    unsigned refused = 0;
    off_t used = 0;
    char name[24];

    setup();
    for (size_t i = 0; i < FILTERS_MAX; i++)
        filters[i] = (struct filter){FILTER_EXACT, {text, 500}};
    for (unsigned i = 0; i < 120; i++) {
        (void)snprintf(name, sizeof name, "name %03u", unit_random_below(&random, 150));
        struct catalog_subscription s = subscription(name);
        s.filters = filters;
        s.n_filters = unit_random_below(&random, 20);
        if (i % 7)
            put(&s);
        else
            ck_assert_int_eq(commit_one(REMOVE, &s), 0);
    }
    catalog = catalog_close(catalog);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    uint8_t page[4096], before, wrong;
    for (off_t at = 0; pread(fd, page, sizeof page, at) == sizeof page; at += 4096)
        for (size_t i = 0; i < sizeof page; i++)
            if (page[i])
                used = at + 4096;
    ck_assert_int_gt(used, 100 * 4096);
    for (unsigned i = 0; i < 2000 / unit_sparse(); i++) {
        /* most of it in the heads of pages */
        off_t at = (off_t)unit_random_below(&random, (uint32_t)used);
        if (i % 3)
            at = at / 4096 * 4096 + unit_random_below(&random, 200);
        struct catalog_subscription s = subscription("x");

        ck_assert_int_eq(pread(fd, &before, 1, at), 1);
        wrong = before ^ (uint8_t)(1u << unit_random_below(&random, 8));
        ck_assert_int_eq(pwrite(fd, &wrong, 1, at), 1);
        int r = catalog_open(folder, &catalog, why);
        if (r == 0)
            r = commit_one(REMOVE, &s);
        if (r == 0 && i % 10 == 0)
            r = commit_one(PUT, &s);
        catalog = catalog_close(catalog);
        ck_assert_msg(r == 0 || r == -EBADMSG, "%s: %s", strerror(-r), why);
        refused += r != 0;
        if (r == 0 &&
            i % 10 == 0) /* it was written to: what was there before is not there any more */
            continue;
        ck_assert_int_eq(pwrite(fd, &before, 1, at), 1);
    }
    ck_assert_int_eq(close(fd), 0);
    /* most bits lie in pages that are not in use any more, or beside what is checked: how many of them varies by ten times */
    ck_assert(refused > 0 || unit_sparse() > 1);
    teardown();
}
END_TEST

UNIT_MAIN("catalog", a_new_one, the_head, as_written, marks, subscriptions, all_or_nothing, changes_are_made_in_order,
          a_visitor_ends_it, sizes_of_filters, longest_name, there_is_room_within_the_bounds, full,
          sizes_that_count, two_opens, reopened_after_a_kill, a_disk_that_fails, what_is_no_catalog,
          no_folder, half_made, flipped_bits, flipped_bits_in_a_large_one)
