# SPDX-License-Identifier: PostgreSQL
"""A subscriber that does not read delays nobody, and does not make the router grow."""

import threading
import time
from contextlib import closing

import psycopg2
import psycopg2.extras
import pytest
from faults.schedule import faults_of
from harness import places
from harness.router import Router
from harness.subscriber import MESSAGE, SUBSCRIBE, SUBSCRIBED, Connection, Subscriber, parse_filters
from harness.waiting import Deadline, wait_for

MEMORY_MAX = 64 << 20
# For a round of messages behind a stopped subscriber, on any machine…
ROUND_SECONDS = 5
# … or so many times what one took before the subscriber was stopped: the machine may be busy, and get busier.
ROUND_FACTOR = 10

# bytes of a content, messages in a round, rounds: 120 MB of the small ones, whose frames are half as much again, else 200
SHAPES = {"small": (300, 20_000, 20), "60 kB": (60_000, 170, 20), "100 kB": (100_000, 100, 20),
          "1 MB": (1_000_000, 10, 20)}
EVERYWHERE = "60 kB"  # the quickest


def read_round(reader, count, limit=60):
    """Returns how long the next one may take."""
    began = time.monotonic()
    reader.collect(count, seconds=limit)
    reader.messages.clear()
    return max(ROUND_SECONDS, ROUND_FACTOR * (time.monotonic() - began))


def assert_got_all(router, processes, count):
    """Whoever was stopped gets from the journal what went by meanwhile, and nothing else."""
    for process in processes:
        process.thaw()
    pids = {process.process.pid for process in processes}

    def caught_up():
        sessions = [s for s in router.status()["sessions"] if s["pid"] in pids]
        return len(sessions) == len(pids) and all(s["live"] and s["queued_bytes"] == 0 for s in sessions)
    wait_for(caught_up, 120, "those that were stopped have caught up", every=0.2)
    router.stop()
    for process in processes:
        result = process.result()
        # None: the machine is so busy that the frame with the reason was not read in time
        assert result["messages"] == count and result["code"] in ("stopping", None), result


LAG_ROUNDS = 3
LAG_ROUNDS_BUSY = 10
LAG_SECONDS = 3


def worst_lag(bus, build, freeze):
    """Longest time from the end of a commit to its message's arrival at a reader, in seconds, some 20 MB a second passing by."""
    with Router(bus.dsn(), build=build) as router, bus.connect() as conn:
        router.start()
        reader = router.subscriber(keep=0)
        other = router.subscriber_process()
        if freeze:
            other.freeze()
        ends = time.monotonic() + LAG_SECONDS
        committed, arrived = [], []

        def emit():
            while time.monotonic() < ends:
                conn.run("SELECT count(pg_logical_emit_message(true, 'load', convert_to(repeat('x', 10000), 'UTF8'))), "
                         "pg_logical_emit_message(true, 'at', '') FROM generate_series(1, 40)")
                committed.append(time.monotonic())  # the server's disk, which may be busy, is none of the router's
                time.sleep(0.02)
            conn.emit("done", b"")

        emitter = threading.Thread(target=emit)
        emitter.start()
        deadline = Deadline(60, "the last message")
        while (prefix := getattr(reader.next(deadline), "prefix", None)) != b"done":
            if prefix == b"at":
                arrived.append(time.monotonic())
        emitter.join()
        other.close()
        assert len(arrived) == len(committed) > 10
        return max(there - here for there, here in zip(arrived, committed))


def test_stopped_subscriber_delays_nobody(bus):
    """The machine may be busy in one round, but waiting for a stopped one would cost each round."""
    build = places.plain_build()
    if build is None:
        pytest.skip("the latency is of a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    with_stopped, without = [], []
    rounds = LAG_ROUNDS
    while len(without) < rounds:
        without.append(worst_lag(bus, build, freeze=False))
        with_stopped.append(worst_lag(bus, build, freeze=True))
        if len(without) == LAG_ROUNDS and min(with_stopped) > min(without) + 0.1:
            rounds = LAG_ROUNDS_BUSY
    assert min(with_stopped) < min(without) + 0.1, (with_stopped, without)


def test_stopped_filtered_subscribers(bus, conn):
    """What a queue of many small ranges takes is counted too."""
    build = places.plain_build()
    if build is None:
        pytest.skip("memory figures need a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    with Router(bus.dsn(), build=build) as router:
        router.start()
        reader = router.subscriber("load.>")

        def emit():
            conn.run("SELECT count(pg_logical_emit_message(true, CASE i % 2 WHEN 0 THEN 'load.a' ELSE 'load.b' "
                     "END, '')) FROM generate_series(1, 20000) i")
        emit()
        limit = read_round(reader, 20_000)
        stopped = [router.subscriber_process("load.a", "mark") for _ in range(60)]
        for process in stopped:
            process.freeze()
        with router.watched_memory() as memory:
            for _ in range(15):
                emit()
                read_round(reader, 20_000, limit)
        assert memory.most < MEMORY_MAX, memory.most
        for process in stopped[2:]:
            process.close()
        assert_got_all(router, stopped[:2], 15 * 10_000)


def one_stopped(bus, conn, shape):
    build = places.plain_build()
    if build is None:
        pytest.skip("memory figures need a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    size, count, rounds = SHAPES[shape]
    with Router(bus.dsn(), build=build) as router:
        router.start()
        reader = router.subscriber(keep=0)
        filtered = router.subscriber("load.none", "test.>")
        stopped = router.subscriber_process()

        def emit():
            conn.run("SELECT count(pg_logical_emit_message(true, 'load.all', convert_to(repeat('x', %s), 'UTF8'))) "
                     "FROM generate_series(1, %s)", size, count)
        emit()
        limit = read_round(reader, count)
        stopped.freeze()
        frozen_at = time.monotonic()
        with router.watched_memory() as memory:
            for n in range(rounds):
                emit()
                read_round(reader, count, limit)
                assert memory.most < MEMORY_MAX, f"{memory.most >> 20} MB in round {n + 1}"
        assert memory.most < MEMORY_MAX, memory.most
        filtered.drain(conn)
        conn.emit("load.none", b"")
        assert [m.prefix for m in filtered.drain(conn)] == [b"load.none"]
        assert router.rss_anon() < MEMORY_MAX
        assert_got_all(router, [stopped], count * (rounds + 1) + 3)  # and two marks, and what is filtered


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != EVERYWHERE])
def test_one_stopped_subscriber(bus, conn, shape):
    one_stopped(bus, conn, shape)


@pytest.mark.every_major
def test_one_stopped_subscriber_on_every_major(bus, conn):
    """How fast a server sends, and in which pieces, is its own."""
    one_stopped(bus, conn, EVERYWHERE)


def test_many_stopped_subscribers(bus, conn):
    """Each message is in memory once, however many wait for it."""
    build = places.plain_build()
    if build is None:
        pytest.skip("memory figures need a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    with Router(bus.dsn(), build=build) as router:
        router.start()
        reader = router.subscriber()

        def emit():
            conn.run("SELECT count(pg_logical_emit_message(true, 'load', convert_to(repeat('x', 1000), 'UTF8'))) "
                     "FROM generate_series(1, 10000)")
        emit()
        limit = read_round(reader, 10_000)
        stopped = [router.subscriber_process() for _ in range(8)]
        for process in stopped:
            process.freeze()
        with router.watched_memory() as memory:
            for _ in range(10):
                emit()
                read_round(reader, 10_000, limit)
        assert memory.most < MEMORY_MAX, memory.most
        assert_got_all(router, stopped, 10 * 10_000)


def test_a_short_pause_is_forgiven(router, conn):
    """A megabyte in small pieces is no reason to close anybody."""
    paused = router.subscriber_process()
    paused.freeze()
    reader = router.subscriber()
    for _ in range(1000):
        conn.emit("load", b"x" * 1000)
    reader.collect(1000)
    paused.thaw()
    conn.emit("load", b"")
    reader.collect(1)
    wait_for(lambda: all(s["queued_bytes"] == 0 for s in router.status()["sessions"]), 30, "all is sent")
    router.stop()
    result = paused.result()
    # None: the machine is so busy that it did not read the rest within ROUTER_DRAIN_MS, and the frame with the reason
    # found no room behind it.
    assert result["messages"] == 1001 and result["code"] in ("stopping", None), result


BACKLOG_MESSAGES = 100_000
BACKLOG_SIZE = 2000  # 200 MB, many times what the router holds
BACKLOG_EACH = 1000  # of a transaction


@pytest.mark.parametrize("pause", [0, 0.05], ids=["no pause", "pauses"])
def test_backlog_beside_a_stopped_subscriber(bus, pause):
    """A reader gets all that waits in the slot, although another does not read: one that reads as fast as Python can,
    and one that works 50 ms after each 2 MB. And so does the other, once it reads."""
    with bus.connect() as conn:
        for first in range(0, BACKLOG_MESSAGES, BACKLOG_EACH):
            conn.run("SELECT count(pg_logical_emit_message(true, 'backlog', int4send(i) || "
                     "decode(repeat('ab', %s), 'hex'))) FROM generate_series(%s, %s) i",
                     BACKLOG_SIZE - 4, first + 1, first + BACKLOG_EACH)
    plain = places.plain_build()
    holder = psycopg2.connect(bus.dsn(), connection_factory=psycopg2.extras.LogicalReplicationConnection)
    with Router(bus.dsn(), build=plain) as router, closing(holder):
        # both subscribe before the stream begins, which waits as long as another has the slot
        holder.cursor().start_replication(slot_name="walbus", options={"proto_version": "1",
                                                                       "publication_names": "walbus"})
        router.spawn()
        wait_for(lambda: router.status() is not None, 20, "the router's socket")
        failures = []
        numbers = []

        def read():
            try:
                with Subscriber(router.socket, ["backlog"], seconds=60, keep=4) as sub:
                    deadline = Deadline(150, "the backlog")
                    while len(numbers) < BACKLOG_MESSAGES:
                        sub.next(deadline)
                        if len(sub.messages) == BACKLOG_EACH:
                            numbers.extend(int.from_bytes(m.content, "big") for m in sub.messages)
                            sub.messages.clear()
                            time.sleep(pause)
            except Exception as e:  # shown by the assertion below
                failures.append(e)

        reader = threading.Thread(target=read)
        with Connection(router.socket) as stopped:
            stopped.hello()
            stopped.send(SUBSCRIBE, {"filters": parse_filters([">"])})
            reader.start()
            wait_for(lambda: [s["state"] for s in router.status()["sessions"]].count("waiting") == 2, 20, "both wait")
            with router.watched_memory() as memory:
                holder.close()
                reader.join(200)
            assert failures == []
            assert numbers == list(range(1, BACKLOG_MESSAGES + 1))
            deadline = Deadline(100, "the backlog of the one that did not read")
            stopped.expect(SUBSCRIBED, deadline)
            count = 0
            while count < BACKLOG_MESSAGES:
                count += stopped.receive(deadline)[0] == MESSAGE
        if plain:
            assert memory.most < MEMORY_MAX, memory.most


# What FAULT_SLOW_MS adds to what waits for the disk.
SLOW_SECONDS = 0.3
# The machine may be busy for one: a wait on the loop would show in each.
ANSWER_ROUNDS = 4
# Of each: what makes it happen over and over while the router is asked.
DISK_POINTS = ["journal-read", "journal-write", "journal-sync", "journal-segment", "journal-retry", "catalog-commit"]


@pytest.mark.parametrize("point", DISK_POINTS)
def test_a_slow_disk_keeps_nobody_waiting(bus, conn, point):
    """Each wait for it is on a thread of its own: whoever asks the router meanwhile is answered as always."""
    if point not in faults_of(places.walbusd()):
        pytest.skip("this walbusd was built without -Dfaults=true")
    faults = f"{point}=slow" + (",journal-sync=EIO" if point == "journal-retry" else "")
    content = b"x" * 20_000
    with Router(bus.dsn(), args=["--segment-size", "1MB"]) as router:
        router.start()
        with Subscriber(router.socket, (), name="away"):
            pass
        for _ in range(3):
            conn.run("SELECT count(pg_logical_emit_message(true, 'a', %s)) FROM generate_series(1, 100)", content)
        router.subscriber(keep=1).drain(conn)
        router.stop()
        router.env = {"WALBUS_FAULT": faults}
        router.spawn()
        wait_for(router.status, 30, "the router answers")
        over = threading.Event()

        def work():
            """The journal is read from its start, written, synced, and the catalog too, again and again."""
            with bus.connect() as own, Subscriber(router.socket, (), name="away", start="stored", keep=1) as sub:
                own.run("SET synchronous_commit = off")
                while not over.is_set():
                    own.emit("a", content)
                    try:
                        sub.next(Deadline(0.05, "something"))
                    except TimeoutError:
                        continue
                    sub.acknowledge()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(ANSWER_ROUNDS):
                took = []
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    began = time.monotonic()
                    assert router.status(30)
                    took.append(time.monotonic() - began)
                # Were they on the loop, whoever is being answered when one begins would wait for all of it: five times at least, as
                # what has failed is tried once a second.
                if sorted(took)[-3] < 0.8 * SLOW_SECONDS:
                    break
        finally:
            over.set()
            worker.join()
        assert sorted(took)[-3] < 0.8 * SLOW_SECONDS, sorted(took)[-10:]
