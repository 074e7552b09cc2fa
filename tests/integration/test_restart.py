# SPDX-License-Identifier: PostgreSQL
"""The router goes away and comes back, and the stream breaks, while subscribers follow."""

import json
import os
import signal

import pytest
from harness.command import Running
from harness.router import Router
from harness.subscriber import Connection, Subscriber, Closed, RouterError, MESSAGE, COMMIT, POSITION
from harness.waiting import Deadline, wait_for

pytestmark = pytest.mark.every_major


def payloads(lines):
    """What came, with "gap" where tail says that something may be missing."""
    return ["gap" if "gap" in (o := json.loads(line)) else o["payload"] for line in lines]


def subscribed(router):
    return sum(1 for s in router.status()["sessions"] if s["state"] == "active")


def tail(router, *args):
    return Running("tail", "--socket", router.socket, "--output", "json", *args).wait_ready()


def test_clean_restarts_lose_and_repeat_nothing(bus, conn):
    """tail goes on where it was, and says nothing of missing messages, since none can be."""
    router = Router(bus.dsn())
    with router:
        router.start()
        with tail(router) as follower, tail(router, "a.*") as filtered:
            n = 0
            for _ in range(5):
                for _ in range(20):
                    conn.emit("a.b" if n % 2 else "c", str(n).encode(), transactional=n % 3 > 0)
                    n += 1
                follower.wait_lines(n)
                router.stop()
                router.start()
                wait_for(lambda: subscribed(router) == 2, 15, "both tails are back")
            conn.emit("a.b", b"last")
            assert payloads(follower.wait_lines(n + 1)) == [*map(str, range(n)), "last"]
            assert payloads(filtered.wait_lines(n // 2 + 1)) == [*map(str, range(1, n, 2)), "last"]
            for running, lines in ((follower, n + 1), (filtered, n // 2 + 1)):
                done = running.stop()
                assert done.status == 0 and done.out.count(b"\n") == lines
                assert "missing" not in done.error, done.error


@pytest.mark.parametrize("end", [Router.stop, Router.kill], ids=["stopped", "killed"])
def test_published_while_the_router_is_away(bus, conn, end):
    router = Router(bus.dsn())
    with router:
        router.start()
        with tail(router) as follower:
            conn.emit("a", b"1")
            follower.wait_lines(1)
            end(router)
            conn.emit("a", b"2")
            router.start()
            wait_for(lambda: subscribed(router) == 1, 15, "tail is back")
            conn.emit("a", b"3")
            wait_for(lambda: b'"payload":"3"' in follower.out, 15, "the third message")
            assert payloads(follower.stop().out.splitlines()) == ["1", "2", "3"]


def test_stop_inside_a_transaction_that_is_being_sent(bus, conn):
    """A reader that stands inside a large transaction when the router stops gets its rest afterwards."""
    router = Router(bus.dsn())
    with router:
        router.start()
        sub = router.subscriber()
        conn.run("SELECT count(pg_logical_emit_message(true, 'big', decode(repeat('ab', 1000), 'hex')))"
                 " FROM generate_series(1, 30000)")
        first = [sub.next(Deadline(20, "the first messages")) for _ in range(100)]
        assert len(first) == 100
        router.process.send_signal(signal.SIGTERM)
        try:
            while True:
                sub.next(Deadline(20, "what is on its way"))
        except (Closed, RouterError):
            pass
        got = len(sub.messages)
        assert router.wait_exit(10) == 0
        router.start()
        if not sub.commits:
            body = {"filters": [[0, b">"]], "start": "position", "position": POSITION.pack(*sub.messages[-1].position)}
            with Connection(router.socket) as again:
                again.hello()
                again.send(3, body)
                again.expect(4, Deadline(10, "SUBSCRIBED"))
                indexes = []
                deadline = Deadline(60, "the rest of the transaction")
                begins = []
                while True:
                    kind, frame = again.receive(deadline)
                    if kind == MESSAGE:
                        indexes.append(frame.position.index)
                    elif kind == COMMIT:
                        break
                    else:
                        begins.append(kind)
                assert indexes == list(range(got + 1, 30001))
                assert frame.messages == 30000
        else:
            assert got == 30000


def test_a_killed_walsender_repeats_nothing(router, bus, conn):
    """The server sends again from where the slot stands; positions drop what came before."""
    sub = router.subscriber()
    for i in range(200):
        conn.emit("a", str(i).encode(), transactional=i % 2 == 0)
        if i % 20 == 10:
            before = bus.walsenders()
            conn.run("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
            wait_for(lambda: bus.walsenders() and bus.walsenders() != before, 20, "the router is back")
    assert sub.seen(sub.collect(200)) == [(b"a", str(i).encode()) for i in range(200)]


def test_walsender_killed_inside_a_transaction(router, bus, conn):
    sub = router.subscriber()
    conn.run("SELECT count(pg_logical_emit_message(true, 'big', decode(repeat('cd', 500), 'hex')))"
             " FROM generate_series(1, 60000)")
    while len(sub.messages) < 1000:
        sub.next(Deadline(20, "the first messages"))
    conn.run("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    sub.collect(60000 - len(sub.messages), 60)
    assert len(sub.begins) == 1 and sub.commits[0].messages == 60000
    conn.emit("a", b"behind")
    assert sub.seen(sub.collect(1)) == [(b"a", b"behind")]


@pytest.mark.once
def test_socket_is_gone_and_back(bus):
    router = Router(bus.dsn())
    with router:
        router.start()
        assert router.stop() < 5
        assert not os.path.lexists(router.socket)
        router.start()
        Subscriber(router.socket).close()


@pytest.mark.once
def test_hangup(router, conn):
    """SIGHUP is no end; what it changes is for test_reload.py."""
    sub = router.subscriber()
    conn.emit("a", b"1")
    sub.collect(1)
    router.process.send_signal(signal.SIGHUP)
    router.wait_log(r" info router\.reload .* by=SIGHUP changed=\"\"\n")
    conn.emit("a", b"2")
    assert sub.seen(sub.collect(1)) == [(b"a", b"2")]
