# SPDX-License-Identifier: PostgreSQL
"""Where the programs are, and as whom the server may run."""

import ctypes
import functools
import os
import pwd
import shutil
import signal
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def build_dir():
    """The build whose programs are tested: WALBUS_TEST_BUILD, else the tree's own build folders."""
    named = os.environ.get("WALBUS_TEST_BUILD")
    if named:
        return os.path.abspath(named)
    for name in ("build-asan", "build"):
        if os.path.exists(os.path.join(ROOT, name, "daemon", "walbusd")):
            return os.path.join(ROOT, name)
    raise RuntimeError("no build found: set WALBUS_TEST_BUILD, or run tests/run.sh")


def walbusd(build=None):
    return os.path.join(build or build_dir(), "daemon", "walbusd")


def walbus(build=None):
    return os.path.join(build or build_dir(), "cli", "walbus")


@functools.lru_cache(maxsize=None)
def is_sanitized(program):
    """Whether a program was built with AddressSanitizer: its memory figures then say nothing."""
    with open(program, "rb") as f:
        return b"__asan_init" in f.read()


def plain_build():
    """A build without sanitizers, for memory figures, or None."""
    for build in (os.environ.get("WALBUS_TEST_PLAIN_BUILD"), os.environ.get("WALBUS_TEST_BUILD"),
                  os.path.join(ROOT, "build-plain"), os.path.join(ROOT, "build")):
        if build and os.path.exists(walbusd(build)) and not is_sanitized(walbusd(build)):
            return os.path.abspath(build)
    return None


def thread_build():
    """A build with ThreadSanitizer of what test_subscribe_api.py runs, or None."""
    build = os.environ.get("WALBUS_TEST_THREAD_BUILD")
    return os.path.abspath(build) if build else None


class Majors:
    """The PostgreSQL majors that this run has, and the one that the test of this moment runs on (conftest.py)."""

    def __init__(self):
        self.all = [int(major) for major in os.environ.get("WALBUS_TEST_MAJORS", "15").split()]
        # Where tests run that no major can change.
        self.home = 15 if 15 in self.all else self.all[0]
        self.current = self.home


MAJORS = Majors()


def pg_bindir(major=None):
    """The server's programs: WALBUS_TEST_PG_<major>, else Debian's place."""
    major = major or MAJORS.current
    bindir = os.environ.get(f"WALBUS_TEST_PG_{major}") or f"/usr/lib/postgresql/{major}/bin"
    if not os.path.exists(os.path.join(bindir, "initdb")):
        raise RuntimeError(f"no PostgreSQL {major} in {bindir}: set WALBUS_TEST_PG_{major} to a folder with initdb")
    return bindir


def tool(name):
    """A client program of PostgreSQL (pgbench), None when there is none. Always that of 15: it knows servers of all
    majors, and those from npm come without."""
    for folder in (os.environ.get("WALBUS_TEST_PG_15"), "/usr/lib/postgresql/15/bin"):
        if folder and os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    return shutil.which(name)


@functools.lru_cache(maxsize=None)
def unprivileged():
    """As root: the user that the server runs as, since initdb refuses root. None otherwise."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("neither postgres nor nobody is a user of this machine")


def drop_privileges():
    """Arguments of Popen that make a child run as that user."""
    user = unprivileged()
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def die_with_parent(sig=signal.SIGKILL):
    """For preexec_fn: the child gets `sig` when the thread that started it ends, and acts on signals as ever, also
    where the tests run in the background, or under nohup, and ignore them."""
    def run():
        for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_DFL)
        _libc.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    return run


def new_folder(prefix="walbus-", base=None):
    """A folder whose path leaves room for socket names (107 bytes in all)."""
    base = base or tempfile.gettempdir()
    if len(base) > 40:
        base = "/tmp"
    folder = tempfile.mkdtemp(prefix=prefix, dir=base)
    os.chmod(folder, 0o755)
    return folder


def new_server_folder(prefix):
    """A folder of the server's user, in WALBUS_TEST_DATA, else where all others are."""
    folder = new_folder(prefix, os.environ.get("WALBUS_TEST_DATA"))
    user = unprivileged()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def child_environment(extra=None):
    """The environment of a walbus program: nothing of the caller's PG… or WALBUS_… variables goes in."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("PG", "WALBUS_")) and k not in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY")}
    env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
    env["LC_ALL"] = "C.UTF-8"
    env.update(extra or {})
    return {k: v for k, v in env.items() if v is not None}


def assert_no_sanitizer_report(text, where):
    for mark in ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "WARNING: ThreadSanitizer"):
        assert mark not in text, f"{where} reports {mark}\n{text[-6000:]}"
