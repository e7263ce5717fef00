/*
 * Transposes a stack of byte matrices: to[g,j,i] = from[g,i,j], from[groups,rows,columns], for
 * operands that must be contiguous along K. Groups without rows in `ends` are skipped, since no
 * GEMM reads them.
 *
 * A work-group of 256 transposes a tile of 128 x 128 bytes through local memory. The work-group
 * loads and stores words of 16 bytes; a work-item transposes 16 x 4 bytes to 4 words, which it
 * stores. Rows and columns must be multiples of 16. Required: nothing. Grid: (tiles across, tiles
 * down, groups). Local memory: 16512 bytes. Deterministic.
 */
#define TILE 128

/* The index in local memory of columns 4 word to 4 word + 3 of a row. A pad of 4 words after every
 * 16 rows puts rows 16 apart in different banks. */
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
