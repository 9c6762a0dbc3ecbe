"""A model as the compiler sees it: the file, its definition, its numbers, and the graph of a run without a cache."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..frontend.archdef.tree import ArchDef
from ..frontend.definitions import find
from ..frontend.errors import InputError, UnsupportedError, quoted
from ..frontend.gguf.file import GgufFile
from ..frontend.gguf.reader import read_gguf
from ..frontend.hyperparameters import Hyperparameters, evaluate
from ..frontend.near import near
from .build import build
from .ir import Graph, tensor_behind

TOKENS = "tokenizer.ggml.tokens"
MOST_NAMED = 8
"""Kinds of tensors that a message names."""
ALMOST = 0.9
"""How alike two names of tensors are, of which one is taken for a misspelt other (see `near`)."""
_BLOCK = re.compile(r"^blk\.\d+\.")


@dataclass(frozen=True)
class Model:
    """Nothing of it holds weights: the file is mapped, and its data untouched."""

    file: GgufFile
    definition: ArchDef
    hyperparameters: Hyperparameters
    graph: Graph
    embedding: Graph | None
    """The run that ends in an embedding, of encoders and of decoders whose file says how to pool."""
    context_length: int
    unread: tuple[str, ...] = ()
    """Tensors of the file that the definition neither reads nor ignores."""

    def check_read(self) -> None:
        """What no step reads would be left out of the result in silence.

        Raises:
            UnsupportedError: there are such tensors; it names their kinds.
        """
        if not self.unread:
            return
        named = [f"{kind!r} ({count})" if count > 1 else repr(kind) for kind, count in kinds_of(self.unread).items()]
        listed = ", ".join(named[:MOST_NAMED])
        if len(named) > MOST_NAMED:
            listed += f" and {len(named) - MOST_NAMED} more kinds"
        one = len(self.unread) == 1
        raise UnsupportedError(
            f"{self.file.path}: {'tensor' if one else 'tensors'} {listed} {'is' if one else 'are'} in the file, but "
            f"{self.definition.source} never reads {'it' if one else 'them'}: the definition is for another model, or "
            f"{'the tensor belongs' if one else 'the tensors belong'} in its section 'ignore'{self._misspelt()}"
        )

    def _misspelt(self) -> str:
        """A hint of an optional tensor that the file hasn't, where one that nobody reads is called almost as it."""
        there = {_kind(name) for name in self.file.tensors}
        optional = {name for ref in self.definition.tensors() if ref.optional for name in ref.names}
        absent = {name.replace("{i}", "*"): name for name in optional}
        for unread in dict.fromkeys(map(_kind, self.unread)):
            for found in near(unread, absent.keys() - there, 1, ALMOST):
                return f"; or is its optional {absent[found]!r} meant to be {unread!r}?"
        return ""

    @property
    def vocabulary(self) -> int:
        """Number of token ids: the rows of the table that is read first."""
        return next(int(op.weights[0].type.shape[0]) for op in self.graph.ops if op.name == "embed")

    @property
    def labels(self) -> tuple[str, ...]:
        """What the numbers of a classifier's or reranker's head stand for, where the embedding ends in one; else ()."""
        if not self.embedding or _pooling(self.file, self.definition.name) != RANK:
            return ()
        given = self.file.metadata.get(f"{self.definition.name}.classifier.output_labels")
        count = int(self.embedding.results[0].type.shape[-1])
        named = given if isinstance(given, list | tuple) and len(given) == count else range(count)
        return tuple(str(label).encode("utf-8", "replace").decode() for label in named)

    @property
    def name(self) -> str:
        """The model's own name, or the file's."""
        given = self.file.metadata.get("general.name")
        return given if isinstance(given, str) and given else self.file.path.stem


def kinds_of(names: Iterable[str]) -> dict[str, int]:
    """How many tensors there are of each kind: of the same name in several blocks, as `blk.*.attn_q.weight`, or one."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(_kind(name), []).append(name)
    return {kind if len(found) > 1 else found[0]: len(found) for kind, found in kinds.items()}


def _kind(name: str) -> str:
    return _BLOCK.sub("blk.*.", name)


def open_model(
    path: Path, archdefs: Iterable[Path] = (), definition: ArchDef | None = None, *, all_read: bool = True
) -> Model:
    """Reads a GGUF's header and lowers its architecture.

    Args:
        path: the model; of a split one the first file.
        archdefs: directories of definitions that go before the shipped ones.
        definition: taken instead of the one that is found by the file's architecture.
        all_read: refuse a file with tensors that the definition doesn't read; otherwise they are in `Model.unread`.

    Raises:
        InputError: the file or a definition is damaged, or they don't fit each other.
        UnsupportedError: no definition, tensors that it doesn't read, or of a type that can't be computed with.
    """
    return lower_model(read_gguf(path), archdefs, definition, all_read=all_read)


def lower_model(
    file: GgufFile, archdefs: Iterable[Path] = (), definition: ArchDef | None = None, *, all_read: bool = True
) -> Model:
    """Lowers the architecture of a file that was read; otherwise as `open_model`.

    Raises:
        InputError, UnsupportedError: as `open_model`.
    """
    path = file.path
    architecture = file.metadata_value("general.architecture", str)
    definition = definition or find(architecture, archdefs)
    hyperparameters = evaluate(definition, file.metadata, lambda name: name in file.tensors, str(path))
    built = build(definition, hyperparameters, file.tensors, str(path))
    pooled = definition.embedding and _pooling(file, architecture)
    embedding = build(definition, hyperparameters, file.tensors, str(path), embedding=True).graph if pooled else None
    context = file.metadata_value(f"{architecture}.context_length", int)
    if not 0 < context < 2**31:
        key = quoted(f"{architecture}.context_length")
        raise InputError(f"{path}: key {key} is {context}, wanted 1 to {2**31 - 1}")
    embedding = built.graph if definition.kind == "encoder" else embedding
    model = Model(file, definition, hyperparameters, built.graph, embedding, context, built.unread)
    if all_read:
        model.check_read()
    _check_tables(model)
    if any(name.startswith("cls.") for name in file.tensors) != bool(model.labels):
        raise UnsupportedError(
            f"{path}: pooling type {_pooling(file, architecture)} {'without' if model.labels else 'and'} the tensors "
            f"of a classifier's head (cls.*), which go with type {RANK} alone"
        )
    return model


def _check_tables(model: Model) -> None:
    """Every id that can come has a row of its own: each token that the file lists, or the first table has, and each
    position. Of more rows than tokens an id could be chosen that no text stands for.

    Raises:
        InputError: with both sizes.
    """
    path = model.file.path
    _check_width(model)
    listed = model.file.metadata.get(TOKENS)
    tokens = len(listed) if isinstance(listed, list | tuple) else model.vocabulary
    for op in model.graph.ops:
        if op.name != "embed":
            continue
        weight = op.weights[0]
        rows, name = int(weight.type.shape[0]), quoted(weight.stored_name)
        if op.values[0] not in model.graph.arguments:
            if rows < model.context_length:
                wanted = f"wanted {model.context_length} as the context is long"
                raise InputError(f"{path}: tensor {name} has {rows} positions, {wanted}")
        elif rows != tokens:
            raise InputError(f"{path}: tensor {name} has {rows} rows, wanted {tokens}, one for each token")


def _check_width(model: Model) -> None:
    """A decoder gives a logit for each row of its embedding, and an encoder doesn't.

    Raises:
        InputError: with the step that gives the last result and the tensor that makes it so wide.
    """
    table = next(op.weights[0] for op in model.graph.ops if op.name == "embed")
    result, vocabulary = model.graph.results[0], model.vocabulary
    if (model.definition.kind == "decoder") == (result.type.shape[-1] == vocabulary):
        return
    made = {op.result: op for op in model.graph.ops}
    last, weight = made[result], tensor_behind(result, made) or table
    found = f"gives {result.type}, by tensor {quoted(weight.stored_name)} {list(weight.type.shape)}"
    rows = f"the {vocabulary} rows of tensor {quoted(table.stored_name)}"
    if model.definition.kind == "decoder":
        wanted = f"wanted a logit for each of {rows}, as the last step of a decoder"
    else:
        wanted = f"a logit for each of {rows}: this is 'kind decoder', an encoder gives embeddings"
    raise InputError(f"{last.origin} {found}; {wanted} (model {model.file.path})")


RANK = 4
"""The pooling type of classifiers and rerankers, by llama.cpp's enum."""


def _pooling(file: GgufFile, architecture: str) -> int:
    """How rows are pooled to one, by llama.cpp's enum; 0 where the file says nothing."""
    key = f"{architecture}.pooling_type"
    return file.metadata_value(key, int) if key in file.metadata else 0
