# SPDX-License-Identifier: PostgreSQL
"""Filters, as the router applies them: the rules of lib/codec/subject.h, asked of the real thing."""

import pytest
from harness.subscriber import Connection, Deadline, RouterError, Subscriber, SUBSCRIBE, SUBSCRIBED

PREFIXES = ["", ".", "a", "a.b", "a.b.c", "a.c", "a..c", "a.", ".a", "b", "b.a", "ab", "A", "a*", "*", ">", "a.>",
            "a.*", "orders.created", "orders.eu.created", "neon-file:x", "neon-file:"]

# filters, exclusions, what matches
CASES = [
    ([">"], [], PREFIXES),
    (["*"], [], ["", "a", "b", "ab", "A", "a*", "*", ">", "neon-file:x", "neon-file:"]),
    (["a"], [], ["a"]),
    (["a.*"], [], ["a.b", "a.c", "a.", "a.>", "a.*"]),
    (["a.>"], [], ["a.b", "a.b.c", "a.c", "a..c", "a.", "a.>", "a.*"]),
    (["*.a"], [], [".a", "b.a"]),
    (["*.*.c"], [], ["a.b.c", "a..c"]),
    (["a.*.c"], [], ["a.b.c", "a..c"]),
    (["*.>"], [], [p for p in PREFIXES if "." in p]),
    ([""], [], [""]),
    (["."], [], ["."]),
    (["a*"], [], ["a*"]),
    ([">.a"], [], []),
    (["orders.*"], [], ["orders.created"]),
    (["orders.>"], [], ["orders.created", "orders.eu.created"]),
    ([("exact", "")], [], [""]),
    ([("exact", "*")], [], ["*"]),
    ([("exact", ">")], [], [">"]),
    ([("exact", "a.*")], [], ["a.*"]),
    ([("starts-with", "")], [], PREFIXES),
    ([("starts-with", "a.")], [], ["a.b", "a.b.c", "a.c", "a..c", "a.", "a.>", "a.*"]),
    ([("starts-with", "neon-file:")], [], ["neon-file:x", "neon-file:"]),
    ([("starts-with", "ab")], [], ["ab"]),
    ([">"], ["a.>", "a"], [p for p in PREFIXES if p != "a" and not p.startswith("a.")]),
    ([">"], [">"], []),
    ([">"], [("exact", ""), ("starts-with", "a")], [p for p in PREFIXES if p and not p.startswith("a")]),
    (["a.*", "a.>", ("exact", "a.b"), ("starts-with", "a.b")], [], ["a.b", "a.b.c", "a.c", "a..c", "a.", "a.>", "a.*"]),
    (["a.>"], ["a.*"], ["a.b.c", "a..c"]),
    (["a", "b", "a"], ["b"], ["a"]),
]


def test_every_case(router, conn):
    """All subscriptions at once, so that one index in the router answers all of them."""
    subs = [router.subscriber(*filters, ("exact", "test.end"), exclude=exclude) for filters, exclude, _ in CASES]
    for prefix in PREFIXES:
        conn.emit(prefix, b"")
    conn.begin()
    for prefix in PREFIXES:
        conn.emit(prefix, b"")
    conn.commit()
    for prefix in PREFIXES:
        conn.emit(prefix, b"", transactional=False)
    conn.emit("test.end", b"")
    for sub, (filters, exclude, expected) in zip(subs, CASES):
        if [">"] == exclude:
            continue
        came = [m.prefix.decode() for m in sub.collect_to(b"test.end")]
        assert came == expected * 3, (filters, exclude)


def test_an_exclusion_of_everything(router, conn):
    sub = router.subscriber(">", exclude=[">"])
    end = router.subscriber()
    conn.emit("a", b"")
    assert [m.prefix for m in end.drain(conn)] == [b"a"]
    with pytest.raises(TimeoutError):
        sub.collect(1, seconds=0.3)
    assert sub.messages == []


def test_index_and_count_tell_what_was_left_out(router, conn):
    sub = router.subscriber("b", "test.>")
    conn.begin()
    for prefix in ("a", "b", "a", "a", "b", "a"):
        conn.emit(prefix, b"")
    conn.commit()
    messages = sub.drain(conn)
    assert [m.position.index for m in messages] == [2, 5]
    assert sub.commits[0].messages == 6


def test_transactions_without_a_match_are_not_shown(router, conn):
    sub = router.subscriber("wanted", "test.>")
    for _ in range(50):
        conn.begin()
        conn.emit("other", b"")
        conn.emit("other", b"")
        conn.commit()
    conn.emit("wanted", b"")
    assert [m.prefix for m in sub.drain(conn)] == [b"wanted"]
    assert len(sub.begins) == 2


def test_many_subscribers_with_filters_of_their_own(router, conn):
    subs = [router.subscriber(f"load.{n}.*", "test.>") for n in range(50)]
    conn.run("SELECT count(pg_logical_emit_message(true, format('load.%s.%s', i % 50, i), ''::bytea)) "
             "FROM generate_series(0, 4999) i")
    conn.emit("test.end", b"")
    for n, sub in enumerate(subs):
        came = [m.prefix.decode() for m in sub.collect_to(b"test.end", seconds=40)]
        assert came == [f"load.{n}.{i}" for i in range(n, 5000, 50)]


def test_filters_of_a_subscriber_that_left_are_forgotten(router, conn):
    for _ in range(30):
        with Subscriber(router.socket, ["gone.>", ("exact", "gone"), ("starts-with", "go")]):
            pass
    sub = router.subscriber("stays", "test.>")
    conn.emit("gone.a", b"")
    conn.emit("stays", b"")
    assert [m.prefix for m in sub.drain(conn)] == [b"stays"]


@pytest.mark.parametrize("filters,exclude", [
    ([], []),
    ([[0, b"x" * 4097]], []),
    ([[0, b"a"]] * 1025, []),
    ([[0, b"a"]], [[0, b"a"]] * 1025),
    ([[3, b"a"]], []),
    ([[0]], []),
    ("a", []),
], ids=["none", "too long", "too many", "too many exclusions", "unknown kind", "no text", "no list"])
def test_refused(router, conn, filters, exclude):
    with Connection(router.socket) as bad:
        bad.hello()
        body = {"filters": filters}
        if exclude:
            body["exclude"] = exclude
        bad.send(SUBSCRIBE, body)
        with pytest.raises(RouterError) as e:
            bad.expect(SUBSCRIBED, Deadline(10, "the refusal"))
        assert e.value.code in ("invalid", "protocol")
        assert e.value.text
    sub = router.subscriber()
    conn.emit("a", b"")
    assert [m.prefix for m in sub.drain(conn)] == [b"a"]


def test_the_largest_that_is_allowed(router, conn):
    long = "a" * 4096
    sub = router.subscriber(*[f"no.{n}" for n in range(1021)], ("exact", long), long, ("starts-with", "test."))
    conn.emit(long, b"")
    assert [m.prefix for m in sub.drain(conn)] == [long.encode()]
