"""A model as one page of HTML that needs nothing else: numbers, memory, layers, operations, tensors."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from html import escape
from itertools import groupby
from typing import Any

from ...frontend.ggml_types import by_name
from ...graph.ir import Graph, Operand, Weight
from ...graph.model import Model

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; --bar: #4a90d966 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line) }
th { font-weight: 600 } .n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
code { font: 13px/1.5 ui-monospace, monospace }
summary { cursor: pointer; padding: .3rem 0 } summary span, .dim { color: var(--dim) }
details { border-bottom: 1px solid var(--line) }
input { font: inherit; padding: .3rem .6rem; width: 20rem; max-width: 100%; box-sizing: border-box }
.bar { background: linear-gradient(var(--bar), var(--bar)) no-repeat left / var(--part) 100% }
@media (max-width: 40rem) {
  table { display: block; overflow-x: auto }
  th, td { padding-right: .5rem; min-width: 5rem }
}
"""
_SCRIPT = """
const rows = [...document.querySelectorAll("#tensors tbody tr")];
document.querySelector("#find").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\\s+/);
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
});
"""


def page(model: Model, graph: Graph, found: dict[str, Any]) -> str:
    """The page.

    Args:
        model: the model.
        graph: the entry point whose operations are shown.
        found: what `describe` says of the model, with `memory.plan`'s as `memory`.
    """
    name = escape(found["name"])
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{_STYLE}</style></head><body>",
            f'<h1>{name}</h1><p class="dim">{escape(found["path"])}</p>',
            *_section("Model", _pairs(_facts(found))),
            *_section("Memory", _memory(found)),
            *_section(f"Layers of {graph.name}", _layers(graph)),
            *_section("Tensors", _tensors(model)),
            *_section("Parameters", _pairs(found["hyperparameters"].items())),
            f"<script>{_SCRIPT}</script></body></html>",
            "",
        ]
    )


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "architecture", f"{found['architecture']}, {found['kind']}"
    yield "definition", f"{found['definition']['source']}, sha256 {found['definition']['sha256']}"
    yield "context", f"{found['context_length']:,} tokens"
    yield "vocabulary", f"{found['vocabulary']:,} tokens"
    yield "layers", ", ".join(f"{count} {kind}".rstrip() for kind, count in found["layers"].items())
    yield "file", _bytes(found["file_bytes"])
    for type_, entry in found["tensors"]["types"].items():
        yield f"{type_} tensors", f"{entry['tensors']:,}, {_bytes(entry['bytes'])}"
    if found["kind"] == "decoder":
        yield "read per token", f"{_bytes(found['decode_bytes']['weights'])} of weights, and the cache"


def _memory(found: dict[str, Any]) -> Iterator[str]:
    memory = found["memory"]
    yield from _pairs(
        [
            ("weights, mapped from the file", _bytes(memory["weights"])),
            *((f"scratch of a call of {n} tokens", _bytes(size)) for n, size in memory["scratch"].items()),
        ]
    )
    if memory["caches"]:
        lengths = next(iter(memory["caches"].values()))
        head = ["caches", *(f"{length:,} tokens" for length in lengths)]
        yield from _table(head, ([kv, *map(_bytes, sizes.values())] for kv, sizes in memory["caches"].items()))


def _layers(graph: Graph) -> Iterator[str]:
    """The operations, folded by the layer that they are of."""
    for note, group in groupby(graph.ops, lambda op: op.note or "entry point"):
        ops = list(group)
        weights = {weight.name: weight for op in ops for weight in op.weights}
        size = sum(_weight_bytes(weight) for weight in weights.values())
        reads = f", {_counted(weights, 'tensor')}, {_bytes(size)}" if weights else ""
        count = _counted(ops, "operation")
        yield f"<details><summary>{escape(note)} <span>{count}{reads}</span></summary>"
        yield from _table(
            ["result", "operation", "of", "attributes"],
            (
                [
                    f"{op.result}: {op.result.type}",
                    op.name,
                    ", ".join(map(_operand, op.operands)),
                    ", ".join(f"{key} = {value}" for key, value in op.attributes),
                ]
                for op in ops
            ),
            code=True,
        )
        yield "</details>"


def _tensors(model: Model) -> Iterator[str]:
    tensors = sorted(model.file.tensors.values(), key=lambda tensor: -tensor.nbytes)
    most = max((tensor.nbytes for tensor in tensors), default=0) or 1
    yield '<p><input id="find" placeholder="Find by name, type or shape" aria-label="Find tensors"></p>'
    yield '<table id="tensors"><thead><tr><th>name<th>type<th>shape<th class="n">bytes</tr></thead><tbody>'
    for tensor in tensors:
        part = f"{100 * tensor.nbytes / most:.2f}%"
        shape = " x ".join(map(str, tensor.shape))
        yield (
            f"<tr><td><code>{escape(tensor.name)}</code><td>{tensor.type.name}<td>{shape}"
            f'<td class="n bar" style="--part: {part}">{tensor.nbytes:,}</tr>'
        )
    yield "</tbody></table>"


def _counted(things: Sized, what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


def _operand(operand: Operand) -> str:
    return f"@{operand.name}: {operand.type}" if isinstance(operand, Weight) else str(operand)


def _weight_bytes(weight: Weight) -> int:
    *lead, last = (int(size) for size in weight.type.shape)
    rows = 1
    for size in lead:
        rows *= size
    return by_name(weight.type.dtype).nbytes(last, rows)


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    yield f"<h2>{escape(title)}</h2>"
    yield from body


def _pairs(rows: Iterable[tuple[str, Any]]) -> Iterator[str]:
    yield "<table>"
    yield from (f"<tr><th>{escape(label)}<td>{escape(str(value))}</tr>" for label, value in rows)
    yield "</table>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], code: bool = False) -> Iterator[str]:
    """A table of text, in the type of code or with figures to the right but for the first column."""
    open_, close = ("<td><code>", "</code>") if code else ('<td class="n">', "")
    kind = "" if code else ' class="n"'
    yield f"<table><tr><th>{escape(head[0])}{''.join(f'<th{kind}>{escape(cell)}' for cell in head[1:])}</tr>"
    for first, *rest in rows:
        cells = "".join(f"{open_}{escape(cell)}{close}" if cell else "<td>" for cell in rest)
        yield f"<tr>{open_ if code else '<td>'}{escape(first)}{close}{cells}</tr>"
    yield "</table>"


def _bytes(count: int) -> str:
    """Bytes for people."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
