/* SPDX-License-Identifier: PostgreSQL */
#include "catalog_value.h"

#include <errno.h>
#include <string.h>

#include <xxhash.h>

#define SUBSCRIPTION_FORMAT 3u

#define SUBSCRIPTION_RESUMES 0x01u
#define SUBSCRIPTION_GAP     0x02u
#define SUBSCRIPTION_MARK    0x04u
#define SUBSCRIPTION_MAKER   0x08u

/* Behind format and flags: what every value has. */
#define SUBSCRIPTION_FIXED 116u

/* Of one filter, in front of its text: which list it is in, its kind, the length of its text (u16). */
#define FILTER_HEAD 4u

_Static_assert(FILTER_TEXT_MAX <= UINT16_MAX, "its length is a u16");

/* ---- values ---- */

static uint64_t checksum_of(MDB_val key, const uint8_t *value, size_t size)
{
    return XXH3_64bits_withSeed(value, size, XXH3_64bits(key.mv_data, key.mv_size));
}

void catalog_value_seal(MDB_val key, uint8_t *value, size_t size)
{
    bytes_put_u64(value + size - 8, checksum_of(key, value, size - 8));
}

bool catalog_value_is_sealed(MDB_val key, MDB_val value, size_t size)
{
    const uint8_t *at = value.mv_data;

    return value.mv_size == size && bytes_get_u64(at + size - 8) == checksum_of(key, at, size - 8);
}

size_t catalog_subscription_encode(const struct catalog_subscription *s, struct catalog_filters_ref ref,
                                  uint8_t out[CATALOG_SUBSCRIPTION_MOST])
{
    const struct catalog_mark *m = &s->mark;
    uint8_t *at = out;

    *at++ = SUBSCRIPTION_FORMAT;
    *at++ = (uint8_t)((s->resumes ? SUBSCRIPTION_RESUMES : 0) | (s->has_gap ? SUBSCRIPTION_GAP : 0) |
                      (m->since ? SUBSCRIPTION_MARK : 0) | (s->has_maker ? SUBSCRIPTION_MAKER : 0));
    bytes_put_u64(at, ref.id);
    position_encode(s->cursor, at + 8);
    position_encode(s->acked, at + 24);
    position_encode(s->sent, at + 40);
    position_encode(s->gap_to, at + 56);
    bytes_put_u64(at + 72, s->gap_messages);
    bytes_put_u64(at + 80, s->gap_bytes);
    bytes_put_u64(at + 88, s->seen_ms);
    bytes_put_u64(at + 96, s->made_ms);
    bytes_put_u32(at + 104, ref.size);
    bytes_put_u64(at + 108, ref.checksum);
    at += SUBSCRIPTION_FIXED;
    size_t maker = s->has_maker ? CATALOG_MAKER_SIZE : 0;
    if (s->has_maker)
        bytes_put_u32(at, s->maker);
    if (!m->since)
        return CATALOG_SUBSCRIPTION_SIZE + maker;
    size_t why = MIN(m->why.size, (size_t)CATALOG_REASON_MAX);
    at += maker;
    bytes_put_u64(at, (uint64_t)m->since);
    position_encode(m->at, at + 8);
    at[24] = (uint8_t)why;
    if (why)
        memcpy(at + CATALOG_MARK_SIZE, m->why.data, why);
    return CATALOG_SUBSCRIPTION_SIZE + maker + CATALOG_MARK_SIZE + why;
}

bool catalog_subscription_is_sealed(MDB_val key, MDB_val value)
{
    const uint8_t *at = value.mv_data;

    if (value.mv_size < CATALOG_SUBSCRIPTION_SIZE || !catalog_value_is_sealed(key, value, value.mv_size))
        return false;
    if (at[0] != SUBSCRIPTION_FORMAT)
        return false;
    size_t size = CATALOG_SUBSCRIPTION_SIZE + (at[1] & SUBSCRIPTION_MAKER ? CATALOG_MAKER_SIZE : 0);
    if (!(at[1] & SUBSCRIPTION_MARK))
        return value.mv_size == size;
    size += CATALOG_MARK_SIZE;
    return value.mv_size >= size && value.mv_size - size == at[size - 8 - 1];
}

void catalog_subscription_decode(const uint8_t *in, struct catalog_subscription *s, struct catalog_filters_ref *ref)
{
    const uint8_t *at = in + 2;

    s->resumes = in[1] & SUBSCRIPTION_RESUMES;
    s->has_gap = in[1] & SUBSCRIPTION_GAP;
    ref->id = bytes_get_u64(at);
    s->cursor = position_decode(at + 8);
    s->acked = position_decode(at + 24);
    s->sent = position_decode(at + 40);
    s->gap_to = position_decode(at + 56);
    s->gap_messages = bytes_get_u64(at + 72);
    s->gap_bytes = bytes_get_u64(at + 80);
    s->seen_ms = bytes_get_u64(at + 88);
    s->made_ms = bytes_get_u64(at + 96);
    ref->size = bytes_get_u32(at + 104);
    ref->checksum = bytes_get_u64(at + 108);
    at += SUBSCRIPTION_FIXED;
    s->has_maker = in[1] & SUBSCRIPTION_MAKER;
    if (s->has_maker) {
        s->maker = bytes_get_u32(at);
        at += CATALOG_MAKER_SIZE;
    }
    if (!(in[1] & SUBSCRIPTION_MARK))
        return;
    s->mark.since = (int64_t)bytes_get_u64(at);
    s->mark.at = position_decode(at + 8);
    s->mark.why = (struct bytes){at + CATALOG_MARK_SIZE, at[24]};
}

size_t catalog_filters_size(const struct filter *filters, size_t n_filters, const struct filter *exclusions,
                            size_t n_exclusions)
{
    size_t size = (n_filters + n_exclusions) * FILTER_HEAD;

    for (size_t i = 0; i < n_filters; i++)
        size += filters[i].text.size;
    for (size_t i = 0; i < n_exclusions; i++)
        size += exclusions[i].text.size;
    return size;
}

void catalog_filters_encode(struct buf *out, const struct filter *filters, size_t n, uint8_t list)
{
    for (size_t i = 0; i < n; i++) {
        buf_append_u8(out, list);
        buf_append_u8(out, (uint8_t)filters[i].kind);
        buf_append_u16(out, (uint16_t)filters[i].text.size);
        buf_append(out, filters[i].text.data, filters[i].text.size);
    }
}

int catalog_filters_decode(struct bytes in, struct filter *all, size_t *ret_filters, size_t *ret_exclusions)
{
    size_t n[2] = {0, 0};

    while (in.size) {
        if (in.size < FILTER_HEAD)
            return -EBADMSG;
        unsigned list = in.data[0], kind = in.data[1];
        size_t size = bytes_get_u16(in.data + 2);
        if (list > 1 || (list == 0 && n[1]) || kind > FILTER_STARTS_WITH || size > FILTER_TEXT_MAX ||
            size > in.size - FILTER_HEAD || n[list] == FILTERS_MAX)
            return -EBADMSG;
        all[n[0] + n[1]] = (struct filter){(enum filter_kind)kind, {in.data + FILTER_HEAD, size}};
        n[list]++;
        in = (struct bytes){in.data + FILTER_HEAD + size, in.size - FILTER_HEAD - size};
    }
    *ret_filters = n[0];
    *ret_exclusions = n[1];
    return 0;
}

/* ---- keys ---- */

MDB_val catalog_chunk_key(uint64_t id, unsigned i, uint8_t out[CATALOG_CHUNK_KEY])
{
    out[0] = CATALOG_KEY_FILTERS;
    bytes_put_u64(out + 1, id);
    bytes_put_u16(out + 9, (uint16_t)i);
    return (MDB_val){CATALOG_CHUNK_KEY, out};
}

MDB_val catalog_name_key(struct bytes name, uint8_t out[1 + CATALOG_NAME_MAX])
{
    out[0] = CATALOG_KEY_SUBSCRIPTION;
    memcpy(out + 1, name.data, name.size);
    return (MDB_val){1 + name.size, out};
}

MDB_val catalog_head_key(void)
{
    static char key[] = {CATALOG_KEY_HEAD};

    return (MDB_val){sizeof key, key};
}

unsigned catalog_chunks(size_t size)
{
    return (unsigned)((size + CATALOG_CHUNK_SIZE - 1) / CATALOG_CHUNK_SIZE);
}
