"""Tiny models are fastest on one thread, and one thread does not wait for a busy neighbour."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

torch.set_num_threads(1)
