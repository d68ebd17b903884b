"""Compiling Triton kernels for Ascend without an NPU."""
