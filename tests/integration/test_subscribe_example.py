# SPDX-License-Identifier: PostgreSQL
"""examples/subscribe.py, which is written from the pages alone, sees what `walbus tail` sees."""

import ast
import json
import os
import struct
import sys

import pytest
from harness import cbor, places
from harness.command import Running
from harness.document import Page
from harness.fake_router import FakeRouter, at
from harness.router import Router
from harness.subscriber import SUBSCRIBE
from harness.waiting import Deadline, wait_for

PROGRAM = os.path.join(places.ROOT, "examples", "subscribe.py")
END = "the.end"


def follow(router, *filters):
    """tail and the example with the same filters, both subscribed."""
    running = [Running("tail", "--socket", router.socket, "--output", "json", *filters),
               Running("--socket", router.socket, *filters, program=[sys.executable, PROGRAM])]
    for r in running:
        r.wait_ready()
    return running


def lines(running):
    return [json.loads(line) for line in running.out.split(b"\n")[:-1]]  # what is behind the last is not whole


def messages_to_end(running, prefix=END):
    """What came before the message END, which stands there too."""
    found = []

    def has_come():
        found[:] = lines(running)
        return any(line.get("prefix") == prefix for line in found)
    wait_for(has_come, 20, f"the end: {running.err!r}")
    return found


def close(running):
    for r in running:
        done = r.stop()
        assert done.status == 0, done
        r.close()


def test_it_is_short_and_needs_nothing():
    with open(PROGRAM, encoding="utf-8") as file:
        source = file.read()
    assert source.count("\n") < 220
    assert max(map(len, source.split("\n"))) <= 120
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported |= {getattr(node, "module", None) or alias.name for alias in node.names}
    assert imported and imported <= sys.stdlib_module_names


def envelope(data=None, **attributes):
    """An event with this CBOR item as its data."""
    pairs = dict({"id": "1", "type": "t", "source": "/s", "specversion": "1.0"}, **attributes)
    body = b"".join(cbor.dumps(k) + (v if isinstance(v, bytes) else cbor.dumps(v)) for k, v in pairs.items())
    n = len(pairs) + (data is not None)
    return b"\xd9\xd9\xf7" + (bytes([0xa0 + n]) if n < 24 else bytes([0xb8, n])) + body + \
        (b"" if data is None else cbor.dumps("data") + data)


def nested(depth):
    return envelope(b"\x81" * depth + b"\x00")


# Data of every type of CBOR, and what only looks like an event.
def signed(payload, unprotected=(), more=(), protected=None, signature=bytes(64)):
    """By a key that nobody knows, so that the signature may be any."""
    if protected is None:
        protected = cbor.dumps({1: -8, 4: b"k", 16: "walbus+cose", **dict(more)})
    return cbor.dumps(cbor.Tag(18, [protected, dict(unprotected), payload, signature]))


EVENTS = {
    "no data": envelope(),
    "integers": envelope(cbor.dumps([0, 23, 24, 2**32, 2**63, 2**64 - 1, -1, -24, -2**63, -2**64])),
    "half floats": envelope(b"\x85\xf9\x00\x01\xf9\x3c\x00\xf9\x7c\x00\xf9\xfc\x00\xf9\x7e\x00"),
    "single float": envelope(b"\xfa" + struct.pack(">f", 0.1)),
    "double floats": envelope(cbor.dumps([0.1, 1e300, -0.0, 5e-324, 123456789012345680.0])),
    "simple values": envelope(b"\x86\xf4\xf5\xf6\xf7\xe0\xf8\xff"),
    "texts": envelope(cbor.dumps(["", "größe 🐘", "\"\\\n\t\x00\x7f", "\u2028\u202e"])),
    "bytes": envelope(cbor.dumps(b"\x00\xff\xfe>?")),
    "no bytes": envelope(b"\x40"),
    "bytes inside": envelope(cbor.dumps([b"", b"\xfb\xff\xbf", {"b": b"\x01"}])),
    "expected forms": envelope(b"\x83" + cbor.dumps(cbor.Tag(21, b"\xfb\xff")) + cbor.dumps(cbor.Tag(22, [b"\xfb\xff"])) +
                               cbor.dumps(cbor.Tag(23, {"k": b"\xab"}))),
    "bignums": envelope(cbor.dumps([cbor.Tag(n, raw) for n, raw in ((2, b"\x01" + bytes(8)), (3, bytes(9)), (2, b""))])),
    "tags": envelope(cbor.dumps([cbor.Tag(0, "2026-01-15T10:30:00Z"), cbor.Tag(1, 5), cbor.Tag(2**63, {"a": 1})])),
    "map keys": envelope(b"\xa5\x01\x02\x20\x03\x41\xff\x04\x61a\x05\xf9\x3e\x00\x06"),
    "indefinite": envelope(b"\x9f\x5f\x41\x01\x42\x02\x03\xff\x7f\x61a\x62bc\xff\xbf\x61k\x9f\xff\xff\xff"),
    "indefinite bytes": envelope(b"\x5f\x41\x01\x40\x41\x02\xff"),
    "long heads": envelope(b"\x9b\x00\x00\x00\x00\x00\x00\x00\x01\x1b\x00\x00\x00\x00\x00\x00\x00\x07"),
    "time": envelope(time=cbor.dumps(cbor.Tag(0, "2026-01-15T10:30:00Z"))),
    "bare time": envelope(time="2026-01-15T10:30:00Z"),
    "time of another kind": envelope(time=cbor.dumps(cbor.Tag(1, 1768473000))),
    "attributes of other kinds": envelope(a=b"\x07", b=b"\x42\x01\x02", c=b"\x81\x01", d=b"\xf6"),
    "odd names": envelope(**{"": "x", "Ünder_score": "y", "data_base64": "z"}),
    "64 attributes": envelope(b"\x01", **{f"a{i}": "" for i in range(60)}),
    "deepest": nested(62),
    "signed": signed(envelope(b"\x01")[3:]),
    "signed, more labels": signed(envelope()[3:], more={"x": [1], 16: 7, 5: b"iv"}),
    # none of these is an event
    "65 attributes": envelope(b"\x01", **{f"a{i}": "" for i in range(61)}),
    "too deep": nested(63),
    "empty id": envelope(id=""),
    "id is a number": envelope(id=cbor.dumps(1)),
    "id in pieces": envelope(id=b"\x7f\x61a\xff"),
    "another specversion": envelope(specversion="1.1"),
    "specversion in pieces": envelope(specversion=b"\x7f\x631.0\xff"),
    "key twice": envelope(**{"x": "1"})[:3] + b"\xa6" + envelope(**{"x": "1"})[4:] + b"\x61x\x01",
    "data twice": envelope(b"\x01")[:3] + b"\xa6" + envelope(b"\x01")[4:] + b"\x64data\x02",
    "key is bytes": envelope()[:3] + b"\xa5" + envelope()[4:] + b"\x41x\x01",
    "key in pieces": envelope()[:3] + b"\xa5" + envelope()[4:] + b"\x7f\x61x\xff\x01",
    "more behind": envelope() + b"\x00",
    "cut": envelope()[:-1],
    "not utf-8": envelope(b"\x62\xc3\x28"),
    "surrogate": envelope(b"\x63\xed\xa0\x80"),
    "utf-8 over chunks": envelope(b"\x7f\x61\xc3\x61\xb6\xff"),
    "chunk of another kind": envelope(b"\x7f\x41a\xff"),
    "chunk in pieces": envelope(b"\x5f\x5f\x41a\xff\xff"),
    "reserved head": envelope(b"\x1c"),
    "integer of indefinite length": envelope(b"\x1f"),
    "break outside": envelope(b"\xff"),
    "break for a value": envelope(b"\xbf\x61a\xff"),
    "two-byte simple value": envelope(b"\xf8\x14"),
    "announces much": envelope(b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff"),
    "a long string": envelope(b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff"),
    "tag alone": b"\xd9\xd9\xf7",
    "tagged array": b"\xd9\xd9\xf7\x80",
    "signed without a key's id": b"\xd2\x84\x40\xa0\x40\x40",
    "begins as if signed": b"\xd2\x80",
    "signed, but no event": signed(b"\xf6"),
    "signed, an event cut": signed(envelope()[3:-1]),
    "signed twice": b"\xd2" + signed(envelope()[3:]),
    "signed without tag": signed(envelope()[3:])[1:],
    "signed, more behind": signed(envelope()[3:]) + b"\0",
    "signed, head longer than needed": b"\xd2\x98\x04" + signed(envelope()[3:])[2:],
    "signed, short signature": signed(envelope()[3:], signature=bytes(63)),
    "signed, something unprotected": signed(envelope()[3:], unprotected={9: 1}),
    "signed, critical": signed(envelope()[3:], more={2: [4]}),
    "signed, a kid that is text": signed(envelope()[3:], more={4: "k"}),
    "signed, label twice": signed(envelope()[3:], protected=b"\xa2\x04\x41k\x04\x41k"),
    "signed, type negative": signed(envelope()[3:], more={16: -1}),
}
OPAQUE_FROM = "65 attributes"


def test_events(router, conn):
    running = follow(router)
    for content in EVENTS.values():
        conn.emit("e", content)
    conn.emit(END, b"")
    of_tail, of_example = map(messages_to_end, running)
    names = [*EVENTS, "end"]
    assert len(of_tail) == len(names)
    for name, want, got in zip(names, of_tail, of_example):
        assert got == want, name
    opaque = False
    for name, line in zip(EVENTS, of_tail):
        opaque = opaque or name == OPAQUE_FROM
        assert ("event" in line) != opaque, name
    assert of_example == of_tail
    close(running)


def test_documented_contents(router, conn):
    running = follow(router)
    contents = Page("format.md").contents
    for block in contents.values():
        conn.emit("e", block.raw, transactional=False)
    conn.emit(END, b"", transactional=False)
    of_tail, of_example = map(messages_to_end, running)
    assert of_example == of_tail and len(of_tail) == len(contents) + 1
    close(running)


FILTERS = {
    "everything": [],
    "patterns": ["a.*", "b.>"],
    "each kind": ["a.*", "--exact", "größe", "--starts-with", "neon-file:", "--exclude", "a.x"],
    "nothing": ["--exact", "never"],
}


@pytest.mark.parametrize("name", FILTERS)
def test_messages_of_all_kinds(server, name):
    """Transactions, savepoints, messages outside transactions, prefixes and contents that are no text, large ones; in a
    database that takes every byte as text."""
    server.create_database("any_bytes", "SQL_ASCII")
    server.create_bus("any_bytes")
    try:
        with Router(server.dsn("any_bytes")) as router, server.connect("any_bytes") as conn:
            router.start()
            running = follow(router, *FILTERS[name], *(["--exact", END] if FILTERS[name] else []))
            conn.raw.set_client_encoding("SQL_ASCII")

            def emit(transactional, prefix, content):
                with conn.raw.cursor() as cur:
                    cur.execute(b"SELECT pg_logical_emit_message(%s, '%s', '\\x%s'::bytea)" %
                                (b"true" if transactional else b"false", prefix, content.hex().encode()))
            conn.begin()
            for prefix in (b"a.x", b"a.y", b"b.c.d", b"", b"*", "größe".encode(), b"\xff\xfe.\xc3", b"neon-file:\xff"):
                emit(True, prefix, prefix + b"\0\xff")
                emit(False, prefix, prefix)
            conn.run("SAVEPOINT s")
            emit(True, b"a.y", b"rolled back")
            conn.run("ROLLBACK TO s")
            emit(True, b"a.y", envelope(cbor.dumps({"n": 1})))
            conn.commit()
            conn.begin()
            emit(True, b"a.y", b"rolled back")
            emit(False, b"a.y", b"not rolled back")
            conn.rollback()
            emit(True, b"a.large", bytes(range(256)) * 4096)
            conn.run("SELECT count(pg_logical_emit_message(true, 'b.' || i % 3, convert_to(i::text, 'UTF8'))) "
                     "FROM generate_series(1, 2000) i")
            emit(True, END.encode(), b"")
            of_tail, of_example = map(messages_to_end, running)
            assert of_example == of_tail
            assert len(of_tail) == {"everything": 2020, "patterns": 2010, "each kind": 10, "nothing": 1}[name]
            close(running)
    finally:
        server.drop_bus("any_bytes")
        with server.connect() as conn:
            conn.run("DROP DATABASE any_bytes")


def subscribed(router):
    status = router.status()
    return status and sum(s["state"] == "active" for s in status["sessions"])


def test_across_restarts(bus, conn):
    """Both go on where they were, and are told the same gaps."""
    with Router(bus.dsn()) as router:
        router.start()
        running = follow(router)
        for n in range(4):
            for i in range(20):
                conn.emit("a", f"{n} {i}".encode(), transactional=i % 3 > 0)
            conn.emit(f"end.{n}", b"")
            for r in running:
                messages_to_end(r, f"end.{n}")
            if n % 2:
                router.kill()
                conn.emit("a", b"meanwhile")
            else:
                router.stop()
            router.start()
            wait_for(lambda: subscribed(router) == 2, 20, "both are back")
        conn.emit(END, b"")
        of_tail, of_example = map(messages_to_end, running)
        shown = [[line.get("payload") for line in found if line.get("payload") not in (None, "", "meanwhile")]
                 for found in (of_tail, of_example)]
        assert shown[0] == shown[1] == [f"{n} {i}" for n in range(4) for i in range(20)]
        for found in (of_tail, of_example):
            # What passed while the router was away came, or is in a gap: the one or the other after each crash.
            positions = [line["position"] for line in found if "position" in line]
            assert len(set(positions)) == len(positions)
            for n in (1, 3):
                at = [i for i, line in enumerate(found) if line.get("prefix") == f"end.{n}"][0]
                behind = found[at + 1]
                assert "gap" in behind or behind["payload"] == "meanwhile", behind
        gaps = [[line["gap"]["from"] for line in found if "gap" in line] for found in (of_tail, of_example)]
        assert len(gaps[0]) <= 2 and len(gaps[1]) <= 2
        close(running)


BACKLOG = 300_000
BACKLOG_SIZE = 100


def test_it_keeps_up_with_a_backlog(bus, conn):
    """As fast as the router can send, from one transaction: some 50 MB, twice what may wait for one subscriber."""
    with Router(bus.dsn(), build=places.plain_build()) as router:
        router.start()
        with Running("--socket", router.socket, "backlog", END, program=[sys.executable, PROGRAM]) as running:
            running.wait_ready()
            conn.run("SELECT count(pg_logical_emit_message(true, 'backlog', lpad(i::text, %s, '.')))"
                     " FROM generate_series(1, %s) i", BACKLOG_SIZE, BACKLOG)
            conn.emit(END, b"")
            wait_for(lambda: END.encode() in running.out[-1000:], 120, "the end", every=1)  # it is much that is read
            done = running.stop()
            assert (done.status, done.err) == (0, b"ready\n"), done.err
            found = lines(running)
        assert [int(line["payload"].strip(".")) for line in found[:-1]] == list(range(1, BACKLOG + 1))


def test_without_a_router(tmp_path):
    running = Running("--socket", str(tmp_path / "none"), program=[sys.executable, PROGRAM])
    done = running.wait_exit()
    running.close()
    assert done.status == 1 and "No such file" in done.error and done.out == b""


def test_usual_place(router, tmp_path):
    """Without --socket and WALBUS_SOCKET the one below $XDG_RUNTIME_DIR is taken."""
    (tmp_path / "walbus.sock").symlink_to(router.socket)
    with Running(program=[sys.executable, PROGRAM], env={"XDG_RUNTIME_DIR": str(tmp_path)}) as running:
        running.wait_ready()
        assert running.stop().status == 0


# ---- a durable name, from a router that the test plays

def durable(fake):
    return Running("--socket", fake.path, "--durable", "billing", "a", program=[sys.executable, PROGRAM])


def test_a_durable_name_goes_on_where_it_was():
    with FakeRouter() as fake, durable(fake) as running:
        assert fake.subscribe() == {"start": "now", "name": "billing", "filters": [[0, b"a"]]}
        fake.subscribed(at(100))
        fake.message(at(200), at(300))
        running.wait_lines(2)
        fake.acknowledged(at(300))
        fake.own.close()
        again = fake.subscribe()
        assert (again["start"], again["name"]) == ("stored", "billing")
        fake.subscribed(at(200), stored=True, redelivered_to=at(300))
        fake.own.send(0x15, bytes(3 << 20), flags=0x80)  # what every reader passes over
        fake.message(at(300), at(400))
        running.wait_lines(4)
        assert [(line["position"], line["redelivered"]) for line in lines(running)] == [
            ("1:0/C8:0", False), ("1:0/12C:0", False), ("1:0/12C:0", True), ("1:0/190:0", False)]
        assert running.stop().status == 0
        fake.acknowledged(at(400))


@pytest.mark.parametrize("code", ["held", "taken-over", "unknown-name", "removed"])
@pytest.mark.parametrize("fatal", [True, False])
def test_a_durable_name_that_cannot_be_had(code, fatal):
    with FakeRouter() as fake, durable(fake) as running:
        fake.subscribe()
        fake.error(code, "So it is.", fatal)
        done = running.wait_exit()
        assert done.status == 1 and done.error == f"subscribe.py: So it is. ({code})\n", done


def test_another_journal_is_read_from_its_oldest():
    with FakeRouter() as fake, durable(fake) as running:
        fake.subscribe()
        fake.subscribed(at(100))
        running.wait_ready()
        fake.accept(identity="8/1")
        body = fake.own.expect(SUBSCRIBE, Deadline(10, "SUBSCRIBE"))
        assert (body["start"], body["name"]) == ("oldest", "billing")
        assert running.stop().status == 0
        assert b"messages may be missing: the position is of another journal." in running.err
