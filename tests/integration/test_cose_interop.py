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
from harness.cose import ALG, ED25519, EDDSA, IMPLEMENTATIONS, KID, SIGN1_TAG, TYP, Auth0, Message, OpenSSL, cbor2, external_aad
from harness.document import Page, parse_hex
from harness.server import one

FORMAT = Page("format.md")
EVENT = {"id": "018f4d3c-7a10-7c3e-9b1a-2f5f0c6a1d42", "data": {"order": 17}, "type": "orders.paid", "source": "/shop",
         "specversion": "1.0"}


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
    again = OpenSSL().sign(documented_key("private"), Message(payload, cbor.loads(protected), aad=external_aad("orders.paid")))
    assert cbor.loads(again).value[3] == signature
    assert again == content
