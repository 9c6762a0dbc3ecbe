"""The outside judge of every test: llama.cpp, run live, and gguf-py's dequantizers.

`xllamacpp` is llama.cpp built into one shared library. `Reference` calls that library's C interface directly, which
gives what no server does: the raw float32 logits of the whole vocabulary at every position asked for. Nothing is
sampled, so no temperature, bias or penalty touches them. (The log-probabilities of `xllamacpp.Server` are the same
logits normalised by a float32 sum, which is off by 2e-4 on a vocabulary of 262,144; tests/test_oracle.py compares.)

The exact reference of a quantized model is its `dequantized_copy`, run with float32 KV and without flash attention,
which are the defaults of `Reference`. llama.cpp is itself good to about 1e-2 there, for its GELU is a float16 table.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xllamacpp.xllamacpp as xllamacpp
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize
from ggufc.backends.reports.llama_h import FLAG, HANDLE, INT, LOG, POOLINGS, Batch, Signature, library

KV_TYPES = {"f32": GGMLQuantizationType.F32, "f16": GGMLQuantizationType.F16}

Ids = Sequence[int] | npt.NDArray[np.integer]
Floats = npt.NDArray[np.float32]


_MORE: dict[str, Signature] = {
    "llama_vocab_is_eog": (FLAG, (HANDLE, INT)),
    "llama_tokenize": (INT, (HANDLE, ctypes.c_char_p, INT, HANDLE, INT, FLAG, FLAG)),
    "llama_detokenize": (INT, (HANDLE, HANDLE, INT, ctypes.c_char_p, INT, FLAG, FLAG)),
    "llama_token_to_piece": (INT, (HANDLE, INT, ctypes.c_char_p, INT, INT, FLAG)),
    "llama_batch_init": (Batch, (INT, INT, INT)),
    "llama_batch_free": (None, (Batch,)),
}
"""What ggufc itself has no use for."""


@LOG
def _silence(level: int, text: bytes, user_data: int) -> None:
    """Takes llama.cpp's log and drops it."""


_LIB = library(_silence, _MORE)


class Vocabulary:
    """The tokenizer of a GGUF in llama.cpp, which needs no tensors.

    Use it as a context manager or call `close`. Raises RuntimeError where llama.cpp refuses.
    """

    def __init__(self, path: Path | str, *, vocab_only: bool = True) -> None:
        params = _LIB.llama_model_default_params()
        params.vocab_only = vocab_only
        self._model = _LIB.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._vocab = _LIB.llama_model_get_vocab(self._model)
        self.vocab_size: int = _LIB.llama_vocab_n_tokens(self._vocab)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of a text."""
        raw = text.encode()
        room = len(raw) + 16
        buffer = (ctypes.c_int32 * room)()
        n = _LIB.llama_tokenize(self._vocab, raw, len(raw), buffer, room, add_special, parse_special)
        assert n >= 0, "no tokenizer gives more tokens than bytes"
        return list(buffer[:n])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token, which need not be whole characters; nothing for a control token unless `special`."""
        size = -_LIB.llama_token_to_piece(self._vocab, token, None, 0, 0, special)
        buffer = ctypes.create_string_buffer(max(size, 0))
        _LIB.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw

    def detokenize(self, ids: Ids, *, remove_special: bool = True, special: bool = False) -> bytes:
        """The bytes of a whole text, without the space that the vocabulary puts before one."""
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        room = 64 * len(ids) + 64
        buffer = ctypes.create_string_buffer(room)
        n = _LIB.llama_detokenize(self._vocab, tokens, len(ids), buffer, room, remove_special, special)
        assert n >= 0, "no token is that long"
        return buffer.raw[:n]

    def eog_ids(self) -> set[int]:
        """The tokens that end a generation."""
        return {i for i in range(self.vocab_size) if _LIB.llama_vocab_is_eog(self._vocab, i)}

    def close(self) -> None:
        """Frees the model."""
        if self._model:
            _LIB.llama_model_free(self._model)
        self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Reference(Vocabulary):
    """One GGUF model in llama.cpp, for one sequence at a time.

    Arguments: `kv` the type of the cache ("f32" or "f16"), `flash_attention` on or off, `threads`, `n_ctx` the largest
    number of tokens, and `pooling` ("none", "mean", "cls", "last") to have `embeddings` in place of logits.
    Use it as a context manager or call `close`. Raises RuntimeError where llama.cpp refuses.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        kv: str = "f32",
        flash_attention: bool = False,
        threads: int = 1,
        n_ctx: int = 2048,
        pooling: str | None = None,
    ) -> None:
        self._context = None
        super().__init__(path, vocab_only=False)
        params = _LIB.llama_context_default_params()
        params.n_ctx = params.n_batch = n_ctx  # a whole prompt is one batch
        params.type_k = params.type_v = KV_TYPES[kv]
        params.flash_attn_type = int(flash_attention)
        if pooling is not None:
            params.pooling_type, params.n_ubatch = POOLINGS[pooling], n_ctx  # an encoder sees all tokens at once
        self._context = _LIB.llama_init_from_model(self._model, params)
        if not self._context:
            self.close()
            raise RuntimeError(f"llama.cpp makes no context of {n_ctx} tokens for {path}")
        _LIB.llama_set_n_threads(self._context, threads, threads)
        _LIB.llama_set_embeddings(self._context, pooling is not None)
        self._pooling = pooling
        self._position = 0
        self.n_ctx = n_ctx

    def logits(self, ids: Ids, last: int = 1) -> Floats:
        """The logits (last, vocab) at the last positions of `ids`, in one batch: the last row is what follows `ids`."""
        self._clear()
        return self._feed(ids, last)

    def forced(self, prompt: Ids, continuation: Ids) -> Floats:
        """The logits (len(continuation), vocab) that a decoding loop would see: row i is what predicts continuation[i].

        The prompt is one batch and every further token a batch of its own, so the rows come from llama.cpp's decode.
        """
        self._clear()
        rows = [self._feed(prompt, 1), *(self._feed([token], 1) for token in continuation[:-1])]
        return np.concatenate(rows)[: len(continuation)]

    def greedy(self, prompt: Ids, n: int) -> tuple[list[int], Floats]:
        """`n` tokens by arg-max after the prompt, past any end token, and the logits (n, vocab) that chose them."""
        self._clear()
        rows, tokens = [self._feed(prompt, 1)], []
        while True:
            tokens.append(int(rows[-1].argmax()))
            if len(tokens) == n:
                return tokens, np.concatenate(rows)
            rows.append(self._feed(tokens[-1:], 1))

    def logprobs(self, ids: Ids, n_probs: int | None = None) -> tuple[npt.NDArray[np.int64], Floats]:
        """The `n_probs` (default: all) likeliest tokens after `ids` and their log-probabilities, likeliest first."""
        row = log_softmax(self.logits(ids))[0]
        order = np.argsort(-row, kind="stable")[:n_probs]
        return order, row[order]

    def embeddings(self, ids: Ids) -> Floats:
        """Embeddings of `ids` as pooled, not normalised: (dim,), or (tokens, dim) where `pooling` is "none".

        Where it is "rank", the scores (labels,) of the classifier's head."""
        self._clear()
        self._decode(ids, len(ids))
        rank = self._pooling == "rank"
        dim = _LIB.llama_model_n_cls_out(self._model) if rank else _LIB.llama_model_n_embd_out(self._model)
        if self._pooling == "none":
            return np.stack([_row(_LIB.llama_get_embeddings_ith(self._context, i), dim) for i in range(len(ids))])
        return _row(_LIB.llama_get_embeddings_seq(self._context, 0), dim)

    def close(self) -> None:
        """Frees the context and the model."""
        if self._context:
            _LIB.llama_free(self._context)
        self._context = None
        super().close()

    def _clear(self) -> None:
        _LIB.llama_memory_clear(_LIB.llama_get_memory(self._context), True)
        self._position = 0

    def _feed(self, ids: Ids, last: int) -> Floats:
        """Appends `ids` to the sequence; the logits (last, vocab) at its last positions."""
        self._decode(ids, last)
        rows = range(len(ids) - last, len(ids))
        return np.stack([_row(_LIB.llama_get_logits_ith(self._context, i), self.vocab_size) for i in rows])

    def _decode(self, ids: Ids, last: int) -> None:
        """Runs one batch with an output at each of its `last` positions."""
        n = len(ids)
        if not 0 < last <= n or self._position + n > self.n_ctx:
            raise ValueError(f"{n} tokens at {self._position} with {last} outputs do not fit a context of {self.n_ctx}")
        batch = _LIB.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.logits[i] = int(token), self._position + i, i >= n - last
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            status = _LIB.llama_decode(self._context, batch)
        finally:
            _LIB.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode of {n} tokens at {self._position} returned {status}")
        self._position += n


def _row(pointer: Any, size: int) -> Floats:
    """A copy of `size` floats that llama.cpp will overwrite."""
    return np.ctypeslib.as_array(pointer, (size,)).copy()


def log_softmax(logits: Floats) -> Floats:
    """Log-probabilities (..., vocab); the normaliser is summed in float64."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, dtype=np.float64, keepdims=True)).astype(np.float32)


def kl_divergence(reference: Floats, logits: Floats) -> npt.NDArray[np.float64]:
    """KL(reference || logits) in nats, one value per row of two arrays of logits (..., vocab)."""
    p, q = log_softmax(reference), log_softmax(logits)
    return (np.exp(p) * (p - q)).sum(-1, dtype=np.float64)


def margin(logits: Floats) -> Floats:
    """The distance in nats from the likeliest token to the next, one value per row of logits (..., vocab)."""
    top = np.partition(logits, -2, axis=-1)
    return top[..., -1] - top[..., -2]


@dataclass(frozen=True)
class Speed:
    """llama.cpp's speed, in tokens per second."""

    prefill_tok_s: float
    decode_tok_s: float


def speed(path: Path | str, prompt_tokens: int, decode_tokens: int, threads: int = 2, *, repeats: int = 5) -> Speed:
    """Medians of llama.cpp's prefill and decode speed with its own defaults: float16 KV, flash attention as it chooses.

    The figures are by the clock of `xllamacpp.Server`, which counts neither tokenizing nor JSON; the first run is left
    out.
    """
    complete = server(path, threads=threads, n_ctx=prompt_tokens + decode_tokens + 8)
    prompt = np.random.default_rng(0).integers(3, 256, prompt_tokens).tolist()
    request = {"prompt": prompt, "max_tokens": decode_tokens, "ignore_eos": True, "cache_prompt": False}
    timings = [complete(request)["timings"] for _ in range(repeats + 1)][1:]
    prefill = median(t["prompt_n"] / t["prompt_ms"] for t in timings)
    # The first token comes with the prompt, and the clock starts after it.
    decode = median((t["predicted_n"] - 1) / t["predicted_ms"] for t in timings)
    return Speed(1e3 * prefill, 1e3 * decode)


def server(path: Path | str, *, threads: int, n_ctx: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """llama.cpp's server in this process, with its defaults: a completion request (prompt ids or text) to its answer.

    The model is freed with the function.
    """
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel = n_ctx, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = -1
    return xllamacpp.Server(params).handle_completions


def dequantized_copy(source: Path | str, target: Path | str) -> None:
    """Writes the GGUF `source` with every tensor dequantized to F32 by gguf-py, and all its metadata.

    Tensor by tensor, so the memory stays small; the file does not (1.1 GB for 0.27 billion parameters).
    """
    reader = GGUFReader(source)
    writer = GGUFWriter(target, arch=reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            element = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], element)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        shape = tensor.shape[::-1].tolist()
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32))
    writer.close()
