"""How much of a foreign run's AU prefetch bought, from what its folder holds: readers, steps and the AU itself.

Each of PyTorch's workers begins a batch of its own at once, so while the first step of an epoch waits, as many batches
are read as each accelerator has readers. DLIO's formulas leave that step out and count all batches but its own. With W
readers and K steps, on storage that gives a batch every b seconds and has the accelerators wait, an epoch takes K b,
its first step W b, and what is counted (K - W) b. So AU is (K - 1) / (K - W) times what the storage sustains, and the
share (W - 1) / (K - 1) of the counted batches was read before. Over 51 published configurations of unet3d in MLPerf
Storage v1.0, AU / AU of whole epochs - 1 follows W / K with a correlation of 0.95.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.mlperf.audit.run_settings import Setup
from dlemu.results.finding import Finding

_LOADER = "pytorch"
"""The loader of which this is known; TensorFlow's readers share the work on one batch."""


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """What prefetch bought a run; None for what is not known."""

    credit_percent: float | None = None
    """Share of the counted steps' batches that was read before these began; of runs not dlemu's, the most it can be."""
    sustained_percent: float | None = None
    """AU that an endless epoch would give; of dlemu's own runs alone."""
    sustained_least_percent: float | None = None
    """The least that it can be, of other runs."""


def credit_percent(setup: Setup, steps_per_epoch: int | None, blocks_per_epoch: float) -> float | None:
    """Return the share of an epoch's counted batches that was read before the counted steps began, %, at the most.

    None where it is not known, and where an epoch has several blocks: DLIO's workers go on reading in a checkpoint.
    """
    if setup.data_loader != _LOADER or setup.read_threads is None or blocks_per_epoch > 1:
        return None
    if steps_per_epoch is None or steps_per_epoch < 2:
        return None
    at_once = min(max(1, setup.read_threads), steps_per_epoch)
    return 100.0 * (at_once - 1) / (steps_per_epoch - 1)


def sustained_least_percent(au: float | None, au_whole: float | None, credit: float | None) -> float | None:
    """Return the least that the storage sustains, %, which is what it does sustain where accelerators wait for it.

    As much as in whole epochs, start included; and as much as was read in the counted time, by counted time.
    """
    if au is None or credit is None:
        return None
    return min(au, max(au * (1 - credit / 100), au_whole or 0.0))


def prefetch_finding(
    setup: Setup, *, au: float, sustained: float, exact: bool, steps_per_epoch: int | None, since_v2: bool
) -> Finding:
    """Return the sentence for a run that passes by DLIO's formula and may not by what the storage sustains."""
    up_to, least = ("", "") if exact else ("up to ", ", at the least")
    readers = f"; {setup.read_threads} readers, {steps_per_epoch} steps per epoch" if setup.read_threads else ""
    seen = (
        f"PASS by DLIO's formula ({au:.2f} %), by {up_to}{au - sustained:.1f} points of prefetch: the storage sustains "
        f"{sustained:.1f} %{least}{readers}"
    )
    fix = "read the AU with the share that was read before its steps (prefetch_credit_percent); more files, or fewer "
    return Finding(
        "info" if since_v2 else "warning", "au.prefetch", seen, f"{setup.au_threshold_percent:g} %", f"{fix}readers"
    )
