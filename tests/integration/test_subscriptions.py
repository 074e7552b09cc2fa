# SPDX-License-Identifier: PostgreSQL
"""`walbus subscriptions`: list, remove, move."""

import os
import signal
from datetime import datetime, timezone

import pytest
from faults.schedule import faults_of
from harness import places
from harness.command import Running, walbus
from harness.fake_router import FakeRouter
from harness.router import Router
from harness.subscriber import RouterError, Subscriber
from harness.waiting import wait_for

LIST = [
    {"name": "audit", "position": "1:0/16B3748:4294967295", "lag_messages": 0, "lag_bytes": 0, "lag_seconds": 0,
     "connected": True, "pid": 4711},
    {"name": "größe", "position": "1:0/64:0", "lag_messages": 5000000, "lag_bytes": 1610612736, "lag_seconds": 7260,
     "connected": False, "pid": None},
]


@pytest.fixture
def fake():
    with FakeRouter() as fake:
        yield fake


def asked(fake, *arguments, **answer):
    """The command, and a router that answers its one request."""
    with Running("subscriptions", "--socket", fake.path, *arguments) as running:
        fake.answer(**answer)
        return running.wait_exit()


# ---- what the command makes of answers

def test_the_list(fake):
    done = asked(fake, what="subscriptions", result={"subscriptions": LIST})
    assert (done.status, done.error) == (0, ""), done
    assert done.text == (
        "NAME   POSITION                MESSAGES  BYTES   BEHIND  HELD BY\n"
        "audit  1:0/16B3748:4294967295  0         0 B     0 s     pid 4711\n"
        "größe  1:0/64:0                5000000   1.5 GB  2 h     -\n")


def test_one_that_is_suspended(fake):
    marked = dict(LIST[1], suspended="the router\x1b cannot read it", suspended_since="2026-01-15T10:30:00.000000Z")
    done = asked(fake, what="subscriptions", result={"subscriptions": [marked, LIST[0]]})
    assert (done.status, done.error) == (0, ""), done
    assert done.text.splitlines()[2:] == [
        "  suspended since 2026-01-15T10:30:00.000000Z: the router\\x1b cannot read it",
        "audit  1:0/16B3748:4294967295  0         0 B     0 s     pid 4711"]


def test_the_list_as_json(fake):
    done = asked(fake, "--json", what="subscriptions", result={"subscriptions": LIST})
    assert (done.status, done.error, done.json_lines()) == (0, "", [LIST]), done


def test_an_empty_list(fake):
    done = asked(fake, what="subscriptions", result={"subscriptions": []})
    assert (done.status, done.text, done.error) == (0, "", "There are no durable subscriptions.\n"), done
    done = asked(fake, "--json", what="subscriptions", result={"subscriptions": []})
    assert (done.status, done.text, done.error) == (0, "[]\n", ""), done


@pytest.mark.parametrize("result", [{"a": 1}, {"subscriptions": {}}, 7, "x", None, []])
def test_an_answer_that_is_no_list(fake, result):
    done = asked(fake, what="subscriptions", result=result)
    assert (done.status, done.text) == (1, ""), done
    assert done.error == "walbus subscriptions: The router's answer cannot be read.\n"


def test_remove(fake):
    done = asked(fake, "rm", "größe", what="remove", args={"name": "größe"}, result={})
    assert (done.status, done.text, done.error) == (0, "Removed größe.\n", ""), done


@pytest.mark.parametrize("where", ["now", "oldest", "1:0/16B3748:3"])
def test_seek(fake, where):
    done = asked(fake, "seek", "billing", where, what="seek", args={"name": "billing", "position": where}, result={})
    assert (done.status, done.text, done.error) == (0, "Moved billing.\n", ""), done


@pytest.mark.parametrize("code", ["unknown-name", "forbidden", "held", "invalid", "unsupported"])
@pytest.mark.parametrize("arguments", [["rm", "billing"], ["seek", "billing", "now"]])
def test_refusals(fake, arguments, code):
    args = {"name": "billing"} if arguments[0] == "rm" else {"name": "billing", "position": "now"}
    done = asked(fake, *arguments, what="remove" if arguments[0] == "rm" else "seek", args=args, error=(code, "No."))
    assert (done.status, done.text, done.error) == (1, "", f"walbus subscriptions: No. ({code})\n"), done


@pytest.mark.parametrize("arguments", [
    ["rm"], ["rm", "a", "b"], ["rm", ""], ["rm", "a b"], ["seek"], ["seek", "a"], ["seek", "a", "now", "b"],
    ["seek", "a", "yesterday"], ["seek", "a", "2026-01-15T10:30:00Z"], ["seek", "a", "-15min"], ["seek", "a", ""],
    ["seek", "n" * 256, "now"], ["remove", "a"], ["list"]])
def test_wrong_usage(arguments):
    done = walbus("subscriptions", "--socket", "/nonexistent/s", "--", *arguments)
    assert (done.status, done.text) == (2, ""), done
    assert done.error.endswith("Try 'walbus subscriptions --help'.\n"), done


@pytest.mark.parametrize("arguments", [[], ["rm", "a"], ["seek", "a", "now"]])
def test_no_router(arguments):
    done = walbus("subscriptions", "--socket", "/nonexistent/s", *arguments)
    assert (done.status, done.text) == (3, ""), done
    assert "/nonexistent/s" in done.error


def test_help():
    done = walbus("subscriptions", "--help")
    assert done.status == 0
    for words in ("rm NAME", "seek NAME WHERE", "--json", "Only the router's own user"):
        assert words in done.text, words


# ---- with a router

def entry(router, name):
    found = [one for one in listed(router) if one["name"] == name]
    assert len(found) <= 1, found
    return found[0] if found else None


def listed(router):
    done = walbus("subscriptions", "--json", "--socket", router.socket)
    assert done.status == 0, done
    return done.json_lines()[0]


def test_what_is_listed(router, conn):
    assert listed(router) == []
    with Subscriber(router.socket, ["a.>"], name="billing") as sub:
        one = entry(router, "billing")
        assert one["connected"] is True and one["pid"] == os.getpid(), one
        for i in range(3):
            conn.emit("a.b", f"{i}".encode())
        messages = sub.collect(3)
        sub.confirm(messages[0].position)
    with Subscriber(router.socket, ["b.>"], name="audit"):
        pass

    def lags():
        one = entry(router, "billing")
        return one if not one["connected"] and one["lag_messages"] == 2 else None
    one = wait_for(lags, 10, "billing is two messages behind")
    assert one["position"] == str(messages[0].position)
    assert one["lag_bytes"] >= 2 and one["lag_seconds"] >= 0 and not one.get("pid")
    assert [one["name"] for one in listed(router)] == ["audit", "billing"]
    # what nothing matches behind lags behind nothing
    wait_for(lambda: entry(router, "audit")["lag_messages"] == 0, 10, "audit floats")
    status = walbus("status", "--json", "--socket", router.socket).json_lines()[0]
    assert {one["name"]: one["lag_messages"] for one in status["subscriptions"]} == {"audit": 0, "billing": 2}
    text = walbus("subscriptions", "--socket", router.socket).text.splitlines()
    assert [line.split()[0] for line in text] == ["NAME", "audit", "billing"]
    assert walbus("status", "--socket", router.socket).status == 0


def test_remove_and_seek(router, conn):
    with Subscriber(router.socket, ["a"], name="billing") as sub:
        for i in range(4):
            conn.emit("a", f"{i}".encode(), transactional=False)
        messages = sub.collect(4)
        sub.confirm()

    def contents(count, **kw):
        with Subscriber(router.socket, ["a"], name="billing", start="stored", **kw) as sub:
            got = [(m.content, sub.is_redelivered(m)) for m in sub.collect(count)]
            return got

    socket = ["--socket", router.socket]
    assert walbus("subscriptions", "seek", "billing", str(messages[1].position), *socket).text == "Moved billing.\n"
    assert contents(2) == [(b"2", True), (b"3", True)]
    assert walbus("subscriptions", "seek", "billing", "oldest", *socket).status == 0
    assert contents(4) == [(f"{i}".encode(), True) for i in range(4)]
    assert walbus("subscriptions", "seek", "billing", "now", *socket).status == 0
    conn.emit("a", b"new", transactional=False)
    assert contents(1) == [(b"new", False)]

    # not while somebody has it
    with Running("tail", "--durable", "billing", "a", *socket) as running:
        running.wait_ready()
        for arguments in (["rm", "billing"], ["seek", "billing", "oldest"]):
            done = walbus("subscriptions", *arguments, *socket)
            assert done.status == 1 and done.error.endswith("(held)\n"), done
            assert str(running.process.pid) in done.error
        assert running.stop().status == 0
    wait_for(lambda: not entry(router, "billing")["connected"], 10, "nobody has it")
    assert walbus("subscriptions", "rm", "billing", *socket).text == "Removed billing.\n"
    assert listed(router) == []
    with pytest.raises(RouterError) as refused:
        Subscriber(router.socket, ["a"], name="billing", start="stored")
    assert refused.value.code == "unknown-name"
    for arguments in (["rm", "billing"], ["seek", "billing", "now"]):
        done = walbus("subscriptions", *arguments, *socket)
        assert done.status == 1 and done.error.endswith("(unknown-name)\n"), done


@pytest.mark.skipif("journal-read" not in faults_of(places.walbusd()), reason="walbusd was built without -Dfaults=true")
def test_suspended(bus, server, conn):
    """The disk fails under one of three, who alone notices. It is said until it is read for again, or moved."""
    why = "the router cannot read its journal: Input/output error"

    def refused():
        with Subscriber(router.socket, ["a"], name="billing", start="stored") as sub:
            error = sub.refused()
            assert (error.code, error.text, error.fatal) == ("journal", why, True) and not sub.messages

    def emit(first, count):
        for i in range(first, first + count):
            last = conn.emit("a", f"{i}".encode())
        wait_for(lambda: server.slot()["confirmed"] > last, 15, "what comes now is read from the journal")

    def numbers(messages):
        return [int(m.content) for m in messages]

    with Router(bus.dsn(), env={"WALBUS_FAULT": "journal-read=EIO"}) as router:
        router.start()
        for name in ("billing", "away"):
            with Subscriber(router.socket, ["a"], name=name):
                pass
        with Subscriber(router.socket, ["a"], name="live") as live:
            emit(1, 3)
            assert numbers(live.collect(3)) == [1, 2, 3]
            assert [("suspended" in one, "suspended_since" in one) for one in listed(router)] == [(False, False)] * 3
            before = datetime.now(timezone.utc)
            refused()
            one = wait_for(lambda: entry(router, "billing"), 10, "the list")
            assert one["suspended"] == why, one
            since = datetime.fromisoformat(one["suspended_since"].replace("Z", "+00:00"))
            assert before <= since <= datetime.now(timezone.utc), one
            assert ["suspended" in one for one in listed(router)] == [False, True, False]
            text = walbus("subscriptions", "--socket", router.socket).text.splitlines()
            assert text[3] == f"  suspended since {one['suspended_since']}: {why}" and len(text) == 5, text
            assert why in walbus("status", "--socket", router.socket).text
            # it may try, and then nothing new is said
            refused()
            assert entry(router, "billing")["suspended_since"] == one["suspended_since"]
            (logged,) = router.logged("durable.suspended")
            assert (logged["subscription"], logged["why"]) == ("billing", why)
            assert len(router.logged("journal.unreadable")) == 1
            # the others go on
            emit(4, 2)
            assert numbers(live.collect(2)) == [4, 5]
            live.confirm()
        router.stop()

        router.env = {}
        router.start()
        kept = entry(router, "billing")
        assert (kept["suspended"], kept["suspended_since"]) == (why, one["suspended_since"])
        with Subscriber(router.socket, ["a"], name="billing", start="stored") as sub:
            assert numbers(sub.collect(5)) == [1, 2, 3, 4, 5]
            assert "suspended" not in entry(router, "billing")
            sub.confirm()
        assert [line["subscription"] for line in router.logged("durable.unsuspended")] == ["billing"]
        router.stop()

        # one read alone fails
        router.env = {"WALBUS_FAULT": "journal-read:1=EIO"}
        router.start()
        emit(6, 2)
        refused()
        with Subscriber(router.socket, ["a"], name="away", start="stored") as sub:
            assert numbers(sub.collect(7)) == [1, 2, 3, 4, 5, 6, 7]
        assert entry(router, "billing")["suspended"] == why
        assert walbus("subscriptions", "seek", "billing", "oldest", "--socket", router.socket).status == 0
        assert "suspended" not in entry(router, "billing")
        router.kill()
        router.env = {}
        router.start()
        assert ["suspended" in one for one in listed(router)] == [False] * 3
        with Subscriber(router.socket, ["a"], name="billing", start="stored") as sub:
            assert numbers(sub.collect(7)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_router_that_does_not_answer_in_time(router):
    """Who only looks is told that; who wanted to change something, that it may be changed."""
    with Subscriber(router.socket, ["a"], name="billing"):
        pass
    router.process.send_signal(signal.SIGSTOP)
    try:
        commands = [Running("subscriptions", *what, "--socket", router.socket)
                    for what in ([], ["rm", "billing"], ["seek", "billing", "oldest"])]
        for command in commands:
            assert command.wait_exit(30).status == 3
        looks, *changes = [command.err.decode().strip() for command in commands]
    finally:
        router.process.send_signal(signal.SIGCONT)
    says = f"walbus subscriptions: The router at {router.socket} does not answer."
    assert looks == says
    assert changes == [says + " What was asked for may be done all the same, or soon be."] * 2
