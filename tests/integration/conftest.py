# SPDX-License-Identifier: PostgreSQL
import os
import resource
import signal
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness.router import Router  # noqa: E402
from harness.server import Server  # noqa: E402

# Every wait inside a test has its own deadline; this one ends a test that waits where nobody thought of one.
TEST_SECONDS = 240


@pytest.fixture
def descriptors():
    """The most descriptors that this process may have, its soft limit (often 1024) raised to the hard one.
    Programs that were started before, walbusd among them, still have the soft one and must raise it themselves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(autouse=True)
def time_limit():
    def late(_signal, _frame):
        raise TimeoutError(f"the test took over {TEST_SECONDS} s")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(TEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def server(request):
    """A server for the tests of one file. A file's own settings: SERVER = {…} of Server's arguments."""
    made = Server(**getattr(request.module, "SERVER", {}))
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def bus(server):
    """Publication and slot in the database postgres, gone afterwards."""
    server.create_bus()
    yield server
    server.drop_bus()


@pytest.fixture
def router(bus):
    """A router that streams."""
    made = Router(bus.dsn())
    try:
        made.start()
        yield made
    except BaseException:
        print(f"---- walbusd's log\n{made.log()[-8000:]}")
        raise
    finally:
        print(f"---- walbusd's log\n{made.log()[-8000:]}")
        made.close()


@pytest.fixture
def conn(server):
    """An ordinary session in the database postgres, in autocommit mode."""
    with server.connect() as made:
        yield made
