# SPDX-License-Identifier: PostgreSQL
"""`walbus keygen`: what it writes, and what it leaves alone. Needs no server."""

import hashlib
import os
import socket
import stat
import subprocess

import pytest
from harness import cbor, places
from harness.command import walbus


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def keygen(path, *options):
    done = walbus("keygen", *options, str(path))
    assert done.status == 0 and done.err == b"", done
    return done.text.strip()


def thumbprint(x):
    """RFC 9679: the first 8 bytes, as docs/format.md has it."""
    return hashlib.sha256(bytes.fromhex("a301012006215820") + x).digest()[:8]


def test_the_two_files(tmp_path):
    path, public_path = tmp_path / "orders.key", tmp_path / "orders.key.pub"
    kid = keygen(path)
    assert sorted(os.listdir(tmp_path)) == ["orders.key", "orders.key.pub"]
    assert mode(path) == 0o600 and mode(public_path) == 0o644 & ~current_umask()
    private, public = cbor.loads(path.read_bytes()), cbor.loads(public_path.read_bytes())
    assert list(private) == [1, 2, -1, -2, -4] and list(public) == [1, 2, -1, -2]
    assert {k: private[k] for k in public} == public
    assert (public[1], public[-1], len(public[-2]), len(private[-4])) == (1, 6, 32, 32)
    assert public[2].hex() == kid and public[2] == thumbprint(public[-2])
    assert private[-4].hex() not in kid


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_private_key_is_closed_whatever_the_umask(tmp_path):
    for mask in (0o000, 0o077):
        path = tmp_path / f"{mask:o}"
        done = subprocess.run([places.walbus(), "keygen", path], umask=mask, check=True, capture_output=True)
        assert done.stderr == b"" and mode(path) == 0o600
        assert mode(tmp_path / f"{mask:o}.pub") == 0o644 & ~mask


def test_where_no_key_can_be_made(tmp_path):
    """The mend is named."""
    done = walbus("keygen", str(tmp_path / "no" / "a.key"))
    assert done.status == 1 and f"'install -d -o USER {tmp_path}/no'" in done.error and not os.listdir(tmp_path)
    if os.geteuid() != 0:
        os.chmod(tmp_path, 0o555)
        done = walbus("keygen", str(tmp_path / "a.key"))
        os.chmod(tmp_path, 0o755)
        assert done.status == 1 and "Permission denied" in done.error and "where this user may write" in done.error


def test_every_key_is_another(tmp_path):
    assert len({keygen(tmp_path / str(i)) for i in range(5)}) == 5


def test_kid_of_ones_own(tmp_path):
    assert keygen(tmp_path / "a", "--kid", "orders-2026 é") == "orders-2026 é".encode().hex()
    assert cbor.loads((tmp_path / "a.pub").read_bytes())[2] == "orders-2026 é".encode()
    assert keygen(tmp_path / "b", "--kid", "k" * 255) == b"k".hex() * 255
    for kid in ("", "k" * 256):
        done = walbus("keygen", "--kid", kid, str(tmp_path / "c"))
        assert (done.status, done.out) == (2, b"") and "1 to 255 bytes" in done.error, done
    assert not (tmp_path / "c").exists()


def make_file(path):
    path.write_bytes(b"mine")


def make_socket(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


@pytest.mark.parametrize("ending", ["", ".pub"])
@pytest.mark.parametrize("make, what", [
    (make_file, "a file"), (os.mkdir, "a folder"), (os.mkfifo, "a pipe"), (make_socket, "a socket"),
    (lambda path: path.symlink_to("/nowhere/at/all"), "a symbolic link to nothing"),
    (lambda path: path.symlink_to("/dev/null"), "a symbolic link"),
])
def test_nothing_is_overwritten(tmp_path, ending, make, what):
    there = tmp_path / f"k{ending}"
    make(there)
    before = os.lstat(there)
    done = walbus("keygen", str(tmp_path / "k"))
    assert (done.status, done.out) == (1, b""), done
    assert f"There is {what} at {there} already" in done.error, done
    assert os.listdir(tmp_path) == [there.name]
    after = os.lstat(there)
    assert (before.st_ino, before.st_size, before.st_mode) == (after.st_ino, after.st_size, after.st_mode)


def test_where_nothing_can_be_made(tmp_path):
    done = walbus("keygen", str(tmp_path / "none" / "k"))
    assert (done.status, done.out) == (1, b"") and "There is no folder" in done.error, done
    for name in ("", "-"):
        done = walbus("keygen", name)
        assert (done.status, done.out) == (2, b"") and "no file's name" in done.error, done
    for arguments in ((), ("a", "b")):
        done = walbus("keygen", *arguments)
        assert (done.status, done.out) == (2, b"") and "FILE" in done.error, done
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_leaves_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    # A page for the folder's names and none for a file's bytes.
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted")
    try:
        (disk / "full").write_bytes(b"x" * 4096)
        done = walbus("keygen", str(disk / "k"))
        assert (done.status, done.out) == (1, b"") and "No space left" in done.error, done
        assert os.listdir(disk) == ["full"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_stdout_that_cannot_be_written_does_not_hide_that_the_key_is_there(tmp_path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([places.walbus(), "keygen", tmp_path / "k"], stdout=full, stderr=subprocess.PIPE,
                              check=False)
    assert done.returncode == 1
    assert b"The key is made, but cannot write to standard output: No space left" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["k", "k.pub"]


def test_help(tmp_path):
    done = walbus("keygen", "--help")
    assert done.status == 0 and "Examples:" in done.text and "--kid TEXT" in done.text
