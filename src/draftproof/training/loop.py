"""The loop all recipes go through: teacher, loss, optimiser, measures, checkpoints; exactly resumable.

A step takes `accumulate` batches; its gradient is that of the mean loss over all their supervised tokens, whatever the
batches are cut into and however many devices share them. Batches without a supervised token add nothing, and a step of
such batches changes nothing. Steps whose gradient is not finite are left out; where they pile up, or the loss grows far
above what it was, the run stops, and its last checkpoint is good.
"""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ..errors import OptionError, TrainingError
from .batch import Batch, Packing
from .checkpoint import Checkpoints
from .corpus import Sample
from .evaluate import Measured, measure
from .log import Log
from .losses import Divergence, divergence
from .recipe import Recipe
from .settings import Settings
from .teacher import Lesson

_ROWS = 256  # rows of draft logits at a time
_MOST_BAD = 3  # steps in a row whose gradient is not finite


class LessonSource(Protocol):
    """A teacher, at work or from what it stored."""

    def lesson(self, batch: Batch, samples: Sequence[Sample]) -> Lesson: ...


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for people. Seconds are this process's; tokens are those of the texts."""

    step: int
    num_steps: int
    tokens: int
    tokens_per_second: float
    seconds_left: float
    loss: float
    teacher_share: float
    measured: Measured | None = None


@dataclass(frozen=True)
class Finished:
    """How a run ended: the folder of its best drafter, what was measured of it, and why it stopped."""

    best: Path
    measured: dict[str, Any]
    steps: int
    reason: str


class Loop:
    """See the module.

    Args:
        recipe: what is trained.
        source: lessons for batches.
        training, held_out: the texts.
        settings: how.
        folder: the run's: checkpoints/, best-STEP/ and the log.
        about: what a written drafter says about itself.
        report: called after every logged step and every measure.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: LessonSource,
        training: Sequence[Sample],
        held_out: Sequence[Sample],
        settings: Settings,
        folder: Path,
        about: dict[str, Any],
        report: Callable[[Progress], None] | None = None,
    ):
        self.recipe, self.source, self.settings, self.folder = recipe, source, settings, folder
        self._training, self._held_out, self._about = training, held_out, about
        self._report = report or (lambda progress: None)
        self._devices = processes(recipe.net)
        if settings.accumulate % self._devices.num_processes:
            raise OptionError(
                f"accumulate must be a multiple of the {self._devices.num_processes} processes that share a step's "
                f"batches, not {settings.accumulate}"
            )
        parameters = [p for p in recipe.net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
        self._parameters = parameters
        self._loss: Divergence = divergence(settings.loss, settings.eta)
        self._checkpoints = Checkpoints(folder / "checkpoints")
        self._epochs = [self._packing(epoch) for epoch in range(settings.epochs)]
        self._ends = torch.tensor([len(packing) for packing in self._epochs]).cumsum(0).tolist()
        most = -(-self._ends[-1] // settings.accumulate)
        self.num_steps = min(most, settings.max_steps or most)

    @property
    def begun(self) -> int:
        """The step that `run` goes on from."""
        return self._checkpoints.newest

    def run(self) -> Finished:
        """Train from the last checkpoint, or from the start, to the end.

        Raises:
            TrainingError: the gradients or the loss went astray, or the disk is full.
        """
        settings = self.settings
        state = self._checkpoints.load(self.recipe.net, self.optimizer) or {
            "step": 0, "tokens": 0, "supervised": 0, "skipped": 0, "seconds": 0.0, "best": None, "worse": 0, "bad": 0,
            "loss": None, "lowest": None, "log": [],
        }  # fmt: skip
        log = Log(self.folder, state["log"])
        before, spent = state["seconds"], {"teacher": 0.0, "tokens": 0}
        if not state["step"] and state["best"] is None:
            self._judge(state, log, spent)
            self._save(state, log)
        began = time.perf_counter()
        reason = "done"
        while state["step"] < self.num_steps:
            if settings.patience and state["worse"] >= settings.patience:
                reason = f"no better measure in {settings.patience}"
                break
            row = self._step(state, spent)
            step = state["step"]
            state["seconds"] = before + time.perf_counter() - began
            if step % settings.log_every == 0 or step == self.num_steps:
                log.add({**row, "seconds": round(state["seconds"], 1)})
                self._report(self._progress(state, spent, began))
            measured = step % settings.eval_every == 0 or step == self.num_steps
            if measured:
                self._judge(state, log, spent, began)
            if measured or step % settings.save_every == 0:
                self._save(state, log)
        self._tidy(state, log)  # a run killed as it had saved its last step has nothing else left to do
        best = state["best"]
        return Finished(self.folder / best["folder"], best["measured"], state["step"], reason)

    def _step(self, state: dict[str, Any], spent: dict[str, float]) -> dict[str, Any]:
        """One step of the optimiser; returns its line of the log."""
        settings, step = self.settings, state["step"]
        first = step * settings.accumulate
        numbers = range(first, min(first + settings.accumulate, self._ends[-1]))
        batches = {number: self._batch(number) for number in numbers}
        num_supervised = sum(int(batch.supervised.sum()) for batch, _ in batches.values())
        rate = self._rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, norm = 0.0, 0.0
        if num_supervised:
            own = [n for n in numbers if n % self._devices.num_processes == self._devices.process_index]
            loss = sum(self._learn(n, *batches[n], num_supervised, spent) for n in own)
            loss, norm = self._share(loss)
        else:
            state["skipped"] += 1
        tokens = sum(batch.num_tokens for batch, _ in batches.values())
        spent["tokens"] += tokens
        state.update(step=step + 1, tokens=state["tokens"] + tokens, supervised=state["supervised"] + num_supervised)
        if num_supervised:
            self._update(state, loss, norm)
        return {
            "step": step + 1,
            "tokens": state["tokens"],
            "supervised": state["supervised"],
            "loss": round(loss, 5),
            "lr": rate,
            "grad_norm": round(norm, 5),
            "skipped": state["skipped"],
        }

    def _learn(
        self, number: int, batch: Batch, samples: Sequence[Sample], num_supervised: int, spent: dict[str, float]
    ) -> float:
        """Add one batch's share of the step's gradient; returns its share of the loss.

        The output layer and the loss go a few rows at a time, their gradient taken at once, so that logits over the
        whole vocabulary never pile up; the network itself is then gone through backwards once.
        """
        if not bool(batch.supervised.any()):
            return 0.0
        recipe, settings = self.recipe, self.settings
        started = time.perf_counter()
        lesson = self.source.lesson(batch, samples)
        spent["teacher"] += time.perf_counter() - started
        whole = num_supervised * sum(recipe.weights)
        loss, roots, gradients = 0.0, [], []
        with self._context():
            steps = list(recipe.steps(lesson, len(recipe.weights), seed=settings.seed * 7_919 + number))
        for step, (said, weight) in enumerate(zip(steps, recipe.weights)):
            rows = batch.rows(step)
            if not len(rows):
                continue
            gradient = torch.empty_like(said.hidden)
            for start in range(0, len(rows), _ROWS):
                part = slice(start, start + _ROWS)
                leaf = said.hidden[part].detach().requires_grad_()
                with self._context():
                    logits = recipe.logits(leaf, step)
                p, log_q = lesson.law_at(rows[part]).pair(logits.float() / settings.temperature)
                share = self._loss(p, log_q).sum() * (weight * recipe.ce_weight / whole)
                share.backward()
                assert leaf.grad is not None
                gradient[part] = leaf.grad
                loss += float(share.detach())
            roots.append(said.hidden)
            gradients.append(gradient)
            if said.extra is not None:
                extra = said.extra.sum() * (weight / whole)
                roots.append(extra)
                gradients.append(torch.ones_like(extra))
                loss += float(extra.detach())
        torch.autograd.backward(roots, gradients)
        return loss

    def _share(self, loss: float) -> tuple[float, float]:
        """Sum loss and gradients over the devices; cut the gradient. Returns the loss and the gradient's norm."""
        if self._devices.num_processes > 1:
            from accelerate.utils import reduce

            for parameter in self._parameters:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = reduce(gradient, "sum")
            loss = float(reduce(torch.tensor(loss, dtype=torch.float64, device=self._devices.device), "sum"))
        return loss, float(torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.clip))

    def _update(self, state: dict[str, Any], loss: float, norm: float) -> None:
        """Move the weights, unless the step is no good; stop a run that went astray."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            state["bad"] = 0
            state["loss"] = loss if state["loss"] is None else 0.95 * state["loss"] + 0.05 * loss
            state["lowest"] = min(state["loss"], state["lowest"] if state["lowest"] is not None else math.inf)
        else:
            state["bad"] += 1
            state["skipped"] += 1
        self.optimizer.zero_grad(set_to_none=True)
        astray = state["lowest"] is not None and state["loss"] > 4 * state["lowest"] + 1
        if state["bad"] >= _MOST_BAD or astray:
            what = (
                f"the loss rose to {state['loss']:.3g} from {state['lowest']:.3g}" if astray else "no finite gradient"
            )
            raise TrainingError(
                f"stopped at step {state['step']}: {what}. The last good checkpoint and the best drafter are kept in "
                f"{self.folder}; lower --lr or --clip and train into a new folder, with --start-from {self.folder}"
            )

    def _judge(self, state: dict[str, Any], log: Log, spent: dict[str, float], began: float | None = None) -> None:
        """Measure on held-out text; keep the drafter if it is the best so far."""
        recipe, settings = self.recipe, self.settings
        mode = recipe.net.training
        recipe.net.eval()
        measured = measure(
            recipe, self._lessons(), settings.depth, self._loss, temperature=settings.temperature, context=self._context
        )
        recipe.net.train(mode)
        found, best = measured.to_dict(), state["best"]
        log.add({"step": state["step"], "tokens": state["tokens"], "supervised": state["supervised"]}, measured)
        if best is None or measured.greedy.length > best["length"]:
            name = f"best-{state['step']:08d}"
            state["best"] = {"folder": name, "step": state["step"], "length": measured.greedy.length, "measured": found}
            state["worse"] = 0
            if self._devices.is_main_process:
                _remove(self.folder / name)
                recipe.write(self.folder / name, {**self._about, "measured": found, "ranks": measured.ranks})
        else:
            state["worse"] += 1
        self._report(self._progress(state, spent, began, measured))

    def _save(self, state: dict[str, Any], log: Log) -> None:
        state["log"] = log.rows
        if self._devices.is_main_process:
            self._checkpoints.save(state["step"], self.recipe.net, self.optimizer, state)
        self._tidy(state, log)

    def _tidy(self, state: dict[str, Any], log: Log) -> None:
        """What lies beside the newest checkpoint says the same as it."""
        if not self._devices.is_main_process:
            return
        log.write()
        for path in self.folder.glob("best-*"):
            if path.name != state["best"]["folder"]:
                _remove(path)

    def _progress(
        self, state: dict[str, Any], spent: dict[str, float], began: float | None, measured: Measured | None = None
    ) -> Progress:
        seconds = max(1e-9, time.perf_counter() - began) if began is not None else 1e-9
        per_second = spent["tokens"] / seconds if began is not None else 0.0
        left = (self.num_steps - state["step"]) * state["tokens"] / max(1, state["step"])
        return Progress(
            state["step"],
            self.num_steps,
            state["tokens"],
            per_second,
            left / per_second if per_second else math.nan,
            state["loss"] if state["loss"] is not None else math.nan,
            spent["teacher"] / seconds if began is not None else 0.0,
            measured,
        )

    def _packing(self, epoch: int) -> Packing:
        return Packing(self._training, self.settings.length, self.settings.rows, self.settings.seed, epoch)

    def _batch(self, number: int) -> tuple[Batch, list[Sample]]:
        epoch = next(i for i, end in enumerate(self._ends) if number < end)
        packing, at = self._epochs[epoch], number - (self._ends[epoch - 1] if epoch else 0)
        samples = [self._training[i] for i in packing.members(at)]
        seed = self.settings.seed * 104_729 + number
        if random.Random(seed).random() < self.settings.on_policy:
            with self._context():
                samples = self.recipe.rollout(samples, seed) or samples
            return packing.filled(at, samples), samples
        return packing[at], samples

    def _lessons(self) -> Iterator[Lesson]:
        packing = Packing(self._held_out, self.settings.length, self.settings.rows, 0, 0)
        for number in range(len(packing)):
            samples = [self._held_out[i] for i in packing.members(number)]
            yield self.source.lesson(packing[number], samples)

    def _rate(self, step: int) -> float:
        """Warm-up, then a cosine."""
        settings = self.settings
        warm = max(1, round(settings.warmup * self.num_steps))
        if step < warm:
            return settings.lr * (step + 1) / warm
        done = (step - warm) / max(1, self.num_steps - warm)
        return settings.lr * (settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * done)))

    def _context(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "fp32":
            return nullcontext()
        return torch.autocast(next(self.recipe.net.parameters()).device.type, dtype=torch.bfloat16)


def processes(net: torch.nn.Module) -> Any:
    """The processes that share a run (`accelerate launch`); one by itself is the usual case."""
    from accelerate import PartialState

    return PartialState(cpu=next(net.parameters()).device.type == "cpu")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
