/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_PUBLISH_LINES_H
#define WALBUS_CLI_PUBLISH_LINES_H

/* `walbus publish --lines`: many events of one transaction. */

#include <stdbool.h>

#include "base/macros.h"
#include "publish_connection.h"

/** Publishes each line of stdin, all or none: JSON text as the data of an event that has the rest in
 *  `common`, or with `raw` its bytes as they are. Prints their ids, or LSNs, after the commit.
 *  CLI_OK; else says why and returns the exit status. */
int publish_lines(struct publish_connection *c, const struct walbus_event *common,
                  bool raw) MUST_CHECK;

#endif
