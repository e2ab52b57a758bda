"""Where a run stands: trained weights, the optimiser's moments and the loop's own numbers, in one safetensors file.

What is not in it follows from the run's settings and the step's number: the order of the texts, noise, learning rate.
So a run killed at any instant goes on from its last file to the same bits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TrainingError
from ..whole import remove_partials
from .files import read_tensors, write_tensors

_NAME = re.compile(r"step-(\d{8})\.safetensors")
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Checkpoints:
    """The files of one run; the two newest are kept."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def newest(self) -> int:
        """The step of the newest file; 0 where there is none."""
        return max((int(match[1]) for path in self._found() if (match := _NAME.fullmatch(path.name))), default=0)

    def save(self, step: int, net: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Raises: TrainingError: the disk is full or cannot be written; the files before are untouched."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in _trained(net).items():
            tensors[f"weight.{name}"] = parameter.detach().cpu()
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value.detach().cpu()
        write_tensors(self.folder / f"step-{step:08d}.safetensors", tensors, state)
        for old in self._found()[:-2]:
            old.unlink(missing_ok=True)

    def load(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Set network and optimiser to the newest file and return the loop's numbers; None where there is none.

        Raises:
            TrainingError: the file does not fit the network.
        """
        remove_partials(self.folder)
        if not (found := self._found()):
            return None
        tensors, state = read_tensors(found[-1])
        trained = _trained(net)
        for name, parameter in trained.items():
            stored = tensors.get(f"weight.{name}")
            if stored is None or stored.shape != parameter.shape:
                raise TrainingError(f"{found[-1]} holds another network (see {name}): train into a new folder")
            with torch.no_grad():
                parameter.copy_(stored)
            moments = {key: tensors[f"{key}.{name}"] for key in _MOMENTS if f"{key}.{name}" in tensors}
            if moments:
                moved = {key: value.to(parameter.device) for key, value in moments.items()}
                optimizer.state[parameter] = {"step": tensors[f"step.{name}"], **moved}
        return state

    def _found(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*.safetensors") if _NAME.fullmatch(path.name))


def _trained(net: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
