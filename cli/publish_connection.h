/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_PUBLISH_CONNECTION_H
#define WALBUS_CLI_PUBLISH_CONNECTION_H

/* The connection that `walbus publish` publishes over, with the library's publisher on it. */

#include "base/macros.h"
#include "cli.h"
#include "walbus/walbus.h"

/** What is true once nothing can be taken back. */
#define PUBLISH_DONE "Published"

struct publish_connection {
    struct pg_conn *conn;
    struct walbus_publisher *publisher;
    unsigned flags; /* for each call of the library */
};

struct publish_connection_options {
    const char *source;   /* of the events; NULL: /walbus/DATABASE */
    const char *key;      /* file of the private key to sign with; NULL: none */
    const char *audience; /* to sign for; NULL: the empty one */
    unsigned flags;       /* for each call of the library */
};

/** Connects; warns on stderr when the server's wal_level makes publishing pointless. CLI_OK; else
 *  says why and returns the exit status. */
int publish_connection_open(struct cli *cli, const struct publish_connection_options *options,
                            struct publish_connection *ret) MUST_CHECK;
/** What was not committed is rolled back. */
void publish_connection_close(struct publish_connection *c);

/** Says what a result of the library other than WALBUS_OK means; returns the exit status. `where`
 *  is "" or as "Lines 1 to 20: ". */
int publish_connection_failed(const struct publish_connection *c, const char *where,
                              enum walbus_result result);

#endif
