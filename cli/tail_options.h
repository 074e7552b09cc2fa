/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_TAIL_OPTIONS_H
#define WALBUS_CLI_TAIL_OPTIONS_H

/* What the command line of `walbus tail` says. */

#include <stdbool.h>
#include <stdint.h>

#include "cli.h"
#include "print.h"
#include "start.h"
#include "walbus/walbus.h"

#define TAIL_COMMAND "tail"

struct tail_options {
    struct walbus_filter filters[WALBUS_MAX_FILTERS];
    size_t n_filters;
    struct walbus_filter exclusions[WALBUS_MAX_FILTERS];
    size_t n_exclusions;
    uint64_t count;      /* 0: without end */
    uint64_t timeout_us; /* 0: none */
    const char *from;    /* as given; NULL: not */
    struct start start;  /* what it says */
    const char *name;    /* of the durable subscription; NULL: none */
    const char *trust;   /* the trust file; NULL: none */
    const char *audience; /* NULL: not given */
    enum print_format format;
    bool take_over, no_ack, no_follow, valid_only;
};

extern const struct cli_option tail_cli_options[];

/** For struct cli_command. */
int tail_option(void *state, const struct cli_option *option, const char *value);

/** An operand. CLI_OK or CLI_USAGE. */
int tail_options_add_pattern(struct tail_options *o, const char *text) MUST_CHECK;

/** What goes together, when all is read. CLI_OK or CLI_USAGE. */
int tail_options_check(struct tail_options *o) MUST_CHECK;

/** Says on stderr, once a pattern, what of it probably means something else than it says: everything is a pattern, and one that
 *  is misspelt matches nothing for ever. `to_file`: stdout is a regular file. */
void tail_options_warn(const struct tail_options *o, bool to_file);

/** What the subscription is opened with; the rest of `ret` is the caller's. */
void tail_options_subscription(const struct tail_options *o, struct walbus_subscription_options *ret);

#endif
