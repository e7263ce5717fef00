#!/usr/bin/env bash
# run: check all
# moert-generate continues texts: the same tokens on any number of ranks, with and without a cache, those of transformers for each golden
# model, those of the model's logits, and of moert-train --sample.
. "$(dirname "$0")/../support/e2e.sh"
program=$bin/moert-generate
# made RANKS OPTION...: runs moert-generate; what it prints is in $tmp/out, and signs of long activities are in $log
made() { timeout -k 5 120 "${MOERT_MPIRUN[@]}" -n "$1" "$program" "${@:2}" >"$tmp/out" 2>"$log"; }
program=$bin/moert-train made 1 --data LICENSE --hidden 32 --intermediate 32 --heads 2 --length 32 --batch 8 --steps 20 --lr 1e-2 \
    --log-every 0 --out "$tmp/run" --sample 40 --prompt 'The '
sample=$(sed -n '/^sample: /,/^metrics/{s/^sample: //; /^metrics/d; p}' "$tmp/out")
verdict $? "a small model of bytes"
made 1 --model "$tmp/run/model" --prompt 'The ' --count 40 && cp "$tmp/out" "$tmp/one" && [ "$(cat "$tmp/out")" = "$sample" ]
verdict $? "the text is that of moert-train --sample"
for count in 2 3; do
    made $count --model "$tmp/run/model" --prompt 'The ' --count 40 && diff "$tmp/one" "$tmp/out" >>"$log"
    verdict $? "$count ranks generate the same text"
done

# the most likely tokens, one by one from the logits that moert-train saves
greedy() {
    local tokens=(84 104 101 32) i next
    made 1 --model "$tmp/run/model" --tokens "${tokens[@]}" --count 5 --temperature 0 || return 1
    cp "$tmp/out" "$tmp/greedy"
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
made 1 --model "$tmp/run/model" --tokens 84 104 101 32 --count 5 --temperature 0 && read -r first _ <"$tmp/out" &&
    made 1 --model "$tmp/run/model" --tokens 84 104 101 32 --count 5 --temperature 0 --stop 7 "$first" && has_lines "$tmp/out" "^$first\$"
verdict $? "--stop ends a text"

# golden CASE RANKS OPTION...: the tokens are those that transformers chose (tests/parity/generate.py)
golden() {
    local line prompt tokens
    line=$(grep -F "\"$1\": " tests/golden/generate.json)
    prompt=$(sed -E 's/.*"prompt": \[([^]]*)\].*/\1/; s/,//g' <<<"$line")
    tokens=$(sed -E 's/.*"tokens": \[([^]]*)\].*/\1/; s/,//g' <<<"$line")
    # shellcheck disable=SC2086 # the prompt is a list
    made "$2" --model "tests/golden/$1" --count "$(wc -w <<<"$tokens")" --temperature 0 --no-stops "${@:3}" --tokens $prompt &&
        [ "$(cat "$tmp/out")" = "$tokens" ]
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
made 1 --model "$tmp/run/model" --lines --count 5 --temperature 0 <"$tmp/lines" && diff "$tmp/out" "$tmp/greedy" >>"$log"
verdict $? "--lines continues a line"
echo "84 104 101 32 $(cat "$tmp/greedy")" >>"$tmp/lines"
for count in 1 3; do
    made $count --model "$tmp/run/model" --lines --count 3 --temperature 0 <"$tmp/lines" && tail -n 1 "$tmp/out" >"$tmp/second" &&
        made 1 --model "$tmp/run/model" --count 3 --temperature 0 --tokens $(tail -n 1 "$tmp/lines") && diff "$tmp/out" "$tmp/second" >>"$log"
    verdict $? "$count ranks: the line after it has the tokens of a new text"
done
echo '84 x' >"$tmp/lines"
refused 2 "line 1 of standard input: 'x' is not the number of a token" "a word in a line" \
    alone "$program" --model "$tmp/run/model" --lines <"$tmp/lines"
echo >"$tmp/lines"
refused 2 "line 1 of standard input has no tokens" "an empty line" alone "$program" --model "$tmp/run/model" --lines <"$tmp/lines"
for count in 1 2; do
    made $count --model "$tmp/run/model" --prompt 'The ' --count 9 --rate &&
        has_lines "$log" '9 tokens: the first after [0-9.]* s, then [0-9.]* tokens/s'
    verdict $? "$count ranks: --rate"
done
refused 2 "give the text to continue, as --prompt, as --tokens or as --lines" "no text" alone "$program" --model "$tmp/run/model"
refused 2 "token 1 of the text is 256; expected 0..255" "a token outside of the vocabulary" alone "$program" --model "$tmp/run/model" --tokens 1 256
refused 2 "a text begins with at least one token" "an empty text" alone "$program" --model "$tmp/run/model" --prompt ''

# the log-probabilities of tokens
printf '84 104 | 101 32\n84 104 101 | 32 84 7\n84 104 101 | 0\n' >"$tmp/lines"
made 1 --model "$tmp/run/model" --lines --score <"$tmp/lines" && cp "$tmp/out" "$tmp/scores" &&
    awk '$1 >= 0 || $2 !~ /^[01]$/ { bad = 1 } END { exit NR != 3 || bad }' "$tmp/out"
verdict $? "--score: log-probabilities of three lines"
for count in 2 3; do
    made $count --model "$tmp/run/model" --lines --score --no-cache <"$tmp/lines" && diff "$tmp/scores" "$tmp/out" >>"$log"
    verdict $? "$count ranks, without a cache: the same digits"
done
for i in {0..255}; do echo "84 104 101 | $i"; done >"$tmp/lines"
made 1 --model "$tmp/run/model" --lines --score <"$tmp/lines" &&
    awk '{ sum += exp($1); best += $2 } END { exit !(NR == 256 && best == 1 && sum > 0.999999 && sum < 1.000001) }' "$tmp/out"
verdict $? "the probabilities of all next tokens sum to 1, and one token is the most likely"
echo '84 104' >"$tmp/lines"
refused 2 "line 1 of standard input: expected tokens, a bar and tokens" "a line without a bar" \
    alone "$program" --model "$tmp/run/model" --lines --score <"$tmp/lines"
refused 2 "score needs --lines" "--score without lines" alone "$program" --model "$tmp/run/model" --tokens 1 2 --score

# launch/generate: texts and chats; launch/evaluate: questions
export PYTHON=${PYTHON:-python3}
if command -v "$PYTHON" >/dev/null; then
    launch/generate --np 2 --model "$tmp/run/model" --prompt 'The ' --count 40 >"$tmp/out" 2>"$log" && diff "$tmp/one" "$tmp/out" >>"$log"
    verdict $? "launch/generate: the text of moert-generate"
    printf 'The \n\nThe \n' | launch/generate --model "$tmp/run/model" --count 40 >"$tmp/out" 2>"$log" &&
        [ "$(cat "$tmp/out")" = "$(cat "$tmp/one" "$tmp/one")" ]
    verdict $? "the lines of standard input are texts"
    refused 1 "no tokenizer with a chat template|has no package" "a chat without a template" logged launch/generate --model "$tmp/run/model" --chat
    refused 1 "there is no config.json" "no model" logged launch/generate --model "$tmp" --prompt x
    refused 2 "unknown option --temperatur; did you mean --temperature" "an unknown option" \
        logged launch/generate --model "$tmp/run/model" --prompt x --temperatur 0
    printf '{"question": "The", "choices": ["%s", "zzzz qq"], "answer": 0}\n' "$(tail -c +5 "$tmp/one" | tr -cd 'a-z ' | cut -c 1-8)" >"$tmp/questions"
    printf '{"question": "zz zz zz zz zz zz zz zz zz zz zz", "choices": ["q", "the license", "z"], "answer": 1}\n' >>"$tmp/questions"
    for count in 1 2; do
        logged launch/evaluate --np $count --model "$tmp/run/model" --questions "$tmp/questions" "$tmp/questions" --json "$tmp/answers-$count" &&
            has_lines "$log" 'questions: 2 questions, acc [01]\.[05]000 \+- 0\.[05]000, acc_norm .*, loss of the right choice [0-9.]+$'
        verdict $? "launch/evaluate on $count ranks"
    done
    check "the answers on 2 ranks are those on 1" cmp "$tmp/answers-1" "$tmp/answers-2"
    echo '{"question": "x", "choices": ["a"], "answer": 0}' >"$tmp/wrong"
    refused 1 "wrong, line 1: expected a JSON object" "a question without choices" \
        logged launch/evaluate --model "$tmp/run/model" --questions "$tmp/wrong"
    refused 1 "questions is needed" "no questions" logged launch/evaluate --model "$tmp/run/model"
fi
if "$PYTHON" -c 'import torch, transformers, tokenizers, jinja2, pyarrow' 2>/dev/null; then
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
    "$PYTHON" - >"$tmp/questions" <<'END'
import json, random
rng, words = random.Random(1), open("LICENSE").read().split()
part = lambda at, count: " ".join(words[at:at + count])
for i in range(30):
    at, count = rng.randrange(len(words) - 40), rng.randrange(3, 20)
    choices = [part(at + count, rng.randrange(1, 6))] + [part(rng.randrange(len(words) - 9), rng.randrange(1, 6)) for _ in range(3)]
    answer = rng.randrange(4)
    choices[0], choices[answer] = choices[answer], choices[0]
    print(json.dumps({"question": part(at, count) + rng.choice(["", ",", " ", "\n"]), "choices": choices, "answer": answer}))
END
    logged launch/evaluate --model "$tmp/words/model" --questions "$tmp/questions" --json "$tmp/answers" &&
        logged "$PYTHON" tests/tools/generate_oracle.py choices "$tmp/words/model" "$tmp/questions" "$tmp/answers"
    verdict $? "launch/evaluate: the answers and losses of transformers"
else
    verdict 0 "texts, chats and answers of transformers # SKIP no torch, transformers, tokenizers, jinja2 or pyarrow"
fi
finish
