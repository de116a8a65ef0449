"""What the recorders of a run that goes on read last: their logs, of which each line is looked at once."""

from __future__ import annotations

import os

import msgspec

from datagen.regular import open_regular
from dlemu.telemetry._log import LogHead, LogLine, is_log
from dlemu.telemetry._readings import Series


class LiveReadings:
    """The last reading of each series of each host, from the logs in a run's live folder."""

    def __init__(self, live_folder: str) -> None:
        self._folder = live_folder
        self._logs: dict[str, _Log] = {}

    def of_devices(self, metric: str) -> dict[tuple[str, str], float]:
        """Return the last value of a metric of each device that holds the data, by host and device."""
        found = {}
        for log in self._logs.values():
            for series, value in log.last.items():
                if series.metric == metric and (series.probe, series.source) in log.counted:
                    found[log.host, series.source] = value
        return found

    def look(self) -> None:
        """Read what was added to the logs; raises OSError where the folder is gone."""
        for name in filter(is_log, os.listdir(self._folder)):
            self._logs.setdefault(name, _Log(os.path.join(self._folder, name))).look()


class _Log:
    def __init__(self, path: str) -> None:
        self._path, self._offset = path, 0
        self._series: list[Series] = []
        self.host = ""
        self.counted: set[tuple[str, str]] = set()
        """Probe and name of the devices whose bytes are the data's."""
        self.last: dict[Series, float] = {}

    def look(self) -> None:
        try:
            descriptor = open_regular(self._path)
        except FileNotFoundError:
            raise
        except OSError:  # a pipe, say, in a folder that was received: whoever reads the result says so
            return
        with open(descriptor, "rb") as log:
            log.seek(self._offset)
            whole, _, _ = log.read().rpartition(b"\n")  # the last line may be half written
        self._offset += len(whole) + bool(whole)
        for text in whole.splitlines():
            try:
                self._take(text)
            except (msgspec.DecodeError, IndexError):  # damaged: whoever reads the result says so
                continue

    def _take(self, text: bytes) -> None:
        if not self.host:
            head = msgspec.json.decode(text, type=LogHead)
            self.host = head.host
            self.counted = {(device.probe, device.name) for device in head.devices if device.counted}
            return
        line = msgspec.json.decode(text, type=LogLine)
        self._series += line.series
        self.last.update((self._series[number], value) for number, value in zip(line.i, line.v, strict=False))
