"""Measurements: what a pass costs, what a drafter gains, and where a round's time goes. Prints nothing."""
