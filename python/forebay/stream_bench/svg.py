"""Pass time over the line, by tokens: as a picture without other files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from .plot import scale, span
from .table import over_line, range_over_line, ways_of

if TYPE_CHECKING:
    from collections.abc import Callable

_WIDTH, _HEIGHT = 760, 460
_LEFT, _TOP, _RIGHT, _BOTTOM = 80, 50, 560, 390  # of the field

# Colours that most eyes distinguish; shapes distinguish the methods without them.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#806000", "#444444")

Place = tuple[float, float]


def _circle(at: Place) -> str:
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5"/>'


def _corners(count: int, turn: float) -> Callable[[Place], str]:
    def marker(at: Place) -> str:
        angles = [turn + 2 * math.pi * corner / count for corner in range(count)]
        places = [(at[0] + 6 * math.sin(a), at[1] - 6 * math.cos(a)) for a in angles]
        return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'

    return marker


_MARKERS = (
    _circle,
    _corners(4, math.pi / 4),
    _corners(3, 0),
    _corners(4, 0),
    _corners(3, math.pi),
    _corners(6, 0),
)


def drawn(result: dict[str, Any]) -> str:
    """The picture. The bars reach from the shortest to the longest pass."""
    points = sorted(result["points"], key=lambda point: int(point["tokens"]))
    if not points:
        raise ValueError("nothing was measured")
    least, most = span(points, bars=True)
    up = scale(least, most, _BOTTOM - _TOP)
    along = scale(points[0]["tokens"], points[-1]["tokens"], _RIGHT - _LEFT - 40)

    def place(tokens: int, ratio: float) -> Place:
        return _LEFT + 20 + along(tokens), _BOTTOM - up(ratio)

    parts = [_head(result), _axes(points, (least, most), place)]
    styles = zip(_MARKERS, _COLOURS, strict=True)
    for number, (way, (marker, colour)) in enumerate(zip(ways_of(result), styles, strict=False)):
        parts.append(f'<g fill="{colour}" stroke="{colour}">')
        parts.append(_curve(points, way, marker, place))
        height = _TOP + 20 + 24 * number
        parts.append(marker((_RIGHT + 25, height)))
        parts.append(_text((_RIGHT + 40, height + 4), way, anchor="start"))
        parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _head(result: dict[str, Any]) -> str:
    size = result["layer_bytes"] / 1e6
    title = (
        f"{result['layers']} layers of {size:,.0f} MB, {result['order']}, from {result['from']}: "
        "pass time over the line"
    )
    ways = ", ".join(ways_of(result))
    about = (
        "Horizontal: tokens of a pass, logarithmic. Vertical: the median time of a pass as a "
        f"multiple of the line, logarithmic; 1 is the line. Methods: {ways}. Bars reach from the "
        "shortest to the longest pass."
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-labelledby="title about" '
        'font-family="sans-serif" font-size="13">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="about">{escape(about)}</desc>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text((_LEFT, 28), title, anchor="start"),
    ])  # fmt: skip


def _axes(
    points: list[dict[str, Any]],
    reach: tuple[float, float],
    place: Callable[[int, float], Place],
) -> str:
    parts = ['<g stroke="#444444" fill="none">']
    parts.append(f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>')
    line = place(points[0]["tokens"], 1.0)[1]
    parts.append(f'<path d="M{_LEFT} {line:.1f}H{_RIGHT}" stroke-dasharray="6 4"/>')
    words = [_text((_RIGHT + 15, line + 4), "the line (dashed)", anchor="start")]
    for ratio in _marked(*reach):
        high = place(points[0]["tokens"], ratio)[1]
        parts.append(f'<path d="M{_LEFT - 5} {high:.1f}H{_LEFT}"/>')
        words.append(_text((_LEFT - 9, high + 4), f"{ratio:.3g}", anchor="end"))
    free = -math.inf
    for point in points:
        across = place(point["tokens"], 1.0)[0]
        parts.append(f'<path d="M{across:.1f} {_BOTTOM}v5"/>')
        text = f"{point['tokens']:,}"
        if across - 4 * len(text) > free:
            words.append(_text((across, _BOTTOM + 20), text))
            free = across + 4 * len(text)
    parts.append("</g>")
    middle = (_TOP + _BOTTOM) / 2
    words.append(_text(((_LEFT + _RIGHT) / 2, _BOTTOM + 48), "tokens of a pass (count)"))
    turned = f'transform="rotate(-90 22 {middle})"'
    words.append(_text((22, middle), "pass time / line of theory (ratio)", more=turned))
    return "\n".join([*parts, *words])


def _marked(least: float, most: float) -> list[float]:
    """The ratios at the vertical axis: round ones, few."""
    for step in (0.02, 0.05, 0.1, 0.2, 0.5):
        if (most - least) / step <= 8:
            first, last = math.ceil(least / step), math.floor(most / step)
            return [number * step for number in range(first, last + 1)]
    powers = range(math.floor(math.log2(least)), math.floor(math.log2(most)) + 1)
    return [2.0**power for power in powers if 2.0**power >= least]


def _curve(
    points: list[dict[str, Any]],
    way: str,
    marker: Callable[[Place], str],
    place: Callable[[int, float], Place],
) -> str:
    parts, places = [], []
    for point in points:
        if way not in point["ways"]:
            continue
        found, tokens = point["ways"][way], point["tokens"]
        at = place(tokens, over_line(found))
        if ends := range_over_line(found):
            low, high = (place(tokens, end)[1] for end in ends)
            bar = f"M{at[0]:.1f} {low:.1f}V{high:.1f}m-4 0h8M{at[0] - 4:.1f} {low:.1f}h8"
            parts.append(f'<path class="bar" d="{bar}" fill="none"/>')
        parts.append(marker(at))
        places.append(at)
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return "\n".join([f'<path class="curve" d="M{line}" fill="none"/>', *parts])


def _text(at: Place, text: str, *, anchor: str = "middle", more: str = "") -> str:
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="#222222" '
        f'stroke="none" {more}>{escape(text)}</text>'
    )
