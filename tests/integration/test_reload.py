# SPDX-License-Identifier: PostgreSQL
"""The settings read again: SIGHUP, the request, the command. All of the file counts, or nothing of it."""

import json
import os
import re
import signal

import pytest
from harness.command import walbus
from harness.router import Router
from harness.subscriber import RouterError, request
from harness.waiting import wait_for


@pytest.fixture
def router(bus):
    with Router(bus.dsn()) as made:
        made.conf = os.path.join(made.folder, "walbus.conf")
        made.args = ["--config", made.conf, "--expire-after", "7d"]
        write(made, "allow = any subscribe a", "log-level = info")
        made.start()
        yield made


def write(router, *lines):
    with open(router.conf, "w", encoding="utf-8") as file:
        file.write("\n".join(["[walbusd]", *lines, ""]))


def hang_up(router, event="router.reload"):
    """SIGHUP, and the fields of the line that says what came of it."""
    before = len(router.logged(event))
    router.process.send_signal(signal.SIGHUP)
    return wait_for(lambda: router.logged(event)[before:], 10, f"{event} is logged")[0]


def test_what_changes(router, conn):
    """What is reloadable is in force; what is not waits for a restart, each time; what an option says stays."""
    sub = router.subscriber("a")
    assert request(router.socket, "reload") == {"changed": [], "restart": []}
    write(router, "log-level = debug", "allow = any subscribe b", "connections-per-uid = 7", "journal-size = 2GB",
          "heartbeat-interval = 9s", "expire-after = 1d", "audience = x", "quarantine-size = 2MB")
    want = {"changed": ["allow", "connections-per-uid", "audience", "quarantine-size", "log-level"],
            "restart": ["journal-size", "heartbeat-interval"]}
    assert request(router.socket, "reload") == want
    assert [line["settings"] for line in router.logged("router.reload-restart")] == ["journal-size heartbeat-interval"]
    assert request(router.socket, "reload") == {"changed": [], "restart": want["restart"]}
    assert router.logged("session.state")  # which is of debug
    write(router)
    assert hang_up(router) == {"by": "SIGHUP", "changed": " ".join(want["changed"])}
    assert request(router.socket, "reload") == {"changed": [], "restart": []}
    conn.emit("a", b"1")
    assert sub.seen(sub.collect(1)) == [(b"a", b"1")]
    router.stop()


@pytest.mark.parametrize("lines, why", [
    (["log-level = debug", "sloot = x"], ':3: unknown setting "sloot"; did you mean "slot"?'),
    (["log-level = debug", "allow = any read >"],
     ':3: allow: found "read"; what is allowed is subscribe, durable or control'),
    (["log-level = debug", "log-level = error"], ":3: log-level was set before, in line 2"),
    (["log-level = debug", "bytes-per-uid = 1kB"], ':3: bytes-per-uid is "1kB", but must be from 1MB to 64MB'),
    (["log-level = debug", "allow = group:no-such-group control status"],
     ':3: allow = group:no-such-group control status: there is no group "no-such-group"'),
    (["policy = a ignore", "policy = orders.> require # all"],
     ':3: policy = orders.> require # all: expected a pattern and ignore, verify or require, as in "orders.> require"; '
     "there are more than two words; behind a value a comment begins with ';'"),
    (["trust-file = /no/trust", "policy = > verify"],
     ":2: policy needs the trust file: /no/trust: It cannot be opened: No such file or directory. Make it with walbus "
     "trust, or name it by trust-file"),
    (None, ": the file is not there any more"),
])
def test_a_mistake_changes_nothing(router, lines, why):
    write(router, *lines) if lines else os.unlink(router.conf)
    want = router.conf + why
    with pytest.raises(RouterError) as error:
        request(router.socket, "reload")
    assert (error.value.code, error.value.fatal) == ("invalid", False)
    assert error.value.text == "nothing has changed: " + want
    assert hang_up(router, "router.reload-failed")["error"] == want.replace('"', '\\"')
    assert len(router.logged("router.reload-failed")) == 2
    assert not router.logged("router.reload") and not router.logged("session.state")
    write(router, "allow = any subscribe a")
    assert request(router.socket, "reload") == {"changed": [], "restart": []}


def hang_up_is(pid):
    """What a process does with SIGHUP: "default", "ignored" or "caught"."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        masks = dict(re.findall(r"^(SigIgn|SigCgt):\t(\w+)$", f.read(), re.M))
    return "ignored" if int(masks["SigIgn"], 16) & 1 else "caught" if int(masks["SigCgt"], 16) & 1 else "default"


def test_a_signal_at_the_start(bus):
    """There is nothing to be read again yet, and it is no reason to end."""
    with Router(bus.dsn()) as router:
        for _ in range(20):  # the machine may be busy just when it could be seen
            router.spawn()
            wait_for(lambda: hang_up_is(router.process.pid) != "default", 20, "the program has begun", every=0.0005)
            if hang_up_is(router.process.pid) == "ignored":
                break
            router.wait_state("streaming")
            router.stop()
        assert hang_up_is(router.process.pid) != "default"
        router.process.send_signal(signal.SIGHUP)
        router.wait_state("streaming")
        assert hang_up_is(router.process.pid) == "caught"


def test_without_a_file(bus):
    """There is none, and none is missed; one that comes later is read."""
    with Router(bus.dsn()) as router:
        router.start()
        assert request(router.socket, "reload") == {"changed": [], "restart": []}


def test_what_is_no_file(router):
    """Nobody waits for what may never come: a pipe is refused, and the router goes on."""
    os.unlink(router.conf)
    os.mkfifo(router.conf)
    done = walbus("reload", "--socket", router.socket, "--config", "/dev/null")
    assert done.status == 1 and "is a pipe, and must be a regular file" in done.error, done
    assert request(router.socket, "status")["state"] == "streaming"
    for command in (["status"], ["tail", "--no-follow"]):
        done = walbus(*command, "--socket", router.socket, "--config", router.conf)
        assert done.status == 2 and "is a pipe" in done.error, done
    os.unlink(router.conf)
    os.mkdir(router.conf)
    done = walbus("reload", "--socket", router.socket, "--config", "/dev/null")
    assert done.status == 1 and "is a folder, and must be a regular file" in done.error, done


def test_command(router):
    """`walbus reload` prints what has changed."""
    def run(*arguments):
        done = walbus("reload", "--socket", router.socket, "--config", "/dev/null", *arguments)
        return done.status, done.text, done.error
    assert run() == (0, "Nothing has changed.\n", "")
    write(router, "allow = any subscribe b", "log-level = warning", "sync-interval = 11ms")
    assert run() == (0, "Changed: allow, log-level.\nTakes effect at a restart of the router: sync-interval.\n", "")
    assert json.loads(run("--json")[1]) == {"changed": [], "restart": ["sync-interval"]}
    write(router, "nonsense")
    status, text, error = run()
    assert (status, text) == (1, "")
    assert error == (f"walbus reload: nothing has changed: {router.conf}:2: neither a [section] nor \"name = value\" "
                     "(invalid)\n")
    assert run("x")[0] == 2
