# SPDX-License-Identifier: PostgreSQL
"""The servers, the router, the publishers and the recorders of one schedule, and the faults that happen to them."""

import atexit
import errno
import functools
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time

import psycopg2

from harness import places
from harness.command import walbus
from harness.router import Router
from harness.server import Address, Server, one, parse_lsn
from harness.subscriber import KINDS, Connection
from harness.waiting import Deadline, wait_for

from . import signed
from .checker import check, left
from .history import Entry, Session
from .publisher import Publisher
from .recorder import TAKEN_OVER, RecorderProcess
from .once import LOST, OVERTAKEN, TABLES, OnceProcess, effects, parse_position
from .schedule import MARKER, ONCE, ONCE_FILTERS, SUBSCRIBERS, filters_of
from .truth import CONTENT, TABLE, Emission, Truth, id_of

# The state folder's own disk: the catalog, which has its whole size at once, the largest journal of the schedules with
# the transaction and the segment that it may be over, and as much again.
DISK_BYTES = 320 << 20
# Longest wait for the last message: behind it are connection attempts, each up to 2 s apart, of a machine that tests more.
END_SECONDS = 90
# A fast shutdown is never held up: 2 s where nothing else runs (docs/operations.md). Here is much else.
SHUTDOWN_SECONDS = 10


@functools.lru_cache(maxsize=None)
def template(major):
    """A cluster of that major to copy, made once in a process: initdb takes longer than many a schedule's faults."""
    assert major == places.MAJORS.current
    made = Server(wal_segsize=1)  # a tenth of the files, and the server's segments change often
    atexit.register(made.close)
    return made


def can_mount():
    """Whether this process may mount a tmpfs."""
    folder = places.new_folder("walbus-mt-")
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=False,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if done.returncode != 0:
            return False
        subprocess.run(["umount", "-l", folder], check=True)
        return True
    except FileNotFoundError:
        return False
    finally:
        os.rmdir(folder)


class World:
    """open(), run(), finish(), and close() in any case."""

    def __init__(self, schedule, major, once=None):
        """once: the program apply_once, if the schedule has that subscriber."""
        self.schedule = schedule
        self.once_program = once
        self.major = major
        self.folder = places.new_folder("walbus-sc-")
        self.records = os.path.join(self.folder, "records")
        self.state = os.path.join(self.folder, "state")
        self.mounted = False
        self.address = Address()
        self.servers = []  # that are to be closed
        self.server = None
        self.standby = None
        self.effects = None  # the server
        self.once = None
        self.lost = 0  # how often the exactly-once subscriber ended because its position was of another journal
        self.may_be_overtaken = False
        self.epoch = 0
        self.trust = os.path.join(self.folder, "trust")
        self.router = Router(self.address.dsn, state_dir=self.state, args=[
            *(word for name, value in schedule.settings.items() for word in (f"--{name}", value)), *self.policy()])
        self.publishers = []
        self.recorders = {}  # name: the running one
        self.readers = {}  # name: those of all that ran
        self.which = {name: 0 for name in SUBSCRIBERS}  # filters
        self.truth = Truth()
        self.quarantine = []  # at the end
        self.own = itertools.count(1)
        self.switch_lsn = None
        self.fault_now = None
        self.log = []
        self.began = time.monotonic()

    def note(self, text):
        self.log.append(f"{time.monotonic() - self.began:7.2f}  {text}")

    def policy(self):
        if not self.schedule.policy:
            return []
        self.write_trust(signed.trust_file())
        return [f"--trust-file={self.trust}", *(f"--policy={line}" for line in signed.POLICY)]

    def write_trust(self, text):
        with open(f"{self.trust}.new", "w", encoding="utf-8") as f:
            f.write(text)
        os.rename(f"{self.trust}.new", self.trust)

    # ---- beginning

    def open(self):
        os.mkdir(self.records)
        os.mkdir(self.state, 0o700)
        if self.schedule.disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", self.state], check=True)
            self.mounted = True
        self.server = Server(copy_of=template(self.major))
        self.servers.append(self.server)
        self.server.start()
        self.address.lead(self.server)
        with self.server.connect() as conn:
            conn.run(TABLE)
            conn.run(CONTENT)
            conn.run("CREATE PUBLICATION walbus")
            failover = ", false, false, true" if self.server.major >= 17 else ""
            conn.run(f"SELECT pg_create_logical_replication_slot('walbus', 'pgoutput'{failover})")
        if any(step.what == "failover" for step in self.schedule.steps):
            self.make_standby()
        self.router.start()
        for name in SUBSCRIBERS:
            self.start_recorder(name)
        self.wait_subscribed(SUBSCRIBERS)
        if self.schedule.once:
            self.open_once()
        self.publishers = [Publisher(address=self.address.dsn, epoch=lambda: self.epoch,
                                     flush=self.server.major >= 17, **arguments)
                           for arguments in self.schedule.publishers]
        for publisher in self.publishers:
            publisher.start()

    def open_once(self):
        self.effects = Server(copy_of=template(self.major))
        self.servers.append(self.effects)
        self.effects.start()
        with self.effects.connect() as conn:
            conn.run(TABLES)
        self.start_once()
        wait_for(lambda: any(s["name"] == ONCE and s["connected"] for s in self.router.status()["subscriptions"]), 30,
                 f"{ONCE} is subscribed")

    def start_once(self, take_over=False):
        self.once = OnceProcess(self.once_program, os.path.join(self.folder, "apply_once.log"), self.router.socket,
                                self.effects.dsn(), ONCE, ONCE_FILTERS, take_over=take_over, **self.schedule.once)

    def start_recorder(self, name, **more):
        filters, exclude = filters_of(name, self.which[name])
        readers = self.readers.setdefault(name, [])
        path = os.path.join(self.records, f"{name}.{len(readers)}")
        self.recorders[name] = RecorderProcess(
            path, socket=self.router.socket, name=name, filters=filters, exclude=exclude,
            seed=f"{self.schedule.seed}.{name}.{len(readers)}", **self.schedule.recorders[name], **more)
        readers.append(self.recorders[name].reader)

    def sessions(self, name):
        """All of a name, by time."""
        made = [session for reader in self.readers[name] for session in reader.read().sessions]
        return sorted(made, key=lambda session: session.time)

    def wait_subscribed(self, names, seconds=30):
        for name in names:
            recorder = self.recorders[name]
            wait_for(lambda recorder=recorder: recorder.reader.read().sessions or not recorder.runs, seconds,
                     f"{name} is subscribed")
        self.check_alive()

    # ---- the faults; each leaves everything running

    def run(self):
        for step in self.schedule.steps:
            time.sleep(step.wait)
            self.note(f"{step.what} {step.args if step.args else ''}")
            getattr(self, step.what)(**step.args)
            self.check_alive()

    def check_alive(self):
        """Nobody ends by himself, but a router by a fault point."""
        if self.router.process is None or self.router.process.poll() is not None:
            if self.fault_now is None:
                status = self.router.wait_exit() if self.router.process else None
                raise AssertionError(f"walbusd ended with {status}")
            self.end_fault()
        for name, recorder in self.recorders.items():
            status = recorder.process.poll()
            assert status is None, f"the recorder of {name} ended with {status}: {recorder.errors()[-2000:]}"
        for publisher in self.publishers:
            if publisher.failure is not None:
                raise publisher.failure
        if self.once is not None and not self.once.runs:
            self.restart_once(self.once.process.returncode)

    def restart_once(self, status):
        """As what runs it does, or its operator."""
        if status == LOST and self.truth.accepted_gaps:
            # From the cursor that the router has in the new journal.
            self.lost += 1
            with self.effects.connect() as conn:
                conn.run("DELETE FROM walbus_position")
        else:
            # The one that was overtaken has committed behind what this one had loaded: only the database knows who is first.
            assert status == OVERTAKEN and self.may_be_overtaken, f"{ONCE} ended with {status}: {self.once.errors()[-2000:]}"
            self.may_be_overtaken = False
        self.start_once()

    def end_fault(self):
        """The router without its fault point, whether that was reached or not."""
        if self.fault_now is None:
            return
        status = self.router.process.poll()
        self.note(f"fault {self.fault_now}: {'still there' if status is None else f'ended with {status}'}")
        # A router that begins and cannot write its catalog says so and ends, for whatever runs it to try again.
        ends = {None, -signal.SIGKILL} | ({1} if self.fault_now.startswith("catalog-commit") else set())
        assert status in ends, f"walbusd ended with {status}"
        self.fault_now = None
        self.router.kill()
        places.assert_no_sanitizer_report(self.router.log(), "walbusd")
        self.router.env.pop("WALBUS_FAULT")
        self.router.spawn()

    def kill_router(self, down):
        self.end_fault()
        self.router.kill()
        time.sleep(down)
        self.router.spawn()

    def restart_router(self, down, followed=False):
        """followed: not before everybody follows the one that runs, and who takes everything has had something of it."""
        self.end_fault()
        # Before that SIGTERM ends it as any program that has not begun yet.
        wait_for(self.router.status, 30, "the router listens")
        if followed:
            since = self.truth.clean_stops[-1][1] if self.truth.clean_stops else 0
            for name in self.recorders:
                wait_for(lambda name=name: any(session.time > since and (session.frames or name != "everything")
                                               for session in self.sessions(name)[-1:]), 30, f"{name} follows")
        began = time.monotonic()
        self.router.stop()
        self.truth.clean_stops.append((began, time.monotonic()))
        time.sleep(down)
        self.router.spawn()

    def pause_router(self, seconds, meanwhile, args):
        self.router.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds / 2)
            if meanwhile is not None:
                getattr(self, meanwhile)(**args)
            time.sleep(seconds / 2)
        finally:
            self.router.process.send_signal(signal.SIGCONT)

    def kill_walsender(self):
        with self.server.connect() as conn:
            conn.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")

    def crash_server(self, down):
        self.server.stop("immediate")
        time.sleep(down)
        self.server.start()

    def restart_server(self, down):
        took = self.server.stop("fast")
        assert took < SHUTDOWN_SECONDS, f"the server's fast shutdown took {took:.1f} s"
        time.sleep(down)
        self.server.start()

    def kill_recorder(self, name, down):
        self.recorders[name].kill()
        time.sleep(down)
        self.start_recorder(name)

    def pause_recorder(self, name, seconds):
        self.recorders[name].freeze()
        time.sleep(seconds)
        self.recorders[name].thaw()

    def change_filters(self, name, which):
        self.recorders[name].kill()
        self.which[name] = which
        self.start_recorder(name)

    def take_over(self, name):
        before = self.recorders[name]
        self.start_recorder(name, take_over=True)
        try:
            wait_for(lambda: self.recorders[name].reader.read().sessions or not self.recorders[name].runs, 3,
                     "the second one is there")
        except TimeoutError:
            pass  # while the router waits for its server, or is not there, nothing is answered
        if self.recorders[name].reader.read().sessions and before.runs:
            # It was told so; or it lost its connection before it could be, and would be refused from now on.
            try:
                assert before.process.wait(2) == TAKEN_OVER, before.errors()[-2000:]
            except subprocess.TimeoutExpired:
                pass
        before.kill()

    def kill_once(self, down):
        self.once.kill()
        time.sleep(down)
        self.start_once()

    def take_over_once(self):
        """The first one goes on until it is told, or until its COMMIT would be behind the other's."""
        before = self.once
        self.may_be_overtaken = True
        self.start_once(take_over=True)
        try:
            status = before.process.wait(1.5)
            # Behind an accepted gap it may have learnt first that its position is of the journal before.
            expected = {OVERTAKEN} | ({LOST} if self.truth.accepted_gaps else set())
            assert status in expected, f"{ONCE} that was overtaken ended with {status}: {before.errors()[-2000:]}"
        except subprocess.TimeoutExpired:
            before.kill()  # while the router is not there, nobody is told

    def crash_effects(self, down):
        self.effects.stop("immediate")
        time.sleep(down)
        self.effects.start()

    def fill_disk(self, left):
        """left: so many bytes of it stay free; the journal may take some of them meanwhile."""
        room = os.statvfs(self.state)
        least = room.f_bavail * room.f_frsize - left
        with open(os.path.join(self.state, "filler"), "wb") as f:
            size = 0
            for piece in (1 << 20, 4096):
                try:
                    while size + piece <= least:
                        os.posix_fallocate(f.fileno(), size, piece)
                        size += piece
                except OSError as e:
                    assert e.errno == errno.ENOSPC, e

    def free_disk(self):
        os.unlink(os.path.join(self.state, "filler"))

    def fault(self, setting, seconds, reached=None):
        """A router that comes to harm by itself. reached: it must die of it, or log that, within these seconds."""
        self.end_fault()
        self.router.kill()
        self.fault_now = setting
        self.truth.failing_reads |= "journal-read" in setting
        self.router.env["WALBUS_FAULT"] = setting
        before = len(self.router.log())
        self.router.spawn()
        if reached is not None:
            wait_for(lambda: re.search(reached, self.router.log()[before:]) or self.router.process.poll() is not None, seconds,
                     f"{setting} is reached")
            return
        try:
            self.router.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass  # it stays there for the steps to come

    # ---- other servers

    def rows(self, server):
        with server.connect() as conn:
            return {name for name, in conn.rows("SELECT id FROM emitted")}

    def emit(self, conn, prefix):
        """A message of the schedule's own, with its row; returns its id."""
        number = next(self.own)
        emission = Emission(f"own.{number}", prefix, True, "own", number, number, self.epoch)
        emission.order = number
        self.truth.add([emission])
        conn.run("WITH noted AS (INSERT INTO emitted VALUES (%s) RETURNING id) "
                 "SELECT pg_logical_emit_message(true, %s, content(id, 1)) FROM noted", emission.id, prefix)
        return emission.id

    def settle(self, seconds=60):
        """Everybody gets what is there; meanwhile nothing more is published."""
        self.end_fault()
        for publisher in self.publishers:
            publisher.held.set()
        wait_for(lambda: self.router.status() and self.router.status()["state"] in ("streaming", "paused"), seconds,
                 "the router streams")
        with self.server.connect() as conn:
            marker = self.emit(conn, MARKER)
        self.wait_recorded(marker, seconds)
        for publisher in self.publishers:
            publisher.held.clear()

    def has(self, name, message_id):
        if name == ONCE:
            with self.effects.connect() as conn:
                return one(conn, "SELECT count(*) FROM effects WHERE id = %s", message_id) > 0
        return any(message_id in reader.read().ids for reader in self.readers[name])

    def wait_recorded(self, message_id, seconds):
        deadline = Deadline(seconds, f"everybody has {message_id}")
        names = [*SUBSCRIBERS, *([ONCE] if self.once else [])]
        for name in names:
            while not self.has(name, message_id):
                self.check_alive()
                try:
                    time.sleep(min(0.05, deadline.left()))
                except TimeoutError:
                    missing = [n for n in names if not self.has(n, message_id)]
                    raise TimeoutError(f"not within {seconds} s: the last message, {message_id}, has not come to {missing}; "
                                       f"status {json.dumps(self.router.status(), default=str)}") from None

    def replace_server(self, new, down):
        """`new` runs and is what everybody is led to from now on; the other one is down."""
        time.sleep(down)
        self.epoch += 1
        self.server = new
        self.address.lead(new)

    def rows_of_the_dead(self, old):
        old.start()
        try:
            return self.rows(old)
        finally:
            old.stop("immediate")

    def make_standby(self):
        """Before anything is published, and before the router's heartbeats: to begin with, a synchronized slot waits for
        every transaction that is open, prepared ones for long."""
        with self.server.connect() as conn:
            conn.run("SELECT pg_create_physical_replication_slot('standby', true)")
        self.standby = Server(backup_of=self.server)
        self.servers.append(self.standby)
        self.standby.forget_slots()
        self.standby.touch("standby.signal")
        self.standby.set(primary_conninfo=f"{self.server.dsn()} application_name=standby", primary_slot_name="standby",
                         hot_standby_feedback="on", wal_receiver_status_interval="1s", wal_retrieve_retry_interval="200ms")
        self.standby.start()
        self.synchronize_slot(advance=True)

    def synchronize_slot(self, advance=False):
        """advance: nobody reads the slot yet."""
        with self.server.connect() as conn, self.standby.connect() as other:
            def synchronized():
                conn.run("SELECT pg_log_standby_snapshot()")
                if advance:
                    conn.run("SELECT pg_replication_slot_advance('walbus', pg_current_wal_flush_lsn())")
                try:
                    other.run("SELECT pg_sync_replication_slots()")
                except psycopg2.errors.ObjectNotInPrerequisiteState as e:
                    if "ahead of the standby position" in str(e):  # the router has acknowledged what is still on its way there
                        return False
                    raise
                return one(other, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walbus' AND synced "
                                  "AND NOT temporary") == 1
            wait_for(synchronized, 40, "the standby has the slot", every=0.1)

    def wait_standby(self):
        with self.server.connect() as conn, self.standby.connect() as other:
            now = one(conn, "SELECT pg_current_wal_flush_lsn()")
            wait_for(lambda: one(other, "SELECT pg_last_wal_receive_lsn() >= %s", now), 40, "the standby has all")

    def failover(self, behind, down):
        self.settle()
        old, standby = self.server, self.standby
        if not behind:  # from now on the router is told only what the standby has
            old.reload(synchronized_standby_slots="standby")
        self.wait_standby()
        self.synchronize_slot()
        if behind:
            standby.reload(primary_conninfo="")
            time.sleep(0.4)
        self.address.lead(None)
        old.stop("immediate")
        standby.promote()
        with open(os.path.join(standby.data, "pg_wal", "00000002.history"), encoding="utf-8") as f:
            self.switch_lsn = parse_lsn(re.match(r"1\t(\S+)", f.read()).group(1))
        if behind:
            self.truth.lost = self.rows_of_the_dead(old) - self.rows(standby)
            self.truth.unfinished_gaps = True
        standby.set(primary_conninfo=None, primary_slot_name=None)
        self.replace_server(standby, down)

    def restore(self, traffic, down):
        self.settle()
        old = self.server
        copy = Server(backup_of=old)
        self.servers.append(copy)
        self.settle()  # so that what is read goes beyond the copy
        self.address.lead(None)
        old.stop("immediate")
        lost = self.rows_of_the_dead(old)
        copy.start()
        copied = self.rows(copy)
        with copy.connect() as conn:
            for _ in range(traffic):
                self.emit(conn, "orders.created")
        self.truth.lost = lost - copied
        self.truth.copied = copied
        self.replace_server(copy, down)
        status = self.router.wait_exit(60)
        assert status == 4, f"walbusd ended with {status}, before a server that was restored"
        self.truth.accepted_gaps = True
        eras = self.router.log().count(" journal.new-era ")
        self.router.args.append("--accept-gap")
        self.router.spawn()
        self.router.args.remove("--accept-gap")
        # It may stream before it sees what it has to accept, and one that is killed in between has accepted nothing.
        wait_for(lambda: self.router.log().count(" journal.new-era ") > eras, 60, "a new era begins")
        self.router.wait_state("streaming", 60)

    # ---- the end

    def finish(self):
        """Lets everything run until everybody has the last message; returns the findings."""
        self.end_fault()
        for publisher in self.publishers:
            publisher.stop()
            self.truth.add(publisher.emissions)
        draw = self.schedule.random
        with self.server.connect() as conn:
            for name, in conn.rows("SELECT gid FROM pg_prepared_xacts ORDER BY gid"):
                conn.run(f"{draw.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{name}'")
            marker = self.emit(conn, MARKER)
            self.note(f"the last message is {marker}")
        self.wait_recorded(marker, END_SECONDS)
        for name, recorder in self.recorders.items():
            status = recorder.finish()
            assert status == 0, f"the recorder of {name} ended with {status}: {recorder.errors()[-2000:]}"
        if self.once is not None:
            status = self.once.finish()
            assert status == 0, f"{ONCE} ended with {status}: {self.once.errors()[-2000:]}"
        if self.schedule.policy:
            self.quarantine = self.listed()
            self.release()
        began = time.monotonic()
        self.router.stop()
        self.truth.clean_stops.append((began, time.monotonic()))
        self.truth.committed = self.rows(self.server)
        return self.compare()

    # ---- the quarantine

    def command(self, *arguments):
        return walbus("quarantine", "--socket", self.router.socket, *arguments)

    def listed(self):
        """All entries, each with what its content says."""
        done = self.command("list", "--json")
        assert done.status == 0, done
        entries = []
        with Connection(self.router.socket, 10) as connection:
            connection.hello(10)
            for entry in json.loads(done.text):
                content = b""
                while len(content) < entry["size"]:
                    args = {"id": entry["id"], "from": len(content)}
                    content += connection.request("quarantine-show", args, 30)["content"]
                prefix = entry["prefix"].encode()
                name, fault = id_of(content, prefix)
                entries.append(Entry(entry["journal"], entry["id"], parse_position(entry["position"]),
                                     prefix.decode("latin-1"), entry["transactional"], name, entry["status"], fault))
        return entries

    def release(self):
        """One that only lacked a trusted key comes once that is trusted, as a new message, once; what is altered does not."""
        by_form = {}
        for entry in self.quarantine:
            if entry.id in self.truth.emissions:
                by_form.setdefault(self.truth.emissions[entry.id].form, []).append(entry)
        self.write_trust(signed.trust_file(unknown=True))
        done = walbus("reload", "--socket", self.router.socket)
        assert done.status == 0, done
        draw = self.schedule.random
        for form in (signed.ALTERED, signed.MOVED):
            if form in by_form:
                done = self.command("release", str(draw.choice(by_form[form]).number))
                assert done.status == 1 and "bad-signature" in done.error, done
        if signed.UNKNOWN not in by_form:
            return
        entry = draw.choice(by_form[signed.UNKNOWN])
        self.note(f"release {entry}")
        with self.server.connect() as conn:
            sub = self.router.subscriber(name="released")
            # The journal may not have it on disk yet, and after a restart its connection to publish over comes by and by.
            wait_for(lambda: self.command("release", str(entry.number)).status == 0, 30, f"{entry} is released")
            message, = sub.collect(1)
            assert id_of(message.content, message.prefix) == (entry.id, None), message
            assert message.prefix.decode("latin-1") == entry.prefix
            places_before = [e.position for e in self.quarantine if e.identity == sub.subscribed["identity"]]
            assert message.position > max(places_before, default=message.position._replace(timeline=0)), (message, entry)
            assert sub.drain(conn) == []
            sub.confirm()
            sub.close()
            self.router.kill()
            self.router.start()
            sub = self.router.subscriber(name="released")
            assert sub.drain(conn) == []
            sub.close()
        left_there = [e for e in self.quarantine if e.number != entry.number]
        assert self.listed() == left_there, "the quarantine is not what it was, without what was released"
        assert self.command("release", str(entry.number)).status == 1

    def compare(self):
        truth = self.truth
        alone = [emission for emission in truth.emissions.values() if not emission.transactional]
        last = self.epoch
        truth.flushed = {emission.id for emission in alone if emission.flushed and (
            emission.epoch == last or (self.switch_lsn is not None and emission.lsn <= self.switch_lsn))}
        if truth.copied is not None:
            truth.copied = truth.copied | {emission.id for emission in alone if emission.epoch < last}
        histories = {name: self.sessions(name) for name in SUBSCRIBERS}
        self.left = sum(left(truth, session) is not None for sessions in histories.values() for session in sessions)
        errors = {name: [code for reader in self.readers[name] for code in reader.errors] for name in SUBSCRIBERS}
        took_effect = None
        if self.once is not None:
            self.once.errors()
            rows, gaps = effects(self.effects)
            filters = Session(0, "", (0, 0, 0), [(KINDS[kind], text) for kind, text in ONCE_FILTERS])
            took_effect = (rows, gaps, filters)
            # what a position of before is worth in another journal is not for it to say
            assert self.lost >= len({row.identity for row in rows}) - 1, f"{ONCE} went from one journal to another by itself"
        self.note(summary(truth, histories, took_effect, self.quarantine))
        return check(truth, histories, errors, took_effect, self.quarantine)

    def keep(self):
        """What is left for people to look at; its folder."""
        for recorder in self.recorders.values():
            recorder.kill()
        kept = [("walbusd.log", self.router.log_path)]
        kept += [(f"server{i}.log", server.log_path) for i, server in enumerate(self.servers)]
        for name, path in kept:
            if os.path.exists(path):
                shutil.copyfile(path, os.path.join(self.folder, name))
        with open(os.path.join(self.folder, "schedule"), "w", encoding="utf-8") as f:
            f.write(f"{self.schedule}\n\n" + "\n".join(self.log) + "\n")
        with open(os.path.join(self.folder, "emitted"), "w", encoding="utf-8") as f:
            for publisher in self.publishers:
                self.truth.emissions.update((emission.id, emission) for emission in publisher.emissions)
            for emission in self.truth.emissions.values():
                state = [word for word in ("committed", "flushed", "lost") if emission.id in getattr(self.truth, word)]
                f.write(json.dumps([emission.id, emission.prefix, emission.transactional, emission.unit, emission.order,
                                    emission.epoch, emission.lsn, state, emission.form]) + "\n")
        with open(os.path.join(self.folder, "quarantine"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(entry) + "\n" for entry in self.quarantine)
        if self.mounted:  # the router's journal and catalog too
            kept_state = os.path.join(self.folder, "state.kept")
            subprocess.run(["cp", "-a", "--sparse=always", self.state, kept_state], check=False)
            if os.path.exists(os.path.join(kept_state, "filler")):
                os.unlink(os.path.join(kept_state, "filler"))
        return self.folder

    def close(self, keep):
        """keep: the folder stays."""
        for publisher in self.publishers:
            try:
                publisher.stop()
            except Exception as e:  # it is told already, or of no account behind another failure
                self.note(f"publisher {publisher.name}: {e}")
        for recorder in self.recorders.values():
            recorder.kill()
        if self.once is not None:
            self.once.kill()
        if self.router.process is not None:
            self.router.process.send_signal(signal.SIGCONT)
            self.router.kill()
        shutil.rmtree(self.router.folder, ignore_errors=True)
        for server in self.servers:
            server.close()
        self.address.__exit__(None, None, None)
        if self.mounted:
            subprocess.run(["umount", "-l", self.state], check=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def summary(truth, histories, took_effect, quarantine):
    """One line of how much was tried."""
    alone = sum(1 for emission in truth.emissions.values() if not emission.transactional)
    parts = [f"{len(truth.emissions)} emitted, {alone} of them not transactional, {len(truth.committed)} committed, "
             f"{len(truth.flushed)} flushed"]
    for name, sessions in histories.items():
        messages = [message.id for session in sessions for message in session.messages]
        parts.append(f"{name}: {len(sessions)} sessions, {len(set(messages))} messages, "
                     f"{len(messages) - len(set(messages))} again")
    if took_effect is not None:
        parts.append(f"{ONCE}: {len(took_effect[0])} effects")
    if truth.withheld:
        parts.append(f"quarantine: {len(quarantine)} entries")
    return "; ".join(parts)
