#!/bin/bash
# One file on each kind of stripes over four capped drives, read by one engine, beside the drives.
. /lab/guest/lib.sh

cp /lab/pattern $pattern
echo 0 >/run/files
rounds=3
mib=1048576

# write FILE MIB: the pattern again and again.
write() {
    local left=$2 part
    : >"$1"
    while [ "$left" -gt 0 ]; do
        part=$((left < 64 ? left : 64))
        dd if=$pattern bs=1M count=$part status=none >>"$1"
        left=$((left - part))
    done
    sync "$1"
}

stripes() {
    local drive
    for drive in "${drives[@]}"; do parts "$drive" 160M 400M rest; done
    mdadm -q --create /dev/md0 --run --metadata=1.2 --level=0 --chunk=512 --raid-devices=4 \
        "${drives[@]/%/p1}"
    volume ext4 /dev/md0 /mnt/md
    write /mnt/md/file 480
}

volumes() {
    local count
    pvcreate -q "${drives[@]/%/p2}"
    vgcreate -q group "${drives[@]/%/p2}"
    for count in 2 3 4; do
        lvcreate -q -y -n "over$count" -i "$count" -I 64k -L "$((count * 128))M" group
        volume ext4 "/dev/group/over$count" "/mnt/lvm$count"
        write "/mnt/lvm$count/file" $((count * 110))
    done
}

# Over two drives only: the emulated processor checks the sums of some 150 MB a second, no more.
members() {
    modprobe btrfs
    mkfs.btrfs -q -f -d raid0 -m raid1 "${drives[0]}p3" "${drives[2]}p3"
    mkdir -p /mnt/btrfs
    mount "${drives[0]}p3" /mnt/btrfs
    write /mnt/btrfs/file 240
}

drives=()
for name in A B C D; do drives+=("$(drive STRIPE$name)"); done
for situation in stripes volumes members; do build $situation; done
sync
words=()
for number in 0 1 2 3; do
    words+=("drive$number=${drives[$number]}:$((120 * mib))")
done
words+=("md-raid0-4=/mnt/md/file")
for count in 2 3 4; do words+=("lvm-$count=/mnt/lvm$count/file"); done
words+=("btrfs-raid0-2=/mnt/btrfs/file")
/lab/forebay map --json /mnt/*/file >$out/map.json
note "measuring, $rounds rounds"
/lab/forebay-lab rates $out/rates.json $rounds "${words[@]}" 2>/dev/console || exit 1
for name in md lvm2 lvm3 lvm4 btrfs; do
    xxhsum -q -H3 "/mnt/$name/file"
done >$out/sums.txt
{
    uname -r
    grep -m 1 'model name' /proc/cpuinfo | sed 's/.*: //'
    nproc
} >$out/machine.txt
note "measured"
