#!/bin/bash
# One function for each way to put a file system on drives. `expect` says what is under a file by
# how it was made here: no program reports it.
#
# Keys: `of` (what it is an example of), `drives` (serial numbers), `layout`, `step` (a kind of step
# that must be there, with a fact), `warn` (a rule that must have found something), `route` (a part
# of the route of a cold read), `placed` (whether the map must say where all bytes lie; that they
# do lie there is looked at in any case).

situations=(
    plain stripes mirror parity mirrored_stripes row volumes striped_volume thin snapshot nested
    members encrypted shared two_spaces loop stacked memory links own_disk two_buses fabric
    network pulled
)

plain() {
    local drive
    drive=$(drive PLAIN)
    parts "$drive" rest
    volume ext4 "${drive}p1" /mnt/plain
    fill /mnt/plain/file
    expect /mnt/plain/file of=partition placed=yes drives=PLAIN layout=single step=partition
    fill /mnt/plain/small 1
    expect /mnt/plain/small of=partition drives=PLAIN layout=single
}

# Drives of this one lie below the switches of both nodes.
stripes() {
    mdadm -q --create /dev/md0 --run --metadata=1.2 --level=0 --chunk=128 --raid-devices=4 \
        "$(drive STRIPEA)" "$(drive STRIPEB)" "$(drive STRIPEC)" "$(drive STRIPED)"
    volume xfs /dev/md0 /mnt/stripes
    fill /mnt/stripes/file 24
    expect /mnt/stripes/file of=md-raid0 placed=yes layout=striped \
        drives=STRIPEA,STRIPEB,STRIPEC,STRIPED step=md:level=raid0 step=md:chunk_bytes=131072
}

mirror() {
    local first second
    first=$(drive MIRRORA) second=$(drive MIRRORB)
    parts "$first" 128M rest
    parts "$second" 128M rest
    mdadm -q --create /dev/md1 --run --metadata=1.2 --level=1 --assume-clean --raid-devices=2 \
        "${first}p1" "${second}p1"
    volume ext4 /dev/md1 /mnt/mirror
    fill /mnt/mirror/file 48
    expect /mnt/mirror/file of=md-raid1 drives=MIRRORA,MIRRORB layout=mirrored step=md:level=raid1
}

parity() {
    local name
    for name in A B C; do parts "$(drive PARITY$name)" 128M rest; done
    mdadm -q --create /dev/md5 --run --metadata=1.2 --level=5 --chunk=64 --assume-clean \
        --raid-devices=3 "$(drive PARITYA)p1" "$(drive PARITYB)p1" "$(drive PARITYC)p1"
    volume ext4 /dev/md5 /mnt/parity
    fill /mnt/parity/file 48
    expect /mnt/parity/file of=md-raid5 drives=PARITYA,PARITYB,PARITYC layout=parity \
        step=md:level=raid5
}

# On the second partitions of drives whose first ones other arrays have.
mirrored_stripes() {
    mdadm -q --create /dev/md/ten --run --metadata=1.2 --level=10 --layout=n2 --chunk=64 \
        --assume-clean --raid-devices=4 "$(drive MIRRORA)p2" "$(drive PARITYA)p2" \
        "$(drive PARITYB)p2" "$(drive PARITYC)p2"
    wait_for test -b /dev/md/ten
    volume ext4 /dev/md/ten /mnt/ten
    fill /mnt/ten/file
    expect /mnt/ten/file of=md-raid10 drives=MIRRORA,PARITYA,PARITYB,PARITYC \
        layout=striped_mirrors step=md:level=raid10
}

# One member behind the other; the file is longer than the first one.
row() {
    mdadm -q --create /dev/md9 --run --metadata=1.2 --level=linear --raid-devices=2 \
        "$(drive ROWA)" "$(drive ROWB)"
    volume ext4 /dev/md9 /mnt/row
    fill /mnt/row/file 64
    expect /mnt/row/file of=md-linear placed=yes drives=ROWA,ROWB layout=concatenated \
        step=md:level=linear
}

volumes() {
    pvcreate -q "$(drive LVMA)" "$(drive LVMB)"
    vgcreate -q group "$(drive LVMA)" "$(drive LVMB)"
    lvcreate -q -y -n linear -L 64M group "$(drive LVMA)"
    volume ext4 /dev/group/linear /mnt/linear
    fill /mnt/linear/file
    expect /mnt/linear/file of=lvm-linear placed=yes drives=LVMA layout=single \
        step=device_mapper:made_by=LVM
}

striped_volume() {
    lvcreate -q -y -n striped -i 2 -I 64k -L 96M group
    volume ext4 /dev/group/striped /mnt/striped
    fill /mnt/striped/file
    expect /mnt/striped/file of=lvm-striped placed=yes drives=LVMA,LVMB layout=striped \
        step=device_mapper:target=striped
}

thin() {
    lvcreate -q -y --type thin-pool -n pool -L 128M --poolmetadatasize 4M -Zn group \
        "$(drive LVMB)"
    lvcreate -q -y -n thin --thinpool pool -V 96M group
    volume ext4 /dev/group/thin /mnt/thin
    fill /mnt/thin/file
    expect /mnt/thin/file of=lvm-thin drives=LVMB warn=indirect_volume \
        step=device_mapper:target=thin
}

# The origin is written to after the snapshot was taken, which still has the old bytes.
snapshot() {
    lvcreate -q -y -n origin -L 64M group "$(drive LVMA)"
    volume ext4 /dev/group/origin /mnt/origin
    fill /mnt/origin/file 16
    sync
    lvcreate -q -y -s -n past -L 48M group/origin "$(drive LVMB)"
    mkdir -p /mnt/past
    mount /dev/group/past /mnt/past
    expect /mnt/past/file of=lvm-snapshot drives=LVMA,LVMB warn=indirect_volume
    fill /mnt/origin/file 16
    expect /mnt/origin/file of=lvm-origin drives=LVMA layout=single
}

nested() {
    mdadm -q --create /dev/md7 --run --metadata=1.2 --level=0 --chunk=64 --raid-devices=2 \
        "$(drive NESTA)" "$(drive NESTB)"
    pvcreate -q /dev/md7
    vgcreate -q nest /dev/md7
    lvcreate -q -y -n top -L 128M nest
    volume ext4 /dev/nest/top /mnt/nested
    fill /mnt/nested/file
    expect /mnt/nested/file of=lvm-on-md placed=yes drives=NESTA,NESTB layout=striped \
        step=md:level=raid0 step=device_mapper:made_by=LVM
}

members() {
    modprobe btrfs
    mkfs.btrfs -q -f -d raid0 -m raid1 "$(drive BTRFSA)" "$(drive BTRFSB)" "$(drive BTRFSC)"
    mkdir -p /mnt/members /mnt/subvolume
    mount "$(drive BTRFSA)" /mnt/members
    btrfs -q subvolume create /mnt/members/sub
    fill /mnt/members/file
    expect /mnt/members/file of=btrfs-raid0 drives=BTRFSA,BTRFSB,BTRFSC layout=striped
    fill /mnt/members/sub/file
    expect /mnt/members/sub/file of=btrfs-subvolume drives=BTRFSA,BTRFSB,BTRFSC layout=striped
    mount -o subvol=sub "$(drive BTRFSB)" /mnt/subvolume
    expect /mnt/subvolume/file of=btrfs-subvolume-mounted drives=BTRFSA,BTRFSB,BTRFSC \
        layout=striped step=file_system:subvolume=/sub
}

encrypted() {
    local drive
    drive=$(drive CRYPT)
    parts "$drive" rest
    echo -n key >/run/key
    cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 \
        --key-file /run/key "${drive}p1"
    cryptsetup open --key-file /run/key "${drive}p1" secret
    volume ext4 /dev/mapper/secret /mnt/encrypted
    fill /mnt/encrypted/file
    expect /mnt/encrypted/file of=dm-crypt drives=CRYPT layout=single warn=encrypted_volume \
        step=device_mapper:made_by=dm-crypt
}

# One namespace, two controllers on two nodes.
shared() {
    volume ext4 "$(drive PATHS)" /mnt/paths
    fill /mnt/paths/file 48
    expect /mnt/paths/file of=nvme-multipath placed=yes drives=PATHS layout=single \
        step=nvme_namespace
}

two_spaces() {
    local number
    for number in 1 2; do
        volume ext4 "$(drive TWO $number)" /mnt/two$number
        fill /mnt/two$number/file
        expect /mnt/two$number/file of=namespace-$number placed=yes drives=TWO layout=single \
            step=nvme_namespace:nsid=$number
    done
}

loop() {
    local device
    modprobe loop
    truncate -s 64M /mnt/plain/image
    device=$(losetup --find --show /mnt/plain/image)
    volume ext4 "$device" /mnt/loop
    fill /mnt/loop/file
    expect /mnt/loop/file of=loop drives=PLAIN step=backing_file warn=loop_without_direct_io
    truncate -s 64M /mnt/stripes/image
    device=$(losetup --find --show --direct-io=on /mnt/stripes/image)
    volume ext4 "$device" /mnt/loop2
    fill /mnt/loop2/file
    expect /mnt/loop2/file of=loop-on-md drives=STRIPEA,STRIPEB,STRIPEC,STRIPED step=md:level=raid0
}

stacked() {
    mkdir -p /mnt/stripes/lower /mnt/plain/upper /mnt/plain/work /mnt/overlay
    fill /mnt/stripes/lower/below
    mount -t overlay overlay /mnt/overlay \
        -o lowerdir=/mnt/stripes/lower,upperdir=/mnt/plain/upper,workdir=/mnt/plain/work
    expect /mnt/overlay/below of=overlay-lower placed=yes drives=STRIPEA,STRIPEB,STRIPEC,STRIPED \
        layout=striped warn=overlay
    fill /mnt/overlay/above
    expect /mnt/overlay/above of=overlay-upper placed=yes drives=PLAIN layout=single warn=overlay
}

memory() {
    mkdir -p /mnt/memory
    mount -t tmpfs memory /mnt/memory
    fill /mnt/memory/file
    expect /mnt/memory/file of=tmpfs drives=memory
}

links() {
    mkdir -p /mnt/stripes/folder /mnt/bound '/mnt/odd name\040é'
    fill /mnt/stripes/folder/file
    mount --bind /mnt/stripes/folder /mnt/bound
    ln -s ../bound/file /mnt/plain/link
    ln -s ../stripes/folder /mnt/plain/folder
    local name
    for name in bound/file plain/link plain/folder/file; do
        expect /mnt/$name of=bind-or-link drives=STRIPEA,STRIPEB,STRIPEC,STRIPED layout=striped
    done
    mount --bind /mnt/linear '/mnt/odd name\040é'
    fill '/mnt/odd name\040é/odd file'
    expect '/mnt/odd name\040é/odd file' of=odd-name drives=LVMA layout=single
    # Another mount over a folder that shows a file of the same name.
    mkdir -p /mnt/over
    fill /mnt/over/hidden 1
    mount --bind /mnt/linear /mnt/over
    fill /mnt/over/hidden
    expect /mnt/over/hidden of=mounted-over drives=LVMA layout=single
}

own_disk() {
    fill /file
    expect /file of=virtio placed=yes drives=SYSTEM layout=single step=virtio_disk
}

# One disk on two buses, put together by device-mapper.
two_buses() {
    modprobe -a dm_multipath dm_round_robin dm_service_time
    printf '%s\n' 'defaults {' '  find_multipaths no' '  user_friendly_names yes' '}' \
        'blacklist {' '  devnode "^(nvme|vd|loop|md|dm)"' '}' >/etc/multipath.conf
    multipathd
    wait_for multipathd show daemon
    multipath -v1
    wait_for test -b /dev/mapper/mpatha
    volume ext4 /dev/mapper/mpatha /mnt/multipath
    fill /mnt/multipath/file 48
    expect /mnt/multipath/file of=dm-multipath drives=SCSI layout=single \
        step=device_mapper:target=multipath
}

# The drive FABRIC served over TCP on two ports of this very machine, and used over both.
fabric() {
    local root=/sys/kernel/config/nvmet port
    modprobe -a configfs nvmet nvmet_tcp nvme_tcp
    mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
    local system=$root/subsystems/fabric
    mkdir $system
    echo 1 >$system/attr_allow_any_host
    echo REMOTE >$system/attr_serial
    mkdir $system/namespaces/1
    echo -n "$(drive FABRIC)" >$system/namespaces/1/device_path
    echo 1 >$system/namespaces/1/enable
    for port in 4420 4421; do
        mkdir $root/ports/$port
        echo ipv4 >$root/ports/$port/addr_adrfam
        echo tcp >$root/ports/$port/addr_trtype
        echo 127.0.0.1 >$root/ports/$port/addr_traddr
        echo $port >$root/ports/$port/addr_trsvcid
        ln -s $system $root/ports/$port/subsystems/fabric
        nvme connect -t tcp -a 127.0.0.1 -s $port -n fabric --ctrl-loss-tmo=600
    done
    wait_for drive REMOTE
    volume ext4 "$(drive REMOTE)" /mnt/fabric
    fill /mnt/fabric/file 48
    expect /mnt/fabric/file of=nvme-over-tcp placed=yes drives=REMOTE layout=single
}

network() {
    modprobe -a nfsd nfsv4
    mkdir -p /mnt/plain/served /mnt/nfs /proc/fs/nfsd /var/lib/nfs/{rpc_pipefs,v4recovery}
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab
    echo '/mnt/plain/served 127.0.0.1(rw,no_root_squash,insecure,no_subtree_check,fsid=1)' \
        >/etc/exports
    exportfs -ra
    rpc.nfsd --no-nfs-version 3 --grace-time 10 2
    rpc.mountd --no-nfs-version 2 --no-nfs-version 3
    timeout 60 mount -t nfs4 -o vers=4.2,proto=tcp,nconnect=2 127.0.0.1:/mnt/plain/served /mnt/nfs
    fill /mnt/nfs/file
    expect /mnt/nfs/file of=nfs drives=network step=network:version=4.2 step=network:connections=2
    # What the mount counted proves which way a read took: past the page cache, or through it.
    local seen=/run/proof.json
    XDG_CACHE_HOME=/run /lab/forebay bench /mnt/nfs/file --cache cold --gpu sim --size 8MiB \
        --method forebay --route staged,cached --time 100ms --repeats 1 --format=json >$seen
    grep -q '"word":"staged"' $seen
    grep -q '"word":"cached"' $seen
    grep -q '"direct_read":8388608' $seen
    grep -q '"cached_read":8388608' $seen
    if grep -E '"word":"(unproven|contradictory)"' $seen; then false; fi
}

# It stands alone until it is pulled.
pulled() {
    volume ext4 "$(drive PULLED)" /mnt/pulled
    fill /mnt/pulled/file 48
    expect /mnt/pulled/file of=whole-drive placed=yes drives=PULLED layout=single
}
