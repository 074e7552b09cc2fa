# SPDX-License-Identifier: PostgreSQL
"""Who may do what: the rules of `allow`, the limits for each user, the socket's mode and group. Clients come as other
users."""

import os
import re
import stat
import time

import pytest
from harness import places
from harness.identity import connecting_as, open_to_others, run_as
from harness.router import Router
from harness.subscriber import SUBSCRIBE, SUBSCRIBED, Connection, RouterError, Subscriber, request
from harness.waiting import Deadline, wait_for

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")

ALICE, BOB = 4711, 4712  # users that no machine has
SHOP, OTHERS = 4801, 4802
NOBODY = 65534


class Guarded(Router):
    """A router with a settings file, which everybody can reach."""

    def __init__(self, dsn, *lines, args=()):
        super().__init__(dsn, args=["--socket-mode", "0666", *args])
        self.conf = os.path.join(self.folder, "walbus.conf")
        self.args += ["--config", self.conf]
        self.configure(*lines)
        open_to_others(self)

    def configure(self, *lines):
        with open(self.conf, "w", encoding="utf-8") as file:
            file.write("\n".join(["[walbusd]", *lines, ""]))

    def reload(self):
        return request(self.socket, "reload")

    def allow(self, *rules):
        """These and no others, from now on."""
        self.configure(*(f"allow = {rule}" for rule in rules))
        return self.reload()


@pytest.fixture
def guarded(bus):
    """A router without a rule."""
    with Guarded(bus.dsn()) as made:
        made.start()
        yield made


def connect(router, uid, **who):
    with connecting_as(uid, **who):
        return Connection(router.socket)


def subscribe(router, uid, *filters, who=None, **kw):
    with connecting_as(uid, **(who or {})):
        return router.subscriber(*filters, **kw)


def refused(router, uid, *filters, who=None, **kw):
    """The ERROR that a subscription gets."""
    with pytest.raises(RouterError) as error:
        subscribe(router, uid, *filters, who=who, **kw)
    return error.value


def asked(router, uid, what, args=None, **who):
    with connect(router, uid, **who) as conn:
        conn.hello()
        return conn.request(what, args)


def names(router, connected):
    """Of the durable subscriptions, those that have a subscriber, or have none."""
    return [s["name"] for s in router.status()["subscriptions"] if s["connected"] == connected]


def test_without_a_rule(guarded, conn):
    """Only root and the router's own user: anybody else is told so at once, and what would mend it."""
    sub = guarded.subscriber("a")
    error = refused(guarded, ALICE, "a")
    assert (error.code, error.fatal, error.id) == ("forbidden", True, None)
    assert error.text == (f"uid {ALICE} may do nothing here; ask whoever runs the router for the line "
                          f'"allow = user:{ALICE} subscribe PATTERN" in {guarded.conf}')
    assert [(line["uid"], line["code"]) for line in guarded.logged("access.refused")] == [(str(ALICE), "forbidden")]
    assert [s["uid"] for s in guarded.status()["sessions"]] == [0, 0]
    conn.emit("a", b"1")
    assert sub.seen(sub.collect(1)) == [(b"a", b"1")]


def test_subscribe(guarded, conn):
    """A filter must lie within one allowed pattern. The refusal is not the connection's end."""
    guarded.allow(f"user:{ALICE} subscribe orders.> payments.*", f"user:{BOB} subscribe >")
    with connect(guarded, ALICE) as client:
        client.hello()
        client.send(SUBSCRIBE, {"filters": [[0, b"orders.eu.*"], [0, b"payments.>"]]})
        with pytest.raises(RouterError) as error:
            client.request("status")
        assert (error.value.code, error.value.fatal) == ("forbidden", False)
        assert f'uid {ALICE} may not subscribe to "payments.>"; ask' in error.value.text
        assert f'"allow = user:{ALICE} subscribe payments.>" in {guarded.conf}' in error.value.text
        with pytest.raises(RouterError) as error:  # the request's own
            client.request("status")
        assert (error.value.code, error.value.id) == ("forbidden", 7)
    for filters in ([">"], ["orders.*", "payments"], [("exact", "payments.a.b")], [("starts-with", "orders")], ["*.*"]):
        assert refused(guarded, ALICE, *filters).code == "forbidden", filters
    assert refused(guarded, ALICE, ">", exclude=["a.>", "b"]).code == "forbidden"
    sub = subscribe(guarded, ALICE, "orders.*", ("exact", "payments.x"), ("starts-with", "orders.x"),
                    exclude=["orders.no"])
    all_of_it = subscribe(guarded, BOB)
    for prefix in ("orders.a", "payments.x", "payments.y", "orders.no", "orders.x.y", "other"):
        conn.emit(prefix, b"")
    conn.emit("orders.end", b"")
    assert [m.prefix for m in sub.collect(4)] == [b"orders.a", b"payments.x", b"orders.x.y", b"orders.end"]
    assert len(all_of_it.collect(7)) == 7


def test_groups(guarded):
    """The group of a program, and those besides, as they were when it connected."""
    guarded.allow(f"group:{SHOP} subscribe orders")
    assert refused(guarded, ALICE, "orders").fatal
    assert refused(guarded, ALICE, "orders", who={"groups": [OTHERS]}).fatal
    subscribe(guarded, ALICE, "orders", who={"gid": SHOP}).close()
    subscribe(guarded, ALICE, "orders", who={"groups": [OTHERS, SHOP]}).close()
    many = list(range(10000, 10300)) + [SHOP]
    subscribe(guarded, ALICE, "orders", who={"groups": many}).close()
    assert refused(guarded, ALICE, "orders", who={"groups": many[:-1]}).fatal


def test_names(guarded):
    """Users and groups by name; the sentence has the name that the machine knows."""
    guarded.allow("user:nobody subscribe a", "group:nogroup control status")
    assert refused(guarded, NOBODY, "b", who={"gid": OTHERS}).text.startswith(
        f'user nobody (uid {NOBODY}) may not subscribe to "b"; ask whoever runs the router for the line '
        '"allow = user:nobody subscribe b" in ')
    subscribe(guarded, NOBODY, "a").close()
    assert asked(guarded, ALICE, "status", groups=[NOBODY])["state"] == "streaming"


def test_durable_names(guarded, conn):
    """A name needs the right to it and to the filters; who may use it may also take it over and change it."""
    guarded.allow(f"user:{ALICE} subscribe a b", f"user:{ALICE} durable shop.*", f"user:{BOB} subscribe a b c",
                  f"user:{BOB} durable shop.one", "any durable x")
    error = refused(guarded, ALICE, "a", name="other")
    assert (error.code, error.fatal) == ("forbidden", False)
    assert f'uid {ALICE} may not use the durable name "other"; ask' in error.text
    assert f'"allow = user:{ALICE} durable other"' in error.text
    assert refused(guarded, ALICE, "c", name="shop.one").code == "forbidden"
    assert refused(guarded, NOBODY, "a", name="x").code == "forbidden"
    sub = subscribe(guarded, ALICE, "a", name="shop.one")
    assert refused(guarded, BOB, "a", name="shop.two").code == "forbidden"
    assert refused(guarded, BOB, "a", name="shop.one").code == "held"
    sub.close()
    wait_for(lambda: "shop.one" in names(guarded, connected=False), 10, "it is let go")
    conn.emit("a", b"1")
    conn.emit("c", b"2")
    # root has widened it: the name alone does not make it hers
    guarded.subscriber("a", "c", name="shop.one").close()
    assert refused(guarded, ALICE, "a", "c", name="shop.one").code == "forbidden"
    assert subscribe(guarded, BOB, "a", "c", name="shop.one").collect(2)


def test_control(guarded):
    """Requests one by one; to remove and to move a name needs the name as well."""
    guarded.subscriber("a", name="shop.one").close()
    guarded.subscriber("a", name="other").close()
    guarded.allow(f"user:{ALICE} control status remove seek", f"user:{ALICE} durable shop.*", f"user:{BOB} control >")
    assert asked(guarded, ALICE, "status")["state"] == "streaming"
    for what, args in (("subscriptions", None), ("reload", None), ("remove", {"name": "other"}),
                       ("seek", {"name": "other", "position": "now"}), ("remove", {"name": "not there"}),
                       ("quarantine-list", None), ("quarantine-show", {"id": 1}), ("quarantine-drop", {"id": 1}),
                       ("quarantine-release", {"id": 1})):
        with pytest.raises(RouterError) as error:
            asked(guarded, ALICE, what, args)
        assert (error.value.code, error.value.fatal, error.value.id) == ("forbidden", False, 7), what
    with pytest.raises(RouterError) as error:
        asked(guarded, BOB, "remove", {"name": "other"})
    assert '"allow = user:4712 durable other"' in error.value.text
    assert asked(guarded, BOB, "reload") == {"changed": [], "restart": []}
    for uid in (ALICE, BOB):  # whom no rule could let make it either
        with pytest.raises(RouterError) as error:
            asked(guarded, uid, "what")
        assert error.value.code == "unsupported"
    assert asked(guarded, ALICE, "seek", {"name": "shop.one", "position": "now"})["name"] == "shop.one"
    assert asked(guarded, ALICE, "remove", {"name": "shop.one"}) == {"name": "shop.one"}
    assert [s["name"] for s in guarded.status()["subscriptions"]] == ["other"]


def test_commands_of_others(guarded, conn):
    """What people see."""
    guarded.allow(f"user:{ALICE} subscribe a")
    done = run_as(ALICE, places.walbus(), "tail", "--socket", guarded.socket, "b")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert re.fullmatch(r'walbus tail: uid 4711 may not subscribe to "b"; ask whoever runs the router for the line '
                        r'"allow = user:4711 subscribe b" in \S+\.? \(forbidden\)\n', done.stderr), done
    done = run_as(ALICE, places.walbus(), "status", "--socket", guarded.socket)
    assert done.returncode == 1 and 'may not make the request "status"' in done.stderr, done
    began = time.monotonic()
    done = run_as(ALICE, places.walbus(), "status", "--socket", guarded.socket, "--wait", "60")
    assert done.returncode == 1 and 'may not make the request "status"' in done.stderr, done
    assert time.monotonic() - began < 30  # no waiting changes that
    done = run_as(BOB, places.walbus(), "subscriptions", "rm", "x", "--socket", guarded.socket)
    assert done.returncode == 1 and "uid 4712 may do nothing here" in done.stderr, done
    for _ in range(20):  # whoever is told before a word was said must read it all the same
        done = run_as(BOB, places.walbus(), "tail", "--socket", guarded.socket, "b")
        assert done.returncode == 1 and "uid 4712 may do nothing here; ask" in done.stderr, done
    follow = "tail", "--socket", guarded.socket, "--from", "oldest", "--no-follow", "a"  # which asks for the status
    assert run_as(ALICE, places.walbus(), *follow).returncode == 1
    guarded.allow(f"user:{ALICE} subscribe a", "any control status")
    done = run_as(ALICE, places.walbus(), *follow)
    assert (done.returncode, done.stdout) == (0, ""), done


def test_the_log_of_refusals_is_bounded(guarded):
    """Whoever asks in a loop does not fill the disk: five lines, and how many were left out; others' are still there."""
    guarded.allow(f"user:{ALICE} subscribe a", f"user:{BOB} subscribe a")
    lines = len(guarded.log().splitlines())
    for _ in range(100):
        refused(guarded, ALICE, "b")
    with connect(guarded, NOBODY) as client:
        assert client.closed_by_router() == "forbidden"
    assert len(guarded.log().splitlines()) - lines < 10
    assert guarded.status()["refused"] == 101
    by_user = [line["uid"] for line in guarded.logged("access.refused")]
    assert 5 <= by_user.count(str(ALICE)) <= 7 and by_user.count(str(NOBODY)) == 1
    told = wait_for(lambda: guarded.logged("access.refused-more"), 30, "the number of those left out is logged")
    assert told[0]["uid"] == str(ALICE) and int(told[0]["suppressed"]) >= 90


# ---- limits

def test_connections_of_one_user(bus):
    with Guarded(bus.dsn(), "allow = any subscribe a", "connections-per-uid = 3") as router:
        router.start()
        clients = [subscribe(router, ALICE, "a") for _ in range(3)]
        error = refused(router, ALICE, "a")
        assert (error.code, error.fatal) == ("limit", True)
        assert error.text == f"uid {ALICE} has 3 connections, the most of one user (connections-per-uid)"
        subscribe(router, BOB, "a")
        roots = [router.subscriber("a") for _ in range(5)]
        clients.pop().close()
        wait_for(lambda: len(router.status()["sessions"]) == 2 + 1 + len(roots) + 1, 10, "one is gone")
        subscribe(router, ALICE, "a")
        assert refused(router, ALICE, "a").code == "limit"
        assert [line["code"] for line in router.logged("access.refused")] == ["limit"] * 2


def test_subscriptions_of_one_user(bus):
    """A name counts for who has made it, also while nobody is connected, and after a restart."""
    rules = ["allow = any subscribe >", "allow = any durable >", "subscriptions-per-uid = 3"]
    with Guarded(bus.dsn(), *rules) as router:
        router.start()
        subscribe(router, ALICE, "a", name="one").close()
        two = subscribe(router, ALICE, "a", name="two")
        live = subscribe(router, ALICE, "a")
        for kw in ({}, {"name": "three"}):
            error = refused(router, ALICE, "a", **kw)
            assert (error.code, error.fatal) == ("limit", False)
            assert error.text == f"uid {ALICE} has 3 subscriptions, the most of one user (subscriptions-per-uid)"
        wait_for(lambda: "one" in names(router, connected=False), 10, "it is let go")
        subscribe(router, ALICE, "a", name="one").close()  # it has that
        router.subscriber("a", name="of-root").close()
        live.close()
        wait_for(lambda: sum(s["uid"] == ALICE for s in router.status()["sessions"]) == 1, 10, "it is gone")
        wait_for(lambda: "of-root" not in names(router, connected=True), 10, "it is let go")
        other = subscribe(router, ALICE, "a", name="of-root")
        assert refused(router, ALICE, "a").code == "limit"
        makers = {s["name"]: s["made_by_uid"] for s in router.status()["subscriptions"]}
        assert makers == {"one": ALICE, "two": ALICE, "of-root": 0}
        for sub in (two, other):
            sub.close()
        router.stop()
        router.start()
        subscribe(router, ALICE, "a")
        assert refused(router, ALICE, "a").code == "limit"
        subscribe(router, BOB, "a")
        request(router.socket, "remove", {"name": "two"})
        subscribe(router, ALICE, "a")


def test_bytes_of_one_user(bus, conn):
    """Filters that one user's clients make the router keep; others and root have room all the same."""
    filters = [[0, b"a." + b"%d" % i + b".x" * 6] for i in range(900)]  # some 1.3 MB in all as it counts
    with Guarded(bus.dsn(), "allow = any subscribe >", "bytes-per-uid = 2MB") as router:
        router.start()

        def take(uid):
            client = connect(router, uid)
            client.hello()
            client.send(SUBSCRIBE, {"filters": filters})
            return client

        def answer(client):
            try:
                client.expect(SUBSCRIBED, Deadline(20, "an answer"))
            except RouterError as e:
                return e.code, e.text
            return None
        first = take(ALICE)
        assert answer(first) is None
        second = take(ALICE)
        assert answer(second) == ("limit", "the subscriptions of this user's clients (bytes-per-uid) have too many "
                                           "filters")
        for uid in (BOB, 0):
            third = take(uid)
            assert answer(third) is None
            third.close()
        first.close()
        second.close()
        wait_for(lambda: not any(s["uid"] == ALICE for s in router.status()["sessions"]), 10, "they are gone")
        again = take(ALICE)
        assert answer(again) is None
        again.close()


# ---- the rules read again

def test_rules_are_taken_away_and_given(guarded, conn):
    guarded.allow(f"user:{ALICE} subscribe a b", f"user:{BOB} subscribe >", f"user:{BOB} durable keep")
    narrow, wide = subscribe(guarded, ALICE, "a"), subscribe(guarded, ALICE, "a", "b")
    idle = connect(guarded, ALICE)
    idle.hello()
    durable = subscribe(guarded, BOB, name="keep")
    rules = f"user:{ALICE} subscribe a", f"user:{BOB} subscribe >"
    assert guarded.allow(*rules) == {"changed": ["allow"], "restart": []}
    assert wide.refused().code == "forbidden"
    error = durable.refused()
    assert (error.code, error.fatal) == ("forbidden", True)
    assert 'may not use the durable name "keep"' in error.text
    conn.emit("a", b"1")
    conn.emit("b", b"2")
    assert narrow.seen(narrow.collect(1)) == [(b"a", b"1")]
    assert [s["name"] for s in guarded.status()["subscriptions"]] == ["keep"]
    assert len(guarded.logged("access.refused")) == 2
    guarded.allow(f"user:{BOB} subscribe >", f"user:{BOB} durable keep")
    assert idle.closed_by_router() == "forbidden"
    assert narrow.refused().code == "forbidden"
    # nothing of what it had is lost
    assert [m.prefix for m in subscribe(guarded, BOB, name="keep").collect(2)] == [b"a", b"b"]


def test_unknown_users_are_refused(bus, guarded):
    """At the start, and while it runs: then the rules before stay."""
    rule = "user:no-such-user subscribe a"
    with Guarded(bus.dsn(), f"allow = {rule}") as router:
        router.spawn()
        assert router.wait_exit() == 2
        assert f'allow = {rule}: there is no user \\"no-such-user\\"' in router.log()
    guarded.allow(f"user:{ALICE} subscribe a")
    with pytest.raises(RouterError) as error:
        guarded.allow(f"user:{ALICE} subscribe b", rule)
    assert (error.value.code, error.value.fatal) == ("invalid", False)
    assert error.value.text.startswith("nothing has changed: /")
    assert error.value.text.endswith(f'/walbus.conf:3: allow = {rule}: there is no user "no-such-user"')
    subscribe(guarded, ALICE, "a").close()
    assert refused(guarded, ALICE, "b").code == "forbidden"


# ---- the socket

def test_socket_mode_and_group(bus):
    socket = ["--socket-mode", "0660", "--socket-group", "nogroup"]
    with Guarded(bus.dsn(), "allow = any subscribe >", args=socket) as router:
        router.start()
        status = os.stat(router.socket)
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, NOBODY)
        with pytest.raises(PermissionError):
            connect(router, ALICE)
        subscribe(router, ALICE, "a", who={"groups": [NOBODY]})
        subscribe(router, ALICE, "a", who={"gid": NOBODY})
        Subscriber(router.socket, ["a"]).close()
