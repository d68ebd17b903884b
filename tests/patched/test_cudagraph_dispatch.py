"""W20: 0.18.0 dispatches as the monkey-patch did, for every mode, so nothing is edited."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from vllm.config import CUDAGraphMode
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

MODES = [
    CUDAGraphMode.NONE,
    CUDAGraphMode.PIECEWISE,
    CUDAGraphMode.FULL,
    CUDAGraphMode.FULL_DECODE_ONLY,
    CUDAGraphMode.FULL_AND_PIECEWISE,
]
CASES = list(itertools.product(MODES, (1, 2, 3, 4), (1, 3, 8, 64)))


class Stricter(CudagraphDispatcher):
    """Uniform only where decodes have graphs of their own, whoever asks: the patch's condition."""

    def _create_padded_batch_descriptor(self, num_tokens, uniform_decode, *rest):
        uniform = uniform_decode and self.cudagraph_mode != CUDAGraphMode.FULL
        return super()._create_padded_batch_descriptor(num_tokens, uniform, *rest)


def dispatcher(
    cls: type, mode: CUDAGraphMode, query_len: int, max_num_seqs: int
) -> CudagraphDispatcher:
    sizes = [query_len * n for n in (1, 2, 4, 8)]
    compilation = SimpleNamespace(
        cudagraph_mode=mode,
        is_attention_compiled_piecewise=lambda: True,
        max_cudagraph_capture_size=sizes[-1],
        cudagraph_capture_sizes=sizes,
        compile_sizes=[],
    )
    speculative = SimpleNamespace(num_speculative_tokens=query_len - 1) if query_len > 1 else None
    made = cls(
        SimpleNamespace(
            compilation_config=compilation,
            speculative_config=speculative,
            lora_config=None,
            scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        )
    )
    made.initialize_cudagraph_keys(mode, query_len)
    return made


def test_there_are_eighty_cases() -> None:
    assert len(CASES) == 80


@pytest.mark.parametrize(("mode", "query_len", "max_num_seqs"), CASES)
def test_keys_and_dispatch_are_the_same(mode, query_len: int, max_num_seqs: int) -> None:
    ours, stricter = (
        dispatcher(cls, mode, query_len, max_num_seqs) for cls in (CudagraphDispatcher, Stricter)
    )
    assert ours.cudagraph_keys == stricter.cudagraph_keys
    for tokens, uniform in itertools.product(range(1, query_len * 8 + 2), (False, True)):
        if uniform and tokens % query_len:
            continue
        assert ours.dispatch(tokens, uniform) == stricter.dispatch(tokens, uniform)


def test_uniform_decodes_find_the_graphs_of_full_mode() -> None:
    full = dispatcher(CudagraphDispatcher, CUDAGraphMode.FULL, 3, 4)
    mode, batch = full.dispatch(4 * 3, uniform_decode=True)
    assert mode is CUDAGraphMode.FULL
    assert (batch.num_tokens, batch.uniform) == (12, False)
    assert batch in full.cudagraph_keys[CUDAGraphMode.FULL]


def test_transform_says_that_upstream_has_it(installed) -> None:
    (entry,) = (t for t in installed.report["transforms"] if t["id"] == "full_graph_dispatch")
    assert entry["outcome"] == "already-upstream"
