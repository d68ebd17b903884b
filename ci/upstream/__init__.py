"""Runs vLLM's own tests on the pristine and on the patched tree; see ci/upstream_tests.py."""
