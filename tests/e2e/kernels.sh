#!/usr/bin/env bash
# run: all night
# Every kernel file compiles in every form for every built-in tuning row, without a device: with clang, for x86-64 with AVX-512 (and
# its BF16), for x86-64 with only AVX2, for AArch64, for NVIDIA, with and without float64, for AMD's GPUs (clang 17 or later), and to
# SPIR-V for Intel's GPUs (llvm-spirv). In the tier all, forms other than AVX-512 compile only some rows and options; in the tier night they
# compile all. Skipped without clang, which PoCL's packages install.
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

# ---- programs: a family and its -D options, one a line ----

# the tiles of the built-in rows; a row without a tile has that of the default row
tiles=$(grep -v '^#' kernels/gemm/tuning.txt | sed -n 's/.*lines=\([0-9]*\).*width=\([0-9]*\).*/-DLINES=\1 -DWIDTH=\2/p' | sort -u)
[ -n "$tiles" ] && [ "$(grep -v '^#' kernels/gemm/tuning.txt | grep -c 'lines=\|width=')" -eq "$(grep -v '^#' kernels/gemm/tuning.txt | grep -c 'lines=.*width=')" ]
verdict $? "built-in rows name whole tiles: $(paste -s -d , <<<"$tiles")"

e4m3=8,3,7,0x7Eu,0x7Fu,1 e5m2=8,2,15,0x7Bu,0x7Fu,2 e2m1=4,1,1,0x7u,0x7u,0
formats="-DBLOCK=32 -DELEMENT=$e4m3 -DE4M3=$e4m3 -DELEMENT_BITS=8 -DSCALE=0 -DLARGEST=448.0f -DLARGEST_EXPONENT=8
-DBLOCK=32 -DELEMENT=$e5m2 -DE4M3=$e4m3 -DELEMENT_BITS=8 -DSCALE=0 -DLARGEST=57344.0f -DLARGEST_EXPONENT=15
-DBLOCK=32 -DELEMENT=$e2m1 -DE4M3=$e4m3 -DELEMENT_BITS=4 -DSCALE=0 -DLARGEST=6.0f -DLARGEST_EXPONENT=2
-DBLOCK=16 -DELEMENT=$e2m1 -DE4M3=$e4m3 -DELEMENT_BITS=4 -DSCALE=1 -DLARGEST=6.0f -DLARGEST_EXPONENT=2
-DBLOCK=128 -DELEMENT=$e4m3 -DE4M3=$e4m3 -DELEMENT_BITS=8 -DSCALE=2 -DLARGEST=448.0f -DLARGEST_EXPONENT=8"

amx='-DBF16=1 -DDOT=2 -DLINES=32 -DWIDTH=2'
options() { # FAMILY: the options of its programs, one a line
    case $1 in
    gemm/gemm | gemm/prepacked)
        local tile dtype format
        while read -r tile; do
            for dtype in '-DBF16=0 -DDOT=0' '-DBF16=1 -DDOT=0' '-DBF16=1 -DDOT=1'; do
                echo "$dtype $tile -DQUANTIZED=0"
                [ "$1 ${tile#*WIDTH=}" = "gemm/prepacked 4" ] && echo "$dtype $tile -DQUANTIZED=0 -DPANEL_WIDTH=2"
            done
        done <<<"$tiles"
        printf '%s\n' "$amx -DQUANTIZED=0 -DAMX="{1,0}
        while read -r format; do # with the default tile
            for dtype in '-DBF16=0 -DDOT=0' '-DBF16=1 -DDOT=0' '-DBF16=1 -DDOT=1'; do echo "$dtype -DLINES=8 -DWIDTH=2 -DQUANTIZED=1 $format"; done
            echo "$amx -DQUANTIZED=1 -DAMX=0 $format"
        done <<<"$formats"
        ;;
    gemm/gpu)
        local lines # and the depth of a block of K
        for lines in '32 -DDEPTH=32' '64 -DDEPTH=16' '128 -DDEPTH=16' '128 -DDEPTH=8'; do
            printf '%s\n' "-DBF16=0 -DLINES=$lines" "-DBF16=1 -DLINES=$lines"
        done
        ;;
    quant/quantize)
        local choices
        for choices in '-DROUNDING=0 -DRULE=0' '-DROUNDING=2 -DRULE=1' '-DROUNDING=3 -DRULE=2'; do
            sed "s/-DELEMENT_BITS=4/& $choices/" <<<"$formats"
        done | sort -u
        ;;
    quant/dequantize) echo "$formats"; sed 's/$/ -DALIGNED -DWIDE=8/; p; s/8$/4/' <<<"$formats" ;;
    quant/decode_gpu) printf '%s\n' -DFORMAT={0,1,2,3} ;;
    quant/cast) printf '%s\n' '-DDTYPE=16,10,15,0x7C00u,0x7E00u,2 -DBITS=16' '-DDTYPE=16,7,127,0x7F80u,0x7FC0u,2 -DBITS=16' "-DDTYPE=$e4m3 -DBITS=8"{,' -DALIGNED'} ;;
    attention/attention) printf '%s\n' '-DHEAD_SIZE='{'7 -DVALUE_SIZE=7 -DLANE_VECS=2','192 -DVALUE_SIZE=128 -DLANE_VECS=1','64 -DVALUE_SIZE=64 -DLANE_VECS='{1,2}} ;;
    attention/gpu) printf '%s\n' '-DHEAD_SIZE='{'7 -DVALUE_SIZE=7 -DOWN=64','192 -DVALUE_SIZE=128 -DOWN=64','512 -DVALUE_SIZE=512 -DOWN=32'} ;;
    attention/stats) printf '%s\n' -DVALUE_SIZE=64 -DVALUE_SIZE=128 ;;
    nn/norm) printf '%s\n' '-DCOLUMNS=128 -DSTEPS='{'0 -DGROUPS_PER_ROW=1 -DROTATED=0','1 -DGROUPS_PER_ROW=1 -DALIGNED -DROTATED='{0,1},'16 -DGROUPS_PER_ROW=2 -DALIGNED -DROTATED=0'}' -DRESULTS='{1,2,3} ;;
    exchange/exchange) printf '%s\n' -DREMOTE={0,1}{,' -DALIGNED'} ;;
    router/gpu) printf '%s\n' '-DEXPERTS=66 -DSLOTS=8 -DSCORE='{0,3}' -DGROUPED='{0,1} '-DEXPERTS='{'256 -DSLOTS=16','1024 -DSLOTS='{32,128}}' -DALIGNED -DSCORE='{1,2}' -DGROUPED=0' ;;
    lib/roof) printf '%s\n' '-DCHAINS=8 -DROUNDS=20000 -DBLOCK=4096 -DLANES=16 -DITEMS=1' '-DCHAINS=8 -DROUNDS=20000 -DBLOCK=4096 -DLANES=4 -DITEMS=256' ;;
    gemm/glu) printf '%s\n' -DFROM={0,2}' -DTYPE='{0,2}{,' -DALIGNED'}{,' -DPLAIN'} ;;
    nn/squares) printf '%s\n' '-DBF16='{0,1}{,' -DALIGNED'} ;;
    nn/loss) printf '%s\n' '-DBF16='{0,1}{,' -DALIGNED'} ;;
    nn/optimizer) printf '%s\n' '-DROUNDED='{0,1}' -DBF16_MOMENTS='{0,1}' -DBF16_GRADIENT='{0,1}{,' -DSGD'}{,' -DALIGNED'} ;;
    attention/sinks | nn/columns | nn/rope) printf '%s\n' '-DROUNDED='{0,1}{,' -DALIGNED'} ;;
    exchange/peers | exchange/route | nn/bias | nn/digest | nn/elementwise | nn/embedding | op/glu | op/rows | nn/reduce) printf '%s\n' '' -DALIGNED ;;
    *) echo ;;
    esac
}

# families without those that run only on NVIDIA, which follow below
families=$(cd kernels && find . -name '*.cl' ! -path '*/nvidia/*' | sed 's#^./##; s#\.cl$##' | LC_ALL=C sort)
for family in $families; do
    while read -r line; do echo "$family $line"; done < <(options "$family")
done >"$list"

# ---- forms ----

# families that have no GPU form, from the library's table
cpu_families=$(sed -n '/cpu_families\[\]/,/};/p' src/device/program.c | grep -o '"[a-z_/]*"' | tr -d '"' | paste -s -d ' ')
check "the list of families without a GPU form is found: $cpu_families" [ -n "$cpu_families" ]
export cpu_families

compile() { # FORM FAMILY OPTION...
    local form=$1 file=kernels/$2.cl out what items=1 compiler=$clang
    [[ $form != gfx* ]] || compiler=$amd_clang
    case $2:$form:" $cpu_families " in
    */gpu:* | *_gpu:*) items=32 ;; # also on CPUs, where MOERT_FORM can choose this form
    *:nvidia:*" $2 "* | *:without_fp64:*" $2 "* | *:gfx*:*" $2 "* | *:spirv:*" $2 "* | *:avx* | *:aarch64*) ;;
    *) items=32 ;;
    esac
    shift 2
    case "$items $*" in 1*-DALIGNED*) return 0 ;; esac # only the GPU form has it
    case "$form $*" in avx*) ;; *-DAMX=1*) return 0 ;; esac # instructions of x86-64
    out=$(mktemp -p "$tmp")
    what=("$compiler" -x cl -cl-std=CL1.2 -Xclang -finclude-default-header -Xclang -cl-ext=+cl_khr_fp64 -Ikernels -include kernels/lib/common.h
        -DMOERT_ITEMS=$items -cl-fp32-correctly-rounded-divide-sqrt -Werror -Wno-psabi -Wno-unused-command-line-argument "$@" "$file" -o "$out")
    case $form in
    avx512) "${what[@]}" --target=x86_64-linux-gnu -mavx512f -mavx512vl -mavx512bf16 -DMOERT_CPU=1 -DMOERT_FP64=1 -O1 -S ;;
    # -O0: the optimiser takes most of the time, and AVX-512 above shows what it complains about
    avx2) "${what[@]}" --target=x86_64-linux-gnu -mavx2 -mfma -DMOERT_CPU=1 -DMOERT_FP64=1 -O0 -S ;;
    # this back end does not support the calling convention of kernels, so they become functions
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

# passes the first line of each family (the first word) and every fourth line; in the tier night all lines
some() {
    if [ "$TEST_TIER" = night ]; then cat; else awk '$1 != family || NR % 4 == 0 { print } { family = $1 }'; fi
}

cp "$list" "$tmp/whole"
forms="avx512 avx2 aarch64 nvidia without_fp64"
if [ -n "$amd_clang" ]; then forms+=" gfx90a gfx942 gfx1100"; else verdict 0 "gfx90a, gfx942, gfx1100 # SKIP no clang 17 or later for AMD's GPUs"; fi
if [ -n "$llvm_spirv" ]; then forms+=" spirv"; else verdict 0 "spirv # SKIP no llvm-spirv for $clang"; fi
[ -z "${KEEP_CUBINS:-}" ] || forms= # only the programs whose cubins are kept
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
plain="-DALPHA=0 -DBETA=0 -DBIAS=0 -DBIAS_TYPE=0 -DROW_SCALE=0 -DAMAX=0 -DGLU=0 -DRUN=0 -DSWAPPED=0 -DV=0 -DV_TYPE=0"
all="-DALPHA=1 -DBETA=2 -DBIAS=1 -DBIAS_TYPE=1 -DROW_SCALE=1 -DAMAX=1 -DGLU=0 -DRUN=0 -DSWAPPED=0 -DV=0 -DV_TYPE=0"
gemms() { # RING: plain GEMMs, accumulating ones, ones with the whole epilogue; GLUs of every layout
    local orientation result run
    for orientation in 0 1 2; do
        for result in 0 1 2; do
            echo "$1 -DORIENTATION=$orientation -DF16=$((result % 2)) -DRESULT=$result $plain"
            echo "$1 -DORIENTATION=$orientation -DF16=$((result % 2)) -DRESULT=$result ${plain/BETA=0/BETA=1}"
            echo "$1 -DORIENTATION=$orientation -DF16=$((result % 2)) -DRESULT=$result ${all/BIAS_TYPE=1/BIAS_TYPE=$result}"
        done
    done
    for run in 0 1 8 32; do
        for result in 0 2; do
            echo "$1 -DORIENTATION=0 -DF16=0 -DRESULT=$result ${plain/GLU=0 -DRUN=0/GLU=1 -DRUN=$run}"
            echo "$1 -DORIENTATION=0 -DF16=0 -DRESULT=$result -DALPHA=1 -DBETA=0 -DBIAS=1 -DBIAS_TYPE=$result -DROW_SCALE=1 -DAMAX=1" \
                "-DGLU=1 -DRUN=$run -DSWAPPED=1 -DV=1 -DV_TYPE=$result"
        done
    done
}
nvidia_wgmma() { # plain operands, scattered results; quantized operands of one format, with a plain one and with another format
    local ring="-DCOUNTED=0 -DSTAGES=4 -DOUTS=2 -DGROUP=16 -DSCATTER=0" pair orientation result
    for orientation in 0 1; do
        echo "${ring/SCATTER=0/SCATTER=4} -DA_FORMAT=4 -DB_FORMAT=4 -DORIENTATION=$orientation -DF16=0 -DRESULT=2 $plain"
    done
    gemms "$ring -DA_FORMAT=4 -DB_FORMAT=4"
    for result in 0 1; do
        echo "${ring/COUNTED=0/COUNTED=1} -DA_FORMAT=4 -DB_FORMAT=4 -DORIENTATION=2 -DF16=0 -DRESULT=0 ${plain/BETA=0/BETA=$result}"
    done
    for pair in '0 0' '1 1' '2 2' '3 3' '4 0' '3 4' '1 2'; do
        for orientation in 0 1 2; do
            echo "$ring -DA_FORMAT=${pair% *} -DB_FORMAT=${pair#* } -DORIENTATION=$orientation -DF16=0 -DRESULT=2 $plain"
            echo "$ring -DA_FORMAT=${pair% *} -DB_FORMAT=${pair#* } -DORIENTATION=$orientation -DF16=0 -DRESULT=0 $all"
        done
        echo "$ring -DA_FORMAT=${pair% *} -DB_FORMAT=${pair#* } -DORIENTATION=0 -DF16=0 -DRESULT=2 -DALPHA=1 -DBETA=0 -DBIAS=1" \
            "-DBIAS_TYPE=2 -DROW_SCALE=1 -DAMAX=1 -DGLU=1 -DRUN=0 -DSWAPPED=1 -DV=1 -DV_TYPE=2"
    done
}
nvidia_mma() { gemms "-DGROUP=16"; }
nvidia_attention() {
    local pass sizes
    for pass in 0 1 2; do
        for sizes in '64 -DVALUE_SIZE=64' '128 -DVALUE_SIZE=128' '192 -DVALUE_SIZE=128'; do
            printf '%s\n' "-DPASS=$pass -DKEY_SIZE=$sizes -DWINDOW="{0,1}' -DARENA=231424'
        done
    done
}
nvidia_fp8() {
    local kind f32
    for kind in '-DWGRAD=0 -DSCALED=0 -DE5M2=0' '-DWGRAD=0 -DSCALED=0 -DE5M2=1' '-DWGRAD=0 -DSCALED=1 -DE5M2=0' '-DWGRAD=1 -DSCALED=1 -DE5M2=0'; do
        for f32 in 0 1; do echo "$kind -DF32=$f32 -DSTAGES=4 -DOUTS=1 -DGROUP=8"; done
    done
}
nvidia_split() {
    printf '%s\n' -DORIENTATION={0,1,2}' -DCOLUMNS='{'64 -DSTAGES=8','128 -DSTAGES=5'}
}
to_ptx() { # OUT FAMILY OPTION...
    local what
    what=("$clang" --target=nvptx64-nvidia-nvcl -x cl -cl-std=CL3.0 -Xclang -finclude-default-header -Ikernels -include kernels/lib/common.h
        -DMOERT_CPU=0 -DMOERT_FP64=0 -DMOERT_ITEMS=32 "${@:3}" "kernels/$2.cl")
    "${what[@]}" -fsyntax-only || return 1 # with OpenCL's declarations instead of nvptx.h
    "${what[@]}" -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature -Xclang +ptx70 -include tests/support/nvptx.h -O2 -S -o "$1"
}
assemble() { # FILE COMPLAINT OPTION...
    local said kept
    [ -z "$ptxas" ] && return 0
    said=$("$ptxas" -v "${@:3}" "$1" -o "$1.cubin" 2>&1) || { echo "$said"; return 1; }
    if [ -n "${KEEP_CUBINS:-}" ]; then # a directory, from tests/tools/record/cubins
        kept=$(mktemp -p "$KEEP_CUBINS") && cp "$1.cubin" "$kept.cubin" && printf '%s\n' "$program ${*:3}" "$said" >"$kept.said"
    fi
    ! grep -E "$2|warning|[1-9][0-9]* bytes spill" <<<"$said"
}
hopper() { # FAMILY OPTION...
    local out program=$*
    out=$(mktemp -p "$tmp") && to_ptx "$out.ptx" "$@" && "${TEST_BUILD:-build}/tests/ptx" "$out.ptx" 231424 >"$out.sm90a" || return 1
    assemble "$out.sm90a" 'C75[0-9][0-9]' -arch=sm_90a --maxrregcount 168
}
ampere() { # FAMILY OPTION...; 128 work-items twice on an SM
    local out arch program=$*
    out=$(mktemp -p "$tmp") && to_ptx "$out.ptx" "$@" && sed -i 's/^\.version.*/.version 8.3/' "$out.ptx" || return 1
    for arch in sm_80 sm_86 sm_89 sm_90; do assemble "$out.ptx" "stack frame, [1-9]" "-arch=$arch" || return 1; done
}
export -f to_ptx assemble hopper ampere
export ptxas
tensor_cores() { # KIND FAMILY TEXT
    "nvidia_$(basename "$2")" | sed "s#^#$2 #" | some >"$list"
    xargs -P "$(nproc)" -I LINE bash -c "$1 LINE || { echo 'in LINE'; exit 1; }" <"$list" >"$log" 2>&1
    verdict $? "$1: $(wc -l <"$list") programs of $2 $3, no spills $([ -n "$ptxas" ] || echo '# SKIP the assembler: no ptxas')"
}
for family in gemm/nvidia/wgmma gemm/nvidia/split attention/nvidia/attention gemm/nvidia/fp8; do
    tensor_cores hopper $family "for sm_90a: ptxas does not serialize wgmma and keeps to the register limit"
done
tensor_cores ampere gemm/nvidia/mma "for sm_80, sm_86, sm_89 and sm_90"

# programs that no form must compile
for form in $forms; do
    : >"$failed.$form"
    compile "$form" gemm/gemm -DBF16=0 -DDOT=0 -DLINES=17 -DWIDTH=2 -DQUANTIZED=0
    compile "$form" gemm/gpu -DBF16=0 -DLINES=16 -DDEPTH=32
    grep -q 'LINES must be 1 to 16' "$failed.$form" && grep -q 'LINES must be 32, 64 or 128' "$failed.$form"
    verdict $? "$form: a tile out of bounds is refused"
done
finish
