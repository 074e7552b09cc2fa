# SPDX-License-Identifier: PostgreSQL
"""Prefixes and contents go through byte for byte, and never reach a terminal as commands to it."""

import hashlib
import os
import pty
import re
import select

import pytest
from harness import cbor
from harness.command import Running, walbus
from harness.router import Router
from harness.server import one
from harness.waiting import Deadline

pytestmark = pytest.mark.every_major

PREFIXES = {
    "empty": "",
    "blank": " ",
    "blanks around": "  a b\t c  ",
    "newlines": "a\nb\r\nc\n",
    "one star": "*",
    "wildcards": "a.*.>",
    "dots": "...",
    "backslash and quotes": "\\'\"%s$1",
    "utf-8": "Bestellungen.größe.注文.🐘",
    "controls": "\x01\x1b[31m\x7f",
    "1 MB": "p." * 524_288,
}

CONTENTS = {
    "empty": b"",
    "one zero": b"\0",
    "all byte values": bytes(range(256)),
    "not utf-8": b"\xff\xfe\x80\xc0\xed\xa0\x80",
    "looks like an event": b"\xd9\xd9\xf7\xa1",
    "looks signed": b"\xd2\x84",
    "64 kB less one": b"a" * 65535,
    "64 kB": b"b" * 65536,
    "64 kB and one": b"c" * 65537,
    "1 MB": bytes(range(256)) * 4096,
}


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "non-transactional"])
def test_prefixes(router, conn, transactional):
    sub = router.subscriber()
    for name, prefix in PREFIXES.items():
        conn.emit(prefix, name, transactional)
    messages = sub.drain(conn)
    assert [m.content.decode() for m in messages] == list(PREFIXES)
    for message, prefix in zip(messages, PREFIXES.values()):
        assert message.prefix == prefix.encode(), message.content


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "non-transactional"])
def test_contents(router, conn, transactional):
    sub = router.subscriber()
    for name, content in CONTENTS.items():
        conn.emit(name, content, transactional)
    messages = sub.drain(conn)
    assert [m.prefix.decode() for m in messages] == list(CONTENTS)
    for message, content in zip(messages, CONTENTS.values()):
        assert message.content == content, message.prefix


def test_100_mb(router, conn):
    sub = router.subscriber()
    line = "0123456789abcdef"
    conn.begin()
    conn.emit("small", b"before")
    conn.run("SELECT pg_logical_emit_message(true, 'big', convert_to(repeat(%s, 6553600), 'UTF8'))", line)
    conn.emit("small", b"after")
    conn.commit()
    before, big, after = sub.collect(3, seconds=120)
    assert (before.content, after.content) == (b"before", b"after")
    assert len(big.content) == 104_857_600
    assert hashlib.sha256(big.content).digest() == hashlib.sha256(line.encode() * 6_553_600).digest()
    conn.emit("small", b"next")
    assert sub.seen(sub.collect(1)) == [(b"small", b"next")]


def test_null_emits_nothing(router, conn):
    sub = router.subscriber()
    assert one(conn, "SELECT pg_logical_emit_message(true, 'never', NULL::bytea)") is None
    assert sub.drain(conn) == []


@pytest.mark.parametrize("client_encoding", [None, "UTF8", "LATIN1", "EUC_JP"])
def test_latin1_database(server, client_encoding):
    database = f"latin_{client_encoding or 'default'}".lower()
    server.create_database(database, "LATIN1")
    server.create_bus(database)
    try:
        with Router(server.dsn(database), env={"PGCLIENTENCODING": client_encoding}) as router, \
                server.connect(database) as conn:
            router.start()
            sub = router.subscriber()
            conn.raw.set_client_encoding("UTF8")
            conn.emit("größe", "größe".encode())
            conn.emit("größe", bytes(range(256)), transactional=False)
            messages = sub.drain(conn)
            assert sub.seen(messages) == [("größe".encode("latin-1"), "größe".encode()),
                                          ("größe".encode("latin-1"), bytes(range(256)))]
    finally:
        server.drop_bus(database)


@pytest.mark.parametrize("client_encoding", [None, "UTF8"])
def test_sql_ascii_database(server, client_encoding):
    """A prefix that is not UTF-8 would end the connection of a client that asks for UTF8."""
    database = f"ascii_{client_encoding or 'default'}".lower()
    server.create_database(database, "SQL_ASCII")
    server.create_bus(database)
    try:
        with Router(server.dsn(database), env={"PGCLIENTENCODING": client_encoding}) as router, \
                server.connect(database) as conn:
            router.start()
            sub = router.subscriber()
            conn.raw.set_client_encoding("SQL_ASCII")
            with conn.raw.cursor() as cur:
                cur.execute(b"SELECT pg_logical_emit_message(true, '\xff\xfe.\xc3', '\\x00ff'::bytea)")
                cur.execute(b"SELECT pg_logical_emit_message(false, '\xe9', '\\x'::bytea)")
                cur.execute(b"SELECT pg_logical_emit_message(true, '\xc3\xa9', '\\x'::bytea)")
            messages = sub.drain(conn)
            assert sub.seen(messages) == [(b"\xff\xfe.\xc3", b"\0\xff"), (b"\xe9", b""), (b"\xc3\xa9", b"")]
            exact = router.subscriber(("exact", b"\xe9"))
            with conn.raw.cursor() as cur:
                cur.execute(b"SELECT pg_logical_emit_message(true, '\xe9', '\\x01'::bytea)")
            assert exact.seen(exact.collect(1)) == [(b"\xe9", b"\x01")]
    finally:
        server.drop_bus(database)


def test_rows_of_all_tables_are_skipped(server, conn):
    conn.run("CREATE PUBLICATION walbus FOR ALL TABLES")
    conn.run("SELECT pg_create_logical_replication_slot('walbus', 'pgoutput')")
    conn.run("CREATE TYPE mood AS ENUM ('fine', 'poor')")
    conn.run("CREATE TABLE skipped (i int PRIMARY KEY, t text, m mood)")
    try:
        with Router(server.dsn()) as router:
            router.start()
            sub = router.subscriber()
            conn.begin()
            conn.emit("a", b"")
            conn.run("INSERT INTO skipped SELECT i, repeat('x', 3000), 'fine' FROM generate_series(1, 500) i")
            conn.emit("b", b"")
            conn.run("UPDATE skipped SET t = t || 'y' WHERE i <= 20")
            conn.run("ALTER TABLE skipped REPLICA IDENTITY FULL")
            conn.run("UPDATE skipped SET m = 'poor' WHERE i = 1")
            conn.run("DELETE FROM skipped WHERE i > 400")
            conn.emit("c", b"")
            conn.run("TRUNCATE skipped")
            conn.commit()
            conn.run("INSERT INTO skipped VALUES (1)")
            assert [m.prefix for m in sub.drain(conn)] == [b"a", b"b", b"c"]
            assert [c.messages for c in sub.commits] == [3, 1]
    finally:
        server.drop_bus()
        conn.run("DROP TABLE skipped")
        conn.run("DROP TYPE mood")


def test_origins_are_skipped(router, conn):
    """A transaction replayed from another server carries an origin, for which pgoutput sends a message of its own."""
    sub = router.subscriber()
    conn.run("SELECT pg_replication_origin_create('upstream')")
    try:
        conn.run("SELECT pg_replication_origin_session_setup('upstream')")
        conn.begin()
        conn.run("SELECT pg_replication_origin_xact_setup('0/1234', '2020-02-02 02:02:02Z')")
        conn.emit("replayed", b"")
        conn.commit()
        conn.run("SELECT pg_replication_origin_session_reset()")
        message, = sub.drain(conn)
        assert message.prefix == b"replayed"
        assert message.commit_time == 1_580_608_922_000_000
    finally:
        conn.run("SELECT pg_replication_origin_drop('upstream')")


HOSTILE = [
    b"\x1b]0;evil title\x07",
    b"\x1b[2J\x1b[H",
    b"\x9b31m\x90q\x9c",
    b"\xc2\x9b31m \xc2\x85",
    "\u202e\u2066txt.exe\u2028\u200f".encode(),
    b"\r\n\x08\x08\x7f\0\x0e",
    b"a\x1b",
]


def read_pty(master, running, seconds):
    """What the terminal was sent until the program ended."""
    deadline = Deadline(seconds, "walbus tail on a terminal ends")
    data = b""
    while True:
        readable, _, _ = select.select([master], [], [], min(0.2, deadline.left()))
        if readable:
            try:
                piece = os.read(master, 65536)
            except OSError:
                piece = b""
            if not piece:
                return data
            data += piece
        elif running.process.poll() is not None:
            return data


@pytest.mark.once
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_terminal_gets_no_control_characters(router, conn, output):
    master, slave = pty.openpty()
    count = 3 * len(HOSTILE)
    with Running("tail", "--socket", router.socket, "--count", str(count), "--output", output,
                 env={"TERM": "xterm-256color"}, stdout=slave) as tail:
        os.close(slave)
        tail.wait_ready()
        for hostile in HOSTILE:
            visible = hostile.decode("utf-8", "replace")
            event = {"id": visible, "type": visible, "source": "/" + visible, "specversion": "1.0",
                     "data": {visible: [visible, hostile]}}
            event = {k: event[k] for k in sorted(event, key=lambda k: (len(k), k))}
            prefix = hostile.decode("utf-8", "ignore").replace("\0", "")
            conn.emit("raw", hostile)
            conn.emit("event", b"\xd9\xd9\xf7" + cbor.dumps(event))
            conn.emit(prefix, b"named", transactional=False)
        shown = read_pty(master, tail, 30)
        result = tail.wait_exit()
    os.close(master)
    assert result.status == 0, result
    if output == "text":
        shown = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)  # the command's own colours
    text = shown.decode("utf-8")  # what is not UTF-8 is escaped too
    assert text.count("\n") == count, "one line a message"
    controls = [c for c in text.replace("\r\n", "") if ord(c) < 32 or 127 <= ord(c) < 160]
    assert controls == []
    if output == "text":
        assert [c for c in text if c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200f\u2028"] == []
    assert "evil title" in text and "txt.exe" in text, "the rest is shown"


@pytest.mark.once
def test_colours_of_a_payload_are_not_the_commands_own(router, conn):
    """Without a terminal there are no colours, so every escape would be the payload's."""
    with Running("tail", "--socket", router.socket, "--count", "1") as tail:
        tail.wait_ready()
        conn.emit("\x1b[31mred", b"\x1b[32mgreen")
        result = tail.wait_exit()
    assert result.status == 0
    assert b"\x1b" not in result.out
    assert b"red" in result.out and b"green" in result.out


def test_binary_data_of_the_command(router, server, conn):
    """`publish --raw` takes the bytes as they are, and `tail --output raw` gives them back."""
    everything = bytes(range(256))
    with Running("tail", "--socket", router.socket, "--count", "2", "--output", "raw") as tail:
        tail.wait_ready()
        done = walbus("publish", "--dsn", server.dsn(), "--raw", "bytes", "-", stdin=everything)
        assert done.status == 0, done
        assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+\n", done.text)
        done = walbus("publish", "--dsn", server.dsn(), "--raw", "bytes", "-", stdin=b"")
        assert done.status == 0, done
        result = tail.wait_exit()
    assert result.status == 0
    assert result.out == everything
