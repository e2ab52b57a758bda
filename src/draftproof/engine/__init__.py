"""The engine: one step, and what turns steps into text for many sequences at a time."""

from .engine import Engine
from .step import Round, step

__all__ = ["Engine", "Round", "step"]
