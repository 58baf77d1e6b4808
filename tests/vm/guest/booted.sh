# Kennel as a service of a booted systemd, by the units and drop-ins of deploy/systemd.
. /check/words.sh
. /check/limits.sh
units=/check/units
version=$(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p')
echo "systemd $version"
export KENNEL_SERVER=unix:/run/kennel/kennel.sock

of_unit() { systemctl show -P "$1" kennel; }
main_is() { [ "$(of_unit MainPID)" = "$1" ]; }
server() { pgrep -P "$(of_unit MainPID)" -f 'exe server'; }
is_running() { kennel get "$1" | grep -i running; }
active() { [ "$(of_unit ActiveState)" = active ] || { systemctl status -n 30 kennel; return 1; }; }

# drop_in NAME...: the unit with these drop-ins and no others, restarted.
drop_in() {
    systemctl stop kennel
    rm -rf /etc/systemd/system/kennel.service.d
    for each in "$@"; do
        install -D -m 644 $units/kennel.service.d/$each.conf /etc/systemd/system/kennel.service.d/$each.conf
    done
    # An emulated machine is slow, and slower on a busy host.
    install -D -m 644 /dev/stdin /etc/systemd/system/kennel.service.d/emulated.conf <<<$'[Service]\nTimeoutStartSec=infinity\nEnvironment=KENNEL_ID_HORIZON=87600h'
    systemctl daemon-reload
    systemd-analyze verify kennel.service 2>&1 | grep -v DelegateSubgroup | grep kennel && return 1
    systemctl reset-failed kennel 2>/dev/null
    systemctl start kennel || { systemctl status -n 30 kennel; return 1; }
    active && until_true kennel status
}

install -m 644 $units/kennel.service /etc/systemd/system/kennel.service
starts_and_is_ready() {
    drop_in || return 1
    [ "$(of_unit StatusText)" = serving ] || { of_unit StatusText; return 1; }
}
check unit.ready starts_and_is_ready

keeper_is_in_the_leaf() {
    group=$(group_of "$(of_unit MainPID)")
    [ "$group" = $CGROUP/system.slice/kennel.service/kennel-keeper ] || { echo "$group"; return 1; }
    if [ "$version" -ge 254 ]; then
        [ "$(of_unit DelegateSubgroup)" = kennel-keeper ]
    else
        journalctl -b | grep "Unknown key.*DelegateSubgroup"
    fi
}
check unit.leaf keeper_is_in_the_leaf
limits_hold unit
service_outlives_run_without_memory() { active && [ "$(of_unit NRestarts)" = 0 ]; }
check unit.oom service_outlives_run_without_memory

reload_replaces_the_server() {
    main=$(of_unit MainPID) server=$(server) run=01J000000000000000000000R1
    kennel spawn --run-id $run -- sleep 600 || return 1
    systemctl reload kennel || { systemctl status -n 30 kennel; return 1; }
    main_is "$main" && [ "$(server)" != "$server" ] && is_running $run && kennel abort $run
}
check unit.reload reload_replaces_the_server

watchdog_restarts_a_halted_keeper() {
    main=$(of_unit MainPID) run=01J000000000000000000000R2
    kennel spawn --run-id $run -- sh -c 'echo $$ >/tmp/command; exec sleep 600' || return 1
    until_true [ -s /tmp/command ]
    kill -STOP "$main"
    until_true sh -c '[ "$(systemctl show -P NRestarts kennel)" = 1 ]' || { systemctl status kennel; return 1; }
    until_true kennel status || return 1
    active && ! main_is "$main" && [ ! -e "/proc/$(cat /tmp/command)" ] || return 1
    journalctl -b -u kennel | grep -i watchdog && ! is_running $run
}
check unit.watchdog watchdog_restarts_a_halted_keeper

socket_starts_the_service() {
    drop_in || return 1
    systemctl stop kennel
    install -m 644 $units/kennel.socket /etc/systemd/system/kennel.socket
    systemctl daemon-reload
    systemctl start kennel.socket || return 1
    [ "$(of_unit ActiveState)" = inactive ] || return 1
    until_true kennel status || { systemctl status -n 30 kennel; return 1; }
    active && kennel run -- sh -c 'ls /proc/$$/fd' >/tmp/fds && [ "$(tr '\n' ' ' </tmp/fds)" = "0 1 2 " ]
}
check socket.start socket_starts_the_service
socket_survives_stop_and_reload() {
    run=01J000000000000000000000R3 server=$(server)
    systemctl reload kennel || { systemctl status -n 30 kennel; return 1; }
    [ "$(server)" != "$server" ] && until_true kennel status || return 1
    systemctl stop kennel.service && kennel spawn --run-id $run -- sleep 600 && active || return 1
    systemctl restart kennel & kennel ps || return 1
    wait $!
    active && ! is_running $run
}
check socket.stay socket_survives_stop_and_reload
wrong_socket_is_refused() {
    systemctl stop kennel.socket kennel.service
    sed -i s/SocketMode=0600/SocketMode=0666/ /etc/systemd/system/kennel.socket
    systemctl daemon-reload
    systemctl start kennel.socket || return 1
    ! systemctl start kennel && [ "$(of_unit ExecMainStatus)" = 2 ] && [ "$(of_unit NRestarts)" = 0 ] || return 1
    journalctl -b -u kennel | grep "mode 0666, and --listen says 0600"
}
check socket.refused wrong_socket_is_refused
systemctl stop kennel.socket
rm /etc/systemd/system/kennel.socket
systemctl daemon-reload

runs_as_its_user() {
    export KENNEL_SERVER_USER=1000
    drop_in user || return 1
    [ "$(kennel run -- id -u)" = 1000 ] && limit_is --pids-max 5 pids.max 5
}
check user.limits runs_as_its_user
unset KENNEL_SERVER_USER

has_capabilities_that_it_uses() {
    drop_in bounded || return 1
    kennel status
    [ "$(kennel run --user 1000:1000 -- id -u)" = 1000 ] || return 1
    kennel run -- grep CapBnd /proc/self/status && kennel run --cap-drop ALL -- true && kennel run --pid-namespace private -- true &&
        limit_is --pids-max 5 pids.max 5
}
check bounded.run has_capabilities_that_it_uses

store_is_a_credential() {
    install -D -m 600 /dev/stdin /etc/kennel/store <<<"sqlite:/var/lib/kennel/by-credential.db"
    drop_in postgres && kennel run -- true && [ -s /var/lib/kennel/by-credential.db ]
}
check store.credential store_is_a_credential

run_outlives_restart() {
    [ "$version" -ge 254 ] || sed -i s/^#Environment/Environment/ $units/kennel.service.d/adopt.conf
    drop_in adopt || return 1
    run=01J000000000000000000000R4
    rm -f /tmp/command
    kennel spawn --run-id $run --recovery adopt -- sh -c 'echo $$ >/tmp/command; while :; do echo line; sleep 1; done' || return 1
    kennel spawn --run-id 01J000000000000000000000R5 -- sleep 600 || return 1
    until_true [ -s /tmp/command ]
    main=$(of_unit MainPID)
    systemctl restart kennel || { systemctl status -n 30 kennel; return 1; }
    active && ! main_is "$main" && is_running $run && [ -e "/proc/$(cat /tmp/command)" ] || return 1
    ! is_running 01J000000000000000000000R5 || return 1
    kennel abort $run && [ ! -e "/proc/$(cat /tmp/command)" ]
}
check adopt.restart run_outlives_restart
systemctl stop kennel

as_user() { runuser -u kennel -- env HOME=/home/kennel XDG_RUNTIME_DIR=/run/user/1000 "PATH=$PATH" "$@"; }
unset KENNEL_SERVER
unit_of_a_user_serves() {
    install -D -m 644 $units/user/kennel.service /home/kennel/.config/systemd/user/kennel.service
    chown -R kennel: /home/kennel
    loginctl enable-linger kennel || return 1
    until_true [ -S /run/user/1000/systemd/private ] || { systemctl status user@1000; return 1; }
    as_user systemctl --user start kennel || { as_user systemctl --user status -n 30 kennel; return 1; }
    until_true as_user kennel status && [ "$(as_user kennel run -- id -u)" = 1000 ] || return 1
    as_user kennel run --pids-max 5 -- sh -c 'cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/pids.max"' >/tmp/max 2>&1
    if [ "$version" -ge 254 ]; then
        grep '^5$' /tmp/max
    else
        # Its manager of users does not mark the groups that it delegates.
        grep "has not delegated it" /tmp/max
    fi
}
check user.unit unit_of_a_user_serves
echo end
