#!/bin/sh
# Prints NVIDIA's bug report, and the last output of its script on standard error. Leaves no file on the host.
# $1: time limit in seconds  $2: size limit in bytes. Exit 127: the script is not installed.
command -v nvidia-bug-report.sh >/dev/null || exit 127
seconds=$1 bytes=$2
dir=$(mktemp -d) && cd "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
# --safe-mode leaves out commands that can hang with the GPU.
timeout -k 5 "$seconds" nvidia-bug-report.sh --safe-mode --output-file "$dir/report.log" >out 2>&1
status=$?
cat report.log* 2>/dev/null | head -c "$bytes"
tail -n 5 out >&2
wc -c report.log* >&2
exit "$status"
