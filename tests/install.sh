# shellcheck shell=bash
# SPDX-License-Identifier: PostgreSQL
# Sourced by tests/run.sh and examples/quickstart.sh: brings what they need to a Debian 12, and nothing
# when it is there. It never starts, makes or changes a PostgreSQL cluster of the machine: a server that
# is not installed is unpacked into a folder of its own, from Debian's package.
#
# shellcheck disable=SC2034 # the lists are for those who source this

# To build walbus.
# dpkg-dev tells meson Debian's folder for libraries.
packages_build=(gcc libc6-dev dpkg-dev meson ninja-build pkg-config
    libpq-dev libsodium-dev libcbor-dev libuv1-dev libinih-dev libjansson-dev
    libxxhash-dev liblmdb-dev)
# To test it as well.
packages_test=(g++ check binutils python3 python3-pytest python3-pytest-xdist python3-psycopg2)
packages_valgrind=(valgrind libc6-dbg)
# libFuzzer is in clang's runtime.
packages_fuzz=(clang libclang-rt-14-dev)
packages_analyze=(clang-tidy-14 python3)
# The shared libraries and data of an unpacked server and its client programs.
packages_server=(libgssapi-krb5-2 libicu72 libldap-2.5-0 liblz4-1 libpam0g libpq5 libreadline8 libselinux1
    libssl3 libstdc++6 libsystemd0 libuuid1 libxml2 libxslt1.1 libzstd1 zlib1g tzdata)
# The same of an unpacked pgbouncer.
packages_pgbouncer=(libc-ares2 libevent-2.1-7 libpam0g libssl3 libsystemd0)

pg_major=15

# Where packages are unpacked. The server drops root's rights, so it could not read below root's home.
unpacked_folder()
{
    if [ "$(id -u)" -eq 0 ]; then
        echo /var/cache/walbus
    else
        echo "${XDG_CACHE_HOME:-$HOME/.cache}/walbus"
    fi
}

missing_packages()
{
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
    done
}

# Runs a command as root; where that cannot be, prints the one command that helps and exits 2.
as_root()
{
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        sudo "$@"
    else
        return 2
    fi
}

# install_packages LOG PACKAGE...
install_packages()
{
    local log=$1 missing
    shift
    mapfile -t missing < <(missing_packages "$@")
    [ "${#missing[@]}" -eq 0 ] && return 0
    if ! as_root true; then
        echo "Packages are missing, and this is neither root nor is there a sudo. Run as root:" >&2
        echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 2
    fi
    echo "Installing ${missing[*]}"
    if ! { as_root apt-get update &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends "${missing[@]}"; } >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "Installing failed; all of it is in $log" >&2
        exit 1
    fi
}

# unpack_packages LOG FOLDER PROGRAM PACKAGE...: has PROGRAM below FOLDER, from these packages of Debian.
unpack_packages()
{
    local log=$1 folder=$2 program=$3 work
    shift 3
    [ -x "$folder/$program" ] && return 0
    echo "Unpacking $* into $folder"
    work=$(mktemp -d)
    if ! { { (cd "$work" && apt-get download "$@") ||
        { as_root apt-get update && (cd "$work" && apt-get download "$@"); }; } &&
        find "$work" -name '*.deb' -print0 | xargs -0 -I {} dpkg-deb -x {} "$work/tree" &&
        chmod 755 "$work/tree" && mkdir -p "$(dirname "$folder")" && rm -rf "$folder" &&
        mv "$work/tree" "$folder"; } >>"$log" 2>&1; then
        rm -rf "$work"
        tail -n 20 "$log" >&2
        echo "Fetching $* failed; if apt knows no such package yet, run: apt-get update" >&2
        exit 1
    fi
    rm -rf "$work"
}

# The folder of an installed server's programs, of the newest from 14 on or of the major that is asked for; nothing when
# there is none.
installed_server()
{
    local initdb version
    for initdb in $(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort -rV); do
        version=${initdb#/usr/lib/postgresql/}
        version=${version%%/*}
        if [ ! -x "$initdb" ] || [ "${version%%.*}" -lt 14 ]; then
            continue
        fi
        if [ -z "${1:-}" ] || [ "$1" = "$version" ]; then
            dirname "$initdb"
            return
        fi
    done
}

# What install_server will need of the machine: ask for all at once, so that there is one command to be told.
server_packages()
{
    if [ -z "$(installed_server "${1:-}")" ]; then
        printf '%s\n' "${packages_server[@]}"
    fi
}

# install_server LOG [MAJOR], behind install_packages: sets pg_bindir to a folder with initdb and postgres.
install_server()
{
    local log=$1 folder
    pg_bindir=$(installed_server "${2:-}")
    [ -n "$pg_bindir" ] && return 0
    folder=$(unpacked_folder)/pg/$pg_major
    unpack_packages "$log" "$folder" "usr/lib/postgresql/$pg_major/bin/initdb" \
        "postgresql-$pg_major" "postgresql-client-$pg_major"
    pg_bindir=$folder/usr/lib/postgresql/$pg_major/bin
}
