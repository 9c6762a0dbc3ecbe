"""Prompts as commands take them: from words, files and standard input, as text or as token ids."""

from ..frontend.errors import InputError


def parse_ids(text: str) -> list[int]:
    """Token ids with commas or spaces between."""
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InputError(f"--prompt-ids {text[:80]!r}: wanted numbers with commas between, such as 2,818") from None


def without_advice(message: str) -> str:
    """Why a model has no tokenizer, without what to do, for who gives ids already."""
    return message.partition("; give token ids instead")[0]


def decoded(raw: bytes, source: str) -> str:
    """UTF-8, without the line's end that an editor or `echo` leaves."""
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: byte {error.start} is not UTF-8") from None
