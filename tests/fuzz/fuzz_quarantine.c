/* SPDX-License-Identifier: PostgreSQL */
/*
 * What stands behind the header of the quarantine's file. The first byte says how it is looked at: 1: the checksums of what look like
 * records are put right first (no fuzzer finds one). What is found is compared with a walk over the same bytes in memory; after one more
 * message was put, all of it is found again.
 */
#include "quarantine.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <xxhash.h>

#include "fuzz.h"

#define FLAG_CHECKSUMS 1
#define ENTRIES_MAX    64u

static const struct quarantine_header header = {.seed = 7, .next_id = 3};
static char path[64];

static void remove_file(void)
{
    char damaged[80];

    (void)snprintf(damaged, sizeof damaged, "%s.damaged", path);
    (void)unlink(damaged);
    (void)unlink(path);
}

/* A record at `at` whose body lies within the bytes. */
static bool is_record(const uint8_t *bytes, size_t size, size_t at, uint64_t *ret_size)
{
    if (size - at < QUARANTINE_RECORD_SIZE || memcmp(bytes + at, "wbqr", 4) != 0)
        return false;
    *ret_size = bytes_get_u64(bytes + at + 8);
    return *ret_size <= size - at - QUARANTINE_RECORD_SIZE;
}

static void put_right(uint8_t *bytes, size_t size)
{
    uint64_t body;

    for (size_t at = 0; at < size && is_record(bytes, size, at, &body); at += QUARANTINE_RECORD_SIZE + (size_t)body) {
        uint8_t head[QUARANTINE_RECORD_SIZE];
        const struct bytes piece = {bytes + at + QUARANTINE_RECORD_SIZE, (size_t)body};

        quarantine_record_encode((enum quarantine_kind)bytes[at + 4], header.seed, &piece, 1, head);
        memcpy(bytes + at, head, sizeof head);
    }
}

/* The ids that are there when all of it is whole records; false: it is not. */
static bool walk(const uint8_t *bytes, size_t size, uint64_t ids[ENTRIES_MAX], size_t *ret_n)
{
    uint64_t last = 0, id;
    uint32_t why;
    size_t n = 0;

    for (size_t at = 0; at < size;) {
        struct quarantine_record r;
        struct quarantine_message m;

        if (size - at < QUARANTINE_RECORD_SIZE || quarantine_record_decode(bytes + at, header.seed, &r) < 0 ||
            r.size > size - at - QUARANTINE_RECORD_SIZE)
            return false;
        const struct bytes body = {bytes + at + QUARANTINE_RECORD_SIZE, (size_t)r.size};
        if (XXH3_64bits_withSeed(body.data, body.size, header.seed) != r.checksum)
            return false;
        if (r.kind == QUARANTINE_GONE) {
            FUZZ_CHECK(quarantine_gone_decode(body, &id, &why) == 0);
            size_t kept = 0;
            for (size_t i = 0; i < n; i++)
                if (ids[i] != id)
                    ids[kept++] = ids[i];
            n = kept;
        } else {
            uint8_t again[QUARANTINE_PUT_FIXED];

            if (quarantine_put_decode(body.data, body.size, &m) < 0 || m.id <= last || m.id == UINT64_MAX || n == ENTRIES_MAX)
                return false;
            quarantine_put_encode(&m, again);
            FUZZ_CHECK(memcmp(again, body.data, sizeof again) == 0);
            ids[n++] = last = m.id;
        }
        at += QUARANTINE_RECORD_SIZE + (size_t)r.size;
    }
    *ret_n = n;
    return true;
}

static struct quarantine *open_it(struct quarantine_found *found)
{
    struct quarantine *q;
    char why[QUARANTINE_WHY_SIZE];

    FUZZ_CHECK(quarantine_open(path, UINT64_C(1) << 30, &q, found, why) == 0);
    return q;
}

/* Every entry can be read, as whole as it was found. */
static size_t read_all(struct quarantine *q, uint64_t ids[ENTRIES_MAX])
{
    struct buf storage = BUF_INIT;
    struct quarantine_message m;
    uint64_t size;
    size_t n = 0;

    for (uint64_t id = 0; (id = quarantine_next(q, id)) != 0; n++) {
        FUZZ_CHECK(quarantine_read(q, id, 0, SIZE_MAX, true, &storage, &m, &size) == 0);
        FUZZ_CHECK(m.id == id && m.content.size == size);
        if (n < ENTRIES_MAX)
            ids[n] = id;
    }
    FUZZ_CHECK(n == quarantine_count(q).entries);
    buf_deinit(&storage);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t want[ENTRIES_MAX], ids[ENTRIES_MAX];
    uint8_t head[QUARANTINE_HEADER_SIZE];
    struct quarantine_found found;
    size_t n_want, n_new;

    if (!size)
        return 0;
    if (!*path) {
        (void)snprintf(path, sizeof path, "%s/walbus-fuzz-%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
        (void)atexit(remove_file);
    }
    uint8_t flags = data[0], *bytes = malloc(size);
    FUZZ_CHECK(bytes != NULL);
    memcpy(bytes, data + 1, --size);
    if (flags & FLAG_CHECKSUMS)
        put_right(bytes, size);
    quarantine_header_encode(&header, head);
    FILE *f = fopen(path, "w");
    FUZZ_CHECK(f && fwrite(head, 1, sizeof head, f) == sizeof head && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);

    struct quarantine *q = open_it(&found);
    size_t n = read_all(q, ids);
    if (walk(bytes, size, want, &n_want)) {
        FUZZ_CHECK(found.torn == 0 && found.damaged == 0 && n == n_want);
        FUZZ_CHECK(memcmp(want, ids, n * sizeof *ids) == 0);
    }
    FUZZ_CHECK(found.torn <= size && found.damaged <= size);
    if (n < ENTRIES_MAX && (n == 0 || ids[n - 1] < UINT64_MAX - 1)) {
        struct quarantine_message m = {.system_identifier = 99, .position = {1, 1, 0}, .content = {bytes, size}};

        FUZZ_CHECK(quarantine_put(q, &m, 1, &n_new) == 0);
        (void)quarantine_close(q);
        q = open_it(&found);
        FUZZ_CHECK(found.torn == 0 && found.damaged == 0);
        FUZZ_CHECK(read_all(q, want) == n + n_new && memcmp(want, ids, n * sizeof *ids) == 0);
    }
    (void)quarantine_close(q);
    remove_file();
    free(bytes);
    return 0;
}
