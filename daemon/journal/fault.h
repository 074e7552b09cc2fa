/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_FAULT_H
#define WALBUS_DAEMON_JOURNAL_FAULT_H

/*
 * Places at which a test can make the router die or a system call fail. They are
 * compiled in only with the meson option `faults`; otherwise each is the number 0.
 *
 *   WALBUS_FAULT="POINT[:COUNT]=ACTION,…"
 *
 * The action is taken the COUNTth time that the point is passed, counted from 1 and only
 * then; without a count each time.
 *
 *   kill              SIGKILL to this process
 *   ENOSPC, EIO       what was about to be done fails with that
 *   short             the write that was about to be done takes half
 *   slow              what was about to be done takes FAULT_SLOW_MS longer
 *
 * Points: journal-write (before each write of records), journal-wrote (behind it), journal-sync and journal-synced
 * (around the sync of a segment), journal-segment (making one: before its file, before its name, before the
 * folder is synced), journal-retry (trying again after a failure), journal-read (a step of reading for one session),
 * catalog-commit and catalog-committed (around a commit), quarantine-write and quarantine-wrote (around each write of
 * the quarantine), quarantine-sync and quarantine-synced (around its sync), quarantine-renew (making its file anew: before
 * its name, before the folder is synced), quarantine-keep (giving a damaged file its second name), quarantine-pass
 * (before what went there is left out of what goes to the journal), feedback and feedback-sent (around a report to the
 * server), delivery (before a live batch goes to a session).
 */

#ifdef WALBUS_FAULTS
/** What `short` gives. */
#define FAULT_SHORT   1
#define FAULT_SLOW_MS 300u
/** Any thread. 0: go on; FAULT_SHORT; a negative errno: fail with it. */
int fault_at(const char *point);
/** Forgets what was read of the environment, and the counts: for tests. */
void fault_reset(void);
#define FAULT(point) fault_at(point)
#else
#define FAULT(point) 0
#endif

/** A place where one can only die. */
#define FAULT_POINT(point) ((void)FAULT(point))

#endif
