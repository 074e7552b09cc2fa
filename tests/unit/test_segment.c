/* SPDX-License-Identifier: PostgreSQL */
#include "journal/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

/* ---- a folder of the test's own ---- */

static char *folder;

static void folder_make(void)
{
    folder = unit_temp_folder();
}

static void folder_remove(void)
{
    unit_temp_folder_remove(folder);
}

static unsigned folder_files(void)
{
    unsigned n = 0;
    DIR *dir = opendir(folder);

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    (void)closedir(dir);
    return n;
}

/* ---- segments with records of made-up transactions ---- */

static const struct segment_header first_header = {
    .sequence = 1,
    .system_identifier = 77,
    .era = 1,
    .after = {1, 0x100, 0},
    .received_time = 1000,
    .mark = 0x90,
    .mark_timeline = 1,
    .database = "shop",
    .slot = "walbus",
};

static struct segment *create(const struct segment_header *h)
{
    struct segment *s = NULL;

    ck_assert_int_eq(segment_create(folder, h, &s), 0);
    return s;
}

/* Appends the record, whose size, checksum and what is before it are filled in. */
static void append(struct segment *s, struct record *r, struct bytes frames,
                   const struct frame_begin *open)
{
    uint8_t head[RECORD_SIZE];
    uint64_t offset = s->end.offset;

    r->size = frames.size;
    r->messages_before = s->end.messages;
    r->bytes_before = s->end.bytes;
    r->starts_inside = s->end.starts_inside;
    r->begin = s->end_begin;
    record_encode(r, s->end.checksum, &frames, 1, head);
    ck_assert_int_eq(pwrite(s->fd, head, sizeof head, (off_t)offset), sizeof head);
    ck_assert_int_eq(pwrite(s->fd, frames.data, frames.size, (off_t)(offset + sizeof head)),
                     (ssize_t)frames.size);
    segment_note(s, offset, r, open);
}

static struct frame_begin begin_at(uint64_t lsn)
{
    return (struct frame_begin){.timeline = 1, .commit_lsn = lsn, .commit_time = 5, .xid = 6};
}

/* One non-transactional message at that LSN, with so much content. */
static void append_message(struct segment *s, uint64_t lsn, size_t size)
{
    struct frame_message f = {.position = {1, lsn, 0},
                              .lsn = lsn,
                              .received_time = (int64_t)lsn,
                              .prefix = unit_bytes("a"),
                              .content = {NULL, size}};
    uint8_t *frame = malloc(FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + 1 + size);
    struct record r = {.first = f.position,
                       .last = f.position,
                       .mark = lsn,
                       .mark_timeline = 1,
                       .received_time = (int64_t)lsn,
                       .running_ms = lsn,
                       .messages = 1,
                       .bytes = size};

    ck_assert_ptr_nonnull(frame);
    size_t head = frame_message_encode_head(frame, &f);
    for (size_t i = 0; i < size; i++)
        frame[head + i] = (uint8_t)(i + lsn);
    append(s, &r, (struct bytes){frame, head + size}, NULL);
    free(frame);
}

/* BEGIN and one message: the transaction stays open. */
static void append_open(struct segment *s, uint64_t lsn)
{
    struct frame_begin begin = begin_at(lsn);
    struct frame_message f = {.position = {1, lsn, 1}, .flags = FRAME_FLAG_TRANSACTIONAL};
    uint8_t frames[FRAME_HEADER_SIZE * 2 + FRAME_BEGIN_BODY + FRAME_MESSAGE_FIXED];
    struct record r = {.first = {1, lsn, 0},
                       .last = {1, lsn, 1},
                       .received_time = (int64_t)lsn,
                       .running_ms = lsn,
                       .messages = 1,
                       .ends_inside = true};

    size_t n = frame_begin_encode(frames, &begin);
    n += frame_message_encode_head(frames + n, &f);
    ck_assert_uint_eq(n, sizeof frames);
    append(s, &r, (struct bytes){frames, n}, &begin);
}

/* Nothing but a mark. */
static void append_mark(struct segment *s, uint64_t mark, const struct frame_begin *open)
{
    struct record r = {.mark = mark,
                       .mark_timeline = 1,
                       .received_time = s->end.received_time,
                       .running_ms = mark,
                       .ends_inside = s->end.starts_inside};

    append(s, &r, (struct bytes){NULL, 0}, open);
}

static struct segment *reopen(const char *path, uint64_t size)
{
    struct segment *s = NULL;

    ck_assert_int_eq(segment_open(path, size, &s), 0);
    return s;
}

static void check_mark(const struct segment_mark *got, const struct segment_mark *want)
{
    ck_assert_uint_eq(got->offset, want->offset);
    ck_assert_int_eq(position_compare(got->before, want->before), 0);
    ck_assert_int_eq(got->starts_inside, want->starts_inside);
    ck_assert_int_eq(got->received_time, want->received_time);
    ck_assert_uint_eq(got->messages, want->messages);
    ck_assert_uint_eq(got->bytes, want->bytes);
    ck_assert_uint_eq(got->checksum, want->checksum);
}

/* That what was read is what the writer has noted. */
static void check_same(struct segment *got, struct segment *want)
{
    struct segment_state a = segment_state_of(got), b = segment_state_of(want);

    check_mark(&a.end, &b.end);
    ck_assert_uint_eq(a.end_begin.commit_lsn, b.end_begin.commit_lsn);
    ck_assert_uint_eq(a.end_begin.timeline, b.end_begin.timeline);
    ck_assert_int_eq(a.end_begin.commit_time, b.end_begin.commit_time);
    ck_assert_uint_eq(a.end_begin.xid, b.end_begin.xid);
    ck_assert_uint_eq(a.mark, b.mark);
    ck_assert_uint_eq(a.mark_timeline, b.mark_timeline);
    ck_assert_uint_eq(a.running_ms, b.running_ms);
    ck_assert_uint_eq(got->n_index, want->n_index);
    for (size_t i = 0; i < got->n_index; i++)
        check_mark(&got->index[i], &want->index[i]);
    ck_assert_uint_eq(got->size, want->size);
}

START_TEST(made_and_opened)
{
    folder_make();
    struct segment *s = create(&first_header);

    ck_assert_uint_eq(folder_files(), 1);
    ck_assert(s->verified);
    ck_assert_uint_eq(s->size, SEGMENT_HEADER_SIZE);
    ck_assert_ptr_nonnull(
        strstr(s->path, "/0000000000000001-00000001-0000000000000100-00000000.segment"));
    struct stat st;
    ck_assert_int_eq(stat(s->path, &st), 0);
    ck_assert_int_eq(st.st_size, SEGMENT_HEADER_SIZE);
    ck_assert_int_eq(st.st_mode & 0777, 0600);

    struct segment *again = reopen(s->path, 0);
    ck_assert(!again->verified);
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert(again->verified);
    ck_assert_uint_eq(again->damaged_at, 0);
    check_same(again, s);
    ck_assert_uint_eq(again->mark, 0x90);
    ck_assert_ptr_eq(segment_ref(again), again);
    ck_assert_ptr_null(segment_unref(again));
    ck_assert_str_eq(again->header.slot, "walbus");
    segment_unref(again);
    segment_unref(s);
    ck_assert_ptr_null(segment_unref(NULL));
    folder_remove();
}
END_TEST

START_TEST(a_half_made_one_is_in_nobodys_way)
{
    char path[64];
    struct segment *s = NULL;

    folder_make();
    (void)snprintf(path, sizeof path, "%s/" SEGMENT_UNNAMED, folder);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(write(fd, "walbus", 6), 6);
    (void)close(fd);
    s = create(&first_header);
    ck_assert_uint_eq(folder_files(), 1);
    segment_unref(s);
    folder_remove();
    ck_assert_int_eq(segment_create("/tmp/walbus-unit/none", &first_header, &s), -ENOENT);
    ck_assert_int_eq(segment_sync_folder("/tmp/walbus-unit/none"), -ENOENT);
}
END_TEST

START_TEST(what_is_no_segment)
{
    char path[64];
    struct segment *s = NULL;

    folder_make();
    (void)snprintf(path, sizeof path, "%s/x", folder);
    ck_assert_int_eq(segment_open(path, 0, &s), -ENOENT);
    ck_assert_int_eq(segment_open(folder, 0, &s), -EBADMSG);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(segment_open(path, 0, &s), -EBADMSG);
    ck_assert_int_eq(unlink(path), 0);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    uint8_t header[SEGMENT_HEADER_SIZE];
    struct segment_header h = first_header;

    h.format = JOURNAL_FORMAT;
    h.layout = FRAME_LAYOUT;
    segment_header_encode(&h, header);
    for (size_t size = 0; size < sizeof header; size += 73) {
        ck_assert_int_eq(pwrite(fd, header, size, 0), (ssize_t)size);
        ck_assert_int_eq(segment_open(path, 0, &s), -EBADMSG);
    }
    h.layout++;
    segment_header_encode(&h, header);
    ck_assert_int_eq(pwrite(fd, header, sizeof header, 0), sizeof header);
    ck_assert_int_eq(segment_open(path, 0, &s), -EPROTONOSUPPORT);
    ck_assert_ptr_null(s);
    (void)close(fd);
    folder_remove();
}
END_TEST

START_TEST(read_back)
{
    folder_make();
    struct segment *s = create(&first_header), *again;
    struct frame_begin begin = begin_at(0x9000);

    /* of all sizes, some beyond the window, so that everything is cut somewhere */
    for (uint64_t i = 1; i <= 300; i++)
        append_message(s, 0x200 + i, (size_t)(i * i * 37 % 9001 + (i % 100 == 0 ? 700000 : 0)));
    again = reopen(s->path, 0);
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, 0);
    check_same(again, s);
    ck_assert_uint_gt(s->n_index, 10);
    ck_assert_uint_eq(s->end.messages, 300);
    segment_unref(again);

    append_mark(s, 0x8000, NULL);
    append_open(s, 0x9000);
    append_mark(s, 0x9800, &begin);
    again = reopen(s->path, s->size);
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, 0);
    check_same(again, s);
    ck_assert_uint_eq(again->end_begin.commit_lsn, 0x9000);
    ck_assert_uint_eq(again->mark, 0x9800);
    segment_unref(again);
    segment_unref(s);
    folder_remove();
}
END_TEST

START_TEST(located)
{
    folder_make();
    struct segment *s = create(&first_header);

    struct segment_mark none = segment_locate(s, (struct position){1, 0x1000, 0});

    check_mark(&none, &s->end); /* where the first record will be */
    for (uint64_t i = 1; i <= 100; i++)
        append_message(s, 0x1000 + i, 30000);
    ck_assert_uint_gt(s->n_index, 20);
    for (uint64_t lsn = 0; lsn < 0x1100; lsn += lsn < 0x1000 ? 0x80 : 1) {
        struct position p = {1, lsn, 0};
        struct segment_mark m = segment_locate(s, p);

        /* everything before it is at or before p, unless p lies before the segment … */
        ck_assert(m.offset == SEGMENT_HEADER_SIZE || position_compare(m.before, p) <= 0);
        /* … and p is less than two steps behind it */
        for (size_t i = 0; i < s->n_index; i++)
            ck_assert(s->index[i].offset <= m.offset ||
                      position_compare(s->index[i].before, p) > 0);
        m = segment_locate_time(s, (int64_t)lsn);
        ck_assert(m.offset == SEGMENT_HEADER_SIZE || m.received_time < (int64_t)lsn);
        for (size_t i = 0; i < s->n_index; i++)
            ck_assert(s->index[i].offset <= m.offset || s->index[i].received_time >= (int64_t)lsn);
    }
    for (size_t i = 1; i < s->n_index; i++) {
        ck_assert_uint_ge(s->index[i].offset - s->index[i - 1].offset, SEGMENT_INDEX_STEP);
        ck_assert_uint_lt(s->index[i].offset - s->index[i - 1].offset, SEGMENT_INDEX_STEP + 31000);
    }
    segment_unref(s);
    folder_remove();
}
END_TEST

START_TEST(falls_back)
{
    folder_make();
    struct segment *s = create(&first_header), *again;

    for (uint64_t i = 1; i <= 10; i++)
        append_message(s, 0x200 + i, 30000);
    append_open(s, 0x300);
    struct segment_state synced = segment_state_of(s);
    uint64_t size = s->size;
    size_t n_index = s->n_index;
    append_mark(s, 0x310, &s->end_begin);
    for (uint64_t i = 1; i <= 10; i++)
        append_message(s, 0x400 + i, 30000);
    ck_assert_uint_gt(s->n_index, n_index);
    segment_fall_back(s, &synced);
    ck_assert_uint_eq(s->size, size);
    ck_assert_uint_eq(s->n_index, n_index);
    again = reopen(s->path, size); /* as the next one's header says */
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, 0);
    check_same(again, s);
    ck_assert_uint_eq(again->end_begin.commit_lsn, 0x300);
    segment_unref(again);
    segment_unref(s);
    folder_remove();
}
END_TEST

/* ---- torn and damaged ---- */

enum { SMALL_RECORDS = 5 };

/* Five records, of which the third opens a transaction and the fourth is a mark inside it; where each begins, and the end. */
static struct segment *small(uint64_t at[SMALL_RECORDS + 1])
{
    struct segment *s = create(&first_header);
    struct frame_begin begin = begin_at(0x400);

    at[0] = s->size;
    append_message(s, 0x200, 3);
    at[1] = s->size;
    append_mark(s, 0x300, NULL);
    at[2] = s->size;
    append_open(s, 0x400);
    at[3] = s->size;
    append_mark(s, 0x400, &begin);
    at[4] = s->size;
    append_message(s, 0x500, 40);
    at[5] = s->size;
    return s;
}

static void check_last(const struct segment *s, unsigned records)
{
    static const uint64_t last[] = {0x100, 0x200, 0x200, 0x400, 0x400, 0x500};
    static const uint64_t mark[] = {0x90, 0x200, 0x300, 0x300, 0x400, 0x500};
    bool inside = records == 3 || records == 4;

    ck_assert_uint_eq(s->end.before.lsn, last[records]);
    ck_assert_uint_eq(s->mark, mark[records]);
    ck_assert_int_eq(s->end.starts_inside, inside);
    ck_assert_uint_eq(s->end_begin.commit_lsn, inside ? 0x400 : 0);
}

START_TEST(torn_at_every_byte)
{
    uint64_t at[SMALL_RECORDS + 1];

    folder_make();
    struct segment *s = small(at);
    char *path = strdup(s->path);
    segment_unref(s);
    unsigned whole = SMALL_RECORDS;
    for (uint64_t size = at[SMALL_RECORDS]; size >= SEGMENT_HEADER_SIZE; size--) {
        ck_assert_int_eq(truncate(path, (off_t)size), 0);
        while (at[whole] > size)
            whole--;
        s = reopen(path, 0);
        ck_assert_int_eq(segment_verify(s, true), 0);
        ck_assert_uint_eq(s->damaged_at, 0);
        ck_assert_uint_eq(s->size, at[whole]);
        check_last(s, whole);
        segment_unref(s);
        /* and where its successor says that it is whole, it is damage; also if that is all that was cut */
        s = reopen(path, at[SMALL_RECORDS]);
        ck_assert_int_eq(segment_verify(s, false), 0);
        ck_assert_uint_eq(s->damaged_at, whole == SMALL_RECORDS ? 0 : at[whole]);
        ck_assert_uint_eq(s->size, at[whole]);
        check_last(s, whole);
        segment_unref(s);
    }
    ck_assert_uint_eq(whole, 0);
    free(path);
    folder_remove();
}
END_TEST

START_TEST(every_bit_flipped)
{
    uint64_t at[SMALL_RECORDS + 1];

    folder_make();
    struct segment *s = small(at);
    char *path = strdup(s->path);
    int fd = open(path, O_RDWR);
    segment_unref(s);
    unsigned before = 0;
    for (uint64_t bit = 0; bit < 8 * at[SMALL_RECORDS]; bit++) {
        uint64_t byte = bit / 8;
        uint8_t value, flipped;

        ck_assert_int_eq(pread(fd, &value, 1, (off_t)byte), 1);
        flipped = value ^ (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(pwrite(fd, &flipped, 1, (off_t)byte), 1);
        if (byte < SEGMENT_HEADER_SIZE) {
            ck_assert_int_eq(segment_open(path, 0, &s), -EBADMSG);
        } else {
            while (at[before + 1] <= byte)
                before++;
            for (unsigned torn = 0; torn < 2; torn++) {
                s = reopen(path, 0);
                ck_assert_int_eq(segment_verify(s, torn), 0);
                ck_assert_msg(s->size == at[before], "bit %d", (int)bit);
                ck_assert_uint_eq(s->damaged_at, torn ? 0 : at[before]);
                check_last(s, before);
                segment_unref(s);
            }
        }
        ck_assert_int_eq(pwrite(fd, &value, 1, (off_t)byte), 1);
    }
    ck_assert_uint_eq(before, SMALL_RECORDS - 1);
    (void)close(fd);
    free(path);
    folder_remove();
}
END_TEST

/* A whole record in another place, one left out, and one behind what the successor says: none of them is read. */
START_TEST(in_another_place)
{
    uint64_t at[SMALL_RECORDS + 1];
    uint8_t bytes[4096];

    folder_make();
    struct segment *s = small(at), *again;
    size_t size = (size_t)(at[2] - at[1]);

    ck_assert_int_eq(pread(s->fd, bytes, size, (off_t)at[1]), (ssize_t)size);
    ck_assert_int_eq(pwrite(s->fd, bytes, size, (off_t)at[3]),
                     (ssize_t)size); /* a mark over a mark */
    again = reopen(s->path, 0);
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, at[3]);
    segment_unref(again);
    ck_assert_int_eq(pread(s->fd, bytes, (size_t)(at[3] - at[2]), (off_t)at[2]),
                     (ssize_t)(at[3] - at[2]));
    ck_assert_int_eq(pwrite(s->fd, bytes, (size_t)(at[3] - at[2]), (off_t)at[1]),
                     (ssize_t)(at[3] - at[2]));
    again = reopen(s->path, 0);
    ck_assert_int_eq(segment_verify(again, true), 0);
    ck_assert_uint_eq(again->size, at[1]);
    segment_unref(again);
    segment_unref(s);
    folder_remove();
}
END_TEST

START_TEST(valid_size_of_the_successor)
{
    uint64_t at[SMALL_RECORDS + 1];

    folder_make();
    struct segment *s = small(at), *again;
    uint64_t checksum = s->end.checksum;

    again = reopen(s->path, at[2]);
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, 0);
    ck_assert_uint_eq(again->size, at[2]);
    check_last(again, 2);
    segment_unref(again);

    again = reopen(s->path, at[2] + 1); /* in the middle of a record */
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, at[2]);
    segment_unref(again);

    again = reopen(s->path, at[5]);
    again->has_next = true;
    again->next_checksum = checksum;
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, 0);
    segment_unref(again);

    again = reopen(s->path, at[5]);
    again->has_next = true;
    again->next_checksum = checksum ^ 1; /* not the file that it goes on from */
    ck_assert_int_eq(segment_verify(again, false), 0);
    ck_assert_uint_eq(again->damaged_at, SEGMENT_HEADER_SIZE);
    ck_assert_uint_eq(again->size, SEGMENT_HEADER_SIZE);
    check_last(again, 0);
    segment_unref(again);
    segment_unref(s);
    folder_remove();
}
END_TEST

/* A record whose checksum is right but whose frames no writer makes: it does not count either. */
START_TEST(frames_that_do_not_fill_it)
{
    static const char *const wrong[] = {
        "00000001 11 00 0000",          /* beyond the record */
        "00000000 11 00 0000 00000000", /* half a header */
        "00000001 10 00 0000 00",       /* a BEGIN of another length */
        "00000001 11 00 0000 00",       /* ends inside a transaction that never began */
        "00000001 11 00 0100 00",
    };

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        folder_make();
        struct segment *s = create(&first_header);
        struct bytes frames = unit_from_hex(wrong[i]);
        struct frame_begin begin = begin_at(0x300);
        struct record r = {.first = {1, 0x300, 0}, .last = {1, 0x300, 1}, .ends_inside = true};

        append_message(s, 0x200, 3);
        uint64_t at = s->size;
        append(s, &r, frames, &begin);
        struct segment *again = reopen(s->path, 0);
        ck_assert_int_eq(segment_verify(again, false), 0);
        ck_assert_uint_eq(again->damaged_at, at);
        ck_assert_uint_eq(again->size, at);
        check_last(again, 1);
        segment_unref(again);
        unit_free(frames);
        segment_unref(s);
        folder_remove();
    }
}
END_TEST

UNIT_MAIN("segment", made_and_opened, a_half_made_one_is_in_nobodys_way, what_is_no_segment,
          read_back, located, falls_back, torn_at_every_byte, every_bit_flipped, in_another_place,
          valid_size_of_the_successor, frames_that_do_not_fill_it)
