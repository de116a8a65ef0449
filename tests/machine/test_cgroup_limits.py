"""The limits of a container or job, from files of both cgroup versions in made-up trees; and what /dev/shm lacks."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from dlemu.config.schema import Workload
from dlemu.doctor.check_base import Facts
from dlemu.doctor.host import check_shared_memory
from dlemu.machine.cgroup_limits import (
    cpu_limit,
    group_limits,
    host_memory,
    limiting_groups,
    memory_limit_bytes,
    out_of_memory_hint,
    shared_memory_problem,
)
from dlemu.ranks.mpi import stale_shared_memory
from tests.datasets import small_disk

V1_MOUNT = "32 31 0:29 {root} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V2_MOUNT = "30 23 0:26 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def made(tmp_path: Path, *, group: str, mount_line: str, root: str = "/", files: dict[str, str]) -> str:
    """Write what the kernel would tell of one process; return the folder that stands for /proc."""
    mount = tmp_path / "cgroup"
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text + "\n")
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(group + "\n")
    no_source = "119 22 0:68 / /local rw,relatime - tmpfs  rw,size=8192k"  # as of `mount -t tmpfs "" /local`
    (own / "mountinfo").write_text(f"{no_source}\n{mount_line.format(root=root, mount=mount)}\n")
    return str(tmp_path / "proc")


@pytest.mark.parametrize(
    ("files", "cpus", "memory_bytes"),
    [
        ({"job/step/cpu.max": "150000 100000"}, 1.5, None),
        ({"job/step/cpu.max": "max 100000"}, None, None),
        ({"job/step/cpu.max": "800000 100000", "job/cpu.max": "200000 100000"}, 2.0, None),  # no more than above
        ({"job/step/cgroup.procs": "1"}, None, None),  # v2 without the controllers
        ({"job/step/memory.max": "34359738368"}, None, 34359738368),
        ({"job/step/memory.max": "max"}, None, None),
        ({"job/step/memory.max": "max", "job/memory.max": "1073741824"}, None, 1073741824),
    ],
)
def test_version_2_tells_it_in_one_file(
    tmp_path: Path, files: dict[str, str], cpus: float | None, memory_bytes: int | None
) -> None:
    proc = made(tmp_path, group="0::/job/step", mount_line=V2_MOUNT, files=files)
    assert (cpu_limit(proc), memory_limit_bytes(proc)) == (cpus, memory_bytes)


def test_tasks_of_a_slurm_step_in_groups_of_their_own_are_alike_with_equal_limits(tmp_path: Path) -> None:
    def limits(name: str, task: str, cpus: str) -> tuple[object, ...]:
        files = {"job/memory.max": "34359738368", f"job/{task}/cpuset.cpus.effective": cpus}
        return group_limits(made(tmp_path / name, group=f"0::/job/{task}", mount_line=V2_MOUNT, files=files))

    assert limits("a", "task_0", "0-17") == limits("b", "task_1", "0-17") != limits("c", "task_1", "1")


@pytest.mark.parametrize(
    ("controller", "files", "limit"),
    [
        ("cpu,cpuacct", {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"}, 2.5),
        ("cpu,cpuacct", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
        ("memory", {"memory.limit_in_bytes": "2147483648"}, 2147483648),
        ("memory", {"memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_version_1_tells_it_by_controller(
    tmp_path: Path, controller: str, files: dict[str, str], limit: float | None
) -> None:
    line, below = V1_MOUNT.replace("cpu,cpuacct", controller), {f"docker/abc/{name}": files[name] for name in files}
    proc = made(tmp_path, group=f"4:{controller}:/docker/abc\n0::/", mount_line=line, files=below)
    assert (memory_limit_bytes if controller == "memory" else cpu_limit)(proc) == limit


@pytest.mark.parametrize("root", ["/docker/abc", "/elsewhere"])
def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path, root: str) -> None:
    files = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
    proc = made(tmp_path, group="4:cpu,cpuacct:/docker/abc", mount_line=V1_MOUNT, root=root, files=files)
    assert cpu_limit(proc) == 0.5


def test_other_controllers_and_a_kernel_without_any_limit_nothing(tmp_path: Path) -> None:
    assert cpu_limit(str(tmp_path)) is None
    line = V1_MOUNT.replace("cpu,cpuacct", "cpuset")
    files = {"job/cpu.cfs_quota_us": "50000", "job/cpu.cfs_period_us": "100000"}
    assert cpu_limit(made(tmp_path, group="3:cpuset:/job\n4:cpu:/job", mount_line=line, files=files)) is None


def test_memory_is_the_limit_and_what_is_left_of_it(tmp_path: Path) -> None:
    files = {
        "job/memory.max": str(64 << 20),
        "job/memory.current": str(48 << 20),
        "job/memory.stat": f"anon 1\ninactive_file {16 << 20}",
    }
    memory = host_memory(made(tmp_path, group="0::/job", mount_line=V2_MOUNT, files=files))
    assert memory.total_bytes == memory.limit_bytes == 64 << 20
    assert memory.available_bytes <= 32 << 20, "of the files in its page cache the group can be relieved"


def test_without_a_limit_memory_is_the_hosts(tmp_path: Path) -> None:
    memory = host_memory(made(tmp_path, group="0::/job", mount_line=V2_MOUNT, files={"job/memory.max": "max"}))
    assert memory.limit_bytes is None
    assert memory.total_bytes >= memory.available_bytes > 0


def test_the_groups_that_limit_are_those_with_a_quota(tmp_path: Path) -> None:
    files = {"job/step/cpu.max": "max 100000", "job/cpu.max": "200000 100000"}
    proc = made(tmp_path, group="0::/job/step", mount_line=V2_MOUNT, files=files)
    assert limiting_groups(proc) == (str(tmp_path / "cgroup" / "job"),)


@pytest.mark.parametrize(
    ("group", "line", "files"),
    [
        (
            "4:memory:/job",
            V1_MOUNT.replace("cpu,cpuacct", "memory"),
            {"job/memory.limit_in_bytes": "104857600", "job/memory.oom_control": "under_oom 0\noom_kill {kills}"},
        ),
        ("0::/job", V2_MOUNT, {"job/memory.max": "104857600", "job/memory.events": "oom 9\noom_kill {kills}"}),
    ],
)
@pytest.mark.parametrize(
    ("kills", "words"),
    [
        (0, "if the machine ran out of memory, `dmesg` names the process"),
        (1, "the kernel has killed 1 process of this container or job (control group) at its limit of 100 MiB"),
        (3, "the kernel has killed 3 processes of this container or job (control group) at its limit of 100 MiB"),
    ],
)
def test_whom_the_kernel_killed_at_a_limit_of_memory_is_counted(
    group: str, line: str, files: dict[str, str], kills: int, words: str, tmp_path: Path
) -> None:
    filled = {name: text.format(kills=kills) for name, text in files.items()}
    assert out_of_memory_hint(made(tmp_path, group=group, mount_line=line, files=filled)).startswith(words)


def test_a_kill_without_a_limit_says_nothing_of_one(tmp_path: Path) -> None:
    proc = made(tmp_path, group="0::/job", mount_line=V2_MOUNT, files={"job/memory.events": "oom_kill 2"})
    assert out_of_memory_hint(proc).startswith("if the machine ran out")


# /dev/shm


def test_only_one_without_room_is_a_problem(tmp_path: Path) -> None:
    assert shared_memory_problem(str(tmp_path)) == ""
    assert "/no/such/shm can't be written (No such file or directory)" in shared_memory_problem("/no/such/shm")


@pytest.mark.root
def test_a_full_or_read_only_one_is_named_with_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path, "64k") as tiny:
        assert f"{tiny} is full (65536 bytes left): free some" in shared_memory_problem(str(tiny))
        subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
        assert f"{tiny} can't be written (Read-only file system): mount a tmpfs" in shared_memory_problem(str(tiny))


def test_mpi_memory_is_stale_once_no_process_has_it_mapped(tmp_path: Path) -> None:
    path = tmp_path / "mpich_shm-test"
    with open(path, "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            os.utime(path, (0, 0))
            assert stale_shared_memory(str(tmp_path)) == []
    assert stale_shared_memory(str(tmp_path)) == [str(path)]
    assert str(path) in check_shared_memory(Facts(Workload()), str(tmp_path)).observed
    os.utime(path)
    assert stale_shared_memory(str(tmp_path)) == []
