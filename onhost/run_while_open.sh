#!/bin/sh
# $1: a command. Runs it, and kills it when standard input ends: without a terminal sshd sends no signal when a channel
# is closed, so a reader of the input notices it.
exec 3<&0
sh -c "$1" </dev/null 3<&- &
command=$!
{
    cat <&3 >/dev/null 2>&1
    kill "$command"
} >/dev/null 2>&1 &
reader=$!
wait "$command"
status=$?
kill "$reader" 2>/dev/null
exit "$status"
