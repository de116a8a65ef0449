"""The load: the arrival and the blocks of each prompt, read from a trace or generated at random."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count, islice
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import UserError, open_regular

MAX_LINE_BYTES = 1 << 20  # of a trace, which may be any received file
MAX_REQUESTS = 10**6  # prompts of a load
MAX_BLOCKS = 10**7  # of all prompts of a trace together
MAX_TOKENS = 131_072  # context length of the shipped models, at which a random conversation ends
MAX_TRACE_TOKENS = 10**8  # per prompt of a trace: far beyond any context length, but its blocks still fit in memory
_SPREAD = 0.8  # standard deviation of lengths' logarithm: 95 % are within a factor of 5 of the median, as in traces


@dataclass(frozen=True, eq=False)
class Prompt:
    """One request of a user: its prompt, as blocks of tokens, and the length of the answer."""

    after_ns: int  # arrival, from the beginning of the load; in a closed loop, from the user's last answer
    input_tokens: int
    output_tokens: int  # of the answer
    blocks: NDArray[np.int64]  # numbers of its complete blocks; equal beginnings of prompts have equal numbers
    number: int = 0  # index in the load of all ranks
    user: int = 0  # identifies the user within its rank; in an open loop, `assign_prompts` gives each prompt its own


def make_load(settings: KvSettings, ranks: int) -> Sequence[Prompt]:
    """Return the prompts of a run with `kv.speed` applied; raises UserError if a trace is invalid or too large."""
    prompts = read_trace(settings) if settings.trace else draw(settings, ranks)
    if settings.loop == "open":
        scaled = (replace(prompt, after_ns=round(prompt.after_ns / settings.speed)) for prompt in prompts)
        prompts = [prompt for prompt in scaled if not settings.seconds or prompt.after_ns < settings.seconds * 1e9]
    elif settings.trace:
        think = np.random.default_rng(settings.seed).exponential
        return [replace(prompt, after_ns=round(think(settings.think_seconds * 1e9))) for prompt in prompts]
    if not prompts:
        where = settings.trace or "the random load"
        raise UserError(f"{where} has no prompt within kv.seconds={settings.seconds:g}: wanted a longer time")
    if settings.trace and prompts[0].after_ns == prompts[-1].after_ns:
        raise UserError(f"{settings.trace} has prompts of one moment alone: wanted a load over time, or kv.loop=closed")
    return prompts


def read_trace(settings: KvSettings) -> Sequence[Prompt]:
    """Return the prompts of a trace in Mooncake's format, in order of arrival; raises UserError that names the line.

    A line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [one for each
    `kv.trace_block_tokens` tokens; the last may be partial]}. Two prompts with an equal id are equal up to its end.
    Example: 1100 tokens with hash_ids [7, 8, 9], in blocks of 256 -> blocks 0 to 3, two for each complete id.
    """
    path = os.path.expanduser(settings.trace)
    blocks_per_id = settings.trace_block_tokens // settings.block_tokens
    prompts: list[Prompt] = []
    index_of_id: dict[int, int] = {}
    blocks = 0
    try:
        with open(open_regular(path), "rb") as file:
            for line in _lines(file, path, settings.trace_block_tokens):
                blocks += blocks_per_id * len(line.hash_ids)
                if len(prompts) >= MAX_REQUESTS or blocks > MAX_BLOCKS:
                    raise UserError(
                        f"{path} has more than {MAX_REQUESTS:,} prompts, or {MAX_BLOCKS:,} blocks of "
                        f"{settings.block_tokens} tokens: cut it, or set a larger kv.block_tokens"
                    )
                indices = [index_of_id.setdefault(hash_id, len(index_of_id)) for hash_id in line.hash_ids]
                first_blocks = np.array(indices, np.int64) * blocks_per_id
                numbers = (first_blocks[:, None] + np.arange(blocks_per_id)).ravel()
                numbers = numbers[: line.input_length // settings.block_tokens]
                prompts.append(Prompt(line.timestamp * 10**6, line.input_length, line.output_length, numbers))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"kv.trace is {path}, which can't be read: {reason}; wanted a file of JSON lines") from error
    if not prompts:
        raise UserError(f"{path} is empty: wanted a line of JSON for each prompt")
    prompts.sort(key=lambda prompt: prompt.after_ns)
    return [replace(prompt, after_ns=prompt.after_ns - prompts[0].after_ns) for prompt in prompts]


@dataclass(frozen=True)
class _Line:
    timestamp: Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TRACE_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TRACE_TOKENS)]
    hash_ids: list[int]


def _lines(file: BinaryIO, path: str, block_tokens: int) -> Iterator[_Line]:
    for number in count(1):
        text = file.readline(MAX_LINE_BYTES + 1)
        where = f"{path}, line {number}"
        if len(text) > MAX_LINE_BYTES:
            raise UserError(f"{where} has more than {MAX_LINE_BYTES:,} bytes: wanted a prompt's JSON")
        if not text:
            return
        if text.isspace():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (ValueError, RecursionError) as error:
            keys = ", ".join(field.name for field in fields(_Line))
            raise UserError(f"{where}: {error}; wanted an object with {keys}; timestamp in whole ms") from None
        ids = -(-line.input_length // block_tokens)
        if len(line.hash_ids) != ids:
            raise UserError(
                f"{where}: hash_ids has {len(line.hash_ids)} values: wanted {ids}, one for each {block_tokens} of "
                f"its {line.input_length} tokens (kv.trace_block_tokens)"
            )
        yield line


def draw(settings: KvSettings, ranks: int) -> Sequence[Prompt]:
    """Return random prompts of `kv.users` users per rank, seeded by `kv.seed`; in an open loop, without `kv.speed`.

    A user begins at a random time within the first `think_seconds` and has one conversation after another. The times
    between prompts are exponential, so that the prompts of an open loop arrive as a Poisson process. A prompt contains
    the whole conversation so far, answers included, plus `turn_tokens` on average; conversations share only a system
    prompt. In a closed loop there are as many prompts as users could send if storage took no time.
    """
    conversations = count()
    drawn: list[tuple[float, Prompt]] = []
    users = settings.users_at_once if settings.loop == "closed" else settings.users
    for user in range(users * ranks):
        drawn += islice(_draw_user(settings, user, conversations), MAX_REQUESTS + 1)
        if len(drawn) > MAX_REQUESTS:
            raise UserError(f"the load would have more than {MAX_REQUESTS:,} prompts: lower kv.users or kv.seconds")
    return [prompt for _, prompt in sorted(drawn, key=lambda pair: pair[0])]


def _draw_user(settings: KvSettings, user: int, conversations: Iterator[int]) -> Iterator[tuple[float, Prompt]]:
    """Yield a user's prompts, each with its earliest arrival in seconds."""
    random = np.random.default_rng([settings.seed, user])
    is_closed = settings.loop == "closed"
    end_seconds = settings.seconds if is_closed else settings.seconds * settings.speed
    system_tokens = settings.system_tokens if settings.system_prompts else 0
    system_blocks = system_tokens // settings.block_tokens
    max_blocks = MAX_TOKENS // settings.block_tokens + 1
    at_seconds = think_seconds = float(random.uniform(0, settings.think_seconds))
    while at_seconds < end_seconds:
        system = int(random.integers(max(1, settings.system_prompts)))
        conversation = next(conversations)
        cached = system_tokens  # tokens of the prompt that earlier prompts stored
        tokens = min(MAX_TOKENS, cached + _random_tokens(random, settings.prompt_tokens))  # all tokens of the prompt
        for _ in range(int(random.geometric(1 / settings.turns))):
            if at_seconds >= end_seconds or tokens > MAX_TOKENS:
                break
            output = _random_tokens(random, settings.output_tokens)
            index = np.arange(tokens // settings.block_tokens, dtype=np.int64)
            # Blocks of shared system prompts have even numbers, blocks of a single conversation have odd numbers.
            shared, own = 2 * (system * max_blocks + index), 2 * (conversation * max_blocks + index) + 1
            blocks = np.where(index < system_blocks, shared, own)
            after_ns = round(1e9 * (think_seconds if is_closed else at_seconds))
            yield at_seconds, Prompt(after_ns, tokens, output, blocks, user=user)
            if is_closed:  # The answer comes after the prefill, which takes at least this long.
                at_seconds += settings.prefill_seconds(tokens, min(cached, tokens - 1))
            cached, tokens = tokens, tokens + output + _random_tokens(random, settings.turn_tokens)
            think_seconds = float(random.exponential(settings.think_seconds))
            at_seconds += think_seconds


def _random_tokens(random: np.random.Generator, mean: int) -> int:
    return max(1, round(float(random.lognormal(np.log(mean) - _SPREAD**2 / 2, _SPREAD))))
