"""``python -m forebay.stream_bench``: compares methods of loading layers, in one run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from . import arguments, table
from .sources import COLD, part_from_drive

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from .model import Model
    from .raw import Raw
    from .ways.pinned import Pinned
    from .ways.way import Way

#: Incremented when a key of the results changes its meaning or is removed.
SCHEMA = 7

# Pages of the page cache are pinned when their layer is loaded for the second time, except if its
# file was written just before.
_WARM = {"page-cache": 3}
_CHECKED = {"page-cache": 3, "pinned": 2, "half": 2}


def main() -> int:
    """Measures, prints a table, and writes the results."""
    given = arguments.given()
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        hint = f"install it for this Python: `{sys.executable} -m pip install torch`"
        return _refuse(f"torch is not available: {error}", hint)
    if not torch.cuda.is_available():
        hint = "`forebay doctor` shows the GPU; a build of torch for CPUs finds none"
        return _refuse("torch finds no GPU", hint)
    try:
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
        result = _measured(given)
    except (OSError, ValueError, RuntimeError) as error:
        return _refuse(str(error))
    if result["points"]:
        _print(result)
    return _refuse(result["failed"]) if "failed" in result else 0


def _measured(given: Namespace) -> dict[str, Any]:
    import torch

    from . import model as files
    from . import residency
    from .raw import Raw
    from .ways.pinned import Pinned

    device = f"cuda:{torch.cuda.current_device()}"
    _say(f"layers in {given.file}")
    model = files.made(given.file, given.layers, given.layer_bytes, device, given.seed)
    raw: Raw | None = None
    if given.source in COLD:
        raw = Raw(model.path, model.nbytes, model.passes("forward", 0))
        _say(table.plain_reads(raw.described()))
    else:
        residency.touch(given.file)
    ways: dict[str, Way] = {}
    link: Pinned | None = None
    try:
        _open(given, model, device, ways)
        pinned = ways.get("two-buffers")
        link = pinned if isinstance(pinned, Pinned) else None
        if link is None:
            link = Pinned(model, given.source, device, given.buffers)
        result = _described(given, device)
        if raw is not None:
            result["plain_reads"] = raw.described()
        _sweep(given, model, device, (link, raw), ways, result)
    finally:
        for way in ways.values():
            way.close()
        if link is not None and link not in ways.values():
            link.close()
    return result


def _open(given: Namespace, model: Model, device: str, ways: dict[str, Way]) -> None:
    """Makes and checks the methods."""
    from . import rounds
    from .ways import ALL

    for name in given.ways:
        kind = ALL[name]()
        if given.source in COLD:
            for way in ways.values():
                way.forget()  # mapped pages are not evicted
        ways[name] = kind(model, given.source, device, given.buffers)
        rounds.check(model, ways[name], given.order, _CHECKED.get(given.source, 1))
        _say(f"{name}: verified {kind.checked}")


def _described(given: Namespace, device: str) -> dict[str, Any]:
    from . import machine

    flags = {name: str(value) if name in ("file", "out") else value
             for name, value in vars(given).items()}  # fmt: skip
    return {
        "layers_schema": SCHEMA,
        "simulated": False,
        "command": [sys.executable, "-m", "forebay.stream_bench", *sys.argv[1:]],
        "flags": flags,
        "environment": machine.described(device, given.file),
        "layer_bytes": given.layer_bytes,
        "layers": given.layers,
        "order": given.order,
        "from": given.source,
        "points": [],
    }


def _sweep(
    given: Namespace,
    model: Model,
    device: str,
    limits: tuple[Pinned, Raw | None],
    ways: dict[str, Way],
    result: dict[str, Any],
) -> None:
    """Measures at each number of tokens, and writes the results after each."""
    import torch

    from . import planned, rounds
    from .compute import Compute
    from .samples import Point, summed_up
    from .shape import Shape

    names = ("hidden", "query_heads", "key_heads", "head", "expert", "active")
    shape = Shape(*(getattr(given, name) for name in names))
    backward = given.order == "train"
    rooms = {name: way.rooms for name, way in ways.items()}
    for tokens in given.tokens:
        _say(f"{tokens:,} tokens")
        try:
            compute = Compute(shape, tokens, device, backward=backward)
            passes = given.order, given.source
            all_ways = rounds.Rounds(model, compute, limits, ways, passes)
            warm, cold = _WARM.get(given.source, 1), given.source in COLD
            samples = all_ways.run(given.rounds, given.passes, warm=warm, cold=cold)
        except (OSError, RuntimeError) as error:
            result["failed"] = f"at {tokens:,} tokens: {error}"
            _write(result, given.out)
            return
        from_drive = part_from_drive(given.source, given.layers)
        wanted = Point(given.order, given.layers, given.layer_bytes, tokens, from_drive)
        point = summed_up(wanted, samples, rooms)
        there, back = (shape.operations(tokens, backward=way) for way in (False, True))
        point["operations"] = given.layers * (there + (back if backward else 0))
        point["allocations"] = all_ways.allocations
        result["points"].append(point)
        _write(result, given.out)
        if limits[1] is not None and given.source == "half" and given.order == "forward":
            for way in ways.values():
                way.forget()
            try:
                point["planned"] = planned.trials(model, compute, limits[1], device, given)
            except (OSError, RuntimeError) as error:
                result["failed"] = f"planned at {tokens:,} tokens: {error}"
            _write(result, given.out)
            if "failed" in result:
                return
        del all_ways, compute
        torch.cuda.empty_cache()


def _write(result: dict[str, Any], out: Path | None) -> None:
    if out is None:
        return
    (out / "stream_bench.json").write_text(json.dumps(result, indent=1) + "\n")


def _print(result: dict[str, Any]) -> None:
    about, size = result["environment"], result["layer_bytes"] / 1e6
    layers = f"{result['layers']} layers of {size:,.0f} MB"
    machine = f"{about['gpu']['name']}, {about['cpus']} cores"
    print(f"{layers}, {result['order']}, from {result['from']}, {machine}\n")
    texts = [table.drawn(result), table.LEGEND, table.plain_reads(result.get("plain_reads"))]
    texts += [table.free_from(result), table.planned(result)]
    for text in filter(None, texts):
        print(text, end="\n\n")
    if stray := table.strays(result):
        _say(stray)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _refuse(text: str, hint: str | None = None) -> int:
    print(f"error: {text}", file=sys.stderr)
    if hint is not None:
        print(f"hint: {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
