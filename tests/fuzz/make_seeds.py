#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""make_seeds.py [--check] FOLDER: the seeds of the fuzzers, each a file FOLDER/FUZZER/WHAT-IT-SHOWS.

--check writes nothing and fails when a file is missing or another. Files that are not made here are inputs that a
fuzzer once found; they stay, and are named after what they show as well.
"""

import base64
import os
import struct
import sys

SEEDS = {}


def seed(fuzzer, name, *parts):
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    if (fuzzer, name) in SEEDS:
        raise SystemExit(f"{fuzzer}/{name} is made twice")
    SEEDS[fuzzer, name] = data


def h(text):
    return bytes.fromhex(text)


def u8(*values):
    return bytes(values)


def u32(value):
    return struct.pack(">I", value)


def u64(value):
    return struct.pack(">Q", value)


# ---- what a walsender sends ----

LSN, END = 0x16B3748, 0x16B3778
TIME = 700000000000000
BEGIN = b"B" + u64(LSN) + u64(TIME) + u32(731)
COMMIT = b"C\0" + u64(LSN) + u64(END) + u64(TIME)


def message(flags, prefix, content, xid=b""):
    return b"M" + xid + u8(flags) + u64(LSN) + prefix + b"\0" + u32(len(content)) + content


def copy(payload):
    return b"w" + u64(0) + u64(0) + u64(TIME) + payload


XID = u32(731)
PREPARE = u64(LSN) + u64(END) + u64(TIME)
GID = XID + b"gid\0"
PGOUTPUT = {
    "begin": BEGIN,
    "begin-time-beyond-range": b"B" + u64(LSN) + u64(0x7FFFFFFFFFFFFFFF) + XID,
    "commit": COMMIT,
    "message": message(1, b"orders.created", b"\xd9\xd9\xf7\xa0"),
    "message-nontransactional": message(0, b"", b""),
    "message-in-stream-block": message(1, b"a", b"x", XID),
    "message-content-length-beyond": b"M\x01" + u64(LSN) + b"a\0" + u32(0xFFFFFFFF),
    "origin": b"O" + u64(LSN) + b"node\0",
    "relation": b"R" + XID + b"public\0t\0d" + h("0000"),
    "type": b"Y" + XID + b"public\0t\0",
    "insert": b"I" + XID + b"N" + h("0000"),
    "update": b"U" + XID + b"N" + h("0000"),
    "delete": b"D" + XID + b"K" + h("0000"),
    "truncate": b"T" + u32(1) + b"\0" + XID,
    "stream-start": b"S" + XID + u8(1),
    "stream-stop": b"E",
    "stream-commit": b"c" + XID + COMMIT[1:],
    "stream-abort": b"A" + XID + u32(732),
    "stream-abort-parallel": b"A" + XID + u32(732) + u64(LSN) + u64(TIME),
    "stream-prepare": b"p\0" + PREPARE + GID,
    "begin-prepare": b"b" + PREPARE + GID,
    "prepare": b"P\0" + PREPARE + GID,
    "commit-prepared": b"K" + COMMIT[1:] + GID,
    "rollback-prepared": b"r\0" + PREPARE + u64(TIME) + GID,
}
for what, data in PGOUTPUT.items():
    seed("decode", what, copy(data))
seed("decode", "copy-data-empty", copy(b""))
seed("decode", "keepalive", b"k" + u64(END) + u64(TIME) + u8(0))
seed("decode", "keepalive-asks", b"k" + u64(END) + u64(TIME) + u8(1))

# ---- builder: steps as in fuzz_builder.c ----

(B_BEGIN, B_COMMIT, B_COMMIT_AT, B_MESSAGE, B_MESSAGE_ANY, B_LARGE, B_KEEPALIVE, B_RECONNECT, B_TAKE, B_TIME,
 B_RAW) = range(11)


def begin(lsn):
    return u8(B_BEGIN, lsn, 7)


def emit(lsn, prefix=3, size=2):
    return u8(B_MESSAGE, lsn, prefix, size)


TAKE = u8(B_TAKE)
HEARTBEAT = 0
seed("builder", "transaction", u8(B_TIME, 1), begin(20), emit(12), emit(14), u8(B_COMMIT, 22), TAKE)
seed("builder", "transaction-over-batches", begin(20), emit(12), TAKE, emit(14), TAKE, u8(B_COMMIT, 22), TAKE)
seed("builder", "nontransactional", emit(5), emit(9), TAKE, u8(B_KEEPALIVE, 30), TAKE)
seed("builder", "message-lsn-equals-commit-lsn", emit(20), begin(20), emit(12), u8(B_COMMIT, 22))
seed("builder", "heartbeat-alone", begin(20), emit(12, HEARTBEAT), u8(B_COMMIT, 22), TAKE)
seed("builder", "heartbeat-counts", begin(20), emit(12, HEARTBEAT), emit(13), u8(B_COMMIT, 22))
seed("builder", "heartbeat-prefix-goes-on", begin(20), emit(12, 1), u8(B_COMMIT, 22))
seed("builder", "large-content", begin(20), u8(B_LARGE, 12, 3, 128), u8(B_LARGE, 13, 3, 129), u8(B_COMMIT, 22))
seed("builder", "sent-again", begin(20), emit(12), emit(14), u8(B_COMMIT, 22), u8(B_RECONNECT, 0), begin(20), emit(12),
     emit(14), u8(B_COMMIT, 22), begin(30), emit(25), u8(B_COMMIT, 32))
seed("builder", "goes-on-behind-a-reconnect", begin(20), emit(12), u8(B_RECONNECT, 0), begin(20), emit(12), emit(14),
     u8(B_COMMIT, 22), emit(40))
seed("builder", "rest-is-the-end-alone", begin(20), emit(12), u8(B_RECONNECT, 0), begin(20), emit(12), u8(B_COMMIT, 22),
     emit(40))
seed("builder", "interrupted-by-a-transaction", begin(20), emit(12), u8(B_RECONNECT, 0), begin(30), emit(25),
     u8(B_COMMIT, 32))
seed("builder", "interrupted-by-an-empty-transaction", begin(20), emit(12), u8(B_RECONNECT, 0), begin(30),
     u8(B_COMMIT, 32))
seed("builder", "interrupted-by-a-message", begin(20), emit(12), u8(B_RECONNECT, 0), emit(40))
seed("builder", "over-two-timelines", begin(0x3E), emit(0x3D), u8(B_COMMIT, 0x3F), emit(0x40), emit(0x41), begin(0x90),
     emit(0x8F), u8(B_COMMIT, 0x91))
seed("builder", "start-in-the-middle", u8(B_RECONNECT, 20), emit(12), emit(21), TAKE)
seed("builder", "commit-of-another", begin(20), u8(B_COMMIT_AT, 21, 22), begin(20), emit(12), u8(B_COMMIT, 22))
seed("builder", "begin-in-a-transaction", begin(20), begin(30), emit(25), u8(B_COMMIT, 32))
seed("builder", "message-of-the-wrong-kind", u8(B_MESSAGE_ANY, 1, 12, 3, 2), begin(20), u8(B_MESSAGE_ANY, 0, 12, 3, 2))
for what, data in PGOUTPUT.items():
    seed("builder", "raw-" + what, u8(B_RAW, len(data)), data, emit(40))

# ---- frames ----

POSITION = u32(1) + u64(LSN) + u32(1)
END_OF_TRANSACTION = u32(1) + u64(LSN) + u32(0xFFFFFFFF)


def frame(kind, body, flags=0):
    return u32(len(body)) + u8(kind, flags) + h("0000") + body


F_HELLO, F_WELCOME, F_SUBSCRIBE, F_SUBSCRIBED, F_ACK, F_ACKED, F_REQUEST, F_REPLY, F_ERROR = range(1, 10)
F_BEGIN, F_MESSAGE, F_COMMIT, F_PROGRESS, F_GAP = range(0x10, 0x15)
BEGIN_BODY = u32(1) + u64(LSN) + u64(TIME) + XID
FRAMES = {
    "begin": frame(F_BEGIN, BEGIN_BODY),
    "begin-resumed": frame(F_BEGIN, BEGIN_BODY, 1),
    "message": frame(F_MESSAGE, POSITION + u64(LSN) + XID + u64(TIME) + u64(TIME) + u32(1) + b"a" + b"content", 1),
    "message-empty": frame(F_MESSAGE, bytes(48)),
    "message-prefix-beyond": frame(F_MESSAGE, bytes(44) + u32(2) + b"a"),
    "commit": frame(F_COMMIT, BEGIN_BODY + u64(END) + u32(2)),
    "progress": frame(F_PROGRESS, POSITION),
    "gap": frame(F_GAP, POSITION + END_OF_TRANSACTION + u64(3) + u64(0xFFFFFFFFFFFFFFFF) + b"retention"),
}
for what, data in FRAMES.items():
    seed("frame", what, data)
seed("frame", "header-not-zero", frame(F_PROGRESS, POSITION)[:6] + h("0001") + POSITION)

R_FRAME, R_LARGE, R_RAW, R_CUT, R_RESET = range(5)
for what, data in FRAMES.items():
    seed("frame_reader", "raw-" + what, u8(R_CUT, 0, R_RAW, len(data)), data)
seed("frame_reader", "burst", u8(R_CUT, 6), u8(R_FRAME, F_PROGRESS, 0, 16) * 4)
seed("frame_reader", "grows-and-goes-back", u8(R_LARGE, F_MESSAGE, 1), h("ffff"), u8(R_FRAME, F_PROGRESS, 0, 16),
     u8(R_CUT, 255), u8(R_LARGE, F_MESSAGE, 0), h("8000"), u8(R_FRAME, F_MESSAGE, 0, 200))
seed("frame_reader", "exactly-the-buffer", u8(R_LARGE, F_MESSAGE, 0), h("7fff"), u8(R_LARGE, F_MESSAGE, 0), h("7fff"))
seed("frame_reader", "one-more-than-the-buffer", u8(R_LARGE, F_MESSAGE, 0), h("8000"), u8(R_CUT, 250),
     u8(R_LARGE, F_MESSAGE, 0), h("8000"))
seed("frame_reader", "moves-to-the-front", u8(R_LARGE, F_MESSAGE, 0), h("6000"), u8(R_LARGE, F_MESSAGE, 0), h("6000"),
     u8(R_CUT, 240))
seed("frame_reader", "another-connection", u8(R_RAW, 4), h("00000001"), u8(R_RESET), u8(R_FRAME, F_HELLO, 0, 3))
seed("frame_reader", "control-frame-too-long", u8(R_RAW, 8), h("0010000101000000"))
seed("frame_reader", "control-frame-longest", u8(R_RAW, 8), h("0010000001000000"))
seed("frame_reader", "message-too-long", u8(R_RAW, 8), h("ffffffff11000000"))
seed("frame_reader", "header-not-zero", u8(R_RAW, 8), h("0000000011000001"))
seed("frame_reader", "length-zero", u8(R_FRAME, F_MESSAGE, 0, 0, R_FRAME, F_ERROR, 0x80, 0))
seed("frame_reader", "ignorable-between", u8(R_FRAME, F_PROGRESS, 0, 16, R_FRAME, 0x7E, 0x80, 9, R_CUT, 3),
     u8(R_FRAME, F_HELLO, 0x80, 0, R_FRAME, F_PROGRESS, 0, 16))
seed("frame_reader", "ignorable-larger-than-the-buffer", u8(R_LARGE, 0x7E, 0x80), h("9000"), u8(R_CUT, 240),
     u8(R_FRAME, F_PROGRESS, 0, 16))
seed("frame_reader", "ignorable-never-whole", u8(R_RAW, 8), h("ffffffff7e800000"), u8(R_FRAME, F_PROGRESS, 0, 16, R_RESET),
     u8(R_FRAME, F_PROGRESS, 0, 16))

# ---- CBOR, by a few functions of its own ----


def head(major, value):
    if value < 24:
        return u8(major << 5 | value)
    for info, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * size:
            return u8(major << 5 | info) + value.to_bytes(size, "big")
    raise ValueError(value)


def cbor(value):
    if value is None or isinstance(value, bool):
        return {None: b"\xf6", True: b"\xf5", False: b"\xf4"}[value]
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(cbor, value))
    if isinstance(value, dict):
        return head(5, len(value)) + b"".join(cbor(key) + cbor(item) for key, item in value.items())
    raise TypeError(type(value))


ITEMS = {
    "integers": cbor([0, 23, 24, 255, 256, 65536, 1 << 32, (1 << 64) - 1, -1, -25, -257, -(1 << 63)]),
    "integer-below-int64": h("3bffffffffffffffff"),
    "integer-longer-than-needed": h("1b0000000000000001"),
    "bytes": cbor([b"", b"\xfb", b"\xfb\xff", b"\xfb\xff\xff"]),
    "text": cbor(["", "a", "\u00fc", "\u6c34", "\U0001f600", "\"\\\n\x7f\u0085\u202e"]),
    "text-of-a-key-in-a-key": h("a1a1622261625c6100f6"),
    "map": cbor({"a": 1, "b": [2, {"c": None}]}),
    "map-any-keys": h("a601f600f541fb02f93e0003f604820161610580"),
    "map-key-twice": h("a2616101616102"),
    "map-key-nul": h("a1610001"),
    "tags": h("84c11a514b67b0d9d9f7a0d82076687474703a2f2f7777772e6578616d706c652e636f6dd81864abababab"),
    "bignums": h("85c249010000000000000000c349010000000000000000c2420001c348ffffffffffffffffc25f4101ff"),
    "bignum-longest-decimal": h("c25840") + b"\xff" * 64,
    "bignum-too-long-for-decimal": h("c35841") + b"\xff" * 65,
    "bignum-negative-carries": h("c34affffffffffffffffffff"),
    "base64-by-tag": h("83d541fbd643fbffffd7820041fb"),
    "simple": h("86f4f5f6f7f0f8ff"),
    "floats": h("87f90000f98000f93e00f97bfffa47c35000fb3ff199999999999afb7e37e43c8800759c"),
    "floats-small": h("84f90001f90400fa00000001fb0000000000000001"),
    "floats-not-finite": h("83f97c00f9fc00f97e00"),
    "floats-wider-than-needed": h("83fa3fc00000fb3ff8000000000000fb7ff0000000000001"),
    "strings-in-chunks": h("845f42fbff41ff4100ff7f6161624242ff5fff7fff"),
    "containers-without-length": h("9f018202039f0405ffbf6161bfff02a0ffff"),
    "nesting-64": b"\x81" * 64 + b"\0",
    "nesting-65": b"\x81" * 65 + b"\0",
    "nesting-64-without-length": b"\x9f" * 64 + b"\xff" * 64,
    "nesting-tags": b"\xc1" * 64 + b"\0",
    "nesting-keys": b"\xa1" * 32 + b"\x61\"" + b"\0" * 32,
    "count-beyond": h("9bffffffffffffffff00"),
    "pairs-beyond": h("bb8000000000000000"),
    "length-beyond": h("7bffffffffffffffff61"),
    "break-alone": h("ff"),
    "break-for-a-value": h("bf00ff"),
    "chunk-of-another-type": h("5f6161ff"),
    "chunk-splits-a-character": h("7f61c361bcff"),
    "simple-below-32": h("f818"),
    "reserved": h("1c"),
    "not-utf8": h("64f8888080"),
    "surrogate": h("63eda080"),
    "trailing": h("0000"),
}
for what, data in ITEMS.items():
    seed("cbor", what, data)
    seed("cbor_print", what, data)

# ---- control frames ----

CONTROL = {
    "hello": (F_HELLO, cbor({"max": 3, "min": 2, "client": "c", "layout": 1})),
    "hello-unknown-keys": (F_HELLO, cbor({"max": 1, "min": 1, "x": [b"y"], "layout": 1, "x2": {}})),
    "hello-without-layout": (F_HELLO, cbor({"max": 1, "min": 1})),
    "hello-without-min": (F_HELLO, cbor({"max": 1, "layout": 1})),
    "hello-key-twice": (F_HELLO, h("a4636d617801636d617801636d696e01666c61796f757401")),
    "hello-without-length": (F_HELLO, h("bf636d617801ff")),
    "welcome": (F_WELCOME, cbor({"layout": 1, "server": "walbusd", "version": 1, "identity": "7/1",
                                 "position": POSITION, "timeline": 1, "max_frame": 1 << 20, "max_filters": 1024})),
    "subscribe": (F_SUBSCRIBE, cbor({"start": "now", "exclude": [[0, b"a.b"]],
                                     "filters": [[0, b"orders.>"], [1, b"x"], [2, "y:"]]})),
    "subscribe-durable": (F_SUBSCRIBE, cbor({"name": "n", "start": "stored", "filters": [[0, b">"]],
                                             "take_over": True})),
    "subscribe-override": (F_SUBSCRIBE, cbor({"name": "n", "start": "oldest", "filters": [[0, b">"]],
                                              "override": True})),
    "subscribe-position": (F_SUBSCRIBE, cbor({"start": "position", "filters": [[0, b">"]], "position": POSITION})),
    "subscribe-position-missing": (F_SUBSCRIBE, cbor({"start": "position", "filters": [[0, b">"]]})),
    "subscribe-time": (F_SUBSCRIBE, cbor({"time": -5, "start": "time", "filters": [[0, b">"]]})),
    "subscribe-start-unknown": (F_SUBSCRIBE, cbor({"start": "\n\u202ewhenever-it-suits", "filters": [[0, b">"]]})),
    "subscribe-filters-empty": (F_SUBSCRIBE, cbor({"filters": []})),
    "subscribe-filter-kind-unknown": (F_SUBSCRIBE, cbor({"filters": [[3, b"a"]]})),
    "subscribe-filter-not-a-pair": (F_SUBSCRIBE, cbor({"filters": [[0, b"a", 0]]})),
    "subscribe-too-many-tokens": (F_SUBSCRIBE, cbor({"filters": [[0, b"." * 4095], [0, b"." * 4095], [0, b""]]})),
    "subscribed": (F_SUBSCRIBED, cbor({"stored": False, "identity": "7/1", "position": POSITION, "timeline": 1,
                                       "redelivered_to": POSITION})),
    "ack": (F_ACK, cbor({"confirm": True, "position": POSITION})),
    "ack-position-short": (F_ACK, cbor({"position": POSITION[1:]})),
    "request": (F_REQUEST, cbor({"id": 1, "args": {"a": [1]}, "what": "status"})),
    "reply": (F_REPLY, cbor({"id": 1, "result": {"state": "streaming"}})),
    "error": (F_ERROR, cbor({"id": 1, "code": "invalid", "text": "No.", "fatal": False})),
    "error-without-id": (F_ERROR, cbor({"code": "protocol", "text": "No.", "fatal": True})),
}
for what, (kind, data) in CONTROL.items():
    seed("control", what, u8(kind), data)
seed("control", "request-args-nested", u8(F_REQUEST), head(5, 3), cbor("id"), cbor(1), cbor("args"),
     b"\x81" * 62 + b"\0", cbor("what"), cbor("x"))

# ---- events ----

REQUIRED = {"id": "1", "type": "t", "source": "/s", "specversion": "1.0"}
EVENT = h("d9d9f7")


def attributes(extra, required=None):
    return EVENT + cbor({**(REQUIRED if required is None else required), **extra})


seed("event", "required-alone", attributes({}))
seed("event", "data", attributes({"data": {"a": [1, b"x"]}}))
seed("event", "optional", attributes({"subject": "s", "datacontenttype": "text/plain", "data": "x"}))
seed("event", "time", EVENT, head(5, 5), cbor(REQUIRED)[1:], cbor("time"), h("c0"), cbor("2026-01-02T03:04:05Z"))
seed("event", "time-without-tag", attributes({"time": "2026-01-02T03:04:05Z"}))
seed("event", "time-is-a-number", attributes({"time": 5}))
seed("event", "attribute-not-text", attributes({"n": 5, "b": b"x", "t": True}))
seed("event", "attribute-name-not-publishable", attributes({"N-1": "x"}))
seed("event", "map-without-length", EVENT, h("bf"), cbor(REQUIRED)[1:], h("ff"))
seed("event", "text-in-chunks", EVENT, head(5, 5), cbor(REQUIRED)[1:], cbor("x"), h("7f6161ff"))
seed("event", "key-in-chunks", EVENT, head(5, 5), cbor(REQUIRED)[1:], h("7f6161ff"), cbor("x"))
seed("event", "key-twice", EVENT, head(5, 5), cbor(REQUIRED)[1:], cbor("id"), cbor("2"))
seed("event", "data-twice", EVENT, head(5, 6), cbor(REQUIRED)[1:], (cbor("data") + cbor(1)) * 2)
seed("event", "type-missing", attributes({}, {k: v for k, v in REQUIRED.items() if k != "type"}))
seed("event", "specversion-another", attributes({}, {**REQUIRED, "specversion": "0.3"}))
seed("event", "id-empty", attributes({}, {**REQUIRED, "id": ""}))
seed("event", "data-nested", EVENT, head(5, 5), cbor(REQUIRED)[1:], cbor("data"), b"\x81" * 62 + b"\0")
seed("event", "most-attributes", attributes({f"a{i}": "" for i in range(60)}))
seed("event", "one-attribute-too-many", attributes({f"a{i}": "" for i in range(61)}))
seed("event", "signed", h("d28443a1012740a0"))
seed("event", "opaque", "plain text")

# ---- COSE keys and messages ----

# RFC 8032 section 7.1, test 1.
X = h("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
D = h("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
KEY = {1: 1, -1: 6, -2: X}
for what, data in {
    "public": cbor(KEY),
    "public-written": cbor({1: 1, 2: h("866eefbd6718c884"), -1: 6, -2: X}),
    "public-kid-longest": cbor({1: 1, 2: b"k" * 255, -1: 6, -2: X}),
    "public-kid-too-long": cbor({1: 1, 2: b"k" * 256, -1: 6, -2: X}),
    "public-for-one-algorithm": cbor({1: 1, 3: -19, -1: 6, -2: X}),
    "public-algorithm-another": cbor({1: 1, 3: -7, -1: 6, -2: X}),
    "public-algorithm-text": cbor({1: 1, 3: "EdDSA", -1: 6, -2: X}),
    "public-to-verify": cbor({1: 1, 4: [2], -1: 6, -2: X}),
    "public-to-sign-alone": cbor({1: 1, 4: [1], -1: 6, -2: X}),
    "public-no-point": cbor({1: 1, -1: 6, -2: u8(2) + bytes(31)}),
    "public-other-order-and-widths": h("b90003215820") + X + h("3800061801 1b0000000000000001"),
    "public-more-labels": cbor({1: 1, -1: 6, -2: X, "use": [{"a": 1}], 70000: None}),
    "public-curve-another": cbor({1: 1, -1: 7, -2: bytes(57)}),
    "ec2": cbor({1: 2, -1: 1, -2: bytes(32), -3: bytes(32)}),
    "private": cbor({**KEY, -4: D}),
    "private-without-x": cbor({1: 1, -1: 6, -4: D}),
    "private-of-another": cbor({**KEY, -4: X}),
    "private-short": cbor({**KEY, -4: D[1:]}),
    "private-to-sign": cbor({1: 1, 3: -8, 4: [1, "x"], -1: 6, -2: X, -4: D}),
    "private-key-ops-empty": cbor({1: 1, 4: [], -1: 6, -2: X, -4: D}),
    "without-length": h("bf") + cbor(KEY)[1:] + h("ff"),
    "x-in-chunks": h("a301012006215f5820") + X + h("ff"),
    "label-twice": h("a4") + cbor(KEY)[1:] + h("180101"),
    "label-is-a-byte-string": h("a14101f6"),
    "key-set": cbor([KEY]),
}.items():
    seed("cose_key", what, data)

SIGN1 = h("d2")
PROTECTED = cbor({1: -8, 4: h("866eefbd6718c884"), 16: "walbus+cose"})
EVENT_MAP = cbor(REQUIRED)
SIGNATURE = u8(1) + bytes(62) + u8(1)


def sign1(protected, unprotected, payload=EVENT_MAP, signature=SIGNATURE):
    return cbor([protected, unprotected, payload, signature])


for what, data in {
    "event": SIGN1 + sign1(PROTECTED, {}),
    "event-by-its-own-number": SIGN1 + sign1(cbor({1: -19, 4: b"k", 16: "walbus+cose"}), {}),
    "event-more-labels": SIGN1 + sign1(cbor({1: -8, 4: b"k", 16: "walbus+cose", "x": [1]}), {}),
    "event-type-another": SIGN1 + sign1(cbor({1: -8, 4: b"k", 16: "x"}), {}),
    "event-without-tag": sign1(PROTECTED, {}),
    "event-tag-longer-than-needed": h("d812") + sign1(PROTECTED, {}),
    "event-array-longer-than-needed": SIGN1 + h("9804") + sign1(PROTECTED, {})[1:],
    "event-array-without-length": SIGN1 + h("9f") + sign1(PROTECTED, {})[1:] + h("ff"),
    "event-unprotected-without-length": SIGN1 + h("84") + cbor(PROTECTED) + h("bfff") + cbor(EVENT_MAP)
                                        + cbor(SIGNATURE),
    "event-protected-without-length": SIGN1 + sign1(h("bf") + PROTECTED[1:] + h("ff"), {}),
    "event-something-unprotected": SIGN1 + sign1(PROTECTED, {99: 1}),
    "event-detached": SIGN1 + sign1(PROTECTED, {}, None),
    "event-signature-empty": SIGN1 + sign1(PROTECTED, {}, signature=b""),
    "kid-unprotected": SIGN1 + sign1(cbor({1: -8}), {4: b"11"}),
    "alg-unprotected": sign1(b"", {1: -8}),
    "alg-another": sign1(cbor({1: -7}), {}),
    "alg-text": sign1(cbor({1: "unknown"}), {}),
    "alg-missing": sign1(b"", {}),
    "protected-empty-map": sign1(h("a0"), {1: -8}),
    "protected-empty-map-without-length": sign1(h("bfff"), {}),
    "protected-not-a-map": sign1(cbor([]), {}),
    "protected-trailing": sign1(cbor({1: -8}) + b"\0", {}),
    "label-twice": sign1(h("a201271827f6a0"), {}),
    "label-twice-by-value": sign1(h("a20127180127"), {}),
    "label-in-both": sign1(cbor({1: -8}), {1: -8}),
    "label-not-allowed": sign1(h("a1f600"), {}),
    "labels-most": sign1(cbor({100 + i: 0 for i in range(63)} | {1: -8}), {200 + i: 0 for i in range(64)}),
    "labels-too-many": sign1(cbor({100 + i: 0 for i in range(65)}), {}),
    "critical": sign1(cbor({1: -8, 2: [16]}), {}),
    "known-parameters": sign1(cbor({1: -8, 3: "text/plain", 5: b"iv"}), {4: b"", 16: 60}),
    "iv-and-partial-iv": sign1(cbor({1: -8, 5: b"iv"}), {6: b"iv"}),
    "payload-in-chunks": h("8440a05f4161ff40"),
    "payload-text": sign1(b"", {}, "payload"),
    "three": cbor([b"", {}, b""]),
    "five": cbor([b"", {}, b"", b"", b""]),
    "tag-another": h("d862") + sign1(PROTECTED, {}),
    "tag-twice": SIGN1 * 2 + sign1(PROTECTED, {}),
    "trailing": SIGN1 + sign1(PROTECTED, {}) + b"\0",
    "nesting-protected": sign1(h("a100") + b"\x81" * 61 + b"\0", {}),
    "nesting-unprotected": h("8440a100") + b"\x81" * 62 + h("004040"),
    "nesting-unprotected-too-deep": h("8440a100") + b"\x81" * 63 + h("004040"),
}.items():
    seed("cose_sign1", what, data)

# ---- trust files ----

KID = "866eefbd6718c884"
KEY_LINE = "key = " + base64.b64encode(cbor(KEY)).decode() + "\n"
SECTION = f"[{KID}]\n" + KEY_LINE
OTHER = "[6b]\nkey = " + base64.b64encode(cbor({1: 1, 2: b"k", -1: 6, -2: X})).decode() + "\nallow = b.*\n"
for what, text in {
    "empty": "",
    "comments": "# one\n; two\n\n",
    "one-key": SECTION + "allow = orders.>\n",
    "everything": SECTION + "allow = a.>\nallow = b\naudience = production\nmax-delay = 10min\n",
    "audience-empty": SECTION + "allow = a\naudience =\n",
    "no-end-of-line": SECTION + "allow = a",
    "crlf-and-blanks": SECTION.replace("\n", " \r\n").replace(" = ", "\t=") + "  allow=a\r\n",
    "byte-order-mark": "\ufeff" + SECTION + "allow = a\n",
    "kid-in-capitals": SECTION.replace(KID, KID.upper()) + "allow = a\n",
    "two-keys": "# first\n" + SECTION + "allow = a\n\n# second\n" + OTHER,
    "two-keys-close": SECTION + "allow = a\n" + OTHER,
    "comment-between-close": SECTION + "allow = a\n# whose\n" + OTHER,
    "comment-behind-the-last": SECTION + "allow = a\n# whose\n\n# apart\n\n" + OTHER,
    "pattern-twice": SECTION + "allow = a\nallow = a\n",
    "pattern-with-equals-sign": SECTION + "allow = a=[b]\n",
    "pattern-with-blank": SECTION + "allow = a b\n",
    "pattern-not-ascii": SECTION + "allow = \u00e4\n",
    "pattern-empty": SECTION + "allow =\n",
    "kid-another": SECTION.replace("86", "87", 1) + "allow = a\n",
    "kid-odd": "[123]\n",
    "kid-none": "[]\n",
    "section-twice": 2 * (SECTION + "allow = a\n"),
    "section-without-key": f"[{KID}]\nallow = a\n",
    "section-allows-nothing": SECTION,
    "key-twice": SECTION + KEY_LINE + "allow = a\n",
    "key-not-base64": f"[{KID}]\nkey = ?\n",
    "key-empty": f"[{KID}]\nkey =\n",
    "audience-twice": SECTION + "allow = a\naudience = a\naudience = b\n",
    "audience-not-visible": SECTION + "allow = a\naudience = \u202e\n",
    "delay-zero": SECTION + "allow = a\nmax-delay = 0\n",
    "delay-longest": SECTION + "allow = a\nmax-delay = 36500d\n",
    "delay-too-long": SECTION + "allow = a\nmax-delay = 36501d\n",
    "delay-unknown-unit": SECTION + "allow = a\nmax-delay = 1y\n",
    "comment-behind-a-value": SECTION + "allow = a # b\n",
    "before-any-section": "allow = a\n",
    "unknown": SECTION + "allows = a\n",
    "neither": "\x1b[31m\n",
    "nul": SECTION + "allow = a\0\n",
}.items():
    seed("trust", what, text)

# ---- what a content is worth: steps as in fuzz_verify.c ----


def dated(time):
    return EVENT + head(5, 1 + len(REQUIRED)) + cbor("time") + head(6, 0) + cbor(time) + cbor(REQUIRED)[1:]


for what, data in {
    "nothing": b"",
    "opaque": u8(0, 1) + b"a" + u8(0) + b"{}",
    "event": u8(0, 11) + b"orders.paid" + u8(0) + attributes({}),
    "event-data": u8(0, 11) + b"orders.paid" + u8(0) + attributes({"data": {"a": [1, b"x"]}}),
    "event-own-audience": u8(1, 11) + b"orders.paid" + u8(0) + attributes({}),
    "not-allowed": u8(1, 1) + b"x" + u8(0) + attributes({}),
    "no-time": u8(2, 11) + b"orders.paid" + u8(0) + attributes({}),
    "time-is-no-time": u8(2, 11) + b"orders.paid" + u8(0) + dated("soon"),
    "time-with-nul": u8(2, 11) + b"orders.paid" + u8(0) + dated("2026-11-29T12:00:00Z\0"),
    "in-time": u8(2, 11) + b"orders.paid" + u8(0) + dated("2026-11-29T12:00:00Z"),
    "just-in-time": u8(2, 11) + b"orders.paid" + u8(0) + dated("2026-11-28T12:00:00Z"),
    "too-late": u8(2, 11) + b"orders.paid" + u8(3) + dated("2026-11-29T12:00:00Z"),
    "too-early": u8(2, 11) + b"orders.paid" + u8(0x80) + dated("2026-11-29T12:00:00Z"),
    "prefix-empty": u8(0, 0, 0) + attributes({}),
    "prefix-not-ascii": u8(0, 2) + "\u00e4".encode() + u8(0) + attributes({}),
    "signed-by-another": u8(0, 11) + b"orders.paid" + u8(0) + SIGN1 + sign1(PROTECTED, {}),
    "signed-no-event": u8(0, 11) + b"orders.paid" + u8(0) + SIGN1 + sign1(PROTECTED, {}, cbor(1)),
    "signed-malformed": u8(0, 11) + b"orders.paid" + u8(0) + SIGN1 + sign1(PROTECTED, {4: b"k"}),
}.items():
    seed("verify", what, data)

# ---- what inspect explains: the same, and what is malformed inside a message ----

for (fuzzer, what), data in list(SEEDS.items()):
    if fuzzer in ("event", "cose_key", "cose_sign1"):
        seed("explain", f"{fuzzer}-{what}", data)
for what, data in {
    "empty": b"",
    "text": "{\"order\": 17}\n",
    "bytes": b"\xff\0\x1b[31m",
    "cbor": cbor({"a": [1, -1, None, b"x", "y" * 60, True]}),
    "cbor-numbers": h("84f93e00fb3ff199999999999a3bfffffffffffffffff0"),
    "cbor-in-chunks": h("9f7f6161ff5f4162ffbfffff"),
    "text-not-utf8": SIGN1 + sign1(PROTECTED, {}, h("a1626140ff00")) + cbor("x"),
    "payload-text-not-utf8": SIGN1 + sign1(PROTECTED, {}, h("a1616bff6361ff6202")),
    "payload-truncated": SIGN1 + sign1(PROTECTED, {}, h("a2616b")),
    "payload-trailing": SIGN1 + sign1(PROTECTED, {}, h("a0616b")),
    "payload-text": SIGN1 + sign1(PROTECTED, {}, b"\x1b]0;title\x07"),
    "event-text-drives-a-terminal": attributes({"x": "\x1b[2J\u202e\x07"}),
    "event-text-cut-in-a-character": attributes({"x": "a" * 47 + "\u20ac" * 9}),
    "event-text-not-utf8": EVENT + h("a1626964636180ff"),
}.items():
    seed("explain", what, data)

# ---- filters: steps as in fuzz_filters.c ----

S_ADD, S_REMOVE, S_LOOKUP = range(3)
PATTERN, EXACT, STARTS = range(3)


def text(value):
    return u8(len(value)) + value.encode("latin-1")


def add(member, filters, exclusions=()):
    out = u8(S_ADD, member, len(filters) | len(exclusions) << 4)
    return out + b"".join(u8(kind) + text(value) for kind, value in (*filters, *exclusions))


def look(*prefixes):
    return b"".join(u8(S_LOOKUP) + text(prefix) for prefix in prefixes)


seed("filters", "as-drawn-in-route", add(0, [(PATTERN, "orders.created")]), add(1, [(PATTERN, "orders.*")]),
     add(2, [(PATTERN, "orders.>")]), add(3, [(PATTERN, ">")]),
     look("orders.created", "orders", "orders.", "orders.a.b", "", "x"))
seed("filters", "wildcards-inside-tokens", add(0, [(PATTERN, "a*"), (PATTERN, ">.a"), (PATTERN, "*.>b")]),
     look("a*", "ab", ">.a", "x.a", "x.>b"))
seed("filters", "empty-tokens", add(0, [(PATTERN, "")]), add(1, [(PATTERN, ".")]), add(2, [(PATTERN, "*")]),
     add(3, [(PATTERN, "*.>")]), add(4, [(PATTERN, "..>")]), look("", ".", "..", "a.", ".a", "..a"))
seed("filters", "exact-and-starts-with", add(0, [(EXACT, "a.b"), (STARTS, "neon-file:")]), add(1, [(STARTS, "")]),
     add(2, [(EXACT, "")]), look("a.b", "a.", "neon-file:", "neon-file:/x", "neon", ""))
seed("filters", "exclusions", add(0, [(PATTERN, ">")], [(PATTERN, "a.*"), (EXACT, "b"), (STARTS, "c")]),
     look("a.x", "a", "b", "bb", "c", "cc", "d"))
seed("filters", "filter-and-exclusion-alike", add(0, [(PATTERN, "a"), (PATTERN, "a")], [(PATTERN, "a")]),
     add(1, [(EXACT, "a"), (EXACT, "a")]), look("a"))
seed("filters", "members-come-and-go", look("a.b"), add(0, [(PATTERN, "a.*")]), add(1, [(PATTERN, "a.b")]),
     u8(S_REMOVE, 0), add(0, [(EXACT, "a.b")]), u8(S_REMOVE, 1), u8(S_REMOVE, 0), look("a"))
seed("filters", "reserved-and-heartbeat", look("_walbus.heartbeat", "_x", "a._x", "a", "a..b", "a.", "\xff"))
seed("filters", "longest-prefix-for-publishing", look("a" * 47, "a" * 48, "b" * 48))
seed("filters", "few-letters", u8(S_ADD, 0, 1, PATTERN, 0x85), h("0300010003"), u8(S_LOOKUP, 0x85), h("0300030004"))

# ---- texts ----

for what, data in {
    "position": "1:0/16B3748:1",
    "position-largest": "4294967295:FFFFFFFF/FFFFFFFF:4294967295",
    "position-too-large": "4294967296:0/0:0",
    "position-index-too-large": "1:0/0:4294967296",
    "position-leading-zeros": "0001:00000000/0abcdef0:0000000001",
    "position-lower-case": "1:a/b:2",
    "position-sign": "-1:0/0:0",
    "position-blank-behind": "1:0/0:0 ",
    "position-without-index": "1:0/0",
    "lsn": "0/16B3748",
    "lsn-zero": "0/0",
    "lsn-nine-digits": "0/000000001",
    "lsn-without-low": "1/",
}.items():
    seed("position", what, data)
seed("position", "binary", POSITION, END_OF_TRANSACTION, bytes(16), b"\xff" * 16, u32(1), u64(1 << 63), u32(0))

for what, data in {
    "empty": "",
    "one": "1\t0/3000000\tno recovery target specified\n",
    "two": "1\t0/3000000\tx\n2\t0/5000000\tbefore 2026-01-02 03:04:05+00\n",
    "comment-and-blank-lines": "# history\n\n  \t\n1\t0/1\n",
    "carriage-returns": "1\t0/1\tx\r\n2\t0/2\ty\r\n",
    "no-newline-at-the-end": "1\t0/1",
    "not-rising": "2\t0/1\tx\n2\t0/2\ty\n",
    "beyond-the-current": "1000\t0/1\tx\n",
    "timeline-zero": "0\t0/1\tx\n",
    "timeline-sign": "-1\t0/1\tx\n",
    "lsn-missing": "1\n",
    "longest-part-read": "1" + " " * 61 + "0/1\n",
    "reason-long": "1\t0/1\t" + "x" * 200 + "\n",
    "lsn-zero": "1\t0/0\tx\n",
}.items():
    seed("timeline", what, data)

for what, data in {
    "values": '[null, true, false, 0, -5, 9223372036854775807, -9223372036854775808, "x"]',
    "object": '{"bb": 1, "a": {"c": []}, "": 2}',
    "numbers": "[1.10, 1e3, -0.0, -0, 5e-324, 1.7976931348623157e308, 0.1, 65504.0]",
    "integer-too-large": "[9223372036854775808]",
    "number-too-large": "1e400",
    "text": '"\\u0000\\ud83d\\ude00\u00fc\\"\\\\\\n"',
    "key-nul": '{"\\u0000": 1}',
    "key-twice": '{"a": 1, "a": 2}',
    "surrogate-alone": '"\\ud83d"',
    "nesting-62": "[" * 62 + "]" * 62,
    "nesting-63": "[" * 63 + "]" * 63,
    "brackets-in-text": '"[[[[\\"]"',
    "blank": " \n\t",
    "empty": "",
    "trailing": "1 2",
    "not-utf8": b'"\xff"',
    "unfinished": '{"a": [1, "b',
    "second-line": "[1,\n 2,\n x]",
}.items():
    seed("json_cbor", what, data)


# ---- segments: what stands behind the header, see fuzz_segment.c ----

S_CHECKSUMS, S_TORN, S_INSIDE, S_SIZE = 1, 2, 4, 8
NOWHERE = bytes(16)
OPEN = u32(1) + u64(LSN) + u64(TIME) + u32(731)


def record(frames=b"", first=NOWHERE, last=NOWHERE, mark=0, before=0, messages=0, opened=bytes(24), flags=0):
    body = (u64(0) + u64(len(frames)) + first + last + u64(mark) + u32(1 if mark else 0) + u64(TIME) + u64(1000) +
            u64(before) + u64(0) + u32(messages) + u64(0) + opened + u8(flags))
    return u32(len(body)) + u8(0x15, 0x80, 0, 0) + body + frames


S_BEGIN = frame(0x10, OPEN)
S_MESSAGE = frame(0x11, POSITION + u64(LSN) + bytes(28) + b"prefix", 1)
S_COMMIT = frame(0x12, OPEN + u64(END) + u32(1))
ALONE = u32(1) + u64(LSN - 16) + u32(0)
S_ALONE = frame(0x11, ALONE + u64(LSN - 16) + bytes(28))
FIRST = u32(1) + u64(LSN) + u32(0)
WHOLE = record(S_BEGIN + S_MESSAGE + S_COMMIT, FIRST, END_OF_TRANSACTION, END, messages=1)
HALF = record(S_BEGIN + S_MESSAGE, FIRST, POSITION, messages=1, flags=2)
REST = record(S_COMMIT, END_OF_TRANSACTION, END_OF_TRANSACTION, END, 1, opened=OPEN, flags=1)
for what, data in {
    "empty": u8(0),
    "transaction": u8(S_CHECKSUMS) + WHOLE,
    "checksum-wrong": u8(0) + WHOLE,
    "torn": u8(S_CHECKSUMS | S_TORN) + record(S_ALONE, ALONE, ALONE, messages=1) + WHOLE[:-1],
    "damaged": u8(S_CHECKSUMS) + record(S_ALONE, ALONE, ALONE, messages=1) + WHOLE[:-1],
    "marks": u8(S_CHECKSUMS) + record(mark=LSN) + record(mark=END),
    "over-records": u8(S_CHECKSUMS) + HALF + record(mark=END, before=1, opened=OPEN, flags=3) + REST,
    "ends-inside": u8(S_CHECKSUMS) + record(S_ALONE, ALONE, ALONE, messages=1) + HALF,
    "ends-inside-an-earlier-one": u8(S_CHECKSUMS) + HALF + record(mark=END, before=1, opened=OPEN, flags=3),
    "begins-inside": u8(S_CHECKSUMS | S_INSIDE) + REST,
    "begins-inside-and-is-empty": u8(S_INSIDE),
    "is-inside-without-begin": u8(S_CHECKSUMS) + record(S_ALONE, ALONE, ALONE, messages=1, flags=2),
    "frames-do-not-fill-it": u8(S_CHECKSUMS) + HALF + record(S_MESSAGE[:-1], POSITION, POSITION, 0, 1, 1, OPEN, 3),
    "not-inside-where-it-was": u8(S_CHECKSUMS) + HALF + WHOLE,
    "goes-back": u8(S_CHECKSUMS) + WHOLE + record(S_ALONE, ALONE, ALONE, messages=1),
    "size-beyond": u8(S_CHECKSUMS) + WHOLE + WHOLE[:16] + u64(0xFFFFFFFFFFFFFFF0) + WHOLE[24:],
    "valid-size": u8(S_CHECKSUMS | S_SIZE) + u8(*divmod(512 + len(WHOLE), 256)) + WHOLE + REST,
    "valid-size-in-a-record": u8(S_CHECKSUMS | S_SIZE) + u8(*divmod(513 + len(WHOLE), 256)) + WHOLE + record(mark=END),
    "valid-size-beyond": u8(S_CHECKSUMS | S_SIZE, 255, 255) + WHOLE,
    "valid-size-in-the-header": u8(S_CHECKSUMS | S_SIZE, 0, 9) + WHOLE,
}.items():
    seed("segment", what, data)

# ---- the quarantine's records; their checksums are put right by the fuzzer ----


def quarantined(number, prefix=b"orders.created", kid=b"\1\2\3", reason=b"Not signed.", content=b"17", era=1, zero=0):
    body = (u64(number) + u64(77) + u32(era) + u32(0) + u32(1) + u64(number & 0xffff) + u32(0) + u64(0x100) + u32(7) + u32(1) +
            u64(TIME) + u64(TIME) + bytes(range(32)) + u32(len(prefix)) + struct.pack(">HH", len(kid), len(reason)) + u32(zero) +
            prefix + kid + reason + content)
    return quarantine_record(1, body)


def quarantine_record(kind, body, magic=b"wbqr", zeros=b"\0\0\0"):
    return magic + u8(kind) + zeros + u64(len(body)) + bytes(16) + body


def gone(number, why=1):
    return quarantine_record(2, u64(number) + u32(why))


for what, records in {
    "empty": b"",
    "one": quarantined(1),
    "two-and-gone": quarantined(1) + quarantined(5, content=b"") + gone(1) + quarantined(6, prefix=b"", kid=b"", reason=b""),
    "gone-twice": quarantined(2) + gone(2, 3) + gone(2) + gone(9, 2),
    "not-rising": quarantined(5) + quarantined(5) + quarantined(4) + quarantined(6),
    "no-id": quarantined(0) + quarantined(1),
    "not-zero": quarantined(1, zero=1) + quarantined(2),
    "last-id": quarantined(2**64 - 2) + quarantined(2**64 - 1),
    "lengths": quarantine_record(1, quarantined(3)[32:-30]) + quarantined(4),
    "magic-within": quarantined(1, content=b"wbqr" + gone(1)) + quarantine_record(1, b"short") + quarantined(2),
    "kind": quarantine_record(3, bytes(12)) + quarantined(1),
    "zeros": quarantine_record(2, u64(1) + u32(1), zeros=b"\0\1\0") + quarantined(1),
    "torn": quarantined(1) + quarantined(2)[:-1],
}.items():
    seed("quarantine", what, u8(1), records)
    seed("quarantine", f"{what}-as-it-is", u8(0), records)

# ---- access: a rule, a NUL, the filter's kind, its text, a NUL, a prefix ----

for what, rule in {
    "subscribe": "any subscribe orders.> payments.* *.x >",
    "durable": "user:shop durable a b.*.c",
    "control": "group:4711  control\tstatus remove ",
    "names-with-colons": "user:a:b subscribe a",
    "empty": "",
    "blanks": " \t ",
    "who": "shop subscribe >",
    "no-name": "user: subscribe >",
    "no-right": "any",
    "right": "any read >",
    "no-pattern": "any durable  ",
    "star-inside": "any subscribe a*",
    "end-inside": "any subscribe a.>.b",
    "end-in-a-token": "any subscribe a.b>",
    "empty-tokens": "any subscribe . .. a..b *. .>",
    "not-utf8": "any subscribe \xff",
}.items():
    for kind, name, filter_text, prefix in ((PATTERN, "pattern", "a.*.>", "a.b.c.d"),
                                            (EXACT, "exact", "payments.x", "payments.x"),
                                            (STARTS, "starts-with", "orders.p", "orders.paid")):
        seed("access", f"{what}-{name}", rule.encode("latin-1"), u8(0, kind), filter_text, u8(0), prefix)

# ---- policy: lines, each with a NUL, an empty one, a prefix ----

for what, lines in {
    "first-decides": ("orders.internal.> ignore", "orders.> require", "> verify"),
    "blanks": ("  orders.*\trequire ",),
    "empty": (" ",),
    "no-word": ("orders.>",),
    "word": ("orders.> Require",),
    "words": ("orders.> require now",),
    "star-inside": ("orders* require",),
    "end-inside": ("> ignore", "a.>.b verify"),
    "not-ascii": ("gr\xf6sse.> require",),
    "none": (),
}.items():
    for prefix in ("", "orders.paid", "gr\xf6sse.x"):
        seed("policy", f"{what}-{prefix.encode('ascii', 'ignore').decode() or 'no-prefix'}",
             "\0".join((*lines, "", "")).encode("latin-1"), prefix.encode("latin-1"))

# ---- setting_value: which row, and the text ----

ROWS = 24  # one of each; more count round
for row in range(ROWS):
    seed("setting_value", f"row-{row:02}-text", u8(row), "walbus")
for what, value in {
    "empty": "", "zero": "0", "mode": "0660", "mode-of-nine": "0690", "size": "64MB", "size-half": "1.5 GB",
    "time": "90min", "bare": "10",
    "largest": "18446744073709551615", "too-large": "18446744073709551616", "minus": "-1", "hex": "0x10",
    "choice": "error",
    "rule": "any subscribe orders.>", "policy": "orders.> require", "controls": "\x1b[2J", "long": "x" * 300,
}.items():
    for row in (1, 4, 7, 8, 11, 14, 15, 17, 18, 23):
        seed("setting_value", f"{what}-{row:02}", u8(row), value)

# ---- settings_file: the file ----

for what, data in {
    "empty": "",
    "comments": "# a\n; b\n\n[walbusd] ; c\n",
    "some": "[walbusd]\ndsn = host=/run/postgresql dbname='my shop;x'\n  slot = indented\r\n\tpublication:colon\n"
            "socket-mode=0600\n",
    "lists": "[walbusd]\nallow = any subscribe a ; c\nallow = user:x durable >\npolicy = a.> verify\n"
             "allow = any control status\n",
    "numbers": "[walbusd]\nconnections-per-uid = 7\njournal-size = 64 MB\nexpire-after = 1.5h\nlog-level = debug\n",
    "empty-value": "[walbusd]\naudience =\ndsn = \n",
    "twice": "[walbusd]\nslot = a\n[walbusd]\nslot = b\n",
    "unknown-key": "[walbusd]\nsloot = a\n",
    "unknown-section": "[walbus]\nslot = a\n",
    "no-section": "slot = a\n",
    "behind-a-section": "[walbusd] slot = a\n",
    "section-open": "[walbusd\n",
    "no-value": "[walbusd]\nslot\n",
    "bad-rule": "[walbusd]\nallow = any read >\n",
    "comment-inside-quotes": "[walbusd]\ndsn = password='a ;b'\n",
    "nul": "[walbusd]\nslot = a\0b\n",
    "mark": "\ufeff[walbusd]\nslot = a\n",
    "long": "[walbusd]\ndsn = " + "x" * 400 + "\nslot = behind\n",
    "not-utf8": b"[walbusd]\nsocket-group = \xff\xfe\n",
    "no-newline": "[walbusd]\nslot = a",
}.items():
    seed("settings_file", what, data)


# ---- what the catalog keeps, see fuzz_catalog_value.c ----

V_SEALED, V_FILTERS = 1, 2


def subscription(flags=0, behind=b"", size=0):
    return (u8(3, flags) + u64(7) + POSITION * 4 + u64(3) + u64(4000) + u64(1000) + u64(900) + u32(size) + u64(0x77) +
            behind + bytes(8))


V_MARK = u64(5) + POSITION


def kept_filter(exclusion, kind, text):
    return u8(exclusion, kind) + struct.pack(">H", len(text)) + text.encode()


for what, data in {
    "plain": u8(V_SEALED) + subscription(),
    "checksum-wrong": u8(0) + subscription(),
    "resumes-in-a-gap": u8(V_SEALED) + subscription(3),
    "made-by-somebody": u8(V_SEALED) + subscription(8, u32(1000)),
    "suspended": u8(V_SEALED) + subscription(4, V_MARK + u8(7) + b"no room"),
    "suspended-and-made": u8(V_SEALED) + subscription(12, u32(1000) + V_MARK + u8(0)),
    "reason-longer-than-the-value": u8(V_SEALED) + subscription(4, V_MARK + u8(8) + b"no room"),
    "reason-longer-than-is-written": u8(V_SEALED) + subscription(4, V_MARK + u8(200) + b"x" * 200),
    "flag-that-nobody-knows": u8(V_SEALED) + subscription(0x80),
    "format-of-another-version": u8(V_SEALED) + b"\1" + subscription()[1:],
    "short": u8(V_SEALED) + subscription()[:-1],
    "filters-none": u8(V_FILTERS),
    "filters": u8(V_FILTERS) + kept_filter(0, 0, "orders.>") + kept_filter(0, 1, "a b") + kept_filter(1, 2, "x"),
    "filters-exclusion-first": u8(V_FILTERS) + kept_filter(1, 0, "x") + kept_filter(0, 0, "y"),
    "filters-kind-unknown": u8(V_FILTERS) + kept_filter(0, 3, "x"),
    "filters-cut": u8(V_FILTERS) + kept_filter(0, 0, "orders.>")[:-1],
    "filters-list-unknown": u8(V_FILTERS) + kept_filter(2, 0, "x"),
}.items():
    seed("catalog_value", what, data)

# ---- pages of the catalog's file, see fuzz_catalog_check.c: as LMDB has them on a machine of 64 bits, of 256 bytes ----

NO_PAGE = 2**64 - 1
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8


def page(number, flags, nodes=(), tail=0):
    upper, offsets, content = 256, [], b""
    for node in nodes:
        node += bytes(len(node) % 2)
        upper -= len(node)
        offsets.append(upper)
        content = node + content
    head = struct.pack("<QHHHH", number, 0, flags, 16 + 2 * len(offsets), upper - tail)
    head += struct.pack(f"<{len(offsets)}H", *offsets)
    return head + bytes(256 - len(head) - len(content)) + content


def leaf(key, value, flags=0):
    return struct.pack("<IHH", len(value), flags, len(key)) + key + value


def below(key, number):
    return struct.pack("<IHH", number & 0xFFFFFFFF, number >> 32, len(key)) + key


def tree(root=NO_PAGE, depth=0, leaves=0, entries=0, branches=0, size=0, flags=0):
    return struct.pack("<IHHQQQQQ", size, flags, depth, branches, leaves, 0, entries, root)


def pages_of(entries, frees, last, *further):
    def meta(transaction):
        body = struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 0) + tree(size=256, flags=0x4008, **frees) + tree(**entries)
        body += struct.pack("<QQ", last, transaction)
        return struct.pack("<QHHI", transaction % 2, 0, META, 0) + body + bytes(240 - len(body))
    return meta(0) + meta(1) + b"".join(further)


ONE = {"root": 2, "depth": 1, "leaves": 1, "entries": 2}
TWO_LEVELS = {"root": 2, "depth": 2, "leaves": 2, "entries": 2, "branches": 1}
FREE = {"root": 3, "depth": 1, "leaves": 1, "entries": 1}
AB = page(2, LEAF, [leaf(b"a", b"one"), leaf(b"b", b"two")])


def free_list(*numbers):
    return page(3, LEAF, [leaf(struct.pack("<Q", 9), struct.pack(f"<{len(numbers) + 1}Q", len(numbers), *numbers))])


for what, data in {
    "empty-file": b"",
    "empty": pages_of({}, {}, 1),
    "one-leaf": pages_of(ONE, {}, 2, AB),
    "two-levels": pages_of(TWO_LEVELS, {}, 4, page(2, BRANCH, [below(b"", 3), below(b"b", 4)]),
                           page(3, LEAF, [leaf(b"a", b"1")]), page(4, LEAF, [leaf(b"b", b"2")])),
    "branch-above-its-leaf": pages_of(TWO_LEVELS, {}, 4, page(2, BRANCH, [below(b"", 3), below(b"c", 4)]),
                                      page(3, LEAF, [leaf(b"a", b"1")]), page(4, LEAF, [leaf(b"b", b"2")])),
    "branch-to-itself": pages_of(TWO_LEVELS, {}, 4, page(2, BRANCH, [below(b"", 2), below(b"b", 2)])),
    "branch-beyond": pages_of(TWO_LEVELS, {}, 4, page(2, BRANCH, [below(b"", 3), below(b"b", 0xFFFFFFFFFFFF)])),
    "free-pages": pages_of(ONE, FREE, 5, AB, free_list(5, 4), bytes(512)),
    "free-page-in-use": pages_of(ONE, FREE, 5, AB, free_list(5, 2), bytes(512)),
    "free-pages-rise": pages_of(ONE, FREE, 5, AB, free_list(4, 5), bytes(512)),
    "free-pages-on-pages-of-their-own": pages_of(
        ONE, FREE, 5, AB, page(3, LEAF, [struct.pack("<IHH", 16, 1, 8) + struct.pack("<QQ", 9, 4)]),
        struct.pack("<QHHI", 4, 0, OVERFLOW, 1) + struct.pack("<QQ", 1, 5) + bytes(224), bytes(256)),
    "keys-fall": pages_of(ONE, {}, 2, page(2, LEAF, [leaf(b"b", b"1"), leaf(b"a", b"2")])),
    "entries-miscounted": pages_of(dict(ONE, entries=3), {}, 2, AB),
    "too-deep": pages_of(dict(ONE, depth=33), {}, 2, AB),
    "last-page-beyond": pages_of(ONE, {}, 3, AB),
    "upper-beyond": pages_of(ONE, {}, 2, AB[:14] + b"\x01\x01" + AB[16:]),
    "node-beyond": pages_of(ONE, {}, 2, AB[:16] + b"\xfa\x00" + AB[18:]),
    "value-beyond": pages_of(ONE, {}, 2, page(2, LEAF, [struct.pack("<IHH", 0xFFFFFFFF, 0, 1) + b"a"])),
}.items():
    seed("catalog_check", what, u8(0), data)
seed("catalog_check", "size-wrong", u8(1), pages_of(ONE, {}, 2, AB))


def main():
    arguments = sys.argv[1:]
    check = arguments[:1] == ["--check"]
    if len(arguments) != 1 + check:
        raise SystemExit(__doc__)
    faults = 0
    for (fuzzer, name), data in sorted(SEEDS.items()):
        path = os.path.join(arguments[-1], fuzzer, name)
        if not check:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            continue
        try:
            with open(path, "rb") as file:
                stands = file.read()
        except OSError as error:
            stands = None
            print(error)
        if stands != data:
            print(f"{path} is not what make_seeds.py makes")
            faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
