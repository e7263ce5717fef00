#!/usr/bin/env bash
# run: check
# moert-op's quantizers and grouped GEMMs, on both backends: against the golden files, against float64 loops (tests/tools/expect.c), and
# against each other where two runs must agree: quantized operands and the same values in float32, tiled scales and linear ones.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
golden=tests/golden/ops
tools=${TEST_BUILD:-build}/tests

# own COMMAND...: runs COMMAND, in a part, with its own $input, $output and $expected
own() {
    input=$tmp/input.safetensors output=$tmp/output.safetensors expected=$tmp/expected.safetensors
    "$@"
}

# op IN OUT WORD...: runs moert-op
op() { alone "$bin/moert-op" "${@:3}" --input "$1" --output "$2"; }

# at NAME: prints the path of an intermediate file
at() { echo "$tmp/$1.safetensors"; }

# pack OUT TENSOR...
pack() { "$tools/pack" "$@" >>"$log" 2>&1; }

# on OUT WORDS TENSOR...: runs moert-op on an input of these tensors
on() {
    pack "$input" "${@:3}"
    # shellcheck disable=SC2086
    op "$input" "$1" $2
}

# same MODE TITLE EXPECTED ACTUAL TENSOR...: the verdict on these tensors of two files; MODE is `bytes` or a tolerance
same() {
    local mode=$1 title=$2 how=(bytes) tensor status=0
    [ "$mode" = bytes ] || how=(largest --tolerance "$mode")
    for tensor in "${@:5}"; do
        "$compare" "${how[0]}" --expected "$3" --actual "$4" --only "$tensor" "${how[@]:1}" >>"$log" 2>&1 || status=1
    done
    verdict $status "$title: $(tail -n 1 "$log")"
}

# ---- golden files ----

golden_file() {
    local path=$1 name family format act backend options tensors
    name=$(basename "$path" .safetensors)
    IFS=- read -r family format act _ <<<"$name"
    case $family in
    glu) options=(grouped-gemm-glu --format "$format" --act "$act") tensors=(c d amax) ;;
    wgrad) options=(grouped-gemm-wgrad --format "$format") tensors=(wgrad) ;;
    esac
    for backend in reference portable; do
        op "$path" "$output" "${options[@]}" --backend "$backend"
        same 1e-5 "$name, $backend" "$path" "$output" "${tensors[@]}"
    done
}
for path in "$golden"/*.safetensors; do part own golden_file "$path"; done

# a golden file with linear scales; those of b are untiled first
linear_scales() {
    local path=$golden/glu-mxfp8-swiglu-gate_first-K128-N128-40_0_200.safetensors
    pack "$(at sfb)" "swizzled:U8[1536]:@$path#sfb"
    op "$(at sfb)" "$(at sfb)" unswizzle --lines 384 --width 4
    on "$output" 'grouped-gemm-glu --format mxfp8 --scales linear' "a=$path#a" "sfa=$path#sfa_raw" "b=$path#b" \
        "sfb=$(at sfb)#scale" "padded_offsets=$path#padded_offsets" "alpha=$path#alpha" "bias=$path#bias" "prob=$path#prob"
    same 1e-5 "linear scales" "$path" "$output" c d amax
    op "$path" "$output" grouped-gemm-glu --format mxfp8 --glu-order linear-first
    ! "$compare" largest --expected "$path" --actual "$output" --only d --tolerance 0.1 >>"$log"
    verdict $? "linear-first gives another result"
}
part own linear_scales

# ---- golden quantized matrices, byte for byte, and the untiling of their scales ----

# agrees TITLE WORD...: the verdict on the last command, and on tests/tools/compare of its output with $path
agrees() {
    [ $? -eq 0 ] && "$compare" "$2" --expected "$path" --actual "$output" "${@:3}" >>"$log" 2>&1
    verdict $? "$1: $(tail -n 1 "$log")"
}

golden_matrix() { # FILE
    local path=$1 name shape block=32 family element rounding options backend
    name=$(basename "$path" .safetensors)
    shape=${name##*-}
    IFS=- read -r family element rounding _ <<<"$name"
    options=(--format "$family-$element" --scale-rounding "$rounding")
    [[ $name != nvfp4-torchao-* ]] || block=16 options=(--format nvfp4 --nvfp4-rule torchao --global-scale amax)
    for backend in reference portable; do
        op "$path" "$output" quantize "${options[@]}" --backend "$backend"
        agrees "$name, $backend" bytes --except=x
        op "$path" "$output" unswizzle --backend "$backend" --lines "${shape%x*}" --width $((${shape#*x} / block))
        agrees "$name, $backend, scales untiled" bytes --only=scale
        [[ $name = *-normal-* ]] || continue
        op "$path" "$output" dequantize --backend "$backend" "${options[@]:0:2}"
        agrees "$name, $backend, dequantized" tensors --only x --tolerance 0.12
    done
}
for path in tests/golden/quant/*.safetensors; do part own golden_matrix "$path"; done

# ---- GEMMs of plain operands ----

gather=$(for ((i = 0; i < 70; i++)); do printf '%d,' $((i * 37 % 70)); done)
x='x:F32[70,24]:~1' weight='weight:F32[3,40,24]:~2' y='y:F32[70,40]:~3' ends='ends:I32[3]:20,20,70'
alpha='alpha:F32[3]:1.5,3,-0.5' beta='beta:F32[3]:1,0.5,-2' bias='bias:F32[3,40]:~4' bias_scale='bias_scale:F32[70]:~5'
row_weight='row_weight:F32[70]:~6' slots="gather:I32[70]:$gather"

# gemm RESULT OP PERMUTE TOPK TENSOR...: compares both backends with float64 loops
gemm() {
    local result=$1 op=$2 permute=$3 topk=$4 backend
    pack "$input" "$ends" "${@:5}"
    "$tools/expect" "$op" "$input" "$expected" "$permute" "$topk" >>"$log" 2>&1
    for backend in reference portable; do
        op "$input" "$output" grouped-gemm --op "$op" --permute "$permute" --topk "$topk" --backend "$backend"
        same 1e-5 "$op, permute $permute, $backend" "$expected" "$output" "$result"
    done
}

part own gemm y fprop none 1 "$x" "$weight" "$y" "$alpha" "$beta" "$bias" "$bias_scale"
part own gemm y fprop x 2 'x:F32[35,24]:~1' "$weight" "$slots" "$bias"
part own gemm y fprop y 2 "$x" "$weight" "$slots" "$row_weight" "$alpha"
part own gemm x dgrad none 1 "$y" "$weight" "$x" "$alpha" "$beta"
part own gemm x dgrad x 2 "$y" "$weight" "$slots"
part own gemm x dgrad y 2 "$y" "$weight" "$slots"
part own gemm weight wgrad x 2 'x:F32[35,24]:~1' "$y" "$slots" "$alpha"
part own gemm weight wgrad y 2 "$x" "$y" "$slots" "$weight" "$beta"

accumulated() {
    pack "$input" "$ends" "$x" "$y" "$weight"
    pack "$expected" "$ends" "$x" "$y" "$weight" 'beta:F32[3]:1'
    "$tools/expect" wgrad "$expected" "$expected"
    op "$input" "$output" grouped-gemm --op wgrad --accumulate
    same 1e-5 'wgrad, accumulated' "$expected" "$output" weight
}

cudnn_names() {
    pack "$input" 'offsets:I32[3]:20,20,70' 'a:F32[40,70]:~7' 'b_t:F32[24,70]:~8' "wgrad:F32[3,40,24]:~2" \
        'global_scale_a:F32[3]:2,3,4' 'global_scale_b:F32[3]:0.5,1,0.125'
    pack "$(at transposed)" "$ends" 'y:F32[40,70]:~7' 'x:F32[24,70]:~8' "$weight" 'alpha:F32[3]:1,3,0.5'
    op "$input" "$output" grouped-gemm-wgrad --format f32 --accumulate
    op "$(at transposed)" "$(at weight)" grouped-gemm --op wgrad --x-transposed --y-transposed --accumulate
    pack "$expected" "wgrad=$(at weight)#weight"
    same bytes 'wgrad by cuDNN names' "$expected" "$output" wgrad
}

without_rows() {
    pack "$input" 'offsets:I32[2]:0,0' 'a:F32[8,0]:0' 'b_t:F32[8,0]:0'
    pack "$expected" 'wgrad:F32[2,8,8]:0'
    op "$input" "$output" grouped-gemm-wgrad --format f32
    same bytes 'wgrad without rows' "$expected" "$output" wgrad
}
part own accumulated
part own cudnn_names
part own without_rows

casts() { # FORMAT TYPE
    local word=$1 type=$2
    pack "$input" 'x:F32[72,24]:~1'
    pack "$expected" "y:${type}[72,24]:~1"
    op "$input" "$output" cast --to "$word"
    same bytes "cast to $word" "$expected" "$output" y
    pack "$(at narrow)" "x:${type}[72,24]:~1"
    op "$(at narrow)" "$(at wide)" cast
    on "$expected" grouped-gemm "$ends" "x=$(at wide)#y" "weight:F32[3,24,24]:@$(at wide)#y"
    pack "$input" "$ends" "x=$(at narrow)#x" "weight:${type}[3,24,24]:@$(at narrow)#x"
    op "$input" "$output" grouped-gemm --format "$word" --backend portable # tensor cores sum in another order
    same bytes "$word and the same values in float32" "$expected" "$output" y
}
for format in f16:F16 bf16:BF16 e4m3:F8_E4M3 e5m2:F8_E5M2; do part own casts "${format%:*}" "${format#*:}"; done

interleaved() {
    local granularity
    pack "$input" 'x:I32[1,8]:0,1,2,3,4,5,6,7'
    pack "$expected" 'y:I32[1,8]:0,4,1,5,2,6,3,7' 'x:I32[1,8]:0,1,2,3,4,5,6,7'
    op "$input" "$output" interleave --granularity 1
    same bytes 'interleave by 1' "$expected" "$output" y
    for granularity in 8 32 I; do
        pack "$input" 'x:BF16[3,128,5]:~9'
        pack "$expected" 'y:BF16[3,128,5]:~9'
        op "$input" "$(at runs)" interleave --granularity $granularity
        on "$output" "interleave --granularity $granularity --inverse" "x=$(at runs)#y"
        same bytes "interleave rows by $granularity and back" "$expected" "$output" y
    done
}
part own interleaved

# ---- GLU, dGLU and quant of plain operands ----

ends='padded_offsets:I32[3]:20,20,70' a='a:F32[70,24]:~1' b='b:F32[3,64,24]:~2' prob='prob:F32[70]:~3' bias='bias:F32[3,64]:~4'
c='c:F32[70,128]:-9,3,0.5,8,-2,1.5,7,-7,0,0.25,-0.75,2.5,-1'

# glu OP RESULTS WORDS TENSOR...: compares both backends with float64 loops; WORDS: activation and interleave granularity
glu() {
    local op=$1 results=$2 words=$3 act run backend
    pack "$input" "$ends" "$alpha" "${@:4}"
    read -r act run <<<"$words"
    "$tools/expect" "$op" "$input" "$expected" "$act" "$run" >>"$log" 2>&1
    local options=(--act "$act" --interleave "$run")
    [ "$op" != quant ] || options=()
    for backend in reference portable; do
        op "$input" "$output" "grouped-gemm-$op" --format f32 "${options[@]}" --backend "$backend"
        # shellcheck disable=SC2086
        same 1e-5 "$op $words, $backend" "$expected" "$output" $results
    done
}

part own glu glu 'c d amax' 'swiglu 32' "$a" "$b" "$bias" "$prob"
part own glu glu 'c d amax' 'geglu 8' "$a" "$b"
part own glu quant 'd amax' 'swiglu 1' "$a" "$b" "$prob"
part own glu quant 'd amax' 'swiglu 1' "$a" "$b" "$prob" "$bias"
part own glu dglu 'd dprob dbias amax' 'swiglu 32' "$a" "$b" "$c" "$prob" 'beta:F32[3]:1,0.5,-2'
part own glu dglu 'd dprob dbias amax' 'geglu 1' "$a" "$b" "$c" "$prob"

transposed() {
    local k_major='1,2,3,4,5,6' n_major='1,4,2,5,3,6' op
    local offsets='padded_offsets:I32[1]:4' c='c:F32[4,4]:~1' a='a:F32[4,3]:1,2,3,4,5,6,7,8,9,10,11,12'
    for op in glu dglu; do
        on "$expected" "grouped-gemm-$op --format f32 --interleave 1" "$offsets" "$a" "b:F32[1,2,3]:$k_major" "$c"
        on "$output" "grouped-gemm-$op --format f32 --interleave 1 --b-major n" "$offsets" "$a" "b:F32[1,3,2]:$n_major" "$c"
        same bytes "$op with b transposed" "$expected" "$output" d
    done
    on "$output" 'grouped-gemm --x-transposed --weight-transposed' 'ends:I32[1]:4' 'x:F32[3,4]:1,4,7,10,2,5,8,11,3,6,9,12' \
        "weight:F32[1,3,2]:$n_major"
    pack "$expected" 'y:F32[4,2]:14,32,32,77,50,122,68,167'
    same bytes 'x and weight transposed' "$expected" "$output" y
}
part own transposed

# ---- quantized operands ----

# quantized NAME SEED LINES,WIDTH ENDS WORD...: NAME.q = payload and scales of random values, NAME.x = the dequantized values
quantized() {
    pack "$(at "$1")" "x:F32[$3]:~$2" "ends:I32[3]:$4" 'global_scale:F32[1]:1'
    op "$(at "$1")" "$(at "$1.q")" quantize "${@:5}"
    pack "$(at "$1")" "q=$(at "$1.q")#q" "scale=$(at "$1.q")#scale" "ends:I32[3]:$4" 'global_scale:F32[1]:1'
    op "$(at "$1")" "$(at "$1.x")" dequantize "${@:5}"
}

rows='40,40,240' # of 280
offsets="padded_offsets:I32[3]:$rows" ends="ends:I32[3]:$rows" prob_all='prob:F32[280]:0.5,-1,0,2,0.75' c_all='c:F32[280,256]:~6'
# operands FORMAT:WORD: the format's name for quantize and for the GEMMs. On backends that sum in the order of plain GEMMs
operands() {
    local word=${1#*:} file=(--format "${1%:*}") squares=(--format "${1%:*}") width=128
    case $word in
    fp8-block) squares=(--format fp8-128x128) ;;
    *fp4) width=64 ;;
    esac
    quantized a 1 280,128 "$rows" "${file[@]}"
    quantized b 2 192,128 64,128,192 "${squares[@]}"
    on "$expected" 'grouped-gemm-glu --format f32' "$offsets" "a=$(at a.x)#x" "b:F32[3,64,128]:@$(at b.x)#x" "$prob_all"
    on "$output" "grouped-gemm-glu --format $word --scales linear --backend reference" "$offsets" "a=$(at a.q)#q" \
        "sfa=$(at a.q)#scale" "b:U8[3,64,$width]:@$(at b.q)#q" "sfb=$(at b.q)#scale" "$prob_all"
    same bytes "glu of $word, linear scales, c" "$expected" "$output" c
    same 1e-6 "glu of $word, linear scales" "$expected" "$output" d amax
    [ "$word" != fp8-block ] || return 0
    on "$output" "grouped-gemm-glu --format $word --scales tiled-groups --backend portable" "$offsets" "a=$(at a.q)#q" \
        "sfa=$(at a.q)#swizzled" "b:U8[3,64,$width]:@$(at b.q)#q" "sfb=$(at b.q)#swizzled" "$prob_all"
    same bytes "glu of $word, scales tiled for each group" "$expected" "$output" c d amax
    case $word in *p8-e5m2 | mxfp4) return 0 ;; esac

    # the reduction index is the rows
    quantized y 3 280,64 "$rows" "${file[@]}" --axis column --transposed
    quantized x 4 280,128 "$rows" "${file[@]}" --axis column --transposed
    on "$(at weight)" 'grouped-gemm --op wgrad' "$ends" "y=$(at y.x)#x" "x=$(at x.x)#x"
    pack "$expected" "wgrad=$(at weight)#weight"
    on "$output" "grouped-gemm-wgrad --format $word --scales linear --backend portable" "offsets:I32[3]:$rows" "a=$(at y.q)#q" \
        "sfa=$(at y.q)#scale" "b_t=$(at x.q)#q" "sfb=$(at x.q)#scale"
    same bytes "wgrad of $word" "$expected" "$output" wgrad

    # the reduction index is the rows of the weight, which may be stored transposed
    quantized y 5 280,64 "$rows" "${file[@]}"
    quantized weight 2 192,128 64,128,192 "${file[@]}" --axis column
    quantized transposed 2 384,64 128,256,384 "${file[@]}"
    on "$expected" 'grouped-gemm --op dgrad' "$ends" "y=$(at y.x)#x" "weight:F32[3,64,128]:@$(at weight.x)#x"
    on "$output" "grouped-gemm --op dgrad --format $word --backend portable" "$ends" "y=$(at y.q)#q" "y_scale=$(at y.q)#scale" \
        "weight:U8[3,$((64 * width / 128)),128]:@$(at weight.q)#q" "weight_scale=$(at weight.q)#scale"
    same bytes "dgrad of $word" "$expected" "$output" x
    on "$expected" 'grouped-gemm-dglu --format f32 --b-major n' "$offsets" "a=$(at y.x)#x" "b:F32[3,64,128]:@$(at weight.x)#x" \
        "$c_all" "$prob_all"
    on "$output" "grouped-gemm-dglu --format $word --scales tiled-groups --b-major n --backend portable" "$offsets" \
        "a=$(at y.q)#q" "sfa=$(at y.q)#swizzled" "b:U8[3,$((64 * width / 128)),128]:@$(at weight.q)#q" \
        "sfb=$(at weight.q)#swizzled" "$c_all" "$prob_all"
    same bytes "dglu of $word with b transposed" "$expected" "$output" d dprob dbias amax
    on "$expected" 'grouped-gemm-dglu --format f32' "$offsets" "a=$(at y.x)#x" "b:F32[3,128,64]:@$(at transposed.x)#x" "$c_all" "$prob_all"
    on "$output" "grouped-gemm-dglu --format $word --scales linear --backend portable" "$offsets" "a=$(at y.q)#q" \
        "sfa=$(at y.q)#scale" "b:U8[3,128,$((width / 2))]:@$(at transposed.q)#q" "sfb=$(at transposed.q)#scale" "$c_all" "$prob_all"
    same bytes "dglu of $word" "$expected" "$output" d dprob dbias amax
}
for format in mxfp8-e4m3:mxfp8 mxfp8-e5m2:mxfp8-e5m2 mxfp4:mxfp4 nvfp4:nvfp4 fp8-1x128:fp8-block; do part own operands $format; done

# global scales of NVFP4, given as such or multiplied into alpha
global_scales() {
    local operands
    quantized x 1 280,128 "$rows" --format nvfp4
    quantized weight 2 192,128 64,128,192 --format nvfp4
    operands=("x=$(at x.q)#q" "x_scale=$(at x.q)#scale" "weight:U8[3,64,64]:@$(at weight.q)#q" "weight_scale=$(at weight.q)#scale")
    on "$expected" 'grouped-gemm --format nvfp4' "$ends" "${operands[@]}" 'alpha:F32[3]:1.5,3,-0.5'
    on "$output" 'grouped-gemm --format nvfp4' "$ends" "${operands[@]}" 'x_global:F32[1]:0.5' 'weight_global:F32[3]:3,6,-1'
    same bytes 'global scales' "$expected" "$output" y
}
part own global_scales

# steps CASE: quantizes x, then the weights of the same file under their names, and runs the GEMM on the result
steps() {
    local case=$1 step word global weights
    step=$(at step)
    read -r word global <<<"$case"
    weights=$word
    [ "$word" != fp8-block ] || weights=fp8-128x128
    pack "$step" "$ends" 'x:F32[280,128]:~1' 'weight:F32[3,72,128]:~2' 'alpha:F32[3]:1.5,3,-0.5'
    op "$step" "$step" quantize --format "$word" --name x ${global:+"$global"}
    op "$step" "$step" quantize --format "$weights" --name weight ${global:+"$global"}
    op "$step" "$output" grouped-gemm --format "$word" --backend portable
    op "$step" "$(at values)" dequantize --format "$word" --name x ${global:+"$global"}
    op "$(at values)" "$(at values)" dequantize --format "$weights" --name weight ${global:+"$global"}
    op "$(at values)" "$expected" grouped-gemm
    case $word in
    nvfp4) same 1e-6 "quantize, quantize, grouped-gemm: $case" "$expected" "$output" y ;;
    *) same bytes "quantize, quantize, grouped-gemm: $case" "$expected" "$output" y ;;
    esac
    pack "$(at plain)" 'x:F32[280,128]:~1' 'weight:F32[3,72,128]:~2'
    ! "$compare" largest --expected "$(at plain)" --actual "$(at values)" --only weight --tolerance 1e-4 >>"$log" &&
        "$compare" largest --expected "$(at plain)" --actual "$(at values)" --only weight --tolerance 0.3 >>"$log"
    verdict $? "$case: the weights are rounded, by at most 0.3"
}
for case in 'mxfp8' 'mxfp4' 'nvfp4' 'nvfp4 --group-scales' 'fp8-block' 'fp8-1x128' 'fp8-128x128'; do part own steps "$case"; done

two_axes() {
    local step
    step=$(at step)
    pack "$step" "$ends" 'y:F32[280,64]:~1' 'weight:F32[3,64,128]:~2'
    op "$step" "$step" quantize --name y
    op "$step" "$step" quantize --name weight --axis column
    op "$step" "$output" grouped-gemm --op dgrad --format mxfp8-e4m3
    pack "$(at tiled)" "$ends" "y=$step#y" "y_scale=$step#y_swizzled" "weight=$step#weight" "weight_scale=$step#weight_swizzled"
    op "$(at tiled)" "$expected" grouped-gemm --op dgrad --format mxfp8 --scales tiled
    same bytes 'quantize, quantize, dgrad: linear and tiled scales' "$expected" "$output" x
}
part own two_axes

# ---- quantized results ----

gemm_results() {
    # nvfp4 with the norm that uses its whole range: 2688 / the largest magnitude, about 29
    on "$expected" grouped-gemm "$ends" 'x:F32[280,128]:~1' 'weight:F32[3,64,128]:~2'
    pack "$(at normed)" "$ends" "x=$input#x" "weight=$input#weight" 'norm:F32[1]:64'
    op "$(at normed)" "$output" grouped-gemm --out-format nvfp4
    on "$output" 'dequantize --format nvfp4' "q=$output#y" "scale=$output#y_scale" 'global_scale:F32[1]:0.015625'
    pack "$expected" "x=$expected#y"
    same 0.15 'gemm to nvfp4, dequantized by 1/norm' "$expected" "$output" x

    # fp8 in blocks of 128 x 128, and a second result `column` in blocks along columns
    pack "$(at quantize)" "$ends" "x=$expected#x"
    op "$(at quantize)" "$(at square)" quantize --format fp8-128x128
    op "$(at quantize)" "$(at column)" quantize --format fp8-1x128 --axis column
    pack "$expected" "y=$(at square)#q" "y_scale=$(at square)#scale" "column=$(at column)#q" "column_scale=$(at column)#scale"
    on "$output" 'grouped-gemm --out-format fp8-128x128' "$ends" 'x:F32[280,128]:~1' 'weight:F32[3,64,128]:~2'
    same bytes 'gemm to fp8-128x128 with a column result' "$expected" "$output" y y_scale column column_scale
}
part own gemm_results

glu_results() {
    local word
    on "$(at d)" 'grouped-gemm-glu --format f32' "$offsets" 'a:F32[280,24]:~1' 'b:F32[3,128,24]:~2' "$prob_all"
    pack "$(at halves)" "$offsets" 'a:F32[280,24]:~1' 'b:F32[3,128,24]:~2' 'prob:F32[280]:0.25,-0.5,0,1,0.375' 'norm_const:F32[1]:2'
    pack "$(at quantize)" "x=$(at d)#d" "$ends"
    pack "$(at c)" "x=$(at d)#c"
    op "$(at quantize)" "$(at half)" cast --to f16
    op "$(at c)" "$(at brain)" cast --to bf16
    pack "$expected" "d=$(at half)#y" "c=$(at brain)#y"
    op "$input" "$output" grouped-gemm-glu --format f32 --c-format bf16 --d-format f16
    same bytes 'glu to bf16 and f16' "$expected" "$output" c d
    for word in mxfp8 mxfp4; do
        op "$(at quantize)" "$(at row)" quantize --format "$word"
        op "$(at quantize)" "$(at column)" quantize --format "$word" --axis column
        pack "$expected" "d=$(at row)#q" "sfd_row=$(at row)#scale" "d_col=$(at column)#q" "sfd_col=$(at column)#scale"
        op "$input" "$output" grouped-gemm-glu --format f32 --d-format $word --scales linear
        same bytes "glu to $word, linear scales" "$expected" "$output" d sfd_row d_col sfd_col
        op "$(at halves)" "$output" grouped-gemm-glu --format f32 --d-format $word --scales linear
        same bytes "glu to $word, half of prob and a norm of 2" "$expected" "$output" d sfd_row d_col sfd_col
        pack "$expected" "sfd_row=$(at row)#swizzled" "sfd_col=$(at column)#swizzled"
        op "$input" "$output" grouped-gemm-glu --format f32 --d-format $word --scales tiled-groups --backend reference
        same bytes "glu to $word, tiled scales" "$expected" "$output" sfd_row sfd_col
    done
}
part own glu_results
finish
