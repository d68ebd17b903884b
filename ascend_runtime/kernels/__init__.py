"""Triton kernels for Ascend, and the functions that launch them.

One source serves triton-ascend, Triton on a GPU and its interpreter on a CPU. Rules that all keep:
a launch has at most as many programs as the device has cores, each with a stride loop over the
tasks; at most 80 KiB of tiles are live; no 64-bit vector arithmetic; a masked load has `other`;
arithmetic is float32; only block shapes and mode flags are constexpr. Imported only when a kernel
is first wanted.
"""
