"""Settings from the environment, and the default thread count."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kestrel.errors import ConfigError
from kestrel.processors import (
    Processors,
    cgroup_quota,
    fast_cores,
    parse_cpu_list,
    processors,
)
from kestrel.runtime import Settings, read_settings

V2_MOUNT = "29 23 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "33 32 0:29 {root} {point} rw - cgroup cgroup rw,cpu,cpuacct\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# -- settings --------------------------------------------------------------------------------------


def test_an_empty_environment_asks_for_nothing():
    assert read_settings({}) == Settings(isa=None, threads=None, backend=None, eager=False)
    assert read_settings({"KESTREL_ISA": "", "KESTREL_THREADS": "", "PATH": "/"}) == Settings()


def test_every_variable_is_read():
    environ = {
        "KESTREL_ISA": "avx2",
        "KESTREL_THREADS": "3",
        "KESTREL_BACKEND": "reference",
        "KESTREL_EAGER": "1",
        "KESTREL_DEBUG": "1",  # the build's
    }
    assert read_settings(environ) == Settings("avx2", 3, "reference", True)


@pytest.mark.parametrize("text", ["0", "-1", "257", "two", "1.5", " 2", "9" * 5000, "٣"])
def test_a_thread_count_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="KESTREL_THREADS: expected a whole number from 1 to 256"):
        read_settings({"KESTREL_THREADS": text})


def test_eager_is_0_or_1():
    with pytest.raises(ConfigError, match="KESTREL_EAGER: expected 0 or 1, found 'yes'"):
        read_settings({"KESTREL_EAGER": "yes"})


def test_a_misspelt_variable_is_not_passed_over_in_silence():
    with pytest.warns(RuntimeWarning, match="KESTREL_THREAD is set, but means nothing"):
        read_settings({"KESTREL_THREAD": "2"})


# -- processors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [(16, None, 16), (16, 2.0, 2), (16, 2.9, 2), (16, 0.5, 1), (2, 8.0, 2), (1, 1.0, 1)],
)
def test_threads_are_cores_limited_by_the_quota_rounded_down(cores, quota, threads):
    assert Processors(present=32, allowed=32, cores=cores, quota=quota).threads == threads


def test_the_reasons_are_printed():
    assert str(Processors(16, 16, 16, 2.0)) == (
        "2 threads (16 processors, 16 allowed, 16 performance cores, a quota of 2)"
    )
    assert str(Processors(1, 1, 1, None)) == (
        "1 thread (1 processor, 1 allowed, 1 performance core, no quota)"
    )


def test_cgroup_v2_in_a_container(tmp_path):
    # As `docker run --cpus 2` shows it: the namespace makes the container's group the root.
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/", point="/sys/fs/cgroup"),
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
        },
    )
    assert cgroup_quota(root) == 2.0


def test_cgroup_v2_takes_the_smallest_of_all_levels(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job.scope\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/", point="/sys/fs/cgroup"),
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/job.scope/cpu.max": "max 100000\n",
        },
    )
    assert cgroup_quota(root) == 1.5


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpuacct,cpu", "cpu"])
def test_cgroup_v1(tmp_path, controllers):
    # Without a cgroup namespace both files name the group by its path on the host.
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": f"5:{controllers}:/docker/abc\n4:memory:/docker/abc\n0::/\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/docker/abc", point="/sys/fs/cgroup/cpu"),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "350000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_quota(root) == 3.5


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/../outside\n", "proc/self/mountinfo": "broken\n"},
        {
            "proc/self/cgroup": "3:cpu:/\n",
            "proc/self/mountinfo": V1_MOUNT.format(root="/", point="/sys/fs/cgroup/cpu"),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT.format(root="/", point="/sys/fs/cgroup"),
            "sys/fs/cgroup/cpu.max": "max 100000\n",
        },
    ],
)
def test_no_quota(tmp_path, files):
    assert cgroup_quota(write(tmp_path, files)) is None


def test_threads_of_one_core_count_once(tmp_path):
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = write(tmp_path, {siblings.format(cpu): f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert fast_cores(frozenset(range(8)), root) == 4
    assert fast_cores(frozenset({0, 4, 5}), root) == 2


def test_efficiency_cores_are_left_out_on_x86(tmp_path):
    # Two performance cores of two threads each, and four efficiency cores.
    topology = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5", 6: "6", 7: "7"}
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text
        for cpu, text in topology.items()
    }
    root = write(tmp_path, {**files, "sys/devices/cpu_core/cpus": "0-3\n"})
    assert fast_cores(frozenset(range(8)), root) == 2
    assert fast_cores(frozenset({4, 5, 6}), root) == 3  # only these are allowed: all count


def test_efficiency_cores_are_left_out_on_arm(tmp_path):
    capacity = [446, 446, 446, 446, 871, 871, 871, 1024]
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": f"{value}\n"
        for cpu, value in enumerate(capacity)
    }
    assert fast_cores(frozenset(range(8)), write(tmp_path, files)) == 4


def test_cpu_lists():
    assert parse_cpu_list("0-2,8\n") == {0, 1, 2, 8}
    assert parse_cpu_list("") == parse_cpu_list("nonsense") == frozenset()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_the_affinity_mask_of_this_process_counts():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from kestrel.processors import processors; p = processors()\n"
        "print(p.allowed, p.cores, p.threads)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.split() == ["1", "1", "1"]
    assert processors().threads >= 1
