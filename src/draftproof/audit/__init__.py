"""Is it lossless? Checks that anyone can run, on any engine."""
