# SPDX-License-Identifier: PostgreSQL
"""Which faults come when: drawn from a seed, and nothing but it. How they meet what runs is left to the machine."""

import random
from typing import NamedTuple

MARKER = "end.marker"
# Of so many the router asks for signatures on a part of the prefixes.
POLICY_SHARE = 0.6

# name: lists of filters, (filters, exclusions); the first to begin with, another when they are changed. All of them get
# the marker at the end. `everything` is the witness of what stands where, and is never changed.
SUBSCRIBERS = {
    "everything": [([">"], [])],
    "orders": [(["orders.>"], []), (["orders.*", "payments.>"], []), (["orders.eu.>", "*.eu.created", ["exact", "audit"]],
                []), ([">"], ["orders.eu.>"])],
    "stock": [([["exact", "audit"], ["starts-with", "stock."]], ["stock.2.*"]), (["stock.*.level", "signed.>"], []),
              (["*.2.>", ["exact", ""]], ["*.*.price"])],
    # What matches is rare: its cursor moves over what does not.
    "quiet": [(["nothing.>"], []), ([["exact", "_internal.note"]], []), (["nothing.at.all"], [])],
}

# The places in the router at which it can be made to die, or a system call to fail (daemon/journal/fault.h), with what is
# possible there ("slow" is for test_slow.py alone).
FAILURES = ["kill", "ENOSPC", "EIO"]
FAULT_ACTIONS = {
    "journal-write": [*FAILURES, "short"],
    "journal-wrote": ["kill"],
    "journal-sync": FAILURES,
    "journal-synced": ["kill"],
    "journal-segment": FAILURES,
    "journal-retry": FAILURES,
    "journal-read": FAILURES,
    # Which failure it is makes no difference to the quarantine, but for what is logged.
    "quarantine-write": ["kill", "ENOSPC", "short"],
    "quarantine-wrote": ["kill"],
    "quarantine-sync": ["kill", "EIO"],
    "quarantine-synced": ["kill"],
    "quarantine-renew": ["kill", "ENOSPC"],
    "quarantine-pass": ["kill"],
    "feedback": ["kill"],
    "feedback-sent": ["kill"],
    "delivery": ["kill"],
    "catalog-commit": FAILURES,
    "catalog-committed": ["kill"],
}


def faults_of(program):
    """The points that this walbusd has; none, if it was built without -Dfaults=true."""
    with open(program, "rb") as f:
        text = f.read()
    return [point for point in FAULT_ACTIONS if b"WALBUS_FAULT\0" in text and point.encode() + b"\0" in text]


def fault_setting(point, count, action):
    """count: a number, 0 for each time. What is tried again has failed before, and so has trying."""
    before = []
    if point == "journal-retry":
        count = min(count, 3)
        before = ["journal-sync:2=EIO"] + [f"{point}:{i}=EIO" for i in range(1, count)]
    if point == "quarantine-renew":  # behind such a failure its file is made anew; the log tells the two from each other
        count = min(count, 2)
        before = ["quarantine-sync:2=EIO"]
    return ",".join(before + [f"{point}{f':{count}' if count else ''}={action}"])


# The subscriber that uses the exactly-once call.
ONCE = "once"
ONCE_FILTERS = [("pattern", "orders.>"), ("exact", "audit"), ("starts-with", "stock.2"), ("exact", MARKER)]


def filters_of(name, which):
    filters, exclude = SUBSCRIBERS[name][which]
    marker = [] if filters == [">"] else [["exact", MARKER]]
    return ([f if isinstance(f, list) else ["pattern", f] for f in filters] + marker,
            [["pattern", f] for f in exclude])


class Step(NamedTuple):
    wait: float  # seconds after the step before
    what: str  # a method of World
    args: dict

    def __str__(self):
        words = " ".join(f"{k}={v:.2f}" if isinstance(v, float) else f"{k}={v}" for k, v in self.args.items())
        return f"+{self.wait:.2f} s  {self.what} {words}".rstrip()


class Schedule:
    """settings: options of walbusd. publishers: arguments of each. recorders: habits of each name's. steps."""

    def __init__(self, seed, failover, faults=(), disk=True, once=True, steps=None, policy=None):
        """failover: the server has failover slots. faults: the fault points of the build under test. disk: a disk of its own
        can be mounted for the state folder. once: there is a subscriber of the exactly-once call. steps: instead of those
        that would be drawn. policy: whether the router asks for signatures; None: as drawn."""
        self.seed = seed
        self.failover = failover
        self.random = random.Random(seed)
        drawn = self.random.random() < POLICY_SHARE
        self.policy = drawn if policy is None else policy
        self.faults = [point for point in faults if self.policy or not point.startswith("quarantine-")]
        self.settings = self._settings()
        self.publishers = [self._publisher(i) for i in range(self.random.choice([2, 3, 4]))]
        self.recorders = {name: self._habits() for name in SUBSCRIBERS}
        batch, pause = self.random.choice([(1, 0), (5, 20), (50, 0), (50, 200)])
        self.once = {"batch": batch, "pause": pause} if once else None
        self.disk = disk
        self.full = False
        self.steps = list(steps or [])
        if steps is None:
            self._draw_steps()

    def _settings(self):
        size, segment = self.random.choice([("6MB", "1MB"), ("16MB", "1MB"), ("32MB", "4MB"), ("64MB", "16MB")])
        return {"journal-size": size, "segment-size": segment,
                "sync-interval": self.random.choice(["0", "10ms", "10ms", "100ms"]),
                "heartbeat-interval": self.random.choice(["300ms", "2s", "10s"])}

    def _publisher(self, i):
        return {"name": f"p{i}", "seed": f"{self.seed}.p{i}", "pace": self.random.choice([0.01, 0.03, 0.06]),
                "large_bytes": self.random.choice([200_000, 3_000_000, 3_000_000, 20_000_000]),
                "policy": self.policy}

    def _habits(self):
        return {"run": self.random.choice([16, 64, 256]), "ack": self.random.choice(["run", "run", "commit", "seldom"]),
                "confirm": self.random.choice([0.02, 0.5]), "pause": self.random.choice([0, 0, 0, 0.05]),
                "pause_seconds": self.random.choice([0.1, 1.0])}

    # ---- steps

    def _add(self, what, **args):
        self.steps.append(Step(round(self.random.uniform(0, 0.8), 2), what, args))

    def _draw_steps(self):
        stock = [(3, self._kill_router), (2, self._restart_router), (2, self._pause_router), (3, self._kill_walsender),
                 (3, self._crash_server), (1, self._restart_server), (3, self._kill_recorder), (2, self._pause_recorder),
                 (2, self._change_filters), (2, self._take_over)]
        if self.disk:
            stock.append((2, self._fill_disk))
        if self.faults:
            stock.append((4, self._fault))
        if self.once:
            stock += [(2, self._kill_once), (1, self._take_over_once), (1, self._crash_effects)]
        count = self.random.randrange(6, 11)
        kinds = ["none"] * 6 + ["restore"] + ["failover"] * 3 * self.failover
        once = self.random.choice(kinds)
        once_at = self.random.randrange(2, count - 1)
        for i in range(count):
            if i == once_at and once != "none":
                self._calm()
                {"restore": self._restore, "failover": self._failover}[once]()
                continue
            weights, actions = zip(*stock)
            self.random.choices(actions, weights)[0]()
            if self.full and self.random.random() < 0.4:
                self._free_disk()
        self._calm()

    def _calm(self):
        if self.full:
            self._free_disk()

    def _short(self):
        return round(self.random.choice([0.0, self.random.uniform(0, 0.3), self.random.uniform(0, 1.5)]), 2)

    def _name(self, changeable=False):
        names = [name for name in SUBSCRIBERS if not changeable or len(SUBSCRIBERS[name]) > 1]
        return self.random.choice(names)

    def _kill_router(self):
        self._add("kill_router", down=self._short())

    def _restart_router(self):
        self._add("restart_router", down=self._short())

    def _pause_router(self):
        meanwhile = self.random.choice([None, None, "kill_walsender", "crash_server", "kill_recorder"])
        args = {"crash_server": {"down": self._short()}, "kill_recorder": {"name": self._name(), "down": 0.0}}
        self._add("pause_router", seconds=self._short(), meanwhile=meanwhile, args=args.get(meanwhile, {}))

    def _kill_walsender(self):
        self._add("kill_walsender")

    def _crash_server(self):
        self._add("crash_server", down=self._short())

    def _restart_server(self):
        self._add("restart_server", down=self._short())

    def _kill_recorder(self):
        self._add("kill_recorder", name=self._name(), down=self._short())

    def _pause_recorder(self):
        self._add("pause_recorder", name=self._name(), seconds=self._short())

    def _change_filters(self):
        name = self._name(changeable=True)
        self._add("change_filters", name=name, which=self.random.randrange(len(SUBSCRIBERS[name])))

    def _take_over(self):
        self._add("take_over", name=self._name())

    def _kill_once(self):
        self._add("kill_once", down=self._short())

    def _take_over_once(self):
        self._add("take_over_once")

    def _crash_effects(self):
        self._add("crash_effects", down=self._short())

    def _fill_disk(self):
        if self.full:
            self._free_disk()
            return
        self._add("fill_disk", left=self.random.choice([0, 0, 4096, 50_000, 1_000_000]))
        self.full = True

    def _free_disk(self):
        self._add("free_disk")
        self.full = False

    def _fault(self):
        point = self.random.choice(self.faults)
        # Points are passed from once in a while (a new segment) to a hundred times a second.
        count = self.random.choice([0, 1, 2, 3, 10, 40])
        action = self.random.choice(FAULT_ACTIONS[point])
        self._add("fault", setting=fault_setting(point, count, action), seconds=round(self.random.uniform(0.3, 1.5), 2))

    def _failover(self):
        self._add("failover", behind=self.random.random() < 0.5, down=self._short())

    def _restore(self):
        self._add("restore", traffic=self.random.choice([0, 0, 5, 200]), down=self._short())

    def __str__(self):
        settings = " ".join(f"--{k} {v}" for k, v in self.settings.items())
        settings += " with a policy" * self.policy
        lines = [f"seed {self.seed}: walbusd {settings}"]
        lines += [f"  publisher {p['name']}: pause to {p['pace']} s, large {p['large_bytes']} bytes"
                  for p in self.publishers]
        lines += [f"  {name}: {' '.join(f'{k}={v}' for k, v in habits.items())}"
                  for name, habits in self.recorders.items()]
        if self.once:
            lines.append(f"  {ONCE}: {' '.join(f'{k}={v}' for k, v in self.once.items())}")
        return "\n".join(lines + [f"  {step}" for step in self.steps])
