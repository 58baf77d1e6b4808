# Commands that leave a durable mark as the first thing they do, until the machine loses its power. The disk is what
# outlives it: every mark must have a row then.
mkdir -p /disk
mount -t ext4 /dev/nvme0n1 /disk
mkdir -p /disk/marks
sync
check power.serve serve $CGROUP /disk/kennel

every_mark_has_a_row() {
    marks=0
    for mark in /disk/marks/*; do
        [ -e "$mark" ] || continue
        run=${mark##*/}
        kennel get "$run" >/dev/null || { echo "no row of run $run"; return 1; }
        marks=$((marks + 1))
    done
    echo "marks $marks" >/dev/console
    [ -z "$(kennel ps | grep -i running)" ] || { kennel ps; return 1; }
}
check power.rows every_mark_has_a_row

spawn_for_ever() {
    while :; do
        kennel spawn -- sh -c '
            mark=/disk/marks/$KENNEL_RUN_ID
            echo $$ >$mark && sync $mark /disk/marks && echo "marked $KENNEL_RUN_ID" >/dev/console' >/dev/null
    done
}
spawn_for_ever &
spawn_for_ever &
spawn_for_ever &
wait
