"""A segmentation of volumes in npz files, as in MLPerf's 3D U-Net: each is loaded whole, and a crop of it is used."""

from __future__ import annotations

import argparse
import os
import random
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

CROP = 48


class Volumes(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A crop of each volume at random, flipped, with a little noise."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        case = np.load(self.paths[index])
        volume, labels = case["x"], case["y"]
        corner = [random.randint(0, side - CROP) for side in volume.shape]
        place = tuple(slice(at, at + CROP) for at in corner)
        volume, labels = volume[place], labels[place]
        for axis in range(3):
            if random.random() < 0.5:
                volume, labels = np.flip(volume, axis), np.flip(labels, axis)
        volume = volume + np.random.normal(0, 0.1, volume.shape).astype(np.float32)
        return torch.from_numpy(volume), torch.from_numpy(labels.copy())


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data")
    asked.add_argument("--steps", type=int, required=True)
    asked.add_argument("--step-seconds", type=float, required=True, help="in place of a GPU")
    asked.add_argument("--batch", type=int, default=4)
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    words = asked.parse_args()
    loader = DataLoader(
        Volumes(words.data), batch_size=words.batch, shuffle=True, num_workers=words.workers, drop_last=True
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began, step = time.perf_counter(), 0
    while step < words.steps:
        for _volume, _labels in loader:
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
