"""The latest readings of a run in progress, from the recorders' logs; each line is parsed once."""

from __future__ import annotations

import os

import msgspec

from datagen.regular import open_regular
from dlemu.telemetry._log import LogHead, LogLine, is_log
from dlemu.telemetry._readings import Series


class LiveReadings:
    """The latest reading of each series of each host, from the logs in a run's live folder."""

    def __init__(self, live_folder: str) -> None:
        self._folder = live_folder
        self._logs: dict[str, _Log] = {}

    def of_devices(self, metric: str) -> dict[tuple[str, str], float]:
        """Return the latest value of a metric for each device that holds the data, by host and device."""
        found = {}
        for log in self._logs.values():
            for series, value in log.last.items():
                if series.metric == metric and (series.probe, series.source) in log.counted:
                    found[log.host, series.source] = value
        return found

    def look(self) -> None:
        """Read the lines that were added to the logs; raises OSError if the folder is gone."""
        for name in filter(is_log, os.listdir(self._folder)):
            self._logs.setdefault(name, _Log(os.path.join(self._folder, name))).look()


class _Log:
    def __init__(self, path: str) -> None:
        self._path, self._offset = path, 0
        self._series: list[Series] = []
        self.host = ""
        self.counted: set[tuple[str, str]] = set()
        """Probe and name of the devices whose counters are the data's traffic."""
        self.last: dict[Series, float] = {}

    def look(self) -> None:
        try:
            descriptor = open_regular(self._path)
        except FileNotFoundError:
            raise
        except OSError:  # such as a pipe in a received folder: reported when the result is read
            return
        with open(descriptor, "rb") as log:
            log.seek(self._offset)
            complete, _, _ = log.read().rpartition(b"\n")  # the last line may be incomplete
        self._offset += len(complete) + bool(complete)
        for text in complete.splitlines():
            try:
                self._parse_line(text)
            except (msgspec.DecodeError, IndexError):  # damaged: reported when the result is read
                continue

    def _parse_line(self, text: bytes) -> None:
        if not self.host:
            head = msgspec.json.decode(text, type=LogHead)
            self.host = head.host
            self.counted = {(device.probe, device.name) for device in head.devices if device.counted}
            return
        line = msgspec.json.decode(text, type=LogLine)
        self._series += line.series
        self.last.update((self._series[number], value) for number, value in zip(line.i, line.v, strict=False))
