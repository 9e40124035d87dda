#!/bin/bash
# prepare.sh CACHE FIRST_SCRIPT: makes what the virtual machine starts from, in CACHE: `qemu`, a
# script that runs the emulator; `kernel`; `first.cpio`, its first file system; `system.img`, a disk
# with a whole Debian system.
#
# Packages are unpacked, never installed. `apt-get` sees a system without packages, so it fetches
# every library too, and unpacked programs run with their own loader and libraries. Parts that were
# made from the same lists before are kept.
set -euo pipefail
mkdir -p "$1" && cd "$1"
cache=$PWD first_script=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

packages=(bash btrfs-progs busybox-static coreutils cryptsetup-bin dmsetup e2fsprogs fdisk findutils
    grep iproute2 kmod linux-image-amd64 lvm2 mdadm mount multipath-tools netbase nfs-common
    nfs-kernel-server nvme-cli passwd procps sed tar thin-provisioning-tools udev util-linux
    util-linux-extra xfsprogs xxhash xz-utils)

# The guest's modules; their dependencies are added. A name that the kernel does not know is left
# out: a situation that needs it then fails to build.
modules=(9p 9pnet_virtio aes_generic aesni_intel algif_skcipher authenc btrfs cbc configfs
    crc32c_generic crc32c_intel dm_crypt dm_mod dm_multipath dm_round_robin dm_service_time
    dm_snapshot dm_thin_pool ecb essiv ext4 linear loop md_mod nfs nfsd nfsv4 nvme nvme_tcp nvmet
    nvmet_tcp overlay raid0 raid1 raid10 raid456 raid6_pq scsi_dh_alua sd_mod sha256_generic
    sha256_ssse3 virtio_blk virtio_pci virtio_scsi xfs xor xts xxhash_generic)

# fetch TREE PACKAGE...: unpacks packages with all their dependencies.
fetch() {
    local tree=$1 archives=$cache/$1-packages folder file
    shift
    [ "$(cat "$tree/.packages" 2>/dev/null)" = "$*" ] && return
    echo "lab: fetching packages for \`$tree\` with apt-get"
    rm -rf "$archives" "$tree"
    mkdir -p "$archives/partial"
    : >nothing-installed
    get() {
        apt-get -qq -y --no-install-recommends --download-only -o Debug::NoLocking=1 \
            -o "Dir::State::status=$cache/nothing-installed" \
            -o "Dir::Cache::archives=$archives" install "$@" >/dev/null
    }
    # The lists of packages are often absent in containers, or so old that their files are gone.
    get "$@" 2>/dev/null || { apt-get -qq update && get "$@"; }
    # Links into `usr`, through which packages put files below either name.
    for folder in bin sbin lib lib64; do
        mkdir -p "$tree/usr/$folder"
        ln -s "usr/$folder" "$tree/$folder"
    done
    for file in "$archives"/*.deb; do
        dpkg-deb --fsys-tarfile "$file" | tar -xp --keep-directory-symlink -C "$tree"
    done
    rm -r "$archives"
    echo "$*" >"$tree/.packages"
}

# own TREE PROGRAM: the words that run a program of a tree with the tree's own libraries.
own() {
    local libraries=$cache/$1/usr/lib/x86_64-linux-gnu
    echo "$libraries/ld-linux-x86-64.so.2 --library-path $libraries $cache/$1/usr/$2"
}

# depends NAME...: the files of modules and of those that they need, in the order of loading.
depends() {
    local name
    for name in "$@"; do
        chroot guest modprobe --show-depends --set-version "$release" "$name" 2>/dev/null || :
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

if [ -x "$(command -v qemu-system-x86_64)" ]; then
    words=qemu-system-x86_64
else
    fetch emulator qemu-system-x86
    share=$cache/emulator/usr/share
    words="$(own emulator bin/qemu-system-x86_64) -L $share/qemu -L $share/seabios"
    words="env QEMU_MODULE_DIR=$cache/emulator/usr/lib/x86_64-linux-gnu/qemu $words"
fi
printf '#!/bin/sh\nexec %s "$@"\n' "$words" >qemu
chmod +x qemu

fetch guest "${packages[@]}"
kernel=$(printf '%s\n' guest/boot/vmlinuz-* | tail -n 1)
release=${kernel##*/vmlinuz-}
cp "$kernel" kernel
chroot guest depmod "$release"

made_of="$release ${packages[*]} ${modules[*]}"
if [ ! -e system.img ] || [ "$(cat system.txt 2>/dev/null)" != "$made_of" ]; then
    echo "lab: making the guest's disk, kernel $release"
    rm -rf system system.img
    # Hard links: files removed here stay in the tree.
    cp -al guest system
    rm -rf system/usr/share/{doc,man,locale,info,perl} "system/usr/lib/modules/$release/kernel"
    depends "${modules[@]}" | while read -r file; do
        mkdir -p "system${file%/*}"
        cp "guest$file" "system$file"
    done
    chroot system depmod "$release"
    mkdir -p system/lab system/mnt
    truncate -s 2G system.img
    $(own guest sbin/mke2fs) -q -F -t ext4 -d system system.img
    rm -r system
    echo "$made_of" >system.txt
fi

# A shell, the modules without which the disk cannot be mounted, and the project's script.
rm -rf first
mkdir -p first/{bin,dev,modules,new,proc,sys}
cp guest/usr/bin/busybox first/bin/busybox
install -m 755 "$first_script" first/init
number=10 # names that sort in the order of loading
depends virtio_pci virtio_blk ext4 | while read -r file; do
    cp "guest$file" "first/modules/$((number++)).ko"
done
(cd first && find . | ./bin/busybox cpio -o -H newc -R 0:0 >../first.cpio)
