#!/bin/bash
# machine.sh CACHE SHARE SCRIPT [kvm]: runs the virtual machine with what prepare.sh made in CACHE.
# The guest sees the folder SHARE as /lab and runs SCRIPT. Every drive is a file, empty at first.
#
# `drives.txt` has the NVMe drives with one namespace: serial number, MiB, NUMA node, and whether it
# is on the node's switch with others, or on a root port of its own, there perhaps slow enough for
# something to happen in the middle of a read.
set -euo pipefail
cache=$1 share=$2 script=$3 accelerator=${4:-tcg}
drives=$cache/drives
slow=,throttling.bps-total=16000000
node_mib=1536
# Seconds after which the guest ends by itself, and the emulator at the latest.
guest_s=1500 emulator_s=1560
ports=0 slots=(0 0) words=()
rm -rf "$drives"
mkdir "$drives"

# port NODE: a fresh root port on a node, as `bus`.
port() {
    ports=$((ports + 1)) slots[$1]=$((slots[$1] + 1)) bus=port$ports
    local address
    address=$(printf '%#x' "${slots[$1]}")
    words+=(-device "pcie-root-port,id=$bus,bus=root$1,chassis=$ports,slot=$ports,addr=$address,$(
        )io-reserve=0,hotplug=off,x-speed=16,x-width=4")
}

# below_switch NODE: a fresh port below a node's switch, as `bus`.
below_switch() {
    ports=$((ports + 1)) bus=port$ports
    words+=(-device "xio3130-downstream,id=$bus,bus=switch$1,chassis=$ports,slot=$ports")
}

# backend NAME FILE [OPTIONS]
backend() {
    words+=(-drive "if=none,id=$1,file=$2,format=raw,cache=unsafe,discard=unmap${3-}")
}

# medium NAME MIB [OPTIONS]: the medium of a drive.
medium() {
    truncate -s "$2M" "$drives/$1.img"
    backend "$1" "$drives/$1.img" "${3-}"
}

words+=(-nodefaults -no-reboot -display none -monitor none -serial stdio)
case $accelerator in
    kvm) words+=(-accel kvm -cpu host) ;;
    # A processor without AVX, which takes a third less time to emulate.
    *) words+=(-accel tcg,thread=multi -cpu Nehalem) ;;
esac
words+=(-machine q35 -smp 2 -m $((2 * node_mib)))
for node in 0 1; do
    words+=(-object "memory-backend-ram,id=ram$node,size=${node_mib}M")
    words+=(-numa "node,nodeid=$node,cpus=$node,memdev=ram$node")
done
words+=(-numa dist,src=0,dst=1,val=20 -kernel "$cache/kernel" -initrd "$cache/first.cpio")
words+=(-append "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init lab.script=$script $(
    )lab.seconds=$guest_s")
words+=(-drive "if=none,id=system,file=$cache/system.img,format=raw,snapshot=on,cache=unsafe")
words+=(-device virtio-blk-pci,drive=system,serial=SYSTEM)
words+=(-fsdev "local,id=share,path=$share,security_model=none")
words+=(-device virtio-9p-pci,fsdev=share,mount_tag=lab)

# A host bridge for each NUMA node, with a switch.
words+=(-device pxb-pcie,id=root0,bus_nr=32,numa_node=0,bus=pcie.0)
words+=(-device pxb-pcie,id=root1,bus_nr=160,numa_node=1,bus=pcie.0)
for node in 0 1; do
    port $node
    words+=(-device "x3130-upstream,id=switch$node,bus=$bus")
done
while read -r serial mib node seat; do
    if [ "$seat" = switch ]; then below_switch "$node"; else port "$node"; fi
    if [ "$seat" = slow ]; then medium "$serial" "$mib" $slow; else medium "$serial" "$mib"; fi
    words+=(-device "nvme,id=nvme-$serial,serial=$serial,drive=$serial,bus=$bus")
done <"$(dirname "$0")/drives.txt"

# One namespace behind two controllers on two nodes.
medium PATHS 256 $slow
words+=(-device nvme-subsys,id=paths,nqn=paths)
for node in 0 1; do
    port $node
    words+=(-device "nvme,id=path$node,serial=PATHS,subsys=paths,bus=$bus")
done
words+=(-device nvme-ns,drive=PATHS,bus=path0,nsid=1,shared=on)

# One controller with two namespaces, the second with blocks of 4 KiB.
medium TWO1 128
medium TWO2 128
port 1
words+=(-device nvme-subsys,id=two,nqn=two)
words+=(-device "nvme,id=two-spaces,serial=TWO,subsys=two,bus=$bus")
words+=(-device nvme-ns,drive=TWO1,bus=two-spaces,nsid=1)
words+=(-device "nvme-ns,drive=TWO2,bus=two-spaces,nsid=2,logical_block_size=4096,$(
    )physical_block_size=4096")

# One SCSI disk on two buses, for a multipath volume of device-mapper.
medium SCSI0 256 ",file.locking=off$slow"
backend SCSI1 "$drives/SCSI0.img" ",file.locking=off$slow"
for number in 0 1; do
    words+=(-device "virtio-scsi-pci,id=scsi$number,bus=pcie.0")
    words+=(-device "scsi-hd,bus=scsi$number.0,drive=SCSI$number,serial=SCSI,$(
        )wwn=0x5000c50000000001,share-rw=on")
done

# It ends with the process that started this, and after a time, whatever the guest does.
ends=(setpriv --pdeathsig KILL)
exec "${ends[@]}" timeout --foreground "$emulator_s" "${ends[@]}" "$cache/qemu" "${words[@]}"
