"""The order of records: pure, without a list of all of them.

A shuffled order is a permutation that is computed on request: a Feistel network over the next power
of four. A number outside the range passes it again until it is inside. So a billion records need
no memory and no time beforehand, and an epoch can begin anywhere. The order depends only on the
seed, the epoch and the number of records.
"""

from __future__ import annotations

import hashlib

import torch  # type: ignore[import-not-found,unused-ignore]

_ROUNDS = 8
_WORD = 0xFFFF_FFFF
# Odd, and below 2^31: a product with a word of 32 bits stays within the 63 that a tensor has.
_FACTORS = (0x7FEB_352D, 0x2C1B_3C6D)


class Order:
    """The records of one epoch, from 0 to `total`, in their order or shuffled."""

    def __init__(self, total: int, shuffle: bool, seed: int, epoch: int) -> None:
        self.total = total
        # Half of a position's bits. With only one, the network has too few states to mix well.
        self._half = max(2, ((total - 1).bit_length() + 1) // 2)
        self._keys = _keys(seed, epoch) if shuffle else []

    def at(self, first: int, count: int) -> torch.Tensor:
        """The records at `count` positions from `first` on."""
        records = torch.arange(first, first + count, dtype=torch.int64, device="cpu")
        if not self._keys:
            return records
        records = self._mixed(records)
        while (outside := records >= self.total).any():
            records[outside] = self._mixed(records[outside])
        return records

    def _mixed(self, values: torch.Tensor) -> torch.Tensor:
        mask = (1 << self._half) - 1
        left, right = values >> self._half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_hashed(right, key) & mask)
        return (left << self._half) | right


def _hashed(values: torch.Tensor, key: int) -> torch.Tensor:
    words = values ^ key
    for factor in _FACTORS:
        words = ((words ^ (words >> 16)) * factor) & _WORD
    return words ^ (words >> 15)


def _keys(seed: int, epoch: int) -> list[int]:
    """A word for each round."""
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    return [int.from_bytes(digest[at : at + 4], "little") for at in range(0, _ROUNDS * 4, 4)]


def share(total: int, rank: int, world_size: int, equal: bool) -> tuple[int, int]:
    """Start and end of the positions of one process.

    Each position belongs to one process, and shares differ by at most one. If they must be `equal`,
    some positions at the end are left out.
    """
    if equal:
        each = total // world_size
        return rank * each, (rank + 1) * each
    return total * rank // world_size, total * (rank + 1) // world_size
