# SPDX-License-Identifier: PostgreSQL
"""Large messages: several in a row reach a reader, their memory is given back, and a slot that cannot be decoded is named."""

import re

import pytest
from harness import places
from harness.router import Router
from harness.server import Server
from harness.subscriber import ACK, HEADER, MESSAGE, POSITION, SUBSCRIBE, SUBSCRIBED, Connection, Subscriber
from harness.waiting import Deadline, wait_for

# Of a MESSAGE's body in front of its prefix; its last four bytes are the prefix's length.
MESSAGE_FIXED = 48
LARGE = "SELECT pg_logical_emit_message(true, %s, convert_to(repeat('x', %s), 'UTF8'))"


def test_memory_of_large_messages_is_given_back(bus, conn):
    build = places.plain_build()
    if build is None:
        pytest.skip("memory figures need a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    with Router(bus.dsn(), build=build) as router:
        router.start()
        sub = router.subscriber(keep=10)
        connects = router.status()["connects"]
        for i in range(3):
            conn.run(LARGE, f"large.{i}", 100_000_000)
            assert [m.prefix for m in sub.collect(1, 60)] == [b"large.%d" % i]
        # libpq keeps its buffer as long as the connection: only a new one gives it back
        wait_for(lambda: router.status()["connects"] > connects, 20, "the connection is renewed")
        wait_for(lambda: router.rss_anon() < 32 << 20, 20, "the memory is given back")
        conn.emit("small", b"behind")
        assert sub.seen(sub.collect(1)) == [(b"small", b"behind")]


def test_large_messages_and_a_reader_that_stops(bus, conn):
    """Nobody else misses one, the router keeps none of them, and when it goes on it gets them all."""
    with Router(bus.dsn()) as router:
        router.start()
        reader = router.subscriber(keep=10)
        stopped = router.subscriber_process()
        stopped.freeze()
        for i in range(6):
            conn.run(LARGE, f"large.{i}", 20_000_000)
            assert [m.prefix for m in reader.collect(1, 30)] == [b"large.%d" % i]
        wait_for(lambda: router.status()["memory_bytes"] < 17 << 20, 20, "what it has not read is let go of")
        stopped.thaw()
        wait_for(lambda: all(s["live"] and s["queued_bytes"] == 0 for s in router.status()["sessions"]
                             if s["state"] == "active"), 60, "it has caught up")
        router.stop()
        assert stopped.result()["messages"] == 6


def available_memory():
    """Bytes that new programs can have without swapping."""
    with open("/proc/meminfo", encoding="ascii") as f:
        return int(re.search(r"^MemAvailable:\s+(\d+) kB", f.read(), re.M).group(1)) * 1024


MB = 1 << 20
HUGE = 500_000_000
PIECE = 4096


def read_in_pieces(router, deadline):
    """The durable name's messages up to one of the prefix "behind", 4 KB a read, as (prefix, size), acknowledging all. No more
    of a message is kept than its beginning: that its content is all the same byte is seen as it passes."""
    got = []
    with Connection(router.socket) as client:
        client.hello()
        client.send(SUBSCRIBE, {"filters": [[0, b">"]], "name": "slow", "start": "stored"})
        client.expect(SUBSCRIBED, deadline)
        data = bytearray(client.buffer[client.at:])

        def take(n):
            while len(data) < n:
                client.socket.settimeout(deadline.left())
                piece = client.socket.recv(PIECE)
                assert piece, "the router closed the connection"
                data.extend(piece)
            taken = bytes(data[:n])
            del data[:n]
            return taken

        while not got or got[-1][0] != b"behind":
            size, kind, _, _ = HEADER.unpack(take(HEADER.size))
            if kind != MESSAGE:
                take(size)
                continue
            fixed = take(MESSAGE_FIXED)
            prefix = take(int.from_bytes(fixed[-4:], "big"))
            left = content = size - MESSAGE_FIXED - len(prefix)
            while left:
                piece = take(min(left, PIECE))
                assert prefix == b"behind" or piece == len(piece) * b"x"
                left -= len(piece)
            got.append((prefix, content))
            client.send(ACK, {"position": fixed[:POSITION.size]})
        client.wait_taken()
    return got


@pytest.mark.xdist_group("huge")
def test_a_huge_message_for_a_reader_of_small_pieces(bus, conn):
    """Out of the journal it goes through in bounded memory; live, in that of the message as it came."""
    build = places.plain_build()
    if build is None:
        pytest.skip("memory figures need a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    if available_memory() < 8 << 30:
        pytest.skip("the server needs several GB for this message")
    want = [(b"huge", HUGE), (b"behind", 1)]
    with Router(bus.dsn(), build=build) as router:
        router.start()
        with Subscriber(router.socket, (), name="slow"):
            pass
        with router.watched_memory() as memory:
            conn.run(LARGE, "huge", HUGE)
            conn.emit("behind", b"1")
            wait_for(lambda: router.status()["messages"] == 2, 120, "both are read")
        assert memory.most < 64 * MB + 2 * HUGE, memory.most
        router.stop()
        router.start()
        with router.watched_memory() as memory:
            assert read_in_pieces(router, Deadline(120, "all of it in small pieces")) == want
        assert memory.most < 64 * MB and memory.samples > 20, (memory.most, memory.samples)


# In a group of its own: majors that ran side by side would each find memory enough, and together need twice as much.
@pytest.mark.xdist_group("huge")
@pytest.mark.every_major(until=15)
def test_slot_that_cannot_be_decoded():
    """14 and 15 accept a message that they can never decode again; from 16 on they refuse it."""
    available = available_memory()
    if available < 8 << 30:
        pytest.skip(f"the server needs several GB for this message, and only {available >> 20} MiB of 8192 are available")
    with Server() as own:
        own.start()
        own.create_bus()
        with own.connect() as conn:
            # 1,073,741,000 bytes: below the limit of one allocation, above it with the record's header
            conn.run("SELECT pg_logical_emit_message(true, 'poison', convert_to(repeat('x', 1073741000), 'UTF8'))")
        with Router(own.dsn()) as router:
            router.spawn()
            assert router.wait_exit(180) == 4, router.log()
            log = router.log()
            assert "slot-poisoned" in log and "invalid memory alloc request size" in log, log
            assert log.count("slot-poisoned") == 1
