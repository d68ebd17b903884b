"""No other code of vLLM has a defect that a worker row mends; what is like it is declared here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

#: What is sorted on a device, in the functions that sort tensors.
SORTED = {
    "lora/ops/triton_ops/lora_kernel_metadata.py:token_lora_mapping": "int32, on the CPU",
    "model_executor/kernels/linear/mixed_precision/exllama.py:x": "int32 group indices",
    "model_executor/kernels/linear/mixed_precision/machete.py:getattr(layer, self.w_gidx_name)": (
        "int32 group indices"
    ),
    "model_executor/layers/fused_moe/cpu_fused_moe.py:topk_ids.view(-1)": "int, on the CPU",
    "model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe.py"
    ":layer.w13_weight_g_idx[e]": "int32 group indices",
    "model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe.py"
    ":layer.w2_weight_g_idx[e]": "int32 group indices",
    "model_executor/layers/quantization/gptq.py:layer.g_idx": "int32 group indices",
    "model_executor/layers/quantization/gptq_marlin.py:layer.w13_g_idx[e]": "int32 group indices",
    "model_executor/layers/quantization/gptq_marlin.py:layer.w2_g_idx[e]": "int32 group indices",
    "model_executor/layers/quantization/utils/marlin_utils.py:g_idx": "int32 group indices",
    "model_executor/layers/quantization/utils/quant_utils.py:g_idx": "int32 group indices",
    "model_executor/models/molmo.py:valid_img_idx": "positions in a prompt",
    "model_executor/models/openpangu_vl.py:window_index": "indices of windows",
    "model_executor/models/siglip2navit.py:window_index": "indices of windows",
    "multimodal/evs.py:dissimilarity_flat": "floats",
    "v1/attention/backends/gdn_attn.py:spec_token_masks.to(torch.int32)": "worker/7",
    "v1/sample/ops/topk_topp_sampler.py:logits": "floats",
}
#: Calls that name `add_special_tokens` and pass on keywords that cannot hold it.
SPECIAL_TOKENS = {
    "tokenizers/deepseek_v32.py:self.encode": "they are picked: truncation and max_length",
}
#: Tokenizers that are called with another keyword beside those of a request.
TOKENIZERS = {
    "entrypoints/pooling/score/utils.py:text,text_pair": "options have no text",
    "entrypoints/pooling/score/utils.py:text": "options have no text",
    "model_executor/models/colmodernvbert.py:return_tensors": "not an option of a request",
    "model_executor/models/interns1.py:return_tensors": "not an option of a request",
}


def nodes(root: Path, *words: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node of the files below vllm/ that have one of the words, with its file."""
    for path in sorted((root / "vllm").rglob("*.py")):
        text = path.read_text("utf-8")
        if any(word in text for word in words):
            for node in ast.walk(ast.parse(text)):
                yield path.relative_to(root / "vllm").as_posix(), node


def keywords(call: ast.Call) -> tuple[list[str], list[ast.expr]]:
    """The names that a call gives, and the mappings that it takes names from."""
    names = [k.arg for k in call.keywords if k.arg]
    return names, [k.value for k in call.keywords if not k.arg]


def sorted_tensors(root: Path) -> set[str]:
    """What `argsort` and `sort` of torch are given; lists sort by key, and numpy is not meant."""
    found = set()
    for file, node in nodes(root, "sort("):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="argsort" | "sort" | "msort")):
                module = ast.unparse(owner)
                options = {k.arg for k in node.keywords} & {"dim", "descending", "stable"}
                if module == "torch":
                    found.add(f"{file}:{ast.unparse(node.args[0])}")
                elif module not in ("np", "numpy") and (node.func.attr == "argsort" or options):
                    found.add(f"{file}:{module}")
    return found


def test_no_bool_reaches_a_sort(installed, base) -> None:
    assert sorted_tensors(installed.site) == set(SORTED)
    assert sorted_tensors(base.root) - set(SORTED) == {
        "v1/attention/backends/gdn_attn.py:spec_token_masks"
    }


def special_tokens(root: Path) -> set[str]:
    found = set()
    for file, node in nodes(root, "add_special_tokens"):
        if isinstance(node, ast.Call):
            names, mappings = keywords(node)
            if "add_special_tokens" in names and mappings:
                found.add(f"{file}:{ast.unparse(node.func)}")
    return found


def test_no_call_can_have_the_option_twice(installed, base) -> None:
    assert special_tokens(installed.site) == set(SPECIAL_TOKENS)
    assert special_tokens(base.root) - set(SPECIAL_TOKENS) == {
        "model_executor/models/nemotron_parse.py:self.tokenizer",
        "transformers_utils/processors/hunyuan_vl.py:self.tokenizer",
    }


def test_other_options_of_tokenizers_are_declared(installed) -> None:
    found = set()
    for file, node in nodes(installed.site, "tokenizer("):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tokenizer", "self.tokenizer"):
            names, mappings = keywords(node)
            if names and mappings:
                found.add(f"{file}:{','.join(names)}")
    assert found == set(TOKENIZERS)


def scatters(root: Path) -> list[str]:
    return [
        file
        for file, node in nodes(root, "masked_scatter")
        if isinstance(node, ast.Attribute) and node.attr.startswith("masked_scatter")
    ]


def test_nothing_is_scattered_by_a_mask(installed, base) -> None:
    assert scatters(base.root) == ["model_executor/models/utils.py"]
    assert scatters(installed.site) == []


@pytest.mark.parametrize("name", ["bert", "roberta", "ernie"])
def test_only_numbers_are_shifted(installed, name: str) -> None:
    """The asserts on vocabularies shift the number 1, and so do the functions now."""
    file = installed.site / f"vllm/model_executor/models/{name}.py"
    shifts = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.RShift)
    ]
    assert set(shifts) == {"1 << TOKEN_TYPE_SHIFT"}


def test_no_other_chain_of_platforms_refuses_the_rest(installed) -> None:
    found = {}
    for file, node in nodes(installed.site, "is_cuda_alike()"):
        match node:
            case ast.If(test=test, orelse=[ast.Raise()]) if "is_cuda_alike()" in ast.unparse(test):
                found[file] = "is_out_of_tree()" in ast.unparse(test)
    assert found == {"v1/worker/utils.py": True}
