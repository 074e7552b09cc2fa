/* SPDX-License-Identifier: PostgreSQL */
/*
 * What stands behind a segment's header. The first byte says how it is looked at: 1: the checksums of
 * what look like records are put right first (no fuzzer finds one), 2: a torn end is no damage, 4: the header begins inside a
 * transaction, 8: the next two bytes are the valid size. What is verified is compared with a walk over the same bytes in memory.
 */
#include "journal/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#define FLAG_CHECKSUMS 1
#define FLAG_TORN      2
#define FLAG_INSIDE    4
#define FLAG_SIZE      8

static const struct segment_header header = {
    .format = JOURNAL_FORMAT,
    .layout = FRAME_LAYOUT,
    .sequence = 1,
    .system_identifier = 1,
    .era = 1,
    .after = {1, 0x100, 0},
    .previous_size = SEGMENT_HEADER_SIZE,
    .previous_checksum = 77,
    .received_time = 5,
    .mark = 0x90,
    .mark_timeline = 1,
    .begin = {.timeline = 1, .commit_lsn = 0x99},
};

/* Chains the records up to the first that is none. */
static void put_right(uint8_t *file, size_t size)
{
    uint64_t seed = header.previous_checksum;
    size_t at = SEGMENT_HEADER_SIZE;
    struct record r;

    while (size - at >= RECORD_SIZE && record_decode(file + at, &r) == 0 &&
           r.size <= size - at - RECORD_SIZE) {
        uint8_t head[RECORD_SIZE];

        record_encode(&r, seed, &(struct bytes){file + at + RECORD_SIZE, (size_t)r.size}, 1, head);
        memcpy(file + at, head, RECORD_SIZE);
        seed = r.checksum;
        at += RECORD_SIZE + (size_t)r.size;
    }
}

/* Whether frames fill it, and the last BEGIN among them, if there is one. */
static bool last_begin(const uint8_t *frames, size_t size, bool *found, struct frame_begin *begin)
{
    for (size_t at = 0; at < size;) {
        struct frame_header h;

        if (size - at < FRAME_HEADER_SIZE || frame_header_decode(frames + at, &h) < 0 ||
            h.size > size - at - FRAME_HEADER_SIZE)
            return false;
        if (h.type == FRAME_BEGIN) {
            if (frame_begin_decode(h, frames + at + FRAME_HEADER_SIZE, begin) < 0)
                return false;
            *found = true;
        }
        at += FRAME_HEADER_SIZE + h.size;
    }
    return true;
}

struct walk {
    size_t end;
    struct position last;
    bool inside;
    struct frame_begin begin;
    uint64_t seed, mark, messages;
    size_t records;
};

static struct walk walk(const uint8_t *file, size_t size, bool inside)
{
    struct walk w = {.end = SEGMENT_HEADER_SIZE,
                     .last = header.after,
                     .inside = inside,
                     .begin = header.begin,
                     .seed = header.previous_checksum,
                     .mark = header.mark};
    struct walk before = w;
    struct record r, last = {0};

    while (size - w.end >= RECORD_SIZE && record_decode(file + w.end, &r) == 0 &&
           r.size <= size - w.end - RECORD_SIZE && r.starts_inside == w.inside &&
           record_verify(file + w.end, w.seed,
                         (struct bytes){file + w.end + RECORD_SIZE, (size_t)r.size}) &&
           (position_is_zero(r.last) || position_compare(r.last, w.last) >= 0)) {
        before = w;
        last = r;
        w.end += RECORD_SIZE + (size_t)r.size;
        if (!position_is_zero(r.last))
            w.last = r.last;
        w.inside = r.ends_inside;
        w.seed = r.checksum;
        w.mark = r.mark ? r.mark : w.mark;
        w.messages = r.messages_before + r.messages;
        w.records++;
    }
    if (w.records == 0)
        return w;
    w.begin = (struct frame_begin){0};
    if (!w.inside)
        return w;
    bool found = last.starts_inside;
    w.begin = last.begin;
    if (last_begin(file + before.end + RECORD_SIZE, (size_t)last.size, &found, &w.begin) && found)
        return w;
    before.begin = last.begin;
    return before;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    uint8_t flags = fuzz_u8(&in);
    uint64_t valid = flags & FLAG_SIZE ? fuzz_u16(&in) : 0;
    size_t file_size = SEGMENT_HEADER_SIZE + in.left;
    uint8_t *file = malloc(file_size);
    struct segment_header h = header;
    struct segment *s;
    char path[64];
    int fd = memfd_create("segment", 0);

    FUZZ_CHECK(file && fd >= 0);
    h.starts_inside = flags & FLAG_INSIDE;
    segment_header_encode(&h, file);
    if (in.left)
        memcpy(file + SEGMENT_HEADER_SIZE, in.at, in.left);
    if (flags & FLAG_CHECKSUMS)
        put_right(file, file_size);
    FUZZ_CHECK(write(fd, file, file_size) == (ssize_t)file_size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    FUZZ_CHECK(segment_open(path, valid, &s) == 0);
    FUZZ_CHECK(segment_verify(s, flags & FLAG_TORN) == 0);
    FUZZ_CHECK(s->verified);

    size_t limit = valid ? (size_t)MIN(valid, (uint64_t)file_size) : file_size;
    struct walk w = walk(file, MAX(limit, SEGMENT_HEADER_SIZE), h.starts_inside);
    FUZZ_CHECK(s->size == w.end && s->end.offset == w.end);
    FUZZ_CHECK(position_compare(s->end.before, w.last) == 0);
    FUZZ_CHECK(s->end.starts_inside == w.inside);
    FUZZ_CHECK(s->end.checksum == w.seed);
    FUZZ_CHECK(s->end.messages == w.messages);
    FUZZ_CHECK(s->mark == w.mark);
    FUZZ_CHECK(!w.inside ||
               (s->end_begin.commit_lsn == w.begin.commit_lsn && s->end_begin.xid == w.begin.xid &&
                s->end_begin.timeline == w.begin.timeline));
    bool whole = w.end == (valid ? valid : file_size);
    FUZZ_CHECK(s->damaged_at == (whole || flags & FLAG_TORN ? 0 : w.end));

    FUZZ_CHECK(s->n_index >= 1 && s->index[0].offset == SEGMENT_HEADER_SIZE);
    for (size_t i = 1; i < s->n_index; i++) {
        struct record r;

        FUZZ_CHECK(s->index[i].offset - s->index[i - 1].offset >= SEGMENT_INDEX_STEP);
        FUZZ_CHECK(s->index[i].offset < w.end);
        FUZZ_CHECK(record_decode(file + s->index[i].offset, &r) == 0);
        FUZZ_CHECK(position_compare(segment_locate(s, s->index[i].before).before,
                                    s->index[i].before) == 0);
    }
    segment_unref(s);
    (void)close(fd);
    free(file);
    return 0;
}
