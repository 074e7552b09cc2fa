/* SPDX-License-Identifier: PostgreSQL */
#include "journal/record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compiled in here: a state on the stack is no part of what the shared library promises to keep. */
#define XXH_INLINE_ALL
#include <xxhash.h>

/* What is hashed of a RECORD frame: all behind its header and the checksum itself. */
#define HASHED_AT (FRAME_HEADER_SIZE + 8u)

static const uint8_t segment_magic[8] = {'w', 'a', 'l', 'b', 'u', 's', 'J', '1'};
static const struct frame_header record_frame = {RECORD_BODY, FRAME_RECORD, FRAME_FLAG_IGNORABLE};

/* ---- writing and reading one thing after another ---- */

static void put_u32(uint8_t **at, uint32_t v)
{
    bytes_put_u32(*at, v);
    *at += 4;
}

static void put_u64(uint8_t **at, uint64_t v)
{
    bytes_put_u64(*at, v);
    *at += 8;
}

static void put_position(uint8_t **at, struct position p)
{
    position_encode(p, *at);
    *at += POSITION_SIZE;
}

static uint32_t get_u32(const uint8_t **at)
{
    uint32_t v = bytes_get_u32(*at);

    *at += 4;
    return v;
}

static uint64_t get_u64(const uint8_t **at)
{
    uint64_t v = bytes_get_u64(*at);

    *at += 8;
    return v;
}

static struct position get_position(const uint8_t **at)
{
    struct position p = position_decode(*at);

    *at += POSITION_SIZE;
    return p;
}

/* What put_begin writes. */
#define BEGIN_SIZE 24u

static bool is_zero(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i])
            return false;
    return true;
}

static void put_begin(uint8_t **at, bool inside, const struct frame_begin *begin)
{
    static const struct frame_begin none;
    const struct frame_begin *f = inside ? begin : &none;

    put_u32(at, f->timeline);
    put_u64(at, f->commit_lsn);
    put_u64(at, (uint64_t)f->commit_time);
    put_u32(at, f->xid);
}

static struct frame_begin get_begin(const uint8_t **at)
{
    struct frame_begin f = {.timeline = get_u32(at)};

    f.commit_lsn = get_u64(at);
    f.commit_time = (int64_t)get_u64(at);
    f.xid = get_u32(at);
    return f;
}

/* ---- records ---- */

static void hash_begin(XXH3_state_t *state, const uint8_t frame[RECORD_SIZE], uint64_t seed)
{
    (void)XXH3_64bits_reset_withSeed(state, seed);
    (void)XXH3_64bits_update(state, frame + HASHED_AT, RECORD_SIZE - HASHED_AT);
}

void record_encode(struct record *r, uint64_t seed, const struct bytes *pieces, size_t n_pieces,
                   uint8_t out[RECORD_SIZE])
{
    uint8_t *at = out + HASHED_AT;
    XXH3_state_t state;

    XXH3_INITSTATE(&state);
    frame_header_encode(out, record_frame);
    put_u64(&at, r->size);
    put_position(&at, r->first);
    put_position(&at, r->last);
    put_u64(&at, r->mark);
    put_u32(&at, r->mark_timeline);
    put_u64(&at, (uint64_t)r->received_time);
    put_u64(&at, r->running_ms);
    put_u64(&at, r->messages_before);
    put_u64(&at, r->bytes_before);
    put_u32(&at, r->messages);
    put_u64(&at, r->bytes);
    put_begin(&at, r->starts_inside, &r->begin);
    *at = (uint8_t)((r->starts_inside ? RECORD_STARTS_INSIDE : 0) |
                    (r->ends_inside ? RECORD_ENDS_INSIDE : 0));

    hash_begin(&state, out, seed);
    for (size_t i = 0; i < n_pieces; i++)
        (void)XXH3_64bits_update(&state, pieces[i].data, pieces[i].size);
    r->checksum = XXH3_64bits_digest(&state);
    bytes_put_u64(out + FRAME_HEADER_SIZE, r->checksum);
}

int record_decode(const uint8_t in[RECORD_SIZE], struct record *ret)
{
    const uint8_t *at = in + FRAME_HEADER_SIZE;
    struct frame_header h;

    int r = frame_header_decode(in, &h);
    if (r < 0)
        return r;
    if (h.size != record_frame.size || h.type != record_frame.type || h.flags != record_frame.flags)
        return -EBADMSG;
    struct record record = {.checksum = get_u64(&at)};
    record.size = get_u64(&at);
    record.first = get_position(&at);
    record.last = get_position(&at);
    record.mark = get_u64(&at);
    record.mark_timeline = get_u32(&at);
    record.received_time = (int64_t)get_u64(&at);
    record.running_ms = get_u64(&at);
    record.messages_before = get_u64(&at);
    record.bytes_before = get_u64(&at);
    record.messages = get_u32(&at);
    record.bytes = get_u64(&at);
    record.begin = get_begin(&at);
    if (*at & ~(RECORD_STARTS_INSIDE | RECORD_ENDS_INSIDE))
        return -EBADMSG;
    record.starts_inside = *at & RECORD_STARTS_INSIDE;
    record.ends_inside = *at & RECORD_ENDS_INSIDE;
    if (!record.starts_inside && !is_zero(at - BEGIN_SIZE, BEGIN_SIZE))
        return -EBADMSG;
    *ret = record;
    return 0;
}

bool record_verify(const uint8_t in[RECORD_SIZE], uint64_t seed, struct bytes frames)
{
    XXH3_state_t state;

    XXH3_INITSTATE(&state);
    hash_begin(&state, in, seed);
    (void)XXH3_64bits_update(&state, frames.data, frames.size);
    return XXH3_64bits_digest(&state) == bytes_get_u64(in + FRAME_HEADER_SIZE);
}

struct record_check {
    XXH3_state_t *state; /* wants an alignment that malloc does not give */
    uint64_t checksum;
};

struct record_check *record_check_new(void)
{
    struct record_check *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->state = XXH3_createState();
    return c->state ? c : record_check_free(c);
}

struct record_check *record_check_free(struct record_check *c)
{
    if (c && c->state)
        (void)XXH3_freeState(c->state);
    free(c);
    return NULL;
}

void record_check_begin(struct record_check *c, const uint8_t in[RECORD_SIZE], uint64_t seed)
{
    c->checksum = bytes_get_u64(in + FRAME_HEADER_SIZE);
    hash_begin(c->state, in, seed);
}

void record_check_add(struct record_check *c, struct bytes piece)
{
    (void)XXH3_64bits_update(c->state, piece.data, piece.size);
}

bool record_check_is_right(const struct record_check *c)
{
    return XXH3_64bits_digest(c->state) == c->checksum;
}

/* ---- segment headers ---- */

#define HEADER_HASHED_AT (sizeof segment_magic + 8u)

static uint64_t header_checksum(const uint8_t header[SEGMENT_HEADER_SIZE])
{
    return XXH3_64bits(header + HEADER_HASHED_AT, SEGMENT_HEADER_SIZE - HEADER_HASHED_AT);
}

static void put_name(uint8_t **at, const char *name)
{
    memcpy(*at, name, strnlen(name, JOURNAL_NAME_SIZE)); /* the rest is zero */
    *at += JOURNAL_NAME_SIZE;
}

static void get_name(const uint8_t **at, char out[JOURNAL_NAME_SIZE + 1])
{
    memcpy(out, *at, JOURNAL_NAME_SIZE);
    out[JOURNAL_NAME_SIZE] = '\0';
    *at += JOURNAL_NAME_SIZE;
}

void segment_header_encode(const struct segment_header *h, uint8_t out[SEGMENT_HEADER_SIZE])
{
    uint8_t *at = out + HEADER_HASHED_AT;

    memset(out, 0, SEGMENT_HEADER_SIZE);
    memcpy(out, segment_magic, sizeof segment_magic);
    put_u32(&at, h->format);
    put_u32(&at, h->layout);
    put_u64(&at, h->sequence);
    put_u64(&at, h->system_identifier);
    put_u32(&at, h->era);
    put_position(&at, h->after);
    put_u64(&at, h->previous_size);
    put_u64(&at, h->previous_checksum);
    put_u64(&at, h->messages_before);
    put_u64(&at, h->bytes_before);
    put_u64(&at, (uint64_t)h->received_time);
    put_u64(&at, h->running_ms);
    put_u64(&at, h->mark);
    put_u32(&at, h->mark_timeline);
    *at++ = h->starts_inside ? RECORD_STARTS_INSIDE : 0;
    put_begin(&at, h->starts_inside, &h->begin);
    put_name(&at, h->database);
    put_name(&at, h->slot);
    bytes_put_u64(out + sizeof segment_magic, header_checksum(out));
}

int segment_header_decode(const uint8_t in[SEGMENT_HEADER_SIZE], struct segment_header *ret)
{
    const uint8_t *at = in + HEADER_HASHED_AT;

    if (memcmp(in, segment_magic, sizeof segment_magic) != 0 ||
        bytes_get_u64(in + sizeof segment_magic) != header_checksum(in))
        return -EBADMSG;
    struct segment_header h = {.format = get_u32(&at)};
    h.layout = get_u32(&at);
    h.sequence = get_u64(&at);
    h.system_identifier = get_u64(&at);
    h.era = get_u32(&at);
    h.after = get_position(&at);
    h.previous_size = get_u64(&at);
    h.previous_checksum = get_u64(&at);
    h.messages_before = get_u64(&at);
    h.bytes_before = get_u64(&at);
    h.received_time = (int64_t)get_u64(&at);
    h.running_ms = get_u64(&at);
    h.mark = get_u64(&at);
    h.mark_timeline = get_u32(&at);
    h.starts_inside = *at++ & RECORD_STARTS_INSIDE;
    h.begin = get_begin(&at);
    get_name(&at, h.database);
    get_name(&at, h.slot);
    *ret = h;
    return h.format == JOURNAL_FORMAT && h.layout == FRAME_LAYOUT ? 0 : -EPROTONOSUPPORT;
}

/* ---- names ---- */

/* "SEQUENCE-TIMELINE-LSN-INDEX": digits of each. */
static const unsigned name_digits[] = {16, 8, 16, 8};
#define SEGMENT_SUFFIX ".segment"

char *segment_name_format(uint64_t sequence, struct position after, char out[SEGMENT_NAME_SIZE])
{
    (void)snprintf(out, SEGMENT_NAME_SIZE,
                   "%016" PRIX64 "-%08" PRIX32 "-%016" PRIX64 "-%08" PRIX32 SEGMENT_SUFFIX,
                   sequence, after.timeline, after.lsn, after.index);
    return out;
}

/* `digits` of them, upper case, as they are written: one file has one name. */
static bool take_hex(const char **at, unsigned digits, uint64_t *ret)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < digits; i++, (*at)++) {
        char c = **at;

        if (c >= '0' && c <= '9')
            v = v << 4 | (uint64_t)(c - '0');
        else if (c >= 'A' && c <= 'F')
            v = v << 4 | (uint64_t)(c - 'A' + 10);
        else
            return false;
    }
    *ret = v;
    return true;
}

int segment_name_parse(const char *name, uint64_t *ret_sequence, struct position *ret_after)
{
    uint64_t v[ARRAY_SIZE(name_digits)];

    for (unsigned i = 0; i < ARRAY_SIZE(name_digits); i++) {
        if (i && *name++ != '-')
            return -EINVAL;
        if (!take_hex(&name, name_digits[i], &v[i]))
            return -EINVAL;
    }
    if (strcmp(name, SEGMENT_SUFFIX) != 0)
        return -EINVAL;
    *ret_sequence = v[0];
    *ret_after = (struct position){(uint32_t)v[1], v[2], (uint32_t)v[3]};
    return 0;
}
