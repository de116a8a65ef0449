"""`dlemu compare`: two runs, sweeps or searches beside each other."""

from __future__ import annotations

import os

import click


@click.command(name="compare", short_help="Put two runs, sweeps or searches beside each other.")
@click.argument("folders", nargs=-1, required=True, metavar="A [B]")
@click.option("--price", metavar="A,B", help="Of each storage, in one currency: cost per fed accelerator.")
@click.option("--watts", metavar="A,B", help="Mean power of each storage: GB/s per watt.")
@click.option(
    "--years", type=click.FloatRange(min=0, min_open=True), help="Energy for each fed accelerator over these."
)
@click.option("--energy-price", type=click.FloatRange(min=0), help="Of a kWh: price and energy over --years.")
@click.option("--output", metavar="DIR", help="Keep compare.json and the page here. [results/WORKLOAD/compare-TIME]")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@click.option("--json", "as_json", is_flag=True, help="Print compare.json, for programs; no page, kept with --output.")
def command(
    folders: tuple[str, ...],
    price: str | None,
    watts: str | None,
    years: float | None,
    energy_price: float | None,
    output: str | None,
    report: bool,
    as_json: bool,
) -> None:
    """Put A beside B: differences with their uncertainty, and what they come to in a year of training.

    \b
    dlemu compare results/unet3d/new-drive results/unet3d/old-drive
    dlemu compare results/unet3d/sweep-of-two-drives --price 900,600 --watts 14,11 --years 5 --energy-price 0.3

    A and B are folders that `dlemu train`, `sweep` or `size` left, or that DLIO or MLPerf Storage did; a single sweep
    over two drives compares these. Two results of checkpoints, of `dlemu checkpoint` or of DLIO, are compared by their
    rates and times.

    A difference is of A to B: -12 % of total seconds says that A takes 12 % less time. compare.json (of checkpoints
    compare_checkpoints.json) and report.html go to a folder of their own, which a line at the end names.

    Exit status: 0 compared, 2 a usage error.
    """
    from rich.console import Console

    from dlemu.mlperf.foreign_checkpoints import foreign_checkpoints
    from dlemu.mlperf.foreign_side import foreign_side
    from dlemu.report.checkpoint_comparison import print_checkpoint_comparison
    from dlemu.report.comparison_report import print_comparison
    from dlemu.sizing.answers import COMPARE
    from dlemu.sizing.compare_checkpoints import COMPARE_CHECKPOINTS, checkpoint_sides, compare_checkpoints
    from dlemu.sizing.compare_sides import Extras, compare
    from dlemu.sizing.sides import read_sides

    if output is not None:
        _check_free(output)
    checkpoints = checkpoint_sides(folders, (price, watts, years, energy_price), foreign_checkpoints)
    if checkpoints is not None:
        compared = compare_checkpoints(*checkpoints)
        if not as_json:
            print_checkpoint_comparison(compared, Console())
        workload = compared.sides[0].workload
        _keep(compared, COMPARE_CHECKPOINTS, workload, output, report=report, as_json=as_json)
        return
    prices, powers = _two(price, "--price"), _two(watts, "--watts")
    a, b = read_sides(folders, foreign_side)
    _check_years(years, energy_price, prices, powers)
    first, second = (
        Extras(price=price_of, watts=watts_of, years=years, energy_price=energy_price)
        for price_of, watts_of in zip(prices, powers, strict=True)
    )
    comparison = compare(a, b, (first, second))
    if not as_json:
        print_comparison(comparison, Console())
    _keep(comparison, COMPARE, a.workload, output, report=report, as_json=as_json)


def _keep(answer: object, name: str, workload: str, output: str | None, *, report: bool, as_json: bool) -> None:
    """Save a comparison with its page, or print it as JSON and save it only where `output` says so."""
    from dlemu.cli.options import report_result
    from dlemu.results.answer_files import save_answer, to_json
    from dlemu.run.run_folder import new_folder

    if as_json:
        click.echo(to_json(answer), nl=False)
    # The name is that of a result, which may come from anywhere: it names no folder elsewhere.
    name_of = workload.replace(os.sep, "-").strip(".") or "runs"
    folder = output or (None if as_json else new_folder(name_of, "compare-"))
    if folder is None:
        return
    save_answer(folder, name, answer)
    if not as_json:
        click.echo(f"results: {folder}")
        report_result(report, folder)


def _check_years(
    years: float | None, energy_price: float | None, prices: tuple[float | None, ...], watts: tuple[float | None, ...]
) -> None:
    """Raise UserError for years or a price of energy that nothing can be made of."""
    from datagen.errors import UserError

    if years is not None and None in watts:
        raise UserError("--years says how long the storages draw their power: wanted --watts A,B too")
    if energy_price is not None and (years is None or None in prices):
        raise UserError("--energy-price adds energy to prices over years: wanted --price A,B and --years N too")


def _check_free(folder: str) -> None:
    """Raise UserError for a folder that holds a result: a comparison goes to one of its own."""
    from datagen.errors import UserError
    from datagen.owned import check_usable
    from dlemu.sizing.answers import COMPARE, SIZE, SWEEP
    from dlemu.sizing.compare_checkpoints import COMPARE_CHECKPOINTS

    kinds = (COMPARE, COMPARE_CHECKPOINTS, SIZE, SWEEP, "summary.json")
    names = [name for name in kinds if os.path.exists(os.path.join(folder, name))]
    if names:
        raise UserError(f"{folder} holds a {names[0]} already; name a new folder with --output")
    check_usable(folder, "--output")


def _two(text: str | None, option: str) -> tuple[float | None, float | None]:
    """Read `A,B`."""
    from datagen.errors import UserError

    if text is None:
        return None, None
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text}: wanted two numbers, of A and of B, as in {option} 900,600") from None
    if min(first, second) <= 0:
        raise UserError(f"{option} {text}: wanted two numbers above 0")
    return first, second
