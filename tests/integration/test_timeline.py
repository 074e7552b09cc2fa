# SPDX-License-Identifier: PostgreSQL
"""Positions carry the timeline of the record, which a promotion changes."""

import contextlib
import os
import re
import signal

import pytest
from harness.command import walbus
from harness.router import Router
from harness.server import Address, Server, format_lsn, one, parse_lsn
from harness.subscriber import Subscriber
from harness.waiting import wait_for

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


@contextlib.contextmanager
def standby_of(primary):
    """A physical standby that follows; it has no replication slots, as one that pg_basebackup makes."""
    with Server(backup_of=primary) as made:
        made.forget_slots()
        made.touch("standby.signal")
        made.set(primary_conninfo=primary.dsn(), hot_standby_feedback="on")
        made.start()
        yield made


def wait_replayed(standby, primary):
    lsn = primary.wal_lsn()
    with standby.connect() as conn:
        wait_for(lambda: one(conn, "SELECT pg_last_wal_replay_lsn() - '0/0'") >= lsn, 20, "the standby has all")


def refusal(router, event):
    """Of a router that must end with 4: the fields of the log line that says why."""
    assert router.wait_exit(40) == 4, router.log()
    assert len(router.logged(event)) == 1, router.log()
    return router.logged(event)[0]


def switch_point(promoted):
    with open(os.path.join(promoted.data, "pg_wal", "00000002.history"), encoding="utf-8") as f:
        return parse_lsn(re.match(r"1\t(\S+)", f.read()).group(1))


@pytest.mark.parametrize("behind", [False, True], ids=["in step", "behind"])
def test_promoted_standby_without_a_slot(own, behind):
    """As docs/operations.md has it: refused, a slot made by setup, refused once more with the range that was not read,
    accepted. A durable name goes on behind a gap and misses nothing of what is new."""
    with Address() as address, Router(address.dsn) as router, standby_of(own) as standby:
        address.lead(own)
        router.start()
        with Subscriber(router.socket, ["a"], name="kept") as sub, own.connect() as conn:
            conn.emit("a", b"1")
            conn.emit("a", b"2")
            first, second = sub.collect(2)
            sub.confirm(first.position)
            wait_replayed(standby, own)
            if behind:  # it will lack what was read last
                standby.reload(primary_conninfo="")
                with standby.connect() as there:
                    wait_for(lambda: not one(there, "SELECT count(*) FROM pg_stat_wal_receiver"), 10,
                             "it follows no more")
                conn.emit("a", b"on 1 alone")
                sub.collect(1)
            wait_for(lambda: own.slot()["confirmed"] >= sub.messages[-1].position.lsn, 10, "it is acknowledged")
        address.lead(None)
        own.stop("immediate")
        standby.promote()
        address.lead(standby)
        refusal(router, "slot-missing")
        with standby.connect() as conn:
            conn.emit("a", b"before the slot")
            assert walbus("setup", "--dsn", standby.dsn()).status == 0
            conn.emit("a", b"new 1")
            conn.emit("a", b"new 2", transactional=False)
            slot = standby.slot()["confirmed"]
            router.spawn()
            told = refusal(router, "slot-moved")
            assert told["slot_confirmed_flush_lsn"] == format_lsn(slot)
            if behind:
                assert told["acknowledged"] == format_lsn(switch_point(standby))  # from there on the histories part
            else:
                assert second.position.lsn <= parse_lsn(told["acknowledged"]) <= switch_point(standby)
            router.args.append("--accept-gap")
            router.start(40)
            router.args.remove("--accept-gap")
            accepted, = router.logged("source.gap-accepted")
            assert (accepted["from"], accepted["to"]) == (told["acknowledged"], format_lsn(slot))
            with Subscriber(router.socket, ["a"], name="kept") as sub:
                assert sub.stored and sub.position >= first.position
                conn.emit("a", b"new 3")
                old = [(1, b"2"), (1, b"on 1 alone")] if behind else [(1, b"2")]
                assert seen(sub, len(old) + 3) == old + [(2, b"new 1"), (2, b"new 2"), (2, b"new 3")]
                gap, = sub.gaps
                assert gap.reason.startswith("accepted by the operator"), gap
                assert second.position < gap.start and gap.end < sub.messages[-3].position
                assert gap.start.timeline <= gap.end.timeline == 2 and gap.end.lsn <= slot
                sub.confirm()
            router.stop()
            conn.emit("a", b"new 4")
            router.start()
            with Subscriber(router.socket, ["a"], name="kept") as sub:
                assert seen(sub, 1) == [(2, b"new 4")] and sub.gaps == []


def test_server_becomes_a_standby(own):
    """The router must not wait there for a promotion that may never come."""
    with Router(own.dsn()) as router:
        router.start()
        own.stop()
        own.touch("standby.signal")
        own.start()
        assert router.wait_exit(40) == 1
        assert " error recovery " in router.log()
