#!/usr/bin/env bash
# Makes the drives of a bar: images in memory, loop devices over them, and ext4 on each (`each`) or
# btrfs over all (`striped`). A control group of version 1 caps the reads of the processes in it.
# About a tenth of a second's worth passes uncapped after a pause.
#
#   drives.sh make FOLDER GROUP each|striped MIB RATE...    FOLDER/0, FOLDER/1, ... are mounted
#   drives.sh remove FOLDER GROUP
set -euo pipefail
verb=$1 folder=$2 group=$3
shift 3
if [ "$verb" = remove ]; then
    umount --recursive "$folder" || umount --recursive --lazy "$folder"
    for _ in {1..500}; do rmdir "$group" 2>/dev/null && break || sleep 0.01; done
    exit
fi
kind=$1 mib=$2
shift 2
rmdir "${group%/*}"/forebay-bars-* 2>/dev/null || true # of killed runs; one in use is refused
mkdir "$group"
mount -t tmpfs -o size=90% forebay-bars "$folder"
devices=()
# The kernel frees a device with its mount.
trap '[ ${#devices[@]} = 0 ] || losetup --detach "${devices[@]}"' EXIT
for rate; do
    number=${#devices[@]}
    truncate -s "${mib}M" "$folder/$number.image"
    devices+=("$(losetup --show --find --direct-io=on "$folder/$number.image")")
done
if [ "$kind" = striped ]; then
    mkfs.btrfs -q -f -d raid0 -m raid1 "${devices[@]}"
    mkdir "$folder/0"
    mount -t btrfs -o noatime "${devices[0]}" "$folder/0"
else
    for number in "${!devices[@]}"; do
        # No initialisation is left for after the mount, which would disturb the measurement.
        mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 "${devices[number]}"
        mkdir "$folder/$number"
        mount -t ext4 -o noatime "${devices[number]}" "$folder/$number"
    done
fi
for device in "${devices[@]}"; do
    echo "$(lsblk --nodeps --noheadings --output MAJ:MIN "$device" | tr -d ' ') $1" \
        >"$group/blkio.throttle.read_bps_device"
    shift
done
