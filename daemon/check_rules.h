/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CHECK_RULES_H
#define WALBUS_DAEMON_CHECK_RULES_H

/* What messages are checked by, as the settings and the trust file stood when they came. */

#include <stdint.h>

#include "base/macros.h"
#include "codec/trust.h"
#include "policy.h"

#define CHECK_RULES_HASH_SIZE 32

/** What is asked, and who is trusted; counted, immutable but for the count. */
struct check_rules {
    unsigned refs;
    struct policies policies;
    struct trust *trust; /* owned; NULL: nobody */
    char *audience;      /* owned */
    uint8_t trust_hash[CHECK_RULES_HASH_SIZE]; /* of the text that `trust` was read from; for who has made it to set */
};

/** Takes `policies` and `trust` over, also without success. NULL: no memory. */
struct check_rules *check_rules_new(struct policies *policies, struct trust *trust, const char *audience) MUST_CHECK;
struct check_rules *check_rules_ref(struct check_rules *rules);
/** Returns NULL; takes NULL. */
struct check_rules *check_rules_unref(struct check_rules *rules);

#endif
