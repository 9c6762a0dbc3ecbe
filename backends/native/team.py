"""Threads that run a program of kernels together, with nothing of Python between one kernel and the next.

A program is an int64 array (kernels, RECORD): address of the kernel's entry, address of its words, number of work
groups, how many of them a thread takes at a time, and two counters: groups taken and groups done. Threads take groups
until there are none, and go on when all are done. So nobody waits for a thread that has no core just now, unless it
holds a group; one that comes late finds the work done and runs after the others.

The counters of run number r begin at r * 2^32. To a thread that is still in an earlier run they look as if everything
were taken and done, which it was.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from .emit import I64, PTR, Emitter, Value
from .target import Target, host_target

RECORD = 8
"""Words of a record: a cache line, so that the counters of two kernels never share one."""
_ENTRY, _WORDS, _GROUPS, _STEP, _TAKEN, _DONE = range(6)
_SPINS = 4000
"""Looks at a counter before the core is given to another process: some tens of microseconds."""

_Run = tuple[np.ndarray, int]


class Team:
    """`threads` threads, the caller's own among them. One program at a time; the caller sees to that."""

    def __init__(self, threads: int) -> None:
        self._function = _loaded(host_target())
        self._runs = 0
        self._inboxes: list[SimpleQueue[_Run | None]] = [SimpleQueue() for _ in range(threads - 1)]
        for inbox in self._inboxes:
            threading.Thread(target=_work, args=(self._function, inbox), daemon=True).start()
        weakref.finalize(self, _dismiss, self._inboxes)

    def run(self, program: np.ndarray) -> None:
        """Runs the kernels in order, each with all threads, and returns when the last one is done."""
        self._runs += 1
        start = self._runs << 32
        program[:, _TAKEN : _DONE + 1] = start
        try:
            for inbox in self._inboxes:
                inbox.put((program, start))
        finally:  # an interrupt must not leave the others alone with a run that nobody waits for
            self._function(program, start)


def record(entry: int, words: int, groups: int, threads: int) -> list[int]:
    """A program's record of one kernel; a thread takes a few groups at a time where there are very many."""
    return [entry, words, groups, max(1, groups // (8 * threads)), 0, 0, 0, 0]


def _work(function: _Function, inbox: SimpleQueue[_Run | None]) -> None:
    """A thread's life. It holds the program, which the others may be done with before it is."""
    while run := inbox.get():
        function(*run)


def _dismiss(inboxes: list[SimpleQueue[_Run | None]]) -> None:
    for inbox in inboxes:
        inbox.put(None)


@dataclass(frozen=True)
class _Function:
    """The loop over a program's kernels; other Python threads run meanwhile."""

    loop: Any
    engine: Any

    def __call__(self, program: np.ndarray, start: int) -> None:
        self.loop(program.ctypes.data, len(program), start)


@functools.cache
def _loaded(target: Target) -> _Function:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic", codemodel="small")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(_module(target))), machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)
    return _Function(prototype(engine.get_function_address("run")), engine)


def _module(target: Target) -> ir.Module:
    module = ir.Module("team")
    module.triple = llvm.get_default_triple()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [PTR, I64, I64]), "run")
    e = Emitter(function.append_basic_block("entry"), target)
    program, count, start = function.args

    def kernel(i: Value) -> None:
        record = e.at(program, e.times(i, 8 * RECORD))
        goal = e.add(start, e.read(I64, record, 8 * _GROUPS))
        _take_groups(e, record, start, goal)
        _wait(e, e.at(record, 8 * _DONE), goal)

    e.each(0, count, 1, kernel)
    e.ret_void()
    return module


def _take_groups(e: Emitter, record: Value, start: Value, goal: Value) -> None:
    """Takes and runs `step` groups of the kernel at a time until its counter has reached the goal."""
    entry = e.inttoptr(e.read(I64, record, 8 * _ENTRY), _ENTRY_TYPE.as_pointer())
    words, step = e.read(PTR, record, 8 * _WORDS), e.read(I64, record, 8 * _STEP)
    taken, done = e.at(record, 8 * _TAKEN), e.at(record, 8 * _DONE)
    look, take, run, end = (e.append_basic_block(name) for name in ("look", "take", "run", "none_left"))
    e.branch(look)
    e.position_at_end(look)
    now = e.load_atomic(taken, "acquire", 8, typ=I64)
    e.cbranch(e.icmp_signed("<", now, goal), take, end)
    e.position_at_end(take)
    after = e.minimum(e.add(now, step), goal)
    e.cbranch(e.extract_value(e.cmpxchg(taken, now, after, "acq_rel", "acquire"), 1), run, look)
    e.position_at_end(run)
    e.call(entry, [words, e.sub(now, start), e.sub(after, start)])
    e.atomic_rmw("add", done, e.sub(after, now), "acq_rel")
    e.branch(look)
    e.position_at_end(end)


_ENTRY_TYPE = ir.FunctionType(ir.VoidType(), [PTR, I64, I64])


def _wait(e: Emitter, counter: Value, goal: Value) -> None:
    """Until the counter has reached the goal."""
    start = e.block
    look, wait, give, done = (e.append_basic_block(name) for name in ("look", "wait", "give_core_away", "reached"))
    e.branch(look)
    e.position_at_end(look)
    spins = e.phi(I64)
    now = e.load_atomic(counter, "acquire", 8, typ=I64)
    e.cbranch(e.icmp_signed(">=", now, goal), done, wait)
    e.position_at_end(wait)
    if e.target.is_x86:
        e.call(e.declare("llvm.x86.sse2.pause", ir.VoidType()), [])
    more = e.add(spins, e.index(1))
    e.cbranch(e.icmp_signed(">", more, e.index(_SPINS)), give, look)
    e.position_at_end(give)
    e.call(e.declare("sched_yield", ir.IntType(32)), [])
    e.branch(look)
    for value, block in ((e.index(0), start), (more, wait), (more, give)):
        spins.add_incoming(value, block)
    e.position_at_end(done)
