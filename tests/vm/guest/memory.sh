# The memory of the machine ends. No run has a limit, so the kernel chooses among all processes.
check memory.serve serve $CGROUP /tmp/kennel
# Otherwise more than there is would be refused before it is used.
echo 1 >/proc/sys/vm/overcommit_memory

run_is_ended_and_kennel_stays() {
    kennel spawn --run-id 01J0000000000000000000000D -- sleep 600 || return 1
    kennel run --run-id 01J0000000000000000000000E -- dd if=/dev/zero of=/dev/null bs=2G count=1
    code=$?
    [ $code = 137 ] || { echo "exit $code"; return 1; }
    kennel get -o json 01J0000000000000000000000E >/tmp/run
    grep -iE 'oom_?killed' /tmp/run || { cat /tmp/run; return 1; }
    kennel get -o json 01J0000000000000000000000D >/tmp/run
    grep -i RUNNING /tmp/run || { cat /tmp/run; return 1; }
    kennel abort 01J0000000000000000000000D
}
check memory.large run_is_ended_and_kennel_stays

server_pid() {
    for pid in $(cat "/proc/$keeper/task/$keeper/children"); do
        tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q ' server ' && echo "$pid"
    done
}

# Many processes of a run take the memory, and each of them is smaller than the server.
small_processes_are_ended_before_the_server() {
    run=01J0000000000000000000000F
    server=$(server_pid)
    kennel spawn --run-id $run -- sh -c '
        cat /proc/self/cgroup >/tmp/group
        for i in $(seq 120); do dd if=/dev/zero bs=6M 2>/dev/null | sleep 600 & done
        wait' || return 1
    until_true [ -s /tmp/group ]
    until_true grep "oom_kill [1-9]" "$CGROUP$(sed -n 's/^0:://p' /tmp/group)/memory.events" || return 1
    kennel abort $run || return 1
    [ -n "$server" ] && [ "$(server_pid)" = "$server" ] || { echo "the server was $server"; return 1; }
}
check memory.small small_processes_are_ended_before_the_server
echo end
