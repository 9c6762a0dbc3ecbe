"""How many cores this process may use, and how many workers at most.

A container may have fewer cores than the machine, and affinity doesn't show it.
"""

import os
from collections.abc import Iterator
from numbers import Integral
from pathlib import Path

from ...frontend.errors import InputError

MOST_THREADS = 1024

CONTROLLERS = ("cpu", "cpu,cpuacct")
"""Where version 1 of control groups mounts the one that limits time."""


def usable_cores(root: Path = Path("/"), affinity: int | None = None) -> int:
    """The cores in the affinity mask, or fewer where a quota of a control group, or of one around it, leaves less time.

    Workers beyond the quota would be stopped all together, while they wait for one another.

    Args:
        root: where /proc and /sys are.
        affinity: cores in the mask; None asks the system.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *_quotas(root)]))


def check_threads(threads: int) -> None:
    """Refuses a number of workers that can't be.

    Raises:
        InputError: it is no whole number from 1 to MOST_THREADS.
    """
    if not isinstance(threads, Integral) or not 1 <= threads <= MOST_THREADS:
        raise InputError(f"{threads!r} threads: wanted a whole number from 1 to {MOST_THREADS}")


def _quotas(root: Path) -> Iterator[int]:
    """The whole cores that each quota over this process is worth (Linux, Documentation/admin-guide/cgroup-v2.rst)."""
    mount = root / "sys/fs/cgroup"
    for hierarchy, group in _groups(root):
        files = ("cpu.max",) if hierarchy == mount else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for folder in (hierarchy / group, *(hierarchy / group).parents):
            words = [word for name in files for word in _read(folder / name).split()]
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
                yield int(words[0]) // int(words[1])  # no quota is `max`, or -1
            if folder == hierarchy:
                break


def _groups(root: Path) -> Iterator[tuple[Path, str]]:
    """The hierarchies that may limit time, each with the group that this process is in."""
    mount = root / "sys/fs/cgroup"
    named = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        named[controllers] = "" if ".." in group else group.strip("/")  # of a group outside what is mounted: the mount
    yield mount, named.get("", "")
    own = next((group for controllers, group in named.items() if "cpu" in controllers.split(",")), "")
    for name in CONTROLLERS:
        yield mount / name, own


def _read(path: Path) -> str:
    """A small file's text, "" where it can't be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
