/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_BYTES_H
#define WALBUS_BASE_BYTES_H

/*
 * Byte strings, and big-endian integers in them: both the replication protocol
 * and our own frames are in "network order". Nothing here looks at lengths; who
 * reads bytes of foreign origin compares with what is left before.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t bytes_get_u16(const uint8_t *p)
{
    return (uint16_t)((unsigned)p[0] << 8 | p[1]);
}

static inline uint32_t bytes_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t bytes_get_u64(const uint8_t *p)
{
    return (uint64_t)bytes_get_u32(p) << 32 | bytes_get_u32(p + 4);
}

static inline void bytes_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void bytes_put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static inline void bytes_put_u64(uint8_t *p, uint64_t v)
{
    bytes_put_u32(p, (uint32_t)(v >> 32));
    bytes_put_u32(p + 4, (uint32_t)v);
}

/** A byte string; `data` may be NULL when `size` is 0. Borrowed, unless who holds it says that it is
 *  owned. */
struct bytes {
    const uint8_t *data;
    size_t size;
};

/** The bytes of a C string without its NUL, borrowed; of NULL none. */
static inline struct bytes bytes_of_text(const char *text)
{
    return (struct bytes){(const uint8_t *)text, text ? strlen(text) : 0};
}

/** Whether two byte strings hold the same bytes. */
static inline bool bytes_equal(struct bytes a, struct bytes b)
{
    if (a.size != b.size)
        return false;
    for (size_t i = 0; i < a.size; i++)
        if (a.data[i] != b.data[i])
            return false;
    return true;
}

#endif
