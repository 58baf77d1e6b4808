# PID 1 of the container: a shell, as an entrypoint script is, with Kennel and another process beside it.
. /words.sh
. /limits.sh
mount -t proc proc /proc
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
touch /tmp/inside
until_true [ -e /tmp/alone ]
sleep 900 &
neighbour=$!
check container.serve serve $CGROUP /tmp/container
limits_hold container
everything_is_in_the_leaf() {
    for pid in 1 $neighbour $keeper; do
        [ "$(group_of $pid)" = $CGROUP/kennel-keeper ] || { echo "$pid is in $(group_of $pid)"; return 1; }
    done
}
check container.leaf everything_is_in_the_leaf
# The keeper dies, and the entrypoint starts it again from within the leaf.
kill -9 $keeper
wait $keeper
check container.again serve $CGROUP/kennel-keeper /tmp/container
check container.limits limit_is --pids-max 5 pids.max 5
end_keeper
kill $neighbour
