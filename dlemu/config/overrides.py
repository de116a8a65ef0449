"""Parses and writes overrides: `KEY=VALUE` in Hydra's grammar, or `KEY=VALUE,VALUE` for the points of a sweep."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from datagen.errors import UserError
from datagen.spec import refuse
from datagen.withheld import argv_options, redact_message
from datagen.withheld import check_encoding as check_encoding
from datagen.withheld import redact_argv as redact_argv
from dlemu.config.translate import KeyPath, flattened
from dlemu.config.workload_files import workload_names

if TYPE_CHECKING:  # imported on use: lists and messages do without the grammar
    from hydra.core.override_parser.types import Override

WORKLOAD = ("workload",)
DRIVES = "drives"  # drives=A,B means dataset.data_folder=A,B; a drive may be s3://BUCKET/PREFIX
DATA_FOLDER = "dataset.data_folder"


class Setting(NamedTuple):
    """One parsed override. `path` is its key in parts: ("reader", "batch_size"); `text` is what the user wrote."""

    path: KeyPath
    value: Any
    text: str


def parse(overrides: Sequence[str]) -> tuple[str, list[Setting]]:
    """Return the workload that overrides name ("" if none), and the other settings. Raises UserError with all problems.

    A key may begin with + or ++, as in Hydra, or with `workload.`, as in DLIO.
    """
    settings: list[Setting] = []
    problems: list[str] = []
    for text in overrides:
        try:
            check_encoding([text])
            settings.append(_parse_override(text))
        except UserError as error:
            problems.append(redact_message(str(error), argv_options([text])))
    refuse(problems)
    workloads = [setting.value for setting in settings if setting.path == WORKLOAD]
    return (workloads[-1] if workloads else ""), [setting for setting in settings if setting.path != WORKLOAD]


def given_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys that overrides set, also nested ones, except `workload`."""
    settings = [entry for setting in parse(overrides)[1] for entry in flattened(setting.path, setting.value)]
    return {".".join(path) for path, _ in settings}


def _parse_override(text: str) -> Setting:
    """Return one override, parsed and with its key checked; raises UserError."""
    from hydra.errors import HydraException

    if text.startswith("~"):
        raise UserError(f"{text}: nothing can be deleted, every setting has a value; give another, as KEY=VALUE")
    if "=" not in text:
        hint = f"did you mean workload={text}? " if text in workload_names() else ""
        raise UserError(f"{text!r} is not a setting: {hint}wanted KEY=VALUE, as in workload=unet3d or ranks=4")
    key, value = text.split("=", 1)
    quoted_override = shlex.quote('{}="{}"'.format(key, value.replace('"', "")))
    try:
        parsed = parse_word(text)
    except HydraException as error:
        reason = str(error).split("\n", 1)[0]
        raise UserError(
            f"{text} is not in hydra's grammar ({reason}): wanted KEY=VALUE; a value with special characters needs "
            f"quotes, in a shell: {quoted_override}"
        ) from None
    if parsed.is_sweep_override():
        raise UserError(
            f"{text} has several values: dlemu takes one value for each key; start it once for each value,"
            f" write a list as {key}=[...], or quote a text: {quoted_override}"
        )
    if parsed.package is not None:
        raise UserError(f"{text}: no setting has a package; write its key without '@'")
    path = tuple(parsed.key_or_group.replace("/", ".").split("."))
    if not all(path):
        raise UserError(f"{text}: the key is empty; wanted KEY=VALUE, as in reader.batch_size=4")
    setting = Setting(path[1:] if path[0] == "workload" and len(path) > 1 else path, parsed.value(), text)
    if setting.path == WORKLOAD and not (isinstance(setting.value, str) and setting.value):
        raise UserError(f"{text}: wanted workload=NAME, or the path of a .yaml file")
    return setting


def parse_word(text: str) -> Override:
    """Parse one override by Hydra's grammar; raises HydraException.

    A plain text that the grammar refuses, such as ~/data or /mnt/ä, is parsed as if it were quoted.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    try:
        return parser.parse_override(text)
    except HydraException:
        key, _, value = text.partition("=")
        if not value.strip() or set("'\"[]{}(),\\$") & set(value):
            raise
        return parser.parse_override(f"{key}={_quoted(value.strip())}")


def take_word(words: Sequence[str], key: str) -> tuple[str, list[str]]:
    """Return the text that the overrides `words` set for `key` ("" if none), and the overrides of other keys.

    `~` is expanded. A value that the grammar does not parse as a text is returned as written, without quotes.
    """
    words_of_key = [word for word in words if word.lstrip("+").removeprefix("workload.").startswith(f"{key}=")]
    if not words_of_key:
        return "", [*words]
    text = words_of_key[-1].partition("=")[2].strip("\"'")
    with contextlib.suppress(UserError):  # raised for commas, as in a launcher's list of hosts
        value = _parse_override(words_of_key[-1]).value
        if value is None or isinstance(value, str):
            text = value or ""
    return os.path.expanduser(text), [word for word in words if word not in words_of_key]


class Point(NamedTuple):
    """One run of a sweep: its values of the keys that have several, and all its overrides."""

    settings: dict[str, str]
    words: tuple[str, ...]


def points(words: Sequence[str]) -> list[Point]:
    """Return the runs of a sweep with the overrides `words`, one run for each combination of values; raises UserError.

    The last key changes fastest: ranks=1,2 train.epochs=3,4 gives (1, 3), (1, 4), (2, 3), (2, 4).
    """
    from hydra.errors import HydraException

    fixed_words, axes = [], []
    for given in words:
        word = re.sub(rf"^\+*{DRIVES}=", f"{DATA_FOLDER}=", given)
        parsed = None
        with contextlib.suppress(HydraException):  # loading the point will report it
            parsed = parse_word(word)
        if parsed is None or not parsed.is_sweep_override():
            fixed_words.append(word)
            continue
        key = parsed.get_key_element()
        if redact_argv([word]) != [word]:
            raise UserError(f"{key} has several values, which may be credentials: wanted one value, since none is kept")
        try:  # `sweep_string_iterator` escapes the colon of s3://
            axes.append([(key, str(value).replace("s3\\:", "s3:")) for value in parsed.sweep_string_iterator()])
        except (HydraException, ValueError, ArithmeticError):  # glob(*), interval(1,4), range(1,4,0)
            raise UserError(f"{given}: a sweep can't list its values; wanted values, as in ranks=1,2,4") from None
    runs = []
    buckets = {value for axis in axes for _, value in axis if value.strip("'\"").startswith("s3://")}
    for pairs in product(*axes):
        is_bucket = not buckets.isdisjoint(dict(pairs).values())
        shared_words = fixed_words
        if buckets and not is_bucket:  # this drive is a folder, to which settings of the object store do not apply
            shared_words = [word for word in fixed_words if not word.lstrip("+").startswith("storage.")]
        run_words = [*shared_words, *(f"{key}={value}" for key, value in pairs)]
        if is_bucket:
            run_words.append("storage.storage_type=s3")
        runs.append(Point(dict(pairs), tuple(run_words)))
    return runs


def check_points(runs: Sequence[Point]) -> None:
    if len(runs) < 2:
        raise UserError(
            "a sweep needs several values for a key, as in ranks=1,2,4,8 or drives=/mnt/a,/mnt/b; `dlemu train` makes "
            "one run"
        )


def named(settings: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


# A text that needs no quotes in Hydra's grammar.
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)\Z)(?:[a-z/]|\.(?!\d))[\w/.-]*", re.ASCII | re.IGNORECASE)


def override(path: Iterable[str], value: object) -> str:
    """Return an override that `parse` reads back as this value."""
    return f"{'.'.join(path)}={literal(value)}"


def literal(value: object) -> str:
    """Return a value in Hydra's grammar, with strings quoted where it requires that."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(literal(item) for item in value) + "]"
    return str(value) if _PLAIN.fullmatch(str(value)) else _quoted(str(value))


def _quoted(text: str) -> str:
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()
