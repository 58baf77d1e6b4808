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

echo end
