/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_CBOR_H
#define WALBUS_CODEC_CBOR_H

/*
 * CBOR, RFC 8949. Writing is libcbor's encoders into a struct buf. Reading is
 * our own pull reader over untrusted bytes, because libcbor before 0.11 refuses
 * tags 6 to 20 and its tree decoder allocates what a hostile length announces.
 * The reader allocates nothing, recurses no deeper than CBOR_NESTING_MAX and
 * compares every length with what is left before it moves.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"

/** Deepest nesting of arrays, maps and tags that is accepted (the item inside the innermost is not
 *  counted); one more is CBOR_FAULT_NESTING. */
#define CBOR_NESTING_MAX 64

/* ---- writing: shortest heads, definite lengths; order of map keys is the caller's ---- */

void cbor_put_uint(struct buf *b, uint64_t v);
void cbor_put_int(struct buf *b, int64_t v);
void cbor_put_bytes(struct buf *b, struct bytes v);
void cbor_put_text(struct buf *b, struct bytes v);
void cbor_put_str(struct buf *b, const char *s);
void cbor_put_bool(struct buf *b, bool v);
void cbor_put_null(struct buf *b);
/** The shortest of half, single, double that keeps the value; NaN is f97e00 (RFC 8949 4.2.2). */
void cbor_put_double(struct buf *b, double v);
void cbor_put_array(struct buf *b, uint64_t n);
void cbor_put_map(struct buf *b, uint64_t n);
void cbor_put_tag(struct buf *b, uint64_t tag);

/** Most bytes of a head, and of the shortest one with this value, length, count or tag number. */
#define CBOR_HEAD_MAX 9
size_t cbor_head_size(uint64_t arg);

/* ---- reading ---- */

enum cbor_fault {
    CBOR_OK = 0,
    CBOR_FAULT_TRUNCATED, /* the item needs more bytes than there are */
    CBOR_FAULT_RESERVED,  /* additional information 28 to 30, or 31 where it is not allowed */
    CBOR_FAULT_BREAK,     /* a break outside an indefinite-length item, or after a map key */
    CBOR_FAULT_CHUNK,     /* a chunk of another type, or itself indefinite, in a string */
    CBOR_FAULT_SIMPLE,    /* a two-byte simple value below 32 */
    CBOR_FAULT_UTF8,      /* a text string that is not UTF-8 */
    CBOR_FAULT_NESTING,   /* deeper than CBOR_NESTING_MAX */
    CBOR_FAULT_TRAILING,  /* bytes behind the one item that was expected */
    CBOR_FAULT_TYPE,      /* another type than the caller needs */
    CBOR_FAULT_DUPLICATE, /* a map key twice */
    CBOR_FAULT_COUNT,     /* more entries than the caller takes */
    CBOR_FAULT_REQUIRED,  /* a map key that has to be there is not, or has no acceptable value */
};

/** One short phrase for people; never NULL. */
const char *cbor_fault_text(enum cbor_fault fault);

/** Not cbor_type, which is libcbor's. */
enum cbor_kind {
    CBOR_UINT = 0,
    CBOR_NINT = 1,  /* value is -1 - arg */
    CBOR_BYTES = 2,
    CBOR_TEXT = 3,
    CBOR_ARRAY = 4,
    CBOR_MAP = 5,
    CBOR_TAG = 6,
    CBOR_SIMPLE = 7, /* false, true, null, undefined, other simple values */
    CBOR_FLOAT = 8,
    CBOR_BREAK = 9,
};

/** Simple values, in `arg` of a CBOR_SIMPLE. */
#define CBOR_SIMPLE_FALSE     20
#define CBOR_SIMPLE_TRUE      21
#define CBOR_SIMPLE_NULL      22
#define CBOR_SIMPLE_UNDEFINED 23

/** The head of one item; for strings of definite length `str` is the content. */
struct cbor_head {
    enum cbor_kind type;
    bool indefinite;   /* strings, arrays, maps */
    uint8_t info;      /* additional information, as in the initial byte */
    uint64_t arg;      /* value, length, count, tag number, simple value, raw float bits */
    double number;     /* CBOR_FLOAT */
    struct bytes str;  /* definite CBOR_BYTES, CBOR_TEXT: inside the input */
};

/** A reading place in bytes that the caller keeps. */
struct cbor_reader {
    const uint8_t *start, *at, *end;
};

static inline struct cbor_reader cbor_reader_init(struct bytes in)
{
    return (struct cbor_reader){in.data, in.data, in.size ? in.data + in.size : in.data};
}

/** Reads one head (and a definite string's content) and moves behind it; on a fault it has not
 *  moved. Does not check UTF-8. A count of items or pairs that could not fit into the rest of the
 *  input is CBOR_FAULT_TRUNCATED here already. */
enum cbor_fault cbor_read_head(struct cbor_reader *r, struct cbor_head *ret) MUST_CHECK;

/** Walks over one whole item, checking that it is well-formed (RFC 8949 appendix C) and its text
 *  valid UTF-8; *ret (may be NULL) is the item's bytes. On a fault r->at is where it was found. */
enum cbor_fault cbor_read_item(struct cbor_reader *r, struct bytes *ret) MUST_CHECK;

/** cbor_read_item over all of `in`: exactly one item, nothing behind it. On a fault
 *  *ret_offset (may be NULL) is the byte where it was found. */
enum cbor_fault cbor_check(struct bytes in, size_t *ret_offset) MUST_CHECK;

/** cbor_check of an item that is to stand inside `levels` arrays, maps and tags of its own. */
enum cbor_fault cbor_check_inside(struct bytes in, size_t levels, size_t *ret_offset) MUST_CHECK;

/** Typed reads of one definite item; on a fault the reader has not moved. A text is checked to be
 *  UTF-8, an integer beyond int64 is CBOR_FAULT_TYPE to cbor_read_int. */
enum cbor_fault cbor_read_uint(struct cbor_reader *r, uint64_t *ret) MUST_CHECK;
enum cbor_fault cbor_read_int(struct cbor_reader *r, int64_t *ret) MUST_CHECK;
enum cbor_fault cbor_read_text(struct cbor_reader *r, struct bytes *ret) MUST_CHECK;
enum cbor_fault cbor_read_bytes(struct cbor_reader *r, struct bytes *ret) MUST_CHECK;
enum cbor_fault cbor_read_bool(struct cbor_reader *r, bool *ret) MUST_CHECK;
enum cbor_fault cbor_read_array(struct cbor_reader *r, uint64_t *ret_n) MUST_CHECK;
enum cbor_fault cbor_read_map(struct cbor_reader *r, uint64_t *ret_n) MUST_CHECK;

/* ---- printing; both append to `out`, and nothing when the item is not exactly one well-formed one ---- */

/**
 * Diagnostic notation, RFC 8949 section 8. Items of indefinite length carry their "_"; other widths
 * of heads than the shortest are not marked. Floats have the fewest digits that read back as the
 * same value and always a decimal point, bignums of up to 64 bytes are decimal. Control characters
 * and bidirectional controls in text come out as \uXXXX.
 */
enum cbor_fault cbor_print_diagnostic(struct bytes item, struct buf *out) MUST_CHECK;

/**
 * JSON after RFC 8949 section 6.1, without white space: byte strings as base64url without padding
 * unless tag 21/22/23 say otherwise, bignums as base64url ("~" before a negative), NaN and
 * infinities, undefined and unknown simple values as null, tags dropped. Integers are printed
 * exactly. A key that is not a string becomes one: a number or simple value its JSON text, an array
 * or map its diagnostic notation. Keys that differ in CBOR can so become the same in JSON.
 */
enum cbor_fault cbor_print_json(struct bytes item, struct buf *out) MUST_CHECK;

/** A JSON string with its quotes; `text` must be UTF-8 (bytes that are not come out
 *  as U+FFFD). Escapes ", \ and everything below 0x20 and 0x7f-0x9f. */
void json_put_string(struct buf *out, struct bytes text);

#endif
