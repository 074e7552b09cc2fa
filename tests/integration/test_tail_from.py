# SPDX-License-Identifier: PostgreSQL
"""`walbus tail` from other places than now, and under a durable name: what it asks the router for, and what it does
with each answer."""

import datetime
import json
import signal
import time

import pytest
from harness.command import Running, walbus
from harness.fake_router import FakeRouter, at
from harness.subscriber import Position
from harness.waiting import wait_for

EVERYTHING = [[0, b">"]]
NAME = "billing"


def tail(fake, *arguments, **kw):
    return Running("tail", "--socket", fake.path, *arguments, **kw)


def lines(running):
    return running.out.decode().splitlines()


def positions(running):
    return [json.loads(line)["position"] for line in lines(running)]


def stays(running, seconds=0.5):
    """It neither ends nor is about to."""
    time.sleep(seconds)
    assert running.process.poll() is None, running.err


@pytest.fixture
def fake():
    with FakeRouter() as fake:
        yield fake


# ---- where to begin

@pytest.mark.parametrize("where, asked", [
    ("now", {"start": "now"}),
    ("oldest", {"start": "oldest"}),
    ("1:0/16B3748:3", {"start": "position", "position": Position(1, 0x16B3748, 3)}),
    ("2:A/0:4294967295", {"start": "position", "position": Position(2, 0xA00000000, 0xFFFFFFFF)}),
    ("2026-01-15T10:30:00.123456Z", {"start": "time", "time": 1768473000123456}),
    ("2026-01-15 11:30:00+01:00", {"start": "time", "time": 1768473000000000}),
])
def test_each_start_is_asked_for(fake, where, asked):
    with tail(fake, "--from", where, "a.>") as running:
        assert fake.subscribe() == {"filters": [[0, b"a.>"]], **asked}
        fake.subscribed(asked.get("position", at(100)))
        running.wait_ready()
        assert running.stop().status == 0


@pytest.mark.parametrize("where, ago", [("-15min", 900), ("-90", 90), ("-1.5h", 5400)])
def test_so_long_ago(fake, where, ago):
    with tail(fake, f"--from={where}"):
        before = datetime.datetime.now(datetime.timezone.utc).timestamp() - ago
        asked = fake.subscribe()
        assert asked["start"] == "time"
        assert before - 10 < asked["time"] / 1e6 < before + 10


@pytest.mark.parametrize("where", ["", "stored", "15min", "-", "2026-01-15T10:30:00", "1:0/16B3748", "0:0/0:0"])
def test_what_is_no_place(where):
    done = walbus("tail", f"--from={where}", "--socket", "/nonexistent/s")
    assert done.status == 2, done
    assert done.error.startswith("walbus tail: --from is now, oldest, a position as 1:0/16B3748:1, "), done
    assert f"not '{where}'" in done.error


def test_a_journal_that_has_dropped_it_is_told(fake):
    with tail(fake, "--output", "json", "--from", "1:0/10:0") as running:
        fake.subscribe()
        fake.subscribed(at(16))
        fake.gap(at(17), at(200))
        fake.message(at(300))
        gap, message = map(json.loads, running.wait_lines(2))
        assert gap == {"gap": {"from": "1:0/11:0", "to": "1:0/C8:0", "messages": 4,
                               "reason": "retention has passed this"}}
        assert message["position"] == "1:0/12C:0"
        assert running.stop().status == 0


# ---- to the journal's end

def test_no_follow_ends_with_what_stood_there(fake):
    with tail(fake, "--output", "json", "--no-follow") as running:
        fake.answer("status", {"journal": {"bytes": 1, "newest": "1:0/12C:0", "oldest": "1:0/1:0"}})
        assert fake.subscribe() == {"filters": EVERYTHING, "start": "oldest"}
        fake.subscribed(at(1))
        fake.message(at(200))
        running.wait_lines(1)
        stays(running)
        fake.message(at(300), at(400))  # one that has come since
        done = running.wait_exit()
        assert done.status == 0, done
        assert positions(running) == ["1:0/C8:0", "1:0/12C:0"]
        fake.acknowledged(at(300))


@pytest.mark.parametrize("newest", ["1:0/12C:0", "1:0/12C:4294967295"])
def test_no_follow_prints_nothing_that_has_come_since(fake, newest):
    for come in (lambda: fake.message(at(400)), lambda: fake.begin(400)):
        with tail(fake, "--output", "json", "--no-follow") as running:
            fake.answer("status", {"journal": {"newest": newest}})
            fake.subscribe()
            fake.subscribed(at(1))
            fake.message(at(200))
            come()  # what stood at 300 does not match
            done = running.wait_exit()
            assert done.status == 0, done
            assert positions(running) == ["1:0/C8:0"]
            fake.acknowledged(at(200))


def test_no_follow_leaves_a_transaction_out_that_is_still_read(fake):
    """Its rest may never come, and no PROGRESS comes inside it."""
    for come in (lambda: fake.progress(at(299, 2**32 - 1)), lambda: fake.begin(300)):
        with tail(fake, "--output", "json", "--no-follow") as running:
            fake.answer("status", {"journal": {"newest": "1:0/12C:7"}})
            fake.subscribe()
            fake.subscribed(at(1))
            fake.message(at(200))
            stays(running)
            come()
            done = running.wait_exit()
            assert done.status == 0, done
            assert positions(running) == ["1:0/C8:0"]


def test_no_follow_takes_a_message_right_before_it(fake):
    """It can have the LSN of the transaction behind it, which is still read."""
    with tail(fake, "--output", "json", "--no-follow") as running:
        fake.answer("status", {"journal": {"newest": "1:0/12C:7"}})
        fake.subscribe()
        fake.subscribed(at(1))
        fake.message(at(300))
        done = running.wait_exit()
        assert done.status == 0, done
        assert positions(running) == ["1:0/12C:0"]


def test_no_follow_has_confirmed_what_it_had_acknowledged(fake):
    """The last one was acknowledged, without a confirmation, before it was known to be the last."""
    with tail(fake, "--output", "json", "--no-follow", "--durable", "worker") as running:
        fake.answer("status", {"journal": {"newest": "1:0/12C:0"}})
        fake.subscribe()
        fake.subscribed(at(1))
        fake.message(at(200))
        fake.acknowledged(at(200))
        fake.message(at(400))  # what stood at 300 does not match
        fake.acknowledged(at(200), confirm=True)
        stays(running)
        fake.acked(at(200))
        done = running.wait_exit()
        assert done.status == 0, done
        assert positions(running) == ["1:0/C8:0"]


def test_no_follow_when_nothing_more_matches(fake):
    with tail(fake, "--no-follow", "--from", "now") as running:
        fake.answer("status", {"journal": {"newest": "1:0/12C:4294967295"}})
        assert fake.subscribe()["start"] == "now"
        fake.subscribed(at(300))
        stays(running)
        fake.progress(at(400))
        assert running.wait_exit().status == 0


@pytest.mark.parametrize("journal", [{"newest": "1:0/64:0"}, {"newest": None}, {}, None])
def test_no_follow_with_nothing_there(fake, journal):
    """Or no more than lies before the start."""
    with tail(fake, "--no-follow") as running:
        fake.answer("status", {"journal": journal})
        fake.subscribe()
        fake.subscribed(at(100))
        done = running.wait_exit()
        assert (done.status, done.out, done.err) == (0, b"", b"ready\n"), done


def test_no_follow_without_a_router():
    done = walbus("tail", "--no-follow", "--socket", "/nonexistent/s")
    assert done.status == 3, done
    assert "/nonexistent/s" in done.error


# ---- a durable name

def test_a_name_and_its_place(fake):
    with tail(fake, "--output", "json", "--durable", NAME, "a.>") as running:
        assert fake.subscribe() == {"filters": [[0, b"a.>"]], "start": "now", "name": NAME}
        fake.subscribed(at(100), stored=True, redelivered_to=at(200))
        fake.message(at(200))
        fake.message(at(300))
        again, new = map(json.loads, running.wait_lines(2))
        assert (again["redelivered"], new["redelivered"]) == (True, False)
        fake.acknowledged(at(300))
        assert running.stop().status == 0
    with tail(fake, "--durable", NAME) as running:
        fake.subscribe()
        fake.subscribed(at(100), stored=True, redelivered_to=at(200))
        fake.message(at(200))
        fake.message(at(300))
        assert [line.split(b" ", 1)[1] for line in running.wait_lines(2)] == [b"a (redelivered) opaque: x",
                                                                              b"a opaque: x"]


def test_a_start_is_for_a_new_name(fake):
    entry = {"name": NAME, "position": "1:0/64:0", "connected": False}
    with tail(fake, "--durable", NAME, "--from", "oldest") as running:
        fake.answer("subscriptions", {"subscriptions": [dict(entry, name="other")]})
        assert fake.subscribe() == {"filters": EVERYTHING, "start": "oldest", "name": NAME}
        fake.subscribed(at(100))
        running.wait_ready()
        assert running.stop().status == 0
    with tail(fake, "--durable", NAME, "--from", "oldest") as running:
        fake.answer("subscriptions", {"subscriptions": [dict(entry, name="other"), entry]})
        done = running.wait_exit()  # and nothing is subscribed: that would change its filters
        assert done.status == 2, done
        assert done.error == (
            "walbus tail: The durable subscription billing is there, and goes on where it stands: --from is for a new "
            "name. 'walbus subscriptions seek billing oldest' moves it.\nTry 'walbus tail --help'.\n")
    with tail(fake, "--durable", NAME, "--from", "-5min") as running:  # made between the two
        fake.answer("subscriptions", {"subscriptions": []})
        assert fake.subscribe()["start"] == "time"
        fake.subscribed(at(100), stored=True)
        done = running.wait_exit()
        assert done.status == 2, done
        assert "'walbus subscriptions seek billing WHERE' moves it." in done.error
        assert "ready" not in done.error


@pytest.mark.parametrize("arguments, sentence", [
    (["--take-over"], "--take-over is about a name: --durable NAME is missing."),
    (["--durable", ""], "A durable name has 1 to 255 bytes, all visible, without blanks; not ''."),
    (["--durable", "a b"], "A durable name has 1 to 255 bytes, all visible, without blanks; not 'a b'."),
    (["--durable", "n" * 256], "A durable name has 1 to 255 bytes"),
])
def test_wrong_usage(arguments, sentence):
    done = walbus("tail", "--socket", "/nonexistent/s", *arguments)
    assert done.status == 2, done
    assert sentence in done.error


def test_a_name_that_is_held(fake):
    with tail(fake, "--durable", NAME) as running:
        assert "take_over" not in fake.subscribe()
        fake.error("held", "billing is held by pid 17")
        done = running.wait_exit()
        assert (done.status, done.error) == (
            1, "walbus tail: billing is held by pid 17 (held); --take-over ends the other\n"), done
    with tail(fake, "--durable", NAME, "--take-over") as running:
        assert fake.subscribe() == {"filters": EVERYTHING, "start": "now", "name": NAME, "take_over": True}
        fake.subscribed(at(100), stored=True)
        running.wait_ready()
        fake.error("taken-over", "another connection has billing now")
        done = running.wait_exit()
        assert done.status == 1, done
        assert "another connection has billing now (taken-over)" in done.error


def test_a_name_that_is_removed(fake):
    with tail(fake, "--durable", NAME) as running:
        fake.subscribe()
        fake.subscribed(at(100))
        running.wait_ready()
        fake.error("removed", "billing was moved")
        assert fake.subscribe() == {"filters": EVERYTHING, "start": "stored", "name": NAME}
        fake.subscribed(at(50), stored=True)
        fake.message(at(60))
        running.wait_lines(1)
        fake.error("removed", "billing was removed")
        fake.subscribe()
        fake.error("unknown-name", "there is no billing")
        done = running.wait_exit()
        assert done.status == 1, done
        assert done.error.endswith("there is no billing (unknown-name)\n")


# ---- the last acknowledgement

def count_two(fake, *arguments):
    """Two messages of two are there, written, and acknowledged; the router has not said so yet."""
    running = tail(fake, "--output", "json", "--durable", NAME, "--count", "2", *arguments)
    fake.subscribe()
    fake.subscribed(at(100))
    fake.message(at(200))
    fake.message(at(300))
    fake.message(at(400))
    fake.acknowledged(at(300), confirm=True)
    return running


def test_count_waits_until_it_is_stored(fake):
    with count_two(fake) as running:
        fake.acked(at(200))
        stays(running)
        fake.acked(at(300))
        assert running.wait_exit().status == 0
        assert positions(running) == ["1:0/C8:0", "1:0/12C:0"]


def test_count_waits_for_a_router_that_comes_back(fake):
    with count_two(fake) as running:
        fake.own.close()
        assert fake.subscribe()["start"] == "stored"
        fake.subscribed(at(200), stored=True, redelivered_to=at(400))
        stays(running)
        fake.message(at(300))  # comes again, and is not printed again
        fake.acknowledged(at(300), confirm=True)
        fake.acked(at(300))
        done = running.wait_exit()
        assert done.status == 0, done
        assert positions(running) == ["1:0/C8:0", "1:0/12C:0"]
        assert b"reconnecting" in done.err


def test_count_whose_place_is_gone(fake):
    with count_two(fake) as running:
        fake.error("removed", "billing was moved")
        fake.subscribe()
        fake.subscribed(at(100), stored=True)
        done = running.wait_exit()
        assert done.status == 1, done
        assert "1:0/12C:0 cannot be acknowledged" in done.error


def test_count_and_a_router_that_never_says_so(fake):
    with count_two(fake, "--timeout", "2") as running:
        done = running.wait_exit()
        assert done.status == 1, done
        assert done.error.endswith("The time is over before the acknowledgement was confirmed.\n")
    with count_two(fake) as running:
        stays(running)
        running.process.send_signal(signal.SIGINT)
        assert running.wait_exit().status == 0


def test_no_follow_waits_too(fake):
    with tail(fake, "--durable", NAME, "--no-follow") as running:
        fake.answer("status", {"journal": {"newest": "1:0/12C:0"}})
        assert fake.subscribe() == {"filters": EVERYTHING, "start": "oldest", "name": NAME}
        fake.subscribed(at(100), stored=True)
        fake.message(at(300))
        fake.acknowledged(at(300), confirm=True)
        stays(running)
        fake.acked(at(300))
        assert running.wait_exit().status == 0


def test_no_ack_leaves_the_cursor_alone(fake):
    with tail(fake, "--output", "json", "--durable", NAME, "--no-ack", "--count", "1") as running:
        fake.subscribe()
        fake.subscribed(at(100), stored=True)
        fake.message(at(200))
        assert running.wait_exit().status == 0
        assert fake.own.closed_by_router() is None  # it ended, and no ACK came
        assert positions(running) == ["1:0/C8:0"]


def test_help_says_where(fake):
    done = walbus("tail", "--help")
    assert done.status == 0
    for words in ("--from WHERE", "--durable NAME", "--take-over", "--no-follow", "walbus subscriptions"):
        assert words in done.text, words


# ---- with a router and its journal

def emit(conn, *contents):
    for content in contents:
        conn.emit("a", content.encode(), transactional=False)


def printed(*arguments, seconds=60):
    done = walbus("tail", *arguments, "--output", "json", seconds=seconds)
    assert done.status == 0, done
    return [line["payload"] for line in done.json_lines()]


def test_the_journal_from_its_places(router, conn):
    emit(conn, "1", "2")
    with conn_time(conn) as between:
        pass
    emit(conn, "3")
    socket = ["--socket", router.socket, "a"]
    wait_for(lambda: printed("--no-follow", *socket) == ["1", "2", "3"], 20, "all is in the journal")
    assert printed("--no-follow", "--from", "oldest", *socket) == ["1", "2", "3"]
    assert printed("--no-follow", "--from", between, *socket) == ["3"]
    assert printed("--no-follow", "--from=-1h", *socket) == ["1", "2", "3"]
    assert printed("--no-follow", "--from", "now", *socket) == []
    done = walbus("tail", "--no-follow", "--output", "json", *socket)
    places = [line["position"] for line in done.json_lines()]
    assert printed("--no-follow", "--from", places[0], *socket) == ["2", "3"]
    assert printed("--no-follow", "--from", places[2], *socket) == []
    assert printed("--from", "oldest", "--count", "2", *socket) == ["1", "2"]


class conn_time:
    """The router's time, RFC 3339, between what was emitted before and after: both are on this machine."""

    def __init__(self, conn):
        self.conn = conn

    def __enter__(self):
        time.sleep(0.3)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        time.sleep(0.3)
        return now

    def __exit__(self, *_):
        pass


def test_a_position_inside_a_transaction(router, conn):
    conn.run("SELECT count(pg_logical_emit_message(true, 'a', 'number ' || i)) FROM generate_series(1, 5) i")
    socket = ["--socket", router.socket, "a"]
    wait_for(lambda: len(printed("--no-follow", *socket)) == 5, 20, "all is in the journal")
    done = walbus("tail", "--no-follow", "--output", "json", *socket)
    third = done.json_lines()[2]
    assert third["index"] == 3
    assert printed("--no-follow", "--from", third["position"], *socket) == ["number 4", "number 5"]


def test_a_name_goes_on_where_it_was(router, conn):
    arguments = ["--socket", router.socket, "--durable", NAME, "--count", "2", "a"]
    with Running("tail", "--output", "json", *arguments) as running:
        running.wait_ready()
        emit(conn, "1", "2", "3", "4", "5")
        assert running.wait_exit().status == 0
        assert [json.loads(line)["payload"] for line in lines(running)] == ["1", "2"]
    assert printed(*arguments) == ["3", "4"]
    done = walbus("tail", "--output", "json", "--no-ack", "--no-follow", "--durable", NAME, "--socket", router.socket, "a")
    assert [line["payload"] for line in done.json_lines()] == ["5"]
    done = walbus("tail", "--output", "json", "--no-follow", "--durable", NAME, "--socket", router.socket, "a")
    assert [(line["payload"], line["redelivered"]) for line in done.json_lines()] == [("5", True)]
    assert printed("--no-follow", "--durable", NAME, "--socket", router.socket, "a") == []
    done = walbus("tail", "--durable", NAME, "--from", "oldest", "--socket", router.socket)
    assert done.status == 2
    assert "walbus subscriptions seek billing oldest" in done.error
