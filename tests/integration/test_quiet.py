# SPDX-License-Identifier: PostgreSQL
"""The slot lets go of WAL, whatever else the server is busy with, and whatever of it concerns us."""

import subprocess
import threading
import time
from typing import NamedTuple

import pytest
from harness import places
from harness.router import Router
from harness.waiting import Deadline, wait_for

pytestmark = pytest.mark.every_major

# Small segments, so that kept WAL shows after a few megabytes.
SERVER = {"wal_segsize": 1,
          "settings": {"min_wal_size": "2MB", "max_wal_size": "8MB", "checkpoint_timeout": "30s"}}
SEGMENT = 1 << 20
# What the server keeps for itself with these settings, once nothing else holds WAL: max_wal_size at most,
# and the segments of the checkpoint in progress.
FILES_MAX = 14
# Of a load by pgbench: as much WAL as without a limit, since checkpoints are many, and other tests get a processor too.
CLIENTS = 2
TRANSACTIONS_A_SECOND = 400


class Pace(NamedTuple):
    """The position follows within an interval of the heartbeat and some patience; a load must last for longer."""
    heartbeat: str
    follows_seconds: int
    load_seconds: int


# At the default interval once; the majors differ in what the server does, not in how long an interval is.
DEFAULT, SHORT = Pace("10s", 15, 20), Pace("2s", 6, 10)


@pytest.fixture
def pace(major):
    return DEFAULT if major == places.MAJORS.home else SHORT


@pytest.fixture
def router(bus, pace):
    with Router(bus.dsn(), args=["--heartbeat-interval", pace.heartbeat]) as made:
        yield made.start()


class Watch:
    """Samples the slot while a load runs."""

    def __init__(self, server, pace):
        self.server = server
        self.follows_seconds = pace.follows_seconds
        self.first = server.wal_lsn()
        self.samples = []
        self.late = []

    def sample(self):
        now = time.monotonic()
        self.samples.append((now, self.server.wal_lsn()))
        confirmed = self.server.slot()["confirmed"]
        due = max((lsn for t, lsn in self.samples if t <= now - self.follows_seconds), default=0)
        if confirmed < due:
            self.late.append((round(now - self.samples[0][0], 1), due - confirmed))

    def run(self, goes_on):
        deadline = Deadline(120, "the load ends")
        while goes_on():
            self.sample()
            time.sleep(min(0.5, deadline.left()))
        return self

    def settle(self):
        """The load is over: the slot must have followed in time, and WAL be recycled."""
        assert self.late == [], f"the confirmed position was more than {self.follows_seconds} s behind: (at, bytes)"
        end = self.server.wal_lsn()
        written = end - self.first
        assert written > 20 * SEGMENT, f"only {written} bytes of WAL were written; that shows nothing"
        wait_for(lambda: self.server.slot()["confirmed"] >= end, self.follows_seconds, "the confirmed position follows")

        def recycled():
            with self.server.connect() as conn:
                conn.run("CHECKPOINT")
            return self.server.wal_files() <= FILES_MAX
        wait_for(recycled, self.follows_seconds, f"pg_wal is back at {FILES_MAX} files", every=0.5)


@pytest.mark.parametrize("where", ["same database", "other database"])
def test_pgbench(router, server, pace, where):
    pgbench = places.tool("pgbench")
    if pgbench is None:
        pytest.skip("pgbench was found neither beside the server nor in PATH")
    database = "postgres" if where == "same database" else "busy"
    if database != "postgres":
        server.create_database(database)
    base = [pgbench, "-h", server.sockets, "-p", "5432", "-U", "postgres"]
    subprocess.run([*base, "-i", "-q", "-s", "2", database], check=True, timeout=60,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watch = Watch(server, pace)
    # a number, and not a time: a busy machine would write too little WAL to show anything
    limits = ["-t", str(pace.load_seconds * TRANSACTIONS_A_SECOND // CLIENTS), "-R", str(TRANSACTIONS_A_SECOND)]
    load = subprocess.Popen([*base, "-n", "-c", str(CLIENTS), *limits, database],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        watch.run(lambda: load.poll() is None)
        assert load.returncode == 0, load.stderr.read()
    finally:
        if load.poll() is None:
            load.kill()
        load.wait(10)
        load.stderr.close()
    watch.settle()
    assert router.status()["state"] == "streaming"


@pytest.mark.parametrize("transactional", [False, True], ids=["non-transactional", "transactional"])
def test_messages_alone(router, server, pace, transactional):
    """Non-transactional messages by themselves keep all WAL, although the slot looks as if it followed."""
    sub = router.subscriber(keep=0)
    sent = 0
    over = threading.Event()

    def load():
        nonlocal sent
        with server.connect() as own:
            end = time.monotonic() + pace.load_seconds
            while time.monotonic() < end:
                own.run("SELECT count(pg_logical_emit_message(%s, 'load', convert_to(repeat('x', 20000), 'UTF8'))) "
                        "FROM generate_series(1, 10)", transactional)
                sent += 10
                time.sleep(0.05)
        over.set()

    watch = Watch(server, pace)
    thread = threading.Thread(target=load)
    thread.start()
    deadline = Deadline(60, "the load's messages")
    while not over.is_set():
        watch.sample()
        while sub.connection.pending():
            sub.next(deadline)
        time.sleep(0.1)
    thread.join(10)
    with server.connect() as conn:
        sub.drain(conn, seconds=30)
    assert len(sub.messages) - 1 == sent
    watch.settle()


def test_idle(router, server, pace):
    """Nothing happens but what the server itself writes at checkpoints."""
    with server.connect() as conn:
        conn.run("SELECT pg_switch_wal()")
        conn.run("CHECKPOINT")
    end = server.wal_lsn()
    wait_for(lambda: server.slot()["confirmed"] >= end, pace.follows_seconds, "the confirmed position follows")
    assert router.status()["state"] == "streaming"
