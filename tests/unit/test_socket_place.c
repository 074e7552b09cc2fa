/* SPDX-License-Identifier: PostgreSQL */
#include "base/socket_place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "environment.h"
#include "unit.h"

static void expect_router(const char *given, const char *want)
{
    char *path = NULL, why[SOCKET_PLACE_WHY_SIZE] = "";
    const char *variable = "";

    ck_assert_msg(socket_place_of_router(given, &path, &variable, why) == 0, "%s", why);
    ck_assert_str_eq(path, want);
    free(path);
    if (given || strncmp(want, "/run/walbus/", 12) == 0)
        ck_assert_ptr_null(variable);
    else
        ck_assert_str_eq(variable, strncmp(want, "/run/user/", 10) == 0 ? "XDG_RUNTIME_DIR" : "RUNTIME_DIRECTORY");
}

START_TEST(router_socket)
{
    const char *given = NULL, *variable;
    char why[SOCKET_PLACE_WHY_SIZE] = "", *path = NULL;
    bool root = geteuid() == 0;

    environment_clean();
    if (root) {
        expect_router(given, "/run/walbus/walbus.sock");
    } else {
        ck_assert_int_eq(socket_place_of_router(given, &path, &variable, why), -EINVAL);
        ck_assert_ptr_null(variable);
        ck_assert_ptr_nonnull(strstr(why, "--socket"));
    }
    environment_set("XDG_RUNTIME_DIR", "/run/user/1000");
    expect_router(given, root ? "/run/walbus/walbus.sock" : "/run/user/1000/walbus.sock");
    environment_set("RUNTIME_DIRECTORY", "relative");
    expect_router(given, root ? "/run/walbus/walbus.sock" : "/run/user/1000/walbus.sock");
    environment_set("RUNTIME_DIRECTORY", "/run/walbusd");
    expect_router(given, "/run/walbusd/walbus.sock");
    environment_set("RUNTIME_DIRECTORY", "/run/first:/run/second");
    expect_router(given, "/run/first/walbus.sock");
    environment_set("WALBUS_SOCKET", "/elsewhere");
    expect_router(given, "/run/first/walbus.sock");
    given = "/given/by/option";
    expect_router(given, "/given/by/option");
}
END_TEST

START_TEST(socket_path_limit)
{
    char path[109], why[SOCKET_PLACE_WHY_SIZE] = "", *got = NULL;
    const char *given = path, *variable;

    environment_clean();
    memset(path, 'p', sizeof path);
    path[0] = '/';
    path[108] = '\0';
    ck_assert_int_eq(socket_place_of_router(given, &got, &variable, why), -EINVAL);
    ck_assert_int_eq(strncmp(why, "the socket path has 108 bytes, a socket can have 107: /ppp", 58),
                     0);
    environment_set("RUNTIME_DIRECTORY", path);
    ck_assert_int_eq(socket_place_of_router(NULL, &got, &variable, why), -EINVAL);
    ck_assert_str_eq(variable, "RUNTIME_DIRECTORY");
    why[0] = '\0';
    ck_assert_int_eq(socket_place_of_client(given, &got, why), -EINVAL);
    ck_assert_int_eq(strncmp(why, "the socket path has 108 bytes", 29), 0);
    ck_assert_ptr_null(got);
    ck_assert_int_eq(socket_place_of_client("", &got, why), -EINVAL);
    ck_assert_str_eq(why, "the socket path is empty");
    path[107] = '\0';
    expect_router(given, path);
    ck_assert_int_eq(socket_place_of_client(given, &got, why), 0);
    ck_assert_str_eq(got, path);
    free(got);
}
END_TEST

START_TEST(client_socket)
{
    char folder[] = "/tmp/walbus-unit-XXXXXX", path[64], why[SOCKET_PLACE_WHY_SIZE] = "", *got = NULL;
    const char *given = NULL;
    bool system_router = access("/run/walbus/walbus.sock", F_OK) == 0;

    environment_clean();
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/walbus.sock", folder);
    environment_set("XDG_RUNTIME_DIR", folder);
    if (!system_router) {
        ck_assert_int_eq(socket_place_of_client(given, &got, why), -ENOENT);
        ck_assert_ptr_nonnull(strstr(why, path));
        ck_assert_ptr_nonnull(strstr(why, " or /run/walbus/walbus.sock; "));
        ck_assert_int_eq(unsetenv("XDG_RUNTIME_DIR"), 0);
        ck_assert_int_eq(socket_place_of_client(given, &got, why), -ENOENT);
        ck_assert_ptr_nonnull(strstr(why, " at /run/walbus/walbus.sock; "));
        environment_set("XDG_RUNTIME_DIR", folder);
    }
    FILE *there = fopen(path, "we");
    ck_assert_ptr_nonnull(there);
    ck_assert_int_eq(fclose(there), 0);
    ck_assert_int_eq(socket_place_of_client(given, &got, why), 0);
    ck_assert_str_eq(got, path);
    free(got);
    /* What is given is taken, whether it exists or not. */
    given = "/given";
    ck_assert_int_eq(socket_place_of_client(given, &got, why), 0);
    ck_assert_str_eq(got, "/given");
    free(got);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

UNIT_MAIN("socket_place", router_socket, socket_path_limit, client_socket)
