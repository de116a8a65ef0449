"""`dlemu audit`: recompute the numbers that runs of DLIO and MLPerf Storage printed, from the files that they saved."""

from __future__ import annotations

import json

import click


@click.command(name="audit", short_help="Recompute the numbers of DLIO's and MLPerf Storage's result folders.")
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(file_okay=False))
@click.option("--csv", "csv_file", metavar="FILE", help="Write one row per run as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list with every epoch and finding, for programs.")
def command(folders: tuple[str, ...], csv_file: str | None, as_json: bool) -> None:
    """Recompute AU and samples/s of every run in the folders and compare them with what its summary printed.

    \b
    dlemu audit results/
    dlemu audit closed/ open/ --csv audit.csv

    Reads the results of DLIO, of MLPerf Storage v0.5 to v3.0 and of dlemu; the names of the folders do not matter.
    `dlemu mlperf check` applies the rules of an edition to them.

    Exit status: 0 no run has an error, 1 at least one has, 2 a usage error.
    """
    from rich.console import Console

    from dlemu.contrib.mlperf.audit.audit_answer import AuditRow, audit_row, run_report, write_csv
    from dlemu.contrib.mlperf.audit.audited_run import audit_trees
    from dlemu.contrib.mlperf.audit_lines import audit_lines, audit_table
    from dlemu.report.table import print_lines, print_table

    runs = audit_trees(folders)
    if csv_file:
        write_csv(csv_file, AuditRow, map(audit_row, runs))
    if as_json:
        click.echo(json.dumps(list(map(run_report, runs)), indent=2, allow_nan=False))
    else:
        console = Console()
        print_table(audit_table(runs), console)
        print_lines(audit_lines(runs), console)
    raise SystemExit(1 if any(run.errors for run in runs) else 0)
