# SPDX-License-Identifier: PostgreSQL
"""Compares what durable subscribers got with what was committed. Pure: histories and truth in, findings out.

What is due. Of one name, session i began at the position p(i) with the filters F(i), and the next one at p(i+1). What lies
in (p(i), p(i+1)] is session i's alone: its subscriber has acknowledged it, or the router has passed it over because it does
not match F(i). So everything there that matches F(i) must have come in session i, and also whatever else up to the last
place that session i was told of. Of the last session p(i+1) is the end. It does not matter which filters came later: what
the old ones passed over does not come, and what was not acknowledged comes under the new ones, once more.

The place of a message is what all subscribers together were told; a message that came to nobody is due to whoever wanted
it all the time.

Policy. What the router has to keep back comes to nobody, and its place is in quarantine instead, once: a subscriber of
everything misses no index but those of what stands there.

Eras. An accepted gap onto an older state of the server begins a new identity, in which positions mean something else. There
everything is judged within one identity; of those before the last, up to the place that the subscriber had come to.
"""

import collections

from harness.subscriber import INDEX_END, Position

from .history import Begin, Commit, Gap, Message, Progress
from .signed import STATUS
from .truth import is_content

# A finding names so many of its messages.
SHOWN = 12
# What a router may say to a subscriber that does everything right.
USUAL_ERRORS = {"stopping", "held", "taken-over"}
# The recorder's clock is read just before or after what it notes.
CLOCK_SLACK = 0.05


def pattern_matches(pattern, prefix):
    pattern, prefix = pattern.split("."), prefix.split(".")
    for i, token in enumerate(pattern):
        if token == ">" and i == len(pattern) - 1:
            return len(prefix) > i
        if i >= len(prefix) or token not in ("*", prefix[i]):
            return False
    return len(pattern) == len(prefix)


# By the numbers of the protocol.
KINDS = {0: pattern_matches, 1: lambda text, prefix: text == prefix, 2: lambda text, prefix: prefix.startswith(text)}


def wants(session, prefix):
    def any_of(filters):
        return any(KINDS[kind](text, prefix) for kind, text in filters)
    return any_of(session.filters) and not any_of(session.exclude)


def wants_everything(session):
    return session.filters == [(0, ">")] and not session.exclude


def some(items):
    items = list(items)
    rest = f" … and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(str(item) for item in items[:SHOWN]) + rest


def start_of(begin):
    return Position(begin.timeline, begin.lsn, 0)


class Findings(list):
    def add(self, name, session, text):
        where = f" ({session.where})" if session is not None and session.where else ""
        self.append(f"{name}: {text}{where}")


def check(truth, histories, errors=(), effects=None, quarantine=()):
    """histories: {durable name: its sessions, by time}. errors: {durable name: codes of ERROR frames}. effects: (rows,
    reasons of gaps, a session with the filters) of the subscriber that uses the exactly-once call. quarantine: its
    entries at the end, none of which was ever dropped, in their order. What is wrong, a sentence each."""
    findings = Findings()
    kept = collections.defaultdict(dict)  # identity: {position: Entry}
    for entry in quarantine:
        kept[entry.identity].setdefault(entry.position, entry)
    for name, sessions in histories.items():
        parts = {}  # transaction: the first that it has had of it
        for session in sessions:
            _Stream(findings, truth, name, session, parts, kept[session.identity]).check()
            for message in session.messages:
                if message.transactional:
                    transaction = (session.identity, message.position[:2])
                    parts[transaction] = min(message.position, parts.get(transaction, message.position))
    places = _places(findings, truth, histories)
    last = _last_identity(histories)
    _check_quarantine(findings, truth, quarantine, places, last)
    for identity in places.keys() | kept.keys():
        _check_order(findings, truth, identity,
                     {**{entry.id: entry for entry in kept[identity].values()}, **places.get(identity, {})})
    for name, sessions in histories.items():
        _check_again(findings, truth, name, sessions)
        _check_cursor(findings, truth, name, sessions)
        _check_complete(findings, truth, name, sessions, places, last)
    if effects is not None:
        _check_effects(findings, truth, *effects, places, last)
    for name, codes in dict(errors).items():
        usual = USUAL_ERRORS | ({"source"} if truth.accepted_gaps else set()) | ({"journal"} if truth.failing_reads else set())
        for code in sorted(set(codes) - usual):
            findings.add(name, None, f"the router said {code!r}")
    return findings


class _Stream:
    """What holds for the frames of one session."""

    def __init__(self, findings, truth, name, session, parts, kept):
        self.findings = findings
        self.truth = truth
        self.name = name
        self.session = session
        self.parts = parts
        self.kept = kept  # positions that are in quarantine
        self.last = session.position
        self.begin = None
        self.count = 0  # messages of the transaction that came here
        self.gap_inside = False
        self.received_time = 0
        self.everything = wants_everything(session)

    def found(self, text):
        self.findings.add(self.name, self.session, text)

    def check(self):
        for frame in self.session.frames:
            {Begin: self.on_begin, Message: self.on_message, Commit: self.on_commit, Progress: self.on_progress,
             Gap: self.on_gap}[type(frame)](frame)

    def rise(self, position, what):
        if not position > self.last:
            self.found(f"the position {position} of {what} does not rise from {self.last}")
        self.last = position

    def index_behind(self, index):
        """The last one that is in quarantine, right behind that one of the transaction; else that one."""
        while Position(*self.begin[:2], index + 1) in self.kept:
            index += 1
        return index

    def on_begin(self, begin):
        if self.begin is not None:
            self.found(f"BEGIN of {start_of(begin)} inside the transaction of {start_of(self.begin)}")
        # A cursor that was passed over what does not match can lie inside a transaction of which nothing was delivered up to
        # there; what was, behind it, was not acknowledged, and comes again.
        had = self.parts.get((self.session.identity, begin[:2]), begin.end) <= self.session.position
        inside = self.last == self.session.position and self.last[:2] == begin[:2] and self.last.index > 0
        if begin.resumed != (inside and had):
            self.found(f"BEGIN of {start_of(begin)} is {'' if begin.resumed else 'not '}flagged resumed behind {self.last}")
        if begin.end <= self.last:
            self.found(f"BEGIN of {start_of(begin)} behind {self.last}")
        self.begin = begin
        self.count = 0
        self.gap_inside = False

    def on_message(self, message):
        if self.everything and message.transactional and self.begin is not None and not self.gap_inside:
            before = self.index_behind(self.last.index if self.last[:2] == message.position[:2] else 0)
            if message.position.index != before + 1:
                self.found(f"something is missing before {message.position}, {message.id}")
        self.rise(message.position, message.id)
        self.count += 1
        if message.received_time < self.received_time:
            self.found(f"the received time of {message.id} is below that of the message before")
        self.received_time = message.received_time
        if message.transactional:
            if self.begin is None:
                self.found(f"{message.id} is outside BEGIN and COMMIT")
            elif (message.position[:2], message.xid, message.commit_time) != (
                    self.begin[:2], self.begin.xid, self.begin.time):
                self.found(f"{message.id} at {message.position} is not of the transaction of {start_of(self.begin)}")
            if not 0 < message.position.index < INDEX_END:
                self.found(f"{message.id} has the index {message.position.index}")
        else:
            if self.begin is not None:
                self.found(f"{message.id} is not transactional, and inside BEGIN and COMMIT")
            if message.position.index != 0 or message.position.lsn != message.lsn:
                self.found(f"{message.id} is not transactional, and has the position {message.position}")
        self.check_content(message)

    def check_content(self, message):
        if message.fault is not None:
            self.found(f"{message.id} at {message.position}: {message.fault}")
        emission = self.truth.emissions.get(message.id)
        if emission is None:
            self.found(f"{message.id} at {message.position} was never emitted")
            return
        if (message.prefix, message.transactional) != (emission.prefix, emission.transactional):
            self.found(f"{message.id} came as {message.prefix!r}, transactional {message.transactional}, and was emitted as "
                       f"{emission.prefix!r}, {emission.transactional}")
        if not wants(self.session, message.prefix):
            self.found(f"{message.id}, {message.prefix!r}, does not match its filters")
        if not self.truth.may(message.id):
            self.found(f"{message.id} at {message.position} was rolled back")
        if message.id in self.truth.withheld:
            self.found(f"{message.id} at {message.position} came, and is {STATUS[emission.form]}")

    def on_commit(self, commit):
        begin = self.begin
        if begin is None or (commit.timeline, commit.lsn, commit.time, commit.xid) != begin[:4]:
            self.found(f"COMMIT of {commit.position} without its BEGIN")
        elif self.count == 0 and not begin.resumed and not self.gap_inside:
            self.found(f"COMMIT of {commit.position}, of which nothing matched")
        if commit.incomplete != self.gap_inside:
            self.found(f"COMMIT of {commit.position} is {'' if commit.incomplete else 'not '}flagged incomplete")
        if self.everything and begin is not None and not self.gap_inside and self.last[:2] == commit.position[:2] and (
                self.index_behind(self.last.index) != commit.messages):
            self.found(f"COMMIT of {commit.position} counts {commit.messages} messages behind {self.last}")
        self.rise(commit.position, "COMMIT")
        self.begin = None

    def on_progress(self, progress):
        if self.begin is not None:
            self.found(f"PROGRESS to {progress.position} inside the transaction of {start_of(self.begin)}")
        if progress.position < self.last:
            self.found(f"PROGRESS to {progress.position} behind {self.last}")
        self.last = max(self.last, progress.position)

    def on_gap(self, gap):
        unfinished = self.truth.unfinished_gaps and gap.first[:2] == gap.last[:2] and gap.last.index == INDEX_END
        if not unfinished and not self.truth.accepted_gaps:
            self.found(f"a gap from {gap.first} to {gap.last}, {gap.reason!r}, where nothing may be missing")
        if gap.first <= self.last or gap.last < gap.first:
            self.found(f"the gap from {gap.first} to {gap.last} is not behind {self.last}")
        self.last = max(self.last, gap.last)
        if self.begin is not None and gap.last >= self.begin.end:
            self.begin = None
        elif self.begin is not None:
            self.gap_inside = True


def _places(findings, truth, histories):
    """{identity: {id: Message}}; each message has one place, and each place one message, whoever is told. On a new timeline
    what the old one has lost may have another."""
    places = collections.defaultdict(dict)
    at = collections.defaultdict(dict)
    for name, sessions in histories.items():
        for session in sessions:
            known, taken = places[session.identity], at[session.identity]
            for message in session.messages:
                first = known.setdefault(message.id, message)
                same = ("position", "lsn", "xid", "commit_time", "prefix", "transactional")
                differing = [field for field in same if getattr(first, field) != getattr(message, field)]
                if differing and message.position.timeline > first.position.timeline and (
                        truth.may_come_twice(message.id)):
                    known[message.id] = message  # this is the one that must come
                elif differing and not (message.position.timeline < first.position.timeline and
                                        truth.may_come_twice(message.id)):
                    findings.add(name, session, f"{message.id} at {message.position} came at {first.position} before; what "
                                                f"differs is {', '.join(differing)}")
                other = taken.setdefault(message.position, message.id)
                if other != message.id:
                    findings.add(name, session, f"{message.position} is {message.id}, and was {other} before")
    return places


def _check_order(findings, truth, identity, known):
    """Order of delivery, of all that anybody got in one journal: within each publisher's session, which says what came
    first; and transactions are whole."""
    name = f"journal {identity}"
    placed = sorted(((message.position, truth.emissions[message.id]) for message in known.values()
                     if message.id in truth.emissions), key=lambda pair: pair[0])
    before = {}  # session: what came last
    place_of_unit, unit_of_place = {}, {}
    for position, emission in placed:
        if emission.transactional:
            unit = (emission.session, emission.unit)
            place = place_of_unit.setdefault(unit, position[:2])
            if place != position[:2]:
                findings.add(name, None, f"{emission.id} at {position} is of a transaction that stands at "
                                         f"{Position(*place, 0)}")
            other = unit_of_place.setdefault(position[:2], unit)
            if other != unit:
                findings.add(name, None, f"{emission.id} at {position} stands in the transaction of others, session and "
                                         f"number {other}")
        if emission.order is None or truth.committed_anew(emission.id):
            continue
        last = before.get(emission.session)
        order = (emission.order, emission.number)
        if last is not None and order < last[0]:
            findings.add(name, None, f"{emission.id} at {position} was published before {last[1]} at {last[2]}")
        before[emission.session] = (order, emission.id, position)
    _check_indexes(findings, truth, name, known)


def _check_indexes(findings, truth, name, known):
    """The index counts the transaction's messages, those that no subscriber wanted included."""
    whole = truth.committed | truth.lost
    numbers = collections.defaultdict(list)
    for emission in truth.emissions.values():
        if emission.transactional and emission.id in whole:
            numbers[emission.session, emission.unit].append(emission.number)
    for unit in numbers.values():
        unit.sort()
    ranks = {unit: {number: i + 1 for i, number in enumerate(of)} for unit, of in numbers.items()}
    for message in known.values():
        emission = truth.emissions.get(message.id)
        if emission is None or not emission.transactional or message.id not in whole:
            continue
        index = ranks[emission.session, emission.unit][emission.number]
        if message.position.index != index:
            findings.add(name, None, f"{message.id} has the index {message.position.index} and is number {index} of its "
                                     "transaction")


def _check_quarantine(findings, truth, quarantine, places, last_identity):
    """What has to be kept back, and nothing else, stands there once; and its place is nobody else's."""
    def found(text):
        findings.add("quarantine", None, text)
    by_place, by_id, last = {}, {}, {}
    for entry in quarantine:
        what = f"{entry.id} at {entry.position}"
        other = by_place.setdefault((entry.identity, entry.position), entry)
        if other is not entry:
            found(f"{what} stands there twice, as {other.number} and {entry.number}")
            continue
        if entry.position < last.get(entry.identity, entry.position):
            found(f"{what} stands behind {last[entry.identity]}")
        last[entry.identity] = entry.position
        before = by_id.get((entry.identity, entry.id))
        if before is not None and not (truth.may_come_twice(entry.id) and entry.position.timeline > before.timeline):
            found(f"{what} stands at {before} too")
        by_id[entry.identity, entry.id] = entry.position
        _check_entry(found, truth, entry, what)
    for identity, known in places.items():
        for message in known.values():
            if (identity, message.id) in by_id:
                found(f"{message.id} at {by_id[identity, message.id]} came to subscribers too, at {message.position}")
            entry = by_place.get((identity, message.position))
            if entry is not None and entry.id != message.id:
                found(f"{entry.id} at {entry.position} stands where {message.id} came to subscribers")
    identities = {last_identity} | (places.keys() if truth.copied else set())
    never = sorted(name for name in truth.there & truth.withheld
                   if not any((identity, name) in by_id for identity in
                              (identities if truth.copied and name in truth.copied else {last_identity})))
    if never:
        found(f"{len(never)} neither came nor stand there: {some(never)}")


def _check_entry(found, truth, entry, what):
    if entry.fault is not None:
        found(f"{what}: {entry.fault}")
    emission = truth.emissions.get(entry.id)
    if emission is None:
        found(f"{what} was never emitted")
        return
    if entry.id not in truth.withheld:
        found(f"{what} stands there, and should have come: it is {STATUS[emission.form]}")
    elif entry.status != STATUS[emission.form]:
        found(f"{what} stands there as {entry.status}, and is {STATUS[emission.form]}")
    if (entry.prefix, entry.transactional) != (emission.prefix, emission.transactional):
        found(f"{what} stands there as {entry.prefix!r}, transactional {entry.transactional}, and was emitted as "
              f"{emission.prefix!r}, {emission.transactional}")
    if not truth.may(entry.id):
        found(f"{what} was rolled back")


def _last_identity(histories):
    latest = None
    for sessions in histories.values():
        for session in sessions:
            if latest is None or session.time > latest.time:
                latest = session
    return latest.identity if latest else None


def _check_again(findings, truth, name, sessions):
    """What comes again is flagged, and of another era only what the restored copy had."""
    seen = {}
    for session in sessions:
        unflagged, foreign = [], []
        for message in session.messages:
            before, at = seen.get(message.id, (None, None))
            if before == session.identity:
                if truth.may_come_twice(message.id) and message.position.timeline > at.timeline:
                    pass
                elif session.redelivered_to is None or message.position > session.redelivered_to:
                    unflagged.append(f"{message.id} at {message.position}")
            elif before is not None:
                if not truth.may_come_twice(message.id):
                    foreign.append(f"{message.id} at {message.position}")
            seen[message.id] = (session.identity, message.position)
        if unflagged:
            findings.add(name, session, f"{len(unflagged)} came again, not flagged as redelivered (up to "
                                        f"{session.redelivered_to}): {some(unflagged)}")
        if foreign:
            findings.add(name, session, f"{len(foreign)} of another era came again that the restored server did not have: "
                                        f"{some(foreign)}")


def _check_cursor(findings, truth, name, sessions):
    """What was confirmed as kept, and what a stopping router has taken, stays acknowledged."""
    kept = {}  # identity: position
    for i, session in enumerate(sessions):
        if i > 0 and not session.stored:
            findings.add(name, session, f"began at {session.position}, and not where the name's cursor was")
        least = kept.get(session.identity)
        if least is not None and session.position < least:
            findings.add(name, session, f"began at {session.position}, although {least} was acknowledged and kept")
        for position in (session.acked, left(truth, session)):
            if position is not None and (kept.get(session.identity) is None or position > kept[session.identity]):
                kept[session.identity] = position


def left(truth, session):
    """What it had acknowledged when the router stopped cleanly and let it go; None: it was let go otherwise."""
    if session.left is None:
        return None
    time, position = session.left
    return position if any(a - CLOCK_SLACK <= time <= b + CLOCK_SLACK for a, b in truth.clean_stops) else None


def _check_complete(findings, truth, name, sessions, places, last_identity):
    got_anywhere = {message.id for session in sessions for message in session.messages}
    gaps = any(isinstance(frame, Gap) for session in sessions if session.identity == last_identity
               for frame in session.frames)
    if truth.accepted_gaps and not gaps:
        findings.add(name, None, "was not told the gap that was accepted")
    by_identity = {}
    for session in sessions:
        by_identity.setdefault(session.identity, []).append(session)
    for identity, of in by_identity.items():
        final = identity == last_identity
        known = places[identity]
        got = [{(message.id, message.position) for message in session.messages} for session in of]
        reach = [session.reach for session in of]
        farthest = max(reach)
        missing = collections.defaultdict(list)
        # A server that is gone had committed its own, and an era before the last is of such a one.
        due = truth.must if final else truth.must | truth.lost
        for message_id, message in known.items():
            if message_id not in due:
                continue
            if not final and message.position > farthest:
                continue  # swallowed by the gap, which was told
            i = at = _session_of(of, message.position)
            while i >= 0:
                # Of an earlier session: what it was told to be past, although it has not acknowledged so far.
                session = of[i]
                begun = message.position > session.position or i == 0
                if begun and wants(session, message.prefix) and (message_id, message.position) not in got[i] and (
                        i == at or message.position <= reach[i]):
                    missing[i].append(message)
                i -= 1
        for i, messages in missing.items():
            messages.sort(key=lambda message: message.position)
            lost = [m for m in messages if m.id not in got_anywhere]
            what = f"{len(lost)} of them came to it never" if lost else "all of them came to it in another session"
            findings.add(name, of[i], f"{len(messages)} are missing in the session from {of[i].position} to "
                                      f"{reach[i]}; {what}: "
                                      f"{some(f'{m.id} at {m.position}' for m in lost or messages)}")
    final_sessions = by_identity.get(last_identity, [])
    unknown = sorted(message_id for message_id in truth.must
                     if message_id not in places.get(last_identity, {})
                     and (truth.copied is None or message_id not in truth.copied))
    never = [m for m in unknown if final_sessions
             and all(wants(session, truth.emissions[m].prefix) for session in final_sessions)]
    if never:
        findings.add(name, None, f"{len(never)} came to nobody: {some(never)}")
    if not final_sessions:
        findings.add(name, None, "has no session in the last journal")


def _session_of(sessions, position):
    """The last one that began before that position; the first one when there is none."""
    i = len(sessions) - 1
    while i > 0 and sessions[i].position >= position:
        i -= 1
    return i


def _check_effects(findings, truth, rows, gaps, session, places, last_identity):
    """What took effect by the exactly-once call: each once, and in order."""
    def found(text):
        findings.add("once", None, text)
    reach = {}  # identity: the last position
    seen = {}  # id: identity
    for row in rows:
        before = reach.get(row.identity)
        if before is not None and row.position <= before:
            found(f"{row.id} at {row.position} took effect behind {before}")
        reach[row.identity] = max(row.position, before or row.position)
        if row.id in seen:
            identity, timeline = seen[row.id]
            if not truth.may_come_twice(row.id) or (identity, timeline) == (row.identity, row.position.timeline):
                found(f"{row.id} at {row.position} took effect twice")
        seen[row.id] = (row.identity, row.position.timeline)
        emission = truth.emissions.get(row.id)
        if emission is None:
            found(f"{row.id} at {row.position} was never emitted")
            continue
        if not truth.may(row.id):
            found(f"{row.id} at {row.position} was rolled back")
        if row.prefix != emission.prefix or not wants(session, row.prefix):
            found(f"{row.id} came as {row.prefix!r}, and was emitted as {emission.prefix!r}")
        if not is_content(row.id, row.size, row.md5):
            found(f"{row.id} has a content of {row.size} bytes that is not its own")
        known = places[row.identity].get(row.id)
        if known is not None and known.position != row.position and not (
                truth.may_come_twice(row.id) and row.position.timeline < known.position.timeline):
            found(f"{row.id} at {row.position} came at {known.position} to others")
    if gaps and not truth.accepted_gaps and not truth.unfinished_gaps:
        found(f"was told gaps where nothing may be missing: {some(gaps)}")
    missing = []
    for identity, known in places.items():
        final = identity == last_identity
        missing += [message_id for message_id, message in known.items()
                    if message_id in (truth.must if final else truth.must | truth.lost) and message_id not in seen
                    and wants(session, message.prefix) and (final or message.position <= reach.get(identity, Position(0, 0, 0)))]
    missing += [message_id for message_id in truth.must
                if message_id not in seen and not any(message_id in known for known in places.values())
                and (truth.copied is None or message_id not in truth.copied)
                and wants(session, truth.emissions[message_id].prefix)]
    if truth.accepted_gaps and not gaps:
        found("was not told the gap that was accepted")
    if missing:
        found(f"{len(missing)} are missing: {some(sorted(missing))}")
