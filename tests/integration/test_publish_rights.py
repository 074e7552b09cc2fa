# SPDX-License-Identifier: PostgreSQL
"""`walbus setup --restrict`: who may publish in a database, and what becomes of the others and of the router."""

import os
import re
import subprocess

import psycopg2
import pytest
from harness import places
from harness.command import walbus
from harness.router import Router
from harness.server import Server, one
from harness.waiting import wait_for

# The function has another signature from 17 on.
pytestmark = pytest.mark.every_major

ODD = """Od"d 'r\\`ol$e"""
# The longest name that there is; a longer one is cut by the server.
LONG = "l" * 63
ROLES = ("bus", "shop", "other", ODD, LONG)

RIGHTS = ("SELECT f.oid, coalesce(r.rolname, 'PUBLIC') FROM pg_proc f, "
          "aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) g LEFT JOIN pg_roles r ON r.oid = g.grantee "
          "WHERE f.proname = 'pg_logical_emit_message' AND g.privilege_type = 'EXECUTE' AND NOT g.is_grantable")

with open(os.path.join(places.ROOT, "docs", "operations.md"), encoding="utf-8") as _page:
    # What is written there for those who do it by hand, and to undo it.
    BY_HAND, UNDO = re.findall(r"^```sql\n(DO .*?)^```", _page.read(), re.M | re.S)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture(scope="module")
def server(major):
    """One that has the roles, and in which a right that a test leaves behind is nobody else's."""
    with Server() as made:
        made.start()
        with made.connect() as conn:
            for role in ROLES:
                conn.run(f"CREATE ROLE {quoted(role)} LOGIN")
            conn.run("ALTER ROLE bus REPLICATION")
        yield made


@pytest.fixture(autouse=True)
def as_at_first(server):
    yield
    with server.connect() as conn:
        conn.run(UNDO)
        assert who(server) == {"PUBLIC", "postgres"}
    server.drop_bus()


def who(server, dbname="postgres"):
    """Who has the right on each variant, by name; all variants are alike."""
    with server.connect(dbname) as conn:
        rows = conn.rows(RIGHTS)
    functions = {oid for oid, _ in rows}
    assert len(functions) == 2, rows
    of_each = [{name for oid, name in rows if oid == function} for function in functions]
    assert of_each[0] == of_each[1], rows
    return of_each[0]


def run_setup(server, *arguments, user="postgres"):
    return walbus("setup", "--dsn", server.dsn(user=user), *arguments)


def publish(server, user):
    return walbus("publish", "--dsn", server.dsn(user=user), "orders.created", "17")


def test_only_who_is_named_publishes(server):
    done = run_setup(server, "--restrict", "--grant", "bus", "--grant", "shop")
    assert done.status == 0, done
    assert done.text.splitlines() == [
        'publishing: revoked from PUBLIC', 'publishing: granted to "bus"', 'publishing: granted to "shop"',
        'publishing: "postgres" has the right too',
        'publication "walbus" created', 'slot "walbus" created'], done
    assert who(server) == {"postgres", "bus", "shop"}
    with Router(server.dsn(user="bus"), args=["--heartbeat-interval", "1s"]) as router:
        router.start()
        sub = router.subscriber()
        assert publish(server, "shop").status == 0
        done = publish(server, "other")
        assert done.status == 1 and done.out == b"", done
        says, mend = done.error.splitlines()
        assert "permission denied for function pg_logical_emit_message" in says, done
        assert mend == f'  mend: GRANT EXECUTE ON {server.emit_function} TO "other";', done
        # Nor the other variant, which takes text.
        with server.connect(user="other") as other, pytest.raises(psycopg2.errors.InsufficientPrivilege):
            other.run("SELECT pg_logical_emit_message(true, 'orders.created', 'text'::text)")
        with server.connect(user="shop") as shop:
            assert [m.prefix for m in sub.drain(shop)] == [b"orders.created"]
        # The heartbeat, which is the router's own message, moves the slot while nobody publishes.
        before = server.slot()["confirmed"]
        wait_for(lambda: server.slot()["confirmed"] > before, 20, "a heartbeat moves the slot")
        # What the mend says helps.
        with server.connect() as conn:
            conn.run(mend.split("mend: ", 1)[1])
        assert publish(server, "other").status == 0
        assert router.status()["state"] == "streaming"
        assert "heartbeat.failed" not in router.log()


def test_one_variant_is_enough(server):
    """Who was given one of them, as the mend above does, can publish: is named, and is granted the rest when asked for."""
    with server.connect() as conn:
        conn.run("GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text"
                 f"{', boolean' if server.major >= 17 else ''}) TO other")
    done = run_setup(server, "--restrict", "--grant", "bus")
    assert done.status == 0, done
    assert 'publishing: "other" has the right too, to some of the variants' in done.text.splitlines(), done
    with server.connect(user="other") as other:
        other.run("SELECT pg_logical_emit_message(true, 'orders.created', 'text'::text)")
    done = run_setup(server, "--restrict", "--grant", "bus", "--grant", "other")
    assert 'publishing: granted to "other"' in done.text.splitlines(), done
    assert who(server) == {"postgres", "bus", "other"}


def test_the_router_that_runs_keeps_the_right(server):
    """Its role need not be named, and it notices nothing."""
    server.create_bus()
    with Router(server.dsn(user="bus"), args=["--heartbeat-interval", "1s"]) as router:
        router.start()
        done = run_setup(server, "--restrict")
        assert done.status == 0, done
        assert 'publishing: granted to "bus"' in done.text, done
        assert who(server) == {"postgres", "bus"}
        before = server.slot()["confirmed"]
        wait_for(lambda: server.slot()["confirmed"] > before, 20, "a heartbeat moves the slot")
        assert "heartbeat.failed" not in router.log()
        router.stop()
        router.start()


def test_it_is_safe_to_repeat(server):
    assert run_setup(server, "--restrict", "--grant", "bus", "--grant", ODD, "--grant", LONG).status == 0
    assert who(server) == {"postgres", "bus", ODD, LONG}
    done = run_setup(server, "--restrict", "--grant", "bus", "--grant", "shop", "--grant", "shop")
    assert done.status == 0, done
    assert done.text.splitlines()[:3] == ["publishing: PUBLIC has no right to it",
                                          'publishing: "bus" has the right already', 'publishing: granted to "shop"']
    visible = ODD.replace("\\", "\\\\")
    assert f'publishing: "{visible}" has the right too' in done.text, done
    assert 'slot "walbus" is there already' in done.text, done
    assert who(server) == {"postgres", "bus", "shop", ODD, LONG}
    # And without it nothing is taken back.
    assert run_setup(server).status == 0
    assert who(server) == {"postgres", "bus", "shop", ODD, LONG}


def test_what_others_revoked_by_hand_is_completed(server, conn):
    conn.run(f"REVOKE EXECUTE ON {server.emit_function} FROM PUBLIC")
    done = run_setup(server, "--restrict", "--grant", "bus")
    assert done.status == 0 and "publishing: revoked from PUBLIC" in done.text, done
    assert who(server) == {"postgres", "bus"}


@pytest.mark.parametrize("missing", ["nobody_here", "NobodyHere", LONG + "x", 'a", "shop', "shop, other", "none"])
def test_a_role_that_is_not_there(server, missing):
    """Nothing at all is changed then, also for the roles that are there."""
    done = run_setup(server, "--restrict", "--grant", "bus", "--grant", missing)
    assert done.status == 1 and done.out == b"", done
    assert done.error.splitlines() == [
        f'walbus setup: There is no role "{missing}".',
        f'  mend: correct its name; or: CREATE ROLE {quoted(missing)} LOGIN;'], done
    assert who(server) == {"PUBLIC", "postgres"}
    assert server.slot() is None


def test_nobody_is_named(server):
    done = run_setup(server, "--restrict")
    assert done.status == 1 and done.out == b"", done
    assert "the router's role is not known" in done.error and "--grant" in done.error, done
    assert who(server) == {"PUBLIC", "postgres"}
    assert server.slot() is None


@pytest.mark.once
def test_wrong_use(server):
    for arguments, words in ((["--grant", "bus"], "--restrict is missing"),
                             (["--restrict", "--grant", "public"], "PUBLIC is who"),
                             (["--restrict", "--grant", ""], "empty"),
                             (["--restrict", *(f"--grant=r{i}" for i in range(65))], "64 roles at most")):
        done = run_setup(server, *arguments)
        assert done.status == 2 and words in done.error, done
    assert who(server) == {"PUBLIC", "postgres"}


def test_only_a_superuser_may(server, conn):
    conn.run("GRANT CREATE ON DATABASE postgres TO bus")
    try:
        done = run_setup(server, "--restrict", user="bus")
        assert done.status == 1 and done.out == b"", done
        says, mend = done.error.splitlines()
        assert says.startswith('walbus setup: The role "bus" may not say who executes pg_logical_emit_message'), done
        assert "user=postgres" in mend and mend.endswith(" --restrict --grant bus"), done
        assert who(server) == {"PUBLIC", "postgres"}
        assert server.slot() is None
    finally:
        conn.run("REVOKE CREATE ON DATABASE postgres FROM bus")


def test_a_right_that_somebody_else_gave(server, conn):
    """It cannot be taken away by the owner's REVOKE: then all stays as it is, and who gave it is told."""
    function = server.emit_function
    conn.run(f"GRANT EXECUTE ON {function} TO shop WITH GRANT OPTION")
    with server.connect(user="shop") as shop:
        shop.run(f"GRANT EXECUTE ON {function} TO PUBLIC")
    try:
        done = run_setup(server, "--restrict", "--grant", "bus")
        assert done.status == 1 and "PUBLIC would still have the right" in done.error, done
        assert "bus" not in {name for _, name in conn.rows(RIGHTS)}
    finally:
        conn.run(f"REVOKE ALL ON {function} FROM shop CASCADE")


def test_names_of_others_are_not_found(server, conn):
    """A superuser's statements must not run what somebody has put into a schema that is looked at first."""
    conn.run("CREATE SCHEMA trap")
    conn.run("CREATE DOMAIN trap.text AS pg_catalog.text")
    conn.run("CREATE FUNCTION trap.aclexplode(aclitem[]) RETURNS int LANGUAGE plpgsql "
             "AS $$BEGIN RAISE 'trapped'; END$$")
    conn.run("CREATE FUNCTION trap.pg_logical_emit_message(boolean, text, bytea) RETURNS pg_lsn LANGUAGE sql "
             "AS 'SELECT NULL::pg_lsn'")
    conn.run("ALTER DATABASE postgres SET search_path = trap, pg_catalog")
    conn.run("ALTER DATABASE postgres SET default_transaction_read_only = on")
    conn.run("ALTER DATABASE postgres SET default_transaction_isolation = serializable")
    try:
        done = walbus("setup", "--dsn", server.dsn(), "--restrict", "--grant", "bus")
        # The publication cannot be made read-only, which is after it.
        assert "publishing: revoked from PUBLIC" in done.text, done
    finally:
        for setting in ("search_path", "default_transaction_read_only", "default_transaction_isolation"):
            conn.run("SET default_transaction_read_only = off")
            conn.run(f"ALTER DATABASE postgres RESET {setting}")
        conn.run("DROP SCHEMA trap CASCADE")
    assert who(server) == {"postgres", "bus"}


def test_another_database_is_another_matter(server):
    """Functions are of one database, as slots are."""
    server.create_database("elsewhere")
    try:
        assert run_setup(server, "--restrict", "--grant", "bus").status == 0
        assert who(server, "elsewhere") == {"PUBLIC", "postgres"}
    finally:
        with server.connect() as conn:
            conn.run("DROP DATABASE elsewhere")


def test_teardown_leaves_the_rights(server):
    assert run_setup(server, "--restrict", "--grant", "bus").status == 0
    assert walbus("teardown", "--dsn", server.dsn()).status == 0
    assert who(server) == {"postgres", "bus"}


def test_by_hand(server, conn):
    with pytest.raises(psycopg2.errors.UndefinedObject):
        conn.run(BY_HAND)
    assert who(server) == {"PUBLIC", "postgres"}
    conn.run(BY_HAND.replace("walbus, shop_application", "bus, shop"))
    assert who(server) == {"postgres", "bus", "shop"}


@pytest.mark.every_major(until=15)
def test_a_dump_keeps_the_rights(server):
    """pg_dump of 15 reads no newer server."""
    def dump():
        return subprocess.run([places.tool("pg_dump"), "--schema-only", server.dsn()], capture_output=True, text=True,
                              check=True).stdout
    assert "pg_logical_emit_message" not in dump()
    assert run_setup(server, "--restrict", "--grant", "bus", "--grant", ODD).status == 0
    server.create_database("restored")
    try:
        done = subprocess.run([places.tool("psql"), "-q", "-v", "ON_ERROR_STOP=1", server.dsn("restored")],
                              input=dump(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        assert who(server, "restored") == {"postgres", "bus", ODD}
        with server.connect() as conn:
            conn.run(UNDO)
        assert "pg_logical_emit_message" not in dump(), "nothing is left that an upgrade could stumble over"
    finally:
        with server.connect() as conn:
            conn.run("DROP DATABASE restored")


@pytest.mark.every_major(since=17)
def test_a_dump_of_an_older_server_cannot_be_restored(conn):
    """It names a function that is not there any more."""
    with pytest.raises(psycopg2.errors.UndefinedFunction):
        conn.run("REVOKE ALL ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC")
