"""Loads layers during their compute, by Forebay and other methods: see ``docs/layers.md``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import forebay
import report
from theory import COLD, ORDERS, SOURCES, Shape, part_from_drive

T = TypeVar("T")

#: Incremented when a key of the results changes its meaning or is removed.
SCHEMA = 7

METHODS = ("forebay", "two-buffers", "mmap")

# Pages of the page cache are pinned when their layer is loaded for the second time, except if its
# file was written just before.
_WARM = {"page-cache": 3}
_CHECKED = {"page-cache": 3, "pinned": 2, "half": 2}

#: Layers begin and end at whole pages.
_PAGE = 4096


def main() -> int:
    """Measures, prints a table, and writes the results."""
    given = arguments()
    try:
        import torch
    except ImportError as error:
        return _refuse(f"torch is not available: {error}")
    if not torch.cuda.is_available():
        return _refuse("torch finds no GPU")
    try:
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
        result = _measured(given)
    except (OSError, ValueError, RuntimeError) as error:
        return _refuse(str(error))
    if result["points"]:
        _print(result)
    return _refuse(result["failed"]) if "failed" in result else 0


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked before anything slow begins."""
    parser = argparse.ArgumentParser(
        prog="python benches/layers", description=__doc__, allow_abbrev=False
    )
    add, count = parser.add_argument, _number(1)
    add("--layers", type=_number(2), default=3, metavar="N", help="layers of a pass (3)")
    add("--layer-mb", type=count, default=1237, metavar="MB", help="10^6 bytes of a layer (1237)")
    add("--tokens", type=_list(count), default=[8192], metavar="N,…",
        help="tokens of a pass, one number or several (8192)")  # fmt: skip
    add("--order", choices=ORDERS, default="forward",
        help="order of the layers; `train` goes forward and then backward with recompute and "
        "gradients (forward)")  # fmt: skip
    add("--from", dest="source", choices=SOURCES, default="page-cache",
        help="where Forebay finds the layers: drive, page-cache (its pages are pinned), slots (in "
        "the page cache too, but not pinned), pinned, or half (half of them pinned, the others on "
        "the drive) (page-cache)")  # fmt: skip
    add("--ways", type=_list(_method), default=list(METHODS), metavar="NAME,…",
        help=f"methods, besides compute and transfer alone ({','.join(METHODS)})")  # fmt: skip
    add("--buffers", type=_number(2), metavar="N", help="Forebay's layers on the GPU (3)")
    add("--rounds", type=count, default=5, metavar="N", help="turns of each method (5)")
    add("--passes", type=count, metavar="N",
        help="passes of a turn, without a pause; the first starts from rest, and is reported "
        "separately if others follow (2, or 1 if a drive is read)")  # fmt: skip
    add("--file", type=Path, default=Path("layers.bin"), metavar="FILE",
        help="file with two sets of the layers, made if it is missing (layers.bin)")  # fmt: skip
    add("--seed", type=_number(0), default=1, metavar="N", help="seed of the file's bytes (1)")
    add("--hidden", type=count, default=5120, metavar="N", help="hidden size (5120)")
    add("--query-heads", type=count, default=96, metavar="N", help="query heads (96)")
    add("--key-heads", type=count, default=8, metavar="N", help="key and value heads (8)")
    add("--head", type=count, default=128, metavar="N", help="size of a head (128)")
    add("--expert", type=count, default=1536, metavar="N", help="size of an expert (1536)")
    add("--active", type=count, default=8, metavar="N", help="routed experts of a token (8)")
    add("--out", type=Path, metavar="FOLDER", help="write `layers.json` to it")
    given = parser.parse_args(words)
    given.layer_bytes = given.layer_mb * 1_000_000 // _PAGE * _PAGE
    given.buffers = given.buffers or min(3, given.layers)
    given.passes = given.passes or (1 if given.source in COLD else 2)
    if wrong := _wrong(given):
        parser.error(wrong)
    return given


def _number(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        found = int(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return found

    return number


def _method(text: str) -> str:
    if text not in METHODS:
        raise argparse.ArgumentTypeError(f"invalid choice: '{text}' (choose from {METHODS})")
    return text


def _list(of: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Parses a list with commas; each item counts once."""
    return lambda text: list(dict.fromkeys(of(item.strip()) for item in text.split(",")))


def _wrong(given: argparse.Namespace) -> str | None:
    """Checks that need several flags, or the file."""
    if given.buffers > given.layers:
        return "--buffers: at most --layers: each pass begins with none of its layers on the GPU"
    if given.source in COLD and given.passes > 1:
        return "--passes: 1 if a drive is read: the layers are evicted before each pass"
    if given.query_heads % given.key_heads:
        return "--query-heads: must be a multiple of --key-heads"
    if given.head % 8 or given.head > 256:
        return "--head: must be a multiple of 8, up to 256"
    wanted = 2 * given.layers * given.layer_bytes
    if given.file.exists() and given.file.stat().st_size != wanted:
        return f"--file: `{given.file}` exists, and does not have {wanted:,} bytes"
    return None


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    import layer_file
    import torch
    from raw import Raw
    from ways import Pinned, Way

    device = f"cuda:{torch.cuda.current_device()}"
    _say(f"layers in {given.file}")
    model = layer_file.made(given.file, given.layers, given.layer_bytes, device, given.seed)
    raw: Raw | None = None
    if given.source in COLD:
        raw = Raw(model.path, model.nbytes, model.passes("forward", 0))
        _say(report.plain_reads(raw.described()))
    else:
        layer_file.touch(given.file)
    ways: dict[str, Way] = {}
    with ExitStack() as closing:
        for name in given.ways:
            ways[name] = _opened(name, given, model, device, ways, closing)
        link = ways.get("two-buffers") or Pinned(model, given.source, device, given.buffers)
        if link not in ways.values():
            closing.callback(link.close)
        assert isinstance(link, Pinned)
        result = _described(given, device)
        if raw is not None:
            result["plain_reads"] = raw.described()
        _sweep(given, model, device, (link, raw), ways, result)
    return result


def _opened(
    name: str, given: argparse.Namespace, model: Any, device: str, ways: Any, closing: ExitStack
) -> Any:
    """Makes and checks a method."""
    import rounds
    from ways import ALL

    if given.source in COLD:
        for way in ways.values():
            way.forget()  # mapped pages are not evicted
    kind = next(kind for kind in ALL if kind.name == name)
    made = kind(model, given.source, device, given.buffers)
    closing.callback(made.close)
    rounds.check(model, made, given.order, _CHECKED.get(given.source, 1))
    _say(f"{name}: verified {kind.checked}")
    return made


def _described(given: argparse.Namespace, device: str) -> dict[str, Any]:
    flags = {name: str(value) if isinstance(value, Path) else value
             for name, value in vars(given).items()}  # fmt: skip
    return {
        "layers_schema": SCHEMA,
        "simulated": False,
        "command": [sys.executable, *sys.argv],
        "flags": flags,
        "environment": _environment(device, given.file),
        "layer_bytes": given.layer_bytes,
        "layers": given.layers,
        "order": given.order,
        "from": given.source,
        "points": [],
    }


def _environment(device: str, path: Path) -> dict[str, Any]:
    """The machine as `forebay doctor --tree` describes it, the GPU, and versions."""
    import torch

    known = None if device == "cpu" else torch.cuda.get_device_properties(device)
    return {
        **forebay.map(path)["environment"],
        "device": device,
        "gpu": known and {"name": known.name, "memory": known.total_memory},
        "cpus": len(os.sched_getaffinity(0)),
        "packages": {"forebay": forebay.__version__, "torch": torch.__version__},
        "cuda": torch.version.cuda,
        "python": sys.version,
    }


def _sweep(
    given: argparse.Namespace,
    model: Any,
    device: str,
    limits: tuple[Any, Any],
    ways: dict[str, Any],
    result: dict[str, Any],
) -> None:
    """Measures at each number of tokens, and writes the results after each."""
    import rounds
    import torch
    from compute import Compute
    from passes import Point, summed_up

    names = ("hidden", "query_heads", "key_heads", "head", "expert", "active")
    shape = Shape(*(getattr(given, name) for name in names))
    backward = given.order == "train"
    for tokens in given.tokens:
        _say(f"{tokens:,} tokens")
        point: dict[str, Any] = {}
        try:
            compute = Compute(shape, tokens, device, backward=backward)
            all_ways = rounds.Rounds(model, compute, limits, ways, (given.order, given.source))
            warm, cold = _WARM.get(given.source, 1), given.source in COLD
            samples = all_ways.run(given.rounds, given.passes, warm=warm, cold=cold)
            from_drive = part_from_drive(given.source, given.layers)
            wanted = Point(given.order, given.layers, given.layer_bytes, tokens, from_drive)
            point = summed_up(wanted, samples, {name: way.buffers_used for name, way in ways.items()})
            there, back = (shape.operations(tokens, backward=way) for way in (False, True))
            point["operations"] = given.layers * (there + (back if backward else 0))
            point["allocations"] = all_ways.allocations
            result["points"].append(point)
            _write(result, given.out)
            if given.source == "half" and given.order == "forward":
                for way in ways.values():
                    way.forget()
                point["planned"] = rounds.predictions(
                    model, compute, limits[1], device, given.buffers, given.rounds
                )
                _write(result, given.out)
        except (OSError, RuntimeError) as error:
            result["failed"] = f"{'planned ' if point else ''}at {tokens:,} tokens: {error}"
            _write(result, given.out)
            return
        del all_ways, compute
        torch.cuda.empty_cache()


def _write(result: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        (out / "layers.json").write_text(json.dumps(result, indent=1) + "\n")


def _print(result: dict[str, Any]) -> None:
    about, size = result["environment"], result["layer_bytes"] / 1e6
    layers = f"{result['layers']} layers of {size:,.0f} MB"
    machine = f"{about['gpu']['name']}, {about['cpus']} cores"
    print(f"{layers}, {result['order']}, from {result['from']}, {machine}\n")
    texts = [report.drawn(result), report.LEGEND, report.plain_reads(result.get("plain_reads"))]
    texts += [report.free_from(result), report.planned(result)]
    for text in filter(None, texts):
        print(text, end="\n\n")
    if stray := report.strays(result):
        _say(stray)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _refuse(text: str) -> int:
    _say(f"error: {text}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
