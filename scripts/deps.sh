#!/usr/bin/env bash
# Installs what the build needs where it is missing: distribution packages (as root or through sudo,
# else it prints the line to run) and a Python environment in .venv with LibTorch.
#
#   scripts/deps.sh core    compiler and libraries of the half without LibTorch
#   scripts/deps.sh build   core, and torch in .venv unless TRIREME_TORCH or an installed torch serves
#   scripts/deps.sh test    build, and what the tests compare against (requirements-test.txt)
#
# TORCH_INDEX=URL looks for torch in that pip index too; its `+cpu` builds are preferred to plain ones.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly kTorch="torch==2.13.0"
readonly kPackages=(
  g++ make cmake ninja-build ccache lld git ca-certificates python3 python3-venv
  libfmt-dev libyaml-cpp-dev nlohmann-json3-dev libsimdjson-dev libxxhash-dev libhwy-dev
  zlib1g-dev libzstd-dev libpng-dev libjpeg-dev libpcre2-dev libcli11-dev libgtest-dev libgmock-dev
)

# What `make test` uses besides: mpirun, and network namespaces.
readonly kTestPackages=(libopenmpi-dev openmpi-bin iproute2)

say() { printf 'deps: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

system_packages() {
  local packages=("$@")
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian or Ubuntu system: make sure that these are installed: ${packages[*]}"
    return
  fi
  local missing=() name
  for name in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  local as_root=()
  if ((EUID != 0)); then
    as_root=(sudo)
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      fail "run this as root, then repeat: apt-get update && apt-get install -y ${missing[*]}"
    fi
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -q </dev/null
  "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null
}

# True where the interpreter $1 sees a torch of a supported version (2.11 to 2.14).
has_torch() {
  "$1" - >/dev/null 2>&1 <<'PYTHON'
import importlib.metadata, importlib.util, sys
version = tuple(int(x) for x in importlib.metadata.version("torch").split(".")[:2])
sys.exit(not (importlib.util.find_spec("torch") and (2, 11) <= version <= (2, 14)))
PYTHON
}

# Creates .venv, or replaces one whose interpreter is gone (copied from elsewhere, a dangling link).
environment() {
  .venv/bin/python -m pip --version >/dev/null 2>&1 && return
  if [[ -L .venv ]]; then rm .venv; fi
  local options=(--clear)
  if has_torch python3; then options+=(--system-site-packages); fi
  say "creating .venv"
  python3 -m venv "${options[@]}" .venv
}

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" </dev/null; }

torch() {
  environment
  has_torch .venv/bin/python && return
  say "installing $kTorch into .venv (some hundred megabytes)"
  pip_install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$kTorch"
}

# A stamp inside the environment saves asking pip each time.
test_requirements() {
  local stamp=.venv/requirements-test.stamp
  cmp -s requirements-test.txt "$stamp" && return
  say "installing requirements-test.txt into .venv"
  pip_install -r requirements-test.txt
  cp requirements-test.txt "$stamp"
}

if [[ "${1:-}" == test ]]; then
  system_packages "${kPackages[@]}" "${kTestPackages[@]}"
else
  system_packages "${kPackages[@]}"
fi
case "${1:-}" in
  core) ;;
  build)
    if [[ -z "${TRIREME_TORCH:-}" ]] && ! has_torch .venv/bin/python && ! has_torch python3; then torch; fi ;;
  test) torch; test_requirements ;;
  *) fail "usage: scripts/deps.sh core|build|test" ;;
esac
