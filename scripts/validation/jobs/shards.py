"""Trains on latents in tar shards, as WebDataset streams them: each worker reads its shards from start to end."""

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
    """The latents of all shards; the captions between them are not used."""

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
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True, help="in place of a GPU")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    args = parser.parse_args()
    loader = DataLoader(Shards(args.data), batch_size=args.batch, num_workers=args.workers, drop_last=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start, step = time.perf_counter(), 0
    while step < args.steps:
        for _latents in loader:
            time.sleep(args.step_seconds)
            loss = model(torch.zeros(1, 1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.skip:
                start = time.perf_counter()
            if step == args.steps:
                break
    print(f"{(step - args.skip) * args.batch / (time.perf_counter() - start):.3f} samples/s")


if __name__ == "__main__":
    main()
