# SPDX-License-Identifier: PostgreSQL
"""A throw-away PostgreSQL in its own folder, reachable through its own socket folder alone.

Works with any major from 14 on, also where the folder of programs holds only initdb, pg_ctl and postgres
and these need an LD_LIBRARY_PATH of their own.
"""

import os
import shutil
import signal
import subprocess
import time

import psycopg2

from . import places
from .cluster import Cluster
from .waiting import wait_for

SUPERUSER = "postgres"

DEFAULTS = {
    "listen_addresses": "",
    "port": 5432,
    "wal_level": "logical",
    "max_wal_senders": 10,
    "max_replication_slots": 10,
    "max_prepared_transactions": 10,
    "max_connections": 40,
    "shared_buffers": "32MB",
    # A crash of the machine is not among the things tested here; WAL is written and flushed as ever.
    "fsync": "off",
    # A server that was only unpacked from its package has no libLLVM, and costly queries would fail.
    "jit": "off",
    "autovacuum": "off",
    "log_line_prefix": "%m [%p] %q%u@%d %a ",
    "log_replication_commands": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def _quote(value):
    return "'" + str(value).replace("'", "''") + "'"


class Server:
    def __init__(self, wal_segsize=None, settings=None, copy_of=None, backup_of=None):
        """Of the major that the test runs on. copy_of: another, stopped Server whose files are taken instead of a new
        cluster: both are one system to whoever asks for its identifier. backup_of: one that runs, whose files are taken
        as a backup tool takes them."""
        self.major = places.MAJORS.current
        self.bindir = places.pg_bindir(self.major)
        self.library_path = os.environ.get(f"WALBUS_TEST_PG_{self.major}_LIBS")
        self.folder = places.new_server_folder("walbus-pg-")
        self.data = os.path.join(self.folder, "data")
        self.sockets = os.path.join(self.folder, "s")
        self.log_path = os.path.join(self.folder, "log")
        self.settings = dict(DEFAULTS, unix_socket_directories=self.sockets)
        self.settings.update(settings or {})
        self._postmaster = None
        self._cluster = None
        os.mkdir(self.sockets, 0o755)
        user = places.unprivileged()
        if user is not None:
            os.chown(self.sockets, user.pw_uid, user.pw_gid)
        if copy_of is not None:
            subprocess.run(["cp", "-a", copy_of.data, self.data], check=True)  # keeps the owner
            self._write_settings()
            return
        if backup_of is not None:
            self._back_up(backup_of)
            self._write_settings()
            return

        def initdb(folder):
            self._run("initdb", "-D", folder, "-U", SUPERUSER, "--auth=trust", "--no-locale", "--encoding=UTF8",
                      "--no-sync", *([f"--wal-segsize={wal_segsize}"] if wal_segsize else []))
        self._cluster = Cluster(f"{self.major}-{wal_segsize or 16}", self.data, initdb)
        with open(os.path.join(self.data, "postgresql.conf"), "a", encoding="utf-8") as conf:
            conf.write("include 'harness.conf'\n")
        self._write_settings()

    def _back_up(self, other):
        """A copy of files that change meanwhile, which the server makes consistent when it starts. Replication slots are
        in it, as in a copy of the disk."""
        old = self.major < 15
        with other.connect() as conn:
            conn.run("SELECT pg_start_backup('copy', true, false)" if old else "SELECT pg_backup_start('copy', true)")
            copy_changing(other.data, self.data)
            label = one(conn, "SELECT labelfile FROM pg_stop_backup(false, false)" if old else
                        "SELECT labelfile FROM pg_backup_stop(false)")
        # What was written up to the end of the backup is there now.
        copy_changing(os.path.join(other.data, "pg_wal"), os.path.join(self.data, "pg_wal"))
        for name in ("postmaster.pid", "postmaster.opts"):
            if os.path.exists(os.path.join(self.data, name)):
                os.unlink(os.path.join(self.data, name))
        path = os.path.join(self.data, "backup_label")
        with open(path, "w", encoding="utf-8") as f:
            f.write(label)
        user = places.unprivileged()
        if user is not None:
            os.chown(path, user.pw_uid, user.pw_gid)

    def forget_slots(self):
        """Of a copy that was not started yet: it has no replication slots, as one that pg_basebackup makes."""
        folder = os.path.join(self.data, "pg_replslot")
        for name in os.listdir(folder):
            shutil.rmtree(os.path.join(folder, name))

    def touch(self, name):
        """An empty file in the data folder: standby.signal."""
        path = os.path.join(self.data, name)
        with open(path, "w", encoding="utf-8"):
            pass
        os.chmod(path, 0o644)

    # ---- the server's own programs

    def _environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "WALBUS_", "ASAN_", "UBSAN_"))}
        env["LC_ALL"] = "C"
        if self.library_path:
            env["LD_LIBRARY_PATH"] = self.library_path
        return env

    def _run(self, program, *arguments, check=True, seconds=120):
        done = subprocess.run([os.path.join(self.bindir, program), *arguments], env=self._environment(), cwd="/",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=seconds, check=False, **places.drop_privileges())
        if check and done.returncode != 0:
            raise RuntimeError(f"{program} {' '.join(arguments)}: exit {done.returncode}\n"
                               f"{done.stdout.decode(errors='replace')}\n{self.log()[-4000:]}")
        return done

    def _write_settings(self):
        path = os.path.join(self.data, "harness.conf")
        with open(path, "w", encoding="utf-8") as conf:
            conf.writelines(f"{name} = {_quote(value)}\n" for name, value in self.settings.items())
        os.chmod(path, 0o644)

    # ---- life

    def start(self, seconds=60):
        assert self._postmaster is None, "already started"
        with open(self.log_path, "ab") as log:
            self._postmaster = subprocess.Popen(
                [os.path.join(self.bindir, "postgres"), "-D", self.data], env=self._environment(), cwd="/",
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=places.die_with_parent(signal.SIGQUIT), **places.drop_privileges())
        wait_for(self._is_ready, seconds, "the server accepts connections")
        return self

    def _is_ready(self):
        if self._postmaster.poll() is not None:
            status, self._postmaster = self._postmaster.returncode, None
            raise RuntimeError(f"the server ended with {status} while starting\n{self.log()[-4000:]}")
        try:
            with open(os.path.join(self.data, "postmaster.pid"), encoding="utf-8") as f:
                lines = f.read().split("\n")
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self._postmaster.pid) and lines[7].strip() == "ready"

    def stop(self, mode="fast", seconds=60):
        """pg_ctl stop; returns how long it took."""
        began = time.monotonic()
        self._run("pg_ctl", "stop", "-D", self.data, "-m", mode, "-w", "-t", str(seconds), seconds=seconds + 10)
        took = time.monotonic() - began
        self._postmaster.wait(10)
        self._postmaster = None
        return took

    def restart(self, mode="fast"):
        self.stop(mode)
        return self.start()

    def promote(self):
        """Of a server that was started with standby.signal; returns when it is a primary."""
        with self.connect() as conn:
            conn.run("SELECT pg_promote()")
            wait_for(lambda: not one(conn, "SELECT pg_is_in_recovery()"), 20, "the promotion")

    def close(self):
        """Ends the server if it still runs, and removes its folder."""
        if self._postmaster is not None:
            self._postmaster.send_signal(signal.SIGQUIT)
            try:
                self._postmaster.wait(20)
            except subprocess.TimeoutExpired:
                self._postmaster.kill()
                self._postmaster.wait(20)
            self._postmaster = None
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._cluster is not None:
            self._cluster.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def is_running(self):
        return self._postmaster is not None

    @property
    def pid(self):
        return self._postmaster.pid

    def log(self):
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    # ---- settings

    def set(self, **settings):
        """Changes settings for the next start."""
        for name, value in settings.items():
            if value is None:
                self.settings.pop(name, None)
            else:
                self.settings[name] = value
        self._write_settings()

    def reload(self, **settings):
        """Changes settings and waits until new sessions see the reload."""
        self.set(**settings)
        with self.connect() as conn:
            before = one(conn, "SELECT pg_conf_load_time()")
            os.kill(self.pid, signal.SIGHUP)
        def reloaded():
            with self.connect() as conn:
                return one(conn, "SELECT pg_conf_load_time()") > before
        wait_for(reloaded, 10, "the server has read its settings again")

    # ---- connections

    def dsn(self, dbname="postgres", user=SUPERUSER):
        return f"host={self.sockets} port={self.settings['port']} dbname={dbname} user={user}"

    def connect(self, dbname="postgres", user=SUPERUSER, autocommit=True, **kw):
        conn = Connection(psycopg2.connect(self.dsn(dbname, user), connect_timeout=10, **kw))
        conn.raw.autocommit = autocommit
        return conn

    def create_database(self, name, encoding="UTF8"):
        with self.connect() as conn:
            conn.run(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")

    def create_bus(self, dbname="postgres", slot="walbus", publication="walbus"):
        """What `walbus setup` makes, by hand: publication first."""
        with self.connect(dbname) as conn:
            conn.run(f'CREATE PUBLICATION "{publication}"')
            conn.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)

    def drop_bus(self, dbname="postgres", slot="walbus", publication="walbus"):
        with self.connect(dbname) as conn:
            wait_for(lambda: not one(conn, "SELECT coalesce(bool_or(active), false) FROM pg_replication_slots "
                                           "WHERE slot_name = %s", slot), 10, f"slot {slot} is free")
            conn.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", slot)
            conn.run(f'DROP PUBLICATION IF EXISTS "{publication}"')

    # ---- what the tests look at

    @property
    def emit_function(self):
        """The function that emits bytea, for GRANT and REVOKE. From 17 on it can be asked to flush."""
        flush = ", boolean" if self.major >= 17 else ""
        return f"FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea{flush})"

    @property
    def create_slot_function(self):
        """The function that makes a slot. From 17 on it can make a failover slot."""
        failover = ", boolean" if self.major >= 17 else ""
        return f"FUNCTION pg_catalog.pg_create_logical_replication_slot(name, name, boolean, boolean{failover})"

    def wal_files(self):
        with self.connect() as conn:
            return one(conn, "SELECT count(*) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'")

    def slot(self, name="walbus"):
        """The slot's row as a dict, with LSNs as numbers; None when it is missing."""
        with self.connect() as conn:
            rows = conn.rows("SELECT slot_name, plugin, database, active, active_pid, (confirmed_flush_lsn - '0/0')::bigint, "
                             "(restart_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s", name)
        names = ("name", "plugin", "database", "active", "active_pid", "confirmed", "restart")
        return dict(zip(names, rows[0])) if rows else None

    def wal_lsn(self):
        with self.connect() as conn:
            return int(one(conn, "SELECT pg_current_wal_lsn() - '0/0'"))

    def walsenders(self):
        """The pids of walsenders that read a slot, ours first of all."""
        with self.connect() as conn:
            return [pid for pid, in conn.rows("SELECT active_pid FROM pg_replication_slots WHERE active")]


class Connection:
    """A psycopg2 connection with the few verbs that the tests are written in."""

    def __init__(self, raw):
        self.raw = raw

    def run(self, sql, *parameters):
        with self.raw.cursor() as cur:
            cur.execute(sql, parameters or None)

    def rows(self, sql, *parameters):
        with self.raw.cursor() as cur:
            cur.execute(sql, parameters or None)
            return cur.fetchall()

    def emit(self, prefix, content=b"", transactional=True):
        """pg_logical_emit_message; returns the LSN as a number."""
        if isinstance(content, str):
            content = content.encode()
        lsn = self.rows("SELECT pg_logical_emit_message(%s, %s, %s::bytea)",
                        transactional, prefix, psycopg2.Binary(content))[0][0]
        return parse_lsn(lsn)

    def begin(self):
        self.run("BEGIN")

    def commit(self):
        self.run("COMMIT")

    def rollback(self):
        self.run("ROLLBACK")

    def close(self):
        self.raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Address:
    """A place that a dsn can name, which leads to one server, to another, or nowhere."""

    def __init__(self):
        self._parent = places.new_folder("walbus-ad-")
        self.folder = os.path.join(self._parent, "s")  # which is a link, or is not there
        self.dsn = f"host={self.folder} port=5432 dbname=postgres user={SUPERUSER}"

    def lead(self, server):
        """To that server; None: nowhere. Connections that stand are not touched."""
        if os.path.lexists(self.folder):
            os.unlink(self.folder)
        if server is not None:
            os.symlink(server.sockets, self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self._parent)


def copy_changing(source, target):
    """cp -a of a folder in which files come and go; existing ones are overwritten."""
    os.makedirs(target, exist_ok=True)
    done = subprocess.run(["cp", "-a", os.path.join(source, "."), target], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=dict(os.environ, LC_ALL="C"), check=False)
    faults = [line for line in done.stderr.decode(errors="replace").splitlines()
              if not line.endswith(": No such file or directory")]
    assert not faults, faults


def one(conn, sql, *parameters):
    """The single value of a query."""
    return conn.rows(sql, *parameters)[0][0]


def parse_lsn(text):
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn):
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


# How long a router may hold up a server that is stopped.
STOP_SECONDS = 2.0
# On a machine that is not busy the server by itself takes 0.1 s.
STOP_FACTOR = 5


def stop_fast(server):
    """Stops it; the router has not held it up. Where that takes longer than we promise, the machine may be busy: then a
    copy, which nobody is connected to, is stopped as well."""
    took = server.stop("fast")
    if took >= STOP_SECONDS:
        with Server(copy_of=server) as alone:
            by_itself = alone.start().stop("fast")
        assert took < STOP_SECONDS + STOP_FACTOR * by_itself, (took, by_itself)
