# SPDX-License-Identifier: PostgreSQL
import contextlib
import faulthandler
import os
import resource
import signal
import sys
import threading

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import cluster, places  # noqa: E402
from harness.router import Router  # noqa: E402
from harness.server import Server  # noqa: E402

# Every wait inside a test has its own deadline; this one ends a test that waits where nobody thought of one.
TEST_SECONDS = 240

# Files of which one major takes longest, half a minute to three: they are begun first, so that at the end no worker is
# left alone with one.
LONG_FILES = ("test_slow", "test_commands", "test_schedules", "test_large", "test_hostile", "test_state", "test_quiet",
              "test_silence", "test_shutdown", "test_retention", "test_protocol", "test_preconditions", "test_faults",
              "test_policy", "test_documents", "test_timeline", "test_timeouts", "test_subscribe_example",
              "test_quickstart", "test_cost")


def pytest_configure(config):
    config.addinivalue_line("markers", "every_major(since=…, until=…): runs on each of WALBUS_TEST_MAJORS in that "
                                       "range, a test without it once. A test's own mark goes before its file's.")
    config.addinivalue_line("markers", "once: in a file with that mark, a test which no major can change.")
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist have it from the process that starts them
        shared = contextlib.ExitStack()
        config.add_cleanup(shared.close)
        shared.enter_context(cluster.templates())


def every_major(item):
    """The mark, None: it runs once."""
    return None if item.get_closest_marker("once") else item.get_closest_marker("every_major")


def pytest_generate_tests(metafunc):
    if len(places.MAJORS.all) > 1 and every_major(metafunc.definition):
        metafunc.parametrize("major", places.MAJORS.all, indirect=True, scope="module")


def pytest_collection_modifyitems(config, items):
    """Leaves out what a major does not have, and makes the tests of one file on one major the unit that
    `--dist loadgroup` gives to a worker: they share a server."""
    kept, left_out = [], []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        major = parameters.get("major", places.MAJORS.home)
        mark = every_major(item)
        limits = mark.kwargs if mark else {}
        if not limits.get("since", 0) <= major <= limits.get("until", major):
            left_out.append(item)
            continue
        kept.append(item)
        item.user_properties.append(("major", major))
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(f"{item.module.__name__}-{major}"))
    order = {name: i for i, name in enumerate(LONG_FILES)}
    items[:] = sorted(kept, key=lambda item: order.get(item.module.__name__, len(order)))
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="module", autouse=True)
def major(request):
    """The PostgreSQL major that the test runs on, and every Server that it makes is of."""
    places.MAJORS.current = getattr(request, "param", places.MAJORS.home)
    return places.MAJORS.current


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
    if threading.current_thread() is not threading.main_thread():  # where pytest-xdist at times runs tests, and no signal comes
        faulthandler.dump_traceback_later(TEST_SECONDS, exit=True)
        yield
        faulthandler.cancel_dump_traceback_later()
        return

    def late(_signal, _frame):
        raise TimeoutError(f"the test took over {TEST_SECONDS} s")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(TEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def server(request, major):
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
    if not server.is_running:  # a test failed in between; the next ones need not fail for that
        server.start()
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
