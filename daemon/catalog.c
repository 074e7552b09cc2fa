/* SPDX-License-Identifier: PostgreSQL */
/*
 * Three kinds of entries in one LMDB database, told apart by the first byte of the key:
 *
 *   "h"                    the head; with how many subscriptions there are, and the sum of their names' hashes
 *   "n" name               a subscription without its filters, with its mark if it is suspended; its value has a number …
 *   "f" number u64, u16    … under which its filters stand, in pieces of CATALOG_CHUNK_SIZE
 *
 * An ACK changes some bytes of a subscription, while its filters can take a megabyte: so
 * they stand apart. They stand in pieces because LMDB puts a value of more than
 * half a page on pages of its own that must lie side by side, and a file that never grows
 * would some day have room for it in sum and nowhere in one piece. The bounds in
 * catalog.h count on that: 8 MiB of filters in pieces of which at least one fits on
 * a page are 4,200 pages and one for each name, 22 MB; the copies that LMDB makes of what a commit
 * changes are given back two commits later, and CATALOG_COMMIT_MAX keeps them below the rest.
 *
 * LMDB itself knows no checksums. Each value has one (XXH3-64), over its key too, and so have the filters of
 * a subscription together. What a damaged page makes LMDB not find is noticed by the head's count and sum: it is written with every commit.
 *
 * The file is made under another name, whole, and then renamed: one that stands at its
 * place has its size and LMDB's two first pages. A shorter one would be death by SIGBUS, so the size is checked. There is no
 * lock file (MDB_NOLOCK): on a full disk its mapping is the same death, and who else may be here is
 * decided by a flock on the file.
 */
#include "catalog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lmdb.h>
#include <xxhash.h>

#include "base/buf.h"
#include "base/fd.h"
#include "catalog_check.h"
#include "catalog_value.h"
#include "journal/fault.h"

#define HEAD_FORMAT 1u
#define HEAD_SIZE   (1u + 8u + 4u + 1u + 4u + 8u + 8u)
#define HEAD_PROVEN 0x01u
#define HEAD_CLEAN  0x02u
#define HEAD_SET    0x04u /* by the owner: without it there is only what is counted here */

/* Which subscriptions there are: checked against what is found. */
struct names {
    uint32_t n;
    uint64_t sum;
};

struct catalog {
    char *path;
    MDB_env *env;     /* NULL: it has to be opened again */
    MDB_dbi dbi;
    int fd;           /* of the same file, for the flock */
    uint64_t next_id; /* for the next new subscription's filters */
    bool has_head;
    struct catalog_head head;
    struct names names;
};

static void say(char why[CATALOG_WHY_SIZE], const char *fmt, ...) PRINTF_LIKE(2, 3);

static void say(char why[CATALOG_WHY_SIZE], const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, CATALOG_WHY_SIZE, fmt, ap);
    va_end(ap);
}

/* LMDB's results: errno values, or negative numbers of its own. */
static int result_of(int r)
{
    switch (r) {
    case MDB_SUCCESS:
        return 0;
    case MDB_MAP_FULL:
        return -ENOSPC;
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_VERSION_MISMATCH:
    case MDB_INCOMPATIBLE:
    case MDB_BAD_DBI:
    case MDB_CURSOR_FULL:
    case MDB_NOTFOUND:
        return -EBADMSG;
    default:
        return r > 0 ? -r : -EIO;
    }
}

/* ---- opening ---- */

/* LMDB is let at a file only when its pages are sound: it trusts them. */
static int check_pages(int fd)
{
    void *map = mmap(NULL, CATALOG_SIZE, PROT_READ, MAP_SHARED, fd, 0);

    if (map == MAP_FAILED)
        return -errno;
    int r = catalog_check((struct bytes){map, CATALOG_SIZE}, (size_t)sysconf(_SC_PAGESIZE));
    (void)munmap(map, CATALOG_SIZE);
    return r;
}

/* Makes the environment's handle; on failure nothing is left. */
static int env_open(const char *path, MDB_env **ret)
{
    MDB_env *env;
    int r = mdb_env_create(&env);

    if (r)
        return result_of(r);
    r = mdb_env_set_mapsize(env, CATALOG_SIZE);
    if (r == 0)
        r = mdb_env_open(env, path, MDB_NOSUBDIR | MDB_NOTLS | MDB_NOLOCK, 0600);
    if (r) {
        mdb_env_close(env);
        return result_of(r);
    }
    *ret = env;
    return 0;
}

static int sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;

    (void)fd_close(fd);
    return r;
}

/* A new file in its whole size: LMDB's first pages, then room. */
static int make_whole(const char *path)
{
    MDB_env *env;

    if (unlink(path) < 0 && errno != ENOENT)
        return -errno;
    int r = env_open(path, &env);
    if (r < 0)
        return r;
    mdb_env_close(env);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    do
        r = -posix_fallocate(fd, 0, CATALOG_SIZE);
    while (r == -EINTR);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    (void)fd_close(fd);
    return r;
}

static int make_file(const char *folder, const char *path, char why[CATALOG_WHY_SIZE])
{
    char *new_path;

    if (asprintf(&new_path, "%s.new", path) < 0)
        return -ENOMEM;
    int r = make_whole(new_path);
    if (r == 0 && rename(new_path, path) < 0)
        r = -errno;
    if (r == 0)
        r = sync_folder(folder);
    else
        (void)unlink(new_path);
    free(new_path);
    if (r < 0)
        say(why, "cannot make \"%s\", of %u MB: %s", path, CATALOG_SIZE >> 20, strerror(-r));
    return r;
}

/* The file at the path, there and ours alone. */
static int take_file(const char *folder, const char *path, int *ret_fd, char why[CATALOG_WHY_SIZE])
{
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0 && errno == ENOENT) {
        int r = make_file(folder, path, why);
        if (r < 0)
            return r;
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    if (fd < 0) {
        int e = errno;
        say(why, "cannot open \"%s\": %s", path, strerror(e));
        return -e;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int e = errno == EWOULDBLOCK ? EBUSY : errno;
        say(why, e == EBUSY ? "\"%s\" is open in another process" : "cannot lock \"%s\"", path);
        (void)fd_close(fd);
        return -e;
    }
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != CATALOG_SIZE) {
        say(why, "\"%s\" is damaged, or no catalog of walbus: it has %lld bytes instead of %u", path,
            (long long)st.st_size, CATALOG_SIZE);
        (void)fd_close(fd);
        return -EBADMSG;
    }
    *ret_fd = fd;
    return 0;
}

static int read_head(struct catalog *c, MDB_val key, MDB_val value, struct names *ret)
{
    const uint8_t *at = value.mv_data;

    if (!catalog_value_is_sealed(key, value, HEAD_SIZE) || at[0] != HEAD_FORMAT)
        return -EBADMSG;
    c->head = (struct catalog_head){
        .system_identifier = bytes_get_u64(at + 1),
        .era = bytes_get_u32(at + 9),
        .proven = at[13] & HEAD_PROVEN,
        .clean = at[13] & HEAD_CLEAN,
    };
    c->has_head = at[13] & HEAD_SET;
    *ret = (struct names){.n = bytes_get_u32(at + 14), .sum = bytes_get_u64(at + 18)};
    return 0;
}

/* One entry of a look at all of them. */
static int scan_entry(struct catalog *c, MDB_val key, MDB_val value, bool *ret_head, struct names *ret_said)
{
    const uint8_t *at = key.mv_data;

    if (key.mv_size == 1 && at[0] == CATALOG_KEY_HEAD) {
        *ret_head = true;
        return read_head(c, key, value, ret_said);
    }
    if (key.mv_size == CATALOG_CHUNK_KEY && at[0] == CATALOG_KEY_FILTERS) {
        c->next_id = MAX(c->next_id, bytes_get_u64(at + 1) + 1);
        return 0;
    }
    if (key.mv_size < 2 || key.mv_size > 1 + CATALOG_NAME_MAX || at[0] != CATALOG_KEY_SUBSCRIPTION)
        return -EBADMSG;
    c->names.n++;
    c->names.sum += XXH3_64bits(key.mv_data, key.mv_size);
    return 0;
}

static int scan_entries(struct catalog *c, MDB_cursor *cursor)
{
    struct names said = {0};
    bool has_entries = false, has_head = false;
    MDB_val key, value;
    int r, e = 0;

    c->has_head = false;
    c->names = (struct names){0};
    for (r = mdb_cursor_get(cursor, &key, &value, MDB_FIRST); r == 0 && e == 0;
         r = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
        has_entries = true;
        e = scan_entry(c, key, value, &has_head, &said);
    }
    if (e < 0 || r != MDB_NOTFOUND)
        return e < 0 ? e : result_of(r);
    return has_entries == has_head && said.n == c->names.n && said.sum == c->names.sum ? 0 : -EBADMSG;
}

/* Looks at every key. */
static int scan(struct catalog *c)
{
    MDB_txn *txn;
    MDB_cursor *cursor;
    int r = mdb_txn_begin(c->env, NULL, MDB_RDONLY, &txn);
    if (r)
        return result_of(r);
    r = mdb_dbi_open(txn, NULL, 0, &c->dbi);
    if (r == 0)
        r = mdb_cursor_open(txn, c->dbi, &cursor);
    if (r) {
        mdb_txn_abort(txn);
        return result_of(r);
    }
    r = scan_entries(c, cursor);
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    return r;
}

int catalog_open(const char *folder, struct catalog **ret, char why[CATALOG_WHY_SIZE])
{
    struct catalog *c = calloc(1, sizeof *c);

    say(why, "no memory");
    if (!c || asprintf(&c->path, "%s/catalog", folder) < 0) {
        free(c);
        return -ENOMEM;
    }
    c->fd = -1;
    int r = take_file(folder, c->path, &c->fd, why);
    if (r == 0) {
        r = check_pages(c->fd);
        if (r == 0)
            r = env_open(c->path, &c->env);
        if (r == 0)
            r = scan(c);
        if (r == -EBADMSG)
            say(why, "\"%s\" is damaged, or no catalog of walbus: its pages are not what they should be", c->path);
        else if (r < 0)
            say(why, "cannot open \"%s\": %s", c->path, strerror(-r));
    }
    if (r < 0) {
        (void)catalog_close(c);
        return r;
    }
    *ret = c;
    return 0;
}

struct catalog *catalog_close(struct catalog *c)
{
    if (!c)
        return NULL;
    if (c->env)
        mdb_env_close(c->env);
    (void)fd_close(c->fd);
    free(c->path);
    free(c);
    return NULL;
}

/* ---- reading ---- */

int catalog_read_head(struct catalog *c, struct catalog_head *ret)
{
    if (!c->has_head)
        return -ENOENT;
    *ret = c->head;
    return 0;
}

/* The pieces of a subscription's filters, put together. */
static int read_filters(struct catalog *c, MDB_txn *txn, struct catalog_filters_ref ref, struct buf *out)
{
    uint8_t raw[CATALOG_CHUNK_KEY];

    buf_clear(out);
    for (unsigned i = 0; i < catalog_chunks(ref.size); i++) {
        MDB_val key = catalog_chunk_key(ref.id, i, raw), value;
        int r = mdb_get(txn, c->dbi, &key, &value);

        if (r)
            return result_of(r);
        if (value.mv_size != MIN(ref.size - out->size, (size_t)CATALOG_CHUNK_SIZE))
            return -EBADMSG;
        buf_append(out, value.mv_data, value.mv_size);
        if (out->failed)
            return -ENOMEM;
    }
    return XXH3_64bits(out->data, out->size) == ref.checksum ? 0 : -EBADMSG;
}

static int read_subscription(struct catalog *c, MDB_txn *txn, MDB_val key, MDB_val value, struct filter *all,
                             struct buf *text, struct catalog_subscription *ret)
{
    struct catalog_filters_ref ref;
    size_t n_filters = 0, n_exclusions = 0;

    *ret = (struct catalog_subscription){.name = {(const uint8_t *)key.mv_data + 1, key.mv_size - 1}};
    if (ret->name.size == 0 || ret->name.size > CATALOG_NAME_MAX || !catalog_subscription_is_sealed(key, value))
        return -EBADMSG;
    catalog_subscription_decode(value.mv_data, ret, &ref);
    if (ref.size > CATALOG_FILTERS_MAX)
        return -EBADMSG;
    int r = read_filters(c, txn, ref, text);
    if (r == 0)
        r = catalog_filters_decode(buf_bytes(text), all, &n_filters, &n_exclusions);
    if (r < 0)
        return r;
    ret->filters = all;
    ret->n_filters = n_filters;
    ret->exclusions = all + n_filters;
    ret->n_exclusions = n_exclusions;
    return 0;
}

int catalog_read_all(struct catalog *c, int (*visit)(void *owner, const struct catalog_subscription *s), void *owner,
                     char why[CATALOG_WHY_SIZE])
{
    static const char first[] = {CATALOG_KEY_SUBSCRIPTION};
    struct filter *all = malloc(2 * FILTERS_MAX * sizeof *all);
    struct buf text = BUF_INIT;
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    MDB_val key = {sizeof first, (void *)(uintptr_t)first}, value;
    int r = all ? mdb_txn_begin(c->env, NULL, MDB_RDONLY, &txn) : ENOMEM;

    why[0] = '\0';
    if (r == 0)
        r = mdb_cursor_open(txn, c->dbi, &cursor);
    if (r == 0)
        r = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    int e = r == MDB_NOTFOUND ? 0 : result_of(r);
    while (e == 0 && r == 0 && key.mv_size && *(const char *)key.mv_data == CATALOG_KEY_SUBSCRIPTION) {
        struct catalog_subscription s;

        e = read_subscription(c, txn, key, value, all, &text, &s);
        if (e < 0)
            break;
        e = visit(owner, &s);
        if (e)
            goto out; /* the caller's own */
        r = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
        e = r == MDB_NOTFOUND ? 0 : result_of(r);
    }
    if (e == -EBADMSG)
        say(why, "the catalog is damaged: what it holds of a durable subscription is not what was written");
    else if (e < 0)
        say(why, "the catalog cannot be read: %s", strerror(-e));
out:
    if (cursor)
        mdb_cursor_close(cursor);
    if (txn)
        mdb_txn_abort(txn);
    buf_deinit(&text);
    free(all);
    return e;
}

/* ---- writing ---- */

enum change_kind { CHANGE_HEAD, CHANGE_PUT, CHANGE_STATE, CHANGE_REMOVE };

struct change {
    struct change *next;
    enum change_kind kind;
    struct catalog_head head;
    struct catalog_subscription s; /* without name, reason and filters, which are … */
    uint8_t why[CATALOG_REASON_MAX];
    uint8_t name[CATALOG_NAME_MAX];
    size_t name_size;
    struct buf filters;            /* … as they are stored, in pieces */
};

struct catalog_changes {
    struct change *first, **end;
};

struct catalog_changes *catalog_changes_new(void)
{
    struct catalog_changes *x = calloc(1, sizeof *x);

    if (x)
        x->end = &x->first;
    return x;
}

struct catalog_changes *catalog_changes_free(struct catalog_changes *x)
{
    if (!x)
        return NULL;
    for (struct change *c = x->first, *next; c; c = next) {
        next = c->next;
        buf_deinit(&c->filters);
        free(c);
    }
    free(x);
    return NULL;
}

static struct change *add_change(struct catalog_changes *x, enum change_kind kind, struct bytes name)
{
    struct change *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->kind = kind;
    if (name.size)
        memcpy(c->name, name.data, name.size);
    c->name_size = name.size;
    *x->end = c;
    x->end = &c->next;
    return c;
}

int catalog_change_head(struct catalog_changes *x, const struct catalog_head *h)
{
    struct change *c = add_change(x, CHANGE_HEAD, (struct bytes){NULL, 0});

    if (!c)
        return -ENOMEM;
    c->head = *h;
    return 0;
}

static void copy_state(struct change *c, const struct catalog_subscription *s)
{
    c->s = *s;
    c->s.name = (struct bytes){NULL, 0};
    c->s.filters = c->s.exclusions = NULL;
    c->s.mark.why = (struct bytes){c->why, MIN(s->mark.why.size, sizeof c->why)};
    if (c->s.mark.why.size)
        memcpy(c->why, s->mark.why.data, c->s.mark.why.size);
}

int catalog_change_put(struct catalog_changes *x, const struct catalog_subscription *s)
{
    struct buf filters = BUF_INIT;

    catalog_filters_encode(&filters, s->filters, s->n_filters, 0);
    catalog_filters_encode(&filters, s->exclusions, s->n_exclusions, 1);
    struct change *c = filters.failed ? NULL : add_change(x, CHANGE_PUT, s->name);
    if (!c) {
        buf_deinit(&filters);
        return -ENOMEM;
    }
    copy_state(c, s);
    c->filters = filters;
    return 0;
}

int catalog_change_state(struct catalog_changes *x, const struct catalog_subscription *s)
{
    struct change *c = add_change(x, CHANGE_STATE, s->name);

    if (!c)
        return -ENOMEM;
    copy_state(c, s);
    return 0;
}

int catalog_change_remove(struct catalog_changes *x, struct bytes name)
{
    return add_change(x, CHANGE_REMOVE, name) ? 0 : -ENOMEM;
}

static int write_head(struct catalog *c, MDB_txn *txn, bool is_set, const struct catalog_head *h, struct names names)
{
    uint8_t raw[HEAD_SIZE];
    MDB_val key = catalog_head_key(), value = {sizeof raw, raw};

    raw[0] = HEAD_FORMAT;
    bytes_put_u64(raw + 1, h->system_identifier);
    bytes_put_u32(raw + 9, h->era);
    raw[13] = (uint8_t)((h->proven ? HEAD_PROVEN : 0) | (h->clean ? HEAD_CLEAN : 0) | (is_set ? HEAD_SET : 0));
    bytes_put_u32(raw + 14, names.n);
    bytes_put_u64(raw + 18, names.sum);
    catalog_value_seal(key, raw, sizeof raw);
    return result_of(mdb_put(txn, c->dbi, &key, &value, 0));
}

static int remove_chunks(struct catalog *c, MDB_txn *txn, uint64_t id, unsigned from, unsigned to)
{
    uint8_t raw[CATALOG_CHUNK_KEY];

    for (unsigned i = from; i < to; i++) {
        MDB_val key = catalog_chunk_key(id, i, raw);
        int r = mdb_del(txn, c->dbi, &key, NULL);

        if (r)
            return result_of(r);
    }
    return 0;
}

static int write_chunks(struct catalog *c, MDB_txn *txn, uint64_t id, const struct buf *filters)
{
    uint8_t raw[CATALOG_CHUNK_KEY];

    for (unsigned i = 0; i < catalog_chunks(filters->size); i++) {
        size_t at = (size_t)i * CATALOG_CHUNK_SIZE;
        MDB_val key = catalog_chunk_key(id, i, raw);
        MDB_val value = {MIN(filters->size - at, (size_t)CATALOG_CHUNK_SIZE), filters->data + at};
        int r = mdb_put(txn, c->dbi, &key, &value, 0);

        if (r)
            return result_of(r);
    }
    return 0;
}

/* What is stored of a name. 0; -ENOENT; a negative errno. */
static int read_ref(struct catalog *c, MDB_txn *txn, MDB_val key, struct catalog_filters_ref *ret)
{
    struct catalog_subscription ignored;
    MDB_val value;
    int r = mdb_get(txn, c->dbi, &key, &value);

    if (r)
        return r == MDB_NOTFOUND ? -ENOENT : result_of(r);
    if (!catalog_subscription_is_sealed(key, value))
        return -EBADMSG;
    catalog_subscription_decode(value.mv_data, &ignored, ret);
    return 0;
}

static int write_state(struct catalog *c, MDB_txn *txn, MDB_val key, const struct change *x, struct catalog_filters_ref ref)
{
    uint8_t raw[CATALOG_SUBSCRIPTION_MOST];
    MDB_val value = {catalog_subscription_encode(&x->s, ref, raw), raw};

    catalog_value_seal(key, raw, value.mv_size);
    return result_of(mdb_put(txn, c->dbi, &key, &value, 0));
}

static int write_change(struct catalog *c, MDB_txn *txn, const struct change *x, struct names *names)
{
    uint8_t raw[1 + CATALOG_NAME_MAX];
    struct catalog_filters_ref old = {0};

    MDB_val key = catalog_name_key((struct bytes){x->name, x->name_size}, raw);
    int r = read_ref(c, txn, key, &old);
    if (r < 0 && r != -ENOENT)
        return r;
    bool is_there = r == 0;
    if (x->kind == CHANGE_STATE)
        return is_there ? write_state(c, txn, key, x, old) : -ENOENT;
    if (x->kind == CHANGE_REMOVE) {
        if (!is_there)
            return 0;
        names->n--;
        names->sum -= XXH3_64bits(key.mv_data, key.mv_size);
        r = remove_chunks(c, txn, old.id, 0, catalog_chunks(old.size));
        return r < 0 ? r : result_of(mdb_del(txn, c->dbi, &key, NULL));
    }
    if (!is_there) {
        names->n++;
        names->sum += XXH3_64bits(key.mv_data, key.mv_size);
    }
    struct catalog_filters_ref ref = {
        .id = is_there ? old.id : c->next_id++,
        .size = (uint32_t)x->filters.size,
        .checksum = XXH3_64bits(x->filters.data, x->filters.size),
    };
    r = write_chunks(c, txn, ref.id, &x->filters);
    if (r == 0)
        r = remove_chunks(c, txn, ref.id, catalog_chunks(ref.size), catalog_chunks(old.size));
    return r < 0 ? r : write_state(c, txn, key, x, ref);
}

/* After a write of its first pages has failed LMDB refuses all work (MDB_PANIC) until the file is opened anew. */
static int begin(struct catalog *c, MDB_txn **ret)
{
    int r = c->env ? mdb_txn_begin(c->env, NULL, 0, ret) : MDB_PANIC;

    if (r != MDB_PANIC)
        return result_of(r);
    if (c->env)
        mdb_env_close(c->env);
    c->env = NULL;
    int e = check_pages(c->fd);
    if (e == 0)
        e = env_open(c->path, &c->env);
    if (e == 0)
        e = scan(c); /* the failed commit may be there or not */
    if (e == 0)
        return result_of(mdb_txn_begin(c->env, NULL, 0, ret));
    if (c->env)
        mdb_env_close(c->env);
    c->env = NULL;
    return e;
}

int catalog_commit(struct catalog *c, const struct catalog_changes *x)
{
    MDB_txn *txn;
    int r = begin(c, &txn);

    if (r < 0)
        return r;
    bool has_head = c->has_head;
    struct catalog_head head = c->head;
    struct names names = c->names;
    for (const struct change *change = x->first; r == 0 && change; change = change->next) {
        if (change->kind == CHANGE_HEAD) {
            has_head = true;
            head = change->head;
        } else {
            r = write_change(c, txn, change, &names);
        }
    }
    if (r == 0)
        r = write_head(c, txn, has_head, &head, names);
    if (r < 0) {
        mdb_txn_abort(txn);
        return r;
    }
    r = FAULT("catalog-commit");
    if (r < 0) {
        mdb_txn_abort(txn);
        return r;
    }
    r = result_of(mdb_txn_commit(txn));
    if (r < 0)
        return r;
    FAULT_POINT("catalog-committed");
    c->has_head = has_head;
    c->head = head;
    c->names = names;
    return 0;
}
