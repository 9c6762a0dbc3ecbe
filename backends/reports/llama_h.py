"""llama.cpp's C interface: the library in the package `xllamacpp`, with the structures and functions of its llama.h.

A structure has what its readers set or look at, and room for the rest, which is passed on as it came.
"""

import ctypes
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ...frontend.errors import UnsupportedError


class ModelParams(ctypes.Structure):
    """The head of `struct llama_model_params`, with room for a longer one."""

    _fields_ = (
        ("opaque", ctypes.c_uint64 * 9),
        ("vocab_only", ctypes.c_bool),
        ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool),
        ("rest", ctypes.c_uint64 * 54),
    )


class ContextParams(ctypes.Structure):
    """The head of `struct llama_context_params`, with room for a longer one."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("outputs", ctypes.c_uint32 * 3),
        ("n_threads", ctypes.c_int32),
        ("n_threads_batch", ctypes.c_int32),
        ("context_type", ctypes.c_int32),
        ("rope_scaling_type", ctypes.c_int32),
        ("pooling_type", ctypes.c_int32),
        ("attention_type", ctypes.c_int32),
        ("flash_attn_type", ctypes.c_int32),
        ("rope", ctypes.c_uint32 * 8),
        ("cb_eval", ctypes.c_void_p),
        ("cb_eval_user_data", ctypes.c_void_p),
        ("type_k", ctypes.c_int32),
        ("type_v", ctypes.c_int32),
        ("rest", ctypes.c_uint64 * 52),
    )


class Batch(ctypes.Structure):
    """`struct llama_batch`; null pointers mean: the next positions, sequence 0, logits of the last token."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


DEFAULTS = {
    ContextParams: {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_threads": 4,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "attention_type": -1,
        "flash_attn_type": -1,
        "type_k": 1,
        "type_v": 1,
    },
    ModelParams: {"vocab_only": False, "check_tensors": False, "use_extra_bufts": True},
}
"""What llama.h itself gives, by which another layout is noticed."""
POOLINGS = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
"""`enum llama_pooling_type`."""
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
"""`ggml_log_callback`: the level of a message, its text, and what was given with the callback."""

HANDLE, INT, FLAG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
Signature = tuple[Any, tuple[Any, ...]]
"""The types of a function's result and arguments."""
_FLOATS = ctypes.POINTER(ctypes.c_float)
_FUNCTIONS: dict[str, Signature] = {
    "llama_log_set": (None, (LOG, HANDLE)),
    "llama_backend_init": (None, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_load_from_file": (HANDLE, (ctypes.c_char_p, ModelParams)),
    "llama_model_free": (None, (HANDLE,)),
    "llama_model_get_vocab": (HANDLE, (HANDLE,)),
    "llama_model_n_embd_out": (INT, (HANDLE,)),
    "llama_model_n_cls_out": (ctypes.c_uint32, (HANDLE,)),
    "llama_vocab_n_tokens": (INT, (HANDLE,)),
    "llama_context_default_params": (ContextParams, ()),
    "llama_init_from_model": (HANDLE, (HANDLE, ContextParams)),
    "llama_free": (None, (HANDLE,)),
    "llama_set_n_threads": (None, (HANDLE, INT, INT)),
    "llama_set_embeddings": (None, (HANDLE, FLAG)),
    "llama_n_batch": (ctypes.c_uint32, (HANDLE,)),
    "llama_pooling_type": (INT, (HANDLE,)),
    "llama_get_memory": (HANDLE, (HANDLE,)),
    "llama_memory_clear": (None, (HANDLE, FLAG)),
    "llama_decode": (INT, (HANDLE, Batch)),
    "llama_get_logits_ith": (_FLOATS, (HANDLE, INT)),
    "llama_get_embeddings_ith": (_FLOATS, (HANDLE, INT)),
    "llama_get_embeddings_seq": (_FLOATS, (HANDLE, INT)),
}


def library(log: Callable[[int, bytes, Any], None], more: Mapping[str, Signature] | None = None) -> Any:
    """llama.cpp, ready for use.

    Args:
        log: takes its messages, a function that is a `LOG`; it must live as long as the library does.
        more: functions that are wanted beside those that every reader of a model calls.

    Raises:
        UnsupportedError: `xllamacpp` is not installed, or its structures have another layout.
    """
    try:
        module = importlib.import_module("xllamacpp.xllamacpp")
    except ImportError as error:
        raise UnsupportedError(f"llama.cpp can't be run here ({error}); pip install xllamacpp") from None
    found = ctypes.CDLL(module.__file__)
    for name, (result, arguments) in {**_FUNCTIONS, **(more or {})}.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    found.llama_log_set(log, None)
    found.llama_backend_init()
    for given in (found.llama_context_default_params(), found.llama_model_default_params()):
        if wrong := [name for name, value in DEFAULTS[type(given)].items() if getattr(given, name) != value]:
            raise UnsupportedError(
                f"this xllamacpp lays out {type(given).__name__} in a way that this version doesn't know: "
                f"{', '.join(wrong)}"
            )
    return found
