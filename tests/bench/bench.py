#!/usr/bin/python3
# SPDX-License-Identifier: PostgreSQL
"""What the router costs, as ratios within one run and as instructions, which do not depend on the machine's load.

    bench.py drain         a backlog through router and subscribers, against pg_recvlogical into /dev/null
    bench.py latency       commit to delivery on an idle system, against pg_recvlogical to a pipe
    bench.py sign          an event of 1 KB signed, made and signed as the publisher does, and verified as a subscriber
                           does, against libsodium's bare calls
    bench.py instructions  of the router for a message, by callgrind, and its allocations; compared with the
                           committed figures in instructions.json (--write: replaces them)

WALBUS_TEST_PLAIN_BUILD names the build folder; it should be optimised and without sanitizers. Ratios are medians
over pairs that take turns; beside each stands the ratio of the reference to itself. Exit 1 when a bound is missed.
"""

import argparse
import contextlib
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))

from harness import places  # noqa: E402  pylint: disable=wrong-import-position
from harness.router import MEMORY_EVERY, Router  # noqa: E402  pylint: disable=wrong-import-position
from harness.server import Server, one  # noqa: E402  pylint: disable=wrong-import-position
from harness.waiting import wait_for  # noqa: E402  pylint: disable=wrong-import-position

DRAIN_MESSAGES = 1_000_000
DRAIN_SIZE = 200
DRAIN_A_TRANSACTION = 250
LATENCY_EVENTS = 200
MEMORY_MAX = 64 << 20
# Of what is queued for a subscriber that does not read: an outbox (OUTBOX_BYTES_MAX) before it is let go. Memory that is
# watched and shows less of it is not the router's.
MEMORY_QUEUED_MIN = 4 << 20
# By how much the router's instructions for a message may grow before somebody has to say why.
GROWTH_MAX = 1.10
# The journal is written and synced beside it: on two cores, of which the server takes one, that is a tenth.
BOUNDS = {"drain 1": 0.85, "drain 4": 0.8, "latency": 1.5, "sign": 1.15, "publish": 1.15, "verify": 1.15}
# Bytes of the event's map, which is what is signed.
SIGNED_SIZE = 1024
# Of three batches of 16 each: 1 ms of signing, 2 ms of verifying.
SIGN_ROUNDS = 400

failures = []


def verdict(name, value, bound, at_least):
    good = value >= bound if at_least else value <= bound
    if not good:
        failures.append(name)
    return f"{'at least' if at_least else 'at most'} {bound}: {'holds' if good else 'MISSED'}"


def build():
    folder = os.environ.get("WALBUS_TEST_PLAIN_BUILD") or places.plain_build()
    if not folder:
        sys.exit("bench.py: set WALBUS_TEST_PLAIN_BUILD to a build folder without sanitizers")
    return os.path.abspath(folder)


def recvlogical(server, slot, *arguments, **kw):
    program = os.path.join(places.pg_bindir(15), "pg_recvlogical")
    return subprocess.Popen(
        [program, "-d", server.dsn(), "-S", slot, "--start", "--no-loop", "-o", "proto_version=1",
         "-o", "publication_names=walbus", "-o", "messages=true", *arguments],
        stdin=subprocess.DEVNULL, preexec_fn=places.die_with_parent(), **kw)


class Backlog:
    """Messages that wait in a slot, which can be read again and again from copies of it."""

    def __init__(self, server, messages, slots, fill=None):
        """`fill` makes the messages with a connection; without it they are all the same."""
        self.server, self.messages = server, messages
        self.slots = [f"copy{i}" for i in range(slots)]
        with server.connect() as conn:
            conn.run("CREATE PUBLICATION walbus")
            for slot in self.slots:
                conn.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
            (fill or self._fill)(conn)
            self.end = one(conn, "SELECT pg_current_wal_lsn()::text")

    def _fill(self, conn):
        conn.run(f"""DO $$ BEGIN FOR i IN 1..{self.messages // DRAIN_A_TRANSACTION} LOOP
                         PERFORM pg_logical_emit_message(true, 'orders.created', decode(repeat('ab', {DRAIN_SIZE}), 'hex'))
                         FROM generate_series(1, {DRAIN_A_TRANSACTION});
                         COMMIT;
                     END LOOP; END $$""")

    def take(self):
        return self.slots.pop()

    def used(self, slot):
        """A slot that was read to the end would be read faster, or kept WAL: it goes."""
        with self.server.connect() as conn:
            wait_for(lambda: not one(conn, "SELECT active FROM pg_replication_slots WHERE slot_name = %s", slot), 20,
                     "the slot is free")
            conn.run("SELECT pg_drop_replication_slot(%s)", slot)


@contextlib.contextmanager
def server_that_waits(server):
    """Nobody can connect meanwhile: subscribers are there before the router reads its first message."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def tails(router, n, count, filters=(), **kw):
    running = [subprocess.Popen([os.path.join(build(), "cli", "walbus"), "tail", "--socket", router.socket, "--output", "raw",
                                 "--count", str(count), *filters], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, preexec_fn=places.die_with_parent(), **kw) for _ in range(n)]
    wait_for(lambda: sum(s["state"] == "waiting" for s in router.status()["sessions"]) == n, 60, "subscribers wait")
    return running


def drain_reference(backlog):
    slot = backlog.take()
    began = time.monotonic()
    if recvlogical(backlog.server, slot, "-f", "/dev/null", f"--endpos={backlog.end}").wait(600) != 0:
        sys.exit("bench.py: pg_recvlogical failed")
    took = time.monotonic() - began
    backlog.used(slot)
    return took


def drain_router(backlog, n, memory, stopped=0):
    """Beside `stopped` more that do not read. Appends the most anonymous memory that the router took."""
    slot = backlog.take()
    with Router(backlog.server.dsn(), slot=slot, build=build()) as router, contextlib.ExitStack() as watching:
        with server_that_waits(backlog.server):
            router.spawn()
            wait_for(router.status, 20, "the router answers")
            running = tails(router, n + stopped, backlog.messages)
            for process in running[n:]:
                process.send_signal(signal.SIGSTOP)
            watched = watching.enter_context(router.watched_memory())
            began = time.monotonic()
        for process in running[:n]:
            if process.wait(600) != 0:
                sys.exit("bench.py: a subscriber failed\n" + router.log())
        took = time.monotonic() - began
        if watched.samples < took / MEMORY_EVERY / 10:
            sys.exit(f"bench.py: in {took:.1f} s memory was looked at only {watched.samples} times")
        memory.append(watched.most)
        for process in running[n:]:
            process.kill()
            process.wait(20)
    backlog.used(slot)
    return took


def ratios(pairs):
    return statistics.median(a / b for a, b in pairs)


def figures(values):
    return " ".join(f"{v:.2f}" for v in values)


def drain(rounds):
    reference, again, single, four, memory, queued = [], [], [], [], [], []
    slots = 4 * rounds + 1
    with Server(settings={"max_wal_size": "8GB", "max_replication_slots": slots, "shared_buffers": "256MB"}) as server:
        server.start()
        backlog = Backlog(server, DRAIN_MESSAGES, slots)
        for _ in range(rounds):
            reference.append(drain_reference(backlog))
            single.append(drain_router(backlog, 1, memory))
            again.append(drain_reference(backlog))
            four.append(drain_router(backlog, 4, memory))
        drain_router(backlog, 1, queued, stopped=1)
    print(f"drain of {DRAIN_MESSAGES} messages of {DRAIN_SIZE} bytes, {DRAIN_A_TRANSACTION} a transaction, in seconds")
    print(f"  pg_recvlogical        {figures(reference)}")
    print(f"  pg_recvlogical again  {figures(again)}  A/A {ratios(zip(reference, again)):.2f}")
    for name, values in (("1", single), ("4", four)):
        ratio, bound = ratios(zip(reference, values)), BOUNDS[f"drain {name}"]
        print(f"  router, {name} subscriber{' ' if name == '1' else 's'}  {figures(values)}  rate {ratio:.2f} of it; "
              f"{verdict('drain ' + name, ratio, bound, True)}")
    print(f"  router's RssAnon      {max(memory) / 1e6:.1f} MB, {queued[0] / 1e6:.1f} MB beside a subscriber that does not read; "
          f"{verdict('memory', max(memory + queued), MEMORY_MAX, False)}")
    if queued[0] < MEMORY_QUEUED_MIN:
        failures.append("memory does not show what is queued")


class Pipe:
    """The output of a program that prints what it received, up to a mark."""

    def __init__(self, process):
        self.process = process
        self.bytes = b""
        self.poll = select.poll()
        self.poll.register(process.stdout, select.POLLIN)

    def wait(self, mark):
        while mark not in self.bytes:
            if not self.poll.poll(20_000):
                sys.exit(f"bench.py: {mark!r} did not come")
            self.bytes = (self.bytes + os.read(self.process.stdout.fileno(), 65536))[-65536:]

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


def commit_latency(server, pipe):
    """Median µs from the COMMIT's start to the event's arrival."""
    took = []
    with server.connect(autocommit=False) as conn:
        for i in range(LATENCY_EVENTS + 10):
            mark = f"<{time.monotonic_ns()}>".encode()
            conn.run("INSERT INTO work VALUES (%s)", i)
            conn.run("SELECT pg_logical_emit_message(true, 'orders.created', convert_to(%s, 'UTF8'))", mark.decode())
            began = time.monotonic_ns()
            conn.commit()
            pipe.wait(mark)
            took.append((time.monotonic_ns() - began) / 1000)
            time.sleep(0.005)  # idle again: what comes next comes alone
    return statistics.median(took[10:])


def latency_reference(server):
    pipe = Pipe(recvlogical(server, "reference", "-F", "0", "-f", "-", stdout=subprocess.PIPE))
    wait_for(lambda: (server.slot("reference") or {}).get("active"), 20, "pg_recvlogical reads")
    try:
        return commit_latency(server, pipe)
    finally:
        pipe.close()


def latency_router(server):
    with Router(server.dsn(), build=build()) as router:
        router.start()
        process = subprocess.Popen([os.path.join(build(), "cli", "walbus"), "tail", "--socket", router.socket, "--output", "raw"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   preexec_fn=places.die_with_parent())
        wait_for(lambda: any(s["state"] == "active" for s in router.status()["sessions"]), 20, "tail follows")
        pipe = Pipe(process)
        try:
            return commit_latency(server, pipe)
        finally:
            pipe.close()


def latency(rounds):
    reference, again, router = [], [], []
    with Server() as server:
        server.start()
        server.create_bus()
        with server.connect() as conn:
            conn.run("SELECT pg_create_logical_replication_slot('reference', 'pgoutput')")
            conn.run("CREATE TABLE work (i int)")
        for _ in range(rounds):
            reference.append(latency_reference(server))
            router.append(latency_router(server))
            again.append(latency_reference(server))
    ratio = ratios(zip(router, reference))
    print(f"commit to delivery, an event beside an INSERT, median of {LATENCY_EVENTS}, in µs")
    print(f"  pg_recvlogical -F 0   {figures(reference)}")
    print(f"  and again             {figures(again)}  A/A {ratios(zip(again, reference)):.2f}")
    print(f"  router and tail       {figures(router)}  {ratio:.2f} of it; {verdict('latency', ratio, BOUNDS['latency'], False)}")


def signatures(*arguments):
    """What tests/bench/signatures.c answers."""
    program = os.path.join(build(), "tests", "bench", "bench_signatures")
    if not os.path.exists(program):
        sys.exit(f"bench.py: there is no {program}: build with -Dtests=enabled")
    return subprocess.run([program, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True,
                          preexec_fn=places.die_with_parent()).stdout


def sign(rounds):
    print(f"an event of {SIGNED_SIZE} bytes, in ns, medians of {SIGN_ROUNDS * rounds} rounds of three batches")
    for what in ("sign", "publish", "verify"):
        found = json.loads(signatures(what, SIGNED_SIZE, SIGN_ROUNDS * rounds))
        print(f"  {what:8} libsodium {found['bare']}, again {found['again']}, A/A {found['same']:.3f}; "
              f"walbus {found['walbus']}, {found['ratio']:.3f} of it; {verdict(what, found['ratio'], BOUNDS[what], False)}")


def callgrind_totals(path):
    """Instructions, and calls of allocating functions that do not come from libpq, with who made them."""
    instructions, calls, names, files = 0, {}, {}, {}
    caller_object = callee = None

    def named(table, text):
        found = re.match(r"\((\d+)\)(?: (.*))?$", text)
        if not found:
            return text
        if found.group(2):
            table[found.group(1)] = found.group(2)
        return table[found.group(1)]

    caller = None
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            key, _, value = line.rstrip("\n").partition("=")
            if key == "ob":
                caller_object = named(files, value)
            elif key == "cob":
                named(files, value)
            elif key == "fn":
                caller = named(names, value)
            elif key == "cfn":
                callee = named(names, value)
            elif key == "calls":
                if callee in ("malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"):
                    where = "libpq" if "libpq" in (caller_object or "") else f"{os.path.basename(caller_object or '?')}:{caller}"
                    calls[where] = calls.get(where, 0) + int(value.split()[0])
            elif line.startswith(("totals:", "summary:")):
                instructions = int(line.split()[1])
    return instructions, calls


def count_instructions(server, messages, subscribers, filters, folder):
    backlog = Backlog(server, messages, 1)
    out = os.path.join(folder, f"callgrind.{messages}.{subscribers}")
    router = Router(server.dsn(), slot=backlog.take(), build=build())
    # the server must be ahead of it, whatever else the machine does: else messages come one by one
    command = ["nice", "-n", "19", "valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", router.program]
    with server_that_waits(server):
        with open(router.log_path, "ab") as log:
            router.process = subprocess.Popen(
                [*command, "--dsn", server.dsn(), "--slot", router.slot, "--socket", router.socket,
                 "--state-dir", router.state_dir],
                env=places.child_environment({}), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=places.die_with_parent())
        wait_for(router.status, 60, "the router answers")
        running = tails(router, subscribers, messages, filters)
    for process in running:
        if process.wait(600) != 0:
            sys.exit("bench.py: a subscriber failed\n" + router.log())
    router.stop(60)
    with server.connect() as conn:
        conn.run("SELECT pg_drop_replication_slot(%s)", router.slot)
        conn.run("DROP PUBLICATION walbus")
    router.close()
    return callgrind_totals(out)


# Two sizes: what start and stop cost cancels out.
INSTRUCTIONS_MESSAGES = (10_000, 60_000)
# Name: how many subscribers, and their filters. The filtered ones are served message by message.
INSTRUCTIONS_CASES = {"everything, 1 subscriber": (1, ()), "everything, 4 subscribers": (4, ()),
                      "filtered, 4 subscribers": (4, ("orders.*", "--exclude", "orders.paid"))}
INSTRUCTIONS_FILE = os.path.join(HERE, "instructions.json")
# On a very busy machine the server may still send more slowly than the router reads under callgrind: then messages come
# one by one instead of in runs, and cost more. So the least of some tries counts.
INSTRUCTIONS_TRIES = 3
# A batch, of some 250 messages, may be allocated when all kept ones are under way.
OWN_ALLOCATIONS_MAX = 0.02


class Cost:
    """Of one message, in the steady state."""

    def __init__(self, case):
        subscribers, filters = INSTRUCTIONS_CASES[case]
        folder = places.new_folder("walbus-cg-")
        with Server(settings={"shared_buffers": "256MB"}) as server:
            server.start()
            (few, few_calls), (many, many_calls) = (count_instructions(server, n, subscribers, filters, folder)
                                                    for n in INSTRUCTIONS_MESSAGES)
        shutil.rmtree(folder)
        n = INSTRUCTIONS_MESSAGES[1] - INSTRUCTIONS_MESSAGES[0]
        self.instructions = round((many - few) / n)
        grown = {who: many_calls[who] - few_calls.get(who, 0) for who in many_calls}
        self.libpq_allocations = grown.pop("libpq") / n
        self.own_allocations = sum(grown.values()) / n
        # that the counting itself works: starting allocates
        assert sum(few_calls.values()) > few_calls["libpq"] + 100, few_calls
        self.who = ", ".join(f"{who} {count}" for who, count in sorted(grown.items(), key=lambda x: -x[1])[:5])

    def __str__(self):
        return (f"{self.instructions} instructions, allocations by libpq {self.libpq_allocations:.3f}, "
                f"own {self.own_allocations:.4f} ({self.who})")


def committed_instructions():
    with open(INSTRUCTIONS_FILE, encoding="utf-8") as f:
        return json.load(f)


def cost_within(case, most):
    """The least of some tries; one that is within `most` instructions ends them."""
    best = None
    for _ in range(INSTRUCTIONS_TRIES):
        cost = Cost(case)
        best = cost if best is None or cost.instructions < best.instructions else best
        if best.instructions <= most:
            break
    return best


def instructions(write):
    committed, found = ({} if write else committed_instructions()), {}
    for case in INSTRUCTIONS_CASES:
        cost = cost_within(case, 0 if write else committed[case] * GROWTH_MAX)
        found[case] = cost.instructions
        print(f"a message costs the router ({case}): {cost}")
        if cost.own_allocations > OWN_ALLOCATIONS_MAX:
            failures.append("allocations")
        if not write:
            growth = round(cost.instructions / committed[case], 3)
            print(f"  {growth} of the committed {committed[case]}; {verdict(f'instructions ({case})', growth, GROWTH_MAX, False)}")
    if write:
        with open(INSTRUCTIONS_FILE, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=4)
            f.write("\n")


def add_words(parser, words):
    """Any of these, or none: argparse's own choices refuse none of them."""
    def word(text):
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(words)}")
        return text
    parser.add_argument("what", type=word, metavar="|".join(words), nargs="*")


WORDS = ("drain", "latency", "sign", "instructions")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_words(parser, WORDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for what in arguments.what or WORDS:
        if what == "instructions":
            instructions(arguments.write)
        else:
            {"drain": drain, "latency": latency, "sign": sign}[what](arguments.rounds)
    if failures:
        print("missed: " + ", ".join(failures))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
