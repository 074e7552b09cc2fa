/* SPDX-License-Identifier: PostgreSQL */
#include "decode.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/*
 * A bounded reader with a sticky fault: a field that does not fit reads as 0,
 * remembers the first missing field, and everything behind it reads as 0 too.
 * So each message's fields stand in one straight list, and finish() judges once.
 */
struct in {
    const uint8_t *start, *at, *end;
    const char *missing; /* name of the first field that did not fit */
    size_t needed;       /* bytes that it needs */
    size_t missing_at;
};

static const uint8_t *take(struct in *in, size_t size, const char *field)
{
    if (in->missing)
        return NULL;
    if ((size_t)(in->end - in->at) < size) {
        in->missing = field;
        in->needed = size;
        in->missing_at = (size_t)(in->at - in->start);
        return NULL;
    }
    const uint8_t *p = in->at;
    in->at += size;
    return p;
}

static uint8_t take_u8(struct in *in, const char *field)
{
    const uint8_t *p = take(in, 1, field);
    return p ? *p : 0;
}

static uint32_t take_u32(struct in *in, const char *field)
{
    const uint8_t *p = take(in, 4, field);
    return p ? bytes_get_u32(p) : 0;
}

static uint64_t take_u64(struct in *in, const char *field)
{
    const uint8_t *p = take(in, 8, field);
    return p ? bytes_get_u64(p) : 0;
}

/* A hostile or corrupt time must not overflow; servers send nothing near the edge. */
static int64_t take_time(struct in *in, const char *field)
{
    int64_t us = (int64_t)take_u64(in, field);

    if (us > INT64_MAX - CLOCK_PG_EPOCH_US)
        return INT64_MAX;
    return us + CLOCK_PG_EPOCH_US;
}

static struct bytes take_string(struct in *in, const char *field)
{
    if (in->missing)
        return (struct bytes){NULL, 0};
    size_t left = (size_t)(in->end - in->at);
    const uint8_t *nul = left ? memchr(in->at, 0, left) : NULL;
    if (!nul) {
        in->missing = field;
        in->needed = left + 1;
        in->missing_at = (size_t)(in->at - in->start);
        return (struct bytes){NULL, 0};
    }
    struct bytes s = {in->at, (size_t)(nul - in->at)};
    in->at = nul + 1;
    return s;
}

static int finish(const struct in *in, char type, char why[DECODE_WHY_SIZE])
{
    if (in->missing) {
        snprintf(why, DECODE_WHY_SIZE,
                 "message '%c' of %zu bytes: %s at byte %zu needs %zu bytes, %zu are left", type,
                 (size_t)(in->end - in->start), in->missing, in->missing_at, in->needed,
                 (size_t)(in->end - in->start) - in->missing_at);
        return -EBADMSG;
    }
    if (in->at != in->end) {
        snprintf(why, DECODE_WHY_SIZE, "message '%c' of %zu bytes: ends at byte %zu, %zu follow",
                 type, (size_t)(in->end - in->start), (size_t)(in->at - in->start),
                 (size_t)(in->end - in->at));
        return -EBADMSG;
    }
    return 0;
}

static int fault(char why[DECODE_WHY_SIZE], const char *what, unsigned found)
{
    snprintf(why, DECODE_WHY_SIZE, "%s, found 0x%02x", what, found);
    return -EBADMSG;
}

int decode_copy(struct bytes bytes, struct copy_frame *ret, char why[DECODE_WHY_SIZE])
{
    struct in in = {bytes.data, bytes.data, bytes.data + bytes.size, NULL, 0, 0};
    struct copy_frame frame = {0};
    uint8_t type = take_u8(&in, "type");

    switch (type) {
    case COPY_DATA:
        (void)take_u64(&in, "WAL start");
        (void)take_u64(&in, "WAL end");
        (void)take_u64(&in, "clock");
        if (!in.missing) {
            frame.payload = (struct bytes){in.at, (size_t)(in.end - in.at)};
            in.at = in.end;
        }
        break;
    case COPY_KEEPALIVE:
        frame.wal_end = take_u64(&in, "WAL end");
        (void)take_u64(&in, "clock");
        frame.reply_requested = take_u8(&in, "reply flag") != 0;
        break;
    default:
        if (bytes.size == 0)
            break;
        return fault(why, "unknown copy message, 'w' or 'k' needed", type);
    }
    int r = finish(&in, bytes.size ? (char)type : '?', why);
    if (r < 0)
        return r;
    frame.type = type;
    *ret = frame;
    return 0;
}

static void take_commit(struct in *in, struct pgoutput *m)
{
    (void)take_u8(in, "flags"); /* documented as unused */
    m->commit.commit_lsn = take_u64(in, "commit LSN");
    m->commit.end_lsn = take_u64(in, "end LSN");
    m->commit.commit_time = take_time(in, "commit time");
}

static void take_prepare(struct in *in, struct pgoutput *m)
{
    m->prepare.prepare_lsn = take_u64(in, "prepare LSN");
    m->prepare.end_lsn = take_u64(in, "end LSN");
    m->prepare.prepare_time = take_time(in, "prepare time");
}

static void take_xid_gid(struct in *in, struct pgoutput *m)
{
    m->xid = take_u32(in, "xid");
    m->gid = take_string(in, "gid");
}

static int take_message(struct in *in, struct pgoutput *m, char why[DECODE_WHY_SIZE])
{
    uint8_t flags = take_u8(in, "flags");

    m->message.transactional = flags & 1;
    m->message.lsn = take_u64(in, "LSN");
    m->message.prefix = take_string(in, "prefix");
    uint32_t size = take_u32(in, "content length");
    const uint8_t *content = take(in, size, "content");
    m->message.content = (struct bytes){content, content ? size : 0};
    if (!in->missing && flags > 1)
        return fault(why, "message 'M': flags 0 or 1 needed", flags);
    return 0;
}

static int take_first(struct in *in, struct pgoutput *m, char why[DECODE_WHY_SIZE])
{
    uint8_t first = take_u8(in, "first-segment flag");

    if (first > 1)
        return fault(why, "message 'S': first-segment flag 0 or 1 needed", first);
    m->stream_start.first = first;
    return 0;
}

int decode_pgoutput(struct decoder *decoder, struct bytes bytes, struct pgoutput *ret,
                    char why[DECODE_WHY_SIZE])
{
    struct in in = {bytes.data, bytes.data, bytes.data + bytes.size, NULL, 0, 0};
    struct pgoutput m = {0};
    bool in_stream = decoder->in_stream;
    uint8_t type = take_u8(&in, "type");
    int r = 0;

    if (bytes.size == 0)
        return finish(&in, '?', why);
    m.type = type;
    switch (type) {
    case PGOUTPUT_BEGIN:
        m.begin.commit_lsn = take_u64(&in, "commit LSN");
        m.begin.commit_time = take_time(&in, "commit time");
        m.xid = take_u32(&in, "xid");
        break;
    case PGOUTPUT_COMMIT:
        take_commit(&in, &m);
        break;
    case PGOUTPUT_MESSAGE:
        if (in_stream)
            m.xid = take_u32(&in, "xid");
        r = take_message(&in, &m, why);
        break;
    case PGOUTPUT_ORIGIN: /* never carries an xid of its own, nor do we look at it */
        in.at = in.end;
        break;
    case PGOUTPUT_RELATION:
    case PGOUTPUT_TYPE:
    case PGOUTPUT_INSERT:
    case PGOUTPUT_UPDATE:
    case PGOUTPUT_DELETE:
    case PGOUTPUT_TRUNCATE:
        if (in_stream)
            m.xid = take_u32(&in, "xid");
        if (!in.missing)
            in.at = in.end;
        break;
    case PGOUTPUT_STREAM_START:
        if (in_stream)
            return fault(why, "stream start inside a stream block", type);
        m.xid = take_u32(&in, "xid");
        r = take_first(&in, &m, why);
        break;
    case PGOUTPUT_STREAM_STOP:
        if (!in_stream)
            return fault(why, "stream stop outside a stream block", type);
        m.xid = decoder->stream_xid;
        break;
    case PGOUTPUT_STREAM_COMMIT:
        m.xid = take_u32(&in, "xid");
        take_commit(&in, &m);
        break;
    case PGOUTPUT_STREAM_ABORT:
        m.xid = take_u32(&in, "xid");
        m.stream_abort.subxid = take_u32(&in, "subtransaction xid");
        if (!in.missing && in.at != in.end) {
            m.stream_abort.has_lsn = true;
            m.stream_abort.lsn = take_u64(&in, "abort LSN");
            m.stream_abort.time = take_time(&in, "abort time");
        }
        break;
    case PGOUTPUT_BEGIN_PREPARE:
        take_prepare(&in, &m);
        take_xid_gid(&in, &m);
        break;
    case PGOUTPUT_PREPARE:
    case PGOUTPUT_STREAM_PREPARE:
        (void)take_u8(&in, "flags");
        take_prepare(&in, &m);
        take_xid_gid(&in, &m);
        break;
    case PGOUTPUT_COMMIT_PREPARED:
        take_commit(&in, &m);
        take_xid_gid(&in, &m);
        break;
    case PGOUTPUT_ROLLBACK_PREPARED:
        (void)take_u8(&in, "flags");
        take_prepare(&in, &m);
        m.prepare.rollback_time = take_time(&in, "rollback time");
        take_xid_gid(&in, &m);
        break;
    default:
        return fault(why, "unknown pgoutput message type", type);
    }
    if (r == 0)
        r = finish(&in, (char)type, why);
    if (r < 0)
        return r;

    m.streamed = in_stream;
    if (type == PGOUTPUT_STREAM_START) {
        decoder->in_stream = true;
        decoder->stream_xid = m.xid;
    } else if (type == PGOUTPUT_STREAM_STOP) {
        decoder->in_stream = false;
    }
    *ret = m;
    return 0;
}
