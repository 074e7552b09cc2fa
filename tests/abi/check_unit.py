#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""check_unit.py UNIT WALBUSD: examples/walbusd.service is one that systemd takes, and keeps walbusd in its sandbox.

What must stand in it and what must not is looked for here. Where systemd-analyze is, it reads the unit as well, and
says how much of the system is left open to the service; a unit without its sandbox must be told apart.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

# As systemd-analyze counts, in tenths: 0 is nothing, 100 everything. Most of what is left are sockets to a server
# elsewhere, and the real users.
EXPOSURE_MAX = 15
WANTED = {
    "User": "walbus", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict",
    "ProtectHome": "yes", "PrivateTmp": "yes", "UMask": "0077", "MemoryDenyWriteExecute": "yes",
    "LimitCORE": "0", "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6", "StateDirectory": "walbus",
    "RuntimeDirectory": "walbus", "RestartPreventExitStatus": "2 4",
}
# It would make every peer one user.
UNWANTED = ("PrivateUsers", "DynamicUser")


def settings(text):
    """[(name, value)] in their order."""
    return re.findall(r"^([A-Za-z]+)=(.*)$", text, re.M)


def check_text(text):
    found = dict(settings(text))
    faults = [f"{name}={value} is wanted, not {found.get(name, 'nothing')}" for name, value in WANTED.items()
              if found.get(name) != value]
    faults += [f"{name}= must not be in it" for name in UNWANTED if name in found]
    if ("SystemCallFilter", "@system-service") not in settings(text):
        faults.append("SystemCallFilter= allows more than @system-service")
    return faults


def analyze(*arguments):
    done = subprocess.run(["systemd-analyze", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, timeout=60)
    return done.returncode, done.stdout


def exposure_fault(path):
    status, out = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", path)
    if "exposure level" not in out:
        return f"systemd-analyze security: {out[-500:]}"
    return None if status == 0 else f"more than {EXPOSURE_MAX / 10} is left open:\n" + "\n".join(
        line for line in out.splitlines() if line.startswith(("✗", "→")))


def check_with_systemd(text, walbusd):
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "walbusd.service")
        with open(path, "w", encoding="utf-8") as file:
            file.write(re.sub(r"^ExecStart=.*$", f"ExecStart={os.path.abspath(walbusd)}", text, flags=re.M))
        status, out = analyze("verify", "--man=no", path)
        # A word that it does not know it only warns of.
        faults += [f"systemd-analyze verify: {line}" for line in out.splitlines() if "walbusd.service" in line]
        if status != 0 and not faults:
            faults.append(f"systemd-analyze verify: exit {status}: {out[-500:]}")
        faults += filter(None, [exposure_fault(path)])
        with open(path, "w", encoding="utf-8") as file:
            file.write(re.sub(r"^(SystemCall|Restrict|Protect|Private)\w+=.*$", "", text, flags=re.M))
        if exposure_fault(path) is None:
            faults.append("a unit without its sandbox is not told apart")
    return faults


def main():
    path, walbusd = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    faults = check_text(text)
    if len(check_text("")) < len(WANTED):
        faults.append("nothing is missing in an empty unit")
    if shutil.which("systemd-analyze"):
        faults += check_with_systemd(text, walbusd)
    else:
        print("no systemd-analyze: it did not read the unit")
    for fault in faults:
        print(f"{os.path.basename(path)}: {fault}")
    return 1 if faults else 0


sys.exit(main())
