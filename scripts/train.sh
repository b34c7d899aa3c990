#!/usr/bin/env bash
# Train by a configuration. Flags: --help
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"
kerbs train "$@"
