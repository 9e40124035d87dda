"""What a layer computes: attention, a shared expert and the active of the routed ones, in bf16.

The weights are the program's own, so that the time does not hang on what is streamed; memory is
taken before, and the work is a graph, so that neither an allocator nor Python is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Shape:
    """A mixture-of-experts layer."""

    hidden: int = 5120
    query_heads: int = 96
    key_heads: int = 8
    head: int = 128
    expert: int = 1536
    active: int = 8


class Compute:
    """A layer's work on so many tokens."""

    def __init__(self, shape: Shape, tokens: int, device: str, *, backward: bool) -> None:
        self.stream = torch.cuda.Stream(device)
        self._pieces = _Pieces(shape, tokens, device)
        self._forward = self._graph(self._pieces.forward)
        self._backward = self._graph(self._pieces.backward) if backward else None

    def run(self, *, backward: bool = False) -> None:
        """Queues the work on `stream`."""
        graph = self._backward if backward else self._forward
        assert graph is not None
        with torch.cuda.stream(self.stream):
            graph.replay()

    def _graph(self, work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        with torch.cuda.stream(self.stream):
            for _ in range(3):  # libraries choose their kernels first
                work()
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            work()
        return graph


class _Pieces:
    def __init__(self, shape: Shape, tokens: int, device: str) -> None:
        def made(*size: int) -> torch.Tensor:
            return torch.randn(*size, device=device, dtype=torch.bfloat16) * 0.02

        self.shape, self.tokens = shape, tokens
        heads = shape.query_heads + 2 * shape.key_heads
        self.x = made(tokens, shape.hidden)
        self.to_heads = made(shape.hidden, heads * shape.head)
        self.from_heads = made(shape.query_heads * shape.head, shape.hidden)
        experts = shape.active + 1  # the shared one
        self.up = [made(shape.hidden, 2 * shape.expert) for _ in range(experts)]
        self.down = [made(shape.expert, shape.hidden) for _ in range(experts)]
        self.gradient = made(tokens, shape.hidden)

    def forward(self) -> torch.Tensor:
        shape, tokens = self.shape, self.tokens
        queries = shape.query_heads * shape.head
        keys = queries + shape.key_heads * shape.head
        mixed = self.x @ self.to_heads

        def heads(part: torch.Tensor) -> torch.Tensor:
            return part.reshape(1, tokens, -1, shape.head).transpose(1, 2)

        attended = torch.nn.functional.scaled_dot_product_attention(
            heads(mixed[:, :queries]),
            heads(mixed[:, queries:keys]),
            heads(mixed[:, keys:]),
            is_causal=True,
            enable_gqa=True,
        )
        out = attended.transpose(1, 2).reshape(tokens, queries) @ self.from_heads
        for up, down in zip(self.up, self.down, strict=True):
            wide = self.x @ up
            out = out + (wide[:, : shape.expert] * wide[:, shape.expert :]) @ down
        return out

    def backward(self) -> Any:
        """The forward work once more, and the gradients of the input and of all weights."""
        inputs = [self.x, self.to_heads, self.from_heads, *self.up, *self.down]
        for tensor in inputs:
            tensor.requires_grad_()
        found = torch.autograd.grad(self.forward(), inputs, self.gradient)
        for tensor in inputs:
            tensor.requires_grad_(requires_grad=False)
        return found
