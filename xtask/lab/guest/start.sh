#!/bin/bash
# Process 1 of the virtual machine, on its own disk: makes a system around the scripts, runs the
# one that the kernel's command line names, and ends the machine.
. /lab/guest/lib.sh

end() {
    sync
    # The emulator is told to end where the machine would start again.
    echo b >/proc/sysrq-trigger
    while :; do :; done
}

mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
export HOME=/root LC_ALL=C
echo lab >/proc/sys/kernel/hostname
ip link set lo up
# Whatever hangs in here, or however the emulator was left behind: it ends.
limit=$(sed -n 's/.*lab\.seconds=\([0-9]*\).*/\1/p' /proc/cmdline)
(sleep "${limit:-600}"; note "out of time"; end) &
note "system is up"
modprobe -a nvme virtio_scsi sd_mod
/lib/systemd/systemd-udevd --daemon
# Only what can hold data: to load a module for each port and bridge takes half a minute.
udevadm trigger --action=add --subsystem-match=block --subsystem-match=nvme
udevadm settle --timeout=120
note "drives are there"
script=$(sed -n 's/.*lab\.script=\([a-z]*\).*/\1/p' /proc/cmdline)
bash "/lab/guest/$script.sh" >/lab/out/script.txt 2>&1
echo $? >/lab/out/status
note "script ended with $(cat /lab/out/status)"
end
