/*
 * The transposes of a stack of byte matrices: to[g,j,i] = from[g,i,j], from [groups,rows,columns],
 * for operands whose terms must be contiguous. Groups without rows of `ends` are left out, as no
 * product reads them.
 *
 * A work-group of 256 turns a tile of 128 x 128 bytes by way of local memory (16.5 KiB), in 16-byte
 * words on both sides; a work-item makes 4 words of 16 x 4 bytes. Rows and columns must be
 * multiples of 16. Grid: [tiles across, tiles down, groups].
 */
#define TILE 128

/* The word in local memory of a row's columns 4 word to 4 word + 3; 16 rows further on lies another
 * bank. */
static inline uint word_at(uint row, uint word) {
    return row * (TILE / 4) + row / 16 * 4 + word;
}

kernel __attribute__((reqd_work_group_size(256, 1, 1))) void transpose_bytes(
    global const uchar *from, global uchar *to, uint rows, uint columns, global const uint *ends) {
    local uint tile[TILE * TILE / 4 + TILE / 16 * 4];
    const uint g = get_group_id(2), item = get_local_id(0), high = get_group_id(1) * TILE,
               left = get_group_id(0) * TILE;
    if (group_start(ends, g) == ends[g])
        return;
    from += (size_t)g * rows * columns;
    to += (size_t)g * rows * columns;
    for (uint i = item; i < TILE * TILE / 16; i += 256) {
        const uint row = i / (TILE / 16), column = i % (TILE / 16) * 16;
        if (high + row < rows && left + column < columns) {
            const uint4 words =
                *(global const uint4 *)(from + (size_t)(high + row) * columns + left + column);
            const uint at = word_at(row, column / 4);
            tile[at] = words.x;
            tile[at + 1] = words.y;
            tile[at + 2] = words.z;
            tile[at + 3] = words.w;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint chunk = item % (TILE / 16), word = item / (TILE / 16), i = high + chunk * 16,
               j = left + word * 4;
    if (i >= rows || j >= columns)
        return;
    uchar4 old[16];
    UNROLL_FOR(int k = 0; k < 16; k++)
        old[k] = as_uchar4(tile[word_at(chunk * 16 + k, word)]);
    global uint4 *out = (global uint4 *)(to + (size_t)j * rows + i);
#define FOUR(k, c) as_uint((uchar4)(old[k].c, old[k + 1].c, old[k + 2].c, old[k + 3].c))
#define SIXTEEN(c) (uint4)(FOUR(0, c), FOUR(4, c), FOUR(8, c), FOUR(12, c))
    const uint step = rows / 16;
    out[0] = SIXTEEN(x);
    out[step] = SIXTEEN(y);
    out[2 * step] = SIXTEEN(z);
    out[3 * step] = SIXTEEN(w);
}
