/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CHECK_TALLY_H
#define WALBUS_DAEMON_CHECK_TALLY_H

/* Log lines about messages that are not valid: one in CHECKS_LOG_MS, however many there are. */

#include "checks_work.h"

/** What the next line of one kind tells: the newest message, and how many there were since the last line. */
struct check_tally {
    uint64_t messages;
    struct buf prefix, reason, kid;
    enum verify_status status;
    uint64_t logged_at; /* uv_now(); 0: never */
};

void check_tally_add(struct check_tally *t, struct bytes prefix, const struct check_note *note);
/** As `now`: nothing more is told later. */
#define CHECK_TALLY_LAST UINT64_MAX
/** If there is something to tell, and it is time: of those that were withheld, or of those that were delivered. */
void check_tally_log(struct check_tally *t, struct logger *log, uint64_t now, bool withheld, uint64_t in_quarantine);
void check_tally_deinit(struct check_tally *t);

#endif
