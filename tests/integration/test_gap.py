# SPDX-License-Identifier: PostgreSQL
"""A subscriber that goes on behind a position is told where something may be missing, and only there."""

import pytest
from harness.router import Router
from harness.server import parse_lsn
from harness.subscriber import INDEX_END, Closed, Gap, Position, RouterError, Subscriber
from harness.waiting import Deadline, wait_for

pytestmark = pytest.mark.every_major


def behind(router, position, *filters):
    raw = position.timeline.to_bytes(4, "big") + position.lsn.to_bytes(8, "big") + position.index.to_bytes(4, "big")
    sub = Subscriber(router.socket, filters, start="position", extra={"position": raw})
    sub.checks.last = position
    assert sub.subscribed["position"] == raw
    return sub


def first_gap(sub):
    """The frame behind SUBSCRIBED."""
    frame = sub.next(Deadline(10, "a gap"))
    assert isinstance(frame, Gap), frame
    return frame


def after(position):
    return position._replace(index=position.index + 1)


def assert_reaches(gap, position):
    """To where the router stands: that may be behind what another subscriber has, by a heartbeat, not before it."""
    assert gap.end >= position


def ended(sub, seconds=10):
    """Where it stands when the router has closed it, and why."""
    try:
        while True:
            sub.next(Deadline(seconds, "the end"))
    except RouterError as e:
        return sub.checks.last, e.code
    except Closed:
        return sub.checks.last, None


SMALL = ["--segment-size", "1MB", "--journal-size", "4MB"]


def fill(conn, megabytes, prefix="fill"):
    """So much of a journal, 100 kB a message."""
    conn.run("SELECT count(pg_logical_emit_message(false, %s, convert_to(repeat('x', 100000), 'UTF8')))"
             " FROM generate_series(1, %s)", prefix, megabytes * 10)


def oldest(router):
    timeline, lsn, index = router.status()["journal"]["oldest"].split(":")
    return Position(int(timeline), parse_lsn(lsn), int(index))


def test_position_that_has_passed(router, conn):
    """It is read from the journal: nothing is missing."""
    sub = router.subscriber()
    for i in range(3):
        conn.emit("a", str(i).encode())
    messages = sub.collect(3)
    first = Position(messages[0].position.timeline, messages[0].position.lsn, INDEX_END)
    with behind(router, first) as other:
        assert other.seen(other.drain(conn)) == [(b"a", b"1"), (b"a", b"2")]
        assert other.gaps == []


def test_position_that_the_journal_has_lost(bus, conn):
    with Router(bus.dsn(), args=SMALL) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"1")
        first = sub.collect(1)[0].position
        for _ in range(6):
            fill(conn, 2)
            sub.drain(conn)
        end = Position(first.timeline, first.lsn, INDEX_END)
        wait_for(lambda: oldest(router) > end, 10, "the first is dropped")
        with behind(router, end, "a") as other:
            gap = first_gap(other)
            assert gap.start == Position(end.timeline, end.lsn + 1, 0)
            assert end < gap.end <= oldest(router)
            conn.emit("a", b"2")
            assert other.seen(other.collect(1)) == [(b"a", b"2")]
        with behind(router, first) as other:  # inside a transaction: its rest is in the gap too
            assert first_gap(other).start == after(first)
            assert other.begins == []


def test_newest_position_has_no_gap(router, conn):
    sub = router.subscriber()
    conn.emit("a", b"1")
    sub.collect(1)
    with behind(router, sub.checks.last) as other:
        conn.emit("a", b"2")
        assert other.seen(other.drain(conn)) == [(b"a", b"2")]
        assert other.gaps == []


def test_clean_restart_has_no_gap(bus, conn):
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"1")
        sub.collect(1)
        router.stop()
        position, code = ended(sub)
        assert code == "stopping"
        router.start()
        with behind(router, position) as again:
            conn.emit("a", b"2")
            assert again.seen(again.drain(conn)) == [(b"a", b"2")]
            assert again.gaps == []


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_what_passes_during_a_restart_is_no_gap(bus, conn, kill):
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"1")
        sub.collect(1)
        if kill:
            router.kill()
        else:
            router.stop()
        position, _ = ended(sub)
        conn.emit("a", b"2")
        router.start()
        router.subscriber().drain(conn)
        with behind(router, position, "a") as again:
            conn.emit("a", b"3")
            assert again.seen(again.collect(2)) == [(b"a", b"2"), (b"a", b"3")]
            assert again.gaps == []
