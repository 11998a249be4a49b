# Sourced by scripts/demo and scripts/test: `prepare EXTRA` installs the project with that extra, in the active virtual
# environment or in .venv, and does nothing when that was done before with the same pins.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

prepare() {
  local extra=$1
  if [ -z "${VIRTUAL_ENV:-}" ] && [ -z "${CONDA_PREFIX:-}" ]; then
    [ -x .venv/bin/python ] || python3 -m venv .venv
    # shellcheck disable=SC1091
    . .venv/bin/activate
  fi
  python - <<'PY' || { echo "nanodoc needs Python 3.11 or newer; this is $(python --version)" >&2; exit 2; }
import sys
sys.exit(sys.version_info < (3, 11))
PY
  local stamp pins
  pins=$(cat pyproject.toml constraints.txt | cksum)
  stamp="$(python -c 'import sys; print(sys.prefix)')/.nanodoc-$extra"
  if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$pins $PWD" ]; then
    echo "installing nanodoc with the extra '$extra' (constraints.txt) ..." >&2
    python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extra]"
    echo "$pins $PWD" > "$stamp"
  fi
}
