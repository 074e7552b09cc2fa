# SPDX-License-Identifier: PostgreSQL
"""A router that the test plays: what a program asks of it, and what it makes of every answer."""

import os
import socket
import struct

from . import places
from .subscriber import (ACK, ACKED, BEGIN, ERROR, GAP, HEADER, HELLO, MESSAGE, POSITION, PROGRESS, REPLY, REQUEST, SUBSCRIBE,
                         SUBSCRIBED, WELCOME, Accepted, Position)
from .waiting import Deadline

IDENTITY = "7595371246853562370/1"


def at(lsn, index=0):
    return Position(1, lsn, index)


class FakeRouter:
    def __init__(self):
        self.folder = places.new_folder("walbus-fake-")
        self.path = os.path.join(self.folder, "walbus.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.listener.settimeout(20)
        self.own = None

    # ---- conversations

    def accept(self, identity=IDENTITY):
        """The next connection, greeted."""
        if self.own:
            self.own.close()
        self.own = Accepted(self.listener.accept()[0])
        hello = self.own.expect(HELLO, Deadline(10, "HELLO"))
        assert hello["min"] <= 1 <= hello["max"]
        self.own.send(WELCOME, {"version": 1, "layout": 1, "server": "a test", "identity": identity, "timeline": 1,
                                "position": POSITION.pack(1, 1, 0), "max_frame": 1 << 20, "max_filters": 1024})
        return self

    def answer(self, what, result=None, args=None, error=None):
        """A request of its own connection: answered, or refused with (code, text)."""
        self.accept()
        request = self.own.expect(REQUEST, Deadline(10, f"the request {what}"))
        assert request["what"] == what, request
        assert request.get("args") == args, request
        if error:
            self.own.send(ERROR, {"code": error[0], "text": error[1], "fatal": False, "id": request["id"]})
        else:
            self.own.send(REPLY, {"id": request["id"], "result": result})

    def subscribe(self):
        """The SUBSCRIBE of a new connection."""
        self.accept()
        body = self.own.expect(SUBSCRIBE, Deadline(10, "SUBSCRIBE"))
        return {key: Position(*POSITION.unpack(value)) if key == "position" else value for key, value in body.items()}

    def subscribed(self, position, stored=False, redelivered_to=None):
        body = {"position": POSITION.pack(*position), "stored": stored, "identity": IDENTITY, "timeline": 1}
        if redelivered_to:
            body["redelivered_to"] = POSITION.pack(*redelivered_to)
        self.own.send(SUBSCRIBED, body)

    def error(self, code, text="So it is.", fatal=True):
        self.own.send(ERROR, {"code": code, "text": text, "fatal": fatal})

    def message(self, *positions, content=b"x", prefix=b"a"):
        """Non-transactional ones, sent at once."""
        frames = b""
        for position in positions:
            assert position.index == 0
            body = struct.pack(">IQIQIqqI", *position, position.lsn, 0, 0, 78, len(prefix)) + prefix + content
            frames += HEADER.pack(len(body), MESSAGE, 0, 0) + body
        self.own.send_bytes(frames)

    def begin(self, lsn):
        self.own.send(BEGIN, struct.pack(">IQqI", 1, lsn, 77, 9))

    def progress(self, position):
        self.own.send(PROGRESS, POSITION.pack(*position))

    def gap(self, start, end, reason="retention has passed this"):
        self.own.send(GAP, POSITION.pack(*start) + POSITION.pack(*end) + struct.pack(">QQ", 4, 2**64 - 1) +
                      reason.encode())

    def acknowledged(self, position, confirm=False):
        """Reads acknowledgements up to this one."""
        deadline = Deadline(10, f"the acknowledgement of {position}")
        while True:
            body = self.own.expect(ACK, deadline)
            got = Position(*POSITION.unpack(body["position"]))
            assert got <= position, f"{got} was acknowledged, only {position} should be"
            if got == position and body.get("confirm", False) == confirm:
                return

    def acked(self, position):
        self.own.send(ACKED, {"position": POSITION.pack(*position)})

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
