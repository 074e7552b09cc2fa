#!/usr/bin/env bash
# SPDX-License-Identifier: PostgreSQL
# check_headers.sh INCLUDE-DIR CC CXX: each public header compiles alone, as C99 and as C++, twice in one file, without
# a warning and without any other include directory.
set -euo pipefail

include=$1 cc=$2 cxx=$3
failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

compile() { # WHAT COMPILER FLAG...
    local what=$1
    shift
    if ! "$@" -Wall -Wextra -Wundef -Wshadow -Werror -I"$include" -fsyntax-only "$folder/alone$suffix"; then
        printf '%s does not compile alone as %s\n' "$header" "$what"
        failed=1
    fi
}

count=0
for path in "$include"/walbus/*.h; do
    [ -e "$path" ] || continue
    header=walbus/${path##*/}
    count=$((count + 1))
    for suffix in .c .cc; do
        # The declaration behind it keeps the file from being empty, which C99 forbids.
        printf '#include "%s"\n#include "%s"\nextern int alone;\n' "$header" "$header" >"$folder/alone$suffix"
    done
    suffix=.c
    compile C99 "$cc" -std=c99 -pedantic -Wstrict-prototypes
    suffix=.cc
    compile C++11 "$cxx" -std=c++11 -pedantic
done
if [ "$count" -eq 0 ]; then
    printf 'no headers in %s/walbus\n' "$include"
    failed=1
fi

# The initialisers are macros: nothing above expands them.
cat >"$folder/use.c" <<'C'
#include "walbus/walbus.h"
int use(void);
int use(void)
{
    struct walbus_event event = WALBUS_EVENT_INIT;
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    return event.size > 0 && options.size > 0 && WALBUS_VERSION_NUMBER >= 100;
}
C
cp "$folder/use.c" "$folder/use.cc"
"$cc" -std=c99 -pedantic -Wall -Wextra -Werror -I"$include" -fsyntax-only "$folder/use.c" || failed=1
"$cxx" -std=c++11 -pedantic -Wall -Wextra -Werror -I"$include" -fsyntax-only "$folder/use.cc" || failed=1
exit "$failed"
