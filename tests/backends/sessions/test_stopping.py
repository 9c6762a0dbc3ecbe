"""Stop texts in a stream of pieces: nothing of them is let out, and nothing else is kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from ggufc.backends.sessions.stopping import StopTexts, checked_stops
from ggufc.frontend.errors import InputError
from hypothesis import given
from hypothesis import strategies as st


def streamed(pieces: list[str], stops: list[str]) -> str:
    cut = StopTexts(checked_stops(stops))
    out = ""
    for piece in pieces:
        out += cut.push(piece)
        if cut.found:
            return out
    return out + cut.flush()


def test_texts_over_the_borders_of_tokens(shared_dir: Path) -> None:
    folder = shared_dir / "cases/48-stop-text-over-token-borders/input"
    script, stops, expected = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("script", "stops", "expected")
    )
    pieces = list(script["text"])
    for name, given_stops in stops.items():
        assert streamed(pieces, given_stops) == expected[name]["content"], name


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_the_text_is_cut_where_the_first_completed_stop_begins(pieces: list[str], stops: list[str]) -> None:
    seen = ""
    wanted = "".join(pieces)
    for piece in pieces:
        seen += piece
        if found := [seen.find(stop) for stop in stops if stop in seen]:
            wanted = seen[: min(found)]
            break
    assert streamed(pieces, stops) == wanted


def test_what_cant_be_a_stop_is_let_out_at_once() -> None:
    cut = StopTexts(("END",))
    assert [cut.push(piece) for piece in (" EN", "D", "x")] == [" ", "", ""]
    cut = StopTexts(("END",))
    assert [cut.push(piece) for piece in ("E", "N", "C", "EE")] == ["", "", "ENC", "E"]
    assert cut.flush() == "E"


@pytest.mark.parametrize("stops", [[""], [1], [None], ["x"] * 65, 5, b"x"])
def test_stops_that_are_none(stops: Any) -> None:
    with pytest.raises(InputError):
        checked_stops(stops)
