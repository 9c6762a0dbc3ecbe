"""The drawing, read back as XML."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from ggufc.backends.reports.bench.plot import plot

SVG = "{http://www.w3.org/2000/svg}"
PREFILL = {"threads": 2, "tokens": 512, "ggufc": {"tok_s": 1234.5}, "llama.cpp": {"tok_s": 400.0}}
DECODE = {"threads": 1, "depth": 0, "tokens": 128, "ggufc": {"tok_s": 80.0}, "llama.cpp": {"tok_s": 60.0}}
REPORT: dict[str, Any] = {
    "model": "A & <B>\x07",
    "llama.cpp": {},
    "prefill": [PREFILL],
    "decode": [DECODE | {"limit_tok_s": 100.0}],
}


@pytest.fixture(scope="module")
def drawing() -> ET.Element:
    return ET.fromstring(plot(REPORT))


def test_it_says_every_figure_and_what_it_is_of(drawing: ET.Element) -> None:
    words = [text.text for text in drawing.iter(f"{SVG}text")]
    assert words[0] == "A & <B>?"
    for wanted in ("512 tokens, 2 threads", "128 at depth 0, 1 thread", "1234.5", "400.0", "80.0", "60.0"):
        assert words.count(wanted) == 1
    assert words.count("limit 100.0") == 1


def test_bars_are_as_long_as_figures_are_large_and_end_at_the_limit(drawing: ET.Element) -> None:
    bars = [r for r in drawing.iter(f"{SVG}rect") if r.get("x") == "190"]
    first, second, ours, theirs = (float(bar.get("width", 0)) for bar in bars)
    assert first / second == pytest.approx(1234.5 / 400, rel=1e-3)
    assert ours / theirs == pytest.approx(80 / 60, rel=1e-3)
    (line,) = drawing.iter(f"{SVG}line")
    assert float(line.get("x1", 0)) - 190 == pytest.approx(ours * 100 / 80, rel=1e-3)


def test_nothing_leaves_the_drawing(drawing: ET.Element) -> None:
    _, _, width, height = map(float, drawing.get("viewBox", "").split())
    for rect in drawing.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= width
        assert float(rect.get("y", 0)) + float(rect.get("height", 0)) <= height
    for text in drawing.iter(f"{SVG}text"):
        assert float(text.get("y", 0)) < height


def test_an_encoder_has_no_limit() -> None:
    row = {"threads": 1, "tokens": 64, "ggufc": {"tok_s": 5000.0}}
    text = plot({"model": "minilm", "encode": [row]})
    assert "5000.0" in text and "limit" not in text and "llama.cpp" not in text
    ET.fromstring(text)
