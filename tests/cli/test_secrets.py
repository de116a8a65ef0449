"""Credentials among a storage's options, and in URLs, are in nothing that a command writes or prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dlemu
from datagen.errors import UserError
from datagen.withheld import redact_argv
from dlemu.metrics.verdict import COMPLETED
from tests.cli.test_first_steps import ended
from tests.e2e.harness import start, wait
from tests.parts import of_parts

pytest.importorskip("fsspec", reason="the extra `fsspec` is not installed")

OPTIONS = {
    "account_key": "'SECRET-account-key=='",
    "connection_string": "'AccountName=x;AccountKey=SECRET-connection=='",
    "sas": "SECRET-sas",
    "passphrase": "SECRET-passphrase",
    "key": "SECRET-key",
    "secret": "SECRET-secret",
    "token": "SECRET-token",
    "pin": "8675309123",
    "endpoint_url": "'http://SECRET-user:SECRET-password@10.0.0.1/x?sig=SECRET-signature'",
}
SECRETS = ("SECRET", "8675309123")
KEPT = ("account_key", "connection_string", "sas", "passphrase", "pin", "10.0.0.1")
"""Names, and values that are harmless, which are kept."""


def words(folder: Path) -> list[str]:
    """Settings of a storage that takes any options, and of the smallest dataset."""
    options = (f"++storage.storage_options.{name}={value}" for name, value in OPTIONS.items())
    return [
        *("storage.storage_type=fsspec", f"storage.storage_root=file://{folder}", *options),
        *("dataset.format=npz", "dataset.num_files_train=16", "dataset.record_length_bytes=4096"),
        *("dataset.data_folder=data", "checkpoint.checkpoint_folder=saved", "model.model_size_bytes=100000"),
        *("reader.data_loader=threads", "reader.batch_size=2", "reader.read_threads=1", "train.epochs=2"),
        *("metric.ceiling_seconds=0", "metric.scaling_seconds=0", "telemetry.enabled=false", "output.report=false"),
    ]


def run(folder: Path, *command: str, status: tuple[int, ...] = COMPLETED) -> str:
    """Run a command in a folder and return what it printed, all of it free of secrets."""
    ended = wait(start(*command, cwd=folder))
    printed = ended.out + ended.err
    assert ended.status in status, printed
    assert "Traceback" not in printed
    assert not [secret for secret in SECRETS if secret in printed], printed
    return printed


def written(folder: Path) -> dict[Path, bytes]:
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files, f"nothing was written to {folder}"
    return files


@pytest.mark.slow
def test_no_command_writes_or_prints_a_secret(tmp_path: Path) -> None:
    given = words(tmp_path)
    run(tmp_path, "datagen", *given)
    run(tmp_path, "train", *given, "ranks=1", "metric.cached=true", "output.folder=run")
    printed = run(tmp_path, "train", "--cfg", *given)
    assert [name for name in KEPT if name not in printed] == []
    run(tmp_path, "train", "--export-dlio", "exported.yaml", *given, "reader.data_loader=pytorch")
    saves = ("checkpoint.num_checkpoints_write=1", "checkpoint.num_checkpoints_read=1")
    run(tmp_path, "checkpoint", *given, *saves, "workflow.checkpoint=true", "output.folder=saves")
    run(tmp_path, "sweep", *given, "ranks=1,2", "output.folder=sweep")
    run(tmp_path, "predict", *given, "ranks=1", "accelerator=", "--from", "run", "output.folder=predict")
    run(tmp_path, "compare", "run", "run", "--output", "compare")
    run(tmp_path, "report", "run")
    for command in of_parts("READS_SETTINGS").values():
        run(tmp_path, *command, *given[:11])
    found = [path for path, data in written(tmp_path).items() if any(secret.encode() in data for secret in SECRETS)]
    assert found == []
    facts = json.loads((tmp_path / "run" / "facts.json").read_text())
    assert facts["workload"]["storage"]["storage_options"] == {
        **dict.fromkeys(("account_key", "connection_string", "sas", "passphrase", "key", "pin"), "withheld"),
        "endpoint_url": "http://withheld@10.0.0.1/x?sig=withheld",
    }
    again = run(tmp_path, "train", "workload=run/config.yaml", "output.folder=again", status=(2,))
    assert "storage.storage_options.account_key was left out when this configuration was saved" in again
    assert dlemu.load_result(tmp_path / "run").facts.workload.storage.storage_type == "fsspec"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong",
    [
        "storage.storage_root=abfs://SECRET-user:SECRET-password@container",
        "++storage.storage_options.sas=[SECRET-list]",
        "++storage.storage_options.sas={a: SECRET-mapping}",
        "++storage.storage_options.sas=SECRET with: blanks}",
        "++storage={storage_options:{sas:SECRET-section,x:[SECRET-list]}}",
        "dataset.num_files_train=many",
        "storage.storage_type=local_fs",
    ],
)
def test_no_message_quotes_a_secret(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(["train", *words(tmp_path), wrong, "output.folder=wrong"], monkeypatch) == 2
    printed = "".join(capsys.readouterr())
    assert printed
    assert not [secret for secret in (*SECRETS, "Traceback") if secret in printed], printed
    assert not list(tmp_path.iterdir()), "what is refused writes nothing"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("storage.storage_options.sas=x1", "storage.storage_options.sas=withheld"),
        ("++workload.storage.storage_options.key=x1", "++workload.storage.storage_options.key=withheld"),
        ("+storage/storage_options/key=x1", "+storage/storage_options/key=withheld"),
        ("storage.storage_options={sas:x1,region:here}", "storage.storage_options=withheld"),
        ("storage={storage_options:{sas:x1}}", "storage={storage_options:withheld"),
        ("storage.storage_options.region=here", "storage.storage_options.region=here"),
        ("storage.storage_options.anything=true", "storage.storage_options.anything=true"),
        (
            "storage.storage_options.endpoint_url=http://u:p@h:1",
            "storage.storage_options.endpoint_url=http://withheld@h:1",
        ),
        (
            "dataset.data_folder=sftp://u:p@h/d?sig=x1&se=2",
            "dataset.data_folder=sftp://withheld@h/d?sig=withheld&se=withheld",
        ),
        ("dataset.data_folder=/mnt/a@b:c?d=e", "dataset.data_folder=/mnt/a@b:c?d=e"),
        ("--password=x1", "--password=withheld"),
        ("ranks=4", "ranks=4"),
    ],
)
def test_a_word_of_a_command_line(word: str, shown: str) -> None:
    assert redact_argv([word]) == [shown]


def test_credentials_are_not_swept_over(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"storage.storage_options.sas has several values, which may be credentials"):
        dlemu.sweep([*words(tmp_path), "++storage.storage_options.sas=a1,b2"])
