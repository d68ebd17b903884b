"""Plain torch definitions of the operations: what a CPU runs, and what tests compare with.

Arithmetic is float32 whatever the inputs are, and results are cast at the end. They take and give
back what the functions of vLLM 0.18.0 do that they stand for, in place where those work in place.
"""
