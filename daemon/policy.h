/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_POLICY_H
#define WALBUS_DAEMON_POLICY_H

/*
 * What is asked of a message's signature, by its prefix: the setting `policy`, a list of lines
 *
 *     PATTERN ignore | verify | require
 *
 * of which the first that matches a prefix decides; without one it is `ignore`. Pure.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/subject.h"

enum policy {
    POLICY_IGNORE = 0, /* nothing is looked at */
    POLICY_VERIFY,     /* counted and logged, and delivered as it is */
    POLICY_REQUIRE,    /* what is not valid goes to quarantine */
};

#define POLICY_WHY_SIZE 256

struct policy_rule {
    struct filter filter; /* a pattern; its text is owned by the list */
    enum policy policy;
};

struct policies {
    struct policy_rule *rules;
    size_t n;
    bool idle; /* nothing is asked of any prefix */
};

/** One line. 0, and *ret borrows its pattern from `line`; -EINVAL with `why`, one clause without a full stop. */
int policy_parse(struct bytes line, struct policy_rule *ret, char why[POLICY_WHY_SIZE]) MUST_CHECK;

/** A list of lines, copied. 0; -EINVAL with `why`, and the line that it is about; -ENOMEM. */
int policies_init(struct policies *ret, char *const *lines, size_t n, size_t *ret_wrong,
                  char why[POLICY_WHY_SIZE]) MUST_CHECK;
void policies_deinit(struct policies *p);

enum policy policies_find(const struct policies *p, struct bytes prefix);

#endif
