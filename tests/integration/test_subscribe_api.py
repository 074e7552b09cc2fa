# SPDX-License-Identifier: PostgreSQL
"""libwalbus' subscribing, from programs that link the library: they see what `walbus tail` sees."""

import datetime
import json
import os
import re
import shutil
import signal

import pytest
from harness import places
from harness.command import Running, walbus
from harness.router import Router
from harness.server import parse_lsn
from harness.subscriber import FLAG_TRANSACTIONAL as TRANSACTIONAL
from harness.subscriber import INDEX_END, Begin, Commit, Message, Position
from harness.waiting import Deadline, wait_for

EXAMPLES = ["subscribe", "subscribe_poll"]
API = os.path.join("tests", "integration", "subscribe_api")


def built(path, build=None):
    program = os.path.join(build or places.build_dir(), path)
    if not os.path.exists(program):
        pytest.skip(f"{program} was not built")
    return program


def example(name, router, pattern=">", build=None, before=()):
    """One of the examples, following."""
    program = [*before, built(os.path.join("examples", name), build)]
    return Running(pattern, program=program, env={"WALBUS_SOCKET": router.socket})


def api(*arguments, build=None):
    return Running(*map(str, arguments), program=[built(API, build)])


def tail(router, pattern=">"):
    return Running("tail", "--socket", router.socket, "--output", "json", pattern)


def lines_of(tail_output):
    """What the examples print for what tail prints."""
    lines = []
    for line in map(json.loads, tail_output.splitlines()):
        if "gap" in line:
            gap = line["gap"]
            lines.append(f"gap {gap['from']} {gap['to']} {gap['reason']}")
        else:
            data = line["event"].get("data", "") if "event" in line else line["payload"]
            lines.append(f"{line['position']} {line['prefix']} {data if isinstance(data, str) else ''}")
    return lines


def emit_some(bus, conn, n):
    """Events and what is none, transactional and not, alone and together, rolled back too."""
    assert walbus("publish", "--dsn", bus.dsn(), "orders.created", '"apples"').status == 0
    assert walbus("publish", "--dsn", bus.dsn(), "orders.none").status == 0
    assert walbus("publish", "--dsn", bus.dsn(), "--non-transactional", "orders.now", '{"n": 1}').status == 0
    for i in range(n):
        conn.emit("a.b" if i % 2 else "c", f"number {i}".encode(), transactional=i % 3 > 0)
    conn.run("SELECT count(pg_logical_emit_message(true, 'many', 'one of many ' || i)) FROM generate_series(1, 500) i")
    conn.run("BEGIN")
    conn.run("SELECT pg_logical_emit_message(true, 'a.x', 'kept')")
    conn.run("SAVEPOINT s")
    conn.run("SELECT pg_logical_emit_message(true, 'a.x', 'rolled back')")
    conn.run("ROLLBACK TO s")
    conn.run("COMMIT")
    conn.emit("end", b"")


def wait_for_end(running, n=1):
    """Until the n-th message `end` was printed."""
    for one in running:
        wait_for(lambda o=one: len(re.findall(rb' end \n|"prefix":"end"', o.out)) >= n, 30, "all has arrived")


def wait_subscribed(router, n):
    wait_for(lambda: sum(s["state"] == "active" for s in router.status()["sessions"]) == n, 20, f"{n} are subscribed")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short(name):
    with open(os.path.join(places.ROOT, "examples", f"{name}.c"), encoding="utf-8") as file:
        assert len(file.readlines()) < 100


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("socket,words", [
    ("/nonexistent/s", "no router answers at the socket: No such file or directory\n"),
    ("/" * 108, "the path of the router's socket is empty or too long\n"),
], ids=["no router", "no path"])
def test_examples_say_why_they_cannot_begin(name, socket, words):
    """errno says something for a missing router alone."""
    with Running(">", program=[built(os.path.join("examples", name))], env={"WALBUS_SOCKET": socket}) as running:
        done = running.wait_exit()
        assert (done.status, done.out, done.error) == (1, b"", words)


@pytest.mark.parametrize("pattern", [">", "a.*"])
def test_examples_see_what_tail_sees(bus, router, conn, pattern):
    with tail(router, pattern) as reference, example(EXAMPLES[0], router, pattern) as blocking, \
            example(EXAMPLES[1], router, pattern) as polling:
        running = (reference, blocking, polling)
        for one in running:
            one.wait_ready()
        emit_some(bus, conn, 30)
        conn.emit("a.z", b"end")
        for one in running:
            wait_for(lambda o=one: b"a.z" in o.out, 20, "the last message")
        done = [one.stop(sig).out.decode() for one, sig in zip(running, (signal.SIGINT, signal.SIGTERM, signal.SIGINT))]
        assert [one.process.returncode for one in running] == [0, 0, 0]
        lines = lines_of(done[0])
        assert len(lines) > 10
        assert done[1].splitlines() == lines
        assert done[2].splitlines() == lines


def test_restarts_bring_no_double(bus, conn):
    """Nothing is published while the router is away: then nothing is missing, and there is no gap."""
    with Router(bus.dsn()) as router:
        router.start()
        with tail(router) as reference, example(EXAMPLES[0], router) as blocking, \
                example(EXAMPLES[1], router) as polling:
            running = (reference, blocking, polling)
            for one in running:
                one.wait_ready()
            for n in range(1, 4):
                emit_some(bus, conn, 10)
                wait_for_end(running, n)
                if n < 3:
                    router.stop()
                    router.start()
                    wait_subscribed(router, 3)
            done = [one.stop().out.decode() for one in running]
    lines = lines_of(done[0])
    assert not [line for line in lines if line.startswith("gap")]
    assert len(set(lines)) == len(lines)
    assert done[1].splitlines() == lines
    assert done[2].splitlines() == lines
    assert blocking.process.returncode == polling.process.returncode == 0


def position_of(text):
    timeline, lsn, index = text.split(":")
    return Position(int(timeline), parse_lsn(lsn), int(index))


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_what_passes_meanwhile_is_not_missing(bus, conn, kill):
    """The clients stand still until the new router has read on, for somebody else: it comes from the journal."""
    with Router(bus.dsn()) as router:
        router.start()
        with tail(router) as reference, example(EXAMPLES[0], router) as blocking, \
                example(EXAMPLES[1], router) as polling:
            running = (reference, blocking, polling)
            for one in running:
                one.wait_ready()
            conn.emit("a", b"1")
            for one in running:
                one.wait_lines(1)
                one.process.send_signal(signal.SIGSTOP)
            if kill:
                router.kill()
            else:
                router.stop()
            conn.emit("a", b"2")
            router.start()
            router.subscriber().drain(conn)
            for one in running:
                one.process.send_signal(signal.SIGCONT)
            wait_subscribed(router, 4)
            conn.emit("end", b"")
            wait_for_end(running)
            done = [one.stop().out.decode() for one in running]
    for lines in (lines_of(done[0]), done[1].splitlines(), done[2].splitlines()):
        words = [w for w in (line.split() for line in lines) if not w[1].startswith("test.marker.")]
        assert [w[1] for w in words] == ["a", "a", "end"], lines  # and no gap
        assert [w[2] for w in words[:2]] == ["1", "2"]
        before, missed, behind = map(position_of, (w[0] for w in words))
        assert before < missed < behind


def follow_to_end(sub):
    """What subscribe_api prints, made by the harness's own decoder."""
    lines = []
    ended = False
    while not ended or sub.checks.begin is not None:
        frame = sub.next(Deadline(30, "the end"))
        if isinstance(frame, Begin):
            position = Position(frame.timeline, frame.commit_lsn, 0)
            lines.append(f"begin {position} {frame.commit_lsn} {frame.xid} {frame.commit_time} {TRANSACTIONAL}")
        elif isinstance(frame, Message):
            ended |= frame.prefix == b"end"
            lines.append(f"message {frame.position} {frame.position.index} {frame.lsn} {frame.xid} {frame.commit_time} "
                         f"{frame.received_time} {TRANSACTIONAL if frame.transactional else 0} "
                         f"{frame.prefix.decode()} {len(frame.content)}")
        elif isinstance(frame, Commit):
            begin = frame.begin
            position = Position(begin.timeline, begin.commit_lsn, INDEX_END)
            lines.append(f"commit {position} {begin.commit_lsn} {frame.end_lsn} {begin.xid} {begin.commit_time} "
                         f"{frame.messages} {TRANSACTIONAL}")
    return lines


def json_of(line):
    """What tail prints of a message beside its prefix and content, from a line of subscribe_api."""
    _, position, index, lsn, xid, commit_time, _, flags, _, _ = line.split(" ")
    lsn, transactional = int(lsn), int(flags) & TRANSACTIONAL != 0
    found = {"position": position, "lsn": f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}", "index": int(index),
             "transactional": transactional, "redelivered": False}
    if transactional:
        when = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=int(commit_time))
        found.update(xid=int(xid), commit_time=when.isoformat(timespec="microseconds") + "Z")
    return found


def test_all_that_a_delivery_says(bus, router, conn):
    """Positions, LSNs, transactions, times, flags, counts: the library, tail, and a decoder that shares no code."""
    with tail(router) as reference, api("print", router.socket) as program:
        program.wait_ready()
        reference.wait_ready()
        sub = router.subscriber()
        emit_some(bus, conn, 30)
        wanted = follow_to_end(sub)
        done = program.wait_exit(60)
        wait_for_end([reference])
        shown = reference.stop().json_lines()
    assert done.status == 0, done
    lines = done.text.splitlines()
    assert (lines[0], lines[-1]) == ("ready", "all checks are ok")
    assert lines[1:-1] == wanted
    kinds = [line.split(" ")[0] for line in wanted]
    assert kinds.count("message") > 530 and kinds.count("begin") == kinds.count("commit") > 20
    messages = [line for line in wanted if line.startswith("message ")]
    assert [{key: one[key] for key in one if key not in ("prefix", "event", "payload")} for one in shown] \
        == list(map(json_of, messages))
    assert {json_of(line)["transactional"] for line in messages} == {True, False}


def test_one_process_with_two(bus, router, conn):
    """The library starts no thread, and closing a second subscription does not disturb the first."""
    n = 2000
    with api("two", router.socket, n) as program:
        program.wait_ready()
        conn.emit("a", b"first")
        wait_subscribed(router, 1)
        conn.run("SELECT count(pg_logical_emit_message(true, 'b', i::text)) FROM generate_series(1, %s) i", n - 1)
        done = program.wait_exit(60)
        assert done.status == 0 and done.text == "ready\nall checks are ok\n", done


def process_state(running):
    """The letter of proc(5): T is stopped."""
    with open(f"/proc/{running.process.pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_transaction_that_the_connection_breaks_in(bus, conn):
    """READY ends it. The program stops inside a transaction of which the socket holds only a part."""
    with Router(bus.dsn()) as router:
        router.start()
        with api("broken", router.socket) as program:
            program.wait_ready()
            conn.run("SELECT count(pg_logical_emit_message(true, 'b', repeat('x', 1000))) "
                     "FROM generate_series(1, 8000)")
            wait_for(lambda: process_state(program) == "T", 20, "the program has stopped itself")
            router.kill()
            program.process.send_signal(signal.SIGCONT)
            router.start()
            wait_subscribed(router, 1)
            conn.emit("end", b"")
            done = program.wait_exit(60)
            assert done.status == 0, done
            assert re.fullmatch("ready\n(resumed|missed)\nall checks are ok\n", done.text), done


def follow_in_threads(router, conn, build=None):
    n, threads = 2000, 4
    with api("threads", router.socket, n, threads, build=build) as program:
        program.wait_ready(60)
        for _ in range(4):
            conn.run("SELECT count(pg_logical_emit_message(true, 'b', i::text)) FROM generate_series(1, %s) i", n // 4)
        done = program.wait_exit(120)
        assert done.status == 0 and done.text == "ready\nall checks are ok\n", done


def test_threads(router, conn):
    follow_in_threads(router, conn)


def test_under_thread_sanitizer(router, conn):
    build = places.thread_build()
    if build is None:
        pytest.skip("no build with ThreadSanitizer: set WALBUS_TEST_THREAD_BUILD")
    follow_in_threads(router, conn, build)


def test_examples_under_thread_sanitizer(bus, router, conn):
    build = places.thread_build()
    if build is None:
        pytest.skip("no build with ThreadSanitizer: set WALBUS_TEST_THREAD_BUILD")
    follow_examples(bus, router, conn, build, ())


def follow_examples(bus, router, conn, build, before):
    with tail(router) as reference, example(EXAMPLES[0], router, build=build, before=before) as blocking, \
            example(EXAMPLES[1], router, build=build, before=before) as polling:
        running = (reference, blocking, polling)
        for one in running:
            one.wait_ready(60)
        emit_some(bus, conn, 30)
        wait_for_end(running)
        router.stop()
        router.start()
        wait_subscribed(router, 3)
        conn.emit("end", b"")
        wait_for_end(running, 2)
        done = [one.stop(seconds=60) for one in running]
    lines = lines_of(done[0].text)
    for one in done[1:]:
        assert one.status == 0, one
        assert one.text.splitlines() == lines


def test_examples_under_valgrind(bus, router, conn):
    """The test fails by valgrind's exit status."""
    build = places.plain_build()
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    if build is None:
        pytest.skip("valgrind needs a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    follow_examples(bus, router, conn, build,
                    ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
                     "--track-fds=no", "--error-exitcode=9"])
