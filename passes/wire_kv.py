"""Makes a run without a cache into one that goes on from a position, with KV caches as arguments and results."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Op, Operand, Value, fresh_names
from ..graph.ops import make
from ..graph.types import TensorType


@dataclass(frozen=True)
class WireKv:
    """Gives every pair of keys and values that an attention reads a cache of its own.

    Before: `attention(%q, %k, %v)` sees the rows of this call. After: the rows go into ring caches `%k.N` and `%v.N`
    with `kv_update`, and attention reads these. Attentions that read the same pair (layers that share KV) read the
    same cache: the owner's value in the graph is the owner's cache. `rope` and `attention` take `%position`.

    The number of rows is the symbol `S` for caches that keep every position, and `S<window>` for those of which an
    attention sees only a window; the program that runs the graph grows the former and may let the latter wrap.

    Args:
        kv_type: element type of the caches, `f32` or `f16`.
    """

    kv_type: str = "f32"
    name = "wire-kv"

    def __call__(self, graph: Graph) -> Graph:
        position = Value("position", TensorType("i32", ()))
        pairs = _pairs(graph)
        names = fresh_names(graph)
        caches: list[Value] = []
        updates: dict[tuple[Value, Value], tuple[Op, Op]] = {}
        for n, ((k, v), window) in enumerate(pairs.items()):
            rows = f"S{window}" if window else "S"
            both: list[Op] = []
            for letter, value in (("k", k), ("v", v)):
                cache = Value(f"{letter}.{n}", TensorType(self.kv_type, (rows, *value.type.shape[1:])))
                caches.append(cache)
                both.append(make("kv_update", (cache, value, position), next(names)))
            updates[(k, v)] = (both[0], both[1])
        ops: list[Op] = []
        done: set[tuple[Value, Value]] = set()
        for op in graph.ops:
            if op.name == "rope":
                op = replace(op, operands=(op.operands[0], position, *op.operands[1:]))
            elif op.name == "attention":
                q, k, v = op.values
                if (k, v) not in done:
                    ops += [replace(update, note=op.note) for update in updates[(k, v)]]
                    done.add((k, v))
                operands: tuple[Operand, ...] = (q, *(update.result for update in updates[(k, v)]), position)
                op = replace(op, operands=operands)
            ops.append(op)
        results = [update.result for pair in updates.values() for update in pair]
        arguments = (*graph.arguments, position, *caches)
        return Graph(graph.name, arguments, tuple(ops), (*graph.results, *results))


def _pairs(graph: Graph) -> dict[tuple[Value, Value], int]:
    """The pairs (k, v) that attentions read, with the largest window that any of them sees; 0 is every position."""
    pairs: dict[tuple[Value, Value], int] = {}
    for op in graph.ops:
        if op.name == "attention":
            _, k, v = op.values
            window = op.attribute("window")
            assert isinstance(window, int)
            earlier = pairs.get((k, v), window)
            pairs[(k, v)] = max(earlier, window) if earlier and window else 0
    return pairs
