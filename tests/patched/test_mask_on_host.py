"""The mask of multimodal tokens stays on the host, and merging waits for no device."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from patched_kit import HERE, npu_scene
from source_scan import functions

#: Models that look for their token ids, and copy these to the mask.
OMNI = {
    "qwen2_5_omni",
    "qwen2_5_omni, interleaved",
    "qwen3_omni",
    "qwen3_omni, interleaved",
}
#: Functions that do more with a mask than to hand it on: of the host, or copied beside the ids.
READERS = {
    "interfaces.py:SupportsMultiModal._embed_text_input_ids",
    "kimi_audio.py:KimiAudioForConditionalGeneration.embed_input_ids",
    "qwen2_5_omni_thinker.py:Qwen2_5OmniThinkerForConditionalGeneration.embed_input_ids",
    "qwen2_5_omni_thinker.py:merge_interleaved_embeddings",
    "qwen3_omni_moe_thinker.py:Qwen3OmniMoeThinkerForConditionalGeneration.embed_input_ids",
    "utils.py:_merge_multimodal_embeddings",
}


@pytest.fixture(scope="module")
def found() -> dict[str, dict]:
    """What all scenes tell of the edited tree."""
    return npu_scene("npu_mask_scenes.py", "edited")


@pytest.fixture(scope="module")
def wanted(found: dict[str, dict]) -> dict[str, list]:
    """The right values of each model, made one position after the other."""
    return found["wanted"]


def test_values_on_the_host(found, wanted) -> None:
    assert found["on_host"] == wanted
    assert len(wanted) == 15


def test_values_are_upstreams(wanted, base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(base.root)]))
    assert npu_scene("npu_mask_scenes.py", "on_host") == wanted


def test_nothing_waits_but_for_the_token_ids_of_omni_models(found, wanted) -> None:
    answers = found["on_device"]
    assert {name: values for name, (_, values, _) in answers.items()} == wanted
    assert {device for device, _, _ in answers.values()} == {"npu"}
    waits = {name: waits for name, (_, _, waits) in answers.items()}
    assert waits == {name: ["_to_copy"] if name in OMNI else [] for name in wanted}


def test_masks_on_the_device_still_do_and_wait(found, wanted) -> None:
    answers = found["mask_on_device"]
    assert {name: values for name, (values, _) in answers.items()} == wanted
    assert all(waits for _, waits in answers.values())  # so the watch sees them
    assert len(answers["qwen3_omni, interleaved"][1]) > 10


def test_first_runner_makes_a_mask_for_each_step(found) -> None:
    hole, sound = ["npu", [0, 4]], ["npu", [10, 14]]
    assert found["first_runner"] == {
        "first": [
            "cpu",
            True,
            [0, 1, 1, 1, 1, 0, 1, 1, 1, 0],
            [hole, sound, ["npu", [32, 36, 40]]],
        ],
        "draft": ["cpu", True, [1, 1, 1, 1, 0, 0, 1, 1, 0, 0], [hole, sound, ["npu", [36, 40]]]],
        "fresh": True,
        "waits": [],
    }


def test_second_runner_makes_a_mask_for_each_step(found) -> None:
    values = [["npu", [0, 4]], ["npu", [32, 36, 40]]]
    assert found["second_runner"] == {
        "step": ["cpu", True, [0, 1, 0, 0, 1, 0, 1, 1, 1, 0], values],
        "fresh": True,
        "decodes": [[], "npu", 0],
        "waits": [],
    }


def test_copies_by_name_are_the_edited_function(found) -> None:
    assert len(found["copies"]) == 10
    assert all(found["copies"].values())


def test_steps_without_embeddings_are_text(found, wanted) -> None:
    """The monkey-patch raised for them in models that do not look whether there are any."""
    text = [[1 / 8] * 4, [2 / 8] * 4, [3 / 8] * 4]
    assert found["decode"] == {name: [text, None] for name in wanted}


def hands_on(node: ast.AST) -> bool:
    """Whether a node gives a mask to another function as it is, or asks whether there is one."""
    match node:
        case ast.keyword(arg="is_multimodal") | ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return True
        case ast.Return() if node.value and ast.unparse(node.value) == "is_multimodal":
            return True
        case ast.Call(func=ast.Name(id="_require_is_multimodal" | "merge_interleaved_embeddings")):
            return True
    return False


def readers(root: Path) -> set[str]:
    """The functions of models that take a mask and do more than to hand it on."""
    found = set()
    for file, scope, function in functions(root / "vllm/model_executor/models", ("is_multimodal",)):
        parameters = [*function.args.args, *function.args.kwonlyargs]
        if "is_multimodal" not in [p.arg for p in parameters]:
            continue
        for node in ast.walk(function):
            for child in ast.iter_child_nodes(node):
                match child:
                    case ast.Name(id="is_multimodal", ctx=ast.Load()) if not hands_on(node):
                        found.add(f"{file}:{scope}")
    return found


def test_each_reader_of_the_mask_is_known(installed) -> None:
    assert readers(installed.site) == READERS


def test_workers_give_the_mask_to_models_alone(installed) -> None:
    """No metadata, buffer, micro-batch or other rank has it; speculators give it to theirs."""
    given = set()
    for file, scope, function in functions(installed.site / "vllm/v1", ("is_mm_embed",)):
        for node in ast.walk(function):
            for child in ast.iter_child_nodes(node):
                match child:
                    case ast.Name(id="is_mm_embed", ctx=ast.Load()):
                        given.add((file, scope.rpartition(".")[2], ast.unparse(node)))
    slices = {use for use in given if "gather_mm_embeddings" in use[1]}
    assert given - slices == {
        ("spec_decode/eagle.py", "propose", "is_multimodal=is_mm_embed"),
        ("worker/gpu/mm/encoder_runner.py", "get_inputs_embeds", "is_multimodal=is_mm_embed"),
        (
            "worker/gpu/model_states/default.py",
            "get_mm_embeddings",
            "self.encoder_runner.get_inputs_embeds(input_ids_unpadded, mm_embeds, is_mm_embed)",
        ),
        ("worker/gpu_model_runner.py", "_preprocess", "is_multimodal=is_mm_embed"),
    }
    places = {text.partition("[")[0] for _, _, text in slices}
    assert places == {"is_mm_embed", "(mm_embeds, is_mm_embed)"}  # written there, and returned


def test_buffers_are_gone(installed) -> None:
    for path in (installed.site / "vllm").rglob("*.py"):
        assert "is_mm_embed_buf" not in path.read_text("utf-8"), path
