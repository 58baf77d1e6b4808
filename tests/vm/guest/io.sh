# Transfers of runs with a disk: limited, and counted in the record.
echo "+memory +pids +cpu +io" >$CGROUP/cgroup.subtree_control
mkdir $CGROUP/unit
setfattr -n user.delegate -v 1 $CGROUP/unit
check io.serve serve $CGROUP/unit /tmp/kennel

# read_bytes ID: what the record of a run says that it has read.
read_bytes() {
    kennel get -o json "$1" >/tmp/run || return 1
    sed -n 's/.*"ioReadBytes": *"\{0,1\}\([0-9]*\).*/\1/p' /tmp/run
}

# Each reads the disk from its beginning for as long as the other: what is read counts, not the time.
limited_run_reads_less() {
    limited=01J0000000000000000000000M
    unlimited=01J0000000000000000000000N
    kennel run --run-id $limited --io-read-bps /dev/nvme0n1:1M -- \
        timeout 5 dd if=/dev/nvme0n1 of=/dev/null bs=64k
    echo 3 >/proc/sys/vm/drop_caches
    kennel run --run-id $unlimited -- timeout 5 dd if=/dev/nvme0n1 of=/dev/null bs=64k
    few=$(read_bytes $limited) many=$(read_bytes $unlimited)
    echo "limited $few, unlimited $many"
    [ "${few:-0}" -gt 0 ] && [ "$few" -lt 16777216 ] && [ "${many:-0}" -gt 33554432 ]
}
check io.limited limited_run_reads_less

limit_is_of_the_disk() {
    kennel run --io-write-bps /dev/nvme0n1:2M --io-read-iops /dev/nvme0n1:50 -- sh -c '
        cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/io.max"' >/tmp/max || return 1
    grep "rbps=max wbps=2097152 riops=50 wiops=max" /tmp/max || { cat /tmp/max; return 1; }
}
check io.disk limit_is_of_the_disk

path_without_disk_is_refused() {
    kennel run --io-read-bps /tmp:1M -- true >/tmp/refused 2>&1 && return 1
    grep "/tmp" /tmp/refused || { cat /tmp/refused; return 1; }
}
check io.refused path_without_disk_is_refused
end_keeper
echo end
