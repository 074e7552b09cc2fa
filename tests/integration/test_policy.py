# SPDX-License-Identifier: PostgreSQL
"""What the router does with messages whose signature is not valid: policy, and what stays out of the journal."""

import base64
import os
import pathlib
import shutil
from contextlib import contextmanager

import pytest
from harness import cbor, places
from harness.command import walbus
from harness.router import Router
from harness.waiting import wait_for


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


def signed(server, signer, prefix, data):
    """The content of an event that was signed for this prefix."""
    with server.connect() as conn:
        before = conn.run("SELECT pg_current_wal_insert_lsn()")
    del before
    done = walbus("publish", "--dsn", server.dsn(), "--key", signer.key, prefix, data)
    assert done.status == 0, done
    return done.text.strip()


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
