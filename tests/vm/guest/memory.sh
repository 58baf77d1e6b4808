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
    kennel status | grep -i restarts && return 1
    kennel abort 01J0000000000000000000000D
}
check memory.large run_is_ended_and_kennel_stays

# A command that is small itself, and fills the memory by files: the server is the largest process by far.
small_run_is_ended_before_the_server() {
    mkdir /fill
    mount -t tmpfs -o size=100% tmpfs /fill
    kennel spawn --run-id 01J0000000000000000000000F -- \
        sh -c 'echo $$ >/tmp/pid; exec dd if=/dev/zero of=/fill/file bs=64k' || return 1
    until [ -s /tmp/pid ]; do :; done
    read -r command </tmp/pid
    # No other process is started before there is memory again.
    while [ -e "/proc/$command/exe" ]; do :; done
    umount /fill
    kennel get -o json 01J0000000000000000000000F >/tmp/run
    grep -iE 'oom_?killed' /tmp/run || { cat /tmp/run; return 1; }
    kennel status | grep -i restarts && return 1
    [ "$(cat /proc/$keeper/oom_score_adj)" = -500 ] || return 1
}
check memory.small small_run_is_ended_before_the_server
echo end
