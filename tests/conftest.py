"""Tiny models are fastest on one thread, and one thread does not wait for a busy neighbour."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch

torch.set_num_threads(1)
