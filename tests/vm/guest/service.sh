# Kennel in the groups that a service manager gives it, on a host that systemd manages.
mkdir -p /run/systemd/system
echo "+memory +pids +cpu" >$CGROUP/cgroup.subtree_control

keeper_shim_and_server_share_the_leaf() {
    kennel spawn --run-id 01J0000000000000000000000B -- sh -c 'echo $$ >/tmp/pid; exec sleep 600' || return 1
    until_true [ -s /tmp/pid ]
    for pid in $keeper $(cat "/proc/$keeper/task/$keeper/children"); do
        [ "$(group_of "$pid")" = "$1" ] || { echo "$pid is in $(group_of "$pid")"; return 1; }
    done
    command=$(cat /tmp/pid)
    rm /tmp/pid
    case $(group_of "$command") in
        "$2"/kennel-*/run-*) ;;
        *) echo "the command is in $(group_of "$command")"; return 1 ;;
    esac
    kennel abort 01J0000000000000000000000B
}

# As `Delegate=yes` alone does: the keeper is started in the delegated group itself.
unit=$CGROUP/unit.service
mkdir $unit
setfattr -n user.delegate -v 1 $unit
check unit.serve serve $unit /tmp/unit
limits_hold unit
check unit.leaf keeper_shim_and_server_share_the_leaf $unit/kennel-keeper $unit
end_keeper
group_is_as_before() {
    [ -z "$(ls -d $unit/*/)" ] || { ls -d $unit/*/; return 1; }
    sh -c "echo \$\$ >$unit/cgroup.procs"
}
check unit.released group_is_as_before

# With `DelegateSubgroup=main` too. The keeper dies, and a run that outlives it is adopted with its limits.
sub=$CGROUP/sub.service
mkdir $sub $sub/main
setfattr -n user.delegate -v 1 $sub
check sub.serve serve $sub/main /tmp/sub
limits_hold sub
check sub.leaf keeper_shim_and_server_share_the_leaf $sub/main $sub
adopted_run_keeps_its_group() {
    run=01J0000000000000000000000C
    kennel spawn --run-id $run --recovery adopt --pids-max 7 -- sh -c 'echo $$ >/tmp/pid; exec sleep 700' || return 1
    until_true [ -s /tmp/pid ]
    command=$(cat /tmp/pid)
    before=$(group_of "$command")
    kill -9 "$keeper"
    wait "$keeper"
    serve $sub/main /tmp/sub || return 1
    [ "$(group_of "$command")" = "$before" ] && [ "$(cat "$before/pids.max")" = 7 ] || return 1
    kennel get $run | grep -i running || return 1
    kennel abort $run || return 1
    [ ! -e "/proc/$command" ] && until_true [ ! -e "$before" ]
}
check sub.adopt adopted_run_keeps_its_group
check sub.limits limit_is --pids-max 5 pids.max 5
end_keeper

# A session scope: the shell in it is no process of Kennel's, so nothing is moved, and the refusal says why.
scope=$CGROUP/session-1.scope
mkdir $scope
sleep 800 &
stranger=$!
echo $stranger >$scope/cgroup.procs
check scope.serve serve $scope /tmp/scope
shared_group_is_left_alone() {
    kennel run --pids-max 5 -- true 2>/tmp/refused
    [ $? = 125 ] || return 1
    cat /tmp/refused
    grep -q "shared with process $stranger (sleep)" /tmp/refused || return 1
    grep -q "Delegate=yes" /tmp/refused || return 1
    [ "$(group_of $stranger)" = $scope ] && [ "$(group_of "$keeper")" = $scope ] || return 1
    kennel run -- true
}
check scope.refused shared_group_is_left_alone
end_keeper
kill $stranger

# A group that is not delegated, although only Kennel is in it: systemd may change it at any time.
alone=$CGROUP/alone.service
mkdir $alone
check alone.serve serve $alone /tmp/alone
undelegated_group_is_left_alone() {
    kennel run --memory-max 67108864 -- true 2>/tmp/refused
    [ $? = 125 ] || return 1
    cat /tmp/refused
    grep -q "has not delegated it" /tmp/refused && [ "$(group_of "$keeper")" = $alone ]
}
check alone.refused undelegated_group_is_left_alone
end_keeper

# The same group where no systemd manages it.
rm -r /run/systemd
check own.serve serve $alone /tmp/own
check own.limits limit_is --pids-max 5 pids.max 5
end_keeper
check own.stay serve $alone /tmp/stay --cgroup stay
stays_where_it_is() {
    kennel run --pids-max 5 -- true 2>/tmp/refused
    [ $? = 125 ] && grep -- "--cgroup stay" /tmp/refused && [ "$(group_of "$keeper")" = $alone ]
}
check own.stayed stays_where_it_is
end_keeper
echo end
