/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_RELOAD_H
#define WALBUS_DAEMON_RELOAD_H

/*
 * The settings read again while the router runs: on SIGHUP, and by REQUEST "reload". Everything is read and checked
 * first; when something is wrong with it, all stays as it is. What is reloadable takes effect; of the rest it is said
 * that it waits for a restart. A part of the router; loop thread only.
 */

#include "base/buf.h"
#include "router.h"

/** The settings that have changed, as CBOR texts one behind the other. */
struct reload_answer {
    struct buf changed, restart; /* what has taken effect, what waits for a restart */
    size_t n_changed, n_restart;
};

/** At the start: what is made of the settings that can be read again. 0; -EINVAL with `why`; -ENOMEM. */
int reload_begin(struct router *r, char why[SETTINGS_WHY_SIZE]) MUST_CHECK;
/** Frees it. */
void reload_end(struct router *r);

/** Reads them again, and logs what came of it; `by` is who asked, for the log. 0; -EINVAL with `why`; -ENOMEM. */
int reload_settings(struct router *r, const char *by, struct reload_answer *ret,
                    char why[SETTINGS_WHY_SIZE]) MUST_CHECK;
void reload_answer_deinit(struct reload_answer *a);

#endif
