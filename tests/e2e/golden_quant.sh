#!/usr/bin/env bash
# run: check all
# moert-op against the golden quantized matrices, byte for byte, on both backends; also the untiling of their scales.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
golden=tests/golden/quant

# agrees WHICH TITLE COMMAND...: the verdict on COMMAND of moert-op, whose output must have the bytes of $path in the tensors WHICH
agrees() {
    local which=$1 title=$2 status
    shift 2
    alone "$bin/moert-op" "$@" --input "$path" --output "$output" &&
        "$compare" bytes --expected "$path" --actual "$output" "$which" >>"$log" 2>&1
    status=$?
    verdict $status "$title: $(tail -n 1 "$log")"
}

matrix() { # FILE
    local path=$1 output=$tmp/output.safetensors name shape block family element rounding options backend
    name=$(basename "$path" .safetensors)
    shape=${name##*-} block=32
    case $name in
    nvfp4-torchao-*)
        options=(--format nvfp4 --nvfp4-rule torchao --global-scale amax)
        block=16
        ;;
    *)
        IFS=- read -r family element rounding _ <<<"$name"
        options=(--format "$family-$element" --scale-rounding "$rounding")
        ;;
    esac
    for backend in reference portable; do
        agrees --except=x "$name, $backend" quantize "${options[@]}" --backend "$backend"
        agrees --only=scale "$name, $backend, scales untiled" unswizzle --backend "$backend" \
            --lines "${shape%x*}" --width $((${shape#*x} / block))
        case $name in *-normal-*)
            alone "$bin/moert-op" dequantize --input "$path" --output "$output" --backend "$backend" \
                "${options[@]:0:2}" &&
                "$compare" tensors --expected "$path" --actual "$output" --only x --tolerance 0.12 >>"$log" 2>&1
            verdict $? "$name, $backend, dequantized: $(tail -n 1 "$log")"
            ;;
        esac
    done
}

for path in "$golden"/*.safetensors; do part matrix "$path"; done
finish
