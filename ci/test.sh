#!/usr/bin/env bash
# Install what the tests need into a fresh virtual environment, then run lint, types and all tests.
# Arguments go to pytest. VENV names the environment's folder (default .venv-test); it is made anew.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv-test}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if ! command -v chromium >/dev/null || ! command -v git >/dev/null || ! command -v g++ >/dev/null; then
    as_root apt-get update -qq
    as_root apt-get install -y -qq --no-install-recommends chromium g++ git >/dev/null
fi

echo "== install"
python=$(command -v python3.11 || command -v python3)
rm -rf "$venv"
"$python" -m venv "$venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$venv/bin/pip" install -q -r ci/requirements.txt
"$venv/bin/pip" install -q -c ci/requirements.txt '.[test,lint]'

echo "== lint and types"
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"

# One process a core; a file's tests stay together, with what they share.
pytest=("$venv/bin/python" -m pytest -n auto --maxprocesses 4 --dist loadfile)

echo "== tests of the build"
"${pytest[@]}" tests/rewriter tests/transforms tests/runtime tests/wheel tests/cli "$@"

echo "== tests of the patched vLLM"
dist=$(mktemp -d)
trap 'rm -rf "$dist"' EXIT
"$venv/bin/python" scripts/build_patched_vllm.py --quiet --out "$dist" >/dev/null
PATCHED_WHEEL=$(echo "$dist"/vllm_ascend_patched-*.whl)
export PATCHED_WHEEL
"${pytest[@]}" tests/patched tests/upstream "$@"

echo "== whole models"
"${pytest[@]}" tests/e2e "$@"

echo "== tests of the kernels, in Triton's interpreter"
TRITON_INTERPRET=1 "${pytest[@]}" tests/kernels "$@"

echo "== kernels, compiled for Ascend"
"$venv/bin/python" -m zipfile -e "$PATCHED_WHEEL" "$dist/site"
"$venv/bin/python" ci/lower_for_ascend.py --edited "$dist/site"
