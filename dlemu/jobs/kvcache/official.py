"""The load of MLPerf Storage v3.0's kv_cache: what its users request, and when. Pure.

Formulas and constants are those of kv_cache_benchmark (benchmark.py, workload.py, conversation.py, config.yaml) of
https://github.com/mlcommons/storage, Apache-2.0. The tool draws from one generator that all its threads share, so no
no two of its runs send the same requests; here each user has a generator of its own, and a seed gives one load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from datagen.errors import UserError
from dlemu.jobs.kvcache.model import ALIGNMENT, Model
from dlemu.jobs.kvcache.settings import KvSettings

MOST_WORKERS = 500
"""Threads that serve: one a user, and no more than these."""
MOST_CONVERSATIONS, MOST_TURNS, END_SHARE = 1000, 50, 0.2
"""Conversations that the tool remembers; turns of one at most; how often a turn is the last."""
DECODE_BATCH_TOKENS, PREFILL_ONLY_TOKENS = 32, 10_000
"""Answers are read for once each so many tokens; prompts from so many tokens on are written and never read back."""
CLASSES = {3: "interactive", 2: "responsive", 1: "batch"}
"""Priority -> its class of service."""
GIB = 2**30
_CLASS_SHARES = (0.15, 0.35, 0.5)  # config.yaml, qos_distribution: interactive below 0.15, responsive below 0.5
_PREFIX_SHARE, _PREFIX_TOKENS = 0.2, (5, 9, 6)
"""How often a prompt begins with one of three known sentences, and their words, which are taken off its tokens."""
_SLACK = (0.8, 1.2)  # benchmark.py draws each think time so, to keep users out of step


@dataclass(frozen=True)
class Template:
    """Ranges that a user's own numbers are drawn from."""

    context: tuple[int, int]
    generation: tuple[int, int]
    think_seconds: tuple[float, float]


TEMPLATES = (
    Template((512, 4096), (50, 200), (0.1, 0.5)),  # chatbot
    Template((4096, 25_000), (100, 500), (0.2, 1.0)),  # coding
    Template((4096, 16_384), (200, 800), (0.3, 1.5)),  # document
)


@dataclass(frozen=True, kw_only=True)
class Option:
    """A row of Table KVCache-1 (Rules.md of v3.0, 6.3.1.1)."""

    model: str
    users: int
    memory_gib: int
    """Of the host, which keeps what is written first."""
    allocations: int
    """Turns that are written at a time."""
    shape: Mapping[str, Any]
    """Of the model."""


_8B: Mapping[str, Any] = {
    "layers": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "attention_dim": 4096,
    "parameters_billion": 8.03,
}
_70B: Mapping[str, Any] = {
    "layers": 80,
    "kv_heads": 8,
    "head_dim": 128,
    "attention_dim": 8192,
    "parameters_billion": 70.6,
}
OPTIONS = {
    1: Option(model="llama3.1-8b", users=200, memory_gib=0, allocations=16, shape=_8B),
    2: Option(model="llama3.1-8b", users=100, memory_gib=4, allocations=16, shape=_8B),
    3: Option(model="llama3.1-70b-instruct", users=70, memory_gib=0, allocations=4, shape=_70B),
}


def completed(settings: KvSettings) -> KvSettings:
    """Return the settings with what the option says where they say nothing; raises UserError for what can't be."""
    option = OPTIONS[settings.option]
    if settings.trace or settings.speed != 1:
        raise UserError(
            f"kv.option={settings.option} defines its own load: wanted neither kv.trace nor kv.speed; its rate "
            "follows from its users (kv.users) and ranks"
        )
    if settings.tp != 1 or settings.layout != "files":
        raise UserError(f"kv.option={settings.option} writes one file per turn: wanted kv.tp=1 and kv.layout=files")
    if not settings.seconds:
        raise UserError(f"kv.option={settings.option} runs for kv.seconds: wanted more than 0 (300 in CLOSED)")
    shape: Mapping[str, Any] = {} if settings.layers else option.shape
    users = settings.users or option.users
    return replace(settings, **shape, users=users, threads=min(users, MOST_WORKERS))


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    at_ns: int
    """When it is put on the queue, from the beginning of the load."""
    priority: int
    conversation: int
    context_tokens: int
    stored_tokens: int
    output_tokens: int

    @property
    def reads(self) -> int:
        """How often what it wrote is read again."""
        if self.context_tokens >= PREFILL_ONLY_TOKENS:
            return 0
        return 1 + max(1, -(-self.output_tokens // DECODE_BATCH_TOKENS))


@dataclass(frozen=True, eq=False)
class RankTurns:
    """What one rank is to serve; object n is the file of turn n."""

    model: Model
    turns: Sequence[Turn]
    sizes: Sequence[int]
    """Bytes of each turn's file."""
    accelerators: int = 0
    """Of emulated ones: the tool computes nothing."""

    @property
    def option(self) -> Option:
        return OPTIONS[self.model.settings.option]

    @property
    def objects(self) -> int:
        return len(self.turns)

    @property
    def memory_bytes(self) -> int:
        """Of the host, shrunk as what it keeps is."""
        return self.option.memory_gib * GIB // self.model.settings.shrink

    @property
    def peak_bytes(self) -> int:
        """What must fit: what is being written at a time, on average; when it is full, what was used least goes."""
        at_a_time = min(self.option.allocations, self.model.settings.threads)
        return at_a_time * sum(self.sizes) // max(1, len(self.sizes))


def draw_turns(settings: KvSettings, rank: int) -> RankTurns:
    """Return what the users of a rank request until the clock ends; they don't wait for answers."""
    turns: list[Turn] = []
    for user in range(settings.users):
        turns += _of_user(settings, np.random.default_rng([settings.seed + rank, user]), user)
    turns.sort(key=lambda turn: turn.at_ns)
    model = Model(settings)
    sizes = [_size(turn.stored_tokens * model.token_bytes / settings.shrink) for turn in turns]
    return RankTurns(model, turns, sizes)


def _of_user(settings: KvSettings, random: np.random.Generator, user: int) -> list[Turn]:
    template = TEMPLATES[int(random.integers(len(TEMPLATES)))]
    priority = 3 - int(random.choice(len(_CLASS_SHARES), p=_CLASS_SHARES))
    context, generation = (int(random.integers(low, high + 1)) for low, high in (template.context, template.generation))
    think = float(random.uniform(*template.think_seconds))
    most = int(settings.seconds / (_SLACK[0] * think)) + 1
    at = np.cumsum(think * random.uniform(*_SLACK, most))
    at = at[at < settings.seconds]
    contexts = random.integers(max(1, context // 4), context + 1, len(at))
    outputs = random.integers(max(1, generation // 4), generation + 1, len(at))
    ends = random.random(len(at)) < END_SHARE
    prefixes = np.where(random.random(len(at)) < _PREFIX_SHARE, random.choice(_PREFIX_TOKENS, len(at)), 0)
    turns: list[Turn] = []
    conversation, taken = user << 32, 0
    for moment, tokens, output, end, prefix in zip(
        at.tolist(), contexts.tolist(), outputs.tolist(), ends.tolist(), prefixes.tolist(), strict=True
    ):
        if taken and (end or taken >= MOST_TURNS):
            conversation, taken = conversation + 1, 0
        taken += 1
        turns.append(Turn(round(moment * 1e9), priority, conversation, tokens, max(1, tokens - prefix), output))
    return turns


def _size(exact: float) -> int:
    return max(1, -int(-exact // ALIGNMENT)) * ALIGNMENT
