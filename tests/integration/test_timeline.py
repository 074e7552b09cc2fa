# SPDX-License-Identifier: PostgreSQL
"""Positions carry the timeline of the record, which a promotion changes."""

import os
import re
import signal

import pytest
from harness.router import Router
from harness.server import Address, Server

pytestmark = pytest.mark.every_major


def test_positions_after_a_promotion(server):
    server.stop()
    try:
        promoted = Server(copy_of=server)
    finally:
        server.start()
    with promoted:
        promoted.touch("standby.signal")
        promoted.start()
        promoted.promote()
        with promoted.connect() as conn:
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


@pytest.fixture
def own():
    """A server that the test makes another of, with publication and slot."""
    with Server() as made:
        made.start()
        made.create_bus()
        yield made


def seen(sub, n):
    return [(m.position.timeline, m.content) for m in sub.collect(n, 40)]


def test_promotion_under_a_running_router(own):
    """Before 17 only the slot's own files survive one. A subscriber follows: nothing is missing, nothing comes twice,
    each record has its own timeline, and positions rise."""
    with Address() as address, Router(address.dsn) as router:
        address.lead(own)
        router.start()
        sub = router.subscriber()
        with own.connect() as conn:
            conn.emit("a", b"read on 1")
            assert seen(sub, 1) == [(1, b"read on 1")]
            os.kill(router.pid, signal.SIGSTOP)
            conn.emit("a", b"committed on 1")
            conn.emit("a", b"alone on 1", transactional=False)
            conn.emit("a", b"committed on 1 as well")  # which flushes what was alone
        own.stop("immediate")
        address.lead(None)
        os.kill(router.pid, signal.SIGCONT)
        own.touch("standby.signal")
        own.start()
        own.promote()
        with own.connect() as conn:
            conn.emit("a", b"before it is back")
            address.lead(own)
            assert router.wait_state("streaming", 40)["timeline"] == 2
            conn.emit("a", b"2")
            conn.emit("a", b"alone on 2", transactional=False)
            conn.emit("a", b"last")
        assert seen(sub, 7) == [(1, b"committed on 1"), (1, b"alone on 1"), (1, b"committed on 1 as well"),
                                (2, b"before it is back"), (2, b"2"), (2, b"alone on 2"), (2, b"last")]
        # Nothing was read behind the switch point.
        assert "source.timeline-left" not in router.log()


def test_promoted_server_lacks_what_was_read(own):
    """A standby that was behind: what it lacks has been delivered, and is reported. What it has instead comes too,
    at higher positions, although its LSNs are lower."""
    with Address() as address, Router(address.dsn) as router:
        address.lead(own)
        router.start()
        sub = router.subscriber()
        with own.connect() as conn:
            conn.emit("a", b"on both")
            assert seen(sub, 1) == [(1, b"on both")]
        own.stop()
        with Server(copy_of=own) as behind:  # as a standby that fell behind here
            own.start()
            router.wait_state("streaming", 40)
            with own.connect() as conn:
                conn.run("SELECT count(pg_logical_emit_message(true, 'a', convert_to(repeat('x', 100000), 'UTF8')))"
                         " FROM generate_series(1, 20)")
                conn.emit("a", b"on 1 alone")
                assert seen(sub, 21)[-1] == (1, b"on 1 alone")
                lost = sub.messages[-1].position.lsn
            own.stop()
            address.lead(None)
            behind.touch("standby.signal")
            behind.start()
            behind.promote()
            address.lead(behind)
            router.wait_log("source.timeline-left", 40)
            assert router.wait_state("streaming", 40)["timeline"] == 2
            with behind.connect() as conn:
                conn.emit("a", b"on 2")
            assert seen(sub, 1) == [(2, b"on 2")]
            assert sub.messages[-1].position.lsn < lost
            left = re.search(r"source.timeline-left .* old_timeline=(\d+) timeline=(\d+) ", router.log())
            assert left.groups() == ("1", "2")


def test_slot_made_anew_on_a_promoted_server(own):
    """It stands beyond the switch point, and still before what was read of the old timeline: what lies between was
    never read."""
    with Address() as address, Router(address.dsn) as router:
        address.lead(own)
        router.start()
        sub = router.subscriber()
        own.stop()
        with Server(copy_of=own) as behind:
            own.start()
            router.wait_state("streaming", 40)
            with own.connect() as conn:
                conn.run("SELECT count(pg_logical_emit_message(true, 'a', convert_to(repeat('x', 100000), 'UTF8')))"
                         " FROM generate_series(1, 20)")
                sub.collect(20, 40)
                told = sub.commits[-1].end_lsn
            own.stop()
            address.lead(None)
            behind.touch("standby.signal")
            behind.start()
            behind.promote()
            with behind.connect() as conn:
                conn.emit("a", b"never read")
                conn.run("SELECT pg_drop_replication_slot('walbus')")
                conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")
                assert behind.slot()["confirmed"] < told
            address.lead(behind)
            assert router.wait_exit(40) == 4
            assert re.findall(r" source.timeline-left | error slot-moved ", router.log()) == [
                " source.timeline-left ", " error slot-moved "]


def test_server_becomes_a_standby(own):
    """The router must not wait there for a promotion that may never come."""
    with Router(own.dsn()) as router:
        router.start()
        own.stop()
        own.touch("standby.signal")
        own.start()
        assert router.wait_exit(40) == 1
        assert " error recovery " in router.log()
