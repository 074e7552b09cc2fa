# SPDX-License-Identifier: PostgreSQL
"""A durable subscriber in a process of its own. What it gets goes to a file, which is synced, and is acknowledged only
then: as a subscriber is told to do that must not lose anything. It decides nothing and checks nothing; that is the checker's.

    python3 -m faults.recorder '{"socket": …, "file": …, "name": …, "filters": […], …}'

SIGTERM: acknowledges everything, waits until that is on the router's disk, and ends with 0, or with UNCONFIRMED when the
connection ends before. A name that was taken over ends it with TAKEN_OVER, a refusal that does not pass with REFUSED.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

from harness import places
from harness.subscriber import (ACK, ACKED, COMMIT, GAP, MESSAGE, PROGRESS, SUBSCRIBE, SUBSCRIBED, BEGIN, INDEX_END,
                                POSITION, Closed, Connection, Position, RouterError, parse_filters)
from harness.waiting import Deadline

from . import history
from .truth import id_of

TAKEN_OVER = 3
REFUSED = 4
UNCONFIRMED = 5
# A router that is away is looked for so often: often enough that a schedule of seconds sees many sessions.
RETRY_SECONDS = (0.02, 0.1)


class Recorder:
    def __init__(self, socket_path, file, name, filters, exclude=(), take_over=False, seed=0, run=64, ack="run",
                 confirm=0.1, pause=0.0, pause_seconds=0.2):
        """run: most frames between two syncs. ack: behind each run, only at places outside transactions (commit), or now
        and then (seldom). confirm: how often the answer to an acknowledgement is asked for. pause: how often it
        sleeps before it reads on, for up to pause_seconds, and so falls behind."""
        self.socket_path = socket_path
        self.file = open(file, "ab")
        self.name = name
        self.filters = parse_filters(map(tuple, filters))
        self.exclude = parse_filters(map(tuple, exclude))
        self.take_over = take_over
        self.random = random.Random(seed)
        self.run_frames = run
        self.ack = ack
        self.confirm = confirm
        self.pause = pause
        self.pause_seconds = pause_seconds
        self.over = False
        self.connection = None
        self.lines = []
        self.place = None  # the last one that may be acknowledged
        self.place_outside = None  # the same, outside a transaction
        self.inside = False
        self.sent = None
        self.confirmed = None
        self.asked = None

    # ---- the file

    def note(self, *line):
        self.lines.append(json.dumps(line, separators=(",", ":")))

    def keep(self):
        """What was noted is on disk when this returns."""
        if not self.lines:
            return
        data = ("\n".join(self.lines) + "\n").encode()
        self.lines.clear()
        self.file.write(data)
        self.file.flush()
        os.fdatasync(self.file.fileno())

    # ---- frames

    def _at(self, position, outside):
        self.place = position
        self.inside = not outside
        if outside:
            self.place_outside = position

    def take(self, kind, value):
        if kind == MESSAGE:
            name, fault = id_of(value.content, value.prefix)
            self.note(history.MESSAGE, value.position, value.lsn, value.xid, value.commit_time, value.received_time,
                      value.prefix.decode("latin-1"), value.transactional, name, fault)
            self._at(value.position, not value.transactional)
        elif kind == BEGIN:
            self.note(history.BEGIN, *value)
        elif kind == COMMIT:
            self.note(history.COMMIT, *value.begin[:4], value.end_lsn, value.messages, value.incomplete)
            self._at(Position(value.begin.timeline, value.begin.commit_lsn, INDEX_END), True)
        elif kind == PROGRESS:
            self.note(history.PROGRESS, value.position)
            self._at(value.position, True)
        elif kind == GAP:
            self.note(history.GAP, value.start, value.end, value.messages, value.bytes, value.reason)
            self._at(value.end, True)
        elif kind == ACKED:
            self.confirmed = Position(*POSITION.unpack(value["position"]))
            self.note(history.ACKED, self.confirmed)
        else:
            raise AssertionError(f"frame type {kind:#x}: {value!r}")

    def receive(self, seconds):
        self.take(*self.connection.receive(Deadline(seconds, "a frame")))

    def gather(self):
        """One run: what is there, up to its size; waits a moment for the first frame."""
        count = 0
        ended = None
        try:
            while count < self.run_frames:
                self.receive(0.2 if count == 0 else 0.02)
                count += 1
                if not self.connection.pending():
                    break
        except TimeoutError:
            pass
        except (RouterError, Closed, ConnectionError) as e:
            ended = e
        self.keep()  # also what came before the end
        if ended is not None:
            raise ended

    def acknowledge(self, confirm, everything=False):
        place = self.place if self.ack != "commit" or everything else self.place_outside
        if place is None or (self.sent is not None and place <= self.sent and not confirm):
            return
        body = {"position": POSITION.pack(*place)}
        if confirm:
            body["confirm"] = True
        self.connection.send(ACK, body)
        self.sent = place
        self.note(history.ACK, place)

    # ---- a connection

    def subscribe(self):
        self.place = self.place_outside = self.sent = self.confirmed = None
        self.connection = Connection(self.socket_path, 5)
        self.connection.hello(10)
        body = {"filters": self.filters, "start": "now", "name": self.name}
        if self.exclude:
            body["exclude"] = self.exclude
        if self.take_over:
            body["take_over"] = True
        self.connection.send(SUBSCRIBE, body)
        while True:
            try:
                answer = self.connection.expect(SUBSCRIBED, Deadline(0.5, "SUBSCRIBED"))
                break
            except TimeoutError:  # the router waits for its server, as long as it takes
                if self.over:
                    return False
        self.take_over = False
        position = Position(*POSITION.unpack(answer["position"]))
        redelivered = answer.get("redelivered_to")
        self.note(history.SUBSCRIBED, time.monotonic(), {
            "identity": answer["identity"], "timeline": answer["timeline"], "position": position,
            "stored": answer["stored"], "redelivered_to": Position(*POSITION.unpack(redelivered)) if redelivered else None,
            "filters": [(kind, text.decode("latin-1")) for kind, text in self.filters],
            "exclude": [(kind, text.decode("latin-1")) for kind, text in self.exclude]})
        self.keep()
        return True

    def follow(self):
        while not self.over:
            self.gather()
            if self.ack != "seldom" or self.random.random() < 0.1:
                self.acknowledge(self.random.random() < self.confirm)
            self.keep()
            if self.random.random() < self.pause:
                time.sleep(self.random.uniform(0, self.pause_seconds))
        # At the end: everything, and on disk. What still comes meanwhile is kept, and not acknowledged.
        self.acknowledge(True, everything=True)
        wanted = self.place
        self.keep()
        deadline = Deadline(20, "ACKED")
        while wanted is not None and (self.confirmed is None or self.confirmed < wanted):
            deadline.left()
            self.gather()

    def leave(self):
        """The router stops: acknowledges what it has, and lets the router close."""
        self.acknowledge(False, everything=True)
        self.connection.socket.shutdown(socket.SHUT_WR)
        try:
            self.connection.closed_by_router(10)
        except AssertionError:  # a control frame of before
            pass
        if self.sent is not None:
            self.note(history.LEFT, time.monotonic(), self.sent)

    def session(self):
        """Until the connection ends; an exit status when it must not be tried again."""
        try:
            if self.subscribe():
                self.follow()
                return 0
        except RouterError as e:
            self.note(history.ERROR, e.code, e.text)
            self.note(history.ENDED, time.monotonic(), e.code)
            if e.code == "stopping":
                try:
                    self.leave()
                except (OSError, TimeoutError):
                    pass
            elif e.code == "taken-over":
                return TAKEN_OVER
            elif e.code not in ("held", "source", "limit", "journal"):
                return REFUSED
        except (Closed, OSError) as e:  # TimeoutError is one
            self.note(history.ENDED, time.monotonic(), f"{type(e).__name__}: {e}")
        finally:
            self.keep()
            if self.connection is not None:
                self.connection.close()
                self.connection = None
        return None

    def run(self):
        while not self.over:
            status = self.session()
            if status is not None:
                return status
            time.sleep(self.random.uniform(*RETRY_SECONDS))
        return UNCONFIRMED


class RecorderProcess:
    """One of them, started and ended by a schedule."""

    def __init__(self, file, **config):
        self.file = file
        self.config = config
        self.reader = history.Reader(file)
        with open(file + ".err", "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-B", "-m", "faults.recorder", json.dumps(dict(config, file=file))],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))), preexec_fn=places.die_with_parent())

    @property
    def runs(self):
        return self.process.poll() is None

    def kill(self):
        if self.runs:
            self.process.kill()
        self.process.wait(10)

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def finish(self, seconds=30):
        """SIGTERM; it must end well."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(seconds)
        return self.process.returncode

    def errors(self):
        with open(self.file + ".err", encoding="utf-8", errors="replace") as f:
            return f.read()


def main():
    config = json.loads(sys.argv[1])
    config["socket_path"] = config.pop("socket")
    recorder = Recorder(**config)

    def end(_signal, _frame):
        recorder.over = True
    signal.signal(signal.SIGTERM, end)
    sys.exit(recorder.run())


if __name__ == "__main__":
    main()
