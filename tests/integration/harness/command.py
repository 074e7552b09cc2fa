# SPDX-License-Identifier: PostgreSQL
"""The `walbus` command, run as a user runs it."""

import json
import os
import signal
import subprocess
import tempfile

from . import places
from .waiting import Deadline, wait_for


class Result:
    def __init__(self, status, out, err):
        self.status = status
        self.out = out
        self.err = err

    @property
    def text(self):
        return self.out.decode("utf-8", "replace")

    @property
    def error(self):
        return self.err.decode("utf-8", "replace")

    def json_lines(self):
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self):
        return f"<exit {self.status}, stdout {self.out!r}, stderr {self.err!r}>"


def walbus(*arguments, stdin=None, env=None, seconds=60, build=None):
    """Runs to the end; never with a status that says that a sanitizer found something."""
    done = subprocess.run([places.walbus(build), *arguments], env=places.child_environment(env), cwd="/",
                          input=stdin if stdin is not None else b"", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds, check=False)
    result = Result(done.returncode, done.stdout, done.stderr)
    places.assert_no_sanitizer_report(result.error, f"walbus {' '.join(map(str, arguments))}")
    return result


class Running:
    """A walbus that goes on, as `tail` does: outputs in files, ended by the test. Or another program, [path, …]."""

    def __init__(self, *arguments, env=None, stdout=None, program=None):
        self.arguments = arguments
        self._out = tempfile.TemporaryFile()
        self._err = tempfile.TemporaryFile()
        self.process = subprocess.Popen([*(program or [places.walbus()]), *arguments],
                                        env=places.child_environment(env), cwd="/", stdin=subprocess.DEVNULL,
                                        stdout=self._out if stdout is None else stdout, stderr=self._err,
                                        preexec_fn=places.die_with_parent())

    @staticmethod
    def _content(file):
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), size, 0)

    @property
    def out(self):
        return self._content(self._out)

    @property
    def err(self):
        return self._content(self._err)

    def wait_ready(self, seconds=20):
        """`tail` prints the line `ready` on stderr once it is subscribed; other programs where they like."""
        def ready():
            if b"ready\n" in self.err or b"ready\n" in self.out:
                return True
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err!r}"
            return False
        wait_for(ready, seconds, "walbus tail is ready")
        return self

    def wait_lines(self, n, seconds=20):
        """The first n lines of stdout."""
        try:
            wait_for(lambda: self.out.count(b"\n") >= n, seconds, f"{n} lines of walbus {self.arguments[0]}")
        except TimeoutError as e:
            raise TimeoutError(f"{e}: {self.out!r} {self.err!r}") from None
        return self.out.split(b"\n")[:n]

    def wait_exit(self, seconds=20):
        deadline = Deadline(seconds, f"walbus {' '.join(self.arguments)} ends")
        self.process.wait(deadline.left())
        places.assert_no_sanitizer_report(self.err.decode("utf-8", "replace"), f"walbus {' '.join(self.arguments)}")
        return Result(self.process.returncode, self.out, self.err)

    def stop(self, sig=signal.SIGINT, seconds=10):
        self.process.send_signal(sig)
        return self.wait_exit(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._out.close()
        self._err.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
