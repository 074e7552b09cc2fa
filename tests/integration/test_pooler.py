# SPDX-License-Identifier: PostgreSQL
"""`walbus publish` behind a transaction pooler; the router reads from the server itself. The library's calls:
test_publish_api.py."""

import json
import subprocess

import pytest
from harness import places
from harness.command import Running, walbus
from harness.pooler import Pooler


@pytest.fixture
def pooler(router, server):
    """One session of the server for all."""
    with Pooler(server, pool_size=1) as made:
        yield made


def test_every_form(router, pooler, conn, tmp_path):
    file = tmp_path / "data.json"
    file.write_text('{"from": "a file"}')
    forms = [  # arguments, stdin, what arrives: data or payload, transactional
        (["a.text", '{"n": 1}'], b"", [{"n": 1}], True),
        (["a.file", f"@{file}"], b"", [{"from": "a file"}], True),
        (["a.stdin", "-"], b"[3]", [[3]], True),
        (["a.none"], b"", ["absent"], True),
        (["--non-transactional", "a.now", "5"], b"", [5], False),
        (["--lines", "a.lines"], b"6\n7\n8\n", [6, 7, 8], True),
        (["--raw", "a.raw", "nine"], b"", ["nine"], True),
        (["--raw", "--non-transactional", "a.rawnow", "ten"], b"", ["ten"], False),
        (["--raw", "--lines", "a.rawlines"], b"eleven\ntwelve\n", ["eleven", "twelve"], True),
        (["--type", "t", "--source", "/s", "--subject", "u", "--attr", "partitionkey=eu", "--attr", "id=i", "a.attr",
          "13"], b"", [13], True),
        (["--allow-reserved", "_reserved", "14"], b"", [14], True),
    ]
    count = sum(len(data) for _, _, data, _ in forms)
    published = []
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", str(count + 1), "a.*", "_reserved",
                 "z.last") as tail:
        tail.wait_ready()
        for arguments, stdin, _, _ in forms:
            done = walbus("publish", "--dsn", pooler.dsn, *arguments, stdin=stdin)
            assert done.status == 0, (arguments, done)
            published += done.text.split()
        conn.emit("z.last", b"")
        result = tail.wait_exit()
    lines = result.json_lines()
    wanted = [(arguments[-1] if arguments[-1][:2] in ("a.", "_r") else arguments[-2], data, transactional)
              for arguments, _, all_data, transactional in forms for data in all_data]
    assert [(line["prefix"], line["event"].get("data", "absent") if "event" in line else line["payload"],
             line["transactional"]) for line in lines] == [*wanted, ("z.last", "", True)]
    assert [line["event"]["id"] if "event" in line else line["lsn"] for line in lines[:-1]] == published
    attributes = next(line for line in lines if line["prefix"] == "a.attr")["event"]
    attributes.pop("time")
    assert attributes == {"id": "i", "source": "/s", "specversion": "1.0", "type": "t", "subject": "u",
                          "partitionkey": "eu", "data": 13}


def test_a_bad_line_rolls_back_all(router, pooler, conn):
    """And the session goes back to the pool as it was."""
    sub = router.subscriber()
    done = walbus("publish", "--dsn", pooler.dsn, "--lines", "a", stdin=b"1\n" * 2500 + b"{\n")
    assert done.status == 2 and "line 2501" in done.error and done.out == b"", done
    done = walbus("publish", "--dsn", pooler.dsn, "--non-transactional", "b", "1")
    assert done.status == 0, done
    assert [(m.prefix, m.transactional) for m in sub.drain(conn)] == [(b"b", False)]


def test_two_at_once_share_a_session(router, pooler, server):
    """Each transaction arrives whole, once, in its order; neither sees anything of the other's."""
    number = 3000
    with Running("tail", "--socket", router.socket, "--output", "json", "--count", str(2 * number)) as tail:
        tail.wait_ready()
        both = {name: subprocess.Popen([places.walbus(), "publish", "--dsn", pooler.dsn, "--lines", name],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=places.child_environment(), preexec_fn=places.die_with_parent())
                for name in ("first", "second")}
        ids = {}
        try:
            # Half of the first's lines: its transaction is open, and the second's client waits for the session.
            lines = [b'{"n": %d}\n' % n for n in range(number)]
            both["first"].stdin.write(b"".join(lines[:number // 2]))
            both["first"].stdin.flush()
            both["second"].stdin.write(b"".join(lines))
            both["second"].stdin.close()
            both["second"].stdin = None
            for name in ("first", "second"):
                rest = b"".join(lines[number // 2:]) if name == "first" else None
                out, err = both[name].communicate(rest, timeout=60)
                assert (both[name].returncode, err) == (0, b""), (name, err)
                ids[name] = out.decode().split()
        finally:
            for process in both.values():
                if process.poll() is None:
                    process.kill()
                    process.wait(10)
        got = tail.wait_exit(60).json_lines()
    order = [name for name, _ in sorted(((line["prefix"], i) for i, line in enumerate(got) if line["index"] == 1),
                                        key=lambda pair: pair[1])]
    assert sorted(order) == ["first", "second"]
    assert [line["prefix"] for line in got] == [name for name in order for _ in range(number)]
    assert [line["event"]["data"]["n"] for line in got] == 2 * list(range(number))
    assert [line["event"]["id"] for line in got] == ids[order[0]] + ids[order[1]]
    assert len({line["xid"] for line in got}) == 2


def test_the_pool_has_one_session(pooler, server):
    """What the others rely on."""
    done = walbus("publish", "--dsn", pooler.dsn, "a", json.dumps("x"))
    assert done.status == 0, done
    with server.connect() as conn:
        assert conn.rows("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
                         "AND pid <> pg_backend_pid() AND application_name NOT LIKE 'walbusd%%'") == [(1,)]
