"""Our own CPU kernels: products of a few rows and attention of a few queries, compiled on the user's machine."""
