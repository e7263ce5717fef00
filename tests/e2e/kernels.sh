#!/usr/bin/env bash
# Every kernel file compiles for every built-in row of tuning and every form, without a device: by clang, for x86-64 with
# AVX-512 (and its BF16) and with AVX2 only, for AArch64, and for NVIDIA, with and without float64. PoCL's packages bring a
# clang along; without one this is skipped.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
list=$folder/list failed=$folder/failed
export folder failed

clang=
for name in clang clang-{20..13}; do
    command -v "$name" >/dev/null && "$name" --print-targets 2>/dev/null | grep -q nvptx64 && clang=$name && break
done
if [ -z "$clang" ]; then
    verdict 0 "every kernel compiles # SKIP no clang"
    finish
fi
export clang

# ---- programs: a family and its -D options, one a line ----

# the tiles of the built-in rows: a row without one has the default's
tiles=$(grep -v '^#' kernels/tuning.txt | sed -n 's/.*lines=\([0-9]*\).*width=\([0-9]*\).*/-DLINES=\1 -DWIDTH=\2/p' | sort -u)
[ -n "$tiles" ] && [ "$(grep -v '^#' kernels/tuning.txt | grep -c 'lines=\|width=')" -eq "$(grep -v '^#' kernels/tuning.txt | grep -c 'lines=.*width=')" ]
verdict $? "built-in rows name whole tiles: $(paste -s -d , <<<"$tiles")"

e4m3=8,3,7,0x7Eu,0x7Fu,1 e5m2=8,2,15,0x7Bu,0x7Fu,2 e2m1=4,1,1,0x7u,0x7u,0
exact=-cl-fp32-correctly-rounded-divide-sqrt
formats="-DBLOCK=32 -DELEMENT=$e4m3 -DE4M3=$e4m3 -DELEMENT_BITS=8 -DSCALE=0 -DLARGEST=448.0f -DLARGEST_EXPONENT=8 $exact
-DBLOCK=32 -DELEMENT=$e5m2 -DE4M3=$e4m3 -DELEMENT_BITS=8 -DSCALE=0 -DLARGEST=57344.0f -DLARGEST_EXPONENT=15 $exact
-DBLOCK=32 -DELEMENT=$e2m1 -DE4M3=$e4m3 -DELEMENT_BITS=4 -DSCALE=0 -DLARGEST=6.0f -DLARGEST_EXPONENT=2 $exact
-DBLOCK=16 -DELEMENT=$e2m1 -DE4M3=$e4m3 -DELEMENT_BITS=4 -DSCALE=1 -DLARGEST=6.0f -DLARGEST_EXPONENT=2 $exact
-DBLOCK=128 -DELEMENT=$e4m3 -DE4M3=$e4m3 -DELEMENT_BITS=8 -DSCALE=2 -DLARGEST=448.0f -DLARGEST_EXPONENT=8 $exact"

options() { # FAMILY: the options of its programs, one a line
    case $1 in
    gemm | gemm_packed)
        local tile number format
        while read -r tile; do
            for number in '-DBF16=0 -DDOT=0' '-DBF16=1 -DDOT=0' '-DBF16=1 -DDOT=1'; do echo "$number $tile -DCODED=0"; done
        done <<<"$tiles"
        while read -r format; do # by the default tile
            for number in '-DBF16=0 -DDOT=0' '-DBF16=1 -DDOT=1'; do echo "$number -DLINES=8 -DWIDTH=2 -DCODED=1 $format"; done
        done <<<"$formats"
        ;;
    quantize | dequantize) echo "$formats" ;;
    cast) printf '%s\n' '-DNUMBER=16,10,15,0x7C00u,0x7E00u,2 -DBITS=16' '-DNUMBER=16,7,127,0x7F80u,0x7FC0u,2 -DBITS=16' "-DNUMBER=$e4m3 -DBITS=8" ;;
    attention) printf '%s\n' '-DHEAD_SIZE=7 -DLANE_VECS=2' '-DHEAD_SIZE=64 -DLANE_VECS=2' '-DHEAD_SIZE=128 -DLANE_VECS=1' ;;
    router) echo '-DBLOCK=16 -DMOST_EXPERTS=1024' ;;
    norm) echo -DCOLUMNS=64 ;;
    exchange) printf '%s\n' -DREMOTE=0 -DREMOTE=1 ;;
    roof) printf '%s\n' '-DCHAINS=8 -DROUNDS=20000 -DBLOCK=4096 -DLANES=16 -DITEMS=1' '-DCHAINS=8 -DROUNDS=20000 -DBLOCK=4096 -DLANES=4 -DITEMS=256' ;;
    amax) echo "$exact" ;;
    *) echo ;;
    esac
}

# families for NVIDIA alone come below
files=$(ls kernels/*.cl | grep -v /nvidia_)
for file in $files; do
    while read -r line; do echo "$(basename "$file" .cl) $line"; done < <(options "$(basename "$file" .cl)")
done >"$list"

# ---- forms ----

# families without the GPU form, as the library has them
cpu_families=$(sed -n '/cpu_families\[\]/,/};/p' src/device/program.c | grep -o '"[a-z_]*"' | tr -d '"' | paste -s -d ' ')
[ -n "$cpu_families" ]
verdict $? "some families have the CPU form alone: $cpu_families"
export cpu_families

compile() { # FORM FAMILY OPTION...
    local form=$1 file=kernels/$2.cl out what items=1
    case $form:" $cpu_families " in
    nvidia:*" $2 "* | without_fp64:*" $2 "* | avx* | aarch64*) ;;
    *) items=32 ;;
    esac
    shift 2
    out=$(mktemp -p "$folder")
    what=("$clang" -x cl -cl-std=CL1.2 -Xclang -finclude-default-header -Xclang -cl-ext=+cl_khr_fp64 -include kernels/common.h
        -DMOERT_ITEMS=$items -Werror -Wno-psabi -Wno-unused-command-line-argument "$@" "$file" -o "$out")
    case $form in
    avx512) "${what[@]}" --target=x86_64-linux-gnu -mavx512f -mavx512vl -mavx512bf16 -DMOERT_CPU=1 -DMOERT_FP64=1 -O1 -S ;;
    avx2) "${what[@]}" --target=x86_64-linux-gnu -mavx2 -mfma -DMOERT_CPU=1 -DMOERT_FP64=1 -O1 -S ;;
    # this back end does not know the calling convention of kernels: it gets them as functions
    aarch64) "${what[@]}" --target=aarch64-linux-gnu -DMOERT_CPU=1 -DMOERT_FP64=1 -O1 -S -emit-llvm &&
        sed 's/\bspir_kernel //' "$out" | "$clang" --target=aarch64-linux-gnu -Wno-override-module -x ir -O1 -S - -o "$out.s" ;;
    nvidia) "${what[@]}" --target=nvptx64-nvidia-nvcl -Xclang -target-cpu -Xclang sm_80 -DMOERT_CPU=0 -DMOERT_FP64=1 -O1 -S ;;
    without_fp64) "${what[@]}" --target=nvptx64-nvidia-nvcl -DMOERT_CPU=0 -DMOERT_FP64=0 -fsyntax-only ;;
    esac >"$out.log" 2>&1 && rm -f "$out"* && return 0
    { echo "$form: $file $*" && head -n 15 "$out.log"; } >>"$failed.$form"
}
export -f compile

for form in avx512 avx2 aarch64 nvidia without_fp64; do
    : >"$failed.$form"
    sed "s/^/$form /" "$list" | xargs -P "$(nproc)" -I LINE bash -c 'compile LINE'
    cp "$failed.$form" "$log"
    [ -s "$list" ] && [ ! -s "$failed.$form" ]
    verdict $? "$form: $(wc -l <"$list") programs of $(wc -w <<<"$files") files compile"
done

# ---- families for NVIDIA's tensor cores: PTX by clang, made sm_90a as the library does, assembled by CUDA's ptxas ----

ptxas=$(command -v ptxas || ls /usr/local/cuda/bin/ptxas 2>/dev/null)
tensor_cores() { # FAMILY OPTION...
    local file=kernels/$1.cl out what
    out=$(mktemp -p "$folder")
    shift
    what=("$clang" --target=nvptx64-nvidia-nvcl -x cl -cl-std=CL3.0 -Xclang -finclude-default-header -include kernels/common.h
        -DMOERT_CPU=0 -DMOERT_FP64=0 -DMOERT_ITEMS=32 "$@")
    "${what[@]}" -fsyntax-only "$file" || return 1 # with the functions of OpenCL instead of nvptx.h
    "${what[@]}" -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature -Xclang +ptx70 -include tests/support/nvptx.h -O2 -S "$file" \
        -o "$out.ptx" && "${TEST_BUILD:-build}/tests/ptx" "$out.ptx" 231424 >"$out.sm90a" || return 1
    [ -z "$ptxas" ] && return 0
    "$ptxas" -arch=sm_90a -v --maxrregcount 168 "$out.sm90a" -o "$out.cubin" >"$out.said" 2>&1 || { cat "$out.said"; return 1; }
    ! grep -E 'C75[0-9][0-9]|warning|[1-9][0-9]* bytes spill' "$out.said"
}
ring='-DSTAGES=4 -DOUTS=2 -DGROUP=8' status=0
for orientation in 0 1 2; do for f16 in 0 1; do
    tensor_cores nvidia_gemm $ring -DORIENTATION=$orientation -DF16=$f16 || status=1
done; done >"$log" 2>&1
for kind in '-DWGRAD=0 -DSCALED=0 -DE5M2=0' '-DWGRAD=0 -DSCALED=0 -DE5M2=1' '-DWGRAD=0 -DSCALED=1 -DE5M2=0' '-DWGRAD=1 -DSCALED=1 -DE5M2=0'; do
    for f32 in 0 1; do
        tensor_cores nvidia_fp8 $kind -DF32=$f32 -DCOLUMNS=256 -DWIDTH=128 -DBUFFERS=1 -DSTAGES=4 -DOUTS=1 -DGROUP=8 || status=1
    done
done >>"$log" 2>&1
verdict $status "sm_90a: wgmma in a row, registers as asked, no spills $([ -n "$ptxas" ] || echo '# SKIP the assembler: no ptxas')"

# a program that must not compile, in every form
for form in avx512 avx2 aarch64 nvidia without_fp64; do
    : >"$failed.$form"
    compile "$form" gemm -DBF16=0 -DDOT=0 -DLINES=17 -DWIDTH=2 -DCODED=0
    grep -q 'LINES must be 1 to 16' "$failed.$form"
    verdict $? "$form: a tile out of bounds is refused"
done
finish
