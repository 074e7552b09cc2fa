# SPDX-License-Identifier: PostgreSQL
"""Each message once: positions that are kept with the effects, in the subscriber's own database."""

import os
import random
import signal
import subprocess
import time

import pytest
from faults import once
from harness import places
from harness.command import Running
from harness.fake_router import FakeRouter, at
from harness.server import one
from harness.subscriber import Subscriber
from harness.waiting import wait_for

NAME = "counter"


def built(*path):
    program = os.path.join(places.build_dir(), *path)
    if not os.path.exists(program):
        pytest.fail(f"{program} was not built")
    return program


@pytest.mark.every_major
def test_position_store(server):
    """From C: tests/integration/position_store_api.c makes the calls and checks their results."""
    program = built("tests", "integration", "position_store_api")
    done = subprocess.run([program, server.dsn()], env=places.child_environment(), cwd="/", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)
    text = done.stdout.decode(errors="replace")
    places.assert_no_sanitizer_report(text, program)
    assert done.returncode == 0, text
    assert text.endswith("\nall checks are ok\n"), text
    assert "NOTICE" not in text, text  # libpq prints those of a program that does not care


# ---- examples/exactly_once.c

class Counter(Running):
    def __init__(self, path, dsn, pattern="orders.>"):
        super().__init__(NAME, dsn, pattern, program=[built("examples", "exactly_once")],
                         env={"WALBUS_SOCKET": path})


@pytest.fixture
def counts(server):
    """What is counted, in a database of its own; gone afterwards, with what is stored."""
    with server.connect() as conn:
        conn.run("CREATE DATABASE reports")
    with server.connect("reports") as conn:
        conn.run("CREATE TABLE counts (prefix text PRIMARY KEY, n int8)")
        conn.found = lambda: dict(conn.rows("SELECT prefix, n::int FROM counts"))
        conn.stored = lambda: conn.rows("SELECT subscription, identity, lsn::text, idx::int FROM walbus_position")
        conn.dsn = server.dsn("reports")
        yield conn
    with server.connect() as conn:
        conn.run("DROP DATABASE reports WITH (FORCE)")


def test_example_is_short():
    for name in ("exactly_once", "subscribe_durable"):
        with open(os.path.join(places.ROOT, "examples", f"{name}.c"), encoding="utf-8") as file:
            assert file.read().count("\n") < 100


def test_position_and_effect_go_together(counts):
    """And the router hears of it afterwards."""
    with FakeRouter() as fake:
        with Counter(fake.path, counts.dsn, ">") as counter:
            assert fake.subscribe() == {"filters": [[0, b">"]], "start": "oldest", "name": NAME}
            fake.subscribed(at(100))
            fake.message(at(200), at(300), prefix=b"a")
            fake.acknowledged(at(300))
            assert counts.found() == {"a": 2}
            assert counts.stored() == [(NAME, "7595371246853562370/1", "0/12C", 0)]
            fake.progress(at(300))  # no news
            fake.progress(at(400))
            fake.acknowledged(at(400))
            assert counts.stored()[0][2] == "0/190"
            fake.gap(at(401), at(500))
            fake.acknowledged(at(500))
            assert b"gap: retention has passed this" in counter.err
            # connected again it goes on behind the last delivery, as it keeps its position itself
            fake.own.close()
            assert fake.subscribe() == {"filters": [[0, b">"]], "start": "position", "position": at(500), "name": NAME,
                                        "override": True}
            counter.process.kill()
            counter.process.wait(10)
        with Counter(fake.path, counts.dsn, ">") as counter:
            assert fake.subscribe() == {"filters": [[0, b">"]], "start": "position", "position": at(500), "name": NAME,
                                        "override": True}
            fake.subscribed(at(500))
            # another holder has been there meanwhile
            counts.run("UPDATE walbus_position SET lsn = '0/258'")
            fake.message(at(600), prefix=b"a")
            done = counter.wait_exit()
            assert done.status == 1 and 'Another holder of "counter" is ahead' in done.error, done
            assert counts.found() == {"a": 2}
        with Counter(fake.path, counts.dsn, ">") as counter:
            fake.accept(identity="7595371246853562370/2")
            done = counter.wait_exit()
            assert done.status == 1 and "belongs to another journal" in done.error, done


@pytest.mark.skipif(once.program() is None, reason="the build has no apply_once")
def test_what_is_not_committed_stays_with_the_router(router, bus, conn, tmp_path):
    """A transaction over a restart of the router: nothing of it comes twice, the router's cursor stays where the last one was
    committed, and when it fails all of it comes again."""
    def applier(batch):
        return once.OnceProcess(once.program(), str(tmp_path / "log"), router.socket, bus.dsn(), "once",
                                [("pattern", "a")], batch, 0)

    def delivered():
        return one(conn, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM effects_number_seq")

    def cursor():
        subscription, = router.status()["subscriptions"]
        return once.parse_position(subscription["position"])

    conn.run("DROP TABLE IF EXISTS walbus_position")
    conn.run(once.TABLES)
    appliers = []
    try:
        first = applier(-1000)
        appliers.append(first)
        wait_for(lambda: router.status()["subscriptions"], 20, "it has subscribed")
        lsns = [conn.emit("a", b"%d" % i, transactional=False) for i in range(10)]
        wait_for(lambda: delivered() == 10, 20, "all are delivered")
        for restart in (router.kill, router.stop):
            restart()
            router.start()
            conn.emit("a", b"more", transactional=False)
            conn.emit("a", b"and more")
            wait_for(lambda: delivered() >= 10 + (2 if restart == router.kill else 4), 20, "it goes on")
            assert cursor().lsn < lsns[0], "the router was told what is not committed"
        assert delivered() == 14 and first.runs
        first.kill()
        second = applier(1000)
        appliers.append(second)
        wait_for(lambda: one(conn, "SELECT count(*) FROM effects") == 14, 20, "it came again")
        assert second.finish() == 0
        rows, gaps = once.effects(bus)
        assert [row.id for row in rows] == [str(i) for i in range(10)] + 2 * ["more", "and"] and gaps == []
        assert [row.position for row in rows] == sorted(row.position for row in rows)
        assert second.errors() == ""
    finally:
        for each in appliers:  # an open transaction would hold the tables
            each.kill()
        conn.run("DROP TABLE effects, gaps")
        conn.run("DROP TABLE IF EXISTS walbus_position")


def publish(conn, n):
    """n transactions of a few messages, some rolled back; how many of each prefix were committed."""
    committed = {"orders.a": 0, "orders.b": 0}
    for i in range(n):
        conn.run("BEGIN")
        for prefix in committed:
            conn.run(f"SELECT pg_logical_emit_message(true, '{prefix}', '{i}')")
        conn.run("SELECT pg_logical_emit_message(true, 'payments.a', 'x')")
        if i % 5 == 4:
            conn.run("ROLLBACK")
        else:
            conn.run("COMMIT")
            for prefix in committed:
                committed[prefix] += 1
    return committed


def test_every_message_counts_once_whatever_is_killed(router, server, counts):
    seed = int(os.environ.get("WALBUS_TEST_SEED") or time.time_ns() % 1000000)
    print(f"WALBUS_TEST_SEED={seed}")
    chance = random.Random(seed)
    wanted = {"orders.a": 0, "orders.b": 0}
    counter = Counter(router.socket, counts.dsn)
    wait_for(lambda: router.status()["subscriptions"], 20, "the name is there")
    for _ in range(12):
        with server.connect() as conn:
            for prefix, n in publish(conn, 20).items():
                wanted[prefix] += n
        time.sleep(chance.uniform(0, 0.2))
        victim = chance.choice(["counter", "counter", "router", "its session"])
        if victim == "router":
            router.kill()
            router.start()
        elif victim == "its session":
            # one that was just started may have none yet
            wait_for(lambda: one(counts, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                                         "WHERE datname = 'reports' AND pid <> pg_backend_pid()"), 20, "it has a session")
            with server.connect() as conn:  # it may have nothing to do, and notice nothing
                for prefix, n in publish(conn, 1).items():
                    wanted[prefix] += n
        else:
            counter.process.send_signal(signal.SIGKILL)
        if victim != "router":
            counter.process.wait(20)
        if counter.process.poll() is not None:
            counter.close()
            counter = Counter(router.socket, counts.dsn)
    try:
        wait_for(lambda: counts.found() == wanted or counter.process.poll() is not None, 60,
                 "all is counted")
        assert counts.found() == wanted, counter.err
    finally:
        counter.close()


def test_a_second_one_is_refused_and_counts_nothing(router, counts, conn):
    with Counter(router.socket, counts.dsn) as first:
        wait_for(lambda: router.status()["subscriptions"], 20, "the name is there")
        with Counter(router.socket, counts.dsn) as second:
            assert second.wait_exit().status == 1
        conn.emit("orders.a", b"1")
        wait_for(lambda: counts.found() == {"orders.a": 1}, 20, "it is counted")
        assert first.process.poll() is None


# ---- examples/subscribe_durable.c

def test_durable_example():
    with FakeRouter() as fake:
        program = [built("examples", "subscribe_durable")]
        with Running("billing", "a.>", program=program, env={"WALBUS_SOCKET": fake.path}) as running:
            assert fake.subscribe() == {"filters": [[0, b"a.>"]], "start": "oldest", "name": "billing"}
            fake.subscribed(at(100), stored=True, redelivered_to=at(200))
            fake.message(at(200), at(300), content=b"xyz", prefix=b"a.b")
            assert running.wait_lines(2) == [b"again 1:0/C8:0 a.b 3 bytes, the first x",
                                             b"1:0/12C:0 a.b 3 bytes, the first x"]
            fake.acknowledged(at(300))
            fake.gap(at(301), at(400))
            fake.acknowledged(at(400))
            assert running.stop().status == 0
            assert b"gap: retention has passed this" in running.err
        with Running("billing", program=program, env={"WALBUS_SOCKET": fake.path}) as running:
            fake.subscribe()
            fake.error("held", "billing is held by pid 17")
            done = running.wait_exit()
            assert (done.status, done.error) == (1, "billing is held by pid 17 (held)\n"), done


def test_durable_example_with_a_router(router, conn):
    program = [built("examples", "subscribe_durable")]
    for i in range(3):
        with Running("billing", "a", program=program, env={"WALBUS_SOCKET": router.socket}) as running:
            running.wait_ready()
            conn.emit("a", f"{i}".encode(), transactional=False)
            wanted = ["a", f"{i}"] if i else ["0"]  # what was emitted while nobody was there comes first
            assert [line[-1:].decode() for line in running.wait_lines(len(wanted))] == wanted
            assert running.stop().status == 0
            assert b"again" not in running.out
        conn.emit("a", b"away", transactional=False)
    with Subscriber(router.socket, ["a"], name="billing") as sub:
        assert [m.content for m in sub.collect(1)] == [b"away"]
