# The escape suite in services of its own, in a group that systemd has delegated.
. /check/words.sh
suite_finds_no_lie() {
    systemd-run --quiet --wait --pipe -p Delegate=yes -p LimitNOFILE=524288 -p TasksMax=infinity --setenv=HOME=/root \
        kennel doctor --prove >/tmp/proof
    code=$?
    cat /tmp/proof >/dev/console
    [ $code = 0 ] && grep -q cgroup /tmp/proof
}
check proof.holds suite_finds_no_lie
echo end
