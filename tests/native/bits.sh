#!/usr/bin/env bash
# Compiles the whole backend, test_bits and the probe of linear into a folder, without Python.
# Usage: [KST_TREE=WORKING_TREE] tests/native/bits.sh FOLDER [COMPILER and its flags]
#     tests/native/bits.sh /tmp/bits
#     tests/native/bits.sh /tmp/bits-arm aarch64-linux-gnu-gcc -static
set -euo pipefail
root=${KST_TREE:-$(cd "$(dirname "$0")/../.." && pwd)}
out=$1
shift
compiler=("${@:-cc}")
mkdir -p "$out"
flags="-O3 -std=c11 -fvisibility=hidden -fno-math-errno -fno-trapping-math -ffp-contract=off -pthread
    -D_GNU_SOURCE -I$root/native/include -I$root/native/cpu -I$root/tests/native"
avx2="-mavx2 -mfma -mf16c"
avx512="$avx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl"
case $("${compiler[@]}" -dumpmachine) in
    x86_64*) isas="scalar avx2 avx512 avx512vbmi"
        with="-DKST_WITH_AVX2 -DKST_WITH_AVX512 -DKST_WITH_AVX512VBMI" ;;
    aarch64* | arm64*) isas="scalar neon" with="-DKST_WITH_NEON" ;;
    *) isas=scalar with= ;;
esac

compile() { # object, source, flags
    "${compiler[0]}" $flags "${@:3}" "${compiler[@]:1}" -c "$2" -o "$out/$1"
}
for source in "$root"/native/cpu/*.c; do
    name=$(basename "$source" .c)
    [ "$name" = isa_table ] || compile "$name.o" "$source" $with &
done
for isa in $isas; do
    own=
    [ "$isa" = avx2 ] && own=$avx2
    [ "$isa" = avx512 ] && own=$avx512
    [ "$isa" = avx512vbmi ] && own="$avx512 -mavx512vbmi"
    for source in "$root"/native/cpu/isa_table.c "$root"/native/cpu/kernels/*.c; do
        compile "$(basename "$source" .c)_$isa.o" "$source" "-DKST_ISA=$isa" $own &
    done
    wait
done
"${compiler[0]}" $flags "${compiler[@]:1}" "$root"/tests/native/{test_bits,cases,case_data}.c "$out"/*.o -o "$out/test_bits" -lm
for probe in linear attention barrier; do
    "${compiler[0]}" $flags "${compiler[@]:1}" "$root/native/probes/$probe.c" "$out"/*.o -o "$out/$probe" -lm
done
