# SPDX-License-Identifier: PostgreSQL
"""Clients that mean no good: the others keep their latency, the router keeps its memory, and each refusal has a reason.

They come as another user, to whom little or nothing is allowed. What is compared is one router with them and without,
in turn; memory is that of a build without sanitizers.
"""

import os
import select
import statistics
import time

import pytest
from harness import places
from harness.hostile import Hostile
from harness.identity import connecting_as, open_to_others
from harness.router import Router
from harness.subscriber import Connection, request
from harness.waiting import wait_for

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")

EVE, ALICE = 4711, 4712
SAMPLES = 200
# The machine may do something else for a while: more rounds are looked at then, as many as the last number.
ROUNDS, ROUNDS_BUSY = 5, 15
# Times, the median of the rounds. Seen alone on two cores: 0.8 to 1.25, those who connect in a loop being the dearest;
# one that waits for others would wait for seconds.
SLOWER = 2
MB = 1 << 20
CONNECTIONS = 256  # connections-per-uid, as it comes
MEMORY_MAX = 24 * MB  # bytes-per-uid is 8 MB; and what a thousand connections take
IDLE = 2000


def latency(conn, sub):
    """The median of so many single messages, in seconds: from before the statement until it is there."""
    took = []
    for _ in range(SAMPLES):
        began = time.monotonic()
        conn.emit("public.a", b"x")
        sub.collect(1)
        took.append(time.monotonic() - began)
    return statistics.median(took)


def guarded(bus, build, *lines):
    made = Router(bus.dsn(), build=build, args=["--socket-mode", "0666"])
    conf = os.path.join(made.folder, "walbus.conf")
    with open(conf, "w", encoding="utf-8") as file:
        file.write("\n".join(["[walbusd]", f"allow = user:{ALICE} subscribe public.>", *lines, ""]))
    made.args += ["--config", conf]
    open_to_others(made)
    return made


KINDS = {
    # kind: (number, who allows Eve something, the answers that may come)
    "stranger": (1, False, {"forbidden"}),
    "oversized": (1, True, {"protocol"}),
    "half": (40, True, {"limit", "welcome", "timeout"}),
    "trickle": (100, True, {"timeout"}),
    "idle": (IDLE, True, {"open", "limit", "timeout"}),
    "descriptors": (100, True, {"limit", "timeout"}),  # idle, at a router that may have 64 of them
}


def with_64_descriptors(folder, program):
    """Another program that is this one, with few descriptors."""
    path = folder / "walbusd"
    path.write_text(f"#!/bin/sh\nulimit -n 64\nexec {program} \"$@\"\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_others_do_not_notice(bus, conn, descriptors, tmp_path, kind):
    number, known, may_come = KINDS[kind]
    if descriptors < IDLE + 100:
        pytest.skip(f"a process may have only {descriptors} descriptors: raise the hard limit (ulimit -Hn)")
    plain = places.plain_build()
    if plain is None:
        pytest.skip("a sanitizer's memory is not the router's: WALBUS_TEST_PLAIN_BUILD names a build without")
    rule = [f"allow = user:{EVE} subscribe public.>"] if known else []
    with guarded(bus, plain, *rule) as router:
        if kind == "descriptors":
            router.program = with_64_descriptors(tmp_path, router.program)
        router.start()
        with connecting_as(ALICE):
            sub = router.subscriber("public.>")
        ratios, answers, rounds = [], {}, ROUNDS
        latency(conn, sub)
        before = router.rss_anon()
        with router.watched_memory() as memory:
            while len(ratios) < rounds:
                without = latency(conn, sub)
                with Hostile(router.socket, EVE, "idle" if kind == "descriptors" else kind, number) as hostile:
                    ratios.append(latency(conn, sub) / without)
                    assert request(router.socket, "status")["state"] == "streaming"
                    if kind != "descriptors":  # of which she has what one may have
                        with connecting_as(ALICE):
                            router.subscriber("public.>").close()  # others are let in all the same
                    if kind == "trickle":  # a byte now and then buys no time
                        wait_for(lambda: not any(s["uid"] == EVE for s in router.status()["sessions"]), 30,
                                 "they are closed")
                for code, n in hostile.answers.items():
                    answers[code] = answers.get(code, 0) + n
                if len(ratios) == ROUNDS and statistics.median(ratios) >= SLOWER:
                    rounds = ROUNDS_BUSY
        middle = statistics.median(ratios)
        print(f"{kind}: {middle:.2f} times, {(memory.most - before) / MB:.1f} MB more, {answers}")
        assert middle < SLOWER, ratios
        assert set(answers) <= may_come, answers
        assert sum(answers.values()) >= number, answers
        assert memory.most - before < MEMORY_MAX, (before, memory.most)
        if kind == "idle":
            assert answers["limit"] >= IDLE - CONNECTIONS, answers
        if kind == "descriptors":
            assert answers["limit"] >= number - 10 and router.status()["turned_away"] == 0, answers
        if kind == "half":
            assert answers["limit"] >= number // 2, answers
        if kind in ("stranger", "oversized"):  # in a loop: the log does not grow with them
            assert sum(answers.values()) >= 20
            assert len([line for line in router.log().splitlines() if f"uid={EVE}" in line]) < 5 + 20


def sip(sub):
    """Takes a little of what is there."""
    if select.select([sub.connection.socket], [], [], 0)[0]:
        sub.connection.buffer += sub.connection.socket.recv(2048)


def test_what_waits_for_one_user(bus, conn):
    """Many clients of one user take next to nothing: together they keep what one user may, another one keeps what waits
    for her, and in the end each of them gets everything."""
    clients, rounds, size = 16, 12, 30000
    rules = [f"allow = user:{EVE} subscribe public.>", "bytes-per-uid = 1MB"]
    with guarded(bus, places.plain_build(), *rules) as router:
        router.start()
        with connecting_as(ALICE):
            other = router.subscriber("public.b", keep=4)
        with connecting_as(EVE):
            subs = [router.subscriber("public.a", keep=4) for _ in range(clients)]
        with router.subscriber("public.b", keep=4) as reads:
            for i in range(25):
                conn.emit("public.b", b"%4d" % i + bytes(size))
            reads.collect(25)

        def held_by(uid):
            return [s for s in router.status()["sessions"] if s["uid"] == uid]

        waiting = held_by(ALICE)[0]["queued_bytes"]
        assert waiting > 400000
        for i in range(rounds):
            for k in range(20):
                conn.emit("public.a", b"%4d" % (20 * i + k) + bytes(size))
                sip(subs[k % clients])
            wait_for(lambda: router.status()["memory_bytes"] < waiting + MB + MB // 2, 20, "they have let go")
        assert any(not s["live"] for s in held_by(EVE))
        session, = held_by(ALICE)
        assert (session["live"], session["queued_bytes"]) == (True, waiting)
        for sub in [other, *subs]:
            count = 25 if sub is other else 20 * rounds
            assert [int(m.content) for m in sub.collect(count, 60)] == list(range(count))
            assert not sub.gaps
        wait_for(lambda: router.status()["memory_bytes"] == 0, 20, "nothing waits")
        conn.emit("public.a", b"last")
        for sub in subs:
            assert [m.content for m in sub.collect(1)] == [b"last"]


def test_64_descriptors(bus, conn, tmp_path):
    """Few clients, and root always gets in; nobody is turned away without a word."""
    with guarded(bus, None, f"allow = user:{EVE} subscribe public.>") as router:
        router.program = with_64_descriptors(tmp_path, router.program)
        router.start()
        assert router.logged("router.few-descriptors")
        sub = router.subscriber("public.>")
        with Hostile(router.socket, EVE, "idle", 100) as hostile:
            for _ in range(3):
                with Connection(router.socket) as root:
                    root.hello()
                    assert root.request("status")["state"] == "streaming"
            conn.emit("public.a", b"1")
            assert [m.content for m in sub.collect(1)] == [b"1"]
        assert set(hostile.answers) <= {"open", "limit", "timeout"}, hostile.answers
        assert hostile.answers["limit"] >= 90, hostile.answers
        assert router.status()["turned_away"] == 0
