# SPDX-License-Identifier: PostgreSQL
"""The router never holds up the server, and the server's wal_sender_timeout never cuts the router."""

import contextlib
import socket
import threading
import time

import psycopg2
import pytest
from harness.router import Router
from harness.server import Server, one, stop_fast
from harness.subscriber import Message, Subscriber
from harness.waiting import Deadline, holds_for, wait_for

pytestmark = pytest.mark.every_major

WAL_SENDER_TIMEOUT = "3s"
# More than twice that.
WATCH_SECONDS = 7


def goes_on(router, server, sub):
    """After a restart of the server: the router is back by itself, and the subscriber noticed only a pause."""
    router.wait_state("streaming", 40)
    with server.connect() as conn:
        return sub.drain(conn, seconds=30)


def test_stop_while_idle(router, server, conn):
    sub = router.subscriber()
    conn.emit("before", b"")
    assert [m.prefix for m in sub.collect(1)] == [b"before"]
    pid = router.pid
    for _ in range(2):
        stop_fast(server)
        assert router.status()["state"] in ("connecting", "waiting")
        server.start()
        with server.connect() as own:
            own.emit("after", b"")
        assert [m.prefix for m in goes_on(router, server, sub)] == [b"after"]
    assert router.pid == pid and router.process.poll() is None


def test_stop_right_after_messages(router, server):
    sub = router.subscriber()
    for n in range(3):
        with server.connect() as conn:
            conn.run("SELECT count(pg_logical_emit_message(i % 2 = 0, 'm', int4send(i))) "
                     "FROM generate_series(1, 1000) i")
        stop_fast(server)
        server.start()
        messages = goes_on(router, server, sub)
        assert sorted(int.from_bytes(m.content, "big") for m in messages) == list(range(1, 1001)), f"round {n}"


def test_immediate_stop(router, server, conn):
    sub = router.subscriber()
    conn.emit("before", b"")
    sub.collect(1)
    server.stop("immediate")
    server.start()
    with server.connect() as own:
        own.emit("after", b"")
    assert [m.prefix for m in goes_on(router, server, sub)] == [b"after"]


def test_open_transactions_die_with_the_server(router, server, conn):
    sub = router.subscriber()
    conn.begin()
    conn.emit("never", b"")
    alone = server.connect()
    alone.emit("alone", b"", transactional=False)
    stop_fast(server)
    server.start()
    alone.close()
    assert [m.prefix for m in goes_on(router, server, sub)] == [b"alone"]


def test_stop_while_not_yet_allowed_to_advance():
    """No ordinary connection is left, so the heartbeat cannot prove the slot; replication has connections of its own."""
    settings = {"max_connections": 12, "superuser_reserved_connections": 3, "max_worker_processes": 2}
    with Server(settings=settings) as server:
        server.start()
        with server.connect() as conn:
            conn.run("CREATE ROLE filler LOGIN")
            conn.run("CREATE ROLE reader LOGIN REPLICATION")
        server.create_bus()
        fillers = []
        with pytest.raises(psycopg2.OperationalError, match="connection slots"):
            while len(fillers) < 20:
                fillers.append(server.connect(user="filler"))
        with Router(server.dsn(user="reader")) as router:
            router.spawn()
            wait_for(lambda: server.slot()["active"], 20, "the router reads the slot")
            sub = router.subscriber()
            confirmed = server.slot()["confirmed"]
            with server.connect() as conn:
                conn.run("SELECT pg_switch_wal()")
                conn.run("CHECKPOINT")
            # Keepalives come, and are not acknowledged: nothing has proved yet that messages come through.
            holds_for(lambda: server.slot()["confirmed"] == confirmed, 2, "the slot stays where it is")
            stop_fast(server)
            for filler in fillers:
                filler.close()
            server.start()
            with server.connect() as conn:
                conn.emit("after", b"")
            assert [m.prefix for m in goes_on(router, server, sub)] == [b"after"]


BACKLOG_MESSAGES = 2000
BACKLOG_SIZE = 100_000
# Of the reader, between messages: 50 MB a second at most, so that a backlog lasts for longer than a stop on any machine.
READ_EVERY = 0.002


def number(message):
    return int.from_bytes(message.content, "big")


@pytest.mark.parametrize("transactions", [500, 1], ids=["many transactions", "one transaction"])
def test_stop_while_catching_up(bus, transactions):
    each = BACKLOG_MESSAGES // transactions
    with bus.connect() as conn:
        for t in range(transactions):
            conn.run("SELECT count(pg_logical_emit_message(true, 'backlog', int4send(i) || "
                     "convert_to(repeat('x', %s), 'UTF8'))) FROM generate_series(%s, %s) i",
                     BACKLOG_SIZE, t * each + 1, (t + 1) * each)
    with Router(bus.dsn()) as router:
        router.spawn()
        wait_for(lambda: router.status() is not None, 20, "the router's socket")
        sub = Subscriber(router.socket, ["backlog"], seconds=40, keep=4)
        failures = []

        def read():
            deadline = Deadline(180, "the rest of the backlog")
            try:
                while not sub.messages or number(sub.messages[-1]) < BACKLOG_MESSAGES:
                    if isinstance(sub.next(deadline), Message):
                        time.sleep(READ_EVERY)
            except Exception as e:  # shown by the assertion below
                failures.append(e)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            if transactions > 1:
                wait_for(lambda: len(sub.messages) >= BACKLOG_MESSAGES // 50 or failures, 60, "the first messages")
            # "catchup" until the walsender has read all WAL for the first time; of one transaction it sends nothing
            # before.
            with bus.connect() as conn:
                at_stop = conn.rows("SELECT r.state, pg_current_wal_lsn() - s.confirmed_flush_lsn "
                                    "FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid")
            stop_fast(bus)
            reached = len(sub.messages)
            assert [state for state, _ in at_stop] == ["catchup"], "the backlog was too small to be still in progress"
            assert at_stop[0][1] > BACKLOG_MESSAGES * BACKLOG_SIZE // 10, at_stop
            assert reached < BACKLOG_MESSAGES, "the subscriber has everything already"
            bus.start()
            reader.join(200)
            assert failures == []
            numbers = [number(m) for m in sub.messages]
            assert numbers == list(range(numbers[0], BACKLOG_MESSAGES + 1)), "none twice, none missing"
            router.wait_state("streaming", 40)
        finally:
            with contextlib.suppress(OSError):
                sub.connection.socket.shutdown(socket.SHUT_RDWR)  # it may still wait
            reader.join(20)
            sub.close()


@pytest.fixture
def impatient(server):
    server.reload(wal_sender_timeout=WAL_SENDER_TIMEOUT)
    server.create_bus()
    yield server
    server.drop_bus()
    server.reload(wal_sender_timeout=None)


class Load:
    """Messages as fast as one session makes them, in a thread."""

    def __init__(self, server, size=200):
        self.server = server
        self.size = size
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with self.server.connect() as conn:
            while not self._stop.is_set():
                conn.run("SELECT count(pg_logical_emit_message(true, 'load', convert_to(repeat('x', %s), 'UTF8'))) "
                         "FROM generate_series(1, 100)", self.size)
                self.sent += 100
                time.sleep(0.005)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(20)


def test_wal_sender_timeout_while_idle(impatient):
    with Router(impatient.dsn(), args=["--heartbeat-interval", "60s"]) as router:
        router.start()
        before = impatient.walsenders()
        assert len(before) == 1
        holds_for(lambda: impatient.walsenders() == before, WATCH_SECONDS, "the same walsender", every=0.25)


def test_wal_sender_timeout_under_load(impatient):
    with Router(impatient.dsn()) as router:
        router.start()
        before = impatient.walsenders()
        assert len(before) == 1
        sub = router.subscriber()
        with Load(impatient) as load:
            end = time.monotonic() + WATCH_SECONDS
            while time.monotonic() < end:
                sub.collect(1000)
                assert impatient.walsenders() == before
        with impatient.connect() as conn:
            sub.drain(conn, seconds=40)
        assert len(sub.messages) - 1 == load.sent
        assert impatient.walsenders() == before


def test_wal_sender_timeout_with_a_subscriber_that_does_not_read(impatient):
    with Router(impatient.dsn()) as router:
        router.start()
        before = impatient.walsenders()
        assert len(before) == 1
        frozen = router.subscriber_process()
        frozen.freeze()
        with Load(impatient, size=2000):
            holds_for(lambda: impatient.walsenders() == before, WATCH_SECONDS, "the same walsender", every=0.25)
        frozen.thaw()


def test_wal_sender_timeout_while_reading_waits(impatient):
    """The journal is full, and somebody who is away needs all of it: the router reports all the same."""
    count, size = 300, 100_000
    with Router(impatient.dsn(), args=["--segment-size", "1MB", "--journal-size", "4MB"]) as router, \
            impatient.connect() as conn:
        router.start()
        router.subscriber(name="away").close()
        before = impatient.walsenders()
        for _ in range(count):
            conn.emit("load", b"x" * size)
        router.wait_state("paused")
        holds_for(lambda: impatient.walsenders() == before, WATCH_SECONDS, "the same walsender", every=0.25)
        status = router.status()
        assert status["state"] == "paused" and status["messages"] < count
        assert "away" in status["last_error"]


def test_a_killed_walsender_is_replaced(router, server, conn):
    sub = router.subscriber()
    conn.emit("before", b"")
    sub.collect(1)
    pid, = server.walsenders()
    assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", pid)
    conn.emit("after", b"")
    assert [m.prefix for m in sub.collect(1, seconds=40)] == [b"after"]
    assert server.walsenders() != [pid]


def test_a_killed_heartbeat_session_is_no_reason_to_reconnect(router, server, conn):
    sub = router.subscriber()
    before = server.walsenders()
    assert conn.rows("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type = "
                     "'client backend' AND application_name LIKE '%%walbus%%' AND pid <> ALL(%s)", before) == [(True,)]
    conn.emit("after", b"")
    assert [m.prefix for m in sub.drain(conn)] == [b"after"]
    assert server.walsenders() == before


@pytest.mark.once
def test_router_stop_is_quick(bus, conn):
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"")
        sub.collect(1)
        assert router.stop() < 5
        assert sub.connection.closed_by_router() == "stopping"
