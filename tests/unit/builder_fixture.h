/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_BUILDER_FIXTURE_H
#define WALBUS_TESTS_UNIT_BUILDER_FIXTURE_H

/* A builder that is fed with decoded messages and whose batches are compared as text. Each program
 * of tests that includes this has one. */

#include <inttypes.h>
#include <stdbool.h>

#include "base/buf.h"
#include "builder.h"
#include "codec/frame.h"
#include "unit.h"

#define TIME 1000
#define XID  5

/* Timeline 1 up to 0/10000, then 2. */
static struct timeline_switch switches[] = {{1, 0x10000}};
static const struct timeline_history history = {.current = 2, .switches = switches, .n = 1};

static struct batch_pool pool;
static struct builder b;
static char why[DECODE_WHY_SIZE];
static const struct position origin = {1, 0, 0};

static inline void setup(void)
{
    pool = (struct batch_pool){0};
    builder_init(&b, &pool);
    builder_connected(&b, &history, origin);
}

static inline void teardown(void)
{
    builder_deinit(&b);
    ck_assert_uint_eq(pool.live, 0);
    ck_assert_uint_eq(pool.live_bytes, 0);
    batch_pool_deinit(&pool);
}

static inline int begin_with(uint64_t commit_lsn, uint32_t xid)
{
    struct pgoutput m = {
        .type = PGOUTPUT_BEGIN, .xid = xid, .begin = {commit_lsn, (int64_t)commit_lsn + TIME}};
    void *owner = NULL;
    return builder_add(&b, &m, &owner, why);
}

static inline int begin(uint64_t commit_lsn)
{
    return begin_with(commit_lsn, XID);
}

static inline int commit(uint64_t commit_lsn, uint64_t end_lsn)
{
    struct pgoutput m = {.type = PGOUTPUT_COMMIT,
                         .commit = {commit_lsn, end_lsn, (int64_t)commit_lsn + TIME}};
    void *owner = NULL;
    return builder_add(&b, &m, &owner, why);
}

static inline int message_of(bool transactional, uint64_t lsn, struct bytes prefix, struct bytes content,
                      void **owner)
{
    struct pgoutput m = {.type = PGOUTPUT_MESSAGE,
                         .message = {transactional, lsn, prefix, content}};
    return builder_add(&b, &m, owner, why);
}

static inline int message(bool transactional, uint64_t lsn, const char *prefix, const char *content)
{
    void *owner = NULL;
    return message_of(transactional, lsn, unit_bytes(prefix), unit_bytes(content), &owner);
}

/* ---- batches as text ---- */

/* One line a frame, with everything in it but the received time. Follows `inside` over the batches.
 */
static inline void put_frames(struct buf *out, const struct batch *batch, bool *inside)
{
    size_t offset = 0;
    char text[POSITION_TEXT_SIZE], lsn[LSN_TEXT_SIZE];
    struct bytes pieces[2];
    unsigned n = batch_pieces(batch, 0, batch_size(batch), pieces);
    struct buf stream = BUF_INIT;

    for (unsigned i = 0; i < n; i++)
        buf_append(&stream, pieces[i].data, pieces[i].size);
    ck_assert_uint_eq(stream.size, batch_size(batch));
    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *e = &batch->entries[i];
        const uint8_t *at = stream.data + offset, *body = at + FRAME_HEADER_SIZE;
        struct frame_header h;

        ck_assert_uint_eq(e->offset, offset);
        ck_assert_int_eq(frame_header_decode(at, &h), 0);
        ck_assert_uint_eq(e->size, FRAME_HEADER_SIZE + h.size);
        ck_assert_uint_eq(e->type, h.type);
        if (h.type == FRAME_BEGIN) {
            struct frame_begin f;
            struct position p = {0};

            ck_assert_int_eq(frame_begin_decode(h, body, &f), 0);
            ck_assert_uint_eq(f.flags, 0);
            p = (struct position){f.timeline, f.commit_lsn, 0};
            ck_assert_int_eq(position_compare(e->position, p), 0);
            ck_assert(!*inside);
            *inside = true;
            buf_printf(out, "B %s t%" PRId64 " x%u\n", position_format(p, text), f.commit_time,
                       f.xid);
        } else if (h.type == FRAME_MESSAGE) {
            struct frame_message f;

            ck_assert_int_eq(frame_message_decode(h, body, &f), 0);
            ck_assert_int_eq(position_compare(e->position, f.position), 0);
            ck_assert(bytes_equal(e->prefix, f.prefix));
            ck_assert_uint_eq(f.flags, f.position.index ? FRAME_FLAG_TRANSACTIONAL : 0);
            ck_assert_int_eq(*inside, f.position.index != 0);
            buf_printf(out, "M %s l%s", position_format(f.position, text), lsn_format(f.lsn, lsn));
            if (f.position.index)
                buf_printf(out, " t%" PRId64 " x%u", f.commit_time, f.xid);
            else
                ck_assert(f.commit_time == 0 && f.xid == 0);
            buf_printf(out, " %.*s=", (int)f.prefix.size, (const char *)f.prefix.data);
            if (f.content.size > 100)
                buf_printf(out, "%zu*%c", f.content.size, f.content.data[f.content.size - 1]);
            else
                buf_append(out, f.content.data, f.content.size);
            buf_append_u8(out, '\n');
        } else if (h.type == FRAME_GAP) {
            struct frame_gap f;

            ck_assert_int_eq(frame_gap_decode(h, body, &f), 0);
            ck_assert_int_eq(position_compare(e->position, f.to), 0);
            ck_assert_uint_eq(f.messages, UINT64_MAX);
            ck_assert_uint_eq(f.bytes, UINT64_MAX);
            *inside = false;
            buf_printf(out, "G %s", position_format(f.from, text));
            buf_printf(out, " %s %.*s\n", position_format(f.to, text), (int)f.reason.size, (const char *)f.reason.data);
        } else {
            struct frame_commit f;

            ck_assert_uint_eq(h.type, FRAME_COMMIT);
            ck_assert_int_eq(frame_commit_decode(h, body, &f), 0);
            struct position p = {f.begin.timeline, f.begin.commit_lsn, POSITION_INDEX_END};
            ck_assert_int_eq(position_compare(e->position, p), 0);
            ck_assert_uint_eq(f.begin.flags, 0);
            ck_assert(*inside);
            *inside = false;
            buf_printf(out, "C %u:%s t%" PRId64 " x%u", p.timeline, lsn_format(p.lsn, lsn),
                       f.begin.commit_time, f.begin.xid);
            buf_printf(out, " e%s n%u\n", lsn_format(f.end_lsn, lsn), f.messages);
        }
        offset += e->size;
        if (i == 0)
            ck_assert_int_eq(position_compare(batch->first, e->position), 0);
        if (i + 1 == batch->n_entries)
            ck_assert_int_eq(position_compare(batch->last, e->position), 0);
    }
    ck_assert_uint_eq(offset, stream.size);
    buf_deinit(&stream);
}

/** Takes the batch of what came again, which must hold exactly these frames; NULL: whatever it holds, if there is one. */
static inline void assert_again(const char *frames)
{
    struct buf text = BUF_INIT;
    bool inside = false;

    if (!frames && !b.again)
        return;
    ck_assert_ptr_nonnull(b.again);
    struct batch *batch = builder_take(&b);
    ck_assert(batch->again);
    ck_assert_uint_eq(batch->mark, 0);
    ck_assert(!batch->starts_inside);
    put_frames(&text, batch, &inside);
    if (frames)
        ck_assert_str_eq(buf_str(&text), frames);
    buf_deinit(&text);
    ck_assert_ptr_null(batch_unref(batch));
}

/** Takes the open batch, behind what came again, which must hold exactly these frames and this mark. */
static inline void assert_taken(bool starts_inside, const char *frames, bool ends_inside, uint64_t mark)
{
    assert_again(NULL);
    struct batch *batch = builder_take(&b);
    struct buf text = BUF_INIT;
    bool inside = starts_inside;

    ck_assert_ptr_nonnull(batch);
    put_frames(&text, batch, &inside);
    ck_assert_str_eq(buf_str(&text), frames);
    ck_assert(!batch->again);
    ck_assert_int_eq(batch->starts_inside, starts_inside);
    ck_assert_int_eq(batch->ends_inside, ends_inside);
    ck_assert_uint_eq(batch->mark, mark);
    ck_assert(batch->handed);
    struct position p = {0};
    if (mark)
        p = (struct position){mark - 1 < 0x10000 ? 1 : 2, mark, 0};
    ck_assert_int_eq(position_compare(batch->mark_position, p), 0);
    if (starts_inside) {
        uint8_t frame[BATCH_BEGIN_SIZE];

        ck_assert_uint_eq(frame_begin_encode(frame, &b.begin), sizeof frame);
        ck_assert_mem_eq(batch->begin, frame, sizeof frame);
    }
    buf_deinit(&text);
    ck_assert_ptr_null(batch_unref(batch));
}

static inline void assert_nothing_to_take(void)
{
    ck_assert_ptr_null(builder_take(&b));
}

static inline void reconnect(void)
{
    assert_again(NULL);
    ck_assert_ptr_null(b.open);
    builder_connected(&b, &history, origin);
}

#endif
