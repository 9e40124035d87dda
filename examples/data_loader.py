"""Trains on images that are read in random order, straight to the GPU, without worker processes.

    python examples/data_loader.py

Needs torch. Records of one size lie in files without headers. Batches are read ahead during the computation.
"""

import tempfile
from pathlib import Path

import torch
from forebay.torch import RecordDataset, save

SHAPE = (3, 32, 32)


def main(folder: Path) -> None:
    for shard in range(4):
        images = torch.randint(0, 255, (1000, *SHAPE), dtype=torch.uint8)
        save(folder / f"shard-{shard}.bin", images)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(3 * 32 * 32, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    shards = sorted(folder.glob("shard-*.bin"))
    records = RecordDataset(shards, SHAPE, torch.uint8, device, batch_size=256, drop_last=True)
    for epoch in range(2):
        records.set_epoch(epoch)  # another order
        for batch in records:  # (256, 3, 32, 32), on the device
            loss = model(batch.flatten(1) / 255).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as new:
        main(Path(new))
