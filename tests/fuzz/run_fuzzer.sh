#!/usr/bin/env bash
# SPDX-License-Identifier: PostgreSQL
# run_fuzzer.sh PROGRAM SEEDS: one fuzzer for WALBUS_FUZZ_SECONDS (10), on a copy of its corpus that grows from run to
# run (corpus/NAME in the build folder of the fuzzer). An input that fails is kept, and named in the last line.
set -uo pipefail

program=$(realpath "$1") seeds=$2
name=$(basename "$seeds")
folder=$(dirname "$program")
grown=$folder/corpus/$name
found=$folder/found/$name
mkdir -p "$grown" "$found"
started=$(mktemp -p "$folder")

# A single input takes some ms; one that takes 10 s is a finding.
"$program" -max_total_time="${WALBUS_FUZZ_SECONDS:-10}" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
    -print_final_stats=1 -artifact_prefix="$found/" "$grown" "$seeds"
status=$?
# What a fuzzer finds is written to a file by itself.
find "$found" -type f -newer "$started" -printf 'Kept: %p\n'
rm -f "$started"
# libFuzzer's own status for a crash is 77, which says "skipped" to Meson.
[ "$status" -eq 0 ] || exit 1
