"""``python -m forebay.stream_bench``: layers behind compute, way by way, in one run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

SOURCES = ("drive", "page-cache", "pinned", "half")
ORDERS = ("forward", "backward", "train")


def main() -> int:
    """Measures, prints a table, and writes what was measured."""
    given = _arguments()
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        return _refuse(f"it computes by torch, which is not there: {error}")
    if not torch.cuda.is_available():
        return _refuse("it computes on a GPU, and torch sees none")
    try:
        result = _measured(given)
    except (OSError, ValueError, RuntimeError) as error:
        return _refuse(str(error))
    _tell(result)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "stream_bench.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m forebay.stream_bench",
        description="Brings a model's layers to the GPU behind their compute, by Forebay and by "
        "other ways in turn, and says what each costs.",
    )
    add = parser.add_argument
    add("--layers", type=_count, default=3, metavar="N", help="layers of a pass (3)")
    add("--layer-mb", type=_count, default=1237, metavar="MB", help="10^6 bytes of each (1237)")
    add("--tokens", default="8192", metavar="N,…", help="tokens of a pass (8192)")
    add("--order", choices=ORDERS, default="forward", help="how layers are taken (forward)")
    add("--from", dest="source", choices=SOURCES, default="page-cache", help="where layers are")
    add("--ways", metavar="NAME,…", help="only these beside compute and transfer alone")
    add("--buffers", type=_count, default=3, metavar="N", help="layers on the GPU, ours (3)")
    add("--rounds", type=_count, default=5, metavar="N", help="passes of each way (5)")
    add("--file", type=Path, default=Path("layers.bin"), help="made where it is not there")
    add("--seed", type=int, default=1, metavar="N", help="of the file's bytes (1)")
    add("--hidden", type=_count, default=5120, metavar="N", help="hidden size (5120)")
    add("--query-heads", type=_count, default=96, metavar="N", help="heads of queries (96)")
    add("--key-heads", type=_count, default=8, metavar="N", help="heads of keys and values (8)")
    add("--head", type=_count, default=128, metavar="N", help="size of a head (128)")
    add("--expert", type=_count, default=1536, metavar="N", help="size of an expert (1536)")
    add("--active", type=_count, default=8, metavar="N", help="routed experts of a token (8)")
    add("--out", type=Path, metavar="FOLDER", help="write `stream_bench.json` there")
    return parser.parse_args()


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it has to be 1 or more")
    return number


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    import torch

    from . import model as files
    from . import rounds, table
    from .compute import Compute, Shape
    from .ways import ALL

    tokens = [_count(text) for text in given.tokens.split(",")]
    wanted = list(ALL) if given.ways is None else given.ways.split(",")
    if unknown := [name for name in wanted if name not in ALL]:
        raise ValueError(f"no way `{unknown[0]}`: there are {', '.join(ALL)}")
    device = f"cuda:{torch.cuda.current_device()}"
    nbytes = given.layer_mb * 1_000_000 // 4096 * 4096
    _say(f"layers in {given.file}")
    model = files.made(given.file, given.layers, nbytes, device, given.seed)
    cold = given.source == "drive"
    if not cold:
        files.touch(given.file)
    ways, absent = {}, {}
    for name in wanted:
        reason = ALL[name].absent()
        if reason is None:
            ways[name] = ALL[name](model, given.source, device, given.buffers)
            rounds.check(model, ways[name], given.order)
            _say(f"{name}: every layer is what the file holds")
        else:
            absent[name] = reason
            _say(f"{name} is left out: {reason}")
    shape = Shape(
        given.hidden,
        given.query_heads,
        given.key_heads,
        given.head,
        given.expert,
        given.active,
    )
    result: dict[str, Any] = {
        "command": sys.argv,
        "environment": _environment(torch),
        "layer_bytes": nbytes,
        "layers": given.layers,
        "order": given.order,
        "from": given.source,
        "absent": absent,
        "points": [],
    }
    for count in tokens:
        _say(f"{count:,} tokens")
        compute = Compute(shape, count, device, backward=given.order == "train")
        samples = rounds.run(model, compute, ways, given.order, given.rounds, cold=cold)
        result["points"].append(_point(table.theory, model, given.order, count, samples))
        del compute
        torch.cuda.empty_cache()
    for way in ways.values():
        way.close()
    return result


def _point(theory: Any, model: Any, order: str, tokens: int, samples: Any) -> dict[str, Any]:
    turns = len(model.passes(order, 0))
    compute = samples["compute"].median
    transfer = samples["transfer"].median if "transfer" in samples else 0.0
    point: dict[str, Any] = {
        "tokens": tokens,
        "turns": turns,
        "compute_s": compute,
        "transfer_s": transfer,
        "samples": {name: vars(found) for name, found in samples.items()},
        "ways": {},
    }
    for name, found in samples.items():
        if name in ("compute", "transfer"):
            continue
        cpu = sorted(found.cpu)[len(found.cpu) // 2]
        point["ways"][name] = {
            "pass_s": found.median,
            "transfer_s": transfer,
            "line_s": theory(compute, transfer, turns),
            "cpu_s_per_gb": cpu / (turns * model.nbytes / 1e9),
        }
    return point


def _environment(torch: Any) -> dict[str, Any]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
    }


def _tell(result: dict[str, Any]) -> None:
    from . import table

    about = result["environment"]
    size = result["layer_bytes"] / 1e6
    print(f"{result['layers']} layers of {size:,.0f} MB, {result['order']}, from {result['from']}", end=", ")
    print(f"{about['gpu']}, {about['cores']} cores\n")
    print(table.drawn(result))
    print("\nline: max(compute, transfer) and the edge, both alone in this run")
    for way in result["points"][0]["ways"]:
        found = table.free_from(result, way)
        least = f"from {found:,} tokens on" if found else "at none of these"
        print(f"{way} is free {least}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _refuse(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
