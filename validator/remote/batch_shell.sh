#!/bin/sh
# The loop of the batching shell (validator/transport/shell.py). `sh` reads it from standard input, behind
# kill_marked.sh and a line that sets `mark`, which is unique to the shell; batches follow on the same input.
#
# A batch is text that shell.py composes of these functions: up to four workers in the background, each a list of
# validator_run lines, and validator_watch in the foreground; then validator_frame prints the answers.
#
# Files in $dir:  worker.N   what worker N runs: number of the command, end of its time, process id
#                 N.out N.err N.status   outputs of command N; its exit status and times
#                 sleeper    process id of the watchdog's sleep;  done   all workers have ended
# Times are the host's uptime in hundredths of a second. Everything inside is ended by SIGKILL: a process that is
# just being made can lose a signal that is trapped here.
: "${mark:?}"
umask 077
workers=
worker=
sleeper=
second=

# In memory, for this user alone, gone when the shell goes.
for parent in /dev/shm /run /tmp; do
    dir=$(mktemp -d "$parent/validator.XXXXXX" 2>/dev/null) && break
done
[ -d "$dir" ] || exit 125

# A shell that ends within a batch ends the workers too, with all that they have started.
trap 'test -z "$workers" || { kill -9 "$sleeper"; validator_kill ".*" "$workers"; } 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' HUP TERM PIPE

# Sets `now`. Without a process: /proc/uptime holds "seconds.hundredths …".
validator_clock() {
    read -r now _ </proc/uptime
    now=${now%.*}${now#*.}
    now=${now#0}
}

# validator_kill NUMBER PID: ends command NUMBER: PID with its descendants, and all that carries the command's mark.
validator_kill() {
    tree=$2 known=
    while [ "$tree" != "$known" ]; do
        known=$tree
        for stat in /proc/[0-9]*/stat; do
            # "pid (name) state parent …"; a name may hold spaces and brackets.
            read -r line <"$stat" || continue
            pid=${line%% *}
            line=${line##*) }
            line=${line#* }
            case " $tree " in
            *" $pid "*) ;;
            *" ${line%% *} "*) tree="$tree $pid" ;;
            esac
        done
    done
    # shellcheck disable=SC2086  # one word a process
    kill -9 $tree
    validator_kill_marked "$mark-$1"
} 2>/dev/null

# validator_run NUMBER HUNDREDTHS TEXT: runs one command in the worker $worker.
# Prints a dot at most once a second: the sign that this host is alive.
validator_run() {
    validator_clock
    started=$now
    (
        export VALIDATOR_MARK="$mark-$1"
        eval "$3"
    ) >"$dir/$1.out" 2>"$dir/$1.err" </dev/null &
    pid=$!
    echo "$1 $((started + $2)) $pid" >"$dir/worker.$worker"
    wait "$pid"
    status=$?
    : >"$dir/worker.$worker"
    validator_clock
    echo "$status $started $now" >"$dir/$1.status"
    [ "${now%??}" = "$second" ] || {
        second=${now%??}
        printf .
    }
}

# validator_watch HUNDREDTHS: holds the deadlines of a batch, of which HUNDREDTHS is the shortest, until it is done.
# One watchdog a batch: a `timeout` a command would cost one more process each.
validator_watch() {
    pause=$1
    while :; do
        pause=$((pause + 5))
        sleep $((pause / 100)).$((pause / 10 % 10))$((pause % 10)) &
        sleeper=$!
        echo "$sleeper" >"$dir/sleeper"
        # The workers may have ended before they could know which sleep to end.
        [ ! -e "$dir/done" ] || kill -9 "$sleeper"
        wait "$sleeper"
        [ ! -e "$dir/done" ] || return
        pause=$1
        validator_clock
        for file in "$dir"/worker.*; do
            read -r number end pid <"$file" || continue
            if [ "$now" -ge "$end" ]; then
                (validator_kill "$number" "$pid")
            elif [ $((end - now)) -lt "$pause" ]; then
                pause=$((end - now))
            fi
        done
    done
} 2>/dev/null

# Last act of the group of workers: ends the watchdog's sleep.
validator_done() {
    wait
    : >"$dir/done"
    read -r sleeper <"$dir/sleeper"
    kill -9 "$sleeper"
}

# validator_frame NUMBER…: prints the answers: a line of status and times for each command, the sizes of their outputs,
# a line with the mark, then the outputs themselves.
validator_frame() {
    # The list of the loop is fixed when it begins: each turn replaces one number by two file names.
    for number; do
        read -r status <"$dir/$number.status"
        set -- "$@" "$dir/$number.out" "$dir/$number.err"
        printf '\n%s' "$status"
        shift
    done
    echo
    stat -c %s "$@"
    printf '\n%s end\n' "$mark"
    cat "$@"
    rm -f "$dir"/*
}

printf '\n%s ready %s\n' "$mark" "$(id -u)"
