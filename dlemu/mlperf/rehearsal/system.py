"""The description of the system under test: a template, with what the hosts told of themselves.

Its keys are those of v2.0's and v3.0's systems/SYSTEM.yaml (https://github.com/mlcommons/storage); v1.0's
description is JSON of any shape.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil
import yaml

from datagen.atomic import write_text
from dlemu.emulator.environment import describe_host
from dlemu.mlperf.check.systems import PLACEHOLDER
from dlemu.mlperf.rehearsal.outcome import Figures
from dlemu.mlperf.rehearsal.papers import write_json
from dlemu.mlperf.rehearsal.plan import Plan


def write_system(plan: Plan, figures: Figures) -> None:
    """Write the template unless there is one already: the user may have filled it in. Raises SpaceError."""
    folder = os.path.join(plan.submission, "systems")
    name = f"{plan.system}.{'json' if plan.edition.name == '1.0' else 'yaml'}"
    if os.path.exists(os.path.join(folder, name)):
        return
    told = _description(plan.system, figures)
    if name.endswith(".json"):
        write_json(folder, name, told)
    else:
        write_text(folder, name, yaml.safe_dump(told, sort_keys=False))


def _description(system: str, figures: Figures) -> dict[str, Any]:
    return {
        "system_under_test": {
            "solution": {
                "submission_name": system,
                "friendly_description": PLACEHOLDER,
                "architecture": {
                    "storage_location": PLACEHOLDER,
                    "benchmark_API": "file",
                    "product_API": PLACEHOLDER,
                    "client_footprint": PLACEHOLDER,
                    "client_installation": PLACEHOLDER,
                },
                "capabilities": {
                    "multi_host": figures.hosts > 1 or PLACEHOLDER,
                    "simultaneous_write": PLACEHOLDER,
                    "simultaneous_read": PLACEHOLDER,
                    "remap_time_in_seconds": PLACEHOLDER,
                },
                "usable_capacity_tib": PLACEHOLDER,
                "availability": PLACEHOLDER,
            },
            "deployment": PLACEHOLDER,
            "product_nodes": [_node(PLACEHOLDER, PLACEHOLDER, {})],
            "product_switches": [],
            "clients": [_node("runs the emulated accelerators", figures.hosts, _client(figures))],
            "total_rack_units": PLACEHOLDER,
            "rack_power_supplies": [],
        }
    }


def _node(what: str, quantity: int | str, known: dict[str, Any]) -> dict[str, Any]:
    chassis = ("model_name", "rack_units", "cpu_model", "cpu_qty", "cpu_cores", "memory_capacity")
    return {
        "friendly_description": what,
        "quantity": quantity,
        "chassis": {key: known.get(key, PLACEHOLDER) for key in chassis} | {"power": PLACEHOLDER},
        "networking": [],
        "drives": [],
        "operating_system": known.get("operating_system", {"name": PLACEHOLDER, "version": PLACEHOLDER}),
        "sysctl": [],
        "environment": [],
    }


def _client(figures: Figures) -> dict[str, Any]:
    """Return what this host is; the others of the run are taken to be alike, as the rules want."""
    host = describe_host()
    return {
        "cpu_model": host.processor,
        "cpu_cores": psutil.cpu_count(logical=False) or host.cpu_count,
        "memory_capacity": round(figures.memory_gib_per_host),
        "operating_system": {"name": platform.system(), "version": host.kernel},
    }
