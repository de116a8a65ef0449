"""Predicts, by the model of docs/prediction.md and two short reads, where a search begins and the AU of each count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import Calibration, given_speed
from dlemu.jobs.training.prediction.curve import straight_then_flat
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.prediction import NO_MORE, PredictedCount, Prediction
from dlemu.jobs.training.prediction.run_prediction import usable_cores
from dlemu.metrics.demand import row_group_reads
from dlemu.studies.answers import PredictedAu, PredictedSize
from dlemu.studies.size.size_verdict import Known, Seen


class Predictor:
    """Predicts for the counts of one search; without predictions where the read probe got nothing."""

    def __init__(self, workload: Workload, known: Known) -> None:
        self._workload = replace(workload, workflow=replace(workload.workflow, checkpoint=False))
        self._calibration = _calibration(known, row_group_reads(workload))
        self._counts: dict[int, PredictedCount] = {}
        self._why = known.most_why
        self._found = self._predict(None, known.most)
        each = workload.metric.au * known.mb_per_accelerator
        self._null = int(known.probe_mb_per_second / each) if each else 1

    @property
    def most(self) -> int:
        """The largest count expected to pass; probe speed / (threshold x demand) where the model gives none."""
        return self._null if self._found is None else self._found.max_accelerators or 0

    @property
    def no_more(self) -> str:
        """Why more may pass than `most`, as a phrase; empty where the storage is the limit."""
        found = self._found
        if found is None or found.max_accelerators_interval is None or "ended_by" not in found.verdict_numbers:
            return ""
        if self.most < found.max_accelerators_interval[1]:
            return ""
        by_cores = found.verdict_numbers["ended_by"] == "cores"
        why = "cores" if by_cores else "most" if self._why.code == Seen.MOST_ASKED else "files"
        return NO_MORE[why].format(high=self.most)

    def size(self, counts: Iterable[int]) -> PredictedSize | None:
        """Return the predictions for these counts and for those at the predicted edge; None where there are none."""
        if self._found is None or self._found.max_accelerators_interval is None:
            return None
        for number in set(counts) - set(self._counts):
            self._predict(number, number)
        known = sorted(self._counts.values(), key=lambda count: count.accelerators)
        return PredictedSize(
            max_accelerators=self.most,
            max_accelerators_interval=self._found.max_accelerators_interval,
            no_more=self.no_more,
            counts=tuple(
                PredictedAu(
                    accelerators=count.accelerators,
                    au_sustained_percent=count.verdict_au("sustained"),
                    au_interval_percent=count.au_sustained_interval_percent,
                )
                for count in known
            ),
        )

    def _predict(self, ranks: int | None, most: int) -> Prediction | None:
        if self._calibration is None:
            return None
        try:
            answer = predict(self._workload, self._calibration, ranks=ranks, most=most)
        except UserError:  # too few samples for the count: the search reports that
            return None
        self._counts |= {count.accelerators: count for count in answer.counts}
        return answer


def _calibration(known: Known, bytes_factor: float) -> Calibration | None:
    if known.probe_mb_per_second <= 0:
        return None
    given = given_speed(known.probe_mb_per_second, cores=usable_cores(), bytes_factor=bytes_factor)
    if known.one_reader_mb_per_second <= 0:
        return given
    return replace(given, curve=straight_then_flat(known.one_reader_mb_per_second, known.probe_mb_per_second))
