# SPDX-License-Identifier: PostgreSQL
"""What arrives and in which order: the guarantees of the README's table, one test a row.

Every subscriber here also checks, frame by frame, that positions rise strictly, that transactional messages
lie inside the BEGIN and COMMIT of their own commit LSN, and that COMMIT counts what came (harness/subscriber.py).
"""

import threading

import pytest
from harness.router import Router
from harness.server import one
from harness.subscriber import Position
from harness.waiting import wait_for

pytestmark = pytest.mark.every_major


@pytest.fixture
def sub(router):
    return router.subscriber()


def test_commit(sub, conn):
    conn.begin()
    first = conn.emit("orders.created", b"1")
    second = conn.emit("orders.paid", b"2")
    xid = one(conn, "SELECT txid_current()")
    conn.commit()
    a, b = sub.collect(2)
    assert sub.seen() == [(b"orders.created", b"1"), (b"orders.paid", b"2")]
    assert (a.lsn, b.lsn) == (first, second)
    assert a.xid == b.xid == xid
    assert a.transactional and b.transactional
    assert (a.position.index, b.position.index) == (1, 2)
    assert a.position.lsn == b.position.lsn >= second
    assert a.position.timeline == 1
    assert a.position.timeline == sub.begins[0].timeline
    assert [(c.messages, c.begin.xid) for c in sub.commits] == [(2, xid)]


def test_commit_time_is_the_servers(sub, conn):
    before = one(conn, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    conn.emit("t", b"")
    after = one(conn, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    message, = sub.collect(1)
    assert before <= message.commit_time <= after
    assert message.received_time >= message.commit_time


def test_nothing_arrives_before_commit(sub, conn, server):
    conn.begin()
    conn.emit("early", b"")
    with server.connect() as other:
        assert sub.drain(other) == []
    conn.commit()
    assert sub.seen(sub.collect(1)) == [(b"early", b"")]


def test_rollback(sub, conn):
    conn.begin()
    conn.emit("never", b"")
    conn.rollback()
    assert sub.drain(conn) == []


def test_failed_transaction(sub, conn):
    conn.begin()
    conn.emit("never", b"")
    with pytest.raises(Exception, match="division by zero"):
        conn.run("SELECT 1/0")
    conn.commit()  # the server makes it a rollback
    assert sub.drain(conn) == []


def test_lost_session(sub, conn, server):
    other = server.connect()
    other.begin()
    other.emit("never", b"")
    pid = one(other, "SELECT pg_backend_pid()")
    assert one(conn, "SELECT pg_terminate_backend(%s, 10000)", pid)
    other.close()
    assert sub.drain(conn) == []


def test_savepoint_released(sub, conn):
    conn.begin()
    conn.emit("a", b"")
    conn.run("SAVEPOINT s")
    conn.emit("b", b"")
    conn.run("SAVEPOINT t")
    conn.emit("c", b"")
    conn.run("RELEASE SAVEPOINT t")
    conn.run("RELEASE SAVEPOINT s")
    conn.emit("d", b"")
    xid = one(conn, "SELECT txid_current()")
    conn.commit()
    messages = sub.collect(4)
    assert [m.prefix for m in messages] == [b"a", b"b", b"c", b"d"]
    assert {m.xid for m in messages} == {xid}
    assert [m.position.index for m in messages] == [1, 2, 3, 4]


def test_savepoint_rolled_back(sub, conn):
    conn.begin()
    conn.emit("a", b"")
    conn.run("SAVEPOINT s")
    conn.emit("never", b"")
    conn.run("SAVEPOINT t")
    conn.emit("never", b"")
    conn.run("RELEASE SAVEPOINT t")
    conn.run("ROLLBACK TO SAVEPOINT s")
    conn.emit("b", b"")
    conn.commit()
    messages = sub.drain(conn)
    assert [m.prefix for m in messages] == [b"a", b"b"]
    assert [m.position.index for m in messages] == [1, 2]
    assert sub.commits[0].messages == 2


def test_exception_block(sub, conn):
    conn.run("""
        DO $$ BEGIN
            PERFORM pg_logical_emit_message(true, 'before', ''::bytea);
            BEGIN
                PERFORM pg_logical_emit_message(true, 'never', ''::bytea);
                RAISE EXCEPTION 'on purpose';
            EXCEPTION WHEN raise_exception THEN
                PERFORM pg_logical_emit_message(true, 'handler', ''::bytea);
            END;
            BEGIN
                PERFORM pg_logical_emit_message(true, 'inner', ''::bytea);
            EXCEPTION WHEN raise_exception THEN NULL;
            END;
            PERFORM pg_logical_emit_message(true, 'after', ''::bytea);
        END $$""")
    assert [m.prefix for m in sub.drain(conn)] == [b"before", b"handler", b"inner", b"after"]


def test_prepared_and_committed(sub, conn):
    conn.begin()
    conn.emit("prepared", b"1")
    conn.emit("prepared", b"2")
    conn.run("PREPARE TRANSACTION 'p1'")
    assert sub.drain(conn) == []
    conn.run("COMMIT PREPARED 'p1'")
    assert sub.seen(sub.drain(conn)) == [(b"prepared", b"1"), (b"prepared", b"2")]


def test_prepared_and_rolled_back(sub, conn):
    conn.begin()
    conn.emit("never", b"")
    conn.run("PREPARE TRANSACTION 'p2'")
    conn.run("ROLLBACK PREPARED 'p2'")
    assert sub.drain(conn) == []


def test_prepared_with_savepoint(sub, conn):
    conn.begin()
    conn.emit("a", b"")
    conn.run("SAVEPOINT s")
    conn.emit("never", b"")
    conn.run("ROLLBACK TO SAVEPOINT s")
    conn.emit("now", b"", transactional=False)
    conn.run("PREPARE TRANSACTION 'p3'")
    assert [m.prefix for m in sub.drain(conn)] == [b"now"]
    conn.run("COMMIT PREPARED 'p3'")
    assert [m.prefix for m in sub.drain(conn)] == [b"a"]


def test_nontransactional_inside_a_rolled_back_transaction(sub, conn):
    conn.begin()
    conn.emit("never", b"")
    lsn = conn.emit("audit.attempt", b"kept", transactional=False)
    conn.run("SAVEPOINT s")
    inner = conn.emit("audit.inner", b"kept too", transactional=False)
    conn.run("ROLLBACK TO SAVEPOINT s")
    conn.rollback()
    messages = sub.drain(conn)
    assert sub.seen(messages) == [(b"audit.attempt", b"kept"), (b"audit.inner", b"kept too")]
    assert [m.position for m in messages] == [Position(1, lsn, 0), Position(1, inner, 0)]
    assert [m.transactional for m in messages] == [False, False]


def test_nontransactional_comes_before_its_transaction(sub, conn):
    conn.begin()
    conn.emit("inside", b"1")
    conn.emit("alone", b"", transactional=False)
    conn.emit("inside", b"2")
    conn.commit()
    messages = sub.collect(3)
    assert sub.seen(messages) == [(b"alone", b""), (b"inside", b"1"), (b"inside", b"2")]
    assert messages[1].lsn < messages[0].lsn, "a message's own LSN does not rise; its position does"
    assert messages[1].position > messages[0].position


def test_interleaved_transactions_come_in_commit_order(sub, server):
    with server.connect() as a, server.connect() as b, server.connect() as c:
        for session in (a, b, c):
            session.begin()
        for i in range(3):
            for name, session in (("a", a), ("b", b), ("c", c)):
                session.emit(name, str(i))
        b.commit()
        c.commit()
        a.commit()
    messages = sub.collect(9)
    assert sub.seen(messages) == [(n, str(i).encode()) for n in (b"b", b"c", b"a") for i in range(3)]
    assert [m.position.index for m in messages] == [1, 2, 3] * 3
    assert len(sub.commits) == 3
    assert messages[6].lsn < messages[0].lsn, "a emitted before b, and commits after it"


def test_nontransactional_right_before_commit_prepared(sub, conn):
    """Both have the same LSN: the message's record ends where the commit record starts."""
    for attempt in range(20):
        conn.begin()
        conn.emit("prepared", b"")
        conn.run(f"PREPARE TRANSACTION 'eq{attempt}'")
        lsn = conn.emit("alone", b"", transactional=False)
        conn.run(f"COMMIT PREPARED 'eq{attempt}'")
        alone, prepared = sub.collect(2)
        assert (alone.prefix, prepared.prefix) == (b"alone", b"prepared")
        assert alone.position == Position(1, lsn, 0)
        assert prepared.position.index == 1
        assert prepared.position > alone.position
        if prepared.position.lsn == lsn:
            return
    pytest.fail("no attempt gave equal LSNs")


def test_several_sessions(sub, server):
    sessions, transactions, size = 6, 40, 5
    failures = []

    def work(number):
        try:
            with server.connect() as own:
                for t in range(transactions):
                    own.begin()
                    for i in range(size):
                        own.emit(f"load.s{number}", f"{t}.{i}")
                    if t % 4 == 3:
                        own.emit(f"load.n{number}", str(t), transactional=False)
                        own.rollback()
                    else:
                        own.commit()
        except Exception as e:  # shown by the assertion below
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(sessions)]
    for t in threads:
        t.start()
    committed = [t for t in range(transactions) if t % 4 != 3]
    rolled_back = [t for t in range(transactions) if t % 4 == 3]
    messages = sub.collect(sessions * (len(committed) * size + len(rolled_back)), seconds=60)
    for t in threads:
        t.join(30)
    assert failures == []
    for n in range(sessions):
        own = [m.content.decode() for m in messages if m.prefix == f"load.s{n}".encode()]
        assert own == [f"{t}.{i}" for t in committed for i in range(size)]
        alone = [m.content.decode() for m in messages if m.prefix == f"load.n{n}".encode()]
        assert alone == [str(t) for t in rolled_back]
    assert len(sub.commits) == sessions * len(committed)


def test_many_messages_in_one_transaction(sub, conn):
    count = 100_000
    conn.run("SELECT count(pg_logical_emit_message(true, 'many', int4send(i))) FROM generate_series(1, %s) i", count)
    messages = sub.collect(count, seconds=90)
    assert [int.from_bytes(m.content, "big") for m in messages] == list(range(1, count + 1))
    assert [m.position.index for m in messages] == list(range(1, count + 1))
    assert len({m.position.lsn for m in messages}) == 1
    assert [c.messages for c in sub.commits] == [count]


def test_after_spilling(bus, conn):
    """With 64 kB of memory for decoding the server writes transactions to disk, savepoints in pieces."""
    bus.reload(logical_decoding_work_mem="64kB")
    try:
        with Router(bus.dsn()) as router:
            router.start()
            sub = router.subscriber()
            conn.begin()
            for i in range(40):
                conn.run("SAVEPOINT s")
                conn.emit(f"kept.{i}" if i % 2 == 0 else f"never.{i}", bytes([i]) * 20_000)
                conn.run("RELEASE SAVEPOINT s" if i % 2 == 0 else "ROLLBACK TO SAVEPOINT s")
            conn.run("""
                DO $$ BEGIN
                    FOR i IN 1..40 LOOP
                        BEGIN
                            PERFORM pg_logical_emit_message(true, 'block.' || i, convert_to(repeat('x', 9000), 'UTF8'));
                            IF i % 2 = 0 THEN RAISE EXCEPTION 'on purpose'; END IF;
                        EXCEPTION WHEN raise_exception THEN NULL;
                        END;
                    END LOOP;
                END $$""")
            conn.commit()
            messages = sub.drain(conn)
            assert sub.seen(messages) == \
                [(f"kept.{i}".encode(), bytes([i]) * 20_000) for i in range(0, 40, 2)] + \
                [(f"block.{i}".encode(), b"x" * 9000) for i in range(1, 41, 2)]
            wait_for(lambda: one(conn, "SELECT spill_txns FROM pg_stat_replication_slots "
                                       "WHERE slot_name = 'walbus'") >= 1, 30, "the server says that it spilled")
    finally:
        bus.reload(logical_decoding_work_mem=None)


def test_messages_of_other_databases_stay_away(sub, server, conn):
    server.create_database("elsewhere")
    with server.connect("elsewhere") as other:
        other.emit("never", b"")
        other.emit("never", b"", transactional=False)
    assert sub.drain(conn) == []


def test_rows_and_messages_together(sub, conn):
    conn.run("CREATE TABLE rows_and_messages (i int)")
    conn.begin()
    conn.run("INSERT INTO rows_and_messages VALUES (1)")
    conn.emit("inserted", b"1")
    conn.run("UPDATE rows_and_messages SET i = 2")
    conn.commit()
    assert sub.seen(sub.drain(conn)) == [(b"inserted", b"1")]
    conn.run("DROP TABLE rows_and_messages")


def test_after_a_restart_of_the_router(bus, conn):
    with Router(bus.dsn()) as router:
        router.start()
        sub = router.subscriber()
        conn.emit("before", b"")
        assert sub.drain(conn)[-1].prefix == b"before"
        router.stop()
        router.start()
        sub = router.subscriber()
        conn.emit("after", b"")
        assert [m.prefix for m in sub.drain(conn)] == [b"after"]


def test_heartbeats_are_never_delivered(bus, conn):
    with Router(bus.dsn(), args=["--heartbeat-interval", "200ms"]) as router:
        router.start()
        sub = router.subscriber()
        start = bus.slot()["confirmed"]
        wait_for(lambda: bus.slot()["confirmed"] > start + 400, 15, "several heartbeats")
        assert sub.drain(conn) == []
        assert sub.begins[:-1] == []
