"""Models whose tensors lie in several files, as `llama-gguf-split` names them: model-00001-of-00003.gguf."""

import re
from pathlib import Path

_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def split_number(name: str) -> tuple[str, int, int] | None:
    """Prefix, number (from 1) and count of a part by its file's name; None for a model of one file."""
    found = _NAME.fullmatch(name)
    return (found["prefix"], int(found["number"]), int(found["count"])) if found else None


def split_name(prefix: str, number: int, count: int) -> str:
    """The name of a part, counted from 1; of a model of one file, without a number."""
    return f"{prefix}-{number:05}-of-{count:05}.gguf" if count > 1 else f"{prefix}.gguf"


def is_first_part(name: str) -> bool:
    """Whether a file's name is a split model's first, or that of a model of one file."""
    found = split_number(name)
    return found is None or found[1] == 1


def split_paths(first: Path, count: int) -> tuple[Path, ...]:
    """All `count` files of the model whose first is given; a name that isn't a first part's stands for itself alone."""
    found = split_number(first.name)
    if count == 1 or not found or found[1:] != (1, count):
        return (first,)
    return tuple(first.with_name(split_name(found[0], number, count)) for number in range(1, count + 1))
