"""A small training job as users write them; a script of its own, for nothing of it knows of a recorder."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

asked = argparse.ArgumentParser()
asked.add_argument("data")
asked.add_argument("--workers", type=int, default=0)
asked.add_argument("--method", default="fork")
asked.add_argument("--kind", choices=["map", "mapped", "loaded", "storages"], default="map")
asked.add_argument("--epochs", type=int, default=1)
asked.add_argument("--step", type=float, default=0.0, help="seconds of a step")
asked.add_argument("--evaluate", action="store_true")
asked.add_argument("--save", default="")
asked.add_argument("--kill-at", type=int, default=0)
asked.add_argument("--dynamo", action="store_true", help="have optimizers import all that they do by themselves")
words = asked.parse_args()

if not words.dynamo:  # it takes a second, and optimizers import it only to say that they are not to be compiled
    dynamo = ModuleType("torch._dynamo")
    dynamo.__dict__["disable"] = lambda function, *_, **__: function
    dynamo.__dict__["graph_break"] = lambda: None
    torch.__dict__["_dynamo"] = sys.modules["torch._dynamo"] = dynamo


class Files(Dataset[torch.Tensor]):
    def __init__(self, folder: str) -> None:
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.paths[place])[:1000].copy())


class Storages(Files):
    """Samples that PyTorch maps, as it does for torch.load(mmap=True)."""

    def __getitem__(self, place: int) -> torch.Tensor:
        if place % 2:
            return torch.from_file(self.paths[place], False, 1000, dtype=torch.uint8).clone()
        return torch.tensor(torch.UntypedStorage.from_file(self.paths[place], False, 1000), dtype=torch.uint8)


class Loaded(Files):
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.arrays = [torch.from_numpy(np.load(path)[:1000]) for path in self.paths]

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.arrays[place]


class Tokens(Dataset[torch.Tensor]):
    def __init__(self, folder: str) -> None:
        self.tokens = np.memmap(os.path.join(folder, "tokens.bin"), np.uint16, "r")
        valid = os.path.join(folder, "valid.bin")
        self.held_out = np.memmap(valid, np.uint16, "r") if os.path.exists(valid) else None  # mapped and not read

    def __len__(self) -> int:
        return len(self.tokens) // 2048

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[place * 2048 : (place + 1) * 2048].astype(np.int64))


def main() -> None:
    kinds: dict[str, Any] = {"mapped": Tokens, "loaded": Loaded, "storages": Storages}
    options: dict[str, Any] = {"multiprocessing_context": words.method} if words.workers else {}
    dataset = kinds.get(words.kind, Files)(words.data)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=words.workers, **options)
    held_out = DataLoader(dataset, batch_size=8)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(words.epochs):
        for number, _batch in enumerate(loader, start=1):
            if number == words.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.zeros(1, 4)).sum().backward()
            time.sleep(words.step)
            optimizer.step()
            optimizer.zero_grad()
            if words.evaluate and number == 3:
                with torch.no_grad():
                    for _held in held_out:
                        time.sleep(words.step)
        if words.save:
            torch.save({"weights": torch.zeros(50_000)}, words.save)
    print("trained", file=sys.stderr)


if __name__ == "__main__":
    main()
