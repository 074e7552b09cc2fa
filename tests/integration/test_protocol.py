# SPDX-License-Identifier: PostgreSQL
"""Clients that break the rules are closed with a reason, and nobody else notices."""

import collections
import os
import random
import socket
import struct
import threading
import time

import pytest
from harness import cbor
from harness.router import Router
from harness.subscriber import (ACK, ACKED, BEGIN, COMMIT, ERROR, FLAG_IGNORABLE, GAP, HEADER, HELLO, MESSAGE, PROGRESS,
                                REPLY, REQUEST, SUBSCRIBE, SUBSCRIBED, WELCOME, Connection, Deadline, RouterError,
                                Subscriber)
from harness.waiting import wait_for

HELLO_BODY = {"min": 1, "max": 1, "layout": 1, "client": "walbus tests"}
EVERYTHING = {"filters": [[0, b">"]]}


@pytest.fixture(autouse=True)
def nobody_else_notices(router, conn):
    """Beside each of these tests runs a well-behaved subscriber, which must get its messages all the same. It reads at
    the end only, so it leaves the flood out."""
    sub = router.subscriber(exclude=["flood"])
    conn.emit("before", b"")
    sub.collect(1)
    pid = router.pid
    yield
    conn.emit("after", b"")
    assert [m.prefix for m in sub.drain(conn) if m.prefix in (b"after", b"never")] == [b"after"]
    assert router.pid == pid and router.process.poll() is None
    assert router.status()["state"] == "streaming"


def connect(path):
    """A connection, also when the queue of those that are not accepted yet is full at the moment."""
    deadline = Deadline(20, "the router accepts connections")
    while True:
        try:
            return Connection(path, seconds=10)
        except BlockingIOError:
            time.sleep(min(0.01, deadline.left()))


def frame(kind, body=b"", flags=0, size=None, zero=0):
    body = body if isinstance(body, bytes) else cbor.dumps(body)
    return HEADER.pack(len(body) if size is None else size, kind, flags, zero) + body


BAD_FIRST = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": b"\0" * 64,
    "ones": b"\xff" * 64,
    "reserved bytes": frame(HELLO, HELLO_BODY, zero=1),
    "too long": frame(HELLO, b"", size=(1 << 20) + 1),
    "longest length": frame(HELLO, b"", size=0xFFFFFFFF),
    "unknown type": frame(0x7F, b"x"),
    "subscribe first": frame(SUBSCRIBE, EVERYTHING),
    "request first": frame(REQUEST, {"id": 1, "what": "status"}),
    "the router's own frame": frame(WELCOME, HELLO_BODY),
    "a data frame": frame(MESSAGE, b"\0" * 64),
    "empty body": frame(HELLO),
    "no map": frame(HELLO, [1, 1, 1]),
    "two items": frame(HELLO, cbor.dumps(HELLO_BODY) + b"\0"),
    "cut cbor": frame(HELLO, cbor.dumps(HELLO_BODY)[:-1]),
    "key missing": frame(HELLO, {"min": 1, "max": 1}),
    "key twice": frame(HELLO, b"\xa4" + cbor.dumps("min") + b"\x01" + cbor.dumps("min") + b"\x01" +
                       cbor.dumps("max") + b"\x01" + cbor.dumps("layout") + b"\x01"),
    "wrong type": frame(HELLO, {"min": "1", "max": 1, "layout": 1}),
    "announces a gigabyte": frame(HELLO, b"\x9a\x08\x00\x00\x00"),
    "deep": frame(HELLO, b"\x81" * 5000 + b"\x00"),
    "not utf-8": frame(HELLO, b"\xa1\x61\xff\x00"),
}


@pytest.mark.parametrize("name", BAD_FIRST)
def test_bad_first_bytes(router, name):
    with Connection(router.socket) as conn:
        conn.send_bytes(BAD_FIRST[name])
        assert conn.closed_by_router() == "protocol"


@pytest.mark.parametrize("body", [
    {"min": 2, "max": 9, "layout": 1}, {"min": 0, "max": 0, "layout": 1}, {"min": 1, "max": 1, "layout": 0},
], ids=["too new", "too old", "no layout"])
def test_no_common_version(router, body):
    with Connection(router.socket) as conn:
        conn.send(HELLO, dict(body, client="x"))
        assert conn.closed_by_router() == "version"


def test_newer_clients_are_answered_in_ours(router):
    with Connection(router.socket) as conn:
        conn.send(HELLO, {"min": 1, "max": 7, "layout": 3, "client": "x", "something new": [1, {"a": None}]})
        welcome = conn.expect(WELCOME, Deadline(10, "WELCOME"))
        assert (welcome["version"], welcome["layout"]) == (1, 1)


BAD_SECOND = {
    "hello twice": frame(HELLO, HELLO_BODY),
    "garbage": os.urandom(1) + b"\xff" * 200,
    "unknown type": frame(0x6A, b"abc"),
    "ack too early": frame(ACK, {"position": b"\0" * 16, "confirm": False}),
    "subscribe without filters": frame(SUBSCRIBE, {}),
    "subscribe with a short position": frame(SUBSCRIBE, dict(EVERYTHING, start="position", position=b"\0" * 15)),
    "unknown start": frame(SUBSCRIBE, dict(EVERYTHING, start="yesterday")),
    "too long": frame(SUBSCRIBE, b"", size=(1 << 20) + 1),
    "error": frame(ERROR, {"code": "protocol", "text": "the client gives up", "fatal": True}),
}


@pytest.mark.parametrize("name", BAD_SECOND)
def test_bad_after_hello(router, name):
    with Connection(router.socket) as conn:
        conn.hello()
        conn.send_bytes(BAD_SECOND[name])
        code = conn.closed_by_router()
        assert code in (("protocol", "invalid") if name != "error" else (None,))


def test_a_stored_start_needs_a_name(router):
    """Well-formed, and not to be had: said so, not ignored."""
    with Connection(router.socket) as conn:
        conn.hello()
        conn.send(SUBSCRIBE, dict(EVERYTHING, start="stored"))
        with pytest.raises(RouterError) as e:
            conn.expect(SUBSCRIBED, Deadline(10, "the refusal"))
        assert (e.value.code, e.value.fatal) == ("invalid", False)
        conn.send(SUBSCRIBE, EVERYTHING)
        conn.expect(SUBSCRIBED, Deadline(10, "the connection is as good as before"))


def test_ignorable_frames_are_ignored(router, conn):
    own = Connection(router.socket)
    try:
        own.send(0x66, b"before hello", flags=FLAG_IGNORABLE)
        own.hello()
        own.send(0x66, b"", flags=FLAG_IGNORABLE)
        own.send(0xFE, b"x" * 100_000, flags=FLAG_IGNORABLE)
        assert own.request("status")["state"] == "streaming"
    finally:
        own.close()


def test_a_subscribed_client_may_ask(router, conn):
    sub = router.subscriber()
    for number in range(5):
        sub.connection.send(REQUEST, {"id": number, "what": "status"})
    conn.emit("a", b"")
    replies, messages = [], 0
    deadline = Deadline(10, "the replies")
    while len(replies) < 5 or messages < 1:
        kind, value = sub.connection.receive(deadline)
        if kind == REPLY:
            replies.append(value["id"])
        messages += kind == MESSAGE
    assert replies == [0, 1, 2, 3, 4]


def test_unknown_requests(router):
    with Connection(router.socket) as conn:
        conn.hello()
        conn.send(REQUEST, {"id": 3, "what": "make coffee"})
        with pytest.raises(RouterError) as e:
            conn.expect(REPLY, Deadline(10, "the refusal"))
        assert (e.value.code, e.value.fatal, e.value.id) == ("unsupported", False, 3)
        assert conn.request("status")["state"] == "streaming"


def test_bytes_one_by_one(router, conn):
    """A frame may be cut anywhere."""
    with Connection(router.socket) as own:
        own.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for byte in frame(HELLO, HELLO_BODY) + frame(SUBSCRIBE, EVERYTHING):
            own.send_bytes(bytes([byte]))
            time.sleep(0.001)
        assert own.expect(WELCOME, Deadline(10, "WELCOME"))["version"] == 1
        own.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))
        conn.emit("a", b"")
        kinds = []
        while MESSAGE not in kinds:
            kinds.append(own.receive(Deadline(10, "the message"))[0])
        assert [k for k in kinds if k != PROGRESS] == [BEGIN, MESSAGE]


def test_everything_at_once(router):
    with Connection(router.socket) as own:
        own.send_bytes(frame(HELLO, HELLO_BODY) + frame(SUBSCRIBE, EVERYTHING) +
                       frame(REQUEST, {"id": 1, "what": "status"}))
        kinds = [own.receive(Deadline(10, "three frames"))[0] for _ in range(3)]
        assert sorted(k for k in kinds if k != PROGRESS) == sorted([WELCOME, SUBSCRIBED, REPLY])
        assert kinds[0] == WELCOME


def test_half_frames_and_early_ends(router):
    whole = frame(HELLO, HELLO_BODY) + frame(SUBSCRIBE, EVERYTHING)
    for cut in range(len(whole)):
        with Connection(router.socket) as own:
            own.send_bytes(whole[:cut])
    for cut in (0, 4, 12, len(whole)):
        with Connection(router.socket) as own:
            own.send_bytes(whole[:cut])
            own.socket.shutdown(socket.SHUT_WR)
            own.closed_by_router()
    wait_for(lambda: len(router.status()["sessions"]) <= 2, 10, "their sessions are gone")


def test_cut_at_every_byte(router):
    """Each in two pieces, of which the router has read the first before the second comes."""
    whole = frame(HELLO, HELLO_BODY) + frame(0x66, b"skip", flags=FLAG_IGNORABLE) + frame(SUBSCRIBE, EVERYTHING) + \
        frame(REQUEST, {"id": 1, "what": "status"})
    for cut in range(1, len(whole)):
        with Connection(router.socket) as own:
            own.send_bytes(whole[:cut])
            own.wait_taken()
            own.send_bytes(whole[cut:])
            kinds = [own.receive(Deadline(10, f"three frames, cut at {cut}"))[0] for _ in range(3)]
            assert kinds == [WELCOME, SUBSCRIBED, REPLY], cut


KNOWN = [*range(HELLO, ERROR + 1), *range(BEGIN, GAP + 1)]
STATES = ["new", "greeted", "subscribed"]


def reach(own, state):
    if state != "new":
        own.hello()
    if state == "subscribed":
        own.send(SUBSCRIBE, {"filters": [[1, b"never"]]})
        own.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))


def is_alive(own, state):
    """Whether it is served as if nothing had been."""
    if state == "new":
        own.hello()
    own.send(REQUEST, {"id": 1, "what": "status"})
    deadline = Deadline(10, "the reply")
    while True:
        kind, value = own.receive(deadline)
        if kind != PROGRESS:
            return kind == REPLY and value["result"]["state"] == "streaming"


@pytest.mark.parametrize("state", STATES)
def test_longest_lengths(router, state):
    """2^32-1 bytes are refused by the header alone, whatever the type, ignorable or not."""
    for kind in [*KNOWN, 0, 0x66, 0xFF]:
        for flags in (0, FLAG_IGNORABLE):
            with Connection(router.socket) as own:
                reach(own, state)
                own.send_bytes(frame(kind, b"", flags=flags, size=0xFFFFFFFF))
                assert own.closed_by_router() == "protocol", (kind, flags)


@pytest.mark.parametrize("state", STATES)
def test_no_length(router, state):
    """An empty body is no map; one that is to be ignored may be empty."""
    for kind in [*KNOWN, 0, 0x66, 0xFF]:
        with Connection(router.socket) as own:
            reach(own, state)
            own.send_bytes(frame(kind))
            assert own.closed_by_router() == "protocol", kind
    with Connection(router.socket) as own:
        reach(own, state)
        for kind in (0, 0x66, 0xFF):
            own.send_bytes(frame(kind, flags=FLAG_IGNORABLE))
        assert is_alive(own, state)


POSITION = b"\0\0\0\1" + b"\0" * 12
WELL_FORMED = {
    SUBSCRIBE: EVERYTHING, ACK: {"position": POSITION}, REQUEST: {"id": 1, "what": "status"},
    ERROR: {"code": "x", "text": "x", "fatal": False}, WELCOME: HELLO_BODY, SUBSCRIBED: {},
    ACKED: {"position": POSITION}, REPLY: {"id": 1, "result": None}, BEGIN: b"\0" * 24, MESSAGE: b"\0" * 48,
    COMMIT: b"\0" * 36, PROGRESS: POSITION, GAP: b"\0" * 48,
}


def test_hello_missing(router):
    """Nothing comes before HELLO but what is to be ignored; the refusal says so."""
    for kind, body in WELL_FORMED.items():
        with Connection(router.socket) as own:
            own.send_bytes(frame(kind, body))
            with pytest.raises(RouterError) as e:
                own.receive(Deadline(10, "the refusal"))
            assert (e.value.code, e.value.fatal) == ("protocol", True)
            assert "HELLO expected first" in e.value.text
            assert own.closed_by_router() is None


@pytest.mark.parametrize("state", STATES)
def test_unknown_frames(router, state):
    unknown = [kind for kind in range(256) if kind not in KNOWN]
    with Connection(router.socket) as own:
        reach(own, state)
        for kind in unknown:
            own.send_bytes(frame(kind, b"x" * (kind * 7), flags=FLAG_IGNORABLE | kind & 0x7F))
        assert is_alive(own, state)
    for kind in unknown[::16] + unknown[-1:]:
        with Connection(router.socket) as own:
            reach(own, state)
            own.send_bytes(frame(kind, b"x", flags=0x7F))
            assert own.closed_by_router() == "protocol", kind


def test_unknown_keys_and_flags(router, conn):
    """Of any value, in every map that a client sends, before and behind the known ones; and unknown flags."""
    new = {"": b"\0" * 16, "zzz": [1, {"a": None, "b": [b"", -5, 1.5, cbor.Tag(1, 2)]}], "Position": 7}
    with Connection(router.socket) as own:
        for body, at in ((dict(new, **HELLO_BODY), HELLO), (dict(EVERYTHING, **new), SUBSCRIBE)):
            own.send(at, body, flags=0x7F)
        own.expect(WELCOME, Deadline(10, "WELCOME"))
        subscribed = own.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))
        own.send(ERROR, dict(new, code="new", text="not fatal", fatal=False), flags=0x7F)
        own.send(ACK, dict(new, position=subscribed["position"], confirm=True), flags=0x7F)
        own.send(REQUEST, dict({"id": 9, "what": "status"}, **new), flags=0x7F)
        deadline, found = Deadline(10, "the answers"), []
        while len(found) < 2:
            kind, value = own.receive(deadline)
            if kind in (ACKED, REPLY):
                found.append((kind, value.get("position"), value.get("id")))
        assert found == [(ACKED, subscribed["position"], None), (REPLY, None, 9)]


def test_one_byte_a_second_to_the_router(router):
    """A byte now and then is silence all the same."""
    began = time.monotonic()
    with Connection(router.socket) as own:
        for byte in frame(HELLO, HELLO_BODY):
            if own.pending():
                break
            own.send_bytes(bytes([byte]))
            time.sleep(1)
        assert own.closed_by_router() == "timeout"
    assert 9 < time.monotonic() - began < 15


class OneByteASecond(threading.Thread):
    """Reads one byte of a connection each second until it is told to go on as fast as it can."""

    def __init__(self, own):
        super().__init__()
        self.own, self.hurry, self.slow = own, threading.Event(), 0
        own.socket.settimeout(20)

    def run(self):
        while not self.hurry.wait(1):
            self.own.buffer += self.own.socket.recv(1)
            self.slow += 1


def test_a_reader_of_one_byte_a_second(router, conn):
    """When more waits for it than the router keeps, it reads from the journal, and misses nothing; the others have all
    their messages in time."""
    reader = router.subscriber(keep=0)
    with Connection(router.socket) as own:
        own.hello()
        own.send(SUBSCRIBE, EVERYTHING)
        own.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))
        slow = OneByteASecond(own)
        slow.start()
        try:
            for i in range(30):
                conn.emit("little", str(i).encode())
                assert reader.collect(1, seconds=5)[0].prefix == b"little"
                time.sleep(0.1)
            for _ in range(10):  # 100 MB in all; the router keeps 4 MB for one
                conn.run("SELECT count(pg_logical_emit_message(true, 'flood', convert_to(repeat('x', 10000), 'UTF8'))) "
                         "FROM generate_series(1, 1000)")
                reader.collect(1000, seconds=10)
            wait_for(lambda: any(s["state"] == "active" and not s["live"] for s in router.status()["sessions"]), 10,
                     "it is behind")
            assert slow.slow >= 3, "it did read"
        finally:
            slow.hurry.set()
            slow.join()
        kinds, deadline = [], Deadline(60, "all that has passed meanwhile")
        while kinds.count(MESSAGE) < 30 + 10 * 1000:
            kinds.append(own.receive(deadline)[0])
        assert set(kinds) <= {BEGIN, MESSAGE, COMMIT, PROGRESS}


def test_questions_without_end(router):
    """Who subscribes, asks and does not read the answers is told, and let go."""
    with Connection(router.socket) as own:
        own.hello()
        own.send(SUBSCRIBE, EVERYTHING)
        own.expect(SUBSCRIBED, Deadline(10, "SUBSCRIBED"))
        for _ in range(50):
            own.send_bytes(frame(REQUEST, {"id": 1, "what": "status"}) * 100)
        deadline = Deadline(20, "the error")
        with pytest.raises(RouterError) as refused:
            while True:
                own.receive(deadline)
        assert (refused.value.code, refused.value.fatal) == ("limit", True)


def test_reset_while_messages_are_on_their_way(router, conn):
    for _ in range(10):
        sub = Subscriber(router.socket)
        conn.run("SELECT count(pg_logical_emit_message(true, 'load', convert_to(repeat('x', 1000), 'UTF8'))) "
                 "FROM generate_series(1, 1000)")
        sub.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sub.close()


def test_silence(router):
    """Who does not even say HELLO is closed after 10 seconds, so as not to take the place of another; who has
    said it may think a while longer."""
    with Connection(router.socket) as silent, Connection(router.socket) as greeted:
        began = time.monotonic()
        greeted.hello()
        assert silent.closed_by_router(seconds=20) == "timeout"
        assert 9 < time.monotonic() - began < 15
        assert greeted.request("status")["state"] == "streaming"


def test_a_subscriber_may_be_silent(router, conn):
    sub = router.subscriber("wanted")
    with pytest.raises(TimeoutError):
        sub.collect(1, seconds=13)
    conn.emit("wanted", b"")
    assert [m.prefix for m in sub.collect(1)] == [b"wanted"]


# ROUTER_SESSIONS_MAX in daemon/router.h, and how many more are tried.
SESSIONS_MAX = 1000
SURPLUS = 100


def test_flood_of_connections(router, conn, descriptors):
    """More than the router takes: exactly those are told so. Who is there stays, and freed places are used again."""
    if descriptors < SESSIONS_MAX + SURPLUS + 100:
        pytest.skip(f"a process may have only {descriptors} descriptors: raise the hard limit (ulimit -Hn)")

    def answer(own):
        """None when it is welcomed, else the code of the refusal."""
        try:
            own.hello()
        except RouterError as e:
            return e.code
        except (BrokenPipeError, ConnectionResetError):  # refused before HELLO was sent: the reason is there to be read
            return own.closed_by_router()
        return None

    open_ones = []
    try:
        # Two are there already: the fixture's subscriber, and for a moment each status request.
        wait_for(lambda: len(router.status()["sessions"]) == 2, 10, "only the subscriber, and who asks")
        for _ in range(SESSIONS_MAX - 1 + SURPLUS):
            open_ones.append(connect(router.socket))
        answers = [answer(own) for own in open_ones]
        assert answers.count("limit") == SURPLUS, collections.Counter(answers)
        assert answers.count(None) == SESSIONS_MAX - 1, collections.Counter(answers)
        taken = [own for own, code in zip(open_ones, answers) if code is None]
        assert taken[0].request("status")["state"] == "streaming", "who is in is served"
        with Connection(router.socket) as own:
            assert answer(own) == "limit", "every place is taken"
        for own in taken[:SURPLUS]:
            own.close()
        wait_for(lambda: len(taken[-1].request("status")["sessions"]) == SESSIONS_MAX - SURPLUS, 20, "places are free")
        again = [connect(router.socket) for _ in range(SURPLUS)]
        open_ones += again
        assert [answer(own) for own in again] == [None] * SURPLUS, "all of them are used again"
        with Connection(router.socket) as own:
            assert answer(own) == "limit", "and no more than these"
    finally:
        for own in open_ones:
            own.close()
    wait_for(lambda: router.status() is not None and len(router.status()["sessions"]) == 2, 20, "the sessions are gone")


def test_random_bytes(router):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    hello = frame(HELLO, HELLO_BODY)
    for _ in range(150):
        data = bytearray(hello + frame(SUBSCRIBE, EVERYTHING) + frame(REQUEST, {"id": 1, "what": "status"}))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with Connection(router.socket) as own:
            try:
                own.send_bytes(bytes(data[:rng.randrange(len(data) + 1)]))
            except (BrokenPipeError, ConnectionResetError):
                pass


def test_early_close_before_streaming(server):
    """Clients that ask before the router has a server, and go again."""
    with Router("host=/nonexistent dbname=postgres user=postgres") as router:
        router.spawn()
        wait_for(lambda: router.status() is not None, 20, "the router's socket")
        assert router.status()["state"] in ("connecting", "waiting")
        for _ in range(20):
            with Connection(router.socket) as own:
                own.hello()
                own.send(SUBSCRIBE, EVERYTHING)
        wait_for(lambda: len(router.status()["sessions"]) <= 1, 10, "their sessions are gone")
