"""A model in several files is read as the one that it is, and parts that don't belong together are refused."""

import shutil
from pathlib import Path

import pytest
from ggufc.frontend.errors import InputError
from ggufc.frontend.gguf.reader import read_gguf
from ggufc.frontend.splits import split_name, split_number, split_paths

from ..splitting import split_model


@pytest.fixture
def first(tiny_gemma3_path: Path, tmp_path: Path) -> Path:
    return split_model(tiny_gemma3_path, tmp_path / "split")


def test_every_tensor_comes_from_its_own_file(first: Path, tiny_gemma3_path: Path) -> None:
    whole, split = read_gguf(tiny_gemma3_path), read_gguf(first)
    assert len(split.parts) == len(list(first.parent.iterdir())) > 2
    assert list(split.tensors) == list(whole.tensors)
    assert {info.part for info in split.tensors.values()} == set(range(len(split.parts)))
    for name in whole.tensors:
        assert split.tensor_bytes(name).tobytes() == whole.tensor_bytes(name).tobytes()
    assert split.size == sum(path.stat().st_size for path in first.parent.iterdir())
    assert split.header_sha256() != whole.header_sha256()


def test_the_first_file_may_hold_metadata_alone(tiny_gemma3_path: Path, tmp_path: Path) -> None:
    whole = read_gguf(tiny_gemma3_path)
    split = read_gguf(split_model(tiny_gemma3_path, tmp_path / "split", small_first=True))
    assert {info.part for info in split.tensors.values()} == set(range(1, len(split.parts)))
    assert all(split.tensor_bytes(n).tobytes() == whole.tensor_bytes(n).tobytes() for n in whole.tensors)


def test_links_to_blobs_are_read_by_their_own_names(first: Path, tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    for number, path in enumerate(sorted(first.parent.iterdir())):
        blob = path.rename(tmp_path / f"blob{number}")
        (tmp_path / "snapshot" / path.name).symlink_to(blob)
    assert len(read_gguf(tmp_path / "snapshot" / first.name).parts) > 2


def parts(first: Path) -> list[Path]:
    return sorted(first.parent.iterdir())


def test_a_wrong_set_of_files_is_refused(first: Path, tmp_path: Path) -> None:
    second = parts(first)[1]
    with pytest.raises(InputError, match=f"is part 2 of a model in {len(parts(first))} files; give {first.name}"):
        read_gguf(second)
    shutil.copy(first, tmp_path / "model.gguf")
    with pytest.raises(InputError, match="its name should be like model-00001-of-"):
        read_gguf(tmp_path / "model.gguf")
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(InputError, match=f"{second.name}: no such file; it is part 2 of"):
        read_gguf(first)
    shutil.copy(parts(first)[1], second)
    with pytest.raises(InputError, match=r"'split\.no' is 2, but should be 1"):
        read_gguf(first)
    second.write_bytes(content[:-40])
    with pytest.raises(InputError, match="data past end of file"):
        read_gguf(first)


def test_a_whole_model_in_the_place_of_a_part_is_refused(first: Path, tiny_gemma3_path: Path) -> None:
    second = parts(first)[1]
    shutil.copy(tiny_gemma3_path, second)
    with pytest.raises(InputError, match=f"{second.name}: is no part of a model in several files; wanted part 2 of "):
        read_gguf(first)


def test_a_tensor_in_two_files_is_refused(first: Path) -> None:
    names = [info.name.encode() for info in read_gguf(first).tensors.values() if info.part == 2]
    other = [info.name.encode() for info in read_gguf(first).tensors.values() if info.part == 1]
    mine, theirs = next((a, b) for a in names for b in other if len(a) == len(b))
    third = parts(first)[2]
    third.write_bytes(third.read_bytes().replace(mine, theirs))
    with pytest.raises(InputError, match=f"tensor '{theirs.decode()}' is in another part too"):
        read_gguf(first)


def test_a_lost_tensor_is_missed(first: Path) -> None:
    raw, key = first.read_bytes(), b"split.tensors.count"
    at = raw.index(key) + len(key) + 4
    first.write_bytes(raw[:at] + (9).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(InputError, match=r"'split\.tensors\.count' is 9"):
        read_gguf(first)


@pytest.mark.parametrize("name", ["a-00001-of-00003.gguf", "ä\n-00003-of-00003.gguf"])
def test_names_of_parts_go_there_and_back(name: str) -> None:
    found = split_number(name)
    assert found and split_name(*found) == name


def test_what_is_no_first_part_stands_alone() -> None:
    assert split_paths(Path("model.gguf"), 3) == (Path("model.gguf"),)
    assert split_paths(Path("m-00002-of-00003.gguf"), 3) == (Path("m-00002-of-00003.gguf"),)
    assert [p.name for p in split_paths(Path("m-00001-of-00002.gguf"), 2)] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
