#!/usr/bin/env bash
# SPDX-License-Identifier: PostgreSQL
# check_symbols.sh LIBRARY LIST: the exported symbols of the library are exactly those of the list, each with a
# version node, and the list is sorted.
set -euo pipefail
export LC_ALL=C

library=$1 list=$2
failed=0
exported=$(nm --dynamic --defined-only "$library" | awk '$2 != "A" {print $3}' | sort)

unversioned=$(grep -v '@@\?WALBUS_[0-9]' <<<"$exported" || true)
if [ -n "$unversioned" ]; then
    printf 'exported without a version node:\n%s\n' "$unversioned"
    failed=1
fi
names=$(cut -d@ -f1 <<<"$exported")
added=$(comm -23 <(printf '%s\n' "$names") <(sort "$list"))
if [ -n "$added" ]; then
    printf 'exported, but not in %s (a new function needs its line there):\n%s\n' "$list" "$added"
    failed=1
fi
missing=$(comm -13 <(printf '%s\n' "$names") <(sort "$list"))
if [ -n "$missing" ]; then
    printf 'in %s, but not exported (programs that use it would no longer start):\n%s\n' "$list" "$missing"
    failed=1
fi
if ! sort --check=silent --unique "$list"; then
    printf '%s is not sorted, or has a line twice\n' "$list"
    failed=1
fi
exit "$failed"
