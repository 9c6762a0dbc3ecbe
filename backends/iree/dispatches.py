# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""Calls of kernels as dispatches; those of one work group each, one after the other, become a single dispatch.

A dispatch costs the recording of it, and a wait of all workers for each other: together some microseconds, in which
decode reads 50 KB of weights. A kernel of one work group gains nothing by the workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir

from ..native.kernel import Kernel
from .executables import Executable, Step

_MOST_WORDS = 64
"""IREE's limit for the numbers of a dispatch, each once: an index takes two words, and the place of a buffer one."""


@dataclass(frozen=True)
class Operand:
    """A buffer that a call is given: the tensor, its dynamic sizes, and for raw bytes how many come before them."""

    value: ir.Value
    sizes: tuple[ir.Value, ...] = ()
    lead: ir.Value | None = None


@dataclass(frozen=True)
class Call:
    """One call of a kernel.

    `buffers` and `scalars` are in the kernel's order; None stands for an output in memory of its own. `result` is the
    type of the output and `sizes` are its dynamic sizes. `has_one_group` is known of constant sizes alone.
    """

    kernel: Kernel
    buffers: tuple[Operand | None, ...]
    scalars: tuple[ir.Value, ...]
    result: ir.Type
    sizes: tuple[ir.Value, ...]
    has_one_group: bool

    def reading(self, moved: Mapping[ir.Value, ir.Value]) -> "Call":
        """The call with what stands for its operands now."""
        buffers = (b and replace(b, value=moved.get(b.value, b.value)) for b in self.buffers)
        return replace(self, buffers=tuple(buffers))

    @property
    def output(self) -> int:
        """Which buffer is written."""
        return next(n for n, buffer in enumerate(self.kernel.buffers) if buffer.output)

    @property
    def updated(self) -> ir.Value | None:
        """The tensor that is updated in place."""
        operand = self.buffers[self.output]
        return operand.value if operand else None


class Dispatches:
    """The dispatches of a module's entry points, and the executables that they run, by name."""

    def __init__(self) -> None:
        self.executables: dict[str, Executable] = {}
        self._calls: dict[ir.Value, Call] = {}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those that anything calls."""
        return tuple(dict.fromkeys(step.kernel for run in self.executables.values() for step in run.steps))

    def add(self, call: Call) -> ir.Value:
        """The result of a call, dispatched at the current insertion point."""
        (result,) = _Chain([call]).dispatch(call.kernel.name).results
        self._calls[result] = call
        return result

    def join(self, block: ir.Block) -> None:
        """Joins what can be joined in a block, and makes the executables of all that its dispatches run."""
        moved: dict[ir.Value, ir.Value] = {}
        chain: dict[ir.Value, Call] = {}
        for op in list(block.operations):
            operation = op.operation
            call = self._calls.get(operation.results[0]) if operation.name == "flow.dispatch" else None
            if call and call.has_one_group:
                call = call.reading(moved)
                if not _may_join(call, chain):
                    moved |= self._end(chain)
                    call = call.reading(moved)
                chain[operation.results[0]] = call
                continue
            if any(operand in chain for operand in operation.operands):
                moved |= self._end(chain)
            if call:
                self._declare(call.kernel.name, _Chain([call]).executable)
        moved |= self._end(chain)
        for old in reversed(moved):
            old.owner.erase()

    def _end(self, made: dict[ir.Value, Call]) -> dict[ir.Value, ir.Value]:
        """Puts one dispatch in the place of the last of several; those before it move there, for nobody between reads
        what they give. Returns what stands for their results, which nobody reads any more."""
        if not made:
            return {}
        results, chain = list(made), _Chain(list(made.values()), list(made))
        name = self._declare(chain.name, chain.executable)
        made.clear()
        if len(results) == 1:
            return {}
        last = results[-1].owner
        with ir.InsertionPoint(last), last.location:
            joined = chain.dispatch(name).results
        for old, new in zip(results, joined, strict=True):
            old.replace_all_uses_with(new)
        return dict(zip(results, joined, strict=True))

    def _declare(self, name: str, run: Executable) -> str:
        """The name under which an executable stands: the same kernels may read each other's results in several ways."""
        number, free = 1, name
        while self.executables.setdefault(free, run) != run:
            number += 1
            free = f"{name}_{number}"
        return free


def _may_join(call: Call, chain: Mapping[ir.Value, Call]) -> bool:
    """Whether a call may follow a chain: within IREE's limit, and what it updates is nothing that the chain made."""
    calls = (*chain.values(), call)
    numbers = {n for c in calls for n in (*c.scalars, *(o.lead for o in c.buffers if o and o.lead is not None))}
    words = 2 * len(numbers) + sum(len(c.buffers) for c in calls)
    return words <= _MOST_WORDS and call.updated not in chain


class _Chain:
    """Calls, one after the other in one dispatch, which may read each other's `results`.

    The bindings are the buffers that come from outside, call by call, and then the outputs in memory of their own.
    """

    def __init__(self, calls: Sequence[Call], results: Sequence[ir.Value] = ()) -> None:
        self.calls, self._makers = calls, {value: n for n, value in enumerate(results)}
        self._operands: list[Operand] = []
        self._bindings: dict[tuple[int, int], int] = {}
        for n, call in enumerate(calls):
            for b, operand in enumerate(call.buffers):
                if operand and operand.value not in self._makers:
                    self._bindings[n, b] = len(self._operands)
                    self._operands.append(operand)
        for n, call in enumerate(calls):
            if call.updated is None:
                self._bindings[n, call.output] = len(self._bindings)

    @property
    def name(self) -> str:
        names = [call.kernel.name for call in self.calls]
        return "_then_".join([*names[:1], *(name.removeprefix("ggufc_") for name in names[1:])])

    @property
    def executable(self) -> Executable:
        types = {at: self.calls[n].kernel.buffers[b].dtype for (n, b), at in self._bindings.items()}
        scalars: list[str] = []
        steps: list[Step] = []
        for n, call in enumerate(self.calls):
            numbers = range(len(scalars), len(scalars) + len(call.scalars))
            scalars += [scalar.dtype for scalar in call.kernel.scalars]
            leads: list[int | None] = []
            for operand in call.buffers:
                has_lead = operand is not None and operand.lead is not None
                leads.append(len(scalars) if has_lead else None)
                scalars += ["i64"] * has_lead
            buffers = tuple(self._binding(n, b) for b in range(len(call.buffers)))
            steps.append(Step(call.kernel, buffers, tuple(numbers), tuple(leads)))
        grid = self.calls[0].kernel.grid if len(self.calls) == 1 else ()
        return Executable(tuple(types[n] for n in range(len(types))), tuple(scalars), tuple(steps), grid)

    def _binding(self, n: int, b: int) -> int:
        operand = self.calls[n].buffers[b]
        if operand and operand.value in self._makers:
            n = self._makers[operand.value]
            b = self.calls[n].output
        return self._bindings[n, b]

    def dispatch(self, name: str) -> ir.Operation:
        """The operation that runs the executable of this name, with a result for each call, at the insertion point."""
        workload: list[ir.Value] = []
        if len(self.calls) == 1:
            (call,) = self.calls
            numbers = dict(zip((scalar.name for scalar in call.kernel.scalars), call.scalars, strict=True))
            workload = [numbers[scalar] for scalar, _ in call.kernel.grid]
        arguments = [operand.value for operand in self._operands]
        for call in self.calls:
            arguments += [*call.scalars, *(o.lead for o in call.buffers if o and o.lead is not None)]
        sizes = [size for operand in self._operands for size in operand.sizes]
        result_sizes = [size for call in self.calls for size in call.sizes]
        segments = [len(workload), len(arguments), len(sizes), len(result_sizes)]
        tied = [-1 if call.updated is None else self._bindings[n, call.output] for n, call in enumerate(self.calls)]
        attributes: dict[str, ir.Attribute] = {
            "entry_points": ir.ArrayAttr.get([ir.SymbolRefAttr.get([name, f"{name}_run"])]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get(segments),
            "tied_operands": ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IndexType.get(), at) for at in tied]),
        }
        return ir.Operation.create(
            "flow.dispatch",
            results=[call.result for call in self.calls],
            operands=[*workload, *arguments, *sizes, *result_sizes],
            attributes=attributes,
        )
