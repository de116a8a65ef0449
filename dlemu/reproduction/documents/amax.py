"""AMAX: QLC SSDs and hard disks: time of the first epoch beside fio's random reads, local and over NFS."""

from __future__ import annotations

from dlemu.reproduction.steps import DocumentQuestion, Step, datagen, scaled

TITLE = "AMAX: time of the first epoch beside random reads"
ABOUT = (
    "Their tables 3 and 4: the first epoch of image training with an empty page cache, random reads of 128 KiB at "
    "depth 32 past the page cache in MB/s, IOPS and mean latency, and the cost of a TB. A folder on NFS is a drive too."
)
RANKS = "1,2"
_LAPTOP = ("dataset.num_files_train=16", "train.computation_time=0.0195")
"""A tenth of a V100's time for a batch, where a sample's bytes are divided by 16."""


def steps(question: DocumentQuestion) -> list[Step]:
    """Return a dataset and a probe of each drive, and a sweep over all."""
    data = scaled(question, "workload=resnet50", *(_LAPTOP[:1] if question.laptop else ()))
    words = [*data, "accelerator=v100", "framework=pytorch", "reader.data_loader=pytorch", "train.epochs=1"]
    words += ["reader.evict_page_cache=start", *(_LAPTOP[1:] if question.laptop else ()), *question.overrides]
    folders = ",".join(question.folders("resnet50"))
    made = datagen(question, "resnet50", data)
    sweep = (*words, f"ranks={RANKS}", f"drives={folders}")
    made.append(Step(name="sweep", command="sweep", words=sweep, says="the first epoch of resnet50"))
    cut = ("--seconds", "5", "--file-size", "1g") if question.laptop else ("--seconds", "60", "--file-size", "64g")
    for number, drive in enumerate(question.drives, start=1):
        says = f"random reads of {drive}"
        made.append(Step(name=f"probe-{number}", command="probe", words=(drive, "--preset", "amax", *cut), says=says))
    return made
