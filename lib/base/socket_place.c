/* SPDX-License-Identifier: PostgreSQL */
#include "base/socket_place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"

#define SOCKET_NAME        "walbus.sock"
#define SYSTEM_SOCKET_PATH "/run/walbus/" SOCKET_NAME

/* Hands a path over, if a socket can have it. */
static int give_path(const char *path, char **ret, char why[SOCKET_PLACE_WHY_SIZE])
{
    size_t size = strlen(path);

    if (size == 0) {
        (void)snprintf(why, SOCKET_PLACE_WHY_SIZE, "the socket path is empty");
        return -EINVAL;
    }
    if (size > FD_SOCKET_PATH_MAX) {
        (void)snprintf(why, SOCKET_PLACE_WHY_SIZE,
                       "the socket path has %zu bytes, a socket can have %zu: %.300s", size,
                       FD_SOCKET_PATH_MAX, path);
        return -EINVAL;
    }
    char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    *ret = copy;
    return 0;
}

/* The socket in a folder, of which only the first `size` bytes count. */
static int give_path_in(const char *folder, size_t size, char **ret, char why[SOCKET_PLACE_WHY_SIZE])
{
    struct buf path = BUF_INIT;

    buf_append(&path, folder, size);
    buf_append_str(&path, "/" SOCKET_NAME);
    int r = -ENOMEM;
    const char *text = buf_str(&path);
    if (!path.failed)
        r = give_path(text, ret, why);
    buf_deinit(&path);
    return r;
}

/* A variable that names a folder, NULL when there is none. */
static const char *folder_variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value == '/' ? value : NULL;
}

int socket_place_of_router(const char *given, char **ret, const char **ret_variable, char why[SOCKET_PLACE_WHY_SIZE])
{
    const char *folder;

    *ret_variable = NULL;
    if (given)
        return give_path(given, ret, why);
    /* systemd separates the folders of several RuntimeDirectory= by colons. */
    folder = folder_variable("RUNTIME_DIRECTORY");
    if (folder) {
        *ret_variable = "RUNTIME_DIRECTORY";
        return give_path_in(folder, strcspn(folder, ":"), ret, why);
    }
    if (geteuid() == 0)
        return give_path(SYSTEM_SOCKET_PATH, ret, why);
    folder = folder_variable("XDG_RUNTIME_DIR");
    if (folder) {
        *ret_variable = "XDG_RUNTIME_DIR";
        return give_path_in(folder, strlen(folder), ret, why);
    }
    (void)snprintf(why, SOCKET_PLACE_WHY_SIZE,
                   "no place for the socket: neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set; "
                   "give one with --socket");
    return -EINVAL;
}

int socket_place_of_client(const char *given, char **ret, char why[SOCKET_PLACE_WHY_SIZE])
{
    const char *folder = folder_variable("XDG_RUNTIME_DIR");
    char *path = NULL;

    if (given)
        return give_path(given, ret, why);
    if (folder) {
        int r = give_path_in(folder, strlen(folder), &path, why);

        /* A folder too deep for a socket cannot hold one: look further. */
        if (r == -ENOMEM)
            return r;
        if (r == 0 && access(path, F_OK) == 0) {
            *ret = path;
            return 0;
        }
        free(path);
    }
    if (access(SYSTEM_SOCKET_PATH, F_OK) == 0)
        return give_path(SYSTEM_SOCKET_PATH, ret, why);
    (void)snprintf(why, SOCKET_PLACE_WHY_SIZE,
                   "no router found: there is no socket at %.200s%s" SYSTEM_SOCKET_PATH
                   "; start walbusd, or name its socket with --socket",
                   folder ? folder : "", folder ? "/" SOCKET_NAME " or " : "");
    return -ENOENT;
}

const char *socket_place_mend(int error)
{
    switch (error) {
    case ECONNREFUSED:
        return "; nobody listens there: start walbusd";
    case EACCES:
        return "; only its owner and its group may connect (walbusd's socket-group)";
    default:
        return "";
    }
}
