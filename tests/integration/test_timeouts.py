# SPDX-License-Identifier: PostgreSQL
"""Time-outs that somebody set for the role or the database, with short statements in mind. The router's connections,
and a slot's creation, wait by their nature: no such time-out may cut them."""

import contextlib

import pytest
from harness.command import Running, walbus
from harness.router import Router
from harness.waiting import holds_for, wait_for

pytestmark = pytest.mark.every_major

SINCE_17 = {"transaction_timeout": "1s"}
TIMEOUTS = {"statement_timeout": "1s", "lock_timeout": "500ms", "idle_in_transaction_session_timeout": "1s",
            "idle_session_timeout": "1s"}
# Longer than each, and than deadlock_timeout (1 s), behind which a wait for a lock looks at itself again.
WAIT_SECONDS = 2


def timeouts_of(conn):
    return {**TIMEOUTS, **(SINCE_17 if conn.raw.server_version >= 170000 else {})}


@pytest.fixture(params=["ROLE hasty", "DATABASE hasty"])
def dsn(request, server):
    """A connection string whose sessions have the time-outs, by role or by database."""
    with server.connect() as conn:
        conn.run("CREATE ROLE hasty LOGIN SUPERUSER")
        conn.run("CREATE DATABASE hasty")
        for name, value in timeouts_of(conn).items():
            conn.run(f"ALTER {request.param} SET {name} = '{value}'")
        try:
            with server.connect("hasty", "hasty") as hasty:
                for name, value in timeouts_of(conn).items():
                    assert hasty.rows(f"SHOW {name}") == [(value,)]
            yield server.dsn("hasty", "hasty")
        finally:
            conn.run("DROP DATABASE hasty WITH (FORCE)")
            conn.run("DROP ROLE hasty")


@pytest.fixture
def conn(server, dsn):  # pylint: disable=unused-argument
    """A session in that database, without the time-outs."""
    with server.connect("hasty") as made:
        for name in timeouts_of(made):
            made.run(f"SET {name} = 0")
        yield made


@pytest.fixture
def slot(server, dsn):  # pylint: disable=unused-argument
    server.create_bus("hasty")
    yield
    server.drop_bus("hasty")


@contextlib.contextmanager
def locked(conn, table):
    """Nobody else can as much as look at it."""
    conn.begin()
    conn.run(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    try:
        yield
    finally:
        conn.commit()


def test_setup_waits_for_a_transaction(server, dsn, conn):
    conn.begin()
    conn.run("SELECT pg_current_xact_id()")
    with Running("setup", "--dsn", dsn) as setup:
        wait_for(lambda: b"Creating the slot waits for the end of" in setup.err, 20, "it says for whom it waits")
        holds_for(lambda: setup.process.poll() is None, WAIT_SECONDS, "it waits")
        conn.commit()
        done = setup.wait_exit()
        assert done.status == 0, done
        assert done.error.count("\n") == 1, done
    assert server.slot()["database"] == "hasty"
    assert walbus("teardown", "--dsn", dsn).status == 0


def test_setup_waits_for_a_lock(server, dsn, conn):
    with locked(conn, "pg_publication"), Running("setup", "--dsn", dsn) as setup:
        holds_for(lambda: setup.process.poll() is None, WAIT_SECONDS, "it waits")
        conn.commit()
        conn.begin()
        done = setup.wait_exit()
        assert done.status == 0 and done.error == "", done
    assert walbus("teardown", "--dsn", dsn).status == 0
    assert server.slot() is None


def sessions(server):
    """The pids of the router's two sessions."""
    with server.connect() as conn:
        return conn.rows("SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE 'walbusd%%' "
                         "ORDER BY application_name")


def test_quiet_stream(server, slot, dsn, conn):
    with Router(dsn, args=["--heartbeat-interval", "60s"]) as router:
        router.start()
        before = sessions(server)
        assert [name for _, name in before] == ["walbusd", "walbusd heartbeat"]
        holds_for(lambda: sessions(server) == before, WAIT_SECONDS, "the same sessions", every=0.2)
        sub = router.subscriber()
        conn.emit("a", b"1")
        assert sub.seen(sub.collect(1)) == [(b"a", b"1")]
        assert sessions(server) == before
        assert " warning " not in router.log()


def test_decoding_waits_for_a_lock(server, slot, dsn, conn):
    """A row change is looked up in the publications, whose tables somebody may rewrite."""
    conn.run("CREATE TABLE t (i int)")
    with Router(dsn) as router, server.connect("hasty") as other:
        router.start()
        before = sessions(server)
        sub = router.subscriber()
        with locked(conn, "pg_publication_rel"):
            other.begin()
            other.run("SET LOCAL lock_timeout = 0")
            other.run("INSERT INTO t VALUES (1)")
            other.emit("a", b"behind the change")
            other.commit()
            wait_for(lambda: server_waits(server), 10, "the walsender waits for the lock")
            holds_for(lambda: sessions(server) == before, WAIT_SECONDS, "the same sessions", every=0.2)
        assert sub.seen(sub.collect(1)) == [(b"a", b"behind the change")]
        assert sessions(server) == before
        assert " warning " not in router.log()


def server_waits(server):
    with server.connect() as conn:
        return conn.rows("SELECT 1 FROM pg_stat_activity WHERE application_name = 'walbusd' AND wait_event_type = 'Lock'")


def test_preconditions_wait_for_a_lock(server, slot, dsn, conn):
    with Router(dsn) as router:
        with locked(conn, "pg_publication"):
            router.spawn()
            wait_for(lambda: server_waits(server), 20, "the check waits for the lock")
            pid = sessions(server)[0]
            holds_for(lambda: sessions(server) == [pid], WAIT_SECONDS, "the same session", every=0.2)
        router.wait_state("streaming")
        assert sessions(server)[0] == pid
        assert " warning " not in router.log()
