#!/bin/busybox sh
# First process of every guest: mounts, programs by name, then the scenario.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /usr/bin /root
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
chmod 1777 /tmp
# The firmware leaves its last line unended.
echo
. /words.sh
. /limits.sh
. /scenario.sh
sync
poweroff -f
