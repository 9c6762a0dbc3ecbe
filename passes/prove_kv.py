"""The proof of law 3 on a finished graph: keys, values and caches come from this graph's own projections."""

from dataclasses import dataclass, field
from enum import Enum

from ..frontend.errors import InputError
from ..graph.ir import Graph, Op, Value
from ..graph.ops import PRODUCTS


class KvError(InputError):
    """A cache or an attention is fed by something else than a projection of this graph's tokens."""


class Role(Enum):
    """What a value is to the proof."""

    ROWS = "rows of this call"
    POSITION = "the position"
    CACHE = "a cache in its old state"
    STATE = "a convolution's state before this call"
    NEW_CACHE = "an updated cache"
    NEW_STATE = "a convolution's updated state"


TAKES: dict[str, tuple[Role, ...]] = {
    "rope": (Role.ROWS, Role.POSITION),
    "norm_rope": (Role.ROWS, Role.POSITION),
    "positions": (Role.ROWS, Role.POSITION),
    "attention": (Role.ROWS, Role.NEW_CACHE, Role.NEW_CACHE, Role.POSITION),
    "kv_update": (Role.CACHE, Role.ROWS, Role.POSITION),
    "short_conv": (Role.ROWS, Role.STATE),
    "conv_update": (Role.STATE, Role.ROWS),
}
"""What operations take in a graph with caches, when it isn't rows alone."""
WITHOUT_CACHES: dict[str, tuple[Role, ...]] = {
    "rope": (Role.ROWS,),
    "norm_rope": (Role.ROWS,),
    "positions": (Role.ROWS,),
    "attention": (Role.ROWS, Role.ROWS, Role.ROWS),
    "short_conv": (Role.ROWS,),
}
GIVES = {"kv_update": Role.NEW_CACHE, "conv_update": Role.NEW_STATE}
ARGUMENTS = {"tokens": Role.ROWS, "position": Role.POSITION, "k": Role.CACHE, "v": Role.CACHE, "c": Role.STATE}
"""The role of an argument, by its name up to the dot."""
LAST = 3
"""The kind of `pool` that takes the last row."""


@dataclass(frozen=True)
class ProveKv:
    """Changes nothing. Proves of a graph:

    - every value descends from the tokens: caches are read by their update, attention and convolution alone;
    - what is written to a cache, and what an attention without caches reads, has passed through a projection;
    - an attention reads the updated `%k.N` and `%v.N` of one N; a convolution's state is renewed by what it convolves;
    - whatever depends on where rows stand takes `%position`, and has a row for every token;
    - where there are caches nothing depends on how a text is cut into calls: no row looks at later ones, and where one
      stands for all it is the last;
    - every cache is updated once, and returned once in its place.

    Raises:
        KvError: with the value that breaks the law, in the words of the definition where it has some for it.
    """

    def __call__(self, graph: Graph) -> Graph:
        _Proof(graph).prove()
        return graph


@dataclass
class _Proof:
    graph: Graph
    roles: dict[Value, Role] = field(default_factory=dict)
    projected: set[Value] = field(default_factory=set)  # rows that a projection lies behind
    made: dict[Value, Op] = field(default_factory=dict)
    updates: dict[Value, Op] = field(default_factory=dict)  # by cache
    renewed: dict[Value, Value] = field(default_factory=dict)  # the cache of an updated one

    @property
    def _wired(self) -> bool:
        """Whether it goes on from a position, with caches."""
        return len(self.graph.arguments) > 1

    def prove(self) -> None:
        if not self.graph.arguments or self.graph.arguments[0].name != "tokens":
            raise self._error("the first argument is not %tokens")
        for argument in self.graph.arguments:
            self.roles[argument] = self._argument(argument)
        for op in self.graph.ops:
            self._op(op)
        for op in self.graph.ops:
            if op.name == "short_conv" and len(op.values) == 2:
                self._convolution(op)
        self._results()

    def _argument(self, argument: Value) -> Role:
        kind, _, number = argument.name.partition(".")
        role = ARGUMENTS.get(kind)
        if role is None or number.isdigit() != (role in (Role.CACHE, Role.STATE)):
            raise self._error(f"argument {argument} is neither tokens, position nor a cache")
        if role is Role.CACHE and not isinstance(argument.type.shape[0], str):
            raise self._error(f"{argument} is {argument.type}, wanted a number of rows that the run decides")
        return role

    def _op(self, op: Op) -> None:
        for value, role in zip(op.values, self._takes(op), strict=True):
            if self.roles[value] is not role:
                found = self.roles[value].value
                raise self._error(f"reads {self._named(value)}, {found}, wanted {role.value}", op)
        if not op.values:
            raise self._error("is a constant, wanted what comes from %tokens", op)
        if self._wired:
            self._same_however_cut(op)
        self.made[op.result] = op
        self.roles[op.result] = GIVES.get(op.name, Role.ROWS)
        if op.name in PRODUCTS or any(value in self.projected for value in op.values):
            self.projected.add(op.result)
        if op.name in TAKES:
            self._rows_of_all_tokens(op)
        if op.name == "attention":
            self._attention(op)
        elif op.name in GIVES:
            self._update(op)

    def _takes(self, op: Op) -> tuple[Role, ...]:
        roles = (TAKES if self._wired else WITHOUT_CACHES).get(op.name, (Role.ROWS,) * len(op.values))
        if len(op.values) != len(roles):
            raise self._error(f"takes {', '.join(role.value for role in roles)}; found {len(op.values)} values", op)
        return roles

    def _same_however_cut(self, op: Op) -> None:
        if op.name == "attention" and op.attribute("ahead") != 0:
            message = f"looks {op.attribute('ahead')} positions ahead, which aren't known yet when a text goes on"
            raise self._error(f"{message}: in a decoder ahead is 0", op)
        if op.name == "pool" and op.attribute("kind") != LAST:
            message = f"of kind {op.attribute('kind')} depends on where a call's rows begin"
            raise self._error(f"{message}: in a decoder's run to its logits kind is 0 or {LAST} (the last row)", op)

    def _rows_of_all_tokens(self, op: Op) -> None:
        """Row t stands at position + t, so no row may have been left out before."""
        tokens = self.graph.arguments[0].type.shape[0]
        rows = next(value for value in op.values if self.roles[value] is Role.ROWS)
        if rows.type.shape[0] != tokens:
            wanted = f"{rows.type}, wanted a row for each of {tokens} tokens"
            raise self._error(f"reads {self._named(rows)}: {wanted}{self._left_out(rows)}", op)

    def _left_out(self, rows: Value) -> str:
        """Names the step that makes one row of all, where another one reads what comes of it."""
        one, maker = rows.type.shape[0], self.made.get(rows)
        while maker and (short := [v for v in maker.values if v in self.made and v.type.shape[0] == one]):
            maker = self.made[short[0]]
        return f"; {maker.name} of line {maker.origin.line} left the others out" if maker and maker.origin else ""

    def _attention(self, op: Op) -> None:
        keys, values = op.values[1:3]
        if self.roles[keys] is Role.ROWS:
            self._projected(op, keys)
            self._projected(op, values)
            return
        k, v = self.renewed[keys], self.renewed[values]
        if (k.name[0], v.name[0]) != ("k", "v") or k.name[1:] != v.name[1:]:
            raise self._error(f"reads keys from {k} and values from {v}, wanted %k.N and %v.N of one N", op)

    def _update(self, op: Op) -> None:
        cache, rows = op.values[:2]
        if cache in self.updates:
            raise self._error(f"updates {cache} a second time", op)
        self.updates[cache] = op
        self.renewed[op.result] = cache
        if op.name == "kv_update":
            self._projected(op, rows)

    def _projected(self, op: Op, rows: Value) -> None:
        if rows not in self.projected:
            wanted = "which comes from the tokens without a projection (linear or expert_linear)"
            raise self._error(f"reads {self._named(rows)}, {wanted}", op)

    def _convolution(self, op: Op) -> None:
        rows, state = op.values
        if state in self.updates and self.updates[state].values[1] != rows:
            raise self._error(f"convolves {rows}, but {state} is renewed by {self.updates[state].values[1]}", op)

    def _results(self) -> None:
        caches, results = self.graph.caches(), self.graph.results
        if len(results) != 1 + len(caches):
            raise self._error(f"{len(results)} results, wanted 1 and the {len(caches)} caches")
        if self.roles[results[0]] is not Role.ROWS:
            raise self._error(f"result 0 is {results[0]}, {self.roles[results[0]].value}, wanted {Role.ROWS.value}")
        for n, cache in enumerate(caches, 1):
            if cache not in self.updates:
                raise self._error(f"{cache} is never updated")
            if results[n] != self.updates[cache].result:
                raise self._error(f"result {n} is {results[n]}, wanted the updated {cache}")

    def _named(self, value: Value) -> str:
        """A value as the definition calls it, where a step made it."""
        origin = self.made[value].origin if value in self.made else None
        return f"{origin.result!r} of line {origin.line}" if origin else str(value)

    def _error(self, message: str, op: Op | None = None) -> KvError:
        if op is None:
            return KvError(f"@{self.graph.name}: {message}")
        note = f" ({op.note})" if op.note else ""
        if op.origin:
            return KvError(f"{op.origin}{note} {message}")
        return KvError(f"@{self.graph.name}{note}: {op.result} = {op.name} {message}")
