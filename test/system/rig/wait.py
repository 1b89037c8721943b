"""Waiting for a condition under a deadline: the only way in which a test lets time pass."""

import time


class Overdue(AssertionError):
    """The condition did not come true in time."""


def wait_until(condition, what, deadline=120.0, interval=0.01):
    """Calls condition until it answers something true, which is returned. `what` may be a text or a function that makes one."""
    end = time.monotonic() + deadline
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= end:
            text = what() if callable(what) else what
            raise Overdue(f"not within {deadline:g} s: {text} (last answer: {answer!r})")
        time.sleep(interval)


def hold_true(condition, what, seconds):
    """Checks that condition stays true for a while: for promises that something does not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"did not hold for {seconds:g} s: {what}"
        time.sleep(0.02)
