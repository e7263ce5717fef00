/*
 * OUT/run.json, an object:
 *
 *   format      1
 *   status      "running" (also of a run that was killed), "ended", "interrupted"
 *   step, of    steps done and planned
 *   tokens      of these steps
 *   model       {"model_type", "parameters", "layers", "hidden", "experts", "topk"}
 *   data, split their identity, as checkpoints have it
 *   held_out    {"last", "last_step", "best", "best_step"}, or null
 *   sessions    one for each start of the run: what trainer options.record holds ("version",
 *               "commit", "command", "options"), "begun" and "ended" (UTC; null: not ended),
 *               "from_step", "exchange", and "ranks": [{"host", "device", "driver"}]
 */
#pragma once

enum { MOERT_RUN_FILE_FORMAT = 1 };
#define MOERT_RUN_FILE "run.json"
