/* SPDX-License-Identifier: PostgreSQL */
/*
 * publish_api [POOLER-DSN] DSN: libwalbus' publishing on a real server, through the shared
 * library. What was published is read back by a temporary slot of pgoutput, so
 * contents, flags, order and LSNs are the ones that a subscriber would get. The
 * role must be a superuser. With a second DSN the first one is a pooler's, in
 * mode transaction and with one session of that server's for all. One line a check on stdout; exit 0 when all are ok.
 */
#include "publish_api.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc == 3) {
        test_pooler(argv[1], argv[2]);
        return result_of_all();
    }
    if (argc != 2) {
        (void)fprintf(stderr, "usage: publish_api DSN | publish_api POOLER-DSN DSN\n");
        return 2;
    }
    check(walbus_version_number() == WALBUS_VERSION_NUMBER, "version %s", walbus_version_text());
    PGconn *conn = open_connection(argv[1]), *reader = open_connection(argv[1]);
    struct walbus_publisher *p = new_publisher(0, 0);

    run(reader, "SELECT pg_create_logical_replication_slot('publish_api', 'pgoutput', true)");
    test_one(p, conn, reader);
    test_rollback(p, conn, reader);
    test_many(p, conn, reader, 0);
    test_many(p, conn, reader, WALBUS_NON_TRANSACTIONAL);
    test_raw(p, conn, reader);
    test_odd_sessions(p, conn, reader);
    test_pipeline(p, conn, reader);
    test_arguments(p, conn);
    expect_nothing(reader, "arguments that were refused");
    test_prefixes(p, conn);
    test_bad_events(p, conn);
    test_sizes(p, conn);
    test_prefix_limit(conn);
    test_server_errors(p, conn);
    test_connection_states(p, conn, argv[1]);

    p = walbus_publisher_free(p);
    PQfinish(conn);
    PQfinish(reader);
    return result_of_all();
}
