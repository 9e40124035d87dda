#!/bin/sh
# Serves a model by vLLM: Forebay loads the weights and keeps the KV cache on NVMe drives.
#
#   examples/vllm.sh MODEL REVISION [FOLDER]     # FOLDER's parent must exist: /nvme/kv
#
# REVISION names the weights, so that blocks of older weights are never loaded.
set -eu
model=$1 revision=$2 root=${3:-/nvme/kv}

exec vllm serve "$model" --load-format forebay --kv-transfer-config "$(cat <<END
{
  "kv_connector": "OffloadingConnector",
  "kv_role": "kv_both",
  "kv_connector_extra_config": {
    "spec_name": "TieringOffloadingSpec",
    "cpu_bytes_to_use": 10737418240,
    "secondary_tiers": [
      {
        "type": "ForebayTier",
        "module_path": "forebay.vllm.kv",
        "root": "$root",
        "capacity": "500GiB",
        "namespace": "$revision"
      }
    ]
  }
}
END
)"
