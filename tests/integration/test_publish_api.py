# SPDX-License-Identifier: PostgreSQL
"""libwalbus' publishing, from C: tests/integration/publish_api.c makes the calls and checks their results."""

import os
import subprocess

import pytest
from harness import places
from harness.pooler import Pooler

pytestmark = pytest.mark.every_major


def run_publish_api(*arguments):
    program = os.path.join(places.build_dir(), "tests", "integration", "publish_api")
    if not os.path.exists(program):
        pytest.skip(f"{program} was not built")
    done = subprocess.run([program, *arguments], env=places.child_environment(), cwd="/", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)
    text = done.stdout.decode(errors="replace")
    places.assert_no_sanitizer_report(text, program)
    assert done.returncode == 0, text
    assert text.endswith("\nall checks are ok\n"), text


def test_publish_api(bus):
    run_publish_api(bus.dsn())


def test_publish_api_through_a_pooler(bus):
    with Pooler(bus, pool_size=1) as pooler:
        run_publish_api(pooler.dsn, bus.dsn())
