"""A tiny Qwen3-MoE and its loss on completions by trl's SFTTrainer; tests/parity/sft runs it.

make DIRECTORY      writes DIRECTORY/model with its tokenizer, and DIRECTORY/pairs.jsonl
compare DIRECTORY   compares trl's loss of all pairs, in one batch, with that of DIRECTORY/metrics.jsonl
"""
import json
import sys

LIMIT = 1e-5
PAIRS = 24
AUX_COEFFICIENT = 0.001  # of the config


def make(directory):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

    with open("LICENSE", encoding="utf-8") as file:
        lines = [line.strip() for line in file if len(line.split()) > 4]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=500, special_tokens=["<end>", "<pad>"], initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.save_pretrained(f"{directory}/model")
    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        vocab_size=512, hidden_size=64, moe_intermediate_size=48, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, max_position_embeddings=256, eos_token_id=fast.eos_token_id, initializer_range=0.2,
        router_aux_loss_coef=AUX_COEFFICIENT, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(f"{directory}/model")
    with open(f"{directory}/pairs.jsonl", "w", encoding="utf-8") as file:
        for first, second in zip(lines[:PAIRS], lines[PAIRS : 2 * PAIRS]):
            file.write(json.dumps({"prompt": first, "completion": " " + second}) + "\n")


def loss_of_trl(directory):
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(f"{directory}/model", local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(f"{directory}/model", dtype=torch.float32, local_files_only=True)
    with open(f"{directory}/pairs.jsonl", encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    arguments = SFTConfig(
        output_dir=f"{directory}/trl", per_device_train_batch_size=len(pairs), completion_only_loss=True, report_to=[],
        use_cpu=True, bf16=False, max_length=None, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch)).item()
    return loss, int((batch["labels"] != -100).sum())


def compare(directory):
    loss, targets = loss_of_trl(directory)
    with open(f"{directory}/metrics.jsonl") as file:
        step = json.loads(file.readline())
    ours = step["loss"] + AUX_COEFFICIENT * step["aux_loss"]
    print(f"loss of {PAIRS} completions, {targets} targets: trl {loss:.8f}, moert {ours:.8f} (limit {LIMIT:.0e})")
    sys.exit(abs(loss - ours) > LIMIT * abs(loss))


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](sys.argv[2])
