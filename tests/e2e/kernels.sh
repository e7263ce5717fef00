#!/usr/bin/env bash
# run: check all night
# Every program of kernels/programs.txt compiles in every form, without a device: with clang, for x86-64 with AVX-512 (and its BF16), for
# x86-64 with only AVX2, for AArch64, for NVIDIA, with and without float64, for AMD's GPUs (clang 17 or later), and to SPIR-V for Intel's
# GPUs (llvm-spirv). In the tiers check and all, forms other than AVX-512 compile only some programs; in the tier night all forms
# compile all programs. In the tier check, clang only checks the programs' syntax, for AVX-512 and NVIDIA. The script is skipped
# without clang, which PoCL's packages install.
. "$(dirname "$0")/../support/e2e.sh"
list=$tmp/list failed=$tmp/failed
export tmp failed

clang=
for name in clang clang-{20..13}; do
    command -v "$name" >/dev/null && "$name" --print-targets 2>/dev/null | grep -q nvptx64 && clang=$name && break
done
if [ -z "$clang" ]; then
    verdict 0 "every kernel compiles # SKIP no clang"
    finish
fi
export clang

amd_clang=
for name in clang clang-{20..17}; do
    [ "$("$name" -dumpversion 2>/dev/null | cut -d . -f 1)" -ge 17 ] 2>/dev/null && "$name" --print-targets | grep -q amdgcn && amd_clang=$name && break
done
llvm_spirv=$(command -v "llvm-spirv-$("$clang" -dumpversion | cut -d . -f 1)" || command -v llvm-spirv)
export amd_clang llvm_spirv

# the tiles of the built-in tuning rows; a row without a tile has the tile of the default row
tiles=$(grep -v '^#' kernels/gemm/tuning.txt | sed -n 's/.*lines=\([0-9]*\).*width=\([0-9]*\).*/-DLINES=\1 -DWIDTH=\2/p' | sort -u)
[ -n "$tiles" ] && [ "$(grep -v '^#' kernels/gemm/tuning.txt | grep -c 'lines=\|width=')" -eq "$(grep -v '^#' kernels/gemm/tuning.txt | grep -c 'lines=.*width=')" ]
verdict $? "built-in rows name whole tiles: $(paste -s -d , <<<"$tiles")"

# ---- programs: a family and its -D options, one program per line, from kernels/programs.txt ----

"${TEST_BUILD:-build}/tests/programs" | awk '!seen[$0]++' >"$tmp/programs"
grep -v /nvidia/ "$tmp/programs" >"$tmp/whole"
families=$(cut -d ' ' -f 1 "$tmp/whole" | sort -u)
for family in gemm/gemm gemm/prepacked; do
    missing=$(while read -r tile; do grep -q "^$family .*$tile " "$tmp/whole" || echo "$tile"; done <<<"$tiles")
    verdict "$([ -z "$missing" ]; echo $?)" "the listed programs of $family have the tiles of the built-in rows"
done

# ---- forms ----

# kernel families without a GPU form, read from the library's table
cpu_families=$(sed -n '/cpu_families\[\]/,/};/p' src/device/program.c | grep -o '"[a-z_/]*"' | tr -d '"' | paste -s -d ' ')
check "the list of families without a GPU form is found: $cpu_families" [ -n "$cpu_families" ]
export cpu_families

check_only=
[ "$TEST_TIER" != check ] || check_only=-fsyntax-only
export check_only

compile() { # FORM FAMILY OPTION...
    local form=$1 file=kernels/$2.cl out what items=1 compiler=$clang
    [[ $form != gfx* ]] || compiler=$amd_clang
    case $2:$form:" $cpu_families " in
    */gpu:* | *_gpu:*) items=32 ;; # kernels in GPU form, also for CPUs, where MOERT_FORM can choose the GPU form
    *:nvidia:*" $2 "* | *:without_fp64:*" $2 "* | *:gfx*:*" $2 "* | *:spirv:*" $2 "* | *:avx* | *:aarch64*) ;;
    *) items=32 ;;
    esac
    shift 2
    case "$items $*" in 1*-DALIGNED*) return 0 ;; esac # only the GPU form has ALIGNED
    case "$form $*" in avx*) ;; *-DAMX=1*) return 0 ;; esac # instructions of x86-64
    out=$(mktemp -p "$tmp")
    what=("$compiler" -x cl -cl-std=CL1.2 -Xclang -finclude-default-header -Xclang -cl-ext=+cl_khr_fp64 -Ikernels -include kernels/lib/common.h
        -DMOERT_ITEMS=$items -cl-fp32-correctly-rounded-divide-sqrt -Werror -Wno-psabi -Wno-unused-command-line-argument "$@" "$file" -o "$out" $check_only)
    case $form in
    avx512) "${what[@]}" --target=x86_64-linux-gnu -mavx512f -mavx512vl -mavx512bf16 -DMOERT_CPU=1 -DMOERT_FP64=1 -O1 -S ;;
    # -O0, because the optimiser takes most of the time, and the AVX-512 compilations above already show its warnings
    avx2) "${what[@]}" --target=x86_64-linux-gnu -mavx2 -mfma -DMOERT_CPU=1 -DMOERT_FP64=1 -O0 -S ;;
    # this back end of clang does not support the calling convention of kernels, so kernels become functions
    aarch64) "${what[@]}" --target=aarch64-linux-gnu -DMOERT_CPU=1 -DMOERT_FP64=1 -O0 -S -emit-llvm &&
        sed 's/\bspir_kernel //' "$out" | "$clang" --target=aarch64-linux-gnu -Wno-override-module -x ir -O0 -S - -o "$out.s" ;;
    nvidia) "${what[@]}" --target=nvptx64-nvidia-nvcl -Xclang -target-cpu -Xclang sm_80 -DMOERT_CPU=0 -DMOERT_FP64=1 -DMOERT_NVIDIA=90 -DMOERT_FAST -O$((items > 1)) -S ;;
    without_fp64) "${what[@]}" --target=nvptx64-nvidia-nvcl -DMOERT_CPU=0 -DMOERT_FP64=0 -fsyntax-only ;;
    gfx*) "${what[@]}" --target=amdgcn-amd-amdhsa -nogpulib "-mcpu=$form" -DMOERT_CPU=0 -DMOERT_FP64=1 -O$((items > 1)) -S ;;
    spirv) "${what[@]}" --target=spir64 -DMOERT_CPU=0 -DMOERT_FP64=0 -O$((items > 1)) -emit-llvm -c && "$llvm_spirv" "$out" -o "$out.spv" ;;
    esac >"$out.log" 2>&1 && rm -f "$out"* && return 0
    { echo "$form: $file $*" && head -n 15 "$out.log"; } >>"$failed.$form"
}
export -f compile

# a filter that passes the first line of each family (the first word) and every fourth line; in the tier night, all lines
some() {
    if [ "$TEST_TIER" = night ]; then cat; else awk '$1 != family || NR % 4 == 0 { print } { family = $1 }'; fi
}

forms="avx512 avx2 aarch64 nvidia without_fp64"
if [ -n "$amd_clang" ]; then forms+=" gfx90a gfx942 gfx1100"; else verdict 0 "gfx90a, gfx942, gfx1100 # SKIP no clang 17 or later for AMD's GPUs"; fi
if [ -n "$llvm_spirv" ]; then forms+=" spirv"; else verdict 0 "spirv # SKIP no llvm-spirv for $clang"; fi
[ -n "$check_only" ] && forms="avx512 nvidia"
[ -z "${KEEP_CUBINS:-}" ] || forms= # to keep cubins, compiles only the programs that have cubins
for form in $forms; do
    : >"$failed.$form"
    if [ "$form" = avx512 ]; then cat "$tmp/whole"; else some <"$tmp/whole"; fi >"$list"
    sed "s/^/$form /" "$list" | xargs -P "$(nproc)" -I LINE bash -c 'compile LINE'
    cp "$failed.$form" "$log"
    [ -s "$list" ] && [ ! -s "$failed.$form" ]
    verdict $? "$form: $(wc -l <"$list") programs of $(wc -w <<<"$families") files compile"
done

# ---- families for NVIDIA's tensor cores: clang makes PTX, which CUDA's ptxas assembles; for Hopper, build/tests/ptx first turns it into
# sm_90a as the library does ----

ptxas=$(command -v ptxas || ls /usr/local/cuda/bin/ptxas 2>/dev/null)
nvidia_clang() { # FAMILY OPTION...
    "$clang" --target=nvptx64-nvidia-nvcl -x cl -cl-std=CL3.0 -Xclang -finclude-default-header -Ikernels -include kernels/lib/common.h \
        -DMOERT_CPU=0 -DMOERT_FP64=0 -DMOERT_ITEMS=32 "${@:2}" "kernels/$1.cl"
}
front_end() { # FAMILY OPTION...: with OpenCL's declarations instead of nvptx.h
    nvidia_clang "$@" -fsyntax-only
}
to_ptx() { # OUT FAMILY OPTION...
    front_end "${@:2}" || return 1
    nvidia_clang "${@:2}" -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature -Xclang +ptx70 -include tests/support/nvptx.h -O2 -S -o "$1"
}
assemble() { # FILE COMPLAINT OPTION...
    local said kept
    [ -z "$ptxas" ] && return 0
    said=$("$ptxas" -v "${@:3}" "$1" -o "$1.cubin" 2>&1) || { echo "$said"; return 1; }
    if [ -n "${KEEP_CUBINS:-}" ]; then # the directory in which tests/tools/record/cubins collects cubins
        kept=$(mktemp -p "$KEEP_CUBINS") && cp "$1.cubin" "$kept.cubin" && printf '%s\n' "$program ${*:3}" "$said" >"$kept.said"
    fi
    ! grep -E "$2|warning|[1-9][0-9]* bytes spill" <<<"$said"
}
hopper() { # FAMILY OPTION...
    local out program=$*
    out=$(mktemp -p "$tmp") && to_ptx "$out.ptx" "$@" && "${TEST_BUILD:-build}/tests/ptx" "$out.ptx" 231424 >"$out.sm90a" || return 1
    assemble "$out.sm90a" 'C75[0-9][0-9]' -arch=sm_90a --maxrregcount 168
}
ampere() { # FAMILY OPTION...: assembles for sm_80 to sm_90, where two work-groups of 128 work-items run on an SM
    local out arch program=$*
    out=$(mktemp -p "$tmp") && to_ptx "$out.ptx" "$@" && sed -i 's/^\.version.*/.version 8.3/' "$out.ptx" || return 1
    for arch in sm_80 sm_86 sm_89 sm_90; do assemble "$out.ptx" "stack frame, [1-9]" "-arch=$arch" || return 1; done
}
export -f nvidia_clang front_end to_ptx assemble hopper ampere
export ptxas
tensor_cores() { # KIND FAMILY TEXT
    grep "^$2 " "$tmp/programs" | some >"$list"
    xargs -P "$(nproc)" -I LINE bash -c "$1 LINE || { echo 'in LINE'; exit 1; }" <"$list" >"$log" 2>&1
    verdict $? "$1: $(wc -l <"$list") programs of $2 $3"
}
hopper_families="gemm/nvidia/wgmma gemm/nvidia/split attention/nvidia/attention gemm/nvidia/fp8"
skip=$([ -n "$ptxas" ] || echo '# SKIP the assembler: no ptxas')
if [ -n "$check_only" ]; then
    for family in $hopper_families gemm/nvidia/mma; do tensor_cores front_end $family "pass clang's checks"; done
else
    for family in $hopper_families; do
        tensor_cores hopper $family "for sm_90a: ptxas does not serialize wgmma and keeps to the register limit, no spills $skip"
    done
    tensor_cores ampere gemm/nvidia/mma "for sm_80, sm_86, sm_89 and sm_90, no spills $skip"
fi
[ "$(cut -d ' ' -f 1 "$tmp/programs" | sort -u)" = "$(cd kernels && find . -name '*.cl' | sed 's#^./##; s#\.cl$##' | LC_ALL=C sort)" ]
verdict $? "every kernel file has programs in the table, and every program a file"

# programs whose compilation must fail in every form
for form in $forms; do
    : >"$failed.$form"
    compile "$form" gemm/gemm -DBF16=0 -DDOT=0 -DLINES=17 -DWIDTH=2 -DQUANTIZED=0
    compile "$form" gemm/gpu -DBF16=0 -DLINES=16 -DDEPTH=32
    grep -q 'LINES must be 1 to 16' "$failed.$form" && grep -q 'LINES must be 32, 64 or 128' "$failed.$form"
    verdict $? "$form: a tile out of bounds is refused"
done
finish
