# SPDX-License-Identifier: PostgreSQL
"""apply_once, a subscriber that makes rows of what it gets by the exactly-once call, and the database with these rows: a server
of its own, which crashes as well."""

import os
import subprocess
from typing import NamedTuple

from harness import places
from harness.subscriber import KINDS, Position

TABLES = """CREATE TABLE effects (number bigserial PRIMARY KEY, id text, prefix bytea, size int, md5 text, identity text,
                                  position text);
            CREATE TABLE gaps (number bigserial PRIMARY KEY, identity text, reason text)"""
OVERTAKEN = 3
LOST = 4


class Effect(NamedTuple):
    id: str
    prefix: str
    size: int
    md5: str
    identity: str
    position: Position


def program(build=None):
    """The path, None when this build has none (its tests are off)."""
    path = os.path.join(build or places.build_dir(), "tests", "integration", "apply_once")
    return path if os.path.exists(path) else None


def parse_position(text):
    timeline, lsn, index = text.split(":")
    high, low = lsn.split("/")
    return Position(int(timeline), int(high, 16) << 32 | int(low, 16), int(index))


class OnceProcess:
    def __init__(self, path, log, socket, dsn, name, filters, batch, pause, take_over=False):
        self.log = log
        words = [f"{KINDS[kind]}:{text}" for kind, text in filters]
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [path, socket, dsn, name, str(batch), str(pause), str(int(take_over)), *words],
                env=places.child_environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                preexec_fn=places.die_with_parent())

    @property
    def runs(self):
        return self.process.poll() is None

    def kill(self):
        if self.runs:
            self.process.kill()
        self.process.wait(10)

    def finish(self, seconds=30):
        """SIGTERM; its exit status."""
        self.process.terminate()
        return self.process.wait(seconds)

    def errors(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            text = f.read()
        places.assert_no_sanitizer_report(text, "apply_once")
        return text


def effects(server):
    """(rows in their order, reasons of gaps)."""
    with server.connect() as conn:
        rows = [Effect(name, bytes(prefix).decode("latin-1"), size, md5, identity, parse_position(position))
                for name, prefix, size, md5, identity, position in
                conn.rows("SELECT id, prefix, size, md5, identity, position FROM effects ORDER BY number")]
        return rows, [reason for reason, in conn.rows("SELECT reason FROM gaps ORDER BY number")]
