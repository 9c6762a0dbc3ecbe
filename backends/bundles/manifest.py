"""What a bundle's manifest says of entry points and tensors, and what it must hold, checked before it is believed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ...graph.ir import Graph
from ...graph.types import ring_rows
from ..caches import KV_TYPES
from ..iree.parameters import ALIGNMENT

ENCODINGS = ("gguf", "irpa", "f32", "bf16", "int8")
"""How the weights lie: in the GGUF, as they are or encoded anew in an archive."""
DECODER, ENCODER = ("prefill", "decode"), "encode"
"""Entry points of which a module has the first two, which may be followed by one that chooses, or the last, or all."""
MOST_ELEMENTS = 2**40
"""Of a cache's row, or of all rows of one that has a fixed number: far more than any memory holds."""

if TYPE_CHECKING:
    from ...frontend.gguf.file import GgufFile


@dataclass(frozen=True)
class _Whole:
    """A whole number within bounds, both included."""

    low: int = 0
    high: int = 2**63 - 1


@dataclass(frozen=True)
class _List:
    """A list of any length from `least` on."""

    item: Any
    least: int = 0


@dataclass(frozen=True)
class _Map:
    """An object with any keys, `least` of them or more."""

    item: Any
    least: int = 0


@dataclass(frozen=True)
class _Maybe:
    """The value of a key that may be missing."""

    shape: Any


_SIZE = _Whole(1, 2**31 - 1)
_DTYPE = frozenset(KV_TYPES)
_SHAPE: dict[str, Any] = {
    "architecture": {"name": str, "sha256": str},
    "kv": _DTYPE,
    "activations": _Whole(8, 16),
    "context_length": _SIZE,
    "layers": _Maybe(_SIZE),
    "vocabulary": _SIZE,
    "caches": _List(
        {
            "name": str,
            "dtype": _DTYPE,
            "row": _List(_SIZE, 1),
            "window": _Whole(0, 2**31 - 1),
            "rows": _Whole(0, 2**31 - 1),
        }
    ),
    "entries": _Map(
        {
            "arguments": _List({"name": str, "type": str, "shape": list}),
            "results": _List({"shape": _List(object, 1)}, 1),
        },
        1,
    ),
    "labels": _Maybe(_List(str)),
    "files": _Map({"size": _Whole(), "sha256": str}),
    "parameters": _Map((_Whole(), _Whole(), _Whole())),
    "targets": _Map(
        {
            "file": _Maybe(str),
            "triple": str,
            "features": _List(str),
            "library": _Maybe({"module": str, "object": str, "header": str}),
        },
        1,
    ),
    "chat": {"templates": _Map(str), "missing": str},
    "tokenizer": {
        "stop_tokens": _List(_Whole(0, 2**31 - 1)),
        "notes": _Maybe(_List(str)),
        "missing": _Maybe(str),
    },
    "encoding": _Maybe(frozenset(ENCODINGS)),
    "tensors": _Map({"type": str, "shape": _List(_Whole(1)), "file": _Whole(), "offset": _Whole(), "nbytes": _Whole()}),
    "weights": _List(
        {
            "file": _Maybe(str),
            "name": str,
            "size": _Whole(),
            "header_bytes": _Whole(),
            "header_sha256": str,
            "fingerprint": _Maybe(str),
        },
        1,
    ),
    "sha256": str,
}
"""Types stand for themselves, a set for one of its members, a tuple for a list of just these items."""


def entries_of(graphs: Mapping[str, Graph]) -> dict[str, Any]:
    """Names and types of each entry point's arguments and results, in order; symbols are dynamic sizes."""
    return {name: _entry(graph) for name, graph in graphs.items()}


def tensors_of(file: "GgufFile") -> dict[str, dict[str, Any]]:
    """Type, shape and place of each tensor of a model's files."""
    return {
        name: {"type": t.type.name, "shape": list(t.shape), "file": t.part, "offset": t.offset, "nbytes": t.nbytes}
        for name, t in file.tensors.items()
    }


def _entry(graph: Graph) -> dict[str, Any]:
    names = ["embedding" if graph.name == "encode" else "logits", *(c.name for c in graph.caches())]
    return {
        "arguments": [{"name": a.name, "type": a.type.dtype, "shape": list(a.type.shape)} for a in graph.arguments],
        "results": [
            {"name": n, "type": r.type.dtype, "shape": list(r.type.shape)}
            for n, r in zip(names, graph.results, strict=True)
        ],
    }


def fault(manifest: Any) -> str | None:
    """The first place where a manifest isn't what it must be, in words; None for a sound one."""
    if malformed := _fault(manifest, _SHAPE, "the manifest"):
        return malformed
    rules = (_out_of_file, _other_entries, _other_caches, _other_parameters, _other_sha256)
    return next((found for rule in rules if (found := rule(manifest))), None)


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with the sha256 of all that it says, by which it is known that nothing of it was changed."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return rest | {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def _other_sha256(manifest: Mapping[str, Any]) -> str | None:
    """Whether something was changed that contradicts nothing."""
    wanted = sealed(manifest)["sha256"]
    found = manifest["sha256"]
    return None if found == wanted else f"the manifest's sha256 is {_short(found[:12])}, of what it says {wanted[:12]}"


def _out_of_file(manifest: Mapping[str, Any]) -> str | None:
    """The first range of bytes that the weights don't have."""
    sizes = [file["size"] for file in manifest["weights"]]
    ranges = {f"parameters[{name!r}]": place for name, place in manifest["parameters"].items()}
    ranges |= {f"tensors[{name!r}]": (t["file"], t["offset"], t["nbytes"]) for name, t in manifest["tensors"].items()}
    ranges |= {f"weights[{n}].header_bytes": (n, 0, file["header_bytes"]) for n, file in enumerate(manifest["weights"])}
    for where, (file, offset, length) in ranges.items():
        if file >= len(sizes):
            return f"the manifest.{where} lies in file {file}, the weights are {len(sizes)} files from 0 on"
        if offset + length > sizes[file]:
            return f"the manifest.{where} ends at byte {offset + length}, the weights have {sizes[file]}"
    return None


def _other_entries(manifest: Mapping[str, Any]) -> str | None:
    """The first entry point that there can't be, is missing, or gives other logits than the vocabulary has."""
    entries, vocabulary = manifest["entries"], manifest["vocabulary"]
    decoder = entries.keys() - {ENCODER}
    if unknown := sorted(decoder - {*DECODER, "decode_greedy"}):
        return f"the manifest.entries has {_short(unknown[0])}, which is none"
    for name in DECODER if decoder else ():
        if name not in entries:
            return f"the manifest.entries has no {name!r} beside {', '.join(sorted(decoder))}"
        if (logits := entries[name]["results"][0]["shape"][-1]) != vocabulary:
            return f"the manifest.vocabulary is {vocabulary}, and {name} gives {_short(logits)} logits"
    return None


def _other_parameters(manifest: Mapping[str, Any]) -> str | None:
    """The first parameter that isn't its tensor: from less than an alignment before it on, to its end."""
    for name, (file, offset, nbytes) in manifest["parameters"].items():
        tensor = manifest["tensors"].get(name)
        if tensor is None:
            return f"the manifest.parameters[{name!r}] is none of the tensors"
        lead = tensor["offset"] - offset
        if file != tensor["file"] or not 0 <= lead < ALIGNMENT or nbytes - lead != tensor["nbytes"]:
            wanted = [tensor["file"], tensor["offset"], tensor["nbytes"]]
            return f"the manifest.parameters[{name!r}] is {[file, offset, nbytes]}, and the tensor lies at {wanted}"
    return None


def _other_caches(manifest: Mapping[str, Any]) -> str | None:
    """The first cache that no memory holds, or that isn't the argument of every entry point of a decoder."""
    for cache in manifest["caches"]:
        if prod(cache["row"]) * max(1, cache["rows"]) > MOST_ELEMENTS:
            return f"the manifest's cache {cache['name']!r} has rows of {_short(cache['row'])}, which no memory holds"
    for name in manifest["entries"].keys() - {"encode"}:
        arguments = manifest["entries"][name]["arguments"][2:]
        if len(arguments) != len(manifest["caches"]):
            return f"the manifest has {len(manifest['caches'])} caches, and {name} takes {len(arguments)}"
        for cache, argument in zip(manifest["caches"], arguments, strict=True):
            rows = cache["rows"] or ring_rows(cache["window"])
            wanted = {"name": cache["name"], "type": cache["dtype"], "shape": [rows, *cache["row"]]}
            if argument != wanted:
                return f"the manifest's cache {cache['name']!r} is not the argument {argument['name']!r} of {name}"
    return None


def _fault(value: Any, shape: Any, where: str) -> str | None:
    inner: list[tuple[Any, Any, str]] = []
    match shape:
        case _Whole(low, high):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                return f"{where} is {_short(value)}, wanted a whole number from {low} to {high}"
        case frozenset():
            if not isinstance(value, str) or value not in shape:
                return f"{where} is {_short(value)}, wanted {' or '.join(sorted(shape))}"
        case type():
            if not isinstance(value, shape):
                return f"{where} is {_short(value)}, wanted {shape.__name__}"
        case tuple():
            if not isinstance(value, list) or len(value) != len(shape):
                return f"{where} is {_short(value)}, wanted {len(shape)} numbers"
            inner = [(item, wanted, f"{where}[{n}]") for n, (item, wanted) in enumerate(zip(value, shape, strict=True))]
        case _List(item, least):
            if not isinstance(value, list) or len(value) < least:
                return f"{where} is {_short(value)}, wanted a list of {least} or more"
            inner = [(element, item, f"{where}[{n}]") for n, element in enumerate(value)]
        case _Map(item, least):
            if not isinstance(value, dict) or len(value) < least:
                return f"{where} is {_short(value)}, wanted an object of {least} or more"
            inner = [(element, item, f"{where}[{key!r}]") for key, element in value.items()]
        case _Maybe(shape=wanted):
            return _fault(value, wanted, where)
        case dict():
            if not isinstance(value, dict):
                return f"{where} is {_short(value)}, wanted an object"
            for key, wanted in shape.items():
                if key in value:
                    inner.append((value[key], wanted, f"{where}.{key}"))
                elif not isinstance(wanted, _Maybe):
                    return f"{where} has no {key}"
    return next((found for item in inner if (found := _fault(*item))), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
