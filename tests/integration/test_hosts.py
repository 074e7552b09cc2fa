# SPDX-License-Identifier: PostgreSQL
"""A connection string that names several hosts."""

import socket

import pytest
from harness.router import Router
from harness.server import Address, Server, one
from harness.waiting import wait_for


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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
