"""What MLPerf Storage v2.0 and v3.0 fix for checkpoints: models, numbers of processes, what may change, known mistakes.

Source: mlcommons/storage (https://github.com/mlcommons/storage): the rules' sections on checkpointing, the workload
files `configs/dlio/workload/llama3_*.yaml`, `core_config_keys.yaml` and `editions.yaml` for the hashes, and the
checkpointing checks of v3.0's submission checker. Sizes follow from `dlemu.checkpoints`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, plan_checkpoint
from dlemu.config import load
from dlemu.config.schema import Checkpoint, Model, Workload

EDITIONS_WITH_CHECKPOINTS = ("2.0", "3.0")
CHECKPOINTS = 10
"""Of each kind in a result: 10 are saved and 10 loaded, in one call or two (section 4.7.1 of v3.0)."""
SUBSET_RANKS = 8
"""Processes of a subset run (section 2.2 of v2.0, 4.3.5 of v3.0)."""
MEMORY_FACTOR = 3
"""Data written by a client, of its memory: below it caches are to be cleared before reading (4.3.1 of v3.0)."""
GAP_SECONDS = 30
"""Between the write call and the read call (4.7.1 of v3.0)."""
RANKS_A_HOST = 4
"""A host of a CLOSED result has more (4.6.2 of v3.0)."""
ACCELERATOR_GIB = 80
"""Memory of one accelerator by which v3.0's checker checks whether the checkpoint fits (4.3.4)."""
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class OfficialModel:
    """One model."""

    name: str
    """As mlpstorage calls it, `llama3-8b`."""
    ranks: int
    """Processes of a CLOSED result."""
    model_ranks: int
    """TP x PP: of OPEN results the processes are a multiple."""
    copies: int
    """Data-parallel copies, which a subset names."""
    core_configs: Mapping[str, str]
    """`core-config-v1` hash of the whole run, and of its subset (`subset`) where editions.yaml has it."""

    @property
    def workload(self) -> str:
        """Its workload here, and the name of its file there."""
        return self.name.replace("-", "_")

    @property
    def official_name(self) -> str:
        """What the official workload file calls the model."""
        return self.name.replace("llama3-", "llama_")

    def settings(self) -> Workload:
        """Return its workload."""
        return load([f"workload={self.workload}"])


def _model(name: str, ranks: int, model_ranks: int, core_config: str, subset: str = "") -> OfficialModel:
    hashes = {"default": core_config} | ({"subset": subset} if subset else {})
    return OfficialModel(
        name=name, ranks=ranks, model_ranks=model_ranks, copies=ranks // model_ranks, core_configs=hashes
    )


MODELS: Mapping[str, OfficialModel] = {
    model.name: model
    for model in (
        _model("llama3-8b", 8, 1, "68df04b7240e3fb0"),
        _model("llama3-70b", 64, 8, "3c53fe70d64f91d4", "c48a92d225d70ce8"),
        _model("llama3-405b", 512, 256, "7adcfa87a5c4c8e6", "7e9f853cebd52aa6"),
        _model("llama3-1t", 1024, 512, "45fd627ad9dc5f4c", "0918b2db633242db"),
    )
}
_SIZE = re.compile(r"(?<![0-9a-z])(8b|70b|405b|1t)(?![0-9a-z])", re.IGNORECASE)


def official_model(name: str | None) -> OfficialModel | None:
    """Return the model that a name means: `llama3-8b`, `llama3_8b`, `llama_8b`; None for any other."""
    size = _SIZE.search((name or "").replace("_", "-"))
    return MODELS[f"llama3-{size[1].lower()}"] if size and (name or "").lower().startswith("llama") else None


def plan_of(model: OfficialModel, ranks: int) -> CheckpointPlan:
    """Return the checkpoint by so many processes: fewer than CLOSED wants are a subset, as mlpstorage makes of them.

    Raises:
        UserError: so many can't share the model.
    """
    workload = model.settings()
    return plan_checkpoint(*subset_of(model, workload, ranks), ranks)


def subset_of(model: OfficialModel, workload: Workload, ranks: int) -> tuple[Model, Checkpoint]:
    """Return model and settings as mlpstorage overrides them for so many processes."""
    if ranks >= model.ranks:
        return workload.model, workload.checkpoint
    cut = replace(workload.model.parallelism, data=model.copies)
    return replace(workload.model, parallelism=cut), replace(workload.checkpoint, mode="subset")


@dataclass(frozen=True, kw_only=True)
class WrongSize:
    """A size that the official tool or text states, and that its own code does not write."""

    model: str
    ranks: int
    where: str
    stated_gib: float
    why: str
    editions: tuple[str, ...]
    of_a_rank: bool = False
    """Of the largest rank, not of all."""


WRONG_SIZES = (
    WrongSize(
        model="llama3-1t",
        ranks=1024,
        where="`datasize` of mlpstorage",
        stated_gib=17997,
        why="its constants count the model's own bytes twice",
        editions=("2.0", "3.0"),
    ),
    WrongSize(
        model="llama3-8b",
        ranks=8,
        where="`datasize` of mlpstorage v2.0",
        stated_gib=26.25,
        why="it swaps the ZeRO levels and gives rank 0 the whole model: every rank writes as much as the others",
        editions=("2.0",),
        of_a_rank=True,
    ),
    WrongSize(
        model="llama3-405b",
        ranks=SUBSET_RANKS,
        where="v3.0's README of checkpointing",
        stated_gib=94,
        why="8 ranks of the first stage have more than their share of the model",
        editions=("3.0",),
    ),
    WrongSize(
        model="llama3-1t",
        ranks=SUBSET_RANKS,
        where="v3.0's README of checkpointing",
        stated_gib=161,
        why="the layout that its code writes is another",
        editions=("3.0",),
    ),
)


def wrong_size(edition: str, model: str, ranks: int) -> WrongSize | None:
    """Return what an official source of an edition wrongly says of this model by so many ranks, or None."""
    known = (wrong for wrong in WRONG_SIZES if edition in wrong.editions)
    return next((wrong for wrong in known if (wrong.model, wrong.ranks) == (model, ranks)), None)
