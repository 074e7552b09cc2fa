# SPDX-License-Identifier: PostgreSQL
"""What a durable subscriber got, as its recorder has kept it: one JSON array a line, one line a frame."""

import json
from typing import NamedTuple, Optional

from harness.subscriber import INDEX_END, Position

# The first word of a line, and what follows.
SUBSCRIBED = "S"  # time, map: identity, timeline, position, stored, redelivered_to, filters, exclude
BEGIN = "B"       # timeline, commit LSN, commit time, xid, resumed
MESSAGE = "M"     # position, LSN, xid, commit time, received time, prefix, transactional, id, what is wrong with it
COMMIT = "C"      # timeline, commit LSN, commit time, xid, end LSN, messages, incomplete
PROGRESS = "P"    # position
GAP = "G"         # first position, last position, messages, bytes, reason
ACK = "A"         # position: was sent
ACKED = "K"       # position: came, it is on disk
ERROR = "E"       # code, text
ENDED = "X"       # time, how
LEFT = "L"        # time, position: acknowledged when the router said that it stops, and it has closed in peace


class Message(NamedTuple):
    position: Position
    lsn: int
    xid: int
    commit_time: int
    received_time: int
    prefix: str
    transactional: bool
    id: str
    fault: Optional[str] = None


class Begin(NamedTuple):
    timeline: int
    lsn: int
    time: int
    xid: int
    resumed: bool

    @property
    def end(self):
        return Position(self.timeline, self.lsn, INDEX_END)


class Commit(NamedTuple):
    timeline: int
    lsn: int
    time: int
    xid: int
    end_lsn: int
    messages: int
    incomplete: bool

    @property
    def position(self):
        return Position(self.timeline, self.lsn, INDEX_END)


class Progress(NamedTuple):
    position: Position


class Gap(NamedTuple):
    first: Position
    last: Position
    messages: int
    bytes: int
    reason: str


class Entry(NamedTuple):
    """What the router keeps back, as its quarantine has it at the end."""
    identity: str
    number: int
    position: Position
    prefix: str
    transactional: bool
    id: str
    status: str
    fault: Optional[str] = None


class Session:
    """One connection of a durable name, from SUBSCRIBED on."""

    def __init__(self, time, identity, position, filters, exclude=(), stored=True, redelivered_to=None, timeline=1,
                 where=""):
        self.time = time
        self.identity = identity
        self.timeline = timeline
        self.position = Position(*position)
        self.filters = [(kind, text) for kind, text in filters]
        self.exclude = [(kind, text) for kind, text in exclude]
        self.stored = stored
        self.redelivered_to = Position(*redelivered_to) if redelivered_to else None
        self.where = where  # file and line
        self.frames = []
        self.acked = None  # the highest that is on disk
        self.left = None  # (time, position)
        self.ended = None

    @property
    def messages(self):
        return [frame for frame in self.frames if isinstance(frame, Message)]

    @property
    def reach(self):
        """The last position that it was told of."""
        reach = self.position
        for frame in self.frames:
            if isinstance(frame, Gap):
                reach = max(reach, frame.last)
            elif not isinstance(frame, Begin):
                reach = max(reach, frame.position)
        return reach


class Reader:
    """Reads a recorder's file while it grows, whole lines only: the last one may be torn by a SIGKILL, and was then never
    acknowledged."""

    def __init__(self, path):
        self.path = path
        self.sessions = []
        self.ids = set()  # of messages that came
        self.errors = []  # codes of ERROR frames
        self._offset = 0
        self._line = 0

    def read(self):
        try:
            with open(self.path, "rb") as f:
                f.seek(self._offset)
                data = f.read()
        except FileNotFoundError:
            return self
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines():
            self._line += 1
            self._take(*json.loads(line))
        self._offset += end
        return self

    def _take(self, kind, *values):
        if kind == SUBSCRIBED:
            self.sessions.append(Session(values[0], where=f"{self.path}:{self._line}", **values[1]))
            return
        session = self.sessions[-1] if self.sessions else None
        if kind == ERROR:
            self.errors.append(values[0])
        elif kind == ENDED:
            if session is not None:
                session.ended = values[1]
        elif kind == MESSAGE:
            session.frames.append(Message(Position(*values[0]), *values[1:]))
            self.ids.add(session.frames[-1].id)
        elif kind == BEGIN:
            session.frames.append(Begin(*values))
        elif kind == COMMIT:
            session.frames.append(Commit(*values))
        elif kind == PROGRESS:
            session.frames.append(Progress(Position(*values[0])))
        elif kind == GAP:
            session.frames.append(Gap(Position(*values[0]), Position(*values[1]), *values[2:]))
        elif kind == ACKED:
            session.acked = max(session.acked or Position(0, 0, 0), Position(*values[0]))
        elif kind == LEFT:
            session.left = (values[0], Position(*values[1]))
        else:
            assert kind == ACK, kind
