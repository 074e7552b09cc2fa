/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_H
#define WALBUS_H

/*
 * walbus: a publish/subscribe bus on PostgreSQL's write-ahead log. This header
 * brings all of the public ones.
 *
 *   walbus/publish.h       publish events inside your own transaction
 *   walbus/subscribe.h     receive messages, and ask the router
 *   walbus/exactly_once.h  keep positions with the effects of messages
 *   walbus/position.h      where a message stands in the order of delivery
 *   walbus/result.h        what functions return
 *   walbus/version.h       versions, compiled against and running with
 *
 * Compile and link with `pkg-config --cflags --libs walbus`. The headers are C99
 * and C++, and need no headers of libpq: a PGconn * can be given wherever
 * `struct pg_conn *` stands, because that is what the name abbreviates.
 *
 * The library starts no thread, installs no signal handler, never exits and
 * prints nothing. Objects know nothing of each other: each may be used by any
 * thread, by one at a time.
 */

#include "walbus/exactly_once.h"
#include "walbus/position.h"
#include "walbus/publish.h"
#include "walbus/result.h"
#include "walbus/subscribe.h"
#include "walbus/version.h"

#endif
