# SPDX-License-Identifier: PostgreSQL
"""Faults that were found once: each stays found."""

import os
import signal
import socket
import subprocess
import time

import pytest
from harness import cbor, places
from harness.command import walbus
from harness.router import Router
from harness.server import Address, Server
from harness.subscriber import (BEGIN, COMMIT, HEADER, HELLO, REPLY, REQUEST, SUBSCRIBE, SUBSCRIBED, WELCOME, Connection,
                                RouterError)
from harness.waiting import Deadline, wait_for


def raw(position):
    return (position.timeline.to_bytes(4, "big") + position.lsn.to_bytes(8, "big") +
            position.index.to_bytes(4, "big"))


def test_large_messages_in_a_row(bus, conn):
    """The connection is renewed after large messages, but not between them: each renewal would begin anew."""
    with Router(bus.dsn()) as router:
        for i in range(8):
            conn.run("SELECT pg_logical_emit_message(%s, %s, convert_to(repeat('x', 20000000), 'UTF8'))",
                     i % 2 == 0, f"large.{i}")
        bus.stop()  # so that the subscriber is there before anything is read
        router.spawn()
        wait_for(lambda: router.status() is not None, 20, "the socket")
        with Connection(router.socket) as sub:
            sub.hello()
            sub.send(SUBSCRIBE, {"filters": [[0, b">"]]})
            bus.start()
            sub.expect(SUBSCRIBED, Deadline(30, "SUBSCRIBED"))
            deadline, came = Deadline(60, "eight large messages"), []
            while len(came) < 8:
                _, frame = sub.receive(deadline)
                if hasattr(frame, "prefix"):
                    came.append(frame.prefix)
            assert came == [b"large.%d" % i for i in range(8)]


@pytest.mark.every_major
def test_resuming_while_an_earlier_transaction_comes_again(server):
    """The end of a transaction that the subscriber had before is not the end of the one it resumes."""
    server.create_bus()
    try:
        with server.connect() as conn:
            conn.run("SELECT pg_create_logical_replication_slot('second', 'pgoutput')")
            with Router(server.dsn()) as router:
                router.start()
                sub = router.subscriber()
                conn.emit("a", b"1")
                conn.begin()
                conn.emit("a", b"2")
                conn.emit("a", b"3")
                conn.commit()
                position = sub.collect(3)[-1].position
        server.stop()
        with Router(server.dsn(), slot="second") as router:
            router.spawn()
            wait_for(lambda: router.status() is not None, 20, "the socket")
            with Connection(router.socket) as again:
                again.hello()
                again.send(SUBSCRIBE, {"filters": [[0, b">"]], "start": "position", "position": raw(position)})
                server.start()
                again.expect(SUBSCRIBED, Deadline(30, "SUBSCRIBED"))
                deadline = Deadline(20, "the end of the transaction")
                kind, begin = again.receive(deadline)
                assert kind == BEGIN and begin.commit_lsn == position.lsn
                kind, commit = again.receive(deadline)
                assert kind == COMMIT and (commit.begin.commit_lsn, commit.messages) == (position.lsn, 2)
        with server.connect() as conn:
            wait_for(lambda: server.slot("second")["active_pid"] is None, 20, "the slot is free")
            conn.run("SELECT pg_drop_replication_slot('second')")
    finally:
        server.drop_bus()


def test_position_beyond_the_wal(router):
    with Connection(router.socket) as sub:
        sub.hello()
        sub.send(SUBSCRIBE, {"filters": [[0, b">"]], "start": "position", "position": b"\xff" * 16})
        with pytest.raises(RouterError) as refused:
            sub.expect(SUBSCRIBED, Deadline(10, "an answer"))
        assert refused.value.code == "invalid" and "beyond" in refused.value.text


@pytest.mark.every_major
def test_earlier_timeline_is_an_older_state(server):
    """A backup of before a promotion takes the promoted server's place."""
    server.stop()
    try:
        promoted, backup = Server(copy_of=server), Server(copy_of=server)
    finally:
        server.start()
    with promoted, backup, Address() as address:
        promoted.touch("standby.signal")
        promoted.start()
        promoted.promote()
        promoted.create_bus()
        address.lead(promoted)
        with Router(address.dsn) as router:
            assert router.start().status()["timeline"] == 2
            promoted.stop()
            address.lead(None)
            backup.start()
            with backup.connect() as conn:
                conn.run("CREATE PUBLICATION walbus")
                conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")
                # and WAL beyond everything that was acknowledged, so that only the timeline tells
                conn.run("SELECT count(pg_logical_emit_message(false, 'x', convert_to(repeat('y', 100000), 'UTF8')))"
                         " FROM generate_series(1, 50)")
            address.lead(backup)
            assert router.wait_exit(40) == 4, router.log()
            assert "server-restored" in router.log()


@pytest.mark.every_major
def test_full_disk_of_the_server_is_no_poisoned_slot():
    """An error that may pass is tried again, however often it comes."""
    with Server(settings={"logical_decoding_work_mem": "64kB"}) as own:
        own.start()
        own.create_bus()
        own.stop()
        spill = os.path.join(own.data, "pg_replslot", "walbus")
        kept = spill + ".kept"
        subprocess.run(["cp", "-a", spill, kept], check=True)
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", spill], check=False,
                               stderr=subprocess.DEVNULL)
        if mount.returncode != 0:
            pytest.skip("no right to mount a tmpfs")
        try:
            subprocess.run(f"cp -a {kept}/. {spill}/ && chown --reference={kept} {spill} && rm -rf {kept}", shell=True,
                           check=True)
            own.start()
            with Router(own.dsn()) as router, own.connect() as conn:
                router.start()
                sub = router.subscriber()
                conn.run("SELECT count(pg_logical_emit_message(true, 'big', convert_to(repeat('x', 20000), 'UTF8')))"
                         " FROM generate_series(1, 100)")
                wait_for(lambda: router.log().count("No space left") >= 1, 30, "the disk is full")
                wait_for(lambda: router.status()["connects"] >= 8, 40, "it is tried again and again")
                assert "slot-poisoned" not in router.log()
                subprocess.run(["mount", "-o", "remount,size=64m", spill], check=True)
                assert len(sub.collect(100, 30)) == 100
            own.stop()
        finally:
            subprocess.run(["umount", "-l", spill], check=True)


def test_stopped_subscribers_with_a_large_message_each(bus, conn):
    """No outbox is full, but all together hold too much: each gets its own out of the journal when it goes on."""
    build = places.plain_build()
    if build is None:
        pytest.skip("memory figures need a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    with Router(bus.dsn(), build=build) as router:
        router.start()
        stopped = [router.subscriber_process(f"big.{i}") for i in range(8)]
        for process in stopped:
            process.freeze()
        reader = router.subscriber("load")
        for i in range(8):
            conn.run("SELECT pg_logical_emit_message(true, %s, convert_to(repeat('x', 12000000), 'UTF8'))", f"big.{i}")
            conn.emit("load", b"x")
            reader.collect(1)
        # 64 MB and twice the largest message, which libpq holds once and hands out once more
        assert router.rss_anon() < (64 << 20) + 2 * 12_000_000
        wait_for(lambda: router.rss_anon() < 64 << 20, 15, "what stopped subscribers hold is given up")
        for process in stopped:
            process.thaw()
        wait_for(lambda: all(s["live"] and s["queued_bytes"] == 0 for s in router.status()["sessions"]
                             if s["state"] == "active"), 60, "all have caught up")
        router.stop()
        assert [process.result()["messages"] for process in stopped] == [1] * 8


def test_status_whatever_others_subscribe_to(router):
    subs = [router.subscriber(*[("exact", b"%04d" % i + filler * 900) for i in range(1024)])
            for filler in (b"x", b"\xff")]
    done = walbus("status", "--socket", router.socket, "--json")
    assert done.status == 0, done
    assert b"and 1020 more" in done.out
    assert len(subs) == 2


def test_patterns_of_very_many_tokens(router):
    """A node is kept for each token, so their number has a limit."""
    router.subscriber(*[b"%d" % i + b"." * 4095 for i in range(2)]).close()
    with pytest.raises(RouterError) as refused:
        router.subscriber(*[b"%d" % i + b"." * 4095 for i in range(2)], "a")
    assert refused.value.code == "protocol" and "8193 tokens" in refused.value.text


def test_heartbeat_that_does_not_come_back(bus, conn):
    with Router(bus.dsn(), args=["--heartbeat-interval", "1s"]) as router:
        router.start()
        pid = bus.walsenders()[0]
        pid = pid if isinstance(pid, int) else pid[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            router.wait_log("heartbeat.missing", 15)
        finally:
            os.kill(pid, signal.SIGCONT)
        router.wait_log("heartbeat.back", 15)
        assert router.log().count("heartbeat.missing") == 1


def test_standard_descriptors_that_are_closed(bus, conn):
    """Whatever opens next would get their numbers, and the log would go into it."""
    with Router(bus.dsn()) as router:
        router.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", router.program, "--dsn", router.dsn, "--socket", router.socket,
             "--state-dir", router.state_dir],
            env=places.child_environment({}), preexec_fn=places.die_with_parent())
        router.wait_state("streaming")
        sub = router.subscriber()
        for _ in range(400):
            with Connection(router.socket) as bad:
                bad.socket.sendall(b"\xff" * 64)
        conn.emit("a", b"1")
        assert sub.seen(sub.collect(1)) == [(b"a", b"1")]
        router.stop()


def test_log_that_nobody_reads(bus, conn):
    """A full pipe at stderr holds nothing up."""
    with Router(bus.dsn()) as router:
        router.process = subprocess.Popen(
            [router.program, "--dsn", router.dsn, "--socket", router.socket,
             "--state-dir", router.state_dir], stderr=subprocess.PIPE,
            env=places.child_environment({}), preexec_fn=places.die_with_parent())
        pipe = router.process.stderr
        router.wait_state("streaming")
        sub = router.subscriber()
        for _ in range(1000):
            with Connection(router.socket) as bad:
                bad.socket.sendall(b"\xff" * 64)
        conn.emit("a", b"1")
        assert sub.seen(sub.collect(1)) == [(b"a", b"1")]
        wait_for(lambda: len(router.status()["sessions"]) == 2, 30, "the bad ones are gone")
        os.set_blocking(pipe.fileno(), False)
        log = b""
        while (piece := pipe.read(1 << 16)):
            log += piece
        sub.close()
        router.stop()
        log += pipe.read() or b""
        assert b"log.dropped" in log and log.endswith(b"\n")


def test_asking_and_not_reading(router, conn):
    """Requests of a client that does not read its answers are left unread, not answered into memory."""
    sub = router.subscriber()
    askers = []
    for _ in range(100):
        asker = Connection(router.socket)
        asker.hello()
        for number in range(40):
            asker.send(7, {"id": number, "what": "status"})
        askers.append(asker)
    conn.emit("a", b"1")
    assert sub.seen(sub.collect(1, 5)) == [(b"a", b"1")]
    # 100 answers of 100 sessions each are some 20 kB: at most four or so wait for each, not forty
    if (build := places.plain_build()) and router.program == places.walbusd(build):
        assert router.rss_anon() < 64 << 20
    for number in range(40):
        reply = askers[0].expect(8, Deadline(20, "the answers, once they are read"))
        assert reply["id"] == number
    for asker in askers:
        asker.close()


MEMORY_MAX = 64 << 20


def flood_memory(router, connections, seconds):
    """The most that the router takes while they are there."""
    most, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        most = max(most, router.rss_anon())
        time.sleep(0.05)
    for connection in connections:
        connection.close()
    return most


@pytest.fixture(name="plain_router")
def plain_router_fixture(bus):
    if places.plain_build() is None:
        pytest.skip("memory figures need a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    with Router(bus.dsn(), build=places.plain_build()) as router:
        yield router.start()


def test_many_that_ask_and_do_not_read(plain_router, conn):
    """Together they took 1.6 GB, and the loop for 15 s."""
    witness = plain_router.subscriber("witness")
    connections = []
    for _ in range(700):
        connection = Connection(plain_router.socket)
        connection.hello()
        connection.send(SUBSCRIBE, {"filters": [[1, b"nothing"]]})
        connection.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))
        connections.append(connection)
    body = cbor.dumps({"id": 1, "what": "status"})
    asking = (HEADER.pack(len(body), REQUEST, 0, 0) + body) * 300
    for connection in connections:
        try:
            connection.send_bytes(asking)
        except OSError:
            pass  # it is let go already
    conn.emit("witness", b"1")
    assert len(witness.collect(1, 10)) == 1
    assert flood_memory(plain_router, connections, 1) < MEMORY_MAX
    conn.emit("witness", b"2")
    assert len(witness.collect(1, 10)) == 1
    assert plain_router.status()["state"] == "streaming"


@pytest.mark.parametrize("greeted", [False, True], ids=["before-hello", "behind-hello"])
def test_many_halves_of_a_frame(plain_router, conn, greeted):
    witness = plain_router.subscriber("witness")
    connections, refused = [], 0
    half = HEADER.pack(1 << 20, SUBSCRIBE if greeted else HELLO, 0, 0) + bytes((1 << 20) - 10)
    for _ in range(100):
        connection = Connection(plain_router.socket)
        connections.append(connection)
        if greeted:
            connection.hello()
        try:
            connection.send_bytes(half)
        except OSError:
            refused += 1
    assert flood_memory(plain_router, connections, 1) < MEMORY_MAX
    assert refused >= 70
    conn.emit("witness", b"1")
    assert len(witness.collect(1, 10)) == 1


def test_many_subscriptions_of_many_tokens(plain_router):
    connections, codes = [], []
    for i in range(40):
        connection = Connection(plain_router.socket)
        connections.append(connection)
        connection.hello()
        tokens = [b"%d_%d" % (i, j) for j in range(8192)]
        connection.send(SUBSCRIBE, {"filters": [[0, b".".join(tokens[k * 256:(k + 1) * 256])] for k in range(32)]})
        try:
            connection.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))
        except RouterError as e:
            codes.append(e.code)
    assert set(codes) == {"limit"} and 10 <= len(codes) <= 30, codes
    assert flood_memory(plain_router, connections, 0.2) < MEMORY_MAX
    wait_for(lambda: len(plain_router.status()["sessions"]) == 1, 10, "they are gone")
    plain_router.subscriber(*[".".join(["x"] * 1000) for _ in range(8)]).close()  # there is room again


def test_half_closed_client_gets_its_answer(router):
    with Connection(router.socket) as connection:
        connection.send(HELLO, {"min": 1, "max": 1, "layout": 1})
        connection.send(REQUEST, {"id": 5, "what": "status"})
        connection.socket.shutdown(socket.SHUT_WR)
        connection.expect(WELCOME, Deadline(10, "WELCOME"))
        assert connection.expect(REPLY, Deadline(10, "REPLY"))["id"] == 5
        connection.closed_by_router()


def test_the_same_filter_very_often(router, conn):
    """Equal filters are one; taking them out again costs no more."""
    subs = [router.subscriber(*[">"] * 1024) for _ in range(50)]
    conn.emit("a", b"1")
    for sub in subs:
        assert sub.seen(sub.collect(1)) == [(b"a", b"1")]
    for sub in subs:
        sub.close()
    last = router.subscriber()
    conn.emit("a", b"2")
    assert last.seen(last.collect(1, 2)) == [(b"a", b"2")]



def test_requests_in_one_piece_are_all_answered(router):
    """Also those that stood in the buffer while answers waited."""
    subs = [router.subscriber(*[("exact", b"%04d" % i + b"x" * 40) for i in range(8)]) for _ in range(8)]
    with Connection(router.socket) as asker:
        asker.hello()
        bodies = [cbor.dumps({"id": n, "what": "status"}) for n in range(100)]
        asker.socket.sendall(b"".join(HEADER.pack(len(b), REQUEST, 0, 0) + b for b in bodies))
        for n in range(100):
            assert asker.expect(REPLY, Deadline(10, f"answer {n}"))["id"] == n
    assert len(subs) == 8


@pytest.mark.every_major
def test_position_at_the_end_of_the_wal(router, conn):
    """It may lie beyond what the router knows of the WAL by its last look-up: then it looks again."""
    conn.run("CREATE TABLE IF NOT EXISTS aside (i int)")
    conn.run("INSERT INTO aside SELECT generate_series(1, 1000)")
    lsn = int(conn.rows("SELECT pg_current_wal_lsn() - '0/0'")[0][0])
    with Connection(router.socket) as sub:
        sub.hello()
        position = (1).to_bytes(4, "big") + lsn.to_bytes(8, "big") + bytes(4)
        sub.send(SUBSCRIBE, {"filters": [[0, b">"]], "start": "position", "position": position})
        assert sub.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))["position"] == position
        conn.emit("a", b"1")
        deadline = Deadline(10, "the message")
        while True:
            _, frame = sub.receive(deadline)
            if hasattr(frame, "prefix"):
                break
        assert frame.content == b"1"


@pytest.mark.every_major
def test_sigterm_while_a_given_up_source_is_drained(bus, conn):
    """Exit 4 waits for a subscriber that reads; an operator's SIGTERM does not."""
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.run("SELECT count(pg_logical_emit_message(true, 'a', convert_to(repeat('x', 100000), 'UTF8')))"
                 " FROM generate_series(1, 150)")
        wait_for(lambda: router.status()["messages"] == 150, 20, "all is queued")
        conn.run("""DO $$ BEGIN LOOP
            PERFORM pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots;
            BEGIN PERFORM pg_drop_replication_slot('walbus'); EXIT;
            EXCEPTION WHEN object_in_use THEN NULL; END;
            END LOOP; END $$""")
        router.wait_log(" error slot-missing ", 20)
        for _ in range(3):
            sub.next(Deadline(5, "a message"))
        router.process.send_signal(signal.SIGTERM)
        assert router.wait_exit(5) == 4
