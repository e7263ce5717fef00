#!/usr/bin/env bash
# run: check all
# moert-generate continues texts: the same tokens on any number of ranks, with and without a cache, those of transformers for each golden
# model, those of the model's logits, and of moert-train --sample.
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

# golden CASE RANKS OPTION...: the tokens are those that transformers chose (tests/parity/generate.py)
golden() {
    local line prompt tokens
    line=$(grep -F "\"$1\": " tests/golden/generate.json)
    prompt=$(sed -E 's/.*"prompt": \[([^]]*)\].*/\1/; s/,//g' <<<"$line")
    tokens=$(sed -E 's/.*"tokens": \[([^]]*)\].*/\1/; s/,//g' <<<"$line")
    # shellcheck disable=SC2086 # the prompt is a list
    ranks "$2" "$program" --model "tests/golden/$1" --count "$(wc -w <<<"$tokens")" --temperature 0 --no-stops "${@:3}" --tokens $prompt &&
        [ "$(cat "$log")" = "$tokens" ]
    verdict $? "$1 on $2 ranks${3:+ $3}: the tokens of transformers"
}
if [ "$TEST_TIER" = all ]; then
    for case in $(sed -nE 's/^ *"([^"]*)": .*/\1/p' tests/golden/generate.json); do
        for count in 1 2 3; do part golden "$case" $count; done
        part golden "$case" 1 --no-cache
    done
else
    part golden family/gpt-oss 2
    part golden family/deepseek-v3-yarn 1
fi

# lines of tokens, of which the second continues the first text
echo '84 104 101 32' >"$tmp/lines"
alone "$program" --model "$tmp/run/model" --lines --count 5 --temperature 0 <"$tmp/lines" && diff "$log" "$tmp/greedy" >>"$log"
verdict $? "--lines continues a line"
echo "84 104 101 32 $(cat "$tmp/greedy")" >>"$tmp/lines"
for count in 1 3; do
    ranks $count "$program" --model "$tmp/run/model" --lines --count 3 --temperature 0 <"$tmp/lines" && tail -n 1 "$log" >"$tmp/second" &&
        alone "$program" --model "$tmp/run/model" --count 3 --temperature 0 --tokens $(tail -n 1 "$tmp/lines") && diff "$log" "$tmp/second" >>"$log"
    verdict $? "$count ranks: the line after it has the tokens of a new text"
done
echo '84 x' >"$tmp/lines"
refused 2 "line 1 of standard input: 'x' is not the number of a token" "a word in a line" \
    alone "$program" --model "$tmp/run/model" --lines <"$tmp/lines"
echo >"$tmp/lines"
refused 2 "line 1 of standard input has no tokens" "an empty line" alone "$program" --model "$tmp/run/model" --lines <"$tmp/lines"
for count in 1 2; do
    ranks $count "$program" --model "$tmp/run/model" --prompt 'The ' --count 9 --rate &&
        has_lines "$log" '9 tokens: the first after [0-9.]* s, then [0-9.]* tokens/s'
    verdict $? "$count ranks: --rate"
done
refused 2 "give the text to continue, as --prompt, as --tokens or as --lines" "no text" alone "$program" --model "$tmp/run/model"
refused 2 "token 1 of the text is 256; expected 0..255" "a token outside of the vocabulary" alone "$program" --model "$tmp/run/model" --tokens 1 256
refused 2 "a text begins with at least one token" "an empty text" alone "$program" --model "$tmp/run/model" --prompt ''

# launch/generate: texts and chats
if command -v "${PYTHON:-python3}" >/dev/null; then
    logged launch/generate --np 2 --model "$tmp/run/model" --prompt 'The ' --count 40 && diff "$tmp/one" "$log" >>"$log"
    verdict $? "launch/generate: the text of moert-generate"
    printf 'The \n\nThe \n' | logged launch/generate --model "$tmp/run/model" --count 40 && [ "$(cat "$log")" = "$(cat "$tmp/one" "$tmp/one")" ]
    verdict $? "the lines of standard input are texts"
    refused 1 "no tokenizer with a chat template|has no package" "a chat without a template" logged launch/generate --model "$tmp/run/model" --chat
    refused 1 "there is no config.json" "no model" logged launch/generate --model "$tmp" --prompt x
    refused 2 "unknown option --temperatur; did you mean --temperature" "an unknown option" \
        logged launch/generate --model "$tmp/run/model" --prompt x --temperatur 0
fi
if "${PYTHON:-python3}" -c 'import torch, transformers, tokenizers, jinja2' 2>/dev/null; then
    export TRANSFORMERS_VERBOSITY=error
    mkdir "$tmp/data"
    logged "$PYTHON" tests/tools/token_oracle.py make "$tmp/data" && logged launch/tokenize --tokenizer "$tmp/data/chat" --out "$tmp/corpus" LICENSE &&
        ranks 1 "$bin/moert-train" --data "$tmp/corpus" --hidden 32 --intermediate 32 --heads 2 --length 128 --batch 8 --steps 30 --lr 1e-2 --out "$tmp/words" &&
        cp "$tmp/data/chat"/* "$tmp/words/model"
    verdict $? "a small model of words"
    for kind in text chat; do
        printf 'The rights\nof the \nin Über\n' >"$tmp/turns"
        "$PYTHON" tests/tools/generate_oracle.py $kind "$tmp/words/model" 24 <"$tmp/turns" >"$tmp/expected" 2>>"$log"
        words=()
        [ $kind = text ] || words=(--chat)
        launch/generate --np 2 --model "$tmp/words/model" --temperature 0 --count 24 "${words[@]}" <"$tmp/turns" >"$tmp/actual" 2>>"$log"
        diff "$tmp/expected" "$tmp/actual" >>"$log"
        verdict $? "launch/generate, $kind: what transformers generates"
    done
else
    verdict 0 "texts and chats of transformers # SKIP no torch, transformers, tokenizers or jinja2"
fi
finish
