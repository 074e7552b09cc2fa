#!/usr/bin/env bash
# SPDX-License-Identifier: PostgreSQL
# check_install.sh BUILD-DIR CC MESON...: what `meson install` puts into a prefix is enough for a program outside the
# tree: it compiles and links by pkg-config alone, and runs.
set -euo pipefail

build=$1 cc=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

DESTDIR=$folder/root "$@" install -C "$build" --no-rebuild --quiet >"$folder/log" 2>&1 || {
    cat "$folder/log"
    printf 'meson install failed\n'
    exit 1
}
pc=$(find "$folder/root" -name walbus.pc)
if [ -z "$pc" ]; then
    printf 'no walbus.pc was installed\n'
    exit 1
fi
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# The prefix as installed, below the folder that stands for the root.
prefix=$folder/root$(pkg-config --variable=prefix walbus)
flags=(--define-variable=prefix="$prefix")

mkdir "$folder/program"
cd "$folder/program"
cat >program.c <<'C'
#include <stdio.h>
#include <string.h>
#include <walbus/walbus.h>

int main(void)
{
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *publisher = NULL;

    options.source = "/outside";
    if (walbus_version_number() != WALBUS_VERSION_NUMBER)
        return 2;
    if (walbus_publisher_new(&options, &publisher) != WALBUS_OK)
        return 3;
    if (walbus_publish_raw(publisher, NULL, "a.b", "", 0, 0, NULL) != WALBUS_BAD_ARGUMENT)
        return 4;
    publisher = walbus_publisher_free(publisher);
    return puts(walbus_version_text()) < 0;
}
C
# shellcheck disable=SC2046,SC2086 # pkg-config prints words, and the variable holds words
"$cc" -Wall -Wextra -Werror program.c -o program $(pkg-config "${flags[@]}" --cflags --libs walbus) ${WALBUS_TEST_LDFLAGS:-}

library=$(pkg-config "${flags[@]}" --variable=libdir walbus)
if ! text=$(LD_LIBRARY_PATH=$library ./program); then
    printf 'the program outside the tree failed\n'
    exit 1
fi
version=$(pkg-config --modversion walbus)
if [ "$text" != "$version" ]; then
    printf 'the library says it is %s, walbus.pc says %s\n' "$text" "$version"
    exit 1
fi
if ! readelf -d program | grep -q 'NEEDED.*\[libwalbus\.so\.0\]'; then
    printf 'the program does not ask for libwalbus.so.0\n'
    exit 1
fi
for file in operations.md format.md protocol.md examples/walbusd.service examples/walbus.conf; do
    if [ ! -f "$prefix/share/doc/walbus/$file" ]; then
        printf '%s was not installed with the documentation\n' "$file"
        exit 1
    fi
done
