# What a run is limited to. KENNEL_SERVER names the server.

# Prints the control group of a run and its file: run_file FLAG VALUE FILE.
run_file() {
    kennel run "$1" "$2" -- sh -c 'cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/$0"' "$3"
}

limit_is() {
    found=$(run_file "$1" "$2" "$3")
    [ "$found" = "$4" ] || { echo "$3 is $found"; return 1; }
}

memory_is_limited() {
    limit_is --memory-max 67108864 memory.max 67108864 || return 1
    kennel run --run-id 01J0000000000000000000000A --memory-max 67108864 -- \
        dd if=/dev/zero of=/dev/null bs=256M count=1
    code=$?
    [ $code = 137 ] || { echo "exit $code"; return 1; }
    kennel get -o json 01J0000000000000000000000A >/tmp/run
    grep -iE 'oom_?killed' /tmp/run || { cat /tmp/run; return 1; }
}

processes_are_limited() {
    limit_is --pids-max 4 pids.max 4 || return 1
    kennel run --pids-max 4 -- sh -c 'for i in 1 2 3 4 5 6 7 8; do sleep 60 & done' >/tmp/pids 2>&1
    # busybox and dash have different words.
    grep -E "[Cc]an('|no)t fork" /tmp/pids || { cat /tmp/pids; return 1; }
}

processor_is_limited() {
    limit_is --cpus 0.2 cpu.max "20000 100000" || return 1
    kennel run --cpus 0.2 -- timeout 30 sh -c '
        stat=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/cpu.stat
        until grep -q "nr_throttled [1-9]" "$stat"; do :; done'
}

# json_number NAME: the number of a field in /tmp/run.
json_number() {
    sed -n "s/.*\"$1\": *\"\{0,1\}\([0-9]*\).*/\1/p" /tmp/run
}

usage_is_recorded() {
    run=01J0000000000000000000000K
    kennel run --run-id $run -- dd if=/dev/zero of=/dev/null bs=32M count=4 || return 1
    kennel get -o json $run >/tmp/run
    peak=$(json_number memoryPeakBytes)
    [ "${peak:-0}" -gt 33554432 ] || { cat /tmp/run; return 1; }
    [ "$(json_number memoryKills)" = 0 ] || { cat /tmp/run; return 1; }
    # A run that a limit has kept from running, and one that the kernel has killed.
    kennel get -o json 01J0000000000000000000000A >/tmp/run
    [ "$(json_number memoryKills)" = 1 ] || { cat /tmp/run; return 1; }
    kennel get $run | grep "^cpu used .*user"
}

limits_hold() {
    check "$1.memory" memory_is_limited
    check "$1.pids" processes_are_limited
    check "$1.cpu" processor_is_limited
    check "$1.usage" usage_is_recorded
}
