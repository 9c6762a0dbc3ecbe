"""Threads that run a program of kernels together, with nothing of Python between one kernel and the next.

A program is an int64 array (kernels, RECORD): address of the kernel's entry, address of its words, number of work
groups, how many of them a thread takes at a time, two counters: groups taken and groups done, and the time in
nanoseconds at which the first thread of a run that measures it saw the kernel done. Threads take groups
until there are none, and go on when all are done. So nobody waits for a thread that has no core just now, unless it
holds a group; one that comes late finds the work done and runs after the others.

The counters of run number r begin at r * 2^32, and so does the time. To a thread that is still in an earlier run they
look as if everything were taken and done, which it was, and the time as if it had been written.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
import weakref
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ..host.cores import check_threads
from .emit import I32, I64, PTR, Emitter, Value, const
from .groups import ENTRY, take_groups, wait
from .target import Target, host_target

RECORD = 8
"""Words of a record: a cache line, so that the counters of two kernels never share one."""
_ENTRY, _WORDS, _GROUPS, _STEP, _TAKEN, _DONE, _TIME = range(7)
_SPINS = 4000
"""Looks at a counter before the core is given to another process: some tens of microseconds."""


class Team:
    """`threads` threads, the caller's own among them. One program at a time; the caller sees to that.

    Raises:
        InputError: as `check_threads`.
    """

    def __init__(self, threads: int) -> None:
        check_threads(threads)
        self._function, self._timed = (_loaded(host_target(), timed) for timed in (False, True))
        self._runs = 0
        self._inboxes: list[SimpleQueue[_Run | None]] = [SimpleQueue() for _ in range(threads - 1)]
        for inbox in self._inboxes:
            threading.Thread(target=_work, args=(inbox,), daemon=True).start()
        weakref.finalize(self, _dismiss, self._inboxes)

    def run(self, program: np.ndarray) -> None:
        """Runs the kernels in order, each with all threads, and returns when the last one is done."""
        self._run(self._function, program)

    def profile(self, program: np.ndarray) -> np.ndarray:
        """As `run`; float64 (kernels,), the seconds from the end of the kernel before to the end of each."""
        begin = perf_counter_ns()
        self._run(self._timed, program)
        return np.diff(program[:, _TIME], prepend=begin) / 1e9

    def _run(self, function: _Function, program: np.ndarray) -> None:
        self._runs += 1
        start, address = self._runs << 32, program.ctypes.data
        program[:, _TAKEN : _TIME + 1] = start
        interrupt: BaseException | None = None
        try:
            for inbox in self._inboxes:
                inbox.put((function, program, start))
        finally:
            # An interrupt must not leave the others alone with a run that nobody waits for, and whose memory its caller
            # takes for free: it may come at any step before the loop, which is then entered again, and again does
            # nothing that is done.
            ended = False
            while not ended:
                try:
                    function.loop(address, len(program), start)
                    ended = True
                except KeyboardInterrupt as error:
                    interrupt = error
        if interrupt:
            raise interrupt


def record(entry: int, words: int, groups: int, threads: int) -> list[int]:
    """A program's record of one kernel; a thread takes a few groups at a time where there are very many."""
    return [entry, words, groups, max(1, groups // (8 * threads)), 0, 0, 0, 0]


def _work(inbox: SimpleQueue[_Run | None]) -> None:
    """A thread's life. It holds the program, which the others may be done with before it is."""
    while run := inbox.get():
        function, program, start = run
        function(program, start)


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


_Run = tuple[_Function, np.ndarray, int]


@functools.cache
def _loaded(target: Target, timed: bool) -> _Function:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic", codemodel="small")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(_module(target, timed))), machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)
    return _Function(prototype(engine.get_function_address("run")), engine)


def _module(target: Target, timed: bool) -> ir.Module:
    module = ir.Module("team")
    module.triple = llvm.get_default_triple()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [PTR, I64, I64]), "run")
    e = Emitter(function.append_basic_block("entry"), target)
    program, count, start = function.args
    clock = e.scratch(16)

    def kernel(i: Value) -> None:
        record = e.at(program, e.times(i, 8 * RECORD))
        goal = e.add(start, e.read(I64, record, 8 * _GROUPS))
        entry = e.inttoptr(e.read(I64, record, 8 * _ENTRY), ENTRY.as_pointer())
        words, step = e.read(PTR, record, 8 * _WORDS), e.read(I64, record, 8 * _STEP)
        done = e.at(record, 8 * _DONE)

        def run(before: Value, after: Value) -> None:
            e.call(entry, [words, e.sub(before, start), e.sub(after, start)])

        take_groups(e, e.at(record, 8 * _TAKEN), done, goal, step, run)
        wait(e, done, goal, _SPINS, lambda: e.call(e.declare("sched_yield", I32), []))
        if timed:
            e.call(e.declare("clock_gettime", I32, I32, PTR), [const(I32, time.CLOCK_MONOTONIC), clock])
            now = e.add(e.times(e.read(I64, clock), 10**9), e.read(I64, clock, 8))
            e.cmpxchg(e.at(record, 8 * _TIME), start, now, "monotonic", "monotonic")

    e.each(0, count, 1, kernel)
    e.ret_void()
    return module
