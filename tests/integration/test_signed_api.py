# SPDX-License-Identifier: PostgreSQL
"""libwalbus' signatures, from C: tests/integration/signed_api.c publishes by every call and says what it sees."""

import base64
import os
import pathlib
import shutil
import subprocess

import pytest
from harness import places
from harness.command import Running, walbus

VALID_ONLY = 0x10
API = os.path.join("tests", "integration", "signed_api")


def built(path=API):
    program = os.path.join(places.build_dir(), path)
    if not os.path.exists(program):
        pytest.skip(f"{program} was not built")
    return program


@pytest.fixture
def folder():
    made = places.new_folder("walbus-keys-")
    yield pathlib.Path(made)
    shutil.rmtree(made)


def new_key(folder, name):
    """Path and id of a new private key."""
    path = str(folder / name)
    done = walbus("keygen", path)
    assert done.status == 0, done
    return path, done.text.strip()


def write_trust(folder, path, kid, *allow):
    key = base64.b64encode(pathlib.Path(f"{path}.pub").read_bytes()).decode()
    trust = folder / "trust"
    trust.write_text(f"[{kid}]\nkey = {key}\n" + "".join(f"allow = {pattern}\n" for pattern in allow), encoding="utf-8")
    return str(trust)


def follow(router, trust="-", name="-", flags=0):
    return Running("follow", router.socket, trust, name, str(flags), program=[built()])


def publish(server, key, other):
    done = subprocess.run([built(), "publish", server.dsn(), key, other], env=places.child_environment(), cwd="/",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                          check=False)
    text = done.stdout.decode(errors="replace")
    places.assert_no_sanitizer_report(text, "signed_api")
    assert done.returncode == 0 and text.endswith("\nall checks are ok\n"), text


def lines_of(running):
    done = running.wait_exit(60)
    assert done.status == 0, done
    return [line for line in done.text.splitlines() if line not in ("ready", "begin", "commit")]


def test_by_every_call(server, router, folder):
    (key, kid), (other, other_kid) = new_key(folder, "key"), new_key(folder, "other")
    trust = write_trust(folder, key, kid, "orders.>", "end")
    with follow(router, trust) as trusting, follow(router) as bare:
        trusting.wait_lines(1), bare.wait_lines(1)
        publish(server, key, other)
        said = [
            ("orders.one signed", "valid", kid, "1"),
            ("orders.many signed", "valid", kid, "2"),
            ("payments.many signed", "not-allowed", kid, "3"),
            ("orders.many signed", "valid", kid, "4"),
            ("orders.sent signed", "valid", kid, "5"),
            ("orders.sent signed", "valid", kid, "6"),
            ("orders.raw opaque", "unsigned", "-", "7"),
            ("orders.now signed", "valid", kid, "8"),
            ("orders.one signed", "bad-signature", kid, "9"),
            ("orders.one signed", "unknown-key", other_kid, "10"),
            ("orders.one event", "unsigned", "-", "11"),
            ("end signed", "valid", kid, "12"),
        ]
        assert lines_of(trusting) == [f"message {' '.join(line)}" for line in said] + ["withheld 0"]
        nothing = [(what, status if status == "unsigned" else "unknown-key", *rest) for what, status, *rest in said]
        assert lines_of(bare) == [f"message {' '.join(line)}" for line in nothing] + ["withheld 0"]


def test_only_what_is_valid(server, router, folder):
    """Under a durable name: what is withheld is behind its cursor, so only what was not acknowledged comes again."""
    (key, kid), (other, _) = new_key(folder, "key"), new_key(folder, "other")
    trust = write_trust(folder, key, kid, "orders.>", "end")
    valid = [f"message orders.{what} signed valid {kid} {n}"
             for what, n in (("one", 1), ("many", 2), ("many", 4), ("sent", 5), ("sent", 6), ("now", 8))]
    end = f"message end signed valid {kid} 12"
    with follow(router, trust, "valid", VALID_ONLY) as running:
        running.wait_lines(1)
        publish(server, key, other)
        # 3, 7, 9 and 11 lie in transactions, 10 does not.
        assert lines_of(running) == valid + ["progress", end, "withheld 5"]
    with follow(router, trust, "valid", VALID_ONLY) as running:
        assert lines_of(running) == [end, "withheld 0"]


def test_a_trust_file_that_is_refused(router, folder):
    (folder / "trust").write_text("what\n", encoding="utf-8")
    with follow(router, str(folder / "trust")) as running:
        done = running.wait_exit(60)
        assert done.status == 1 and done.text == "NOT OK  open: WALBUS_BAD_TRUST\n"
        assert done.error.endswith('/trust: line 1: "what" is neither [KID] nor `name = value`.\n')


def test_examples(server, router, folder):
    """examples/publish_signed.c and subscribe_valid.c."""
    (key, kid), (other, _) = new_key(folder, "key"), new_key(folder, "other")
    trust = write_trust(folder, key, kid, "orders.>")
    with Running(trust, program=[built("examples/subscribe_valid")], env={"WALBUS_SOCKET": router.socket}) as running:
        running.wait_ready()
        for who, prefix, lines in ((other, "orders.a", "forged\n"), (key, "orders.a", "one\ntwo\n"), (key, "b", "no\n"),
                                   (key, "orders.b", "three")):
            done = subprocess.run([built("examples/publish_signed"), server.dsn(), who, prefix], input=lines.encode(),
                                  env=places.child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=60, check=False)
            assert done.returncode == 0 and done.stdout.count(b"\n") == len(lines.splitlines()), done
        assert running.wait_lines(3) == [f"{kid} orders.{what}".encode() for what in ("a one", "a two", "b three")]
    done = subprocess.run([built("examples/publish_signed"), server.dsn(), f"{key}.pub", "a"], input=b"x",
                          env=places.child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                          check=False)
    assert done.returncode == 1 and b"Others than its owner" in done.stderr
