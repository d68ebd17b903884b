"""Gated delta nets: what their edited layers and metadata builders call."""

from ascend_runtime.gdn.chunks import GDNChunkMeta, build_chunk_metadata

__all__ = ["GDNChunkMeta", "build_chunk_metadata"]
