"""What a terminal shows while something lasts, read from a pseudo-terminal."""

import os
import pty
import subprocess
import sys

import pytest

LASTING = """
import time
from ggufc.cli.output import tell
from ggufc.cli.progress import Progress
with Progress() as progress:
    progress("a short stage")
    progress("a long stage")
    time.sleep(0.7)
    tell("a note")
    time.sleep(0.2)
"""


def shown(**environment: str) -> str:
    """What the code writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", LASTING]
    with subprocess.Popen(command, stderr=theirs, env={**os.environ, "NO_COLOR": "", "TERM": "xterm", **environment}):
        os.close(theirs)
        text = b""
        try:
            while read := os.read(ours, 4096):
                text += read
        except OSError:  # Linux's word for the end
            pass
    os.close(ours)
    return text.decode()


def test_a_long_stage_moves_and_leaves_its_time() -> None:
    lines = shown().split("\r\n")
    assert "[        ====] a long stage 0 s" in lines[0].replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert lines[0].endswith("\r\x1b[Kggufc: note: a note")
    assert "\x1b[2m" in lines[1] and lines[1].split("\r\x1b[K")[-1].startswith("a long stage \x1b[2m0.9 s")
    assert not any("a short stage" in line for line in lines)


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    text = shown(NO_COLOR="1")
    assert "a long stage" in text and "\x1b[2m" not in text


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    assert shown(TERM="dumb").split("\r\n") == ["a short stage ...", "a long stage ...", "ggufc: note: a note", ""]


@pytest.mark.parametrize("stream", [subprocess.DEVNULL, subprocess.PIPE])
def test_a_file_gets_notes_alone(stream: int) -> None:
    done = subprocess.run([sys.executable, "-c", LASTING], stdout=stream, stderr=subprocess.PIPE, check=True, text=True)
    assert done.stderr == "ggufc: note: a note\n"
