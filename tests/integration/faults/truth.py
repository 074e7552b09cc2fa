# SPDX-License-Identifier: PostgreSQL
"""What was published: every message has an id, in its content and in the table `emitted` if it is transactional."""

import hashlib

from . import signed

# Written by the transaction that emits, so it is committed with the message, or not at all.
TABLE = "CREATE TABLE emitted (id text PRIMARY KEY)"

# The content says its id and how long it is, and is filled with what belongs to this id alone, so that a piece of another
# message, or a missing one, is seen.
CONTENT = """CREATE FUNCTION content(id text, fill int) RETURNS bytea LANGUAGE sql IMMUTABLE
AS $$ SELECT convert_to(id || ' ' || fill || ' ' || repeat(md5(id), fill), 'UTF8') $$"""
FILL_SIZE = 32


def content_of(name, fill):
    return f"{name} {fill} {hashlib.md5(name.encode()).hexdigest() * fill}".encode()


def is_content(name, size, md5):
    """Whether so long a content with this MD5 is one of that message."""
    filler = hashlib.md5(name.encode()).hexdigest()
    for digits in range(1, 9):
        fill, rest = divmod(size - len(name) - digits - 2, FILL_SIZE)
        if fill >= 0 and rest == 0 and len(str(fill)) == digits:
            return hashlib.md5(f"{name} {fill} {filler * fill}".encode()).hexdigest() == md5
    return False


def id_of(content, prefix=b""):
    """(id, None), or (what stands in its place, what is wrong with it). prefix: what it came under."""
    if signed.is_signed(content):
        return _id_of_signed(bytes(content), bytes(prefix))
    words = bytes(content[:200]).split(b" ", 2)
    name = words[0].decode("latin-1")
    if len(words) < 3 or not words[1].isdigit() or len(words[1]) > 9:
        return name, f"no content of a message: {bytes(content[:60])!r}"
    if content != content_of(name, int(words[1])):
        return name, f"{len(content)} bytes that are not its own: {bytes(content[:60])!r}"
    return name, None


def _id_of_signed(content, prefix):
    try:
        data, form = signed.parts_of(content)
        name, fault = id_of(data)
        again = signed.signed_content(name, data, form, prefix.decode())
    except ValueError as e:
        return "?", f"{e}: {content[:60]!r}"
    return name, fault if content == again else f"{len(content)} bytes, {form}, that are not its own: {content[:60]!r}"


class Emission:
    """One message as its publisher knows it."""

    __slots__ = ("id", "prefix", "transactional", "session", "unit", "number", "order", "epoch", "lsn", "flushed",
                 "form", "withheld")

    def __init__(self, name, prefix, transactional, session, unit, number, epoch=0, form=None, withheld=False):
        self.id = name
        self.prefix = prefix
        self.transactional = transactional
        self.session = session
        self.unit = unit  # of the session: its transaction; None when it is not transactional
        self.number = number  # in the session, as emitted
        self.order = None  # rises in the session in the order of delivery; None: not known
        self.epoch = epoch  # which of the servers it was emitted on
        self.lsn = None  # not transactional: what the function returned, if it did
        self.flushed = False  # not transactional: its WAL is on disk, as a call that returned says
        self.form = form  # of signed.py; None: a content like others
        self.withheld = withheld  # policy keeps it back


class Truth:
    """All publishers together, and what the database says at the end."""

    def __init__(self):
        self.emissions = {}  # by id
        self.committed = set()  # ids of rows at the end
        self.lost = set()  # ids of rows that a server had which is gone, and that the next one began without
        self.withheld = set()  # ids of messages that policy keeps back: they come to nobody, and stand in quarantine
        self.flushed = set()  # ids of messages that are not transactional and must be there
        self.copied = None  # after a restore: ids that the restored copy had, which come in both eras
        self.unfinished_gaps = False  # a failover may have cut a transaction
        self.accepted_gaps = False  # --accept-gap was given
        self.failing_reads = False  # the router was made to fail at reading its journal
        self.clean_stops = []  # (begin, end) of each stop of the router that ended with 0; CLOCK_MONOTONIC

    def add(self, emissions):
        for emission in emissions:
            assert emission.id not in self.emissions, emission.id
            self.emissions[emission.id] = emission
            if emission.withheld:
                self.withheld.add(emission.id)

    @property
    def must(self):
        """What has to arrive in the last journal. With `copied`, that may have come in the one before it as well."""
        return self.there - self.withheld

    @property
    def there(self):
        """The same, with what has to be kept back."""
        return self.committed | self.flushed

    def may(self, name):
        emission = self.emissions.get(name)
        if emission is None:
            return False
        return not emission.transactional or name in self.committed or name in self.lost

    def may_come_twice(self, name):
        """At two places: in the era before a restore and in the one behind it what the copy had; and what was prepared there,
        or on the standby, and committed on both servers."""
        return (self.copied is not None and name in self.copied) or self.committed_anew(name)

    def committed_anew(self, name):
        """Prepared before a server was replaced, committed on the one that is gone, and then once more on its successor: what
        its session did in between came before."""
        return name in self.lost and name in self.committed
