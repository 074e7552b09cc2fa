# SPDX-License-Identifier: PostgreSQL
"""A pgbouncer in front of a Server, reachable through its own socket folder alone."""

import os
import shutil
import subprocess

import pytest

from . import places
from .waiting import wait_for


def program():
    """WALBUS_TEST_PGBOUNCER, or an installed one."""
    named = os.environ.get("WALBUS_TEST_PGBOUNCER") or shutil.which("pgbouncer", path="/usr/sbin:/usr/bin")
    if not named or not os.path.exists(named):
        pytest.skip("no pgbouncer: set WALBUS_TEST_PGBOUNCER, or run tests/run.sh, which fetches it")
    return named


class Pooler:
    """In mode `transaction`: a client has a server's session only from one transaction's begin to its end."""

    def __init__(self, server, pool_size=20, ignored=()):
        """ignored: startup parameters that are swallowed rather than refused."""
        self._program = program()
        self.folder = places.new_folder("walbus-pb-")
        user = places.unprivileged()
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._ini = os.path.join(self.folder, "ini")
        with open(self._ini, "w", encoding="utf-8") as f:
            f.write(f"[databases]\n* = host={server.sockets} port=5432 user=postgres\n"
                    f"[pgbouncer]\nunix_socket_dir = {self.folder}\nlisten_addr =\nlisten_port = 6432\n"
                    f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {pool_size}\n"
                    f"ignore_startup_parameters = {','.join(('extra_float_digits', 'options', *ignored))}\n")
        os.chmod(self._ini, 0o644)
        self._log = None
        self._process = None

    @property
    def dsn(self):
        return f"host={self.folder} port=6432 dbname=postgres user=postgres"

    def __enter__(self):
        self._log = open(os.path.join(self.folder, "log"), "wb")
        self._process = subprocess.Popen([self._program, self._ini], stdout=self._log, stderr=self._log, cwd="/",
                                         stdin=subprocess.DEVNULL, preexec_fn=places.die_with_parent(),
                                         **places.drop_privileges())
        path = os.path.join(self.folder, ".s.PGSQL.6432")
        wait_for(lambda: os.path.exists(path) or self._process.poll() is not None, 10, "pgbouncer listens")
        assert self._process.poll() is None, self.log()
        return self

    def log(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(10)
        self._log.close()
        shutil.rmtree(self.folder)
