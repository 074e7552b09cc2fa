# SPDX-License-Identifier: PostgreSQL
"""Signed events from one end to the other: `keygen`, `publish --key`, `tail --trust`; and where the secret is."""

import base64
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess

import pytest
from harness import cbor, memory, places
from harness.command import Running, walbus
from harness.waiting import wait_for


class Key:
    def __init__(self, folder, name, *options):
        self.path = str(folder / name)
        self.public_path = f"{self.path}.pub"
        done = walbus("keygen", *options, self.path)
        assert done.status == 0, done
        self.kid = done.text.strip()
        self.secret = cbor.loads(pathlib.Path(self.path).read_bytes())[-4]

    def section(self, *allow, more=""):
        public = pathlib.Path(self.public_path).read_bytes()
        return (f"[{self.kid}]\nkey = {base64.b64encode(public).decode()}\n"
                + "".join(f"allow = {pattern}\n" for pattern in allow) + more)


@pytest.fixture
def folder():
    made = places.new_folder("walbus-keys-")
    yield pathlib.Path(made)
    shutil.rmtree(made)


@pytest.fixture
def key(folder):
    return Key(folder, "orders.key")


def write_trust(folder, *sections):
    """Into the place of the old one, as an editor does."""
    path = folder / "trust"
    (folder / "trust.new").write_text("\n".join(sections), encoding="utf-8")
    os.rename(folder / "trust.new", path)
    return str(path)


def publish(server, *arguments, status=0, stdin=None):
    done = walbus("publish", "--dsn", server.dsn(), *arguments, stdin=stdin)
    assert done.status == status, done
    return done


def tail(router, *arguments):
    return Running("tail", "--socket", router.socket, *arguments)


def signatures(running, n):
    return [line.get("signature") for line in map(json.loads, running.wait_lines(n))]


def test_published_signed_and_followed(server, router, key, folder):
    trust = write_trust(folder, key.section("orders.>"))
    with tail(router, "--output", "json", "--trust", trust) as trusting, tail(router, "--output", "json") as bare:
        trusting.wait_ready(), bare.wait_ready()
        done = publish(server, "--key", key.path, "orders.paid", '{"order": 17}')
        publish(server, "orders.paid", '{"order": 18}')
        publish(server, "--key", key.path, "payments.done", "1")
        publish(server, "--key", key.path, "--audience", "staging", "orders.paid", "1")
        valid, unsigned, elsewhere, staging = map(json.loads, trusting.wait_lines(4))
        assert valid["signature"] == {"status": "valid", "kid": key.kid}
        assert valid["event"]["data"] == {"order": 17} and valid["event"]["id"] == done.text.strip()
        assert valid["event"]["type"] == "orders.paid" and "payload_base64" not in valid
        assert unsigned["event"]["data"] == {"order": 18} and "signature" not in unsigned
        assert elsewhere["signature"] == {"status": "not-allowed", "kid": key.kid}
        assert staging["signature"] == {"status": "bad-signature", "kid": key.kid}
        unknown = {"status": "unknown-key", "kid": key.kid}
        assert signatures(bare, 4) == [unknown, None, unknown, unknown]


def test_text_for_people(server, router, key, folder):
    trust = write_trust(folder, key.section("orders.>"))
    with tail(router, "--trust", trust) as trusting, tail(router) as bare:
        trusting.wait_ready(), bare.wait_ready()
        publish(server, "--key", key.path, "orders.paid", "1")
        publish(server, "orders.paid", "2")
        publish(server, "--key", key.path, "a", "3")
        ends = [re.sub(rb"^\S+ ", b"", line).decode() for line in trusting.wait_lines(3)]
        assert ends == [f"orders.paid (valid {key.kid}) 1", "orders.paid (unsigned) 2", f"a (not-allowed {key.kid}) 3"]
        ends = [re.sub(rb"^\S+ ", b"", line).decode() for line in bare.wait_lines(3)]
        assert ends == [f"orders.paid (unknown-key {key.kid}) 1", "orders.paid 2", f"a (unknown-key {key.kid}) 3"]


def test_audience(server, router, key, folder):
    trust = write_trust(folder, key.section(">"))
    with tail(router, "--output", "json", "--trust", trust, "--audience", "production") as running:
        running.wait_ready()
        for audience in ("production", "staging"):
            publish(server, "--key", key.path, "--audience", audience, "a", "1")
        publish(server, "--key", key.path, "a", "1")
        assert [s["status"] for s in signatures(running, 3)] == ["valid", "bad-signature", "bad-signature"]


def test_valid_only(server, router, conn, key, folder):
    other = Key(folder, "other.key")
    trust = write_trust(folder, key.section("orders.>"))
    with tail(router, "--output", "json", "--trust", trust, "--valid-only", "--count", "2") as running:
        running.wait_ready()
        for arguments in (("orders.a", "1"), ("--key", other.path, "orders.a", "2"),
                          ("--key", key.path, "orders.a", "3"), ("--key", key.path, "else", "4")):
            publish(server, *arguments)
        conn.emit("orders.a", b"opaque")
        publish(server, "--key", key.path, "orders.a", "5")
        done = running.wait_exit()
        assert done.status == 0 and [line["event"]["data"] for line in done.json_lines()] == [3, 5], done
        assert "Left out 4 messages without a valid signature." in done.error


def test_what_is_left_out_counts_as_handled(server, router, conn, key, folder):
    """In a transaction and outside, under a durable name."""
    trust = write_trust(folder, key.section("orders.>"))
    durable = ("tail", "--socket", router.socket, "--durable", "shop", "--output", "json")
    assert walbus(*durable, "--no-follow").status == 0  # the name is there
    publish(server, "--key", key.path, "orders.a", "1")
    conn.emit("orders.a", b"in one")
    conn.emit("orders.a", b"alone", transactional=False)
    router.subscriber().drain(conn)  # all of it is in the journal
    done = walbus(*durable, "--no-follow", "--trust", trust, "--valid-only")
    assert done.status == 0 and [line["event"]["data"] for line in done.json_lines()] == [1], done
    done = walbus(*durable, "--no-follow")
    assert (done.status, done.out) == (0, b""), done


def test_a_trust_file_that_changes_is_read_again(server, router, key, folder):
    """Two keys at once, so that one follows the other without a gap; and a broken file changes nothing."""
    after = Key(folder, "next.key")
    trust = write_trust(folder, key.section(">"))
    with tail(router, "--output", "json", "--trust", trust) as running:
        running.wait_ready()

        def status(path, want):
            """Publishes until the file has been looked at: at most once a second."""
            def seen():
                n = running.out.count(b"\n")
                publish(server, "--key", path, "a", "1")
                return signatures(running, n + 1)[n]["status"] == want
            wait_for(seen, 30, f"{path} is {want}")
        status(key.path, "valid")
        write_trust(folder, key.section(">"), after.section(">"))
        status(after.path, "valid")
        status(key.path, "valid")
        write_trust(folder, after.section(">"))
        status(key.path, "unknown-key")
        write_trust(folder, "[broken")
        wait_for(lambda: publish(server, "a", "1") and b"line 1" in running.err, 30, "what is broken is told")
        status(after.path, "valid")
        write_trust(folder)
        status(after.path, "unknown-key")
        assert b"was read anew, and has no keys, so nothing is valid" in running.err


@pytest.mark.parametrize("form", [["--lines"], ["--non-transactional"], []])
def test_every_way_of_publishing_signs(server, router, key, folder, form):
    trust = write_trust(folder, key.section("a"))
    stdin = b"1\n2\n3\n" if "--lines" in form else b"1"
    with tail(router, "--output", "json", "--trust", trust) as running:
        running.wait_ready()
        publish(server, *form, "--key", key.path, "a", "-", stdin=stdin)
        found = signatures(running, stdin.count(b"\n") or 1)
        assert found == [{"status": "valid", "kid": key.kid}] * len(found)


def test_what_was_followed_can_be_verified_and_explained(server, router, folder):
    key = Key(folder, "named.key", "--kid", "shop")
    with tail(router, "--output", "raw", "--count", "1") as running:
        running.wait_ready()
        publish(server, "--key", key.path, "--audience", "production", "orders.paid", '{"order": 17}')
        content = running.wait_exit().out
    arguments = ("verify", "--prefix", "orders.paid", "--key", key.public_path)
    assert walbus(*arguments, "--audience", "production", "-", stdin=content).text.startswith("status: valid\n")
    assert walbus(*arguments, "-", stdin=content).text.startswith("status: bad-signature\n")
    explained = walbus("inspect", "-", stdin=content).text
    assert explained.split("\n")[0] == f"{len(content)} bytes, a signed event, by the key {b'shop'.hex()}"


# ---- what is refused

@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o660])
def test_a_private_key_that_others_can_read(server, key, mode):
    os.chmod(key.path, mode)
    done = publish(server, "--key", key.path, "a", "1", status=1)
    assert done.out == b"" and key.path in done.error and "chmod 600" in done.error
    os.chmod(key.path, 0o400)
    publish(server, "--key", key.path, "a", "1")


def test_a_key_is_looked_at_before_anything_is_connected(key, folder):
    done = walbus("publish", "--dsn", f"host={folder}", "--key", f"{key.path}.none", "a", "1")
    assert (done.status, done.out) == (1, b"") and "No such file" in done.error and "server" not in done.error, done
    assert walbus("publish", "--dsn", f"host={folder}", "--key", key.path, "a", "1").status == 3


def test_a_public_key_does_not_sign(server, key):
    for mode in (0o644, 0o600):
        os.chmod(key.public_path, mode)
        done = publish(server, "--key", key.public_path, "a", "1", status=1)
        assert "is a public key" in done.error and "chmod" not in done.error


def test_keys_that_are_none_are_not_waited_for(server, folder):
    os.mkfifo(folder / "pipe", 0o600)
    for path, why in ((folder / "pipe", "a pipe"), ("/dev/zero", "a device"), (folder, "a folder"),
                      (folder / "none", "No such file"), ("-", "No such file")):
        done = publish(server, "--key", str(path), "a", "1", status=1)
        assert str(path) in done.error and why in done.error, done


@pytest.mark.parametrize("arguments, named", [
    (("--raw", "--key", "k", "a", "x"), "--raw"),
    (("--audience", "x", "a", "1"), "--key"),
])
def test_usage_of_publish(arguments, named):
    done = walbus("publish", *arguments)
    assert (done.status, done.out) == (2, b"") and named in done.error, done


def test_audiences_that_are_none(server, key):
    for audience in ("x" * 256, "a\nb"):
        done = publish(server, "--key", key.path, "--audience", audience, "a", "1", status=2)
        assert "--audience" in done.error
        done = walbus("tail", "--trust", "t", "--audience", audience)
        assert done.status == 2 and "audience" in done.error


@pytest.mark.parametrize("arguments, named", [
    (("--valid-only",), "--trust FILE is missing"),
    (("--audience", "x"), "--trust FILE is missing"),
])
def test_usage_of_tail(arguments, named):
    done = walbus("tail", *arguments)
    assert (done.status, done.out) == (2, b"") and named in done.error, done


def test_a_trust_file_that_cannot_be_used(router, folder):
    os.mkfifo(folder / "pipe")
    (folder / "broken").write_text("# a comment\n[zz]\n", encoding="utf-8")
    for path, why in ((folder / "pipe", "a pipe"), (folder / "none", "No such file"), (folder / "broken", "line 2")):
        done = walbus("tail", "--socket", router.socket, "--trust", str(path))
        assert (done.status, done.out) == (1, b"") and str(path) in done.error and why in done.error, done
        assert done.error.count("\n") == 1, done


# ---- where the secret is

def forms_of(secret):
    """Of the 32 bytes in the file; of what Ed25519 makes of them (RFC 8032 5.1.5); and as text."""
    digest = bytearray(hashlib.sha512(secret).digest())
    prefix = bytes(digest[32:])
    unclamped = bytes(digest[:32])
    digest[0] &= 248
    digest[31] = digest[31] & 63 | 64
    return {"secret": secret, "scalar": bytes(digest[:32]), "unclamped": unclamped, "prefix": prefix,
            "hex": secret.hex().encode(), "HEX": secret.hex().upper().encode(), "base64": base64.b64encode(secret)[:40]}


def test_the_secret_stands_in_no_page_of_a_core_dump(server, conn, key):
    """While it waits for more to sign, after it has signed."""
    program = places.walbus(places.plain_build())
    sanitized = places.is_sanitized(program)
    arguments = ["publish", "--dsn", server.dsn(), "--lines", "--key", key.path, "a"]
    process = subprocess.Popen([program, *arguments], env=places.child_environment(), cwd="/",
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=places.die_with_parent())
    try:
        process.stdin.write(b"1\n" * 1000)  # as many as it sends at once
        process.stdin.flush()
        sql = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND query LIKE '%emit_message%'"
        wait_for(lambda: conn.rows(sql), 60, "the first thousand are signed and sent")
        forms = forms_of(key.secret)
        found = memory.search(process.pid, *forms.values())
        assert found[key.secret], "it is nowhere, so this test does not look where it should"
        for name, form in forms.items():
            for mapping in found[form]:
                assert "dd" in mapping.flags and not mapping.is_dumped, f"{name} would be dumped: {mapping}"
                # AddressSanitizer locks nothing, since its shadow would be locked too.
                assert "lo" in mapping.flags or sanitized, f"{name} may be paged out: {mapping}"
        for what in ("cmdline", "environ"):
            content = pathlib.Path(f"/proc/{process.pid}/{what}").read_bytes()
            assert not any(form in content for form in forms.values()), what
        out, err = process.communicate(b"2\n", timeout=60)
        assert process.returncode == 0 and out.count(b"\n") == 1001, err
        assert not any(form in out + err for form in forms.values())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_keygen_leaves_the_secret_in_no_memory(folder):
    """While it waits for somebody to read the key's id."""
    program = places.walbus(places.plain_build())
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    try:
        while True:
            os.write(writes, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writes, True)
    path = folder / "made.key"
    with subprocess.Popen([program, "keygen", str(path)], env=places.child_environment(), stdin=subprocess.DEVNULL,
                          stdout=writes, stderr=subprocess.PIPE, preexec_fn=places.die_with_parent()) as process:
        os.close(writes)
        try:
            wait_for(lambda: pathlib.Path(f"{path}.pub").exists() and path.exists()
                     and pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1][1] == "S",
                     30, "it writes the id")
            forms = forms_of(cbor.loads(path.read_bytes())[-4])
            kid = cbor.loads(pathlib.Path(f"{path}.pub").read_bytes())[2]
            found = memory.search(process.pid, kid.hex().encode(), *forms.values())
            assert found[kid.hex().encode()], "the id is nowhere, so this test does not look where it should"
            for name, form in forms.items():
                assert not found[form], f"{name}: {found[form]}"
        finally:
            while os.read(reads, 1 << 16):
                pass
            os.close(reads)
        assert process.wait(30) == 0, process.stderr.read()


@pytest.mark.parametrize("kind", ["whole", "unpadded", "last", "blank"])
def test_a_private_key_in_a_trust_file_stays_in_no_memory(server, router, key, folder, kind):
    """Read by mistake, refused, and wiped; also what was decoded of it before its base64 was found to be wrong."""
    trust = write_trust(folder, key.section(">"))
    program = places.walbus(places.plain_build())
    text = base64.b64encode(pathlib.Path(key.path).read_bytes())
    with Running("tail", "--socket", router.socket, "--trust", trust, program=[program]) as running:
        running.wait_ready()
        # In the middle: the ends of what was copied last stand in registers, which a build that is not hardened may save.
        around = "# a comment\n" * 500
        assert text.endswith(b"=")
        written = {"whole": text, "unpadded": text.rstrip(b"="), "last": text[:-4] + b"!" + text[-3:],
                   "blank": text[:-8] + b" " + text[-8:]}[kind].decode()
        write_trust(folder, around, f"[{key.kid}]\nkey = {written}\nallow = >\n", around)
        reason = b"private one" if kind == "whole" else b"not base64"
        wait_for(lambda: publish(server, "a", "1") and reason in running.err, 30, "it is refused")
        found = memory.search(running.process.pid, key.secret, text[-40:], key.kid.encode())
        assert found[key.kid.encode()], "the file of before is nowhere, so this test does not look where it should"
        assert not found[key.secret] and not found[text[-40:]]


def test_no_error_shows_the_secret(server, folder, key):
    whole = pathlib.Path(key.path).read_bytes()
    fields = cbor.loads(whole)
    path = folder / "damaged"
    for damaged in (whole[:-1], whole + b"\0", cbor.dumps({**fields, -2: bytes(32)}), cbor.dumps({**fields, 1: 2}),
                    cbor.dumps({**fields, 3: -7}), cbor.dumps({**fields, "x" * 5000: 1}), b"[" + whole, whole[1:],
                    cbor.dumps({-4: fields[-4]}), cbor.dumps({1: 1, -1: 6, -4: fields[-4]}) + b"\0",
                    whole.hex().encode(), base64.b64encode(whole), b"x = " + base64.b64encode(whole)):
        path.write_bytes(damaged)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        for arguments in (("publish", "--dsn", server.dsn(), "--key", str(path), "a", "1"),
                          ("verify", "--cose", "--key", str(path), "-"),
                          ("verify", "--prefix", "a", "--trust", str(path), "-")):
            done = walbus(*arguments)
            assert done.status == 1 and str(path) in done.error, done
            for form in forms_of(key.secret).values():
                assert form not in done.out + done.err, done
            # A part of it would be too much as well, and so would be its bytes as \\xHH.
            assert not any(key.secret.hex()[i:i + 12] in done.error for i in range(0, 52, 2)), done
            assert base64.b64encode(whole).decode()[-20:-4] not in done.error and "\\x" not in done.error, done
