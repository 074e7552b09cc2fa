/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_STRANGERS_H
#define WALBUS_DAEMON_STRANGERS_H

/*
 * Where the router runs in a user namespace (a container, PrivateUsers=) that has not all users, the kernel shows all
 * the others as one, the "nobody" of that namespace. Such a client may be anybody: it is not the router's own user,
 * even if that is nobody, and no rule for a user or a group is for it.
 */

#include <stdbool.h>
#include <sys/types.h>

/** Whom nobody is: no user, no group. */
#define STRANGER_UID ((uid_t)-1)
#define STRANGER_GID ((gid_t)-1)

struct strangers {
    bool are;  /* there can be some */
    uid_t uid; /* what they look like */
    gid_t gid;
};

/** Reads /proc. What cannot be read there is taken for what it is on every machine: all users, and 65534. */
void strangers_find(struct strangers *ret);
/** Whether the text of a uid_map or gid_map maps all. Pure. */
bool strangers_map_is_whole(const char *text);

#endif
