"""Runs a compiled module with the IREE runtime alone: mapped weights, caches in place, no copy per call."""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, TypeVarTuple

import iree.runtime as rt
import numpy as np

from ...frontend.errors import InputError
from ..caches import CacheSpec
from .parameters import SCOPE, Place

_ELEMENTS = {"f32": rt.HalElementType.FLOAT_32, "f16": rt.HalElementType.FLOAT_16, "q8_0": rt.HalElementType.INT_8}
_USAGE = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
_MEMORY = rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE


_Made = TypeVar("_Made")
_Given = TypeVarTuple("_Given")

_binding: Any = import_module("iree.runtime._binding")  # what has no other name: a driver that isn't shared, and more


_kept: list[object] = []


def _once(make: Callable[[*_Given], _Made]) -> Callable[[*_Given], _Made]:
    """Makes what Python lends to IREE (devices, modules, mappings) once in a process, and keeps it while that lives.

    A worker may drop the last reference to one after the call that used it has returned; the release then runs Python
    code on that worker, which deadlocks with a thread that waits for the workers while it holds the GIL (as the end of
    a device does), or corrupts the interpreter's state. What is kept costs address space and sleeping threads.
    """

    @cache
    def made(_process: int, *given: *_Given) -> _Made:
        found = make(*given)
        _kept.append(found)
        return found

    return lambda *given: made(os.getpid(), *given)


def _leave_to_parent() -> None:
    """In a process that was forked there are none of the workers: it makes all anew, and never drops what it came with,
    whose end would wait for them."""
    _binding.disable_leak_checker()
    for lent in _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(lent))


os.register_at_fork(after_in_child=_leave_to_parent)


Identity = tuple[int, int, int, int]


def _identity(path: Path) -> Identity:
    """What changes when a file is replaced or written."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@_once
def _module(path: Path, identity: Identity) -> rt.VmModule:
    # not VmModule.mmap: it opens the file for writing, which a device's read-only file system doesn't allow
    return rt.VmModule.copy_buffer(_instance(), path.read_bytes())


@_once
def _mapping(path: Path, identity: Identity) -> tuple[int, rt.FileHandle]:
    """A file's size and its bytes, mapped."""
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return len(view), rt.FileHandle.wrap_memory(view)


@_once
def _instance() -> rt.VmInstance:
    return rt.VmInstance()


@_once
def _device(threads: int) -> rt.HalDevice:
    """A device with so many workers; one thread runs in the caller's own."""
    if threads <= 1:
        return _binding.create_hal_driver("local-sync").create_default_device()
    rt.flags.parse_flags(f"--task_topology_group_count={threads}")
    return _binding.create_hal_driver("local-task").create_default_device()


@cache
def _can_give_way() -> bool:
    """Whether this system has the policy that `_giving_way` needs, and lets a process choose it."""
    try:
        _schedule(os.SCHED_BATCH)
        _schedule(os.SCHED_OTHER)
    except (AttributeError, OSError):
        return False
    return True


def _schedule(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))


@contextmanager
def _giving_way() -> Iterator[None]:
    """Around a call that waits for the workers: when it wakes up, the thread doesn't push the worker that woke it off
    its core, for it would spin until that worker has run again, and the workers have all cores.

    Decoding Gemma 3 270M on two cores is 3 to 7 % faster so.
    """
    if not _can_give_way() or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    _schedule(os.SCHED_BATCH)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER)


class _Cache:
    """A cache on the device, with the view of its first rows that the last call was given: making views takes as long
    as some layers of a small model."""

    def __init__(self, spec: CacheSpec, buffer: rt.HalBuffer) -> None:
        self.spec, self.buffer = spec, buffer
        self._rows, self._ref = 0, None

    def view(self, rows: int) -> rt.VmRef:
        """A reference to a view of so many rows."""
        if self._ref is None or self._rows != rows:
            view = rt.HalBufferView(self.buffer, (rows, *self.spec.array_row), _ELEMENTS[self.spec.dtype])
            self._rows, self._ref = rows, view.ref
        return self._ref


class IreeExecutor:
    """One loaded module over mapped files. Sessions over it share weights and code; their calls take turns.

    Args:
        vmfb: the compiled module.
        weights: the files that hold the tensors.
        parameters: for each parameter of the module where its bytes lie in these files.
        caches: the caches of its entry points.
        entries: the names of its entry points.
        threads: workers.

    Raises:
        InputError: a file can't be mapped, or is shorter than its parameters need; the module lacks an entry point.
    """

    def __init__(
        self,
        vmfb: Path,
        weights: Sequence[Path],
        parameters: Mapping[str, Place],
        caches: tuple[CacheSpec, ...],
        entries: Iterable[str],
        threads: int,
    ) -> None:
        self.caches = caches
        self._path = vmfb
        index = rt.ParameterIndex()
        files = [_mapped(path) for path in weights]
        for name, place in parameters.items():
            size, handle = files[place.file]
            if place.offset + place.nbytes > size:
                end = place.offset + place.nbytes
                raise InputError(f"{weights[place.file]}: tensor {name!r} ends at byte {end}, the file has {size}")
            index.add_from_file_handle(name, handle, length=place.nbytes, offset=place.offset)
        instance = _instance()
        self._device = _device(threads)
        try:
            modules = [
                rt.create_io_parameters_module(instance, index.create_provider(scope=SCOPE)),
                rt.create_hal_module(instance, self._device),
                _module(vmfb, _identity(vmfb)),
            ]
            self._context = rt.VmContext(instance, modules)
        except (OSError, ValueError, RuntimeError, LookupError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{vmfb}: IREE can't load it: {reason}; export the model again") from error
        self._entries = {name: _entry(modules[-1], name, vmfb) for name in entries}
        self._lock = Lock()

    def allocate(self, spec: CacheSpec, rows: int) -> _Cache:
        buffer = self._device.allocator.allocate_buffer(_MEMORY, _USAGE, spec.nbytes(rows))
        _array(buffer).fill(0)
        return _Cache(spec, buffer)

    def resize(self, spec: CacheSpec, buffer: object, rows: int) -> _Cache:
        assert isinstance(buffer, _Cache)
        longer = self.allocate(spec, rows)
        old = _array(buffer.buffer)
        _array(longer.buffer)[: len(old)] = old
        return longer

    def run(
        self, entry: str, tokens: np.ndarray, position: int, buffers: list[object], rows: Sequence[int]
    ) -> np.ndarray:
        inputs = rt.VmVariantList(2 + len(buffers))
        inputs.push_ref(self._tokens(tokens).ref)
        inputs.push_int(position)
        for buffer, length in zip(buffers, rows, strict=True):
            assert isinstance(buffer, _Cache)
            inputs.push_ref(buffer.view(length))
        outputs = rt.VmVariantList(1 + len(buffers))
        self._invoke(entry, inputs, outputs)
        view = outputs.get_as_object(0, rt.HalBufferView)
        return _numbers(view, np.int32) if entry == "decode_greedy" else _numbers(view, np.float32)[0]

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        inputs, outputs = rt.VmVariantList(1), rt.VmVariantList(1)
        inputs.push_ref(self._tokens(tokens).ref)
        self._invoke("encode", inputs, outputs)
        view = outputs.get_as_object(0, rt.HalBufferView)
        return _numbers(view, np.float32)

    def _invoke(self, entry: str, inputs: rt.VmVariantList, outputs: rt.VmVariantList) -> None:
        with self._lock, _giving_way():  # a context is for one call at a time, and other threads run while one lasts
            try:
                self._context.invoke(self._entries[entry], inputs, outputs)
            except ValueError as error:
                if "INVALID_ARGUMENT" not in str(error):
                    raise
                reason = str(error).partition("INVALID_ARGUMENT;")[2].partition("; while")[0].strip()
                said = f"{entry} takes other arguments than the manifest says: {reason}"
                raise InputError(f"{self._path}: {said}; export the model again") from error

    def _tokens(self, tokens: np.ndarray) -> rt.HalBufferView:
        view = self._device.allocator.allocate_buffer_copy(
            _MEMORY, _USAGE, self._device, tokens, rt.HalElementType.SINT_32
        )
        assert isinstance(view, rt.HalBufferView)  # since an element type was given
        return view


def _entry(module: rt.VmModule, name: str, path: Path) -> rt.VmFunction:
    function = module.lookup_function(name)
    if function is None:
        raise InputError(f"{path}: the compiled module has no entry point {name!r}; export the model again")
    return function


def _numbers(view: rt.HalBufferView, dtype: type[np.float32] | type[np.int32]) -> np.ndarray:
    """A copy of a result: its memory goes back to the device with the view."""
    return view.map().asarray(view.shape, np.dtype(dtype)).copy()


def _array(buffer: rt.HalBuffer) -> np.ndarray:
    """The buffer's memory as bytes."""
    return buffer.map().asarray([buffer.byte_length()], np.dtype(np.uint8))


def _mapped(path: Path) -> tuple[int, rt.FileHandle]:
    try:
        return _mapping(path, _identity(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the weights can't be mapped: {error}") from None
