# SPDX-License-Identifier: PostgreSQL
"""What the router does with messages whose signature is not valid: policy, and what stays out of the journal."""

import ast
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from faults.schedule import faults_of
from harness import places
from harness.command import walbus
from harness.router import Router
from harness.subscriber import RouterError, request
from harness.waiting import wait_for

NOBODY = 65534


class Signer:
    """A key, and a trust file in which it may sign orders.>; contents come from `walbus publish`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.key = str(self.folder / "orders.key")
        self.trust = str(self.folder / "trust")
        done = walbus("keygen", self.key)
        assert done.status == 0, done
        self.kid = done.text.strip()
        self.allow("orders.>")

    def allow(self, *patterns):
        public = base64.b64encode(pathlib.Path(self.key + ".pub").read_bytes()).decode()
        text = f"[{self.kid}]\nkey = {public}\n" + "".join(f"allow = {p}\n" for p in patterns) if patterns else ""
        self.write(text)

    def write(self, text):
        new = self.folder / "trust.new"
        new.write_text(text, encoding="utf-8")
        os.rename(new, self.trust)


@pytest.fixture(scope="module")
def folder():
    made = places.new_folder("walbus-policy-")
    yield made
    shutil.rmtree(made)


@pytest.fixture
def signer(folder):
    return Signer(places.new_folder("signer-", folder))


def policy(signer, *lines, more=()):
    return [*(f"--policy={line}" for line in lines), f"--trust-file={signer.trust}", *more]


@contextmanager
def guarded(bus, signer, *lines, more=(), start=True, **kw):
    with Router(bus.dsn(), args=policy(signer, *(lines or ("orders.> require",)), more=more), **kw) as router:
        if start:
            router.start()
        yield router


def signed(server, signer, prefix, data, *options):
    """Publishes an event that is signed for this prefix."""
    done = walbus("publish", "--dsn", server.dsn(), "--key", signer.key, *options, prefix, data)
    assert done.status == 0, done


def command(router, *arguments, status=0):
    done = walbus("quarantine", "--socket", router.socket, *arguments)
    assert done.status == status, done
    return done


def listed(router):
    return json.loads(command(router, "list", "--json").text)


def quarantine(router):
    return router.status()["quarantine"]


def wait_entries(router, n):
    wait_for(lambda: quarantine(router)["entries"] == n, 15, f"{n} messages are in quarantine")


def test_required(bus, conn, signer):
    with guarded(bus, signer) as router:
        sub = router.subscriber()
        signed(bus, signer, "orders.created", "17")
        message = sub.collect(1)[0]
        assert message.prefix == b"orders.created"
        content = message.content
        conn.emit("orders.created", b"unsigned")
        conn.emit("orders.moved", content)
        conn.emit("orders.created", content[:-1] + bytes([content[-1] ^ 1]))
        conn.emit("orders.created", content)  # a copy of a valid one is valid
        conn.emit("payments.done", b"nobody asks")
        assert [(m.prefix, m.content) for m in sub.drain(conn)] == [(b"orders.created", content),
                                                                    (b"payments.done", b"nobody asks")]
        status = router.status()
        assert status["quarantine"]["entries"] == status["quarantine"]["withheld"] == 3
        assert {k: v for k, v in status["signatures"].items() if v} == {"valid": 2, "unsigned": 1, "bad-signature": 2}
        assert router.logged("policy.withheld")
        assert "unsigned" not in [m.content for m in sub.drain(conn)]


def test_transaction_partly_withheld(bus, conn, signer):
    """Its frames say how many messages there were; of one that is wholly withheld nothing is seen."""
    with guarded(bus, signer) as router:
        sub = router.subscriber()
        sub.checks.everything = False  # indices are missing where something was withheld
        conn.begin()
        conn.emit("orders.a", b"1")
        conn.emit("orders.b", b"2")
        conn.commit()
        conn.begin()
        conn.emit("orders.a", b"3")
        conn.emit("other", b"4")
        conn.emit("orders.a", b"5")
        conn.commit()
        conn.emit("orders.a", b"6", transactional=False)
        sub.drain(conn)
        late = router.subscriber(start="oldest")
        late.checks.everything = False
        late.drain(conn)
        for each in (sub, late):
            messages = [m for m in each.messages if m.prefix == b"other"]
            assert [(m.content, m.position.index) for m in messages] == [(b"4", 2)]
            begun = [m.position[:2] for m in messages] + [m.position[:2] for m in each.messages if m.prefix != b"other"]
            assert sorted({b[:2] for b in each.begins}) == sorted(set(begun))  # none for what is wholly withheld
            assert [c.messages for c in each.commits if c.begin[:2] == messages[0].position[:2]] == [3]
            assert not each.gaps
        wait_entries(router, 5)


def test_list_and_show(bus, conn, signer):
    with guarded(bus, signer) as router:
        assert command(router).error == "There is nothing in quarantine.\n"
        conn.begin()
        conn.emit("orders.a", b"first")
        conn.emit("orders.b", b"x" * 600000)
        conn.commit()
        conn.emit("orders.\u00e9", b"", transactional=False)
        wait_entries(router, 3)
        first, second, third = listed(router)
        assert [e["id"] for e in (first, second, third)] == [1, 2, 3]
        assert [e["prefix"] for e in (first, second, third)] == ["orders.a", "orders.b", "orders.\u00e9"]
        assert [e["size"] for e in (first, second, third)] == [5, 600000, 0]
        assert [e["transactional"] for e in (first, second, third)] == [True, True, False]
        assert {e["status"] for e in (first, second, third)} == {"unsigned"}
        assert first["position"].endswith(":1") and second["position"].endswith(":2")
        assert first["journal"].endswith("/1")
        assert command(router, "show", "2", "--raw").out == b"x" * 600000
        assert command(router, "show", first["position"], "--raw").out == b"first"
        assert command(router, "show", "3", "--raw").out == b""
        text = command(router, "show", "1").text
        assert "prefix    orders.a\n" in text and "status    unsigned\n" in text and first["position"] in text
        lines = command(router).text.splitlines()
        assert len(lines) == 4 and lines[0].startswith("ID ") and "orders.b" in lines[2]
        assert "no such message" in command(router, "show", "9", status=1).error
        for wrong in (["show"], ["show", "x"], ["show", "0"], ["release"], ["drop", "all", "1"], ["list", "1"], ["drop", "1", "--raw"],
                      ["throw", "1"]):
            assert command(router, *wrong, status=2).error


def test_many_are_listed_in_pages(bus, conn, signer):
    with guarded(bus, signer) as router:
        conn.run("SELECT pg_logical_emit_message(true, 'orders.' || i, 'x'::bytea) FROM generate_series(1, 450) i")
        wait_entries(router, 450)
        assert [e["prefix"] for e in listed(router)] == [f"orders.{i}" for i in range(1, 451)]
        assert command(router, "drop", "all").text == "Dropped 450 messages.\n"
        assert quarantine(router)["entries"] == 0 and listed(router) == []
        dropped, = router.logged("quarantine.dropped")  # one request, one line
        assert (dropped["first"], dropped["last"], dropped["messages"]) == ("1", "450", "450")
        assert command(router, "drop", "all").error == "There is nothing in quarantine.\n"
        assert quarantine(router)["file_bytes"] <= 4096


def test_all_is_what_stood_there(bus, conn, signer):
    """What comes while it is being done is none of it."""
    with guarded(bus, signer) as router:
        conn.run("SELECT pg_logical_emit_message(true, 'orders.' || i, 'x'::bytea) FROM generate_series(1, 250) i")
        wait_entries(router, 250)
        with subprocess.Popen([places.walbus(), "quarantine", "--socket", router.socket, "release", "all"],
                              env=places.child_environment(None), stderr=subprocess.PIPE, text=True) as releasing:
            first = releasing.stderr.readline()
            releasing.send_signal(signal.SIGSTOP)
            conn.run("SELECT pg_logical_emit_message(true, 'orders.' || i, 'x'::bytea) FROM generate_series(251, 300) i")
            wait_entries(router, 300)
            releasing.send_signal(signal.SIGCONT)
            said = (first + releasing.stderr.read()).splitlines()
        assert releasing.returncode == 1
        assert [line for line in said if "still in quarantine" in line] == [
            f"walbus quarantine: {i} is still in quarantine" for i in range(1, 251)]


def test_release(bus, conn, signer):
    """One whose key has been trusted since is published anew; others are refused with the mend."""
    signer.write("")
    with guarded(bus, signer) as router:
        sub = router.subscriber()
        conn.begin()
        conn.emit("orders.x", b"a transaction around it")
        conn.commit()
        signed(bus, signer, "orders.created", "17")
        wait_entries(router, 2)
        unsigned, unknown = listed(router)
        assert (unsigned["status"], unknown["status"], unknown["kid"]) == ("unsigned", "unknown-key", signer.kid)
        refused = command(router, "release", str(unknown["id"]), status=1)
        assert refused.error.startswith(f"walbus quarantine: {unknown['id']}: ")
        assert "unknown-key" in refused.error and "walbus trust add" in refused.error and "still in quarantine" in refused.error
        signer.allow("payments.>")
        assert walbus("reload", "--socket", router.socket).status == 0
        assert "not-allowed" in command(router, "release", str(unknown["id"]), status=1).error
        signer.allow("orders.>")
        assert walbus("reload", "--socket", router.socket).status == 0
        content = command(router, "show", str(unknown["id"]), "--raw").out
        both = command(router, "release", "all", status=1)
        assert f"Released {unknown['id']}.\n" == both.text
        assert "unsigned" in both.error and "signed and published anew" in both.error
        message, = sub.collect(1)
        assert (message.prefix, message.content) == (b"orders.created", content)
        assert [e["id"] for e in listed(router)] == [unsigned["id"]]
        assert router.logged("quarantine.released")[0]["id"] == str(unknown["id"])
        command(router, "drop", unsigned["position"])
        assert listed(router) == []
        assert "no such message" in command(router, "drop", "1", status=1).error
        gone = command(router, "release", str(unknown["id"]), status=1).error  # and nobody thinks that it was not released
        assert "no such message" in gone and "still in quarantine" not in gone
        assert router.logged("quarantine.dropped")[0]["first"] == str(unsigned["id"])
        assert [m.content for m in sub.drain(conn)] == []


def test_journal_fails_behind_the_quarantine(bus, conn, signer):
    """What went to quarantine has gone for everybody, who may have been passed over it: it stays there when it comes again, although it
    would be let through by then, and is not released before the journal has its place."""
    for _ in range(5):
        signer.write("")
        with guarded(bus, signer, env={"WALBUS_FAULT": "journal-write:6=EIO,journal-retry=EIO"}) as router:
            router.subscriber(name="durable").connection.close()
            sent = 0
            while not router.logged("journal.failed"):
                signed(bus, signer, "orders.created", str(sent), "--non-transactional")  # it has its mark with it
                sent += 1
                wait_for(lambda: router.logged("journal.failed") or quarantine(router)["entries"] == sent, 15, "it is in quarantine")
            if quarantine(router)["entries"] < sent:  # it failed with a mark alone
                continue
            last = listed(router)[-1]
            if router.status()["journal"]["newest"] == last["position"]:
                continue
            signer.allow("orders.>")
            assert walbus("reload", "--socket", router.socket).status == 0
            refused = command(router, "release", str(last["id"]), status=1)
            assert "the journal does not have yet" in refused.error and "still in quarantine" in refused.error
            content = command(router, "show", str(last["id"]), "--raw").out
            router.stop()
            router.env = {}
            router.start()
            sub = router.subscriber(name="durable")
            sub.checks.everything = False
            assert [m.content for m in sub.drain(conn)] == []
            assert len(listed(router)) == sent
            command(router, "release", str(last["id"]))
            assert [m.content for m in sub.drain(conn)] == [content]
            assert len(listed(router)) == sent - 1
            return
    pytest.fail("the journal never failed with a message")


def test_release_without_the_server(bus, conn, signer):
    with guarded(bus, signer) as router:
        conn.emit("orders.a", b"1")
        wait_entries(router, 1)
        bus.stop()
        try:
            wait_for(lambda: router.status()["state"] != "streaming", 20, "the router notices")
            assert "still in quarantine" in command(router, "release", "1", status=1).error
        finally:
            bus.start()
        router.wait_state("streaming")
        assert [e["id"] for e in listed(router)] == [1]


def test_restart(bus, conn, signer):
    """What is in quarantine stays; what the server sends again is known, also when policy is another by now."""
    with guarded(bus, signer) as router:
        router.subscriber(name="durable").connection.close()
        conn.emit("orders.a", b"1")
        conn.begin()
        conn.emit("orders.a", b"2")
        conn.emit("other", b"3")
        conn.commit()
        wait_entries(router, 2)
        router.kill()
        router.start()
        assert quarantine(router)["entries"] == 2
        router.stop()
        router.args = policy(signer, "> ignore")
        router.start()
        sub = router.subscriber(name="durable")
        sub.checks.everything = False
        conn.emit("orders.a", b"4")
        assert [m.content for m in sub.drain(conn)] == [b"3", b"4"]
        assert [e["id"] for e in listed(router)] == [1, 2]
        router.stop()


@pytest.mark.parametrize("fault", ["quarantine-write:1", "quarantine-wrote:2", "quarantine-sync:1", "quarantine-synced:1", "journal-write:2",
                                   "journal-sync:2", "journal-synced:2"])
def test_killed_between_quarantine_and_journal(bus, conn, signer, fault):
    with guarded(bus, signer, env={"WALBUS_FAULT": f"{fault}=kill"}) as router:
        router.subscriber(name="durable").connection.close()
        conn.begin()
        conn.emit("orders.a", b"1")
        conn.emit("other", b"2")
        conn.emit("orders.a", b"3")
        conn.commit()
        conn.emit("orders.b", b"4", transactional=False)
        try:
            for _ in range(20):
                conn.emit("other", b"more")
                router.process.wait(1)
        except subprocess.TimeoutExpired:
            pass
        wait_for(lambda: router.process.poll() is not None, 20, "the fault kills the router")
        router.process = None
        router.env = {}
        router.start()
        wait_entries(router, 3)
        entries = listed(router)
        assert [e["prefix"] for e in entries] == ["orders.a", "orders.a", "orders.b"]
        sub = router.subscriber(name="durable")
        sub.checks.everything = False
        assert {m.content for m in sub.drain(conn)} == {b"2", b"more"}
        assert len(listed(router)) == 3


def test_full(bus, conn, signer):
    """Nothing goes by itself: reading waits, loudly, until there is room."""
    with guarded(bus, signer, more=["--quarantine-size=1MB"]) as router:
        sub = router.subscriber()
        for i in range(3):
            conn.emit(f"orders.{i}", b"x" * 400000)
        conn.emit("other", b"behind")
        router.wait_state("paused")
        assert "quarantine is full" in router.status()["last_error"]
        full, = router.logged("quarantine.full")
        assert "quarantine list" in full["mend"] and full["entries"] == "2"
        conn.emit("other", b"later")
        assert not sub.messages
        command(router, "drop", "1")
        router.wait_state("streaming")
        assert [m.content for m in sub.collect(2)] == [b"behind", b"later"]
        assert [e["prefix"] for e in listed(router)] == ["orders.1", "orders.2"]
        assert router.logged("quarantine.goes-on")
        conn.emit("orders.3", b"x" * 400000)  # and it can be stopped while it stands
        router.wait_state("paused")
        router.stop()
        assert not router.logged("quarantine.lost")  # the server sends it again
        router.args = policy(signer, "orders.> require")
        router.start()
        wait_entries(router, 3)


@pytest.mark.every_major
@pytest.mark.parametrize("seen_to", [True, False], ids=["seen to", "stopped"])
def test_full_does_not_hold_up_a_checkpoint(server, signer, seen_to):
    """The server lets go of a slot for which reading waits; what was read by then is not lost with it."""
    server.reload(max_slot_wal_keep_size="1MB", max_wal_size="4GB")  # no checkpoint begins by itself: it would go unseen
    server.create_bus()
    try:
        with server.connect() as conn, guarded(server, signer, more=["--quarantine-size=1MB"]) as router:
            sub = router.subscriber()
            for i in range(3):
                conn.emit(f"orders.{i}", b"x" * 400000)
            conn.emit("other", b"behind")
            router.wait_state("paused")
            conn.run("SELECT pg_logical_emit_message(true, 'other', repeat('y', 100000)::bytea) FROM generate_series(1, 1000)")
            wait_for(lambda: conn.rows("SELECT FROM pg_stat_activity WHERE backend_type = 'walsender' "
                                      "AND wait_event = 'WalSenderWriteData'"), 20, "the stream waits for the router")
            time.sleep(2)  # of what the server still does in between nothing tells
            conn.run("SET statement_timeout = '40s'")  # it ends the checkpoint that waits for the stream
            for _ in range(2):
                conn.run("CHECKPOINT")
            wait_for(lambda: router.logged("slot-invalidated"), 60, "the slot is gone")
            assert router.logged("source.wal-short")
            # now and then the server finds room for its last word, and need not wait
            assert router.logged("source.let-go") or router.logged("source.stream-ended"), router.log()
            time.sleep(3)  # as long as it would wait for somebody to come
            assert router.process.poll() is None and not sub.messages
            if seen_to:
                command(router, "drop", "1")
            else:
                router.process.send_signal(signal.SIGTERM)
            assert router.wait_exit(30) == 4
            # what was behind it may have been read too, or not
            lost, withheld = router.logged("quarantine.lost"), router.logged("policy.withheld")
            assert sum(int(line["messages"]) for line in withheld) == (3 if seen_to else 2)
            assert all(1 <= int(line["messages"]) <= 3 for line in lost) and len(lost) == (0 if seen_to else 1), lost
    finally:
        server.drop_bus()
        server.reload(max_slot_wal_keep_size=None, max_wal_size=None)


@pytest.mark.skipif("not faults_of(places.walbusd())", reason="this walbusd was built without -Dfaults=true")
def test_drop_beside_a_release(bus, conn, signer):
    """What is answered as dropped for good is never published: one refuses the other while it is under way, which takes a
    while here. Where the machine is busy it may be over before."""
    def tried(verb, i):
        try:
            return request(router.socket, f"quarantine-{verb}", {"id": i})
        except RouterError as e:
            return e.code

    with guarded(bus, signer, env={"WALBUS_FAULT": "quarantine-sync=slow"}) as router:
        for i in range(13):
            conn.emit("orders.a", b"%d" % (i + 1))
        wait_entries(router, 13)
        router.stop()
        router.args = policy(signer, "orders.> ignore")
        router.start()
        sub = router.subscriber("orders.>")
        answers, ids = {"drop": [], "release": []}, [e["id"] for e in listed(router)]
        for first, second, own in (("release", "drop", ids[:6]), ("drop", "release", ids[6:12])):
            for i in own:
                worker = threading.Thread(target=lambda: answers[first].append(tried(first, i)))  # pylint: disable=cell-var-from-loop
                worker.start()
                if first == "release":
                    sub.collect(1)  # it is published, and not yet removed
                else:
                    time.sleep(0.05)
                answers[second].append(tried(second, i))
                worker.join()
            if first == "release":
                assert [answer["id"] for answer in answers["release"]] == own
                assert all(answer in ("limit", {"dropped": 0}) for answer in answers["drop"]) and "limit" in answers["drop"], answers
                answers = {"drop": [], "release": []}
        assert answers["drop"] == [{"dropped": 1}] * 6, answers
        assert set(answers["release"]) <= {"limit", "unknown-name"} and "limit" in answers["release"], answers
        assert [e["id"] for e in listed(router)] == ids[12:]
        conn.emit("orders.z", b"end")
        sub.collect(1)
        assert [m.content for m in sub.messages] == [*(b"%d" % i for i in ids[:6]), b"end"]


def test_policy_taken_away(bus, signer):
    """By a file that is empty for a moment, say: it counts, and the log says what that means."""
    with guarded(bus, signer, start=False) as router:
        conf = os.path.join(router.folder, "walbus.conf")
        lines = f"[walbusd]\npolicy = orders.> require\ntrust-file = {signer.trust}\n"
        pathlib.Path(conf).write_text(lines, encoding="utf-8")
        router.args = ["--config", conf]
        router.start()
        for text, told in (("", 1), (lines, 1), ("", 2)):
            pathlib.Path(conf).write_text(text, encoding="utf-8")
            assert walbus("reload", "--socket", router.socket).status == 0
            assert len(router.logged("policy.none")) == told


def test_trust_without_keys(bus, conn, signer):
    """It is what somebody may want, or a mistake: nothing is valid, and the log says so."""
    signer.write("")
    with guarded(bus, signer) as router:
        line, = router.logged("policy.no-keys")
        assert line["path"] == signer.trust
        signed(bus, signer, "orders.a", "1")
        wait_entries(router, 1)
        assert [e["status"] for e in listed(router)] == ["unknown-key"]
        signer.allow("orders.>")
        assert walbus("reload", "--socket", router.socket).status == 0
        assert len(router.logged("policy.no-keys")) == 1
        signer.write("")
        assert walbus("reload", "--socket", router.socket).status == 0
        assert len(router.logged("policy.no-keys")) == 2


def test_full_of_small_ones(bus, conn, signer):
    """It goes on when some are dropped: what was read together, and must fit together, is a part of what fits."""
    with guarded(bus, signer, more=["--quarantine-size=1MB"]) as router:
        conn.run("SELECT pg_logical_emit_message(true, 'orders.a', ''::bytea) FROM generate_series(1, 9000)")
        router.wait_state("paused")
        before = quarantine(router)["entries"]
        assert before > 1000
        dropped = request(router.socket, "quarantine-drop", {"first": 1, "last": before // 2})["dropped"]
        assert dropped == before // 2
        wait_for(lambda: quarantine(router)["entries"] > before - dropped, 15, "more has come in")
        for _ in range(12):
            command(router, "drop", "all")
            if quarantine(router)["withheld"] == 9000:
                break
            wait_for(lambda: quarantine(router)["entries"], 15, "more has come in")
        assert quarantine(router)["withheld"] == 9000
        router.wait_state("streaming")


def test_disk_full(bus, conn, signer):
    with guarded(bus, signer, env={"WALBUS_FAULT": "quarantine-write:1=ENOSPC,quarantine-sync:1=EIO"}) as router:
        sub = router.subscriber()
        conn.emit("orders.a", b"1")
        conn.emit("other", b"2")
        assert [m.content for m in sub.collect(1)] == [b"2"]
        wait_entries(router, 1)
        errors = [line["error"] for line in router.logged("quarantine.failed")]
        assert errors[0] == "No space left on device"
        assert router.logged("quarantine.goes-on")


def test_reload(bus, conn, signer):
    """The policy, and a trust file of another content, take effect; a broken one changes nothing."""
    config = signer.folder / "walbus.conf"

    def configure(line):
        config.write_text(f"[walbusd]\npolicy = {line}\ntrust-file = {signer.trust}\n", encoding="utf-8")
    configure("orders.> verify")
    with Router(bus.dsn(), args=[f"--config={config}"]) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("orders.a", b"1")
        assert [m.content for m in sub.drain(conn)] == [b"1"]
        router.wait_log("policy.unverified")
        assert router.logged("policy.unverified")[0]["status"] == "unsigned"
        configure("orders.> require")
        assert walbus("reload", "--socket", router.socket).status == 0
        conn.emit("orders.a", b"2")
        assert sub.drain(conn) == [] and quarantine(router)["entries"] == 1
        signer.write("[zz]\n")
        refused = walbus("reload", "--socket", router.socket)
        assert refused.status == 1 and "trust file" in refused.error and "line 1" in refused.error
        signed(bus, signer, "orders.a", "3")
        assert len(sub.drain(conn)) == 1  # the keys of before
        signer.write("")
        router.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(router.logged("router.reload")) == 2, 10, "it is read again")
        assert [line["changed"] for line in router.logged("router.reload")] == ["policy", "trust-file"]
        assert walbus("reload", "--socket", router.socket).text == "Nothing has changed.\n"
        signed(bus, signer, "orders.a", "4")
        assert sub.drain(conn) == []
        assert [e["status"] for e in listed(router)] == ["unsigned", "unknown-key"]


def test_the_documented_policy(bus, signer):
    """As operations.md prints it, comments and all, with a trust file of our own."""
    with open(os.path.join(places.ROOT, "docs", "operations.md"), encoding="utf-8") as page:
        lines = page.read().partition("\n## Signatures that are asked for\n")[2].split("\n")
    block = [line[4:] for line in lines[:lines.index("| policy | what happens |")] if line.startswith("    ")]
    config = signer.folder / "walbus.conf"
    config.write_text("\n".join(block).replace("/etc/walbus/trust", signer.trust), encoding="utf-8")
    assert "[walbusd]" in block and signer.trust in config.read_text(encoding="utf-8")
    with Router(bus.dsn(), args=[f"--config={config}"]) as router:
        router.start()


@pytest.mark.parametrize("text", [None, "[zz]\n", "nothing = of this\n", 0o666])
def test_no_trust_file_at_the_start(bus, signer, text):
    if text is None:
        os.unlink(signer.trust)
    elif isinstance(text, int):  # everybody could add a key
        os.chmod(signer.trust, text)
    else:
        signer.write(text)
    for line, status in (("orders.> require", 2), ("orders.> verify", 2), ("orders.> demand", 2)):
        with guarded(bus, signer, line, start=False) as router:
            router.spawn()
            assert router.wait_exit() == status
            error = router.logged("router.settings")[0]["error"]
            if isinstance(text, int) and "demand" not in line:
                assert error.endswith("chmod o-w it")
            assert "trust file" in error if "demand" not in line else "ignore, verify or require" in error
    with guarded(bus, signer, "orders.> ignore"):
        pass


def test_answers_that_nobody_reads(bus, conn, signer):
    """What is about the quarantine is counted before it is made: all of one user's at once are no more than he may have."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    more = ["--allow=user:nobody control quarantine-show quarantine-list", "--socket-mode=0666", "--bytes-per-uid=1MB"]
    with guarded(bus, signer, more=more) as router:
        conn.emit("orders.a", b"x" * 400000)
        wait_entries(router, 1)
        os.chmod(router.folder, 0o755)
        code = """if True:
            import os, sys
            sys.path.insert(0, %r)
            from harness.subscriber import REQUEST, Connection, Deadline, RouterError
            os.setuid(%d)
            clients = [Connection(%r) for _ in range(60)]
            for c in clients:
                c.hello()
            for c in clients:
                c.send(REQUEST, {"id": 1, "what": "quarantine-show", "args": {"id": 1}})
            print("asked", flush=True)
            sys.stdin.readline()
            counts = {"answered": 0}
            for c in clients:
                try:
                    c.receive(Deadline(20, "an answer"))
                    counts["answered"] += 1
                except RouterError as e:
                    counts[e.code] = counts.get(e.code, 0) + 1
            print(counts, flush=True)
            """
        command_line = [sys.executable, "-c", code % (os.path.dirname(__file__), NOBODY, router.socket)]
        with subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
            assert asking.stdout.readline() == "asked\n"
            router.status()  # they were asked for before
            out, _ = asking.communicate("\n", timeout=60)
        counts = ast.literal_eval(out)
        # a chunk is 256 KiB, and the room for it up to twice as large
        assert 1 <= counts["answered"] <= 3 and counts == {"answered": counts["answered"], "limit": 60 - counts["answered"]}


def test_prefix_that_is_no_text(server, signer):
    """It says so by its name, as tail's does. A pattern cannot name it: the setting is UTF-8, the prefix is not."""
    database = "latin_policy"
    server.create_database(database, "LATIN1")
    server.create_bus(database)
    try:
        with server.connect(database) as conn, Router(server.dsn(database), args=policy(signer, "*.x require")) as router:
            router.start()
            conn.raw.set_client_encoding("UTF8")
            conn.emit("größe.x", b"a")
            wait_entries(router, 1)
            entry, = listed(router)
            assert base64.b64decode(entry["prefix_base64"]) == "größe.x".encode("latin-1") and "prefix" not in entry
            shown = json.loads(command(router, "show", "--json", "1").text)
            assert shown["prefix_base64"] == entry["prefix_base64"]
        with Router(server.dsn(database), args=policy(signer, "größe.> require")) as router:
            router.spawn()
            assert router.wait_exit() == 2
            assert "not ASCII" in router.logged("router.settings")[0]["error"]
    finally:
        server.drop_bus(database)


def test_audience_that_nobody_can_sign_for(bus, signer):
    for audience in (" prod", "prod\x01", "a" * 256):
        with guarded(bus, signer, more=["--audience", audience], start=False) as router:
            router.spawn()
            assert router.wait_exit() == 2
            assert "audience" in router.log()


def test_forbidden_to_others(bus, conn, signer):
    """A rule lets somebody look and not drop."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    with guarded(bus, signer, more=["--allow=user:nobody control quarantine-list", "--socket-mode=0666"]) as router:
        conn.emit("orders.a", b"1")
        wait_entries(router, 1)
        os.chmod(router.folder, 0o755)

        def ask(what, args):
            code = ("import sys; sys.path.insert(0, %r); from harness.subscriber import request; import os; os.setuid(%d)\n"
                    "try: print(request(%r, %r, %r))\nexcept Exception as e: print(e)")
            done = subprocess.run([sys.executable, "-c", code % (os.path.dirname(__file__), NOBODY, router.socket, what, args)],
                                  capture_output=True, text=True, timeout=30, check=True)
            return done.stdout
        assert "orders.a" in ask("quarantine-list", {})
        assert "forbidden" in ask("quarantine-drop", {"id": 1})
        router.args[router.args.index("--allow=user:nobody control quarantine-list")] = "--allow=user:nobody control status"
        router.stop()
        router.start()
        program = shutil.copy(places.walbus(), router.folder)
        for which in ("drop", "release"):
            done = subprocess.run([program, "quarantine", "--socket", router.socket, which, "all"], user=NOBODY, group=NOBODY,
                                  extra_groups=[], env=places.child_environment(None), cwd="/", capture_output=True, text=True,
                                  timeout=30, check=False)
            assert done.returncode == 1 and done.stderr.startswith("walbus quarantine: ") and "null" not in done.stderr, done
        router.args[router.args.index("--allow=user:nobody control status")] = "--allow=user:nobody control quarantine-list"
        router.stop()
        router.start()
        conn.emit("orders.a", b"2")
        wait_entries(router, 2)
        program = shutil.copy(places.walbus(), router.folder)
        for which in (["drop", "all"], ["release", "all"], ["drop", "1", "2"]):
            done = subprocess.run([program, "quarantine", "--socket", router.socket, *which], user=NOBODY, group=NOBODY, extra_groups=[],
                                  env=places.child_environment(None), cwd="/", capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 1 and done.stderr.count(" may not ") == 1, done  # what holds for one holds for all
        assert quarantine(router)["entries"] == 2
