#!/usr/bin/python3
# SPDX-License-Identifier: PostgreSQL
"""What signatures cost the router, as ratios within one run.

    bench_signatures.py require   a backlog of signed events under the policy `require`, as verifications a second,
                                  against libsodium's bare calls on as many threads
    bench_signatures.py ignore    a backlog of signed events under no policy, against unsigned ones of the same size

What is compared in `require`. The reference is two threads of nothing but crypto_sign_verify_detached over as many
bytes as a content has, before and behind each drain, and it has the machine for itself. The router has not: on two
cores its own loop and journal, the server's walsender and the subscriber run beside its two workers, and what they take
is missing there. The bound is for the plain ratio all the same, nothing is taken off. Beside it stands how much of the
two cores went to the server and the subscriber, which are not the router, and the ratio to what they leave.

Signed and unsigned contents are of one size to the byte: a signature makes a message larger, and larger ones are
slower. They are 1,000 different events again and again, and so are the messages of the bare calls: nothing remembers
what it has verified, but of one and the same signature the processor would remember the branches (measured: 3 %).

WALBUS_TEST_PLAIN_BUILD names the build folder; see bench.py, of which this is a part. Exit 1 when a bound is missed.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bench  # noqa: E402  pylint: disable=wrong-import-position
from harness.router import Router  # noqa: E402  pylint: disable=wrong-import-position
from harness.server import Server  # noqa: E402  pylint: disable=wrong-import-position
from harness.waiting import wait_for  # noqa: E402  pylint: disable=wrong-import-position

# The router's threads for checks, and cores that the bare calls get.
WORKERS = 2
CONTENT_SIZE = 1024
PREFIX = "orders.created"
DIFFERENT = 1_000
A_TRANSACTION = 250
# Some 5 s of verifying on two cores; some 2 s of passing on.
MESSAGES = {"require": 200_000, "ignore": 500_000}
BARE_SECONDS = 3
BOUNDS = {"require": 0.8, "ignore": 0.95}


def fill(messages, kind):
    """Publishes events that were made, and signed, before: the server does nothing but write them."""
    def run(conn):
        lines = bench.signatures("contents", DIFFERENT, CONTENT_SIZE, kind, PREFIX).splitlines()
        rows = b"".join(b"%d\t%s\n" % (i // A_TRANSACTION, line) for i, line in enumerate(lines))
        conn.run("CREATE UNLOGGED TABLE contents (part int, content bytea)")
        with conn.raw.cursor() as cur:
            cur.copy_expert("COPY contents FROM STDIN", io.BytesIO(rows))
        conn.run(f"""DO $$ BEGIN FOR i IN 1..{messages // A_TRANSACTION} LOOP
                         PERFORM pg_logical_emit_message(true, '{PREFIX}', content)
                         FROM contents WHERE part = i % {DIFFERENT // A_TRANSACTION};
                         COMMIT;
                     END LOOP; END $$""")
    return run


@contextlib.contextmanager
def backlog_of(kind, messages, slots):
    with Server(settings={"max_wal_size": "8GB", "max_replication_slots": slots, "shared_buffers": "256MB"}) as server:
        server.start()
        yield bench.Backlog(server, messages, slots, fill(messages, kind))


def process_times(pid):
    """Parent, and CPU seconds."""
    with open(f"/proc/{pid}/stat", encoding="latin-1") as f:
        fields = f.read().rpartition(")")[2].split()
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_seconds(server):
    """CPU time of the server's processes that live."""
    seconds = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent, took = process_times(pid)
            seconds += took if parent == server.pid else 0
    return seconds


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def drain(backlog, args=(), checked=0):
    """Seconds, CPU seconds that server and subscriber took of them, and the router's. `checked` messages were found
    valid: it is made sure that the router did what is measured."""
    slot = backlog.take()
    with Router(backlog.server.dsn(), slot=slot, build=bench.build(), args=["--journal-size", "2GB", *args]) as router:
        with bench.server_that_waits(backlog.server):
            router.spawn()
            wait_for(router.status, 20, "the router answers")
            subscriber, = bench.tails(router, 1, backlog.messages)
            others, own = -server_seconds(backlog.server) - children_seconds(), -process_times(router.process.pid)[1]
            began = time.monotonic()
        if subscriber.wait(600) != 0:
            sys.exit("bench_signatures.py: the subscriber failed\n" + router.log())
        took = time.monotonic() - began
        others += server_seconds(backlog.server) + children_seconds()
        own += process_times(router.process.pid)[1]
        found = {status: n for status, n in router.status()["signatures"].items() if n > 0}
        if found != ({"valid": checked} if checked else {}):
            sys.exit(f"bench_signatures.py: the router has checked {found}\n" + router.log())
    backlog.used(slot)
    return took, others, own


def bare():
    return json.loads(bench.signatures("threads", WORKERS, CONTENT_SIZE, BARE_SECONDS))


def require(rounds, messages):
    before, behind, router, shares, dearer = [], [], [], [], []
    with backlog_of("signed", messages, rounds) as backlog:
        trust = os.path.join(backlog.server.folder, "trust")
        with open(trust, "wb") as f:
            f.write(bench.signatures("trust", PREFIX))
        for _ in range(rounds):
            calls = bare()
            took, others, own = drain(backlog, ["--trust-file", trust, "--policy", "> require"], messages)
            before.append(calls["rate"])
            behind.append(bare()["rate"])
            router.append(messages / took)
            shares.append(others / took / WORKERS)
            dearer.append(1e6 * own / messages / calls["cpu_us"])
    reference = [(a + b) / 2 for a, b in zip(before, behind)]
    ratio, share = bench.ratios(zip(router, reference)), statistics.median(shares)
    print(f"signed events of {CONTENT_SIZE} bytes a second, {WORKERS} threads")
    print(f"  libsodium             {rates(before)}")
    print(f"  and again             {rates(behind)}  A/A {bench.ratios(zip(behind, before)):.3f}")
    print(f"  router, require       {rates(router)}  {ratio:.3f} of it; "
          f"{bench.verdict('require', round(ratio, 3), BOUNDS['require'], True)}")
    print(f"  server and subscriber {share:.3f} of {WORKERS} cores; "
          f"the router has {ratio / (1 - share):.3f} of what they leave")
    print(f"  router's CPU time     {statistics.median(dearer):.3f} of the bare calls', all its threads")


def ignore(rounds, messages):
    unsigned, again, signed = [], [], []
    with backlog_of("unsigned", messages, 2 * rounds) as plain, \
            backlog_of("signed", messages, rounds) as backlog:
        for _ in range(rounds):
            unsigned.append(drain(plain)[0])
            signed.append(drain(backlog)[0])
            again.append(drain(plain)[0])
    # against the mean of both sides: what the machine does more and more falls out
    ratio = statistics.median((a + b) / 2 / s for a, s, b in zip(unsigned, signed, again))
    print(f"drain of {messages} events of {CONTENT_SIZE} bytes, {A_TRANSACTION} a transaction, no policy, in seconds")
    print(f"  unsigned              {bench.figures(unsigned)}")
    print(f"  unsigned again        {bench.figures(again)}  A/A {bench.ratios(zip(unsigned, again)):.3f}")
    print(f"  signed                {bench.figures(signed)}  rate {ratio:.3f} of it; "
          f"{bench.verdict('ignore', round(ratio, 3), BOUNDS['ignore'], True)}")


def rates(values):
    return " ".join(f"{v:.0f}" for v in values)


WHAT = {"require": require, "ignore": ignore}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench.add_words(parser, WHAT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, help="so many, to see whether it runs; the figures then say nothing")
    arguments = parser.parse_args()
    for what in arguments.what or WHAT:
        WHAT[what](arguments.rounds, arguments.messages or MESSAGES[what])
    if bench.failures:
        print("missed: " + ", ".join(bench.failures))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
