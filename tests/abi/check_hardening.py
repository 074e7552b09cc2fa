#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""check_hardening.py COMPILER COMMANDS OPTIONS FILE...: what came of the options for hardening in the top meson.build.

Of each FILE, a program or a shared library, readelf tells: position independent, relocations read-only after the start
and none left to be made later, no stack or segment that is both writable and executable, the stack's guard, glibc's
checking variants. What leaves no trace in it is looked for in COMMANDS, compile_commands.json. OPTIONS are those of
meson.build that the COMPILER has, in one word. First a program and a library that were made without all that must fail
in every point, so that the checks are known to find something.
"""

import json
import os
import re
import subprocess
import sys
import tempfile


def readelf(path, *options):
    done = subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True,
                          env=dict(os.environ, LC_ALL="C"))
    return done.stdout


def segments(path):
    """[(type, flags)] of the program headers."""
    return re.findall(r"^  ([A-Z_]+) +0x\S+ 0x\S+ 0x\S+ 0x\S+ 0x\S+ ([RWE ]{3}) 0x", readelf(path, "-l"), re.M)


def position_independent(path):
    """A library and such a program are of the same type; the flag is the program's."""
    dynamic = readelf(path, "-d")
    return re.search(r"^  Type: +DYN\b", readelf(path, "-h"), re.M) is not None and (
        "(SONAME)" in dynamic or re.search(r"\(FLAGS_1\).*\bPIE\b", dynamic) is not None)


def no_text_relocations(path):
    return "TEXTREL" not in readelf(path, "-d")


def read_only_relocations(path):
    return "GNU_RELRO" in dict(segments(path))


def bound_at_once(path):
    return re.search(r"\(FLAGS_1\).*\bNOW\b", readelf(path, "-d")) is not None


def no_executable_stack(path):
    flags = dict(segments(path)).get("GNU_STACK")
    return flags is not None and "E" not in flags


def nothing_writable_and_executable(path):
    found = segments(path)
    return any(kind == "LOAD" for kind, _ in found) and not any("W" in flags and "E" in flags for _, flags in found)


def imports(path):
    return set(re.findall(r"\bUND +(\w+)", readelf(path, "--dyn-syms")))


def guarded_stack(path):
    return "__stack_chk_fail" in imports(path)


def checking_variants(path):
    return any(name.endswith("_chk") for name in imports(path))


# What must hold, and the option without which it is not asked for.
CHECKS = (
    (position_independent, None),
    (no_text_relocations, None),
    (read_only_relocations, "-Wl,-z,relro"),
    (bound_at_once, "-Wl,-z,now"),
    (no_executable_stack, "-Wl,-z,noexecstack"),
    (nothing_writable_and_executable, None),
    (guarded_stack, "-fstack-protector-strong"),
    (checking_variants, "-D_FORTIFY_SOURCE=2"),
)

WEAK_OPTIONS = ("-O2", "-w", "-U_FORTIFY_SOURCE", "-fno-stack-protector")
WEAK = {
    "program": (("-fno-pie", "-no-pie", "-Wl,-z,norelro", "-Wl,-z,lazy", "-Wl,-z,execstack"), r"""
        #include <stdio.h>
        #include <string.h>
        __asm__(".section both, \"awx\"\n.byte 1\n.text");
        int main(int argc, char **argv) { char text[8]; strcpy(text, argv[0]); return puts(text); }
        """),
    # An address in the code that only the loader can know.
    "library": (("-shared", "-fPIC", "-Wl,-z,notext"), """
        __asm__(".text\\n.quad stdout");
        """),
}


def check_the_checks(compiler):
    held = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (options, source) in WEAK.items():
            path = os.path.join(folder, name)
            made = subprocess.run([*compiler, *WEAK_OPTIONS, *options, "-x", "c", "-", "-o", path], input=source,
                                  text=True, capture_output=True, check=False)  # the linker may warn
            if made.returncode != 0:
                sys.exit(f"cannot make a weak {name}: {made.stderr}")
            held[name] = {check for check, _ in CHECKS if check(path)}
    return [f"{check.__name__}: it holds even of what was made without"
            for check, _ in CHECKS if all(check in checks for checks in held.values())]


def check_commands(path, options):
    """Each of our sources is compiled with what leaves no trace."""
    with open(path, encoding="utf-8") as file:
        commands = json.load(file)
    faults = [] if commands else [f"{path} has no commands"]
    for entry in commands:
        words = entry["command"].split()
        faults += [f"{entry['file']} is compiled without {option}"
                   for option in options if option.startswith("-f") and option not in words]
    return faults


def main():
    compiler, commands, options, files = sys.argv[1].split(), sys.argv[2], sys.argv[3].split(), sys.argv[4:]
    faults = check_the_checks(compiler) + check_commands(commands, options)
    for path in files:
        faults += [f"{os.path.basename(path)}: not {check.__name__}"
                   for check, option in CHECKS if (option is None or option in options) and not check(path)]
    if not files:
        faults.append("nothing to look at")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


sys.exit(main())
