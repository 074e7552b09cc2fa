/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SETTINGS_SOCKET_PLACE_H
#define WALBUS_SETTINGS_SOCKET_PLACE_H

/* Where the socket between router and clients is, by setting or by custom. */

#include "base/macros.h"
#include "settings/settings.h"

/** The router's socket for walbusd: the setting, else
 *  $RUNTIME_DIRECTORY/walbus.sock, as root /run/walbus/walbus.sock, $XDG_RUNTIME_DIR/walbus.sock.
 *  0 and a malloc'ed path; -EINVAL with `why` (nothing fits, or over 107 bytes). */
int settings_router_socket(const struct settings *s, char **ret,
                           char why[SETTINGS_WHY_SIZE]) MUST_CHECK;
/** For a client: the setting (--socket, WALBUS_SOCKET), then the first that exists of
 *  $XDG_RUNTIME_DIR/walbus.sock and /run/walbus/walbus.sock. 0 and a malloc'ed path; -ENOENT with `why`
 *  when neither exists (no router is running); -EINVAL with `why` (over 107 bytes); -ENOMEM. */
int settings_client_socket(const struct settings *s, char **ret,
                           char why[SETTINGS_WHY_SIZE]) MUST_CHECK;

#endif
