/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_SOCKET_PLACE_H
#define WALBUS_BASE_SOCKET_PLACE_H

/* Where the socket between router and clients is, as given or by custom. */

#include "base/macros.h"

#define SOCKET_PLACE_WHY_SIZE 512

/** The router's socket for walbusd: `given`, else (NULL)
 *  $RUNTIME_DIRECTORY/walbus.sock, as root /run/walbus/walbus.sock, $XDG_RUNTIME_DIR/walbus.sock.
 *  0 and a malloc'ed path; -EINVAL with `why` (nothing fits, empty, or over 107 bytes); -ENOMEM. In any case *ret_variable is
 *  that of these variables which has named the folder, static; NULL: none. */
int socket_place_of_router(const char *given, char **ret, const char **ret_variable,
                           char why[SOCKET_PLACE_WHY_SIZE]) MUST_CHECK;
/** For a client: `given`, else (NULL) the first that exists of $XDG_RUNTIME_DIR/walbus.sock and
 *  /run/walbus/walbus.sock. 0 and a malloc'ed path; -ENOENT with `why` when neither exists (no
 *  router is running); -EINVAL with `why` (empty, or over 107 bytes); -ENOMEM. */
int socket_place_of_client(const char *given, char **ret,
                           char why[SOCKET_PLACE_WHY_SIZE]) MUST_CHECK;

/** What to do about a router that cannot be reached at its socket for this errno, to be put behind the reason; "" when that says all.
 *  Static. */
const char *socket_place_mend(int error);

#endif
