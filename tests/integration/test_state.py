# SPDX-License-Identifier: PostgreSQL
"""The journal in the state folder: what a router goes on from, what it refuses, and how an operator accepts a gap."""

import contextlib
import os
import shutil

import pytest
from faults.schedule import faults_of
from harness import places
from harness.command import walbus
from harness.relay import Relay
from harness.router import Router
from harness.server import Address, Server, format_lsn, one, parse_lsn
from harness.subscriber import INDEX_END, Closed, Gap, Position, RouterError, Subscriber
from harness.waiting import Deadline, wait_for

pytestmark = pytest.mark.every_major

UNKNOWN = 2**64 - 1


def raw(position):
    return position.timeline.to_bytes(4, "big") + position.lsn.to_bytes(8, "big") + position.index.to_bytes(4, "big")


@contextlib.contextmanager
def behind(router, position, *filters):
    with Subscriber(router.socket, filters, start="position", extra={"position": raw(position)}) as sub:
        sub.checks.last = position
        yield sub


def oldest(router, *filters):
    return Subscriber(router.socket, filters, start="oldest")


def contents(messages):
    return [m.content for m in messages]


def synced(bus, position):
    """Waits until the server was told that everything up to there is safe."""
    wait_for(lambda: bus.slot()["confirmed"] >= position.lsn, 10, "it is acknowledged")


def to_the_end(sub, seconds=20):
    """Everything that comes until the router closes the connection."""
    deadline = Deadline(seconds, "the router closes the connection")
    try:
        while True:
            sub.next(deadline)
    except (Closed, RouterError):
        return contents(sub.messages)


@contextlib.contextmanager
def restarted(router, *args, state="streaming"):
    """The same router with other arguments, over the same state."""
    again = Router(router.dsn, slot=router.slot, args=args, state_dir=router.state_dir)
    with again:
        again.spawn()
        if state:
            again.wait_state(state)
        yield again


# ---- going on


@pytest.mark.once  # what the router keeps, and not what the server does
@pytest.mark.parametrize("end", [Router.stop, Router.kill], ids=["stopped", "killed"])
def test_nothing_is_lost_while_nobody_is_there(bus, conn, end):
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"1")
        position = sub.collect(1)[0].position
        synced(bus, position)
        end(router)
        conn.emit("a", b"2")
        conn.emit("b", b"3", transactional=False)
        router.start()
        conn.emit("a", b"4")
        with behind(router, position) as again:
            assert contents(again.drain(conn)) == [b"2", b"3", b"4"] and again.gaps == []
        with oldest(router, "a") as again:
            assert contents(again.collect(3)) == [b"1", b"2", b"4"] and again.gaps == []


def test_inside_a_transaction(bus, conn):
    with Router(bus.dsn()) as router:
        router.start()
        conn.begin()
        for i in range(5):
            conn.emit("a" if i % 2 else "b", str(i).encode())
        conn.commit()
        with oldest(router) as sub:
            messages = sub.collect(5)
        router.stop()
        router.start()
        for i, message in enumerate(messages):
            with behind(router, message.position) as rest:
                if i < 4:
                    assert contents(rest.collect(4 - i)) == [m.content for m in messages[i + 1:]]
                else:
                    rest.next(Deadline(10, "BEGIN"))
                    rest.next(Deadline(10, "COMMIT"))
                assert len(rest.begins) == 1 and rest.commits[0].messages == 5


# ---- one at a time


def test_second_router_on_the_same_state(router, bus, conn):
    second = Router(bus.dsn(), state_dir=router.state_dir)
    with second:
        second.spawn()
        assert second.wait_exit() == 1
        assert f"another router uses the state folder {router.state_dir}: process {router.pid}" in second.log()
        assert not os.path.lexists(second.socket)
    sub = router.subscriber()
    conn.emit("a", b"1")
    assert contents(sub.collect(1)) == [b"1"]


@pytest.mark.parametrize("state_dir,status,mend", [
    ("state", 2, "an absolute path"), ("/nonexistent/walbus/state", 1, "make the folder above it first"),
])
def test_a_folder_that_cannot_be(bus, state_dir, status, mend):
    with Router(bus.dsn(), state_dir=state_dir) as router:
        router.spawn()
        assert router.wait_exit() == status, router.log()
        assert mend in router.log()


def test_second_router_on_the_same_socket(router, bus, conn):
    second = Router(bus.dsn(), socket=router.socket)
    with second:
        second.spawn()
        assert second.wait_exit() == 1
    assert os.path.lexists(router.socket)
    sub = router.subscriber()
    conn.emit("a", b"1")
    assert contents(sub.collect(1)) == [b"1"]


# ---- refused, and accepted


def read_to(server, slot="walbus"):
    """What the router has acknowledged that has stopped, or was killed: behind it is lost what nobody sends again."""
    wait_for(lambda: not server.slot(slot)["active"], 10, "the slot is free")
    return server.slot(slot)["confirmed"]


def position_of(text):
    timeline, lsn, index = text.split(":")
    return Position(int(timeline), parse_lsn(lsn), int(index))


def after(position):
    """The next one that there may be."""
    timeline, lsn, index = position
    return Position(timeline, lsn + 1, 0) if index == INDEX_END else Position(timeline, lsn, index + 1)


def system_identifier(server):
    with server.connect() as conn:
        return str(one(conn, "SELECT system_identifier FROM pg_control_system()"))


def names_what_is_lost(router, word, server, acknowledged, slot="walbus", streamed=False):
    """The log line of the refusal has both ends of what was not read, and where the server's WAL ends. streamed: the
    slot has been read from since."""
    line, = router.logged(word)
    assert line["slot"] == slot and line["system_identifier"] == system_identifier(server)
    assert line["acknowledged"] == format_lsn(acknowledged)
    if streamed:
        assert parse_lsn(line["slot_confirmed_flush_lsn"]) <= server.slot(slot)["confirmed"]
    else:
        assert line["slot_confirmed_flush_lsn"] == format_lsn(server.slot(slot)["confirmed"])
    assert server.slot(slot)["confirmed"] <= parse_lsn(line["wal_lsn"]) <= server.wal_lsn()


def refused(router, word, server=None, acknowledged=None):
    """It ends with 4, having named what is lost; the journal is served to its end meanwhile."""
    with restarted(router, state=None) as again:
        status = wait_for(lambda: (now := again.status()) and now["state"] == "refused" and now, 10, "the router refuses")
        assert status["last_error"]
        sub = oldest(again)
        got = to_the_end(sub)
        sub.close()
        assert again.wait_exit(20) == 4, again.log()
        assert f" error {word} " in again.log(), again.log()
        assert " source.streaming " not in again.log()
        if server is not None:
            names_what_is_lost(again, word, server, acknowledged)
        return got


def accepted(router, bus, conn, position, acknowledged, want):
    """With --accept-gap it goes on behind a gap, which everybody is told, now and after the next start."""
    begins = bus.slot()["confirmed"]
    gaps = []
    for args in (["--accept-gap"], []):
        with restarted(router, *args) as again:
            lines = [(line["refusal"], line["from"], line["to"]) for line in again.logged("source.gap-accepted")]
            assert lines == ([("slot-moved", format_lsn(acknowledged), format_lsn(begins))] if args else [])
            with behind(again, position) as sub:
                frame = sub.next(Deadline(10, "a gap"))
                assert isinstance(frame, Gap), frame
                assert "accepted by the operator" in frame.reason
                assert position < frame.start and frame.start.lsn <= acknowledged + 1, (frame, acknowledged)
                assert frame.end[:2] == (1, begins)
                gaps.append(frame)
                if args:
                    conn.emit("a", want)
                assert contents(sub.drain(conn))[:1] == [want]
            again.stop()
    assert gaps[0] == gaps[1]


def make_anew(conn):
    conn.run("SELECT pg_drop_replication_slot('walbus')")
    conn.emit("a", b"lost")
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")


def advance(conn):
    conn.emit("a", b"lost")
    conn.run("SELECT pg_replication_slot_advance('walbus', pg_current_wal_lsn())")


@pytest.fixture
def written(bus, conn):
    """A router that is stopped, the position of the last of two messages in its journal, and what it acknowledged."""
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"1")
        conn.emit("a", b"2")
        sub.collect(2)
        position = sub.checks.last
        synced(bus, position)
        mark = parse_lsn(router.status()["slot"]["mark"])
        router.stop()
        acknowledged = read_to(bus)
        assert mark <= acknowledged
        yield router, position, acknowledged


@pytest.mark.parametrize("what", [make_anew, advance])
def test_slot_moved(written, bus, conn, what):
    router, position, acknowledged = written
    what(conn)
    assert refused(router, "slot-moved", bus, acknowledged) == [b"1", b"2"]
    accepted(router, bus, conn, position, acknowledged, b"3")


def test_slot_missing(written, bus, conn):
    router, position, acknowledged = written
    conn.run("SELECT pg_drop_replication_slot('walbus')")
    conn.emit("a", b"lost")
    assert refused(router, "slot-missing") == [b"1", b"2"]
    with restarted(router, "--accept-gap", state=None) as again:  # there is nothing to go on with
        assert again.wait_exit(20) == 4
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")
    accepted(router, bus, conn, position, acknowledged, b"3")


def test_a_slot_that_is_missing_is_refused_with_what_is_lost(written, conn):
    """To where it reaches nobody can say, but from where."""
    router, _, acknowledged = written
    conn.run("SELECT pg_drop_replication_slot('walbus')")
    with restarted(router, state=None) as again:
        assert again.wait_exit(20) == 4
        line, = again.logged("slot-missing")
        assert line["acknowledged"] == format_lsn(acknowledged)


FAILURES = ["journal-segment:1=ENOSPC", "journal-write:1=ENOSPC", "journal-write:1=short,journal-write:2=EIO",
            "journal-sync:1=EIO"]


@contextlib.contextmanager
def accepting(router, fault):
    """The router with --accept-gap, over the same state, and with a fault."""
    if "journal-write" not in faults_of(places.walbusd()):
        pytest.skip("this walbusd was built without -Dfaults=true")
    with Router(router.dsn, slot=router.slot, args=["--accept-gap"], state_dir=router.state_dir,
                env={"WALBUS_FAULT": fault}) as again:
        yield again.spawn()


@pytest.mark.once
@pytest.mark.parametrize("fault", FAILURES)
def test_a_gap_whose_write_fails(written, bus, conn, fault):
    """It was accepted, and is written once it can be."""
    router, position, _ = written
    make_anew(conn)
    with accepting(router, fault) as again:
        again.wait_log(" journal.failed ")
        again.wait_log(" journal.recovered ")
        again.wait_state("streaming")
        conn.emit("a", b"3")
        with behind(again, position) as sub:
            frame = sub.next(Deadline(10, "a gap"))
            assert isinstance(frame, Gap) and "accepted by the operator" in frame.reason, frame
            assert contents(sub.drain(conn)) == [b"3"] and len(sub.gaps) == 1
        again.stop()
    with restarted(router) as again, behind(again, position) as sub:
        assert isinstance(sub.next(Deadline(10, "a gap")), Gap)
        assert contents(sub.drain(conn))[:1] == [b"3"] and len(sub.gaps) == 1


@pytest.mark.once
@pytest.mark.parametrize("fault", ["journal-write:1=kill", "catalog-commit:3=kill", *FAILURES[1:]])
def test_a_new_era_whose_gap_is_not_written(bus, conn, fault):
    """The era was begun, and nothing stands in it: its gap comes with the next start, or the next attempt."""
    with Server() as other, Address() as address:
        other.start()
        address.lead(bus)
        with Router(address.dsn) as router:
            router.start()
            with Subscriber(router.socket, ["a"], name="kept") as sub:
                conn.emit("a", b"1")
                sub.collect(1)
                sub.confirm()
            router.stop()
            other.create_bus()
            address.lead(other)
            with other.connect() as there:
                there.emit("a", b"new")
                with accepting(router, fault) as again:
                    again.wait_log(" source.gap-accepted ")
                    if fault.endswith("kill"):
                        again.process.wait(20)
                        again.process = None
                    else:
                        again.wait_log(" journal.recovered ")
                        again.wait_state("streaming")
                        again.stop()
                with restarted(router) as again:
                    with oldest(again) as sub:
                        assert isinstance(sub.next(Deadline(10, "a gap")), Gap)
                        assert contents(sub.drain(there))[:1] == [b"new"] and len(sub.gaps) == 1
                    with Subscriber(again.socket, ["a"], name="kept", start="stored") as sub:
                        assert isinstance(sub.next(Deadline(10, "a gap")), Gap)
                        assert contents(sub.collect(1)) == [b"new"] and len(sub.gaps) == 1


@pytest.mark.once
def test_a_journal_that_was_taken_away(bus, conn):
    """What the names had not read is gone: without a word they would go on behind it."""
    with Router(bus.dsn()) as router:
        router.start()
        with Subscriber(router.socket, ["a"], name="kept"):
            pass
        conn.emit("a", b"1")
        with router.subscriber():
            router.stop()
        shutil.rmtree(os.path.join(router.state_dir, "journal"))
        for args in ([], ["--accept-gap"]):
            with restarted(router, *args, state=None) as again:
                assert again.wait_exit(20) == 4
                line, = again.logged("journal.missing")
                assert line["subscriptions"] == "1" and line["state_dir"] == router.state_dir
                assert not os.path.exists(os.path.join(router.state_dir, "journal"))  # where it can be put back
        shutil.rmtree(router.state_dir)
        router.start()


@pytest.mark.once
@pytest.mark.parametrize("part", ["", "journal", "catalog"], ids=["the folder", "journal", "catalog"])
def test_a_state_folder_that_is_moved(bus, conn, part):
    """While the router runs: nothing more is acknowledged until it is back, and then nothing is lost."""
    with Router(bus.dsn()) as router:
        router.start()
        place = os.path.join(router.state_dir, part).rstrip("/")
        with Subscriber(router.socket, ["a"], name="kept") as sub:
            conn.emit("a", b"1")
            sub.collect(1)
            sub.confirm()
            os.rename(place, place + ".moved")
            router.wait_log(" state.gone ")
            assert "state folder" in router.status()["last_error"]
            acknowledged = read_to(bus)
            conn.emit("a", b"2")
            conn.emit("a", b"3", transactional=False)
            os.rename(place + ".moved", place)
            router.wait_log(" state.back ")
            assert contents(sub.collect(2)) == [b"2", b"3"]
            assert bus.slot()["confirmed"] >= acknowledged
            sub.confirm()
        router.stop()
        router.start()
        with Subscriber(router.socket, ["a"], name="kept", start="stored") as sub:
            conn.emit("a", b"4")
            assert contents(sub.collect(1)) == [b"4"]


@pytest.mark.once
def test_an_old_state_folder(written, bus, conn):
    """The journal's copy does not know of what was acknowledged since."""
    router, position, acknowledged = written
    copy = router.state_dir + ".old"
    shutil.copytree(router.state_dir, copy)
    with restarted(router) as again:
        sub = again.subscriber()
        conn.emit("a", b"lost")
        synced(bus, sub.collect(1)[0].position)
        again.stop()
    shutil.rmtree(router.state_dir)
    os.rename(copy, router.state_dir)
    assert refused(router, "slot-moved", bus, acknowledged) == [b"1", b"2"]
    accepted(router, bus, conn, position, acknowledged, b"3")


def in_new_era(router, server, conn, old_identity, word, acknowledged, want, streamed=False):
    """Nothing of the new history is dropped, whatever its positions."""
    with restarted(router, state=None) as again:
        assert again.wait_exit(20) == 4, again.log()
        assert f" error {word} " in again.log(), again.log()
        names_what_is_lost(again, word, server, acknowledged, router.slot, streamed)
    begins = read_to(server, router.slot)
    for args in (["--accept-gap"], []):
        with restarted(router, *args) as again:
            if args:
                # who comes before is let go of, since positions mean something else then
                again.wait_log(" journal.new-era ", 20)
                line, = again.logged("source.gap-accepted")
                assert line["refusal"] == word
                assert (line["from"], line["to"]) == (format_lsn(acknowledged), format_lsn(begins))
            with oldest(again) as sub:
                assert sub.subscribed["identity"].split("/")[1] == "2"
                assert sub.subscribed["identity"] != old_identity
                frame = sub.next(Deadline(10, "a gap"))
                assert isinstance(frame, Gap) and "accepted by the operator" in frame.reason, frame
                assert frame.start.lsn <= begins == frame.end.lsn
                # what the slot sends again of before is new to the new era
                assert [c for c in contents(sub.drain(conn)) if c != b"before"][:len(want)] == want
            again.stop()


def test_another_server(bus, conn):
    """Of the same slot's name, as after pg_upgrade: another system identifier, timeline 1, lower positions."""
    with Server() as other, Address() as address:
        other.start()
        address.lead(bus)
        with Router(address.dsn) as router:
            router.start()
            sub = router.subscriber()
            conn.run("SELECT pg_switch_wal()")  # so that this one's positions are beyond the other's
            conn.emit("a", b"1")
            sub.collect(1)
            identity = sub.subscribed["identity"]
            synced(bus, sub.checks.last)
            router.stop()
            acknowledged = read_to(bus)
            other.create_bus()
            address.lead(other)
            with other.connect() as there:
                there.emit("a", b"new 1")
                there.emit("a", b"new 2", transactional=False)
                in_new_era(router, other, there, identity, "other-system", acknowledged, [b"new 1", b"new 2"])


@pytest.mark.parametrize("end", [Router.stop, Router.kill], ids=["stopped", "killed"])
def test_a_durable_name_on_another_server(bus, conn, end):
    """The name goes into the new era: it is told the gap once it is there, gets all that is new, and its cursor is
    stored there as it was before."""
    with Server() as other, Address() as address:
        other.start()
        address.lead(bus)
        with Router(address.dsn) as router:
            router.start()
            with Subscriber(router.socket, ["a"], name="kept") as sub:
                conn.run("SELECT pg_switch_wal()")  # so that this one's positions are beyond the other's
                conn.emit("a", b"1")
                conn.emit("a", b"2")
                first, second = sub.collect(2)
                sub.confirm(first.position)
            router.stop()
            other.create_bus()
            address.lead(other)
            with other.connect() as there:
                there.emit("a", b"new 1")
                there.emit("b", b"of no account")
                there.emit("a", b"new 2", transactional=False)
                router.spawn()
                assert router.wait_exit(40) == 4 and router.logged("other-system"), router.log()
                router.args.append("--accept-gap")
                router.start()
                router.args.remove("--accept-gap")
                unread, = router.logged("journal.unread")
                assert unread["subscription"] == "kept" and position_of(unread["position"]) < second.position
                with Subscriber(router.socket, ["a"], name="kept") as sub:
                    assert sub.subscribed["identity"] == f"{system_identifier(other)}/2" and sub.stored
                    there.emit("a", b"new 3")
                    got = sub.collect(3)
                    assert contents(got) == [b"new 1", b"new 2", b"new 3"] and got[-1].position < first.position
                    gap, = sub.gaps
                    assert "accepted by the operator" in gap.reason and gap.end < got[0].position
                    sub.confirm(got[1].position)
                end(router)
                there.emit("a", b"new 4")
                router.start()
                with Subscriber(router.socket, ["a"], name="kept") as sub:
                    assert sub.stored and sub.position >= got[1].position
                    again = sub.collect(2)
                    assert contents(again) == [b"new 3", b"new 4"] and sub.gaps == []
                    assert sub.is_redelivered(again[0])
                    sub.confirm()
                end(router)
                router.start()
                with Subscriber(router.socket, ["a"], name="kept") as sub:
                    there.emit("a", b"new 5")
                    assert contents(sub.collect(1)) == [b"new 5"] and sub.gaps == []


def test_another_database(bus, conn):
    bus.create_database("other")
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("a", b"1")
        sub.collect(1)
        identity = sub.subscribed["identity"]
        synced(bus, sub.checks.last)
        router.stop()
        acknowledged = read_to(bus)
        bus.create_bus("other", slot="other")
        try:
            with bus.connect("other") as there:
                there.emit("a", b"other 1")
                moved = Router(bus.dsn("other"), slot="other", state_dir=router.state_dir)
                with moved:
                    in_new_era(moved, bus, there, identity, "other-database", acknowledged, [b"other 1"])
        finally:
            bus.drop_bus("other", slot="other")
            conn.run("DROP DATABASE other")


@pytest.mark.parametrize("new", [2, 40, 0], ids=["behind the journal", "beyond it", "beyond it without a message"])
def test_server_restored_to_an_older_state(server, new):
    """A file-level copy takes the server's place. If it has gone further since, its positions are the journal's and
    only what stands there differs, or that nothing stands there."""
    with Server() as first:
        first.start()
        first.create_bus()
        with Address() as address:
            address.lead(first)
            with Router(address.dsn) as router:
                router.start()
                with first.connect() as conn:
                    conn.emit("a", b"before")
                router.stop()
                first.stop()
                copy = Server(copy_of=first)
                with copy:
                    first.start()
                    router.start()
                    sub = router.subscriber()
                    with first.connect() as conn:
                        for i in range(20):
                            conn.emit("a", b"old %d" % i)
                    sub.collect(20)
                    identity = sub.subscribed["identity"]
                    synced(first, sub.checks.last)  # a walsender that is just sending does not read the last report
                    router.stop()
                    acknowledged = read_to(first)
                    first.stop()
                    copy.start()
                    address.lead(copy)
                    with copy.connect() as conn:
                        for i in range(new):
                            conn.emit("b", b"new %d" % i)
                        if not new:
                            conn.run("CREATE TABLE filler AS SELECT generate_series(1, 1000)")
                            conn.run("SELECT pg_switch_wal()")
                            conn.run("DROP TABLE filler")
                            assert copy.wal_lsn() > acknowledged
                        in_new_era(router, copy, conn, identity, "server-restored", acknowledged,
                                   [b"new %d" % i for i in range(new)], streamed=new != 2)


def test_rest_of_a_transaction_that_never_comes(bus, conn):
    """The router has a part of a transaction when it is killed, and the slot is made anew meanwhile."""
    with Router(bus.dsn(), args=["--sync-interval", "1ms"]) as router, Relay(bus) as relay:
        part = Router(relay.dsn(), state_dir=router.state_dir)
        with part:
            part.start()
            sub = part.subscriber()
            relay.stall_replication_after(4 << 20)
            conn.run("SELECT count(pg_logical_emit_message(true, 'big', decode(repeat('ab', 1000), 'hex')))"
                     " FROM generate_series(1, 50000)")
            while len(sub.messages) < 1000:
                sub.next(Deadline(20, "the first messages"))
            part.kill()
        conn.run("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        wait_for(lambda: not bus.slot()["active"], 10, "the slot is free")
        make_anew(conn)
        with restarted(router, "--accept-gap") as again:
            with oldest(again) as rest:
                conn.emit("a", b"behind")
                messages = rest.collect_to(b"a")
                assert len(rest.gaps) == 1 and 0 < len(messages) < 50000
                assert contents(rest.messages)[-1] == b"behind"


@pytest.mark.once
def test_no_follow_ends_when_the_source_is_given_up(bus, conn):
    """What was read last does not match, and nothing more is read."""
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        for prefix in ("a", "b"):
            conn.emit(prefix, b"1")
        position = sub.collect(2)[1].position
        synced(bus, position)
        router.stop()
        make_anew(conn)
        with restarted(router, state=None) as again:
            wait_for(again.status, 10, "the router answers")
            done = walbus("tail", "--no-follow", "--timeout", "20", "--output", "json", "--socket", again.socket, "a")
            assert done.status == 0, done
            assert [line["prefix"] for line in done.json_lines()] == ["a"]
            assert again.wait_exit(20) == 4


@pytest.mark.once
def test_no_follow_ends_before_a_transaction_that_never_comes_whole(bus, conn):
    with Router(bus.dsn(), args=["--sync-interval", "1ms"]) as router, Relay(bus) as relay:
        with Router(relay.dsn(), state_dir=router.state_dir) as part:
            part.start()
            sub = part.subscriber()
            conn.emit("a", b"1")
            relay.stall_replication_after(4 << 20)
            conn.run("SELECT count(pg_logical_emit_message(true, 'big', decode(repeat('ab', 1000), 'hex')))"
                     " FROM generate_series(1, 50000)")
            while len(sub.messages) < 1000:
                sub.next(Deadline(20, "the first messages"))
            part.kill()
        conn.run("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        wait_for(lambda: not bus.slot()["active"], 10, "the slot is free")
        make_anew(conn)
        for pattern, prefixes in (("nobody", []), ("big", []), (">", ["a"])):
            with restarted(router, state=None) as again:
                newest = wait_for(again.status, 10, "the router answers")["journal"]["newest"]
                assert int(newest.rpartition(":")[2]) not in (0, INDEX_END), newest
                done = walbus("tail", "--no-follow", "--timeout", "20", "--output", "json", "--socket", again.socket,
                              pattern)
                assert done.status == 0, done
                assert [line["prefix"] for line in done.json_lines()] == prefixes
                assert again.wait_exit(20) == 4


def test_identity_is_that_of_the_journal(bus, conn):
    with Router(bus.dsn()) as router:
        status = router.start().status()
        system = one(conn, "SELECT system_identifier FROM pg_control_system()")
        sub = router.subscriber()
        assert sub.subscribed["identity"] == f"{system}/1" == sub.welcome["identity"]
        assert status["system_identifier"] in (system, str(system))
        assert isinstance(sub.checks.last, Position)
