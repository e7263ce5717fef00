#!/usr/bin/env bash
# run: check
# moert-generate continues texts: the same tokens on any number of ranks, those of the model's logits, and of moert-train --sample.
. "$(dirname "$0")/../support/e2e.sh"
program=$bin/moert-generate
alone "$bin/moert-train" --data LICENSE --hidden 32 --intermediate 32 --heads 2 --length 32 --batch 8 --steps 20 --lr 1e-2 --log-every 0 \
    --out "$tmp/run" --sample 40 --prompt 'The '
sample=$(sed -n '/^sample: /,/^metrics/{s/^sample: //; /^metrics/d; p}' "$log")
verdict $? "a small model of bytes"
alone "$program" --model "$tmp/run/model" --prompt 'The ' --count 40 && cp "$log" "$tmp/one" && [ "$(cat "$log")" = "$sample" ]
verdict $? "the text is that of moert-train --sample"
for count in 2 3; do
    ranks $count "$program" --model "$tmp/run/model" --prompt 'The ' --count 40 && diff "$tmp/one" "$log" >>"$log"
    verdict $? "$count ranks generate the same text"
done

# the most likely tokens, one by one from the logits that moert-train saves
greedy() {
    local tokens=(84 104 101 32) i next
    alone "$program" --model "$tmp/run/model" --tokens "${tokens[@]}" --count 5 --temperature 0 || return 1
    cp "$log" "$tmp/greedy"
    for ((i = 0; i < 5; i++)); do
        printf "$(printf '\\x%02x\\x00' "${tokens[@]}" 0)" >"$tmp/tokens.bin"
        alone "$bin/moert-train" --model "$tmp/run/model" --tokens "$tmp/tokens.bin" --batch 1 --length ${#tokens[@]} --order random \
            --held-out 0 --save-logits "$tmp/logits.safetensors" || return 1
        next=$(python3 - "$tmp/logits.safetensors" <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", data[:8])[0]
tensor = json.loads(data[8:8 + size])["logits"]
first, last = tensor["data_offsets"]
logits = struct.unpack("<%df" % ((last - first) // 4), data[8 + size + first:8 + size + last])[-256:]
print(max(range(256), key=lambda i: (logits[i], -i)))
END
        )
        tokens+=("$next")
    done
    echo "${tokens[*]:4}" | diff - "$tmp/greedy" >>"$log"
}
if command -v python3 >/dev/null; then
    greedy
    verdict $? "greedy tokens have the largest logits"
fi
alone "$program" --model "$tmp/run/model" --tokens 84 104 101 32 --count 5 --temperature 0 && read -r first _ <"$log" &&
    alone "$program" --model "$tmp/run/model" --tokens 84 104 101 32 --count 5 --temperature 0 --stop 7 "$first" && has_lines "$log" "^$first\$"
verdict $? "--stop ends a text"
refused 2 "give the text to continue, as --prompt or as --tokens" "no text" alone "$program" --model "$tmp/run/model"
refused 2 "token 1 of the text is 256; expected 0..255" "a token outside of the vocabulary" alone "$program" --model "$tmp/run/model" --tokens 1 256
refused 2 "a text begins with at least one token" "an empty text" alone "$program" --model "$tmp/run/model" --prompt ''
finish
