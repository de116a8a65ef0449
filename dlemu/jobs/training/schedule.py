"""The schedule of a run: its epochs, their blocks of steps, and the checkpoints and evaluations between these."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.config.schema import Workload


@dataclass(frozen=True)
class Block:
    """Steps without interruption: from an epoch's start or a checkpoint to the next checkpoint or the epoch's end."""

    number: int
    """Within the epoch, from 1."""
    steps: int
    checkpoint: bool
    """Whether a checkpoint follows the block."""


@dataclass(frozen=True)
class Epoch:
    number: int
    """From 1."""
    blocks: tuple[Block, ...]
    evaluation: bool
    """Whether an evaluation follows the epoch."""

    @property
    def steps(self) -> int:
        """Number of steps in all blocks."""
        return sum(block.steps for block in self.blocks)


def make_schedule(workload: Workload, steps_per_epoch: int) -> tuple[Epoch, ...]:
    """Return the epochs of a run, with checkpoints and evaluations after the same steps and epochs as in DLIO."""
    epochs, evaluation = [], workload.evaluation
    left = workload.train.total_training_steps  # negative: no limit
    for number in range(1, workload.train.epochs + 1):
        steps = steps_per_epoch if left < 0 else min(steps_per_epoch, left)
        if steps == 0:
            break
        left -= steps if left >= 0 else 0
        evaluates = workload.workflow.evaluation and _is_due(
            number, evaluation.eval_after_epoch, evaluation.epochs_between_evals
        )
        epochs.append(Epoch(number, _blocks(workload, number, steps), evaluates))
    return tuple(epochs)


def _blocks(workload: Workload, epoch: int, steps: int) -> tuple[Block, ...]:
    settings, every = workload.checkpoint, workload.checkpoint.steps_between_checkpoints
    if not workload.workflow.checkpoint:
        return (Block(1, steps, checkpoint=False),)
    if every <= 0:
        saves = _is_due(epoch, settings.checkpoint_after_epoch, settings.epochs_between_checkpoints)
        return (Block(1, steps, checkpoint=saves),)
    whole, rest = divmod(steps, every)
    blocks = [Block(number, every, checkpoint=True) for number in range(1, whole + 1)]
    if rest:
        blocks.append(Block(whole + 1, rest, checkpoint=False))
    return tuple(blocks)


def _is_due(epoch: int, first: int, every: int) -> bool:
    return epoch >= first and (epoch - first) % every == 0
