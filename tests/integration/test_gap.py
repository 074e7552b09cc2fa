# SPDX-License-Identifier: PostgreSQL
"""A subscriber that goes on behind a position is told where something may be missing, and only there."""

import pytest
from harness.router import Router
from harness.subscriber import INDEX_END, Closed, Gap, Position, RouterError, Subscriber
from harness.waiting import Deadline

pytestmark = pytest.mark.every_major

UNKNOWN = 2**64 - 1


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


def test_position_that_has_passed(router, conn):
    sub = router.subscriber()
    for i in range(3):
        conn.emit("a", str(i).encode())
    messages = sub.collect(3)
    end = sub.checks.last
    first = Position(messages[0].position.timeline, messages[0].position.lsn, INDEX_END)
    with behind(router, first) as other:
        gap = first_gap(other)
        assert gap.start == Position(first.timeline, first.lsn + 1, 0)
        assert_reaches(gap, end)
        assert (gap.messages, gap.bytes) == (UNKNOWN, UNKNOWN)
        assert "no journal" in gap.reason
        assert [m.prefix for m in other.drain(conn)] == []
    with behind(router, messages[0].position, "a") as other:  # inside a transaction: its rest is in the gap too
        gap = first_gap(other)
        assert gap.start == after(messages[0].position)
        assert_reaches(gap, end)
        conn.emit("a", b"3")
        assert other.seen(other.collect(1)) == [(b"a", b"3")]
        assert len(other.begins) == 1


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
def test_what_passes_during_a_restart_is_a_gap(bus, conn, kill):
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
        conn.emit("a", b"missed")
        router.start()
        witness = router.subscriber()  # is there when it has passed, or gets it
        witness.drain(conn)
        with behind(router, position) as again:
            gap = first_gap(again)
            assert_reaches(gap, witness.checks.last)
            conn.emit("a", b"2")
            assert again.seen(again.collect(1)) == [(b"a", b"2")]
            assert gap.end < again.messages[-1].position
