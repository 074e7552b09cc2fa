/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_TRUST_LINE_H
#define WALBUS_CODEC_TRUST_LINE_H

/* The lines of a trust file: what trust.c reads and trust_edit.c changes. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

enum trust_line_kind {
    TRUST_LINE_BLANK = 0, /* nothing, or a comment */
    TRUST_LINE_SECTION,   /* [name] */
    TRUST_LINE_ENTRY,     /* name = value */
    TRUST_LINE_TOO_LONG,  /* value.size is the line's */
    TRUST_LINE_NUL,
    TRUST_LINE_OTHER, /* value is the line */
};

/** One line, without blanks at both ends. Behind name and value stands a NUL. */
struct trust_line {
    enum trust_line_kind kind;
    struct bytes name, value;
    struct bytes whole; /* with its end */
};

/** A place in a text, which is changed while it is read: NULs are put behind names and values. */
struct trust_lines {
    char *at, *end;
    size_t number; /* of the last line, from 1 */
};

/** At text[size] there has to be room for a NUL. A byte order mark at the beginning is passed over. */
struct trust_lines trust_lines_init(char *text, size_t size);

/** The next line; false: there is none. */
bool trust_lines_next(struct trust_lines *lines, struct trust_line *ret);

/** Whether a '#' or ';' stands behind a blank, or at the beginning. */
bool trust_comment_in(struct bytes value);

#endif
