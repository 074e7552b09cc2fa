# SPDX-License-Identifier: PostgreSQL
"""Clients that mean no good, in a process of their own and as a user of their own.

    python3 -m harness.hostile SOCKET UID KIND NUMBER

prints `ready` once all of them are at it, goes on until its input ends, and then prints a JSON object: how often each
answer came. An answer is the code of an ERROR, "welcome", "open" (nothing was said, and it is still open) or "nothing" (it was
closed without a word).
"""

import collections
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time

from . import cbor, places
from .waiting import Deadline

HEADER = 8
HELLO, WELCOME, SUBSCRIBE, ERROR = 1, 2, 3, 9


def frame(kind, body, size=None):
    body = body if isinstance(body, bytes) else cbor.dumps(body)
    return (len(body) if size is None else size).to_bytes(4, "big") + bytes([kind, 0, 0, 0]) + body


def hello():
    return frame(HELLO, {"min": 1, "max": 1, "layout": 1, "client": "hostile"})


class Client:
    def __init__(self, path):
        self.data = b""
        self.closed = False
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        deadline = Deadline(60, "the router accepts connections")
        self.socket.settimeout(5)
        while True:
            try:
                self.socket.connect(path)
                break
            except BlockingIOError:  # the queue of those that are not yet accepted is full
                time.sleep(min(0.005, deadline.left()))
        self.socket.setblocking(False)

    def send(self, data):
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            return -1

    def look(self):
        """Takes what is there."""
        while not self.closed:
            try:
                piece = self.socket.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                piece = b""
            self.data += piece
            self.closed = not piece

    def wait_end(self, seconds=30):
        deadline = Deadline(seconds, "the router closes the connection")
        while not self.closed:
            select.select([self.socket], [], [], deadline.left())
            self.look()

    def answer(self):
        at, last = 0, "nothing" if self.closed else "open"
        while len(self.data) - at >= HEADER:
            size, kind = int.from_bytes(self.data[at:at + 4], "big"), self.data[at + 4]
            body = self.data[at + HEADER:at + HEADER + size]
            at += HEADER + size
            if kind == ERROR:
                return cbor.loads(body)["code"]
            if kind == WELCOME and not self.closed:
                last = "welcome"
        return last

    def close(self):
        self.socket.close()


class Crowd:
    """Those that are there, and how the others ended."""

    def __init__(self, path, number):
        self.path = path
        self.number = number
        self.clients = []
        self.answers = collections.Counter()

    def step(self):
        """Once more, in a loop; returns how many seconds it may rest."""
        return 0.05

    def look(self):
        for client in list(self.clients):
            client.look()
            if client.closed:
                self.end(client)

    def end(self, client):
        self.answers[client.answer()] += 1
        client.close()
        self.clients.remove(client)

    def finish(self):
        self.look()
        for client in list(self.clients):
            self.end(client)


class Idle(Crowd):
    """They connect, and that is all."""

    def start(self):
        for _ in range(self.number):
            self.clients.append(Client(self.path))

    def step(self):
        self.look()
        return 0.2


class Half(Crowd):
    """A frame of a megabyte is announced, and half of it comes."""

    def start(self):
        for _ in range(self.number):
            client = Client(self.path)
            self.clients.append(client)
            client.send(hello())
            rest = frame(SUBSCRIBE, bytes(1 << 19), size=1 << 20)
            deadline = time.monotonic() + 2
            while rest and time.monotonic() < deadline:
                select.select([client.socket], [client.socket], [], 0.1)
                client.look()
                sent = client.send(rest)
                if sent < 0:
                    break
                rest = rest[sent:]

    def step(self):
        self.look()
        return 0.2


class Trickle(Crowd):
    """A byte of HELLO each second."""

    def start(self):
        self.rest = hello()
        for _ in range(self.number):
            self.clients.append(Client(self.path))

    def step(self):
        self.look()
        byte, self.rest = self.rest[:1], self.rest[1:]
        for client in self.clients:
            client.send(byte)
        return 1


class Loop(Crowd):
    """One behind the other: it connects, says what it has to say, and reads the answer to its end."""

    first = b""

    def start(self):
        self.step()

    def step(self):
        for _ in range(20):
            client = Client(self.path)
            self.clients.append(client)
            client.send(self.first)
            client.wait_end()
            self.end(client)
        return 0.01


class Stranger(Loop):
    pass


class Oversized(Loop):
    first = frame(HELLO, b"", size=0xFFFFFFFF)


KINDS = {"idle": Idle, "half": Half, "trickle": Trickle, "stranger": Stranger, "oversized": Oversized}


class Hostile:
    """Such a process, as a test has it: a context that is entered when all are at it. `answers` is there afterwards."""

    def __init__(self, path, uid, kind, number=1):
        self.path, self.uid, self.kind, self.number = path, uid, kind, number
        self.answers = None

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.hostile", self.path, str(self.uid), self.kind, str(self.number)],
            cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))), env=places.child_environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=places.die_with_parent())
        line = self.process.stdout.readline()
        assert line == b"ready\n", line
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.process.kill()
        out, _ = self.process.communicate(timeout=120)
        if kind is None:
            assert self.process.returncode == 0
            self.answers = json.loads(out)


def main():
    path, uid, kind, number = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    crowd = KINDS[kind](path, int(number))
    crowd.start()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], crowd.step())[0]:
        pass
    crowd.finish()
    print(json.dumps(crowd.answers))


if __name__ == "__main__":
    main()
