#!/bin/bash
# One function for each thing that breaks while the machine runs, some in the middle of a read.

faults=(
    remounted mirror_pulled parity_pulled path_removed bus_offline port_closed drive_pulled
    server_gone
)

# sum_of PATH: leaves in `sum` what the file has.
sum_of() {
    local line
    line=$(grep -F "$1"$'\t' /run/whole.tsv | head -n 1)
    [[ $line =~ sum=([0-9a-f]{16}) ]]
    sum=${BASH_REMATCH[1]}
}

# sectors DEVICE...: how many were read from these in all.
sectors() {
    local device words sum=0
    for device in "$@"; do
        read -ra words <"/sys/class/block/${device##*/}/stat"
        sum=$((sum + words[2]))
    done
    echo "$sum"
}

# reading PATH RESULT DEVICE...: starts a cold read in the background, and returns once the devices
# have given a few MiB of it; they are slow enough for most to be still to come.
reading() {
    local path=$1 result=$2 start tries
    shift 2
    echo 3 >/proc/sys/vm/drop_caches
    start=$(sectors "$@")
    read_file "$path" "$result" none &
    for tries in {1..300}; do
        if [ $(($(sectors "$@") - start)) -gt 8192 ]; then return; fi
        sleep 0.1
    done
    echo "nothing was read from $*" >&2
    return 1
}

# right RESULT: whether the read that left it had the right bytes.
right() {
    local text
    text=$(cat "$1.txt")
    [[ $text == *"status   0" && $text == *"xxh3-64  $sum"* ]] || {
        echo "$text" >&2
        return 1
    }
}

# pull SERIAL: takes a drive's controller away, as if somebody pulled it.
pull() {
    local controller
    controller=$(controllers "$1")
    echo 1 >"$controller/device/remove"
}

# The same path leads to another drive at the second open of one engine.
remounted() {
    local first second
    sum_of /mnt/linear/file
    first=$sum
    sum_of /mnt/paths/file
    second=$sum
    mkdir -p /mnt/changing
    /lab/forebay-lab remount /mnt/changing file /dev/group/linear LVMA "$first" \
        "$(drive PATHS)" PATHS "$second"
}

mirror_pulled() {
    local gone
    gone=$(drive MIRRORB)
    sum_of /mnt/mirror/file
    # Which member is read is the array's choice: the first one that gives bytes is pulled.
    reading /mnt/mirror/file $out/mirror-pulled "$gone"
    pull MIRRORB
    wait
    right $out/mirror-pulled
    expect /mnt/mirror/file of=mirror-degraded drives=MIRRORA step=md:degraded=true warn=degraded
}

parity_pulled() {
    sum_of /mnt/parity/file
    reading /mnt/parity/file $out/parity-pulled "$(drive PARITYC)"
    pull PARITYC
    wait
    right $out/parity-pulled
    expect /mnt/parity/file of=parity-degraded drives=PARITYA,PARITYB layout=parity \
        step=md:degraded=true warn=degraded
    sum_of /mnt/ten/file
    expect /mnt/ten/file of=raid10-degraded drives=MIRRORA,PARITYA,PARITYB \
        layout=striped_mirrors step=md:degraded=true warn=degraded
}

# Of two paths to one namespace the one on node 0.
path_removed() {
    local controller node hidden
    sum_of /mnt/paths/file
    # The head of a namespace counts nothing on older kernels, the hidden paths below it do.
    hidden=("$(drive PATHS)")
    hidden=(/sys/class/block/"$(basename "${hidden%n*}")"c*n1)
    reading /mnt/paths/file $out/path-removed "${hidden[@]}"
    for controller in $(controllers PATHS); do
        read -r node <"$controller/device/numa_node"
        if [ "$node" = 0 ]; then echo 1 >"$controller/device/remove"; fi
    done
    wait
    right $out/path-removed
    expect /mnt/paths/file of=one-path-left drives=PATHS nodes=1 layout=single
}

# Of two buses to one disk.
bus_offline() {
    sum_of /mnt/multipath/file
    reading /mnt/multipath/file $out/bus-offline sda sdb
    echo offline >/sys/class/block/sda/device/state
    wait
    right $out/bus-offline
    expect /mnt/multipath/file of=one-bus-left drives=SCSI live=1 layout=single warn=path_down
}

# Of two ports to a drive behind the network.
port_closed() {
    sum_of /mnt/fabric/file
    # Whatever is read over TCP, the drive behind it gives.
    reading /mnt/fabric/file $out/port-closed "$(drive FABRIC)"
    rm /sys/kernel/config/nvmet/ports/4421/subsystems/fabric
    wait
    right $out/port-closed
    wait_for grep -q connecting /sys/class/nvme-fabrics/ctl/nvme*/state
    expect /mnt/fabric/file of=one-port-left drives=REMOTE live=1 layout=single warn=path_down
}

# A drive that nothing else stands for: the read fails, soon, and names the drive.
drive_pulled() {
    local gone text
    gone=$(drive PULLED)
    reading /mnt/pulled/file $out/drive-pulled "$gone"
    pull PULLED
    wait
    text=$(cat $out/drive-pulled.txt)
    [[ $text == *"${gone##*/}"* && $text == *"status   1" ]] || {
        echo "$text" >&2
        return 1
    }
    expect /mnt/pulled/file of=drive-gone drives=unknown fails=/mnt/pulled/file
}

# A file server that is gone, under a hard mount: callers wait for it to come back.
server_gone() {
    local verb begun status wrong=()
    export FOREBAY_WATCHDOG=5s
    # What is remembered of the file would be told without the server.
    echo 3 >/proc/sys/vm/drop_caches
    rpc.nfsd 0
    for verb in "read --gpu none" "bench --gpu none" "doctor --tree --extents" "doctor --gpu none"; do
        begun=$SECONDS status=0
        timeout -k 1 50 /lab/forebay $verb /mnt/nfs/file >/run/gone.txt 2>&1 || status=$?
        note "server_gone: $verb ended with $status after $((SECONDS - begun)) s"
        echo "== $verb: $status after $((SECONDS - begun)) s" >>$out/gone.txt
        cat /run/gone.txt >>$out/gone.txt
        case $verb in
            *--tree*) [ $status = 0 ] && grep -q 'the path does not answer' /run/gone.txt ;;
            doctor*) [ $status = 1 ] && grep -q 'caused by: path_answers: ' /run/gone.txt ;;
            *) [ $status = 1 ] && grep -q 'caused by: no response within 5s' /run/gone.txt ;;
        esac || wrong+=("$verb")
    done
    rpc.nfsd --no-nfs-version 3 --grace-time 10 2
    wait_for timeout 5 dd if=/mnt/nfs/file of=/dev/null bs=64k count=1
    [ ${#wrong[@]} = 0 ] || {
        echo "not as it should: ${wrong[*]}" >&2
        cat $out/gone.txt >&2
        return 1
    }
}
