/*
 * moert: an expert-parallel runtime for Mixture-of-Experts training.
 *
 *   status.h    errors, initialisers            version.h   the version
 *   context.h   rank, cores, device             layer.h     the MoE layer over an EP x EDP mesh
 *   device.h    device memory                   exchange.h  dispatch and combine for own experts
 *   router.h    routing options                 plan.h      counts, offsets and rows of an exchange
 *   glu.h       options of the GLU              formats.h   dtypes and block-scaled formats
 *   ops.h       grouped GEMMs and fusions       quantize.h  quantizers, casts and layouts
 *   recipe.h    training precisions
 *
 * All headers use these letters: T tokens of a rank, H hidden size, I intermediate size, E experts,
 * K experts per token, R ranks, EP ranks that share one set of experts, EDP replicas of that set, L
 * experts of a rank, M rows that a rank receives.
 */
#ifndef MOERT_MOERT_H
#define MOERT_MOERT_H

#include "moert/context.h"
#include "moert/device.h"
#include "moert/exchange.h"
#include "moert/formats.h"
#include "moert/glu.h"
#include "moert/layer.h"
#include "moert/ops.h"
#include "moert/plan.h"
#include "moert/quantize.h"
#include "moert/recipe.h"
#include "moert/router.h"
#include "moert/status.h"
#include "moert/version.h"

#endif
