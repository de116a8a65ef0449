"""`dlemu sweep`: the same run over several values."""

from __future__ import annotations

import click

from dlemu.cli.options import config_dir_option, json_option


@click.command(name="sweep")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE[,VALUE]...]...")
@config_dir_option
@json_option("sweep.json")
def command(overrides: tuple[str, ...], config_dir: str | None, as_json: bool) -> None:
    """Run over several values and compare the results.

    \b
    dlemu sweep workload=unet3d accelerator=v100 ranks=1,2,4,8,16,17,18 dataset.data_folder=/mnt/nvme/unet3d
    dlemu sweep workload=unet3d ranks=8 reader.read_threads=1,2,4,8 dataset.data_folder=/mnt/nvme/unet3d
    dlemu sweep workload=unet3d ranks=1,8,16 drives=/mnt/a/unet3d,/mnt/b/unet3d
    dlemu sweep workload=llama3_8b ranks=1,2,4,8 checkpoint.writers=1,2 checkpoint.checkpoint_folder=/mnt/nvme/ckpt
    dlemu sweep workload=llama3_1_8b kv.speed=1,2,4 kv.threads=8,32 kv.folder=/mnt/nvme/kv

    Each combination is one run at full length, by the command for the workload (`dlemu train`, `checkpoint`,
    `kvcache`); the last key changes fastest. reader.evict_page_cache=epochs keeps memory from serving a dataset that
    fits into it. Checkpoints of a point have a folder of their own, which is removed afterwards. When interrupted, the
    same command with output.folder=FOLDER continues.

    Exit status: 0 every point completed, 2 a usage error (of a point, too), 3 a point failed, 128 + signal.
    """
    from dlemu.cli.options import show_answer
    from dlemu.cli.study_terminal import StudyTerminal
    from dlemu.studies.sweep.run import sweep

    with StudyTerminal() as terminal:
        answer = sweep(overrides, config_dir=config_dir, on_event=terminal)
    show_answer(answer, terminal.folder, "sweep", as_json=as_json, page=terminal.wants_page)
    raise SystemExit(answer.exit_status)
