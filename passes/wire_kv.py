"""Makes a run without a cache into one that goes on from a position, with KV caches as arguments and results."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Op, Value, fresh_names
from ..graph.ops import make
from ..graph.types import TensorType, ring_rows


@dataclass(frozen=True)
class WireKv:
    """Gives every pair of keys and values that an attention reads a cache of its own.

    Before: `attention(%q, %k, %v)` sees the rows of this call. After: the rows go into ring caches `%k.N` and `%v.N`
    with `kv_update`, and attention reads these. Attentions that read the same pair (layers that share KV) read the
    same cache: the owner's value in the graph is the owner's cache. `rope` and `attention` take `%position`. A
    `short_conv` takes the rows before this call from a state `%c.N`, which `conv_update` renews.

    The number of rows is the symbol `S` for caches that keep every position, and `S<window>` for those of which an
    attention sees only a window; the program that runs the graph grows the former and may let the latter wrap.

    Args:
        kv_type: element type of the caches, one of `CACHE_DTYPES`.
    """

    kv_type: str = "f32"

    def __call__(self, graph: Graph) -> Graph:
        wiring = _Wiring(graph, self.kv_type)
        ops = [new for op in graph.ops for new in wiring.wire(op)]
        arguments = (*graph.arguments, wiring.position, *wiring.caches)
        return Graph(graph.name, arguments, tuple(ops), (*graph.results, *wiring.updated))


class _Wiring:
    """What has been wired so far: caches in the order of the operations that read them, and their new values."""

    def __init__(self, graph: Graph, kv_type: str) -> None:
        self.position = Value("position", TensorType("i32", ()))
        self.caches: list[Value] = []
        self.updated: list[Value] = []
        self._kv_type = kv_type
        self._names = fresh_names(graph)
        self._windows = _pairs(graph)
        self._rings: dict[tuple[Value, Value], tuple[Value, Value]] = {}

    def wire(self, op: Op) -> list[Op]:
        """The operations that stand in the place of one."""
        if op.name in ("rope", "positions"):
            return [replace(op, operands=(op.operands[0], self.position, *op.operands[1:]))]
        if op.name == "attention":
            return self._attention(op)
        if op.name == "short_conv":
            return self._short_conv(op)
        return [op]

    def _attention(self, op: Op) -> list[Op]:
        q, k, v = op.values
        updates: list[Op] = []
        if (k, v) not in self._rings:
            n, rows = len(self._rings), ring_rows(self._windows[(k, v)])
            for letter, value in (("k", k), ("v", v)):
                type_ = TensorType(self._kv_type, (rows, *value.type.shape[1:]))
                cache = self._cache(f"{letter}.{n}", type_)
                update = make("kv_update", (cache, value, self.position), next(self._names), op.note)
                updates.append(replace(update, origin=op.origin, layer=op.layer))
            self._rings[(k, v)] = (updates[0].result, updates[1].result)
            self.updated += self._rings[(k, v)]
        return [*updates, replace(op, operands=(q, *self._rings[(k, v)], self.position))]

    def _short_conv(self, op: Op) -> list[Op]:
        x, kernel = op.operands
        width, taps = kernel.type.shape
        n = sum(c.name.startswith("c.") for c in self.caches)
        state = self._cache(f"c.{n}", TensorType("f32", (int(taps) - 1, width)))
        update = make("conv_update", (state, x), next(self._names), op.note)
        update = replace(update, origin=op.origin, layer=op.layer)
        self.updated.append(update.result)
        return [replace(op, operands=(x, state, kernel)), update]

    def _cache(self, name: str, type_: TensorType) -> Value:
        self.caches.append(Value(name, type_))
        return self.caches[-1]


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
