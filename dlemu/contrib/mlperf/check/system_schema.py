"""The fields of v3.0's system description (systems/SYSTEM.yaml) and their allowed values.

Source: `mlpstorage_py/system_description/schema.yaml` (https://github.com/mlcommons/storage). Unknown
fields are accepted: the schema grew during the round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PLACEHOLDER = "FILL IN"
"""Text in a template where the submitter must fill in a value; the allowed values follow it."""

_TEXT, _NUMBER, _NUMBER_OR_ZERO, _FLAG = "a text", "a whole number from 1", "a whole number from 0", "true or false"
_POWER = {
    "min_psus_active": _NUMBER,
    "psus_configured": [
        {
            "unit_count": _NUMBER,
            "inlet_voltage": _NUMBER,
            "nameplate_power_watts": _NUMBER,
            "efficiency": ("Standard", "Bronze", "Silver", "Gold", "Platinum", "Titanium", "Ruby", "Unrated"),
        }
    ],
}
_PAIRS = [{"name": _TEXT, "value": _TEXT}]
_PORT = {
    "unit_count": _NUMBER,
    "type": ("ethernet", "infiniband", "other"),
    "state": ("up", "down"),
    "speed?": _NUMBER,
    "traffic?": [("management", "data", "metadata", "backend")],
}
_NODE = {
    "friendly_description": _TEXT,
    "quantity": _NUMBER,
    "chassis": {
        "model_name": _TEXT,
        "rack_units?": _NUMBER,
        "cpu_model": _TEXT,
        "cpu_qty": _NUMBER,
        "cpu_cores": _NUMBER,
        "memory_capacity": _NUMBER,
        "power?": _POWER,
    },
    "networking?": [_PORT],
    "drives?": [
        {
            "unit_count": _NUMBER,
            "vendor_name": _TEXT,
            "model_name": _TEXT,
            "interface": ("nvme", "sas", "sata", "other"),
            "media_type": ("HDD", "TLC", "QLC", "other"),
            "capacity_in_GB": _NUMBER,
        }
    ],
    "operating_system": {"name": _TEXT, "version": _TEXT},
    "environment?": _PAIRS,
    "sysctl?": _PAIRS,
}
SCHEMA: Mapping[str, Any] = {
    "system_under_test": {
        "solution": {
            "submission_name": _TEXT,
            "friendly_description": _TEXT,
            "architecture": {
                "storage_location": ("remote", "local", "remote_and_local", "hyperconverged"),
                "benchmark_API": ("file", "object"),
                "product_API": ("file", "object", "block"),
                "client_footprint": ("open_source", "closed_source", "n/a"),
                "client_installation": ("in_box", "installable", "n/a"),
            },
            "capabilities": {
                "multi_host": _FLAG,
                "simultaneous_write": _FLAG,
                "simultaneous_read": _FLAG,
                "remap_time_in_seconds": _NUMBER_OR_ZERO,
            },
            "availability?": ("available", "preview", "RDI"),
        },
        "deployment": ("onprem", "cloud"),
        "product_nodes?": [_NODE],
        "product_switches?": [
            {
                "unit_count": _NUMBER,
                "vendor_name": _TEXT,
                "model_name": _TEXT,
                "ports": [_PORT],
                "configuration?": _PAIRS,
                "rack_units": _NUMBER,
                "power?": _POWER,
            }
        ],
        "total_rack_units?": _NUMBER_OR_ZERO,
        "rack_power_supplies?": [_POWER],
        "clients": [_NODE],
    }
}
"""Field -> type: a tuple lists the allowed words, a list holds its entries' type; a field `name?` is optional."""


def breaches(content: object) -> Iterator[str]:
    """Yield every field that is missing or has a value that the schema forbids; fields still to fill in are skipped."""
    yield from _breaches(content, SCHEMA, "")
    system = content.get("system_under_test") if isinstance(content, Mapping) else None
    if isinstance(system, Mapping) and system.get("deployment") in ("onprem", "cloud"):
        yield from _deployment_breaches(system, on_premises=system["deployment"] == "onprem")


def is_blank(value: object) -> bool:
    """Return whether a field still has the template's text."""
    return isinstance(value, str) and value.startswith(PLACEHOLDER)


def _breaches(value: object, wanted: Any, where: str) -> Iterator[str]:
    if is_blank(value):
        return
    if isinstance(wanted, Mapping):
        if not isinstance(value, Mapping):
            yield f"{where} is {_shortened(value)}, wanted fields"
            return
        for name, kind in wanted.items():
            known, optional = name.rstrip("?"), name.endswith("?")
            inside = f"{where}.{known}" if where else known
            if value.get(known) is None:
                if not optional:
                    yield f"{inside} is missing"
            else:
                yield from _breaches(value[known], kind, inside)
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            yield f"{where} is {_shortened(value)}, wanted a list"
            return
        for index, item in enumerate(value):
            yield from _breaches(item, wanted[0], f"{where}[{index}]")
    elif isinstance(wanted, tuple):
        if value not in wanted:
            yield f"{where} is {_shortened(value)}, wanted {' or '.join(wanted)}"
    elif not _has_type(value, wanted):
        yield f"{where} is {_shortened(value)}, wanted {wanted}"


def _deployment_breaches(system: Mapping[str, Any], *, on_premises: bool) -> Iterator[str]:
    """Yield breaches of what `deployment` requires or forbids: rules 1 to 11 of the tool's `schema_validator.py`."""
    because = f"but deployment is {system['deployment']}"
    units = 0
    for name in ("product_nodes", "product_switches", "clients"):
        for index, node in enumerate(_mappings(system.get(name))):
            where = f"system_under_test.{name}[{index}]"
            holder: object = node
            if name != "product_switches":
                where, holder = f"{where}.chassis", node.get("chassis")
            elif not on_premises:
                yield f"{where} is given, {because}"
                continue
            if not isinstance(holder, Mapping):
                continue  # `_breaches` has reported it
            for field in ("rack_units", "power"):
                if (holder.get(field) is None) == on_premises:
                    yield f"{where}.{field} is {'missing' if on_premises else 'given'}, {because}"
            rack_units, count = holder.get("rack_units"), node.get("quantity", node.get("unit_count"))
            if name != "clients" and isinstance(rack_units, int) and isinstance(count, int):
                units += rack_units * count
    total = system.get("total_rack_units")
    if total is None and on_premises:
        yield f"system_under_test.total_rack_units is missing, {because}"
    elif isinstance(total, int) and total != units:
        yield f"system_under_test.total_rack_units is {total}, wanted {units}, the sum over nodes and switches"


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _has_type(value: object, wanted: str) -> bool:
    if wanted == _TEXT:
        return isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip() != ""
    if wanted == _FLAG:
        return isinstance(value, bool)
    return isinstance(value, int) and not isinstance(value, bool) and value >= (wanted == _NUMBER)


def _shortened(value: object) -> str:
    return repr(value)[:40]


def blank(*path: str) -> str:
    """Return the template's text for a field: `FILL IN` and the allowed values."""
    wanted: Any = SCHEMA["system_under_test"]
    for name in path:
        wanted = wanted[0] if isinstance(wanted, list) else wanted
        wanted = wanted.get(name, wanted.get(f"{name}?"))
    allowed = " or ".join(wanted) if isinstance(wanted, tuple) else wanted
    return f"{PLACEHOLDER}: {allowed}" if isinstance(allowed, str) else PLACEHOLDER
