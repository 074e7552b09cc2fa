# SPDX-License-Identifier: PostgreSQL
"""`walbus verify`, of the bus's own contents and of any COSE_Sign1. Needs no server."""

import base64
import json
import os
import subprocess

import pytest
from harness import cbor, places
from harness.command import walbus
from harness.document import Block, Page

PAGE = Page("format.md")
SIGNED, EVENT = PAGE.contents["signed"].raw, PAGE.contents["event-with-cbor"].raw
# RFC 8032 section 7.1, test 1: the example is signed with it, and cose-wg's too.
PUBLIC, PRIVATE = (Block(name, PAGE.fences[f"key {name}"][0]).raw for name in ("public", "private"))
X = cbor.loads(PUBLIC)[-2]
KID = "866eefbd6718c884"
OTHER = bytes.fromhex("a3010120062158203d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")  # test 2

# cose-wg/Examples, eddsa-examples/eddsa-sig-01.json
SIG_01 = bytes.fromhex(
    "d28445a201270300a10442313154546869732069732074686520636f6e74656e742e58407142fd2ff96d56db85bee905a76ba1d0b7321a95"
    "c8c4d3607c5781932b7afb8711497dfa751bf40b58b3bcc32300b1487f3db34085eef013bf08f4a44d6fef0d")
# By another program, with the same key: kid in the protected header and no tag; detached, alg -19 and external_aad
# 11aa22cc; detached and empty.
UNTAGGED = bytes.fromhex(
    "8447a2012704423131a054546869732069732074686520636f6e74656e742e58400e21f6825a41fde57bfe971a9a817a831e079f32118289"
    "107d83762071d0dcb41489f8744467ee555f620e03a90d548458d935a5b4cd38923e8eda16ee2c1101")
DETACHED = bytes.fromhex(
    "d28443a10132a104423131f658403dcebc9e473ff3a84ef1d34074c51784116ba0e3bf1e45cdce0c55a3a1c6b2c126678967a10d834eb3bc"
    "63825e38c5ae2e5dbd4750d23fd849e2f097973f250f")
EMPTY = bytes.fromhex(
    "d28443a10127a0f6584015a05903e8e3419cae68ac49095947204cef9b06db91af205eaae8ca6cbef17658e9719877fa0ae08d12ca029e8f"
    "c969a0b88219f17378254a617067fd14f40e")
PAYLOAD = b"This is the content."


@pytest.fixture
def files(tmp_path):
    """Writes a file and answers its path."""
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)
    return write


def trust_text(allow=">", more="", key=PUBLIC, kid=KID):
    return f"[{kid}]\nkey = {base64.b64encode(key).decode()}\nallow = {allow}\n{more}"


def verify(*arguments, content=SIGNED):
    """(exit status, what --json answers)."""
    done = walbus("verify", "--json", *arguments, "-", stdin=content)
    assert done.err == b"", done
    answer = json.loads(done.out)
    assert done.status == (0 if answer["status"] == "valid" else 1), done
    assert answer["reason"].endswith("."), answer
    return answer


def refused(*arguments, stdin=SIGNED, status=2):
    done = walbus("verify", *arguments, stdin=stdin)
    assert (done.status, done.out) == (status, b""), done
    return done.error


# ---- contents of the bus

def test_a_valid_event_to_the_byte(files):
    done = walbus("verify", "--prefix", "orders.paid", "--key", files("key", PUBLIC), files("content", SIGNED))
    assert (done.status, done.err) == (0, b"")
    assert done.text == (f"status: valid\nkid: {KID}\n"
                         "reason: The signature is right, and the key may sign for this prefix.\n")


@pytest.mark.parametrize("prefix", ["orders.pai", "orders.paid.", "", "Orders.paid", ">", "*"])
def test_another_prefix(files, prefix):
    assert verify("--prefix", prefix, "--key", files("key", PUBLIC))["status"] == "bad-signature"


def test_a_prefix_that_is_not_ascii(files):
    assert verify("--prefix", "orders.é", "--key", files("key", PUBLIC))["status"] == "malformed"


def test_audience(files):
    key = files("key", PUBLIC)
    answer = verify("--prefix", "orders.paid", "--key", key, "--audience", "production")
    assert answer["status"] == "bad-signature" and '"production"' in answer["reason"]
    assert verify("--prefix", "orders.paid", "--key", key, "--audience", "")["status"] == "valid"
    trust = files("trust", trust_text(more="audience = staging\n"))
    assert verify("--prefix", "orders.paid", "--trust", trust)["status"] == "bad-signature"
    trust = files("trust", trust_text(more="audience =\n"))
    assert verify("--prefix", "orders.paid", "--trust", trust, "--audience", "production")["status"] == "valid"
    assert "audience" in refused("--prefix", "a", "--key", key, "--audience", "\n", "-")


def test_unsigned(files):
    for content in (EVENT, b"", b"opaque", b"\x84", cbor.dumps([1])):
        answer = verify("--prefix", "orders.paid", "--key", files("key", PUBLIC), content=content)
        assert answer["status"] == "unsigned" and "kid" not in answer


def test_unknown_key(files):
    other = files("other.pub", OTHER)
    answer = verify("--prefix", "orders.paid", "--key", other)
    assert (answer["status"], answer["kid"]) == ("unknown-key", KID)
    assert other in answer["reason"] and KID in answer["reason"]
    assert verify("--prefix", "orders.paid", "--trust", files("trust", ""))["status"] == "unknown-key"


def test_not_allowed(files):
    trust = files("trust", trust_text("payments.>"))
    answer = verify("--prefix", "orders.paid", "--trust", trust)
    assert (answer["status"], answer["kid"]) == ("not-allowed", KID)
    assert verify("--prefix", "orders.paid", "--trust", files("trust", trust_text("orders.*")))["status"] == "valid"


def test_stale(files):
    """The event's time is 2026-01-15T10:30:00.123456Z."""
    trust = files("trust", trust_text(more="max-delay = 10min\n"))
    for received, status in (("2026-01-15T10:39:59Z", "valid"), ("2026-01-15T10:41:00Z", "stale"),
                             ("2026-01-15T11:35:00+01:00", "valid"), ("2026-01-15T10:00:00Z", "stale")):
        answer = verify("--prefix", "orders.paid", "--trust", trust, "--received", received)
        assert answer["status"] == status, answer
    answer = verify("--prefix", "orders.paid", "--trust", trust)
    assert answer["status"] == "stale" and "--received" in answer["reason"]
    assert "RFC 3339" in refused("--prefix", "a", "--trust", trust, "--received", "yesterday", "-")


def test_no_byte_can_be_altered_and_no_length_cut(files):
    key = files("key", PUBLIC)
    for at in range(0, len(SIGNED), 29):
        altered = bytearray(SIGNED)
        altered[at] ^= 1
        assert verify("--prefix", "orders.paid", "--key", key, content=bytes(altered))["status"] != "valid"
        assert verify("--prefix", "orders.paid", "--key", key, content=SIGNED[:at])["status"] != "valid"
    assert verify("--prefix", "orders.paid", "--key", key, content=SIGNED + b"\0")["status"] == "malformed"


def test_malformed(files):
    answer = verify("--prefix", "orders.paid", "--key", files("key", PUBLIC), content=SIGNED[:-1])
    assert answer["status"] == "malformed" and "ends before" in answer["reason"]


# ---- any COSE_Sign1

@pytest.fixture
def key(files):
    """Without an id of its own, as a tool that knows nothing of ours may write it."""
    return files("key.pub", cbor.dumps({1: 1, -1: 6, -2: X}))


def test_published_example_to_the_byte(files, key):
    done = walbus("verify", "--cose", "--key", key, files("message", SIG_01))
    assert (done.status, done.err) == (0, b"")
    assert done.text == ("status: valid\nkid: 3131\nreason: The signature is right; the message's key id "
                         "is not that of the key's file.\n")


def test_tagged_or_not_and_the_id_in_either_header(key):
    assert verify("--cose", "--key", key, content=SIG_01)["kid"] == "3131"
    assert verify("--cose", "--key", key, content=SIG_01[1:])["status"] == "valid"
    assert verify("--cose", "--key", key, content=UNTAGGED)["kid"] == "3131"
    assert verify("--cose", "--key", key, content=b"\xd2" + UNTAGGED)["status"] == "valid"
    for content in (SIG_01, UNTAGGED):
        altered = bytearray(content)
        altered[-1] ^= 1
        assert verify("--cose", "--key", key, content=bytes(altered))["status"] == "bad-signature"


def test_detached_with_external_aad(files, key):
    payload = files("payload", PAYLOAD)
    for aad in ("11aa22cc", "11AA22CC"):
        assert verify("--cose", "--key", key, "--aad", aad, "--payload", payload, content=DETACHED)["status"] == "valid"
    for arguments in ((), ("--aad", ""), ("--aad", "11aa22"), ("--aad", "11aa22cc00")):
        answer = verify("--cose", "--key", key, *arguments, "--payload", payload, content=DETACHED)
        assert answer["status"] == "bad-signature"
    other = files("other", PAYLOAD + b"\n")
    answer = verify("--cose", "--key", key, "--aad", "11aa22cc", "--payload", other, content=DETACHED)
    assert answer["status"] == "bad-signature"
    answer = verify("--cose", "--key", key, "--aad", "11aa22cc", content=DETACHED)
    assert answer["status"] == "malformed" and "--payload" in answer["reason"]
    answer = verify("--cose", "--key", key, "--payload", payload, content=SIG_01)
    assert answer["status"] == "malformed" and "another one was given" in answer["reason"]


def test_a_payload_may_be_empty_and_may_come_from_stdin(files, key):
    assert verify("--cose", "--key", key, "--payload", files("payload", b""), content=EMPTY)["status"] == "valid"
    message = files("message", DETACHED)
    done = walbus("verify", "--cose", "--key", key, "--aad", "11aa22cc", "--payload", "-", message, stdin=PAYLOAD)
    assert done.status == 0, done


def test_a_key_with_an_id_of_its_own_is_for_no_other(files):
    named = files("named.pub", cbor.dumps({1: 1, 2: b"11", -1: 6, -2: X}))
    assert verify("--cose", "--key", named, content=SIG_01)["status"] == "valid"
    assert verify("--cose", "--key", named, content=EMPTY, *["--payload", files("p", b"")])["status"] == "valid"
    other = files("other.pub", cbor.dumps({1: 1, 2: b"12", -1: 6, -2: X}))
    answer = verify("--cose", "--key", other, content=SIG_01)
    assert answer["status"] == "unknown-key" and "3131" in answer["reason"] and "3132" in answer["reason"]


def test_our_own_events_are_cose_as_well(key):
    aad = cbor.dumps(["walbus/1", "", "orders.paid"]).hex()
    assert verify("--cose", "--key", key, "--aad", aad)["status"] == "valid"
    assert verify("--cose", "--key", key)["status"] == "bad-signature"


def test_an_algorithm_of_others(key):
    es256 = cbor.dumps([cbor.dumps({1: -7}), {}, b"x", bytes(64)])
    answer = verify("--cose", "--key", key, content=es256)
    assert answer["status"] == "malformed" and "alg" in answer["reason"]


def test_what_is_no_message(key):
    for content in (b"", b"text", EVENT, PUBLIC, cbor.dumps([]), SIG_01 + b"\0"):
        assert verify("--cose", "--key", key, content=content)["status"] == "malformed"


# ---- what is wrong around it

def test_a_private_key_is_not_taken_for_a_public_one(files):
    path = files("orders.key", PRIVATE)
    error = refused("--prefix", "orders.paid", "--key", path, "-", status=1)
    assert "private" in error and f"{path}.pub" not in error
    public = files("orders.key.pub", PUBLIC)
    for form in (("--prefix", "orders.paid"), ("--cose",)):
        error = refused(*form, "--key", path, "-", status=1)
        assert "private" in error and f"Its public one is {public}." in error
        assert "9d61" not in error


def test_keys_and_trust_files_that_are_none_are_not_waited_for(files, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    good = files("good", "x")
    for path, why in ((str(tmp_path / "pipe"), "a pipe"), ("/dev/zero", "a device"), (str(tmp_path), "a folder"),
                      (str(tmp_path / "none"), "No such file"), (good, "")):
        for option in ("--key", "--trust"):
            error = refused("--prefix", "a", option, path, "-", status=1)
            assert path in error and why in error, error


def test_a_broken_trust_file_names_the_line(files):
    error = refused("--prefix", "a", "--trust", files("trust", "# one\n[zz]\n"), "-", status=1)
    assert "line 2" in error


def test_nobody_takes_an_unwritable_stdout_for_valid(files):
    arguments = [places.walbus(), "verify", "--prefix", "orders.paid", "--key", files("key", PUBLIC)]
    for content, found in ((SIGNED, "valid"), (SIGNED[:-1], "malformed")):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*arguments, "-"], input=content, stdout=full, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1
        assert f"Found {found} (".encode() in done.stderr and b"No space left" in done.stderr
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run([*arguments, "-"], input=content, stdout=writing, stderr=subprocess.PIPE, check=False)
        os.close(writing)
        assert done.returncode == 1 and f"Found {found} (".encode() in done.stderr


@pytest.mark.parametrize("arguments, named", [
    (("--prefix", "a", "--key", "k"), "FILE is missing"),
    (("--prefix", "a", "--key", "k", "a", "b"), "one more"),
    (("--key", "k", "-"), "--prefix"),
    (("--prefix", "a", "-"), "--trust FILE or --key FILE"),
    (("--prefix", "a", "--key", "k", "--trust", "t", "-"), "--trust FILE or --key FILE"),
    (("--prefix", "a", "--key", "k", "--aad", "00", "-"), "--cose"),
    (("--prefix", "a", "--key", "k", "--payload", "p", "-"), "--cose"),
    (("--cose", "-"), "--key"),
    (("--cose", "--key", "k", "--prefix", "a", "-"), "--cose"),
    (("--cose", "--key", "k", "--trust", "t", "-"), "--cose"),
    (("--cose", "--key", "k", "--aad", "0", "-"), "even number"),
    (("--cose", "--key", "k", "--aad", "0x", "-"), "hexadecimal"),
    (("--cose", "--key", "k", "--payload", "-", "-"), "stdin"),
])
def test_usage(arguments, named):
    assert named in refused(*arguments)


def test_what_cannot_be_read(files, key, tmp_path):
    assert "No such file" in refused("--cose", "--key", key, str(tmp_path / "none"), status=1)
    assert "No such file" in refused("--cose", "--key", key, "--payload", str(tmp_path / "none"), "-", status=1)
    assert "Examples:" in walbus("verify", "--help").text
