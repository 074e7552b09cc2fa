# SPDX-License-Identifier: PostgreSQL
"""That the checker of test_schedules.py finds what it is there for: histories that are right, and then a little wrong."""

import hashlib
import json
import re

import pytest
from faults import history, signed
from faults.checker import check, pattern_matches
from faults.history import Begin, Commit, Entry, Gap, Message, Progress, Session
from faults.once import Effect, parse_position
from faults.publisher import as_bytes_come, as_text
from faults.truth import Emission, Truth, content_of, id_of, is_content
from harness.subscriber import INDEX_END, Position

SYSTEM, ERA2 = "7/1", "7/2"


def at(lsn, index=0, timeline=1):
    return Position(timeline, lsn, index)


def end(lsn, timeline=1):
    return Position(timeline, lsn, INDEX_END)


class Story:
    """One publisher, p. In the order of delivery:

        p.3   audit     alone at 100, flushed, emitted inside the transaction of p.1
        p.1   orders.a  transaction at 200, whose p.2 a savepoint has rolled back
        p.4   orders.b
        p.5   orders.c  transaction at 300, rolled back: comes to nobody
        p.6   stock.x   transaction at 400, prepared: its order is not known
        p.7   orders.d
        p.8   audit     alone, without a flush: lost by a crash
        p.9   audit     alone at 500, without a flush
        p.10  orders.e  transaction at 600
        p.11  stock.y
        p.12  orders.e

    `all` reads everything in one session, `orders` reads orders.> in three: the first has acknowledged p.1 and got more,
    the second begins there, and is on disk up to 400.
    """

    def __init__(self):
        self.truth = Truth()
        self.errors = {}
        order = iter(range(1, 100))
        alone, unit1, unit2, unit4 = next(order), next(order), next(order), next(order)
        rows = [(1, "orders.a", 1, unit1), (2, "orders.a", 1, unit1), (3, "audit", None, alone),
                (4, "orders.b", 1, unit1), (5, "orders.c", 2, unit2), (6, "stock.x", 3, None),
                (7, "orders.d", 3, None), (8, "audit", None, unit4), (9, "audit", None, next(order)),
                (10, "orders.e", 4, last := next(order)), (11, "stock.y", 4, last), (12, "orders.e", 4, last)]
        for number, prefix, unit, tick in rows:
            emission = Emission(f"p.{number}", prefix, unit is not None, "p", unit, number)
            emission.order = tick
            self.truth.add([emission])
        self.truth.committed = {"p.1", "p.4", "p.6", "p.7", "p.10", "p.11", "p.12"}
        self.truth.flushed = {"p.3"}
        everything = self.session(0, at(50), [(0, ">")])
        everything.frames = [self.message(3, at(100)), *self.first(), Progress(end(300)), *self.second(),
                             self.message(9, at(500)), *self.third(1, 2, 3)]
        orders = [self.session(i + 1, position, [(0, "orders.>")], stored=i > 0)
                  for i, position in enumerate((at(50), at(200, 1), end(400)))]
        orders[0].frames = self.first()
        orders[1].frames = [self.begin(200, resumed=True), *self.first()[2:], *self.second()[:1], *self.second()[2:]]
        orders[1].redelivered_to = at(399)
        orders[1].acked = end(400)
        orders[2].frames = [Progress(at(550)), *self.third(1, 3)]
        orders[2].redelivered_to = at(450)
        self.histories = {"all": [everything], "orders": orders}

    def session(self, time, position, filters, stored=False, identity=SYSTEM, **more):
        return Session(float(time), identity, position, filters, stored=stored, **more)

    def message(self, number, position, lsn=None, received=0):
        emission = self.truth.emissions[f"p.{number}"]
        transaction = (900, position.lsn) if emission.transactional else (0, 0)
        lsn = (position.lsn - 20 + number if emission.transactional else position.lsn) if lsn is None else lsn
        return Message(position, lsn, *transaction, received or position.lsn, emission.prefix, emission.transactional,
                       emission.id)

    def begin(self, lsn, resumed=False):
        return Begin(1, lsn, lsn, 900, resumed)

    def commit(self, lsn, messages, incomplete=False):
        return Commit(1, lsn, lsn, 900, lsn + 30, messages, incomplete)

    def first(self):
        return [self.begin(200), self.message(1, at(200, 1)), self.message(4, at(200, 2)), self.commit(200, 2)]

    def second(self):
        return [self.begin(400), self.message(6, at(400, 1)), self.message(7, at(400, 2)), self.commit(400, 2)]

    def third(self, *indexes):
        return [self.begin(600), *(self.message(9 + i, at(600, i)) for i in indexes), self.commit(600, 3)]

    # ---- what the changes below are made with

    @property
    def all(self):
        return self.histories["all"][0]

    @property
    def orders(self):
        return self.histories["orders"]

    def drop(self, session, message_id):
        before = len(session.frames)
        session.frames = [f for f in session.frames if getattr(f, "id", None) != message_id]
        assert len(session.frames) == before - 1

    def change(self, session, message_id, **fields):
        for i, frame in enumerate(session.frames):
            if getattr(frame, "id", None) == message_id:
                session.frames[i] = frame._replace(**fields)
                return
        raise AssertionError(message_id)

    def findings(self):
        return check(self.truth, self.histories, self.errors)


def test_a_history_that_is_right():
    assert Story().findings() == []


def test_a_cursor_that_was_passed_over_into_a_transaction():
    """Nothing that it was sent lies in that transaction: it is not resumed."""
    s = Story()
    s.orders[1].exclude = [(1, "orders.e")]
    s.orders[2].position = at(600, 1)
    s.orders[2].filters = [(0, "stock.>")]
    s.orders[2].frames = s.third(2)
    assert s.findings() == []


CHANGES = []


def finds(pattern):
    def register(change):
        CHANGES.append(pytest.param(change, pattern, id=change.__name__))
        return change
    return register


@finds(r"^all: 1 are missing .* 1 of them came to it never: p\.7 at 1:0/190:2")
def one_lost(s):
    s.drop(s.all, "p.7")


@finds(r"^all: something is missing before 1:0/258:2, p\.11")
def one_lost_leaves_a_hole_in_the_indexes(s):
    s.drop(s.all, "p.10")


@finds(r"^orders: 1 are missing in the session from 1:0/190:\d+ .*: p\.12 ")
def one_lost_with_filters(s):
    s.drop(s.orders[2], "p.12")


@finds(r"^all: 1 are missing .*: p\.3 at ")
def one_lost_that_is_not_transactional(s):
    s.drop(s.all, "p.3")
    other = s.session(1, at(50), [(0, "audit")])
    other.frames = [s.message(3, at(100)), s.message(9, at(500))]
    s.histories["audit"] = [other]


@finds(r"^all: 1 came to nobody: p\.3")
def one_that_was_flushed_came_to_nobody(s):
    s.drop(s.all, "p.3")


@finds(r"^all: 1 came to nobody: p\.13")
def one_committed_came_to_nobody(s):
    s.truth.add([Emission("p.13", "orders.z", True, "p", 5, 13)])
    s.truth.committed.add("p.13")


@finds(r"^orders: 1 are missing in the session from 1:0/C8:1 .* all of them came to it in another session: p\.4 ")
def one_not_acknowledged_did_not_come_again(s):
    s.drop(s.orders[1], "p.4")


@finds(r"^orders: 2 are missing .* 2 of them came to it never: p\.10 at .*, p\.12 at ")
def the_cursor_moved_over_what_matches(s):
    last = s.session(4, end(600), [(0, "orders.>")], stored=True)
    s.orders[2].frames = []
    s.orders.append(last)


@finds(r"^orders: 1 are missing in the session from 1:0/190:")
def passed_over_under_the_filters_of_then(s):
    """New filters do not excuse the old ones."""
    s.orders[2].filters = [(0, "orders.>"), (0, "stock.>")]
    s.orders.append(s.session(4, end(600), [(0, "nothing")], stored=True))


@finds(r"^all: the position 1:0/258:1 of p\.10 does not rise")
def one_doubled_in_a_session(s):
    i = [getattr(f, "id", None) for f in s.all.frames].index("p.10")
    s.all.frames.insert(i, s.all.frames[i])


@finds(r"^orders: 1 came again, not flagged as redelivered \(up to 1:0/96:0\): p\.4 at ")
def one_doubled_without_the_flag(s):
    s.orders[1].redelivered_to = at(150)


@finds(r"^orders: 1 came again, not flagged as redelivered \(up to None\): p\.4 at ")
def one_doubled_and_nothing_is_flagged(s):
    s.orders[1].redelivered_to = None


@finds(r"^orders: p\.4 at 1:0/1F4:0 came at 1:0/C8:2 before; what differs is position")
def one_doubled_at_another_place(s):
    s.orders[1].frames.append(s.message(4, at(500)))


@finds(r"^all: the position 1:0/C8:1 of p\.1 does not rise from 1:0/C8:2")
def two_in_the_wrong_order(s):
    frames = s.all.frames
    i = [getattr(f, "id", None) for f in frames].index("p.1")
    frames[i], frames[i + 1] = frames[i + 1], frames[i]


def swap(s, first, second):
    """Their contents stand in each other's place."""
    for sessions in s.histories.values():
        for session in sessions:
            for i, frame in enumerate(session.frames):
                other = {first: second, second: first}.get(getattr(frame, "id", None))
                if other is not None:
                    emission = s.truth.emissions[other]
                    session.frames[i] = frame._replace(id=other, prefix=emission.prefix)


@finds(r"^journal 7/1: p\.1 at 1:0/C8:2 was published before p\.4 at 1:0/C8:1")
def two_in_the_wrong_order_for_everybody(s):
    swap(s, "p.1", "p.4")


@finds(r"^journal 7/1: p\.1 at .* is of a transaction that stands at ")
def two_transactions_mixed(s):
    swap(s, "p.1", "p.10")


@finds(r"^journal 7/1: p\.4 has the index 3 and is number 2 of its transaction")
def an_index_that_counts_the_savepoint(s):
    for session in (s.all, s.orders[0], s.orders[1]):
        s.change(session, "p.4", position=at(200, 3))


@finds(r"^all: p\.5 at 1:0/12C:1 was rolled back")
def one_of_a_rolled_back_transaction(s):
    i = s.all.frames.index(Progress(end(300)))
    s.all.frames[i:i + 1] = [s.begin(300), s.message(5, at(300, 1)), s.commit(300, 1)]


@finds(r"^all: p\.2 at 1:0/C8:2 was rolled back")
def one_of_a_rolled_back_savepoint(s):
    i = [getattr(f, "id", None) for f in s.all.frames].index("p.4")
    s.all.frames[i] = s.message(2, at(200, 2))


@finds(r"^orders: p\.6, 'stock\.x', does not match its filters")
def one_that_does_not_match(s):
    s.orders[1].frames.insert(4, s.message(6, at(400, 1)))


@finds(r"^all: p\.9 at .*: 5 bytes that are not its own")
def one_with_another_content(s):
    s.change(s.all, "p.9", fault="5 bytes that are not its own: b'p.9'")


@finds(r"^all: x\.1 at 1:0/1F4:0 was never emitted")
def one_that_nobody_emitted(s):
    s.change(s.all, "p.9", id="x.1")


@finds(r"^all: p\.9 came as 'other', transactional False, and was emitted as 'audit', False")
def one_with_another_prefix(s):
    s.change(s.all, "p.9", prefix="other")


@finds(r"^orders: p\.4 at .* came at .* before; what differs is xid, commit_time")
def one_that_came_again_is_different(s):
    s.orders[1].frames = [f._replace(xid=901, time=201) if isinstance(f, (Begin, Commit)) and f.lsn == 200 else
                          f._replace(xid=901, commit_time=201) if getattr(f, "id", None) == "p.4" else f
                          for f in s.orders[1].frames]


@finds(r"^orders: BEGIN of 1:0/C8:0 is not flagged resumed behind 1:0/C8:1")
def a_transaction_resumed_without_the_flag(s):
    s.orders[1].frames[0] = s.begin(200)


@finds(r"^all: BEGIN of 1:0/258:0 is flagged resumed")
def a_transaction_begun_with_the_flag(s):
    s.all.frames = [s.begin(600, resumed=True) if f == s.begin(600) else f for f in s.all.frames]


@finds(r"^all: BEGIN of 1:0/190:0 inside the transaction of 1:0/C8:0")
def a_transaction_without_its_end(s):
    s.all.frames.remove(s.commit(200, 2))
    s.all.frames.remove(Progress(end(300)))


@finds(r"^all: p\.1 is outside BEGIN and COMMIT")
def a_transaction_without_its_begin(s):
    s.all.frames.remove(s.begin(200))


@finds(r"^all: COMMIT of 1:0/C8:\d+ counts 3 messages behind 1:0/C8:2")
def a_commit_that_counts_otherwise(s):
    s.all.frames = [s.commit(200, 3) if f == s.commit(200, 2) else f for f in s.all.frames]


@finds(r"^all: COMMIT of .* is flagged incomplete")
def a_commit_that_is_incomplete(s):
    s.all.frames = [s.commit(200, 2, incomplete=True) if f == s.commit(200, 2) else f for f in s.all.frames]


@finds(r"^orders: COMMIT of .*, of which nothing matched")
def a_transaction_of_nothing(s):
    s.orders[2].frames += [s.begin(700), s.commit(700, 1)]


@finds(r"^all: p\.9 is not transactional, and inside BEGIN and COMMIT")
def one_alone_inside_a_transaction(s):
    frame = s.message(9, at(500))
    s.all.frames.remove(frame)
    s.all.frames.insert(s.all.frames.index(s.begin(600)) + 1, frame)


@finds(r"^all: PROGRESS to 1:0/12C:\d+ inside the transaction")
def progress_inside_a_transaction(s):
    s.all.frames.remove(Progress(end(300)))
    s.all.frames.insert(s.all.frames.index(s.begin(400)) + 1, Progress(end(300)))


@finds(r"^all: PROGRESS to 1:0/64:0 behind ")
def progress_that_falls(s):
    s.all.frames[s.all.frames.index(Progress(end(300)))] = Progress(at(100))


@finds(r"^all: the received time of p\.9 is below")
def a_received_time_that_falls(s):
    s.change(s.all, "p.9", received_time=1)


@finds(r"^all: a gap from 1:0/1F5:0 to 1:0/1F6:0, 'why', where nothing may be missing")
def a_gap(s):
    s.all.frames.insert(s.all.frames.index(s.begin(600)), Gap(at(501), at(502), 0, 0, "why"))


@finds(r"^orders: began at 1:0/15E:0, although 1:0/190:\d+ was acknowledged and kept")
def a_confirmed_acknowledgement_that_was_lost(s):
    s.orders[2].position = at(350)


@finds(r"^orders: began at 1:0/15E:0, although 1:0/190:\d+ was acknowledged and kept")
def an_acknowledgement_that_a_clean_stop_lost(s):
    s.orders[1].acked = None
    s.orders[1].left = (10.0, end(400))
    s.truth.clean_stops = [(9.5, 10.5)]
    s.orders[2].position = at(350)


@finds(r"^orders: began at .*, and not where the name's cursor was")
def a_cursor_that_was_forgotten(s):
    s.orders[1].stored = False


@finds(r"^orders: the router said 'too-slow'")
def an_error_that_may_not_be(s):
    s.errors = {"orders": ["held", "too-slow"], "all": ["stopping"]}


@finds(r"^orders: the router said 'journal'")
def a_journal_that_cannot_be_read(s):
    s.errors = {"orders": ["journal"]}


@pytest.mark.parametrize("change,pattern", CHANGES)
def test_a_history_that_is_wrong(change, pattern):
    story = Story()
    change(story)
    findings = story.findings()
    assert [f for f in findings if re.search(pattern, f)], findings


# ---- what is right although it looks otherwise

def test_an_acknowledgement_without_confirmation_may_be_lost():
    s = Story()
    s.orders[1].acked = None
    s.orders[1].left = (10.0, end(400))
    s.truth.clean_stops = [(2.0, 3.0)]  # another one
    s.orders[2].position = at(400, 1)
    s.orders[2].frames[:0] = [s.begin(400), *s.second()[2:]]  # it was passed over p.6, and all that it is to have comes again
    assert s.findings() == []
    s.orders[2].frames[0] = s.begin(400, resumed=True)
    assert [f for f in s.findings() if "is flagged resumed" in f]


def test_filters_that_change_apply_from_the_cursor_on():
    """What the old ones passed over does not come, and what was not acknowledged comes if the new ones want it."""
    s = Story()
    s.orders[2].filters = [(0, "stock.>")]
    s.orders[2].frames = [*s.third(2)]
    assert s.findings() == []
    s.orders[2].frames = []
    assert [f for f in s.findings() if "p.11" in f]


def test_a_failover_that_cut_a_transaction():
    """What the old server alone had may have come, in part; what the new one has must come."""
    s = Story()
    s.truth.committed -= {"p.10", "p.11", "p.12"}
    s.truth.lost = {"p.10", "p.11", "p.12"}
    s.all.frames[-3:] = [Gap(at(600, 2), end(600), 1, 1, "never finished")]
    assert [f for f in s.findings() if "a gap from" in f]
    s.truth.unfinished_gaps = True
    assert s.findings() == []
    s.all.frames[-1] = Gap(at(600, 2), end(700), 1, 1, "more than that")
    assert [f for f in s.findings() if "a gap from" in f]


def test_a_failover_behind_which_a_prepared_transaction_is_committed_again():
    """On the old server it was committed as well, which the new one had not heard of."""
    s = Story()
    s.truth.lost = {"p.10", "p.11", "p.12"}
    again = [f._replace(timeline=2) if isinstance(f, (Begin, Commit)) else
             f._replace(position=f.position._replace(timeline=2)) for f in s.third(1, 2, 3)]
    s.all.frames += again
    s.orders[2].frames += [again[0], again[1], again[3], again[4]]
    assert s.findings() == []
    between = Emission("p.13", "audit", False, "p", None, 13)  # by the same session, before it is committed again
    between.order = 50
    s.truth.add([between])
    s.all.frames.insert(s.all.frames.index(again[0]), s.message(13, at(650), received=600))
    assert s.findings() == []
    between.order = 1
    assert [f for f in s.findings() if "p.13 at 1:0/28A:0 was published before p.9" in f]
    between.order = 50
    s.orders[2].frames.remove(again[3])
    assert [f for f in s.findings() if "p.12" in f and f.startswith("orders: ")]
    s.orders[2].frames.insert(-1, again[3])
    s.truth.lost = set()
    assert [f for f in s.findings() if "p.10" in f]


def restored():
    """The copy had p.1 to p.9; `orders` had come to 400 when the server was replaced. p.13 is of the new era."""
    s = Story()
    s.truth.lost = {"p.10", "p.11", "p.12"}
    s.truth.committed -= s.truth.lost
    s.truth.copied = {"p.1", "p.4", "p.6", "p.7", "p.3", "p.8", "p.9"}
    s.truth.flushed = set()
    s.truth.accepted_gaps = True
    s.truth.add([Emission("p.13", "orders.z", True, "p", 5, 13)])
    s.truth.committed.add("p.13")
    s.orders.pop()
    again = [s.begin(600), s.message(13, at(600, 1)), s.commit(600, 1)]
    for sessions, filters in ((s.histories["all"], ">"), (s.orders, "orders.>")):
        new = s.session(9, at(300), [(0, filters)], identity=ERA2, stored=True)
        new.frames = [Gap(at(301), at(350), 2**64 - 1, 2**64 - 1, "accepted"),
                      *(s.second() if filters == ">" else s.second()[:1] + s.second()[2:]), *again]
        sessions.append(new)
    return s


def test_a_restored_server():
    assert restored().findings() == []


def test_a_restored_server_whose_gap_is_not_told():
    s = restored()
    s.orders[-1].frames.pop(0)
    assert [f for f in s.findings() if f.startswith("orders: was not told the gap")]


def test_a_restored_server_whose_new_message_is_lost():
    s = restored()
    s.drop(s.orders[-1], "p.13")
    assert [f for f in s.findings() if "p.13" in f and f.startswith("orders: ")]
    s = restored()
    for session in (s.orders[-1], s.all, s.histories["all"][-1]):
        session.frames = [f for f in session.frames if getattr(f, "id", None) != "p.13"]
    assert [f for f in s.findings() if f.startswith("all: 1 came to nobody: p.13")]


def test_a_restored_server_that_repeats_what_it_never_had():
    s = restored()
    s.truth.copied.discard("p.7")
    assert [f for f in s.findings() if "of another era came again" in f and "p.7" in f]


def test_a_hole_before_a_restore():
    """Only the end of an era may be swallowed."""
    s = restored()
    s.drop(s.orders[0], "p.4")
    s.drop(s.orders[1], "p.4")
    assert [f for f in s.findings() if "p.4" in f and f.startswith("orders: ")]


# ---- what is kept back

class Guarded(Story):
    """signed.> must be signed. Of the transaction at 600, p.10, p.13, p.11, p.14, p.15, p.12, those at 2, 4 and 5 are not
    as they should be, p.16 alone at 700 neither; p.17 alone at 800 is. Of the transaction at 900 all is kept back; p.19 is
    of one that was rolled back."""

    INDEXES = {10: 1, 13: 2, 11: 3, 14: 4, 15: 5, 12: 6}  # at 600

    def __init__(self):
        super().__init__()
        forms = [(13, 600, 2, signed.UNKNOWN), (14, 600, 4, None), (15, 600, 5, signed.ALTERED), (16, 700, 0, signed.MOVED),
                 (17, 800, 0, signed.VALID), (18, 900, 1, signed.OTHERS), (19, None, 0, None)]
        unit = self.truth.emissions["p.10"].unit
        order = self.truth.emissions["p.10"].order
        for number, lsn, index, form in forms:
            of = unit if lsn == 600 else {900: 18, None: 19}.get(lsn)
            emission = Emission(f"p.{number}", "signed.a", of is not None, "p", of, number, form=form,
                                withheld=form != signed.VALID)
            emission.order = order if lsn == 600 else 50 + number
            self.truth.add([emission])
            if emission.transactional and lsn is not None:
                self.truth.committed.add(emission.id)
            elif lsn is not None:
                self.truth.flushed.add(emission.id)
        for number, index in self.INDEXES.items():
            self.truth.emissions[f"p.{number}"].number = 19 + index
        self.entries = [self.entry(i + 1, number, at(lsn, index)) for i, (number, lsn, index, form) in enumerate(forms)
                        if lsn is not None and form != signed.VALID]
        self.all.frames[-5:] = [*self.longer(10, 11, 12), self.message(17, at(800))]
        self.orders[2].frames[1:] = self.longer(10, 12)

    def longer(self, *numbers):
        return [self.begin(600), *(self.message(n, at(600, self.INDEXES[n])) for n in numbers), self.commit(600, 6)]

    def entry(self, number, of, position):
        emission = self.truth.emissions[f"p.{of}"]
        return Entry(SYSTEM, number, position, emission.prefix, emission.transactional, emission.id,
                     signed.STATUS[emission.form])

    def find(self, message_id):
        return [e.id for e in self.entries].index(message_id)

    def replace(self, message_id, **fields):
        i = self.find(message_id)
        self.entries[i] = self.entries[i]._replace(**fields)

    def deliver(self, number, position, behind):
        """Gives it to whoever has everything."""
        i = [getattr(f, "id", None) for f in self.all.frames].index(behind)
        self.all.frames.insert(i + 1, self.message(number, position))

    def findings(self):
        return check(self.truth, self.histories, quarantine=self.entries)


KEPT = []


def kept(pattern):
    def register(change):
        KEPT.append(pytest.param(change, pattern, id=change.__name__))
        return change
    return register


@kept(r"^all: p\.13 at 1:0/258:2 came, and is unknown-key")
def one_kept_back_is_delivered(s):
    s.deliver(13, at(600, 2), "p.10")


@kept(r"^all: p\.16 at 1:0/2BC:0 came, and is bad-signature")
def one_kept_back_is_delivered_instead(s):
    s.entries.pop(s.find("p.16"))
    i = s.all.frames.index(s.commit(600, 6))
    s.all.frames.insert(i + 1, s.message(16, at(700)))


@kept(r"^quarantine: p\.13 at 1:0/258:2 came to subscribers too, at 1:0/258:2")
def one_both_delivered_and_kept_back(s):
    s.deliver(13, at(600, 2), "p.10")


@kept(r"^quarantine: p\.17 at 1:0/320:0 came to subscribers too, at 1:0/320:0")
def a_valid_one_both_delivered_and_kept_back(s):
    s.entries.insert(4, s.entry(9, 17, at(800)))


@kept(r"^quarantine: p\.17 at 1:0/320:0 stands there, and should have come: it is valid")
def a_valid_one_kept_back(s):
    s.drop(s.all, "p.17")
    s.entries.insert(4, s.entry(9, 17, at(800)))


@kept(r"^all: 1 came to nobody: p\.17")
def a_valid_one_missing(s):
    s.drop(s.all, "p.17")


@kept(r"^all: 1 came to nobody: p\.17")
def a_valid_one_kept_back_is_missing_to_subscribers(s):
    a_valid_one_kept_back(s)


@kept(r"^quarantine: 1 neither came nor stand there: p\.14")
def one_neither_delivered_nor_kept_back(s):
    s.entries.pop(s.find("p.14"))


@kept(r"^all: something is missing before 1:0/258:6, p\.12")
def one_neither_delivered_nor_kept_back_leaves_a_hole(s):
    s.entries.pop(s.find("p.14"))


@kept(r"^quarantine: 1 neither came nor stand there: p\.18")
def one_of_a_transaction_of_which_nothing_comes(s):
    s.entries.pop(s.find("p.18"))


@kept(r"^quarantine: 1 neither came nor stand there: p\.16")
def one_alone_neither_delivered_nor_kept_back(s):
    s.entries.pop(s.find("p.16"))


@kept(r"^quarantine: p\.14 at 1:0/258:4 stands there twice, as 2 and 9")
def one_kept_back_twice(s):
    s.entries.append(s.entries[s.find("p.14")]._replace(number=9))


@kept(r"^quarantine: p\.16 at 1:0/2BD:0 stands at 1:0/2BC:0 too")
def one_kept_back_twice_at_other_places(s):
    s.entries.insert(4, s.entry(9, 16, at(701)))


@kept(r"^quarantine: p\.14 at 1:0/258:4 stands behind 1:0/258:5")
def two_kept_back_in_the_wrong_order(s):
    i = s.find("p.14")
    s.entries[i], s.entries[i + 1] = s.entries[i + 1], s.entries[i]


@kept(r"^quarantine: p\.16 at 1:0/320:0 stands where p\.17 came to subscribers")
def one_kept_back_at_the_place_of_another(s):
    s.replace("p.16", position=at(800))


@kept(r"^journal 7/1: p\.14 has the index 5 and is number 4 of its transaction")
def one_kept_back_with_a_wrong_index(s):
    s.entries.pop(s.find("p.15"))
    s.replace("p.14", position=at(600, 5))


@kept(r"^quarantine: p\.13 at 1:0/258:2 stands there as unsigned, and is unknown-key")
def one_kept_back_for_another_reason(s):
    s.replace("p.13", status="unsigned")


@kept(r"^quarantine: p\.13 at 1:0/258:2: 5 bytes that are not its own")
def one_kept_back_with_another_content(s):
    s.replace("p.13", fault="5 bytes that are not its own")


@kept(r"^quarantine: p\.13 at 1:0/258:2 stands there as 'signed\.b', transactional True, and was emitted as 'signed\.a'")
def one_kept_back_with_another_prefix(s):
    s.replace("p.13", prefix="signed.b")


@kept(r"^quarantine: p\.19 at 1:0/384:2 was rolled back")
def one_rolled_back_is_kept_back(s):
    s.entries.append(s.entry(9, 19, at(900, 2)))


@kept(r"^quarantine: x\.1 at 1:0/2BC:0 was never emitted")
def one_kept_back_that_nobody_emitted(s):
    s.replace("p.16", id="x.1")


@kept(r"^all: COMMIT of 1:0/258:\d+ counts 7 messages behind 1:0/258:6")
def a_commit_that_counts_one_that_stands_nowhere(s):
    s.all.frames = [s.commit(600, 7) if f == s.commit(600, 6) else f for f in s.all.frames]


def test_what_is_kept_back():
    assert Guarded().findings() == []


@pytest.mark.parametrize("change,pattern", KEPT)
def test_what_is_kept_back_is_wrong(change, pattern):
    s = Guarded()
    change(s)
    assert [f for f in s.findings() if re.search(pattern, f)], s.findings()


def test_what_is_kept_back_may_stand_at_the_end_of_a_transaction():
    s = Guarded()
    s.truth.add([Emission("p.20", "signed.a", True, "p", s.truth.emissions["p.10"].unit, 26, withheld=True)])
    s.truth.committed.add("p.20")
    s.entries.insert(3, s.entry(9, 20, at(600, 7)))
    assert [f for f in s.findings() if "counts 6 messages" in f]
    a_commit_that_counts_one_that_stands_nowhere(s)
    s.orders[2].frames = [s.commit(600, 7) if f == s.commit(600, 6) else f for f in s.orders[2].frames]
    assert s.findings() == []


def test_what_is_kept_back_in_two_eras():
    """What the restored copy had may stand there in the era before, in both, or in the new one; what is new, in that."""
    s = restored()
    for name, lsn in (("p.20", 380), ("p.21", 700)):
        emission = Emission(name, "signed.a", True, "p", int(name[2:]), int(name[2:]), withheld=True)
        s.truth.add([emission])
        s.truth.committed.add(name)
    s.truth.copied.add("p.20")
    old = Entry(SYSTEM, 1, at(380, 1), "signed.a", True, "p.20", "unsigned")
    new = Entry(ERA2, 2, at(700, 1), "signed.a", True, "p.21", "unsigned")

    def findings(*entries):
        return check(s.truth, s.histories, quarantine=entries)
    assert findings(old, new) == findings(old, old._replace(identity=ERA2, number=2), new._replace(number=3)) == []
    assert findings(old._replace(identity=ERA2), new) == []
    assert findings(new) == ["quarantine: 1 neither came nor stand there: p.20"]
    assert findings(old, new._replace(identity=SYSTEM)) == ["quarantine: 1 neither came nor stand there: p.21"]


@pytest.mark.parametrize("form", [form for form in signed.STATUS if form is not None])
def test_contents_that_are_signed(form):
    prefix = signed.PREFIXES[0]
    content = signed.signed_content("p.1", content_of("p.1", 3), form, prefix)
    assert id_of(content, prefix.encode()) == ("p.1", None)
    if form != signed.EVENT:
        assert id_of(content, b"signed.else")[1] is not None
    for at_byte in range(len(content)):
        broken = content[:at_byte] + bytes([content[at_byte] ^ 2]) + content[at_byte + 1:]
        assert id_of(broken, prefix.encode())[1] is not None
    assert id_of(content[:-1], prefix.encode())[1] is not None


# ---- the exactly-once call

class Applied(Story):
    """The same publisher; orders.> and audit take effect, and `once` has nothing but rows."""

    def __init__(self):
        super().__init__()
        self.filters = self.session(0, at(0), [(0, "orders.>"), (1, "audit")])
        self.rows = [self.row(m) for m in self.all.messages if m.prefix == "audit" or m.prefix.startswith("orders.")]
        self.gaps = []

    def row(self, message, **fields):
        content = content_of(message.id, 3)
        return Effect(message.id, message.prefix, len(content), hashlib.md5(content).hexdigest(), SYSTEM,
                      message.position)._replace(**fields)

    def change(self, i, **fields):  # pylint: disable=arguments-differ
        self.rows[i] = self.rows[i]._replace(**fields)

    def findings(self):
        return check(self.truth, self.histories, effects=(self.rows, self.gaps, self.filters))


def doubled(s):
    s.rows.insert(2, s.rows[1])


def doubled_at_another_place(s):
    s.rows.append(s.rows[1]._replace(position=at(900)))


def swapped(s):
    s.rows[1], s.rows[2] = s.rows[2], s.rows[1]


def lost(s):
    s.rows.pop(3)


def rolled_back(s):
    s.rows[3:3] = [s.row(s.message(5, at(300, 1)))]


def not_wanted(s):
    s.rows[3:3] = [s.row(s.message(6, at(400, 1)))]


def not_its_content(s):
    s.change(1, md5="0" * 32)


def not_its_size(s):
    s.change(1, size=5)


def unknown(s):
    s.change(1, id="x.1")


def elsewhere(s):
    s.change(len(s.rows) - 1, position=at(601, 1))


def gaps_told(s):
    s.gaps = ["why"]


def no_gap_told(s):
    s.truth.accepted_gaps = True


@pytest.mark.parametrize("change,text", [
    (doubled, "p.1 at 1:0/C8:1 took effect twice"), (doubled_at_another_place, "took effect twice"),
    (swapped, "took effect behind"), (lost, "1 are missing: p.7"), (rolled_back, "p.5 at 1:0/12C:1 was rolled back"),
    (not_wanted, "p.6 came as 'stock.x'"), (not_its_content, "not its own"), (not_its_size, "not its own"),
    (unknown, "x.1 at 1:0/C8:1 was never emitted"), (elsewhere, "came at 1:0/258:3 to others"),
    (gaps_told, "gaps where nothing may be missing"), (no_gap_told, "was not told the gap")],
    ids=lambda value: getattr(value, "__name__", ""))
def test_effects_that_are_wrong(change, text):
    s = Applied()
    assert s.findings() == []
    change(s)
    assert [f for f in s.findings() if f.startswith("once: ") and text in f], s.findings()


# ---- its parts

def test_patterns():
    for pattern, prefix, expected in (
            (">", "", True), (">", "a.b", True), ("a.>", "a", False), ("a.>", "a.b.c", True), ("a.*", "a.b", True),
            ("a.*", "a.b.c", False), ("*.b", "a.b", True), ("a", "a", True), ("a", "a.b", False), ("a.b", "a", False),
            ("*", "", True), (">.a", "b.a", False), ("a.", "a.", True)):
        assert pattern_matches(pattern, prefix) is expected, (pattern, prefix)


def test_contents():
    for fill in (0, 3):
        content = content_of("p.1", fill)
        assert id_of(content) == ("p.1", None)
        for broken in (content[:-1], content + b"x", content.replace(b"p.1", b"p.2"), b"", b"p.1"):
            assert id_of(broken) != ("p.1", None)
    for fill in (0, 1, 9, 10, 99, 100, 5000):
        content = content_of("p.1", fill)
        assert is_content("p.1", len(content), hashlib.md5(content).hexdigest())
        assert not is_content("p.2", len(content), hashlib.md5(content).hexdigest())
    assert parse_position("2:1/A:3") == Position(2, 1 << 32 | 10, 3)
    assert as_text(as_bytes_come("wörld")) == "wörld"


def test_a_recorders_file(tmp_path):
    path = tmp_path / "record"
    reader = history.Reader(str(path))
    assert reader.read().sessions == []
    subscribed = {"identity": SYSTEM, "timeline": 1, "position": [1, 50, 0], "stored": True, "redelivered_to": None,
                  "filters": [[0, ">"]], "exclude": []}
    lines = [["E", "held", "…"], ["S", 1.5, subscribed], ["B", 1, 200, 7, 9, False],
             ["M", [1, 200, 1], 190, 9, 7, 8, "a", True, "p.1", None], ["C", 1, 200, 7, 9, 230, 1, False],
             ["A", [1, 200, INDEX_END]], ["K", [1, 200, INDEX_END]], ["P", [1, 300, 0]],
             ["G", [1, 301, 0], [1, 302, 0], 1, 2, "why"], ["L", 2.5, [1, 302, 0]], ["X", 3.5, "Closed"]]
    import json
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text[:-5])
    sessions = reader.read().sessions
    assert len(sessions) == 1 and sessions[0].ended is None and reader.errors == ["held"] and reader.ids == {"p.1"}
    path.write_text(text)
    session, = reader.read().sessions
    assert session.frames == [Begin(1, 200, 7, 9, False), Message(at(200, 1), 190, 9, 7, 8, "a", True, "p.1"),
                              Commit(1, 200, 7, 9, 230, 1, False), Progress(at(300)), Gap(at(301), at(302), 1, 2, "why")]
    assert session.position == at(50) and session.filters == [(0, ">")] and session.reach == at(302)
    assert (session.acked, session.left, session.ended) == (end(200), (2.5, at(302)), "Closed")
