"""Results in, page and pictures out: what `dlemu report` and the commands that measure call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from datagen.atomic import write_file, write_text
from datagen.errors import UserError
from dlemu.packing.pack_answer import PACK
from dlemu.prediction.ask import read_prediction
from dlemu.prediction.prediction import Prediction
from dlemu.probing.probe_answers import PROBE, ProbeAnswer
from dlemu.probing.run_probe import read_probe
from dlemu.report.audit_report import Audit, audit_page, open_audit
from dlemu.report.checkpoint_comparison import (
    OpenedCheckpointComparison,
    checkpoint_comparison_page,
    open_checkpoint_comparison,
)
from dlemu.report.checkpoint_report import checkpoint_page
from dlemu.report.comparison_report import OpenedComparison, comparison_page, open_comparison
from dlemu.report.document_report import OpenedDocument, document_page, open_document
from dlemu.report.drawing import check_packages, figures, picture_file, pictures
from dlemu.report.pack_report import OpenedPack, open_pack, pack_page
from dlemu.report.page import Page, render
from dlemu.report.prediction_report import prediction_page
from dlemu.report.probe_report import probe_page
from dlemu.report.run_report import run_page
from dlemu.report.series import RunSeries, open_result, open_together
from dlemu.report.series_report import series_page
from dlemu.reproduction.run_steps import REPRODUCED
from dlemu.results.audit_answer import AUDIT
from dlemu.results.checkpoint_folder import read_checkpoint_run
from dlemu.results.checkpoint_run import CheckpointRun
from dlemu.results.folder import holds_checkpoints, read_config
from dlemu.results.run import Run
from dlemu.sizing.answers import COMPARE
from dlemu.sizing.compare_checkpoints import COMPARE_CHECKPOINTS

PAGE = "report.html"


@dataclass(frozen=True)
class _Opened:
    """A result with all of its page but the figures, and the folder of these."""

    result: (
        Run
        | RunSeries
        | OpenedComparison
        | Audit
        | Prediction
        | ProbeAnswer
        | OpenedPack
        | OpenedDocument
        | CheckpointRun
        | OpenedCheckpointComparison
    )
    page: Page
    figures: str


def write_page(folders: Sequence[str], output: str | None = None) -> str:
    """Write the page of a result's folder, or of several side by side; return its path.

    It goes into the folder of the only one unless `output` says where.

    Raises UserError: a package is missing, or a folder holds no result.
    """
    check_packages()
    path = output or os.path.join(folders[0], PAGE)
    opened = _open(folders)
    html = render(opened.page, pictures(opened.result, opened.figures))
    write_text(os.path.dirname(path), os.path.basename(path), html)
    return path


def write_pictures(folders: Sequence[str], kind: str, output: str) -> list[str]:
    """Write each figure as a file NAME.png or NAME.svg into the folder `output`; return their paths."""
    from dlemu.report.figures.figure_base import DESK

    check_packages()
    opened, written = _open(folders), []
    for name, figure in figures(opened.result, opened.figures, DESK):
        write_file(output, f"{name}.{kind}", partial(_write, picture_file(figure, kind)))
        written.append(os.path.join(output, f"{name}.{kind}"))
    return written


def _open(folders: Sequence[str]) -> _Opened:
    """Read what lies in the folders; comparisons, audits, probes, packings share their page with no other."""
    for folder in folders:
        kinds = (COMPARE, COMPARE_CHECKPOINTS, AUDIT, PROBE, PACK, REPRODUCED)
        name = next((name for name in kinds if os.path.exists(os.path.join(folder, name))), None)
        if name is None:
            continue
        if len(folders) > 1:
            raise UserError(f"{folder} holds {name}, which no page shares; make it a page of its own")
        if name == REPRODUCED:
            document = open_document(folder)
            return _Opened(document, document_page(document), "dlemu.report.document_figures")
        if name == PACK:
            packed = open_pack(folder)
            return _Opened(packed, pack_page(packed), "dlemu.report.pack_figures")
        if name == AUDIT:
            audit = open_audit(folder)
            return _Opened(audit, audit_page(audit), "dlemu.report.audit_figures")
        probed = read_probe(folder)
        if probed is not None:
            return _Opened(probed, probe_page(probed, _name(folder)), "dlemu.report.probe_figures")
        if name == COMPARE_CHECKPOINTS:
            checkpoints = open_checkpoint_comparison(folder)
            page = checkpoint_comparison_page(checkpoints)
            return _Opened(checkpoints, page, "dlemu.report.checkpoint_compare_figures")
        comparison = open_comparison(folder)
        return _Opened(comparison, comparison_page(comparison), "dlemu.report.compare_figures")
    if any(holds_checkpoints(folder) for folder in folders):
        if len(folders) > 1:
            raise UserError(f"{folders[0]} and others: a run of checkpoints shares its page with no other result")
        run = read_checkpoint_run(folders[0])
        return _Opened(run, checkpoint_page(run, read_config(run.folder)), "dlemu.report.checkpoint_figures")
    predicted = read_prediction(folders[0]) if len(folders) == 1 else None
    if predicted is not None:
        page = prediction_page(predicted, read_config(folders[0]), _name(folders[0]))
        return _Opened(predicted, page, "dlemu.report.prediction_figures")
    result = open_result(folders[0]) if len(folders) == 1 else open_together(folders)
    if isinstance(result, Run):
        return _Opened(result, run_page(result, read_config(result.folder)), "dlemu.report.figures")
    config = read_config(result.run.folder) if result.run else ""
    return _Opened(result, series_page(result, config), "dlemu.report.series_figures")


def _name(folder: str) -> str:
    return os.path.basename(os.path.abspath(folder))


def _write(content: bytes, out: BinaryIO) -> None:
    out.write(content)
