"""llama.cpp as a rival and a judge: one model of one file, through the C interface of the `xllamacpp` package.

The package is llama.cpp in one shared library. What is called here takes and gives llama.cpp's own defaults (KV
caches in float16, flash attention where it thinks best), so that it runs as its users run it.
"""

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...frontend.errors import InputError, UnsupportedError
from .llama_h import LOG, POOLINGS, Batch, library

KV = "f16"
"""Element type of llama.cpp's caches by default."""
_ERROR = 4
"""GGML_LOG_LEVEL_ERROR (ggml.h)."""
_errors: list[str] = []
"""What llama.cpp's log said of the model that is opened, in the order in which calls give up: the cause comes first."""


@LOG
def _listen(level: int, text: bytes, _: Any) -> None:
    if level == _ERROR and len(_errors) < 100:
        _errors.append(text.decode("utf-8", "replace").strip())


def _cause() -> str:
    """The first error of the log, without the name of the function that wrote it."""
    return re.sub(r"^\w+: (error loading model: )?", "", _errors[0]) if _errors else "its log doesn't say why"


class LlamaCpp:
    """One sequence over one model, with the calls of a `Session`.

    Args:
        path: the GGUF.
        threads: workers.
        context: most positions.
        embeds: for embeddings too, or a classifier's scores.

    Raises:
        UnsupportedError: `xllamacpp` is not installed, or of an unknown make.
        InputError: llama.cpp doesn't load the file.
    """

    def __init__(self, path: Path, threads: int, context: int, embeds: bool = False) -> None:
        with path.open("rb") as file:
            if file.read(4) == b"IRPA":
                raise UnsupportedError(f"{path}: an archive, which llama.cpp doesn't read; compare the model's GGUF")
        self._lib = lib = library(_listen)
        _errors.clear()
        self._model = lib.llama_model_load_from_file(os.fsencode(path), lib.llama_model_default_params())
        if not self._model:
            raise InputError(f"{path}: llama.cpp doesn't load it: {_cause()}")
        params = lib.llama_context_default_params()
        params.n_ctx = context
        if embeds:
            params.n_batch = params.n_ubatch = context  # an encoder takes a text in one go
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            lib.llama_model_free(self._model)
            raise InputError(f"{path}: llama.cpp makes no context of {context} tokens: {_cause()}")
        lib.llama_set_n_threads(self._context, threads, threads)
        self._embeds = False
        self._most: int = lib.llama_n_batch(self._context)  # tokens of one call; it aborts on more
        self.vocabulary: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        """Feeds tokens; float32 (vocabulary,), the logits after the last of them."""
        if not len(ids):
            raise InputError("no tokens: a prompt needs one at least")
        self._give_embeddings(False)
        for start in range(0, len(ids), self._most):
            self._feed(ids[start : start + self._most])
        return self._logits().copy()

    def decode(self, token: int) -> np.ndarray:
        """Feeds one token; as `prefill`."""
        return self.prefill([token])

    def decode_greedy(self, token: int) -> int:
        """Feeds one token; the likeliest next one."""
        self._feed([token])
        return int(self._logits().argmax())

    def _logits(self) -> np.ndarray:
        """The logits of the last token, in llama.cpp's own memory."""
        return np.ctypeslib.as_array(self._lib.llama_get_logits_ith(self._context, -1), (self.vocabulary,))

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        """The embedding of one text, as the file pools: float32 (dim,), or (tokens, dim) where it doesn't.

        Raises:
            InputError: llama.cpp refuses the tokens.
        """
        self._feed_whole(ids)
        dim = self._lib.llama_model_n_embd_out(self._model)
        if self._lib.llama_pooling_type(self._context) != POOLINGS["none"]:
            return self._pooled(dim)
        rows = (self._lib.llama_get_embeddings_ith(self._context, n) for n in range(len(ids)))
        return np.stack([np.ctypeslib.as_array(row, (dim,)) for row in rows])

    def classify(self, ids: Sequence[int]) -> np.ndarray:
        """The scores of a classifier's or reranker's head for one text: float32 (labels,); as `embed`."""
        self._feed_whole(ids)
        return self._pooled(self._lib.llama_model_n_cls_out(self._model))

    def _feed_whole(self, ids: Sequence[int]) -> None:
        self.reset()
        self._give_embeddings(True)
        self._feed(ids)

    def _pooled(self, dim: int) -> np.ndarray:
        return np.ctypeslib.as_array(self._lib.llama_get_embeddings_seq(self._context, 0), (dim,)).copy()

    def _give_embeddings(self, wanted: bool) -> None:
        if self._embeds != wanted:
            self._lib.llama_set_embeddings(self._context, wanted)
            self._embeds = wanted

    def _feed(self, ids: Sequence[int]) -> None:
        status = self._lib.llama_decode(self._context, Batch(len(ids), (ctypes.c_int32 * len(ids))(*ids)))
        if status:
            raise InputError(f"llama.cpp refuses {len(ids)} tokens (status {status})")

    def reset(self) -> None:
        """Forgets every token."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def close(self) -> None:
        """Frees model and context."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)
