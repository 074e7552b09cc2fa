/* SPDX-License-Identifier: PostgreSQL */
#include "quarantine_format.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static const uint8_t header_magic[8] = {'w', 'a', 'l', 'b', 'u', 's', 'Q', '1'};
static const uint8_t record_magic[4] = {'w', 'b', 'q', 'r'};

void quarantine_header_encode(const struct quarantine_header *h, uint8_t out[QUARANTINE_HEADER_SIZE])
{
    memset(out, 0, QUARANTINE_HEADER_SIZE);
    memcpy(out, header_magic, sizeof header_magic);
    bytes_put_u32(out + 16, QUARANTINE_FORMAT);
    bytes_put_u64(out + 24, h->seed);
    bytes_put_u64(out + 32, h->next_id);
    bytes_put_u64(out + 8, XXH3_64bits(out + 16, QUARANTINE_HEADER_SIZE - 16));
}

int quarantine_header_decode(const uint8_t in[QUARANTINE_HEADER_SIZE], struct quarantine_header *ret)
{
    if (memcmp(in, header_magic, sizeof header_magic) != 0 ||
        bytes_get_u64(in + 8) != XXH3_64bits(in + 16, QUARANTINE_HEADER_SIZE - 16))
        return -EBADMSG;
    if (bytes_get_u32(in + 16) != QUARANTINE_FORMAT)
        return -EPROTONOSUPPORT;
    *ret = (struct quarantine_header){.seed = bytes_get_u64(in + 24), .next_id = bytes_get_u64(in + 32)};
    return 0;
}

void quarantine_record_encode(enum quarantine_kind kind, uint64_t seed, const struct bytes *pieces, size_t n,
                              uint8_t out[QUARANTINE_RECORD_SIZE])
{
    uint64_t size = 0;
    XXH3_state_t state;

    XXH3_INITSTATE(&state);
    (void)XXH3_64bits_reset_withSeed(&state, seed);
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].size)
            (void)XXH3_64bits_update(&state, pieces[i].data, pieces[i].size);
        size += pieces[i].size;
    }
    memset(out, 0, QUARANTINE_RECORD_SIZE);
    memcpy(out, record_magic, sizeof record_magic);
    out[4] = (uint8_t)kind;
    bytes_put_u64(out + 8, size);
    bytes_put_u64(out + 16, XXH3_64bits_digest(&state));
    bytes_put_u64(out + 24, XXH3_64bits_withSeed(out, 24, seed));
}

int quarantine_record_decode(const uint8_t in[QUARANTINE_RECORD_SIZE], uint64_t seed, struct quarantine_record *ret)
{
    struct quarantine_record r = {
        .kind = (enum quarantine_kind)in[4],
        .size = bytes_get_u64(in + 8),
        .checksum = bytes_get_u64(in + 16),
    };

    if (memcmp(in, record_magic, sizeof record_magic) != 0 || in[5] || in[6] || in[7] ||
        bytes_get_u64(in + 24) != XXH3_64bits_withSeed(in, 24, seed))
        return -EBADMSG;
    if (r.kind == QUARANTINE_PUT ? r.size < QUARANTINE_PUT_FIXED
                                 : r.kind != QUARANTINE_GONE || r.size != QUARANTINE_GONE_BODY)
        return -EBADMSG;
    *ret = r;
    return 0;
}

void quarantine_put_encode(const struct quarantine_message *m, uint8_t out[QUARANTINE_PUT_FIXED])
{
    bytes_put_u64(out, m->id);
    bytes_put_u64(out + 8, m->system_identifier);
    bytes_put_u32(out + 16, m->era);
    bytes_put_u32(out + 20, m->status);
    position_encode(m->position, out + 24);
    bytes_put_u64(out + 40, m->lsn);
    bytes_put_u32(out + 48, m->xid);
    bytes_put_u32(out + 52, m->flags);
    bytes_put_u64(out + 56, (uint64_t)m->commit_time);
    bytes_put_u64(out + 64, (uint64_t)m->received_time);
    memcpy(out + 72, m->hash, FRAME_HASH_SIZE);
    bytes_put_u32(out + 104, (uint32_t)m->prefix.size);
    bytes_put_u16(out + 108, (uint16_t)m->kid.size);
    bytes_put_u16(out + 110, (uint16_t)m->reason.size);
    bytes_put_u32(out + 112, 0);
}

int quarantine_put_decode(const uint8_t in[QUARANTINE_PUT_FIXED], uint64_t size, struct quarantine_message *ret)
{
    struct quarantine_message m = {
        .id = bytes_get_u64(in),
        .system_identifier = bytes_get_u64(in + 8),
        .era = bytes_get_u32(in + 16),
        .status = bytes_get_u32(in + 20),
        .position = position_decode(in + 24),
        .lsn = bytes_get_u64(in + 40),
        .xid = bytes_get_u32(in + 48),
        .flags = bytes_get_u32(in + 52),
        .commit_time = (int64_t)bytes_get_u64(in + 56),
        .received_time = (int64_t)bytes_get_u64(in + 64),
        .prefix.size = bytes_get_u32(in + 104),
        .kid.size = bytes_get_u16(in + 108),
        .reason.size = bytes_get_u16(in + 110),
    };
    uint64_t before = (uint64_t)QUARANTINE_PUT_FIXED + m.prefix.size + m.kid.size + m.reason.size;

    if (!m.id || bytes_get_u32(in + 112) != 0 || m.kid.size > QUARANTINE_KID_MAX ||
        m.reason.size > QUARANTINE_REASON_MAX || before > size || size - before > UINT32_MAX)
        return -EBADMSG;
    memcpy(m.hash, in + 72, FRAME_HASH_SIZE);
    m.content.size = (size_t)(size - before);
    *ret = m;
    return 0;
}

void quarantine_gone_encode(uint64_t id, enum quarantine_gone why, uint8_t out[QUARANTINE_GONE_BODY])
{
    bytes_put_u64(out, id);
    bytes_put_u32(out + 8, (uint32_t)why);
}

int quarantine_gone_decode(struct bytes body, uint64_t *ret_id, uint32_t *ret_why)
{
    if (body.size != QUARANTINE_GONE_BODY)
        return -EBADMSG;
    *ret_id = bytes_get_u64(body.data);
    *ret_why = bytes_get_u32(body.data + 8);
    return 0;
}
