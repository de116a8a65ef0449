"""The commands of the documents are run: page by page, in order, in a folder of their own, at the size of a test.

What a reader has and a test has not is put there: drives are folders, results are those of tests/goldens. A command
whose like (with the same options and settings) ran before is not run again; what can't run here is listed with who
tests it.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.doc_blocks import DOCS, WITH_COMMANDS
from tests.e2e.harness import start, wait
from tests.goldens.render import RESULTS
from tests.parts import needs_all_parts, of_parts
from tests.test_doc_commands import commands_of

pytestmark = [pytest.mark.slow, needs_all_parts]

ELSEWHERE = {
    "dlemu try": "tests/cli/test_try.py",
    "dlemu /mnt/nvme": "tests/cli/test_try.py",
    "dlemu reproduce": "minutes by design: dlemu/contrib/reproduce/tests",
    "dlemu mlperf run": "a whole submission's runs: dlemu/contrib/mlperf/tests/test_mlperf_run.py",
    "dlemu record": "wants a training: dlemu/contrib/record/tests",
    "dlemu together": "wants two files of the reader's: tests/e2e/test_together.py",
    "$s3": "tests/e2e/test_objects.py",
    "gs://": "a bucket",
    "s3://": "a bucket",
    "--jobs 1,8,64,512": "512 workers",
    "kv.trace=": "a trace of the reader's: dlemu/contrib/kvcache/tests",
    "workload=deepseek_v3": "as llama3_1_8b, with more bytes",
    "workload=mlperf_kv": "dlemu/contrib/kvcache/tests",
    "size workload=llama3_1_70b": "dlemu/contrib/kvcache/tests",
    "checkpoint.job_ranks": "tests/checkpoints/test_shards.py",
    "workload=job.yaml": "a recipe of the reader's: dlemu/contrib/record/tests",
    "size workload=my.yaml": "as the README's",
    "workload=colfax": "large pictures: dlemu/contrib/pack/tests/test_pack_e2e.py",
    "drives=": "as a sweep of one drive: tests/e2e/test_sweep.py",
    "workload=unet3d,resnet50": "as the sweep above it",
    "ranks=8 reader.read_threads=": "as the sweep above it",
    "checkpoint.writers=": "tests/e2e/test_sweep.py",
    "checkpoint.format=": "tests/e2e/test_sweep.py",
    "report DIR --output": "tests/report",
    "telemetry.interval_seconds": "as the README's",
    "--sizes 128k --depths 32": "as the probe above it",
    "doctor  ": "as the first run's",
    "size workload=unet3d dataset": "as the README's",
    "size workload=unet3d scale": "as the README's",
    "size workload=unet3d accelerator=h100 dataset": "as the README's",
    "predict workload=unet3d accelerator=h100 dataset": "probes first: tests/prediction",
    "report results/": "tests/report",
    "checkpoint workload=llama3_70b": "as llama3_8b",
    "workload=llama3_70b ranks=64 --from": "another model than the run's: tests/jobs/test_checkpoint_prediction.py",
}
"""What stands in a command that is not run here -> why, or what tests it."""
FILES = (
    "scale=laptop",
    "dataset.num_files_train=280",
    "dataset.record_length_bytes=4000",
    "dataset.record_length_bytes_stdev=0",
)
QUICK = ("reader.data_loader=threads", "metric.ceiling_seconds=0", "metric.scaling_seconds=0", "output.report=false")
STEPS = ("train.epochs=1", "train.total_training_steps=3", "train.computation_time=0.01", "telemetry.enabled=false")
CHECKPOINT = ("scale=laptop", "model.num_layers=1", "output.report=false", "telemetry.enabled=false")
ONE_CHECKPOINT = (*CHECKPOINT, "ranks=1", "checkpoint.num_checkpoints_write=1", "checkpoint.num_checkpoints_read=1")
SMALL: dict[str, tuple[str, ...]] = {
    "train": (*FILES, *QUICK, *STEPS, "ranks=1"),
    "sweep": (*FILES, *QUICK, *STEPS),
    "datagen": FILES,
    "doctor": (*FILES, *QUICK),
    "size": (*FILES, *QUICK),
    "predict": ("output.report=false",),
    "checkpoint": ONE_CHECKPOINT,
    "sweep of checkpoints": (*CHECKPOINT, *ONE_CHECKPOINT[-2:]),
    "kvcache": ("scale=laptop", "kv.seconds=2", "kv.users=40", "output.report=false", "metric.ceiling_seconds=0"),
    "pack": ("pack.images=4", "output.report=false"),
}
"""Command -> settings that make it small, in place of what the page says of these keys."""
OPTIONS: dict[str, tuple[str, ...]] = {
    "train": ("--make", "--yes"),
    "size": ("--make", "--most", "1", "--trial-seconds", "4"),
    "compare": ("--no-report",),
    "probe": ("--seconds", "0.1", "--file-size", "8m", "--sizes", "4k", "--depths", "1"),
}
"""Command -> options that make it small."""
KEPT = {
    r"results/unet3d/(\d{8}-\d{6}-4711|old-drive)": RESULTS / "train_epochs",
    r"results/unet3d/new-drive|DIR": RESULTS / "train",
    r"results/\w+/sweep-[\d-]+": RESULTS / "sweep",
    r"results/drive-[ab]": RESULTS / "size",
    r"results/a": RESULTS / "checkpoint",
    r"results/b": RESULTS / "checkpoint",
    **of_parts("KEPT"),
}
"""A result that a page names -> the one of tests/goldens that is put there, if no command before has left one."""


def shape(text: str) -> tuple[str, ...]:
    """Return what makes a command unlike another at the size of a test: its name, options, settings, and workload."""
    command, *words = shlex.split(text, comments=True)[1:]
    fixed = {word.partition("=")[0] for word in (*SMALL.get(command, ()), "accelerator=", "output.folder=")}
    names = {re.sub(r"=.*", "", word) for word in words if "=" in word or word.startswith("-")} - fixed
    return (command, *sorted(names), *(word for word in words if word.startswith("workload=")))


def chosen() -> dict[str, list[str]]:
    """Return the commands to run of each page: those unlike all before."""
    seen, pages = set[tuple[str, ...]](), dict[str, list[str]]()
    for page in WITH_COMMANDS:
        for text in commands_of(page):
            if not any(words in text for words in ELSEWHERE) and shape(text) not in seen:
                seen.add(shape(text))
                pages.setdefault(page, []).append(text)
    return pages


CHOSEN = chosen()


def small(text: str, root: Path) -> list[str]:
    """Return the words of a command at the size of a test, with the reader's folders below `root`."""
    text = re.sub(r"(?<![\w.])/(mnt|data)/", rf"{root}/\1/", text).replace(" ... ", " ")
    command, *words = shlex.split(text, comments=True)[1:]
    settings = SMALL.get("sweep of checkpoints" if command == "sweep" and "checkpoint." in text else command, ())
    options = OPTIONS.get(command, ())
    if "my.yaml" in text or "source=folder" in text:  # the reader's own files
        settings, options = tuple(word for word in settings if word not in FILES), ()
    if "workload=" not in text:
        settings = tuple(word for word in settings if not word.startswith("scale="))
    if command == "probe" and "workload=" in text:
        settings, options = FILES, ("--seconds", "0.1", "--readers", "1")
    if "--from" in words:
        settings = (*settings, "ranks=2")
    if words[:1] == ["verify"]:
        settings = ()
    fixed = {word.partition("=")[0] for word in settings}
    for option in {word for word in options if word.startswith("--")} & set(words):
        at = words.index(option)
        del words[at : at + (1 if option == "--make" else 2)]
    kept = [word for word in words if word.partition("=")[0] not in fixed]
    kept = [re.sub(r"^([\w.]+=[^,=]+,[^,=]+),.*", r"\1", word) for word in kept]  # two values of a sweep are enough
    return [command, *kept, *settings, *options]


def put_what_readers_have(root: Path, words: list[str]) -> None:
    """Put results that a command reads, and the dataset that it wants, where nothing lies yet."""
    reads = words[0] in ("compare", "report", "audit") or words[:2] == ["mlperf", "check"] or "--from" in words
    for word in words[1:] if reads else ():
        kept = next((name for pattern, name in KEPT.items() if re.fullmatch(pattern, word)), None)
        if kept is not None and not any((root / word).glob("*.*")):
            shutil.copytree(kept, root / word, dirs_exist_ok=True)
            facts = root / word / "facts.json"
            if "--from" in words and facts.exists():  # of memory, from which it may only be predicted if it says so
                facts.write_text(facts.read_text().replace('"cached": false', '"cached": true'))
    if "--drive" in words:  # the data sheet that the page shows
        shown = re.search(r"```yaml\n(name: .*?)```", (DOCS / "prediction.md").read_text(), re.DOTALL)
        assert shown is not None
        (root / words[words.index("--drive") + 1]).write_text(shown[1])
    if any("my.yaml" in word for word in words):  # the workload that the page shows
        shown = re.search(r"```yaml\n(# my\.yaml\n.*?)```", (DOCS / "own-workload.md").read_text(), re.DOTALL)
        assert shown is not None
        (root / "my.yaml").write_text(shown[1].replace("/data/", f"{root}/data/"))
    data = next((word for word in words if word.startswith("dataset.data_folder=")), "")
    if words[0] in ("sweep", "probe") and data and not Path(data.partition("=")[2]).exists():
        dlemu(root, ["datagen", "workload=unet3d", data, *FILES])


def dlemu(root: Path, words: list[str]) -> None:
    """Run a command in `root`; what was measured decides between the statuses of a verdict, nothing else may."""
    ended = wait(start(*words, cwd=root))
    assert ended.ran, f"{shlex.join(words)}\n{ended.err}{ended.out[-2000:]}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image", reason="photographs are made with the extra `image`")
    drives = ("nvme", "images", "a", "b", "ssd", "disk", "pfs", "lustre", "data")
    for name in (*(f"mnt/{drive}" for drive in drives), "data/my-images"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(96):
        image.effect_noise((24, 24), 50).save(tmp_path / "data/my-images" / f"{number}.jpg")
    for number in range(4):
        shutil.copy(tmp_path / "data/my-images" / f"{number}.jpg", tmp_path / "mnt/images")
    return tmp_path


@pytest.mark.parametrize("page", CHOSEN)
def test_the_commands_of_a_page_run(page: str, root: Path) -> None:
    for text in CHOSEN[page]:
        words = small(text, root)
        put_what_readers_have(root, words)
        dlemu(root, words)


def test_most_commands_run() -> None:
    """Each reason to leave a command out applies to some command."""
    texts = [text for page in WITH_COMMANDS for text in commands_of(page)]
    assert all(any(words in text for text in texts) for words in ELSEWHERE)
    assert sum(map(len, CHOSEN.values())) >= 30
