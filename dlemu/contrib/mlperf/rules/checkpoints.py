"""The official models of checkpointing in MLPerf Storage v2.0 and v3.0: numbers of processes, hashes and limits.

Source: mlcommons/storage (https://github.com/mlcommons/storage): the rules' sections on checkpointing, the workload
files `configs/dlio/workload/llama3_*.yaml`, `core_config_keys.yaml` and `editions.yaml` for the hashes, and the
checkpointing checks of v3.0's submission checker. `dlemu.checkpoints` computes the sizes of checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.contrib.mlperf.rules.core_config import WORKLOADS_YAML
from dlemu.contrib.mlperf.rules.known import Finding, by_rule

CHECKPOINTS = 10  # number that a result saves, and then loads, in one call or two (section 4.7.1 of v3.0)
SUBSET_RANKS = 8  # processes of a subset run, which saves a part of a larger model (section 2.2 of v2.0, 4.3.5 of v3.0)
MEMORY_FACTOR = 3  # a host that writes less than 3 times its memory must clear caches before reading (4.3.1 of v3.0)
GAP_SECONDS = 30  # longest time between the end of the write call and the start of the read call (4.7.1 of v3.0)
RANKS_PER_HOST = 4  # each host of a CLOSED result must run more processes than this (4.6.2 of v3.0)
ACCELERATOR_GIB = 80  # memory of an accelerator by v3.0's checker, which checks that the checkpoint fits (4.3.4)


@dataclass(frozen=True, kw_only=True)
class OfficialModel:
    name: str
    """mlpstorage's name, such as `llama3-8b`."""
    ranks: int
    """Processes of a CLOSED result."""
    model_ranks: int
    """TP x PP."""
    core_configs: Mapping[str, str]
    """Mode of the run (`default` for a whole one, or `subset`) -> its `core-config-v1` hash."""

    @property
    def workload(self) -> str:
        """Name of dlemu's workload and of the official workload file, such as `llama3_8b`."""
        return self.name.replace("-", "_")

    @property
    def official_name(self) -> str:
        """The model's name inside the official workload file, such as `llama_8b`."""
        return self.name.replace("llama3-", "llama_")

    def settings(self) -> Workload:
        return load([f"workload={self.workload}"])


MODELS: Mapping[str, OfficialModel] = msgspec.convert(
    {name: {"name": name, **row} for name, row in WORKLOADS_YAML["models"].items()}, dict[str, OfficialModel]
)
_SIZE = re.compile(r"(?<![0-9a-z])(8b|70b|405b|1t)(?![0-9a-z])")


def official_model(name: str | None) -> OfficialModel | None:
    """Return the model that a name in any spelling means (`llama3-8b`, `llama3_8b`, `llama_8b`); else None."""
    spelling = (name or "").lower().replace("_", "-")
    size = _SIZE.search(spelling)
    return MODELS[f"llama3-{size[1]}"] if size and spelling.startswith("llama") else None


def few_per_host(ranks: int, hosts: int) -> Iterator[Finding]:
    """Yield a finding if a CLOSED result has too few processes on each host (4.6.2 of v3.0)."""
    seen = f"{ranks} processes on {hosts} hosts"
    if ranks < RANKS_PER_HOST * hosts:
        yield by_rule("checkpoint.hosts", seen)
    elif ranks == RANKS_PER_HOST * hosts:
        wanted = "more than 4 by the text and the checker; 4 by the text's table"
        yield by_rule("checkpoint.hosts", seen, wanted, severity="warning")
