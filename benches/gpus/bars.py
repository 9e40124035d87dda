"""The bars: what each value is compared with, and the bound of the ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

#: Random small reads: threads and reads in flight of each, and bytes of a read.
CELLS = ((16, 32), (16, 1), (4, 1), (1, 1))
SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
#: By hand: a copy for each read (A), batches of copies (B), a kernel (C). See `by_hand.cu`. Their
#: 99th percentiles are of all reads of a thread that are in flight, Forebay's of a read.
METHODS = "ABC"
#: Bytes of a call from Python.
PIECE = 64 << 10
#: Megabytes of a layer, and tokens of a pass.
LAYERS = (200, 1237)
TOKENS = (1024, 8192, 32768)

#: Samples of all series, by name. Those of a package from before begin with `before: `.
Samples = dict[str, list[float]]


def shown(nbytes: int) -> str:
    """A number of bytes, as `64 KiB`."""
    return f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"


def cell(threads: int, depth: int, size: int) -> str:
    return f"{threads} x {depth}, {shown(size)}"


@dataclass(frozen=True)
class Bar:
    """A bound of the median of a series, or of its ratio to the best of other series."""

    #: The job that measures it, and the series.
    job: str
    own: str
    #: The bound, and whether it is the least or the most.
    bound: float
    #: The series to compare with, by hand or a limit; none: the bound is of the value.
    against: tuple[str, ...] = ()
    at_most: bool = False
    unit: str = "GB/s"

    @property
    def before(self) -> bool:
        """Whether it compares with a package from before."""
        return any(name.startswith("before: ") for name in self.against)

    def judged(self, samples: Samples) -> Judged:
        """The result, from the samples of a run."""
        own = median(samples.get(self.own) or [math.nan])
        others = [(median(samples[name]), name) for name in self.against if samples.get(name)]
        other, best = max(others, default=(math.nan if self.against else 1.0, ""))
        return Judged(self, own, best, other, own / other)


@dataclass(frozen=True)
class Judged:
    """A bar's values; those without samples are not a number."""

    bar: Bar
    value: float
    best: str
    other: float
    compared: float

    @property
    def verdict(self) -> str:
        bound = self.bar.bound
        if math.isnan(self.compared):
            return "skipped"
        is_met = self.compared <= bound if self.bar.at_most else self.compared >= bound
        return "met" if is_met else "missed"

    def line(self) -> str:
        """A row of the table."""
        other, ratio = (self.other, self.compared) if self.bar.against else (math.nan, math.nan)
        numbers = [
            ("" if math.isnan(value) else f"{value:.4g}") for value in (self.value, other, ratio)
        ]
        bound = f"{'<=' if self.bar.at_most else '>='} {self.bar.bound:g}"
        against = self.best.removeprefix(self.bar.own.rpartition(": ")[0] + ": ")
        return row(
            self.bar.own, numbers[0], self.bar.unit, *numbers[1:], bound, self.verdict, against
        )


def row(*cells: str) -> str:
    """A line of the table."""
    widths = (-40, 8, -5, 8, 7, 8, -12, 0)
    return " ".join(
        f"{text:<{-width}}" if width < 0 else f"{text:>{width}}"
        for text, width in zip(cells, widths, strict=True)
    ).rstrip()


HEAD = row("what", "value", "", "other", "ratio", "bar", "", "compared with")


def _bars() -> list[Bar]:
    bars = []
    for size in SIZES:
        name = cell(16, 32, size)
        against = (f"{name}: C",) if size < 1 << 20 else ("link",)
        bars += [
            Bar("small", f"{name}: forebay", 1.0 if size < 1 << 20 else 0.9, against),
            Bar(
                "small", f"{name}: forebay, p99", 2.0, (f"{name}: C, p99",), at_most=True, unit="ms"
            ),
        ]
    bars.append(
        Bar("small", f"{cell(16, 32, PIECE)}: forebay, CPU", 0.3, at_most=True, unit="s/GB")
    )
    for threads, depth in CELLS[1:]:
        for name in (cell(threads, depth, size) for size in SIZES):
            by_hand = tuple(f"{name}: {method}" for method in METHODS)
            bars.append(Bar("small", f"{name}: forebay", 0.97, by_hand))
    name = cell(16, 32, PIECE)
    half = "read_into, half of the file"
    bars += [
        Bar("large", half, 0.97, ("link",)),
        Bar("large", half, 0.98, (f"before: {half}",)),
        Bar("large", "read_into, 256 MiB", 0.98, ("before: read_into, 256 MiB",)),
        Bar("large", "read_into, first of an engine", 0.93, ("link",)),
        Bar("large", "16 large reads at once", 0.95, ("link",)),
        Bar(
            "during",
            "64 KiB during a large read, p99 more",
            3.0,
            ("copy of a slot",),
            at_most=True,
            unit="ms",
        ),
        Bar("during", "large read during small ones", 0.95, (half,)),
        Bar("many", "read_many, 64 KiB", 0.95, ("link",)),
        Bar("many", "read_many, 16 KiB", 30),
        Bar("many", "read_many, 4 KiB", 1.0, (f"{cell(16, 32, 4096)}: C",)),
        Bar("own", f"at once, {name}, two GPUs", 1.8, (f"at once, {name}",)),
        Bar("own", "one process, own bytes", 0.93, ("2 links",)),
        Bar("ranks", "two processes, own bytes", 0.93, ("2 links",)),
        Bar("own", "read_into of two", 0.93, ("one process, own bytes",)),
        Bar("own", "load_file of two", 0.95, ("read_into of two",)),
        Bar("ranks", "group=", 0.95, ("read_into of two",)),
        Bar("ranks", "rank=", 0.95, ("two processes, own bytes",)),
    ]
    for threads in (1, 4, 16):
        by_hand = (f"by hand x {threads}",)
        bars.append(Bar("python", f"read_into x {threads}", 0.85, by_hand, unit="k/s"))
    for name, least in (
        ("start_read_into x 1", 75), ("start_read_into x 16", 80), ("asyncio", 45),
        ("read_many of 32 x 1", 200), ("read_many of 32 x 16", 500),
    ):  # fmt: skip
        bars.append(Bar("python", name, least, unit="k/s"))
    bars.append(Bar("busy", "start next to a busy thread, p99", 0.3, at_most=True, unit="ms"))
    bars.append(Bar("loads", "load, 8 tensors, first", 0.93, ("link",)))
    for name in ("8 tensors, first", "8 tensors", "2,738 tensors"):
        bars.append(Bar("loads", f"load, {name}", 0.98, (f"before: load, {name}",)))
    for name in (f"cold, {size} x {depth}" for size in ("4 KiB", "64 KiB") for depth in (1, 8, 32)):
        bars.append(Bar("cold", f"{name}: forebay", 0.97, (f"{name}: io-uring",)))
    name = "cold, 64 KiB x 32: forebay"
    bars.append(Bar("cold", f"{name}, to the GPU", 0.95, (name,)))
    name = "cold, 1 MiB x 32"
    bars.append(Bar("cold", f"{name}: forebay, to the GPU", 0.97, (f"{name}: io-uring",)))
    for megabytes in LAYERS:
        for tokens in TOKENS:
            name = f"layers of {megabytes:,} MB, {tokens:,} tokens"
            bars.append(Bar(f"layers-{megabytes}", name, 1.02, at_most=True, unit="line"))
    return bars


BARS = _bars()
