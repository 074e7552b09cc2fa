# SPDX-License-Identifier: PostgreSQL
"""A session that publishes at random while servers crash under it. What it does is drawn from a seed; what became of it the
database says in the end.

A transaction whose COMMIT got no answer may be committed or not, and one whose PREPARE got none may be there or not:
nothing here needs to know.
"""

import itertools
import random
import threading

import psycopg2

from . import signed
from .truth import Emission, content_of

# The server is going away, is not there, or comes back without what was prepared, or with what its crash left busy; or there
# are too many prepared ones.
PASSING = ("08", "57P", "53", "42704", "55000")
PREPARED = 2  # open ones of a session
PREFIXES = ("orders.created", "orders.paid", "orders.eu.created", "orders.eu.berlin.paid", "payments.made", "audit",
            "stock.1.level", "stock.2.level", "stock.2.price", "_internal.note", "", "wörld.ordér")


def as_bytes_come(prefix):
    """A prefix as recorders note it: a character a byte."""
    return prefix.encode().decode("latin-1")


def as_text(prefix):
    return prefix.encode("latin-1").decode()


class Publisher:
    def __init__(self, name, seed, address, epoch, flush, large_bytes, pace, policy=False):
        """address: the dsn. epoch(): number of the server that this leads to. flush: the server has the argument. large_bytes:
        size of a large message. pace: longest pause between two units, seconds.
        policy: some of what it publishes is signed, and the router asks for that."""
        self.name = name
        self.random = random.Random(seed)
        self.address = address
        self.epoch = epoch
        self.flush = flush
        self.large_bytes = large_bytes
        self.pace = pace
        self.prefixes = PREFIXES + signed.PREFIXES * policy
        self.emissions = []
        self.failure = None
        self.numbers = itertools.count(1)
        self.names = itertools.count(1)
        self.ticks = itertools.count(1)
        self.prepared = {}  # name: its emissions
        self.conn = None
        self.conn_epoch = None
        self.unflushed = []  # emitted on this connection, not transactional, with a result
        self.held = threading.Event()  # makes it wait between two units
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publisher {name}")

    def start(self):
        self._thread.start()

    def stop(self):
        """Ends what it is at; raises what it could not bear."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"publisher {self.name} still works"
        if self.failure is not None:
            raise self.failure

    # ---- the connection

    def _run(self):
        try:
            while not self._stop.is_set():
                try:
                    if self.conn is None:
                        self._connect()
                    if self.conn is not None:
                        self._unit()
                except psycopg2.Error as e:
                    self._bear(e)
                    self._stop.wait(0.03)
                    continue
                self._stop.wait(self.random.uniform(0, self.pace))
                while self.held.is_set() and not self._stop.wait(0.01):
                    pass
        except Exception as e:  # raised by stop()
            self.failure = e
        finally:
            self._disconnect()

    def _connect(self):
        epoch = self.epoch()
        self.conn = psycopg2.connect(self.address, connect_timeout=10, application_name=f"publisher {self.name}")
        self.conn.autocommit = True
        self.conn_epoch = epoch
        self.unflushed = []
        if epoch != self.epoch():  # which of the two, nobody can say
            self._disconnect()

    def _disconnect(self):
        if self.conn is not None:
            self.conn.close()
            self.conn = None

    def _bear(self, error):
        state = getattr(error, "pgcode", None)
        if state is not None and not state.startswith(PASSING):
            raise error
        if self.conn is None or self.conn.closed:
            self._disconnect()
            return
        try:
            self._sql("ROLLBACK")
        except psycopg2.Error:
            self._disconnect()

    def _sql(self, sql, *parameters):
        with self.conn.cursor() as cur:
            cur.execute(sql, parameters or None)
            return cur.fetchone()[0] if cur.description else None

    # ---- emitting

    def _new(self, transactional, unit=None, prefix=None):
        number = next(self.numbers)
        form = None
        if prefix is None:
            prefix = self.random.choice(self.prefixes)
            if prefix in signed.PREFIXES:
                form, = self.random.choices(*zip(*signed.WEIGHTS.items()))
        emission = Emission(f"{self.name}.{number}", as_bytes_come(prefix), transactional, self.name, unit, number,
                            self.conn_epoch, form,
                            withheld=prefix.startswith(signed.REQUIRED) and form != signed.VALID)
        self.emissions.append(emission)
        return emission

    def _content(self, emission, fill):
        """(SQL, its parameters). What is signed is made here, the rest by the server."""
        if emission.form is None:
            return "content(%s, %s)", (emission.id, fill)
        return "%s::bytea", (psycopg2.Binary(signed.signed_content(emission.id, content_of(emission.id, fill), emission.form,
                                                                   as_text(emission.prefix))),)

    def _fill(self):
        return self.random.choices([0, self.random.randrange(10), self.random.randrange(400)], [1, 8, 1])[0]

    def _emit(self, unit, fill=None):
        emission = self._new(True, unit, None if fill is None else self.random.choice(PREFIXES))
        content, parameters = self._content(emission, self._fill() if fill is None else fill)
        self._sql("WITH noted AS (INSERT INTO emitted VALUES (%s) RETURNING id) "
                  f"SELECT pg_logical_emit_message(true, %s, {content}) FROM noted",
                  emission.id, as_text(emission.prefix), *parameters)
        return emission

    def _emit_alone(self, fill=None):
        emission = self._new(False, prefix=None if fill is None else self.random.choice(PREFIXES))
        emission.order = next(self.ticks)
        asked = self.flush and self.random.random() < 0.6
        content, parameters = self._content(emission, self._fill() if fill is None else fill)
        lsn = self._sql(f"SELECT pg_logical_emit_message(false, %s, {content}{', true' if asked else ''})::text",
                        as_text(emission.prefix), *parameters)
        high, low = lsn.split("/")
        emission.lsn = int(high, 16) << 32 | int(low, 16)
        self.unflushed.append(emission)
        if asked:
            self._flushed()

    def _flushed(self):
        """What was emitted on this connection before is on disk too."""
        for emission in self.unflushed:
            emission.flushed = True
        self.unflushed.clear()

    def _committing(self, emissions):
        order = next(self.ticks)
        for emission in emissions:
            emission.order = order

    # ---- units

    def _unit(self):
        self.random.choices(
            [self._alone, self._single, self._transaction, self._finish_prepared, self._many, self._large],
            [20, 15, 40, 15, 0.2, 0.2])[0]()

    def _alone(self):
        self._emit_alone()

    def _single(self):
        """A transactional one outside a transaction block."""
        order = next(self.ticks)
        first = len(self.emissions)
        try:
            self._emit(next(self.names))
        finally:
            for emission in self.emissions[first:]:
                emission.order = order
        self._flushed()

    def _transaction(self):
        unit = next(self.names)
        emissions = []
        savepoints = []
        self._sql("BEGIN")
        for _ in range(self.random.randrange(1, 10)):
            what = self.random.choices(["in", "out", "savepoint", "release", "back"], [6, 2, 2, 1, 1])[0]
            if what == "in":
                emissions.append(self._emit(unit))
            elif what == "out":
                self._emit_alone()
            elif what == "savepoint":
                savepoints.append(f"s{len(savepoints)}")
                self._sql(f"SAVEPOINT {savepoints[-1]}")
            elif savepoints:
                depth = self.random.randrange(len(savepoints))
                if what == "release":
                    self._sql(f"RELEASE SAVEPOINT {savepoints[depth]}")
                    del savepoints[depth:]
                else:
                    self._sql(f"ROLLBACK TO SAVEPOINT {savepoints[depth]}")
                    del savepoints[depth + 1:]
        end = self.random.choices(["COMMIT", "ROLLBACK", "PREPARE"], [6, 2, 3 * (len(self.prepared) < PREPARED)])[0]
        if end == "PREPARE":
            name = f"{self.name}.{unit}"
            self._sql(f"PREPARE TRANSACTION '{name}'")
            self.prepared[name] = emissions
        elif end == "COMMIT":
            self._commit(emissions)
        else:
            self._sql("ROLLBACK")

    def _commit(self, emissions):
        self._committing(emissions)
        self._sql("COMMIT")
        if emissions:  # else there is nothing that its commit would flush
            self._flushed()

    def _finish_prepared(self):
        if not self.prepared:
            return
        name = self.random.choice(sorted(self.prepared))
        emissions = self.prepared.pop(name)
        if self.random.random() < 0.5:
            self._emit_alone()  # its record ends where the commit record begins: equal LSNs
        if self.random.random() < 0.7:
            self._committing(emissions)
            try:
                self._sql(f"COMMIT PREPARED '{name}'")
            except psycopg2.Error:
                for emission in emissions:  # now, or when the schedule ends
                    emission.order = None
                raise
            self._flushed()
        else:
            self._sql(f"ROLLBACK PREPARED '{name}'")

    def _many(self):
        """A transaction of many messages, which are more than one batch."""
        unit = next(self.names)
        prefix = self.random.choice(self.prefixes)
        emissions = [self._new(True, unit, prefix) for _ in range(self.random.choice([100, 500, 3000]))]
        self._sql("BEGIN")
        self._sql("WITH noted AS (INSERT INTO emitted SELECT %s || n FROM generate_series(%s, %s) n RETURNING id) "
                  "SELECT count(pg_logical_emit_message(true, %s, content(id, 3))) FROM noted",
                  f"{self.name}.", emissions[0].number, emissions[-1].number, prefix)
        if self.random.random() < 0.8:
            self._commit(emissions)
        else:
            self._sql("ROLLBACK")

    def _large(self):
        fill = self.random.randrange(self.large_bytes // 4, self.large_bytes) // 32
        if self.random.random() < 0.3:
            self._emit_alone(fill)
            return
        unit = next(self.names)
        self._sql("BEGIN")
        emissions = [self._emit(unit), self._emit(unit, fill), self._emit(unit)]
        self._commit(emissions)

