# Control groups with a limit of memory whose processes the kernel kills as one, as kubelet makes them for containers.
echo "+memory +pids +cpu" >$CGROUP/cgroup.subtree_control
quiet=01J0000000000000000000000G
growing=01J0000000000000000000000H
# Takes 4 MiB after 4 MiB, each in a process that holds it.
GROW='while :; do dd if=/dev/zero bs=4M 2>/dev/null | sleep 600 & sleep 0.05; done'

# serve_in NAME WORD...: starts Kennel in a group of 256 MiB.
serve_in() {
    of=$1
    shift
    mkdir "$CGROUP/$of"
    echo 268435456 >"$CGROUP/$of/memory.max"
    echo 1 >"$CGROUP/$of/memory.oom.group"
    serve "$CGROUP/$of" "/tmp/$of" "$@" || return 1
    kennel spawn --run-id $quiet -- sleep 600 || return 1
    kennel spawn --run-id $growing -- sh -c "$GROW"
}

kennel_dies_with_every_run() {
    serve_in bare || return 1
    wait "$keeper"
    code=$?
    [ $code = 137 ] || { echo "exit $code"; return 1; }
    grep "oom_group_kill [1-9]" $CGROUP/bare/memory.events
}
check reserve.without kennel_dies_with_every_run

has_ended() {
    kennel get -o json $growing >/tmp/run && grep '"endTime"' /tmp/run
}

largest_run_is_ended_before() {
    serve_in "$@" --memory-reserve 64M || return 1
    kennel status | grep "can .*memory_reserve" || { kennel status; return 1; }
    until_true has_ended || return 1
    grep '"memoryReserve"' /tmp/run || { cat /tmp/run; return 1; }
    kennel why $growing | grep "Ended by Kennel as the largest run" || return 1
    kennel get -o json $quiet >/tmp/run
    grep RUNNING /tmp/run || { cat /tmp/run; return 1; }
    grep "^oom_kill 0$" "$CGROUP/$of/memory.events" || { cat "$CGROUP/$of/memory.events"; return 1; }
    kennel abort $quiet || return 1
    end_keeper
}
check reserve.groups largest_run_is_ended_before counted
# As in a container whose control groups are read-only: the size of a run is that of its processes.
check reserve.processes largest_run_is_ended_before uncounted --cgroup off
echo end
