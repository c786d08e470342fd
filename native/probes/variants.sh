#!/usr/bin/env bash
# Makes what variants.c compares: the backend of a working tree as a shared library, and the program.
# Usage: native/probes/variants.sh LIBRARY [TREE [more flags]]
#     native/probes/variants.sh /tmp/new.so; native/probes/variants.sh /tmp/old.so ../old-worktree
#     /tmp/variants 2 2 135M 2 1 10 /tmp/old.so /tmp/new.so
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
library=$1 tree=${2:-$root}
shift $(($# < 2 ? $# : 2))
flags="-O3 -std=c11 -fno-math-errno -fno-trapping-math -ffp-contract=off -pthread -fPIC -D_GNU_SOURCE
    -I$tree/native/include -I$tree/native/cpu $*"
avx2="-mavx2 -mfma -mf16c"
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT
for source in "$tree"/native/cpu/*.c; do
    name=$(basename "$source" .c)
    [ "$name" = isa_table ] ||
        cc $flags -DKST_WITH_AVX2 -DKST_WITH_AVX512 -c "$source" -o "$objects/$name.o" &
done
for isa in scalar avx2 avx512; do
    own=
    [ "$isa" = avx2 ] && own=$avx2
    [ "$isa" = avx512 ] && own="$avx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl"
    for source in "$tree"/native/cpu/isa_table.c "$tree"/native/cpu/kernels/*.c; do
        cc $flags "-DKST_ISA=$isa" $own -c "$source" -o "$objects/$(basename "$source" .c)_$isa.o" &
    done
    wait
done
cc -shared -Wl,-Bsymbolic -pthread "$objects"/*.o -o "$library" -lm
cc -O2 -std=c11 -D_GNU_SOURCE -I"$root/native/include" "$root/native/probes/variants.c" \
    -o "$(dirname "$library")/variants" -ldl -pthread
