# SPDX-License-Identifier: PostgreSQL
"""Positions rise strictly and nothing is lost, doubled or out of order, whatever four sessions do at once.

What each session will do is drawn beforehand from a seed, and with it what must arrive and in which order: a
transaction stands where its COMMIT or COMMIT PREPARED stands in its session, a non-transactional message where it was
emitted. How the sessions meet is left to the machine, so a seed repeats the statements, not the run.
WALBUS_TEST_SEED=NUMBER draws the same again.
"""

import itertools
import os
import random
import threading

import pytest

pytestmark = pytest.mark.every_major

SESSIONS = 4
MESSAGES = 1000  # of each session, those that are rolled back included
PREPARED = 2  # open ones of a session; the harness' servers have room for ten


class Plan:
    """statements: SQL, or (transactional, content) of a message. units: the contents that must arrive, as
    (True, [contents of a transaction]) and (False, [one content])."""

    def __init__(self, seed, number):
        self.random = random.Random(f"{seed}.{number}")
        self.number = number
        self.statements = []
        self.units = []
        self.emitted = 0
        self.prepared = {}
        self.names = itertools.count()
        while self.emitted < MESSAGES:
            self.random.choices([self.alone, self.transaction, self.finish_prepared], [3, 5, 2])[0]()
        while self.prepared:
            self.finish_prepared()

    def emit(self, transactional):
        self.emitted += 1
        size = self.random.choices([0, self.random.randrange(300), 9000], [1, 8, 1])[0]
        content = b"%d " % self.emitted + b"x" * size
        self.statements.append((transactional, content))
        if not transactional:
            self.units.append((False, [content]))
        return content

    def alone(self):
        """Outside a transaction block; a transactional message is a transaction of its own."""
        if self.random.random() < 0.5:
            self.emit(False)
        else:
            self.units.append((True, [self.emit(True)]))

    def transaction(self):
        self.statements.append("BEGIN")
        savepoints = []
        kept = [[]]  # what was emitted since BEGIN, and since each savepoint
        for _ in range(self.random.randrange(1, 12)):
            what = self.random.choices(["in", "out", "savepoint", "release", "back"], [5, 3, 2, 1, 1])[0]
            if what == "in":
                kept[-1].append(self.emit(True))
            elif what == "out":
                self.emit(False)
            elif what == "savepoint":
                savepoints.append(f"s{next(self.names)}")
                self.statements.append(f"SAVEPOINT {savepoints[-1]}")
                kept.append([])
            elif savepoints:
                depth = self.random.randrange(len(savepoints))
                inner = [content for since in kept[depth + 1:] for content in since]
                del kept[depth + 1:]
                if what == "release":
                    self.statements.append(f"RELEASE SAVEPOINT {savepoints[depth]}")
                    kept[-1] += inner
                    del savepoints[depth:]
                else:
                    self.statements.append(f"ROLLBACK TO SAVEPOINT {savepoints[depth]}")
                    kept.append([])  # it is still there
                    del savepoints[depth + 1:]
        contents = [content for since in kept for content in since]
        end = self.random.choices(["COMMIT", "ROLLBACK", "PREPARE"], [5, 2, 3 * (len(self.prepared) < PREPARED)])[0]
        if end == "PREPARE":
            name = f"{self.number}.{next(self.names)}"
            self.statements.append(f"PREPARE TRANSACTION '{name}'")
            self.prepared[name] = contents
            return
        self.statements.append(end)
        if end == "COMMIT" and contents:
            self.units.append((True, contents))

    def finish_prepared(self):
        if not self.prepared:
            return
        name = self.random.choice(list(self.prepared))
        contents = self.prepared.pop(name)
        if self.random.random() < 0.5:
            # The message's record ends where the commit record begins: equal LSNs.
            self.emit(False)
        if self.random.random() < 0.7:
            self.statements.append(f"COMMIT PREPARED '{name}'")
            if contents:
                self.units.append((True, contents))
        else:
            self.statements.append(f"ROLLBACK PREPARED '{name}'")

    @property
    def prefix(self):
        return f"random.{self.number}"

    def run(self, conn):
        for statement in self.statements:
            if isinstance(statement, str):
                conn.run(statement)
            else:
                transactional, content = statement
                conn.emit(self.prefix, content, transactional)


def units(messages):
    """The same of what came."""
    made = []
    for (transactional, _), group in itertools.groupby(messages, lambda m: (m.transactional, m.position[:2])):
        made.append((transactional, [m.content for m in group]))
    return made


def test_random_messages_of_four_sessions(router, server):
    seed = int(os.environ.get("WALBUS_TEST_SEED") or random.randrange(1 << 32))
    print(f"WALBUS_TEST_SEED={seed}")
    plans = [Plan(seed, number) for number in range(SESSIONS)]
    sub = router.subscriber()
    failures = []

    def work(plan):
        try:
            with server.connect() as own:
                plan.run(own)
        except Exception as e:  # shown by the assertion below
            failures.append(e)

    threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    try:
        expected = sum(len(contents) for plan in plans for _, contents in plan.units)
        messages = sub.collect(expected, seconds=120)
    finally:
        for thread in threads:
            thread.join(120)
    assert failures == []
    for plan in plans:
        own = [m for m in messages if m.prefix == plan.prefix.encode()]
        assert units(own) == plan.units, f"session {plan.number}"
    pairs = list(zip(messages, messages[1:]))
    assert [(a, b) for a, b in pairs if not a.position < b.position] == []
    with server.connect() as conn:
        assert sub.drain(conn) == [], "nothing more"
    # That the hard cases were among them, or the run shows little: a transaction at the LSN of the message before it,
    # and messages whose own LSN is below that of the one before.
    assert any(a.position.lsn == b.position.lsn and not a.transactional and b.transactional for a, b in pairs)
    assert any(a.lsn > b.lsn for a, b in pairs)
