# Programs that try to escape, one after the other, each aborted; what is left is looked for without asking Kennel.
echo "+memory +pids +cpu" >$CGROUP/cgroup.subtree_control
unit=$CGROUP/unit.service
mkdir $unit
setfattr -n user.delegate -v 1 $unit
check programs.serve serve $unit /tmp/kennel

# Living processes of this binary but shims, which are forked ahead.
living() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe")" = /usr/bin/kennel ] || continue
        [ "$(cat "$process/comm")" = kennel-shim ] || echo "${process#/proc/}"
    done 2>/dev/null
}

is_in_position() {
    kennel logs "$1" | grep -q up
}

number=10
ends_whole() {
    number=$((number + 1))
    run=01J000000000000000000000$number
    before=$(living)
    kennel spawn --run-id $run -- kennel naughty "$@" || return 1
    until_true is_in_position $run || return 1
    kennel abort --grace 300ms $run || return 1
    kennel get -o json $run >/tmp/run
    grep -o '"treeVerdict": *{[^}]*' /tmp/run | tr -d ' \n' >/tmp/verdict
    grep -q '"empty"' /tmp/run || { cat /tmp/run; return 1; }
    after=$(living)
    [ "$before" = "$after" ] || { echo "before: $before; after: $after"; return 1; }
}

for program in child setsid double-fork daemon no-environment overwritten own-pid-namespace leaves-cgroup own-cgroup \
    ignores-signals stopped ptraced zombie-leader closes-everything keeps-pipe kills-shim respawns fork-storm; do
    check "programs.$program" ends_whole $program
done
echo end
