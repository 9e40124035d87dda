"""The command line, checked before anything slow begins."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from forebay._errors import shown

from .sources import COLD, SOURCES
from .theory import ORDERS
from .ways import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

T = TypeVar("T")

_HELP = "`--help` lists the arguments"

#: Layers begin and end at whole pages.
_PAGE = 4096


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message.removeprefix('argument ')}\n")

    def parse_args(self, *given: Any) -> argparse.Namespace:  # type: ignore[override]
        """Parses the arguments; an unknown flag is an error with a hint."""
        parsed: tuple[argparse.Namespace, list[str]] = self.parse_known_args(*given)
        found, unknown = parsed
        if not unknown:
            return found
        flag = unknown[0].partition("=")[0]
        if not flag.startswith("-"):
            self.exit(2, f"error: unexpected argument `{flag}`\nhint: {_HELP}\n")
        flags = [name for action in self._actions for name in action.option_strings]
        close = difflib.get_close_matches(flag, flags, n=1)
        hint = f"perhaps `{close[0]}` was meant" if close else _HELP
        self.exit(2, f"error: there is no flag `{flag}`\nhint: {hint}\n")


def given(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed arguments. Invalid ones end with a message and exit status 2."""
    parser = _parser()
    found = parser.parse_args(arguments)
    found.layer_bytes = found.layer_mb * 1_000_000 // _PAGE * _PAGE
    if found.buffers is None:
        found.buffers = min(3, found.layers)
    if found.passes is None:
        found.passes = 1 if found.source in COLD else 2
    if wrong := _wrong(found):
        parser.error(wrong)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m forebay.stream_bench",
        description="Loads a model's layers to the GPU during their compute, by Forebay and other "
        "methods, interleaved, and reports the time of each.",
        allow_abbrev=False,
    )
    add, count = parser.add_argument, _number(1)
    add("--layers", type=_number(2), default=3, metavar="N", help="layers of a pass (3)")
    add("--layer-mb", type=count, default=1237, metavar="MB", help="10^6 bytes of a layer (1237)")
    add("--tokens", type=_list(count), default=[8192], metavar="N,…",
        help="tokens of a pass, one number or several (8192)")  # fmt: skip
    add("--order", type=_order, default="forward", metavar="ORDER",
        help="order of the layers: forward, backward, or train, which goes forward and then "
        "backward with recompute and gradients (forward)")  # fmt: skip
    add("--from", dest="source", type=_one_of(SOURCES), default="page-cache", metavar="PLACE",
        help="where Forebay finds the layers: drive, page-cache (its pages are pinned), slots (in "
        "the page cache too, but not pinned), pinned, or half (half of them pinned, the others on "
        "the drive) (page-cache)")  # fmt: skip
    add("--ways", type=_list(_one_of(ALL)), default=list(ALL), metavar="NAME,…",
        help=f"methods, besides compute and transfer alone ({','.join(ALL)})")  # fmt: skip
    add("--buffers", type=_number(2), metavar="N", help="Forebay's layers on the GPU at once (3)")
    add("--rounds", type=count, default=5, metavar="N", help="turns of each method (5)")
    add("--passes", type=count, metavar="N",
        help="passes of a turn, without a pause; the first starts from rest, and is reported "
        "separately if others follow (2, or 1 if a drive is read)")  # fmt: skip
    add("--file", type=Path, default=Path("layers.bin"),
        help="file with two sets of the layers, made if it is missing (layers.bin)")  # fmt: skip
    add("--seed", type=_number(0), default=1, metavar="N", help="seed of the file's bytes (1)")
    add("--hidden", type=count, default=5120, metavar="N", help="hidden size (5120)")
    add("--query-heads", type=count, default=96, metavar="N", help="query heads (96)")
    add("--key-heads", type=count, default=8, metavar="N", help="key and value heads (8)")
    add("--head", type=count, default=128, metavar="N", help="size of a head (128)")
    add("--expert", type=count, default=1536, metavar="N", help="size of an expert (1536)")
    add("--active", type=count, default=8, metavar="N", help="routed experts of a token (8)")
    add("--out", type=Path, metavar="FOLDER", help="write `stream_bench.json` to it")
    return parser


def _number(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            expected = f"it takes a whole number, {least} or more, not `{text}`"
            raise argparse.ArgumentTypeError(expected)
        return found

    return number


def _one_of(names: Collection[str]) -> Callable[[str], str]:
    def name(text: str) -> str:
        if text not in names:
            expected = f"it takes one of {', '.join(names)}, not `{text}`"
            raise argparse.ArgumentTypeError(expected)
        return text

    return name


def _order(text: str) -> str:
    # `LayerStream` calls this order `training`.
    return "train" if text == "training" else _one_of(ORDERS)(text)


def _list(of: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Parses a list with commas; each item counts once."""
    return lambda text: list(dict.fromkeys(of(item.strip()) for item in text.split(",")))


def _wrong(found: argparse.Namespace) -> str | None:
    """Checks that need more than one flag."""
    if found.buffers > found.layers:
        return (
            f"--buffers: it takes at most --layers, {found.layers}, not `{found.buffers}`: each "
            "pass begins with none of its layers on the GPU"
        )
    if found.source in COLD and found.passes > 1:
        return (
            f"--passes: it takes 1 if a drive is read, not `{found.passes}`: the layers are "
            "evicted before each pass"
        )
    if found.query_heads % found.key_heads:
        return (
            f"--query-heads: it takes a multiple of --key-heads, {found.key_heads}, "
            f"not `{found.query_heads}`"
        )
    if found.head % 8 or found.head > 256:
        return f"--head: it takes a multiple of 8, up to 256, not `{found.head}`"
    if found.out is not None:
        there = next(path for path in (found.out, *found.out.parents) if path.exists())
        if not there.is_dir():
            return f"--out: it takes a folder, and `{there}` is not a folder"
    return _wrong_file(found.file, 2 * found.layers * found.layer_bytes)


def _wrong_file(path: Path, nbytes: int) -> str | None:
    if not path.parent.is_dir():
        return f"--file: it takes a file in an existing folder, not in `{shown(path.parent)}`"
    if not path.exists():
        return None
    if not path.is_file():
        return f"--file: it takes a file, and `{shown(path)}` is not a file"
    if path.stat().st_size != nbytes:
        return (
            f"--file: `{shown(path)}` has {path.stat().st_size:,} bytes, but two sets of layers "
            f"have {nbytes:,}: give another file, or remove it"
        )
    return None
