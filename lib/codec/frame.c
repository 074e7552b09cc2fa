/* SPDX-License-Identifier: PostgreSQL */
#include "codec/frame.h"

#include <errno.h>
#include <string.h>

#include "base/macros.h"

void frame_header_encode(uint8_t out[FRAME_HEADER_SIZE], struct frame_header h)
{
    bytes_put_u32(out, h.size);
    out[4] = h.type;
    out[5] = h.flags;
    bytes_put_u16(out + 6, 0);
}

int frame_header_decode(const uint8_t in[FRAME_HEADER_SIZE], struct frame_header *ret)
{
    if (bytes_get_u16(in + 6) != 0)
        return -EBADMSG;
    *ret = (struct frame_header){.size = bytes_get_u32(in), .type = in[4], .flags = in[5]};
    return 0;
}

const char *frame_type_name(uint8_t type)
{
    static const char *const names[] = {
        [FRAME_HELLO] = "HELLO",
        [FRAME_WELCOME] = "WELCOME",
        [FRAME_SUBSCRIBE] = "SUBSCRIBE",
        [FRAME_SUBSCRIBED] = "SUBSCRIBED",
        [FRAME_ACK] = "ACK",
        [FRAME_ACKED] = "ACKED",
        [FRAME_REQUEST] = "REQUEST",
        [FRAME_REPLY] = "REPLY",
        [FRAME_ERROR] = "ERROR",
        [FRAME_BEGIN] = "BEGIN",
        [FRAME_MESSAGE] = "MESSAGE",
        [FRAME_COMMIT] = "COMMIT",
        [FRAME_PROGRESS] = "PROGRESS",
        [FRAME_GAP] = "GAP",
        [FRAME_RECORD] = "RECORD",
        [FRAME_WITHHELD] = "WITHHELD",
    };

    return type < ARRAY_SIZE(names) && names[type] ? names[type] : "unknown";
}

/* What BEGIN and COMMIT share. */
static uint8_t *put_begin(uint8_t *at, const struct frame_begin *f)
{
    bytes_put_u32(at, f->timeline);
    bytes_put_u64(at + 4, f->commit_lsn);
    bytes_put_u64(at + 12, (uint64_t)f->commit_time);
    bytes_put_u32(at + 20, f->xid);
    return at + FRAME_BEGIN_BODY;
}

static struct frame_begin get_begin(struct frame_header h, const uint8_t *body)
{
    return (struct frame_begin){
        .timeline = bytes_get_u32(body),
        .commit_lsn = bytes_get_u64(body + 4),
        .commit_time = (int64_t)bytes_get_u64(body + 12),
        .xid = bytes_get_u32(body + 20),
        .flags = h.flags,
    };
}

size_t frame_begin_encode(uint8_t *out, const struct frame_begin *f)
{
    frame_header_encode(out, (struct frame_header){FRAME_BEGIN_BODY, FRAME_BEGIN, f->flags});
    return (size_t)(put_begin(out + FRAME_HEADER_SIZE, f) - out);
}

size_t frame_commit_encode(uint8_t *out, const struct frame_commit *f)
{
    frame_header_encode(out,
                        (struct frame_header){FRAME_COMMIT_BODY, FRAME_COMMIT, f->begin.flags});
    uint8_t *at = put_begin(out + FRAME_HEADER_SIZE, &f->begin);
    bytes_put_u64(at, f->end_lsn);
    bytes_put_u32(at + 8, f->messages);
    return FRAME_HEADER_SIZE + FRAME_COMMIT_BODY;
}

size_t frame_progress_encode(uint8_t *out, struct position p)
{
    frame_header_encode(out, (struct frame_header){FRAME_PROGRESS_BODY, FRAME_PROGRESS, 0});
    position_encode(p, out + FRAME_HEADER_SIZE);
    return FRAME_HEADER_SIZE + FRAME_PROGRESS_BODY;
}

/* What MESSAGE and WITHHELD share. */
static uint8_t *put_message(uint8_t *at, const struct frame_message *f)
{
    position_encode(f->position, at);
    bytes_put_u64(at + 16, f->lsn);
    bytes_put_u32(at + 24, f->xid);
    bytes_put_u64(at + 28, (uint64_t)f->commit_time);
    bytes_put_u64(at + 36, (uint64_t)f->received_time);
    bytes_put_u32(at + 44, (uint32_t)f->prefix.size);
    return at + FRAME_MESSAGE_FIXED;
}

static struct frame_message get_message(struct frame_header h, const uint8_t *body)
{
    return (struct frame_message){
        .position = position_decode(body),
        .lsn = bytes_get_u64(body + 16),
        .xid = bytes_get_u32(body + 24),
        .commit_time = (int64_t)bytes_get_u64(body + 28),
        .received_time = (int64_t)bytes_get_u64(body + 36),
        .flags = h.flags,
    };
}

size_t frame_message_encode_head(uint8_t *out, const struct frame_message *f)
{
    uint8_t *at = out + FRAME_HEADER_SIZE;
    struct frame_header h = {
        .size = (uint32_t)(FRAME_MESSAGE_FIXED + f->prefix.size + f->content.size),
        .type = FRAME_MESSAGE,
        .flags = f->flags,
    };

    frame_header_encode(out, h);
    at = put_message(at, f);
    if (f->prefix.size)
        memcpy(at, f->prefix.data, f->prefix.size);
    return FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + f->prefix.size;
}

size_t frame_gap_encode(uint8_t *out, const struct frame_gap *f)
{
    uint8_t *at = out + FRAME_HEADER_SIZE;
    struct frame_header h = {
        .size = (uint32_t)(FRAME_GAP_FIXED + f->reason.size),
        .type = FRAME_GAP,
    };

    frame_header_encode(out, h);
    position_encode(f->from, at);
    position_encode(f->to, at + 16);
    bytes_put_u64(at + 32, f->messages);
    bytes_put_u64(at + 40, f->bytes);
    if (f->reason.size)
        memcpy(at + FRAME_GAP_FIXED, f->reason.data, f->reason.size);
    return FRAME_HEADER_SIZE + FRAME_GAP_FIXED + f->reason.size;
}

int frame_begin_decode(struct frame_header h, const uint8_t *body, struct frame_begin *ret)
{
    if (h.size != FRAME_BEGIN_BODY)
        return -EBADMSG;
    *ret = get_begin(h, body);
    return 0;
}

int frame_commit_decode(struct frame_header h, const uint8_t *body, struct frame_commit *ret)
{
    if (h.size != FRAME_COMMIT_BODY)
        return -EBADMSG;
    *ret = (struct frame_commit){
        .begin = get_begin(h, body),
        .end_lsn = bytes_get_u64(body + FRAME_BEGIN_BODY),
        .messages = bytes_get_u32(body + FRAME_BEGIN_BODY + 8),
    };
    return 0;
}

int frame_progress_decode(struct frame_header h, const uint8_t *body, struct position *ret)
{
    if (h.size != FRAME_PROGRESS_BODY)
        return -EBADMSG;
    *ret = position_decode(body);
    return 0;
}

int frame_message_decode(struct frame_header h, const uint8_t *body, struct frame_message *ret)
{
    if (h.size < FRAME_MESSAGE_FIXED)
        return -EBADMSG;
    uint32_t rest = h.size - FRAME_MESSAGE_FIXED, prefix_size = bytes_get_u32(body + 44);
    if (prefix_size > rest)
        return -EBADMSG;
    *ret = get_message(h, body);
    ret->prefix = (struct bytes){body + FRAME_MESSAGE_FIXED, prefix_size};
    ret->content = (struct bytes){body + FRAME_MESSAGE_FIXED + prefix_size, rest - prefix_size};
    return 0;
}

size_t frame_withheld_encode(uint8_t *out, const struct frame_withheld *f)
{
    uint8_t flags = (uint8_t)((f->message.flags & FRAME_FLAG_TRANSACTIONAL) | FRAME_FLAG_IGNORABLE);

    frame_header_encode(out, (struct frame_header){FRAME_WITHHELD_BODY, FRAME_WITHHELD, flags});
    uint8_t *at = put_message(out + FRAME_HEADER_SIZE, &f->message);
    bytes_put_u32(at, (uint32_t)f->message.content.size);
    bytes_put_u32(at + 4, f->status);
    memcpy(at + 8, f->hash, FRAME_HASH_SIZE);
    return FRAME_HEADER_SIZE + FRAME_WITHHELD_BODY;
}

int frame_withheld_decode(struct frame_header h, const uint8_t *body, struct frame_withheld *ret)
{
    const uint8_t *rest = body + FRAME_MESSAGE_FIXED;

    if (h.size != FRAME_WITHHELD_BODY)
        return -EBADMSG;
    *ret = (struct frame_withheld){.message = get_message(h, body), .status = bytes_get_u32(rest + 4)};
    ret->message.flags = h.flags & FRAME_FLAG_TRANSACTIONAL;
    ret->message.prefix.size = bytes_get_u32(body + 44);
    ret->message.content.size = bytes_get_u32(rest);
    memcpy(ret->hash, rest + 8, FRAME_HASH_SIZE);
    return 0;
}

int frame_gap_decode(struct frame_header h, const uint8_t *body, struct frame_gap *ret)
{
    if (h.size < FRAME_GAP_FIXED)
        return -EBADMSG;
    *ret = (struct frame_gap){
        .from = position_decode(body),
        .to = position_decode(body + 16),
        .messages = bytes_get_u64(body + 32),
        .bytes = bytes_get_u64(body + 40),
        .reason = {body + FRAME_GAP_FIXED, h.size - FRAME_GAP_FIXED},
    };
    return 0;
}
