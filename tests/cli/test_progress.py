"""What a terminal shows while something lasts, read from a pseudo-terminal."""

import os
import pty
import re
import subprocess
import sys

import pytest

LASTING = """
import sys, time
import ggufc.cli.progress as module
from ggufc.cli.output import line_drawn, tell
moves = sys.stderr.isatty() and module.os.environ["TERM"] != "dumb"
with module.Progress() as progress:
    module.PATIENCE = 1000
    progress("a short stage")
    time.sleep(0.1)
    module.PATIENCE = 0.01
    progress("a long stage")
    while moves and not line_drawn.is_set():
        time.sleep(0.01)
    tell("a note")
    time.sleep(0.3)
    drawn = []
    progress(lambda: drawn.append(1) or f"step {min(len(drawn), 2)}")
    while moves and len(drawn) < 3:
        time.sleep(0.01)
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
    text = shown()
    assert "\x1b[2m[        ====]\x1b[0m a long stage 0 s" in text
    assert "\r\x1b[Kggufc: note: a note\r\n" in text
    assert re.search(r"\r\x1b\[Ka long stage \x1b\[2m\d+\.\d s\x1b\[0m\r\n", text)
    assert "step 1 0 s" in text and re.search(r"\r\x1b\[Kstep 2 \x1b\[2m\d+\.\d s\x1b\[0m\r\n$", text)
    assert "a short stage" not in text


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    text = shown(NO_COLOR="1")
    assert "a long stage" in text and "\x1b[2m" not in text


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    assert shown(TERM="dumb").split("\r\n") == [
        "a short stage ...",
        "a long stage ...",
        "ggufc: note: a note",
        "step 1 ...",
        "",
    ]


@pytest.mark.parametrize("stream", [subprocess.DEVNULL, subprocess.PIPE])
def test_a_file_gets_notes_alone(stream: int) -> None:
    done = subprocess.run([sys.executable, "-c", LASTING], stdout=stream, stderr=subprocess.PIPE, check=True, text=True)
    assert done.stderr == "ggufc: note: a note\n"
