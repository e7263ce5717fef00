/*
 * AdamW with decoupled weight decay (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019), in the
 * order of operations of PyTorch:
 *
 *   g = gradient * scale               p = p * keep                        keep  = 1 - rate * decay
 *   m = beta1 * m + rest1 * g          v = beta2 * v + (rest2 * g) * g     restN = 1 - betaN
 *   p = p - step * m / (sqrt(v) / root + epsilon)                          step  = rate / (1 - beta1^t)
 *                                                                          root  = sqrt(1 - beta2^t)
 *
 * Shapes: parameter, gradient, first, second [n] floats. Deterministic; the host computes the factors in float64.
 * A work-item owns BLOCK consecutive floats. No local memory.
 */
#define BLOCK 4096

KERNEL void adamw(global float *restrict parameter, global const float *restrict gradient,
                  global float *restrict first_moment, global float *restrict second_moment, ulong n, float scale,
                  float keep, float beta1, float rest1, float beta2, float rest2, float step, float root, float epsilon)
{
    ulong first = get_group_id(0) * (ulong)BLOCK, end = min(first + BLOCK, n);
    for (ulong i = first; i < end; i += VEC) {
        int part = (int)min((ulong)VEC, end - i);
        vec g = load_part(gradient + i, part) * scale;
        vec p = load_part(parameter + i, part) * keep;
        vec m = load_part(first_moment + i, part) * beta1 + g * rest1;
        vec v = load_part(second_moment + i, part) * beta2 + (g * rest2) * g;
        vec denominator = sqrt(v) / (vec)(root) + (vec)(epsilon);
        store_part(m, first_moment + i, part);
        store_part(v, second_moment + i, part);
        store_part(p - m * step / denominator, parameter + i, part);
    }
}
