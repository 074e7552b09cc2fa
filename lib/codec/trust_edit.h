/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_TRUST_EDIT_H
#define WALBUS_CODEC_TRUST_EDIT_H

/*
 * Changes to a trust file's text that leave everything else in it as it is: comments, order, blank
 * lines, line ends. Pure: text in, text out; the file's owner writes it.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"
#include "codec/trust.h"

/** What a key's section is to have. All borrowed. */
struct trust_edit_entry {
    struct cose_key key; /* without a kid under its default one */
    const struct bytes *patterns;
    size_t n_patterns;
    const struct bytes *audience; /* NULL: leave it as it is, none in a new section */
    int64_t max_delay_us;         /* 0: likewise */
};

enum trust_edit_done {
    TRUST_EDIT_NOTHING = 0, /* all of it stands there already */
    TRUST_EDIT_ADDED,       /* a section */
    TRUST_EDIT_CHANGED,     /* the key has more patterns now, or another audience or max-delay */
};

/**
 * Appends to `out` the text with this key in it: a section at its end, or what is missing in the
 * section that the key has. Patterns that stand there are not written again. 0; -ENOMEM; -EINVAL,
 * and *ret_fault: `text` is refused, or what it would become, or the section's key is another one
 * with the same kid.
 */
int trust_edit_add(struct bytes text, const struct trust_edit_entry *entry, struct buf *out,
                   enum trust_edit_done *ret_done, struct trust_fault *ret_fault) MUST_CHECK;

/**
 * Appends to `out` the text without this key's section: its lines, the comments right above and
 * right below it, and the empty lines behind it. A comment right above the next section stays. 0; -ENOMEM; -ENOENT: no such key; -EINVAL, and
 * *ret_fault: `text` is refused.
 */
int trust_edit_remove(struct bytes text, struct bytes kid, struct buf *out,
                      struct trust_fault *ret_fault) MUST_CHECK;

#endif
