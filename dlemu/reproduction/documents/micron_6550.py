"""Micron: 6550 ION with gdsio: transfers of four sizes by up to 512 workers, in GB/s and GB/s per watt."""

from __future__ import annotations

from dlemu.reproduction.steps import DocumentQuestion, Step

TITLE = "Micron 6550: transfer sizes by workers"
ABOUT = (
    "Their figures: GB/s and GB/s per watt of 4, 16, 128 and 1024 KiB by 1 to 512 workers of one request each, random "
    "reads past the page cache. Theirs went straight into GPU memory; these go through the host's."
)


def steps(question: DocumentQuestion) -> list[Step]:
    """Return a probe of each drive."""
    cut = ("--seconds", "1", "--file-size", "2g") if question.laptop else ("--seconds", "30", "--file-size", "512g")
    return [
        Step(
            name=f"probe-{number}",
            command="probe",
            words=(drive, "--preset", "micron-6550", *cut),
            says=f"transfers of {drive}",
        )
        for number, drive in enumerate(question.drives, start=1)
    ]
