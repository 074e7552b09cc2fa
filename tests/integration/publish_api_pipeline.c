/* SPDX-License-Identifier: PostgreSQL */
#include "publish_api.h"

#include <string.h>

void test_pipeline(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
{
    struct walbus_event events[3] = {new_event("p.a"), new_event("p.b"), new_event("p.c")};
    struct walbus_receipt ids[3];
    uint64_t lsns[3] = {0}, raw_lsn = 0;
    struct message m[8];
    PGresult *r = NULL;

    if (!PQenterPipelineMode(conn))
        die("PQenterPipelineMode", PQerrorMessage(conn));
    expect(p, walbus_publish(p, conn, events, 0, NULL), WALBUS_PIPELINE,
           "waiting in pipeline mode");
    expect(p, walbus_publish_send(p, conn, events, 3, WALBUS_REQUIRE_TRANSACTION, NULL),
           WALBUS_NO_TRANSACTION, "nothing under way, and no transaction");
    send_query(conn, "BEGIN");
    expect(p, walbus_publish_send(p, conn, events, 3, WALBUS_REQUIRE_TRANSACTION, ids), WALBUS_OK,
           "three events");
    expect(p, walbus_publish_send_raw(p, conn, "p.raw", "x", 1, 0), WALBUS_OK, "a raw one");
    send_query(conn, "COMMIT");
    if (!PQpipelineSync(conn))
        die("PQpipelineSync", PQerrorMessage(conn));
    PQclear(next_result(conn));
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_BAD_RESULT, "read as two");
    expect(p, walbus_publish_read(p, r, lsns, 3), WALBUS_OK, "read as three");
    PQclear(r);
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, &raw_lsn, 1), WALBUS_OK, "the raw one's result");
    PQclear(r);
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, NULL, 1), WALBUS_BAD_RESULT, "COMMIT's result");
    PQclear(r);
    read_sync(conn);
    if (check(read_back(reader, m, 8, &r) == 4, "four come back")) {
        for (int i = 0; i < 3; i++)
            check(m[i].lsn == lsns[i] && holds(&m[i], ids[i].id) && ids[i].lsn == 0,
                  "LSN and id of %s", m[i].prefix);
        check(m[3].lsn == raw_lsn && m[3].size == 1, "and of the raw one");
    }
    PQclear(r);

    send_query(conn, "BEGIN");
    send_query(conn, "SELECT 1/0");
    expect(p, walbus_publish_send(p, conn, events, 1, 0, NULL), WALBUS_OK, "behind an error");
    send_query(conn, "ROLLBACK");
    if (!PQpipelineSync(conn))
        die("PQpipelineSync", PQerrorMessage(conn));
    PQclear(next_result(conn));
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, NULL, 1), WALBUS_SERVER, "the error's own result");
    check(strcmp(walbus_publisher_sqlstate(p), "22012") == 0, "its SQLSTATE");
    PQclear(r);
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, NULL, 1), WALBUS_FAILED_TRANSACTION, "it was skipped");
    PQclear(r);
    PQclear(next_result(conn));
    read_sync(conn);
    if (!PQexitPipelineMode(conn))
        die("PQexitPipelineMode", PQerrorMessage(conn));
    run(conn, "ROLLBACK");
    expect_nothing(reader, "an aborted pipeline");

    /* Without pipeline mode: send, wait, read. */
    expect(p, walbus_publish_send(p, conn, events, 2, 0, NULL), WALBUS_OK, "send only");
    expect(p, walbus_publish_send(p, conn, events, 2, 0, NULL), WALBUS_BUSY, "before it was read");
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_OK, "read");
    PQclear(r);
    check(read_back(reader, m, 8, &r) == 2, "two come back");
    PQclear(r);
}
