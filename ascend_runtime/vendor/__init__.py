"""Operators of Huawei's that do an operation exactly, each with a test of what it takes.

A function here is called only if the operator is loaded and its `_fits` says yes.
"""
