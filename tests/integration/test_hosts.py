# SPDX-License-Identifier: PostgreSQL
"""A connection string that names several hosts."""

import contextlib
import socket
import time

import pytest
from harness.router import Router
from harness.server import Address, Server, one
from harness.waiting import wait_for


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def black_hole():
    """A TCP port behind which packets are dropped: Linux does so when nobody accepts and the queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.3)
            try:
                filler.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def server():
    """Over TCP too, and in its own folder under the same port."""
    with Server(settings={"listen_addresses": "127.0.0.1", "port": free_port()}) as made:
        made.start()
        yield made


def heartbeat_pids(conn):
    return [pid for pid, in conn.rows(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'walbusd heartbeat'")]


def test_the_heartbeat_follows_the_stream(bus):
    """Not to whichever host answers first by now: it looks at the slot that is being read."""
    port = bus.settings["port"]
    with Address() as first, Address() as second, Server(settings={"port": port}) as other:
        other.start()
        second.lead(bus)
        with Router(f"host={first.folder},{second.folder} port={port} dbname=postgres user=postgres") as router:
            router.start()
            first.lead(other)
            with bus.connect() as conn, other.connect() as elsewhere:
                before = wait_for(lambda: heartbeat_pids(conn), 10, "the heartbeat's session")
                assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", *before)
                after = wait_for(lambda: heartbeat_pids(conn), 10, "the heartbeat's session is back")
                assert after != before and heartbeat_pids(elsewhere) == []
            assert router.log().count(" source.streaming ") == 1


@pytest.mark.parametrize("hosts", ["host=127.0.0.1,{sockets}", "host={sockets},127.0.0.1", "hostaddr=127.0.0.1",
                                   "host=a.example,b.example hostaddr=127.0.0.1,127.0.0.1",
                                   "host=a.example,{sockets} hostaddr=127.0.0.2,"])
def test_the_heartbeat_finds_every_kind_of_host(bus, conn, hosts):
    """By name, address, socket folder, and lists of them."""
    hosts = hosts.format(sockets=bus.sockets)
    with Router(f"{hosts} port={bus.settings['port']} dbname=postgres user=postgres") as router:
        router.start()
        assert len(heartbeat_pids(conn)) == 1
        assert "source.unconfirmed" not in router.log() and "heartbeat.failed" not in router.log()


def test_host_that_drops_packets(bus, black_hole):
    """It costs the time for one host at each connect, and the next one is reached."""
    dsn = f"host=127.0.0.1,127.0.0.1 port={black_hole},{bus.settings['port']} dbname=postgres user=postgres connect_timeout=2"
    with Router(dsn) as router:
        began = time.monotonic()
        router.start()
        assert time.monotonic() - began >= 2
        sub = router.subscriber()
        with bus.connect() as conn:
            conn.emit("a", b"1")
            assert sub.seen(sub.collect(1)) == [(b"a", b"1")]
            assert one(conn, "SELECT pg_terminate_backend(%s, 5000)", *bus.walsenders())
            conn.emit("a", b"2")
        assert sub.seen(sub.collect(1)) == [(b"a", b"2")]
        log = router.log()
        assert "source.unreachable" not in log and "heartbeat.failed" not in log and "source.unconfirmed" not in log


def test_nothing_but_a_host_that_drops_packets(black_hole):
    with Router(f"host=127.0.0.1 port={black_hole} dbname=postgres user=postgres connect_timeout=1") as router:
        router.spawn()
        router.wait_log("source.unreachable .* a host that did not answer within 1 s was passed over", 20)
        wait_for(lambda: router.status()["connects"] >= 3, 20, "it tries again")
