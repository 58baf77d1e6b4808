# What the scenarios of the guests share: the words in which results are reported, and how Kennel is started.
CGROUP=/sys/fs/cgroup
# Ids of the scenarios are written by hand, so they are years old.
export KENNEL_ID_HORIZON=87600h

# check NAME COMMAND...: reports whether the command succeeds, and what it printed where it does not.
check() {
    name=$1
    shift
    if "$@" >/tmp/said 2>&1; then
        echo "ok $name"
    else
        echo "failed $name: exit $?: $(tr '\n' '|' </tmp/said)"
    fi
}

# until_true COMMAND...: repeats the command until it succeeds, for at most a minute.
until_true() {
    rounds=0
    until "$@" >/tmp/until 2>&1; do
        rounds=$((rounds + 1))
        [ $rounds -lt 600 ] || { cat /tmp/until; return 1; }
        sleep 0.1
    done
}

# serve GROUP DIR WORD...: starts a keeper in a control group as a service manager does, and waits until it serves.
serve() {
    group=$1 dir=$2
    shift 2
    mkdir -p "$dir"
    export KENNEL_SERVER="unix:$dir/s"
    sh -c 'echo $$ >"$0/cgroup.procs" && dir=$1 && shift && exec kennel serve --data-dir "$dir/data" --listen "unix:$dir/s" "$@"' \
        "$group" "$dir" "$@" >"$dir/log" 2>&1 &
    keeper=$!
    until_true kennel status || { cat "$dir/log"; return 1; }
}

# group_of PID: its control group, as a directory.
group_of() {
    path=$CGROUP$(sed -n 's/^0:://p' "/proc/$1/cgroup")
    echo "${path%/}"
}

# end_keeper: ends it in order.
end_keeper() {
    kill "$keeper"
    wait "$keeper"
}
