/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_VECTORS_H
#define WALBUS_TESTS_UNIT_VECTORS_H

/*
 * Published test vectors, read at run time from the folder that WALBUS_VECTORS names, else from
 * shared/vectors beside the checkout (WALBUS_SOURCE_ROOT, set by Meson). They are not part of the
 * source tree; where they are missing, a test that needs them prints a line that begins with SKIP
 * and returns. tests/summary.py counts each such line as a skipped test.
 */

#include <jansson.h>

#include "base/bytes.h"

/** The array of rows in FOLDER/`file` (the file itself, or its member "tests"); NULL after
 *  saying SKIP. All integers are reals: jansson refuses those beyond int64. */
json_t *vectors_load(const char *file);

/** All of FOLDER/`file`, an object; else as vectors_load. */
json_t *vectors_document(const char *file);

/** The bytes of a member in hex, of either case, as by unit_exact; it has to be there. */
struct bytes vectors_bytes(const json_t *row, const char *name);

/** A text member of a row, or NULL. */
const char *vectors_text(const json_t *row, const char *name);

#endif
