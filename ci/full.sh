#!/usr/bin/env bash
# The tests of ci/test.sh, and those marked slow.
set -euo pipefail
exec bash "$(dirname "$0")/test.sh" -o addopts="--strict-markers --strict-config -p no:asyncio" "$@"
