/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_TEXT_H
#define WALBUS_BASE_TEXT_H

/* Text of foreign origin: is it UTF-8, what of it may go to a terminal, what did the user mean. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"

/** The length of the UTF-8 sequence at `p` (RFC 3629: no overlong forms, no surrogates), 0 if none;
 *  *ret_code_point is written only when there is one. */
size_t text_utf8_sequence(const uint8_t *p, size_t size, uint32_t *ret_code_point);

/** How much of it, from its start, is UTF-8: whole sequences, whose bytes they are. */
size_t text_utf8_size(struct bytes text);
bool text_is_utf8(struct bytes text);

/**
 * Whether a terminal shows this code point and does nothing else. The list of those that it does
 * not is in text.c alone: control characters (C0, DEL, C1), line and paragraph separators and
 * bidirectional controls. All of them are below U+10000, so \uXXXX can write each.
 */
bool text_is_visible(uint32_t code_point);

/**
 * Whether who reads it sees a sign there: not of Unicode's categories Cc and Cf (control and format characters, a zero-width
 * joiner for one), Zl, Zp and Zs (separators, all spaces among them), as of version 15. For what is to be told apart by eye.
 */
bool text_is_graphic(uint32_t code_point);

/**
 * Appends `text` so that a terminal shows it and does nothing else: printable
 * UTF-8 as it is, backslash doubled, control characters (C0, DEL, C1), line and
 * paragraph separators and bidirectional controls as \n, \t, \xHH or \u{HEX}, bytes that are
 * not UTF-8 as \xHH.
 */
void text_put_visible(struct buf *out, struct bytes text);

/** The entry of a NULL-terminated list that is nearest to `word`, or NULL when none is near: up to
 *  one slip in three letters, letters' case aside, or the beginning of an entry. */
const char *text_nearest(const char *word, const char *const *list);

/** Lower-case hex of `size` bytes and a NUL into out[2 * size + 1]; returns `out`. */
char *text_hex(const void *data, size_t size, char *out);

/** Appends the same without the NUL. */
void text_put_hex(struct buf *out, struct bytes data);

/** The bytes that `size` hexadecimal digits of either case write, size / 2 of them, into `out`.
 *  -EINVAL: something else, or an odd number. */
int text_from_hex(const char *text, size_t size, uint8_t *out) MUST_CHECK;

/**
 * Sizes and times as postgresql.conf writes them: a number (a decimal fraction is allowed:
 * "1.5GB", rounded to the nearest byte or µs) and an optional unit, blanks between allowed. Sizes: B, kB, MB, GB, TB
 * (1024 each), without a unit bytes. Times: us, ms, s, min, h, d, without a unit the given default unit
 * (one of these words). 0; -EINVAL; -ERANGE when it does not fit.
 */
int text_parse_size(const char *text, uint64_t *ret_bytes) MUST_CHECK;
int text_parse_duration(const char *text, const char *default_unit, uint64_t *ret_us) MUST_CHECK;

/** The same number as text_parse_… reads it back, in the largest unit in which it is whole: "1536B", "90min". */
void text_put_size(struct buf *out, uint64_t bytes);
void text_put_duration(struct buf *out, uint64_t us);

#endif
