# Gives the machine to systemd, on the disk's file system, with Kennel and its units installed as their heads say.
mkdir /disk
mount -t ext4 /dev/nvme0n1 /disk
mkdir -p /disk/usr/local/bin /disk/check
cp /usr/bin/kennel /disk/usr/local/bin/kennel
cp -r /words.sh /limits.sh /booted.sh /units /disk/check/
cat >/disk/etc/systemd/system/kennel-check.service <<END
[Unit]
After=multi-user.target
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=/bin/bash /check/booted.sh
StandardOutput=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
END
mkdir -p /disk/etc/systemd/system/multi-user.target.wants
ln -s ../kennel-check.service /disk/etc/systemd/system/multi-user.target.wants/
umount /run /tmp /sys/fs/cgroup /dev/pts
for each in /dev /sys /proc; do
    umount -l $each
done
exec switch_root /disk /sbin/init
