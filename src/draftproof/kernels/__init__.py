"""Our own CPU kernels: C++ compiled once on the user's machine."""
