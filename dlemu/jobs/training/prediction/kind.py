"""A prediction: what training would show."""

from __future__ import annotations

from dlemu.results.kinds import Kind

KIND = Kind(
    name="prediction",
    noun="a prediction",
    marks=("predict.json",),
    precedence=1,  # it keeps the probe that it is made from
    command="predict",
    help="Predict how many accelerators a storage keeps busy, without running them.",
    read="run_prediction.read_prediction",
    result="prediction.Prediction",
    page="page.open_page",
    points="points.points",
)
