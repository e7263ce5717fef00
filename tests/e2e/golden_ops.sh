#!/usr/bin/env bash
# run: check
# moert-op's quantizers and grouped GEMMs on both backends, compared with golden files and with small numbers computed by hand.
# Compares runs that must agree: quantized operands against the same values in float32, and tiled scales against linear scales.
. "$(dirname "$0")/../support/e2e.sh"
golden=tests/golden/ops
tools=${TEST_BUILD:-build}/tests

# own COMMAND...: runs COMMAND as a part (see tests/support/e2e.sh), with $input, $output and $expected of its own
own() {
    input=$tmp/input.safetensors output=$tmp/output.safetensors expected=$tmp/expected.safetensors
    "$@"
}

# op IN OUT WORD...: removes an old OUT (unless OUT is IN) and runs moert-op. The portable backend runs without AMX tiles
op() {
    local clean=()
    [[ " ${*:3} " != *' --backend portable '* ]] || clean=(env -u MOERT_BF16)
    [ "$1" = "$2" ] || rm -f "$2"
    alone "${clean[@]}" "$bin/moert-op" "${@:3}" --input "$1" --output "$2"
}

# at NAME: prints the path of the intermediate file NAME
at() { echo "$tmp/$1.safetensors"; }

# pack OUT TENSOR...
pack() { "$tools/pack" "$@" >>"$log" 2>&1; }

# on OUT WORDS TENSOR...: packs these tensors into an input file and runs moert-op on it
on() {
    pack "$input" "${@:3}"
    # shellcheck disable=SC2086
    op "$input" "$1" $2
}

# same MODE TITLE EXPECTED ACTUAL [TENSOR...]: prints the verdict on the comparison of the tensors TENSOR... of two files
# (default: all tensors of EXPECTED). MODE is `bytes` or a tolerance
same() {
    local mode=$1 title=$2 how=(bytes) tensor status=0
    [ "$mode" = bytes ] || how=(largest --tolerance "$mode")
    for tensor in "${@:5}" $([ $# -gt 4 ] || echo all); do
        "$compare" "${how[@]}" --expected "$3" --actual "$4" $([ "$tensor" = all ] || echo "--only=$tensor") >>"$log" 2>&1 || status=1
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

# ---- golden quantized matrices, compared byte for byte, and the conversion of their tiled scales to linear ones ----

# agrees TITLE WORD...: prints the verdict on the last command, and on the comparison of its output with $path by
# tests/tools/compare
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

# ---- plain operands: small numbers ----

# gives WORDS TENSOR... -- TENSOR...: checks that on both backends the operation WORDS gives the tensors after --, within 1e-5 of
# the largest value
gives() {
    local words=$1 inputs=() backend
    shift
    while [ "$1" != -- ]; do
        inputs+=("$1")
        shift
    done
    pack "$expected" "${@:2}"
    for backend in reference portable; do
        on "$output" "$words --backend $backend" "${inputs[@]}"
        same 1e-5 "$words, $backend" "$expected" "$output"
    done
}

ends='ends:I32[2]:1,3' alpha='alpha:F32[2]:2,-0.5' beta='beta:F32[2]:0.5,3' prob='prob:F32[3]:0.5,-2,3'
x='x:F32[3,2]:1,2,3,-4,-5,6' weight='weight:F32[2,3,2]:1,2,-3,4,5,0,0.5,-1,2,3,-2,1' y='y:F32[3,3]:1,-2,3,4,0.5,-1,2,-3,1'
bias='bias:F32[2,3]:1,2,3,-1,-2,-3'
part own gives 'grouped-gemm' "$ends" "$x" "$weight" "$y" "$alpha" "$beta" "$bias" 'bias_scale:F32[3]:0.5,2,-1' \
    -- 'y:F32[3,3]:11,10,13,7.25,0.5,-4,11.25,-11,-2'
part own gives 'grouped-gemm' "$ends" "$x" "$weight" "$prob" -- 'y:F32[3,3]:2.5,2.5,2.5,-11,12,20,-25.5,24,48'
part own gives 'grouped-gemm --op dgrad' "$ends" "$y" "$weight" "$x" "$alpha" "$beta" -- 'x:F32[3,2]:44.5,-11,6.5,-10.25,-11.5,23'
part own gives 'grouped-gemm --op wgrad --accumulate' "$ends" "$x" "$y" "$weight" -- 'weight:F32[2,3,2]:2,4,-5,0,8,6,2.5,-5,18.5,-17,-10,11'
part own gives 'grouped-gemm --x-transposed --weight-transposed' 'ends:I32[1]:4' 'x:F32[3,4]:1,4,7,10,2,5,8,11,3,6,9,12' \
    'weight:F32[1,3,2]:1,4,2,5,3,6' -- 'y:F32[4,2]:14,32,32,77,50,122,68,167'
part own gives 'grouped-gemm --op wgrad --x-transposed --y-transposed' 'ends:I32[1]:2' 'y:F32[1,2]:1,2' 'x:F32[2,2]:3,4,5,6' \
    -- 'weight:F32[1,1,2]:11,17'
part own gives 'grouped-gemm-wgrad --format f32 --accumulate' 'offsets:I32[2]:2,2' 'a:F32[1,2]:1,2' 'b_t:F32[2,2]:3,4,5,6' \
    'wgrad:F32[2,1,2]:1' 'global_scale_a:F32[2]:2,3' 'global_scale_b:F32[2]:0.5,4' -- 'wgrad:F32[2,1,2]:12,18,1,1'
part own gives 'grouped-gemm-wgrad --format f32' 'offsets:I32[2]:0,0' 'a:F32[8,0]:0' 'b_t:F32[8,0]:0' -- 'wgrad:F32[2,8,8]:0'

# four slots of two tokens
slots=('ends:I32[2]:1,4' 'gather:I32[4]:2,1,3,0' "$weight")
x4='x:F32[4,2]:1,2,3,-4,-5,6,0.5,1' y4='y:F32[4,3]:1,-2,3,4,0.5,-1,2,-3,1,-1,1,2'
part own gives 'grouped-gemm --permute x --topk 2' "${slots[@]}" 'x:F32[2,2]:1,2,3,-4' "$bias" \
    -- 'y:F32[4,3]:-4,-23,18,-2.5,6,-3,4.5,-8,-13,-2.5,6,-3'
part own gives 'grouped-gemm --permute y --topk 2' "${slots[@]}" "$x4" "$alpha" 'row_weight:F32[4]:0.5,2,-1,3' \
    -- 'y:F32[4,3]:0.1875,-1,0,-5.5,6,10,-10,-10,-10,12.75,-12,-24'
part own gives 'grouped-gemm --op dgrad --permute x --topk 2' "${slots[@]}" "$y4" -- 'x:F32[4,2]:-2.5,6,5,-3.5,22,-6,-7,-10'
part own gives 'grouped-gemm --op dgrad --permute y --topk 2' "${slots[@]}" "$y4" -- 'x:F32[4,2]:16,-8,5,-3.5,-2.5,6,-9.5,-4'
part own gives 'grouped-gemm --op wgrad --permute x --topk 2' "${slots[@]}" 'x:F32[2,2]:1,2,3,-4' "$y4" "$alpha" \
    -- 'weight:F32[2,3,2]:6,-8,-12,16,18,-24,-4.5,1,3.75,-7.5,-2,1'
part own gives 'grouped-gemm --op wgrad --permute y --topk 2' "${slots[@]}" "$x4" "$y4" "$beta" \
    -- 'weight:F32[2,3,2]:2.5,5,-4.5,-4,3.5,2,19,-24,1.5,11,-17.5,22'

glu=('padded_offsets:I32[2]:1,3' 'a:F32[3,2]:1,2,3,-4,-5,6') b='b:F32[2,4,2]:1,2,-3,4,5,0,-1,1,0.5,-1,2,3,-2,1,1,1'
bias='bias:F32[2,4]:1,2,3,-1,-1,-2,-3,2'
part own gives 'grouped-gemm-glu --format f32 --interleave 0' "${glu[@]}" "$b" "$alpha" "$bias" "$prob" \
    -- 'c:F32[3,4]:11,12,13,1,-3.75,1,2,2.5,3.25,-6,-11,1.5' 'amax:F32[2]:71.4988058,103.246691' \
    'd:F32[3,2]:71.4988058,5.99996313,0.344660549,-3.65529289,-103.246691,-0.0667608252'
part own gives 'grouped-gemm-glu --format f32 --act geglu --interleave 1' "${glu[@]}" "$b" \
    -- 'c:F32[3,4]:5,5,5,1,5.5,-6,-10,-1,-8.5,8,16,1' 'amax:F32[2]:29.9939579,27.4976348' \
    'd:F32[3,2]:29.9939579,9.99798597,-27.4976348,0,-3.54462598e-05,13.9999063'
part own gives 'grouped-gemm-glu --format f32 --act silu --interleave 1 --glu-order linear-first --limit 3 --b-major n' "${glu[@]}" \
    'b:F32[2,2,4]:1,-3,5,-1,2,4,0,1,0.5,2,-2,1,-1,3,1,1' \
    -- 'd:F32[3,2]:8.57316714,2.19317574,-0.0445072168,0.806824264,-8.57316714,2.19317574' 'amax:F32[2]:8.57316714'
part own gives 'grouped-gemm-quant --format f32' "${glu[@]}" "$b" "$alpha" "$prob" \
    -- 'd:F32[3,4]:5,5,5,1,5.5,-6,-10,-1,12.75,-12,-24,-1.5' 'amax:F32[2]:5,24'
part own gives 'grouped-gemm-quant --format f32' "${glu[@]}" "$b" "$alpha" "$prob" "$bias" \
    -- 'd:F32[3,4]:10.5,11,11.5,1.5,-0.75,7,11,-3.5,1.25,-10,-17,5.5' 'amax:F32[2]:11.5,17'
glu+=('c:F32[3,4]:-9,3,0.5,8,8,-2,1.5,-7.5,2,0.25,-0.75,2.5') # some values of c are beyond the limits of geglu
b='b:F32[2,2,2]:1,2,-3,4,0.5,-1,2,3'
part own gives 'grouped-gemm-dglu --format f32 --interleave 0' "${glu[@]}" "$b" "$alpha" "$beta" "$prob" \
    -- 'd:F32[3,4]:-0.09477773,41.65177,-0.4944124,12.26362,-12.375,0.8320342,-66,-0.04450722,14.52056,37.917,-38.15542,3.056304' \
    'dprob:F32[3]:97.8617309,147.999294,36.257327' 'amax:F32[2,2]:41.6517662,12.2636171,37.9169975,66' \
    'dbias:F32[2,4]:-0.0947777278,41.6517662,-0.494412418,12.2636171,2.14555726,38.7490317,-104.155422,3.01179693'
part own gives 'grouped-gemm-dglu --format f32 --act geglu --interleave 1 --b-major n' "${glu[@]}" 'b:F32[2,2,2]:1,-3,2,4,0.5,2,-1,3' \
    "$alpha" "$prob" \
    -- 'd:F32[3,4]:-3.186833e-05,-5.007945e-06,17.58444,0,0,-76.99948,-79.11706,0,-34.22786,-49.3593,0.03599119,-3.926639' \
    'dprob:F32[3]:14.0154974,11.6000969,-25.1474513' 'amax:F32[2,2]:17.5844382,5.00794497e-06,79.1170607,76.9994844' \
    'dbias:F32[2,4]:-3.18683284e-05,-5.00794497e-06,17.5844382,0,-34.2278644,-126.358779,-79.0810695,-3.92663862'
part own gives 'interleave --granularity 1' 'x:F32[1,8]:0,1,2,3,4,5,6,7' -- 'y:F32[1,8]:0,4,1,5,2,6,3,7'

# a GLU with interleaved weights, and the dGLU of the GLU's c, give the results of weights whose gate and up are halves
interleaved() {
    local run offsets='padded_offsets:I32[3]:20,20,70' a='a:F32[70,24]:~1' dy='a:F32[70,24]:~3' b='b:F32[3,64,24]:~4'
    pack "$(at b)" 'x:F32[3,128,24]:~2'
    on "$(at halves)" 'grouped-gemm-glu --format f32 --interleave 0' "$offsets" "$a" "b=$(at b)#x"
    on "$(at gradient)" 'grouped-gemm-dglu --format f32 --interleave 0' "$offsets" "$dy" "$b" "c=$(at halves)#c"
    pack "$expected" "y=$(at gradient)#d" "dprob=$(at gradient)#dprob" "d=$(at halves)#d"
    for run in 1 8 32 I; do
        op "$(at b)" "$(at runs)" interleave --granularity $run
        on "$(at glu)" "grouped-gemm-glu --format f32 --interleave ${run/I/0}" "$offsets" "$a" "b=$(at runs)#y"
        on "$(at dglu)" "grouped-gemm-dglu --format f32 --interleave ${run/I/0}" "$offsets" "$dy" "$b" "c=$(at glu)#c"
        on "$(at back)" "interleave --granularity $run --inverse" "x=$(at dglu)#d"
        pack "$output" "y=$(at back)#y" "dprob=$(at dglu)#dprob" "d=$(at glu)#d"
        same bytes "GLU and dGLU in runs of $run" "$expected" "$output"
    done
}
part own interleaved

casts() { # FORMAT TYPE
    local word=$1 type=$2
    pack "$input" 'x:F32[72,24]:~1'
    pack "$expected" "y:${type}[72,24]:~1"
    op "$input" "$output" cast --to "$word"
    same bytes "cast to $word" "$expected" "$output"
    pack "$(at narrow)" "x:${type}[72,24]:~1"
    op "$(at narrow)" "$(at wide)" cast
    [[ $word != e?m? ]] || {
        on "$output" "cast --from $word" "x:U8[72,24]:@$(at narrow)#x"
        same bytes "bytes are cast from $word" "$(at wide)" "$output"
    }
    on "$expected" grouped-gemm 'ends:I32[3]:20,20,70' "x=$(at wide)#y" "weight:F32[3,24,24]:@$(at wide)#y"
    pack "$input" 'ends:I32[3]:20,20,70' "x=$(at narrow)#x" "weight:${type}[3,24,24]:@$(at narrow)#x"
    op "$input" "$output" grouped-gemm --format "$word" --backend portable # tensor cores sum in another order
    same bytes "$word and the same values in float32" "$expected" "$output"
}
for format in f16:F16 bf16:BF16 e4m3:F8_E4M3 e5m2:F8_E5M2; do part own casts "${format%:*}" "${format#*:}"; done

# ---- quantized operands ----

# quantized NAME SEED LINES,WIDTH ENDS WORD...: quantizes random values; NAME.q gets payload and scales, NAME.x gets the
# dequantized values
quantized() {
    pack "$(at "$1")" "x:F32[$3]:~$2" "ends:I32[3]:$4" 'global_scale:F32[1]:1'
    op "$(at "$1")" "$(at "$1.q")" quantize "${@:5}"
    pack "$(at "$1")" "q=$(at "$1.q")#q" "scale=$(at "$1.q")#scale" "ends:I32[3]:$4" 'global_scale:F32[1]:1'
    op "$(at "$1")" "$(at "$1.x")" dequantize "${@:5}"
}

# agree TITLE RESULTS PLAIN LOW OPERAND... -- TENSOR...: checks that an operation gives the same results with the words PLAIN on
# dequantized values and with the words LOW on payloads and scales. An OPERAND is TENSOR:SCALES:NAME, where NAME is an argument of
# `quantized`; for a weight, :SHAPE:SHAPE of the payload follows
agree() {
    local title=$1 results=$2 plain=$3 low=$4 values=() payloads=() tensor scales name shape packed from=scale
    [[ $low != *tiled* ]] || from=swizzled
    shift 4
    while [ "$1" != -- ]; do
        IFS=: read -r tensor scales name shape packed <<<"$1"
        values+=("$tensor$([ -z "$shape" ] && echo = || echo ":F32[$shape]:@")$(at "$name.x")#x")
        payloads+=("$tensor$([ -z "$packed" ] && echo = || echo ":U8[$packed]:@")$(at "$name.q")#q" "$scales=$(at "$name.q")#$from")
        shift
    done
    on "$expected" "$plain" "${values[@]}" "${@:2}"
    on "$output" "$low" "${payloads[@]}" "${@:2}"
    # shellcheck disable=SC2086
    same bytes "$title" "$expected" "$output" $results
}

rows='40,40,240' # of 280
offsets="padded_offsets:I32[3]:$rows" ends="ends:I32[3]:$rows" prob='prob:F32[280]:0.5,-1,0,2,0.75' c='c:F32[280,256]:~6'
# operands FORMAT:WORD: FORMAT is the name of a format for quantize, WORD the name for the GEMMs. Runs on backends that sum in the
# order of plain GEMMs
operands() {
    local word=${1#*:} file=(--format "${1%:*}") squares=(--format "${1%:*}") width=128 glu dglu b scales
    case $word in
    fp8-block) squares=(--format fp8-128x128) ;;
    *fp4) width=64 ;;
    esac
    quantized a 1 280,128 "$rows" "${file[@]}"
    quantized b 2 192,128 64,128,192 "${squares[@]}"
    glu='grouped-gemm-glu --format' dglu='grouped-gemm-dglu --format' b="b:sfb:b:3,64,128:3,64,$width"
    agree "c of a glu of $word, linear scales" c "$glu f32" "$glu $word --scales linear --backend reference" \
        a:sfa:a "$b" -- "$offsets" "$prob"
    same 1e-6 "glu of $word, linear scales" "$expected" "$output" d amax
    [ "$word" != fp8-block ] || return 0
    agree "glu of $word, scales tiled for each group" 'c d amax' "$glu f32" "$glu $word --scales tiled-groups --backend portable" \
        a:sfa:a "$b" -- "$offsets" "$prob"
    case $word in *p8-e5m2 | mxfp4) return 0 ;; esac

    # the reduction index runs over the rows
    quantized y 3 280,64 "$rows" "${file[@]}" --axis column --transposed
    quantized x 4 280,128 "$rows" "${file[@]}" --axis column --transposed
    on "$(at weight)" 'grouped-gemm --op wgrad' "$ends" "y=$(at y.x)#x" "x=$(at x.x)#x"
    pack "$expected" "wgrad=$(at weight)#weight"
    on "$output" "grouped-gemm-wgrad --format $word --scales linear --backend portable" "offsets:I32[3]:$rows" "a=$(at y.q)#q" \
        "sfa=$(at y.q)#scale" "b_t=$(at x.q)#q" "sfb=$(at x.q)#scale"
    same bytes "wgrad of $word" "$expected" "$output"

    # the reduction index runs over the rows of the weight, which may be stored transposed
    quantized y 5 280,64 "$rows" "${file[@]}"
    quantized weight 2 192,128 64,128,192 "${file[@]}" --axis column
    quantized transposed 2 384,64 128,256,384 "${file[@]}"
    b="weight:3,64,128:3,$((64 * width / 128)),128"
    for scales in linear tiled; do
        agree "dgrad of $word, $scales scales" x 'grouped-gemm --op dgrad' \
            "grouped-gemm --op dgrad --format $word --scales $scales --backend portable" y:y_scale:y "weight:weight_scale:$b" -- "$ends"
    done
    agree "dglu of $word with b transposed" 'd dprob dbias amax' "$dglu f32 --b-major n" \
        "$dglu $word --scales tiled-groups --b-major n --backend portable" a:sfa:y "b:sfb:$b" -- "$offsets" "$c" "$prob"
    agree "dglu of $word" 'd dprob dbias amax' "$dglu f32" "$dglu $word --scales linear --backend portable" a:sfa:y \
        "b:sfb:transposed:3,128,64:3,128,$((width / 2))" -- "$offsets" "$c" "$prob"
}
for format in mxfp8-e4m3:mxfp8 mxfp8-e5m2:mxfp8-e5m2 mxfp4:mxfp4 nvfp4:nvfp4 fp8-1x128:fp8-block; do part own operands $format; done

# steps CASE: quantizes x and the weights of the case's file, keeping the tensors' names, and runs the GEMM on the quantized file
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

# ---- quantized results ----

gemm_results() {
    # nvfp4 with the norm that uses the format's whole range: 2688 / the largest magnitude, about 29
    on "$expected" grouped-gemm "$ends" 'x:F32[280,128]:~1' 'weight:F32[3,64,128]:~2'
    pack "$(at normed)" "$ends" "x=$input#x" "weight=$input#weight" 'norm:F32[1]:64'
    op "$(at normed)" "$output" grouped-gemm --out-format nvfp4
    on "$output" 'dequantize --format nvfp4' "q=$output#y" "scale=$output#y_scale" 'global_scale:F32[1]:0.015625'
    pack "$expected" "x=$expected#y"
    same 0.15 'gemm to nvfp4, dequantized by 1/norm' "$expected" "$output" x

    # fp8 in blocks of 128 x 128, and a second result, `column`, quantized in blocks along columns
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
    on "$(at d)" 'grouped-gemm-glu --format f32' "$offsets" 'a:F32[280,24]:~1' 'b:F32[3,128,24]:~2' "$prob"
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
