/* *address = where a buffer lies in the device's memory. Grid: one work-group. Deterministic for a buffer that stays. */
KERNEL void address_of(global const char *buffer, global ulong *address)
{
    if (is_first_item())
        *address = (ulong)buffer;
}
