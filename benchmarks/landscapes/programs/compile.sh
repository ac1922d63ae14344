#!/bin/sh
# Compiles kernel.c with the given flags of gcc and runs it:
#   bireme tune --param optimize=1,2,3 --param march=x86-64,native --param math=no-fast,fast \
#       --param unroll=no-unroll,unroll --param tile=8,16,32,64,128 --env OMP_NUM_THREADS=1,2 \
#       --maximize 'GFLOP/s: {}' compile.sh -O{optimize} -march={march} -f{math}-math -f{unroll}-loops -DTILE={tile}
set -e
here=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
gcc -fopenmp "$@" -o "$folder/kernel" "$here/kernel.c"
"$folder/kernel"
