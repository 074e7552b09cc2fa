# SPDX-License-Identifier: PostgreSQL
"""Waiting for conditions, always with a deadline."""

import time


class Deadline:
    """A point in time that something must be done by."""

    def __init__(self, seconds, what):
        self.seconds = seconds
        self.what = what
        self.end = time.monotonic() + seconds

    def left(self):
        """Seconds that are left; raises when none are."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not within {self.seconds} s: {self.what}")
        return left


def wait_for(condition, seconds, what, every=0.02):
    """Calls condition() until it is true and returns what it returned; TimeoutError when the time is over."""
    deadline = Deadline(seconds, what)
    while True:
        result = condition()
        if result:
            return result
        time.sleep(min(every, deadline.left()))


def holds_for(condition, seconds, what, every=0.05):
    """Asserts that condition() stays true for that long: for things that must not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"no longer true: {what}"
        time.sleep(every)
