"""`dlemu compare`: two runs, sweeps or searches beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dlemu.sizing.sides import Side


@click.command(name="compare", short_help="Put two runs, sweeps or searches beside each other.")
@click.argument("folders", nargs=-1, required=True, metavar="A [B]")
@click.option("--price", metavar="A,B", help="Of each storage, in one currency: cost per fed accelerator.")
@click.option("--watts", metavar="A,B", help="Mean power of each storage: GB/s per watt.")
@click.option("--output", metavar="DIR", help="Keep compare.json and the page here. [results/WORKLOAD/compare-TIME]")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@click.option("--json", "as_json", is_flag=True, help="Print compare.json, for programs; no page, kept with --output.")
def command(
    folders: tuple[str, ...], price: str | None, watts: str | None, output: str | None, report: bool, as_json: bool
) -> None:
    """Put A beside B: differences with their uncertainty, and what they come to in a year of training.

    \b
    dlemu compare results/unet3d/new-drive results/unet3d/old-drive
    dlemu compare results/unet3d/sweep-of-two-drives --price 900,600 --watts 14,11

    A and B are folders that `dlemu train`, `sweep` or `size` left; a single sweep over two drives compares these.
    A difference is of A to B: -12 % of total seconds says that A takes 12 % less time. compare.json and report.html go
    to a folder of their own, which a line at the end names.

    Exit status: 0 compared, 2 a usage error.
    """
    import json

    from rich.console import Console

    from dlemu.cli.options import report_result
    from dlemu.report.compare_terminal import print_comparison
    from dlemu.run.run_folder import new_folder
    from dlemu.sizing.compare import Extras
    from dlemu.sizing.sides import compare_sides
    from dlemu.sizing.store import COMPARE, save_answer

    if output is not None:
        _free(output)
    prices, powers = _two(price, "--price"), _two(watts, "--watts")
    a, b = _sides(folders)
    extras = (Extras(price=prices[0], watts=powers[0]), Extras(price=prices[1], watts=powers[1]))
    found = compare_sides(a, b, extras)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        print_comparison(found, Console())
    folder = output or (None if as_json else new_folder(a.workload, "compare-"))
    if folder is None:
        return
    _make(folder)
    save_answer(folder, found, COMPARE)
    if not as_json:
        click.echo(f"results: {folder}")
        report_result(report, folder)


def _free(folder: str) -> None:
    """Raise UserError for a folder that holds a result: a comparison goes to one of its own."""
    import os

    from datagen.errors import UserError
    from dlemu.sizing.store import COMPARE, SIZE, SWEEP

    held = [name for name in (COMPARE, SIZE, SWEEP, "summary.json") if os.path.exists(os.path.join(folder, name))]
    if held:
        raise UserError(f"{folder} holds a {held[0]} already; name a new folder with --output")


def _make(folder: str) -> None:
    import os

    from datagen.errors import SpaceError

    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise SpaceError(f"{folder} can't be made: {error.strerror}; name another folder with --output") from error


def _sides(folders: tuple[str, ...]) -> list[Side]:
    from datagen.errors import UserError
    from dlemu.sizing.sides import read_side

    sides = [side for folder in folders for side in read_side(folder)]
    if len(sides) != 2:
        raise UserError(
            f"{' '.join(folders)}: found {len(sides)} storages ({', '.join(side.name for side in sides)}), wanted two: "
            "two folders of runs, sweeps or searches, or one of a sweep over two drives"
        )
    return sides


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
