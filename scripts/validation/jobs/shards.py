"""A diffusion model on latents in tar shards, as WebDataset streams them: each worker its shards from their begin."""

from __future__ import annotations

import argparse
import io
import os
import tarfile
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset[torch.Tensor]):
    """The samples of all shards: their latents, and captions that nobody reads here."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        for path in paths:
            with open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    assert file is not None
                    data = file.read()
                    if member.name.endswith(".npy"):
                        yield torch.from_numpy(np.load(io.BytesIO(data)).astype(np.float32))


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data")
    asked.add_argument("--steps", type=int, required=True)
    asked.add_argument("--step-seconds", type=float, required=True, help="in place of a GPU")
    asked.add_argument("--batch", type=int, default=16)
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    words = asked.parse_args()
    loader = DataLoader(Shards(words.data), batch_size=words.batch, num_workers=words.workers, drop_last=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    began, step = time.perf_counter(), 0
    while step < words.steps:
        for _latents in loader:
            time.sleep(words.step_seconds)
            loss = model(torch.zeros(1, 1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == words.skip:
                began = time.perf_counter()
            if step == words.steps:
                break
    print(f"{(step - words.skip) * words.batch / (time.perf_counter() - began):.3f} samples/s")


if __name__ == "__main__":
    main()
