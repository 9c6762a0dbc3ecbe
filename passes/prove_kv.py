"""The proof of law 3 on a finished graph: keys, values and caches come from this graph's own projections."""

from dataclasses import dataclass

from ..graph.ir import Graph, Op, Value


UPDATES = ("kv_update", "conv_update")


class KvError(Exception):
    """A cache or an attention is fed by something else than a projection of this graph's tokens."""


@dataclass(frozen=True)
class ProveKv:
    """Changes nothing. Proves that every row written to a cache descends from a `linear` and from the tokens, that
    every cache is read, updated and returned in its place, and that attention reads the updated caches alone.

    Raises:
        KvError: with the value that breaks the law.
    """

    name = "prove-kv"

    def __call__(self, graph: Graph) -> Graph:
        producers = graph.producers()
        caches = graph.caches()
        updates = {op.operands[0]: op for op in graph.ops if op.name in UPDATES}
        for n, cache in enumerate(caches):
            update = updates.get(cache)
            if update is None:
                raise KvError(f"@{graph.name}: {cache} is never updated")
            if graph.results[1 + n] != update.result:
                raise KvError(f"@{graph.name}: result {1 + n} is {graph.results[1 + n]}, wanted the updated {cache}")
            if sum(op.operands[0] == cache for op in graph.ops if op.name in UPDATES) > 1:
                raise KvError(f"@{graph.name}: {cache} is updated twice")
        for op in graph.ops:
            if op.name in UPDATES:
                _prove_projected(graph, op.values[1], producers)
            elif op.name == "attention":
                for value in op.values[1:3]:
                    source = producers.get(value)
                    if caches and (source is None or source.name != "kv_update"):
                        message = f"{op.result} = attention reads {value}, which is no updated cache"
                        raise KvError(f"@{graph.name}: {message}")
                    if not caches:
                        _prove_projected(graph, value, producers)
        return graph


def _prove_projected(graph: Graph, rows: Value, producers: object) -> None:
    """Walks from the rows back to the tokens; a projection must be met on every way."""
    assert isinstance(producers, dict)
    pending: list[tuple[Value, bool]] = [(rows, False)]
    while pending:
        value, projected = pending.pop()
        op: Op | None = producers.get(value)
        if op is None or projected:
            if not projected:
                raise KvError(f"@{graph.name}: {rows} comes from {value} without a projection")
            continue
        if not op.values:
            raise KvError(f"@{graph.name}: {rows} comes from {value} = {op.name}, a constant")
        data = op.values[:1] if op.name == "rope" else op.values
        pending += [(v, op.name == "linear") for v in data]
