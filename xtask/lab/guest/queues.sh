#!/bin/bash
# Runs over numbers of queues, and of connections, where a target lets one set them. What is
# expected are the two samples of each number, each with as many as were requested.

changes=(queues_of_a_fabric connections_to_a_server)

# swept FOLDER COMMAND: a run for 1 and for 2, each after a command in which `{}` is the number.
swept() {
    local number results
    for number in 1 2; do
        results=/run/queues-${1##*/}-$number.jsonl
        eval "${2//\{\}/$number}"
        /lab/forebay bench "$1/file" --gpu none --label $number \
            --block-size 64K --depth 4 --time 300ms --repeats 2 \
            -o $results >"$out/queues-${1##*/}-$number.txt" 2>&1
        grep -q "\"queues\":\[\"$number " $results
        [ "$(grep -c '"record":"sample"' $results)" = 2 ]
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
