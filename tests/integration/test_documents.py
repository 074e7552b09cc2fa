# SPDX-License-Identifier: PostgreSQL
"""What docs/protocol.md and docs/format.md show is what happens, byte for byte."""

import json
import os
import re
import signal
import socket
import sys
import time

import pytest
from harness import cbor, places
from harness.command import Running
from harness.document import Page
from harness.server import one
from harness.subscriber import (ACK, BEGIN, ERROR, GAP, HEADER, HELLO, PROGRESS, SUBSCRIBE, Accepted, Closed,
                                Connection, Subscriber)
from harness.waiting import Deadline, wait_for

PROTOCOL = Page("protocol.md")
FORMAT = Page("format.md")
LIVE = [c.name for c in PROTOCOL.conversations.values() if not c.client_only]
SHOWN = [c.name for c in PROTOCOL.conversations.values() if c.lines]


def receive_raw(conn, wanted):
    """The next frame as its bytes. A PROGRESS may stand at more places than the page shows."""
    deadline = Deadline(20, wanted)
    while True:
        kind, flags, body = conn.receive_raw(deadline)
        if kind != PROGRESS or wanted == "progress":
            return HEADER.pack(len(body), kind, flags, 0) + body


class Replay:
    """The client's bytes of a conversation as they stand, to a real router."""

    def __init__(self, router, server, database):
        self.router, self.server, self.database = router, server, database
        self.bound = {}
        self.began = time.monotonic()
        self.sent_at = self.began

    def run(self, conversation):
        own = Connection(self.router.socket)
        try:
            for what, argument in conversation.steps:
                if what == "again":
                    own.close()
                    own = Connection(self.router.socket)
                else:
                    getattr(self, what)(own, argument)
            self.check_bound()
        finally:
            own.close()

    def frame(self, own, block):
        if block.side == "client":
            own.send_bytes(block.filled(self.bound))
        else:
            block.compare(receive_raw(own, block.name), self.bound)

    def sql(self, _own, text):
        self.database.run(text)

    def after(self, own, seconds):
        assert not own.pending()
        wait_for(own.pending, seconds + 5, "the router speaks first")
        assert time.monotonic() - self.began > seconds - 1

    def stop(self, _own, _argument):
        self.router.process.send_signal(signal.SIGTERM)

    def closed(self, own, _argument):
        with pytest.raises(Closed) as e:
            own.receive_raw(Deadline(10, "the router closes the connection"))
        assert " 0 bytes" in str(e.value)

    def shutdown(self, own, _argument):
        own.socket.shutdown(socket.SHUT_WR)

    def check_bound(self):
        """The fields that may differ are what the page says they are."""
        with self.server.connect() as conn:
            system = one(conn, "SELECT system_identifier::text FROM pg_control_system()")
            wal, now = self.server.wal_lsn(), one(conn, "SELECT extract(epoch FROM now())::float8") * 1e6
        for name, raw in self.bound.items():
            kind, number = re.sub(r"-\d+$", "", name), int.from_bytes(raw, "big")
            if kind == "identity":
                assert cbor.loads(raw) == f"{system}/1"
            elif kind == "timeline":
                assert number == 1
            elif kind == "lsn":
                assert 0 < number <= wal + 1, name
            elif kind == "time":
                assert abs(number - now) < 600e6, name
            elif kind == "xid":
                assert number > 0


@pytest.mark.parametrize("name", LIVE)
def test_router_answers_as_documented(router, server, conn, name):
    conversation = PROTOCOL.conversations[name]
    Replay(router, server, conn).run(conversation)
    if ("stop", None) in conversation.steps:
        assert router.wait_exit(5) == 0


class FakeRouter:
    """Plays the router's part of a conversation to one program."""

    def __init__(self, cut):
        self.folder = places.new_folder("walbus-fake-")
        self.path = os.path.join(self.folder, "walbus.sock")
        self.cut = cut  # bytes are sent, and taken, one by one
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.listener.settimeout(20)
        self.own = None
        self.acked = None

    def accept(self):
        self.own = Accepted(self.listener.accept()[0])

    def receive(self, wanted):
        """The next frame that is no ACK; of these the last is remembered."""
        while True:
            kind, _flags, body = self.own.receive_raw(Deadline(20, f"the client's {wanted}"))
            if kind != ACK:
                return kind, cbor.loads(body)
            self.acked = cbor.loads(body)["position"]

    def send(self, data):
        if not self.cut:
            self.own.send_bytes(data)
            return
        for byte in data:
            self.own.send_bytes(bytes([byte]))
            self.own.wait_taken()

    def take_acks(self, position):
        """Reads acknowledgements until one is of this position."""
        deadline = Deadline(20, "the acknowledgement")
        while self.acked != position:
            kind, _flags, body = self.own.receive_raw(deadline)
            assert kind == ACK
            self.acked = cbor.loads(body)["position"]

    def close(self):
        if self.own:
            self.own.close()
        self.listener.close()
        os.unlink(self.path)
        os.rmdir(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Example(Running):
    """examples/subscribe.py."""

    def __init__(self, path, *arguments):
        super().__init__("--socket", path, *arguments,
                         program=[sys.executable, os.path.join(places.ROOT, "examples", "subscribe.py")])


def tail(path, *arguments):
    return Running("tail", "--socket", path, "--output", "json", *arguments)


PROGRAMS = {"tail": tail, "subscribe.py": Example}


def for_library(steps):
    """The frames of a conversation, without what a router refuses and the connection survives: a client asks for one
    subscription only."""
    frames = [argument for what, argument in steps if what == "frame"]
    kept = []
    for block in frames:
        if block.kind == ERROR and block.side == "router" and not cbor.loads(block.raw[8:])["fatal"]:
            assert kept.pop().side == "client"
        else:
            kept.append(block)
    return kept


def last_position(frames):
    for block in reversed(frames):
        body = block.raw[8:]
        if block.side == "router" and 0x10 < block.kind <= GAP:
            return {0x12: body[:12] + b"\xff" * 4, GAP: body[16:32]}.get(block.kind, body[:16])
    raise AssertionError("no data frame")


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", SHOWN)
def test_clients_read_it_as_documented(name, program, cut):
    conversation = PROTOCOL.conversations[name]
    frames = for_library(conversation.steps)
    with FakeRouter(cut) as fake, PROGRAMS[program](fake.path) as running:
        fake.accept()
        for block in frames:
            if block.side == "router":
                fake.send(block.raw)
            elif block.kind != ACK:
                kind, _ = fake.receive(block.name)
                assert kind == block.kind, block.name
        fake.take_acks(last_position(frames))
        assert list(map(json.loads, running.wait_lines(len(conversation.lines)))) == conversation.lines
        if ("stop", None) in conversation.steps:
            with pytest.raises(Closed):
                fake.own.receive_raw(Deadline(10, "the client closes"))
            fake.own.close()
            fake.accept()  # and comes again, going on where it was
            fake.receive("HELLO")
            fake.send(PROTOCOL.frames["welcome"].raw)
            kind, subscribe = fake.receive("SUBSCRIBE")
            assert (kind, subscribe["start"], subscribe["position"]) == (SUBSCRIBE, "position", last_position(frames))
        done = running.stop()
        assert done.out.count(b"\n") == len(conversation.lines)


# But for the one behind which a client connects again: that is part of its conversation.
ERRORS = [name for name, block in PROTOCOL.frames.items()
          if block.kind == ERROR and block.side == "router" and cbor.loads(block.raw[8:])["code"] != "stopping"]


def test_library_comes_back_after_a_timeout():
    """It was late by its own fault, so it connects again, also before the first SUBSCRIBED."""
    with FakeRouter(cut=False) as fake, PROGRAMS["tail"](fake.path):
        for _ in range(2):
            fake.accept()
            fake.receive("HELLO")
            fake.send(PROTOCOL.frames["error-timeout"].raw)


@pytest.mark.parametrize("name, program", [(n, p) for n in ERRORS for p in PROGRAMS if (n, p) != ("error-timeout", "tail")])
def test_clients_give_up_for_a_reason(name, program):
    """Each documented ERROR in place of the first SUBSCRIBED: told to the user, and the end."""
    error = cbor.loads(PROTOCOL.frames[name].raw[8:])
    with FakeRouter(cut=False) as fake, PROGRAMS[program](fake.path) as running:
        fake.accept()
        fake.receive("HELLO")
        fake.send(PROTOCOL.frames["welcome"].raw)
        fake.receive("SUBSCRIBE")
        fake.send(PROTOCOL.frames[name].raw)
        done = running.wait_exit()
        assert done.status == 1 and error["text"] in done.error and done.out == b"", done


WRONG = {f"{kind:02x}, {size} bytes": HEADER.pack(size, kind, 0, 0)
         for kind in (*range(HELLO, ERROR + 1), *range(BEGIN, GAP + 1), 0x7E) for size in (0, 2**32 - 1)}
WRONG |= {"byte 7": HEADER.pack(0, 0x7E, 0x80, 1)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_clients_refuse_what_cannot_be(program):
    """After SUBSCRIBED, by the header alone: no body is waited for."""
    for name, header in WRONG.items():
        with FakeRouter(cut=False) as fake, PROGRAMS[program](fake.path) as running:
            fake.accept()
            for block in ("hello", "welcome", "subscribe", "subscribed"):
                if PROTOCOL.frames[block].side == "router":
                    fake.send(PROTOCOL.frames[block].raw)
                else:
                    fake.receive(block)
            running.wait_ready()
            fake.send(header)
            done = running.wait_exit()
            assert done.status == 1 and done.out == b"" and done.error.count("\n") == 2, (name, done)


@pytest.mark.parametrize("program", PROGRAMS)
def test_clients_pass_over_what_is_ignorable(program):
    """However long it is."""
    with FakeRouter(cut=False) as fake, PROGRAMS[program](fake.path) as running:
        fake.accept()
        for block in ("hello", "welcome", "subscribe", "subscribed"):
            if PROTOCOL.frames[block].side == "router":
                fake.send(PROTOCOL.frames[block].raw)
            else:
                fake.receive(block)
        running.wait_ready()
        for size in (0, 5, 5 << 20):
            fake.send(HEADER.pack(size, 0x7E, 0x80, 0) + bytes(size))
        message = PROTOCOL.frames["message-alone"].raw
        fake.send(message)
        (line,) = running.wait_lines(1)
        assert json.loads(line)["prefix"] == "orders.seen"
        assert running.stop().status == 0


def test_every_frame_is_shown():
    """One of each type, each control map, each start, each kind of filter, and each flag."""
    frames = PROTOCOL.frames.values()
    assert {b.kind for b in frames} >= {*range(1, 10), *range(0x10, 0x15)}
    subscribes = [cbor.loads(b.raw[8:]) for b in frames if b.kind == SUBSCRIBE]
    assert {s.get("start", "") for s in subscribes} == {"", "now", "stored", "oldest", "position", "time"}
    assert {kind for s in subscribes for kind, _ in s["filters"]} == {0, 1, 2}
    assert {b.raw[4:6] for b in frames if b.raw[5]} >= {b"\x10\x01", b"\x11\x01", b"\x12\x01", b"\x7e\x80"}
    errors = [cbor.loads(b.raw[8:]) for b in frames if b.kind == ERROR]
    assert {(e["fatal"], "id" in e) for e in errors} == {(True, False), (False, False), (False, True)}
    for block in [*frames, *FORMAT.contents.values()]:
        if block.side:
            assert int.from_bytes(block.raw[:4], "big") == len(block.raw) - 8, block.name
        for comment in block.comments:  # words in quotes stand in the bytes
            for text in re.findall(r'"((?:[^"\\]|\\.)*)"', comment):
                assert json.loads(f'"{text}"').encode() in block.raw or "missing" in comment, (block.name, text)


def constants(*path):
    with open(os.path.join(places.ROOT, *path), encoding="utf-8") as file:
        return file.read()


def test_tables_are_complete():
    """Types, codes and keys of the sources are on the page; and no other types and codes."""
    page = PROTOCOL.text
    types = re.findall(r"FRAME_([A-Z]+) = 0x([0-9a-f]+),", constants("lib/codec/frame.h"))
    shown = re.findall(r"^\| ([01][0-9a-f]) \| ([A-Z]+) \| (?:client|router|either) \|", page, re.M)
    assert len(types) > 10 and sorted(types) == sorted((name, n) for n, name in shown)
    codes = set(re.findall(r'#define CONTROL_ERROR_\w+ +"([a-z-]+)"', constants("lib/codec/control.h")))
    assert codes == set(re.findall(r"^\| `([a-z-]+)` \| (?:(?:yes|no) )?\|", page, re.M)), codes
    rows = r'(?:REQUIRED|OPTIONAL|FLAGGED)\(FIELD_\w+, struct \w+, "(\w+)"'
    keys = set(re.findall(rows, constants("lib/codec/control.c")))
    assert len(keys) > 20
    for key in keys:
        assert re.search(rf"^\| [^|]*`{key}`[^|]*\|", page, re.M), key


@pytest.mark.parametrize("name", FORMAT.shown)
def test_contents_are_shown_as_documented(router, conn, name):
    """Through a real router, to both programs."""
    with tail(router.socket) as a, Example(router.socket) as b:
        for running in (a, b):
            running.wait_ready()
        conn.emit("orders.paid", FORMAT.contents[name].raw)
        for running in (a, b):
            line = json.loads(running.wait_lines(1)[0])
            rest = {k: v for k, v in line.items() if k in ("event", "payload", "payload_base64", "signature")}
            assert rest == FORMAT.shown[name]
            running.stop()


def test_filters_match_as_documented(router, conn):
    rows = [line.split(None, 1) for line in "\n".join(FORMAT.fences["match"]).split("\n")]
    form = re.compile(r'("(?:[^"\\]|\\.)*") +("(?:[^"\\]|\\.)*") +(yes|no)')
    rows = [(kind, *form.fullmatch(rest).groups()) for kind, rest in rows]
    rows = [(kind, json.loads(text), json.loads(prefix), wanted == "yes") for kind, text, prefix, wanted in rows]
    prefixes = sorted({prefix for _, _, prefix, _ in rows})
    filters = sorted({(kind, text) for kind, text, _, _ in rows})
    subscribers = [Subscriber(router.socket, [f, ("exact", "the.end")]) for f in filters]
    try:
        for prefix in [*prefixes, "the.end"]:
            conn.emit(prefix, b"")
        seen = {f: {m.prefix.decode() for m in s.collect_to(b"the.end")} for f, s in zip(filters, subscribers)}
    finally:
        for s in subscribers:
            s.close()
    for kind, text, prefix, wanted in rows:
        assert (prefix in seen[kind, text]) == wanted, (kind, text, prefix)
