#!/usr/bin/env bash
# Installs what the locks pin, and the project itself, into .venv; called by `make setup`.
#
# Does nothing when the locks, pyproject.toml and this script are those of the last time. Works
# with the pip that comes with Python 3.11. TORCH_INDEX_URL says where to take torch from (a
# CPU-only build of the same version, say); PYTHON which interpreter makes .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly stamp=.venv/setup.sha256
# Ray has no wheels for Python 3.15 yet.
readonly is_supported='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'

fingerprint() {
  cat requirements.lock requirements-torch.lock pyproject.toml tools/setup.sh | sha256sum
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    if "$candidate" -c "$is_supported" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup: Python 3.11 to 3.14 is needed, found none on PATH; name one: make setup PYTHON=…" >&2
  return 1
}

make_venv() {
  local python
  python=$(find_python)
  echo "setup: making .venv with $("$python" --version)"
  rm -rf .venv
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv .venv
  else # Debian keeps ensurepip in python3-venv; any pip beside that Python does as well
    "$python" -m venv --without-pip .venv
    if ! "$python" -m pip --python .venv/bin/python install --quiet pip; then
      rm -rf .venv
      echo "setup: $python has neither ensurepip nor pip; install python3-venv" >&2
      return 1
    fi
  fi
}

install() {
  local torch
  torch=$(grep '^torch==' requirements-torch.lock)
  echo "setup: installing into .venv (some minutes the first time; torch is large)"
  .venv/bin/python -m pip install "${pip_options[@]}" --require-hashes -r requirements.lock
  # Torch first and alone: its own index need not have the other packages at their pins.
  .venv/bin/python -m pip install "${pip_options[@]}" --no-deps \
    ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$torch"
  .venv/bin/python -m pip install "${pip_options[@]}" -r requirements-torch.lock
  .venv/bin/python -m pip install "${pip_options[@]}" --no-deps --no-build-isolation -e .
}

readonly pip_options=(--quiet --disable-pip-version-check --no-input)
exec 9<pyproject.toml
flock 9 # two runs at a time would spoil each other's .venv
wanted=$(fingerprint)
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit
if ! .venv/bin/python -c "$is_supported" 2>/dev/null; then
  make_venv
fi
install
echo "$wanted" >"$stamp"
