/* SPDX-License-Identifier: PostgreSQL */
#include "codec/position.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

int position_compare(struct position a, struct position b)
{
    if (a.timeline != b.timeline)
        return a.timeline < b.timeline ? -1 : 1;
    if (a.lsn != b.lsn)
        return a.lsn < b.lsn ? -1 : 1;
    if (a.index != b.index)
        return a.index < b.index ? -1 : 1;
    return 0;
}

struct position position_next(struct position p)
{
    if (p.index < UINT32_MAX)
        return (struct position){p.timeline, p.lsn, p.index + 1};
    if (p.lsn < UINT64_MAX)
        return (struct position){p.timeline, p.lsn + 1, 0};
    return (struct position){p.timeline + 1, 0, 0};
}

void position_encode(struct position p, uint8_t out[POSITION_SIZE])
{
    bytes_put_u32(out, p.timeline);
    bytes_put_u64(out + 4, p.lsn);
    bytes_put_u32(out + 12, p.index);
}

struct position position_decode(const uint8_t in[POSITION_SIZE])
{
    return (struct position){
        .timeline = bytes_get_u32(in),
        .lsn = bytes_get_u64(in + 4),
        .index = bytes_get_u32(in + 12),
    };
}

char *position_format(struct position p, char out[POSITION_TEXT_SIZE])
{
    (void)snprintf(out, POSITION_TEXT_SIZE, "%" PRIu32 ":%" PRIX32 "/%" PRIX32 ":%" PRIu32,
                   p.timeline, (uint32_t)(p.lsn >> 32), (uint32_t)p.lsn, p.index);
    return out;
}

char *lsn_format(uint64_t lsn, char out[LSN_TEXT_SIZE])
{
    (void)snprintf(out, LSN_TEXT_SIZE, "%" PRIX32 "/%" PRIX32, (uint32_t)(lsn >> 32),
                   (uint32_t)lsn);
    return out;
}

/* 1 to 10 decimal digits, at most 2^32-1; *at moves behind them. */
static bool take_decimal(const char **at, uint32_t *ret)
{
    uint64_t v = 0;
    int digits = 0;

    for (; **at >= '0' && **at <= '9'; (*at)++) {
        if (++digits > 10)
            return false;
        v = v * 10 + (uint64_t)(**at - '0');
    }
    if (digits == 0 || v > UINT32_MAX)
        return false;
    *ret = (uint32_t)v;
    return true;
}

/* 1 to 8 hex digits of either case. */
static bool take_hex(const char **at, uint32_t *ret)
{
    uint32_t v = 0;
    int digits = 0;

    for (;; (*at)++) {
        char c = **at;
        unsigned digit;

        if (c >= '0' && c <= '9')
            digit = (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (unsigned)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (unsigned)(c - 'A') + 10;
        else
            break;
        if (++digits > 8)
            return false;
        v = v << 4 | digit;
    }
    if (digits == 0)
        return false;
    *ret = v;
    return true;
}

static bool take_char(const char **at, char c)
{
    if (**at != c)
        return false;
    (*at)++;
    return true;
}

static bool take_lsn(const char **at, uint64_t *ret)
{
    uint32_t high, low;

    if (!take_hex(at, &high) || !take_char(at, '/') || !take_hex(at, &low))
        return false;
    *ret = (uint64_t)high << 32 | low;
    return true;
}

int lsn_parse(const char *text, uint64_t *ret)
{
    uint64_t lsn;

    if (!take_lsn(&text, &lsn) || *text != '\0')
        return -EINVAL;
    *ret = lsn;
    return 0;
}

int position_parse(const char *text, struct position *ret)
{
    struct position p;

    if (!take_decimal(&text, &p.timeline) || !take_char(&text, ':') || !take_lsn(&text, &p.lsn) ||
        !take_char(&text, ':') || !take_decimal(&text, &p.index) || *text != '\0')
        return -EINVAL;
    *ret = p;
    return 0;
}
