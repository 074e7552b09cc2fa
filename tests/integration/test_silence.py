# SPDX-License-Identifier: PostgreSQL
"""A server, or the network before it, that says nothing more: the router notices by itself."""

import contextlib
import os
import re
import socket

import pytest
from harness import places
from harness.relay import Relay
from harness.router import Router
from harness.server import Server, one
from harness.waiting import wait_for

# HEARTBEAT_LOOKUP_MS is 10 s, SOURCE_STEP_MS 30 s, PGLINK_CONNECT_MS 10 s; the rest is patience.
LOOK_UP_SECONDS = 20
STEP_SECONDS = 45
CONNECT_SECONDS = 20


def ids(log):
    """The ids of the log's lines that are worth a warning."""
    return re.findall(r" (?:warning|error) ([a-z.-]+) ", log)


def test_stream_that_is_dead_without_a_word(bus, conn):
    """The walsender is gone and no end reaches the router: the look-up over the other connection shows it."""
    with Relay(bus) as relay, Router(relay.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"before")
        sub.collect(1)
        relay.cut_replication()
        dead, = bus.walsenders()
        assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", dead)
        conn.emit("a", b"meanwhile")
        router.wait_log("source.stream-gone", LOOK_UP_SECONDS)
        router.wait_state("streaming")
        conn.emit("a", b"after")
        assert sub.seen(sub.collect(2)) == [(b"a", b"meanwhile"), (b"a", b"after")]
        assert dead not in bus.walsenders()
        assert ids(router.log()) == ["source.stream-gone"]


def test_slot_that_is_dropped_without_a_word(bus, conn):
    """The same, and what is found then ends the router."""
    with Relay(bus) as relay, Router(relay.dsn()) as router:
        router.start()
        relay.cut_replication()
        dead, = bus.walsenders()
        assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", dead)
        conn.run("SELECT pg_drop_replication_slot('walbus')")
        assert router.wait_exit(LOOK_UP_SECONDS) == 4
        assert ids(router.log()) == ["source.stream-gone", "slot-missing"]


def test_another_router_took_the_slot(bus, conn):
    """While this one believes that it reads. It waits for its turn; what the other one acknowledged is lost to it."""
    with Relay(bus) as relay, Router(relay.dsn()) as router, Router(bus.dsn()) as other:
        router.start()
        relay.cut_replication()
        dead, = bus.walsenders()
        other.spawn()
        wait_for(lambda: other.status() and other.status()["state"] == "waiting", 20, "the other one waits")
        assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", dead)
        other.wait_state("streaming")
        sub = other.subscriber()
        conn.emit("a", b"")
        sub.collect(1)
        router.wait_log("source.stream-gone", LOOK_UP_SECONDS)
        router.wait_state("waiting")
        other.stop()
        assert router.wait_exit(20) == 4
        assert [i for i in ids(router.log()) if i != "slot-in-use"] == ["source.stream-gone", "slot-moved"]


@pytest.fixture(scope="module")
def promoted(server):
    """A server on timeline 2, so that its history is asked for."""
    server.stop()
    try:
        made = Server(copy_of=server)
    finally:
        server.start()
    with made:
        made.touch("standby.signal")
        made.start()
        made.promote()
        with made.connect() as conn:
            conn.run("CREATE PUBLICATION walbus")
        yield made


class Once:
    """Swallows the first query that begins so."""

    def __init__(self, start):
        self.start = start
        self.swallowed = False

    def __call__(self, sql):
        if self.swallowed or not sql.startswith(self.start):
            return True
        self.swallowed = True
        return False


STEPS = {"checking": "SELECT pg_catalog.set_config('statement_timeout', '0', true)",
         "setting": "SELECT pg_catalog.set_config('statement_timeout', '0', false)", "identifying": "IDENTIFY_SYSTEM",
         "history": "TIMELINE_HISTORY 2", "starting": "START_REPLICATION "}


def test_each_step_has_a_time_limit(promoted):
    """All at the same time, each with a slot of its own; behind the limit the router connects again."""
    with contextlib.ExitStack() as stack:
        routers = {}
        for name, start in STEPS.items():
            with promoted.connect() as conn:
                conn.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
            once = Once(start)
            relay = stack.enter_context(Relay(promoted, on_query=once))
            router = stack.enter_context(Router(relay.dsn(), slot=name, args=["--log-level", "debug"]))
            routers[name] = (router.spawn(), once)
        for name, (router, once) in routers.items():
            wait_for(lambda once=once: once.swallowed, 20, f"the step {name}")
            assert router.status()["state"] == "connecting"
        for name, (router, once) in routers.items():
            router.wait_log("source.silent", STEP_SECONDS)
            router.wait_state("streaming")
            assert ids(router.log()) == ["source.silent"], name
            states = re.findall(r" source.state .*? to=(\S+)", router.log())
            assert states[states.index("backing-off") - 1] == name, states
            router.stop()


def test_connecting_has_a_time_limit():
    """Somebody accepts and says nothing: a stopped server, or no PostgreSQL at all."""
    folder = places.new_folder("walbus-mu-")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = os.path.join(folder, ".s.PGSQL.5432")
        listener.bind(path)
        listener.listen(16)
        listener.settimeout(20)
        try:
            with Router(f"host={folder} dbname=postgres user=postgres") as router:
                router.spawn()
                first, _ = listener.accept()
                with first:
                    router.wait_log("no connection within 10 s", CONNECT_SECONDS)
                    second, _ = listener.accept()  # it tries again
                    second.close()
                assert router.status()["state"] == "connecting"
                assert ids(router.log())[0] == "source.unreachable"
        finally:
            os.unlink(path)
            os.rmdir(folder)
