# SPDX-License-Identifier: PostgreSQL
"""`walbus inspect`: the contents of docs/format.md and what is wrong with others, byte by byte. Needs no server."""

import json
import re

import pytest
from harness import cbor
from harness.command import walbus
from harness.document import Block, Page

PAGE = Page("format.md")
CONTENTS = {name: block.raw for name, block in PAGE.contents.items()}
PUBLIC, PRIVATE = (Block(name, PAGE.fences[f"key {name}"][0]).raw for name in ("public", "private"))
ESCAPES = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def inspect(content, *options):
    done = walbus("inspect", *options, "-", stdin=content)
    assert done.status == 0 and done.err == b"", done
    return done


def rows(text):
    """[(offset, bytes)] of the text form, behind its first line."""
    found = []
    for line in text.split("\n\n", 1)[1].splitlines():
        match = re.match(r"([0-9a-f]{4,8})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})?", line)
        assert match, line
        found.append((int(match.group(1), 16), bytes.fromhex(match.group(2) or "")))
    return found


def covers(found, content):
    at = 0
    for offset, piece in found:
        assert offset == at
        assert content[at:at + len(piece)] == piece
        at += len(piece)
    assert at == len(content)


def test_an_event_to_the_byte():
    content = bytes.fromhex("d9d9f7a5") + b"".join(map(cbor.dumps, (
        "id", "1", "data", [1, -2, None, b"\x00A"], "type", "t", "source", "/s", "specversion", "1.0")))
    assert inspect(content).text == """\
51 bytes, an event

0000  d9 d9 f7                   tag 55799 (CBOR follows)
0003  a5                           map of 5 pairs
0004  62                             text of 2 bytes: "id"
0005  69 64                            |id|
0007  61                               text of 1 byte: "1"
0008  31                                 |1|
0009  64                             text of 4 bytes: "data"
000a  64 61 74 61                      |data|
000e  84                               array of 4 items
000f  01                                 1
0010  21                                 -2
0011  f6                                 null
0012  42                                 byte string of 2 bytes
0013  00 41                                |.A|
0015  64                             text of 4 bytes: "type"
0016  74 79 70 65                      |type|
001a  61                               text of 1 byte: "t"
001b  74                                 |t|
001c  66                             text of 6 bytes: "source"
001d  73 6f 75 72 63 65                |source|
0023  62                               text of 2 bytes: "/s"
0024  2f 73                              |/s|
0026  6b                             text of 11 bytes: "specversion"
0027  73 70 65 63 76 65 72 73          |specvers|
002f  69 6f 6e                         |ion|
0032  63                               text of 3 bytes: "1.0"
0033  31 2e 30                           |1.0|
""".replace("51 bytes", f"{len(content)} bytes")


def test_a_signed_event():
    done = inspect(CONTENTS["signed"])
    head = done.text.splitlines()
    assert head[0] == f"{len(CONTENTS['signed'])} bytes, a signed event, by the key 866eefbd6718c884"
    assert head[2:12] == [
        '0000  d2                         tag 18 (COSE_Sign1)',
        '0001  84                           array of 4 items',
        '0002  58 1a                          protected header: byte string of 26 bytes',
        '0004  a3                               map of 3 pairs',
        '0005  01                                 1 (alg)',
        '0006  27                                   -8 (EdDSA)',
        '0007  04                                 4 (kid)',
        '0008  48                                   byte string of 8 bytes',
        '0009  86 6e ef bd 67 18 c8 84                |.n..g...|',
        '0011  10                                 16 (typ)',
    ]
    assert "unprotected header: map of 0 pairs" in done.text
    assert "payload: byte string of 169 bytes" in done.text and 'text of 2 bytes: "id"' in done.text
    assert "signature: byte string of 64 bytes" in done.text
    covers(rows(done.text), CONTENTS["signed"])


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_every_example_is_covered(name):
    content = CONTENTS[name]
    done = inspect(content)
    if content:
        covers(rows(done.text), content)
    answer = json.loads(inspect(content, "--json").out)
    assert answer["size"] == len(content)
    covers([(row["offset"], bytes.fromhex(row["bytes"])) for row in answer["rows"]], content)
    assert done.text.splitlines()[0].split(", ", 1)[1] == answer["is"]


@pytest.mark.parametrize("content, kind, what", [
    (b"", "opaque", "opaque: nothing at all"),
    (b'{"order": 17}', "opaque", "opaque: text"),
    (b"\xff\xfe", "opaque", "opaque: bytes"),
    (cbor.dumps({"a": 1}), "cbor", "opaque: well-formed CBOR, but no event"),
    (PUBLIC, "cose-key", "a public key, with the id 866eefbd6718c884"),
    (CONTENTS["signed"], "signed-event", "a signed event, by the key 866eefbd6718c884"),
    (CONTENTS["signed"][1:], "cose-sign1", "a COSE_Sign1, but no signed event: A signed event has the tag 18, and "
                                           "this has none"),
    (cbor.dumps(cbor.Tag(18, [cbor.dumps({1: -8, 4: b"me"}), {}, b"hello", bytes(64)])), "cose-sign1",
     "a COSE_Sign1 by the key 6d65, but no signed event: its payload is no event: the item needs more bytes than there are, "
     "at byte 0"),
    (CONTENTS["event-with-cbor"], "event", "an event"),
    (bytes.fromhex("d9d9f7a0"), "opaque", "opaque; it begins as an event does: a required map key is missing or has no "
                                          "acceptable value"),
    (CONTENTS["signed"][:-1], "opaque",
     "opaque; it begins as a signed event does: The message ends before it is whole"),
])
def test_what_it_is(content, kind, what):
    answer = json.loads(inspect(content, "--json").out)
    assert (answer["kind"], answer["is"]) == (kind, what)
    assert inspect(content).text.splitlines()[0] == f"{len(content)} byte{'' if len(content) == 1 else 's'}, {what}"


@pytest.mark.parametrize("end", ["signed", "event-with-cbor"])
def test_cut_anywhere_it_is_explained_as_far_as_it_goes(end):
    for size in range(4, len(CONTENTS[end]), 7):
        content = CONTENTS[end][:size]
        text = inspect(content).text
        assert "!! malformed here: the item needs more bytes than there are" in text
        covers(rows(text), content)


def test_where_and_why_it_is_malformed():
    text = inspect(bytes.fromhex("d9d9f7a1626964") + b"\x62\xc3\x28").text
    assert text.splitlines()[0].endswith("a text string that is not UTF-8, at byte 8")
    assert text.splitlines()[-2:] == [
        "0008                             !! malformed here: a text string that is not UTF-8",
        "0008  c3 28                        |.(|",
    ]


def test_nothing_that_drives_a_terminal_passes():
    evil = "\x1b]0;x\x07\x9b31m\u202e\u2028"
    event = bytes.fromhex("d9d9f7a5") + b"".join(map(cbor.dumps, (
        "id", evil, evil, evil, "type", "t", "source", "/s", "specversion", "1.0")))
    for content in (event, evil.encode(), evil.encode("utf-16"), bytes(range(256)), cbor.dumps([evil])):
        for options in ((), ("--json",)):
            out = inspect(content, *options).out
            assert not ESCAPES.search(out) and "\u202e".encode() not in out and "\u2028".encode() not in out


def test_what_is_long_is_bounded_and_says_so():
    long = bytes.fromhex("d9d9f7a5") + b"".join(map(cbor.dumps, (
        "id", "x" * 100000, "data", [0] * 100000, "type", "t", "source", "/s", "specversion", "1.0")))
    text = inspect(long).text
    assert "99744 more bytes: not shown" in text
    assert text.count("\n") == 10000 + 3
    assert re.search(r"[0-9a-f]{8}  … +\d+ more bytes: not shown$", text.splitlines()[-1])
    answer = json.loads(inspect(long, "--json").out)
    assert sum(len(row.get("bytes", "")) // 2 + row.get("left_out", 0) for row in answer["rows"]) == len(long)
    everything = inspect(long, "--all").text
    assert "not shown" not in everything
    covers(rows(everything), long)


def test_a_private_key_is_not_shown(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(PRIVATE)
    for name in (str(path), "-"):
        done = walbus("inspect", name, stdin=PRIVATE)
        assert (done.status, done.out) == (1, b""), done
        assert "private key" in done.error and "9d61" not in done.error
    key_ops = bytes([PRIVATE[0] + 1]) + b"\x04\x81\x01" + PRIVATE[1:]
    for like in (PRIVATE + b"\n", PRIVATE[:-1], key_ops, b"\x81" + PRIVATE):
        done = walbus("inspect", "-", stdin=like)
        assert (done.status, done.out) == (1, b"") and "private key" in done.error, done


def test_what_cannot_be_read(tmp_path):
    done = walbus("inspect", str(tmp_path / "none"))
    assert (done.status, done.out) == (1, b"") and "No such file" in done.error, done
    done = walbus("inspect", str(tmp_path))
    assert (done.status, done.out) == (1, b"") and "Is a directory" in done.error, done
    for arguments in ((), ("a", "b")):
        done = walbus("inspect", *arguments)
        assert (done.status, done.out) == (2, b"") and "FILE" in done.error, done
    assert "Examples:" in walbus("inspect", "--help").text
