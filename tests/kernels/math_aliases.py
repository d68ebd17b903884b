"""What vLLM's fla kernels call `exp`, `log` and `log2`, as the interpreter can see it."""

import triton
import triton.language as tl


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def log2(x):
    return tl.log2(x)
