"""KIOXIA: CM7 NVMe SSD with DLIO: six metrics over 1 to 18 emulated V100s, two drives beside each other."""

from __future__ import annotations

from dlemu.reproduction.steps import DocumentQuestion, Step, datagen, scaled

TITLE = "KIOXIA: unet3d on 1 to 18 accelerators"
ABOUT = (
    "Their figures: average accelerator utilisation, samples/s, average and largest I/O throughput, average read "
    "latency, training time; by accelerators, two drives beside each other."
)
COUNTS = "1,2,4,8,16,17,18"
LAPTOP_FILES = 1260
LAPTOP_SECONDS = 0.0425
"""A V100's time for a batch, divided by 32, where a sample's bytes are divided by 256: it asks for 54 MB/s, not 431."""


def steps(question: DocumentQuestion) -> list[Step]:
    """Return a dataset on each drive, and a sweep over both."""
    data = scaled(question, "workload=unet3d", f"dataset.num_files_train={LAPTOP_FILES if question.laptop else 24000}")
    times = (f"train.computation_time={LAPTOP_SECONDS}", "train.epochs=2") if question.laptop else ("train.epochs=5",)
    folders = ",".join(question.folders("unet3d"))
    words = (*data, "accelerator=v100", *times, "workflow.checkpoint=false", "reader.evict_page_cache=epochs")
    sweep = (*words, *question.overrides, f"ranks={COUNTS}", f"drives={folders}")
    says = f"unet3d on {COUNTS} accelerators"
    return [*datagen(question, "unet3d", data), Step(name="sweep", command="sweep", words=sweep, says=says)]
