/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_REFUSALS_H
#define WALBUS_DAEMON_REFUSALS_H

/*
 * The log of what clients were refused, and of what they did wrong: a line for each, up to a number for each user, so
 * that one that asks in a loop does not fill the disk. What was left out is counted, and told by the next line of that
 * user, or some time later by one of its own.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/log.h"

/** Lines of one user at once, and after how many ms there is one more. */
#define REFUSALS_AT_ONCE  5u
#define REFUSALS_EVERY_MS 10000u
/** So many users are told apart; beyond, whoever was refused longest ago is forgotten. */
#define REFUSALS_USERS    64u

struct refusals_user {
    bool used;
    uid_t uid;
    unsigned left;       /* lines that may be written */
    uint64_t filled_at;  /* when there was last one more, ms */
    uint64_t last_at;
    uint64_t suppressed; /* since the last line */
};

struct refusals {
    struct refusals_user users[REFUSALS_USERS];
    uint64_t total;
};

struct refusal {
    const char *id, *sentence; /* of the line */
    enum log_level level;
    uid_t uid;
    pid_t pid;
    uint64_t session;
    const char *code, *text;   /* that it was told */
};

/** Somebody was refused something. */
void refusals_note(struct refusals *f, struct logger *log, uint64_t now_ms, const struct refusal *what);
/** Now and then: tells what was left out of those who have stopped asking. */
void refusals_tick(struct refusals *f, struct logger *log, uint64_t now_ms);

#endif
