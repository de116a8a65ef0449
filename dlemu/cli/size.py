"""`dlemu size`: how many accelerators does this storage feed?"""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from dlemu.cli.options import Number, answer_options, make_options, settings_options


@click.command(name="size")
@settings_options
@click.option("--at-least", type=click.IntRange(min=1), help="Exit with 1 when fewer than this many pass (for CI).")
@click.option("--most", type=click.IntRange(min=1), default=4096, show_default=True, help="Try at most this many.")
@click.option(
    "--trial-seconds",
    type=Number(1, 1e6),
    default=120.0,
    show_default=True,
    help="Maximum compute time of a trial; most trials end earlier, once their verdict is decided.",
)
@make_options("files of the dataset")
@answer_options("size.json")
def command(
    overrides: tuple[str, ...], config_dir: str | None, cfg: bool, make: bool, yes: bool, as_json: bool, **limits: Any
) -> None:
    """Find the most accelerators that this storage keeps busy.

    \b
    dlemu size workload=unet3d accelerator=h100 dataset.data_folder=/mnt/nvme/unet3d
    dlemu size workload=unet3d accelerator=h100 dataset.data_folder=/mnt/nvme/unet3d --at-least 16
    dlemu size workload=unet3d launcher="mpirun -np {ranks} --hostfile hosts" reader.odirect=true

    Estimates the number from a short read, brackets it, narrows the bracket down, and then repeats the largest number
    that passes and the smallest that fails. Each trial is a `dlemu train` that ends as soon as its verdict is decided.
    When interrupted, the same command with output.folder=FOLDER continues from the finished trials.

    For a KV cache it finds the largest kv.speed (factor on the arrival rate) that passes, by runs of `dlemu kvcache`.

    Exit status: 0 found (--at-least: that many pass), 1 none passes (--at-least: fewer), 2 a usage error, 3 a trial
    failed, 4 no verdict (too close to call, the host was the limit, too few samples for that many), 128 + signal.
    """
    from dlemu.cli.frontends import make_here
    from dlemu.cli.options import show_answer
    from dlemu.cli.study_terminal import StudyTerminal
    from dlemu.config import load, to_yaml
    from dlemu.config.overrides import take_word
    from dlemu.metrics.verdict import EXIT_STATUSES
    from dlemu.results.kinds import kind_to_run
    from dlemu.studies.size.find_size import size

    _, settings = take_word(overrides, "launcher")  # the launcher is not a setting of the workload
    workload = load(settings, config_dir=config_dir)
    if cfg:
        click.echo(to_yaml(workload), nl=False)
        return
    if kind_to_run(workload).scaled_by:  # a setting scales this kind of job, not the number of accelerators
        source_of = click.get_current_context().get_parameter_source
        if make or any(source_of(name) is not ParameterSource.DEFAULT for name in limits):
            raise click.UsageError("--at-least, --most, --trial-seconds and --make are for training")
        from dlemu.studies.sweep.run import find_bracket

        with StudyTerminal() as terminal:
            bracket = find_bracket(overrides, config_dir=config_dir, on_event=terminal)
        show_answer(bracket, terminal.folder, "sweep", as_json=as_json, page=terminal.wants_page)
        raise SystemExit(0 if bracket.edge[0] else 1)  # whether any value passes
    maker = None
    if make or workload.workflow.generate_data:
        maker = partial(make_here, as_json=as_json, yes=yes or not make)  # generate_data makes without a prompt
    with StudyTerminal() as terminal:
        answer = size(overrides, config_dir=config_dir, **limits, make=maker, on_event=terminal)
    show_answer(answer, terminal.folder, "size", as_json=as_json, page=terminal.wants_page)
    raise SystemExit(EXIT_STATUSES[answer.outcome or "no verdict"])
