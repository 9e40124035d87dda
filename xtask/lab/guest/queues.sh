#!/bin/bash
# Runs over numbers of queues, and of connections, where a target lets one set them. What is
# expected are the two samples of each number, each with as many as were asked for.

changes=(queues_of_a_fabric connections_to_a_server)

# By which the command is run; the guest has no shell of that name.
[ -e /bin/sh ] || ln -s bash /bin/sh

# swept FOLDER COMMAND: a run that sets 1 and 2 by a command, in which `{}` is the number.
swept() {
    local results=/run/queues-${1##*/}.jsonl number found
    /lab/forebay bench "$1/file" --gpu none \
        --block-size 64K --depth 4 --time 300ms --repeats 2 \
        --io-queues 1,2 --set-queues "$2" -o $results >"$out/queues-${1##*/}.txt" 2>&1
    for number in 1 2; do
        found=$(grep -c "\"queues\":$number[,}].*\"queues_found\":$number[,}]" $results)
        [ "$found" = 2 ]
    done
}

# Over the port that is left.
queues_of_a_fabric() {
    swept /mnt/fabric 'bash /lab/guest/connect.sh {}'
}

connections_to_a_server() {
    local of='vers=4.2,proto=tcp,nconnect={}' where='127.0.0.1:/mnt/plain/served /mnt/nfs'
    swept /mnt/nfs "umount /mnt/nfs && mount -t nfs4 -o $of $where"
}
