"""Beginning with what another drafter has learned: its weights, and the tokens that it can say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import TrainingError
from ..models.slim import is_slim, read_slim
from ..nets.eagle_files import read_eagle
from ..nets.medusa_files import read_medusa
from .recipe import Recipe


@dataclass(frozen=True)
class Beginning:
    """What a drafter's folder holds.

    Fields:
        folder: where.
        weights: by the names of the recipe's network, output rows in the order of `vocab`.
        vocab: int64 `[D]`: the tokens it drafts by the target's ids, ascending; None is all.
        made_of: what it is made of that no shape tells.
    """

    folder: Path
    weights: Mapping[str, Tensor]
    vocab: Tensor | None
    made_of: Mapping[str, object]

    def give(self, recipe: Recipe) -> None:
        """Set the recipe's trained weights.

        Raises:
            TrainingError: it is of another network; names the first difference.
        """
        for name, value in self.made_of.items():
            own = getattr(recipe.net.config, name)
            if own != value:
                raise TrainingError(f"{self.folder} has {name} = {value!r}, this run {own!r}: give the same")
        for name, parameter in recipe.net.named_parameters():
            if not parameter.requires_grad:
                continue
            found = self.weights.get(name)
            if found is None or found.shape != parameter.shape:
                what = "no such tensor" if found is None else f"shape {list(found.shape)}"
                raise TrainingError(
                    f"{self.folder} holds another network: {name} has shape {list(parameter.shape)} here, {what} there"
                )
            with torch.no_grad():
                parameter.copy_(found)


def beginning(kind: str, folder: Path, embedding: Tensor) -> Beginning:
    """Read a drafter, from a run of ours or from elsewhere.

    Args:
        kind: "distill", "medusa" or "eagle".
        embedding: the target's, for a draft model that shares it.

    Raises:
        TrainingError, ModelError: there is none of this kind.
    """
    if not (folder / "config.json").exists():
        raise TrainingError(
            f"{folder} holds no drafter to start from: name a finished one, or a run's best-STEP folder"
        )
    weights, ids, made_of = _READERS[kind](folder, embedding)
    if ids is not None:
        order = ids.argsort()
        weights = {name: tensor[order] if name.startswith("lm_head") else tensor for name, tensor in weights.items()}
        ids = ids[order]
    return Beginning(folder, weights, ids, made_of)


_Read = tuple[Mapping[str, Tensor], Tensor | None, Mapping[str, object]]


def _eagle(folder: Path, embedding: Tensor) -> _Read:
    found = read_eagle(folder)
    names = ("version", "feature_layers", "norm_before_residual", "norm_output", "norm_before_fc", "own_embedding")
    return found.tensors, found.target_ids(str(folder)), {name: getattr(found.config, name) for name in names}


def _medusa(folder: Path, embedding: Tensor) -> _Read:
    found = read_medusa(folder)
    return found.tensors, found.target_ids(str(folder)), {"shared_output": found.config.shared_output}


def _distill(folder: Path, embedding: Tensor) -> _Read:
    if not is_slim(folder):
        raise TrainingError(f"{folder} holds no distilled draft: begin with an ordinary model by --draft {folder}")
    model, ids = read_slim(folder, embedding)
    return dict(model.named_parameters()), ids, {}


_READERS: Mapping[str, Callable[[Path, Tensor], _Read]] = {"eagle": _eagle, "medusa": _medusa, "distill": _distill}
