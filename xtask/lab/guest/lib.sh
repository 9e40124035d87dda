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
    local folder serial hidden number
    for folder in /sys/class/block/nvme*; do
        read -r serial 2>/dev/null <"$folder/device/serial" || continue
        [ "$serial" = "$1" ] || continue
        read -r hidden 2>/dev/null <"$folder/hidden" || hidden=0
        read -r number <"$folder/nsid"
        if [ "$hidden/$number" = "0/${2:-1}" ]; then
            echo "/dev/${folder##*/}"
            return
        fi
    done
    echo "there is no drive $1" >&2
    return 1
}

# controllers SERIAL: the folders of a drive's controllers.
controllers() {
    local folder serial
    for folder in /sys/class/nvme/nvme*; do
        read -r serial <"$folder/serial"
        if [ "$serial" = "$1" ]; then echo "$folder"; fi
    done
}

# wait_for COMMAND...: until it succeeds, twenty seconds at most.
wait_for() {
    local tries
    for tries in {1..100}; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    echo "waited in vain: $*" >&2
    return 1
}

# parts DEVICE SIZE...: partitions of these sizes, the last with what is left for `rest`.
parts() {
    local device=$1 size
    shift
    for size in "$@"; do
        if [ "$size" = rest ]; then echo 'type=L'; else echo "size=$size, type=L"; fi
    done | sfdisk -q --label gpt "$device"
    udevadm settle
    wait_for test -b "${device}p$#"
}

# volume KIND DEVICE FOLDER [OPTION...]: a file system, mounted.
volume() {
    local kind=$1 device=$2 folder=$3
    shift 3
    case $kind in
        ext4) mkfs.ext4 -q -E lazy_itable_init=1 "$@" "$device" ;;
        *) "mkfs.$kind" -q -f "$@" "$device" ;;
    esac
    mkdir -p "$folder"
    mount "$device" "$folder"
}

# fill FILE [MIB]: writes a file that is like no other, and leaves its XXH3-64 in `sum`, which is
# computed from what goes into the pipe and not from what came onto the drive.
fill() {
    local number line
    read -r number </run/files
    echo $((number + 1)) >/run/files
    # Each file begins elsewhere in the pattern, so that no two have equal bytes at one place.
    line=$(dd if=$pattern bs=4096 skip=$((number * 37)) count=$((${2:-12} * 256)) status=none |
        tee "$1" | xxhsum -q -H3 -)
    [[ $line =~ [0-9a-f]{16} ]]
    sum=${BASH_REMATCH[0]}
    sync "$1"
}

# expect PATH KEY=VALUE...: what is to be found under a path; `sum` is that of the last file.
expect() {
    local path=$1 IFS=$'\t'
    shift
    echo "$path${IFS}sum=$sum${IFS}$*" >>/run/expected.tsv
}

# build SITUATION: calls the function of this name; one that fails or hangs is left behind.
build() {
    local situation=$1 work watch status
    (
        set -eE -o pipefail
        trap 'echo "$situation: line $LINENO: $BASH_COMMAND" >>$out/failed.txt' ERR
        "$situation"
    ) &
    work=$!
    (sleep 120 && echo "$situation: hangs" >>$out/failed.txt && kill -9 $work) &
    watch=$!
    wait $work
    status=$?
    kill $watch
    if [ $status = 0 ]; then note "built: $situation"; else note "could not build: $situation"; fi
}

# look NAME: maps and reads every expected path, and leaves all that came out of it.
look() {
    local folder=$out/$1 path rest number=0 paths=()
    mkdir -p "$folder"
    cp /run/expected.tsv "$folder/expected.tsv"
    while IFS=$'\t' read -r path rest; do paths+=("$path"); done </run/expected.tsv
    timeout 120 /lab/forebay doctor --tree --format=json --extents "${paths[@]}" \
        >"$folder/map.json" 2>"$folder/map-talk.txt"
    timeout 120 /lab/forebay doctor --tree "${paths[@]}" >"$folder/map.txt" 2>&1
    note "$1: ${#paths[@]} paths mapped"
    for path in "${paths[@]}"; do
        number=$((number + 1))
        echo 3 >/proc/sys/vm/drop_caches
        read_file "$path" "$folder/$number-cold" none
        echo 3 >/proc/sys/vm/drop_caches
        read_file "$path" "$folder/$number-gpu" sim
        cat "$path" >/dev/null 2>&1
        read_file "$path" "$folder/$number-again" none
        note "$1: read $path"
    done
}

# places NAME: whether bytes lie where the map of this name says.
places() {
    echo 3 >/proc/sys/vm/drop_caches
    timeout 120 /lab/forebay-lab places "$out/$1/map.json" >"$out/$1/places.txt" 2>&1 ||
        echo "places: $(cat "$out/$1/places.txt")" >>$out/failed.txt
}

# record NAME: writes down the system as it is for all expected paths, where a record is wanted.
record() {
    local paths
    [ -e $out/record ] || return 0
    mapfile -t paths < <(cut -f1 /run/expected.tsv)
    /lab/forebay doctor --tree "${paths[@]}" --record "/run/record-$1"
    # A folder of small files is slow to write to the host; an archive is not.
    tar -cf "$out/record/$1.tar" -C /run "record-$1"
}

# read_file PATH RESULT GPU: one read by the engine; its output, then how it ended.
read_file() {
    local status=0
    timeout 60 /lab/forebay read --gpu "$3" "$1" >"$2.txt" 2>&1 || status=$?
    echo "status   $status" >>"$2.txt"
}
