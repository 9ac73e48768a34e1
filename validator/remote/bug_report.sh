#!/bin/sh
# NVIDIA's bug report on standard output, what the script says on standard error; nothing stays on the host.
# $1: seconds that it may take  $2: bytes that it may have. Exit 127: there is no such script.
command -v nvidia-bug-report.sh >/dev/null || exit 127
seconds=$1 bytes=$2
dir=$(mktemp -d) && cd "$dir" || exit 1
trap 'rm -rf "$dir"' EXIT
# --safe-mode leaves out what may hang with the board.
timeout -k 5 "$seconds" nvidia-bug-report.sh --safe-mode --output-file "$dir/report.log" >out 2>&1
status=$?
cat report.log* 2>/dev/null | head -c "$bytes"
tail -n 5 out >&2
wc -c report.log* >&2
exit "$status"
