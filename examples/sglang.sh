#!/bin/sh
# Serves a model by SGLang: Forebay loads the weights and keeps the KV cache on NVMe drives.
#
#   examples/sglang.sh MODEL REVISION [FOLDER]     # FOLDER's parent must exist: /nvme/kv
#
# REVISION names the weights, so that pages of older weights are never loaded.
set -eu
model=$1 revision=$2 root=${3:-/nvme/kv}

exec python -m sglang.launch_server --model-path "$model" \
    --model-loader-extra-config '{"forebay": true}' \
    --enable-hierarchical-cache --hicache-mem-layout page_first \
    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config "$(cat <<END
{
  "backend_name": "forebay",
  "module_path": "forebay.sglang.hicache",
  "class_name": "ForebayStorage",
  "interface_v1": 1,
  "root": "$root",
  "capacity": "500GiB",
  "namespace": "$revision"
}
END
)"
