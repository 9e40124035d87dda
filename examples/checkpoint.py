"""Saves a checkpoint whose rows are spread over ranks, and loads it with its columns spread.

    torchrun --nproc-per-node 2 examples/checkpoint.py FOLDER

Needs torch. The format is that of torch.distributed.checkpoint: torch reads and writes these folders, too.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forebay.torch.dcp import Reader, Writer
from torch.distributed.tensor import Shard, distribute_tensor


def main(folder: str) -> None:
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    if gpu:
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh = dist.init_device_mesh("cuda" if gpu else "cpu", (dist.get_world_size(),))

    whole = torch.arange(64.0 * 64).reshape(64, 64)
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 1000}
    dcp.save(state, storage_writer=Writer(folder))

    loaded = {"weight": distribute_tensor(torch.zeros(64, 64), mesh, [Shard(1)]), "step": 0}
    dcp.load(loaded, storage_reader=Reader(folder))
    assert torch.equal(loaded["weight"].full_tensor().cpu(), whole)
    shape = tuple(loaded["weight"].to_local().shape)
    print(f"rank {dist.get_rank()}: columns {shape}, step {loaded['step']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
