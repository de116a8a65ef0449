"""`dlemu probe`: what can this storage do, before any training?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dlemu.probing.probe_answers import Access, ProbeCell

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class _Size(click.ParamType[int]):
    """A size such as 4k or 1m: binary, as fio takes it."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        unit = text[-1:] if text[-1:] in ("k", "m", "g") else ""
        number = text.removesuffix(unit)
        if not number.isdecimal() or int(number) < 1:
            self.fail(f"{value!r} is no size: wanted a number with k, m or g behind it, such as 128k", param, ctx)
        return int(number) * _UNITS[unit]


class _Several(click.ParamType[tuple[Any, ...]]):
    """Values with commas between them."""

    name = "list"

    def __init__(self, one: click.ParamType[Any]) -> None:
        self._one = one

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._one.convert(part, param, ctx) for part in str(value).split(","))


@click.command(name="probe", short_help="Measure what a storage can do: MB/s, IOPS, latency by size and depth.")
@click.argument("target", nargs=-1, metavar="TARGET | [KEY=VALUE]...")
@click.option(
    "--preset", type=click.Choice(["amax", "micron-6550"]), help="128k randread at depth 32; sizes x workers."
)
@click.option(
    "--rw",
    "accesses",
    type=_Several(click.Choice(["randread", "read", "randwrite", "write"])),
    help="Default: randread.",
)
@click.option("--sizes", type=_Several(_Size()), help="Bytes of a request: 4k,16k,128k,1m.")
@click.option(
    "--depths", type=_Several(click.IntRange(1, 4096)), help="Requests that each job keeps in flight: 1,8,32,128."
)
@click.option("--jobs", type=_Several(click.IntRange(1, 1024)), help="Processes beside each other: 1.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Of each cell.")
@click.option("--file-size", type=_Size(), default=4 << 30, help="Of the file that is made in a folder [default: 4g].")
@click.option("--engine", type=click.Choice(["auto", "fio", "aio", "threads"]), default="auto", show_default=True)
@click.option("--readers", type=_Several(click.IntRange(1, 1024)), help="With workload=: so many, not 1,2,4,...")
@click.option("--cached", is_flag=True, help="With workload=: let the page cache serve.")
@click.option("--overwrite-device", is_flag=True, help="Write to a device; what lies on it is lost.")
@click.option("--output", type=click.Path(file_okay=False), help="The results' folder [default: results/probe/TIME].")
@click.option("--config-dir", "-cd", help="A folder with workload/NAME.yaml of your own, or DLIO's.")
@click.option("--json", "as_json", is_flag=True, help="Print probe.json, and nothing else on stdout.")
def command(
    target: tuple[str, ...],
    preset: str | None,
    accesses: tuple[Access, ...] | None,
    sizes: tuple[int, ...] | None,
    depths: tuple[int, ...] | None,
    jobs: tuple[int, ...] | None,
    seconds: float,
    file_size: int,
    engine: str,
    readers: tuple[int, ...] | None,
    cached: bool,
    overwrite_device: bool,
    output: str | None,
    config_dir: str | None,
    as_json: bool,
) -> None:
    """Measure what a storage can do, before any training.

    \b
    dlemu probe /mnt/nvme                                    # 4k to 1m, 1 to 128 in flight, past the page cache
    dlemu probe /mnt/nvme --preset amax
    dlemu probe /dev/nvme1n1 --sizes 4k --depths 1,32,512    # a device: only read
    dlemu probe workload=unet3d dataset.data_folder=/mnt/nvme/unet3d     # the workload's own reads

    TARGET is a folder, where a file is made and removed again, a file that is there, or a block device. fio makes the
    requests where it is installed, else dlemu by the kernel's AIO.

    Exit status: 0, 2 a usage error, 3 a request failed, 128 + signal.
    """
    from dlemu.cli.options import report_result
    from dlemu.probing.probe import PRESETS, Grid, probe_requests, probe_workload

    overrides = [word for word in target if "=" in word]
    places = [word for word in target if "=" not in word]
    if overrides:
        if places or preset or accesses or sizes or depths or jobs or overwrite_device:
            raise click.UsageError("a workload's own reads need no TARGET, --preset, --rw, --sizes, --depths or --jobs")
        if output:
            overrides.append(f"output.folder={output}")
        answer, folder = probe_workload(
            overrides, config_dir=config_dir, cached=cached, readers=readers or (), on_cell=_say_cell
        )
    else:
        if len(places) != 1:
            raise click.UsageError("wanted one TARGET, or workload=NAME with dataset.data_folder=...")
        if readers or cached or config_dir:
            raise click.UsageError("--readers, --cached and --config-dir go with workload=NAME")
        base = PRESETS[preset] if preset else Grid()
        grid = Grid(
            accesses=accesses or base.accesses,
            sizes=sizes or base.sizes,
            depths=depths or base.depths,
            jobs=jobs or base.jobs,
        )
        answer, folder = probe_requests(
            places[0],
            preset=preset or "",
            grid=grid,
            seconds=seconds,
            engine=engine,
            file_bytes=file_size,
            overwrite_device=overwrite_device,
            folder=output or "",
            on_cell=_say_cell,
        )
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    from rich.console import Console

    from dlemu.report.probe_report import print_probe

    print_probe(answer, folder, Console())
    report_result(True, folder)


def _say_cell(cell: ProbeCell) -> None:
    what = f"{cell.access} {cell.size_bytes / 1024:,.0f} KiB x {cell.in_flight}"
    click.echo(f"probe: {what}: {cell.mb_per_second:,.1f} MB/s, {cell.iops:,.0f} /s", err=True)
