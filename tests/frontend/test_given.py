"""What is given as a file or as JSON costs no more time and memory than its bound."""

import json
import os
from pathlib import Path

import pytest
from ggufc.frontend.given import MOST_DEPTH, open_file, parse_json, read_file


def test_a_pipe_and_a_device_are_no_files(tmp_path: Path) -> None:
    """Nobody ever writes to the pipe: opening it as a file is opened would wait for that."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"wanted a file|Is a directory"), open_file(path):
            pass


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="is longer than 4 bytes"):
        read_file(path, 4)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 500 + "1" + "}" * 500, "", "{"]
)
def test_json_without_end_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_json_may_be_nested_to_its_bound() -> None:
    for text in ("[" * MOST_DEPTH + "]" * MOST_DEPTH, '{"a": [1, {"b": null}]}', "5", b'"\xc3\xa4"', "{}"):
        assert parse_json(text) == json.loads(text)
    with pytest.raises(ValueError, match="deeper"):
        parse_json("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1))
