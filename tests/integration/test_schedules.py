# SPDX-License-Identifier: PostgreSQL
"""Random faults under load; whatever was committed has come to every durable subscriber, in order, and nothing else.

What publishers do and which faults come is drawn from a seed, which is printed; how they meet is left to the machine, so a
seed repeats a schedule and not a run. A failure names its seed and the folder in which everything is kept.

    WALBUS_TEST_SCHEDULES=NUMBER   how many (10), in turn on the majors that the run has
    WALBUS_TEST_SEED=NUMBER        the seed of the first one; those behind it have the next numbers
"""

import errno
import os
import random

import pytest
from faults import once
from faults.schedule import FAULT_ACTIONS, Schedule, Step, fault_setting, faults_of
from faults.world import World, can_mount
from harness import places

SCHEDULES = int(os.environ.get("WALBUS_TEST_SCHEDULES") or 10)
# Of each: two workers share them, whatever else they have to do.
GROUPS = 2
# Behind a fault that was reached, publishers, router and subscribers go on for so long before the next one.
BETWEEN_SECONDS = 0.3


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        majors = places.MAJORS.all
        metafunc.parametrize("number,major", [
            pytest.param(i, majors[i % len(majors)], id=f"{i}-{majors[i % len(majors)]}",
                         marks=pytest.mark.xdist_group(f"schedules-{i % GROUPS}")) for i in range(SCHEDULES)],
            indirect=["major"], scope="module")


def new_seed():
    return random.randrange(1 << 32)


def run(schedule, major):
    print(schedule)
    world = World(schedule, major, once.program())
    good = False
    try:
        world.open()
        world.run()
        findings = world.finish()
        good = not findings
        assert good, "\n".join(findings)
        return world
    finally:
        print("\n".join(world.log))
        if not good:
            print(f"kept: {world.keep()}\n---- walbusd's log\n{world.router.log()[-6000:]}")
        world.close(keep=not good)


def test_schedule(number, major):
    first = os.environ.get("WALBUS_TEST_SEED")
    seed = int(first) + number if first else new_seed()
    print(f"WALBUS_TEST_SEED={seed} WALBUS_TEST_SCHEDULES=1 WALBUS_TEST_MAJORS={major}")
    run(Schedule(seed, failover=major >= 17, faults=faults_of(places.walbusd()), disk=can_mount(),
                 once=once.program() is not None), major)


def test_every_fault_can_be_made():
    """What the schedules here do without, if anything, is said in the run's summary."""
    reasons = []
    if not can_mount():
        reasons.append("no full disk: no right to mount a tmpfs")
    found = faults_of(places.walbusd())
    assert found in ([], list(FAULT_ACTIONS)), "a point that the schedules know is not in the router any more"
    if not found:
        reasons.append("no fault points: walbusd was built without -Dfaults=true")
    if once.program() is None:
        reasons.append("no exactly-once call: the build has no apply_once")
    if reasons:
        pytest.skip("the schedules have " + "; ".join(reasons))


@pytest.mark.parametrize("point", FAULT_ACTIONS)
def test_fault_point(point, major):
    """The router dies there, at the first time and at a later one, and what can fail there fails, once and for a while."""
    if point not in faults_of(places.walbusd()):
        pytest.skip("this walbusd was built without -Dfaults=true")
    # What must be logged when the point is reached; of a short write nothing is, since the rest is written behind it.
    logged = {"kill": "(?!)", "short": "source.streaming"}
    failed = "journal.failed|catalog.failed|journal.unreadable"
    quarantine = point.startswith("quarantine-")
    steps = []
    for action in FAULT_ACTIONS[point]:
        for count in (1, 3) if action == "kill" else (1, 3, 0):
            steps.append(Step(BETWEEN_SECONDS, "fault", {
                "setting": fault_setting(point, count, action), "seconds": 30,
                "reached": logged.get(action) or (f'quarantine.failed .*error="{os.strerror(getattr(errno, action))}"'
                                                  if quarantine else failed)}))
    run(Schedule(new_seed(), failover=False, disk=can_mount(), once=once.program() is not None, steps=steps,
                 policy=quarantine or None), major)


@pytest.mark.parametrize("traffic", [0, 200])
def test_restored_server(traffic, major):
    """Subscribers are there when the gap is accepted. With traffic of its own the server has come beyond what the journal
    has when it is seen again, and is found out by what it sends."""
    steps = [Step(BETWEEN_SECONDS, "restore", {"traffic": traffic, "down": 0.1})]
    run(Schedule(new_seed(), failover=False, once=once.program() is not None, steps=steps), major)


@pytest.mark.every_major(since=17)  # which have failover slots
@pytest.mark.parametrize("behind", [False, True], ids=["in step", "behind"])
def test_failover(behind, major):
    """The slot goes on on the standby. One that is behind lacks what subscribers had: that, and nothing else, is not among
    what was committed, and nothing of what is there instead is missing."""
    steps = [Step(BETWEEN_SECONDS, "failover", {"behind": behind, "down": 0.1})]
    run(Schedule(new_seed(), failover=True, disk=can_mount(), once=once.program() is not None, steps=steps), major)


def test_fifty_clean_restarts(major):
    """Under load. What a router that stops has read of acknowledgements is never sent again: see checker.py."""
    draw = random.Random(new_seed())
    steps = [Step(draw.uniform(0, 0.2), "restart_router", {"down": draw.choice([0, 0, 0.1]), "followed": True})
             for _ in range(50)]
    schedule = Schedule(new_seed(), failover=False, once=once.program() is not None, steps=steps)
    schedule.publishers = [dict(publisher, pace=0.06) for publisher in schedule.publishers[:2]]  # it lasts longer than others
    world = run(schedule, major)
    # Some sleep, or hang, through a stop; but of a router that lets nobody finish there would be nothing to hold against it.
    assert world.left >= len(steps), f"only {world.left} acknowledged to a router that stopped, and left in peace"
