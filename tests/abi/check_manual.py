#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""check_manual.py SOURCE-ROOT WALBUSD WALBUS WALBUSD.8: the pages and the programs say the same.

- Every command and option of --help is in its page, and every one of the page in --help, with the same metavar;
  so are walbusd's signals.
- examples/walbus.conf has every setting, at its default, and both programs read it.
- docs/operations.md names every refusal and every log line of walbusd, and the limits with their values;
  docs/protocol.md has the values of those that it names.
- The pages are free of warnings, where mandoc is there to tell.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

faults = []


def compare(where, have, want, words=("missing in the page", "not in --help")):
    for what, names in zip(words, (want - have, have - want)):
        for name in sorted(names):
            faults.append(f"{where}: {' '.join(filter(None, name)) if isinstance(name, tuple) else name} is {what}")


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def run(*argv, **kw):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WALBUS_", "PG"))}
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env, **kw)


def help_of(*argv):
    done = run(*argv, "--help")
    if done.returncode != 0:
        faults.append(f"{' '.join(argv)} --help: exit {done.returncode}")
    return done.stdout


def options_of_help(text):
    """{(option, metavar)} of the lines "  --name METAVAR"; "--help, --version" may share one."""
    found = set()
    for line in re.findall(r"^  (--\S.*)$", text, re.M):
        for option in line.split(", "):
            found.add(tuple((option.split(" ") + [""])[:2]))
    return found


def options_of_page(text):
    return {("-" + name, metavar or "") for name, metavar in
            re.findall(r"^\.It Fl (-[a-z-]+)(?: Ar (\S+))?$", text, re.M)}


def section(page, macro, name):
    """What stands under one .Sh or .Ss, up to the next."""
    ends = "Sh" if macro == "Sh" else "S[hs]"
    match = re.search(rf"^\.{macro} {name}\n(.*?)(?=^\.{ends} |\Z)", page, re.M | re.S)
    return match.group(1) if match else ""


def check_walbusd(walbusd, page):
    text = help_of(walbusd)
    compare("walbusd.8", options_of_page(page), options_of_help(text))
    # The table's sentences with bounds and defaults, as --help has them.
    plain = " ".join(page.replace("\\e", "\\").split())
    for sentence in re.findall(r"^      (.*)$", text, re.M):
        if not sentence.startswith("Settings file") and sentence not in plain:
            faults.append(f"walbusd.8: it does not say: {sentence}")
    signals = set(re.findall(r"\bSIG[A-Z]+\b", section(page, "Sh", "SIGNALS")))
    compare("walbusd.8, SIGNALS", signals, set(re.findall(r"\bSIG[A-Z]+\b", text)))
    if "@SETTINGS@" in page:
        faults.append("walbusd.8: the marker is still there")


def check_walbus(walbus, page):
    text = help_of(walbus)
    commands = set(re.findall(r"^  ([a-z]+) {2,}\S", text.split("\nOptions", 1)[0], re.M))
    if not commands:
        faults.append("walbus --help lists no commands")
    compare("walbus.1", set(re.findall(r"^\.Ss (\S+)$", section(page, "Sh", "COMMANDS"), re.M)), commands)
    common = options_of_page(section(page, "Sh", "COMMON OPTIONS"))
    compare("walbus.1, common options", common, options_of_help(text))
    for command in sorted(commands):
        own = options_of_page(section(page, "Ss", command))
        shown = options_of_help(help_of(walbus, command))  # of the common ones, those that it needs
        compare(f"walbus.1, {command}", (common & shown) | own, shown)


def settings_of(help_text):
    """{name: default or None}, without what is no setting."""
    rows = re.findall(r"^  --([a-z-]+) [A-Z]+\n      (.*)$", help_text, re.M)
    found = {}
    for name, sentence in rows:
        default = re.search(r"\bdefault ([^;)]+)[;)]", sentence)
        found[name] = default.group(1) if default else None
    found.pop("config", None)
    return found


def check_conf(walbusd, walbus, path):
    text = read(path)
    want = settings_of(help_of(walbusd))
    have = dict(re.findall(r"^#([a-z-]+) = (.*)$", text, re.M))
    compare("examples/walbus.conf", set(have), set(want), ("missing there", "no setting"))
    for name, default in want.items():
        if default is not None and have.get(name, default) != default:
            faults.append(f"examples/walbus.conf: {name} is {have[name]}, the default is {default}")
    if re.search(r"^[a-z]", text, re.M):
        faults.append("examples/walbus.conf: a setting is not commented")
    with tempfile.TemporaryDirectory() as folder:
        active, broken = os.path.join(folder, "active.conf"), os.path.join(folder, "broken.conf")
        with open(active, "w", encoding="utf-8") as file:
            file.write(re.sub(r"^#([a-z-]+ = )", r"\1", text, flags=re.M))
        with open(broken, "w", encoding="utf-8") as file:
            file.write(text + "no-such-setting = 1\n")
        # 3: the settings were read, and there is no router at that path. 2: they were not understood.
        for conf, status in ((path, 3), (active, 3), (broken, 2)):
            done = run(walbus, "--config", conf, "--socket", os.path.join(folder, "sock"), "status")
            if done.returncode != status:
                faults.append(f"walbus --config {conf}: exit {done.returncode}, not {status}: {done.stderr}")
        # walbusd reads the file too, and then ends for its socket's folder: 1. The example's policy needs a trust file.
        trust = os.path.join(folder, "trust")
        with open(trust, "w", encoding="utf-8"):
            pass
        for conf, status in ((path, 1), (active, 1), (broken, 2)):
            done = run(walbusd, "--config", conf, "--trust-file", trust, "--socket", os.path.join(folder, "no", "folder", "sock"))
            if done.returncode != status:
                faults.append(f"walbusd --config {conf}: exit {done.returncode}, not {status}: {done.stderr}")


def ids_of_sources(root):
    """The ids of the table of preconditions, and of every line that the daemon can log."""
    table = read(root, "lib/pg/precondition.c")
    ids = set(re.findall(r'^    \{"([a-z-]+)", PRECONDITION_', table, re.M))
    if len(ids) < 10:
        faults.append("the table of preconditions was not found in lib/pg/precondition.c")
    ids |= set(re.findall(r'\.id = "([a-z-]+)"', table))  # found by another way than the facts
    # log_line(logger, level, "id", …), and what hands an id on to it.
    calls = re.compile(r'\b(?:log_line\([^,"]+,[^,"]+|source_fail\([^,"]+|source_fail_with\([^,]+,\s*"[^"]*"'
                       r'|tell_trouble\([^,"]+),\s*"([a-z.-]+)"')
    either = re.compile(r'\blog_line\([^,"]+,[^,"]+,[^,"]+\? "([a-z.-]+)"\s*: "([a-z.-]+)"')
    for folder, _, names in os.walk(os.path.join(root, "daemon")):
        for name in names:
            if name.endswith(".c"):
                text = read(folder, name)
                ids |= set(calls.findall(text))
                ids |= set(re.findall(r'\.id = "([a-z.-]+)"', text))
                ids |= {each for both in either.findall(text) for each in both}
    ids |= set(calls.findall(read(root, "lib/base/log.c")))
    refusals = set(re.findall(r'\[CONTINUITY_[A-Z_]+\] =\s+\{"([a-z-]+)"', read(root, "daemon/continuity.c")))
    if len(refusals) < 4:
        faults.append("the table of refusals was not found in daemon/continuity.c")
    ids |= refusals
    return ids


def number(text):
    """16 MiB, 0.1 s, 1,000: bytes, seconds or a count."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "ms": 1e-3, "s": 1, "µs": 1e-6}
    value, _, unit = text.replace(",", "").partition(" ")
    return round(float(value) * units.get(unit, 1), 9)


def check_limits(root, where, is_complete):
    page = read(root, where)
    rows = re.findall(r"^\| [^|]+ \| ([0-9][^|]*) \| `([A-Z_]+)` \|$", page, re.M)
    sources = [os.path.join(folder, name) for layer in ("daemon", "lib", "include", "cli")
               for folder, _, names in os.walk(os.path.join(root, layer)) for name in names
               if name.endswith((".h", ".c"))]
    defined, of_daemon = {}, set()
    for path in sources:
        found = dict(re.findall(r"^#define ([A-Z_]+) +(.*?)(?: *(?:/\*|//).*)?$", read(path), re.M))
        defined.update(found)
        if path.startswith(os.path.join(root, "daemon")) and path.endswith(".h"):
            of_daemon |= set(found)
    if len(rows) < 20:
        faults.append(f"{where}: the table of limits was not found")
    for shown, name in rows:
        text = re.sub(r"UINT(?:32|64)_C\((\d+)\)", r"\1", defined.get(name, "")).replace("(size_t)", "")
        text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
        if not re.fullmatch(r"[\d *<+()-]+", text):
            faults.append(f"{where}: {name} is no constant of the sources")
            continue
        value = eval(text, {"__builtins__": {}})  # pylint: disable=eval-used # digits and operators only
        scale = {"MS": 1e-3, "NS": 1e-9}.get(name.rsplit("_", 1)[-1], 1)
        if round(value * scale, 9) != number(shown.strip()):
            faults.append(f"{where}: {name} is {text}, the page says {shown.strip()}")
    named = {name for _, name in rows}
    for name in sorted(of_daemon - named):
        if name == "OUTBOX_FRAME_MAX":  # the size of two known frames
            continue
        if is_complete and re.match(r"(OUTBOX|ROUTER|SESSION)_.*(MAX|MS|BYTES)$", name):
            faults.append(f"{where}: the limit {name} is missing")


def lint(*pages):
    if not shutil.which("mandoc"):
        print("no mandoc: the pages were not checked by it")
        return
    for page in pages:
        done = run("mandoc", "-T", "lint", "-W", "warning", page)
        if done.stdout or done.stderr:
            faults.append(done.stdout + done.stderr)


def main():
    root, walbusd, walbus, walbusd_8 = sys.argv[1:]
    walbus_1 = os.path.join(root, "docs", "walbus.1")
    operations = read(root, "docs", "operations.md")
    check_walbusd(walbusd, read(walbusd_8))
    check_walbus(walbus, read(walbus_1))
    check_conf(walbusd, walbus, os.path.join(root, "examples", "walbus.conf"))
    tables = operations.partition("\n## Refusals\n")[2].partition("\n## Limits\n")[0]
    compare("docs/operations.md", set(re.findall(r"^\| `([a-z.-]+)` \|", tables, re.M)), ids_of_sources(root),
            ("missing there", "in no source"))
    check_limits(root, "docs/operations.md", is_complete=True)
    check_limits(root, "docs/protocol.md", is_complete=False)
    lint(walbusd_8, walbus_1)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
