"""Layers of settings, folders and the list of times agree with the schema."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest

from dlemu.config.loading import DURATIONS
from dlemu.config.schema import Duration, Storage, Workload


def test_the_times_are_those_of_the_schema() -> None:
    found = set()
    for section in fields(Workload()):
        value = getattr(Workload(), section.name)
        if is_dataclass(value):
            found |= {
                (section.name, key.name) for key in fields(value) if isinstance(getattr(value, key.name), Duration)
            }
    assert set(DURATIONS) == found


@pytest.mark.parametrize(
    ("root", "folder", "wanted"),
    [
        ("./", "data/x", "data/x"),
        (".", "./data/", "./data/"),
        ("/mnt", "data/x/", "/mnt/data/x"),
        ("mnt", "../x", "x"),
        ("/mnt", "/data", "/data"),
        ("bucket", "s3://bucket/x", "s3://bucket/x"),
        ("~/mnt", "x", "/home/me/mnt/x"),
        ("./", "~/x", "/home/me/x"),
    ],
)
def test_a_folder_starts_at_the_root(root: str, folder: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert Storage(storage_root=root).resolved(folder) == wanted
