# SPDX-License-Identifier: PostgreSQL
"""A walbusd of the build under test, as a child process."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

from . import places
from .subscriber import Subscriber, SubscriberProcess, request
from .waiting import wait_for


MEMORY_EVERY = 0.005


class Memory:
    """What `Router.watched_memory` saw: bytes of anonymous memory."""

    def __init__(self):
        self.most = 0
        self.samples = 0


class Router:
    def __init__(self, dsn, slot="walbus", publication="walbus", socket=None, build=None, args=(), env=None,
                 state_dir=None):
        self.folder = places.new_folder("walbus-rt-", os.environ.get("WALBUS_TEST_DATA"))
        self.state_dir = state_dir or os.path.join(self.folder, "state")
        self.dsn = dsn
        self.slot = slot
        self.publication = publication
        self.socket = socket or os.path.join(self.folder, "walbus.sock")
        self.log_path = os.path.join(self.folder, "log")
        self.program = places.walbusd(build)
        self.args = list(args)
        self.env = env or {}
        self.process = None
        self._subscribers = []

    # ---- life

    def spawn(self):
        """Starts the program and waits for nothing."""
        assert self.process is None
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--dsn", self.dsn, "--slot", self.slot, "--publication", self.publication,
                 "--socket", self.socket, "--state-dir", self.state_dir, *self.args],
                env=places.child_environment(self.env), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=places.die_with_parent())
        return self

    def start(self, seconds=30):
        self.spawn()
        self.wait_state("streaming", seconds)
        return self

    def status(self, seconds=5):
        """The reply to a status request; None while nobody answers."""
        try:
            return request(self.socket, "status", seconds=seconds)
        except (ConnectionError, FileNotFoundError):
            return None

    def wait_state(self, state, seconds=30):
        def reached():
            if self.process.poll() is not None:
                raise RuntimeError(f"walbusd ended with {self.process.returncode}\n{self.log()[-4000:]}")
            status = self.status()
            return status if status and status["state"] == state else None
        try:
            return wait_for(reached, seconds, f"the router is {state}")
        except TimeoutError as e:
            raise TimeoutError(f"{e}\nstatus: {self.status()}\n{self.log()[-4000:]}") from None

    def wait_exit(self, seconds=30):
        """The exit status, once the program has ended by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"walbusd still runs after {seconds} s\n{self.log()[-4000:]}") from None
        status, self.process = self.process.returncode, None
        places.assert_no_sanitizer_report(self.log(), "walbusd")
        return status

    def stop(self, seconds=20):
        """SIGTERM: must end with 0 and leave no socket; returns how long it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.wait_exit(seconds)
        took = time.monotonic() - began
        assert status == 0, f"walbusd ended with {status} on SIGTERM\n{self.log()[-4000:]}"
        assert not os.path.lexists(self.socket), "the socket is left behind"
        return took

    def kill(self):
        """SIGKILL, as a crash."""
        self.process.kill()
        self.process.wait(10)
        self.process = None

    def close(self):
        """At the end of a test: stops what still runs, and looks for sanitizer reports."""
        for subscriber in self._subscribers:
            subscriber.close()
        try:
            if self.process is not None:
                self.stop()
        finally:
            if self.process is not None:
                self.kill()
            log = self.log()
            shutil.rmtree(self.folder, ignore_errors=True)
        places.assert_no_sanitizer_report(log, "walbusd")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
            return
        if self.process is not None:
            self.kill()
        print(f"---- walbusd's log\n{self.log()[-8000:]}")
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- looking at it

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def logged(self, event):
        """Of each log line of that id its fields, as text: {name: value}."""
        lines = [line for line in self.log().splitlines() if line.split(" ", 3)[2:3] == [event]]
        return [{name: value[1:-1] if value.startswith('"') else value
                 for name, value in re.findall(r' (\w+)=("(?:[^"\\]|\\.)*"|\S*)', line)} for line in lines]

    def wait_log(self, pattern, seconds=15):
        return wait_for(lambda: re.search(pattern, self.log()), seconds, f"walbusd logs {pattern!r}")

    def rss_anon(self):
        """Bytes of anonymous memory."""
        with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as f:
            return int(re.search(r"^RssAnon:\s+(\d+) kB", f.read(), re.M).group(1)) * 1024

    @contextmanager
    def watched_memory(self):
        """Looks at rss_anon all the time while the block runs: a peak between two steps of a test counts too."""
        memory = Memory()
        failures = []
        over = threading.Event()

        def look():
            try:
                while True:
                    memory.most = max(memory.most, self.rss_anon())
                    memory.samples += 1
                    if over.wait(MEMORY_EVERY):
                        return
            except Exception as e:  # raised below, in the test's own thread
                failures.append(e)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield memory
        finally:
            over.set()
            watcher.join()
        if failures:
            raise failures[0]

    # ---- subscribers

    def subscriber(self, *filters, **kw):
        """A subscriber; without filters one of everything. Closed with the router."""
        subscriber = Subscriber(self.socket, filters, **kw)
        self._subscribers.append(subscriber)
        return subscriber

    def subscriber_process(self, *filters):
        subscriber = SubscriberProcess(self.socket, filters)
        self._subscribers.append(subscriber)
        return subscriber
