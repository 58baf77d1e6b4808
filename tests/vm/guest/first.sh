# Kennel as PID 1 of the machine.
export KENNEL_SERVER=unix:/tmp/first/s
mkdir /tmp/first
(
    until_true kennel status
    check first.serve kennel status
    limits_hold first
    orphan_is_reaped() {
        kennel run --on-leader-exit drain -- sh -c '(sleep 0.3 &) ; true' || return 1
        sh -c '(sleep 0.1 &) ; true'
        until_true sh -c '! ps -o stat | grep -q Z'
    }
    check first.orphans orphan_is_reaped
    echo end
    kill 1
) &
exec kennel serve --data-dir /tmp/first/data --listen unix:/tmp/first/s >/tmp/first/log 2>&1
