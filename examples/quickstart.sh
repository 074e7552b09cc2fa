#!/usr/bin/env bash
# SPDX-License-Identifier: PostgreSQL
# From a bare Debian 12 to events that arrive: installs what is missing, builds, starts a throw-away PostgreSQL
# and a router, publishes from C (examples/quickstart.c), and shows what a subscriber gets. Exit 0 only
# if exactly the right events came; 2 when packages are missing and root is needed to install them. It takes
# no arguments.
# Run by `sh`, which knows no arrays: go on with bash.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Below `walbus dev`, which exports WALBUS_DSN and WALBUS_SOCKET.
session()
{
    local build=$1 work=$2 tail_pid i
    # The events that must come, in this order; quickstart.c says why these and no others.
    cat >"$work/expected" <<'EXPECTED'
orders.created {"order":1}
orders.created {"order":3}
orders.paid {"order":3}
audit.attempted {"order":4}
orders.closed {"order":5}
EXPECTED
    : >"$work/tail-stderr"
    "$build/cli/walbus" tail --output json --count 5 --timeout 15 >"$work/json" 2>"$work/tail-stderr" &
    tail_pid=$!
    for ((i = 0; i < 200; i++)); do
        grep -qx ready "$work/tail-stderr" && break
        sleep 0.05
    done
    echo
    echo "The application (examples/quickstart.c):"
    "$build/examples/quickstart"
    wait "$tail_pid" || true

    echo
    echo "The subscriber (walbus tail --output json):"
    sed 's/^/  /' "$work/json"
    sed -n 's/.*"prefix":"\([^"]*\)".*"data":\({[^}]*}\).*/\1 \2/p' "$work/json" >"$work/came"
    echo
    if cmp -s "$work/expected" "$work/came"; then
        echo "All 5 events came, in order, and none of what was rolled back."
        return 0
    fi
    echo "Not the events that should have come:"
    diff -u "$work/expected" "$work/came" || true
    cat "$work/tail-stderr"
    return 1
}

# The log stays when installing or building failed, since its place was named then.
work='' log='' preparing=1
clean_up()
{
    local status=$?
    rm -rf "$work"
    if [ "$preparing" -eq 0 ] || [ "$status" -ne 1 ]; then
        rm -f "$log"
    fi
}

main()
{
    local build=$root/build status=0 server
    # shellcheck source=tests/install.sh
    . "$root/tests/install.sh"
    work=$(mktemp -d)
    log=$work.log
    : >"$log"
    trap clean_up EXIT

    mapfile -t server < <(server_packages "")
    install_packages "$log" "${packages_build[@]}" "${server[@]}"
    install_server "$log"
    echo "Building in $build"
    if ! { { [ -f "$build/build.ninja" ] || meson setup "$build" "$root"; } && ninja -C "$build"; } >>"$log" 2>&1; then
        tail -n 40 "$log" >&2
        echo "Building failed; all of it is in $log" >&2
        return 1
    fi
    preparing=0
    echo "Starting a throw-away PostgreSQL ($("$pg_bindir/postgres" --version)) and walbusd"
    "$build/cli/walbus" dev --pg-bindir "$pg_bindir" -- "${BASH_SOURCE[0]}" --session "$build" "$work" || status=$?
    if [ "$status" -eq 0 ]; then
        echo "Try it yourself:  $build/cli/walbus dev --pg-bindir $pg_bindir"
    fi
    return "$status"
}

if [ "${1:-}" = --session ]; then
    session "$2" "$3"
elif [ "$#" -gt 0 ]; then
    echo "$0: what is '$1'?" >&2
    sed -n '3,6s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
else
    main
fi
