#!/bin/sh
# gpu-ami replica: there is nothing to generate; configure is here already.
set -e
cd "$(dirname "$0")"
chmod +x configure
