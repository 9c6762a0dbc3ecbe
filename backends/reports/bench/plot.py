"""The figures of `bench` as a drawing: bars beside the speed at which memory lets a token through."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from .speed import OURS, THEIRS, counted

_WIDTH, _LEFT, _RIGHT = 760, 190, 130
"""Of the drawing, of the labels beside the bars and of the figures behind the longest one, in pixels."""
_BAR, _GAP, _HEAD, _MARGIN = 16, 12, 40, 16
_COLOURS = {OURS: "#1f6feb", THEIRS: "#8c959f"}
_LIMIT, _INK = "#cf222e", "#1f2328"


@dataclass(frozen=True)
class _Group:
    """Bars of one setting, tokens per second by engine, and the limit, 0 where there is none."""

    label: str
    speeds: Mapping[str, float]
    limit: float = 0.0


def plot(report: Mapping[str, Any]) -> str:
    """An SVG of what `bench` returned: for each setting a bar for each engine; beside those of decoding a line where
    the memory's speed divided by the bytes of a token lies."""
    panels = {
        f"{word}, tokens/s": [_group(row, f"{row['tokens']} tokens") for row in report[word]]
        for word in ("prefill", "encode")
        if word in report
    }
    if "decode" in report:
        panels["decode, tokens/s"] = [
            _group(row, f"{row['tokens']} at depth {row['depth']}") for row in report["decode"]
        ]
    elements, y = [], _MARGIN + 20
    elements.append(_text(_MARGIN, y, report["model"], size=16, weight="bold"))
    elements += _legend(report, y + 22)
    y += 36
    for title, groups in panels.items():
        y += _HEAD
        elements.append(_text(_MARGIN, y - 14, title, size=14, weight="bold"))
        scale = (_WIDTH - _LEFT - _RIGHT) / max(max(*g.speeds.values(), g.limit) for g in groups)
        for group in groups:
            elements += _drawn(group, y, scale)
            y += _BAR * len(group.speeds) + _GAP
    height = y + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        _element("rect", width=_WIDTH, height=height, fill="white"),
        *elements,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _group(row: Mapping[str, Any], label: str) -> _Group:
    speeds = {name: row[name]["tok_s"] for name in _COLOURS if name in row}
    return _Group(f"{label}, {counted(row['threads'], 'thread')}", speeds, row.get("limit_tok_s", 0.0))


def _legend(report: Mapping[str, Any], y: int) -> Iterator[str]:
    entries = [(name, colour) for name, colour in _COLOURS.items() if name == OURS or name in report]
    if "decode" in report:
        entries.append(("memory's speed / bytes of a token", _LIMIT))
    x = _MARGIN
    for name, colour in entries:
        yield _element("rect", x=x, y=y - 9, width=10, height=10, fill=colour)
        yield _text(x + 16, y, name)
        x += 40 + 7 * len(name)


def _drawn(group: _Group, y: int, scale: float) -> Iterator[str]:
    """The bars of a setting, one below the other, each with its figure; the limit crosses them all."""
    height = _BAR * len(group.speeds)
    yield _text(_LEFT - 8, y + height // 2 + 4, group.label, anchor="end")
    for n, (name, speed) in enumerate(group.speeds.items()):
        top = y + _BAR * n
        yield _element("rect", x=_LEFT, y=top + 1, width=f"{speed * scale:.1f}", height=_BAR - 2, fill=_COLOURS[name])
        yield _text(_LEFT + round(speed * scale) + 6, top + 12, f"{speed:.1f}")
    if group.limit:
        x = f"{_LEFT + group.limit * scale:.1f}"
        yield _element("line", x1=x, x2=x, y1=y - 2, y2=y + height + 2, stroke=_LIMIT, stroke_width=2)
        yield _text(_LEFT + round(group.limit * scale) + 6, y + height - 4, f"limit {group.limit:.1f}", fill=_LIMIT)


def _text(
    x: int, y: int, text: str, size: int = 12, weight: str = "normal", anchor: str = "start", fill: str = _INK
) -> str:
    return _element("text", text, x=x, y=y, font_size=size, font_weight=weight, text_anchor=anchor, fill=fill)


def _element(name: str, text: str = "", **attributes: Any) -> str:
    """An element; `_` in an attribute's name stands for `-`. Characters that XML hasn't become question marks."""
    given = "".join(f" {key.replace('_', '-')}={quoteattr(str(value))}" for key, value in attributes.items())
    sound = "".join(c if c.isprintable() else "?" for c in text)
    return f"<{name}{given}>{escape(sound)}</{name}>"
