"""A recorded job."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="record",
    noun="a recorded job",
    marks=("record.json",),
    precedence=2,
    command="record",
    help="Record a training job of your own as a workload: what it reads, computes and waits for.",
    read="answer.read_record",
    result="answer.RecordAnswer",
    page="page.open_page",
)
