#!/usr/bin/env bash
# Makes what variants.c compares: the backend of a working tree as a shared library, and the program.
# Usage: native/probes/variants.sh LIBRARY [TREE [more flags]]
#     native/probes/variants.sh /tmp/new.so; native/probes/variants.sh /tmp/old.so ../old-worktree
#     /tmp/variants 2 2 135M 2 1 10 /tmp/old.so /tmp/new.so
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
library=$1 tree=${2:-$root}
shift $(($# < 2 ? $# : 2))
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT
KST_TREE=$tree "$root/tests/native/bits.sh" "$objects" cc -fPIC -fvisibility=default "$@"
cc -shared -Wl,-Bsymbolic -pthread "$objects"/*.o -o "$library" -lm
cc -O2 -std=c11 -D_GNU_SOURCE -I"$root/native/include" "$root/native/probes/variants.c" \
    -o "$(dirname "$library")/variants" -ldl -pthread
