#!/bin/sh
# Prints the path of a Python that the project supports and that can make virtual environments.
# Owns finding one, and installing Debian's when there is none; everything else is in setup_env.py.
set -eu

usable() {
    command -v "$1" >/dev/null 2>&1 || return 1
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))' 2>/dev/null
}

find_python() {
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10 python3.14 /usr/bin/python3; do
        if usable "$name"; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

if find_python; then
    exit 0
fi

echo "no usable Python (3.10 to 3.14 with venv) found: installing Debian's python3 and python3-venv" >&2
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 && as_root="sudo"
fi
if ! command -v apt-get >/dev/null 2>&1 || { [ "$(id -u)" != 0 ] && [ -z "$as_root" ]; }; then
    echo "cannot install packages here: as root, run: apt-get install python3 python3-venv" >&2
    exit 1
fi
# What apt prints goes to stderr: stdout carries the answer alone.
{
    $as_root apt-get update || true
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3 python3-venv
} >&2
find_python || {
    echo "Debian's python3 is not one of 3.10 to 3.14: install one and run again with PYTHON=/path/to/python" >&2
    exit 1
}
