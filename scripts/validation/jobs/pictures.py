"""A classifier on class folders of JPEGs, as with torchvision's ImageFolder; with --train its small ResNet computes."""

from __future__ import annotations

import argparse
import os
import random
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 224


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Pictures in folders that name their class: cropped at random, scaled, flipped."""

    def __init__(self, root: str) -> None:
        kinds = sorted(os.listdir(root))
        self.samples = [
            (os.path.join(root, kind, name), label)
            for label, kind in enumerate(kinds)
            for name in sorted(os.listdir(os.path.join(root, kind)))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            picture = Image.open(file).convert("RGB")
        side = int(min(picture.size) * random.uniform(0.5, 1.0))
        left, top = random.randint(0, picture.width - side), random.randint(0, picture.height - side)
        picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        pixels = np.asarray(picture)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), label


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data")
    asked.add_argument("--steps", type=int, required=True)
    asked.add_argument("--step-seconds", type=float, default=0.0, help="in place of a GPU")
    asked.add_argument("--batch", type=int, default=16)
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--train", action="store_true")
    asked.add_argument("--skip", type=int, default=0, help="steps before the clock starts")
    words = asked.parse_args()
    loader: DataLoader[Any] = DataLoader(
        Pictures(words.data), batch_size=words.batch, shuffle=True, num_workers=words.workers, drop_last=True
    )
    layers = [nn.Conv2d(3, 16, 7, 4, 3), Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(64, 1000)) if words.train else nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.set_num_threads(1)
    began, step = time.perf_counter(), 0
    while step < words.steps:
        for pixels, labels in loader:
            if words.train:
                loss = nn.functional.cross_entropy(model(pixels.float().div_(255)), labels)
            else:
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
