"""The compute of a layer: attention, a shared expert and the active routed ones, in bf16.

The weights are not the streamed ones, so that the time does not depend on the streamed bytes.
Memory is allocated before, and the work is a graph: neither an allocator nor Python is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from theory import Shape


class Compute:
    """A layer's work on a number of tokens."""

    def __init__(self, shape: Shape, tokens: int, device: str, *, backward: bool) -> None:
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        pieces = _Pieces(shape, tokens, device)
        gradients = _Gradients(pieces) if backward else None
        torch.cuda.synchronize()  # their tensors were filled on another stream
        self._forward = self._graph(pieces.forward)
        self._backward = self._graph(gradients.backward) if gradients else None
        self._held = pieces, gradients  # a graph does not keep its memory
        torch.cuda.empty_cache()  # frees the memory of the runs before the graphs

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
        # The graphs share memory: they run one after the other, and need nothing of each other.
        with torch.cuda.graph(graph, stream=self.stream, pool=self._pool):
            work()
        return graph


class _Pieces:
    """Weights and activations. The experts use the same memory, one after the other."""

    def __init__(self, shape: Shape, tokens: int, device: str) -> None:
        def made(*size: int) -> torch.Tensor:
            return torch.randn(*size, device=device, dtype=torch.bfloat16).mul_(0.02)

        self.shape, self.tokens = shape, tokens
        self.x = made(tokens, shape.hidden)
        self.to_heads = made(shape.hidden, shape.mixed)
        self.from_heads = made(shape.queries, shape.hidden)
        self.up = [made(shape.hidden, 2 * shape.expert) for _ in range(shape.experts)]
        self.down = [made(shape.expert, shape.hidden) for _ in range(shape.experts)]
        self.mixed = made(tokens, shape.mixed)
        self.wide = made(tokens, 2 * shape.expert)
        self.gated = made(tokens, shape.expert)
        self.out = made(tokens, shape.hidden)

    def heads(self, mixed: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values, by head, as views of `mixed`."""
        shape = self.shape
        keys = shape.key_heads * shape.head
        return [
            part.unflatten(1, (-1, shape.head)).transpose(0, 1).unsqueeze(0)
            for part in mixed.split([shape.queries, keys, keys], dim=1)
        ]

    def attend(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            *parts, is_causal=True, enable_gqa=True
        )

    def flat(self, attended: torch.Tensor) -> torch.Tensor:
        return attended.transpose(1, 2).reshape(self.tokens, self.shape.queries)

    def widen(self, up: torch.Tensor) -> None:
        """The first half of an expert."""
        torch.mm(self.x, up, out=self.wide)
        left, right = self.wide.split(self.shape.expert, dim=1)
        torch.mul(left, right, out=self.gated)

    def forward(self) -> None:
        torch.mm(self.x, self.to_heads, out=self.mixed)
        attended = self.flat(self.attend(self.heads(self.mixed)))
        torch.mm(attended, self.from_heads, out=self.out)
        for up, down in zip(self.up, self.down, strict=True):
            self.widen(up)
            self.out.addmm_(self.gated, down)


class _Gradients:
    """The backward work: forward once more, and the gradients of the input and all weights."""

    def __init__(self, pieces: _Pieces) -> None:
        like = torch.empty_like
        self.pieces = pieces
        self.given = torch.randn_like(pieces.out).mul_(0.02)
        self.x = like(pieces.x)
        self.to_heads, self.from_heads = like(pieces.to_heads), like(pieces.from_heads)
        self.up = [like(up) for up in pieces.up]
        self.down = [like(down) for down in pieces.down]
        self.mixed, self.wide = like(pieces.mixed), like(pieces.wide)
        self.gated = like(pieces.gated)
        self.attended = pieces.mixed.new_empty(pieces.tokens, pieces.shape.queries)

    def backward(self) -> None:
        self._attention()
        pieces = self.pieces
        experts = zip(pieces.up, pieces.down, self.up, self.down, strict=True)
        for up, down, up_gradient, down_gradient in experts:
            pieces.widen(up)
            pieces.out.addmm_(pieces.gated, down)
            torch.mm(self.given, down.t(), out=self.gated)
            torch.mm(pieces.gated.t(), self.given, out=down_gradient)
            left, right = pieces.wide.split(pieces.shape.expert, dim=1)
            to_left, to_right = self.wide.split(pieces.shape.expert, dim=1)
            torch.mul(self.gated, right, out=to_left)
            torch.mul(self.gated, left, out=to_right)
            self.x.addmm_(self.wide, up.t())
            torch.mm(pieces.x.t(), self.wide, out=up_gradient)

    def _attention(self) -> None:
        pieces = self.pieces
        torch.mm(pieces.x, pieces.to_heads, out=pieces.mixed)
        # Its own memory is the graph's; autograd is used only here, for the fused kernel.
        parts = [part.detach().requires_grad_() for part in pieces.heads(pieces.mixed)]
        result = pieces.attend(parts)
        attended = pieces.flat(result.detach())
        torch.mm(attended, pieces.from_heads, out=pieces.out)
        torch.mm(self.given, pieces.from_heads.t(), out=self.attended)
        torch.mm(attended.t(), self.given, out=self.from_heads)
        shape = pieces.shape
        wanted = self.attended.unflatten(1, (-1, shape.head)).transpose(0, 1).unsqueeze(0)
        found = torch.autograd.grad(result, parts, wanted)
        for target, gradient in zip(pieces.heads(self.mixed), found, strict=True):
            target.copy_(gradient)
        torch.mm(self.mixed, pieces.to_heads.t(), out=self.x)
        torch.mm(pieces.x.t(), self.mixed, out=self.to_heads)
