#!/bin/bash
# What the guest's scripts share: words for the console, drives by their serial number, files with
# known contents, and what is to be found under each.

out=/lab/out
pattern=/run/pattern

# note WORD...: a line for whoever waits.
note() {
    local up
    read -r up _ </proc/uptime
    printf 'lab: %6.1f %s\n' "$up" "$*" >/dev/console
}

# drive SERIAL [NAMESPACE]: the block device of a drive, told by what the machine was built with.
drive() {
    local folder
    for folder in /sys/class/block/nvme*; do
        [ -e "$folder/device/serial" ] || continue
        [ "$(cat "$folder/hidden" 2>/dev/null)" = 1 ] && continue
        [ "$(tr -d ' ' <"$folder/device/serial")" = "$1" ] || continue
        [ "$(cat "$folder/nsid")" = "${2:-1}" ] || continue
        echo "/dev/${folder##*/}"
        return
    done
    echo "there is no drive $1" >&2
    return 1
}

# parts DEVICE SIZE...: partitions of these sizes, the last with what is left for `rest`.
parts() {
    local device=$1 size
    shift
    for size in "$@"; do
        [ "$size" = rest ] && echo 'type=L' || echo "size=$size, type=L"
    done | sfdisk -q --label gpt "$device"
    udevadm settle
    wait_for -b "${device}p$#"
}

# wait_for TEST FILE: until `test` holds, ten seconds at most.
wait_for() {
    local tries
    for tries in $(seq 100); do
        test "$1" "$2" && return
        sleep 0.1
    done
    echo "waited in vain: $*" >&2
    return 1
}

# fill FILE [MIB]: writes a file that is like no other, and leaves its XXH3-64 in `sum`, which is
# computed from what goes into the pipe and not from what came onto the drive.
fill() {
    local skip
    # Each file begins elsewhere in the pattern, so that no two have equal bytes at one place.
    skip=$(($(cat /run/files) + 1))
    echo $skip >/run/files
    sum=$(dd if=$pattern bs=4096 skip=$((skip * 37)) count=$((${2:-24} * 256)) status=none |
        tee "$1" | xxhsum -H3 - | sed -E 's/^(XXH3_)?([0-9a-f]{16}).*/\2/')
    sync "$1"
}

# expect PATH KEY=VALUE...: what is to be found under a path; `sum` is that of the last file.
expect() {
    local IFS=$'\t'
    echo "$1${IFS}sum=$sum${IFS}${*:2}" >>/run/expected.tsv
}
