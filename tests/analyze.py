#!/usr/bin/python3
# SPDX-License-Identifier: PostgreSQL
"""analyze.py BUILD: gcc -fanalyzer and clang-tidy (.clang-tidy) over the sources, each finding on a line.

BUILD is a build folder that was set up; nothing in it need be built. Findings that are none stand in
tests/analyze.suppressions with the reason; one that matches nothing any more is a finding itself. Exit 1 when there
is any.
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
FOLDERS = ("lib", "daemon", "cli", "examples")
CLANG_TIDY = "clang-tidy-14"


def commands(build):
    """{source, from the root: (folder, words)} of what is analysed; the tests are not."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
        words = [word for word in shlex.split(entry["command"]) if word not in ("ccache", "-Werror", "-MD")]
        for option in ("-o", "-MF", "-MQ"):
            at = words.index(option)
            del words[at:at + 2]
        if path.split(os.sep)[0] in FOLDERS:
            found.setdefault(path, (entry["directory"], words))
    return found


def run(words, folder):
    return subprocess.run(["nice", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, LC_ALL="C"), check=False)


class Finding:
    def __init__(self, tool, check, path, line, function, text):
        self.key = (tool, check, path, function)
        self.line, self.text = line, text

    def __str__(self):
        tool, check, path, function = self.key
        return f"{path}:{self.line}: {self.text} [{tool} {check}, in {function}]"


def function_at(path, line):
    """The function around a line: the last one that begins at the margin."""
    name = "-"
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if number > line:
                break
            match = re.match(r"^[A-Za-z_].*?\b(\w+)\(", text)
            if match and not text.rstrip().endswith(";"):
                name = match.group(1)
    return name


def findings_in(tool, output, folder, pattern):
    found = []
    for path, line, text, check in re.findall(pattern, output, re.M):
        path = os.path.relpath(os.path.join(folder, path), ROOT)
        if path.split(os.sep)[0] not in (*FOLDERS, "include"):  # a header of somebody else
            continue
        found.append(Finding(tool, check, path, int(line), function_at(path, int(line)), text))
    return found


def with_gcc(path, folder, words):
    # The sentences alone; the paths to them are a page each: compile by hand to see one.
    done = run([*words, "-fanalyzer", "-fanalyzer-verbosity=0", "-fdiagnostics-color=never", "-o",
                os.devnull], folder)
    if done.returncode != 0:
        return [Finding("gcc", "failed", path, 0, "-", done.stdout[-500:])]
    # A call that was inlined has no place of its own: the next line says where.
    output = re.sub(r"^cc1: (warning: .*)\n.*\n? *([^\s:]+:\d+:)", r"\2 \1", done.stdout, flags=re.M)
    return findings_in("gcc", output, folder,
                       r"^([^\s:]+):(\d+):(?:\d+:)? warning: (.*?)(?: \[CWE-\d+\])? \[-W(analyzer-[\w-]+)\]$")


def with_clang(path, database):
    done = run([CLANG_TIDY, "--quiet", "-p", database, os.path.join(ROOT, path)], ROOT)
    found = findings_in("clang-tidy", done.stdout, ROOT,
                        r"^([^\s:]+):(\d+):\d+: (?:warning|error): (.*?) \[([\w.,-]+)\]$")
    if done.returncode != 0 and not found:
        return [Finding("clang-tidy", "failed", path, 0, "-", done.stdout[-500:])]
    return found


def write_database(folder, sources):
    with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump([{"directory": directory, "file": os.path.join(ROOT, path), "arguments": words}
                   for path, (directory, words) in sources.items()], file)


def suppressions():
    """{(tool, check, file, function): reason}"""
    found = {}
    with open(os.path.join(HERE, "analyze.suppressions"), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("#") or not line.strip():
                continue
            match = re.fullmatch(r"(\S+) (\S+) (\S+) (\S+): (.+)", line.rstrip("\n"))
            if not match:
                sys.exit(f"analyze.suppressions:{number}: it is not TOOL CHECK FILE FUNCTION: REASON")
            found[match.groups()[:4]] = match.group(5)
    return found


def main():
    sources = commands(os.path.abspath(sys.argv[1]))
    with tempfile.TemporaryDirectory() as database, \
            concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        write_database(database, sources)
        jobs = [pool.submit(with_clang, path, database) for path in sources]
        jobs += [pool.submit(with_gcc, path, folder, words) for path, (folder, words) in sources.items()]
        findings = {str(finding): finding for job in jobs for finding in job.result()}
    known = suppressions()
    faults = sorted(text for text, finding in findings.items() if finding.key not in known)
    keys = {finding.key for finding in findings.values()}
    faults += [f"tests/analyze.suppressions: nothing is left of: {' '.join(key)}" for key in known if key not in keys]
    if not sources:
        faults.append("no sources were found")
    for fault in faults:
        print(fault)
    print(f"{len(sources)} sources, {len(faults)} findings, {len(findings)} with those that are none")
    return 1 if faults else 0


sys.exit(main())
