# SPDX-License-Identifier: PostgreSQL
"""Positions carry the timeline of the record, which a promotion changes."""

from harness.router import Router
from harness.server import Server
from harness.waiting import wait_for


def test_positions_after_a_promotion(server):
    server.stop()
    try:
        promoted = Server(copy_of=server)
    finally:
        server.start()
    with promoted:
        promoted.touch("standby.signal")
        promoted.start()
        with promoted.connect() as conn:
            conn.run("SELECT pg_promote()")
            wait_for(lambda: conn.rows("SELECT pg_is_in_recovery()") == [(False,)], 20, "the promotion")
            promoted.create_bus()
            with Router(promoted.dsn()) as router:
                status = router.start().status()
                assert status["timeline"] == 2
                sub = router.subscriber()
                assert sub.welcome["timeline"] == 2
                conn.emit("a", b"1")
                conn.emit("a", b"2", transactional=False)
                messages = sub.collect(2)
                assert [(m.position.timeline, m.content) for m in messages] == [(2, b"1"), (2, b"2")]


def test_another_server_at_the_same_address(server):
    """The system identifier tells; nothing is read on before somebody has decided."""
    with Server() as first:
        first.start()
        first.create_bus()
        with Router(first.dsn()) as router:
            router.start()
            first.stop()
            with Server() as second:
                second.set(unix_socket_directories=first.sockets)
                second.start()
                with first.connect() as conn:  # the address is the first one's, the server the second
                    conn.run("CREATE PUBLICATION walbus")
                    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")
                assert router.wait_exit(30) == 4, router.log()
                assert "other-system" in router.log()

