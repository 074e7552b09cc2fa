# SPDX-License-Identifier: PostgreSQL
"""examples/quickstart.sh as a newcomer runs it, in a copy of what it needs of the tree, with a build that is there."""

import os
import re
import shutil
import subprocess
import time

import pytest
from harness import places

SUMMARY = "All 5 events came, in order, and none of what was rolled back."
CAME = [("orders.created", 1), ("orders.created", 3), ("orders.paid", 3), ("audit.attempted", 4), ("orders.closed", 5)]


def needed_packages():
    """(All that the script looks for, those that are missing) on this machine."""
    script = '''. "$0"; mapfile -t server < <(server_packages "")
        printf '%s ' "${packages_build[@]}" "${server[@]}"; echo
        printf '%s ' $(missing_packages "${packages_build[@]}" "${server[@]}")'''
    done = subprocess.run(["bash", "-c", script, os.path.join(places.ROOT, "tests", "install.sh")], check=True,
                          stdout=subprocess.PIPE, timeout=30)
    needed, missing = done.stdout.decode().split("\n")
    return needed.split(), missing.split()


@pytest.fixture
def tree():
    """A copy of the tree's scripts; `build` is still to be made. Anybody may read it."""
    folder = places.new_folder("walbus-qs-")
    for path in ("examples/quickstart.sh", "tests/install.sh"):
        os.makedirs(os.path.join(folder, os.path.dirname(path)), 0o755, exist_ok=True)
        shutil.copy(os.path.join(places.ROOT, path), os.path.join(folder, path))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def build():
    _, missing = needed_packages()
    if missing:
        pytest.skip(f"the script would install {' '.join(missing)}: that is not for a test to do")
    found = places.plain_build() or places.build_dir()
    if not os.path.exists(os.path.join(found, "examples", "quickstart")):
        pytest.skip(f"{found} has no examples")
    return found


def quickstart(tree, **kw):
    """Runs it to the end; nothing may be left of its temporary files, whatever the outcome."""
    temporary = os.path.join(tree, "t")
    os.mkdir(temporary)
    os.chmod(temporary, 0o777)
    kw["env"] = dict(kw.get("env") or places.child_environment(), TMPDIR=temporary)
    began = time.monotonic()
    done = subprocess.run([os.path.join(tree, "examples", "quickstart.sh")], cwd="/", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False, **kw)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    done.seconds = time.monotonic() - began
    assert os.listdir(temporary) == [], done
    return done


def clusters():
    """What the machine has of PostgreSQL's clusters, as Debian's own tool and its files tell."""
    told = None
    if shutil.which("pg_lsclusters"):
        told = subprocess.run(["pg_lsclusters"], stdout=subprocess.PIPE, check=True, timeout=30).stdout
    files = [(folder, sorted(names)) for base in ("/etc/postgresql", "/var/lib/postgresql")
             for folder, _, names in sorted(os.walk(base)) if "pg_" not in folder]
    return told, files


def test_quickstart(tree, build):
    os.symlink(build, os.path.join(tree, "build"))
    # The time is meant without building.
    subprocess.run(["ninja", "-C", build], check=True, stdout=subprocess.PIPE, timeout=200)
    before = clusters()
    done = quickstart(tree)
    assert done.returncode == 0, done
    assert SUMMARY in done.stdout.splitlines()
    assert re.findall(r'^  \{.*"prefix":"([^"]*)".*"data":\{"order":(\d+)\}', done.stdout, re.M) == \
        [(prefix, str(order)) for prefix, order in CAME]
    assert done.stderr == ""
    assert done.seconds < 20
    assert clusters() == before, "a cluster of the machine was made, started or changed"


def stub_build(tree, build, application):
    """A build folder in which ninja has nothing to do, and the example is another program."""
    folder = os.path.join(tree, "build")
    os.makedirs(os.path.join(folder, "examples"))
    for name in ("cli", "daemon", "lib"):
        os.symlink(os.path.join(build, name), os.path.join(folder, name))
    with open(os.path.join(folder, "build.ninja"), "w", encoding="ascii") as f:
        f.write("build all: phony\n")
    path = os.path.join(folder, "examples", "quickstart")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\nset -eu\nwalbus={build}/cli/walbus\nquickstart={build}/examples/quickstart\n"
                f"{application}\n")
    os.chmod(path, 0o755)


@pytest.mark.parametrize("application,difference", [
    ('$walbus publish orders.discounted \'{"order":3}\'; $quickstart',
     ['+orders.discounted {"order":3}', '-orders.closed {"order":5}']),
    ('for e in created:1 created:3 paid:3 closed:5; do $walbus publish orders.${e%:*} "{\\"order\\":${e#*:}}"; done',
     ['-audit.attempted {"order":4}']),
    ('for e in created:1 paid:3 created:3 closed:5 closed:5; do $walbus publish orders.${e%:*} '
     '"{\\"order\\":${e#*:}}"; done', None),
], ids=["one more", "one less", "others"])
def test_other_events_are_noticed(tree, build, application, difference):
    stub_build(tree, build, application)
    done = quickstart(tree)
    assert done.returncode == 1, done
    assert "Not the events that should have come:" in done.stdout, done
    assert SUMMARY not in done.stdout
    if difference is not None:
        assert [line for line in done.stdout.splitlines()
                if re.match(r"[-+](orders|audit)", line)] == difference


def test_an_application_that_fails(tree, build):
    """Its status is the script's, and neither a server nor a folder of it is left."""
    stub_build(tree, build, "exit 3")
    done = quickstart(tree)
    assert done.returncode == 3, done
    assert SUMMARY not in done.stdout


def test_without_root_and_without_a_package(tree):
    """One command to be told to an administrator, and nothing done."""
    needed, _ = needed_packages()
    tools = os.path.join(tree, "tools")
    os.mkdir(tools, 0o755)
    # No sudo among them.
    for name in ("bash", "cat", "dirname", "env", "id", "mktemp", "printf", "rm", "sort"):
        os.symlink(shutil.which(name), os.path.join(tools, name))
    stub = os.path.join(tools, "dpkg-query")
    with open(stub, "w", encoding="ascii") as f:
        f.write('#!/bin/sh\nfor package; do :; done\ncase $package in libuv1-dev | meson) exit 1 ;; esac\n'
                'printf installed\n')
    os.chmod(stub, 0o755)
    done = quickstart(tree, env={"PATH": tools, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"},
                      **places.drop_privileges())
    assert done.returncode == 2, done
    assert done.stdout == ""
    commands = [line for line in done.stderr.splitlines() if "apt-get" in line]
    assert commands == ["  apt-get update && apt-get install --no-install-recommends " +
                        " ".join(p for p in needed if p in ("libuv1-dev", "meson"))], done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert not os.path.exists(os.path.join(tree, "build"))
