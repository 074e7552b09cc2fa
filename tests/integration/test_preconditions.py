# SPDX-License-Identifier: PostgreSQL
"""What must be true of a server: each refusal for real, by walbusd and by `walbus setup`, with its mend."""

import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import threading

import psycopg2.extras
import pytest
from harness import places
from harness.command import walbus
from harness.pooler import Pooler
from harness.router import Router
from harness.server import Server
from harness.waiting import holds_for, wait_for

pytestmark = pytest.mark.every_major


def refused_by_router(dsn, status=1, **kw):
    """walbusd must end by itself with that status; returns its log."""
    with Router(dsn, **kw) as router:
        router.spawn()
        assert router.wait_exit(20) == status, router.log()
        assert not os.path.lexists(router.socket), "the socket is left behind"
        return router.log()


def refused_by_setup(dsn, *args):
    done = walbus("setup", "--dsn", dsn, *args)
    assert done.status == 1, done
    assert done.out == b"", done
    return done.error


def unquoted(log):
    """A value in the log is quoted, its quotes are escaped."""
    return log.replace('\\"', '"')


def both(dsn, *words, publication="walbus"):
    """Router and setup refuse with all of these words."""
    for text in (refused_by_router(dsn, publication=publication), refused_by_setup(dsn, "--publication", publication)):
        for word in words:
            assert word in unquoted(text), text


def test_wal_level():
    with Server(settings={"wal_level": "replica"}) as own:
        own.start()
        both(own.dsn(), "wal_level is replica; it must be logical", "ALTER SYSTEM SET wal_level = logical",
             "restart the server")


def test_replication_right(server, conn):
    conn.run("CREATE ROLE weak LOGIN")
    try:
        both(server.dsn(user="weak"), 'ALTER ROLE "weak" REPLICATION')
    finally:
        conn.run("DROP ROLE weak")


def test_emit_right(bus, conn):
    function = bus.emit_function
    conn.run("CREATE ROLE mute LOGIN REPLICATION")
    conn.run(f"REVOKE EXECUTE ON {function} FROM PUBLIC")
    try:
        both(bus.dsn(user="mute"), f"GRANT EXECUTE ON {function}", 'TO "mute"')
        conn.run(f"GRANT EXECUTE ON {function} TO mute")
        with Router(bus.dsn(user="mute")) as router:
            router.start()
    finally:
        conn.run(f"GRANT EXECUTE ON {function} TO PUBLIC")
        conn.run("DROP OWNED BY mute")
        conn.run("DROP ROLE mute")


def test_right_to_create(server, conn):
    """Only setup needs it."""
    conn.run("CREATE ROLE reader LOGIN REPLICATION")
    try:
        text = refused_by_setup(server.dsn(user="reader"))
        assert 'GRANT CREATE ON DATABASE "postgres" TO "reader"' in text
        assert server.slot() is None
    finally:
        conn.run("DROP ROLE reader")


def nothing_is_made(server, conn):
    return (server.slot() is None and conn.rows("SELECT 1 FROM pg_publication") == [])


def test_right_to_create_a_slot(server, conn):
    """Without it nothing is made, the publication neither."""
    function = server.create_slot_function
    conn.run("CREATE ROLE maker LOGIN REPLICATION")
    conn.run("GRANT CREATE ON DATABASE postgres TO maker")
    conn.run(f"REVOKE EXECUTE ON {function} FROM PUBLIC")
    try:
        assert f'GRANT EXECUTE ON {function} TO "maker"' in refused_by_setup(server.dsn(user="maker"))
        assert nothing_is_made(server, conn)
        conn.run(f"GRANT EXECUTE ON {function} TO maker")
        assert walbus("setup", "--dsn", server.dsn(user="maker")).status == 0
    finally:
        server.drop_bus()
        conn.run(f"GRANT EXECUTE ON {function} TO PUBLIC")
        conn.run("DROP OWNED BY maker")
        conn.run("DROP ROLE maker")


@pytest.mark.parametrize("slots", [0, 2])
def test_no_slot_is_free(slots):
    """Slots of any kind and database count."""
    with Server(settings={"max_replication_slots": slots}) as own:
        own.start()
        own.create_database("other")
        with own.connect() as conn, own.connect("other") as other:
            if slots:
                conn.run("SELECT pg_create_physical_replication_slot('one')")
                other.run("SELECT pg_create_logical_replication_slot('two', 'test_decoding')")
            text = refused_by_setup(own.dsn())
            assert f"No replication slot is free: {slots} are there, and max_replication_slots is {slots}." in text
            assert f"ALTER SYSTEM SET max_replication_slots = {slots + 1}; then restart the server" in text
            assert nothing_is_made(own, conn)
            if slots:
                conn.run("SELECT pg_drop_replication_slot('one')")
                for _ in range(2):  # the last one is its own
                    assert walbus("setup", "--dsn", own.dsn()).status == 0


@pytest.mark.parametrize("encoding,name,fits", [("UTF8", 63 * "p", True), ("UTF8", 64 * "p", False),
                                                ("UTF8", 32 * "ö", False), ("LATIN1", 32 * "ö", True)])
def test_length_of_the_publications_name(server, encoding, name, fits):
    """The server would cut it, in its own encoding, and nobody find it again."""
    database = f"names_{encoding.lower()}"
    with server.connect() as conn:
        if not conn.rows("SELECT 1 FROM pg_database WHERE datname = %s", database):
            server.create_database(database, encoding=encoding)
    try:
        with server.connect(database) as conn:
            if fits:
                assert walbus("setup", "--dsn", server.dsn(database), "--publication", name).status == 0
                assert conn.rows("SELECT pubname FROM pg_publication") == [(name,)]
            else:
                assert "is longer than the 63 bytes of a name" in refused_by_setup(server.dsn(database), "--publication", name)
                assert nothing_is_made(server, conn)
    finally:
        server.drop_bus(database, publication=name)


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII", "EUC_JP"])
def test_a_publications_name_in_other_encodings(server, encoding):
    """Setup and router mean the same name, though one connection of theirs converts and the other does not."""
    database, name = f"named_{encoding.lower()}", "größe" if encoding != "EUC_JP" else "日本"
    server.create_database(database, encoding=encoding)
    try:
        for word in ("created", "is there already"):
            done = walbus("setup", "--dsn", server.dsn(database), "--publication", name)
            assert done.status == 0 and done.text.splitlines()[0] == f'publication "{name}" {word}', done
        with server.connect(database) as conn:
            with Router(server.dsn(database), publication=name) as router:
                sub = router.start().subscriber()
                conn.emit("a", b"")
                assert [m.prefix for m in sub.drain(conn)] == [b"a"]
                # The look-up over its ordinary connection has seen it too.
                wait_for(lambda: router.status()["heartbeat_age_ms"] is not None, 15, "the heartbeat is back")
                assert "publication-dropped" not in router.log()
            assert walbus("teardown", "--dsn", server.dsn(database), "--publication", name).status == 0
            assert conn.rows("SELECT 1 FROM pg_publication") == []
            log = unquoted(refused_by_router(server.dsn(database), publication=name))
            assert f'There is no publication "{name}"' in log, log
    finally:
        walbus("teardown", "--dsn", server.dsn(database), "--publication", name, "--force")


def test_a_publications_name_that_the_encoding_does_not_have(server):
    server.create_database("latin", encoding="LATIN1")
    both(server.dsn("latin"), 'The publication\'s name "€" has a character', "choose another name with --publication",
         publication="€")


@pytest.mark.parametrize("name", ["Bad name", "a-b", "ä", 64 * "s"])
def test_names_that_no_slot_may_have(server, conn, name):
    for command in ("setup", "teardown", "dev"):
        arguments = [] if command == "dev" else ["--dsn", server.dsn()]
        done = walbus(command, *arguments, "--slot", name)
        assert done.status == 2 and done.out == b"", done
        assert "but must be 1 to 63 characters of a-z, 0-9 and _" in done.error, done
    assert "1 to 63 characters of a-z, 0-9 and _" in refused_by_router(server.dsn(), status=2, slot=name)
    assert nothing_is_made(server, conn)


class StandIn:
    """Speaks the start of the protocol as a server of another version, and refuses every query."""

    def __init__(self, version):
        self.version = version
        self.folder = places.new_folder("walbus-si-")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(os.path.join(self.folder, ".s.PGSQL.5432"))
        self.listener.listen(16)
        self.connections = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def dsn(self):
        return f"host={self.folder} port=5432 dbname=postgres user=postgres"

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(conn)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    @staticmethod
    def _message(kind, body):
        return kind + struct.pack(">I", len(body) + 4) + body

    def _serve(self, conn):
        def take(n):
            data = b""
            while len(data) < n:
                piece = conn.recv(n - len(data))
                if not piece:
                    raise EOFError
                data += piece
            return data
        ready = self._message(b"Z", b"I")
        try:
            while True:
                size, code = struct.unpack(">II", take(8))
                take(size - 8)
                if code >> 16 == 3:
                    break
                conn.sendall(b"N")  # no TLS, no GSS
            answer = self._message(b"R", struct.pack(">I", 0))
            for name, value in (("server_version", self.version), ("client_encoding", "SQL_ASCII"),
                                ("server_encoding", "UTF8"), ("standard_conforming_strings", "on"),
                                ("integer_datetimes", "on")):
                answer += self._message(b"S", name.encode() + b"\0" + value.encode() + b"\0")
            answer += self._message(b"K", struct.pack(">II", os.getpid(), 1))
            conn.sendall(answer + ready)
            while True:
                kind, size = struct.unpack(">cI", take(5))
                take(size - 4)
                if kind == b"Q":
                    error = b"SERROR\0VERROR\0C42601\0Msyntax error\0\0"
                    conn.sendall(self._message(b"E", error) + ready)
                elif kind == b"X":
                    return
        except (EOFError, OSError):
            pass
        finally:
            conn.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        for conn in self.connections:
            conn.close()
        shutil.rmtree(self.folder)


@pytest.mark.once
@pytest.mark.parametrize("version,shown", [("13.9", "13.9"), ("9.6.24", "9.6.24"), ("13.22 (Debian 13.22-1)", "13.22")])
def test_old_server(version, shown):
    with StandIn(version) as stand_in:
        both(stand_in.dsn, f"The server is PostgreSQL {shown};", "PostgreSQL 14 or newer")


def test_wrong_plugin(server, conn):
    conn.run("CREATE PUBLICATION walbus")
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'test_decoding')")
    try:
        both(server.dsn(), "test_decoding", "must be pgoutput", "pg_drop_replication_slot('walbus')")
        assert server.slot()["plugin"] == "test_decoding", "what is wrong is left alone"
    finally:
        server.drop_bus()


@pytest.mark.every_major(until=16)
def test_failover_slot_on_a_server_that_has_none(server, conn):
    """Only setup makes one; from 17 on."""
    text = refused_by_setup(server.dsn(), "--failover")
    assert f"--failover needs PostgreSQL 17 or newer; the server is {server.major}." in text
    assert server.slot() is None
    assert conn.rows("SELECT 1 FROM pg_publication") == [], "nothing is made by halves"


def alter_slot(dsn, text):
    """Does what a mend says that is no SQL."""
    mend = re.search(r"ALTER_REPLICATION_SLOT .*;", unquoted(text)).group(0)
    replication = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    try:
        with replication.cursor() as cursor:
            cursor.execute(mend)
    finally:
        replication.close()


def failover(conn):
    return conn.rows("SELECT failover FROM pg_replication_slots WHERE slot_name = 'walbus'")


@pytest.mark.every_major(since=17)
def test_failover_slot(server, conn):
    """The router reads it as any other."""
    for _ in range(2):
        assert walbus("setup", "--dsn", server.dsn(), "--failover").status == 0
        assert failover(conn) == [(True,)]
    with Router(server.dsn()) as router:
        sub = router.start().subscriber()
        conn.emit("a", b"")
        assert [m.prefix for m in sub.drain(conn)] == [b"a"]
    assert walbus("teardown", "--dsn", server.dsn()).status == 0
    assert server.slot() is None


@pytest.mark.every_major(since=17)
def test_slot_that_was_to_be_a_failover_slot(bus, conn):
    """It is left alone, and the mend makes it one."""
    text = refused_by_setup(bus.dsn(), "--failover")
    assert failover(conn) == [(False,)]
    alter_slot(bus.dsn(), text)
    assert failover(conn) == [(True,)]
    assert walbus("setup", "--dsn", bus.dsn(), "--failover").status == 0


def test_publication_dropped_while_the_router_runs(router, conn):
    """It alarms, once; messages need no publication and go on."""
    sub = router.subscriber()
    conn.emit("before", b"")
    assert [m.prefix for m in sub.collect(1)] == [b"before"]
    conn.run("DROP PUBLICATION walbus")
    router.wait_log(" error publication-dropped ", 15)
    conn.emit("after", b"")
    assert [m.prefix for m in sub.drain(conn)] == [b"after"]
    # It is looked at every 10 s: once more at least.
    holds_for(lambda: router.process.poll() is None, 11, "the router runs", every=0.5)
    conn.emit("later", b"")
    assert [m.prefix for m in sub.drain(conn)] == [b"later"]
    assert router.log().count("publication-dropped") == 1
    assert router.status()["state"] == "streaming"


def test_physical_slot(server, conn):
    conn.run("CREATE PUBLICATION walbus")
    conn.run("SELECT pg_create_physical_replication_slot('walbus')")
    try:
        both(server.dsn(), "physical", "pgoutput")
    finally:
        server.drop_bus()


@pytest.mark.every_major(until=17)
def test_two_phase_slot(server, conn):
    conn.run("CREATE PUBLICATION walbus")
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput', false, true)")
    try:
        both(server.dsn(), "two_phase", "pg_drop_replication_slot('walbus')", "walbus setup")
    finally:
        server.drop_bus()


@pytest.mark.every_major(since=18)
def test_two_phase_slot_that_can_be_altered(server, conn):
    """18 can switch two_phase off, so nothing need be lost."""
    conn.run("CREATE PUBLICATION walbus")
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput', false, true)")
    conn.emit("kept", b"")
    try:
        both(server.dsn(), "two_phase", "ALTER_REPLICATION_SLOT")
        alter_slot(server.dsn(), refused_by_setup(server.dsn()))
        with Router(server.dsn()) as router:
            router.start()
            assert router.status()["messages"] == 1, "what the slot held"
    finally:
        server.drop_bus()


@pytest.mark.every_major(since=18)
def test_slot_that_was_idle_for_too_long(bus, conn):
    """18 may give a slot up for another reason than its WAL; it is named."""
    bus.reload(idle_replication_slot_timeout="1s")
    try:
        def given_up():
            conn.run("CHECKPOINT")  # looks at the slots
            return conn.rows("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
        wait_for(given_up, 20, "the slot is invalidated", every=0.2)
        log = refused_by_router(bus.dsn(), status=4)
        assert "invalidated" in log and "(idle_timeout)" in log and "pg_drop_replication_slot('walbus')" in log
    finally:
        bus.reload(idle_replication_slot_timeout=None)


def test_publication_missing(server, conn):
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")
    try:
        log = refused_by_router(server.dsn())
        assert 'There is no publication' in log and "walbus setup" in log
        assert "if another one is meant, name it with --publication" in log
    finally:
        server.drop_bus()


def test_wrong_database(bus, conn):
    bus.create_database("wrong")
    both(bus.dsn("wrong"), "belongs to the database", "postgres", "dbname=postgres")


def test_names_are_quoted_in_mends(server, conn):
    """A mend must be fit for pasting."""
    conn.run("""CREATE ROLE "We'ird ""role" LOGIN""")
    try:
        dsn = server.dsn().replace("user=postgres", """user='We\\'ird "role'""")
        text = refused_by_router(dsn)
        assert '''ALTER ROLE "We'ird ""role" REPLICATION''' in unquoted(text), text
    finally:
        conn.run("""DROP ROLE "We'ird ""role" """)


def test_server_in_recovery(server):
    server.stop()
    try:
        standby = Server(copy_of=server)
    finally:
        server.start()
    with standby:
        standby.touch("standby.signal")
        standby.start()
        both(standby.dsn(), "in recovery", "name the primary")


@pytest.mark.parametrize("ignored", [(), ("replication",)], ids=["refuses replication", "swallows replication"])
def test_pooler_in_front(bus, ignored):
    with Pooler(bus, ignored=ignored) as pooler:
        both(pooler.dsn, "pooler", "name host and port of PostgreSQL itself")
        assert bus.slot()["active"] is False


def test_slot_in_use(bus):
    """The router waits, names the holder once, and goes on when the slot is free."""
    holder = psycopg2.connect(bus.dsn(), connection_factory=psycopg2.extras.LogicalReplicationConnection)
    try:
        cursor = holder.cursor()
        cursor.start_replication(slot_name="walbus", options={"proto_version": "1", "publication_names": "walbus"})
        pid = bus.slot()["active_pid"]
        with Router(bus.dsn()) as router:
            router.spawn()
            router.wait_log(rf"\b{pid}\b", 20)
            states = set()
            holds_for(lambda: states.add(router.status()["state"]) or router.process.poll() is None, 3, "it waits")
            assert "waiting" in states and states <= {"waiting", "connecting"}
            named = [line for line in router.log().splitlines() if re.search(rf"\b{pid}\b", line)]
            assert len(named) == 1, named
            cursor.close()
            holder.close()
            router.wait_state("streaming", 40)
            with bus.connect() as conn:
                sub = router.subscriber()
                conn.emit("a", b"")
                assert [m.prefix for m in sub.drain(conn)] == [b"a"]
    finally:
        holder.close()


def test_slot_missing(server, conn):
    conn.run("CREATE PUBLICATION walbus")
    try:
        log = refused_by_router(server.dsn(), status=4)
        assert "walbus" in log and "walbus setup" in log
    finally:
        server.drop_bus()


def test_slot_dropped_while_the_router_is_away(bus):
    with Router(bus.dsn()) as router:
        router.start()
        bus.stop()
        bus.start()
        with bus.connect() as conn:
            def drop():
                try:
                    conn.run("SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE active")
                    conn.run("SELECT pg_drop_replication_slot('walbus')")
                    return True
                except psycopg2.errors.ObjectInUse:
                    return False
            wait_for(drop, 20, "the slot could be dropped")
        assert router.wait_exit(40) == 4, router.log()


def test_invalidated_slot(bus, conn):
    """max_slot_wal_keep_size takes the WAL away from a slot that is far behind."""
    bus.reload(max_slot_wal_keep_size="1MB", max_wal_size="32MB")
    try:
        for _ in range(6):
            conn.run("SELECT pg_logical_emit_message(false, 'fill', convert_to(repeat('x', 1000000), 'UTF8')) "
                     "FROM generate_series(1, 16)")
            conn.run("SELECT pg_switch_wal()")
            conn.run("CHECKPOINT")
        wait_for(lambda: conn.rows("SELECT wal_status FROM pg_replication_slots")[0][0] == "lost", 20,
                 "the slot is invalidated")
        log = refused_by_router(bus.dsn(), status=4)
        assert "invalidated" in log and "pg_drop_replication_slot('walbus')" in log
        setup = walbus("setup", "--dsn", bus.dsn())
        assert setup.status == 1 and "invalidated" in setup.error, setup
    finally:
        bus.reload(max_slot_wal_keep_size=None, max_wal_size=None)


@pytest.mark.once
def test_server_that_is_not_there(server):
    """No reason to end: it is retried."""
    with Router("host=/nonexistent dbname=postgres user=postgres") as router:
        router.spawn()
        wait_for(lambda: router.status() is not None, 20, "the router's socket")
        holds_for(lambda: router.status()["state"] in ("connecting", "waiting"), 2, "it goes on trying", every=0.2)
    done = walbus("setup", "--dsn", "host=/nonexistent dbname=postgres user=postgres")
    assert done.status == 3, done


@pytest.mark.once
def test_server_that_refuses(server):
    """Retried as well; it was reached, and the log says what to mend."""
    with Router(server.dsn(dbname="nope")) as router:
        router.spawn()
        router.wait_log(r"source.unreachable.*The server refuses the connection.*\(dbname=\).*3D000", 20)
        holds_for(lambda: router.process.poll() is None, 1, "it goes on trying", every=0.2)


def test_server_that_starts_later():
    with Server() as own:
        own.start()
        own.create_bus()
        own.stop()
        with Router(own.dsn()) as router:
            router.spawn()
            wait_for(lambda: router.status() is not None, 20, "the router's socket")
            router.wait_log("source.unreachable", 20)
            assert router.status()["state"] in ("connecting", "waiting")
            own.start()
            router.wait_state("streaming", 40)
            sub = router.subscriber()
            with own.connect() as conn:
                conn.emit("a", b"")
                assert [m.prefix for m in sub.drain(conn)] == [b"a"]


@pytest.mark.once
def test_bad_dsn():
    with Router("host=/nonexistent nonsense") as router:
        router.spawn()
        assert router.wait_exit() == 2, router.log()
        assert not os.path.lexists(router.socket)


@pytest.mark.once
def test_two_routers_on_one_socket(router, bus):
    with Router(bus.dsn(), socket=router.socket) as second:
        second.spawn()
        status = second.wait_exit(20)
        assert status == 1, second.log()
        assert router.socket in second.log()
    assert router.status()["state"] == "streaming"
    assert stat.S_ISSOCK(os.lstat(router.socket).st_mode)


@pytest.mark.once
def test_stale_socket_is_replaced(bus, conn):
    with Router(bus.dsn()) as router:
        router.start()
        router.kill()
        assert stat.S_ISSOCK(os.lstat(router.socket).st_mode), "a crash leaves the socket behind"
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"")
        assert [m.prefix for m in sub.drain(conn)][-1] == b"a"


@pytest.mark.once
@pytest.mark.parametrize("kind", ["file", "empty file", "folder", "link to a file", "dangling link", "fifo"])
def test_other_things_at_the_path_are_never_deleted(bus, kind):
    with Router(bus.dsn()) as router:
        other = os.path.join(router.folder, "precious")
        if kind == "folder":
            os.mkdir(router.socket)
        elif kind == "fifo":
            os.mkfifo(router.socket)
        elif kind == "dangling link":
            os.symlink(other, router.socket)
        else:
            path = router.socket
            if kind == "link to a file":
                path = other
                os.symlink(other, router.socket)
            with open(path, "wb") as f:
                f.write(b"" if kind == "empty file" else b"precious")
        before = os.lstat(router.socket)
        router.spawn()
        assert router.wait_exit(20) == 1, router.log()
        after = os.lstat(router.socket)
        assert (before.st_ino, before.st_mode, before.st_size) == (after.st_ino, after.st_mode, after.st_size)
        assert kind == "dangling link" or not os.path.lexists(other) or os.path.getsize(other) == 8
        assert kind != "dangling link" or not os.path.lexists(other)


@pytest.mark.once
def test_socket_path_that_is_too_long(bus):
    with Router(bus.dsn(), socket="/tmp/" + "x" * 103) as router:
        router.spawn()
        assert router.wait_exit(20) == 2, router.log()
        assert "107" in router.log()


LATE_FAULTS = {
    # name: (setting, value below a folder with a file in it, words of the fault)
    "socket too long": ("socket", "/" + "x" * 110, "the socket path has "),
    "socket without its folder": ("socket", "/no/such/walbus.sock", "cannot make the folder "),
    "socket below a file": ("socket", "/file/walbus.sock", "cannot open the folder "),
    "file as socket": ("socket", "/file", "exists and is not a socket"),
    "group": ("socket-group", "no-such-group", 'there is no group "no-such-group"'),
    "state below nothing": ("state-dir", "/no/such/state", "the state folder "),
    "file as state": ("state-dir", "/file", "cannot be made: Not a directory"),
    "state too long": ("state-dir", "/" + "x" * 256, "cannot be made: File name too long"),
    "relative state": ("state-dir", "state", "no absolute path"),
    "dsn": ("dsn", "a=b", "invalid connection option"),
    "policy": ("policy", "a demand", "ignore, verify or require"),
    "trust file": ("trust-file", "/no-trust", "trust file"),
    "allow": ("allow", "user:no-such-user subscribe a", 'there is no user "no-such-user"'),
}


@pytest.mark.once
@pytest.mark.parametrize("source", ["file", "option"])
@pytest.mark.parametrize("fault", LATE_FAULTS)
def test_late_faults_name_their_place(tmp_path, fault, source):
    """What is found wrong with a value only when it is used says where the value stands, as what is found at once."""
    name, value, words = LATE_FAULTS[fault]
    (tmp_path / "file").write_text("")
    settings = {"dsn": "host=/nowhere", "socket": f"{tmp_path}/walbus.sock", "state-dir": f"{tmp_path}/state"}
    if name == "trust-file":
        settings["policy"] = "a require"
    settings[name] = f"{tmp_path}{value}" if value.startswith("/") else value
    lines = ["[walbusd]", *(f"{key} = {text}" for key, text in settings.items() if key != name or source == "file")]
    conf = tmp_path / "walbus.conf"
    conf.write_text("\n".join(lines) + "\n")
    number = lines.index(f"{name} = {settings[name]}") + 1 if source == "file" else None
    option = [] if source == "file" else [f"--{name}={settings[name]}"]
    done = subprocess.run([places.walbusd(), "--config", str(conf), *option], env=places.child_environment(), cwd="/",
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    error = done.stderr.decode().replace('\\"', '"')
    assert done.returncode in (1, 2) and words in error, error
    place = f"{conf}:{number}: " if source == "file" else f"--{name}"
    assert place in error[:error.index(words)], error


@pytest.mark.once
@pytest.mark.parametrize("variable, value, words", [
    ("WALBUS_DSN", "a=b", "invalid connection option"),
    ("RUNTIME_DIRECTORY", "/" + "x" * 110, "the socket path has "),
    ("RUNTIME_DIRECTORY", "/no/such", "cannot make the folder "),
    ("STATE_DIRECTORY", "/no/such", "the state folder "),
])
def test_late_faults_name_their_variable(tmp_path, variable, value, words):
    settings = {"WALBUS_DSN": "host=/nowhere", "RUNTIME_DIRECTORY": str(tmp_path), "STATE_DIRECTORY": f"{tmp_path}/state",
                variable: value}
    done = subprocess.run([places.walbusd(), "--log-level=info"], env=places.child_environment(settings), cwd="/",
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    error = done.stderr.decode()
    assert done.returncode in (1, 2) and f"{variable}: " in error[:error.index(words)], error
