/* SPDX-License-Identifier: PostgreSQL */
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_deinit(struct buf *b)
{
    free(b->data);
    *b = BUF_INIT;
}

void buf_clear(struct buf *b)
{
    b->size = 0;
    b->failed = false;
}

static void buf_fail(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.failed = true};
}

uint8_t *buf_reserve(struct buf *b, size_t more)
{
    if (b->failed)
        return NULL;
    if (b->cap - b->size < more) {
        size_t want = b->cap ? b->cap : 128;

        while (want - b->size < more) {
            if (want > SIZE_MAX / 2) {
                buf_fail(b);
                return NULL;
            }
            want *= 2;
        }
        uint8_t *data = realloc(b->data, want);
        if (!data) {
            buf_fail(b);
            return NULL;
        }
        b->data = data;
        b->cap = want;
    }
    return b->data + b->size;
}

void buf_append(struct buf *b, const void *data, size_t size)
{
    if (size == 0)
        return;
    uint8_t *to = buf_reserve(b, size);
    if (!to)
        return;
    memcpy(to, data, size);
    b->size += size;
}

void buf_append_str(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_append_u8(struct buf *b, uint8_t v)
{
    buf_append(b, &v, 1);
}

void buf_append_u16(struct buf *b, uint16_t v)
{
    uint8_t raw[2];

    bytes_put_u16(raw, v);
    buf_append(b, raw, sizeof raw);
}

void buf_append_u32(struct buf *b, uint32_t v)
{
    uint8_t raw[4];

    bytes_put_u32(raw, v);
    buf_append(b, raw, sizeof raw);
}

void buf_append_u64(struct buf *b, uint64_t v)
{
    uint8_t raw[8];

    bytes_put_u64(raw, v);
    buf_append(b, raw, sizeof raw);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;

    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0) {
        buf_fail(b);
        return;
    }
    uint8_t *to = buf_reserve(b, (size_t)n + 1);
    if (!to)
        return;
    (void)vsnprintf((char *)to, (size_t)n + 1, fmt, ap);
    b->size += (size_t)n;
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

const char *buf_str(struct buf *b)
{
    uint8_t *end = buf_reserve(b, 1);

    if (!end)
        return "";
    *end = 0;
    return (const char *)b->data;
}
