/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CODEC_TRUST_H
#define WALBUS_CODEC_TRUST_H

/*
 * The trust file: which keys may sign what. One section a key:
 *
 *     # the shop's, until spring
 *     [866eefbd6718c884]
 *     key = owEBIAYhWCDXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==
 *     allow = orders.>
 *     allow = payments.*.done
 *     audience = production
 *     max-delay = 10min
 *
 *   [KID]       the key's id (codec/cose_key.h) in hex; none twice
 *   key         the public COSE_Key in base64 (RFC 4648 section 4, padded), whose kid is KID; once
 *   allow       a pattern (codec/subject.h) of prefixes that it may sign; one at least
 *   audience    what its events are signed for, instead of what whoever verifies was opened with;
 *               at most once. `audience =` is the empty one
 *   max-delay   most time between an event's `time` and its being received, either way round, as
 *               postgresql.conf writes times; without a unit seconds; at most once
 *
 * Lines end with LF or CRLF. Blanks at both ends of a line and around '=' and KID count for
 * nothing, nor do empty lines and those that begin with '#' or ';'. A comment behind a value is
 * refused, since it would become part of it. Whatever else stands there is refused: the file says
 * who is believed, so nothing in it is passed over.
 *
 * Pure: text in, struct out. The struct never changes, so any number of threads may read one while
 * its owner keeps it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/cose_key.h"
#include "codec/subject.h"

/** Where the trust file is unless a program is told otherwise. */
#define TRUST_DEFAULT_PATH "/etc/walbus/trust"

/** Most bytes of a trust file: several times what TRUST_KEYS_MAX keys with a few patterns each take. */
#define TRUST_TEXT_MAX ((size_t)1024 * 1024)
/** Most bytes of one line without its end: the longest pattern and as much again. */
#define TRUST_LINE_MAX ((size_t)8192)
/** Most keys. */
#define TRUST_KEYS_MAX ((size_t)1024)
/** Most patterns of one key: they are tried one by one for every event that it has signed. */
#define TRUST_PATTERNS_MAX ((size_t)256)
/** Longest audience, bytes: as long as a prefix for publishing. */
#define TRUST_AUDIENCE_MAX ((size_t)255)
/** Longest max-delay: a hundred years of 365 days, so that times can be added without a thought. */
#define TRUST_DELAY_MAX_US (INT64_C(36500) * 86400 * 1000000)

/** One key. All of it belongs to the struct trust. */
struct trust_key {
    struct cose_key key;
    const struct filter *allow; /* patterns, in the order of the file */
    size_t n_allow;             /* one at least */
    bool has_audience;
    struct bytes audience; /* UTF-8 without control characters; when has_audience */
    int64_t max_delay_us;  /* 0: none */
    size_t line;           /* of its section, from 1 */
};

struct trust;

#define TRUST_WHY_SIZE 512

/** Why a text is refused. */
struct trust_fault {
    size_t line;              /* from 1; 0: the text as a whole */
    char why[TRUST_WHY_SIZE]; /* a sentence for people, with the line in front; nothing in it is
                                 more than a terminal shows, and no value of `key` */
};

/**
 * Reads a trust file's text; an empty one has no keys. 0, and *ret is the caller's; -ENOMEM; -EINVAL,
 * and *ret_fault (not NULL) is written.
 */
int trust_parse(struct bytes text, struct trust **ret, struct trust_fault *ret_fault) MUST_CHECK;

/** Returns NULL; takes NULL. */
struct trust *trust_free(struct trust *trust);

/** How many keys, and the i-th in the order of the file. */
size_t trust_count(const struct trust *trust);
const struct trust_key *trust_at(const struct trust *trust, size_t i);

/** The key with this kid, or NULL. */
const struct trust_key *trust_find(const struct trust *trust, struct bytes kid);

/** Whether the key may sign for this prefix: one of its patterns matches. */
bool trust_key_may_sign(const struct trust_key *key, struct bytes prefix);

/** A key's id in hex, of either case: 1 to COSE_KEY_KID_MAX bytes. False: it is none. */
bool trust_kid_parse(struct bytes hex, uint8_t kid[COSE_KEY_KID_MAX], uint8_t *ret_size) MUST_CHECK;

/** Why a pattern cannot stand in a trust file: a part of a sentence ("is empty"), static; NULL: it
 *  can. Blanks, control characters and bytes beyond ASCII cannot: no prefix with them is ever valid
 *  or none is meant. */
const char *trust_pattern_fault(struct bytes pattern);

/** The same of an audience: too long, not UTF-8, with control characters, with a blank at an end or
 *  what begins a comment. The empty one is one. */
const char *trust_audience_fault(struct bytes audience);

#endif
