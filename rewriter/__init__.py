"""Edits vLLM's sources for Ascend NPUs and packs the result as wheels and patches."""

__version__ = "0.1.0"
