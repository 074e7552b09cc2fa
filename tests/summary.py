#!/usr/bin/python3
# SPDX-License-Identifier: PostgreSQL
"""Adds up what `meson test` and pytest have written: summary.py [testlog.json] [junit.xml] [lines.failed]

Names what failed, and prints `N passed, N failed, N skipped`; exit 1 when something failed. A unit test program
counts its Check tests, every other meson test counts as one. A Check test cannot skip: one that prints a line that
begins with SKIP is counted as skipped, not as passed. Each line of a .failed file is one that failed. Where tests ran
on several majors of PostgreSQL, each major's sum stands before the whole.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

CHECK = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.M)
SKIP = re.compile(r"^SKIP:? *(.*)", re.M)
# What a Check test says that failed: where, F or E, and why.
BAD = re.compile(r"^\S+:\d+:[FE]:.*", re.M)
# Of one failure, so that whoever has only the output can begin somewhere.
WHY_MAX = 400
# What pytest-xdist appends to a test's name, behind all that the name itself may hold.
GROUP = re.compile(r"@[^\]@]+$")


class Sum:
    passed = failed = skipped = 0

    def __init__(self):
        self.majors = {}

    def add_failed(self, name, count=1, why=""):
        self.failed += count
        why = " ".join(why.split())[:WHY_MAX]
        print(f"FAILED {name}{': ' if why else ''}{why}")

    def add_skipped(self, name, why):
        self.skipped += 1
        print(f"SKIPPED {name}: {why}")

    def meson(self, path):
        with open(path, encoding="utf-8") as f:
            for test in map(json.loads, f):
                stdout = test.get("stdout") or ""
                suites = CHECK.findall(stdout)
                good = test["result"] in ("OK", "EXPECTEDFAIL")
                if test["result"] == "SKIP":
                    self.add_skipped(test["name"], (stdout.strip().splitlines() or ["no reason given"])[-1])
                elif suites:
                    checks = sum(int(n) for n, _, _ in suites)
                    bad = sum(int(f) + int(e) for _, f, e in suites)
                    skips = SKIP.findall(stdout)
                    for why in skips:
                        self.add_skipped(test["name"], why)
                    self.passed += max(checks - bad - len(skips), 0)
                    if bad or not good:
                        self.add_failed(f"{test['name']} ({test['result']})", max(bad, 1),
                                        " ".join(m[0] for m in BAD.finditer(stdout)))
                elif good:
                    self.passed += 1
                else:
                    self.add_failed(f"{test['name']} ({test['result']})")

    def junit(self, path):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = GROUP.sub("", f"{case.get('classname')}::{case.get('name')}")
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                self.add_failed(name, why=next(c.get("message") or "" for c in case if c.tag in ("failure", "error")))
            elif "skipped" in kinds:
                self.add_skipped(name, case.find("skipped").get("message"))
            else:
                self.passed += 1
            for value in case.findall("properties/property[@name='major']"):
                major = self.majors.setdefault(int(value.get("value")), [0, 0, 0.0])
                major[0] += 1
                major[1] += bool(kinds & {"failure", "error"})
                major[2] += float(case.get("time"))

    def lines(self, path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                self.add_failed(line.rstrip("\n"))


def main():
    total = Sum()
    for path in sys.argv[1:]:
        try:
            readers = {".xml": total.junit, ".json": total.meson, ".failed": total.lines}
            readers[os.path.splitext(path)[1]](path)
        except (OSError, ValueError, ElementTree.ParseError) as e:
            total.add_failed(f"{path}: {e}")
    if len(total.majors) > 1:
        for major, (tests, failed, seconds) in sorted(total.majors.items()):
            print(f"PostgreSQL {major}: {tests} tests, {failed} failed, {seconds:.0f} s")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
