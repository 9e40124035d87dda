#!/bin/bash
# connect.sh NUMBER: has the drive behind the network connected by so many queues, and mounted.
set -e
. /lab/guest/lib.sh
umount /mnt/fabric
nvme disconnect -n fabric
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n fabric --nr-io-queues="$1"
wait_for drive REMOTE
mount "$(drive REMOTE)" /mnt/fabric
