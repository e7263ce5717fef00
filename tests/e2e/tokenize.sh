#!/usr/bin/env bash
# run: all
# launch/tokenize and detokenize: datasets have the tokens that the tokenizers library gives, the rows that pyarrow reads, and the
# masks of transformers. An interrupted run continues; bad input gives one message. The script needs Python 3 with these packages
# (PYTHON), and is skipped without them.
. "$(dirname "$0")/../support/e2e.sh"
export PYTHON=${PYTHON:-python3} TRANSFORMERS_VERBOSITY=error
if ! "$PYTHON" -c 'import tokenizers, pyarrow, transformers, jinja2' 2>/dev/null; then
    PYTHON=$tmp/none logged launch/tokenize --tokenizer none --out none LICENSE
    [ $? -eq 1 ] && grep -q "^tokenize: there is no '$tmp/none'" "$log"
    verdict $? "without Python, a message says so"
    verdict 0 "tokens and masks of datasets # SKIP $PYTHON lacks tokenizers, pyarrow, transformers or jinja2"
    finish
    exit
fi
oracle() { DOCUMENTS=${TEST_DOCUMENTS:-1000} logged "$PYTHON" tests/tools/token_oracle.py "$1" "$tmp/data"; }
tokenize() { # TOKENIZER OUT OPTION...
    logged launch/tokenize --tokenizer "$tmp/data/$1" --out "$tmp/data/$2" "${@:3}"
}

mkdir "$tmp/data"
oracle make
verdict $? "three tokenizers are trained"
for name in bpe unigram wordpiece; do
    tokenize $name $name-out --processes 2 "$tmp/data/corpus" && has_lines "$log" "tokens \(uint16\) in .* documents, [0-9.]+ bytes per token"
    verdict $? "$name: JSON lines, gzip and Parquet become a dataset"
done
tokenize chat chats-out "$tmp/data/chats.jsonl" && ! grep -q warning "$log" && tokenize chat pairs-out "$tmp/data/pairs.jsonl" &&
    has_lines "$log" '20 examples' 'document end 3' && tokenize thinking borders-out "$tmp/data/borders.jsonl"
verdict $? "messages, and prompts with completions, become a dataset with a mask"
tokenize late late-out "$tmp/data/chats.jsonl" && [ "$(grep -c 'warning: the chat template has <e> behind what the assistant generates' "$log")" = 1 ]
verdict $? "an end of turn outside of what the assistant generates is warned of once"
oracle compare
verdict $? "tokens equal those of tokenizers and pyarrow, masks those of transformers"
ranks 1 "$bin/moert-info" --data "$tmp/data/bpe-out" --documents "$tmp/documents"
[ "$(wc -l <"$tmp/documents")" -eq "${TEST_DOCUMENTS:-1000}" ]
verdict $? "moert-info reads the dataset"
ranks 1 "$bin/moert-train" --data "$tmp/data/pairs-out" --steps 1 --batch 2 --length 8 --out "$tmp/run"
[ $? -eq 0 ] && grep -q '"vocab_size": 600' "$tmp/run/model/config.json" && grep -q '"eos_token_id": 3' "$tmp/run/model/config.json"
verdict $? "a new model takes vocabulary and end token of the dataset"
refused 1 'tokenizer with a vocabulary of 600, above the model.s 300' "a model with a smaller vocabulary is refused" \
    ranks 1 "$bin/moert-train" --data "$tmp/data/pairs-out" --vocabulary 300 --steps 1 --batch 2 --length 8
refused 2 'the model.s vocabulary is 600, not the 256 bytes; make tokens of it by launch/tokenize' "text for a model with a tokenizer is refused" \
    ranks 1 "$bin/moert-train" --model "$tmp/run/model" --data LICENSE --steps 1
ranks 1 "$bin/moert-train" --model "$tmp/run/model" --data LICENSE --bytes --steps 1 --batch 2 --length 8
verdict $? "unless bytes are meant"
printf 'A first document.' >"$tmp/first.txt"
tokenize bpe first "$tmp/first.txt" && [ "$(launch/detokenize --tokenizer "$tmp/data/bpe" "$tmp/data/first" | sed 's/^ //')" = 'A first document.' ]
verdict $? "detokenize prints the text of a dataset"
ranks 1 "$bin/moert-info" --data "$tmp/data/first" --documents "$tmp/documents"
[ "$(launch/detokenize --tokenizer "$tmp/data/bpe" - <"$tmp/documents" | sed 's/^ //')" = 'A first document.' ]
verdict $? "detokenize prints the text of JSON arrays of tokens"

# an unreadable second part interrupts the run; the finished first part is kept
mkdir "$tmp/two"
cp "$tmp/first.txt" "$tmp/two/a.txt" && printf '\377' >"$tmp/two/b.txt"
tokenize bpe two --processes 1 "$tmp/two"
[ $? -eq 1 ] && grep -q "^tokenize: $tmp/two/b.txt: is no UTF-8" "$log" && [ -e "$tmp/data/two.parts/000000.json" ] && [ ! -e "$tmp/data/two.idx" ]
verdict $? "text that is no UTF-8 is named"
kept=$(stat -c %Y.%i "$tmp/data/two.parts/000000.bin")
tokenize bpe two --processes 1 "$tmp/two"
[ "$(stat -c %Y.%i "$tmp/data/two.parts/000000.bin")" = "$kept" ]
verdict $? "a repeated run keeps finished parts"
printf 'good' >"$tmp/two/b.txt"
tokenize bpe two "$tmp/two" && has_lines "$log" 'in 2 documents' && [ ! -e "$tmp/data/two.parts" ]
verdict $? "when an input has changed, the run begins anew"

refused 1 "^tokenize: .*/unmarked: its chat template has no \{% generation %\}" "a chat template without marks is refused" \
    tokenize unmarked none "$tmp/data/chats.jsonl"
echo '{"text": 1}' >"$tmp/bad.jsonl"
refused 1 "^tokenize: $tmp/bad.jsonl, byte 0: has no text in 'text'" "a record without text is named" tokenize bpe none "$tmp/bad.jsonl"
echo '{"text":' >"$tmp/bad.jsonl"
refused 1 "^tokenize: $tmp/bad.jsonl, byte 0: is no JSON" "a line that is no JSON is named" tokenize bpe none "$tmp/bad.jsonl"
echo '{"text": "\ud800"}' >"$tmp/bad.jsonl"
refused 1 "^tokenize: $tmp/bad.jsonl, byte 0: its text is no Unicode" "half of a surrogate pair is named" tokenize bpe none "$tmp/bad.jsonl"
printf 'x' >"$tmp/bad.jsonl.gz"
refused 1 "^tokenize: $tmp/bad.jsonl.gz: Not a gzipped" "a damaged gzip file is named" tokenize bpe none "$tmp/bad.jsonl.gz"
tokenize bpe named --end '<e>' "$tmp/first.txt" && has_lines "$log" 'document end 3'
verdict $? "an end token is named by its text"
tokenize bpe named --end '<eos>' "$tmp/first.txt"
[ $? -eq 2 ] && grep -q -e "--end <eos>: the tokenizer has no such token" "$log"
verdict $? "a token that the tokenizer does not have is refused"
refused 1 "^tokenize: .*(/nothing/tokenizer.json|nothing: there is no such file)" "a missing tokenizer is named" \
    tokenize nothing none "$tmp/first.txt"
finish
