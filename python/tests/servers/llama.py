"""A tiny model with random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def saved(folder: Path, seed: int = 1) -> Any:
    """Writes it to several files, and returns it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,  # the tokens depend on each of its numbers
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="280KB")
    assert len(list(folder.glob("*.safetensors"))) == 4
    return model
