"""Several ranks: the tokens are those of one."""

from __future__ import annotations

import pytest
from e2e_kit import TEXTS, Ground, Run, by_transformers, prompts

COUNT = 12
SEQUENCES = 3
#: A rank with so many requests has the others wait.
FULL = SEQUENCES - 1


@pytest.mark.parametrize(
    ("device", "v2"),
    [
        ("npu", True),
        pytest.param("npu", False, marks=pytest.mark.slow),
        pytest.param("cpu", False, marks=pytest.mark.slow),
        pytest.param("cpu", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("family", [pytest.param("qwen3", marks=pytest.mark.slow), "qwen3_moe"])
def test_tensor_parallel(e2e: Ground, family: str, device: str, v2: bool) -> None:
    folder = e2e.model(family)
    run = Run(folder, prompts(folder), {"tensor_parallel_size": 2}, {"max_tokens": COUNT})
    (result,) = e2e.generate(run, device=device, v2=v2)
    assert result["tokens"] == by_transformers(folder, run.prompts, COUNT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "balanced"), [("cpu", True), ("cpu", False), ("npu", True), ("npu", False)]
)
def test_data_parallel(e2e: Ground, device: str, balanced: bool) -> None:
    """One rank has much to do, the other little.

    Balanced, no rank admits a request while one is full, or full but for one.
    """
    folder = e2e.model("qwen3_moe")
    asked = prompts(folder, [*TEXTS, "hello"] * 2)
    shares = [asked[:8], asked[8:]]
    counts = [[4 + 3 * i for i in range(len(share))] for share in shares]
    job = {
        "folder": str(folder),
        "prompts": shares,
        "options": {"max_num_seqs": SEQUENCES},
        "sampling": [[{"max_tokens": count} for count in share] for share in counts],
    }
    ranks = e2e.scene(
        "data_parallel_scene.py",
        job,
        device,
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        VLLM_ASCEND_BALANCE_SCHEDULING=str(int(balanced)),
    )
    for share, lengths, rank in zip(shares, counts, ranks, strict=True):
        wanted = by_transformers(folder, share, max(lengths))
        cut = [tokens[:length] for tokens, length in zip(wanted, lengths, strict=True)]
        assert rank["tokens"] == cut
        assert sum(admitted for _, _, admitted in rank["steps"]) == len(share)
    if not balanced:
        steps = [step for rank in ranks for step in rank["steps"]]
        assert all(known is None for known, _, _ in steps)
        assert any(admitted and running - admitted >= FULL for _, running, admitted in steps)
        return
    for number, rank in enumerate(ranks):
        for known, running, admitted in rank["steps"]:
            assert known[number] == running - admitted, "what ran before this step"
            assert not (admitted and max(known) >= FULL)
        assert any(known[1 - number] for known, _, _ in rank["steps"])
