"""Micron: 9400 NVMe SSD with MLPerf Storage v0.5: throughput and queue depth over time, 1 and 15 accelerators."""

from __future__ import annotations

from dlemu.reproduction.documents.kioxia import LAPTOP_FILES, LAPTOP_SECONDS
from dlemu.reproduction.steps import DocumentQuestion, Step, datagen, scaled

TITLE = "Micron 9400: unet3d on 1 and on 15 accelerators"
ABOUT = (
    "Their figures: throughput over time in MiB/s, the device's queue depth over time, and the shares of the I/O by "
    "queue depth; with 1 accelerator and with 15. Of the first drive."
)
_EPOCHS = {1: 1, 15: 8}
"""At laptop scale: enough seconds of each."""


def steps(question: DocumentQuestion) -> list[Step]:
    """Return a dataset, and a run of each count."""
    data = scaled(question, "workload=unet3d", f"dataset.num_files_train={LAPTOP_FILES if question.laptop else 24000}")
    folder = question.folders("unet3d")[0]
    made = datagen(question, "unet3d", data)[:1]
    for count, epochs in _EPOCHS.items():
        words = [*data, "accelerator=v100", f"dataset.data_folder={folder}", f"ranks={count}"]
        words += ["telemetry.interval_seconds=0.1", "reader.evict_page_cache=epochs", "workflow.checkpoint=false"]
        if question.laptop:
            words += [f"train.computation_time={LAPTOP_SECONDS}", f"train.epochs={epochs}"]
        says = f"unet3d on {count} accelerator{'s' * (count > 1)}"
        made.append(Step(name=f"ranks-{count}", command="train", words=(*words, *question.overrides), says=says))
    return made
