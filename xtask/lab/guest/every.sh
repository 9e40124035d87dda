#!/bin/bash
# Every situation: built, mapped, read; then things are broken, and it is looked at again.
. /lab/guest/lib.sh
. /lab/guest/situations.sh
. /lab/guest/faults.sh
. /lab/guest/queues.sh

cp /lab/pattern $pattern
echo 0 >/run/files
: >/run/expected.tsv
for situation in "${situations[@]}"; do build "$situation"; done
sync
udevadm settle
note "${#situations[@]} situations are built"
look whole
places whole
record whole

mv /run/expected.tsv /run/whole.tsv
: >/run/expected.tsv
for fault in "${faults[@]}"; do build "$fault"; done
udevadm settle
look broken
record broken

for change in "${changes[@]}"; do build "$change"; done
