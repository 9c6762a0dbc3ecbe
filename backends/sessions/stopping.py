"""Texts that end a generation, found in a stream whatever the borders of its pieces."""

from collections.abc import Iterable, Sequence

from ...frontend.errors import InputError, shown

MOST_STOPS = 64


def checked_stops(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Stop texts as a tuple; one text is a list of one.

    Raises:
        InputError: they are no texts, one is empty, or there are more than 64.
    """
    try:
        stops = (given,) if isinstance(given, str) else tuple(given or ())
    except TypeError:
        raise InputError(f"stop {shown(given)}: wanted a text or several") from None
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InputError(f"stop {shown(stop)}: wanted a text that isn't empty")
    if len(stops) > MOST_STOPS:
        raise InputError(f"{len(stops)} stop texts; at most {MOST_STOPS} are looked for")
    return stops


class StopTexts:
    """Cuts a stream of text at the first stop text in it.

    What could be the beginning of a stop text is held back until that is known. Of several that one piece completes,
    the one counts that begins first.

    Attributes:
        found: the stop text that ended the stream; "" until then.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = stops
        self._held = ""
        self.found = ""

    def push(self, piece: str) -> str:
        """The text that a piece makes certain; nothing after a stop text was found."""
        if self.found:
            return ""
        text = self._held + piece
        at, self.found = min(((at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=(0, ""))
        if self.found:
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back when the stream ends."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that a stop text begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
