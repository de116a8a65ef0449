"""The examples for Kubernetes and Slurm, and the image: by the published schemas, and by dlemu's own command line."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from dlemu import __version__
from dlemu.metrics.verdict import COMPLETED
from tests.doc_blocks import ROOT
from tests.e2e.harness import small_run, without
from tests.test_doc_commands import command_of, composed
from tests.test_wheel import SOURCES

EXAMPLES, CONTAINER = ROOT / "examples", ROOT / "container"
PODS = {"mpijob": 2, "jobset": 1}
"""Example for Kubernetes -> its templates of pods."""


def read(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / "kubernetes" / f"{name}.yaml").read_text())


def schema(name: str) -> Any:
    return json.loads((ROOT / "tests" / "examples" / f"{name}.schema.json").read_text())


def templates(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from templates(value)


@pytest.mark.parametrize("name", PODS)
def test_examples_for_kubernetes_are_of_the_published_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="comes with the extra `report`")
    jsonschema.validate(read(name), schema(name))
    broken = read(name)
    broken["spec"]["slotsPerWorkers"] = 18
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema(name))


@pytest.mark.parametrize("name", PODS)
def test_pods_have_what_a_run_needs(name: str) -> None:
    found = list(templates(read(name)["spec"]))
    assert len(found) == PODS[name]
    for pod in found:
        (container,) = pod["containers"]
        assert container["image"] == f"dlemu:{__version__}"
        assert container["securityContext"] == {"runAsUser": 1000, "runAsNonRoot": True}
    worker = found[-1]
    assert worker["securityContext"] == {"fsGroup": 1000}, "the volume may belong to root"
    mounts = {mount["mountPath"]: mount["name"] for mount in worker["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in worker["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory", "a pod's own has 64 MB"
    assert "podAntiAffinity" in worker["affinity"], "one worker on a node"


def commands(text: str) -> Iterator[str]:
    """Yield the commands of dlemu in a script, without the programs that start them."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|\s)(dlemu (?:train|size) .*)", line)
        if found is not None and not line.lstrip().startswith("#"):
            yield found[1]


def test_commands_of_the_examples_are_understood() -> None:
    job, (jobset,) = read("mpijob"), templates(read("jobset")["spec"])
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"]
    texts = [shlex.join(launcher[3:]), *commands(jobset["containers"][0]["args"][0])]
    for path in sorted((EXAMPLES / "slurm").glob("*.sbatch")):
        texts += commands(path.read_text())
    assert len(texts) == 5
    for text in texts:
        words = shlex.split(text)[1:]
        command, rest = command_of(words)
        command.make_context(words[0], list(rest))
        assert "--make" not in rest or "--yes" in rest, "nobody answers in a batch job"
        composed(words[0], rest, text)


def test_ranks_of_the_examples_add_up() -> None:
    spec = read("mpijob")["spec"]
    launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["args"]
    assert launcher[:2] == ["mpirun", "-np"]
    assert int(launcher[2]) == spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert spec["mpiImplementation"] == "MPICH", "Open MPI 5 runs all ranks on one node there"
    job = read("jobset")
    (workers,) = job["spec"]["replicatedJobs"]
    (pod,) = templates(workers)
    given = dict(itertools.pairwise(pod["containers"][0]["args"][0].split()))
    assert int(given["--nnodes"]) == workers["template"]["spec"]["parallelism"]
    assert workers["template"]["spec"]["parallelism"] == workers["template"]["spec"]["completions"]
    name = job["metadata"]["name"]
    assert given["--master-addr"] == f"{name}-{workers['name']}-0-0.{name}"
    assert int(given["--master-port"]) == pod["containers"][0]["ports"][0]["containerPort"]


def batch_job(name: str, folder: Path, words: list[str], programs: dict[str, str]) -> CompletedProcess[str]:
    """Run a script for Slurm with shell scripts in place of programs that are not here."""
    for program, text in programs.items():
        (folder / program).write_text(f"#!/bin/bash\n{text}\n")
        (folder / program).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "STORAGE": str(folder), "SLURM_JOB_ID": "7", "IMAGE": str(folder / "srun")}
    command = ["bash", str(EXAMPLES / "slurm" / f"{name}.sbatch"), *words]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_the_batch_job_that_sizes_makes_its_data_and_starts_trials_by_srun(tmp_path: Path) -> None:
    words = "dataset.record_length_bytes=4096 dataset.record_length_bytes_stdev=0 dataset.record_length_bytes_resize=0 "
    words += "dataset.num_files_train=2000 reader.batch_size=1 reader.odirect=false metric.cached=true --most 1"
    ended = batch_job("size", tmp_path, words.split(), {"srun": f'echo "$@" >{tmp_path}/asked\nexit 3'})
    assert ended.returncode == 3, ended.stderr
    asked = (tmp_path / "asked").read_text()
    assert re.match(r"--mpi=pmi2 --cpu-bind=none --overcommit -n 1 \S+ .*-m dlemu train workload=unet3d", asked)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("name", ["train", "apptainer"])
def test_the_batch_jobs_that_train_run_as_they_are(name: str, tmp_path: Path) -> None:
    """With a stand-in for srun that starts two ranks, and one for apptainer that starts what is to run in the image."""
    programs = {
        "srun": 'while [[ $1 == -* ]]; do shift; done\nexec mpirun -np 2 "$@"',
        "apptainer": 'test -e "$4" && exec "${@:5}"',
    }
    few = ("train.epochs=1", "dataset.record_length_bytes_stdev=0", "dataset.record_length_bytes_resize=0")
    words = without(small_run(tmp_path, tmp_path, *few), "ranks", "workload", "output", "dataset.data_folder")
    ended = batch_job(name, tmp_path, [*words, "output.report=false"], programs)
    assert ended.returncode in COMPLETED, ended.stderr
    assert json.loads((tmp_path / "results" / "7" / "summary.json").read_text())["ranks"] == 2


@pytest.mark.parametrize("path", [*EXAMPLES.glob("slurm/*"), *CONTAINER.glob("*.sh")], ids=lambda path: path.name)
def test_scripts_are_shell(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the name of each instruction of the Dockerfile and what follows it."""
    text = re.sub(r"^#.*\n", "", (CONTAINER / "Dockerfile").read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        if line:
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_image_is_made_of_what_there_is() -> None:
    found = list(instructions())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, rest in found:
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", re.sub(r"--mount=\S+", "", rest)], check=True)
        elif name == "ARG" and rest.startswith("EXTRAS="):
            assert set(rest.partition("=")[2].split(",")) <= extras.keys()
    copied = {word for name, rest in found if name == "COPY" for word in rest.split()[:-1] if not word.startswith("--")}
    assert all((ROOT / path).exists() for path in copied), copied
    assert copied >= {"setup.py", "pyproject.toml", "README.md", "LICENSE", "constraints.txt", *SOURCES}
    assert dict(found)["USER"] == "1000", "a number, by which Kubernetes sees that it is not root"
    apptainer = (CONTAINER / "dlemu.def").read_text()
    assert all(f"    {path} /src/" in apptainer for path in (*SOURCES, "setup.py", "pyproject.toml", "constraints.txt"))


def test_the_entry_waits_for_the_names_of_workers(tmp_path: Path) -> None:
    hosts = tmp_path / "hostfile"
    hosts.write_text("localhost:18\n")
    entry, environment = CONTAINER / "entrypoint.sh", os.environ | {"HYDRA_HOST_FILE": str(hosts)}
    ended = subprocess.run([entry, "echo", "began"], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "began\n"
    hosts.write_text("nobody.invalid:18\n")
    environment |= {"DLEMU_DNS_SECONDS": "0"}
    ended = subprocess.run([entry, "echo", "began"], env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "nobody.invalid" in ended.stderr
