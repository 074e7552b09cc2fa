# SPDX-License-Identifier: PostgreSQL
"""A role that may emit takes signed events apart and emits what it likes: none of it is `valid` to a subscriber.

Between the altered ones come the events as they were signed, which are: else a subscriber that finds nothing valid
would pass.
"""

import collections
import json
import os
import random

import pytest
from harness import cbor
from harness.command import Running, walbus
from harness.cose import ALG, EDDSA, KID, TYP, Message, OpenSSL, default_kid, external_aad, trust_entry
from harness.published import published

SEED = int(os.environ.get("WALBUS_TEST_SEED") or random.randrange(1 << 32))
# Of the rest a byte is enough to tell from the others; of the short one every bit is turned.
DATA = ['{"order": 17}', '"' + "x" * 300 + '"', None]
PREFIX = "orders.paid"
OTHER_PREFIXES = ["orders.pai", "orders.paid.", "orders.paid.eu", ".orders.paid", "Orders.paid", "orders.paid ", "orders",
                  "orders.created", "payments.paid", "", ">", "orders.*", "orders.paid\x7f", "orders.pa\u0456d", "größe",
                  "orders.paid\u200b"]


def unsigned(payload):
    return b"\xd9\xd9\xf7" + payload


def message(protected, unprotected, payload, signature, tag=18):
    array = [protected, unprotected, payload, signature]
    return cbor.dumps(array if tag is None else cbor.Tag(tag, array))


def flipped(content, rng, all_bits):
    for at, byte in enumerate(content):
        for bit in range(8) if all_bits else [rng.randrange(8)]:
            yield content[:at] + bytes([byte ^ 1 << bit]) + content[at + 1:]


def cut(content):
    for size in range(len(content)):
        yield content[:size]


def spliced(content, rng):
    """Bytes put in, taken out, said twice, at any place; and behind the end."""
    for at in range(0, len(content), 3):
        yield content[:at] + bytes([rng.randrange(256)]) + content[at:]
        yield content[:at] + content[at + 1:]
        yield content[:at] + content[at:at + 4] + content[at:]
    yield content + b"\x00"
    yield content + content


def stripped(content):
    protected, unprotected, payload, signature = cbor.loads(content).value
    yield unsigned(payload)
    yield payload
    yield protected
    yield message(protected, unprotected, payload, signature, tag=None)
    yield message(protected, unprotected, payload, signature, tag=98)
    yield message(b"", unprotected, payload, signature)
    yield message(b"\xa0", unprotected, payload, signature)
    yield message(protected, unprotected, None, signature)
    for bad in (b"", signature[:63], signature + b"\x00", bytes(64), signature[32:] + signature[:32]):
        yield message(protected, unprotected, payload, bad)
    for added in ({KID: b"x"}, {99: 0}, {ALG: EDDSA}):
        yield message(protected, added, payload, signature)
    yield message(cbor.dumps({k: v for k, v in cbor.loads(protected).items() if k != KID}),
                  {KID: cbor.loads(protected)[KID]}, payload, signature)
    for longer in (b"\xd8\x12" + content[1:], b"\xd2\x98\x04" + content[2:], b"\xd2\x9f" + content[2:] + b"\xff"):
        yield longer


def recombined(contents):
    """Headers, payload and signature of different events."""
    parts = [cbor.loads(content).value for content in contents]
    for i, one in enumerate(parts):
        for j, two in enumerate(parts):
            if i != j:
                yield message(one[0], {}, one[2], two[3])
                yield message(one[0], {}, two[2], one[3])
    yield contents[0][:len(contents[0]) // 2] + contents[1][len(contents[1]) // 2:]


def forged(contents, trusted, private):
    """Under the id of a key that is trusted, signed with another one that is trusted for other prefixes, or by none."""
    _, _, payload, signature = cbor.loads(contents[0]).value
    protected = {ALG: EDDSA, KID: default_kid(trusted), TYP: "walbus+cose"}
    yield OpenSSL().sign(private, Message(payload, protected, aad=external_aad(PREFIX)))
    yield OpenSSL().sign(private, Message(payload, {**protected, KID: default_kid(private)}, aad=external_aad(PREFIX)))
    for alg in (-7, -35, 5, 0, -8 + 1, "EdDSA"):
        yield message(cbor.dumps({**protected, ALG: alg}), {}, payload, signature)
        yield message(cbor.dumps({**protected, ALG: alg}), {}, payload, bytes(64))
        yield message(cbor.dumps({**protected, ALG: alg}), {}, payload, b"")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """One that may sign for orders, and one that may not."""
    folder = tmp_path_factory.mktemp("keys")
    read = {}
    for name in ("orders", "payments"):
        assert walbus("keygen", str(folder / name)).status == 0
        read[name] = (folder / name).read_bytes(), (folder / f"{name}.pub").read_bytes()
    (folder / "trust").write_bytes(trust_entry(read["orders"][1], "orders.>", ">") +
                                   trust_entry(read["payments"][1], "payments.>"))
    return folder, read


class Emitted:
    """What was emitted, in order, and whether it may be valid."""

    def __init__(self, conn):
        self.conn = conn
        self.all = []

    def __call__(self, prefix, content, genuine=False):
        self.conn.emit(prefix, content)
        self.all.append((prefix, content, genuine))

    def compare(self, lines):
        """Returns how often each status was there."""
        assert len(lines) == len(self.all)
        seen = collections.Counter()
        for line, (prefix, content, genuine) in zip(map(json.loads, lines), self.all):
            status = line.get("signature", {}).get("status")
            assert (status == "valid") == genuine, (prefix, content.hex(), line)
            seen[status] += 1
        return seen


def emit_all(emit, contents, keys):
    rng = random.Random(SEED)
    _, read = keys
    altered = [*recombined(contents), *forged(contents, read["orders"][0], read["payments"][0])]
    for i, content in enumerate(contents):
        altered += [*flipped(content, rng, all_bits=i == 0), *cut(content), *spliced(content, rng), *stripped(content)]
    altered = [a for a in altered if a not in contents]  # a byte may have been put in beside one like it
    for i, content in enumerate(altered):
        if i % 100 == 0:
            emit(PREFIX, contents[i // 100 % len(contents)], genuine=True)
        emit(PREFIX, content)
    for content in contents:
        for prefix in OTHER_PREFIXES:
            emit(prefix, content)
        emit(PREFIX, content, genuine=True)
    # signed for a prefix that is not ASCII by whoever may sign for everything
    _, _, payload, _ = cbor.loads(contents[0]).value
    protected = {ALG: EDDSA, KID: default_kid(read["orders"][1]), TYP: "walbus+cose"}
    emit("größe", OpenSSL().sign(read["orders"][0], Message(payload, protected, aad=external_aad("größe"))))


def test_nothing_altered_is_valid(router, bus, keys):
    print(f"WALBUS_TEST_SEED={SEED}")
    folder, _ = keys
    with bus.connect() as conn:
        conn.run("SELECT pg_create_logical_replication_slot('published', 'pgoutput')")
    contents = [published(bus, PREFIX, *([data] if data else []), "--key", str(folder / "orders"), slot="published")
                for data in DATA]
    with bus.connect() as conn:
        conn.run("SELECT pg_drop_replication_slot('published')")
    tail = ["tail", "--socket", router.socket, "--output", "json", "--trust", str(folder / "trust")]
    with Running(*tail) as here, Running(*tail, "--audience", "staging") as elsewhere, \
            bus.connect(autocommit=False) as conn:
        here.wait_ready()
        elsewhere.wait_ready()
        emit = Emitted(conn)
        emit_all(emit, contents, keys)
        conn.commit()
        seen = emit.compare(here.wait_lines(len(emit.all), 120))
        print(seen)
        assert set(seen) == {"valid", "bad-signature", "unknown-key", "malformed", "not-allowed", None}, seen
        # the same events to whom they were not signed for
        emit.all = [(prefix, content, False) for prefix, content, _ in emit.all]
        assert "bad-signature" in emit.compare(elsewhere.wait_lines(len(emit.all), 120))
