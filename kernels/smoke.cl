KERNEL void twice(global float *x, int n)
{
    int i = get_group_id(0) * VEC;
    store_part(2.0f * load_part(x + i, n - i), x + i, n - i);
}
