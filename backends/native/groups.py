"""Work groups shared out among threads that run the same code: nobody waits for a thread that has nothing in hand.

Threads take groups of a kernel until there are none, and go on to the next kernel when all are done. A thread that
comes late finds the work done; one that comes alone does all of it.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .emit import I64, PTR, Emitter, Value
from .kernel import SCALARS, Kernel, signature
from .target import Target

ENTRY = ir.FunctionType(ir.VoidType(), [PTR, I64, I64])
"""entry(words, first, end): runs the work groups [first, end) of a kernel, numbered in row-major order.

`words` are 64-bit: the addresses of its buffers, its scalars, the work groups on each axis of its grid."""


def add_entry(module: ir.Module, kernel: Kernel, target: Target, name: str) -> None:
    """Adds a kernel's entry to a module that calls the kernel by its symbol."""
    callee = module.globals.get(kernel.name) or ir.Function(module, signature(kernel), kernel.name)
    function = ir.Function(module, ENTRY, name)
    e = Emitter(function.append_basic_block("entry"), target)
    words, first, end = function.args
    arguments, at = [], 0
    for _ in kernel.buffers:
        arguments += [e.read(PTR, words, at), e.index(0)]
        at += 8
    for scalar in kernel.scalars:
        arguments.append(e.read(SCALARS[scalar.dtype], words, at))
        at += 8
    counts = [e.read(I64, words, at + 8 * k) for k in range(len(kernel.grid))]

    def group(i: Value) -> None:
        ids = []
        for count in reversed(counts):
            ids.append(e.urem(i, count))
            i = e.udiv(i, count)
        e.call(callee, [*arguments, *reversed(ids)])

    e.each(first, end, 1, group)
    e.ret_void()


def take_groups(
    e: Emitter, taken: Value, done: Value, goal: Value, step: Value, run: Callable[[Value, Value], None]
) -> None:
    """Takes `step` groups at a time off the counter `taken` until it has reached `goal`: run(before, after), and adds
    them to the counter `done`. Both counters are i64."""
    look, take, work, end = (e.append_basic_block(name) for name in ("look", "take", "work", "none_left"))
    e.branch(look)
    e.position_at_end(look)
    now = e.load_atomic(taken, "acquire", 8, typ=I64)
    e.cbranch(e.icmp_signed("<", now, goal), take, end)
    e.position_at_end(take)
    after = e.minimum(e.add(now, step), goal)
    e.cbranch(e.extract_value(e.cmpxchg(taken, now, after, "acq_rel", "acquire"), 1), work, look)
    e.position_at_end(work)
    run(now, after)
    e.atomic_rmw("add", done, e.sub(after, now), "acq_rel")
    e.branch(look)
    e.position_at_end(end)


def wait(e: Emitter, counter: Value, goal: Value, spins: int = 0, give_way: Callable[[], object] | None = None) -> None:
    """Until the counter has reached the goal; after so many looks `give_way` runs before each."""
    start = e.block
    look, again, give, done = (e.append_basic_block(name) for name in ("look", "again", "give_way", "reached"))
    e.branch(look)
    e.position_at_end(look)
    looks = e.phi(I64)
    now = e.load_atomic(counter, "acquire", 8, typ=I64)
    e.cbranch(e.icmp_signed(">=", now, goal), done, again)
    e.position_at_end(again)
    if e.target.is_x86:
        e.call(e.declare("llvm.x86.sse2.pause", ir.VoidType()), [])
    more = e.add(looks, e.index(1))
    e.cbranch(e.icmp_signed(">", more, e.index(spins)), give, look)
    e.position_at_end(give)
    if give_way:
        give_way()
    e.branch(look)
    for value, block in ((e.index(0), start), (more, again), (more, give)):
        looks.add_incoming(value, block)
    e.position_at_end(done)
