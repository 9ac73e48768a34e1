#!/bin/sh
# The loop of the batching shell (validator/transport/shell.py). `sh` reads it from standard input, after a line that
# sets `mark` (unique to the shell) and `limit` (bytes of output of a command), and kill_marked.sh; batches follow on the
# same input.
#
# shell.py composes a batch of calls of these functions: up to four workers in the background, each a list of
# validator_run and validator_run_together lines, and validator_watch in the foreground; then validator_frame prints the
# results. validator_begin comes first.
#
# Files in $dir:  worker.N   what worker N runs: number of the command, end of its time, process id
#                 N.out N.err N.status   outputs of command N; its exit status and times, once it has ended
#                 sleeper    process id of the watchdog's sleep;  done   all workers have ended
# Times are the host's uptime in hundredths of a second. Processes are ended by SIGKILL: a process that is just being
# created can lose a signal that this shell traps.
: "${mark:?}" "${limit:?}"
# Of what the shell itself keeps; commands run with the user's own.
users_umask=$(umask)
umask 077
# Checks read English: `stat -c %F`, rpm's "is not installed". The image's own locale may be another.
unset LANGUAGE
export LC_ALL=C.UTF-8
workers=
stale=
worker=
sleeper=
second=
step=100

# A directory in memory, readable only by this user and removed when the shell exits.
for parent in /dev/shm /run /tmp; do
    dir=$(mktemp -d "$parent/validator.XXXXXX" 2>/dev/null) && break
done
[ -d "$dir" ] || exit 125

# If the shell exits during a batch, it also kills the workers and everything that they have started.
trap 'test -z "$workers" || { kill -9 "$sleeper"; validator_kill ".*" "$workers"; } 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' HUP TERM PIPE

# Sets `now` without a new process: /proc/uptime contains "seconds.hundredths …".
validator_clock() {
    read -r now _ </proc/uptime
    now=${now%.*}${now#*.}
    now=${now#0}
}

# validator_kill NUMBER PID: kills command NUMBER: PID, its descendants, and every process with the command's mark. What is
# found is stopped at once, so that nothing starts another process that the next look does not find.
validator_kill() {
    tree=$2 known=
    while [ "$tree" != "$known" ]; do
        known=$tree
        # shellcheck disable=SC2086  # one word a process
        kill -STOP $tree
        for stat in /proc/[0-9]*/stat; do
            # "pid (name) state parent …"; a name can contain spaces and brackets.
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
validator_run() {
    validator_clock
    started=$now
    (
        umask "$users_umask"
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
    validator_dot
}

# validator_run_together HUNDREDTHS NUMBER TEXT [NUMBER TEXT]…: runs commands that start no process, and change nothing, in
# one subshell: a process for each takes longer than the command. HUNDREDTHS: the deadline of each. If one of them hangs,
# the subshell is killed, and those that have not ended run again, each in its own.
validator_run_together() {
    each=$1
    shift
    validator_clock
    (
        umask "$users_umask"
        while [ $# -gt 0 ]; do
            started=$now
            eval "$2" >"$dir/$1.out" 2>"$dir/$1.err"
            status=$?
            validator_clock
            echo "$status $started $now" >"$dir/$1.status"
            shift 2
        done
    ) </dev/null &
    pid=$!
    echo "$1 $((now + each)) $pid" >"$dir/worker.$worker"
    wait "$pid"
    : >"$dir/worker.$worker"
    validator_clock
    validator_dot
    while [ $# -gt 0 ]; do
        [ -e "$dir/$1.status" ] || validator_run "$1" "$each" "$2"
        shift 2
    done
}

# Prints a dot, which shows that the host is alive: at most one in a second, of `now`.
validator_dot() {
    [ "${now%??}" = "$second" ] || {
        second=${now%??}
        printf .
    }
}

# Sets `large` to " N N ": the commands that have written more than the limit.
validator_large() {
    large=" "
    for file in $(stat -c %s:%n "$dir"/*.out "$dir"/*.err); do
        [ "${file%%:*}" -le "$limit" ] || {
            file=${file##*/}
            large="$large${file%.*} "
        }
    done
}

# validator_watch HUNDREDTHS: enforces the deadlines of a batch, and the limit of its outputs each second (on a slow host,
# where a look takes long, each four at most: it should not take more than a fiftieth of the time), until it is done.
# HUNDREDTHS: the shortest deadline. One watchdog for the whole batch: `timeout` would cost one more process for each
# command, and `ulimit -f` would also limit the files that a command writes elsewhere.
validator_watch() {
    pause=$1
    while :; do
        [ "$pause" -le "$step" ] || pause=$step
        pause=$((pause + 5))
        sleep $((pause / 100)).$((pause / 10 % 10))$((pause % 10)) &
        sleeper=$!
        echo "$sleeper" >"$dir/sleeper"
        # The workers may have ended before `sleeper` was written.
        [ ! -e "$dir/done" ] || kill -9 "$sleeper"
        wait "$sleeper"
        [ ! -e "$dir/done" ] || return
        pause=$1
        validator_clock
        step=$((-50 * now))
        validator_large
        validator_clock
        step=$((step + 50 * now))
        [ "$step" -ge 100 ] || step=100
        [ "$step" -le 400 ] || step=400
        for file in "$dir"/worker.*; do
            read -r number end pid <"$file" || continue
            case "$large" in
            *" $number "*) end=0 ;;
            esac
            if [ "$now" -ge "$end" ]; then
                (validator_kill "$number" "$pid")
            elif [ $((end - now)) -lt "$pause" ]; then
                pause=$((end - now))
            fi
        done
    done
} 2>/dev/null

# Runs when all workers have ended: ends the sleep of the watchdog.
validator_done() {
    wait
    : >"$dir/done"
    read -r sleeper <"$dir/sleeper"
    kill -9 "$sleeper"
}

# Removes the files of the batch before. Not at the batch's end: most shells run one, and remove all when they exit.
validator_begin() {
    [ -z "$stale" ] || rm -f "$dir"/*
    stale=
}

# validator_frame NUMBER…: prints the results: a line of status and times for each command, the sizes of their outputs,
# a line with the mark, then the outputs.
validator_frame() {
    # The list of the loop is fixed when it begins: each pass replaces one number by two file names.
    for number; do
        read -r status <"$dir/$number.status"
        set -- "$@" "$dir/$number.out" "$dir/$number.err"
        printf '\n%s' "$status"
        shift
    done
    echo
    sizes=$(stat -c %s "$@")
    for size in $sizes; do
        [ "$size" -le "$limit" ] && continue
        # One byte more than the limit shows that something is missing.
        for file; do
            [ "$(stat -c %s "$file")" -le "$limit" ] || truncate -s "$((limit + 1))" "$file"
        done
        sizes=$(stat -c %s "$@")
        break
    done
    echo "$sizes"
    printf '\n%s end\n' "$mark"
    cat "$@"
    stale=yes
}
