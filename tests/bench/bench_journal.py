#!/usr/bin/python3
# SPDX-License-Identifier: PostgreSQL
"""What the journal costs and gives, as ratios within one run.

    bench_journal.py durable   a backlog through router and one durable subscriber that acknowledges, against
                               pg_recvlogical into /dev/null
    bench_journal.py replay    five million messages read back from the journal, against the live drain
    bench_journal.py latency   commit to delivery with and without a durable subscriber
    bench_journal.py away      a durable subscriber away while five million messages pass: it gets each of them once, in
                               order, and beside it another one's latency, against that beside two busy loops
    bench_journal.py memory    the router's anonymous memory with a large transaction, and with a large message

WALBUS_TEST_PLAIN_BUILD names the build folder; see bench.py, of which this is a part. Exit 1 when a bound is missed.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bench  # noqa: E402  pylint: disable=wrong-import-position
from harness import places  # noqa: E402  pylint: disable=wrong-import-position
from harness.router import Router  # noqa: E402  pylint: disable=wrong-import-position
from harness.server import Server  # noqa: E402  pylint: disable=wrong-import-position
from harness.waiting import wait_for  # noqa: E402  pylint: disable=wrong-import-position

REPLAY_MESSAGES = 5_000_000
TRANSACTION_MESSAGES = 1_000_000
LARGE_MESSAGE = 300 << 20
BOUNDS = {"durable": 0.85, "replay": 3.0, "latency": 1.1, "away": 2.0}


def walbus(*arguments, **kw):
    return subprocess.Popen([os.path.join(bench.build(), "cli", "walbus"), *arguments], stdin=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, preexec_fn=places.die_with_parent(), **kw)


def tail(router, *arguments, stdout=subprocess.DEVNULL):
    return walbus("tail", "--socket", router.socket, "--output", "raw", *arguments, stdout=stdout)


def ended(process, what, router):
    if process.wait(900) != 0:
        sys.exit(f"bench_journal.py: {what} failed\n" + router.log())


def drain_durable(backlog, memory):
    slot = backlog.take()
    with Router(backlog.server.dsn(), slot=slot, build=bench.build(), args=["--journal-size", "2GB"]) as router, \
            contextlib.ExitStack() as watching:
        with bench.server_that_waits(backlog.server):
            router.spawn()
            wait_for(router.status, 20, "the router answers")
            process = tail(router, "--durable", "bench", "--from", "oldest", "--count", str(backlog.messages))
            wait_for(lambda: any(s["state"] == "waiting" for s in router.status()["sessions"]), 60, "it waits")
            watched = watching.enter_context(router.watched_memory())
            began = time.monotonic()
        ended(process, "the durable subscriber", router)
        took = time.monotonic() - began
        memory.append(watched.most)
    backlog.used(slot)
    return took


def durable(rounds):
    reference, again, router, memory = [], [], [], []
    with Server(settings={"max_wal_size": "8GB", "max_replication_slots": 3 * rounds, "shared_buffers": "256MB"}) as server:
        server.start()
        backlog = bench.Backlog(server, bench.DRAIN_MESSAGES, 3 * rounds)
        for _ in range(rounds):
            reference.append(bench.drain_reference(backlog))
            router.append(drain_durable(backlog, memory))
            again.append(bench.drain_reference(backlog))
    ratio = bench.ratios(zip(reference, router))
    print(f"drain of {bench.DRAIN_MESSAGES} messages of {bench.DRAIN_SIZE} bytes through the journal, in seconds")
    print(f"  pg_recvlogical        {bench.figures(reference)}")
    print(f"  pg_recvlogical again  {bench.figures(again)}  A/A {bench.ratios(zip(reference, again)):.2f}")
    print(f"  router, durable       {bench.figures(router)}  rate {ratio:.2f} of it; "
          f"{bench.verdict('durable', ratio, BOUNDS['durable'], True)}")
    print(f"  router's RssAnon      {max(memory) / 1e6:.1f} MB; {bench.verdict('memory', max(memory), bench.MEMORY_MAX, False)}")


def replay(rounds):
    live, back = [], []
    with Server(settings={"max_wal_size": "8GB", "max_replication_slots": rounds, "shared_buffers": "256MB"}) as server:
        server.start()
        backlog = bench.Backlog(server, REPLAY_MESSAGES, rounds)
        for _ in range(rounds):
            slot = backlog.take()
            with Router(server.dsn(), slot=slot, build=bench.build(), args=["--journal-size", "8GB"]) as router:
                with bench.server_that_waits(server):
                    router.spawn()
                    wait_for(router.status, 20, "the router answers")
                    running = bench.tails(router, 1, REPLAY_MESSAGES)
                    began = time.monotonic()
                ended(running[0], "the live subscriber", router)
                live.append(time.monotonic() - began)
                began = time.monotonic()
                ended(tail(router, "--from", "oldest", "--count", str(REPLAY_MESSAGES)), "the replay", router)
                back.append(time.monotonic() - began)
            backlog.used(slot)
    ratio = bench.ratios(zip(live, back))
    print(f"{REPLAY_MESSAGES} messages of {bench.DRAIN_SIZE} bytes, in seconds")
    print(f"  live                  {bench.figures(live)}")
    print(f"  from the journal      {bench.figures(back)}  rate {ratio:.2f} of it; "
          f"{bench.verdict('replay', ratio, BOUNDS['replay'], True)}")


def latency_durable(server, name):
    with Router(server.dsn(), build=bench.build()) as router:
        router.start()
        arguments = ["--durable", name] if name else []
        process = tail(router, *arguments, stdout=subprocess.PIPE)
        wait_for(lambda: any(s["state"] == "active" for s in router.status()["sessions"]), 20, "tail follows")
        pipe = bench.Pipe(process)
        try:
            return bench.commit_latency(server, pipe)
        finally:
            pipe.close()


def latency(rounds):
    without, again, with_name = [], [], []
    with Server() as server:
        server.start()
        server.create_bus()
        with server.connect() as conn:
            conn.run("CREATE TABLE work (i int)")
        for _ in range(rounds):
            without.append(latency_durable(server, None))
            with_name.append(latency_durable(server, "bench"))
            again.append(latency_durable(server, None))
    ratio = bench.ratios(zip(with_name, without))
    print(f"commit to delivery, an event beside an INSERT, median of {bench.LATENCY_EVENTS}, in µs")
    print(f"  ephemeral             {bench.figures(without)}")
    print(f"  and again             {bench.figures(again)}  A/A {bench.ratios(zip(again, without)):.2f}")
    print(f"  durable               {bench.figures(with_name)}  {ratio:.2f} of it; "
          f"{bench.verdict('latency', ratio, BOUNDS['latency'], False)}")


@contextlib.contextmanager
def busy_loops(n):
    """What any process at full speed costs the others of so few processors."""
    running = [subprocess.Popen(["sh", "-c", "while :; do :; done"], preexec_fn=places.die_with_parent()) for _ in range(n)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait(20)


def all_in_order(router, name):
    """Each of them once, in order: their contents are numbers, a line each."""
    process = tail(router, "--durable", name, "--count", str(REPLAY_MESSAGES), "backlog", stdout=subprocess.PIPE)
    with process.stdout as got:
        same = subprocess.run(["bash", "-c", f"cmp - <(seq -f %0{bench.DRAIN_SIZE - 1}.0f {REPLAY_MESSAGES})"], stdin=got,
                              check=False)
    ended(process, "who was away", router)
    if same.returncode != 0:
        sys.exit("bench_journal.py: what came to who was away is not what was published, in its order")


def away(rounds):
    quiet, beside, loops, took = [], [], [], []
    with Server(settings={"max_wal_size": "8GB", "shared_buffers": "256MB"}) as server:
        server.start()
        server.create_bus()
        with server.connect() as conn:
            conn.run("CREATE TABLE work (i int)")
        with Router(server.dsn(), build=bench.build(), args=["--journal-size", "8GB"]) as router:
            router.start()
            names = [f"away{i}" for i in range(rounds)]
            for name in [*names, "checked"]:
                process = tail(router, "--durable", name, "backlog")
                wait_for(lambda: any(s["state"] == "active" for s in router.status()["sessions"]), 20, "it is there")
                process.terminate()
                process.wait(20)
                wait_for(lambda: not any(s["state"] == "active" for s in router.status()["sessions"]), 20, "it has left")
            pipe = bench.Pipe(tail(router, "--durable", "live", "orders.created", stdout=subprocess.PIPE))
            wait_for(lambda: any(s["state"] == "active" for s in router.status()["sessions"]), 20, "tail follows")
            with server.connect() as conn:
                conn.run(f"""DO $$ BEGIN FOR i IN 1..{REPLAY_MESSAGES // 1000} LOOP
                                 PERFORM pg_logical_emit_message(true, 'backlog', lpad(n::text, {bench.DRAIN_SIZE - 1}, '0') || chr(10))
                                 FROM generate_series(1000 * i - 999, 1000 * i) n;
                                 COMMIT;
                             END LOOP; END $$""")
            wait_for(lambda: router.status()["messages"] >= REPLAY_MESSAGES, 300, "they have passed", every=0.5)
            for name in names:
                quiet.append(bench.commit_latency(server, pipe))
                with busy_loops(2):
                    loops.append(bench.commit_latency(server, pipe))
                began = time.monotonic()
                process = tail(router, "--durable", name, "--count", str(REPLAY_MESSAGES), "backlog")
                beside.append(bench.commit_latency(server, pipe))
                if process.poll() is not None:
                    sys.exit("bench_journal.py: it had everything before the latency was measured\n" + router.log())
                ended(process, "who was away", router)
                took.append(time.monotonic() - began)
            all_in_order(router, "checked")
            pipe.close()
    ratio = bench.ratios(zip(beside, loops))
    print(f"commit to delivery, median of {bench.LATENCY_EVENTS}, in µs, while {REPLAY_MESSAGES} messages are read back")
    print(f"  nothing beside it     {bench.figures(quiet)}")
    print(f"  two busy loops        {bench.figures(loops)}")
    print(f"  one that was away     {bench.figures(beside)}  {ratio:.2f} of that beside two busy loops; "
          f"{bench.verdict('away', ratio, BOUNDS['away'], False)}")
    print(f"  which took            {bench.figures(took)} s for all of them")


def peak(server, sql, count, bound, what):
    with Router(server.dsn(), build=bench.build(), args=["--journal-size", "4GB"]) as router, server.connect() as conn:
        router.start()
        process = tail(router, "--durable", "bench", "--count", str(count))
        wait_for(lambda: any(s["state"] == "active" for s in router.status()["sessions"]), 20, "tail follows")
        with router.watched_memory() as watched:
            conn.run(sql)
            ended(process, what, router)
    print(f"  {what:40} {watched.most / 1e6:.1f} MB; {bench.verdict(what, watched.most, bound, False)}")


def memory(_rounds):
    print("the router's RssAnon at its peak")
    with Server(settings={"max_wal_size": "4GB", "logical_decoding_work_mem": "64MB"}) as server:
        server.start()
        server.create_bus()
        peak(server, "SELECT count(pg_logical_emit_message(true, 'a', decode(repeat('ab', 1024), 'hex')))"
                     f" FROM generate_series(1, {TRANSACTION_MESSAGES})",
             TRANSACTION_MESSAGES, bench.MEMORY_MAX, "a transaction of 1 GB, 1 KB a message")
        peak(server, f"SELECT pg_logical_emit_message(true, 'a', decode(repeat('ab', {LARGE_MESSAGE}), 'hex'))",
             1, bench.MEMORY_MAX + 2 * LARGE_MESSAGE, "a message of 300 MB")


WHAT = {"durable": durable, "replay": replay, "latency": latency, "away": away, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench.add_words(parser, WHAT)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for what in arguments.what or WHAT:
        WHAT[what](arguments.rounds)
    if bench.failures:
        print("missed: " + ", ".join(bench.failures))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
