# SPDX-License-Identifier: PostgreSQL
"""What we sign is read by COSE implementations that have nothing of ours, and we read what they sign (harness/cose.py).

@auth0/cose verifies Ed25519 of an OKP key with any external_aad, detached payloads too. Signing it knows no
external_aad, so a message with one is put together from its own Sig_structure and its own encoder; it always writes
the tag; and it knows -8 alone. So messages without a tag and of algorithm -19 come from the OpenSSL path.
"""

import json
import os

import pytest
from harness import cbor
from harness.command import walbus
from harness.cose import (ALG, ED25519, EDDSA, IMPLEMENTATIONS, KID, TYP, Message, OpenSSL, default_kid, external_aad,
                          trust_entry)
from harness.document import Page, parse_hex
from harness.published import published

FORMAT = Page("format.md")
# Its keys stand in deterministic order.
EVENT = {"id": "018f4d3c-7a10-7c3e-9b1a-2f5f0c6a1d42", "data": {"order": 17}, "type": "orders.paid", "source": "/shop",
         "specversion": "1.0"}
CONTENT_TYPE = 3


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.name)
def other(request):
    return request.param


class Files:
    """Files of one test, by name."""

    def __init__(self, folder):
        self.folder = str(folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def write(self, name, content):
        with open(os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
            f.write(content)
        return self.path(name)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def documented_key(which):
    parts, _ = parse_hex(FORMAT.fences[f"key {which}"][0])
    return b"".join(parts)


def altered(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1:]


# ---- they read what we sign


def test_the_documented_event_is_read(other):
    key, content = documented_key("public"), FORMAT.contents["signed"].raw
    read = other.read(key, content, external_aad("orders.paid"))
    assert (read["alg"], read["kid"], read["typ"]) == (EDDSA, bytes.fromhex("866eefbd6718c884"), "walbus+cose")
    assert cbor.loads(read["payload"])["type"] == "orders.paid"
    for aad in (b"", external_aad("orders.pai"), external_aad("orders.paid", "staging")):
        assert other.read(key, content, aad) is None
    assert other.read(key, altered(content, len(content) - 1), external_aad("orders.paid")) is None


def test_the_documented_signature_is_openssl_s():
    """Ed25519 leaves nothing to chance: who signs the same bytes with the same key writes the same bytes."""
    content = FORMAT.contents["signed"].raw
    protected, _, payload, signature = cbor.loads(content).value
    message = Message(payload, cbor.loads(protected), aad=external_aad("orders.paid"))
    again = OpenSSL().sign(documented_key("private"), message)
    assert cbor.loads(again).value[3] == signature
    assert again == content


@pytest.mark.parametrize("audience", ["", "größe, production"])
def test_a_published_event_is_read(other, audience, bus, files):
    assert walbus("keygen", files.path("key")).status == 0
    key = files.read("key.pub")
    content = published(bus, "orders.paid", '{"order": 17}', "--key", files.path("key"), "--audience", audience)
    aad = external_aad("orders.paid", audience)
    read = other.read(key, content, aad)
    assert (read["alg"], read["kid"], read["typ"]) == (EDDSA, default_kid(key), "walbus+cose")
    event = cbor.loads(read["payload"])
    assert (event["type"], event["data"]) == ("orders.paid", {"order": 17})
    for wrong in (b"", external_aad("orders.pai", audience), external_aad("orders.paid", "staging")):
        assert other.read(key, content, wrong) is None
    assert other.read(key, altered(content, content.index(b"order")), aad) is None


def test_a_key_of_theirs_signs(other, bus, files):
    private, public = other.key_pair()
    content = published(bus, "orders.paid", "17", "--key", files.write("key", private))
    read = other.read(public, content, external_aad("orders.paid"))
    assert read["kid"] == default_kid(public)
    assert cbor.loads(read["payload"])["data"] == 17


# ---- we read what they sign


def verify(*arguments):
    """The answer, and whether the exit status says the same."""
    result = walbus("verify", "--json", *arguments)
    answer = json.loads(result.out)
    assert result.status == (0 if answer["status"] == "valid" else 1), result
    assert result.err == b"", result
    return answer


def event_of_theirs(other, private, alg=EDDSA, prefix="orders.paid", audience=""):
    protected = {ALG: alg, KID: default_kid(private), TYP: "walbus+cose"}
    return other.sign(private, Message(cbor.dumps(EVENT), protected, aad=external_aad(prefix, audience)))


@pytest.mark.parametrize("other, alg", [(other, alg) for other in IMPLEMENTATIONS for alg in (EDDSA, ED25519)
                                        if (other.name, alg) != ("auth0", ED25519)],
                         ids=lambda v: getattr(v, "name", v), indirect=["other"])
@pytest.mark.parametrize("audience", ["", "größe, production"])
def test_a_signed_event_of_theirs_is_valid(other, alg, audience, files):
    private, public = other.key_pair()
    event = files.write("event", event_of_theirs(other, private, alg, audience=audience))
    trust = files.write("trust", trust_entry(public, "orders.*", audience=audience))
    answer = verify("--trust", trust, "--prefix", "orders.paid", event)
    assert (answer["status"], answer["kid"]) == ("valid", default_kid(public).hex())
    for prefix in ("orders.pai", "orders.paid.", "payments.paid"):
        assert verify("--trust", trust, "--prefix", prefix, event)["status"] == "bad-signature"
    files.write("trust", trust_entry(public, "orders.*", audience="staging"))
    assert verify("--trust", trust, "--prefix", "orders.paid", event)["status"] == "bad-signature"
    files.write("trust", trust_entry(public, "payments.*", audience=audience))
    assert verify("--trust", trust, "--prefix", "orders.paid", event)["status"] == "not-allowed"
    files.write("trust", trust_entry(other.key_pair()[1], "orders.*", audience=audience))
    assert verify("--trust", trust, "--prefix", "orders.paid", event)["status"] == "unknown-key"


# Messages that are no events, by the key's kid.
BARE = {
    "kid-protected": lambda kid: Message(b"hello", {ALG: EDDSA, KID: kid}),
    "kid-unprotected": lambda kid: Message(b"hello", {ALG: EDDSA}, {KID: kid}),
    "no-kid": lambda kid: Message(b"hello", {ALG: EDDSA}),
    "own-kid": lambda kid: Message(b"hello", {ALG: EDDSA}, {KID: b"11"}),
    "aad": lambda kid: Message(b"hello", {ALG: EDDSA, KID: kid}, aad=bytes(range(256))),
    "detached": lambda kid: Message(b"hello", {ALG: EDDSA}, {KID: kid}, detached=True),
    "detached-with-aad": lambda kid: Message(b"hello", {ALG: EDDSA, KID: kid}, aad=b"\x00", detached=True),
    "empty": lambda kid: Message(b"", {ALG: EDDSA}),
    "large": lambda kid: Message(bytes(70_000), {ALG: EDDSA, KID: kid}),
    "more": lambda kid: Message(b"hello", {ALG: EDDSA, CONTENT_TYPE: "text/plain", "own": 7}, {KID: kid, 99: "x"}),
}
# What @auth0/cose cannot write.
BARE_OPENSSL = {
    "untagged": lambda kid: Message(b"hello", {ALG: EDDSA}, {KID: kid}, tagged=False),
    "untagged-detached": lambda kid: Message(b"hello", {ALG: EDDSA, KID: kid}, aad=b"a", tagged=False, detached=True),
    "alg-19": lambda kid: Message(b"hello", {ALG: ED25519, KID: kid}),
}


def bare(files, key, message, aad, payload=None):
    files.write("message", message)
    arguments = ["--cose", "--key", files.write("key.pub", key)]
    if aad:
        arguments += ["--aad", aad.hex()]
    if payload is not None:
        arguments += ["--payload", files.write("payload", payload)]
    return verify(*arguments, files.path("message"))["status"]


@pytest.mark.parametrize("other, name", [(other, name) for other in IMPLEMENTATIONS
                                         for name in [*BARE, *(BARE_OPENSSL if other.name == "openssl" else ())]],
                         ids=lambda v: getattr(v, "name", v), indirect=["other"])
def test_any_message_of_theirs_is_read(other, name, files):
    private, public = other.key_pair()
    message = {**BARE, **BARE_OPENSSL}[name](default_kid(public))
    signed = other.sign(private, message)
    payload = message.payload if message.detached else None
    assert bare(files, public, signed, message.aad, payload) == "valid"
    assert bare(files, public, altered(signed, len(signed) - 1), message.aad, payload) == "bad-signature"
    assert bare(files, public, signed, message.aad + b"\x00", payload) == "bad-signature"
    if message.detached:
        assert bare(files, public, signed, message.aad, payload + b"\x00") == "bad-signature"
        assert bare(files, public, signed, message.aad) == "malformed"
    else:
        assert bare(files, public, signed, message.aad, b"") == "malformed"
    assert bare(files, other.key_pair()[1], signed, message.aad, payload) == "bad-signature"
    # and what we say of it is what the other one says
    assert other.read(public, signed, message.aad, payload) is not None
