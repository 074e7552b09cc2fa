# shellcheck shell=bash
# SPDX-License-Identifier: PostgreSQL
# Sourced by tests/run.sh behind tests/install.sh: has the COSE implementation of somebody else that
# test_cose_interop.py holds ours against. It comes from npm, as the servers of tests/majors.sh do, nothing of it is
# installed into the machine, and it is kept. The other one that the test uses is Debian's openssl and python3-cbor2.
#
# shellcheck disable=SC2034 # the lists are for who sources this

packages_cose=(openssl python3-cbor2)
packages_node=(nodejs)
cose_package=@auth0/cose
# Exact, so that a run can be repeated.
cose_version=1.0.2

cose_folder()
{
    echo "${XDG_CACHE_HOME:-$HOME/.cache}/walbus/cose/$cose_version"
}

# is_cose FOLDER: the package is there, whole, and what runs it too.
is_cose()
{
    grep -qsF "\"version\": \"$cose_version\"" "$1/node_modules/$cose_package/package.json" &&
        (cd "$1" && node -e "require('$cose_package').Sign1.decode") >/dev/null 2>&1
}

# cose_packages: what find_cose and the test will need of the machine.
cose_packages()
{
    printf '%s\n' "${packages_cose[@]}"
    if ! command -v node >/dev/null; then
        printf '%s\n' "${packages_node[@]}"
    fi
    # shellcheck disable=SC2154 # of tests/majors.sh
    if ! is_cose "$(cose_folder)" && ! command -v npm >/dev/null; then
        printf '%s\n' "${packages_npm[@]}"
    fi
}

# find_cose LOG: names its folder to the tests, WALBUS_TEST_COSE, unless the caller has. Whole or not at all; two runs
# at once wait for each other. No script of a package is run.
find_cose()
{
    local folder
    [ -z "${WALBUS_TEST_COSE:-}" ] || return 0
    folder=$(cose_folder)
    if ! is_cose "$folder"; then
        echo "Fetching $cose_package into $folder"
        (
            mkdir -p "$(dirname "$folder")"
            exec 9>"$folder.lock"
            flock 9
            ! is_cose "$folder" || exit 0
            rm -rf "$folder.new" "$folder"
            npm install --prefix "$folder.new" --no-save --no-package-lock --no-audit --no-fund --no-update-notifier \
                --ignore-scripts --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 3000 \
                "$cose_package@$cose_version" && is_cose "$folder.new" && mv -T "$folder.new" "$folder"
        ) >>"$1" 2>&1 || return 1
    fi
    export WALBUS_TEST_COSE=$folder
}
