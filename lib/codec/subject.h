/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_SUBJECT_H
#define WALBUS_CODEC_SUBJECT_H

/*
 * Filters over prefixes. Matching is total: every byte string without NUL that
 * PostgreSQL can deliver as a prefix is matched, the empty one included, byte
 * for byte. A prefix splits at '.'; empty tokens are tokens ("" is one empty
 * token, "a..b" three).
 *
 * A PATTERN splits the same way; the token '*' stands for exactly one token
 * (which may be empty), '>' as the last token for one or more, any other token
 * for itself; '>' that is not last, or a wildcard inside a longer token ("a*"),
 * is an ordinary token that stands for itself. EXACT compares all bytes,
 * STARTS_WITH the first ones (an empty one matches everything).
 *
 * Publishing is stricter, see subject_check_publish().
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

enum filter_kind {
    FILTER_PATTERN = 0,
    FILTER_EXACT = 1,
    FILTER_STARTS_WITH = 2,
};

struct filter {
    enum filter_kind kind;
    struct bytes text; /* borrowed */
};

/** Most bytes in a filter's text; a longer one is refused by the router. Prefixes have no limit. */
#define FILTER_TEXT_MAX 4096
/** Most filters, and most exclusions, of one subscription. */
#define FILTERS_MAX 1024
/** Most tokens in all patterns of one subscription, exclusions included: the router keeps a node for each. */
#define FILTERS_TOKENS_MAX 8192

/** Whether this one filter matches this prefix. The reference that the router's trie is tested against. */
bool filter_matches(const struct filter *filter, struct bytes prefix);

/**
 * Whether `pattern` matches every prefix that `filter` matches. For a pattern of its own, an exact or a starts-with
 * filter alike that is exact, not only safe, save that a filter which several patterns cover together is covered by
 * none.
 */
bool filter_is_covered(const struct filter *filter, struct bytes pattern);

/** Whether a subscription gets this prefix: some filter matches, and no exclusion. */
bool filters_match(const struct filter *filters, size_t n_filters, const struct filter *exclusions, size_t n_exclusions,
                   struct bytes prefix);

/** A copy that free() frees: the structs, then their texts, in one allocation. Never NULL for n = 0; NULL: no memory. */
struct filter *filters_copy(const struct filter *filters, size_t n) MUST_CHECK;

/** How many tokens a filter has when it is a pattern, else 0. */
size_t filter_tokens(const struct filter *filter);

/** Splits off the next token: sets *token, moves *rest behind the dot; false when none is left.
 *  Start with rest = the whole prefix and *more = true. */
bool subject_next_token(struct bytes *rest, bool *more, struct bytes *token);

/** What in a pattern looks like a mistake, although it is a pattern: the rest of a sentence that begins
 *  with the token ("is taken literally; …"), static. NULL: nothing does. */
const char *subject_pattern_oddity(struct bytes pattern, struct bytes *ret_token);

/** Where a '*' or '>' would be taken literally, in a pattern that decides what is allowed or required: one clause
 *  that says where it belongs, static. NULL: nowhere. */
const char *subject_wildcard_fault(struct bytes pattern);

/** The routers' own: what comes under it is taken for a heartbeat and never delivered. */
#define SUBJECT_HEARTBEAT_PREFIX "_walbus.heartbeat"

/** Longest prefix that may be published unless the publisher was opened with another limit. */
#define SUBJECT_PUBLISH_MAX 255

enum subject_fault {
    SUBJECT_OK = 0,
    SUBJECT_EMPTY,      /* nothing at all */
    SUBJECT_TOO_LONG,   /* more than max_size bytes */
    SUBJECT_EMPTY_TOKEN,/* "a..b", ".a", "a." */
    SUBJECT_CHARACTER,  /* a byte outside [A-Za-z0-9_-] and '.' */
    SUBJECT_RESERVED,   /* the first token begins with '_' and allow_reserved is false */
    SUBJECT_HEARTBEAT,  /* SUBJECT_HEARTBEAT_PREFIX, allowed or not */
};

/**
 * Whether a prefix may be published: 1 to max_size bytes, tokens of
 * [A-Za-z0-9_-]+ joined by '.', no leading '_' unless allowed, and never the heartbeat's. *ret_offset (may
 * be NULL) gets the byte at fault.
 */
enum subject_fault subject_check_publish(struct bytes prefix, size_t max_size, bool allow_reserved,
                                         size_t *ret_offset) MUST_CHECK;

/** One sentence for people; never NULL. */
const char *subject_fault_text(enum subject_fault fault);

#endif
