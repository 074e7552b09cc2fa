# SPDX-License-Identifier: PostgreSQL
"""`walbus trust`: the trust file, changed by hand and by the command in turns. Needs no server."""

import base64
import fcntl
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import threading

import pytest
from harness import places
from harness.command import Running, walbus
from harness.document import Block, Page
from harness.waiting import wait_for

PAGE = Page("format.md")
PUBLIC, PRIVATE = (Block(name, PAGE.fences[f"key {name}"][0]).raw for name in ("public", "private"))
KID = "866eefbd6718c884"


@pytest.fixture
def folder():
    made = places.new_folder("walbus-trust-")
    yield pathlib.Path(made)
    shutil.rmtree(made)


@pytest.fixture
def key(folder):
    path = folder / "shop.pub"
    path.write_bytes(PUBLIC)
    return str(path)


def trust(folder, *arguments, status=0, name="trust", error=""):
    done = walbus("trust", "--trust", str(folder / name), *arguments)
    assert done.status == status, done
    assert error in done.error if error else done.err == b"", done
    return done


def section(*allow, more=""):
    return (f"[{KID}]\nkey = {base64.b64encode(PUBLIC).decode()}\n"
            + "".join(f"allow = {pattern}\n" for pattern in allow) + more)


def text_of(folder, name="trust"):
    return (folder / name).read_text(encoding="utf-8")


def test_from_nothing_to_a_key_and_back(folder, key):
    assert trust(folder, "add", key, "orders.>").text == f"Added {KID}.\n"
    assert text_of(folder) == section("orders.>")
    assert trust(folder, "list").text == f"{KID}\n  allow orders.>\n"
    assert trust(folder, "add", key, "orders.>").text == f"Nothing to do: {KID} is trusted with that already.\n"
    assert trust(folder, "add", key, "payments.*", "orders.>").text == f"Changed {KID}.\n"
    assert text_of(folder) == section("orders.>", "payments.*")
    assert trust(folder, "rm", KID.upper()).text == f"Removed {KID}.\n"
    assert text_of(folder) == ""
    trust(folder, "list", error="No key is trusted.")
    assert sorted(os.listdir(folder)) == ["shop.pub", "trust"]


def test_everything_that_a_key_can_have(folder, key):
    trust(folder, "add", key, "orders.>", "--audience", "shop é", "--max-delay", "90s")
    assert trust(folder, "list").text == f'{KID}\n  allow orders.>\n  audience "shop é"\n  max-delay 90s\n'
    listed, = json.loads(trust(folder, "list", "--json").out)
    assert listed == {"kid": KID, "key": base64.b64encode(PUBLIC).decode(), "allow": ["orders.>"],
                      "audience": "shop é", "max_delay_seconds": 90}
    trust(folder, "add", key, "orders.>", "--audience", "", "--max-delay", "1.5min")
    listed, = json.loads(trust(folder, "list", "--json").out)
    assert (listed["audience"], listed["max_delay_seconds"]) == ("", 90)
    trust(folder, "rm", KID)
    assert trust(folder, "list", "--json", error="").out == b"[]\n"


def test_what_verify_and_trust_say_is_the_same(folder, key):
    signed = PAGE.contents["signed"].raw
    verify = ("verify", "--prefix", "orders.paid", "--trust", str(folder / "trust"), "-")
    trust(folder, "add", key, "payments.>")
    assert walbus(*verify, stdin=signed).text.startswith("status: not-allowed\n")
    trust(folder, "add", key, "orders.*")
    assert walbus(*verify, stdin=signed).status == 0
    trust(folder, "rm", KID)
    assert walbus(*verify, stdin=signed).text.startswith("status: unknown-key\n")


def test_comments_mode_owner_and_order_are_kept(folder, key):
    other = folder / "other"
    assert walbus("keygen", str(other)).status == 0
    path = folder / "trust"
    trust(folder, "add", f"{other}.pub", "a.>")
    text = "; who is believed\n\n# until spring\n" + text_of(folder) + "\n# the last line\n"
    path.write_text(text, encoding="utf-8")
    os.chmod(path, 0o640)
    owner = (65534, 65534) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(path, *owner)
    before = os.stat(path)
    trust(folder, "add", key, "orders.>")
    after = os.stat(path)
    assert text_of(folder).startswith(text.rstrip()) and section("orders.>") in text_of(folder)
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, *owner) and after.st_ino != before.st_ino
    trust(folder, "rm", KID)
    assert text_of(folder).startswith(text.rstrip()) and KID not in text_of(folder)


def test_a_new_file_can_be_read_whatever_the_umask(folder, key):
    """It holds public keys, and the router's user has to read what root has made."""
    for mask in (0o022, 0o077):
        path = folder / f"{mask:o}"
        done = subprocess.run([places.walbus(), "trust", "--trust", path, "add", key, ">"], umask=mask, check=False,
                              capture_output=True)
        assert done.returncode == 0, done
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o644


def test_a_symbolic_link_stays_one(folder, key):
    (folder / "real").mkdir()
    (folder / "trust").symlink_to("real/trust")
    for arguments in (("add", key, "a"), ("rm", KID)):
        done = trust(folder, *arguments, status=1, error="symbolic link to nothing")
        assert done.out == b"" and os.listdir(folder / "real") == []
    trust(folder, "list", status=1, error="no trust file")
    (folder / "real" / "trust").touch()
    trust(folder, "add", key, "a")
    assert (folder / "trust").is_symlink() and text_of(folder / "real") == section("a")
    assert os.listdir(folder / "real") == ["trust"]


def test_patterns_that_look_like_a_mistake(folder, key):
    for pattern, said in (("*", "'>' is every prefix"), ("orders.cre*", "taken literally"), ("orders.", "empty token"),
                          (">.x", "taken literally")):
        done = trust(folder, "add", key, pattern, error=f"pattern '{pattern}': ")
        assert said in done.error
        assert pattern in json.loads(trust(folder, "list", "--json").out)[0]["allow"]
    before = text_of(folder)
    for pattern, said in (("", "is empty"), ("a b", "blank"), ("a\nallow = >", "control"), ("é", "ASCII"),
                          ("#x", "comment"), ("x" * 5000, "longer")):
        done = trust(folder, "add", key, pattern, status=2, error=said)
        assert done.out == b"" and text_of(folder) == before


def test_keys_that_are_none(folder, key):
    private = folder / "shop"
    private.write_bytes(PRIVATE)
    done = trust(folder, "add", str(private), "a", status=1, error="private")
    assert f"Its public one is {key}." in done.error
    os.mkfifo(folder / "pipe")
    for path, why in ((folder / "pipe", "a pipe"), (folder, "a folder"), ("/dev/zero", "a device"),
                      (folder / "none", "No such file")):
        trust(folder, "add", str(path), "a", status=1, error=why)
    assert not (folder / "trust").exists()


def test_trust_files_that_are_none(folder, key):
    os.mkfifo(folder / "pipe")
    (folder / "a-folder").mkdir()
    (folder / "broken").write_text("# fine\n[zz]\n", encoding="utf-8")
    for name, why in (("pipe", "a pipe"), ("a-folder", "a folder"), ("broken", "line 2"), ("shop.pub", "")):
        for arguments in (("add", key, "a"), ("rm", KID), ("list",)):
            done = trust(folder, *arguments, name=name, status=1, error=why or "shop.pub")
            assert str(folder / name) in done.error
    assert text_of(folder, "broken") == "# fine\n[zz]\n" and (folder / "shop.pub").read_bytes() == PUBLIC
    assert sorted(os.listdir(folder)) == ["a-folder", "broken", "pipe", "shop.pub"]


def test_a_file_that_everybody_may_write(folder, key):
    trust(folder, "add", key, "a")
    os.chmod(folder / "trust", 0o666)
    for arguments in (("add", key, "b"), ("rm", KID), ("list",)):
        trust(folder, *arguments, status=1, error="chmod o-w")
    assert text_of(folder) == section("a")


def test_a_folder_that_is_not_there(folder, key):
    done = trust(folder, "add", key, "a", name="no/trust", status=1, error="There is no folder")
    assert f"install -d {folder}/no" in done.error
    trust(folder, "list", name="no/trust", status=1, error="There is no trust file")


def test_a_key_that_is_not_there(folder, key):
    trust(folder, "add", key, "a")
    trust(folder, "rm", "00" * 8, status=1, error="There is no key")
    assert text_of(folder) == section("a")
    done = trust(folder, "rm", "late-1", status=2, error="is no key's id")
    assert "--kid 'late-1' is 6c6174652d31." in done.error


def test_what_the_file_system_refuses(folder, key):
    """The old file stays, and nothing is left beside it."""
    trust(folder, "add", key, "a")
    if os.geteuid() != 0:
        os.chmod(folder, 0o555)
        try:
            trust(folder, "add", key, "b", status=1, error="Permission denied")
        finally:
            os.chmod(folder, 0o755)
    else:
        limited = ["prlimit", "--fsize=64", places.walbus(), "trust", "--trust", str(folder / "trust"), "add", key, "b"]
        for what in (signal.SIG_IGN, signal.SIG_DFL):  # Python itself ignores the signal
            done = subprocess.run(limited, env=places.child_environment(), capture_output=True, check=False,
                                  preexec_fn=lambda what=what: signal.signal(signal.SIGXFSZ, what))
            assert done.returncode == -signal.SIGXFSZ or done.returncode == 1 and b"File too large" in done.stderr, done
    assert text_of(folder) == section("a") and sorted(os.listdir(folder)) == ["shop.pub", "trust"]


def test_a_full_stdout(folder, key):
    trust(folder, "add", key, *[f"orders.{i}.{'x' * 200}" for i in range(200)])
    for options in ((), ("--json",)):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([places.walbus(), "trust", "--trust", folder / "trust", "list", *options],
                                  stdout=full, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1 and b"No space left on device" in done.stderr and done.stderr.count(b"\n") == 1
    with open("/dev/full", "wb") as full:
        done = subprocess.run([places.walbus(), "trust", "--trust", folder / "trust", "rm", KID], stdout=full,
                              stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1 and b"Removed, but cannot write" in done.stderr and text_of(folder) == ""


def test_two_who_write_wait_for_each_other(folder, key):
    """Each adds patterns of its own at the same time; none is lost."""
    def add(who):
        for i in range(8):
            done = walbus("trust", "--trust", str(folder / "trust"), "add", key, f"{who}.{i}")
            assert done.status == 0, done
    threads = [threading.Thread(target=add, args=(who,)) for who in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listed, = json.loads(trust(folder, "list", "--json").out)
    assert sorted(listed["allow"]) == sorted(f"{who}.{i}" for who in "abc" for i in range(8))


def test_a_writer_waits_while_another_has_it(folder, key):
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with Running("trust", "--trust", str(folder / "trust"), "add", key, "a") as running:
        locks = pathlib.Path(f"/proc/{running.process.pid}/fd")
        wait_for(lambda: any(os.readlink(fd) == str(folder) for fd in locks.iterdir()), 20, "it wants the lock")
        assert running.process.poll() is None and not (folder / "trust").exists()
        os.close(held)
        assert running.wait_exit().status == 0
    assert text_of(folder) == section("a")


@pytest.mark.parametrize("arguments, named", [
    ((), "add, rm or list"),
    (("ad",), "add, rm and list"),
    (("add",), "file of a public key"),
    (("add", "k"), "needs a pattern"),
    (("rm",), "one key's id"),
    (("rm", "00", "01"), "one key's id"),
    (("rm", "0"), "hexadecimal"),
    (("rm", "zz"), "hexadecimal"),
    (("rm", ""), "hexadecimal"),
    (("list", "x"), "no operand"),
    (("list", "--audience", "x"), "go with add"),
    (("rm", "00", "--max-delay", "1s"), "go with add"),
    (("add", "k", "a", "--max-delay", "0"), "above 0"),
    (("add", "k", "a", "--max-delay", "soon"), "above 0"),
    (("add", "k", "a", "--max-delay", "99999d"), "36500 days"),
    (("add", "k", "a", "--audience", "a\nb"), "control"),
])
def test_usage(folder, arguments, named):
    done = trust(folder, *arguments, status=2, error=named)
    assert done.out == b"" and not (folder / "trust").exists()


def test_stdin_is_no_trust_file(key):
    for name in ("", "-"):
        done = walbus("trust", "--trust", name, "add", key, "a")
        assert (done.status, done.out) == (2, b"") and "no file's name" in done.error, done


def test_the_setting_names_the_file(folder, key):
    (folder / "conf").write_text(f"[walbusd]\ntrust-file = {folder}/set\n", encoding="utf-8")
    assert walbus("trust", "--config", str(folder / "conf"), "add", key, "a").status == 0
    assert text_of(folder, "set") == section("a")
    assert "Examples:" in walbus("trust", "--help").text
