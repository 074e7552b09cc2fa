# SPDX-License-Identifier: PostgreSQL
"""The slot is moved, or dropped and made anew, while the router is between two steps of connecting: what lies between
is lost, and nothing from behind it may be delivered as if it were not."""

import contextlib

import psycopg2
import pytest
from harness.relay import Relay
from harness.router import Router
from harness.server import Server, one
from harness.subscriber import Closed, RouterError
from harness.waiting import Deadline, wait_for

pytestmark = pytest.mark.every_major


def advance(conn):
    conn.emit("a", b"lost")
    conn.run("SELECT pg_replication_slot_advance('walbus', pg_current_wal_lsn())")


def make_anew(conn):
    conn.emit("a", b"lost")
    conn.run("SELECT pg_drop_replication_slot('walbus')")
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")


def nothing(conn):
    conn.emit("a", b"in between")


class Before:
    """Does something to the slot, and then emits, in front of the nth START_REPLICATION."""

    def __init__(self, server, what, number):
        self.server = server
        self.what = what
        self.left = number

    def __call__(self, sql):
        if sql.startswith("START_REPLICATION"):
            self.left -= 1
            if self.left == 0:
                with self.server.connect() as conn:
                    self.what(conn)
                    conn.emit("a", b"behind")
        return True


def all_messages(sub):
    """What comes until the router closes the connection."""
    deadline = Deadline(20, "the router closes the connection")
    try:
        while True:
            sub.next(deadline)
    except (Closed, RouterError):
        return [m.content for m in sub.messages]


@pytest.mark.parametrize("what", [advance, make_anew])
def test_before_start(bus, conn, what):
    """Of a stream that breaks and is taken up again."""
    with Relay(bus, on_query=Before(bus, what, 2)) as relay, Router(relay.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"before")
        sub.collect(1)
        wait_for(lambda: bus.slot()["confirmed"] >= sub.messages[0].position.lsn, 10, "it is acknowledged")
        assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", *bus.walsenders())
        assert all_messages(sub) == [b"before"], "nothing from behind the gap"
        assert router.wait_exit(20) == 4
        assert " error slot-moved " in router.log()
        assert router.log().count(" source.streaming ") == 1


@pytest.mark.parametrize("what", [advance, make_anew])
def test_before_the_first_start(bus, what):
    """The first connect adopts the slot as it found it, not as somebody leaves it a moment later."""
    with Relay(bus, on_query=Before(bus, what, 1)) as relay, Router(relay.dsn()) as router:
        router.spawn()
        assert router.wait_exit(20) == 4
        assert " error slot-moved " in router.log()
        assert " source.streaming " not in router.log()


def test_traffic_before_start_is_no_move(bus, conn):
    with Relay(bus, on_query=Before(bus, nothing, 2)) as relay, Router(relay.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"before")
        sub.collect(1)
        assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", *bus.walsenders())
        assert [m.content for m in sub.collect(2)] == [b"in between", b"behind"]
        assert " error " not in router.log()


def test_slot_that_cannot_be_looked_at():
    """No ordinary connection is left. It is waited for, not for ever; then the stream goes on, and the log says what
    it goes on without."""
    settings = {"max_connections": 12, "superuser_reserved_connections": 3, "max_worker_processes": 2}
    with Server(settings=settings) as own, contextlib.ExitStack() as fillers:
        own.start()
        with own.connect() as conn:
            conn.run("CREATE ROLE filler LOGIN")
            conn.run("CREATE ROLE reader LOGIN REPLICATION")
        own.create_bus()
        with pytest.raises(psycopg2.OperationalError, match="connection slots"):
            while True:
                fillers.enter_context(own.connect(user="filler"))
        with Router(own.dsn(user="reader")) as router, own.connect() as conn:
            router.start()
            assert router.log().count(" warning source.unconfirmed ") == 1
            sub = router.subscriber()
            conn.emit("a", b"1")
            assert sub.seen(sub.collect(1)) == [(b"a", b"1")]
            # When it works again it is not looked at as if it were the first time.
            fillers.close()
            router.wait_log("heartbeat.works")
            conn.emit("a", b"2")
            assert sub.seen(sub.collect(1)) == [(b"a", b"2")]
            assert router.log().count("source.unconfirmed") == 1
