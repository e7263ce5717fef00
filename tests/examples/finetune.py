"""Fine-tunes a Qwen3-MoE model of transformers: python3 finetune.py [moert|eager|grouped_mm] [DIRECTORY]

Without the directory of a model it makes a small random one. Under mpirun, with moert, each rank keeps a part of the experts and has a
part of the sequences. The printed losses agree.
"""
import sys

import moert.transformers
import torch
import transformers

implementation = sys.argv[1] if len(sys.argv) > 1 else "moert"
torch.manual_seed(1)
if len(sys.argv) > 2:
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
else:
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        moe_intermediate_size=64, intermediate_size=64, num_experts=8, num_experts_per_tok=2, decoder_sparse_step=1))
ids = torch.randint(3, 128, (8, 32))

model.set_experts_implementation(implementation)
context = moert.default_context()
if implementation == "moert":
    moert.transformers.shard(model, context)
    ids = ids.tensor_split(context.size)[context.rank]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(10):
    loss = model(input_ids=ids, labels=ids).loss * (len(ids) / 8)  # the ranks' losses sum up to the mean
    optimizer.zero_grad()
    loss.backward()
    if implementation == "moert":
        moert.transformers.reduce_gradients(model)
    optimizer.step()
    total = sum(context.gather(loss.item())) if implementation == "moert" else loss.item()
    if context.rank == 0 and step in (0, 9):
        print(f"step {step}: loss {total:.3f}")
