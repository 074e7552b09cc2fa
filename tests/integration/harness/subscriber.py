# SPDX-License-Identifier: PostgreSQL
"""A subscriber that knows the protocol from its description, and checks what every subscriber is promised.

Run as a program it is a subscriber in a process of its own, which a test can stop with SIGSTOP:
    python3 -m harness.subscriber SOCKET [name:NAME] [count:COUNT] [KIND:TEXT …]
prints `ready`, and at the connection's end, or after COUNT messages, one JSON line of what it saw.
"""

import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from typing import NamedTuple

from . import cbor, places
from .waiting import Deadline, wait_for

HELLO, WELCOME, SUBSCRIBE, SUBSCRIBED, ACK, ACKED, REQUEST, REPLY, ERROR = range(1, 10)
BEGIN, MESSAGE, COMMIT, PROGRESS, GAP = range(0x10, 0x15)
FLAG_IGNORABLE = 0x80
FLAG_TRANSACTIONAL = 0x01
FLAG_RESUMED = 0x01
FLAG_INCOMPLETE = 0x01
INDEX_END = 0xFFFFFFFF

HEADER = struct.Struct(">IBBH")
POSITION = struct.Struct(">IQI")
KINDS = {"pattern": 0, "exact": 1, "starts-with": 2}


class Position(NamedTuple):
    timeline: int
    lsn: int
    index: int

    def __str__(self):
        return f"{self.timeline}:{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}:{self.index}"


class Begin(NamedTuple):
    timeline: int
    commit_lsn: int
    commit_time: int
    xid: int
    resumed: bool = False


class Message(NamedTuple):
    position: Position
    lsn: int
    xid: int
    commit_time: int
    received_time: int
    prefix: bytes
    content: bytes
    transactional: bool

    def __repr__(self):
        content = self.content if len(self.content) <= 60 else self.content[:60] + b"..."
        return f"<{self.position} {self.prefix!r} {content!r}{'' if self.transactional else ' non-transactional'}>"


class Commit(NamedTuple):
    begin: Begin
    end_lsn: int
    messages: int
    incomplete: bool


class Progress(NamedTuple):
    position: Position


class Gap(NamedTuple):
    start: Position
    end: Position
    messages: int
    bytes: int
    reason: str


class RouterError(Exception):
    """An ERROR frame from the router."""

    def __init__(self, body):
        super().__init__(f"{body['code']}: {body['text']}")
        self.code = body["code"]
        self.text = body["text"]
        self.fatal = body["fatal"]
        self.id = body.get("id")


class Closed(Exception):
    """The router closed the connection."""


def _decode(kind, flags, body):
    """A frame's body as a value; every length is checked."""
    if kind == MESSAGE:
        lsn, xid, commit_time, received, size = struct.unpack_from(">QIqqI", body, 16)
        assert 48 + size <= len(body), "the prefix is longer than the frame"
        return Message(Position(*POSITION.unpack_from(body)), lsn, xid, commit_time, received,
                       body[48:48 + size], body[48 + size:], bool(flags & FLAG_TRANSACTIONAL))
    if kind == BEGIN:
        assert len(body) == 24
        return Begin(*struct.unpack(">IQqI", body), bool(flags & FLAG_RESUMED))
    if kind == COMMIT:
        assert len(body) == 36
        fields = struct.unpack(">IQqIQI", body)
        return Commit(Begin(*fields[:4]), fields[4], fields[5], bool(flags & FLAG_INCOMPLETE))
    if kind == PROGRESS:
        assert len(body) == 16
        return Progress(Position(*POSITION.unpack(body)))
    if kind == GAP:
        return Gap(Position(*POSITION.unpack_from(body)), Position(*POSITION.unpack_from(body, 16)),
                   *struct.unpack_from(">QQ", body, 32), str(body[48:], "utf-8"))
    if kind == ERROR:
        raise RouterError(cbor.loads(body))
    return cbor.loads(body)


class Connection:
    """Frames over the socket, nothing more."""

    def __init__(self, path, seconds=10):
        deadline = Deadline(seconds, f"connecting to {path}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(deadline.left())
        self.buffer = bytearray()
        self.at = 0
        self.eof = False
        try:
            self.socket.connect(path)
        except BaseException:
            self.socket.close()
            raise

    def send_bytes(self, data):
        self.socket.settimeout(10)
        self.socket.sendall(data)

    def send(self, kind, body=b"", flags=0):
        if not isinstance(body, (bytes, bytearray)):
            body = cbor.dumps(body)
        self.send_bytes(HEADER.pack(len(body), kind, flags, 0) + body)

    def wait_taken(self, seconds=10):
        """Until the other end has read everything that was sent (SIOCOUTQ)."""
        def taken():
            return struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, b"\0" * 4))[0] == 0
        wait_for(taken, seconds, "the other end reads", every=0.0005)

    def _has(self, n):
        return len(self.buffer) - self.at >= n

    def _fill(self, n, deadline):
        """Reads until n bytes are there; Closed at the end of the stream."""
        if self.at > 1 << 20:
            del self.buffer[:self.at]
            self.at = 0
        while not self._has(n):
            self.socket.settimeout(deadline.left())
            try:
                piece = self.socket.recv(min(1 << 20, max(1 << 16, n - len(self.buffer) + self.at)))
            except socket.timeout:
                deadline.left()
                continue
            except ConnectionResetError:
                piece = b""
            if not piece:
                self.eof = True
                raise Closed(f"the router closed the connection with {len(self.buffer) - self.at} bytes of a frame")
            self.buffer += piece

    def pending(self):
        """Whether something has arrived that was not read yet."""
        return len(self.buffer) > self.at or bool(select.select([self.socket], [], [], 0)[0])

    def receive_raw(self, deadline):
        """(type, flags, body) of the next frame."""
        self._fill(HEADER.size, deadline)
        size, kind, flags, zero = HEADER.unpack_from(self.buffer, self.at)
        assert zero == 0, "the header's last two bytes are not zero"
        self._fill(HEADER.size + size, deadline)
        start = self.at + HEADER.size
        body = bytes(memoryview(self.buffer)[start:start + size])
        self.at = start + size
        return kind, flags, body

    def receive(self, deadline):
        """(type, value) of the next frame that is not to be ignored."""
        while True:
            kind, flags, body = self.receive_raw(deadline)
            if HELLO <= kind <= ERROR or BEGIN <= kind <= GAP:
                return kind, _decode(kind, flags, body)
            assert flags & FLAG_IGNORABLE, f"frame type {kind:#x}, not flagged ignorable"

    def expect(self, wanted, deadline):
        kind, value = self.receive(deadline)
        assert kind == wanted, f"frame type {kind:#x} instead of {wanted:#x}: {value!r}"
        return value

    def hello(self, seconds=10):
        try:
            self.send(HELLO, {"min": 1, "max": 1, "layout": 1, "client": "walbus tests"})
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reason is there to be read
        welcome = self.expect(WELCOME, Deadline(seconds, "WELCOME"))
        assert welcome["version"] == 1 and welcome["layout"] == 1
        return welcome

    def request(self, what, args=None, seconds=10, number=7):
        body = {"id": number, "what": what}
        if args is not None:
            body["args"] = args
        self.send(REQUEST, body)
        reply = self.expect(REPLY, Deadline(seconds, f"the reply to {what}"))
        assert reply["id"] == number
        return reply["result"]

    def closed_by_router(self, seconds=10):
        """Reads to the end of the stream; the ERROR's code on the way there, or None."""
        deadline = Deadline(seconds, "the router closes the connection")
        code = None
        try:
            while True:
                try:
                    self.receive(deadline)
                except RouterError as e:
                    code = e.code
        except Closed:
            return code

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Accepted(Connection):
    """The router's end of a connection, for a test that plays the router."""

    def __init__(self, accepted):  # pylint: disable=super-init-not-called
        self.socket = accepted
        self.buffer = bytearray()
        self.at = 0
        self.eof = False


def request(path, what, args=None, seconds=10):
    """One control request over a connection of its own."""
    with Connection(path, seconds) as conn:
        conn.hello(seconds)
        try:
            return conn.request(what, args, seconds)
        except Closed as e:
            raise ConnectionError(str(e)) from None


class Checks:
    """What holds for every subscriber's stream, whatever its filters, from the position of SUBSCRIBED on."""

    def __init__(self, everything, start=Position(0, 0, 0)):
        self.everything = everything
        self.last = start
        self.begin = None
        self.in_transaction = 0  # messages of it that came, or lie before where this subscriber goes on
        self.gapped = False  # a GAP has swallowed a part of it
        self.received_time = 0

    def _rise(self, position):
        assert position > self.last, f"position {position} does not rise from {self.last}"
        self.last = position

    def __call__(self, frame):
        if isinstance(frame, Begin):
            assert self.begin is None, f"BEGIN inside a transaction: {frame}"
            assert Position(frame.timeline, frame.commit_lsn, INDEX_END) > self.last, f"{frame} behind {self.last}"
            inside = self.last[:2] == frame[:2] and self.last.index > 0
            assert frame.resumed or not inside or self.gapped, f"{frame} goes on behind {self.last} and is not resumed"
            self.begin = frame
            self.in_transaction = self.last.index if inside else 0
        elif isinstance(frame, Message):
            self._rise(frame.position)
            assert frame.received_time >= self.received_time, "the received time fell"
            self.received_time = frame.received_time
            if frame.transactional:
                assert self.begin is not None, f"outside BEGIN and COMMIT: {frame}"
                assert frame.position[:2] == self.begin[:2], frame
                assert frame.position.index >= 1, frame
                assert (frame.xid, frame.commit_time) == (self.begin.xid, self.begin.commit_time), frame
                assert frame.lsn <= self.begin.commit_lsn, frame
                self.in_transaction += 1
                if self.everything and not self.gapped:
                    assert frame.position.index == self.in_transaction, f"an index is missing before {frame}"
            else:
                assert self.begin is None, f"inside BEGIN and COMMIT: {frame}"
                assert frame.position.index == 0 and frame.position.lsn == frame.lsn, frame
                assert (frame.xid, frame.commit_time) == (0, 0), frame
        elif isinstance(frame, Commit):
            assert self.begin is not None and frame.begin[:4] == self.begin[:4], f"COMMIT without its BEGIN: {frame}"
            assert self.gapped or not frame.incomplete, f"incomplete without a gap: {frame}"
            assert frame.end_lsn > frame.begin.commit_lsn, frame
            assert self.in_transaction >= 1 or self.begin.resumed or self.gapped, "a transaction of which nothing matched"
            if self.gapped:
                pass
            elif self.everything:
                assert frame.messages == self.in_transaction, frame
            else:
                assert frame.messages >= self.in_transaction, frame
            self._rise(Position(frame.begin.timeline, frame.begin.commit_lsn, INDEX_END))
            self.begin = None
            self.gapped = False
        elif isinstance(frame, Progress):
            assert self.begin is None, "PROGRESS inside a transaction"
            assert frame.position >= self.last, f"progress {frame.position} is behind {self.last}"
            self.last = frame.position
        elif isinstance(frame, Gap):
            assert frame.start > self.last, f"the gap {frame} is not behind {self.last}"
            assert frame.end >= frame.start, frame
            self.last = frame.end
            self.gapped = frame.end.index not in (0, INDEX_END)
            if self.begin and frame.end >= Position(*self.begin[:2], INDEX_END):
                self.begin = None  # what was open is swallowed


def parse_filters(filters):
    """'orders.>' is a pattern; ('exact', b'…') and ('starts-with', b'…') are the other kinds."""
    result = []
    for f in filters:
        kind, text = f if isinstance(f, tuple) else ("pattern", f)
        result.append([KINDS[kind], text.encode() if isinstance(text, str) else text])
    return result


class Subscriber:
    def __init__(self, path, filters=(), exclude=(), start=None, seconds=20, extra=None, keep=None, name=None,
                 take_over=False, override=False):
        """start: a word, a Position, or µs since 1970. keep: of large contents remember only so many bytes."""
        self.keep = keep
        self.filters = parse_filters(filters or [">"])
        self.connection = Connection(path, seconds)
        try:
            self.welcome = self.connection.hello(seconds)
            body = {"filters": self.filters}
            if exclude:
                body["exclude"] = parse_filters(exclude)
            if isinstance(start, Position):
                body.update(start="position", position=POSITION.pack(*start))
            elif isinstance(start, int):
                body.update(start="time", time=start)
            elif start is not None:
                body["start"] = start
            if name is not None:
                body["name"] = name
            body.update({key: True for key, value in (("take_over", take_over), ("override", override)) if value})
            body.update(extra or {})
            self.connection.send(SUBSCRIBE, body)
            self.subscribed = self.connection.expect(SUBSCRIBED, Deadline(seconds, "SUBSCRIBED"))
        except BaseException:
            self.connection.close()
            raise
        self.position = Position(*POSITION.unpack(self.subscribed["position"]))
        self.stored = self.subscribed["stored"]
        self.redelivered_to = Position(*POSITION.unpack(self.subscribed.get("redelivered_to", bytes(16))))
        self.checks = Checks(self.filters == [[0, b">"]] and not exclude, self.position)
        self.acked = None  # of the last ACKED
        self.messages = []
        self.commits = []
        self.begins = []
        self.gaps = []
        self.progress = None

    def next(self, deadline):
        """The next frame, checked and remembered."""
        kind, frame = self.connection.receive(deadline)
        if kind == ACKED:
            self.acked = Position(*POSITION.unpack(frame["position"]))
        self.checks(frame)
        if isinstance(frame, Message):
            if self.keep is not None:
                frame = frame._replace(content=frame.content[:self.keep])
            self.messages.append(frame)
        elif isinstance(frame, Begin):
            self.begins.append(frame)
        elif isinstance(frame, Commit):
            self.commits.append(frame)
        elif isinstance(frame, Gap):
            self.gaps.append(frame)
        elif isinstance(frame, Progress):
            self.progress = frame.position
        return frame

    def collect(self, count, seconds=20):
        """The next `count` messages, and their COMMIT if the last one is transactional."""
        first = len(self.messages)
        deadline = Deadline(seconds, f"{count} messages")
        try:
            while len(self.messages) - first < count or self.checks.begin is not None:
                self.next(deadline)
        except TimeoutError as e:
            raise TimeoutError(f"{e}; {len(self.messages) - first} came: {self.messages[first:][-10:]}") from None
        assert len(self.messages) - first == count, self.messages[first:][-10:]
        return self.messages[first:]

    def collect_to(self, prefix, seconds=20):
        """All messages up to, and without, the first one of this prefix; its transaction is read to the end."""
        first = len(self.messages)
        deadline = Deadline(seconds, f"the message {prefix!r}")
        try:
            while True:
                self.next(deadline)
                if self.checks.begin is None and len(self.messages) > first and self.messages[-1].prefix == prefix:
                    return self.messages[first:-1]
        except TimeoutError as e:
            raise TimeoutError(f"{e}; {len(self.messages) - first} others came: "
                               f"{self.messages[first:][-10:]}") from None

    def drain(self, conn, seconds=20):
        """Everything committed before now: emits a marker of its own on `conn`, and reads up to it."""
        marker = f"test.marker.{os.getpid()}.{time.monotonic_ns()}"
        conn.emit(marker, b"")
        return self.collect_to(marker.encode(), seconds)

    def is_redelivered(self, message):
        return message.position <= self.redelivered_to

    def acknowledge(self, position=None, confirm=False):
        """Everything up to this position, or all that has come."""
        body = {"position": POSITION.pack(*(position or self.checks.last))}
        if confirm:
            body["confirm"] = True
        self.connection.send(ACK, body)

    def confirm(self, position=None, seconds=20):
        """The same, and waits until it is on the router's disk."""
        position = position or self.checks.last
        self.acknowledge(position, confirm=True)
        deadline = Deadline(seconds, f"ACKED of {position}")
        while self.acked is None or self.acked < position:
            self.next(deadline)

    def refused(self, seconds=20):
        """Reads to the ERROR, which is returned."""
        deadline = Deadline(seconds, "an ERROR")
        try:
            while True:
                self.next(deadline)
        except RouterError as e:
            return e

    def seen(self, messages=None):
        """[(prefix, content)] as they came."""
        return [(m.prefix, m.content) for m in (self.messages if messages is None else messages)]

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def digest(messages, total=None):
    """Of prefixes and contents, in their order: what a SubscriberProcess says of all that came to it."""
    total = total or hashlib.sha256()
    for prefix, content in messages:
        total.update(struct.pack(">II", len(prefix), len(content)) + prefix + content)
    return total.hexdigest()


class SubscriberProcess:
    """The same in a process of its own."""

    def __init__(self, path, filters=(), seconds=20, name=None, count=None):
        """count: it ends after so many messages."""
        words = [f"{k}:{t}" for k, t in ((f if isinstance(f, tuple) else ("pattern", f)) for f in filters)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.subscriber", path, *([f"name:{name}"] if name else []),
             *([f"count:{count}"] if count else []), *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            preexec_fn=places.die_with_parent())
        os.set_blocking(self.process.stdout.fileno(), False)
        self._pending = b""
        assert self._line(seconds) == "ready"

    def _line(self, seconds):
        deadline = Deadline(seconds, "a line of the subscriber's process")
        while b"\n" not in self._pending:
            piece = self.process.stdout.read(65536)
            if piece == b"":
                raise RuntimeError("the subscriber's process ended early")
            if piece is None:
                time.sleep(min(0.01, deadline.left()))
                continue
            self._pending += piece
        line, self._pending = self._pending.split(b"\n", 1)
        return line.decode()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def result(self, seconds=60):
        """What it saw, once its connection has ended: code and text of an ERROR, how many messages, and their digest."""
        result = json.loads(self._line(seconds))
        self.process.wait(10)
        return result

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


def main():
    words = [tuple(word.split(":", 1)) for word in sys.argv[2:]]
    options = dict(word for word in words if word[0] in ("name", "count"))
    count = int(options.get("count", 0))
    subscriber = Subscriber(sys.argv[1], [word for word in words if word[0] not in options], name=options.get("name"))
    print("ready", flush=True)
    result = {"code": None, "text": None}
    deadline = Deadline(600, "the end of the connection")
    n = 0
    total = hashlib.sha256()
    try:
        while count == 0 or n < count:
            subscriber.next(deadline)
            n += len(subscriber.messages)
            digest(subscriber.seen(), total)
            subscriber.messages.clear()
    except RouterError as e:
        result = {"code": e.code, "text": e.text}
    except Closed:
        pass
    print(json.dumps(dict(result, messages=n, digest=total.hexdigest())), flush=True)


if __name__ == "__main__":
    main()
