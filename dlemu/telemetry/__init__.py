"""Telemetry: CPU, memory, devices, network and power of each host, sampled during a run, on the clock of the step log.

Each module without an underscore is a probe, which reads one kind of counters. One recorder process per node reads all
probes; ranks only tell it when an epoch begins or ends, and read its log at the end. May import comm and datagen.
"""

from dlemu.telemetry._log import read_logs
from dlemu.telemetry._readings import (
    HostTelemetry,
    RecorderHead,
    Series,
    Telemetry,
    from_tables,
    to_table,
    trace_to_table,
)
from dlemu.telemetry._recorder import Recorder, Task, start_recorder
from dlemu.telemetry.probe_base import DeviceFacts, Scope

__all__ = [
    "DeviceFacts",
    "HostTelemetry",
    "Recorder",
    "RecorderHead",
    "Scope",
    "Series",
    "Task",
    "Telemetry",
    "from_tables",
    "read_logs",
    "start_recorder",
    "to_table",
    "trace_to_table",
]
