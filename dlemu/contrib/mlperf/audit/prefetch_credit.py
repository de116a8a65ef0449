"""Estimates how much of a run's AU is due to prefetch, from the readers and steps in its settings, and its AU.

At the start of an epoch each PyTorch worker begins to read a batch of its own, so during the first step as many batches
are read as an accelerator has readers. DLIO's formulas exclude the time of that step, but only one of these batches.
Take W readers, K steps, and storage that delivers a batch every b seconds, for which the accelerators wait. Then an
epoch takes K b, its first step W b, and the counted steps (K - W) b. So AU is (K - 1) / (K - W) times what the storage
sustains, and the share (W - 1) / (K - 1) of the counted batches, the prefetch credit, was read before they counted.
Over 51 published configurations of unet3d in MLPerf Storage v1.0, AU / AU of whole epochs - 1 follows W / K with a
correlation of 0.95.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.contrib.mlperf.audit.run_settings import Setup
from dlemu.contrib.mlperf.rules.known import Finding, by_rule

_LOADER = "pytorch"
"""The only loader for which this holds: TensorFlow's readers share the work on each batch."""


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """Effect of prefetch on a run's AU; None for what is not known."""

    credit_percent: float | None = None
    """Upper bound of the share of the counted steps' batches that was read before these steps."""
    sustained_least_percent: float | None = None
    """Lower bound of the AU that an endless epoch would have."""


def credit_percent(setup: Setup, steps_per_epoch: int | None, blocks_per_epoch: float) -> float | None:
    """Return the largest possible share of an epoch's counted batches that was read before the counted steps, in %.

    None where not known, and where an epoch has several blocks: DLIO's workers read on during a checkpoint.
    """
    if setup.data_loader != _LOADER or setup.read_threads is None or blocks_per_epoch > 1:
        return None
    if steps_per_epoch is None or steps_per_epoch < 2:
        return None
    read_first = min(max(1, setup.read_threads), steps_per_epoch)
    return 100.0 * (read_first - 1) / (steps_per_epoch - 1)


def sustained_least_percent(au: float | None, au_whole: float | None, credit: float | None) -> float | None:
    """Return a lower bound of the AU that the storage sustains, in %; exact where accelerators wait for the storage.

    That is the AU of whole epochs, or the AU less the prefetch credit, whichever is larger.
    """
    if au is None or credit is None:
        return None
    return min(au, max(au * (1 - credit / 100), au_whole or 0.0))


def prefetch_finding(setup: Setup, *, au: float, least: float, steps_per_epoch: int | None, since_v2: bool) -> Finding:
    """Return the finding for a run that passes by DLIO's formula, but might not by the AU that its storage sustains."""
    readers = f"; {setup.read_threads} readers, {steps_per_epoch} steps per epoch" if setup.read_threads else ""
    seen = (
        f"PASS by DLIO's formula ({au:.2f} %), by up to {au - least:.1f} points of prefetch: the storage sustains "
        f"at least {least:.1f} %{readers}"
    )
    return by_rule("au.prefetch", seen, f"{setup.au_threshold_percent:g} %", severity="info" if since_v2 else "warning")
