/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_BUF_H
#define WALBUS_BASE_BUF_H

/*
 * A growing byte buffer for things built once and then handed over: control
 * frames, SQL, JSON lines. Appending never fails visibly; the first allocation
 * that fails empties the buffer and latches `failed`, which the builder asks
 * for once, at its end. So building code has no error branches.
 */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

struct buf {
    uint8_t *data; /* owned; NULL while empty */
    size_t size;   /* bytes in use */
    size_t cap;    /* bytes allocated */
    bool failed;   /* an allocation failed: the content is gone and stays empty */
};

#define BUF_INIT ((struct buf){0})

/** Frees what the buffer holds and leaves it empty and usable. */
void buf_deinit(struct buf *b);

/** Empties the buffer, keeping its memory; clears `failed`. */
void buf_clear(struct buf *b);

/** Makes room for `more` bytes behind the end and returns that place, or NULL (then `failed`). */
uint8_t *buf_reserve(struct buf *b, size_t more);

void buf_append(struct buf *b, const void *data, size_t size);
void buf_append_str(struct buf *b, const char *s);
void buf_append_u8(struct buf *b, uint8_t v);
void buf_append_u16(struct buf *b, uint16_t v);
void buf_append_u32(struct buf *b, uint32_t v);
void buf_append_u64(struct buf *b, uint64_t v);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) PRINTF_LIKE(2, 0);

/**
 * The content as a C string, owned by the buffer and valid until it is next
 * changed. "" when empty or failed; a NUL inside the content is the caller's.
 */
const char *buf_str(struct buf *b);

static inline struct bytes buf_bytes(const struct buf *b)
{
    return (struct bytes){b->data, b->size};
}

#endif
