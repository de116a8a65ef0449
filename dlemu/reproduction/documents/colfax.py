"""Colfax: large images read, rescaled and appended to TFRecord files by 1 to 100 processes, an SSD and a hard disk."""

from __future__ import annotations

from dlemu.reproduction.steps import DocumentQuestion, Step, datagen, scaled

TITLE = "Colfax: packing large images"
ABOUT = (
    "Their tables 2 to 4 and the figures of them: MB/s and seconds by processes, by processes around the best count, "
    "and by images."
)
_RESIZE = "resize=256x256"
_LAPTOP = {
    "table-2": "processes=1,2,3,4,6,8,12,16",
    "table-3": "processes=6,7,8,9,10",
    "table-4": "images=1,2,4,8,16,32,64,128,256",
}
_FULL = {
    "table-2": "processes=1,2,3,4,6,8,10,14,18,22,26,30,40,50,60,70,80,90,100",
    "table-3": "processes=91,92,93,94,95,96,97,98,99",
    "table-4": "images=1,2,4,8,16,32,64,128,256,512,1000",
}
_PROCESSES = {"laptop": 8, "full": 96}
"""Of table 4."""


def steps(question: DocumentQuestion) -> list[Step]:
    """Return the images on each drive, and a packing for each table."""
    data = scaled(question, "workload=colfax")
    folders = ",".join(question.folders("colfax"))
    made = datagen(question, "colfax", data)
    for name, axis in (_LAPTOP if question.laptop else _FULL).items():
        words = [*data, _RESIZE, f"drives={folders}", axis]
        words += [f"processes={_PROCESSES[question.scale]}", "images_per_file=1"] if name == "table-4" else []
        says = f"{name.replace('-', ' ')}: packing with {axis}"
        made.append(Step(name=name, command="pack", words=tuple(words), says=says))
    return made
