"""Telemetry: CPU, memory, devices, network and power of each host, sampled during a run with the clock of the step log.

Modules without a leading underscore are probes, except `probe_base`, their interface. One recorder process per node
reads all probes; ranks notify it when an epoch begins or ends. This package may import dlemu.ranks and datagen.
"""

from dlemu.telemetry._readings import HostTelemetry as HostTelemetry
from dlemu.telemetry._readings import RecorderHead as RecorderHead
from dlemu.telemetry._readings import Series as Series
from dlemu.telemetry._readings import Telemetry as Telemetry
from dlemu.telemetry._readings import from_tables as from_tables
from dlemu.telemetry._readings import read_logs as read_logs
from dlemu.telemetry._readings import to_table as to_table
from dlemu.telemetry._recorder import Recorder as Recorder
from dlemu.telemetry._recorder import start_recorder as start_recorder
from dlemu.telemetry.probe_base import DeviceFacts as DeviceFacts
from dlemu.telemetry.probe_base import Scope as Scope
