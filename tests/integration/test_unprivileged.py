# SPDX-License-Identifier: PostgreSQL
"""The router as a user without any right, as the unit runs it: end to end, and what it says of what it may not do. No
secret comes into its log or its command line."""

import base64
import json
import os
import re
import shutil
import stat

import pytest
from harness import places
from harness.command import walbus
from harness.identity import run_as
from harness.router import Router
from harness.server import Server
from harness.waiting import wait_for

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")

ROUTER, OTHER = 4713, 4714  # users that no machine has
PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="module")
def server():
    """One that asks the router's role for its password."""
    with Server() as made:
        path = os.path.join(made.data, "pg_hba.conf")
        with open(path, encoding="utf-8") as file:
            rules = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write("local all bus scram-sha-256\n" + rules)
        made.start()
        with made.connect() as conn:
            conn.run(f"CREATE ROLE bus LOGIN REPLICATION PASSWORD '{PASSWORD}'")
        yield made


@pytest.fixture(scope="module")
def programs():
    """Copies that everybody can run: the tree may stand below a folder that others may not enter."""
    folder = places.new_folder("walbus-un-")
    for program in (places.walbusd(), places.walbus()):
        shutil.copy(program, folder)
    yield folder
    shutil.rmtree(folder)


class Unprivileged(Router):
    """Its user, no capability, none to be had, and nothing else that is the user's but its folder."""

    def __init__(self, server, programs, password=PASSWORD, settings=()):
        super().__init__(server.dsn(user="bus"))
        os.chmod(self.folder, 0o711)
        os.chown(self.folder, ROUTER, ROUTER)
        self.program = os.path.join(self.folder, "run")
        self.conf = self.private("walbus.conf", "[walbusd]\n" + "".join(f"{line}\n" for line in (
            f"dsn = {self.dsn} password={password}", f"slot = {self.slot}", f"publication = {self.publication}",
            f"socket = {self.socket}", f"state-dir = {self.state_dir}", "socket-mode = 0666", *settings)))
        with open(self.program, "w", encoding="utf-8") as file:
            # The words of the harness are left out: they would stand before the file's.
            file.write("#!/bin/sh\n"
                       f"exec setpriv --reuid={ROUTER} --regid={ROUTER} --clear-groups --no-new-privs --inh-caps=-all "
                       f"--bounding-set=-all --pdeathsig=KILL {programs}/walbusd --config {self.conf}\n")
        os.chmod(self.program, 0o755)

    def private(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o600)
        os.chown(path, ROUTER, ROUTER)
        return path

    def of_process(self, name):
        with open(f"/proc/{self.pid}/{name}", "rb") as file:
            return file.read()


@pytest.fixture
def signer(programs):
    folder = places.new_folder("key-", programs)
    key = os.path.join(folder, "orders.key")
    done = walbus("keygen", key)
    assert done.status == 0, done
    trust = os.path.join(folder, "trust")
    done = walbus("trust", "--trust", trust, "add", key + ".pub", "orders.>")
    assert done.status == 0, done
    os.chmod(trust, 0o644)
    return key, trust


def test_end_to_end(bus, conn, programs, signer):
    key, trust = signer
    with Unprivileged(bus, programs, settings=(f"trust-file = {trust}", "policy = orders.> require",
                                               f"allow = user:{OTHER} subscribe notes.>")) as router:
        router.start()

        # Who it is, and what it has.
        status = router.of_process("status").decode()
        assert re.search(r"^Uid:\s+4713\s+4713\s+4713\s+4713$", status, re.M), status
        assert re.search(r"^Groups:\s*$", status, re.M) and re.search(r"^NoNewPrivs:\s+1$", status, re.M), status
        assert set(re.findall(r"^Cap\w+:\s+(\w+)$", status, re.M)) == {"0" * 16}, status
        socket = os.lstat(router.socket)
        assert (socket.st_uid, stat.S_IMODE(socket.st_mode)) == (ROUTER, 0o666)
        state = os.lstat(router.state_dir)
        assert (state.st_uid, stat.S_IMODE(state.st_mode)) == (ROUTER, 0o700)
        assert {os.lstat(os.path.join(at, name)).st_uid
                for at, folders, files in os.walk(router.state_dir) for name in folders + files} == {ROUTER}

        def tail(uid, *arguments):
            """Exit status, and of each message its prefix."""
            done = run_as(uid, os.path.join(programs, "walbus"), "tail", "--socket", router.socket,
                          "--output", "json", "--count", *arguments)
            return done.returncode, [json.loads(line)["prefix"] for line in done.stdout.splitlines()]

        # What is signed goes through, what is not is kept back; its own user may do all, others what rules say.
        assert walbus("publish", "--dsn", bus.dsn(), "--key", key, "orders.created", "17").status == 0
        conn.emit("orders.created", b"unsigned")
        conn.emit("notes.one", b"one")
        assert tail(ROUTER, "2", "--from", "oldest", "--durable", "billing") == (0, ["orders.created", "notes.one"])
        assert tail(OTHER, "1", "--from", "oldest", "notes.>") == (0, ["notes.one"])
        assert tail(OTHER, "1", "--from", "oldest", "orders.>") == (1, [])
        wait_for(lambda: router.status()["quarantine"]["entries"] == 1, 15, "one is in quarantine")

        # A crash and a stop.
        router.kill()
        conn.emit("notes.two", b"two")
        router.start()
        assert tail(ROUTER, "1", "--durable", "billing") == (0, ["notes.two"])
        assert PASSWORD.encode() not in router.of_process("cmdline") + router.of_process("environ")
        router.stop()
        for secret in secrets_of(key):
            assert secret not in router.log()


def secrets_of(key):
    """Forms in which the password or the private key could be written."""
    with open(key, "rb") as file:
        content = file.read()
    # The key's secret is what the public file lacks: -4, 32 bytes.
    secret = content[content.index(b"\x23\x58\x20") + 3:][:32]
    assert len(secret) == 32
    return PASSWORD, secret.hex(), secret.hex().upper(), base64.b64encode(secret).decode(), base64.b64encode(
        content).decode()


@pytest.mark.parametrize("password, words", [
    ("wrong-horse-staple", "password authentication failed"),
    # One that was not put in quotes: libpq would repeat a piece of it.
    ("wrong horse-staple", "missing \"...\" in connection info string"),
    ("'wrong horse-staple", "unterminated quoted string"),
])
def test_a_password_that_is_wrong_is_not_repeated(bus, programs, password, words):
    with Unprivileged(bus, programs, password=password) as router:
        router.spawn()
        wait_for(lambda: words.lower() in router.log().lower(), 20, "the log says what is wrong")
        assert "horse-staple" not in router.log()
        if "authentication" not in words:
            assert router.wait_exit() == 2
        else:
            router.kill()


def test_state_of_somebody_else(bus, programs):
    with Unprivileged(bus, programs) as router:
        os.mkdir(router.state_dir, 0o700)
        router.spawn()
        assert router.wait_exit() == 1, router.log()
        assert router.state_dir in router.log() and "Permission denied" in router.log()


def test_trust_file_that_cannot_be_read(bus, programs, signer):
    _, trust = signer
    os.chmod(trust, 0o600)
    with Unprivileged(bus, programs, settings=(f"trust-file = {trust}", "policy = orders.> require")) as router:
        router.spawn()
        wait_for(lambda: trust in router.log() and "Permission denied" in router.log(), 20, "the log names the file")
        router.wait_exit()
        assert f"chmod 644 {trust}" in router.log() and "Make it with walbus trust" not in router.log()
