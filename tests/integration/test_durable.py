# SPDX-License-Identifier: PostgreSQL
"""Durable subscriptions: a name that is kept, at least once, in order, over restarts of all three."""

import os
import signal
import time

import pytest
from harness.command import walbus
from harness.router import Router
from harness.server import stop_fast
from harness.subscriber import INDEX_END, Position, RouterError, Subscriber, SubscriberProcess, digest
from harness.waiting import wait_for

NAME = "billing"


def emit(conn, first, count, prefix="a", transactional=True):
    for i in range(first, first + count):
        conn.emit(prefix, str(i).encode(), transactional=transactional)


def numbers(messages):
    return [int(m.content) for m in messages]


@pytest.fixture
def router_with(bus):
    """A router with options of its own."""
    made = []

    def make(*args):
        made.append(Router(bus.dsn(), args=args))
        return made[0].start()
    yield make
    for router in made:
        print(f"---- walbusd's log\n{router.log()[-8000:]}")
        router.close()


def durable(router, *filters, name=NAME, **kw):
    return Subscriber(router.socket, filters or ["a"], name=name, **kw)


# ---- the cursor

def test_a_new_name_begins_where_it_is_asked_to(router, conn):
    emit(conn, 1, 3)
    with router.subscriber("a", start="oldest") as all_of_it:
        messages = all_of_it.collect(3)
    starts = {"now": [], "oldest": [1, 2, 3], messages[1].position: [3], messages[0].received_time: [1, 2, 3]}
    for i, (start, wanted) in enumerate(starts.items()):
        with durable(router, name=f"name-{i}", start=start) as sub:
            assert not sub.stored and sub.redelivered_to == Position(0, 0, 0)
            emit(conn, 4 + i, 1)
            wanted = [*wanted, *(range(4, 4 + i + 1) if start != "now" else [4 + i])]
            assert numbers(sub.collect(len(wanted))) == wanted


def test_it_goes_on_behind_what_was_acknowledged(router, conn):
    with durable(router) as sub:
        emit(conn, 1, 5)
        messages = sub.collect(5)
        sub.confirm(messages[2].position)
    emit(conn, 6, 2)  # while nobody is there
    with durable(router, start="oldest") as sub:  # which does not count
        assert sub.stored and sub.position >= messages[2].position
        got = sub.collect(4)
        assert numbers(got) == [4, 5, 6, 7]
        assert [sub.is_redelivered(m) for m in got] == [True, True, False, False]
        sub.confirm()
    with durable(router, start="stored") as sub:
        emit(conn, 8, 1)
        assert numbers(sub.collect(1)) == [8]


def test_inside_a_transaction(router, conn):
    with durable(router) as sub:
        conn.run("SELECT count(pg_logical_emit_message(true, 'a', i::text)) FROM generate_series(1, 5) i")
        messages = sub.collect(5)
        assert [m.position.index for m in messages] == [1, 2, 3, 4, 5]
        sub.confirm(messages[1].position)
    with durable(router) as sub:
        assert sub.position == messages[1].position
        assert numbers(sub.collect(3)) == [3, 4, 5]
        assert sub.begins[0].resumed and not sub.commits[0].incomplete and sub.commits[0].messages == 5
        sub.confirm(messages[4].position)  # all of them, but not the end
    with durable(router) as sub:
        emit(conn, 6, 1)
        assert numbers(sub.collect(1)) == [6]
        assert sub.begins[0].resumed and len(sub.commits) == 2  # the end of the first comes, without a message


def test_an_acknowledgement_is_cumulative_and_bounded(router, conn):
    with durable(router) as sub:
        emit(conn, 1, 3)
        messages = sub.collect(3)
        sub.confirm(messages[2].position)
        sub.acknowledge(messages[0].position)  # says nothing new
        sub.acknowledge(Position(1, 0xFFFFFFFF00000000, 0))
        assert sub.refused().code == "invalid"
    with durable(router) as sub:
        emit(conn, 4, 1)
        assert numbers(sub.collect(1)) == [4]


def test_override_moves_the_cursor_both_ways(router, conn):
    with durable(router) as sub:
        emit(conn, 1, 4)
        messages = sub.collect(4)
        sub.confirm()
    with durable(router, start=messages[1].position, override=True) as sub:
        assert not sub.stored and sub.position == messages[1].position
        assert numbers(sub.collect(2)) == [3, 4]
    with durable(router, start="now", override=True) as sub:
        emit(conn, 5, 1)
        assert numbers(sub.collect(1)) == [5]


def test_unknown_names(router):
    with pytest.raises(RouterError) as refused:
        durable(router, start="stored")
    assert refused.value.code == "unknown-name"
    for name in ("a b", "a\n", "n" * 256, "\u202e", "a\u200b"):
        with pytest.raises(RouterError) as refused:
            durable(router, name=name)
        assert refused.value.code in ("invalid", "protocol"), name


# ---- filters

def test_other_filters_apply_behind_the_cursor(router, conn):
    with durable(router, "a.>") as sub:
        conn.emit("a.1", b"1")
        sub.collect(1)
        sub.confirm()
    conn.emit("a.1", b"2")
    conn.emit("b.1", b"3")
    with durable(router, "b.>") as sub:
        assert numbers(sub.collect(1)) == [3]
        sub.confirm()
    with durable(router, "a.>") as sub:  # what "b.>" passed over does not come later
        conn.emit("a.1", b"4")
        assert numbers(sub.collect(1)) == [4]
    with durable(router, "a.>"):
        pass
    assert [(line["subscription"], line["filters"]) for line in router.logged("durable.filters")] == [(NAME, "1")] * 2


def test_a_name_that_nothing_matches_floats(router, conn):
    with durable(router, "never"):
        pass
    emit(conn, 1, 50)

    def floated():
        (one,) = router.status()["subscriptions"]
        return one["lag_messages"] == 0
    wait_for(floated, 10, "the cursor passes over what does not match")
    with durable(router, "never") as sub:
        conn.emit("never", b"1")
        assert numbers(sub.collect(1)) == [1]


# ---- one holder

def test_one_holder_at_a_time(router, conn):
    first = durable(router)
    with pytest.raises(RouterError) as refused:
        durable(router)
    assert refused.value.code == "held"
    with durable(router, take_over=True) as second:
        assert first.refused().code == "taken-over"
        emit(conn, 1, 1)
        assert numbers(second.collect(1)) == [1]
    first.close()
    with durable(router) as third:  # nobody has it
        assert numbers(third.collect(1)) == [1]


def test_an_acknowledgement_of_who_was_taken_over_counts_for_nothing(router, conn):
    """The one that was taken over is still being sent a message, and is heard: what it says moves nothing."""
    first = durable(router, keep=1)
    conn.run("SELECT count(pg_logical_emit_message(false, 'a', repeat('x', 100000))) FROM generate_series(1, 30)")
    (message,) = first.collect(1)
    wait_for(lambda: any(s.get("name") == NAME and s["messages"] == 30 and s["queued_bytes"] for s in router.status()["sessions"]),
             10, "more waits for it than its socket takes")
    with durable(router, take_over=True, keep=1) as second:
        first.acknowledge(message.position, confirm=True)
        first.connection.wait_taken()
        assert second.collect(1)[0].position == message.position
        assert first.refused().code == "taken-over" and first.acked is None
    first.close()
    wait_for(lambda: not router.status()["subscriptions"][0]["connected"], 10, "nobody has it")
    with durable(router, start="stored", keep=1) as third:
        assert third.position < message.position
        (again,) = third.collect(1)
        assert again.position == message.position and third.is_redelivered(again)


def test_a_large_message_that_is_under_way_is_one_that_may_come_again(router, conn):
    """It is finished for who is taken over in the middle of it, so the next holder is told that it has been there."""
    with durable(router) as first:
        emit(conn, 1, 1)
        first.collect(1)
        first.confirm()
    with Subscriber(router.socket, keep=1) as other:
        conn.run("SELECT pg_logical_emit_message(false, 'a', repeat('x', 20000000))")
        other.collect(1)
    first = durable(router, keep=1)  # reads it from the journal
    wait_for(lambda: any(s.get("name") == NAME and s["queued_bytes"] for s in router.status()["sessions"]), 20,
             "a part of it has been sent")
    with durable(router, take_over=True, keep=1) as second:
        (large,) = first.collect(1)
        assert first.refused().code == "taken-over"
        (again,) = second.collect(1)
        assert again.position == large.position and second.is_redelivered(again)
    first.close()


def test_two_names_stand_on_their_own(router, conn):
    with durable(router, name="first") as first, durable(router, name="second") as second:
        emit(conn, 1, 3)
        first.collect(3)
        first.confirm()
        second.collect(1)
    with durable(router, name="first") as first, durable(router, name="second") as second:
        emit(conn, 4, 1)
        assert numbers(first.collect(1)) == [4]
        assert numbers(second.collect(4)) == [1, 2, 3, 4]


# ---- restarts

def test_a_clean_stop_forgets_nothing(router, conn):
    """And brings nothing again of what was acknowledged."""
    expected = 1
    for _ in range(3):
        with durable(router, start="oldest") as sub:
            emit(conn, expected, 10)
            got = sub.collect(10)
            assert numbers(got) == list(range(expected, expected + 10))
            assert not any(sub.is_redelivered(m) for m in got)
            sub.acknowledge()
            sub.connection.wait_taken()
            expected += 10
        router.stop()
        emit(conn, expected, 5)  # while it is down
        router.start()
        with durable(router) as sub:
            assert numbers(sub.collect(5)) == list(range(expected, expected + 5))
            sub.confirm()
            expected += 5


def test_a_killed_router(router, conn):
    """Everything comes, in order; what comes again says so."""
    seen, acked = {}, 0
    for i in range(5):
        with durable(router, start="oldest") as sub:
            emit(conn, 20 * i + 1, 10, transactional=i % 2 == 0)
            last = acked
            while last < 20 * i + 10:
                (message,) = sub.collect(1)
                number = int(message.content)
                assert number == last + 1
                assert number not in seen or sub.is_redelivered(message), f"{number} again, without a word"
                seen[number] = True
                last = number
            sub.confirm(Position(message.position.timeline, message.position.lsn, INDEX_END)
                        if message.transactional else message.position)
            acked = last
        emit(conn, 20 * i + 11, 10)
        router.kill()
        router.start()
    with durable(router) as sub:
        assert numbers(sub.collect(10)) == list(range(91, 101))


def test_a_killed_subscriber(router, conn):
    process = SubscriberProcess(router.socket, ["a"], name=NAME)
    emit(conn, 1, 10)
    wait_for(lambda: any(s["messages"] == 10 for s in router.status()["sessions"]), 10, "all was sent")
    process.process.send_signal(signal.SIGKILL)
    process.close()
    with durable(router) as sub:
        got = sub.collect(10)
        assert numbers(got) == list(range(1, 11))
        assert all(sub.is_redelivered(m) for m in got)


@pytest.mark.parametrize("unread", [False, True])
def test_a_last_acknowledgement_is_heard(router, conn, unread):
    """Also when the router finds both at once, the ACK and that who sent it is gone: by a write that fails, or since what
    it was sent lay unread."""
    sub = durable(router)
    emit(conn, 1, 1)
    sub.collect(1)
    emit(conn, 2, 2 if unread else 0)
    if unread:
        wait_for(sub.connection.pending, 10, "more came than it has read")
    router.process.send_signal(signal.SIGSTOP)
    try:
        sub.acknowledge()
        sub.close()
        emit(conn, 4, 1)
    finally:
        router.process.send_signal(signal.SIGCONT)
    with durable(router, start="stored") as sub:
        assert numbers(sub.collect(3 if unread else 1)) == ([2, 3, 4] if unread else [4])


def test_a_server_that_crashes(router, server):
    with server.connect() as conn, durable(router) as sub:
        emit(conn, 1, 5)
        sub.collect(5)
        sub.confirm()
        emit(conn, 6, 3)
        sub.collect(3)
        sub.close()
        wait_for(lambda: not router.status()["subscriptions"][0]["connected"], 10, "it has left")
        emit(conn, 9, 2)
    server.stop("immediate")
    server.start()
    router.wait_state("streaming")
    with server.connect() as conn, durable(router) as sub:
        emit(conn, 11, 5)
        got = sub.collect(10)
        assert numbers(got) == list(range(6, 16))
        assert [sub.is_redelivered(m) for m in got] == [True] * 3 + [False] * 7


# ---- what it costs others

def test_it_holds_back_neither_slot_nor_shutdown(router, server, conn):
    with durable(router) as sub:
        emit(conn, 1, 3)
        sub.collect(3)  # and acknowledges nothing
        emit(conn, 4, 3)
        last = conn.emit("b", b"")
        wait_for(lambda: server.slot()["confirmed"] > last, 15, "the slot goes on")
        conn.close()
        stop_fast(server)
        server.start()


def test_while_it_is_away_a_live_one_goes_on(router, conn):
    with durable(router):
        pass
    with router.subscriber("a") as live:
        emit(conn, 1, 200, transactional=False)
        assert numbers(live.collect(200)) == list(range(1, 201))
    with durable(router) as sub:
        assert numbers(sub.collect(200)) == list(range(1, 201))


# ---- the slowest reader

def test_a_reader_that_stops_reads_on_from_the_journal(router, conn):
    """More than a socket and a session hold: it gets all of it, in order, and so does everybody else at once."""
    slow = SubscriberProcess(router.socket, ["a"], name=NAME, count=5000)
    slow.freeze()
    with router.subscriber("a", keep=5) as live:
        conn.run("""SELECT count(pg_logical_emit_message(false, 'a', to_char(i, 'FM00000') || repeat('x', 10000)))
                    FROM generate_series(1, 5000) i""")
        assert numbers(live.collect(5000, seconds=60)) == list(range(1, 5001))
    session, = [s for s in router.status()["sessions"] if s["pid"] == slow.process.pid]
    assert session["messages"] < 5000 and not session["live"]
    slow.thaw()
    result = slow.result()
    slow.close()
    assert (result["code"], result["messages"]) == (None, 5000)
    assert result["digest"] == digest((b"a", b"%05d" % i + b"x" * 10000) for i in range(1, 5001))


# ---- retention

def test_a_gap_is_told_once(router_with, server, conn):
    """A journal that is too small, and discards: the gap is told where the messages would be."""
    router = router_with("--journal-size", "4MB", "--segment-size", "1MB", "--when-full", "discard")
    with durable(router) as sub:
        emit(conn, 1, 1)
        sub.collect(1)
        sub.confirm()
    conn.run("SELECT count(pg_logical_emit_message(false, 'a', repeat('x', 100000))) FROM generate_series(1, 200)")
    last = conn.emit("a", b"2", transactional=False)
    wait_for(lambda: server.slot()["confirmed"] >= last, 30, "all is in the journal")
    wait_for(lambda: (journal := router.status()["journal"])["bytes"] <= journal["limit_bytes"], 30, "what is too much is dropped")
    with durable(router) as sub:
        while not sub.messages or sub.messages[-1].content != b"2":
            sub.collect(1)
        (gap,) = sub.gaps
        assert gap.messages == 200 - (len(sub.messages) - 1)
        sub.confirm()
    with durable(router) as sub:
        emit(conn, 3, 1)
        assert numbers(sub.collect(1)) == [3] and not sub.gaps


def test_names_that_nobody_uses_expire(router_with, conn):
    router = router_with("--expire-after", "2s")
    with durable(router):
        pass
    wait_for(lambda: router.status()["subscriptions"] == [], 15, "the name is removed")
    router.wait_log(NAME)
    with durable(router, name="used"):
        time.sleep(3)
        assert [one["name"] for one in router.status()["subscriptions"]] == ["used"]
    emit(conn, 1, 1)
    done = walbus("tail", "--socket", router.socket, "--no-follow", "--from", "oldest", "a")
    assert done.status == 0 and b" a opaque: 1\n" in done.out
    assert os.path.isdir(router.state_dir)
