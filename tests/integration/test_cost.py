# SPDX-License-Identifier: PostgreSQL
"""What a message costs the router, in instructions and allocations: figures that do not depend on the machine's load."""

import os
import shutil
import sys

import pytest
from harness import places

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench"))

import bench  # noqa: E402  pylint: disable=wrong-import-position


@pytest.mark.parametrize("case", bench.INSTRUCTIONS_CASES)
def test_cost_of_a_message(case):
    """Grown by more than a tenth: mend it, or commit the new figure with the reason (tests/bench/bench.py)."""
    if places.plain_build() is None:
        pytest.skip("instructions are counted in a build without sanitizers: set WALBUS_TEST_PLAIN_BUILD")
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is missing")
    committed = bench.committed_instructions()[case]
    cost = bench.cost_within(case, committed * bench.GROWTH_MAX)
    assert cost.instructions <= committed * bench.GROWTH_MAX, f"{cost}; committed {committed}"
    assert cost.own_allocations <= bench.OWN_ALLOCATIONS_MAX, cost
    assert 0.9 < cost.libpq_allocations < 1.1, cost
