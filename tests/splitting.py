"""A model of one file written again as several, by gguf-py."""

from pathlib import Path

import gguf


def split_model(whole: Path, folder: Path, tensors: int = 20, small_first: bool = False) -> Path:
    """Writes a model in files of so many tensors each, `small_first` with none in the first, which is returned."""
    reader = gguf.GGUFReader(whole)
    architecture = reader.fields["general.architecture"].contents()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{whole.stem}.gguf"
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors, small_first_shard=small_first)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(folder.glob(f"{whole.stem}-*.gguf"))
