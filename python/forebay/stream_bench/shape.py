"""A mixture-of-experts layer, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer."""

    hidden: int = 5120
    query_heads: int = 96
    key_heads: int = 8
    head: int = 128
    expert: int = 1536
    active: int = 8

    @property
    def queries(self) -> int:
        """The width of all queries."""
        return self.query_heads * self.head

    @property
    def mixed(self) -> int:
        """The width of all queries, keys and values."""
        return self.queries + 2 * self.key_heads * self.head

    @property
    def experts(self) -> int:
        """Experts of a token: the shared one and the active routed ones."""
        return self.active + 1

    def operations(self, tokens: int, *, backward: bool) -> int:
        """Multiplications and additions of one turn, with the causal half of attention.

        Backward takes three times as many: forward once more, and for each product the gradients of
        both factors.
        """
        weights = self.hidden * (self.mixed + self.queries)
        weights += self.experts * 3 * self.hidden * self.expert
        # Each token attends to itself and all before, once for weights and once for values.
        attention = self.queries * tokens * (tokens + 1)
        forward = 2 * tokens * weights + 2 * attention
        return 3 * forward if backward else forward
