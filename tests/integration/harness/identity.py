# SPDX-License-Identifier: PostgreSQL
"""Who a test is for the router, which asks the socket."""

import os
import subprocess
import sys
from contextlib import contextmanager

from . import places

# Opened before: the tree may stand below a folder that others may not enter.
_AS_OTHER = r"""
import json, os, sys
uid, gid, groups = json.loads(sys.argv[1])
program = os.open(sys.argv[2], os.O_RDONLY | os.O_CLOEXEC)
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
os.execve(program, sys.argv[2:], os.environ)
"""


@contextmanager
def connecting_as(uid, gid=None, groups=()):
    """Connections that are made inside come from this user. Only root may do that."""
    before = os.getgroups(), os.getegid(), os.geteuid()
    os.setgroups(list(groups))
    os.setegid(uid if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(before[2])
        os.setegid(before[1])
        os.setgroups(before[0])


def run_as(uid, program, *arguments, gid=None, groups=(), seconds=30, **kw):
    """A finished program of this user; output as text."""
    who = f"[{uid}, {uid if gid is None else gid}, {list(groups)}]"
    return subprocess.run([sys.executable, "-c", _AS_OTHER, who, program, *arguments], env=places.child_environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=seconds,
                          check=False, encoding="utf-8", **kw)


def open_to_others(router):
    """Others can reach its socket; what they may do there is another matter."""
    os.chmod(os.path.dirname(router.socket), 0o711)
