#!/usr/bin/env bash
# SPDX-License-Identifier: PostgreSQL
# Installs what is missing, builds with AddressSanitizer and UndefinedBehaviorSanitizer, and tests:
#
#   tests/run.sh                            everything but valgrind and fuzzing
#   tests/run.sh unit                       what `meson test` runs: units, seeds of the fuzzers, headers, symbols,
#                                           layers
#   tests/run.sh integration [ARGUMENT...]  against PostgreSQL 15; arguments go to pytest
#                                           (-k rollback, tests/integration/test_filters.py, -n 0)
#   tests/run.sh --matrix [ARGUMENT...]     the same, and what depends on the server on 14, 16, 17 and 18 too
#   tests/run.sh schedules [N] [SEED]       N schedules of faults (100) on all majors in turn; the first one drawn from SEED
#   tests/run.sh valgrind                   the unit tests and seeds under valgrind, without sanitizers
#   tests/run.sh fuzz [NAME] [SECONDS]      one fuzzer of tests/fuzz, or each, for that long (60)
#   tests/run.sh analyze                    gcc -fanalyzer and clang-tidy over the sources, some minutes; nothing of it is in ci
#   tests/run.sh ci [--matrix]              everything, each fuzzer for a few seconds
#
# The last line is `N passed, N failed, N skipped`; exit 1 when something failed. A server of one's own is named by
# the folder of its programs, WALBUS_TEST_PG_<MAJOR>; a major that cannot be had counts as failed.
# Run by `sh`, which knows no arrays: go on with bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
asan=$root/build-asan
plain=$root/build-plain
fuzz=$root/build-fuzz
thread=$root/build-thread
# Of each fuzzer in ci: 25 of them on two cores take a minute.
fuzz_ci_seconds=5
# shellcheck source=tests/install.sh
. "$root/tests/install.sh"
# shellcheck source=tests/majors.sh
. "$root/tests/majors.sh"
# shellcheck source=tests/cose.sh
. "$root/tests/cose.sh"

# build FOLDER TARGETS OPTION...: a failure shows the end of the log.
build()
{
    local folder=$1 targets=$2 log=$1/build.log
    shift 2
    mkdir -p "$folder"
    echo "Building in $folder"
    # shellcheck disable=SC2086
    if ! { { [ -f "$folder/build.ninja" ] || meson setup "$folder" "$root" -Dwerror=true "$@"; } &&
        ninja -C "$folder" $targets; } >"$log" 2>&1; then # words: no target has a blank
        tail -n 40 "$log"
        echo "Building failed; all of it is in $log"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
}

# Where the tests' servers keep their files: in memory, where there is plenty of it and nothing forbids, since a run makes
# and removes some 300 clusters and writes gigabytes of WAL. With four workers 2.2 GB were seen at its most; with six it is
# half as much again, and a message of 500 MB is among the tests.
servers_need_mb=8192
servers=
servers_in_memory()
{
    local free available most=max
    free=$(df --output=avail -B1M /dev/shm 2>/dev/null | tail -n 1) || return 0
    available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
    [ ! -r /sys/fs/cgroup/memory.max ] || most=$(cat /sys/fs/cgroup/memory.max)
    if [ "$most" != max ] && [ "$most" -lt $((servers_need_mb << 20)) ]; then
        return 0
    fi
    if [ -n "${WALBUS_TEST_DATA:-}" ] || [ "$free" -lt "$servers_need_mb" ] || [ "$available" -lt "$servers_need_mb" ]; then
        return 0
    fi
    servers=$(mktemp -d /dev/shm/walbus-XXXXXX)
    chmod 755 "$servers" # the server drops root's rights
    export WALBUS_TEST_DATA=$servers
}

# What stands in these: files for tests/summary.py, logs to name at the end.
results=()
logs=()
# What ended badly by its own word: a run that was cut short has fewer tests, not failed ones.
failed=()
trap '[ -z "$servers" ] || rm -rf "$servers"; [ -z "${valgrind:-}" ] || kill "$valgrind" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Whatever the tests need beside what builds them; at once, so that there is one command to be told.
further_packages()
{
    local what=$1 matrix=$2
    if [ "$what" = valgrind ] || [ "$what" = ci ]; then
        printf '%s\n' "${packages_valgrind[@]}"
    fi
    if [ "$what" = fuzz ] || [ "$what" = ci ]; then
        printf '%s\n' "${packages_fuzz[@]}"
    fi
    if [ -z "${WALBUS_TEST_PG_15:-}" ]; then
        server_packages 15
    fi
    if [ "$matrix" -eq 1 ]; then
        majors_packages
    fi
    case $what in
    all | integration | ci) cose_packages ;;
    esac
    if [ -z "${WALBUS_TEST_PGBOUNCER:-}" ] && [ ! -x /usr/sbin/pgbouncer ]; then
        printf '%s\n' "${packages_pgbouncer[@]}"
    fi
}

# missing SENTENCE: tests will be skipped for want of a tool. In ci that is a failure: nobody would see it.
missing()
{
    echo "$1"
    if [ "$what" = ci ]; then
        failed+=("$1")
    fi
}

# Whether this compiler has ThreadSanitizer, and this kernel runs it.
has_thread_sanitizer()
{
    mkdir -p "$thread"
    echo 'int main(void) { return 0; }' >"$thread/probe.c"
    cc -fsanitize=thread "$thread/probe.c" -o "$thread/probe" >"$thread/probe.log" 2>&1 &&
        "$thread/probe" >>"$thread/probe.log" 2>&1
}

# What follows in several threads, with ThreadSanitizer; test_subscribe_api.py skips without it.
build_for_threads()
{
    if has_thread_sanitizer; then
        build "$thread" 'examples/subscribe examples/subscribe_poll tests/integration/subscribe_api' \
            -Dtests=enabled -Db_sanitize=thread
        export WALBUS_TEST_THREAD_BUILD=$thread
    elif [ -z "${WALBUS_TEST_THREAD_BUILD:-}" ]; then
        missing "No ThreadSanitizer (see $thread/probe.log): its tests are skipped"
    fi
}

# The process that test_valgrind_begin has left behind.
valgrind=
test_valgrind_begin()
{
    local file=testlog-valgrind # meson adds the name of what wraps
    # LMDB keeps pointers into its blocks, and so does glibc for threads that have ended: "possibly lost".
    local definite='--show-leak-kinds=definite --errors-for-leak-kinds=definite'
    echo "Unit tests and seeds of the fuzzers under valgrind"
    rm -f "$plain/meson-logs/$file.json"
    CK_FORK=no WALBUS_UNIT_SPARSE=16 nice -n 10 meson test -C "$plain" --no-rebuild --suite unit --suite fuzz --timeout-multiplier 10 --logbase testlog \
        --wrap "valgrind -q --leak-check=full $definite --error-exitcode=9" --print-errorlogs >"$plain/valgrind.log" 2>&1 &
    valgrind=$!
    results+=("$plain/meson-logs/$file.json")
    logs+=("$plain/valgrind.log")
}

test_valgrind_end()
{
    wait "$valgrind" || failed+=("meson test under valgrind: exit status $?")
    valgrind=
}

test_units()
{
    echo "Unit, header, symbol and layer tests"
    rm -f "$asan/meson-logs/testlog.json"
    # Half of their time is waiting.
    meson test -C "$asan" --no-rebuild --num-processes "$((2 * $(nproc)))" --print-errorlogs >"$asan/unit.log" 2>&1 ||
        failed+=("meson test: exit status $?")
    results+=("$asan/meson-logs/testlog.json")
    logs+=("$asan/unit.log")
}

# Of the build as it is used; those with sanitizers are made without.
test_hardening()
{
    rm -f "$plain/meson-logs/testlog-hardening.json"
    meson test -C "$plain" --no-rebuild --logbase testlog-hardening --print-errorlogs hardening >"$plain/hardening.log" 2>&1 ||
        failed+=("meson test of the hardening: exit status $?")
    results+=("$plain/meson-logs/testlog-hardening.json")
    logs+=("$plain/hardening.log")
}

# test_fuzz SECONDS [NAME]
test_fuzz()
{
    local seconds=$1
    shift
    echo "Fuzzers, $seconds s each; an input that fails is kept in $fuzz/tests/fuzz/found"
    rm -f "$fuzz/meson-logs/testlog.json"
    WALBUS_FUZZ_SECONDS=$seconds meson test -C "$fuzz" --no-rebuild --suite fuzz --num-processes "$(nproc)" \
        --print-errorlogs "$@" >"$fuzz/fuzz.log" 2>&1 ||
        failed+=("meson test of the fuzzers: exit status $?")
    grep '^Kept: ' "$fuzz/fuzz.log" || true
    results+=("$fuzz/meson-logs/testlog.json")
    logs+=("$fuzz/fuzz.log")
}

# Whether a tmpfs can be mounted here.
can_mount()
{
    local folder done=1
    folder=$(mktemp -d)
    if mount -t tmpfs -o size=64k tmpfs "$folder" 2>/dev/null; then
        umount -l "$folder" && done=0
    fi
    rmdir "$folder"
    return "$done"
}

# test_integration LOG MAJORS PYTEST-ARGUMENT...
test_integration()
{
    local log=$1 targets=(tests/integration) argument major name libs found=() versions=()
    : >"$asan/majors.failed"
    results+=("$asan/majors.failed")
    for major in $2; do
        if find_server "$log" "$major"; then
            name=WALBUS_TEST_PG_$major
            libs=${name}_LIBS
            found+=("$major")
            versions+=("$(LD_LIBRARY_PATH=${!libs:-} "${!name}/initdb" --version | sed 's/.*) //; s/ .*//')")
        else
            echo "PostgreSQL $major cannot be had: $why" >>"$asan/majors.failed"
        fi
    done
    shift 2
    [ "${#found[@]}" -gt 0 ] || return 0
    if [ -z "${WALBUS_TEST_PGBOUNCER:-}" ] && [ ! -x /usr/sbin/pgbouncer ]; then
        unpack_packages "$log" "$(unpacked_folder)/pgbouncer" usr/sbin/pgbouncer pgbouncer
        WALBUS_TEST_PGBOUNCER=$(unpacked_folder)/pgbouncer/usr/sbin/pgbouncer
        export WALBUS_TEST_PGBOUNCER
    fi
    export WALBUS_TEST_BUILD=$asan WALBUS_TEST_PLAIN_BUILD=$plain WALBUS_TEST_MAJORS="${found[*]}"
    # shellcheck disable=SC2154 # of tests/cose.sh
    if [ "$what" != schedules ] && ! find_cose "$log"; then
        missing "npm did not bring $cose_package $cose_version, see $log: what it would read and sign is skipped"
    fi
    if ! command -v valgrind >/dev/null; then
        missing "No valgrind: the integration tests that need it are skipped"
    fi
    if ! can_mount; then
        missing "No right to mount a tmpfs: the schedules run without a full disk"
    fi
    echo "Integration tests on PostgreSQL ${versions[*]}"
    for argument in "$@"; do
        # A file, or a test in it, was named.
        if [ -e "${argument%%::*}" ]; then
            targets=()
        fi
    done
    rm -f "$asan/pytest.xml"
    servers_in_memory
    # Most of a test is waiting: of a core it takes a sixth.
    /usr/bin/python3 -B -m pytest -q -p no:cacheprovider -n "$((3 * $(nproc)))" --dist loadgroup \
        --junitxml="$asan/pytest.xml" "$@" "${targets[@]}" >"$asan/integration.log" 2>&1 ||
        failed+=("pytest: exit status $?")
    results+=("$asan/pytest.xml")
    logs+=("$asan/integration.log")
}

analyze()
{
    local folder=$root/build-analyze log=$root/build-analyze/setup.log
    mkdir -p "$folder"
    : >"$log"
    install_packages "$log" "${packages_build[@]}" "${packages_analyze[@]}"
    if [ ! -f "$folder/build.ninja" ] && ! CC=gcc meson setup "$folder" "$root" -Dtests=disabled >>"$log" 2>&1; then
        tail -n 40 "$log"
        return 1
    fi
    ninja -C "$folder" build.ninja >>"$log" 2>&1 && /usr/bin/python3 -B "$root/tests/analyze.py" "$folder"
}

usage()
{
    sed -n '3,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

main()
{
    local what=${1:-all} matrix=0 on=15 status=0 log=$asan/install.log extra seconds=60
    case $what in
    --matrix) set -- integration "$@" && what=integration ;;
    all | unit | integration | schedules | valgrind | fuzz | ci) ;;
    analyze) analyze && exit 0 || exit 1 ;;
    *) usage ;;
    esac
    [ "$#" -gt 0 ] && shift
    if [ "${1:-}" = --matrix ]; then
        matrix=1
        on="${majors[*]}"
        shift
    fi
    cd "$root"
    if [ "$what" = schedules ]; then
        if [ "$#" -gt 2 ] || [[ ! ${1:-0}${2:-0} =~ ^[0-9]+$ ]]; then
            usage
        fi
        export WALBUS_TEST_SCHEDULES=${1:-100} WALBUS_TEST_SEED=${2:-}
        set -- tests/integration/test_schedules.py
        matrix=1
        on="${majors[*]}"
    fi
    if [ "$what" = fuzz ]; then
        if [[ ${*: -1} =~ ^[0-9]+$ ]]; then
            seconds=${*: -1}
            set -- "${@:1:$#-1}"
        fi
        if [ "$#" -gt 1 ] || { [ "$#" -eq 1 ] && [ ! -f "tests/fuzz/fuzz_$1.c" ]; }; then
            usage
        fi
    fi

    mkdir -p "$asan"
    : >"$log"
    mapfile -t extra < <(further_packages "$what" "$matrix")
    install_packages "$log" "${packages_build[@]}" "${packages_test[@]}" "${extra[@]}"
    if [ "$what" != valgrind ] && [ "$what" != fuzz ]; then
        build "$asan" all -Dtests=enabled -Dfaults=true -Db_sanitize=address,undefined \
            -Dc_args=-fno-sanitize-recover=all
    fi
    if [ "$what" != unit ] && [ "$what" != fuzz ]; then
        build "$plain" all -Dtests=enabled # memory figures and valgrind bear no sanitizers
    fi
    if [ "$what" = fuzz ] || [ "$what" = ci ]; then
        CC=clang build "$fuzz" fuzzers -Dfuzz=true -Dtests=disabled -Db_lundef=false \
            -Db_sanitize=address,undefined -Dc_args=-fno-sanitize-recover=all
    fi
    case $what in
    all | integration | ci) build_for_threads ;;
    esac
    export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

    case $what in
    all | unit | ci) test_units ;;
    esac
    case $what in
    all | ci) test_hardening ;;
    esac
    case $what in
    fuzz) test_fuzz "$seconds" "$@" ;;
    ci) test_fuzz "$fuzz_ci_seconds" ;;
    esac
    # Valgrind is all work, and the integration tests are mostly waiting: at the same time.
    case $what in
    valgrind | ci) test_valgrind_begin ;;
    esac
    case $what in
    all | integration | schedules | ci) test_integration "$log" "$on" "$@" ;;
    esac
    if [ -n "$valgrind" ]; then
        test_valgrind_end
    fi

    /usr/bin/python3 -B "$root/tests/summary.py" "${results[@]}" >"$asan/summary.log" || status=1
    head -n -1 "$asan/summary.log"
    if [ "${#failed[@]}" -gt 0 ]; then
        status=1
        printf '%s\n' "${failed[@]}"
    fi
    printf 'Log: %s\n' "${logs[@]}"
    tail -n 1 "$asan/summary.log"
    return "$status"
}

main "$@"
