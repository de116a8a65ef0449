"""`dlio_benchmark`: DLIO's command line, run by dlemu."""

from __future__ import annotations

import click

from dlemu import __version__


@click.command(name="dlio_benchmark", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--config-dir", "-cd", "--config-path", "-cp", "config_dir", help="A folder with workload/NAME.yaml.")
@click.option("--cfg", "-c", type=click.Choice(["job"]), help="Print the configuration in DLIO's form, and stop.")
@click.version_option(__version__, prog_name="dlio_benchmark, by dlemu")
def command(overrides: tuple[str, ...], config_dir: str | None, cfg: str | None) -> None:
    """DLIO's command line, run by dlemu: for MLCommons' mlpstorage and other scripts around DLIO.

    \b
    dlio_benchmark workload=unet3d_h100 ++workload.workflow.generate_data=True ++workload.workflow.train=False
    mpirun -np 8 dlio_benchmark workload=unet3d_h100 ++workload.dataset.data_folder=/mnt/nvme/unet3d
    mlpstorage training run --dlio-bin-path "$(dirname "$(which dlio_benchmark)")" ...

    DLIO's files go where DLIO writes them (output.folder, or hydra.run.dir), with DLIO's definitions of each number;
    dlemu's own result goes into `dlemu` below that. This is not DLIO: see mlperf.md.

    Exit status, as DLIO's: 0 the run completed, whether it passed or not; 2 a usage error; 3 a worker or a rank
    failed; 128 + signal for a run that a signal ended.
    """
    if cfg is not None:
        import yaml

        from dlemu.dlio.command import load_command
        from dlemu.dlio.config import dlio_workload

        workload, _ = load_command(overrides, config_dir)
        click.echo(yaml.safe_dump({"workload": dlio_workload(workload)}, sort_keys=False), nl=False)
        return
    from dlemu.runner.launched import run_as_placeholder

    if run_as_placeholder(overrides):
        return
    from dlemu.cli.frontends import Terminal, show_job
    from dlemu.dlio.export import DlioInPlace
    from dlemu.metrics.verdict import COMPLETED
    from dlemu.runner.job import JobRequest

    dlio = DlioInPlace(overrides, config_dir, lambda lines: print(lines, end="", flush=True))
    request = JobRequest(load=dlio.load, overrides=overrides, wants_verdict=False)
    status = show_job(request, Terminal(), export=dlio)
    # As with DLIO, the exit status says only whether the run completed: its [METRIC] lines say whether it passed.
    raise SystemExit(0 if status in COMPLETED else status)
