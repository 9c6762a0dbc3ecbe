"""The number of workers, where a container has fewer cores than the machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ggufc.backends.host.cores import usable_cores


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "100000 0\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "1 2 3\n"}, 8),
        ({"sys/fs/cgroup/a/cpu.max": "200000 100000\n", "proc/self/cgroup": "0::/a/b\n"}, 2),
        ({"sys/fs/cgroup/a/cpu.max": "200000 100000\n", "proc/self/cgroup": "0::/c\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "200000 100000\n", "proc/self/cgroup": "0::/../a\n"}, 2),
        (
            {
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "600000\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
                "proc/self/cgroup": "3:memory:/y\n4:cpu,cpuacct:/x\n",
            },
            6,
        ),
    ],
)
def test_a_quota_counts_where_it_is_less(files: dict[str, str], cores: int, tmp_path: Path) -> None:
    assert usable_cores(tree(tmp_path, files), affinity=8) == cores


def test_the_mask_of_this_process_counts() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from ggufc.backends.host.cores import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_the_shared_case_of_containers(shared_dir: Path, tmp_path: Path) -> None:
    """Case 52."""
    case = shared_dir / "cases" / "52-threads-in-a-container"
    subprocess.run([sys.executable, str(case / "make.py"), str(tmp_path)], check=True)
    cases = json.loads((case / "expect.json").read_text())["cases"]
    found = {name: usable_cores(tmp_path / name, wanted["affinity"]) for name, wanted in cases.items()}
    assert found == {name: wanted["expected"] for name, wanted in cases.items()}
