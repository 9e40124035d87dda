"""Loads a model of transformers by Forebay, moves it to the GPU, and generates tokens.

    pip install transformers
    python examples/generate.py [FOLDER]     # without a folder: a tiny model of random numbers
"""

import sys
import tempfile

import torch
import transformers
from forebay.safetensors import patched


def make_tiny_model(folder: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def main(folder: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with patched():  # transformers opens its files by Forebay
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt = torch.tensor([[1, 2, 3]], device=device)  # or those of a tokenizer
    tokens = model.to(device).generate(prompt, max_new_tokens=8, min_new_tokens=8)
    print(tokens[0].tolist())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as new:
            make_tiny_model(new)
            main(new)
