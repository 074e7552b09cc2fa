/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_SESSION_FRAMES_H
#define WALBUS_DAEMON_SESSION_FRAMES_H

/* What a session does with the frames that come in: one handler a type. Called by session.c. */

#include "session.h"

/** Handles the whole frames in s->in, as long as it is not choked and within
 *  SESSION_REQUESTS_A_TURN, and moves the rest to its start. May close the session. */
void session_handle_input(struct session *s);

/** Whether a whole frame, or one that is to be refused, was left alone there. */
bool session_frame_waits(const struct session *s);

/** Room that the frame being read still needs in s->in, beyond what is there; at least 1. */
size_t session_input_wanted(const struct session *s);

#endif
