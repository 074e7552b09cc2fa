/* SPDX-License-Identifier: PostgreSQL */
/* The quarantine's file: found, checked, written and made anew. */
#include "quarantine_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>
#include <xxhash.h>

#include "base/fd.h"
#include "journal/fault.h"

#define CHUNK (256u << 10)
/* Room that is kept behind the end, so that entries can go when the disk is full. */
#define SPARE (64u << 10)
/* Names under which damaged files are kept. */
#define DAMAGED_MAX 10u

/* ---- bytes ---- */

/* All of it. -EBADMSG: the file ends before. */
static int read_at(int fd, uint64_t at, void *to, size_t size)
{
    uint8_t *out = to;

    while (size) {
        ssize_t n = pread(fd, out, size, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EBADMSG;
        out += n;
        at += (uint64_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static int write_at(int fd, uint64_t at, const void *from, size_t size)
{
    const uint8_t *in = from;

    while (size) {
        int r = FAULT("quarantine-write");
        ssize_t n;

        if (r < 0)
            return r;
#ifdef WALBUS_FAULTS
        n = pwrite(fd, in, r == FAULT_SHORT ? (size + 1) / 2 : size, (off_t)at);
#else
        n = pwrite(fd, in, size, (off_t)at);
#endif
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENOSPC;
        FAULT_POINT("quarantine-wrote");
        in += n;
        at += (uint64_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static int sync_folder(const char *path)
{
    char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;

    if (!folder)
        return -ENOMEM;
    if (slash)
        *slash = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        (void)fd_close(fd);
    free(folder);
    return r;
}

/* ---- made anew ---- */

static int copy_bytes(int from, uint64_t at, uint64_t size, int to, uint64_t to_at)
{
    uint8_t *chunk = malloc(CHUNK);
    int r = chunk ? 0 : -ENOMEM;

    for (uint64_t done = 0; done < size && r == 0; done += CHUNK) {
        size_t n = (size_t)MIN(size - done, (uint64_t)CHUNK);

        r = read_at(from, at + done, chunk, n);
        if (r == 0)
            r = write_at(to, to_at + done, chunk, n);
    }
    free(chunk);
    return r;
}

static int copy_entries(struct quarantine *q, int to, uint64_t *offsets, uint64_t *ret_end)
{
    uint64_t at = QUARANTINE_HEADER_SIZE;
    int r = 0;

    for (size_t i = 0; i < q->n && r == 0; i++) {
        const struct quarantine_entry *e = &q->entries[i];

        offsets[i] = at;
        r = copy_bytes(q->fd, e->offset, e->size, to, at);
        at += e->size;
    }
    *ret_end = at;
    return r;
}

static int make_new(struct quarantine *q, int fd, uint64_t *offsets, uint64_t *ret_end)
{
    uint8_t bytes[QUARANTINE_HEADER_SIZE];
    const struct quarantine_header header = {q->seed, q->next_id};

    quarantine_header_encode(&header, bytes);
    int r = write_at(fd, 0, bytes, sizeof bytes);
    if (r == 0)
        r = copy_entries(q, fd, offsets, ret_end);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    return r;
}

/* The whole file as it is, under the name of a new one at first, so that a half copy never stands under the other. */
static int copy_file(const struct quarantine *q, const char *name)
{
    int to = open(q->new_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct stat st;
    int r = to < 0 || fstat(q->fd, &st) < 0 ? -errno : copy_bytes(q->fd, 0, (uint64_t)st.st_size, to, 0);

    if (r == 0 && (fsync(to) < 0 || rename(q->new_path, name) < 0))
        r = -errno;
    if (to >= 0) {
        (void)fd_close(to);
        if (r < 0)
            (void)unlink(q->new_path);
    }
    return r;
}

/* The first of the names that nothing has. 0; -EEXIST: there is none; -ENOMEM. */
static int damaged_name(const struct quarantine *q, struct buf *name)
{
    struct stat st;

    for (unsigned i = 0; i < DAMAGED_MAX; i++) {
        buf_clear(name);
        if (i)
            buf_printf(name, "%s.damaged.%u", q->path, i);
        else
            buf_printf(name, "%s.damaged", q->path);
        if (name->failed)
            return -ENOMEM;
        if (lstat(buf_str(name), &st) < 0)
            return 0;
    }
    return -EEXIST;
}

/* What was damaged may be of use to somebody who looks closer; with so many kept already, it is not kept. */
static int keep_damaged(const struct quarantine *q)
{
    struct buf name = BUF_INIT;
    int r = damaged_name(q, &name);

    if (r == 0 && (FAULT("quarantine-keep") < 0 || link(q->path, buf_str(&name)) < 0))
        r = copy_file(q, buf_str(&name)); /* not every file system has a second name for a file */
    buf_deinit(&name);
    return r == -EEXIST ? 0 : r;
}

/* What is written must be found again: 0 with whether there is no file where it is to be; -EEXIST: another one is
 * there. */
static int look_for_file(const struct quarantine *q, bool *ret_gone)
{
    struct stat is = {0}, there;

    if (lstat(q->path, &there) < 0) {
        *ret_gone = true;
        return errno == ENOENT ? 0 : -errno;
    }
    if (q->fd >= 0 && fstat(q->fd, &is) < 0)
        return -errno;
    *ret_gone = false;
    return q->fd >= 0 && there.st_dev == is.st_dev && there.st_ino == is.st_ino ? 0 : -EEXIST;
}

int quarantine_file_renew(struct quarantine *q)
{
    bool gone;
    int cannot = look_for_file(q, &gone);

    if (cannot < 0)
        return cannot;
    int r = q->keep_damaged && !q->kept && !gone ? keep_damaged(q) : 0;
    if (r < 0)
        return r;
    q->kept = q->keep_damaged; /* once, however often what follows fails */
    uint64_t *offsets = calloc(q->n ? q->n : 1, sizeof *offsets), end = 0;
    int fd = offsets ? open(q->new_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

    r = !offsets ? -ENOMEM : fd < 0 ? -errno : make_new(q, fd, offsets, &end);
    if (r == 0)
        r = FAULT("quarantine-renew");
    if (r == 0 && rename(q->new_path, q->path) < 0)
        r = -errno;
    if (r < 0) {
        if (fd >= 0) {
            (void)fd_close(fd);
            (void)unlink(q->new_path);
        }
        free(offsets);
        return r;
    }
    for (size_t i = 0; i < q->n; i++)
        q->entries[i].offset = offsets[i];
    free(offsets);
    q->fd = fd_close(q->fd);
    q->fd = fd;
    q->end = end;
    q->keep_damaged = q->kept = false;
    /* without it the old one may be back after a crash: what is written from here on would be lost */
    r = FAULT("quarantine-renew");
    if (r == 0)
        r = sync_folder(q->path);
    q->renew = r < 0;
    return r;
}

static int write_header(struct quarantine *q)
{
    uint8_t bytes[QUARANTINE_HEADER_SIZE];
    const struct quarantine_header header = {q->seed, q->next_id};

    quarantine_header_encode(&header, bytes);
    return write_at(q->fd, 0, bytes, sizeof bytes);
}

/* The header goes first, so that no id comes twice: it is written over, within a sector, for which most file systems
 * need no room. Where one does, there is some after the cut. */
int quarantine_file_empty(struct quarantine *q)
{
    bool gone;
    int r = look_for_file(q, &gone);

    if (r < 0 || gone || q->keep_damaged)
        return r < 0 ? r : -ENOSPC;
    int headed = write_header(q);
    if (headed == 0 && fdatasync(q->fd) < 0)
        return -errno;
    if ((headed < 0 && headed != -ENOSPC && headed != -EDQUOT) || ftruncate(q->fd, QUARANTINE_HEADER_SIZE) < 0)
        return headed < 0 ? headed : -errno;
    q->end = QUARANTINE_HEADER_SIZE;
    if (headed < 0)
        headed = write_header(q);
    r = fsync(q->fd) < 0 ? -errno : 0;
    q->renew = r < 0 || headed < 0;
    return r;
}

uint64_t quarantine_file_bytes(const struct quarantine *q)
{
    struct stat st;

    return q->fd >= 0 && fstat(q->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* ---- written ---- */

int quarantine_file_ready(struct quarantine *q, uint64_t size)
{
    bool gone;
    int r = look_for_file(q, &gone);

    if (r == 0 && (gone || q->renew))
        r = quarantine_file_renew(q);
    if (r < 0)
        return r;
    /* so that a full disk is noticed before anything is written, and later can be made emptier */
    if (fallocate(q->fd, FALLOC_FL_KEEP_SIZE, (off_t)q->end, (off_t)(size + SPARE)) < 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS && errno != EINTR && size > SPARE / 2)
        return -errno;
    return 0;
}

int quarantine_file_write(struct quarantine *q, enum quarantine_kind kind, const struct bytes *body, size_t n,
                          uint64_t *offset)
{
    uint8_t head[QUARANTINE_RECORD_SIZE];
    uint64_t at = *offset + sizeof head;
    int r = 0;

    quarantine_record_encode(kind, q->seed, body, n, head);
    r = write_at(q->fd, *offset, head, sizeof head);
    for (size_t i = 0; i < n && r == 0; i++) {
        r = write_at(q->fd, at, body[i].data, body[i].size);
        at += body[i].size;
    }
    *offset = at;
    return r;
}

int quarantine_file_sync(struct quarantine *q, uint64_t end)
{
    int r = FAULT("quarantine-sync");

    if (r >= 0)
        r = fdatasync(q->fd) < 0 ? -errno : 0;
    if (r < 0) {
        q->renew = true; /* it may be in the file or not: nothing is written over it */
        return r;
    }
    FAULT_POINT("quarantine-synced");
    q->end = end;
    return 0;
}

void quarantine_file_undo(struct quarantine *q)
{
    struct stat st;

    if (q->fd < 0 || (fstat(q->fd, &st) == 0 && (uint64_t)st.st_size <= q->end)) /* it would lose its room, too */
        return;
    if (ftruncate(q->fd, (off_t)q->end) < 0)
        q->renew = true;
}

/* ---- read ---- */

int quarantine_file_fixed(struct quarantine *q, const struct quarantine_entry *e, struct quarantine_message *ret)
{
    uint8_t fixed[QUARANTINE_PUT_FIXED];
    int r = read_at(q->fd, e->offset + QUARANTINE_RECORD_SIZE, fixed, sizeof fixed);

    return r < 0 ? r : quarantine_put_decode(fixed, e->size - QUARANTINE_RECORD_SIZE, ret);
}

/* The checksum of a body, read through a chunk. */
static int check_body(int fd, uint64_t at, const struct quarantine_record *record, uint64_t seed, uint8_t *chunk)
{
    XXH3_state_t *state = XXH3_createState();
    int r = state ? 0 : -ENOMEM;

    if (state)
        (void)XXH3_64bits_reset_withSeed(state, seed);
    for (uint64_t left = record->size; left && r == 0;) {
        size_t n = (size_t)MIN(left, (uint64_t)CHUNK);

        r = read_at(fd, at, chunk, n);
        if (r == 0)
            (void)XXH3_64bits_update(state, chunk, n);
        at += n;
        left -= n;
    }
    if (r == 0 && XXH3_64bits_digest(state) != record->checksum)
        r = -EBADMSG;
    (void)XXH3_freeState(state);
    return r;
}

int quarantine_file_check(struct quarantine *q, const struct quarantine_entry *e)
{
    uint8_t head[QUARANTINE_RECORD_SIZE], *chunk = malloc(CHUNK);
    struct quarantine_record record;
    int r = chunk ? read_at(q->fd, e->offset, head, sizeof head) : -ENOMEM;

    if (r == 0)
        r = quarantine_record_decode(head, q->seed, &record);
    if (r == 0)
        r = check_body(q->fd, e->offset + sizeof head, &record, q->seed, chunk);
    free(chunk);
    return r;
}

/* Bytes of the file, behind what `storage` holds. */
static int read_more(struct quarantine *q, uint64_t at, size_t size, struct buf *storage)
{
    uint8_t *to = size ? buf_reserve(storage, size) : storage->data;
    int r = !size ? 0 : to ? read_at(q->fd, at, to, size) : -ENOMEM;

    if (r == 0)
        storage->size += size;
    return r;
}

int quarantine_file_read(struct quarantine *q, const struct quarantine_entry *e, uint64_t from, size_t max,
                         bool all_of_prefix, struct buf *storage, struct quarantine_message *ret, uint64_t *ret_size)
{
    struct quarantine_message m;
    uint64_t at = e->offset + QUARANTINE_RECORD_SIZE + QUARANTINE_PUT_FIXED;
    int r = quarantine_file_fixed(q, e, &m);

    if (r < 0)
        return r;
    size_t prefix = all_of_prefix ? m.prefix.size : MIN(m.prefix.size, (size_t)QUARANTINE_PREFIX_SHOWN);
    size_t words = m.kid.size + m.reason.size, size = m.content.size;
    size_t part = from >= size ? 0 : MIN(max, size - (size_t)from);

    buf_clear(storage);
    r = buf_reserve(storage, prefix + words + part + 1) ? 0 : -ENOMEM; /* its place is never NULL */
    if (r == 0)
        r = read_more(q, at, prefix, storage);
    if (r == 0)
        r = read_more(q, at + m.prefix.size, words, storage);
    if (r == 0)
        r = read_more(q, at + m.prefix.size + words + from, part, storage);
    if (r < 0)
        return r;
    m.prefix = (struct bytes){storage->data, prefix};
    m.kid.data = storage->data + prefix;
    m.reason.data = m.kid.data + m.kid.size;
    m.content = (struct bytes){m.reason.data + m.reason.size, part};
    *ret = m;
    *ret_size = size;
    return 0;
}

/* ---- found ---- */

struct scan {
    struct quarantine *q;
    uint64_t at, size;
    uint64_t last_id;
    uint8_t *chunk;
    struct quarantine_found *found;
};

/* A whole record stands at `at`: 0; -EBADMSG: none does. */
static int look(struct scan *s, uint64_t at, struct quarantine_record *ret)
{
    uint8_t head[QUARANTINE_RECORD_SIZE];

    if (s->size - at < sizeof head)
        return -EBADMSG;
    int r = read_at(s->q->fd, at, head, sizeof head);
    if (r == 0)
        r = quarantine_record_decode(head, s->q->seed, ret);
    if (r == 0 && ret->size > s->size - at - sizeof head)
        r = -EBADMSG;
    return r < 0 ? r : check_body(s->q->fd, at + sizeof head, ret, s->q->seed, s->chunk);
}

static int take(struct scan *s, const struct quarantine_record *record)
{
    struct quarantine *q = s->q;
    uint64_t body = s->at + QUARANTINE_RECORD_SIZE;
    uint8_t gone[QUARANTINE_GONE_BODY];
    uint64_t id;
    uint32_t why;
    int r;

    if (record->kind == QUARANTINE_GONE) {
        r = read_at(q->fd, body, gone, sizeof gone);
        if (r == 0)
            r = quarantine_gone_decode((struct bytes){gone, sizeof gone}, &id, &why);
        if (r == 0)
            quarantine_index_remove(q, id, id);
        return r;
    }
    struct quarantine_entry e = {.offset = s->at, .size = QUARANTINE_RECORD_SIZE + record->size};
    struct quarantine_message m;
    r = quarantine_file_fixed(q, &e, &m);
    if (r < 0)
        return r;
    if (m.id <= s->last_id || m.id == UINT64_MAX) /* nobody writes that */
        return -EBADMSG;
    s->last_id = m.id;
    e.id = m.id;
    e.position = m.position;
    e.system_identifier = m.system_identifier;
    e.era = m.era;
    q->next_id = MAX(q->next_id, m.id + 1);
    return quarantine_index_add(q, &e) ? 0 : -ENOMEM;
}

/* Behind a place where no record stands: the next one that is whole; the file's size: there is none. */
static int find_next(struct scan *s, uint64_t from, uint64_t *ret)
{
    static const uint8_t magic[4] = {'w', 'b', 'q', 'r'};
    struct quarantine_record record;
    uint8_t *window = malloc(CHUNK);
    int r = window ? 0 : -ENOMEM;

    *ret = s->size;
    while (r == 0 && from < s->size && s->size - from >= QUARANTINE_RECORD_SIZE) {
        size_t n = (size_t)MIN(s->size - from, (uint64_t)CHUNK);
        const uint8_t *at;

        r = read_at(s->q->fd, from, window, n);
        if (r < 0)
            break;
        at = memmem(window, n, magic, sizeof magic);
        if (!at) {
            from += n - (sizeof magic - 1);
            if (n < CHUNK)
                break;
            continue;
        }
        from += (uint64_t)(at - window);
        r = look(s, from, &record);
        if (r == 0) {
            *ret = from;
            break;
        }
        r = r == -EBADMSG ? 0 : r;
        from++;
    }
    free(window);
    return r;
}

static int scan(struct scan *s)
{
    struct quarantine_record record;

    while (s->at < s->size) {
        int r = look(s, s->at, &record);

        if (r == 0)
            r = take(s, &record);
        if (r == 0) {
            s->at += QUARANTINE_RECORD_SIZE + record.size;
            continue;
        }
        if (r != -EBADMSG)
            return r;
        uint64_t next;
        r = find_next(s, s->at + 1, &next);
        if (r < 0)
            return r;
        s->q->renew = true;
        if (next == s->size) {
            s->found->torn = s->size - s->at;
            break;
        }
        if (!s->found->damaged)
            s->found->damaged_at = s->at;
        s->found->damaged += next - s->at;
        s->q->keep_damaged = true;
        s->at = next;
    }
    s->q->end = s->at;
    return 0;
}

static int open_file(struct quarantine *q, struct quarantine_found *found)
{
    uint8_t bytes[QUARANTINE_HEADER_SIZE];
    struct quarantine_header header;
    struct stat st;

    (void)unlink(q->new_path);
    q->fd = open(q->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (q->fd < 0)
        return errno == ENOENT ? 0 : errno == ELOOP || errno == EISDIR ? -EBADMSG : -errno;
    if (fstat(q->fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EBADMSG;
    int r = read_at(q->fd, 0, bytes, sizeof bytes);
    if (r == 0)
        r = quarantine_header_decode(bytes, &header);
    if (r < 0)
        return r;
    q->seed = header.seed;
    q->next_id = header.next_id;
    struct scan s = {.q = q, .at = sizeof bytes, .size = (uint64_t)st.st_size, .chunk = malloc(CHUNK), .found = found};
    r = s.chunk ? scan(&s) : -ENOMEM;
    free(s.chunk);
    return r;
}

static const char *fault_of(int error)
{
    switch (error) {
    case -EBADMSG:
        return "is damaged, or no quarantine: move it away, and keep it, since messages are in it";
    case -EPROTONOSUPPORT:
        return "was written by a version with another format: use that one, or move the file away, and keep it";
    default:
        return strerror(-error);
    }
}

int quarantine_open(const char *path, uint64_t limit, struct quarantine **ret, struct quarantine_found *ret_found,
                    char why[QUARANTINE_WHY_SIZE])
{
    struct quarantine *q = calloc(1, sizeof *q);
    struct quarantine_found found = {0};
    struct buf new_path = BUF_INIT;

    if (!q)
        return -ENOMEM;
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_mutex_init(&q->told_lock, NULL);
    atomic_init(&q->limit, limit);
    q->fd = -1;
    q->next_id = 1;
    randombytes_buf(&q->seed, sizeof q->seed);
    q->path = strdup(path);
    buf_printf(&new_path, "%s.new", path);
    q->new_path = new_path.failed ? NULL : strdup(buf_str(&new_path));
    buf_deinit(&new_path);
    int r = q->path && q->new_path ? open_file(q, &found) : -ENOMEM;
    if (r < 0) {
        (void)snprintf(why, QUARANTINE_WHY_SIZE, "%s %s", path, fault_of(r));
        (void)quarantine_close(q);
        return r;
    }
    quarantine_tell(q);
    *ret = q;
    *ret_found = found;
    return 0;
}
