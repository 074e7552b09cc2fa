/* SPDX-License-Identifier: PostgreSQL */
/*
 * What a walsender sends. The input is one CopyData; it is also taken for the pgoutput message
 * inside of one, outside and inside a stream block.
 */
#include "decode.h"

#include <errno.h>

#include "base/buf.h"
#include "base/clock.h"
#include "fuzz.h"

/* The encoder below writes fields in the server's order. What the decoder does not hand out (unused
 * flags, bodies that are skipped) it takes from the input at the same place. */

static void keep(struct buf *out, struct bytes in, size_t size)
{
    FUZZ_CHECK(out->size + size <= in.size);
    buf_append(out, in.data + out->size, size);
}

static void put_time(struct buf *out, struct bytes in, int64_t us)
{
    FUZZ_CHECK(out->size + 8 <= in.size);
    int64_t sent = (int64_t)bytes_get_u64(in.data + out->size);

    if (us == INT64_MAX) { /* a time beyond the range comes out as its end */
        FUZZ_CHECK(sent >= INT64_MAX - CLOCK_PG_EPOCH_US);
        keep(out, in, 8);
    } else {
        buf_append_u64(out, (uint64_t)us - (uint64_t)CLOCK_PG_EPOCH_US);
    }
}

static void put_string(struct buf *out, struct bytes s)
{
    FUZZ_CHECK(s.size == 0 || memchr(s.data, 0, s.size) == NULL);
    buf_append(out, s.data, s.size);
    buf_append_u8(out, 0);
}

static void put_commit(struct buf *out, struct bytes in, const struct pgoutput *m)
{
    keep(out, in, 1);
    buf_append_u64(out, m->commit.commit_lsn);
    buf_append_u64(out, m->commit.end_lsn);
    put_time(out, in, m->commit.commit_time);
}

static void put_prepare(struct buf *out, struct bytes in, const struct pgoutput *m)
{
    buf_append_u64(out, m->prepare.prepare_lsn);
    buf_append_u64(out, m->prepare.end_lsn);
    put_time(out, in, m->prepare.prepare_time);
}

static void put_xid_gid(struct buf *out, const struct pgoutput *m)
{
    buf_append_u32(out, m->xid);
    put_string(out, m->gid);
}

static bool is_skipped(enum pgoutput_type type)
{
    return type == PGOUTPUT_ORIGIN || type == PGOUTPUT_RELATION || type == PGOUTPUT_TYPE ||
           type == PGOUTPUT_INSERT || type == PGOUTPUT_UPDATE || type == PGOUTPUT_DELETE ||
           type == PGOUTPUT_TRUNCATE;
}

static void encode(struct buf *out, struct bytes in, const struct pgoutput *m)
{
    buf_append_u8(out, (uint8_t)m->type);
    switch (m->type) {
    case PGOUTPUT_BEGIN:
        buf_append_u64(out, m->begin.commit_lsn);
        put_time(out, in, m->begin.commit_time);
        buf_append_u32(out, m->xid);
        break;
    case PGOUTPUT_COMMIT:
        put_commit(out, in, m);
        break;
    case PGOUTPUT_MESSAGE:
        if (m->streamed)
            buf_append_u32(out, m->xid);
        buf_append_u8(out, m->message.transactional);
        buf_append_u64(out, m->message.lsn);
        put_string(out, m->message.prefix);
        buf_append_u32(out, (uint32_t)m->message.content.size);
        buf_append(out, m->message.content.data, m->message.content.size);
        break;
    case PGOUTPUT_ORIGIN:
        break;
    case PGOUTPUT_RELATION:
    case PGOUTPUT_TYPE:
    case PGOUTPUT_INSERT:
    case PGOUTPUT_UPDATE:
    case PGOUTPUT_DELETE:
    case PGOUTPUT_TRUNCATE:
        if (m->streamed)
            buf_append_u32(out, m->xid);
        break;
    case PGOUTPUT_STREAM_START:
        buf_append_u32(out, m->xid);
        buf_append_u8(out, m->stream_start.first);
        break;
    case PGOUTPUT_STREAM_STOP:
        break;
    case PGOUTPUT_STREAM_COMMIT:
        buf_append_u32(out, m->xid);
        put_commit(out, in, m);
        break;
    case PGOUTPUT_STREAM_ABORT:
        buf_append_u32(out, m->xid);
        buf_append_u32(out, m->stream_abort.subxid);
        if (m->stream_abort.has_lsn) {
            buf_append_u64(out, m->stream_abort.lsn);
            put_time(out, in, m->stream_abort.time);
        }
        break;
    case PGOUTPUT_BEGIN_PREPARE:
        put_prepare(out, in, m);
        put_xid_gid(out, m);
        break;
    case PGOUTPUT_PREPARE:
    case PGOUTPUT_STREAM_PREPARE:
        keep(out, in, 1);
        put_prepare(out, in, m);
        put_xid_gid(out, m);
        break;
    case PGOUTPUT_COMMIT_PREPARED:
        put_commit(out, in, m);
        put_xid_gid(out, m);
        break;
    case PGOUTPUT_ROLLBACK_PREPARED:
        keep(out, in, 1);
        put_prepare(out, in, m);
        put_time(out, in, m->prepare.rollback_time);
        put_xid_gid(out, m);
        break;
    }
    if (is_skipped(m->type))
        keep(out, in, in.size - out->size);
}

static bool is_refused(struct decoder decoder, struct bytes in)
{
    struct pgoutput m;
    char why[DECODE_WHY_SIZE];

    return decode_pgoutput(&decoder, in, &m, why) == -EBADMSG;
}

/* A message has one length: the same with a byte less or more is none. */
static void check_length(struct decoder decoder, struct bytes in)
{
    uint8_t *longer = malloc(in.size + 1);
    uint8_t *shorter = fuzz_copy((struct bytes){in.data, in.size - 1});

    FUZZ_CHECK(longer != NULL);
    memcpy(longer, in.data, in.size);
    longer[in.size] = 0;
    FUZZ_CHECK(is_refused(decoder, (struct bytes){longer, in.size + 1}));
    FUZZ_CHECK(is_refused(decoder, (struct bytes){shorter, in.size - 1}));
    free(longer);
    free(shorter);
}

static void check_pgoutput(struct bytes in, bool in_stream)
{
    struct decoder before = {.in_stream = in_stream, .stream_xid = 0x01020304}, decoder = before;
    struct pgoutput m;
    struct buf out = BUF_INIT;
    char why[DECODE_WHY_SIZE];

    fuzz_mark(&m, sizeof m);
    int r = decode_pgoutput(&decoder, in, &m, why);
    if (r < 0) {
        FUZZ_CHECK(r == -EBADMSG);
        FUZZ_CHECK_WHY(why);
        FUZZ_CHECK(fuzz_is_marked(&m, sizeof m));
        return;
    }
    FUZZ_CHECK(r == 0);
    FUZZ_CHECK(m.streamed == in_stream);
    FUZZ_CHECK(decoder.in_stream ==
               (m.type == PGOUTPUT_STREAM_START || (in_stream && m.type != PGOUTPUT_STREAM_STOP)));
    if (m.type == PGOUTPUT_STREAM_START)
        FUZZ_CHECK(decoder.stream_xid == m.xid);
    if (m.type == PGOUTPUT_STREAM_STOP)
        FUZZ_CHECK(m.xid == before.stream_xid);
    encode(&out, in, &m);
    FUZZ_CHECK(bytes_equal(buf_bytes(&out), in));
    buf_deinit(&out);
    if (!is_skipped(m.type))
        check_length(before, in);
}

/* 'w', two LSNs and a clock. */
#define COPY_DATA_HEADER 25
/* 'k', an LSN, a clock and the flag. */
#define COPY_KEEPALIVE_SIZE 18

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes in = {data, size};
    struct copy_frame frame;
    char why[DECODE_WHY_SIZE];

    fuzz_mark(&frame, sizeof frame);
    int r = decode_copy(in, &frame, why);
    if (r < 0) {
        FUZZ_CHECK(r == -EBADMSG);
        FUZZ_CHECK_WHY(why);
        FUZZ_CHECK(fuzz_is_marked(&frame, sizeof frame));
    } else if (frame.type == COPY_DATA) {
        FUZZ_CHECK(data[0] == 'w' && frame.payload.data == data + COPY_DATA_HEADER);
        FUZZ_CHECK(frame.payload.size == size - COPY_DATA_HEADER);
        FUZZ_CHECK(frame.wal_end == 0 && !frame.reply_requested);
        check_pgoutput(frame.payload, false);
        check_pgoutput(frame.payload, true);
    } else {
        FUZZ_CHECK(frame.type == COPY_KEEPALIVE && data[0] == 'k' && size == COPY_KEEPALIVE_SIZE);
        FUZZ_CHECK(frame.wal_end == bytes_get_u64(data + 1) && frame.payload.size == 0);
        FUZZ_CHECK(frame.reply_requested == (data[COPY_KEEPALIVE_SIZE - 1] != 0));
    }
    check_pgoutput(in, false);
    check_pgoutput(in, true);
    return 0;
}
