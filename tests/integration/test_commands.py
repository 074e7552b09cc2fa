# SPDX-License-Identifier: PostgreSQL
"""The command as it is used: outputs to the byte, exit statuses, and that nothing is left behind."""

import array
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import uuid

import psycopg2
import pytest
from harness import cbor, places
from harness.command import Result, Running, walbus
from harness.router import Router
from harness.server import Connection, Server, one, parse_lsn
from harness.subscriber import ACK, HEADER, HELLO, MESSAGE, SUBSCRIBE, SUBSCRIBED, WELCOME, Accepted, Closed
from harness.subscriber import POSITION as POSITION_BYTES
from harness.waiting import Deadline, wait_for

POSITION = r"1:[0-9A-F]+/[0-9A-F]+"


def lsn_text(lsn):
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


# ---- setup and teardown

@pytest.mark.every_major
def test_setup_twice_and_teardown_twice(server):
    for _ in range(2):
        done = walbus("setup", "--dsn", server.dsn())
        assert done.status == 0, done
        slot = server.slot()
        assert (slot["plugin"], slot["database"]) == ("pgoutput", "postgres")
    with server.connect() as conn:
        assert conn.rows("SELECT pubname, puballtables FROM pg_publication") == [("walbus", False)]
    for _ in range(2):
        done = walbus("teardown", "--dsn", server.dsn())
        assert done.status == 0, done
        assert server.slot() is None
    with server.connect() as conn:
        assert conn.rows("SELECT 1 FROM pg_publication") == []


@pytest.mark.every_major
def test_setup_of_names_that_need_quotes(server):
    names = ["--slot", "odd_1", "--publication", """Od"d 'n`a$me"""]
    assert walbus("setup", "--dsn", server.dsn(), *names).status == 0
    with server.connect() as conn:
        assert conn.rows("SELECT pubname FROM pg_publication") == [(names[3],)]
    with Router(server.dsn(), slot="odd_1", publication=names[3]) as router:
        router.start()
        sub = router.subscriber()
        with server.connect() as conn:
            conn.emit("a", b"")
            assert [m.prefix for m in sub.drain(conn)] == [b"a"]
            conn.run("CREATE TABLE odd (i int)")
            conn.run(f"""ALTER PUBLICATION "{names[3].replace('"', '""')}" ADD TABLE odd""")
            conn.run("INSERT INTO odd VALUES (1)")
            conn.emit("b", b"")
            assert [m.prefix for m in sub.drain(conn)] == [b"b"]
            conn.run("DROP TABLE odd")
    assert walbus("teardown", "--dsn", server.dsn(), *names).status == 0
    assert server.slot("odd_1") is None


@pytest.mark.every_major
def test_setup_keeps_a_publication_of_tables(server, conn):
    conn.run("CREATE TABLE published (i int)")
    conn.run("CREATE PUBLICATION walbus FOR TABLE published")
    try:
        assert walbus("setup", "--dsn", server.dsn()).status == 0
        assert one(conn, "SELECT count(*) FROM pg_publication_tables WHERE pubname = 'walbus'") == 1
    finally:
        server.drop_bus()
        conn.run("DROP TABLE published")


@pytest.mark.every_major
def test_setup_says_what_it_waits_for(server, conn):
    """Creating a slot waits for every transaction that has an xid."""
    blocker = server.connect()
    blocker.begin()
    pid = one(blocker, "SELECT pg_backend_pid()")
    one(blocker, "SELECT txid_current()")
    with Running("setup", "--dsn", server.dsn()) as setup:
        wait_for(lambda: re.search(rb"\b%d\b" % pid, setup.err), 20, "setup names the transaction's pid")
        assert setup.process.poll() is None
        blocker.commit()
        assert setup.wait_exit().status == 0
    blocker.close()
    assert walbus("teardown", "--dsn", server.dsn()).status == 0


@pytest.mark.every_major
def test_teardown_of_an_active_slot(bus):
    with Router(bus.dsn()) as router:
        router.start()
        pid = bus.slot()["active_pid"]
        done = walbus("teardown", "--dsn", bus.dsn())
        assert done.status == 1, done
        assert str(pid) in done.error and "--force" in done.error
        assert bus.slot()["active"]
        assert router.status()["state"] == "streaming"
        done = walbus("teardown", "--dsn", bus.dsn(), "--force")
        assert done.status == 0, done
        assert bus.slot() is None
        # The publication goes first, and its absence is a refusal; the slot may be there a moment longer.
        assert router.wait_exit(40) == 1, router.log()
        assert " error publication " in router.log()


def test_dsn_from_the_environment(server):
    assert walbus("setup", env={"WALBUS_DSN": server.dsn()}).status == 0
    assert walbus("teardown", env={"PGHOST": server.sockets, "PGUSER": "postgres", "PGDATABASE": "postgres"}).status == 0
    assert server.slot() is None


def test_password_in_dsn_is_warned_of(server):
    done = walbus("setup", "--dsn", server.dsn() + " password=secret")
    assert done.status == 0, done
    assert "PGPASSFILE" in done.error and "secret" not in done.error
    assert walbus("teardown", "--dsn", server.dsn()).status == 0


# ---- publish and tail

@pytest.mark.every_major
def test_publish_and_tail_json(router, server, conn):
    arguments = ["tail", "--socket", router.socket, "--output", "json", "--count", "4"]
    with Running(*arguments) as tail:
        tail.wait_ready()
        done = walbus("publish", "--dsn", server.dsn(), "orders.created", '{"order": 17, "total": 1.5, "x": [null, true]}',
                      "--subject", "17", "--attr", "partitionkey=eu")
        assert done.status == 0, done
        published = done.text.rstrip("\n")
        opaque = conn.emit("legacy", b"plain text")
        binary = conn.emit("legacy", b"\xff\x00", transactional=False)
        conn.emit("", b"")
        result = tail.wait_exit()
    assert result.status == 0, result
    first, second, third, fourth = result.json_lines()

    assert uuid.UUID(published).version == 7
    assert re.fullmatch(POSITION + ":1", first["position"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["commit_time"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", first["event"].pop("time"))
    assert parse_lsn(first.pop("lsn")) <= parse_lsn(first.pop("position").split(":")[1])
    assert isinstance(first.pop("xid"), int)
    first.pop("commit_time")
    assert first == {
        "index": 1, "transactional": True, "redelivered": False, "prefix": "orders.created",
        "event": {"id": published, "source": "/walbus/postgres", "specversion": "1.0", "type": "orders.created",
                  "subject": "17", "partitionkey": "eu", "data": {"order": 17, "total": 1.5, "x": [None, True]}}}

    assert second["lsn"] == lsn_text(opaque)
    assert {k: second[k] for k in ("index", "transactional", "redelivered", "prefix", "payload")} == \
        {"index": 1, "transactional": True, "redelivered": False, "prefix": "legacy", "payload": "plain text"}
    assert set(second) == {"position", "lsn", "commit_time", "index", "xid", "transactional", "redelivered", "prefix",
                           "payload"}

    assert third == {"position": f"1:{lsn_text(binary)}:0", "lsn": lsn_text(binary), "index": 0, "transactional": False,
                     "redelivered": False, "prefix": "legacy", "payload_base64": "/wA="}
    assert fourth["prefix"] == "" and fourth["payload"] == ""


def test_json_lines_are_lines(router, conn):
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", "2") as tail:
        tail.wait_ready()
        conn.emit("a\nb", b"c\nd\r\x00\x7f")
        event = {"id": "1", "type": "t\n", "source": "/", "specversion": "1.0"}
        event["data"] = {"n": 18446744073709551615, "b": b"\x00\xff", "f": 1.5, "nan": float("nan"), "u": "ü\u2028"}
        conn.emit("e", b"\xd9\xd9\xf7" + cbor.dumps({k: event[k] for k in ("id", "data", "type", "source", "specversion")}))
        result = tail.wait_exit()
    assert result.status == 0 and result.out.count(b"\n") == 2, result
    first, second = result.json_lines()
    assert (first["prefix"], first["payload"]) == ("a\nb", "c\nd\r\x00\x7f")
    assert second["event"]["type"] == "t\n"
    assert second["event"]["data"] == {"n": 18446744073709551615, "b": "AP8", "f": 1.5, "nan": None, "u": "ü\u2028"}


def test_tail_cloudevents(router, server, conn):
    with Running("tail", "--socket", router.socket, "--output", "cloudevents", "--count", "1") as tail:
        tail.wait_ready()
        conn.emit("opaque", b"?")
        done = walbus("publish", "--dsn", server.dsn(), "orders.created", "[1]", "--type", "com.example.created",
                      "--source", "/shop")
        assert done.status == 0, done
        result = tail.wait_exit()
    event, = result.json_lines()
    event.pop("time")
    assert event == {"id": done.text.strip(), "source": "/shop", "specversion": "1.0", "type": "com.example.created",
                     "data": [1]}
    assert re.search(rb"\b1\b", result.err.replace(b"ready\n", b"")), "skipped ones are counted on stderr"


def test_publish_kinds_of_data(router, server, tmp_path):
    file = tmp_path / "data.json"
    file.write_text('{"from": "a file"}')
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", "4") as tail:
        tail.wait_ready()
        assert walbus("publish", "--dsn", server.dsn(), "a", f"@{file}").status == 0
        assert walbus("publish", "--dsn", server.dsn(), "a", "-", stdin=b'"from stdin"').status == 0
        assert walbus("publish", "--dsn", server.dsn(), "a").status == 0
        assert walbus("publish", "--dsn", server.dsn(), "--non-transactional", "a", "4").status == 0
        lines = tail.wait_exit().json_lines()
    assert [line["event"].get("data", "absent") for line in lines] == [{"from": "a file"}, "from stdin", "absent", 4]
    assert [line["transactional"] for line in lines] == [True, True, True, False]


def test_publish_lines(router, server):
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", "3") as tail:
        tail.wait_ready()
        done = walbus("publish", "--dsn", server.dsn(), "--lines", "load", stdin=b'{"n":1}\n{"n":2}\n{"n":\n')
        assert done.status == 2, done
        assert re.search(r"\bline 3\b", done.error), "the line's number"
        assert done.out == b""
        done = walbus("publish", "--dsn", server.dsn(), "--lines", "load", stdin=b'{"n":4}\n{"n":5}\n6')
        assert done.status == 0, done
        lines = tail.wait_exit().json_lines()
    assert [line["event"]["data"] for line in lines] == [{"n": 4}, {"n": 5}, 6]
    assert len({line["xid"] for line in lines}) == 1, "one transaction"
    assert [line["index"] for line in lines] == [1, 2, 3]
    assert [line["event"]["id"] for line in lines] == done.text.split()


def test_publish_with_its_own_id_and_time(router, server):
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", "1") as tail:
        tail.wait_ready()
        done = walbus("publish", "--dsn", server.dsn(), "--attr", "id=my-own/1", "--attr",
                      "time=2024-02-29T23:59:59.123456+02:00", "a", "1")
        assert (done.status, done.out) == (0, b"my-own/1\n"), done
        line, = tail.wait_exit().json_lines()
    assert line["event"] == {"id": "my-own/1", "source": "/walbus/postgres", "specversion": "1.0", "type": "a",
                             "time": "2024-02-29T21:59:59.123456Z", "data": 1}


@pytest.mark.parametrize("attributes,words", [
    (["time=yesterday"], "'yesterday' is no RFC 3339 time with a zone"),
    (["time=2024-01-01T00:00:00"], "is no RFC 3339 time with a zone"),
    (["time=2024-02-30T00:00:00Z"], "is no RFC 3339 time with a zone"),
    (["id=1", "id=2"], "id is given twice"),
    (["time=2024-01-01T00:00:00Z", "time=2024-01-01T00:00:00Z"], "time is given twice"),
    (["id="], "id"),
], ids=" ".join)
def test_publish_refuses_id_and_time(router, server, conn, attributes, words):
    sub = router.subscriber()
    done = walbus("publish", "--dsn", server.dsn(), *(w for a in attributes for w in ("--attr", a)), "a", "1")
    assert done.status == 2, done
    assert words in done.error and done.out == b"", done
    assert sub.drain(conn) == []


def test_publish_too_large_a_content(router, server, conn, tmp_path):
    """64 MiB is the most, and one byte more is refused by the library."""
    sub = router.subscriber(keep=1)
    file = tmp_path / "zeros"
    with open(file, "wb") as f:
        f.truncate((64 << 20) + 1)
    done = walbus("publish", "--dsn", server.dsn(), "--raw", "a", f"@{file}")
    assert done.status == 1, done
    assert "67108865 bytes; it may have 67108864" in done.error and done.out == b"", done
    os.truncate(file, 64 << 20)
    done = walbus("publish", "--dsn", server.dsn(), "--raw", "a", f"@{file}")
    assert done.status == 0, done
    assert [m.prefix for m in sub.drain(conn, seconds=60)] == [b"a"]


@pytest.mark.every_major
@pytest.mark.parametrize("arguments", [["a", "1"], ["--raw", "a", "1"], ["--non-transactional", "a"], ["--lines", "a"]],
                         ids=" ".join)
def test_publish_without_the_right(router, server, conn, arguments):
    function = server.emit_function
    sub = router.subscriber()
    conn.run("CREATE ROLE mute LOGIN")
    conn.run(f"REVOKE EXECUTE ON {function} FROM PUBLIC")
    try:
        done = walbus("publish", "--dsn", server.dsn(user="mute"), *arguments, stdin=b"1\n")
        assert done.status == 1, done
        assert "permission denied for function pg_logical_emit_message" in done.error, done
        signature = "boolean, text, bytea" + (", boolean" if server.major >= 17 else "")
        assert done.error.endswith("\n  mend: GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message"
                                   f'({signature}) TO "mute";\n'), done
        assert done.out == b""
    finally:
        conn.run(f"GRANT EXECUTE ON {function} TO PUBLIC")
        conn.run("DROP ROLE mute")
    assert sub.drain(conn) == []


@pytest.mark.parametrize("arguments,status,word", [
    (["publish"], 2, "PREFIX is missing: what the event is published under, as orders.created."),
    (["publish", "a..b", "1"], 2, "token"),
    (["publish", "_reserved", "1"], 2, "_reserved"),
    (["publish", "a", "{not json"], 2, "--raw"),
    (["publish", "a", "1", "extra"], 2, "one argument"),
    (["publish", "a.b", "@"], 2, "'@' is no file's name"),
    (["publish", "--raw", "a.b", "@"], 2, "'@' is no file's name"),
    (["publish", "--nonsense", "a"], 2, "nonsense"),
    (["nonsense"], 2, "nonsense"),
    ([], 2, ""),
    (["tail", "--output", "yaml"], 2, "yaml"),
    (["tail", "--count", "-1"], 2, "count"),
    (["status", "extra"], 2, "extra"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_usage(server, arguments, status, word):
    done = walbus("--dsn", server.dsn(), "--socket", "/nonexistent/walbus.sock", *arguments)
    assert done.status == status, done
    assert word in done.error
    assert done.out == b""


@pytest.mark.parametrize("source", ["option", "environment", "file"])
@pytest.mark.parametrize("name, value, command", [("socket", "/" + "x" * 110, "status"), ("socket", "/" + "x" * 110, "tail"),
                                                  ("dsn", "a=b", "setup")])
def test_a_fault_found_late_names_its_place(tmp_path, name, value, command, source):
    conf = tmp_path / "walbus.conf"
    conf.write_text("[walbusd]\n" + (f"{name} = {value}\n" if source == "file" else ""))
    variable = f"WALBUS_{name.upper()}"
    done = walbus("--config", str(conf), *([f"--{name}={value}"] if source == "option" else []), command,
                  env={variable: value} if source == "environment" else None)
    place = {"option": f"--{name}: ", "environment": f"{variable}: ", "file": f"{conf}:2: "}[source]
    assert done.status == 2 and f"walbus {command}: {place}" in done.error, done


@pytest.mark.parametrize("command", [[], ["setup"], ["teardown"], ["tail"], ["publish"], ["status"], ["dev"]],
                         ids=lambda v: " ".join(v) or "walbus")
def test_help_and_version(command):
    done = walbus(*command, "--help")
    assert (done.status, done.err) == (0, b""), done
    assert "Usage" in done.text and "xample" in done.text
    done = walbus(*command, "--version")
    assert (done.status, done.err) == (0, b""), done
    assert re.search(r"\d+\.\d+\.\d+", done.text)


def test_patterns_are_quoted_in_every_example():
    for command in ("tail", "publish", "setup"):
        for line in walbus(command, "--help").text.splitlines():
            if re.match(r"\s+(\$ )?walbus tail\b", line):
                assert not re.search(r"(?<!['\w.*])[\w.]*\.(>|\*)", line), line


NOWHERE = "/nonexistent/walbus.sock"
REDIRECTION = "an unquoted > is taken by the shell as a redirection, so write it in quotes, as in 'orders.>'"


@pytest.mark.parametrize("arguments,hint", [
    (["tail", "--exclude"], REDIRECTION), (["tail", "--exact"], REDIRECTION),
    (["tail", "--starts-with"], REDIRECTION), (["tail", ""], REDIRECTION),
    (["tail", "--exclude", ""], REDIRECTION),
], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_a_missing_operand_names_the_redirection(arguments, hint):
    """What `walbus tail --exclude > file` and `walbus tail "$unset"` come to."""
    done = walbus("--socket", NOWHERE, *arguments)
    assert done.status == 2, done
    assert hint in done.error, done
    assert done.out == b""


@pytest.mark.parametrize("line,hint", [("tail orders.> {}", True), ("tail 'orders.>' > {}", False)],
                         ids=["unquoted", "quoted"])
def test_an_unquoted_pattern_is_explained(tmp_path, line, hint):
    """`walbus tail orders.> file`: the shell has made a redirection of it, and the pattern 'orders.' is left."""
    line = line.format(tmp_path / "file")
    done = subprocess.run(["sh", "-c", f'"$0" --socket {NOWHERE} {line}', places.walbus()], stdin=subprocess.DEVNULL,
                          env=places.child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20,
                          check=False)
    assert done.returncode == 3, done
    assert (tmp_path / "file").read_bytes() == b""
    assert (REDIRECTION.encode() in done.stderr) == hint, done.stderr
    assert (b"'orders.'" in done.stderr) == hint, done.stderr


def test_publish_without_a_prefix():
    done = walbus("publish")
    assert done.status == 2 and "PREFIX is missing" in done.error, done


def test_too_much_of_filters():
    """Each pattern is allowed; together they have more tokens, or more bytes, than a subscription may."""
    for patterns in (["." * 4096, "." * 4096], ["x" * 4096] * 256):
        done = walbus("tail", "--socket", "/nonexistent/walbus.sock", *patterns)
        assert (done.status, done.out) == (2, b""), done
        assert "more than 8192 tokens or 1 MiB" in done.error


@pytest.mark.parametrize("pattern,token,sentence", [
    ("orders.cre*", "cre*", "is taken literally; '*' stands for one whole token."),
    ("**", "**", "is taken literally; '*' stands for one whole token."),
    ("orders.>x", ">x", "is taken literally; '>' as the last token stands for one or more whole ones."),
    (">.created", ">", "is taken literally; only as the last token it stands for the rest."),
    ("orders..x", "", "beside a dot is an empty token; walbus publishes no prefix that has one."),
    (".orders", "", "beside a dot is an empty token; walbus publishes no prefix that has one."),
    ("orders.", "", "beside a dot is an empty token; walbus publishes no prefix that has one."),
    ("orders.a b", "a b", "has white space; walbus publishes no prefix that has any."),
    ("a*.b*..", "a*", "is taken literally; '*' stands for one whole token."),
])
def test_odd_patterns(pattern, token, sentence):
    """They are allowed, and what is meant is probably something else: said once for a pattern."""
    says = f"walbus tail: pattern '{pattern}': '{token}' {sentence}"
    for arguments in (["a", pattern], ["a", "--exclude", pattern], ["--durable", "billing", pattern]):
        done = walbus("tail", "--socket", NOWHERE, *arguments)
        assert done.status == 3, done
        assert done.error.splitlines()[:-1] == [says], done
    done = walbus("tail", "--socket", NOWHERE, "--exact", pattern, "--starts-with", pattern, "a", ">", "a.*.>", "*")
    assert len(done.error.splitlines()) == 1, done


def test_odd_patterns_are_served(router, conn):
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", "1", "orders.cre*") as tail:
        tail.wait_ready()
        conn.emit("orders.created", b"")
        conn.emit("orders.cre*", b"")
        assert [line["prefix"] for line in tail.wait_exit().json_lines()] == ["orders.cre*"]


def test_no_socket(tmp_path):
    path = tmp_path / "file"
    path.touch()
    for arguments in (["tail"], ["status"], ["status", "--wait", "0.3"], ["subscriptions"]):
        done = walbus(*arguments, "--socket", str(path))
        assert done.status == 3, done
        assert f"Cannot reach the router at {path}: that is no socket." in done.error, done


def test_wrong_setting_in_a_file(tmp_path):
    file = tmp_path / "walbus.conf"
    file.write_text("[walbusd]\nwhen-ful = pause\n")
    done = walbus("status", "--config", str(file))
    assert done.status == 2, done
    assert done.error.splitlines()[0].endswith('did you mean "when-full"?'), done
    file.write_text("[walbusd]\nwhen-full = never\n")
    assert walbus("status", "--config", str(file)).error.splitlines()[0].endswith("pause|discard."), done


def test_refused_connection(server):
    """It was reached: the mend is another one."""
    for dsn, words in ((server.dsn(dbname="nope"), "dbname="), (server.dsn(user="nobody_here"), "CREATE ROLE")):
        for arguments in (["setup"], ["publish", "a", "1"]):
            done = walbus(*arguments, "--dsn", dsn)
            assert done.status == 3, done
            says, mend = done.error.splitlines()
            assert says.startswith(f"walbus {arguments[0]}: The server refused the connection: "), done
            assert mend.startswith("  mend: ") and words in mend, done


def test_unreachable():
    began = time.monotonic()
    for arguments in (["tail"], ["status"], ["tail", "--count", "1"]):
        done = walbus(*arguments, "--socket", NOWHERE)
        assert done.status == 3, done
        assert NOWHERE in done.error and done.out == b""
    assert time.monotonic() - began < 10
    assert walbus("publish", "--dsn", "host=/nonexistent", "a", "1").status == 3
    assert walbus("status", "--socket", NOWHERE, "--wait", "1").status == 3


# ---- tail

def test_tail_filters(router, conn):
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", "4", "orders.*", "--exact", "a b",
                 "--starts-with", "neon-file:", "--exclude", "orders.noise") as tail:
        tail.wait_ready()
        for prefix in ("orders.created", "orders.noise", "a b", "a bc", "neon-file:x", "orders.eu.created", "orders.paid"):
            conn.emit(prefix, b"")
        result = tail.wait_exit()
    assert [line["prefix"] for line in result.json_lines()] == ["orders.created", "a b", "neon-file:x", "orders.paid"]


def test_tail_signals(router, conn):
    for sig in (signal.SIGINT, signal.SIGTERM):
        with Running("tail", "--socket", router.socket, "--output", "json") as tail:
            tail.wait_ready()
            conn.emit("a", b"")
            tail.wait_lines(1)
            assert tail.stop(sig).status == 0


def test_tail_timeout(router):
    began = time.monotonic()
    done = walbus("tail", "--socket", router.socket, "--count", "1", "--timeout", "1")
    assert done.status == 1, done
    assert 0.9 < time.monotonic() - began < 10


def test_tail_into_a_closed_pipe(router, conn):
    """`walbus tail | head -n 1` ends silently."""
    tail = subprocess.Popen([places.walbus(), "tail", "--socket", router.socket], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=places.child_environment(), stdin=subprocess.DEVNULL)
    try:
        line = b""
        while line != b"ready\n":
            line = tail.stderr.readline()
            assert line
        tail.stdout.close()
        conn.emit("a", b"")
        assert tail.wait(20) == 0
        assert tail.stderr.read() == b""
    finally:
        if tail.poll() is None:
            tail.kill()
            tail.wait()
        tail.stderr.close()


def fake_message(lsn, content):
    body = struct.pack(">IQIQIqqI", 1, lsn, 0, lsn, 0, 0, 1, 1) + b"a" + content
    return HEADER.pack(len(body), MESSAGE, 0, 0) + body


def accept_tail(listener, position):
    """The router's end of a subscription that stands, at this position, and the SUBSCRIBE."""
    accepted, _ = listener.accept()
    own = Accepted(accepted)
    hello = own.expect(HELLO, Deadline(10, "HELLO"))
    assert hello["min"] <= 1 <= hello["max"]
    own.send(WELCOME, {"version": 1, "layout": 1, "server": "a test", "identity": "1/1", "timeline": 1,
                       "position": position, "max_frame": 1 << 20, "max_filters": 64})
    subscribe = own.expect(SUBSCRIBE, Deadline(10, "SUBSCRIBE"))
    own.send(SUBSCRIBED, {"position": position, "stored": False, "identity": "1/1", "timeline": 1})
    return own, subscribe


def test_tail_acknowledges_what_it_has_written(tmp_path):
    """A router of the test's own looks at the ACK frames, while nobody reads what tail writes into a pipe."""
    sockets = places.new_folder("walbus-fr-")
    path = os.path.join(sockets, "s")
    content, count = b"x" * 1000, 1000
    reading, writing = os.pipe()
    capacity = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 64 * 1024)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(20)
        with Running("tail", "--socket", path, "--output", "raw", "--count", str(count), stdout=writing) as tail:
            os.close(writing)
            own, subscribe = accept_tail(listener, POSITION_BYTES.pack(1, 1, 0))
            assert subscribe["filters"] == [[0, b">"]]
            tail.wait_ready()

            # The n-th message ends at byte n * 1000 of the output, and has the position n * 16.
            read = acked = 0
            out = bytearray()
            sender = threading.Thread(target=own.send_bytes, daemon=True,
                                      args=(b"".join(fake_message(16 * n, content) for n in range(1, count + 1)),))
            sender.start()

            def acknowledged(seconds):
                """The last position acknowledged in that time; each must be of what the pipe has taken by then."""
                nonlocal acked
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    if own.pending():
                        try:
                            position = POSITION_BYTES.unpack(own.expect(ACK, Deadline(5, "ACK"))["position"])
                        except Closed:
                            break
                        assert position[0] == 1 and position[2] == 0 and position[1] % 16 == 0, position
                        assert position[1] // 16 >= acked
                        acked = position[1] // 16
                        written = read + unread(reading)
                        assert acked * len(content) <= written, f"{acked} acknowledged, {written} bytes written"
                    else:
                        time.sleep(0.01)
                return acked

            wait_for(lambda: unread(reading) > capacity - 8192, 20, "the pipe is full")
            assert acknowledged(1.5) <= capacity // len(content), "no more than the pipe holds"
            assert tail.process.poll() is None
            while len(out) < count * len(content):
                piece = os.read(reading, 50_000)
                assert piece, "tail ended early"
                out += piece
                read = len(out)
                acknowledged(0.05)
            assert tail.wait_exit().status == 0
            assert acknowledged(0.5) == count, "and all of it in the end"
            assert bytes(out) == content * count
            sender.join(10)
            own.close()
    finally:
        os.close(reading)
        listener.close()
        shutil.rmtree(sockets)


def test_tail_leaves_with_its_last_acknowledgement():
    """The router reads nothing more and goes away just then: the ACK leaves on the next connection."""
    sockets = places.new_folder("walbus-fr-")
    path = os.path.join(sockets, "s")
    last = POSITION_BYTES.pack(1, 16, 0)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(20)
            with Running("tail", "--socket", path, "--output", "raw", "--count", "1") as tail:
                own, _ = accept_tail(listener, POSITION_BYTES.pack(1, 1, 0))
                tail.wait_ready()
                own.socket.shutdown(socket.SHUT_RD)
                own.send_bytes(fake_message(16, b"x"))
                own.close()
                own, subscribe = accept_tail(listener, last)
                assert (subscribe["start"], subscribe["position"]) == ("position", last)
                assert own.expect(ACK, Deadline(10, "ACK"))["position"] == last
                done = tail.wait_exit()
                own.close()
                assert (done.status, done.out, done.err) == (0, b"x", b"ready\n"), done
    finally:
        shutil.rmtree(sockets)


def test_tail_survives_a_restart_of_the_router(bus, conn):
    with Router(bus.dsn()) as router:
        router.start()
        with Running("tail", "--socket", router.socket, "--output", "json", "--count", "2") as tail:
            tail.wait_ready()
            conn.emit("before", b"")
            tail.wait_lines(1)
            router.stop()
            router.start()
            wait_for(lambda: any(s.get("state") == "active" for s in router.status()["sessions"]), 20,
                     "tail is subscribed again")
            conn.emit("after", b"")
            result = tail.wait_exit(30)
    assert result.status == 0
    assert [line["prefix"] for line in result.json_lines()] == ["before", "after"]
    assert result.err.count(b"ready\n") == 1


IN_A_RUN_OF_ITS_OWN = 'mount -t tmpfs tmpfs /run && mkdir /run/walbus && mount --bind "$0" /run/walbus && exec "$@"'


def test_tail_looks_for_the_router_at_every_connect(bus, conn):
    """At the first of the usual places that is there by then: the system's own at the start, the user's later."""
    system, user = (places.new_folder("walbus-place-") for _ in range(2))
    own_run = ["unshare", "--mount", "sh", "-c", IN_A_RUN_OF_ITS_OWN, system]
    try:
        if subprocess.run([*own_run, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            pytest.skip("no right to mount")
        with Router(bus.dsn(), socket=os.path.join(system, "walbus.sock")) as router:
            router.start()
            with Running("tail", "--output", "json", "--count", "2", env={"XDG_RUNTIME_DIR": user},
                         program=[*own_run, places.walbus()]) as tail:
                tail.wait_ready()
                conn.emit("before", b"")
                tail.wait_lines(1)
                router.stop()
                router.socket = os.path.join(user, "walbus.sock")
                router.start()
                wait_for(lambda: any(s.get("state") == "active" for s in router.status()["sessions"]), 20,
                         "tail is subscribed again")
                conn.emit("after", b"")
                result = tail.wait_exit(30)
        assert result.status == 0, result
        assert [line["prefix"] for line in result.json_lines() if "prefix" in line] == ["before", "after"]
    finally:
        shutil.rmtree(system)
        shutil.rmtree(user)


# ---- status

@pytest.mark.every_major
def test_status_json(router, server, conn):
    sub = router.subscriber()
    conn.emit("a", b"")
    sub.collect(1)
    done = walbus("status", "--socket", router.socket, "--json")
    assert done.status == 0, done
    status = json.loads(done.text)
    assert status["state"] == "streaming"
    assert status["pid"] == router.pid
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", status["version"])
    assert str(status["system_identifier"]) == str(one(conn, "SELECT system_identifier FROM pg_control_system()"))
    assert status["timeline"] == 1
    assert re.fullmatch(POSITION + r":\d+", status["position"])
    assert status["slot"]["name"] == "walbus"
    for name in ("restart_lsn", "confirmed_flush_lsn"):
        assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", status["slot"][name])
    assert status["slot"]["wal_status"] == "reserved"
    assert status["slot"]["retained_bytes"] >= 0
    assert status["messages"] >= 1
    assert status["heartbeat_age_ms"] >= 0
    assert isinstance(status["sessions"], list) and len(status["sessions"]) >= 1
    assert status["subscriptions"] == []
    assert not status.get("last_error")
    done = walbus("status", "--socket", router.socket)
    assert done.status == 0 and "streaming" in done.text, done


def test_status_wait(bus):
    with Router(bus.dsn()) as router:
        with Running("status", "--socket", router.socket, "--wait", "20") as early:
            router.spawn()
            assert early.wait_exit(25).status == 0
        assert walbus("status", "--socket", router.socket, "--wait", "5").status == 0


def test_status_wait_in_vain():
    with Router("host=/nonexistent dbname=postgres user=postgres") as router:
        router.spawn()
        wait_for(lambda: router.status() is not None, 20, "the router's socket")
        began = time.monotonic()
        done = walbus("status", "--socket", router.socket, "--wait", "1")
        assert done.status == 1, done
        assert time.monotonic() - began < 10
        done = walbus("status", "--socket", router.socket, "--json")
        assert done.status == 0 and json.loads(done.text)["state"] in ("connecting", "waiting")
        assert json.loads(done.text)["last_error"]


# ---- dev

def bindir_arguments():
    return ["--pg-bindir", places.pg_bindir()]


def unread(pipe):
    """Bytes that wait in a pipe."""
    answer = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, answer)
    return answer[0]


def processes_of(folder):
    """Pids whose command line names the folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if folder.encode() in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def read_dev(dev):
    lines = dev.wait_lines(3, seconds=60)
    dsn = re.fullmatch(rb"WALBUS_DSN='([^']*)'", lines[0]).group(1).decode()
    path = re.fullmatch(rb"WALBUS_SOCKET='([^']*)'", lines[1]).group(1).decode()
    assert lines[2] == b"ready"
    assert dev.out.count(b"\n") == 3
    return dsn, path


def assert_gone(folder, seconds=20):
    wait_for(lambda: not processes_of(folder), seconds, f"no process of {folder} is left")
    wait_for(lambda: not os.path.exists(folder), seconds, f"{folder} is removed")


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_dev(sig):
    with Running("dev", *bindir_arguments()) as dev:
        dsn, path = read_dev(dev)
        folder = os.path.dirname(path)
        assert len(processes_of(folder)) >= 2
        with contextlib.closing(psycopg2.connect(dsn)) as own, own.cursor() as cur:
            cur.execute("SHOW jit")
            assert cur.fetchone() == ("off",), "what is only unpacked has no libLLVM"
        with Running("tail", "--count", "1", "--output", "json", env={"WALBUS_SOCKET": path}) as tail:
            tail.wait_ready()
            done = walbus("publish", "orders.created", "17", env={"WALBUS_DSN": dsn})
            assert done.status == 0, done
            result = tail.wait_exit()
            assert result.json_lines()[0]["event"]["data"] == 17
        dev.process.send_signal(sig)
        dev.process.wait(20)
        if sig != signal.SIGKILL:
            assert dev.process.returncode == 0, dev.err
            assert not os.path.exists(folder)
        assert_gone(folder)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
@pytest.mark.parametrize("reached", ["", "data/base", "data/postmaster.pid", "walbus.sock"],
                         ids=["folder", "initdb", "server", "router"])
def test_dev_ended_before_it_is_ready(sig, reached):
    parent = places.new_folder("wb-")
    os.chmod(parent, 0o777)
    try:
        with Running("dev", *bindir_arguments(), env={"TMPDIR": parent}) as dev:
            def begun():
                return [f for f in os.listdir(parent) if os.path.lexists(os.path.join(parent, f, reached))]
            wait_for(lambda: begun() or dev.process.poll() is not None, 60, f"dev has made {reached or 'its folder'}",
                     every=0.002)
            dev.process.send_signal(sig)
            dev.process.wait(30)
            # That the signal came in time is known but for the router, whose socket is there just before it is ready.
            if reached != "walbus.sock":
                assert dev.out == b"", "it was ready already"
            if sig != signal.SIGKILL:
                assert dev.process.returncode == 0, dev.err
                assert dev.err == b""
                assert os.listdir(parent) == []
            wait_for(lambda: not processes_of(parent), 20, "no process is left")
            wait_for(lambda: os.listdir(parent) == [], 20, "no folder is left")
    finally:
        shutil.rmtree(parent)


def test_dev_output_is_fit_for_eval():
    script = f'''
        set -eu
        exec 3< <(exec "$0" dev --pg-bindir {places.pg_bindir()})
        read -r a <&3; read -r b <&3; read -r c <&3
        [ "$c" = ready ]
        eval "$a"; eval "$b"; export WALBUS_DSN WALBUS_SOCKET
        "$0" status --wait 5 >/dev/null
        "$0" publish a 1
    '''
    done = subprocess.run(["bash", "-c", script, places.walbus()], env=places.child_environment(), timeout=90,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done
    assert uuid.UUID(done.stdout.decode().strip()).version == 7


def test_dev_ends_with_its_parent(tmp_path):
    """The shell that started it is killed, and cannot tell anybody."""
    out = tmp_path / "out"
    shell = subprocess.Popen(["sh", "-c", f'"$0" dev --pg-bindir {places.pg_bindir()} > "$1"; true',
                              places.walbus(), str(out)], env=places.child_environment(), stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: out.exists() and out.read_text().endswith("ready\n"), 60, "dev is ready")
        folder = os.path.dirname(re.search("WALBUS_SOCKET='(.*)'", out.read_text()).group(1))
    finally:
        shell.kill()
        shell.wait(10)
    assert_gone(folder)


@pytest.mark.parametrize("command,status", [
    (["sh", "-c", "exit 0"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
    (["/nonexistent/program"], 127),
], ids=["success", "own status", "signal", "no such program"])
def test_dev_command(command, status):
    done = walbus("dev", *bindir_arguments(), "--", *command, seconds=90)
    assert done.status == status, done
    assert done.out == b""


@pytest.mark.every_major
def test_dev_command_has_a_bus(tmp_path):
    script = '''
        set -eu
        printf '%s\\n' "$WALBUS_SOCKET" > "$1"
        "$0" tail --count 2 --output json > "$2" 2> "$2.err" &
        until grep -qx ready "$2.err"; do sleep 0.05; done
        "$0" publish orders.created '{"order": 1}' > /dev/null
        "$0" publish orders.paid '{"order": 1}' > /dev/null
        wait $!
    '''
    done = walbus("dev", *bindir_arguments(), "--", "sh", "-c", script, places.walbus(), str(tmp_path / "socket"),
                  str(tmp_path / "out"), seconds=90)
    assert done.status == 0, done
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [line["prefix"] for line in lines] == ["orders.created", "orders.paid"]
    folder = os.path.dirname((tmp_path / "socket").read_text().strip())
    assert not os.path.exists(folder) and not processes_of(folder)


def test_dev_keep():
    done = walbus("dev", *bindir_arguments(), "--keep", "--", "sh", "-c", "dirname $WALBUS_SOCKET", seconds=90)
    assert done.status == 0, done
    folder = done.text.strip()
    try:
        assert os.path.exists(os.path.join(folder, "data", "PG_VERSION"))
        assert folder in done.error
        assert not processes_of(folder)
    finally:
        subprocess.run(["rm", "-rf", "--", folder], check=True)


def test_dev_ignores_the_callers_variables(server):
    """WALBUS_DSN and PG… of another bus must reach neither its server nor its router."""
    done = walbus("dev", *bindir_arguments(), "--", "sh", "-c", "echo $WALBUS_DSN; echo $PGHOST",
                  env={"WALBUS_DSN": server.dsn(), "WALBUS_SOCKET": "/nonexistent/s", "PGHOST": "/nonexistent",
                       "PGPORT": "1", "PGDATA": "/nonexistent", "PGOPTIONS": "-c nonsense=1"}, seconds=90)
    assert done.status == 0, done
    dsn, host = done.text.split("\n")[:2]
    assert server.sockets not in dsn and host == "/nonexistent"


def test_dev_without_a_server(tmp_path):
    done = walbus("dev", "--pg-bindir", str(tmp_path))
    assert done.status == 1, done
    assert str(tmp_path) in done.error
    assert done.out == b""


def test_dev_when_the_router_dies():
    with Running("dev", *bindir_arguments()) as dev:
        _, path = read_dev(dev)
        folder = os.path.dirname(path)
        routers = [pid for pid in processes_of(folder) if os.readlink(f"/proc/{pid}/exe").endswith("walbusd")]
        assert len(routers) == 1
        os.kill(routers[0], signal.SIGKILL)
        result = dev.wait_exit(30)
        assert result.status == 1 and b"walbusd" in result.err, result
    assert_gone(folder)


def test_two_devs_at_once():
    results = {}

    def run(n):
        results[n] = walbus("dev", *bindir_arguments(), "--", "sh", "-c", "echo $WALBUS_SOCKET", seconds=120)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(130)
    assert [results[n].status for n in (0, 1)] == [0, 0], results
    assert results[0].text != results[1].text


# ---- what must hold

# A caller that only sees a failure publishes again.

@pytest.mark.parametrize("kind,n", [([], 1), ([], 3000), ([], 40000), (["--raw"], 1), (["--raw"], 3000)],
                         ids=["at the end", "beyond stdio's buffer", "beyond memory", "raw", "raw beyond stdio's buffer"])
def test_publish_lines_to_a_full_disk(server, kind, n):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([places.walbus(), "publish", "--dsn", server.dsn(), "--lines", *kind, "a"], input=b"1\n" * n,
                              stdout=full, stderr=subprocess.PIPE, env=places.child_environment(), timeout=100, check=False)
    assert done.returncode == 1, done
    assert done.stderr == b"walbus publish: Published, but cannot write to standard output: No space left on device.\n"


@pytest.mark.parametrize("command,clause", [
    (["publish", "a", "1"], "Published, but cannot"), (["publish", "--non-transactional", "a", "1"], "Published, but cannot"),
    (["publish", "--raw", "a", "1"], "Published, but cannot"), (["setup"], "Publication and slot are there, but cannot"),
    (["teardown"], "Publication and slot are gone, but cannot"), (["--version"], "Cannot"), (["publish", "--help"], "Cannot"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_what_was_done_is_said_though_stdout_fails(server, command, clause):
    """On a full disk, and into a pipe that nobody reads: SIGPIPE would end it without a word."""
    reader, pipe = os.pipe()
    os.close(reader)
    try:
        with open("/dev/full", "wb") as full, os.fdopen(pipe, "wb") as pipe:
            for target, why in ((full, b"No space left on device"), (pipe, b"Broken pipe")):
                done = subprocess.run([places.walbus(), *command, "--dsn", server.dsn()], env=places.child_environment(),
                                      stdin=subprocess.DEVNULL, stdout=target, stderr=subprocess.PIPE, timeout=60, check=False)
                if clause == "Cannot" and target is pipe:
                    assert done.returncode == -signal.SIGPIPE, done  # nothing was done, so as any program
                    continue
                assert done.returncode == 1, done
                name = b"walbus" if command[0] == "--version" else b"walbus " + command[0].encode()
                assert done.stderr == b"%s: %s write to standard output: %s.\n" % (name, clause.encode(), why)
    finally:
        server.drop_bus()


# ---- standard descriptors that are closed: what opens next must not get their numbers

def walbus_without(redirections, *arguments, stdin=b"", seconds=60):
    """Runs it with a shell's redirections, as ">&-"."""
    done = subprocess.run(["sh", "-c", f'exec "$@" {redirections}', "sh", places.walbus(), *arguments], input=stdin,
                          env=places.child_environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds, check=False)
    result = Result(done.returncode, done.stdout, done.stderr)
    places.assert_no_sanitizer_report(result.error, f"walbus {' '.join(arguments)} {redirections}")
    return result


def test_publish_without_stderr():
    """The warning would go into the connection, and nothing be published."""
    with Server(settings={"wal_level": "replica"}) as own:
        own.start()
        done = walbus_without("2>&-", "publish", "--dsn", own.dsn(), "a", "1")
        assert done.status == 0, done
        assert uuid.UUID(done.text.strip()).version == 7


@pytest.mark.parametrize("redirections", [">&-", ">&- 2>&-"])
def test_publish_without_stdout(router, server, redirections):
    """More ids than stdio holds back would go into the connection."""
    with Running("tail", "--socket", router.socket, "--output", "raw", "--count", "20000") as tail:
        tail.wait_ready()
        done = walbus_without(redirections, "publish", "--dsn", server.dsn(), "--lines", "--raw", "a",
                              stdin=b"".join(b"%d\n" % n for n in range(20000)))
        assert done.status == 1, done
        if "2>" not in redirections:
            assert done.error == "walbus publish: Published, but cannot write to standard output: Bad file descriptor.\n"
        assert "invalid frontend message" not in server.log()
        assert tail.wait_exit(60).out == b"".join(b"%d" % n for n in range(20000))


@pytest.mark.parametrize("arguments", [["--lines", "a"], ["--lines", "--raw", "a"], ["a", "-"], ["--raw", "a", "-"]],
                         ids=" ".join)
def test_publish_without_stdin(server, arguments):
    """Lines would be read from the connection."""
    done = walbus_without("<&-", "publish", "--dsn", server.dsn(), *arguments)
    assert done.status == 1 and done.out == b"", done
    assert re.fullmatch(r"walbus publish: Cannot read (line 1 of )?stdin: Bad file descriptor\.\n", done.error), done


def test_publish_that_does_not_need_stdin(server):
    done = walbus_without("<&-", "publish", "--dsn", server.dsn(), "a", "1")
    assert done.status == 0 and done.err == b"", done


@pytest.mark.parametrize("redirections", ["2>&-", "<&- 2>&-"])
def test_tail_without_stderr(router, conn, redirections):
    """The word that it is ready would go into the connection to the router."""
    tail = subprocess.Popen(["sh", "-c", f'exec "$@" {redirections}', "sh", places.walbus(), "tail", "--socket",
                             router.socket, "--output", "raw", "--count", "1"], env=places.child_environment(),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=places.die_with_parent())
    try:
        def subscribed():
            return any(s["state"] == "active" for s in router.status()["sessions"])
        wait_for(lambda: subscribed() or tail.poll() is not None, 20, "it is subscribed")
        conn.emit("a", b"content")
        assert tail.communicate(timeout=20)[0] == b"content"
        assert tail.returncode == 0
    finally:
        if tail.poll() is None:
            tail.kill()
            tail.wait()


def test_tail_without_stdout(router):
    """A closed standard output ends it silently."""
    done = walbus_without(">&-", "tail", "--socket", router.socket)
    assert done.status == 0 and done.err == b"", done


def test_status_without_standard_descriptors(router):
    assert walbus_without("<&- 2>&-", "status", "--socket", router.socket).text.startswith("state")
    done = walbus_without(">&-", "status", "--socket", router.socket)
    assert done.status == 1 and "Bad file descriptor" in done.error, done


@pytest.mark.parametrize("command", ["setup", "teardown"])
def test_setup_and_teardown_without_standard_descriptors(server, command):
    try:
        if command == "teardown":
            server.create_bus()
        done = walbus_without("<&- 2>&-", command, "--dsn", server.dsn())
        assert done.status == 0 and b'slot "walbus"' in done.out, done
        done = walbus_without("<&- >&-", command, "--dsn", server.dsn())
        assert done.status == 1 and "Bad file descriptor" in done.error, done
        assert (server.slot() is None) == (command == "teardown")
    finally:
        server.drop_bus()


@pytest.mark.parametrize("arguments", [["--help"], ["tail", "--help"], ["--version"]], ids=" ".join)
def test_help_without_stdout(arguments):
    done = walbus_without(">&-", *arguments)
    assert done.status == 1 and "Bad file descriptor" in done.error, done


def test_dev_without_standard_descriptors(tmp_path):
    """Its children would get the keeper's pipes as theirs. COMMAND finds them as it would without dev."""
    script = '"$0" publish a 1 > "$1/id" && if echo 1; then exit 1; fi; if read a; then exit 2; fi; exit 7'
    done = walbus_without("<&- >&- 2>&-", "dev", *bindir_arguments(), "--", "sh", "-c", script, places.walbus(),
                          str(tmp_path), seconds=90)
    assert done.status == 7, done
    assert uuid.UUID((tmp_path / "id").read_text().strip()).version == 7
    done = walbus_without(">&-", "dev", *bindir_arguments(), seconds=90)
    assert done.status == 1 and done.error == "walbus dev: Cannot write to standard output: Bad file descriptor.\n", done


# ---- what never goes to a terminal

def run_on_a_terminal(*arguments):
    master, slave = os.openpty()
    try:
        done = subprocess.run([places.walbus(), *arguments], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE,
                              env=places.child_environment(), timeout=60, check=False)
    finally:
        os.close(slave)
        os.close(master)
    return done


def test_raw_never_goes_to_a_terminal():
    done = run_on_a_terminal("tail", "--socket", "/nonexistent/s", "--output", "raw")
    assert done.returncode == 2 and b"pipe" in done.stderr, done
    assert run_on_a_terminal("tail", "--socket", "/nonexistent/s", "--output", "json").returncode == 3


def test_json_holds_nothing_that_a_terminal_obeys(router, conn):
    hidden = "\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\x1b\x9b"
    event = {"id": "1", "data": {hidden: hidden}, "type": hidden, "source": "/", "specversion": "1.0"}
    content = b"\xd9\xd9\xf7" + cbor.dumps(event)
    for output in ("json", "cloudevents"):
        with Running("tail", "--socket", router.socket, "--output", output, "--count", "1") as tail:
            tail.wait_ready()
            conn.emit("a", content)
            result = tail.wait_exit()
        assert result.status == 0 and result.out.isascii(), result
        line, = result.json_lines()
        line = line.get("event", line)
        assert (line["type"], line["data"]) == (hidden, {hidden: hidden})


@pytest.mark.parametrize("arguments,status,word", [
    (["publish", "--allow-reserved", "_walbus.heartbeat"], 2, "never delivered"),
    (["tail", "--json"], 2, "--output json"),
    (["tail", "--from", "now", "--no-ack"], 3, "/nonexistent/s"),
    (["tail", "--timeout", "10000d"], 3, "/nonexistent/s"),
    (["tail", "--timeout", "10001d"], 2, "10000 days"),
    (["tail", "--timeout", "18446744073709552"], 2, "10000 days"),
    (["tail", "--timeout", "99999999999999999999"], 2, "10000 days"),
    (["tail", "--timeout", "0"], 2, "above 0"),
    (["status", "--wait", "10001d"], 2, "10000 days"),
    (["status", "--wait", "18446744073709552"], 2, "10000 days"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_usage_is_explained(arguments, status, word):
    done = walbus("--socket", "/nonexistent/s", "--dsn", "host=/nonexistent", *arguments)
    assert done.status == status and word in done.error and done.out == b"", done


def test_status_waits_for_the_longest_time_too(router):
    done = walbus("status", "--socket", router.socket, "--wait", "10000d")
    assert done.status == 0, done
    assert "position -" in done.text, "a session without a subscription has no position"


def test_an_id_is_one_line(server):
    done = walbus("publish", "--dsn", server.dsn(), "a", "1", "--attr", "id=1\n2")
    assert done.status == 2 and "control character" in done.error and done.out == b"", done


def test_counts_of_one(router, conn):
    arguments = ["tail", "--socket", router.socket, "--output", "cloudevents", "--timeout", "3"]
    with Running(*arguments) as tail:
        tail.wait_ready()
        conn.emit("opaque", b"?")
        conn.emit("a", b"\xd9\xd9\xf7" + cbor.dumps({"id": "1", "type": "t", "source": "/", "specversion": "1.0"}))
        result = tail.wait_exit()
    assert result.status == 1, result
    assert b"after 1 message." in result.err and b"1 message that is no event." in result.err, result


def test_no_ack(router, conn):
    with Running("tail", "--socket", router.socket, "--no-ack", "--from", "now", "--count", "1") as tail:
        tail.wait_ready()
        conn.emit("a", b"")
        assert tail.wait_exit().status == 0


def test_skipped_ones_are_silent_behind_a_closed_pipe(router, conn):
    tail = subprocess.Popen([places.walbus(), "tail", "--socket", router.socket, "--output", "cloudevents"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=places.child_environment(),
                            stdin=subprocess.DEVNULL)
    try:
        assert tail.stderr.readline() == b"ready\n"
        conn.emit("opaque", b"?")
        wait_for(lambda: any(s.get("messages") for s in router.status()["sessions"]), 20, "it was sent")
        tail.stdout.close()
        assert tail.wait(20) == 0
        assert tail.stderr.read() == b""
    finally:
        if tail.poll() is None:
            tail.kill()
            tail.wait()
        tail.stderr.close()


@pytest.mark.parametrize("option", ["--dsn", "--socket"])
def test_dev_refuses_another_bus(option):
    done = walbus("dev", option, "/nonexistent/s", *bindir_arguments(), "--", "true")
    assert done.status == 2 and option in done.error, done


def test_dev_reads_no_settings_of_the_machine(tmp_path):
    """What it starts is told so; a variable of another bus is not even looked at."""
    with Running("dev", *bindir_arguments(), env={"WALBUS_SOCKET": "/nonexistent/" + 200 * "s"}) as dev:
        _, path = read_dev(dev)
        routers = [pid for pid in processes_of(os.path.dirname(path))
                   if os.readlink(f"/proc/{pid}/exe").endswith("walbusd")]
        with open(f"/proc/{routers[0]}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        assert words[words.index(b"--config") + 1] == b"/dev/null"
        assert dev.stop().status == 0


def test_dev_folders():
    """The server's user gets its own two folders, and cannot put links where root opens logs."""
    with Running("dev", *bindir_arguments()) as dev:
        dsn, path = read_dev(dev)
        folder = os.path.dirname(path)
        assert f"host={folder}/pg " in dsn
        outer = os.stat(folder)
        assert outer.st_uid == os.geteuid()
        assert outer.st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
        for name in ("data", "pg"):
            inner = os.stat(f"{folder}/{name}")
            assert inner.st_mode & 0o777 == 0o700
            assert (inner.st_uid != 0) and (os.geteuid() == 0 or inner.st_uid == os.geteuid())
        for name in ("initdb.log", "server.log", "setup.log", "router.log"):
            assert os.stat(f"{folder}/{name}").st_uid == os.geteuid()
        assert dev.stop().status == 0


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_dev_ended_before_its_command(tmp_path, sig):
    began = tmp_path / "began"
    slow = pathlib.Path(places.new_folder("walbus-bin-"))  # where the server's user may look as well
    slow.chmod(0o755)
    for name in ("initdb", "postgres"):
        (slow / name).write_text("#!/bin/sh\nsleep 60\n")
        (slow / name).chmod(0o755)
    with Running("dev", "--pg-bindir", str(slow), "--", "touch", str(began), env={"TMPDIR": "/tmp"}) as dev:
        def keeper_runs():
            with open(f"/proc/{dev.process.pid}/task/{dev.process.pid}/children", encoding="ascii") as file:
                return file.read().split()
        wait_for(keeper_runs, 20, "the keeper runs")
        assert dev.stop(sig).status == 128 + sig
    shutil.rmtree(slow)
    assert not began.exists()


def signal_pends(pid, sig):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"^ShdPnd:\s*(\w+)$", file.read(), re.M).group(1), 16) >> (sig - 1) & 1


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_dev_is_told_twice(sig):
    """A second Ctrl-C while it winds up changes nothing."""
    with Running("dev", *bindir_arguments()) as dev:
        _, path = read_dev(dev)
        folder = os.path.dirname(path)
        routers = [pid for pid in processes_of(folder) if os.readlink(f"/proc/{pid}/exe").endswith("walbusd")]
        os.kill(routers[0], signal.SIGSTOP)  # so that winding up takes long enough
        try:
            dev.process.send_signal(signal.SIGINT)
            wait_for(lambda: not signal_pends(dev.process.pid, signal.SIGINT), 20, "the first one is taken")
            dev.process.send_signal(sig)
            assert dev.process.poll() is None
        finally:
            os.kill(routers[0], signal.SIGCONT)
        result = dev.wait_exit(30)
        assert result.status == 0 and result.err == b"", result
    assert_gone(folder)


def test_dev_ended_while_initdb_has_children():
    """initdb runs postgres through a shell; whoever lives on makes files where they are being removed."""
    fake, parent = pathlib.Path(places.new_folder("walbus-bin-")), places.new_folder("wb-")
    fake.chmod(0o755)
    os.chmod(parent, 0o777)
    (fake / "initdb").write_text(
        '#!/bin/sh\n'
        'setsid sh -c \'while :; do i=$((i + 1)); true > "$0/s$i"; sleep 0.002; done\' "$2" &\n'
        'while :; do i=$((i + 1)); true > "$2/f$i"; sleep 0.002; done &\nwait\n')
    (fake / "postgres").write_text("#!/bin/sh\n")
    for name in ("initdb", "postgres"):
        (fake / name).chmod(0o755)
    try:
        with Running("dev", "--pg-bindir", str(fake), env={"TMPDIR": parent}) as dev:
            def busy():
                return all(list(pathlib.Path(parent).glob(f"*/data/{file}")) for file in ("f20", "s20"))
            wait_for(busy, 20, "initdb's children make files")
            assert dev.stop().status == 0
            assert dev.err == b""
            assert os.listdir(parent) == [] and processes_of(parent) == []
    finally:
        for pid in processes_of(parent):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(fake)
        subprocess.run(["rm", "-rf", "--", parent], check=True)


def test_dev_leaves_no_backend_of_a_killed_server():
    """A busy backend does not see that its postmaster has gone."""
    with Running("dev", *bindir_arguments()) as dev:
        dsn, path = read_dev(dev)
        busy = psycopg2.connect(dsn)
        pid = busy.get_backend_pid()

        def work():
            with pytest.raises(psycopg2.OperationalError), busy.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_class AS a, pg_class AS b, pg_class AS c, pg_class AS d")
        thread = threading.Thread(target=work)
        thread.start()
        try:
            with Connection(psycopg2.connect(dsn)) as conn:
                conn.raw.autocommit = True
                wait_for(lambda: conn.rows("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'", pid), 20,
                         "a backend is busy")
            with open(f"{os.path.dirname(path)}/data/postmaster.pid", encoding="utf-8") as file:
                os.kill(int(file.readline()), signal.SIGKILL)
            result = dev.wait_exit(40)
            assert result.status == 1 and b"The server ended." in result.err, result
            assert not os.path.exists(f"/proc/{pid}")
        finally:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)
            thread.join(20)
            busy.close()
    assert_gone(os.path.dirname(path))


def test_dev_says_what_it_cannot_remove():
    with Running("dev", *bindir_arguments()) as dev:
        _, path = read_dev(dev)
        folder = os.path.dirname(path)
        try:
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            for _ in range(20):  # longer than any path may be
                os.mkdir(250 * "d", dir_fd=at)
                deeper = os.open(250 * "d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
                os.close(at)
                at = deeper
            os.close(at)
            result = dev.stop(seconds=30)
            assert result.status == 1, result
            assert result.err.decode() == f"walbus dev: Cannot remove {folder}: File name too long.\n"
        finally:
            subprocess.run(["rm", "-rf", "--", folder], check=True)


STUBBORN = """trap '' TERM; echo "$WALBUS_SOCKET"; exec sleep 200"""


def test_dev_when_the_router_dies_and_its_command_goes_on():
    """It is asked, and after 10 s it is not asked any more."""
    with Running("dev", *bindir_arguments(), "--", "sh", "-c", STUBBORN) as dev:
        folder = os.path.dirname(dev.wait_lines(1, seconds=60)[0].decode())
        routers = [pid for pid in processes_of(folder) if os.readlink(f"/proc/{pid}/exe").endswith("walbusd")]
        os.kill(routers[0], signal.SIGKILL)
        assert_gone(folder)
        began = time.monotonic()
        assert dev.process.poll() is None
        result = dev.wait_exit(30)
        assert 7 < time.monotonic() - began < 25
        assert result.status == 1 and b"walbusd ended." in result.err, result


def test_dev_whose_parent_and_command_differ(tmp_path):
    """The end of the parent removes everything, whatever COMMAND makes of SIGTERM."""
    out = tmp_path / "out"
    shell = subprocess.Popen(["sh", "-c", '"$0" dev --pg-bindir "$1" -- sh -c "$2" > "$3"; true', places.walbus(),
                              places.pg_bindir(), f"echo $$; {STUBBORN}", str(out)],
                             env=places.child_environment(), stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: out.exists() and out.read_text().endswith("walbus.sock\n"), 60, "its command runs")
        command, path = out.read_text().split()
    finally:
        shell.kill()
        shell.wait(10)
    assert_gone(os.path.dirname(path), 30)
    assert not os.path.exists(f"/proc/{command}")


def test_dev_help_is_as_the_others():
    text = walbus("dev", "--help").text
    assert "\u2026" not in text and not text.endswith("\n\n")
    for command in ("tail", "dev"):
        assert "/run/walbus/walbus.sock" in walbus(command, "--help").text
