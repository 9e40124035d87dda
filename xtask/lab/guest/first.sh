#!/bin/busybox sh
# The first program of the virtual machine: loads what its disk needs and hands over to it.
tool=/bin/busybox
$tool mount -t devtmpfs dev /dev
$tool mount -t proc proc /proc
$tool mount -t sysfs sys /sys
for module in /modules/*.ko; do $tool insmod "$module"; done
tries=0
until [ -b /dev/vda ] || [ $tries = 100 ]; do $tool sleep 0.1; tries=$((tries + 1)); done
$tool mount -t ext4 /dev/vda /new
for folder in dev proc sys; do $tool mount --move /$folder /new/$folder; done
# The scripts lie in a folder that the host shares, so that a change needs no new disk.
exec $tool switch_root /new /bin/bash -c '
    export PATH=/usr/sbin:/usr/bin
    modprobe -a 9pnet_virtio 9p
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 lab /lab
    exec /bin/bash /lab/guest/start.sh'
