"""Threads that run a program of kernels together, with nothing of Python between one kernel and the next.

A program is an int64 array (kernels, RECORD): address of the kernel's entry, address of its words, number of work
groups, how many of them a thread takes at a time, and the next group to take, which is 0 before a run. Threads take
groups until there are none, and wait for each other before the next kernel: the waits are as many as the kernels, so
they spin, and give the core away only after a while.
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
_ENTRY, _WORDS, _GROUPS, _STEP, NEXT = range(5)
_SPINS = 4000
"""Looks at the counter before the core is given to another process; some tens of microseconds."""

_Arguments = tuple[int, int, int, int, int]


class Team:
    """`threads` threads, the caller's own among them. One program at a time; the caller sees to that."""

    def __init__(self, threads: int) -> None:
        self._threads = max(threads, 1)
        self._function = _loaded(host_target())
        self._arrived = np.zeros(RECORD, np.int64)  # at any barrier so far, by all threads; never reset
        self._inboxes: list[SimpleQueue[_Arguments | None]] = [SimpleQueue() for _ in range(self._threads - 1)]
        for inbox in self._inboxes:
            threading.Thread(target=_work, args=(self._function, inbox, self._arrived), daemon=True).start()
        weakref.finalize(self, _dismiss, self._inboxes)

    def run(self, program: np.ndarray) -> None:
        """Runs the kernels in order, each with all threads, and returns when the last one is done."""
        program[:, NEXT] = 0
        arrived = self._arrived
        arguments = (program.ctypes.data, len(program), self._threads, arrived.ctypes.data, int(arrived[0]))
        for inbox in self._inboxes:
            inbox.put(arguments)
        self._function.run(*arguments)


def record(entry: int, words: int, groups: int, threads: int) -> list[int]:
    """A program's record of one kernel; a thread takes a few groups at a time where there are very many."""
    return [entry, words, groups, max(1, groups // (8 * threads)), 0, 0, 0, 0]


def _work(function: _Function, inbox: SimpleQueue[_Arguments | None], arrived: np.ndarray) -> None:
    """A thread's life: `arrived` is held, since the thread still looks at it when the others are gone."""
    while arguments := inbox.get():
        function.run(*arguments)


def _dismiss(inboxes: list[SimpleQueue[_Arguments | None]]) -> None:
    for inbox in inboxes:
        inbox.put(None)


@dataclass(frozen=True)
class _Function:
    """run(program, kernels, threads, arrived, arrived before); the call lets other Python threads run."""

    run: Any
    engine: Any


@functools.cache
def _loaded(target: Target) -> _Function:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic", codemodel="small")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(_module(target))), machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)
    return _Function(prototype(engine.get_function_address("run")), engine)


def _module(target: Target) -> ir.Module:
    module = ir.Module("team")
    module.triple = llvm.get_default_triple()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [PTR, I64, I64, PTR, I64]), "run")
    e = Emitter(function.append_basic_block("entry"), target)
    program, count, threads, arrived, before = function.args

    def kernel(i: Value) -> None:
        _take_groups(e, e.at(program, e.times(i, 8 * RECORD)))
        goal = e.add(before, e.mul(threads, e.add(i, e.index(1))))
        e.atomic_rmw("add", arrived, e.index(1), "acq_rel")
        _wait(e, arrived, goal)

    e.each(0, count, 1, kernel)
    e.ret_void()
    return module


def _take_groups(e: Emitter, record: Value) -> None:
    """while (first = next; next += step) < groups: entry(words, first, min(first + step, groups))."""
    entry = e.inttoptr(e.read(I64, record, 8 * _ENTRY), _ENTRY_TYPE.as_pointer())
    words = e.read(PTR, record, 8 * _WORDS)
    groups, step = (e.read(I64, record, 8 * at) for at in (_GROUPS, _STEP))
    take, run, done = (e.append_basic_block(name) for name in ("take", "run", "none_left"))
    e.branch(take)
    e.position_at_end(take)
    first = e.atomic_rmw("add", e.at(record, 8 * NEXT), step, "monotonic")
    e.cbranch(e.icmp_signed("<", first, groups), run, done)
    e.position_at_end(run)
    e.call(entry, [words, first, e.minimum(e.add(first, step), groups)])
    e.branch(take)
    e.position_at_end(done)


_ENTRY_TYPE = ir.FunctionType(ir.VoidType(), [PTR, I64, I64])


def _wait(e: Emitter, arrived: Value, goal: Value) -> None:
    """Until `arrived` has reached the goal."""
    start = e.block
    look, wait, give, done = (e.append_basic_block(name) for name in ("look", "wait", "give_core", "all_there"))
    e.branch(look)
    e.position_at_end(look)
    spins = e.phi(I64)
    now = e.load_atomic(arrived, "acquire", 8, typ=I64)
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
