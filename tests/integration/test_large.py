# SPDX-License-Identifier: PostgreSQL
"""Large messages: several in a row reach a reader, their memory is given back, and a slot that cannot be decoded is named."""

import re

import pytest
from harness import places
from harness.router import Router
from harness.server import Server
from harness.waiting import wait_for

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
