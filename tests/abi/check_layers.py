#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""check_layers.py SOURCE-ROOT: the #include "…" lines point only where HACKING.md's layers allow.

lib/base <- lib/codec <- { lib/keys, lib/pg } <- { lib/client, lib/settings }; the daemon is made of all but lib/client and its
public headers, the command of all, but of lib/client by the public headers alone, and neither includes the other's
headers; public headers include public headers only. And nothing of main.c is in the static libraries of the two
programs.
"""

import os
import re
import sys

# A layer is a folder; each may include itself and these.
ALLOWED = {
    "include/walbus": set(),
    "lib/base": set(),
    "lib/codec": {"lib/base"},
    "lib/keys": {"lib/base", "lib/codec"},
    "lib/pg": {"lib/base", "lib/codec"},
    "lib/settings": {"lib/base", "lib/codec", "lib/pg"},
    "lib/client": {"include/walbus", "lib/base", "lib/codec", "lib/keys", "lib/pg"},
    "daemon": {"lib/base", "lib/codec", "lib/keys", "lib/pg", "lib/settings"},
    "cli": {"include/walbus", "lib/base", "lib/codec", "lib/keys", "lib/pg", "lib/settings"},
}
# Where a name between quotes is looked for, after the includer's own folder.
ROOTS = ("lib", "include")
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
PUBLIC = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*<([^>]+)>', re.MULTILINE)
# What public headers may need of the system: C99 and nothing of libpq, so that they compile without its headers.
PUBLIC_SYSTEM = {b"stddef.h", b"stdint.h", b"stdbool.h"}


def layer_of(path):
    for layer in ALLOWED:
        if path == layer or path.startswith(layer + "/"):
            return layer
    return None


def resolve(root, includer, name):
    # a folder inside a layer names what is in the layer from the layer's own folder
    for folder in (os.path.dirname(includer), layer_of(includer), *ROOTS):
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, path)):
            return path
    return None


def check_file(root, path):
    layer = layer_of(path)
    with open(os.path.join(root, path), "rb") as file:
        text = file.read()
    faults = []
    for match in INCLUDE.finditer(text):
        name = match.group(1).decode()
        line = text.count(b"\n", 0, match.start(1)) + 1
        target = resolve(root, path, name)
        if target is None:
            faults.append(f'{path}:{line}: "{name}" is no file of this project; others go between < and >')
            continue
        other = layer_of(target)
        if other != layer and other not in ALLOWED[layer]:
            faults.append(f"{path}:{line}: {layer} must not include {target}")
    if layer == "include/walbus":
        for match in PUBLIC.finditer(text):
            if match.group(1) not in PUBLIC_SYSTEM:
                line = text.count(b"\n", 0, match.start(1)) + 1
                faults.append(f"{path}:{line}: a public header must not need <{match.group(1).decode()}>")
    return faults


def check_main(root, program):
    """main.c is named once in the program's meson.build, in executable(...), so all else can be linked into tests."""
    path = os.path.join(program, "meson.build")
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = re.sub(r"#.*", "", file.read())
    sources = {name for name in os.listdir(os.path.join(root, program)) if name.endswith(".c")}
    faults = []
    executable = re.search(r"executable\((.*?)\)", text, re.DOTALL)
    linked = set(re.findall(r"'([^']*\.c)'", executable.group(1))) if executable else set()
    listed = re.findall(r"'([^']*\.c)'", text)
    if linked != {"main.c"}:
        faults.append(f"{path}: the executable must have main.c alone, not {sorted(linked)}")
    if listed.count("main.c") != 1:
        faults.append(f"{path}: main.c must not be in the static library")
    for name in sorted(sources - set(listed)):
        faults.append(f"{path}: {program}/{name} is in no library")
    return faults


def main():
    root = sys.argv[1]
    faults, seen = [], set()
    for layer in ALLOWED:
        for folder, _, names in os.walk(os.path.join(root, layer)):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    path = os.path.relpath(os.path.join(folder, name), root)
                    seen.add(layer)
                    faults += check_file(root, path)
    for layer in sorted(set(ALLOWED) - seen):
        faults.append(f"there is nothing in {layer}: has a layer been moved?")
    for program in ("daemon", "cli"):
        if program in seen:
            faults += check_main(root, program)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
