# SPDX-License-Identifier: PostgreSQL
"""Data folders as initdb makes them: within a run of pytest, copies of a few that it has made, the templates.

initdb takes over a second of a processor, and a run needs some 300 clusters: that was a third of all its work. What
initdb draws at random is the system identifier, by which one server is told from another: of one template there is
never more than one copy in use at a time by a process, and so servers of one test still differ in it.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess

from . import places

_in_use = set()


@contextlib.contextmanager
def templates():
    """Within this, also in other processes that are started meanwhile, clusters are copies."""
    folder = places.new_server_folder("walbus-tp-")
    os.environ["WALBUS_TEST_TEMPLATES"] = folder
    try:
        yield
    finally:
        del os.environ["WALBUS_TEST_TEMPLATES"]
        shutil.rmtree(folder, ignore_errors=True)


class Cluster:
    """A new data folder at `data`. `initdb` makes one at the path that it is given, always the same for a `kind`."""

    def __init__(self, kind, data, initdb):
        folder = os.environ.get("WALBUS_TEST_TEMPLATES")
        self._template = None
        if folder is None:
            initdb(data)
            return
        number = 0
        while (kind, number) in _in_use:
            number += 1
        template = os.path.join(folder, f"{kind}-{number}")
        with open(f"{template}.lock", "w", encoding="ascii") as lock:  # processes share templates, and one makes it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(template):
                shutil.rmtree(f"{template}.new", ignore_errors=True)
                initdb(f"{template}.new")
                os.rename(f"{template}.new", template)
        subprocess.run(["cp", "-a", template, data], check=True)  # keeps the owner
        self._template = (kind, number)
        _in_use.add(self._template)

    def close(self):
        """It is no longer in use, and no copy of it either."""
        _in_use.discard(self._template)
