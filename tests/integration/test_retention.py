# SPDX-License-Identifier: PostgreSQL
"""A journal with little room: how large it gets, who is waited for, and who loses what."""

import threading
import time

import pytest
from harness import places
from harness.command import walbus
from harness.router import Router
from harness.server import stop_fast
from harness.subscriber import INDEX_END, Commit, Gap, Subscriber, request
from harness.waiting import Deadline, wait_for

MB = 1 << 20
LIMIT = 8 * MB
SIZE = 50_000
# One segment and one transaction.
SLACK = 1 * MB + SIZE + 1000


def small(bus, when_full):
    return Router(bus.dsn(), args=["--segment-size", "1MB", "--journal-size", "8MB", "--when-full", when_full])


def journal_bytes(router):
    return router.status()["journal"]["bytes"]


def emit(conn, count, prefix="load", first=0):
    """Small transactions, each of one message, whose number it begins with."""
    conn.run(f"""DO $$ BEGIN FOR i IN {first}..{first + count - 1} LOOP
                     PERFORM pg_logical_emit_message(true, '{prefix}', int4send(i) || decode(repeat('ab', {SIZE - 4}), 'hex'));
                     COMMIT;
                 END LOOP; END $$""")


def number(message):
    return int.from_bytes(message.content, "big")


class Largest:
    """The journal's largest size while the block runs."""

    def __init__(self, router):
        self.router = router
        self.most = 0
        self.over = threading.Event()
        self.watcher = threading.Thread(target=self.look)

    def look(self):
        while not self.over.wait(0.02):
            self.most = max(self.most, journal_bytes(self.router))

    def __enter__(self):
        self.watcher.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.watcher.join()


def away(router, *filters, name="away"):
    """A durable name whose subscriber has left."""
    with Subscriber(router.socket, filters, name=name):
        pass
    wait_for(lambda: not router.status()["subscriptions"][0]["connected"], 10, "it has left")


def test_it_stays_within_its_limit(bus, conn):
    """16 times as much goes by, and a durable name that keeps up, and one that nothing matches, hold nothing back."""
    with small(bus, "pause") as router:
        router.start()
        away(router, "nothing.>")
        sub = Subscriber(router.socket, (), name="reader", keep=4)
        with Largest(router) as largest:
            emitter = threading.Thread(target=emit, args=(bus.connect(), 2600))
            emitter.start()
            while len(sub.messages) < 2600:
                sub.next(Deadline(60, "all of them"))
                if sub.checks.begin is None:
                    sub.acknowledge()
            emitter.join()
        assert [number(m) for m in sub.messages] == list(range(2600))
        assert largest.most <= LIMIT + SLACK, largest.most
        assert " subscription=away " not in router.log()  # the reader may be the slower one where the machine is busy
        sub.close()


def test_pause(bus, conn):
    """Nothing is lost for who is away, and reading waits; it goes on by itself when he has come."""
    with small(bus, "pause") as router:
        router.start()
        away(router)
        with Largest(router) as largest:
            emit(conn, 600)
            router.wait_state("paused")
            status = router.status()
            assert "away" in status["last_error"] and status["messages"] < 600
            with Subscriber(router.socket, (), name="away", start="stored", keep=4) as sub:
                while len(sub.messages) < 600:
                    sub.next(Deadline(60, "what waited in the server too"))
                    if sub.checks.begin is None:
                        sub.acknowledge()
                assert [number(m) for m in sub.messages] == list(range(600))
                assert sub.gaps == []
        assert largest.most <= LIMIT + SLACK, largest.most
        router.wait_state("streaming")
        assert router.log().count(" journal.full ") >= 1 and " subscription=away " in router.log()


def test_pause_ends_when_the_name_is_removed(bus, conn):
    with small(bus, "pause") as router:
        router.start()
        away(router)
        emit(conn, 300)
        router.wait_state("paused")
        assert request(router.socket, "remove", {"name": "away"}) == {"name": "away"}
        router.wait_state("streaming")
        sub = router.subscriber(keep=4)
        sub.drain(conn)


def test_a_paused_router_does_not_hold_up_the_server(bus, conn):
    with small(bus, "pause") as router:
        router.start()
        away(router)
        emit(conn, 300)
        router.wait_state("paused")
        stop_fast(bus)
        bus.start()
        with Subscriber(router.socket, (), name="away", start="stored", keep=4) as sub:
            while len(sub.messages) < 300:
                sub.next(Deadline(60, "what waited in the server too"))
                if sub.checks.begin is None:
                    sub.acknowledge()
        assert [number(m) for m in sub.messages] == list(range(300))


def test_discard(bus, conn):
    """The oldest goes, and who is away is told how much that was."""
    with small(bus, "discard") as router:
        router.start()
        away(router)
        live = router.subscriber(keep=4)
        with Largest(router) as largest:
            got = []
            for first in range(0, 600, 60):  # or one that follows slowly is behind by the whole journal
                emit(conn, 60, first=first)
                got += live.collect(60, 60)
            assert [number(m) for m in got] == list(range(600))
        assert largest.most <= LIMIT + SLACK, largest.most
        with Subscriber(router.socket, (), name="away", start="stored", keep=4) as sub:
            gap = sub.next(Deadline(10, "the gap"))
            assert isinstance(gap, Gap), gap
            while not sub.messages or number(sub.messages[-1]) < 599:
                sub.next(Deadline(60, "the rest"))
            assert [number(m) for m in sub.messages] == list(range(gap.messages, 600))
            assert gap.bytes == gap.messages * SIZE
            assert len(sub.gaps) == 1
        assert " journal.discarded " in router.log()


@pytest.mark.every_major
def test_a_paused_router_does_not_hold_up_a_checkpoint(server):
    """max_slot_wal_keep_size is passed while reading waits: the server lets go of the slot, and the router says so."""
    server.reload(max_slot_wal_keep_size="1MB", max_wal_size="32MB")
    server.create_bus()
    try:
        with server.connect() as conn, small(server, "pause") as router:
            router.start()
            away(router)
            emit(conn, 300)
            router.wait_state("paused")
            emit(conn, 1500)
            conn.run("SET statement_timeout = '60s'")
            for _ in range(2):
                conn.run("CHECKPOINT")
            assert router.wait_exit(60) == 4
            line, = router.logged("slot-invalidated")
            assert line["acknowledged"]
            assert router.logged("source.wal-short")
    finally:
        server.drop_bus()
        server.reload(max_slot_wal_keep_size=None, max_wal_size=None)


def test_few_descriptors(bus, conn, tmp_path):
    """Each segment keeps one: with many small ones the journal is full before its size says so, and goes on."""
    program = tmp_path / "walbusd"
    program.write_text(f"#!/bin/sh\nulimit -n 60\nexec {places.walbusd()} \"$@\"\n")
    program.chmod(0o755)
    with Router(bus.dsn(), args=["--segment-size", "1MB", "--journal-size", "1GB", "--when-full", "discard"]) as router:
        router.program = str(program)
        router.start()
        line, = router.logged("journal.few-descriptors")
        assert line["files"] == "1024" and int(line["files_at_most"]) < 10
        away(router)
        live = router.subscriber(keep=4)
        for first in range(0, 600, 60):
            emit(conn, 60, first=first)
            assert [number(m) for m in live.collect(60, 60)] == list(range(first, first + 60))
        wait_for(lambda: router.status()["journal"]["bytes"] <= 10 * MB, 20, "the oldest have gone")
        assert " journal.failed " not in router.log()


def test_what_is_too_old_goes(bus, conn):
    """`journal-age`: what nobody waits for goes once the segment behind it was begun so long ago, and not before; what
    somebody waits for stays."""
    with Router(bus.dsn(), args=["--segment-size", "1MB", "--journal-size", "1GB", "--journal-age", "10s"]) as router:
        router.start()
        away(router)
        emit(conn, 160)
        wait_for(lambda: journal_bytes(router) > 7 * MB, 20, "eight segments")
        time.sleep(14)
        assert journal_bytes(router) > 7 * MB
        assert walbus("subscriptions", "rm", "away", "--socket", router.socket).status == 0
        wait_for(lambda: journal_bytes(router) < 5 * MB, 20, "the old ones have gone")
        emit(conn, 160, first=160)
        wait_for(lambda: journal_bytes(router) > 7 * MB, 9, "these are not old")
        wait_for(lambda: journal_bytes(router) < 5 * MB, 40, "now they are")


def emit_whole(conn, count, prefix="big"):
    """One transaction of so many messages."""
    conn.run(f"SELECT count(pg_logical_emit_message(true, '{prefix}', int4send(i::int) || "
             f"decode(repeat('ab', {SIZE - 4}), 'hex'))) FROM generate_series(0, {count - 1}) i")


def read_acknowledging_commits(sub, count):
    """Reads on until so many messages have come in whole transactions; acknowledges each at its COMMIT only."""
    deadline = Deadline(90, f"{count} messages")
    while len(sub.messages) < count or sub.checks.begin is not None:
        if isinstance(sub.next(deadline), Commit):
            sub.acknowledge()


@pytest.mark.parametrize("when_full", ["pause", "discard"])
def test_a_transaction_larger_than_the_journal(bus, conn, when_full):
    """A subscriber that follows, and acknowledges when it is whole, gets it whole."""
    count = 600
    with small(bus, when_full) as router:
        router.start()
        sub = Subscriber(router.socket, (), name="whole", keep=4)
        emit_whole(conn, count)
        assert [number(m) for m in sub.collect(count, 60)] == list(range(count))
        assert [(c.messages, c.incomplete) for c in sub.commits] == [(count, False)] and sub.gaps == []
        sub.confirm()
        emit(conn, 20, "behind")
        assert len(sub.collect(20, 60)) == 20
        sub.confirm()
        wait_for(lambda: journal_bytes(router) <= LIMIT + SLACK, 20, "the journal is within its limit again")
        sub.close()
        with Subscriber(router.socket, (), name="whole", start="stored", keep=4) as again:
            emit(conn, 1, "again", 7)
            assert [number(m) for m in again.collect(1)] == [7] and again.gaps == []


def test_a_transaction_larger_than_the_journal_waits(bus, conn):
    """pause: who was away gets it whole, also when it breaks off in the middle; and reading goes on."""
    count = 600
    with small(bus, "pause") as router:
        router.start()
        away(router)
        emit_whole(conn, count)
        emit(conn, 300, "behind")
        router.wait_state("paused")
        wait_for(lambda: router.status()["subscriptions"][0]["lag_messages"] >= count, 30,
                 "what has begun is read to its end")
        with Subscriber(router.socket, (), name="away", keep=4) as sub:
            while len(sub.messages) < count // 2:
                sub.next(Deadline(60, "half of it"))
            assert [number(m) for m in sub.messages] == list(range(count // 2)) and sub.gaps == []
        with Subscriber(router.socket, (), name="away", keep=4) as sub:
            read_acknowledging_commits(sub, count + 300)
            assert [number(m) for m in sub.messages] == [*range(count), *range(300)]
            assert sub.gaps == [] and sub.is_redelivered(sub.messages[count // 2 - 1])
            assert [(c.messages, c.incomplete) for c in sub.commits] == [(count, False)] + [(1, False)] * 300
        router.wait_state("streaming")
        wait_for(lambda: journal_bytes(router) <= LIMIT + SLACK, 20, "the journal is within its limit again")
        assert " journal.discarded " not in router.log()


def test_a_transaction_larger_than_the_journal_is_lost_whole(bus, conn):
    """discard: nobody waits. Who was away is told the number of all its messages, since half a transaction is of no use to
    anybody, and gets what is behind it."""
    count = 600
    with small(bus, "discard") as router:
        router.start()
        away(router)
        live = router.subscriber(keep=4)
        emit_whole(conn, count)
        emit(conn, 20, "behind")
        deadline = Deadline(60, "the last message")
        while not live.messages or (live.messages[-1].prefix, number(live.messages[-1])) != (b"behind", 19):
            live.next(deadline)
        got = [number(m) for m in live.messages]
        assert got[0] == 0 and got[-20:] == [*range(20)] and got[:-20] == sorted(set(got[:-20]))
        if not live.gaps:  # nobody waits for it either, when it is slow
            assert got == [*range(count), *range(20)]
            assert [(c.messages, c.incomplete) for c in live.commits] == [(count, False)] + [(1, False)] * 19  # and one to come
        wait_for(lambda: journal_bytes(router) <= LIMIT + SLACK, 20, "the journal is within its limit again")
        with Subscriber(router.socket, (), name="away", keep=4) as sub:
            assert [(m.prefix, number(m)) for m in sub.collect(20, 60)] == [(b"behind", i) for i in range(20)]
            gap, = sub.gaps
            assert (gap.messages, gap.bytes) == (count, count * SIZE)
            assert gap.start <= live.messages[0].position and gap.end[:2] == live.messages[0].position[:2]
            assert gap.end.index == INDEX_END and not any(c.incomplete for c in sub.commits)
            sub.confirm()
        with Subscriber(router.socket, (), name="away", keep=4) as sub:
            emit(conn, 1, "again", 7)
            assert [number(m) for m in sub.collect(1)] == [7] and sub.gaps == []
        assert " journal.discarded " in router.log() and " journal.full " not in router.log()


@pytest.mark.parametrize("where", ["oldest", "time", "sought", "time, a name", "time, a name elsewhere"])
def test_the_oldest_is_a_part_of_a_transaction(bus, conn, where):
    """Who asks for the oldest, or for a time before it, is told that a beginning is missing, and is not given a part as the
    whole, or as the rest of what he has had."""
    count = 600
    started = int(time.time() * 1_000_000)
    with small(bus, "discard") as router:
        router.start()
        if where in ("sought", "time, a name elsewhere"):
            away(router, "nothing.>")
        live = router.subscriber(keep=4)
        emit_whole(conn, count)
        emit(conn, 1, "behind")
        live.collect_to(b"behind", 60)  # where the machine is busy it may lose some, too
        wait_for(lambda: journal_bytes(router) <= LIMIT + SLACK, 20, "the journal is within its limit again")
        if where == "sought":
            request(router.socket, "seek", {"name": "away", "position": "oldest"})
        how = {"oldest": {"start": "oldest"}, "time": {"start": started}, "sought": {"start": "stored", "name": "away"},
               "time, a name": {"start": started, "name": "new"},
               "time, a name elsewhere": {"start": started, "name": "away", "override": True}}[where]
        with Subscriber(router.socket, (), keep=4, **how) as sub:
            frame = sub.next(Deadline(20, "a gap"))
            assert isinstance(frame, Gap), frame
            while not sub.commits:
                sub.next(Deadline(20, "what is behind"))
            assert [m.prefix for m in sub.messages] == [b"behind"] and not sub.commits[0].incomplete
            assert frame.end[:2] == live.begins[0][:2] and frame.end.index == INDEX_END


@pytest.mark.skipif(places.plain_build() is None, reason="1 GB through sanitizers takes minutes")
def test_a_gigabyte_in_64_mb(bus, conn):
    """The size that an operator may set, with 16 times as much going by: the limit, one transaction and one segment."""
    size, each, limit, segment = 100_000, 10, 64 * MB, 4 * MB
    transactions = (1 << 30) // (size * each) + 1
    options = ["--segment-size", "4MB", "--journal-size", "64MB", "--when-full", "pause"]
    with Router(bus.dsn(), build=places.plain_build(), args=options) as router:
        router.start()
        away(router, "nothing.>")
        with Largest(router) as largest, Subscriber(router.socket, (), name="reader", keep=4) as sub, \
                bus.connect() as other:
            emitter = threading.Thread(target=other.run, args=(f"""DO $$ BEGIN FOR i IN 0..{transactions - 1} LOOP
                     PERFORM pg_logical_emit_message(true, 'load', int4send(i * {each} + j) ||
                             decode(repeat('ab', {size - 4}), 'hex')) FROM generate_series(0, {each - 1}) j;
                     COMMIT;
                 END LOOP; END $$""",))
            emitter.start()
            read_acknowledging_commits(sub, transactions * each)
            emitter.join()
        assert [number(m) for m in sub.messages] == list(range(transactions * each))
        assert sub.gaps == [] and " subscription=away " not in router.log()
        assert limit / 2 < largest.most <= limit + segment + each * (size + 1000), largest.most
