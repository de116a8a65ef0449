"""What dlemu makes of saved results: numbers, terminal text and pages, as text that stays the same on every host.

`results/` holds small real results of every kind. Everything here is recomputed from them by today's code, with a
copy of them as the current folder, so no path of this host gets into a text.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import altair
import click
import msgspec
from click.testing import CliRunner
from rich.console import Console

import dlemu
from dlemu.cli import cli, commands
from dlemu.jobs.checkpoint.page import print_checkpoints
from dlemu.jobs.pack.page import print_pack
from dlemu.jobs.probe.page import print_probe
from dlemu.jobs.training.page import print_result
from dlemu.jobs.training.prediction.page import print_prediction
from dlemu.studies.compare.page import print_comparison
from dlemu.studies.series.page import print_answer, print_sweep

HERE = Path(__file__).parent
RESULTS, EXPECTED = HERE / "results", HERE / "expected"
WIDTH = 100

PRINTERS: Mapping[str, Callable[[Any, str, Console], None]] = {
    "Run": lambda run, folder, console: print_result(run.summary, folder, console),
    "CheckpointRun": lambda run, folder, console: print_checkpoints(run.summary, folder, console),
    "SizeAnswer": print_answer,
    "SweepAnswer": print_sweep,
    "Comparison": lambda answer, folder, console: print_comparison(answer, console),
    "Prediction": print_prediction,
    "ProbeAnswer": print_probe,
    "PackAnswer": print_pack,
}
"""Type of a result -> what its command prints: the one place here that knows internals of dlemu."""

PAGES_ALONE = ("audit",)
"""Results that have a page, but that `load_result` does not load."""

TOGETHER = ("train", "train_epochs", "train_objects", "sweep", "predict_rate")
"""Results that share a page."""

LINES = {
    "audit.command.txt": "audit train train_epochs train_failed train_killed checkpoint sweep",
    "audit.command.json": "audit train train_epochs checkpoint --json",
    "audit_rules.command.txt": "audit train train_epochs --edition 2.0 --division open",
    "check.command.txt": "mlperf check rehearsal",
    "compare.command.txt": "compare train train_epochs --no-report --output made/compare",
    "compare.command.json": "compare train train_objects --json",
    "compare_checkpoints.command.json": "compare checkpoint checkpoint_objects --json",
    "compare_sweep.command.txt": "compare sweep --no-report --output made/compare_sweep",
    "predict_run.command.txt": (
        "predict workload=unet3d accelerator=b200 ranks=4 --from train_epochs output.report=false "
        "output.folder=made/predict_run"
    ),
    "predict_run.command.json": (
        "predict workload=unet3d accelerator=b200 --from train_objects --json output.folder=made/predict_objects"
    ),
    "report_refused.command.txt": "report checkpoint checkpoint_b --output made/page.html",
    "train.cfg.txt": "train workload=unet3d accelerator=h100 --cfg",
    "checkpoint.cfg.txt": "checkpoint workload=llama3_8b --cfg",
    "help.txt": "--help",
    **{f"{name}.help.txt": f"{name} --help" for name in commands()},
    **{f"mlperf_{name}.help.txt": f"mlperf {name} --help" for name in ("check", "datasize", "merge", "run")},
}
"""Golden -> the command whose output it is."""


def goldens() -> dict[str, Callable[[], str]]:
    """Return a function for each file in `expected/`; call them where `surroundings` hold."""
    loaded = sorted(path.name for path in RESULTS.iterdir() if path.name not in (*PAGES_ALONE, "rehearsal"))
    makers: dict[str, Callable[[], str]] = {}
    for name in loaded:
        makers[f"{name}.json"] = partial(numbers, name)
        makers[f"{name}.terminal.txt"] = partial(terminal, name)
    for name in (*loaded, *PAGES_ALONE):
        makers[f"{name}.page.txt"] = partial(page, name)
    makers["together.page.txt"] = partial(page, *TOGETHER)
    return makers | {name: partial(output, line) for name, line in LINES.items()}


@contextlib.contextmanager
def surroundings(results: Path) -> Iterator[None]:
    """Make a copy of `results/` the current folder, and UTC the time zone: ends of runs are read in the reader's."""
    with contextlib.chdir(results), patch.dict(os.environ, TZ="UTC"):
        time.tzset()
        yield
    time.tzset()


def numbers(folder: str) -> str:
    """Return the typed result of a folder as JSON; of a run its summary, computed anew."""
    result = dlemu.load_result(folder)
    told = getattr(result, "summary", result)
    return _steady(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")


def terminal(folder: str) -> str:
    """Return what the command that measured the result prints of it."""
    result, text = dlemu.load_result(folder), io.StringIO()
    PRINTERS[type(result).__name__](result, folder, Console(width=WIDTH, file=text, color_system=None))
    return _without_margin(text.getvalue())


def page(*folders: str) -> str:
    """Return the text of the page of a result, or of several side by side."""
    path = Path("made", "-".join(folders) + ".html")
    path.parent.mkdir(exist_ok=True)
    with _undrawn():
        made = _run(["report", *folders, "--output", str(path)])
    assert made == f"report: {path}\n", made
    reader = _PageText()
    reader.feed(path.read_text())
    reader.close()
    # The version at the foot of a page is that of the code that makes it, not of a result.
    text = re.sub(r"Made by dlemu \S+ from", "Made by dlemu VERSION from", "".join(reader.parts))
    lines = [line.strip() for line in text.splitlines()]
    return _steady("\n".join(filter(None, lines)) + "\n")


@contextlib.contextmanager
def _undrawn() -> Iterator[None]:
    """Leave out what draws a figure, and altair's copies of it: they take most of the time, and their SVG is cut."""
    with (
        patch.object(altair.SchemaBase, "copy", lambda chart, *_, **__: chart),
        patch.object(altair.TopLevelMixin, "to_dict", lambda *_, **__: {}),
        patch("vl_convert.vegalite_to_svg", return_value="<svg></svg>"),
    ):
        yield


def output(line: str) -> str:
    """Return what a command prints on stdout, and how it ends where it does not with status 0."""
    printed = _run(shlex.split(line))
    if line.startswith("predict "):  # how long it took to predict
        printed = re.sub(r'^  "seconds": [\d.]+', '  "seconds": MASKED', printed, flags=re.MULTILINE)
    return _steady(_without_margin(printed))


def _run(words: list[str]) -> str:
    plain = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "FORCE_COLOR": None, "TERM": "dumb"}
    _forget_help_options(words)
    ended = CliRunner(env=plain).invoke(cli, words, prog_name="dlemu")
    if ended.exception is not None and not isinstance(ended.exception, SystemExit | dlemu.DlemuError):
        raise ended.exception
    error = f"{ended.exception}\n" if isinstance(ended.exception, dlemu.DlemuError) else ""
    status = getattr(ended.exception, "exit_status", ended.exit_code)
    return ended.stdout + error + (f"exit status {status}\n" if status else "")


def _forget_help_options(words: list[str]) -> None:
    """Have click make `--help` anew: it keeps that of a command's first use, and other tests use them without `-h`."""
    command: click.Command | None = cli
    for word in words:
        if not isinstance(command, click.Group) or word not in command.list_commands(click.Context(command)):
            break
        command = command.get_command(click.Context(command), word)
        assert command is not None
        command._help_option = None


def _steady(text: str) -> str:
    """Return the text with 12 digits of each float: the last ones of a sum depend on the processor's vector units."""
    return re.sub(r"-?\d+\.\d{8,}(e[-+]?\d+)?", lambda found: f"{float(found.group()):.12g}", text)


def _without_margin(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


class _PageText(HTMLParser):
    """Collects what can be read on a page: a line a block, the cells of a table's row side by side."""

    _HIDDEN = frozenset({"style", "svg"})
    _CELLS = frozenset({"td", "th"})
    _INLINE = frozenset({"strong", "span", "data", "a", "code"})

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._HIDDEN:
            self._hidden += 1
        if self._hidden:
            return
        known = dict(attrs)
        if tag in self._CELLS:
            self.parts.append(" | ")
        elif tag not in self._INLINE:
            self.parts.append("\n")
        if tag == "section" and "class" in known:
            self.parts.append(f"[{known['class']}] ")
        elif tag == "figure":
            self.parts.append(f"[figure {known['id']}] ")
        elif tag == "data":
            self.parts.append(f"[{known['data-key']} = {known['value']}] ")
        elif tag == "span" and known.get("class") == "what":
            self.parts.append(" - ")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._HIDDEN:
            self._hidden -= 1

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)
