"""Tests of whether tokens follow a law, each with what it could have seen; NumPy and SciPy, no model."""
